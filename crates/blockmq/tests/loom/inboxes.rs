//! Model of the software queues' bitmap: the run of a request's own pusher, or of an earlier one,
//! finds it.

use std::collections::VecDeque;
use std::sync::Arc;

use corewise_blockmq::model::{CtxMap, SoftwareQueues};
use corewise_sync::Mutex;
use corewise_sync::inbox::{HasLink, Link};

struct Item(Link);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.0
    }
}

#[test]
fn loom_two_pushers_of_one_software_queue_lose_nothing() {
    loom::model(|| {
        // The lock plays RUNNING: the pusher then collects.
        struct Shared(CtxMap, SoftwareQueues<Box<Item>>, Mutex<VecDeque<Box<Item>>>);
        let shared =
            Arc::new(Shared(CtxMap::new(1), SoftwareQueues::new(1), Mutex::new(VecDeque::new())));
        let push = |shared: &Shared| {
            shared.1.push(&shared.0, 0, Box::new(Item(Link::new())));
            shared.1.collect(&shared.0, &mut *shared.2.lock());
        };
        let other = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || push(&shared))
        };
        push(&shared);
        other.join().unwrap();
        assert!(!shared.0.has_pending());
        assert_eq!(shared.2.lock().len(), 2, "pushed, and found by nobody");
    });
}
