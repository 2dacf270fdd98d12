//! Models of the timeouts: completion against handler, and start against the end of the timer.
//! `src/timeout/README.md` names the steps.

use std::sync::Arc;

use corewise_blockmq::model::{Release, TagState, Watch};
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, NoHeavy, NoLight};
use corewise_sync::model::must_fail;
use corewise_sync::time::Stamp;

const NOW: Stamp = Stamp::from_nanos(1_000);
const LATER: Stamp = Stamp::from_nanos(2_000);

struct Tag {
    state: TagState<Box<u32>>,
    /// P: owned by the tag's owner: the driver's table. The handler reads it while it holds the
    /// tag, and the next owner of the tag writes it. Loom reports it if these meet.
    table: UnsafeCell<u32>,
    /// A: number of times that the request ended.
    ended: AtomicU32,
}

// SAFETY: the model checks this: one thread at a time touches `table`.
unsafe impl Sync for Tag {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Tag {}

impl Tag {
    /// Ends the request, frees its tag, and gives that to the next request.
    fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the tag is free, so no thread looks at its entry; loom checks it.
        self.table.with_mut(|entry| unsafe { *entry = 2 });
    }
}

fn a_completion_meets_the_handler(tag_freed_first: bool) {
    loom::model(move || {
        let tag = Arc::new(Tag {
            state: TagState::new(),
            table: UnsafeCell::new(1),
            ended: AtomicU32::new(0),
        });
        tag.state.start(NOW);
        let completer = {
            let tag = Arc::clone(&tag);
            loom::thread::spawn(move || {
                if tag_freed_first {
                    tag.end();
                    drop(tag.state.finish(Box::new(7)));
                } else if tag.state.finish(Box::new(7)).is_some() {
                    tag.end();
                }
            })
        };
        if tag.state.hold(NOW) {
            // SAFETY: the tag is held, so no other request has it; loom checks it.
            let entry = tag.table.with(|entry| unsafe { *entry });
            assert_eq!(entry, 1, "the driver is told about another request");
            if tag.state.release(Release::Until(LATER)).is_some() && !tag_freed_first {
                tag.end();
            }
        }
        completer.join().expect("no panic");
        assert_eq!(tag.ended.load(Ordering::Relaxed), 1);
        assert_eq!(tag.state.deadline(), None);
    });
}

#[test]
fn loom_a_held_tag_is_not_freed_and_its_request_ends_once() {
    a_completion_meets_the_handler(false);
}

#[test]
fn loom_a_tag_that_is_freed_before_the_state_is_asked_is_aborted_for_another() {
    must_fail("loom_a_tag_that_is_freed_before_the_state_is_asked_is_aborted_for_another", || {
        a_completion_meets_the_handler(true);
    });
}

/// Models a request that starts while the timer ends. Afterwards either the timer has seen it, or
/// the timer is armed.
fn a_start_meets_the_end_of_the_timer<F: AsymmetricPolicy>() {
    loom::model(|| {
        let shared = Arc::new((TagState::<u32>::new(), Watch::<F>::new()));
        assert!(shared.1.arm());
        let runner = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.0.start(LATER);
                shared.1.started()
            })
        };
        let mut timer_runs = shared.0.deadline().is_some();
        if !timer_runs {
            shared.1.disarm();
            timer_runs = shared.0.deadline().is_some() && shared.1.arm();
        }
        let armed = runner.join().expect("no panic");
        assert!(timer_runs != armed, "one timer, and no more: {timer_runs}, {armed}");
    });
}

#[test]
fn loom_a_request_in_flight_has_a_timer() {
    a_start_meets_the_end_of_the_timer::<Asymmetric>();
}

#[test]
fn loom_without_the_light_fence_a_request_has_no_timer() {
    must_fail("loom_without_the_light_fence_a_request_has_no_timer", || {
        a_start_meets_the_end_of_the_timer::<NoLight>();
    });
}

#[test]
fn loom_without_the_heavy_fence_a_request_has_no_timer() {
    must_fail("loom_without_the_heavy_fence_a_request_has_no_timer", || {
        a_start_meets_the_end_of_the_timer::<NoHeavy>();
    });
}
