//! Model of the end of the workers. A worker, the publisher or the thread that ends the pools does
//! each item of published work.

use std::sync::Arc;

use corewise_blockmq::model::EndOfWorkers;
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, NoHeavy, NoLight};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::model::must_fail;
use corewise_sync::thread;

struct Item(Link);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.0
    }
}

struct Shared<F: AsymmetricPolicy> {
    /// A: the published work, as a bare flag. An inbox would bring fences of its own by its
    /// `SeqCst` accesses. Relaxed, so that only the fences under test order it.
    published: AtomicUsize,
    inbox: Inbox<Box<Item>>,
    end: EndOfWorkers<F>,
    /// A: number of items of work that were done.
    done: AtomicUsize,
}

impl<F: AsymmetricPolicy> Shared<F> {
    /// Does the published work. Only one thread at a time does it. The swap stands for the runner
    /// or the lock that ensures this.
    fn does(&self) {
        let here = self.published.load(Ordering::Relaxed);
        if here != 0 && self.published.swap(0, Ordering::Acquire) != 0 {
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        self.done.fetch_add(self.inbox.take().count(), Ordering::Relaxed);
    }
}

fn a_request_meets_the_end<F: AsymmetricPolicy>(in_inbox: bool) {
    let shared = Arc::new(Shared {
        published: AtomicUsize::new(0),
        inbox: Inbox::new(),
        end: EndOfWorkers::<F>::new(),
        done: AtomicUsize::new(0),
    });
    let requester = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            // Publish.
            if in_inbox {
                shared.inbox.push(Box::new(Item(Link::new())));
            } else {
                shared.published.store(1, Ordering::Release);
            }
            // Ask. (The pools refused or cancelled the work item.)
            if shared.end.has_come() {
                shared.does();
            }
        })
    };
    // Come, Look.
    shared.end.come();
    shared.does();
    requester.join().unwrap();
    assert_eq!(shared.done.load(Ordering::Relaxed), 1, "stranded");
}

#[test]
fn loom_a_request_that_meets_the_end_of_the_workers_is_not_stranded() {
    loom::model(|| a_request_meets_the_end::<Asymmetric>(false));
    loom::model(|| a_request_meets_the_end::<Asymmetric>(true));
}

#[test]
fn loom_without_the_fence_of_the_requester_the_request_is_stranded() {
    let name = "loom_without_the_fence_of_the_requester_the_request_is_stranded";
    let said = must_fail(name, || loom::model(|| a_request_meets_the_end::<NoLight>(false)));
    assert!(said.contains("stranded"), "{said}");
}

#[test]
fn loom_without_the_fence_of_the_end_the_request_is_stranded() {
    let name = "loom_without_the_fence_of_the_end_the_request_is_stranded";
    let said = must_fail(name, || loom::model(|| a_request_meets_the_end::<NoHeavy>(false)));
    assert!(said.contains("stranded"), "{said}");
}

/// Models a mirror's keeper. A round leaves blocked waiters in a line. The end of the pools only
/// tries the lock of that line.
fn a_round_meets_the_end<F: AsymmetricPolicy>() {
    let line = Arc::new(Mutex::new(0));
    let (end, done) = (Arc::new(EndOfWorkers::<F>::new()), Arc::new(AtomicUsize::new(0)));
    let look = |line: &Mutex<usize>, done: &AtomicUsize| {
        let found = line.try_lock().map_or(0, |mut line| std::mem::take(&mut *line));
        done.fetch_add(found, Ordering::Relaxed);
    };
    let round = {
        let (line, end, done) = (Arc::clone(&line), Arc::clone(&end), Arc::clone(&done));
        thread::spawn(move || {
            *line.lock() += 1; // Unlock
            if end.has_come() {
                look(&line, &done);
            }
        })
    };
    end.come();
    look(&line, &done);
    round.join().unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 1, "stranded");
}

#[test]
fn loom_a_waiter_in_a_line_at_the_end_of_the_workers_is_not_stranded() {
    loom::model(a_round_meets_the_end::<Asymmetric>);
}
