//! The state word of a hardware queue: its runner, and the need to look again.
//!
//! All changes are read-modify-writes of one word, so they have one order, and each sees the one
//! before it. The thread that turns IDLE into RUNNING is the **runner**: it alone touches the
//! dispatch list and calls the driver. A thread that comes meanwhile sets RERUN and leaves; the
//! runner can't end while RERUN is set. The steps have names in `../README.md`.

use std::fmt;

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::fence::AsymmetricPolicy;

use crate::admission::gate::{FencedRecheck, Grace, Recheck, RunGate};

/// A runner is there. Set by `claim`, cleared by `end` and `hand_over`.
const RUNNING: u64 = 1;
/// A thread came while it was RUNNING. Set by `claim`, never without RUNNING; cleared by the
/// runner.
const RERUN: u64 = 1 << 1;
/// A thread waits for the runner to end. Set by `announce_waiter`, cleared by the runner's end.
const WAITER: u64 = 1 << 2;
/// The number of the run, above the bits: each new runner adds one. It never wraps.
const RUN: u64 = 1 << 3;

/// The number of a run, among all runs of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunNumber(u64);

/// The result of a [`RunState::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Claim {
    /// The caller is the runner now, and has to call [`RunState::end`] or [`RunState::hand_over`].
    Runner,
    /// Another thread is the runner and will look again after this moment: the caller may leave.
    Joined,
}

/// The answer to a runner that wants to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum EndOfRun {
    /// A thread came meanwhile: the caller is still the runner, and looks again.
    Again,
    /// The caller is no longer the runner.
    Ended {
        /// True if there are waiters for this end: wake them.
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
    /// Creates an idle word.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(0) }
    }

    /// Makes the caller the runner, or leaves RERUN with the present one.
    pub fn claim(&self) -> Claim {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let running = word & RUNNING != 0;
            let next = if running { word | RERUN } else { (word | RUNNING) + RUN };
            // Claim, Join. Acquire: a new runner sees what the last one left in the lists. Release:
            // the runner that consumes RERUN sees the request published before it. That holds only
            // for a read-modify-write, so it is done even if RERUN is set already.
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if running => return Claim::Joined,
                Ok(_) => return Claim::Runner,
                Err(now) => word = now,
            }
        }
    }

    /// Makes the caller the runner if there is none; else changes nothing. It may fail spuriously.
    /// It is for a thread that has published nothing yet, and publishes if this fails.
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

    /// Ends the run of a runner that has nothing more to do, unless a thread came meanwhile.
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

    /// Ends the run even if a thread came meanwhile, because the runner has to let its thread go.
    /// The caller **must** make sure that the queue is run after this call. Returns true if the
    /// caller has to wake waiters.
    #[must_use = "true obliges the caller to wake those who wait for the runner to end"]
    pub fn hand_over(&self) -> bool {
        self.word.fetch_and(!(RUNNING | RERUN | WAITER), Ordering::AcqRel) & WAITER != 0
    }

    /// Returns true if there is a runner. Acquire: if there is none, the last runner's writes are
    /// visible.
    pub fn is_running(&self) -> bool {
        self.word.load(Ordering::Acquire) & RUNNING != 0
    }

    /// Asks the runner to wake the caller at its end, and returns the number of its run; `None` if
    /// there is no runner to wait for.
    #[must_use = "without a runner nobody will wake the caller"]
    pub fn announce_waiter(&self) -> Option<RunNumber> {
        // A WAITER bit that is left behind without a runner costs the next end one idle wake-up.
        let word = self.word.fetch_or(WAITER, Ordering::AcqRel);
        (word & RUNNING != 0).then_some(RunNumber(word / RUN))
    }

    /// Returns true if this very run still goes on. Acquire: if it doesn't, that run's writes are
    /// visible.
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

// The run protocol: any thread that comes may run a hardware queue, one at a time, and none while
// it is quiesced. This is only the mechanism: the [`Source`] knows the requests to dispatch.
//
// `../README.md` states the steps by name and argues that no request is stranded.

/// Number of passes that a visiting thread makes (to submit, or to complete): 256 requests at most,
/// then a worker goes on. A submitter must not be kept for others' requests for ever.
pub(crate) const BUDGET_VISITOR: u32 = 8;

/// Number of passes that a worker makes before it queues itself again, behind other work.
pub(crate) const BUDGET_WORKER: u32 = 64;

/// The result of one pass over the pending requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassOutcome {
    /// The pass has left no request that could be started now. Either none is pending, or they wait
    /// for an event (a tag, a resource) whose owner has promised to run this queue.
    Idle,
    /// Requests are left: the pass reached its quota or had to halt.
    More,
    /// The driver is busy, and no request in flight will end that: another thread has to retry
    /// later.
    Later,
}

/// The requests of a hardware queue, for its runner.
pub trait Source {
    /// Returns true if something may be pending. Any thread, at any time; only loads.
    fn has_pending(&self) -> bool;

    /// Starts requests, a bounded number of them. Only the runner calls it. Looks at `halted`
    /// between requests and returns early if that is true. The requests that it leaves are
    /// published for [`Source::has_pending`] when it returns.
    fn pass(&self, halted: &dyn Fn() -> bool) -> PassOutcome;

    /// Publishes requests that the runner has brought along ([`run_claimed`]), because no pass can
    /// be made now; returns true if there were any.
    fn put_down(&self) -> bool {
        false
    }
}

/// The result of a run, and the caller's duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`HandOver` and `Busy` oblige the caller to have the queue run by somebody else"]
pub enum RunOutcome {
    /// The run was refused: there was nothing to run, or the queue is quiesced; its opener will
    /// look.
    Refused,
    /// Another thread is running the queue and looks again.
    Joined,
    /// The caller ran the queue, in this many passes.
    Done {
        /// Number of passes; 0 if the gate closed in the last moment.
        passes: u32,
    },
    /// The caller ran the queue until its budget was spent: it must queue an asynchronous run.
    HandOver {
        /// Passes made.
        passes: u32,
    },
    /// The driver is busy, and no event will end that. As for `HandOver`, but a thread that retries
    /// again and again has to pause between.
    Busy {
        /// Passes made.
        passes: u32,
    },
}

/// Runs a hardware queue if there is need and no other thread does. Never blocks (the driver
/// mustn't).
///
/// `published`: the caller has just inserted a request itself, so there is no need to ask the
/// source whether anything is pending. After `budget` passes the thread is let go.
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

/// Runs a hardware queue as [`run`] does, with another second look if the first says that there is
/// no need.
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

/// Runs a hardware queue as [`run`] does, by the runner itself. The runner may have brought
/// requests along that aren't published, which its first pass takes: `budget` is 1 at least.
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
        // SectionFence. Towards a quiescer: pairs with CloseFence (this thread sees the depth, or
        // the quiescer sees RUNNING). Towards an unquiescer: the requests that a pass left were
        // published before; pairs with OpenFence.
        F::light();
        let halted = || !gate.is_open();
        let mut idle = halted();
        if idle && source.put_down() {
            // The look that counts comes after the publication, and a fence.
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
