//! What the workloads need of whatever they are run on: Corewise's queues, the `before` variant and
//! the peers implement it.
//!
//! Building a runtime is its owner's part, as a [`Job`](crate::job::Job) says: so many workers, or
//! one that is pinned. Each in its best mode: closures aren't boxed before they reach it, no handle
//! is kept of what nobody waits for, and items that can be queued again are made once.

use corewise_sync::Unparker;

use crate::workqueue::tiny::Tiny;

/// A runtime under test, by a handle that tasks may take along. It runs closures once, and nobody
/// waits for them.
pub trait Spawn: Clone + Send + Sync + 'static {
    /// Whether it can be told that a closure is about to block.
    const HAS_HINT: bool = false;

    /// Runs the closure. Called from threads that are none of its own.
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F);

    /// As `spawn`, called from within a task.
    fn spawn_inside<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.spawn(closure);
    }

    /// Runs a closure that blocks, with the hint, where there is one.
    fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.spawn(closure);
    }

    /// An item that leaves the token when it runs: kernel's test and ping-pong have one in flight
    /// for each client. The function that is returned queues it, and its call is timed; it is made
    /// again when the item has run, or is about to end. A runtime whose items can be queued again
    /// makes one here, which isn't timed.
    fn signal(&self, done: Unparker) -> impl Fn() {
        move || {
            let done = done.clone();
            self.spawn(move || done.unpark());
        }
    }

    /// Waits for everything that was queued. The workloads call it when each of their items has run
    /// already: what has no such thing has nothing to do, and pays nothing for it.
    fn flush(&self) {}
}

/// Items that are made once and queued again and again without an allocation.
pub trait Reuse: Spawn {
    /// Made once; a ring of them per producer.
    type Item: Send;

    /// An item that runs `tiny` whenever it runs. Not timed.
    fn reusable(&self, tiny: Tiny) -> Self::Item;

    /// Queues it; false where that one is queued already, which then doesn't count. A runtime that
    /// takes the same item many times over always says true.
    fn requeue(&self, item: &Self::Item) -> bool;
}
