//! Models of waits for a tag: mark, look again, free. `src/tags/README.md` names the steps.

use std::sync::Arc;

use corewise_blockmq::TagSet;
use corewise_blockmq::model::{FreeResult, LineUp, TagUser, TagWaiter, Tags};
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::model::{bounded, must_panic};

/// Runs a model with three preemptions: the races are of two steps against one.
fn model(f: impl Fn() + Send + Sync + 'static) {
    bounded(3, f);
}

fn must_fail(what: &str, f: impl Fn() + Send + Sync + 'static) {
    must_panic(what, || model(f));
}

/// Models a shortage. One tag, in use; the runner goes without; the completion frees. One of the
/// two has to notice.
fn shortage(look_again: bool) {
    let tags = Arc::new(TagUser::alone(1, 1));
    let tag = tags.take(0, 1).pop().unwrap();
    let completion = {
        let tags = Arc::clone(&tags);
        loom::thread::spawn(move || tags.free(0, tag) == FreeResult::Restart)
    };
    let mut got = !tags.take(0, 1).is_empty();
    if !got {
        got = if look_again {
            !tags.wait(0, 1).is_empty()
        } else {
            let _ = tags.restart_at_next_free();
            false
        };
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
    must_fail("sleeps beside", || shortage(false));
}

#[test]
fn loom_a_mark_that_is_only_renewed_misses_no_free() {
    // Two completions. `word` stands for RERUN: a thread that takes the mark sets it, and the
    // runner ends only if it isn't set.
    model(|| {
        let tags = Arc::new(TagUser::alone(2, 1));
        let mut held = tags.take(0, 2);
        let word = Arc::new(AtomicBool::new(false));
        let completions: Vec<_> = std::iter::from_fn(|| held.pop())
            .map(|tag| {
                let (tags, word) = (Arc::clone(&tags), Arc::clone(&word));
                loom::thread::spawn(move || {
                    if tags.free(0, tag) == FreeResult::Restart {
                        word.swap(true, Ordering::AcqRel);
                    }
                })
            })
            .collect();
        let mut started = 0;
        loop {
            while started < 2 {
                match tags.wait(0, 1).len() {
                    0 => break,
                    some => started += some,
                }
            }
            if !word.swap(false, Ordering::AcqRel) {
                break;
            }
        }
        for completion in completions {
            completion.join().unwrap();
        }
        let owed = word.load(Ordering::Acquire);
        assert!(started == 2 || owed, "{started} started, and nobody comes for the rest");
    });
}

#[test]
fn loom_a_tag_is_never_given_to_two() {
    loom::model(|| {
        let tags = TagSet::new(2, 2);
        let other = {
            let tags = tags.clone();
            loom::thread::spawn(move || tags.try_get(1).unwrap())
        };
        let mine = tags.try_get(0).unwrap();
        assert_ne!(mine, other.join().unwrap());
        assert_eq!(tags.try_get(0), None);
    });
}

/// Makes a waiter that only counts its wake-ups, and holds its tag.
fn counting() -> (Arc<TagWaiter>, Arc<AtomicUsize>) {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let granted = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    (TagWaiter::calling(granted), told)
}

/// Models one tag, in use: one thread lines up, the other frees.
fn line_up_races_free<const MARKS: bool>() {
    let tags = Arc::new(Tags::<MARKS>::new(1, 1));
    let tag = tags.try_get(0).unwrap();
    let (waiter, told) = counting();
    let freer = {
        let tags = Arc::clone(&tags);
        loom::thread::spawn(move || tags.put(0, tag))
    };
    tags.line_up(&waiter, 0);
    freer.join().unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 1, "forgotten beside a free tag");
    assert_eq!(waiter.take(), Some(tag));
}

#[test]
fn loom_a_waiter_never_sleeps_beside_a_free_tag() {
    model(line_up_races_free::<true>);
}

#[test]
fn loom_without_the_mark_a_waiter_is_forgotten() {
    must_fail("forgotten", line_up_races_free::<false>);
}

#[test]
fn loom_one_tag_goes_through_the_hands_of_all_who_block_for_it() {
    model(|| {
        let tags = TagSet::new(1, 1);
        let others: Vec<_> = (0..2)
            .map(|cpu| {
                let tags = tags.clone();
                loom::thread::spawn(move || {
                    let tag = tags.get(cpu);
                    assert_eq!(tags.in_use(), 1);
                    tags.put(cpu, tag);
                })
            })
            .collect();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!((tags.in_use(), tags.try_get(0)), (0, Some(0)));
    });
}

#[test]
fn loom_a_waiter_that_leaves_loses_no_tag() {
    model(|| {
        let tags = TagSet::new(1, 1);
        let tag = tags.try_get(0).unwrap();
        let (waiter, _told) = counting();
        tags.line_up(&waiter, 0);
        let freer = {
            let tags = tags.clone();
            loom::thread::spawn(move || tags.put(0, tag))
        };
        if let Some(tag) = tags.leave(&waiter, 0) {
            tags.put(0, tag);
        }
        freer.join().unwrap();
        assert_eq!(tags.try_get(0), Some(tag), "nobody has it, and no mark is left");
    });
}

#[test]
fn loom_a_hardware_queue_with_its_share_in_use_is_restarted_by_its_own_completion() {
    model(|| {
        let set = TagSet::new(2, 1);
        let (user, other) = (TagUser::of(&set, || {}), TagUser::of(&set, || {}));
        // It alone is active, so its share is the whole set.
        let user = Arc::new(user);
        let mut held = user.take(0, 2);
        let (first, second) = (held.pop().unwrap(), held.pop().unwrap());
        let completion = {
            let user = Arc::clone(&user);
            loom::thread::spawn(move || user.free(0, first) == FreeResult::Restart)
        };
        let got = user.wait(0, 1).len();
        let restarted = completion.join().unwrap();
        assert!(got == 1 || restarted || user.has_grant(), "nobody runs it beside a free tag");
        let _ = user.free(0, second);
        drop(other);
    });
}
