//! A small memory device that counts what reaches it.

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Extent, ExtentKind, Geometry, Op, Request};
use corewise_sync::Mutex;

/// Size of the device in bytes: small, so that an input of a few kilobytes can't ask for gigabytes
/// of replies.
pub(crate) const SIZE: usize = 16 << 10;

pub(crate) struct Device {
    /// L: is the lock; guards contents and count.
    state: Mutex<(Vec<u8>, usize)>,
}

/// What the device holds at first.
pub(crate) fn contents() -> Vec<u8> {
    (0..SIZE).map(|i| (i / 512 + 1) as u8).collect()
}

impl Device {
    pub(crate) fn new() -> Arc<Device> {
        Arc::new(Device { state: Mutex::new((contents(), 0)) })
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
        Geometry { can_fast_zero: true, can_prefetch: true, ..Geometry::new(SIZE as u64) }
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
            Op::Flush | Op::Prefetch => {}
        }
        drop(state);
        rq.complete(Ok(()));
    }
}
