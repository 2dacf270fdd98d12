//! Models of the tag shortage: mark, look again, free. `src/README.md` names the steps.
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_blockmq::protocol::{Freed, Tags};

/// One tag, in use. The allocator goes without; the completion frees. Somebody has to notice.
fn shortage(look_again: bool) {
    let tags = Arc::new(Tags::new(1));
    let tag = tags.alloc().unwrap();
    let completion = {
        let tags = Arc::clone(&tags);
        loom::thread::spawn(move || tags.free(tag) == Freed::Restart)
    };
    let mut got = tags.alloc().is_some();
    if !got {
        let _ = tags.arm();
        got = look_again && tags.alloc().is_some();
    }
    let restarted = completion.join().unwrap();
    assert!(got || restarted, "the waiter sleeps beside a free tag");
}

#[test]
fn loom_a_tag_freed_during_a_shortage_is_found_or_restarts_the_queue() {
    loom::model(|| shortage(true));
}

#[test]
fn loom_without_the_second_look_the_waiter_sleeps_beside_a_free_tag() {
    let failed = catch_unwind(AssertUnwindSafe(|| loom::model(|| shortage(false))));
    assert!(failed.is_err(), "without the second look the model must fail");
}

#[test]
fn loom_a_tag_is_never_given_to_two() {
    loom::model(|| {
        let tags = Arc::new(Tags::new(2));
        let other = {
            let tags = Arc::clone(&tags);
            loom::thread::spawn(move || tags.alloc().unwrap())
        };
        let mine = tags.alloc().unwrap();
        assert_ne!(mine, other.join().unwrap());
        assert_eq!(tags.alloc(), None);
    });
}
