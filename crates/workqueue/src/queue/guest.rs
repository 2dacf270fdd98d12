//! A thread that is no worker takes part: it runs an item of a queue on the spot.
//!
//! Its closure is an item as any other: counted in the queue, under its limit, with its forks
//! offered in a lane of the pool. So a small input that is forked from outside costs no wake-up.

use std::any::type_name;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;

use corewise_sync::{context, thread};
use corewise_topology::current_cpu;
use tracing::Span;

use crate::attributes::QueueKind;
use crate::fork::stack;
use crate::pool::current_worker;
use crate::pool::steal::GuestBlocks;
use crate::pwq::Pwq;
use crate::queue::Workqueue;
use crate::task::header::{Header, Job};
use crate::task::running::{self, ForksTo, Running, Spawner};
use crate::task::vtable::{ItemRef, Table};

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

    /// # Safety
    /// As [`Guest::run`].
    unsafe fn spawner(item: NonNull<Header>) -> Option<NonNull<Span>> {
        // SAFETY: as the caller says.
        unsafe { item.cast::<Guest<T, C, R>>().as_ref() }.spawner.span().map(NonNull::from)
    }

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
    /// the input back where the queue doesn't allow that here: on a CPU that isn't one of its
    /// pools', where it is strict or has a niceness, where its limit is reached, and once it is
    /// closed.
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
            group.pools[pool].lanes.guest(stack::floor(), counted)
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
        // A worker of other pools tells these.
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

/// Whether the calling thread is where the instances of a pwq may run.
fn takes_part(pwq: &Pwq) -> bool {
    let (group, pool) = (&pwq.group, &pwq.group.pools[pwq.pool]);
    let near = current_cpu().is_some_and(|cpu| pool.has_cpu(cpu));
    near && group.soft && group.nice == 0 && group.kind == QueueKind::Unbound
}
