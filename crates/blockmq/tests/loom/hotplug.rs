//! Model of a hardware queue that loses its last CPU. `src/hotplug/README.md` names the steps.

use std::sync::Arc;

use corewise_blockmq::model::{Activity, TagUser};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, NoHeavy, NoLight};
use corewise_sync::model::must_fail;

struct Shared<F: AsymmetricPolicy> {
    activity: Activity<F>,
    tags: TagUser,
    /// P: owned by the owner of a tag, and by a waiter once nobody has one. Loom reports a race.
    driver: UnsafeCell<u32>,
}

// SAFETY: what the model checks: `driver` is touched by one at a time.
unsafe impl<F: AsymmetricPolicy> Sync for Shared<F> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<F: AsymmetricPolicy> Send for Shared<F> {}

/// A runner that starts a request, which completes at once, against a CPU that leaves.
fn a_cpu_leaves_a_runner<F: AsymmetricPolicy>() {
    let shared = Arc::new(Shared::<F> {
        activity: Activity::new(),
        tags: TagUser::alone(1, 1),
        driver: UnsafeCell::new(0),
    });
    let runner = {
        let shared = Arc::clone(&shared);
        loom::thread::spawn(move || {
            let mut tags = shared.tags.take(0, 1);
            let handed_on = shared.activity.is_inactive_behind_tag();
            if handed_on {
                shared.tags.put_back(0, tags);
            } else {
                // SAFETY: it has a tag and saw no mark; loom checks it.
                shared.driver.with_mut(|n| unsafe { *n += 1 });
                let _ = shared.tags.free(0, tags.pop().unwrap());
            }
            shared.activity.tag_freed();
        })
    };
    shared.activity.deactivate();
    assert!(shared.activity.wait(|| shared.tags.in_use()));
    // SAFETY: nothing is in the driver any more: that is what is checked.
    shared.driver.with_mut(|n| unsafe { *n += 10 });
    runner.join().unwrap();
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_a_drained_hardware_queue_has_nothing_in_the_driver_and_its_waiter_is_told() {
    model(a_cpu_leaves_a_runner::<Asymmetric>);
}

#[test]
fn loom_without_the_fences_of_the_runner_the_drain_fails() {
    must_fail("loom_without_the_fences_of_the_runner_the_drain_fails", || {
        model(a_cpu_leaves_a_runner::<NoLight>);
    });
}

#[test]
fn loom_without_the_fences_of_the_marking_side_the_drain_fails() {
    must_fail("loom_without_the_fences_of_the_marking_side_the_drain_fails", || {
        model(a_cpu_leaves_a_runner::<NoHeavy>);
    });
}
