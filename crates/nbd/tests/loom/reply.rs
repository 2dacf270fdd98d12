//! Model of the flush right: the reply path of the product, with a sink that only counts. Steps as
//! named in `src/reply/README.md`.

use std::sync::Arc;

use corewise_nbd::model::{Patience, PostOutcome, ReplyPath, RunOutcome, SendOutcome, Sink};
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::inbox::{Batch, HasLink, Link};
use loom::thread;

struct Node {
    link: Link,
    value: usize,
}

// SAFETY: always the same field.
unsafe impl HasLink for Node {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// A sink that counts its replies, and is full a given number of times.
struct Counter {
    sent: Arc<AtomicUsize>,
    held_back: usize,
    full: usize,
}

impl Sink for Counter {
    type Reply = Box<Node>;

    fn send(&mut self, batch: Batch<Box<Node>>, patience: Patience) -> SendOutcome {
        self.held_back += batch.map(|node| node.value).sum::<usize>();
        if patience == Patience::None && self.full > 0 && self.held_back > 0 {
            self.full -= 1;
            return SendOutcome::Full;
        }
        self.sent.fetch_add(std::mem::take(&mut self.held_back), Ordering::Relaxed);
        SendOutcome::All
    }
}

fn path(full: usize) -> (Arc<ReplyPath<Counter>>, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let sink = Counter { sent: Arc::clone(&sent), held_back: 0, full };
    (Arc::new(ReplyPath::new(sink)), sent)
}

fn post(path: &ReplyPath<Counter>, value: usize) {
    if let PostOutcome::YouSend(right) = path.post(Box::new(Node { link: Link::new(), value })) {
        assert!(matches!(right.run(Patience::None, u32::MAX), RunOutcome::Released));
    }
}

/// Posts as `post` does, but takes from the inbox once: if a note keeps the holder from the
/// release, it leaves all the same.
fn post_and_ignore_notes(path: &ReplyPath<Counter>, value: usize) {
    if let PostOutcome::YouSend(right) = path.post(Box::new(Node { link: Link::new(), value })) {
        if let RunOutcome::HandOver(right) = right.run(Patience::None, 1) {
            right.give_up();
        }
    }
}

/// Runs two posters beside this thread: in any order, everything is sent when all have returned.
fn posters(post: fn(&ReplyPath<Counter>, usize)) {
    let mut builder = loom::model::Builder::new();
    // There are three threads of five read-modify-writes each. The model tries every schedule with
    // up to three preemptions.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let (path, sent) = path(0);
        let others: Vec<_> = [1, 10]
            .map(|value| {
                let path = Arc::clone(&path);
                thread::spawn(move || post(&path, value))
            })
            .into_iter()
            .collect();
        post(&path, 100);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(sent.load(Ordering::Relaxed), 111, "a reply is stranded");
    });
}

#[test]
fn loom_every_posted_reply_is_sent() {
    posters(post);
}

#[test]
fn loom_a_holder_that_ignores_notes_strands_a_reply() {
    let failed = std::panic::catch_unwind(|| posters(post_and_ignore_notes)).is_err();
    assert!(failed, "the model has to find the lost reply");
}

#[test]
fn loom_a_corked_reader_sends_what_others_posted_meanwhile() {
    loom::model(|| {
        let (path, sent) = path(0);
        let theirs = Arc::clone(&path);
        let other = thread::spawn(move || post(&theirs, 1));
        let cork = path.cork();
        post(&path, 10);
        if let Some(right) = cork {
            assert!(matches!(right.run(Patience::None, u32::MAX), RunOutcome::Released));
        }
        other.join().unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 11);
    });
}

#[test]
fn loom_a_full_sink_is_handed_to_the_writer_and_nothing_is_lost() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (path, sent) = path(1);
        let handed = Arc::new(AtomicBool::new(false));
        let give = |path: &ReplyPath<Counter>, value: usize, handed: &AtomicBool| {
            if let PostOutcome::YouSend(right) =
                path.post(Box::new(Node { link: Link::new(), value }))
            {
                if let RunOutcome::HandOver(right) = right.run(Patience::None, u32::MAX) {
                    right.give_up();
                    // Release: the writer sees the sink as it was left. A swap, as in the product:
                    // loom doesn't know that a plain store can't come between the two halves of the
                    // writer's swap.
                    handed.swap(true, Ordering::Release);
                }
            }
        };
        let (theirs, their_flag) = (Arc::clone(&path), Arc::clone(&handed));
        let other = thread::spawn(move || give(&theirs, 1, &their_flag));
        give(&path, 10, &handed);
        // The writer, in this thread: it may look while the other still posts, and once more at the
        // end.
        let write = || {
            if handed.swap(false, Ordering::Acquire) {
                // SAFETY: the holder gave the right up before it set the flag, and the swap took
                // the flag.
                let right = unsafe { path.take_over() };
                assert!(matches!(right.run(Patience::Unlimited, u32::MAX), RunOutcome::Released));
            }
        };
        write();
        other.join().unwrap();
        write();
        assert_eq!(sent.load(Ordering::Relaxed), 11);
    });
}
