//! A device that keeps what is volatile apart from what is durable, and holds requests back.

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Geometry, IoError, IoErrorKind, Op, Request};
use corewise_export::SharedDevice;
use corewise_sync::{Condvar, Mutex};

/// A device in memory.
pub(crate) struct TestDevice {
    /// L: is the lock; guards everything.
    state: Mutex<DeviceState>,
    changed: Condvar,
}

struct DeviceState {
    geometry: Geometry,
    volatile: Vec<u8>,
    durable: Vec<u8>,
    /// The requests that are held back, while they are.
    held: Option<Vec<Request>>,
    ops: Vec<(Op, u64, u64)>,
    fails: Option<IoErrorKind>,
}

impl TestDevice {
    pub(crate) fn new(geometry: Geometry) -> Arc<Self> {
        let bytes = vec![0; geometry.size as usize];
        Arc::new(Self {
            state: Mutex::new(DeviceState {
                geometry,
                volatile: bytes.clone(),
                durable: bytes,
                held: None,
                ops: Vec::new(),
                fails: None,
            }),
            changed: Condvar::new(),
        })
    }

    /// Creates one of that many bytes.
    pub(crate) fn of(bytes: u64) -> Arc<Self> {
        Self::new(Geometry::new(bytes))
    }

    pub(crate) fn shared(self: &Arc<Self>) -> Arc<SharedDevice> {
        SharedDevice::new(Arc::clone(self) as Arc<dyn BlockDevice>)
    }

    /// Returns what reads find.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state.lock().volatile.clone()
    }

    /// Returns what a crash leaves.
    pub(crate) fn durable(&self) -> Vec<u8> {
        self.state.lock().durable.clone()
    }

    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) {
        self.state.lock().volatile[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Makes everything durable.
    pub(crate) fn flush_all(&self) {
        let mut state = self.state.lock();
        state.durable = state.volatile.clone();
    }

    /// Returns the requests that came since the last call.
    pub(crate) fn take_ops(&self) -> Vec<(Op, u64, u64)> {
        std::mem::take(&mut self.state.lock().ops)
    }

    /// Holds requests back from now on.
    pub(crate) fn hold(&self) {
        self.state.lock().held = Some(Vec::new());
    }

    /// Waits until `count` requests are held back.
    pub(crate) fn wait_held(&self, count: usize) {
        let mut state = self.state.lock();
        while state.held.as_ref().is_none_or(|held| held.len() < count) {
            state = self.changed.wait(state);
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.state.lock().held.as_ref().map_or(0, Vec::len)
    }

    /// Executes the request at this place among those held back.
    pub(crate) fn release_one(&self, place: usize) {
        let rq = self.state.lock().held.as_mut().expect("requests are held").remove(place);
        self.execute(rq);
    }

    /// Executes what is held back, and holds nothing more.
    pub(crate) fn release(&self) {
        let held = self.state.lock().held.take();
        held.into_iter().flatten().for_each(|rq| self.execute(rq));
    }

    /// Makes requests fail, or not.
    pub(crate) fn fail(&self, kind: Option<IoErrorKind>) {
        self.state.lock().fails = kind;
    }

    pub(crate) fn grow(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.geometry.size = bytes;
        state.volatile.resize(bytes as usize, 0);
        state.durable.resize(bytes as usize, 0);
    }

    fn execute(&self, mut rq: Request) {
        let mut state = self.state.lock();
        let (from, len) = (rq.offset() as usize, rq.len() as usize);
        let range = from..from + len;
        let mut result = Ok(());
        match (state.fails, rq.op()) {
            (Some(kind), _) => result = Err(IoError::new(kind)),
            (None, Op::Read) => _ = rq.put(&state.volatile[range]),
            (None, Op::Write) => _ = rq.copy_to(&mut state.volatile[range]),
            (None, Op::Discard | Op::WriteZeroes) => state.volatile[range].fill(0),
            (None, Op::Flush) => state.durable = state.volatile.clone(),
            _ => result = Err(IoError::new(IoErrorKind::NotSupported)),
        }
        if rq.flags().fua && result.is_ok() {
            let range = from..from + len;
            let bytes = state.volatile[range.clone()].to_vec();
            state.durable[range].copy_from_slice(&bytes);
        }
        drop(state);
        rq.complete(result);
    }
}

impl BlockDevice for TestDevice {
    fn name(&self) -> &str {
        "test"
    }

    fn geometry(&self) -> Geometry {
        self.state.lock().geometry
    }

    fn submit(&self, rq: Request) {
        let mut state = self.state.lock();
        state.ops.push((rq.op(), rq.offset(), rq.len()));
        let size = state.geometry.size;
        let beyond = rq.offset().checked_add(rq.len()).is_none_or(|end| end > size);
        if beyond {
            drop(state);
            return rq.complete(Err(IoError::new(IoErrorKind::OutOfRange)));
        }
        if let Some(held) = &mut state.held {
            held.push(rq);
            self.changed.notify_all();
            return;
        }
        drop(state);
        self.execute(rq);
    }
}
