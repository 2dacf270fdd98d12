//! Tests of waiting in line and of fair shares.

use std::collections::VecDeque;

use corewise_sync::Mutex;

use super::*;
use crate::model::LineUp;

/// Makes a waiter that notes its name when it wakes.
fn named(name: u32, told: &Arc<Mutex<Vec<u32>>>) -> Arc<TagWaiter> {
    let told = Arc::clone(told);
    TagWaiter::calling(move || told.lock().push(name))
}

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let tags = TagSet::new(3, 1);
    let mut held: VecDeque<_> = (0..3).map(|_| tags.try_get(0).unwrap()).collect();
    let told = Arc::default();
    let waiters: Vec<_> = (0..20).map(|name| named(name, &told)).collect();
    for waiter in &waiters {
        tags.line_up(waiter, 0);
        assert!(waiter.is_in_line());
    }
    for (name, waiter) in waiters.iter().enumerate() {
        tags.put(0, held.pop_front().unwrap());
        assert_eq!(tags.try_get(0), None, "a newcomer doesn't overtake");
        assert_eq!(told.lock().last(), Some(&(name as u32)));
        held.push_back(waiter.take().unwrap());
    }
    for tag in held {
        tags.put(0, tag);
    }
    assert!(tags.try_get(0).is_some(), "with nobody in line, tags are had at once again");
    assert_eq!(*told.lock(), (0..20).collect::<Vec<_>>());
}

#[test]
fn tags_that_come_back_together_serve_as_many_waiters() {
    let tags = TagSet::new(32, 1);
    let all = tags.bitmap().take(0, 32, false).unwrap();
    let told = Arc::default();
    let waiters: Vec<_> = (0..40).map(|name| named(name, &told)).collect();
    waiters.iter().for_each(|waiter| tags.line_up(waiter, 0));
    let put = tags.tags().put_batch(0, all, 0, Some(&waiters[9]));
    assert!(put.own_got, "more than one batch of them is served");
    let expected: Vec<_> = (0..32).filter(|&name| name != 9).collect();
    assert_eq!(*told.lock(), expected, "and who serves isn't told");
    assert_eq!(waiters.iter().filter_map(|waiter| waiter.take()).count(), 32);
    assert_eq!(tags.in_use(), 32);
}

#[test]
fn a_waiter_that_lines_up_again_stands_at_the_end() {
    let tags = TagSet::new(1, 1);
    let tag = tags.try_get(0).unwrap();
    let told = Arc::default();
    let (a, b) = (named(0, &told), named(1, &told));
    for waiter in [&a, &a, &b, &a] {
        tags.line_up(waiter, 0);
    }
    tags.put(0, tag);
    tags.line_up(&a, 0);
    assert_eq!(a.take(), Some(tag), "it has one to take first");
    tags.line_up(&a, 0);
    tags.put(0, tag);
    tags.put(0, b.take().unwrap());
    assert_eq!(*told.lock(), [0, 1, 0]);
    assert_eq!(a.take(), Some(tag));
}

#[test]
fn a_waiter_that_leaves_the_line_keeps_nobody_behind_it_waiting() {
    let tags = TagSet::new(1, 1);
    let tag = tags.try_get(0).unwrap();
    let told = Arc::default();
    let (leaver, waiter) = (named(0, &told), named(1, &told));
    tags.line_up(&leaver, 0);
    tags.line_up(&waiter, 0);
    assert_eq!(tags.leave(&leaver, 0), None);
    tags.put(0, tag);
    assert_eq!(waiter.take(), Some(tag));
    tags.put(0, tag);
    assert_eq!(tags.try_get(0), Some(tag), "nobody is left in line");
}

#[test]
fn a_function_that_panics_keeps_nobody_from_its_tag() {
    let tags = TagSet::new(1, 1);
    let tag = tags.try_get(0).unwrap();
    let rude = TagWaiter::calling(|| panic!("on purpose"));
    let told = Arc::default();
    let polite = named(1, &told);
    tags.line_up(&rude, 0);
    tags.line_up(&polite, 0);
    tags.put(0, tag);
    tags.put(0, rude.take().unwrap());
    assert_eq!(polite.take(), Some(tag));
}

#[test]
fn the_first_free_after_a_mark_asks_for_the_restart_and_the_second_does_not() {
    let user = TagUser::alone(2, 1);
    let mut both = user.take(0, 9);
    let (a, b) = (both.pop().unwrap(), both.pop().unwrap());
    assert!(user.take(0, 1).is_empty());
    assert!(user.wait(0, 1).is_empty());
    assert_eq!(user.restart_at_next_free(), 2, "the mark is no tag");
    assert_eq!(user.free(0, a), FreeResult::Restart);
    assert_eq!(user.free(0, b), FreeResult::Quiet);
}

#[test]
fn a_tag_put_back_unused_leaves_the_mark_for_a_real_free() {
    for shared in [false, true] {
        let set = TagSet::new(2, 1);
        let user = if shared { TagUser::of(&set, || {}) } else { TagUser::alone(2, 1) };
        let mut tags = user.take(0, 2);
        let a = tags.pop().unwrap();
        assert_eq!(user.restart_at_next_free(), 2);
        user.put_back(0, tags);
        assert_eq!(user.in_use(), 1);
        assert_eq!(user.free(0, a), FreeResult::Restart);
    }
}

#[test]
fn a_user_that_is_idle_for_a_while_leaves_its_share_to_the_others() {
    let set = TagSet::new(16, 1);
    let (a, b) = (TagUser::of(&set, || {}), TagUser::of(&set, || {}));
    let one = b.take(0, 1).pop().unwrap();
    let _ = b.free(0, one);
    assert_eq!(a.take(0, 99).len(), 8, "both have been active lately");
    set.sweep();
    assert!(a.take(0, 99).is_empty(), "the second took one since the sweep before");
    set.sweep();
    assert_eq!(a.take(0, 99).len(), 8);
    assert_eq!(set.in_use(), 16);
}

#[test]
fn a_user_that_waits_for_its_first_tag_is_not_idle_however_long_that_takes() {
    let set = TagSet::new(16, 1);
    let (a, b) = (TagUser::of(&set, || {}), TagUser::of(&set, || {}));
    let mut all = a.take(0, 99);
    assert_eq!(all.len(), 16);
    assert_eq!(b.take(0, 1).len() + b.wait(0, 1).len(), 0, "it stands in line");
    (0..3).for_each(|_| set.sweep());
    for _ in 0..2 {
        let _ = a.free(0, all.pop().unwrap());
    }
    assert!(b.has_grant(), "the first one is for it");
    assert_eq!(a.take(0, 99).len(), 0, "and the second not for who has more than half");
}

#[test]
fn a_user_that_has_no_use_for_its_turn_lets_the_next_one_have_it() {
    let set = TagSet::new(1, 1);
    let told = Arc::default();
    let mut users = (0..3).map(|name| {
        let told: Arc<Mutex<Vec<u32>>> = Arc::clone(&told);
        TagUser::of(&set, move || told.lock().push(name))
    });
    let (a, b, c) = (users.next().unwrap(), users.next().unwrap(), users.next().unwrap());
    let tag = a.take(0, 1).pop().unwrap();
    assert!(b.wait(0, 1).is_empty() && c.wait(0, 1).is_empty());
    assert_eq!(a.free(0, tag), FreeResult::Quiet);
    assert!(b.has_grant());
    b.decline(0);
    assert!(c.has_grant(), "quiesced meanwhile, say");
    assert!(b.wait(0, 1).is_empty(), "back in line");
    drop(c);
    assert_eq!(b.take(0, 1).pop(), Some(tag), "who goes leaves what it was given");
    assert_eq!(*told.lock(), [1, 2, 1]);
}
