//! A device whose interrupts, refusals and lapses are part of the schedule.

use std::collections::VecDeque;
use std::sync::Arc;

use corewise_blockmq::{Dispatch, Driver, Geometry, Info, Started, TimedOut, TimerReturn};
use corewise_sync::model::choose;
use corewise_sync::{Condvar, Mutex};

pub(crate) const BLOCK: u64 = 512;

/// The requests that the device has, and whether more are to come.
#[derive(Default)]
struct BoxSource {
    requests: VecDeque<Started>,
    closed: bool,
}

/// The device: its one interrupt completes what it has taken, in any order.
#[derive(Default)]
pub(crate) struct Device {
    /// L: is the lock; guards the device's requests.
    taken: Mutex<BoxSource>,
    /// L: waited on with `taken`.
    more: Condvar,
}

impl Device {
    pub(crate) fn interrupts(&self) {
        loop {
            let mut taken = self.taken.lock();
            while taken.requests.is_empty() && !taken.closed {
                taken = self.more.wait(taken);
            }
            let some = taken.requests.len() as u64;
            if some == 0 {
                return;
            }
            let rq = taken.requests.remove(choose(some) as usize).unwrap();
            drop(taken);
            if choose(8) == 0 { rq.requeue() } else { rq.complete(Ok(())) }
        }
    }

    pub(crate) fn close(&self) {
        self.taken.lock().closed = true;
        self.more.notify_all();
    }
}

pub(crate) struct Disk {
    pub(crate) device: Arc<Device>,
    pub(crate) hw_queues: usize,
    pub(crate) depth: u32,
    /// Requests that the device doesn't complete by itself, as long as the queue reminds it.
    pub(crate) forgotten: Option<Mutex<Vec<Started>>>,
}

impl Driver for Disk {
    fn info(&self) -> Info {
        Info {
            hw_queues: self.hw_queues,
            depth: self.depth,
            ..Info::new(
                "chance",
                Geometry { max_discard: 2 * BLOCK, can_fua: false, ..Geometry::new(64 * BLOCK) },
            )
        }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        match (choose(16), &self.forgotten) {
            (0, _) => return Dispatch::Busy(rq),
            (1, _) => return Dispatch::NoResource(rq),
            (2, _) => rq.requeue(),
            (3, Some(forgotten)) => forgotten.lock().push(rq),
            (3..8, _) => rq.complete(Ok(())),
            _ => {
                self.device.taken.lock().requests.push_back(rq);
                self.device.more.notify_all();
            }
        }
        Dispatch::Started
    }

    fn timeout(&self, late: &TimedOut<'_>) -> TimerReturn {
        let rq = self.forgotten.as_ref().and_then(|forgotten| {
            let mut forgotten = forgotten.lock();
            let at = forgotten
                .iter()
                .position(|rq| (rq.hctx(), rq.tag()) == (late.hctx(), late.tag()))?;
            Some(forgotten.swap_remove(at))
        });
        match rq {
            Some(rq) => {
                rq.complete(Ok(()));
                TimerReturn::Done
            }
            None => TimerReturn::ResetTimer,
        }
    }
}
