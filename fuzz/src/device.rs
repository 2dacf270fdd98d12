//! A small memory device that counts its requests.

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Extent, ExtentKind, Geometry, Op, Request};
use corewise_sync::Mutex;

/// Size of the device in bytes: small, so that an input of a few kilobytes can't ask for gigabytes
/// of replies.
const SIZE: usize = 16 << 10;
/// Size of a large one: its reads are worth asking for holes first, and its longest requests go in
/// by pieces.
const LARGE: usize = 640 << 10;

pub(crate) struct Device {
    geometry: Geometry,
    /// L: is the lock; guards contents and count.
    state: Mutex<(Vec<u8>, usize)>,
}

/// Returns the first contents of a device: neighbouring blocks differ, and a large device has
/// holes.
fn contents(size: usize) -> Vec<u8> {
    let byte = |i: usize| if i >> 16 & 1 == 1 { 0 } else { (i / 512 + 1) as u8 };
    (0..size).map(byte).collect()
}

impl Device {
    /// Creates a small device with every feature.
    pub(crate) fn new() -> Arc<Device> {
        Device::with(false, false)
    }

    /// Creates a device. A plain one can only read and write.
    pub(crate) fn with(plain: bool, large: bool) -> Arc<Device> {
        let size = if large { LARGE } else { SIZE };
        let mut geometry = Geometry::new(size as u64);
        (geometry.can_fast_zero, geometry.can_prefetch) = (!plain, !plain);
        (geometry.can_discard, geometry.can_write_zeroes) = (!plain, !plain);
        geometry.can_fua = !plain;
        Arc::new(Device { geometry, state: Mutex::new((contents(size), 0)) })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state.lock().0.clone()
    }

    pub(crate) fn requests(&self) -> usize {
        self.state.lock().1
    }
}

impl BlockDevice for Device {
    fn name(&self) -> &str {
        "fuzz"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut rq: Request) {
        let (from, to) = (rq.offset() as usize, (rq.offset() + rq.len()) as usize);
        let mut state = self.state.lock();
        state.1 += 1;
        match rq.op() {
            Op::Read => {
                rq.put(&state.0[from..to]);
            }
            Op::Write => {
                rq.copy_to(&mut state.0[from..to]);
            }
            Op::Discard | Op::WriteZeroes => state.0[from..to].fill(0),
            Op::Extents => {
                for block in state.0[from..to].chunks(512) {
                    let zero = block.iter().all(|byte| *byte == 0);
                    let kind = if zero { ExtentKind::Hole } else { ExtentKind::Data };
                    rq.put_extent(Extent { len: 512, kind });
                }
            }
            _ => {}
        }
        drop(state);
        rq.complete(Ok(()));
    }
}
