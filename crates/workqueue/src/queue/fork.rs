//! `join`: two closures, the second of which a thief may call.
//!
//! Inside an item of the queue the second closure is a fork (`../fork/README.md`). Elsewhere the
//! calling thread takes part as a guest, and the second closure is a fork too. If neither is
//! possible, the closure is spawned in a scope: as an item.
//!
//! *Stacks.* An owner that waits keeps its stack, and so its worker. If a stolen closure joins
//! again, and so on, each for the next, a recursion would take one worker a level. So an owner for
//! which many threads wait (`longest_chain`) offers nothing, and calls both closures on its own
//! stack. If a stack is nearly full, [`ForkPoint`] decides. As long as less than half of the
//! workers that a pool may have are in the chain, the closure is spawned as an item. So it gets an
//! empty stack. After that the join panics.
//!
//! *Guests.* A thread that is no worker takes part: it runs an item of a queue on the spot. Its
//! closure is an item like any other: counted in the queue, under the queue's limit, with its forks
//! offered in a lane of the pool. So a small input that is forked from outside costs no wake-up.

use std::any::{Any, type_name};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;

use corewise_sync::context::{self, puts_off};
use corewise_sync::{hint, panics, thread};
use corewise_topology::current_cpu;
use tracing::Span;

use crate::attributes::{At, QueueKind};
use crate::error::{JoinError, shielded};
use crate::fork;
use crate::fork::lane::Lane;
use crate::fork::record::{Fork, ForkHolder, Forked};
use crate::pool::current_worker;
use crate::pool::steal::{self, GuestBlocks};
use crate::pwq::Pwq;
use crate::queue::Workqueue;
use crate::task::header::{Header, ItemRef, Job, Table};
use crate::task::running::{self, ForksTo, Running, Spawner};
use crate::task::ticket::Ticket;
use crate::wait;
use crate::wait::policy::{Fork as Decision, ForkPoint};

/// Number of times a join checks whether a thief is done before it leapfrogs or sleeps.
const LOOKS: u32 = if hint::IN_MODEL { 1 } else { 64 };
/// Number of times a join tries to leapfrog before it sleeps.
const LEAPS: u32 = if hint::IN_MODEL { 1 } else { 8 };

impl Workqueue {
    /// Calls `a`, and `b` after it, unless an idle worker has stolen `b` meanwhile. Both may
    /// borrow, and both are over when it returns.
    ///
    /// Inside an item of this queue a fork that isn't stolen costs a few nanoseconds: no
    /// allocation, no lock, no locked operation. A thread offers its four oldest forks to workers
    /// of the queue's pools; it calls deeper ones, as a rule the smaller ones, itself.
    ///
    /// From outside, both closures are one item of the queue, which runs on the calling thread at
    /// once. That item has a place under `max_active`, and may not flush, drain or destroy the
    /// queue. If no such item is possible, the calling thread calls `a` by itself, and spawns `b`
    /// as an item. This happens on a CPU that isn't one of the queue's pools, and if the queue is
    /// strict, ordered or has a niceness. It also happens if the limit is reached, and once the
    /// queue is closed.
    ///
    /// While a thief has `b`, the caller calls the forks of `b`, or sleeps if there are none. It
    /// calls **nothing but parts of its own item**. So a lock may be held across a join. May block;
    /// in an atomic section `b` isn't offered. Stacks must not be switched inside it: a coroutine
    /// that ends a join before one that began inside it aborts the process.
    ///
    /// If the queue's `max_active` is reached, there is no place for a stolen fork, so no thread
    /// steals it.
    ///
    /// A deep recursion uses its own stack, as calls do. If the stack is nearly full, `b` is
    /// spawned as an item, which begins with an empty stack. This never takes more than half of the
    /// workers away from other queues. So a recursion by `b` may be deeper than a stack, one by `a`
    /// may not.
    ///
    /// The idea is that of Cilk-5 and rayon, with leapfrogging (Wagner and Calder 1993).
    ///
    /// # Panics
    /// With the panic of `a` or of `b`, once both are over; if both panic, with that of `a`. Before
    /// either is called, if a recursion has filled the stacks of half of the workers that a pool
    /// may have, or of as many as it has CPUs.
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
    #[inline]
    pub fn join<A, B: Send>(&self, a: impl FnOnce() -> A, b: impl FnOnce() -> B + Send) -> (A, B) {
        self.join_from(Location::caller(), a, b)
    }

    #[inline(always)]
    pub(super) fn join_from<A, B: Send>(
        &self,
        site: &'static Location<'static>,
        a: impl FnOnce() -> A,
        b: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        // This is the case deep in a recursion, where most joins are.
        if self.keeps_here() && puts_off() == 0 {
            one_by_one(a, b)
        } else {
            self.join_one(site, a, b)
        }
    }

    /// Returns true if the running item of this queue should call its forks itself, since others
    /// have enough to steal.
    #[inline(always)]
    fn keeps_here(&self) -> bool {
        running::current(|running| {
            running.is_some_and(|running| {
                let ForksTo { queue, lane } = running.forks.get();
                // SAFETY: as in `lane_of`.
                queue == self.fork_key() && unsafe { &*lane.cast::<Lane>() }.keeps_here()
            })
        })
    }

    /// Returns the queue's key, by which items name the queue that they offer forks to.
    #[inline(always)]
    pub(super) fn fork_key(&self) -> *const () {
        Arc::as_ptr(self.shared()).cast()
    }

    /// Returns the lane in which the running item of this queue offers its forks.
    #[inline]
    fn lane(&self) -> Option<&Lane> {
        running::current(|running| self.lane_of(running?))
    }

    /// Returns the lane in which `running` offers its forks, if that is an item of this queue.
    #[inline]
    pub(super) fn lane_of(&self, running: &Running) -> Option<&Lane> {
        let ForksTo { queue, lane } = running.forks.get();
        if queue == self.fork_key() {
            // SAFETY: it is the lane of `open`: that of this thread, which is a worker until the
            // item is over.
            Some(unsafe { &*lane.cast::<Lane>() })
        } else {
            self.open(running)
        }
    }

    /// Returns true if an item of this queue runs here that can offer forks.
    pub(super) fn forks_here(&self) -> bool {
        self.lane().is_some()
    }

    /// Returns true if thieves find no fork of the item that runs here, so that another fork pays.
    #[inline]
    pub(super) fn may_fork_more(&self) -> bool {
        self.lane().is_some_and(|lane| !lane.ring.has_forks())
    }

    #[cold]
    #[inline(never)]
    fn open(&self, running: &Running) -> Option<&Lane> {
        // An instance that runs inside another one is no part of it, and threads that leapfrog
        // search this lane.
        if !running.outer.get().is_null() {
            return None;
        }
        let pwq = Pwq::of(running.ticket()?);
        let is_here = ptr::eq(&*pwq.shared, &**self.shared());
        let (group, pool) = current_worker::pool()?;
        if !is_here || group != current_worker::key(&pwq.group) {
            return None;
        }
        let lane = pwq.group.pools[pool].lanes.own(fork::floor)?;
        let queue = self.fork_key();
        running.forks.set(ForksTo { queue, lane: ptr::from_ref(lane).cast() });
        // SAFETY: the lane is there as long as its pool, which its worker, the calling thread,
        // keeps.
        Some(unsafe { &*ptr::from_ref(lane) })
    }

    /// Joins one fork. As a function of its own it keeps the registers of the common path few.
    #[inline(never)]
    fn join_one<A, B: Send>(
        &self,
        site: &'static Location<'static>,
        a: impl FnOnce() -> A,
        b: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        let Some(lane) = self.lane() else {
            let guest = self.as_guest(site, (a, b), |(a, b)| self.join_from(site, a, b));
            return guest.unwrap_or_else(|(a, b)| self.join_slowly(site, a, b));
        };
        let ticket =
            running::current(|running| running.and_then(Running::ticket).map(NonNull::from));
        let ticket = ticket.expect("an item that has opened a lane");
        // SAFETY: that of the item that runs here.
        let pwq = Pwq::of(unsafe { ticket.as_ref() });
        if lane.has_stack_here() && context::is_plain() {
            // A thief may take it: the limit has a place, and not too many threads wait for each
            // other already.
            let may_be_stolen = pwq.slot.has_place() && fork::chain() < pwq.at.longest_chain;
            if lane.ring.has_room() && may_be_stolen {
                fork(site, lane, (ticket, self.fork_key()), a, b)
            } else {
                one_by_one(a, b)
            }
        } else {
            self.join_slowly(site, a, b)
        }
    }

    #[inline(never)]
    fn join_slowly<A, B: Send>(
        &self,
        site: &'static Location<'static>,
        a: impl FnOnce() -> A,
        b: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        let Some(point) = self.fork_point() else { return self.offer(site, a, b) };
        match point.decide() {
            Decision::Offer => self.offer(site, a, b),
            Decision::Keep => one_by_one(a, || context::at_once(b)),
            Decision::Refuse => {
                let queue = self.name();
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
        let (atomic, stacks) = (context::in_atomic_section(), fork::chain());
        Some(ForkPoint { atomic, stack: fork::left(), stacks, cpus, workers: workers.max(cpus) })
    }

    fn offer<A, B: Send>(
        &self,
        site: &'static Location<'static>,
        a: impl FnOnce() -> A,
        b: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        let chain = fork::chain();
        let here = thread::current().id();
        let b = move || {
            let elsewhere = thread::current().id() != here;
            fork::in_chain(chain + usize::from(elsewhere), b)
        };
        self.scope(|s| {
            let b = s.spawn_from(site, At::Here, b);
            let a = panic::catch_unwind(AssertUnwindSafe(a));
            both(a, b.join())
        })
    }
}

/// Calls both, in this order.
#[inline]
fn one_by_one<A, B>(a: impl FnOnce() -> A, b: impl FnOnce() -> B) -> (A, B) {
    match panic::catch_unwind(AssertUnwindSafe(a)) {
        Ok(a) => (a, b()),
        Err(payload) => after_panic(payload, b),
    }
}

/// Calls the second closure although the first has panicked, then resumes that panic.
#[cold]
#[inline(never)]
fn after_panic<B>(payload: Box<dyn Any + Send>, b: impl FnOnce() -> B) -> ! {
    match panic::catch_unwind(AssertUnwindSafe(b)) {
        Ok(value) => shielded("dropping the value of a joined closure", || drop(value)),
        Err(other) => panics::discard(other),
    }
    panic::resume_unwind(payload)
}

/// Offers `b` to thieves while it calls `a`.
#[inline]
fn fork<A, B: Send>(
    site: &'static Location<'static>,
    lane: &Lane,
    (ticket, queue): (NonNull<Ticket>, *const ()),
    a: impl FnOnce() -> A,
    b: impl FnOnce() -> B + Send,
) -> (A, B) {
    let forked = Forked::new(b, ticket, queue, site);
    let first = lane.ring.push(forked.pointer());
    // From here on nothing unwinds before the fork is joined.
    let a = panic::catch_unwind(AssertUnwindSafe(|| {
        if first {
            has_forked(ticket);
        }
        a()
    }));
    let popped = lane.ring.pop();
    if popped && !lane.ring.has_popped(forked.pointer()) {
        out_of_turn();
    }
    match a {
        // SAFETY: it is popped.
        Ok(a) if popped => (a, unsafe { forked.take() }()),
        a => {
            if !popped {
                join_stolen(lane, forked.fork());
            }
            let b = if forked.fork().state() == ForkHolder::Over {
                // SAFETY: it is over.
                unsafe { forked.result() }
            } else {
                // SAFETY: it is popped, or was returned.
                let b = unsafe { forked.take() };
                panic::catch_unwind(AssertUnwindSafe(b))
            };
            both(a, b.map_err(JoinError::panicked))
        }
    }
}

/// Wakes a thief for the first fork of a ring, if need be.
#[inline]
fn has_forked(ticket: NonNull<Ticket>) {
    // SAFETY: that of the item that runs here.
    let pwq = Pwq::of(unsafe { ticket.as_ref() });
    let pool = match current_worker::pool() {
        Some((group, pool)) if group == current_worker::key(&pwq.group) => pool,
        // A guest's lane is one of its item's pool.
        _ => pwq.pool,
    };
    pwq.group.has_forked(pool);
}

/// Joins of one thread end in reverse order. A coroutine that ends one out of turn would leave
/// thieves with a record that is gone.
#[cold]
fn out_of_turn() -> ! {
    tracing::error!(
        "a join ended before one that began inside it: a coroutine has switched stacks inside \
         Workqueue::join, which nothing may"
    );
    std::process::abort()
}

/// Waits until the thief that has stolen the newest fork of the lane has finished it.
#[cold]
fn join_stolen(lane: &Lane, fork: &Fork) {
    for _ in 0..LEAPS {
        for _ in 0..LOOKS {
            if fork.is_settled() {
                return;
            }
            hint::spin_loop();
        }
        let ForkHolder::Stolen(thief) = fork.state() else { return };
        // SAFETY: thieves are of the same pools; the item keeps the pools, and these their lanes.
        let thief = unsafe { &*thief };
        steal::leapfrog(lane, thief, fork);
    }
    while !fork.is_settled() {
        // Before a thread sleeps, it does the work that it has put off, which may panic: the fork
        // borrows from its stack.
        shielded("a join, before it sleeps,", || {
            context::blocking_reported(|| wait::for_thief(lane, fork));
        });
    }
}

/// Returns the results of both, or resumes the panic of the first that panicked.
fn both<A, B>(a: thread::Result<A>, b: Result<B, JoinError>) -> (A, B) {
    match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        (Ok(_), Err(error)) => error.resume(),
        (Err(payload), b) => {
            match b {
                Err(JoinError::Panicked(other)) => panics::discard(other.into_inner()),
                value => shielded("dropping the value of a joined closure", || drop(value)),
            }
            panic::resume_unwind(payload)
        }
    }
}

/// The item, in the frame of the thread that runs it.
#[repr(C)]
struct Guest<T, C, R> {
    header: Header,
    spawner: Spawner,
    input: Cell<Option<(T, C)>>,
    result: Cell<Option<thread::Result<R>>>,
}

impl<T, R, C: FnOnce(T) -> R> Guest<T, C, R> {
    const TABLE: Table = Table::of_part(type_name::<C>, Self::run, |_| {}, Self::spawner);

    /// Returns the span that the guest was spawned in.
    ///
    /// # Safety
    /// See [`Guest::run`].
    unsafe fn spawner(item: NonNull<Header>) -> Option<NonNull<Span>> {
        // SAFETY: as the caller says.
        unsafe { item.cast::<Guest<T, C, R>>().as_ref() }.spawner.span().map(NonNull::from)
    }

    /// Runs the guest's function and keeps the result.
    ///
    /// # Safety
    /// The header is that of a `Guest<T, C, R>`, by a pointer to all of it.
    unsafe fn run(item: NonNull<Header>) {
        // SAFETY: as the caller says.
        let guest = unsafe { item.cast::<Guest<T, C, R>>().as_ref() };
        if let Some((input, f)) = guest.input.take() {
            guest.result.set(Some(panic::catch_unwind(AssertUnwindSafe(|| f(input)))));
        }
    }
}

impl Workqueue {
    /// Runs `f` on the calling thread as an item of this queue, whose forks workers steal. Gives
    /// the input back if the queue doesn't allow that here. That is so on a CPU outside of its
    /// pools, and if it is strict or has a niceness. It is also so if its limit is reached, and
    /// once it is closed.
    pub(super) fn as_guest<T, R, C: FnOnce(T) -> R>(
        &self,
        site: &'static Location<'static>,
        input: T,
        f: C,
    ) -> Result<R, T> {
        if !context::is_plain() {
            return Err(input);
        }
        let Some(ticket) = self.table().enter_here() else { return Err(input) };
        let pwq = Pwq::of(&ticket);
        let (group, pool) = (Arc::clone(&pwq.group), pwq.pool);
        let counted = !current_worker::is_of(&group, pool);
        let lane = if takes_part(pwq) {
            group.pools[pool].lanes.guest(fork::floor(), counted)
        } else {
            None
        };
        let Some(lane) = lane else {
            ticket.withdraw();
            return Err(input);
        };
        let guest = Guest {
            header: Header::new(&Guest::<T, C, R>::TABLE),
            spawner: Spawner::current(),
            input: Cell::new(Some((input, f))),
            result: Cell::new(None),
        };
        // SAFETY: the hold is the only one, and the table's functions don't free what they are
        // given.
        let item = unsafe { ItemRef::kept(NonNull::from(&guest).cast()) };
        let mut running = Running::new(item, Job { ticket: ticket.into(), site });
        let queue = self.fork_key();
        running.forks.set(ForksTo { queue, lane: ptr::from_ref(lane.lane).cast() });
        let placed = group.pools[pool].placement().enter();
        // A worker of other pools declares the wait to these.
        let blocks = GuestBlocks::new(Arc::clone(&group), pool);
        let observed = (!context::is_observed()).then(|| context::observe(Rc::new(blocks)));
        current_worker::with_shown(|shown| {
            running.run(shown, None);
            running::show_again(shown);
        });
        drop((observed, placed, lane));
        match guest.result.into_inner() {
            Some(Ok(result)) => Ok(result),
            Some(Err(payload)) => panic::resume_unwind(payload),
            // A subscriber has panicked before the call.
            None => Err(guest.input.into_inner().expect("it wasn't called").0),
        }
    }
}

/// Returns true if the instances of a pwq may run on the calling thread.
fn takes_part(pwq: &Pwq) -> bool {
    let (group, pool) = (&pwq.group, &pwq.group.pools[pwq.pool]);
    let near = current_cpu().is_some_and(|cpu| pool.has_cpu(cpu));
    near && group.soft && group.nice == 0 && group.kind == QueueKind::Unbound
}
