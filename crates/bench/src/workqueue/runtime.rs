//! What the workloads need of whatever they are run on, in small traits: Corewise's queues, the
//! `before` variant and the peers implement those that they can.
//!
//! Building a runtime is its owner's part, as a [`Job`](crate::job::Job) says: so many
//! workers, or one that is pinned. Each in its best mode: closures aren't boxed before they reach
//! it, no handle is kept of what nobody waits for, and items that can be queued again are made once.

use corewise_sync::Unparker;

use crate::workqueue::tiny::Tiny;

/// A runtime under test.
pub trait Runtime: Send + Sync {
    /// Waits for everything that was queued. The workloads call it when each of their items has run
    /// already: what has no such thing has nothing to do, and pays nothing for it.
    fn flush(&self) {}
}

/// Items that leave a token: one in flight for each client. Kernel's test and ping-pong.
pub trait Signal: Runtime {
    /// Something that can be queued again and again, by one thread.
    type Item: Send;

    /// An item that does nothing but leave the token when it runs. Made once per client; not timed.
    /// A runtime whose items run once only makes the real one in `queue`, around a clone of the
    /// token.
    fn item(&self, done: Unparker) -> Self::Item;

    /// Queues the item. This call is what is timed. The item isn't queued and has run, or it is
    /// about to end, when it is made.
    fn queue(&self, item: &Self::Item);
}

/// A waiter that may take an item back from its queue and run it itself.
pub trait TakeBack: Signal {
    /// Waits until the item has run; runs it here where it hasn't started.
    fn wait(&self, item: &Self::Item);
}

/// Closures that run once, and that nobody waits for. A handle that tasks may take along.
pub trait Spawn: Runtime + Clone + 'static {
    /// Whether it can be told that a closure is about to block.
    const HAS_HINT: bool = false;

    /// Runs the closure. Called from threads that are none of its own.
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F);

    /// As `spawn`, called from within a task.
    fn spawn_inside<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.spawn(closure);
    }

    /// Runs `f`, which blocks, within a task: with its hint, where it has one.
    fn blocking(f: impl FnOnce()) {
        f();
    }

    /// Runs a closure that blocks, with the hint. A runtime that has to be told when the closure is
    /// handed in has its own.
    fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.spawn(move || Self::blocking(closure));
    }
}

/// Items that are made once and queued again and again without an allocation.
pub trait Reuse: Runtime {
    /// Made once; a ring of them per producer.
    type Item: Send;

    /// An item that runs `tiny` whenever it runs. Not timed.
    fn reusable(&self, tiny: Tiny) -> Self::Item;

    /// Queues it; false where that one is queued already, which then doesn't count. A runtime that takes the
    /// same item many times over always says true.
    fn requeue(&self, item: &Self::Item) -> bool;
}
