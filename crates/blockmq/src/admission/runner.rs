//! The run protocol: how a hardware queue gets run by any thread that comes, by one at a time, and by
//! nobody while it is quiesced. Mechanism only: what there is to dispatch is the [`Source`]'s
//! business.
//!
//! `../README.md` states the steps by name and argues that no request is stranded.

use corewise_sync::fence::AsymmetricPolicy;

use crate::admission::gate::{FencedRecheck, Grace, Recheck, RunGate};
use crate::admission::run_state::{Claim, EndOfRun, RunState};

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
    /// between requests and leaves early where it says so. The requests that it leaves are published for
    /// [`Source::has_pending`] when it returns.
    fn pass(&self, halted: &dyn Fn() -> bool) -> PassOutcome;

    /// No pass can be made now. Requests that the runner has brought along and not published ([`run_claimed`]) are published
    /// here; true where there was something.
    fn put_down(&self) -> bool {
        false
    }
}

/// How a run went, and what the caller owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`HandOver` and `Busy` oblige the caller to have the queue run by somebody else"]
pub enum RunOutcome {
    /// Nothing to run, or the queue is quiesced; its opener will look.
    RefusedRequest,
    /// Somebody else is running and looks again.
    TagUsers,
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
    /// The driver is busy and nobody will tell when it no longer is: as `HandOver`, but a thread that asks
    /// again and again has to pause between.
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
        return RunOutcome::RefusedRequest;
    }
    match state.claim() {
        Claim::Runner => {}
        Claim::TagUsers => return RunOutcome::TagUsers,
    }
    run_claimed(gate, state, grace, source, budget)
}

/// As [`run`], by the runner itself. It may have brought something along that isn't published, which its
/// first pass takes: `budget` is 1 at least.
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
