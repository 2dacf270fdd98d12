//! The line of those who wait for a tag: first come, first served. `README.md` names the steps.

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
    /// Those who came since it was last served.
    arrivals: Inbox<Arc<TagWaiter>>,
    /// A: somebody who stood in line has left. Set after the waiter's state, Release; taken in a
    /// turn.
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

// SAFETY: `served` is the only field that isn't Sync by itself. It is touched by the holder of
// RUNNING only, and claims and ends are AcqRel read-modify-writes of one word. Waiters are Send and
// Sync.
unsafe impl<const MARKS: bool> Sync for Line<MARKS> {}
// SAFETY: as above; nothing in it is bound to a thread.
unsafe impl<const MARKS: bool> Send for Line<MARKS> {}

/// Those who got a tag, and are to be told once the turn is over.
#[derive(Default)]
struct Grants {
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

    /// A waiter has left: the next server takes it out. The caller serves, so that a line of people
    /// who lose patience doesn't grow without end.
    pub(super) fn note_left(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Gives free tags to those who wait, the oldest first, and tells them; `own` isn't told, and
    /// true is returned where it got one. Never blocks: where somebody serves already, they look
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

    /// Serves until nobody came meanwhile, or a batch is full. Ends the turn.
    fn round(&self, tags: &Bitmap, cpu: usize, told: &mut Grants) -> Round {
        loop {
            self.served.with_mut(|served| {
                // SAFETY: RUNNING is ours, and it is given back below, outside of this.
                self.serve_some(unsafe { &mut *served }, tags, cpu, told);
            });
            if told.len == WAKE_BATCH {
                // The mark of one that joined, lost here, is looked for again at once by the
                // caller.
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

// A waiter in line for a tag: a thread, or a function that is called.

/// Not in line. Set by the owner, which takes what was granted.
const IDLE: u64 = 0;
/// In line. Set by the owner, which then puts it there.
const IN_LINE: u64 = 1;
/// Its owner has left: who serves the line drops it. Final.
const GONE: u64 = 2;
/// It got a tag, whose number is in the bits above `STATE`. Set by the line's server.
const GRANTED: u64 = 3;
const STATE: u64 = 3;
const TAG_SHIFT: u32 = 2;

/// How often a thread that waits lets others run before it sleeps. (To models that would be the
/// same step again.)
const YIELDS: usize = if hint::IN_MODEL { 0 } else { 8 };

/// How a waiter is told.
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

    /// A waiter for which `granted` is called each time that it got a tag, on the thread that
    /// serves the line: any that gives a tag back, or lines up. `granted` must not block, and the
    /// tag has to be fetched with [`TagWaiter::take`], there or elsewhere. A panic in it is caught.
    /// It is dropped with the waiter.
    pub fn calling(granted: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Self::new(Wake::Call(Box::new(granted)))
    }

    /// A waiter that the calling thread sleeps on.
    pub(super) fn thread() -> Arc<Self> {
        Self::new(Wake::Thread(Parker::new()))
    }

    /// The tag that it got, if it got one: the caller has it now, and the waiter may line up again.
    pub fn take(&self) -> Option<u32> {
        let state = self.state.load(Ordering::Relaxed);
        if state & STATE != GRANTED {
            return None;
        }
        // Acquire pairs with the Release of the grant. More than one may take: the one that is
        // asked to and one that looks.
        self.state
            .compare_exchange(state, IDLE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some((state >> TAG_SHIFT) as u32)
    }

    /// As [`TagWaiter::take`], by a thread that is about to sleep: it lets others run for about as
    /// long as that would cost, since their owners may give them back at once.
    pub(super) fn take_soon(&self) -> Option<u32> {
        for _ in 0..YIELDS {
            if let Some(tag) = self.take() {
                return Some(tag);
            }
            thread::yield_now();
        }
        self.take()
    }

    /// It has got a tag that nobody has taken, a moment ago.
    pub fn is_granted(&self) -> bool {
        self.state.load(Ordering::Relaxed) & STATE == GRANTED
    }

    /// It stands in line, a moment ago.
    pub fn is_in_line(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IN_LINE
    }

    /// The owner lines up. False where it stands there already, or has a tag to take.
    pub(super) fn enter(&self) -> bool {
        let entered =
            self.state.compare_exchange(IDLE, IN_LINE, Ordering::Relaxed, Ordering::Relaxed);
        entered.is_ok()
    }

    /// The owner leaves for good. `Some`: a tag that was granted meanwhile, which is the caller's
    /// now.
    pub(super) fn leave(&self) -> Option<u32> {
        let state = self.state.swap(GONE, Ordering::AcqRel);
        (state & STATE == GRANTED).then_some((state >> TAG_SHIFT) as u32)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Relaxed) == GONE
    }

    /// Gives it a tag. False where it has left. The caller has taken it out of the line before:
    /// from this moment its owner may line up again.
    pub(super) fn grant(&self, tag: u32) -> bool {
        let granted = GRANTED | u64::from(tag) << TAG_SHIFT;
        // Release: what the last user of the tag did is seen by its taker.
        self.state.compare_exchange(IN_LINE, granted, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Tells the owner. Nothing of the caller's may depend on what a stranger's function does.
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

    /// Sleeps until it is told; false where the time ran out. Only of [`TagWaiter::thread`]'s.
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
