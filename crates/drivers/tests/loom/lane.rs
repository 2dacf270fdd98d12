//! Model of a lane: a worker takes each request that is pushed, and no worker learns of a request
//! that isn't there.

use std::sync::Arc;

use corewise_drivers::model::{LaneState, PushOutcome};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::thread::JoinHandle;
use corewise_sync::{Mutex, thread};

struct Item(Link);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.0
    }
}

#[derive(Default)]
struct Lane {
    state: LaneState,
    inbox: Inbox<Box<Item>>,
    /// Number of requests that were taken out of the inbox and not done, and of those that are
    /// done.
    taken: Mutex<(usize, usize)>,
}

impl Lane {
    fn push(self: &Arc<Self>, most: u16) -> Option<JoinHandle<()>> {
        self.inbox.push(Box::new(Item(Link::new())));
        (self.state.push(most) == PushOutcome::SendWorker).then(|| {
            let lane = Arc::clone(self);
            thread::spawn(move || lane.work())
        })
    }

    fn work(&self) {
        let mut had = false;
        while self.state.next(had) {
            had = true;
            let mut taken = self.taken.lock();
            if taken.0 == 0 {
                taken.0 = self.inbox.take().count();
            }
            assert!(taken.0 > 0, "it was told that there is one");
            *taken = (taken.0 - 1, taken.1 + 1);
        }
    }
}

fn two_pushers(most: u16) {
    let lane = Arc::new(Lane::default());
    let other = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || lane.push(most))
    };
    let mut workers = vec![lane.push(most)];
    workers.push(other.join().unwrap());
    for worker in workers.into_iter().flatten() {
        worker.join().unwrap();
    }
    assert_eq!(lane.state.workers(), 0);
    assert_eq!(*lane.taken.lock(), (0, 2), "pushed, and taken by nobody");
}

#[test]
fn loom_a_request_that_meets_a_worker_which_leaves_is_taken() {
    // With two preemptions: more take minutes.
    for most in [1, 2] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || two_pushers(most));
    }
}
