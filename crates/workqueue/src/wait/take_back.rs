//! Taking an item back: a waiter that finds the item that it waits for still in its pool's list runs
//! it itself, where its placement allows that, instead of sleeping until a worker has.
//!
//! It saves two wake-ups, and it is what keeps a chain of items that wait for each other going with
//! few threads. A waiter never runs anything but what it waits for: an unrelated item could wait for
//! something further down on the same stack. The decision is [`TakeBack`]; the claim is that of
//! `../task/state.md`, so that an item which is taken back runs once, though others want it. Where it is
//! queued again while it runs here, that instance goes back to its pool: the waiter doesn't wait for
//! it.

use corewise_topology::current_cpu;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;

use corewise_sync::atomic::Ordering;
use corewise_sync::{Completion, context, per_thread, text};

use crate::attributes::QueueKind;
use crate::fork::stack;
use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::limit_slot::Slot;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::submit;
use crate::task::header::{Job, Queued};
use crate::task::running::{self, Part, Running};
use crate::task::ticket::Ticket;
use crate::task::vtable::Lent;
use crate::wait::messages;
use crate::wait::policy::TakeBack;
use crate::wait::stuck::PoolKey;

per_thread! {
    /// How many items that were taken back run on this thread's stack.
    static DEPTH: Cell<u32> = Cell::new(0);
}

/// What an instance is to its waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Another item.
    Waits,
    /// A part of what runs here, a closure of its scope: order is nothing to it.
    Part,
    /// It was cancelled, and isn't to be run.
    Ends,
}

/// Runs the pending instance of the item that the caller is about to wait for, if that is allowed.
/// True where it ran: it is over now.
///
/// # Panics
/// Where the caller's item is of an ordered queue, and the instance can't start before that is over.
#[track_caller]
pub(crate) fn take_back(item: Lent<'_>, role: Role) -> bool {
    role != Role::Ends && (listed(item) || in_place(item, role))
}

/// Where the pending instance lies, if the caller would run it while no worker can come for it.
pub(crate) fn in_need(item: Lent<'_>, role: Role) -> Option<(Arc<Group>, usize)> {
    let waiter = needy();
    if role == Role::Ends || !waiter.waiter_may() {
        return None;
    }
    let home = item.look(|job| {
        let ticket = job.ticket.as_ref().filter(|ticket| at(waiter, ticket).allowed())?;
        let pwq = Pwq::of(ticket);
        Some((Arc::clone(&pwq.group), pwq.pool))
    });
    home.flatten()
}

/// The pool that the pending instance is for.
pub(crate) fn home(item: Lent<'_>) -> Option<PoolKey> {
    let pool = |pwq: &Pwq| (current_worker::key(&pwq.group), pwq.pool);
    item.look(|job| job.ticket.as_ref().map(Pwq::of).map(pool)).flatten()
}

/// Whether the caller is where an instance may run for which no worker can come.
pub(crate) fn is_placed(ticket: &Ticket) -> bool {
    at(needy(), ticket).placed()
}

/// As [`take_back`], where no worker could come for the instance while the caller was blocked: then it
/// doesn't matter how deep that is, as long as there is a stack, and where the caller is.
pub(crate) fn take_back_in_need(item: Lent<'_>, role: Role) -> bool {
    let waiter = needy();
    let may = role != Role::Ends && waiter.waiter_may();
    may && take_back_if(item, |job| allowed(waiter, job))
}

/// The pools with instances of a queue that the caller would run, if no worker can come for them.
pub(crate) fn homes(queue: &QueueCore) -> Vec<(Arc<Group>, usize)> {
    let waiter = needy();
    let mut homes = Vec::new();
    if waiter.waiter_may() {
        queue.colours.each(|pwq_slot, pwq| {
            if pwq_slot.tally.in_flight() > 0 && of_pwq(waiter, pwq).allowed() {
                homes.push((Arc::clone(&pwq.group), pwq.pool));
            }
        });
    }
    homes
}

/// Whether the caller had better run something that the flush of a queue with this event waits for, in one
/// of its `homes`.
pub(crate) fn is_called_for(
    queue: &QueueCore,
    homes: &[(Arc<Group>, usize)],
    over: &Completion,
) -> bool {
    let awaited = if homes.is_empty() { None } else { queue.colours.awaited_by(over) };
    awaited.is_some_and(|awaited| {
        homes.iter().any(|(group, pool)| group.calls_for(*pool, queue.id, awaited))
    })
}

/// Runs one instance that the flush of a queue with this event waits for, where no worker could come for it
/// while the caller was blocked. False where there is none, or it may not.
pub(crate) fn run_awaited(queue: &QueueCore, over: &Completion) -> bool {
    let homes = homes(queue);
    let Some(awaited) = queue.colours.awaited_by(over).filter(|awaited| !awaited.any) else {
        return false;
    };
    let mut taken = homes.iter().map(|(group, pool)| group.take_awaited(*pool, queue.id, awaited));
    taken.find_map(|taken| taken).map(run).is_some()
}

/// Where it lies in the list of its pool.
fn listed(item: Lent<'_>) -> bool {
    let waiter = waiter();
    if !waiter.waiter_may() {
        return false;
    }
    let mut unsafe_wait = None;
    let ran = take_back_if(item, |job| {
        let allowed = allowed(waiter, job);
        if !allowed {
            unsafe_wait = messages::for_instance(job, item.table);
        }
        allowed
    });
    if let Some((queue, of)) = unsafe_wait {
        messages::without_rescuer(
            format_args!("an item of queue '{queue}'"),
            format_args!("{} queued at {}", text::name((of.name)()), of.site),
        );
    }
    ran
}

/// Where an instance is held back, and an item on this stack has a place under the same limit: that one might have the very place that the instance needs, and
/// doesn't use it while it waits. So the instance runs in that place: here, or where that isn't allowed on
/// a worker of its pool, to which the place is lent. True where it ran: it is over now.
///
/// # Panics
/// Where that would break the order of an ordered queue, and it is no part.
#[track_caller]
fn in_place(item: Lent<'_>, role: Role) -> bool {
    if !item.is_held() {
        return false;
    }
    let waiter = waiter();
    let found = item.look(|job| {
        let pwq = job.ticket.as_ref().map(Pwq::of).filter(|pwq| has_place_here(&pwq.slot))?;
        let here = of_pwq(waiter, pwq).allowed_in_place();
        let ordered = pwq.shared.traits.kind == QueueKind::Ordered;
        let queue = || Arc::clone(&pwq.shared);
        Some((here, ordered.then(|| (queue(), job.label(item.table)))))
    });
    let Some((here, ordered)) = found.flatten() else { return false };
    if let Some((queue, label)) = ordered {
        if role != Role::Part {
            messages::for_order(item, &queue, label);
        }
    }
    let Some(claimed) = item.claim() else { return false };
    if !here {
        submit::let_through(claimed);
        return false;
    }
    claimed.run().map(run).is_some()
}

/// Lets a held instance through, of which it was found that all who have its places wait, and for that
/// wait: false where it isn't held, or where an order forbids it.
pub(crate) fn lend(item: Lent<'_>) -> bool {
    let shared = item.look(|job| {
        let ticket = job.ticket.as_ref().filter(|_| item.is_held())?;
        Some(Arc::clone(&Pwq::of(ticket).shared))
    });
    let Some(queue) = shared.flatten() else { return false };
    if queue.traits.kind == QueueKind::Ordered && queue.before(item) > 0 {
        return false;
    }
    item.claim().map(submit::let_through).is_some()
}

/// Whether an item on this stack has a place in this slot.
fn has_place_here(slot: &Slot<Queued>) -> bool {
    let same = |other: &Ticket| ptr::eq(&*Pwq::of(other).slot, slot);
    running::any_here(|running| running.ticket().is_some_and(same))
}

/// Returns whether a waiter runs the parts of its scope that nobody has begun.
pub(crate) fn may_run_parts() -> bool {
    waiter().waiter_may()
}

/// Returns whether a waiter runs the one part that it waits for. It needn't be as free as for all
/// parts: a helper might begin with others, or get no worker while the waiter waits.
pub(crate) fn may_run_part() -> bool {
    needy().waiter_may()
}

/// Runs a part on the stack of a waiter that [may](may_run_part).
pub(crate) fn run_part(part: Part, forks: bool) {
    context::at_once(|| {
        let depth = DEPTH.with(|depth| depth.replace(depth.get() + 1));
        current_worker::with_shown(|shown| {
            part.run(shown, forks);
            running::show_again(shown);
        });
        DEPTH.with(|cell| cell.set(depth));
    });
}

/// What is known without the item.
fn waiter() -> TakeBack {
    let depth = DEPTH.with(Cell::get);
    TakeBack {
        atomic: context::in_atomic_section(),
        blocking: context::is_blocking(),
        depth,
        // At the top it is what it is, as for a worker's next item.
        stack: if depth > 0 { stack::left() } else { None },
        ..TakeBack::default()
    }
}

/// The same of one for whom no worker can come.
fn needy() -> TakeBack {
    TakeBack { need: true, stack: stack::left(), ..waiter() }
}

/// The part of it that a model checks. `wanted`: see [`Lent::claim_if`].
pub(crate) fn take_back_if(item: Lent<'_>, wanted: impl FnOnce(&Job) -> bool) -> bool {
    let Some(running) = item.claim_if(wanted).and_then(|claimed| claimed.run()) else {
        return false;
    };
    run(running);
    true
}

fn allowed(waiter: TakeBack, job: &Job) -> bool {
    job.ticket.as_ref().is_some_and(|ticket| at(waiter, ticket).allowed())
}

/// What the ticket says beside.
fn at(waiter: TakeBack, ticket: &Ticket) -> TakeBack {
    of_pwq(waiter, Pwq::of(ticket))
}

fn of_pwq(waiter: TakeBack, pwq: &Pwq) -> TakeBack {
    let (group, pool) = (&pwq.group, pwq.pool);
    TakeBack {
        own_pool: current_worker::is_of(group, pool),
        near: current_cpu().is_some_and(|cpu| group.pools[pool].has_cpu(cpu)),
        only_own: !group.soft || group.nice != 0,
        ..waiter
    }
}

/// Runs a started instance on the waiter's stack, as a worker of its pool would: it is nothing to it what the waiter puts off.
fn run(running: Running) {
    context::at_once(|| run_here(running));
}

fn run_here(running: Running) {
    let depth = DEPTH.with(|depth| depth.replace(depth.get() + 1));
    let _placed = running.ticket().map(Pwq::of).map(|pwq| {
        pwq.counters.taken_back.fetch_add(1, Ordering::Relaxed);
        pwq.group.pools[pwq.pool].placement().enter()
    });
    current_worker::with_shown(|shown| {
        running.run_once(shown, |next| {
            // The waiting items go on.
            running::show_again(shown);
            DEPTH.with(|cell| cell.set(depth));
            next.into_iter().for_each(submit::requeue);
        });
    });
}
