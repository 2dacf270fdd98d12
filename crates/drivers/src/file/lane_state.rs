//! The word of a lane: how many requests wait in it, how many workers it has, and how many of these are at a
//! request. Lanes are the file driver's (`README.md` beside this file has the protocol).

use std::fmt;

use corewise_sync::atomic::{AtomicU64, Ordering};

/// A request that waits.
const WAITING: u64 = 1 << 32;
/// A worker that is on its way, looks for a request, or is at one.
const WORKER: u64 = 1 << 16;
/// One that is at a request.
const BUSY: u64 = 1;
/// Bits of the two lower counts.
const COUNT: u64 = WORKER - 1;

/// What [`LaneState::push`] asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request without a worker waits for ever"]
pub enum Pushed {
    /// Some worker takes it.
    Served,
    /// The caller has to send a worker, which is counted already.
    SendWorker,
}

/// The word. All changes are read-modify-writes of it, so they have one order.
#[derive(Default)]
pub struct LaneState {
    /// A: the three counts. AcqRel: a worker that takes a request sees what its pusher did before.
    word: AtomicU64,
}

impl LaneState {
    /// Nothing waits, and there is no worker.
    pub fn new() -> Self {
        Self::default()
    }

    /// Push: a request has been put into the lane, which has room for `most` workers, at least one.
    #[inline]
    pub fn push(&self, most: u16) -> Pushed {
        let mut pushed = Pushed::Served;
        self.change(|word| {
            let (word, send) = (word + WAITING, wants_worker(word + WAITING, most));
            pushed = if send { Pushed::SendWorker } else { Pushed::Served };
            if send { word + WORKER } else { word }
        });
        pushed
    }

    /// Next, for a worker that is done with a request (`had`), or has had none: true where there is one that it may take now.
    /// False: it is counted out, and leaves.
    #[inline]
    pub fn next(&self, had: bool) -> bool {
        let done = if had { BUSY } else { 0 };
        let before = self.change(|word| match word - done {
            free if free < WAITING => free - WORKER,
            free => free - WAITING + BUSY,
        });
        before - done >= WAITING
    }

    /// How many workers it has.
    pub fn workers(&self) -> u64 {
        (self.word.load(Ordering::Relaxed) / WORKER) & COUNT
    }

    fn change(&self, mut step: impl FnMut(u64) -> u64) -> u64 {
        let always = |word| Some(step(word));
        let (Ok(before) | Err(before)) =
            self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, always);
        before
    }
}

/// Whether more requests wait than workers are about to take one, and there is room for one more worker.
fn wants_worker(word: u64, most: u16) -> bool {
    let (waiting, workers, busy) = (word / WAITING, (word / WORKER) & COUNT, word & COUNT);
    waiting > workers - busy && workers < u64::from(most.max(1))
}

impl fmt::Debug for LaneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("LaneState")
            .field("waiting", &(word / WAITING))
            .field("workers", &((word / WORKER) & COUNT))
            .field("busy", &(word & COUNT))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_sent_only_where_none_is_about_to_look_and_there_is_room() {
        let lane = LaneState::new();
        assert_eq!(lane.push(2), Pushed::SendWorker);
        assert!(lane.next(false), "it takes the first");
        assert_eq!(lane.push(2), Pushed::SendWorker, "the first worker is at a request");
        assert_eq!(lane.push(2), Pushed::Served, "no room for a third worker");
        assert!(lane.next(true) && lane.next(false));
        assert!(!lane.next(true), "nothing is left: it leaves");
        assert_eq!(lane.workers(), 1);
        assert!(!lane.next(true));
        assert_eq!(lane.push(2), Pushed::SendWorker, "all have left");
        assert_eq!(lane.workers(), 1);
    }

    #[test]
    fn a_worker_that_is_on_its_way_counts_for_one_request_only() {
        let lane = LaneState::new();
        assert_eq!(lane.push(8), Pushed::SendWorker);
        assert_eq!(lane.push(8), Pushed::SendWorker);
        assert!(lane.next(false));
        assert_eq!(lane.push(8), Pushed::SendWorker);
    }
}
