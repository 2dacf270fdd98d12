//! The line of those who wait for a tag: first come, first served. `README.md` names the steps.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::Inbox;
use corewise_sync::list::List;

use super::bitmap::{Bitmap, TagBatch, WAITING};
use super::policy::WAKE_BATCH;
use super::waiter::TagWaiter;
use crate::admission::run_state::{Claim, End, RunState};

/// The waiters. `MARKS` is false only in the model that shows what the mark is for.
pub(super) struct Line<const MARKS: bool> {
    /// Those who came since it was last served.
    arrivals: Inbox<Arc<TagWaiter>>,
    /// A: somebody who stood in line has left. Set after the waiter's state, Release; taken in a turn.
    left: AtomicBool,
    /// Whose turn it is to serve.
    turn: RunState,
    /// P: owned by the holder of RUNNING in `turn`.
    served: UnsafeCell<Served>,
}

struct Served {
    /// Oldest first.
    waiters: List<Arc<TagWaiter>>,
    /// WAITING is set in every word.
    marked: bool,
}

// SAFETY: `served` is the only field that isn't Sync by itself. It is touched by the holder of RUNNING only, and
// claims and ends are AcqRel read-modify-writes of one word. Waiters are Send and Sync.
unsafe impl<const MARKS: bool> Sync for Line<MARKS> {}
// SAFETY: as above; nothing in it is bound to a thread.
unsafe impl<const MARKS: bool> Send for Line<MARKS> {}

/// Those who got a tag, and are to be told once the turn is over.
#[derive(Default)]
struct Told {
    waiters: [Option<Arc<TagWaiter>>; WAKE_BATCH],
    len: usize,
}

/// How a round ended.
enum Round {
    /// Nobody can be served now.
    Done,
    /// A batch has been served; there may be more.
    Batch,
}

impl<const MARKS: bool> Line<MARKS> {
    pub(super) fn new() -> Self {
        let served = Served { waiters: List::new(), marked: false };
        Self {
            arrivals: Inbox::new(),
            left: AtomicBool::new(false),
            turn: RunState::new(),
            served: UnsafeCell::new(served),
        }
    }

    /// LineUp. The waiter has been entered; the caller then serves.
    pub(super) fn push(&self, waiter: Arc<TagWaiter>) {
        self.arrivals.push(waiter);
    }

    /// A waiter has left: the next server takes it out. The caller serves, so that a line of people who lose
    /// patience doesn't grow without end.
    pub(super) fn note_left(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Gives free tags to those who wait, the oldest first, and tells them; `own` isn't told, and true is
    /// returned where it got one. Never blocks: where somebody serves already, they look once more.
    pub(super) fn serve(&self, tags: &Bitmap, cpu: usize, own: Option<&TagWaiter>) -> bool {
        let mut own_got = false;
        loop {
            match self.turn.claim() {
                Claim::Runner => {}
                Claim::Joined => return own_got,
            }
            let mut told = Told::default();
            let round = self.round(tags, cpu, &mut told);
            // Outside of the turn, so that others may serve while this thread wakes.
            for waiter in told.waiters.iter().flatten() {
                if own.is_some_and(|own| std::ptr::eq(own, &**waiter)) {
                    own_got = true;
                } else {
                    waiter.wake();
                }
            }
            if let Round::Done = round {
                return own_got;
            }
        }
    }

    /// Serves until nobody came meanwhile, or a batch is full. Ends the turn.
    fn round(&self, tags: &Bitmap, cpu: usize, told: &mut Told) -> Round {
        loop {
            self.served.with_mut(|served| {
                // SAFETY: RUNNING is ours, and it is given back below, outside of this.
                self.serve_some(unsafe { &mut *served }, tags, cpu, told);
            });
            if told.len == WAKE_BATCH {
                // The mark of one that joined, lost here, is looked for again at once by the caller.
                let _nobody_waits_for_a_turn = self.turn.hand_over();
                return Round::Batch;
            }
            if let End::Ended { .. } = self.turn.end() {
                return Round::Done;
            }
        }
    }

    fn serve_some(&self, served: &mut Served, tags: &Bitmap, cpu: usize, told: &mut Told) {
        served.waiters.append(&self.arrivals, |_| {});
        if self.left.load(Ordering::Relaxed) && self.left.swap(false, Ordering::Acquire) {
            while served.waiters.take_first(|waiter| waiter.is_gone()).is_some() {}
        }
        while told.len < WAKE_BATCH {
            let Some(first) = served.waiters.front() else {
                // Unmark, where somebody could take a tag if it weren't for the mark.
                if served.marked && tags.any_free() {
                    tags.clear_mark(WAITING);
                    served.marked = false;
                }
                return;
            };
            if first.is_gone() {
                drop(served.waiters.pop_front());
                continue;
            }
            // Mark, then Retry: a tag freed before the mark was there told nobody.
            if MARKS && !served.marked {
                let _in_use = tags.set_mark(WAITING);
                served.marked = true;
            }
            let Some(tag) = tags.take(cpu, 1, true).and_then(|mut one| one.pop()) else { return };
            let Some(waiter) = served.waiters.pop_front() else { return };
            if waiter.grant(tag) {
                told.waiters[told.len] = Some(waiter);
                told.len += 1;
            } else {
                // It left this very moment. The mark is there, and this turn isn't over.
                let _marks = tags.free(TagBatch::one(tag), 0);
            }
        }
    }
}
