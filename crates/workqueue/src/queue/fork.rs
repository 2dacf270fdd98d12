//! Two closures, the second of which a worker may run: a fork, and a join.
//!
//! A join that waits keeps its stack, and so its worker. Where the second closure joins again, and
//! each of these runs on a worker of its own, a recursion takes one worker a level: all that a pool
//! may have, and none is left for other queues. So a join inside an item of its queue decides by
//! [`ForkPoint`] whether it offers the closure to workers. For this, a thread knows how many other
//! threads wait for what runs on its stack, in a chain of joins.
//!
//! *The closure that isn't offered runs on the calling thread after the first one.* That is what
//! `join` promises, and what happens as well where no worker has started it. It runs inside the
//! current item, which is of the same queue: in its pod, in its place under limits, in its turn of
//! an ordered queue. It waits for nobody, so there is no wait that could not end.
//!
//! *No chain has more than half of the workers of a pool* (or as many as its pod has CPUs).
//! `stacks` grows by one from a join to its closure where that runs on another thread, and only
//! there. With a sixteenth of the workers below it, a join offers nothing while there is a stack:
//! so what others have taken, with little on their stacks, leaves a deep recursion the others to
//! fill. With half of them, it panics where the stack is full.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr;

use corewise_sync::{context, panics, per_thread, thread};

use crate::attributes::At;
use crate::error::JoinError;
use crate::pwq::Pwq;
use crate::queue::Workqueue;
use crate::task::running::{self, Running};
use crate::wait::policy::{Fork, ForkPoint};
use crate::wait::stack;

per_thread! {
    /// How many other threads wait, each for the next, for what runs on this thread: in a chain of
    /// joins.
    static STACKS: Cell<usize> = Cell::new(0);
}

impl Workqueue {
    /// Runs `a` on the calling thread, and `b` on a worker or, where none has started it by then,
    /// on the calling thread after `a`. Both may borrow, and both are over when it returns.
    /// `rayon::join`, by a [`scope`](Workqueue::scope), under whose rules it waits.
    ///
    /// Inside an item of this queue, `b` isn't offered to workers, and runs on the calling thread,
    /// where half of the thread's stack is used, or where a sixteenth of the workers that a pool
    /// may have wait for it, one for the next. So a deep recursion goes on to the next worker only
    /// when a stack is full, and never takes more than half of the workers away from other queues.
    ///
    /// # Panics
    /// With the panic of `a` or of `b`, once both are over; where both panic, with that of `a`.
    /// Before either is run, where a recursion has filled the stacks of half of the workers that a
    /// pool may have.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// fn sum(queue: &Workqueue, numbers: &[u64]) -> u64 {
    ///     if numbers.len() <= 100 {
    ///         return numbers.iter().sum();
    ///     }
    ///     let (left, right) = numbers.split_at(numbers.len() / 2);
    ///     let (left, right) = queue.join(|| sum(queue, left), || sum(queue, right));
    ///     left + right
    /// }
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("sums").build(&pools)?;
    /// assert_eq!(sum(&queue, &Vec::from_iter(1..=1000)), 500_500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn join<A, B: Send>(&self, a: impl FnOnce() -> A, b: impl FnOnce() -> B + Send) -> (A, B) {
        let point = self.fork_point();
        match point.map_or(Fork::Offer, |point| point.decide()) {
            Fork::Offer => self.offer(a, b),
            Fork::Keep => {
                let a = panic::catch_unwind(AssertUnwindSafe(a));
                let b = || context::at_once(b);
                let b = panic::catch_unwind(AssertUnwindSafe(b)).map_err(JoinError::panicked);
                both(a, b)
            }
            Fork::Refuse => {
                let (queue, point) = (self.name(), point.unwrap_or_default());
                panic!(
                    "a recursion of joins on queue '{queue}' has filled {} stacks, and gets no more of the {} workers that its \
                     pool may have (PoolsBuilder::max_workers): nest joins less deep, give the workers more stack \
                     (RUST_MIN_STACK), or raise max_workers",
                    point.stacks + 1,
                    point.workers,
                )
            }
        }
    }

    /// `None` outside of items of this queue.
    fn fork_point(&self) -> Option<ForkPoint> {
        let (cpus, workers) = running::current(|running| {
            let pwq = running.and_then(Running::ticket).map(Pwq::of);
            let pwq = pwq.filter(|pwq| ptr::eq(&*pwq.shared, &**self.shared()))?;
            let cpus = pwq.group.pools[pwq.pool].spec.cpus.len();
            Some((cpus, pwq.shared.pools.max_workers()))
        })?;
        let (atomic, stacks) = (context::in_atomic_section(), STACKS.with(Cell::get));
        Some(ForkPoint { atomic, stack: stack::left(), stacks, cpus, workers: workers.max(cpus) })
    }

    #[track_caller]
    fn offer<A, B: Send>(&self, a: impl FnOnce() -> A, b: impl FnOnce() -> B + Send) -> (A, B) {
        let (site, from) = (Location::caller(), Waiter::here());
        self.scope(|s| {
            let b = s.spawn_from(site, At::Here, move || from.calls(b));
            let a = panic::catch_unwind(AssertUnwindSafe(a));
            both(a, b.join())
        })
    }
}

/// What both returned, or the panic of the first that did.
fn both<A, B>(a: thread::Result<A>, b: Result<B, JoinError>) -> (A, B) {
    match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        (Ok(_), Err(error)) => error.resume(),
        (Err(payload), b) => {
            if let Err(JoinError::Panicked(other)) = b {
                panics::discard(other.into_inner());
            }
            panic::resume_unwind(payload)
        }
    }
}

/// The thread that waits for a closure, and how many threads wait for what runs there.
#[derive(Clone, Copy)]
struct Waiter {
    /// The address of its [`STACKS`]: the thread is there as long as the closure.
    thread: usize,
    stacks: usize,
}

impl Waiter {
    fn here() -> Waiter {
        STACKS.with(|stacks| Waiter { thread: ptr::from_ref(stacks).addr(), stacks: stacks.get() })
    }

    /// Calls the closure that it waits for.
    fn calls<B>(self, closure: impl FnOnce() -> B) -> B {
        struct Restore(usize);
        impl Drop for Restore {
            fn drop(&mut self) {
                STACKS.with(|stacks| stacks.set(self.0));
            }
        }
        let here = Waiter::here();
        let _restore = (here.thread != self.thread).then(|| {
            STACKS.with(|stacks| stacks.set(self.stacks + 1));
            Restore(here.stacks)
        });
        closure()
    }
}
