//! The line of the waiters for a tag: first come, first served. `README.md` names the steps.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::list::List;
use corewise_sync::{Parker, hint, panics, thread};

use super::bitmap::{Bitmap, TagBatch, WAITING, WAKE_BATCH};
use crate::admission::run_state::{Claim, EndOfRun, RunState};

/// The waiters. `MARKS` is false only in the model that shows what the mark is for.
pub(super) struct Line<const MARKS: bool> {
    /// Waiters that came since the line was last served.
    arrivals: Inbox<Arc<TagWaiter>>,
    /// A: true if a waiter that stood in line has left. Set after the waiter's state, Release;
    /// taken in a turn.
    left: AtomicBool,
    /// The turn to serve the line.
    turn: RunState,
    /// P: owned by the holder of RUNNING in `turn`.
    served: UnsafeCell<Served>,
}

struct Served {
    /// The waiters, oldest first.
    waiters: List<Arc<TagWaiter>>,
    /// True while WAITING is set in every word.
    marked: bool,
}

// SAFETY: `served` is the only field that isn't Sync by itself. Only the holder of RUNNING touches
// it, and claims and ends are AcqRel read-modify-writes of one word. Waiters are Send and Sync.
unsafe impl<const MARKS: bool> Sync for Line<MARKS> {}
// SAFETY: as above; nothing in it is bound to a thread.
unsafe impl<const MARKS: bool> Send for Line<MARKS> {}

/// Waiters that got a tag, and are to wake once the turn is over.
#[derive(Default)]
struct Grants {
    waiters: [Option<Arc<TagWaiter>>; WAKE_BATCH],
    len: usize,
}

/// The end of a round.
enum Round {
    /// The round is over: there is no waiter that could be served now.
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

    /// Puts in line a waiter that has been entered; the caller then serves (LineUp).
    pub(super) fn push(&self, waiter: Arc<TagWaiter>) {
        self.arrivals.push(waiter);
    }

    /// Notes that a waiter has left: the next server takes it out. The caller serves, so that a
    /// line of waiters that give up doesn't grow without end.
    pub(super) fn note_left(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Gives free tags to the waiters, the oldest first, and tells them. `own` isn't woken; the
    /// result is true if it got one. Never blocks: if another thread serves already, that one looks
    /// once more.
    pub(super) fn serve(&self, tags: &Bitmap, cpu: usize, own: Option<&TagWaiter>) -> bool {
        let mut own_got = false;
        loop {
            match self.turn.claim() {
                Claim::Runner => {}
                Claim::Joined => return own_got,
            }
            let mut told = Grants::default();
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

    /// Serves until no waiter came meanwhile, or a batch is full. Ends the turn.
    fn round(&self, tags: &Bitmap, cpu: usize, told: &mut Grants) -> Round {
        loop {
            self.served.with_mut(|served| {
                // SAFETY: this thread has RUNNING, and gives it back below, outside of this.
                self.serve_some(unsafe { &mut *served }, tags, cpu, told);
            });
            if told.len == WAKE_BATCH {
                // If one has joined, its mark is lost here, and the caller looks for it again at
                // once.
                let _nobody_waits_for_a_turn = self.turn.hand_over();
                return Round::Batch;
            }
            if let EndOfRun::Ended { .. } = self.turn.end() {
                return Round::Done;
            }
        }
    }

    fn serve_some(&self, served: &mut Served, tags: &Bitmap, cpu: usize, told: &mut Grants) {
        served.waiters.append(&self.arrivals, |_| {});
        if self.left.load(Ordering::Relaxed) && self.left.swap(false, Ordering::Acquire) {
            while served.waiters.take_first(|waiter| waiter.is_gone()).is_some() {}
        }
        while told.len < WAKE_BATCH {
            let Some(first) = served.waiters.front() else {
                // Unmark, if a thread could take a tag but for the mark.
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
            // Mark, then Retry: a tag freed before the mark was there told no waiter.
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
                // The waiter left this very moment. The mark is there, and this turn isn't over.
                let _marks = tags.free(TagBatch::one(tag), 0);
            }
        }
    }
}

// A waiter in line for a tag: a thread, or a function that is called.

/// The state of a waiter outside of the line. Set by the owner, which takes what was granted.
const IDLE: u64 = 0;
/// The state of a waiter in line. Set by the owner, which then puts it there.
const IN_LINE: u64 = 1;
/// The state of a waiter whose owner has left: the line's server drops it. Final.
const GONE: u64 = 2;
/// The state of a waiter with a tag, whose number is in the bits above `STATE`. Set by the line's
/// server.
const GRANTED: u64 = 3;
const STATE: u64 = 3;
const TAG_SHIFT: u32 = 2;

/// Number of times that a waiting thread lets others run before it sleeps. (To models that would be
/// the same step again.)
const YIELDS: usize = if hint::IN_MODEL { 0 } else { 8 };

/// The way to wake a waiter.
enum Wake {
    Thread(Parker),
    Call(Box<dyn Fn() + Send + Sync>),
}

/// A place in the line of a [`TagSet`](super::TagSet), used again and again by one owner.
pub struct TagWaiter {
    link: Link,
    /// A: one of the states above, and the tag.
    state: AtomicU64,
    wake: Wake,
}

// SAFETY: always the one field of `self`.
unsafe impl HasLink for TagWaiter {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl TagWaiter {
    fn new(wake: Wake) -> Arc<Self> {
        Arc::new(Self { link: Link::new(), state: AtomicU64::new(IDLE), wake })
    }

    /// Creates a waiter that calls `granted` each time that it got a tag, on the thread that serves
    /// the line: any that returns a tag, or lines up. `granted` must not block, and the tag has to
    /// be fetched with [`TagWaiter::take`], there or elsewhere. A panic in it is caught. It is
    /// dropped with the waiter.
    pub fn calling(granted: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Self::new(Wake::Call(Box::new(granted)))
    }

    /// Creates a waiter that the calling thread sleeps on.
    pub(super) fn thread() -> Arc<Self> {
        Self::new(Wake::Thread(Parker::new()))
    }

    /// Takes the tag that it got, if any: the caller has it now, and the waiter may line up again.
    pub fn take(&self) -> Option<u32> {
        let state = self.state.load(Ordering::Relaxed);
        if state & STATE != GRANTED {
            return None;
        }
        // Acquire pairs with the Release of the grant. Two threads may try: the one that was woken,
        // and one that looks by itself.
        self.state
            .compare_exchange(state, IDLE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some((state >> TAG_SHIFT) as u32)
    }

    /// Takes the tag as [`TagWaiter::take`] does, by a thread that is about to sleep. It first lets
    /// others run for about as long as a sleep would cost, since the owners of tags may return them
    /// at once.
    pub(super) fn take_soon(&self) -> Option<u32> {
        for _ in 0..YIELDS {
            if let Some(tag) = self.take() {
                return Some(tag);
            }
            thread::yield_now();
        }
        self.take()
    }

    /// Returns true if it had, a moment ago, a tag that was not taken yet.
    pub fn is_granted(&self) -> bool {
        self.state.load(Ordering::Relaxed) & STATE == GRANTED
    }

    /// Returns true if it stood in line a moment ago.
    pub fn is_in_line(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IN_LINE
    }

    /// Puts the owner in line. Returns false if it stands there already, or has a tag to take.
    pub(super) fn enter(&self) -> bool {
        let entered =
            self.state.compare_exchange(IDLE, IN_LINE, Ordering::Relaxed, Ordering::Relaxed);
        entered.is_ok()
    }

    /// Leaves for good. `Some`: a tag that was granted meanwhile, which is the caller's now.
    pub(super) fn leave(&self) -> Option<u32> {
        let state = self.state.swap(GONE, Ordering::AcqRel);
        (state & STATE == GRANTED).then_some((state >> TAG_SHIFT) as u32)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Relaxed) == GONE
    }

    /// Gives it a tag. Returns false if it has left. The caller has taken it out of the line
    /// before: from this moment its owner may line up again.
    pub(super) fn grant(&self, tag: u32) -> bool {
        let granted = GRANTED | u64::from(tag) << TAG_SHIFT;
        // Release: the taker of the tag sees what its last user did.
        self.state.compare_exchange(IN_LINE, granted, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Tells the owner. A panic in the owner's function doesn't reach the caller.
    pub(super) fn wake(&self) {
        match &self.wake {
            Wake::Thread(parker) => parker.unpark(),
            Wake::Call(granted) => {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(granted)) {
                    panics::discard(panic);
                    tracing::error!("a function that waited for a tag panicked");
                }
            }
        }
    }

    /// Sleeps until it is woken. For a waiter of [`TagWaiter::thread`] only.
    pub(super) fn sleep(&self) {
        if let Wake::Thread(parker) = &self.wake {
            parker.park();
        }
    }
}

impl fmt::Debug for TagWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state.load(Ordering::Relaxed) & STATE {
            IDLE => "TagWaiter(idle)",
            IN_LINE => "TagWaiter(in line)",
            GONE => "TagWaiter(gone)",
            _ => "TagWaiter(has a tag)",
        })
    }
}
