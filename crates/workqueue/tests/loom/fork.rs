//! Forks, the very code that runs: each is called once, by its owner or by a thief, which sees the
//! earlier writes. No owner sleeps for ever, and no first fork is overlooked.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Count;

use corewise_sync::atomic::{AtomicU8, AtomicU32, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{
    Asymmetric, AsymmetricPolicy, FencePolicy, FullFence, NoFence, NoHeavy, NoLight,
};
use corewise_sync::model::{must_fail, must_panic};
use corewise_sync::thread;
use corewise_workqueue::model::{LanesModel, RingModel, SpawnModel, Waits};

use crate::bounded::{bounded, more_if_long};

/// A fork whose accesses loom sees.
struct Fork {
    /// Written before the push, and read by the caller: the ring has to order that.
    value: UnsafeCell<usize>,
    /// Number of its calls. No scheduling point.
    calls: Count,
}

/// A ring, and the forks that go through it.
struct Model<P: AsymmetricPolicy> {
    ring: RingModel<Fork, P>,
    forks: Vec<Fork>,
}

// SAFETY: a fork's cell is its owner's, and then its thief's. Loom checks just that.
unsafe impl<P: AsymmetricPolicy> Sync for Model<P> {}
// SAFETY: as above.
unsafe impl<P: AsymmetricPolicy> Send for Model<P> {}

impl<P: AsymmetricPolicy> Model<P> {
    fn new(forks: usize) -> Arc<Self> {
        let fork = |_| Fork { value: UnsafeCell::new(0), calls: Count::new(0) };
        Arc::new(Model { ring: RingModel::new(), forks: (0..forks).map(fork).collect() })
    }

    /// Pushes a fork, and returns the ring's answer.
    fn push(&self, number: usize) -> Option<bool> {
        let fork = &self.forks[number];
        // SAFETY: it is in no ring.
        fork.value.with_mut(|value| unsafe { *value = number + 1 });
        self.ring.push(NonNull::from(fork))
    }

    /// Calls the fork, unless a thief has it. Returns whether it did.
    fn pop(&self, number: usize) -> bool {
        let popped = self.ring.pop();
        if popped {
            self.call(NonNull::from(&self.forks[number]));
        }
        popped
    }

    fn call(&self, fork: NonNull<Fork>) {
        let number = self.forks.iter().position(|there| NonNull::from(there) == fork);
        let number = number.expect("one of the forks");
        let fork = &self.forks[number];
        // SAFETY: it is the caller's.
        let value = fork.value.with_mut(|value| unsafe { std::mem::take(&mut *value) });
        assert_eq!(value, number + 1, "what was written before the push is seen");
        fork.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn steal(&self) {
        self.ring.steal(|_| true).into_iter().for_each(|fork| self.call(fork));
    }

    /// Runs thieves beside the owner; then each fork was called once.
    fn run(self: &Arc<Self>, thieves: &[fn(&Self)], owner: impl FnOnce(&Self)) {
        let start = |&thief: &fn(&Self)| {
            let model = Arc::clone(self);
            thread::spawn(move || thief(&model))
        };
        let thieves: Vec<_> = thieves.iter().map(start).collect();
        owner(self);
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
        for (number, fork) in self.forks.iter().enumerate() {
            assert_eq!(fork.calls.load(Ordering::Relaxed), 1, "calls of fork {number}");
        }
        assert!(self.ring.steal(|_| true).is_none(), "nothing is left in the ring");
    }
}

/// Asymmetric fences before which a thread may be preempted. Loom never does that by itself: to it
/// a fence is a part of the access before.
struct Apart;

loom::lazy_static! {
    /// Written before each fence, and never read.
    static ref BESIDE: AtomicU8 = AtomicU8::new(0);
}

impl AsymmetricPolicy for Apart {
    fn light() {
        BESIDE.fetch_add(1, Ordering::Relaxed);
        Asymmetric::light();
    }

    fn heavy() {
        BESIDE.fetch_add(1, Ordering::Relaxed);
        Asymmetric::heavy();
    }

    fn prepare() {
        // Made by the model's first thread, so that it orders no others.
        BESIDE.load(Ordering::Relaxed);
    }
}

/// Runs one fork inside the other, as in a recursion.
fn nested<P: AsymmetricPolicy>(model: &Model<P>) {
    model.push(0);
    model.push(1);
    model.pop(1);
    model.pop(0);
}

fn nested_forks_meet_a_thief<P: AsymmetricPolicy>() {
    let twice = |model: &Model<P>| (0..2).for_each(|_| model.steal());
    bounded(3).check(move || Model::<P>::new(2).run(&[twice], nested));
}

#[test]
fn loom_fork_is_called_once_by_its_owner_or_a_thief() {
    nested_forks_meet_a_thief::<Apart>();
}

#[test]
fn loom_fork_without_the_owner_s_fence_is_called_by_both() {
    let said = must_fail("loom_fork_without_the_owner_s_fence_is_called_by_both", || {
        nested_forks_meet_a_thief::<NoLight>();
    });
    assert!(said.is_empty() || is_called_by_both(&said), "{said}");
}

#[test]
fn loom_fork_without_the_thief_s_fence_is_called_by_both() {
    let said = must_fail("loom_fork_without_the_thief_s_fence_is_called_by_both", || {
        nested_forks_meet_a_thief::<NoHeavy>();
    });
    assert!(said.is_empty() || is_called_by_both(&said), "{said}");
}

/// Returns true if that is why a model failed.
fn is_called_by_both(said: &str) -> bool {
    ["Causality violation", "calls of fork", "is seen"].iter().any(|why| said.contains(why))
}

#[test]
fn loom_fork_is_called_once_where_two_thieves_come() {
    bounded(more_if_long(2)).check(|| {
        let model = Model::<Apart>::new(2);
        model.push(0);
        model.run(&[Model::steal, Model::steal], |model| {
            model.push(1);
            model.pop(1);
            model.pop(0);
        });
    });
}

#[test]
fn loom_fork_that_takes_the_place_of_another_is_called_once() {
    bounded(3).check(|| {
        let twice = |model: &Model<Apart>| (0..2).for_each(|_| model.steal());
        Model::<Apart>::new(2).run(&[twice], |model| {
            for fork in 0..2 {
                model.push(fork);
                model.pop(fork);
            }
        });
    });
}

#[test]
fn loom_fork_that_no_thief_wants_is_its_owner_s() {
    bounded(3).check(|| {
        let declines = |model: &Model<Apart>| {
            assert!(model.ring.steal(|_| false).is_none());
        };
        Model::<Apart>::new(2).run(&[declines], |model| {
            for fork in 0..2 {
                // A thief that is about to give up may have the head beyond the tail.
                assert_eq!(model.push(fork), Some(true), "nothing else is in there");
                assert!(model.pop(fork), "nobody takes it");
            }
        });
    });
}

/// The closures that one thread spawns, and the number of times that a thread had each.
struct Spawns<P: AsymmetricPolicy> {
    ring: SpawnModel<UnsafeCell<usize>, P>,
    had: [Count; 3],
}

impl<P: AsymmetricPolicy> Spawns<P> {
    fn append(&self, number: usize) {
        let closure = UnsafeCell::new(0);
        // SAFETY: no other thread has it yet. Loom sees its accesses.
        closure.with_mut(|value| unsafe { *value = number + 1 });
        assert!(self.ring.append(closure), "there is room for two");
    }

    fn has(&self, closure: UnsafeCell<usize>) {
        // SAFETY: it is the caller's.
        let number = closure.with_mut(|value| unsafe { std::mem::take(&mut *value) });
        assert_ne!(number, 0, "what was written before it was appended is seen");
        self.had[number - 1].fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks an owner that spawns, takes one back, spawns once more, and takes the rest.
fn spawned_closures_meet_thieves<P: AsymmetricPolicy>(thieves: usize, preemptions: usize) {
    bounded(preemptions).check(move || {
        let spawns = Arc::new(Spawns::<P> { ring: SpawnModel::new(), had: Default::default() });
        let thieves: Vec<_> = (0..thieves)
            .map(|_| {
                let spawns = Arc::clone(&spawns);
                thread::spawn(move || spawns.ring.steal(|closure| spawns.has(closure)))
            })
            .collect();
        spawns.append(0);
        spawns.append(1);
        spawns.ring.take().into_iter().for_each(|closure| spawns.has(closure));
        let mut kept = Vec::new();
        spawns.ring.take_all(|closure| kept.push(closure));
        spawns.append(2);
        kept.into_iter().for_each(|closure| spawns.has(closure));
        spawns.ring.take_all(|closure| spawns.has(closure));
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
        let had = spawns.had.each_ref().map(|had| had.load(Ordering::Relaxed));
        assert_eq!(had, [1; 3], "each closure is had once");
    });
}

#[test]
fn loom_fork_spawned_closures_are_had_once_by_their_owner_or_a_thief() {
    spawned_closures_meet_thieves::<Apart>(1, more_if_long(2));
}

/// Returns true if that is why a model failed.
fn is_had_by_both(said: &str) -> bool {
    ["Causality violation", "had once", "is seen", "overflow"].iter().any(|why| said.contains(why))
}

#[test]
fn loom_fork_without_the_owner_s_fence_a_spawned_closure_is_had_by_both() {
    let name = "loom_fork_without_the_owner_s_fence_a_spawned_closure_is_had_by_both";
    let said = must_fail(name, || spawned_closures_meet_thieves::<NoLight>(1, 2));
    assert!(said.is_empty() || is_had_by_both(&said), "{said}");
}

#[test]
fn loom_fork_without_the_thief_s_fence_a_spawned_closure_is_had_by_both() {
    let name = "loom_fork_without_the_thief_s_fence_a_spawned_closure_is_had_by_both";
    let said = must_fail(name, || spawned_closures_meet_thieves::<NoHeavy>(1, 2));
    assert!(said.is_empty() || is_had_by_both(&said), "{said}");
}

#[test]
fn loom_fork_in_a_full_ring_is_not_overwritten_while_a_thief_reads_it() {
    bounded(more_if_long(2)).check(|| {
        let model = Model::<Apart>::new(6);
        // The test makes as many as fit before the threads, since only threads add schedules.
        let first: Vec<_> = (0..3).filter(|fork| model.push(*fork).is_some()).collect();
        assert_eq!(first, [0, 1, 2]);
        let thief = |model: &Model<Apart>| (0..2).for_each(|_| model.steal());
        model.run(&[thief], |model| {
            let offered = |fork: &usize| {
                let pushed = model.push(*fork);
                if pushed.is_none() {
                    model.call(NonNull::from(&model.forks[*fork]));
                }
                pushed.is_some()
            };
            let later: Vec<_> = (3..6).filter(offered).collect();
            for fork in first.iter().chain(&later).rev() {
                model.pop(*fork);
            }
        });
    });
}

/// Checks a join that meets a thief, which may find its fork, and then calls it or gives it back.
fn a_join_meets_a_thief(returns: bool) {
    let outcomes = [(); 2].map(|()| Arc::<Count>::default());
    let seen = outcomes.clone();
    bounded(3).check(move || {
        let lanes = Arc::new(LanesModel::<Asymmetric>::new());
        let thief = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || lanes.steal(returns))
        };
        let (input, output) = (UnsafeCell::new(3), UnsafeCell::new(0));
        let closure = || {
            // SAFETY: loom sees that both are one thread's after the other.
            let read = input.with(|input| unsafe { *input });
            // SAFETY: as above.
            output.with_mut(|output| unsafe { *output = read + 1 });
            read + 2
        };
        let closure = AssertSend(closure);
        let returned = lanes.join(Waits::Asleep, || (), move || closure.call());
        assert_eq!(returned.ok(), Some(5), "its result is seen");
        // SAFETY: as above.
        assert_eq!(output.with(|output| unsafe { *output }), 4, "what it wrote is seen");
        let stolen = thief.join().unwrap();
        seen[usize::from(stolen)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(outcomes.iter().all(|seen| seen.load(Ordering::Relaxed) > 0), "both happen");
}

/// Loom checks its borrows.
struct AssertSend<C>(C);

// SAFETY: as above.
unsafe impl<C> Send for AssertSend<C> {}

impl<R, C: FnOnce() -> R> AssertSend<C> {
    fn call(self) -> R {
        self.0()
    }
}

#[test]
fn loom_fork_no_owner_sleeps_for_ever_and_each_sees_what_its_thief_did() {
    a_join_meets_a_thief(false);
}

#[test]
fn loom_fork_that_a_thief_gives_back_is_called_by_its_owner() {
    a_join_meets_a_thief(true);
}

#[test]
fn loom_fork_a_token_that_was_left_ends_no_later_wait_too_early() {
    bounded(more_if_long(2)).check(|| {
        let lanes = Arc::new(LanesModel::<Asymmetric>::new());
        let thief = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || (0..2).for_each(|_| _ = lanes.steal(false)))
        };
        for fork in 0..2 {
            assert_eq!(lanes.join(Waits::Asleep, || (), || fork).ok(), Some(fork));
        }
        thief.join().unwrap();
    });
}

/// Checks the thief of a fork that forks in there, and once more when it is over, while the owner
/// leapfrogs. The latter fork is no part of the owner's, whose thread doesn't call it.
fn an_owner_leapfrogs(waits: Waits) {
    let leaps = Arc::<Count>::default();
    let seen = Arc::clone(&leaps);
    bounded(3).check(move || {
        let lanes = Arc::new(LanesModel::<Asymmetric>::new());
        let thief = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || {
                let here = thread::current().id();
                lanes.steal(false);
                let foreign = || assert_eq!(thread::current().id(), here, "a foreign fork");
                lanes.join(Waits::Asleep, || (), foreign).expect("no panic");
            })
        };
        let owner = thread::current().id();
        let nested = || {
            let part = || thread::current().id() == owner;
            let called_by = thread::current().id();
            let by_owner = lanes.join(Waits::Asleep, || (), part).expect("no panic");
            called_by != owner && by_owner
        };
        let leapt = lanes.join(waits, || (), nested).expect("no panic");
        seen.fetch_add(usize::from(leapt), Ordering::Relaxed);
        thief.join().unwrap();
    });
    assert!(leaps.load(Ordering::Relaxed) > 0, "nobody leapt");
}

#[test]
fn loom_fork_an_owner_that_leapfrogs_calls_parts_of_its_own_fork_alone() {
    an_owner_leapfrogs(Waits::Leaping);
}

#[test]
fn loom_fork_an_owner_that_takes_what_its_thief_offers_calls_a_foreign_one() {
    let name = "loom_fork_an_owner_that_takes_what_its_thief_offers_calls_a_foreign_one";
    let said = must_fail(name, || an_owner_leapfrogs(Waits::LeapingAnywhere));
    assert!(said.is_empty() || said.contains("a foreign fork"), "{said}");
}

/// Checks the first fork of a ring, pushed while a watch ends.
fn a_first_fork_meets_the_end_of_a_watch<P: AsymmetricPolicy>() {
    bounded(3).check(|| {
        let lanes = Arc::new(LanesModel::<P>::new());
        lanes.push::<FullFence>();
        assert!(lanes.begin_watch());
        lanes.pop();
        let watcher = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || lanes.end_watch())
        };
        let wakes = lanes.push::<FullFence>();
        let goes_on = watcher.join().unwrap();
        assert!(wakes || goes_on, "the fork is overlooked");
        lanes.pop();
    });
}

#[test]
fn loom_fork_that_is_the_first_is_seen_by_its_owner_or_the_watcher() {
    a_first_fork_meets_the_end_of_a_watch::<Apart>();
}

#[test]
fn loom_fork_without_the_owner_s_fence_is_overlooked_by_the_watcher() {
    must_panic("is overlooked", a_first_fork_meets_the_end_of_a_watch::<NoLight>);
}

#[test]
fn loom_fork_without_the_watcher_s_fence_is_overlooked() {
    must_panic("is overlooked", a_first_fork_meets_the_end_of_a_watch::<NoHeavy>);
}

/// Checks a block of short closures that comes into a list while a watch ends, or is left.
fn a_block_meets_the_end_of_a_watch<P: AsymmetricPolicy>(leaves: bool) {
    bounded(3).check(move || {
        let both = Arc::new((LanesModel::<P>::new(), AtomicU32::new(0)));
        both.0.push::<FullFence>();
        assert!(both.0.begin_watch());
        both.0.pop();
        let watcher = {
            let both = Arc::clone(&both);
            thread::spawn(move || {
                let goes_on = if leaves {
                    both.0.leave_watch();
                    false
                } else {
                    both.0.end_watch()
                };
                goes_on || both.1.load(Ordering::Relaxed) == 1
            })
        };
        both.1.store(1, Ordering::Relaxed);
        let is_left = both.0.leaves_to_watcher();
        let is_seen = watcher.join().unwrap();
        assert!(!is_left || is_seen, "the block is overlooked");
    });
}

#[test]
fn loom_fork_a_block_that_is_left_to_the_watcher_is_seen_as_the_watch_ends() {
    [false, true].map(a_block_meets_the_end_of_a_watch::<Apart>);
}

#[test]
fn loom_fork_without_the_owner_s_fence_a_block_is_overlooked() {
    must_panic("is overlooked", || a_block_meets_the_end_of_a_watch::<NoLight>(false));
    must_panic("is overlooked", || a_block_meets_the_end_of_a_watch::<NoLight>(true));
}

#[test]
fn loom_fork_without_the_watcher_s_fence_a_block_is_overlooked() {
    must_panic("is overlooked", || a_block_meets_the_end_of_a_watch::<NoHeavy>(false));
    must_panic("is overlooked", || a_block_meets_the_end_of_a_watch::<NoHeavy>(true));
}

/// Checks the first fork of a ring, pushed while a worker goes idle, and no watch is active. The
/// owner's asymmetric fence is left out, as it isn't there for this.
fn a_first_fork_meets_a_worker_that_goes_idle<F: FencePolicy>() {
    bounded(3).check(|| {
        let both = Arc::new((LanesModel::<NoLight>::new(), AtomicU32::new(0)));
        // Its owner has a lane, and no thread has forked since a watch ended.
        both.0.push::<F>();
        assert!(both.0.begin_watch());
        both.0.pop();
        assert!(!both.0.end_watch());
        let worker = {
            let both = Arc::clone(&both);
            thread::spawn(move || {
                // Publish, and Recheck, as the pool's word does it.
                both.1.swap(1, Ordering::SeqCst);
                F::implied();
                both.0.need_thief()
            })
        };
        let wakes = both.0.push::<F>() && both.1.load(Ordering::SeqCst) == 1;
        let stays = worker.join().unwrap();
        assert!(wakes || stays, "the fork is overlooked");
        both.0.pop();
    });
}

#[test]
fn loom_fork_that_is_the_first_is_seen_by_its_owner_or_a_worker_that_goes_idle() {
    a_first_fork_meets_a_worker_that_goes_idle::<FullFence>();
}

#[test]
fn loom_fork_without_the_full_fence_is_overlooked_by_a_worker_that_goes_idle() {
    must_panic("is overlooked", a_first_fork_meets_a_worker_that_goes_idle::<NoFence>);
}
