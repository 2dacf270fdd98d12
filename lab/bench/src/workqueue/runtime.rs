//! Traits of the runtimes on which the workloads run. Corewise's queues, the `before` variant and
//! the peers implement them.
//!
//! The owner of a runtime builds it as a [`Job`](crate::job::Job) says, with a number of workers,
//! or one that is pinned. Each runs in its best mode. Closures aren't boxed before they reach it,
//! and items without a waiter have no handle. Items that can be queued again are made once.

use corewise_sync::Unparker;

use crate::workqueue::tiny::Tiny;

/// A handle of a runtime under test, which tasks may keep. The runtime runs closures once, and no
/// thread waits for them.
pub trait Spawn: Clone + Send + Sync + 'static {
    /// True if the runtime has a hint for a closure that is about to block.
    const HAS_HINT: bool = false;

    /// Runs the closure. Threads outside the runtime call it.
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F);

    /// Runs the closure. Tasks of the runtime call it.
    fn spawn_inside<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.spawn(closure);
    }

    /// Runs a closure that blocks, with the hint, if there is one.
    fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.spawn(closure);
    }

    /// Returns a function that queues an item, which leaves the token when it runs. The kernel's
    /// test and the ping-pong have one in flight for each client. They time each call, and call
    /// again once the item has run, or is about to end. A runtime whose items can be queued again
    /// makes one here, which isn't timed.
    fn signal(&self, done: Unparker) -> impl Fn() {
        move || {
            let done = done.clone();
            self.spawn(move || done.unpark());
        }
    }

    /// Waits for all queued items. The workloads call it once each of their items has run, so a
    /// runtime without a flush does nothing here, and has no cost.
    fn flush(&self) {}
}

/// Items that are made once and queued again and again without an allocation.
pub trait Reuse: Spawn {
    /// An item that is made once. Each producer has a ring of them.
    type Item: Send;

    /// Makes an item that runs `tiny` whenever it runs. This isn't timed.
    fn reusable(&self, tiny: Tiny) -> Self::Item;

    /// Queues the item. Returns false if it is queued already, and then the call doesn't count. A
    /// runtime that accepts the same item many times always returns true.
    fn requeue(&self, item: &Self::Item) -> bool;
}
