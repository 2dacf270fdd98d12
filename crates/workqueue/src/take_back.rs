//! Taking an item back: a waiter that finds the item that it waits for still in its pool's list runs
//! it itself, where its placement allows that, instead of sleeping until a worker has.
//!
//! It saves two wake-ups, and it is what keeps a chain of items that wait for each other going with
//! few threads. A waiter never runs anything but what it waits for: an unrelated item could wait for
//! something further down on the same stack. The decision is [`TakeBack`]; the claim is that of
//! `work_state.md`, so that an item which is taken back runs once, whoever else wants it. Where it is
//! queued again while it runs here, that instance goes back to its pool: the waiter doesn't wait for
//! it.

use std::cell::Cell;
use std::sync::Arc;

use corewise_sync::{context, per_thread};

use crate::attributes::Class;
use crate::claim::Claimed;
use crate::cpu::current_cpu;
use crate::current;
use crate::item::{Job, Running};
use crate::link::Shared;
use crate::policy::TakeBack;
use crate::pool::here;
use crate::table::Lent;
use crate::waits;

per_thread! {
    /// How many items that were taken back run on this thread's stack.
    static DEPTH: Cell<u32> = Cell::new(0);
}

/// Runs the pending instance of the item that the caller is about to wait for, if that is allowed.
/// True where it ran: it is over now.
pub(crate) fn take_back(item: Lent<'_>) -> bool {
    let waiter = waiter();
    if !waiter.waiter_may() {
        return false;
    }
    let mut unsafe_wait = None;
    let ran = take_back_if(item, |job| {
        let allowed = allowed(waiter, job);
        if !allowed {
            unsafe_wait = waits::for_instance(job, item.table);
        }
        allowed
    });
    if let Some(wait) = unsafe_wait {
        wait.report();
    }
    ran
}

/// As [`take_back`], for an item that is part of what the calling thread runs: a closure of its scope,
/// on `queue`. That one may also be held back by the limit of the queue (or by a freeze), where what
/// waits is an item of the same queue. It might hold the very place that the closure needs: so the
/// closure runs in that place, which is the waiter's, and not used by it meanwhile.
pub(crate) fn take_back_part(item: Lent<'_>, queue: &Arc<Shared>) -> bool {
    if take_back(item) {
        return true;
    }
    if !waiter().waiter_may() || !item.is_held() || !queue.runs_here() {
        return false;
    }
    match item.claim().and_then(Claimed::run) {
        Some(running) => {
            run(running);
            true
        }
        None => false,
    }
}

/// What is known without the item.
fn waiter() -> TakeBack {
    TakeBack {
        atomic: context::in_atomic_section(),
        blocking: context::is_blocking(),
        depth: DEPTH.with(Cell::get),
        ..TakeBack::default()
    }
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
    let Some(ticket) = job.ticket.as_ref() else { return false };
    let (group, pool) = (&ticket.link.group, ticket.link.pool);
    TakeBack {
        own_pool: here::is_of(group, pool),
        near: current_cpu().is_some_and(|cpu| group.pools[pool].has_cpu(cpu)),
        only_own: !group.soft || group.nice != 0,
        bottom_half: group.class == Class::BottomHalf,
        ..waiter
    }
    .allowed()
}

/// Runs a started instance on the waiter's stack, as a worker of its pool would.
fn run(running: Running) {
    let depth = DEPTH.with(|depth| depth.replace(depth.get() + 1));
    let _placed = running.job.ticket.as_ref().map(|ticket| {
        ticket.taken_back();
        ticket.link.group.pools[ticket.link.pool].placement().enter()
    });
    let (next, over) = here::with_shown(|shown| {
        let ended = running.run_once(shown);
        // What waits goes on.
        current::with(|waits| {
            if let Some(running) = waits {
                shown.starts(running.label());
            }
        });
        ended
    });
    DEPTH.with(|cell| cell.set(depth));
    if let Some(claimed) = next {
        claimed.requeue();
    }
    over.end();
}
