//! Waits for a tag, in random schedules: more threads and tags than a loom model has room for. A
//! tag has one owner at a time, none is lost, and no thread sleeps for ever. `src/tags/README.md`
//! argues it.
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use corewise_blockmq::TagSet;
use corewise_blockmq::model::{FreeResult, LineUp, TagUser, TagWaiter};
use corewise_sync::model::choose;
use corewise_sync::model::schedules::{self, Schedules};
use corewise_sync::{Completion, Mutex, thread};

/// The owner of each tag: a bit each.
#[derive(Default)]
struct Had(AtomicU64);

impl Had {
    fn take(&self, tag: u32) {
        assert_eq!(self.0.fetch_or(1 << tag, SeqCst) & 1 << tag, 0, "{tag} is had by two");
        if choose(2) == 0 {
            thread::yield_now();
        }
    }

    fn give(&self, tag: u32) {
        assert_ne!(self.0.fetch_and(!(1 << tag), SeqCst) & 1 << tag, 0);
    }
}

/// Wants a tag several times, in all ways of waiting.
fn thread_that_waits(tags: &TagSet, had: &Had, cpu: usize) {
    for _ in 0..3 {
        let tag = match choose(2) {
            0 => {
                let told = Arc::new(Completion::new());
                let waiter = TagWaiter::calling({
                    let told = Arc::clone(&told);
                    move || told.complete()
                });
                tags.line_up(&waiter, cpu);
                if choose(2) == 0 {
                    tags.leave(&waiter, cpu)
                } else {
                    told.wait();
                    waiter.take()
                }
            }
            _ => Some(tags.get(cpu)),
        };
        if let Some(tag) = tag {
            had.take(tag);
            had.give(tag);
            tags.put(cpu, tag);
        }
    }
}

/// A hardware queue that shares the tags. A thread that wants it run sets a flag, and wakes its
/// thread, as a worker is woken.
struct Hctx {
    user: TagUser,
    wanted: Arc<Mutex<Option<Arc<Completion>>>>,
}

impl Hctx {
    fn new(tags: &TagSet) -> Self {
        let wanted: Arc<Mutex<Option<Arc<Completion>>>> = Arc::default();
        let told = Arc::clone(&wanted);
        let user = TagUser::of(tags, move || {
            if let Some(asleep) = told.lock().take() {
                asleep.complete();
            }
        });
        Self { user, wanted }
    }

    /// Starts three requests one after the other, and sleeps when it goes without a tag.
    fn run(&self, had: &Had) {
        for _ in 0..3 {
            let tag = loop {
                let asleep = Arc::new(Completion::new());
                *self.wanted.lock() = Some(Arc::clone(&asleep));
                let mut tags = self.user.take(0, 1);
                if tags.is_empty() {
                    tags = self.user.wait(0, 1);
                }
                if let Some(tag) = tags.pop() {
                    break tag;
                }
                asleep.wait();
            };
            had.take(tag);
            had.give(tag);
            // It has no waiter of its own: it has one request at a time.
            let (FreeResult::Quiet | FreeResult::Restart) = self.user.free(0, tag);
        }
        self.user.decline(0);
    }
}

fn scenario() {
    let tags = TagSet::new(1 + choose(2) as u32, 2);
    let had = Arc::new(Had::default());
    let mut threads: Vec<_> = (0..3)
        .map(|cpu| {
            let (tags, had) = (tags.clone(), Arc::clone(&had));
            thread::spawn(move || thread_that_waits(&tags, &had, cpu))
        })
        .collect();
    threads.extend((0..2).map(|_| {
        let (hctx, had) = (Hctx::new(&tags), Arc::clone(&had));
        thread::spawn(move || hctx.run(&had))
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(tags.in_use(), 0, "a tag was lost");
    // No mark is left that keeps newcomers out.
    assert!(tags.try_get(0).is_some());
}

#[test]
fn shuttle_no_tag_is_lost_or_doubled_and_nobody_waits_for_ever_in_random_schedules() {
    schedules::random(Schedules { short: 5_000, long: 500_000 }, scenario);
}

#[test]
fn shuttle_no_tag_is_lost_or_doubled_and_nobody_waits_for_ever_where_few_are_preempted() {
    schedules::few_preemptions(Schedules { short: 1_000, long: 200_000 }, scenario);
}
