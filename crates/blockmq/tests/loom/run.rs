//! Models of the run protocol: gate, state word, grace period. `src/README.md` names the steps.

use std::cell::Cell;
use std::sync::Arc;

use corewise_blockmq::model::{
    Claim, EndOfRun, Grace, PassOutcome, RunGate, RunOutcome, RunState, Source, run, run_claimed,
};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, NoHeavy, NoLight};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::model::{bounded, must_panic};

struct Item(Link);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.0
    }
}

/// A hardware queue without a driver: its passes count the items that they take.
struct Hctx<F: AsymmetricPolicy> {
    gate: RunGate<F>,
    state: RunState,
    grace: Grace,
    inbox: Inbox<Box<Item>>,
    /// P: owned by the runner. Items that it has collected and not dispatched.
    backlog: UnsafeCell<usize>,
    /// A: the same number, as the runner left it. Relaxed, as the product's.
    left: AtomicUsize,
    /// P: owned by the runner, and by a quiescer after its grace period. Loom reports a race.
    dispatched: UnsafeCell<usize>,
}

// SAFETY: the models check this: one thread at a time touches `backlog` and `dispatched`.
unsafe impl<F: AsymmetricPolicy> Sync for Hctx<F> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<F: AsymmetricPolicy> Send for Hctx<F> {}

impl<F: AsymmetricPolicy> Source for Hctx<F> {
    fn has_pending(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0 || !self.inbox.is_empty()
    }

    fn pass(&self, halted: &dyn Fn() -> bool) -> PassOutcome {
        if halted() {
            return PassOutcome::More;
        }
        // SAFETY: only the runner gets here; loom checks it.
        let had = self.backlog.with_mut(|backlog| unsafe { std::mem::take(&mut *backlog) });
        if had != 0 {
            self.left.store(0, Ordering::Relaxed);
        }
        let n = had + self.inbox.take().count();
        // SAFETY: as above.
        self.dispatched.with_mut(|count| unsafe { *count += n });
        PassOutcome::Idle
    }
}

/// A runner that has brought an item along. `1`: the item is in its hand. `2`: its driver completes
/// the item in the commit, and the completion submits another one, which gets into the hand.
struct Hand<'a, F: AsymmetricPolicy>(&'a Hctx<F>, Cell<bool>, Cell<bool>);

impl<F: AsymmetricPolicy> Source for Hand<'_, F> {
    fn has_pending(&self) -> bool {
        self.0.has_pending()
    }

    fn pass(&self, halted: &dyn Fn() -> bool) -> PassOutcome {
        if self.1.take() {
            // SAFETY: only the runner gets here; loom checks it.
            self.0.dispatched.with_mut(|count| unsafe { *count += 1 });
        }
        let pass = self.0.pass(halted);
        if self.2.take() {
            // SAFETY: as above.
            let left = self.0.backlog.with_mut(|backlog| unsafe {
                *backlog += 1;
                *backlog
            });
            self.0.left.store(left, Ordering::Relaxed);
            return PassOutcome::More;
        }
        pass
    }

    fn put_down(&self) -> bool {
        let had = self.1.take();
        if had {
            self.0.inbox.push(Box::new(Item(Link::new())));
        }
        had
    }
}

/// A way to submit.
type Submit<F> = fn(&Hctx<F>);

impl<F: AsymmetricPolicy> Hctx<F> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: RunGate::new(),
            state: RunState::new(),
            grace: Grace::new(),
            inbox: Inbox::new(),
            backlog: UnsafeCell::new(0),
            left: AtomicUsize::new(0),
            dispatched: UnsafeCell::new(0),
        })
    }

    fn run(&self, published: bool) -> RunOutcome {
        run(&self.gate, &self.state, &self.grace, self, published, 8)
    }

    fn submit(&self) {
        self.inbox.push(Box::new(Item(Link::new())));
        let _ = self.run(true);
    }

    /// Submits as `submit`, but claims before it publishes, and publishes only if it can't
    /// continue.
    fn issue(&self) {
        if !self.issue_followed_by(false) {
            self.submit();
        }
    }

    /// Submits as `issue`, and once more in the dispatch, by the runner itself.
    fn issue_two(&self) {
        if !self.issue_followed_by(true) {
            self.submit();
            self.submit();
        }
    }

    fn issue_followed_by(&self, another: bool) -> bool {
        let claimed = self.gate.is_open() && self.state.try_claim();
        if claimed {
            let feed = Hand(self, Cell::new(true), Cell::new(another));
            let _ = run_claimed(&self.gate, &self.state, &self.grace, &feed, 8);
            // The item was put down before the first pass, and run by another thread: then none
            // followed.
            if feed.2.take() {
                self.submit();
            }
        }
        claimed
    }

    fn unquiesce(&self) {
        if self.gate.unquiesce() && self.has_pending() {
            let _ = self.run(false);
        }
    }

    fn dispatched(&self) -> usize {
        // SAFETY: the models call this when the other threads are joined, or after a grace period.
        self.dispatched.with(|count| unsafe { *count })
    }
}

/// Runs a model with three preemptions: store buffering needs one on each side.
fn model(f: impl Fn() + Send + Sync + 'static) {
    bounded(3, f);
}

fn must_fail(what: &str, f: impl Fn() + Send + Sync + 'static) {
    must_panic(what, || model(f));
}

fn insert_races_unquiesce<F: AsymmetricPolicy>(submit: Submit<F>) {
    let hctx = Hctx::<F>::new();
    hctx.gate.quiesce();
    let submitter = {
        let hctx = Arc::clone(&hctx);
        loom::thread::spawn(move || submit(&hctx))
    };
    hctx.unquiesce();
    submitter.join().unwrap();
    assert_eq!(hctx.dispatched(), 1, "stranded: nobody is left to run it");
}

#[test]
fn loom_an_insert_that_races_an_unquiesce_is_never_stranded() {
    model(|| insert_races_unquiesce::<Asymmetric>(Hctx::submit));
    model(|| insert_races_unquiesce::<Asymmetric>(Hctx::issue));
}

#[test]
fn loom_without_the_fences_the_insert_is_stranded() {
    must_fail("stranded", || insert_races_unquiesce::<NoLight>(Hctx::submit));
    must_fail("stranded", || insert_races_unquiesce::<NoHeavy>(Hctx::submit));
}

#[test]
fn loom_rule_3_one_fence_in_the_run_is_enough_where_another_thread_inserted() {
    model(|| {
        let hctx = Hctx::<Asymmetric>::new();
        hctx.gate.quiesce();
        // The hand-over from the inserter to the runner is ordered, as a work item's or a call's
        // is.
        let handed = Arc::new(corewise_sync::atomic::AtomicBool::new(false));
        let inserter = {
            let (hctx, handed) = (Arc::clone(&hctx), Arc::clone(&handed));
            loom::thread::spawn(move || {
                hctx.inbox.push(Box::new(Item(Link::new())));
                handed.store(true, corewise_sync::atomic::Ordering::Release);
            })
        };
        let runner = {
            let hctx = Arc::clone(&hctx);
            loom::thread::spawn(move || {
                let handed = handed.load(corewise_sync::atomic::Ordering::Acquire);
                if handed {
                    let _ = hctx.run(false);
                }
                handed
            })
        };
        hctx.unquiesce();
        inserter.join().unwrap();
        if runner.join().unwrap() {
            assert_eq!(hctx.dispatched(), 1, "stranded: the runner saw it quiesced");
        }
    });
}

#[test]
fn loom_two_submitters_dispatch_one_at_a_time_and_lose_nothing() {
    let two = |one: Submit<Asymmetric>, another: Submit<Asymmetric>| {
        model(move || {
            let hctx = Hctx::<Asymmetric>::new();
            let other = {
                let hctx = Arc::clone(&hctx);
                loom::thread::spawn(move || another(&hctx))
            };
            one(&hctx);
            other.join().unwrap();
            assert_eq!(hctx.dispatched(), 2, "a RERUN was lost");
        });
    };
    two(Hctx::submit, Hctx::submit);
    two(Hctx::issue, Hctx::submit);
    two(Hctx::issue, Hctx::issue);
}

fn quiescer_touches_what_the_runner_touches<F: AsymmetricPolicy>(submit: Submit<F>) {
    let hctx = Hctx::<F>::new();
    let submitter = {
        let hctx = Arc::clone(&hctx);
        loom::thread::spawn(move || submit(&hctx))
    };
    hctx.gate.quiesce();
    hctx.grace.wait(&hctx.state);
    // SAFETY: the model checks this: no dispatch is in progress and none starts.
    hctx.dispatched.with_mut(|count| unsafe { *count += 10 });
    hctx.unquiesce();
    submitter.join().unwrap();
    assert_eq!(hctx.dispatched(), 11, "stranded by the quiesce");
}

#[test]
fn loom_after_the_grace_period_no_dispatch_is_in_progress() {
    model(|| quiescer_touches_what_the_runner_touches::<Asymmetric>(Hctx::submit));
    model(|| quiescer_touches_what_the_runner_touches::<Asymmetric>(Hctx::issue));
}

#[test]
fn loom_without_the_fences_a_dispatch_goes_on_behind_the_grace_period() {
    for submit in [Hctx::submit, Hctx::issue] as [Submit<NoLight>; 2] {
        must_fail("Causality violation", move || {
            quiescer_touches_what_the_runner_touches::<NoLight>(submit);
        });
    }
    for submit in [Hctx::submit, Hctx::issue] as [Submit<NoHeavy>; 2] {
        must_fail("Causality violation", move || {
            quiescer_touches_what_the_runner_touches::<NoHeavy>(submit);
        });
    }
}

#[test]
fn loom_a_wake_up_for_an_earlier_run_ends_no_grace_period() {
    model(|| {
        let hctx = Hctx::<Asymmetric>::new();
        // A run with a waiter has ended, and its wake-up is still to come.
        assert_eq!(hctx.state.claim(), Claim::Runner);
        let _ = hctx.state.announce_waiter();
        assert_eq!(hctx.state.end(), EndOfRun::Ended { wake: true });
        // The next run is dispatching already when the next quiescer comes.
        assert_eq!(hctx.state.claim(), Claim::Runner);
        let quiescer = {
            let hctx = Arc::clone(&hctx);
            loom::thread::spawn(move || {
                hctx.gate.quiesce();
                hctx.grace.wait(&hctx.state);
                // SAFETY: the model checks this: no dispatch is in progress and none starts.
                hctx.dispatched.with_mut(|count| unsafe { *count += 10 });
            })
        };
        hctx.grace.wake();
        // SAFETY: this thread is the runner; loom checks it.
        hctx.dispatched.with_mut(|count| unsafe { *count += 1 });
        if hctx.state.end() == (EndOfRun::Ended { wake: true }) {
            hctx.grace.wake();
        }
        quiescer.join().unwrap();
        assert_eq!(hctx.dispatched(), 11);
    });
}

fn quiesce_and_unquiesce_meet_a_submitter<F: AsymmetricPolicy>(submit: Submit<F>, items: usize) {
    let hctx = Hctx::<F>::new();
    let submitter = {
        let hctx = Arc::clone(&hctx);
        loom::thread::spawn(move || submit(&hctx))
    };
    hctx.gate.quiesce();
    hctx.unquiesce();
    submitter.join().unwrap();
    assert_eq!(hctx.dispatched(), items, "stranded");
}

#[test]
fn loom_a_quiesce_that_does_not_wait_strands_nothing_either() {
    model(|| quiesce_and_unquiesce_meet_a_submitter::<Asymmetric>(Hctx::submit, 1));
}

#[test]
fn loom_a_runner_puts_its_requests_down_before_its_last_look() {
    model(|| quiesce_and_unquiesce_meet_a_submitter::<Asymmetric>(Hctx::issue, 1));
    must_fail("stranded", || quiesce_and_unquiesce_meet_a_submitter::<NoLight>(Hctx::issue, 1));
    must_fail("stranded", || quiesce_and_unquiesce_meet_a_submitter::<NoHeavy>(Hctx::issue, 1));
}

#[test]
fn loom_a_runner_leaves_its_own_submissions_before_its_last_look() {
    model(|| quiesce_and_unquiesce_meet_a_submitter::<Asymmetric>(Hctx::issue_two, 2));
    must_fail("stranded", || quiesce_and_unquiesce_meet_a_submitter::<NoLight>(Hctx::issue_two, 2));
    must_fail("stranded", || quiesce_and_unquiesce_meet_a_submitter::<NoHeavy>(Hctx::issue_two, 2));
}

#[test]
fn loom_submissions_of_the_runner_and_of_others_are_dispatched_once() {
    model(|| {
        let hctx = Hctx::<Asymmetric>::new();
        let other = {
            let hctx = Arc::clone(&hctx);
            loom::thread::spawn(move || hctx.submit())
        };
        hctx.issue_two();
        other.join().unwrap();
        assert_eq!(hctx.dispatched(), 3);
    });
}

#[test]
fn loom_nested_quiesces_open_once_and_strand_nothing() {
    model(|| {
        let hctx = Hctx::<Asymmetric>::new();
        hctx.gate.quiesce();
        hctx.gate.quiesce();
        let opener = {
            let hctx = Arc::clone(&hctx);
            loom::thread::spawn(move || hctx.unquiesce())
        };
        let submitter = {
            let hctx = Arc::clone(&hctx);
            loom::thread::spawn(move || hctx.submit())
        };
        hctx.unquiesce();
        opener.join().unwrap();
        submitter.join().unwrap();
        assert_eq!(hctx.gate.depth(), 0);
        assert_eq!(hctx.dispatched(), 1, "stranded behind a nested quiesce");
    });
}

/// Takes one item a pass, so that budgets run out.
struct Slow<F: AsymmetricPolicy>(
    Hctx<F>,
    UnsafeCell<Vec<Box<Item>>>,
    loom::sync::atomic::AtomicUsize,
);

// SAFETY: the vector is touched by the runner only; loom checks it.
unsafe impl<F: AsymmetricPolicy> Sync for Slow<F> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<F: AsymmetricPolicy> Send for Slow<F> {}

impl<F: AsymmetricPolicy> Source for Slow<F> {
    fn has_pending(&self) -> bool {
        self.2.load(loom::sync::atomic::Ordering::Relaxed) != 0 || self.0.has_pending()
    }

    fn pass(&self, _halted: &dyn Fn() -> bool) -> PassOutcome {
        // SAFETY: only the runner gets here; loom checks it.
        let left = self.1.with_mut(|list| unsafe {
            (*list).extend(self.0.inbox.take());
            if (*list).pop().is_some() {
                self.0.dispatched.with_mut(|count| *count += 1);
            }
            (*list).len()
        });
        self.2.store(left, loom::sync::atomic::Ordering::Relaxed);
        if left == 0 { PassOutcome::Idle } else { PassOutcome::More }
    }
}

#[test]
fn loom_a_runner_that_hands_over_leaves_nothing_behind() {
    model(|| {
        let slow = Arc::new(Slow(
            Arc::into_inner(Hctx::<Asymmetric>::new()).unwrap(),
            UnsafeCell::new(Vec::new()),
            loom::sync::atomic::AtomicUsize::new(0),
        ));
        let submit = |slow: &Slow<Asymmetric>, n: usize| {
            for _ in 0..n {
                slow.0.inbox.push(Box::new(Item(Link::new())));
            }
            let h = &slow.0;
            // The same thread plays the worker: after the hand-over it owes a run.
            while let RunOutcome::HandOver { .. } = run(&h.gate, &h.state, &h.grace, slow, true, 1)
            {
            }
        };
        let other = {
            let slow = Arc::clone(&slow);
            loom::thread::spawn(move || submit(&slow, 1))
        };
        submit(&slow, 2);
        other.join().unwrap();
        assert_eq!(slow.0.dispatched(), 3, "a hand-over lost something");
    });
}
