//! Model: the targets of a call to many that still sleep, and the threads that wake them
//! (`src/README.md`, race 5).

use std::sync::Arc;

use corewise_smp::model::wrong::{Sleeper, Sleepers};
use corewise_sync::Parker;
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::model::must_fail;
use loom::thread;

/// Runs a model with a bound. Without a bound, the models take half a minute, and pass.
fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(f);
}

/// Creates a target: the side that wakes it, and the side that sleeps.
fn target() -> (Sleeper, Parker) {
    let parker = Parker::new();
    (Sleeper::new(parker.unparker()), parker)
}

/// Calls three targets that sleep. Two of them run, and help; the third one's token is checked for.
fn one_call(wakes_the_rest: bool) {
    model(move || {
        let (targets, mut parkers): (Vec<_>, Vec<_>) = (0..3).map(|_| target()).unzip();
        let call = Arc::new((Sleepers::new(), targets, AtomicU32::new(0)));
        let last = parkers.pop().unwrap();
        let helpers: Vec<_> = parkers
            .into_iter()
            .map(|parker| {
                let call = Arc::clone(&call);
                thread::spawn(move || {
                    parker.park();
                    assert_eq!(
                        call.2.load(Ordering::Relaxed),
                        1,
                        "it was woken before its share was there"
                    );
                    // SAFETY: all of them live as long as the call.
                    unsafe { call.0.help() };
                })
            })
            .collect();
        // These are the shares; in the product they are pushed, one before each.
        call.2.store(1, Ordering::Relaxed);
        call.1.iter().for_each(|target| call.0.wake_or_list(target));
        if wakes_the_rest {
            // SAFETY: as above.
            unsafe { call.0.wake_all() };
        }
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
        assert!(last.try_park(), "nobody woke it");
        assert!(!last.try_park(), "it was woken once");
    });
}

#[test]
fn loom_every_target_that_a_call_to_many_finds_asleep_is_woken_whoever_helps() {
    one_call(true);
}

#[test]
fn loom_a_caller_that_leaves_the_rest_to_those_who_help_forgets_one() {
    let test = "loom_a_caller_that_leaves_the_rest_to_those_who_help_forgets_one";
    must_fail(test, || one_call(false));
}

/// Lists a target in one call that another thread wakes, and that sleeps again when the other call
/// comes.
fn two_calls(list_again: fn(&Sleepers, &Sleeper)) {
    model(move || {
        let (first, _) = target();
        let (listed, of_listed) = target();
        let (again, of_again) = target();
        let one = Arc::new((Sleepers::new(), listed, again));
        let other = Sleepers::new();
        for call in [&one.0, &other] {
            call.wake_or_list(&first);
            // SAFETY: all of them live as long as both calls.
            unsafe { call.help() };
        }
        one.0.wake_or_list(&one.1);
        one.0.wake_or_list(&one.2);
        let helper = {
            let one = Arc::clone(&one);
            // SAFETY: as above.
            thread::spawn(move || unsafe { one.0.wake_all() })
        };
        list_again(&other, &one.2);
        // SAFETY: as above.
        unsafe {
            other.wake_all();
            one.0.wake_all();
        }
        helper.join().unwrap();
        assert!(of_again.try_park(), "the one in both calls sleeps on");
        assert!(of_listed.try_park(), "the other one sleeps on");
    });
}

#[test]
fn loom_a_target_that_one_call_lists_is_woken_and_not_listed_by_the_other() {
    two_calls(Sleepers::wake_or_list);
}

#[test]
fn loom_a_target_in_two_lists_makes_one_of_them_lose_another_target() {
    let test = "loom_a_target_in_two_lists_makes_one_of_them_lose_another_target";
    must_fail(test, || two_calls(Sleepers::list_unclaimed));
}
