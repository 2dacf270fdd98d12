//! The state word of a hardware queue: its runner, and the need to look again.
//!
//! All changes are read-modify-writes of one word, so they have one order, and each sees the one
//! before it. The thread that turns IDLE into RUNNING is the **runner**: it alone touches the
//! dispatch list and calls the driver. A thread that comes meanwhile leaves RERUN behind and goes;
//! the runner can't end while RERUN is set. The steps have names in `../README.md`.

use std::fmt;

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::fence::AsymmetricPolicy;

use crate::admission::gate::{FencedRecheck, Grace, Recheck, RunGate};

/// Somebody is the runner. Set by `claim`, cleared by `end` and `hand_over`.
const RUNNING: u64 = 1;
/// Somebody came while it was RUNNING. Set by `claim`, never without RUNNING; cleared by the
/// runner.
const RERUN: u64 = 1 << 1;
/// Somebody waits for the runner to end. Set by `announce_waiter`, cleared by the runner's end.
const WAITER: u64 = 1 << 2;
/// The number of the run, above the bits: each new runner adds one. It never wraps.
const RUN: u64 = 1 << 3;

/// Which run it is, of all the runs of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunNumber(u64);

/// What a [`RunState::claim`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Claim {
    /// The caller is the runner now, and has to call [`RunState::end`] or [`RunState::hand_over`].
    Runner,
    /// Somebody else is the runner and will look again after this moment: the caller may leave.
    Joined,
}

/// What a runner that wants to end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum EndOfRun {
    /// Somebody came meanwhile: the caller is still the runner, and looks again.
    Again,
    /// The caller is no longer the runner.
    Ended {
        /// Somebody waits for this: wake them.
        wake: bool,
    },
}

/// The packed state word of one hardware queue.
pub struct RunState {
    /// A: the bits above, and the number of the run.
    word: AtomicU64,
}

impl Default for RunState {
    fn default() -> Self {
        Self::new()
    }
}

impl RunState {
    /// Idle.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(0) }
    }

    /// Becomes the runner, or leaves word with the one there is.
    pub fn claim(&self) -> Claim {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let running = word & RUNNING != 0;
            let next = if running { word | RERUN } else { (word | RUNNING) + RUN };
            // Claim / Join. Acquire: a new runner sees what the last one left in the lists.
            // Release: the runner that consumes RERUN sees the request published before
            // it. That holds only for a read-modify-write, so it is done even where
            // RERUN is set already.
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if running => return Claim::Joined,
                Ok(_) => return Claim::Runner,
                Err(now) => word = now,
            }
        }
    }

    /// Becomes the runner where there is none; else changes nothing, and may say so for no reason.
    /// For a thread that has published nothing yet, and does that where it gets a no.
    #[inline]
    pub fn try_claim(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        // Claim, as above.
        word & RUNNING == 0
            && self
                .word
                .compare_exchange_weak(
                    word,
                    (word | RUNNING) + RUN,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// The runner has nothing more to do: ends, unless somebody came meanwhile.
    pub fn end(&self) -> EndOfRun {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(word & RUNNING != 0, "only the runner ends");
            let again = word & RERUN != 0;
            let next = if again { word & !RERUN } else { word & !(RUNNING | WAITER) };
            // Consume (AcqRel, see Join), or End (Release: to the next Claim and to the grace
            // wait).
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if again => return EndOfRun::Again,
                Ok(_) => return EndOfRun::Ended { wake: word & WAITER != 0 },
                Err(now) => word = now,
            }
        }
    }

    /// The runner ends whatever came meanwhile, because it has to let its thread go: the caller
    /// **must** see to it that somebody runs this queue after this call. True: wake the waiters.
    #[must_use = "true obliges the caller to wake those who wait for the runner to end"]
    pub fn hand_over(&self) -> bool {
        self.word.fetch_and(!(RUNNING | RERUN | WAITER), Ordering::AcqRel) & WAITER != 0
    }

    /// Somebody is dispatching. Acquire: where it says no, what the last runner did is visible.
    pub fn is_running(&self) -> bool {
        self.word.load(Ordering::Acquire) & RUNNING != 0
    }

    /// Asks the runner to wake the caller at its end, and says which run that is; `None` where
    /// there is no runner to wait for.
    #[must_use = "without a runner nobody will wake the caller"]
    pub fn announce_waiter(&self) -> Option<RunNumber> {
        // A WAITER bit that is left behind without a runner costs the next end one idle wake-up.
        let word = self.word.fetch_or(WAITER, Ordering::AcqRel);
        (word & RUNNING != 0).then_some(RunNumber(word / RUN))
    }

    /// This very run is still going on. Acquire: where it says no, what that run did is visible.
    pub fn is_run(&self, run: RunNumber) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & RUNNING != 0 && word / RUN == run.0
    }
}

impl fmt::Debug for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        let mut set = f.debug_set();
        for (bit, name) in [(RUNNING, "RUNNING"), (RERUN, "RERUN"), (WAITER, "WAITER")] {
            if word & bit != 0 {
                set.entry(&format_args!("{name}"));
            }
        }
        set.finish()
    }
}

// The run protocol: how a hardware queue gets run by any thread that comes, by one at a time, and
// by nobody while it is quiesced. Mechanism only: what there is to dispatch is the [`Source`]'s
// business.
//
// `../README.md` states the steps by name and argues that no request is stranded.

/// Passes that a thread makes which came by (to submit, or to complete): 256 requests at most,
/// then a worker goes on. A submitter must not be kept for the others' sake for ever.
pub(crate) const BUDGET_VISITOR: u32 = 8;

/// Passes that a worker makes before it queues itself again, behind other work.
pub(crate) const BUDGET_WORKER: u32 = 64;

/// How one pass over the pending requests went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassOutcome {
    /// Nothing is left that could be started now: either nothing is pending, or what is pending
    /// waits for an event whose owner has promised to run this queue (a tag, a resource).
    Idle,
    /// Something is left: the pass reached its quota or was told to halt.
    More,
    /// The driver is busy and nothing in flight will ever tell when it no longer is: somebody has
    /// to try again later, and not on this thread.
    Later,
}

/// What a hardware queue has to dispatch.
pub trait Source {
    /// Something may be pending. Any thread, at any time; only loads.
    fn has_pending(&self) -> bool;

    /// Starts requests, a bounded number of them. Only the runner calls it. Looks at `halted`
    /// between requests and leaves early where it says so. The requests that it leaves are
    /// published for [`Source::has_pending`] when it returns.
    fn pass(&self, halted: &dyn Fn() -> bool) -> PassOutcome;

    /// No pass can be made now. Requests that the runner has brought along and not published
    /// ([`run_claimed`]) are published here; true where there was something.
    fn put_down(&self) -> bool {
        false
    }
}

/// How a run went, and what the caller owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`HandOver` and `Busy` oblige the caller to have the queue run by somebody else"]
pub enum RunOutcome {
    /// Nothing to run, or the queue is quiesced; its opener will look.
    Refused,
    /// Somebody else is running and looks again.
    Joined,
    /// The caller ran the queue, in this many passes.
    Done {
        /// Passes made; 0 where the gate closed in the last moment.
        passes: u32,
    },
    /// The caller ran the queue until its budget was spent: it must queue an asynchronous run.
    HandOver {
        /// Passes made.
        passes: u32,
    },
    /// The driver is busy and nobody will tell when it no longer is: as `HandOver`, but a thread
    /// that asks again and again has to pause between.
    Busy {
        /// Passes made.
        passes: u32,
    },
}

/// Runs a hardware queue if there is need and nobody else does. Never blocks (the driver mustn't).
///
/// `published` says that the caller has just inserted a request itself, so there is no need to ask
/// the source whether anything is pending. After `budget` passes the thread is let go.
pub fn run<F: AsymmetricPolicy, S: Source>(
    gate: &RunGate<F>,
    state: &RunState,
    grace: &Grace,
    source: &S,
    published: bool,
    budget: u32,
) -> RunOutcome {
    run_by(gate, state, grace, source, published, budget, &FencedRecheck::<F>::new())
}

/// As [`run`], with another second look where the first says that there is no need.
#[inline]
pub fn run_by<F: AsymmetricPolicy, S: Source>(
    gate: &RunGate<F>,
    state: &RunState,
    grace: &Grace,
    source: &S,
    published: bool,
    budget: u32,
    recheck: &impl Recheck,
) -> RunOutcome {
    if !gate.must_run_by(recheck, || published || source.has_pending()) {
        return RunOutcome::Refused;
    }
    match state.claim() {
        Claim::Runner => {}
        Claim::Joined => return RunOutcome::Joined,
    }
    run_claimed(gate, state, grace, source, budget)
}

/// As [`run`], by the runner itself. It may have brought something along that isn't published,
/// which its first pass takes: `budget` is 1 at least.
#[inline]
pub fn run_claimed<F: AsymmetricPolicy, S: Source>(
    gate: &RunGate<F>,
    state: &RunState,
    grace: &Grace,
    source: &S,
    budget: u32,
) -> RunOutcome {
    let mut passes = 0;
    loop {
        // SectionFence. Towards a quiescer: pairs with CloseFence (we see the depth, or it sees
        // RUNNING). Towards an unquiescer: the requests that a pass left were published
        // before; pairs with OpenFence.
        F::light();
        let halted = || !gate.is_open();
        let mut idle = halted();
        if idle && source.put_down() {
            // The look that counts comes behind the publication, and a fence.
            continue;
        }
        if !idle {
            if passes == budget {
                if state.hand_over() {
                    grace.wake();
                }
                return RunOutcome::HandOver { passes };
            }
            passes += 1;
            match source.pass(&halted) {
                PassOutcome::Idle => idle = true,
                PassOutcome::More => {}
                PassOutcome::Later => {
                    if state.hand_over() {
                        grace.wake();
                    }
                    return RunOutcome::Busy { passes };
                }
            }
        }
        if idle {
            match state.end() {
                EndOfRun::Again => {}
                EndOfRun::Ended { wake } => {
                    if wake {
                        grace.wake();
                    }
                    return RunOutcome::Done { passes };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_claim_joins_and_makes_the_runner_look_again() {
        let state = RunState::new();
        assert_eq!(state.claim(), Claim::Runner);
        assert_eq!(state.claim(), Claim::Joined);
        assert_eq!(state.claim(), Claim::Joined);
        assert_eq!(state.end(), EndOfRun::Again);
        assert_eq!(state.end(), EndOfRun::Ended { wake: false });
        assert_eq!(state.claim(), Claim::Runner);
    }

    #[test]
    fn a_failed_try_to_claim_leaves_no_trace() {
        let state = RunState::new();
        assert!(state.try_claim());
        assert_eq!(format!("{state:?}"), "{RUNNING}");
        assert!(!state.try_claim());
        assert_eq!(state.end(), EndOfRun::Ended { wake: false }, "nobody asked it to look again");
    }

    #[test]
    fn a_hand_over_ends_even_where_somebody_came() {
        let state = RunState::new();
        assert_eq!(state.claim(), Claim::Runner);
        assert_eq!(state.claim(), Claim::Joined);
        assert!(!state.hand_over());
        assert_eq!(state.claim(), Claim::Runner);
        assert_eq!(state.end(), EndOfRun::Ended { wake: false }, "RERUN went with the hand-over");
    }

    #[test]
    fn a_waiter_is_announced_only_to_a_runner_and_woken_by_its_end() {
        let state = RunState::new();
        assert_eq!(state.announce_waiter(), None);
        assert_eq!(state.claim(), Claim::Runner);
        let run = state.announce_waiter().unwrap();
        assert!(state.is_run(run));
        assert_eq!(state.end(), EndOfRun::Ended { wake: true });
        assert!(!state.is_running() && !state.is_run(run));
        assert_eq!(state.claim(), Claim::Runner);
        assert!(!state.is_run(run), "the next run is another one");
    }
}
