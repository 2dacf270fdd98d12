//! Waits inside an item that can't end, or that defeat a rescuer: these functions report them
//! before they begin.

use std::fmt;
use std::panic::Location;
use std::ptr;

use corewise_sync::text;

use crate::error::quietly;
use crate::pwq::Pwq;
use crate::pwq::queue_core::QueueCore;
use crate::task::header::{Header, Job};
use crate::task::header::{LentItem, Table};
use crate::task::running::Label;
use crate::task::running::{self, Running};
use crate::wait::is_placed;
use crate::wait::stuck::Need;

/// Checks a thread that is about to wait for everything in a queue: `what` is the call.
///
/// # Panics
/// If an item of that queue runs on this thread: it would wait for itself.
#[track_caller]
pub(crate) fn for_queue(queue: &QueueCore, what: &'static str) {
    let location = Location::caller();
    running::any_here(|running| {
        // The place identifies the queue: numbers belong to some pools, and there may be others.
        if running.ticket().is_some_and(|ticket| ptr::eq(&*Pwq::of(ticket).shared, queue)) {
            never_ends(running, what, location, "waits for its own queue, and with it for itself");
        }
        false
    });
    if defeats_rescuer(queue) {
        without_rescuer(
            format_args!("queue '{}'", queue.name),
            format_args!("{what} at {location}"),
        );
    }
}

/// Returns the [report](without_rescuer) on a thread that is about to wait for this pending
/// instance, which a worker has to run: the queue and the kind of item. The caller reports it once
/// no thread looks at the instance any more.
pub(crate) fn for_instance(instance: &Job, table: &Table) -> Option<(String, Label)> {
    let queue = &Pwq::of(instance.ticket.as_ref()?).shared;
    defeats_rescuer(queue).then(|| (queue.name.clone(), instance.label(table)))
}

/// Returns true if the current item's queue has a rescuer, and this one has none: the kernel's
/// `check_flush_dependency`.
fn defeats_rescuer(queue: &QueueCore) -> bool {
    queue.rescuer.is_none()
        && running::current(|running| {
            let own = running.and_then(Running::ticket);
            own.is_some_and(|own| Pwq::of(own).shared.rescuer.is_some())
        })
}

#[cold]
pub(crate) fn without_rescuer(waits_for: fmt::Arguments<'_>, how: fmt::Arguments<'_>) {
    let said = format!(
        "of a queue with a rescuer waits for {waits_for}, which has none: {how}; if no thread can \
         be made, it waits for ever"
    );
    running::current(|running| {
        let Some(running) = running else { return };
        let (queue, site) = (running.job.queue_name(), running.job.site);
        let function = text::name(running.name());
        tracing::warn!(target: "corewise_workqueue", queue, %function, %site, "a work item {said}");
    });
}

/// Checks a thread that is about to wait for an item.
///
/// # Panics
/// If it runs on this thread: it would wait for itself.
#[track_caller]
pub(crate) fn for_item(item: &Header, what: &'static str) {
    let location = Location::caller();
    running::any_here(|running| {
        if running.is(item) {
            never_ends(running, what, location, "waits for itself");
        }
        false
    });
}

/// Checks an item of an ordered queue that is about to wait for one that is held back there, maybe
/// behind others.
///
/// # Panics
/// If it is behind others, which start only after the waiting item.
#[track_caller]
pub(crate) fn for_order(item: LentItem<'_>, queue: &QueueCore, of: Label) {
    let location = Location::caller();
    running::any_here(|running| {
        if running.ticket().is_none_or(|ticket| !ptr::eq(&*Pwq::of(ticket).shared, queue)) {
            return false;
        }
        let before = queue.before(item);
        if before > 0 {
            let complaint = format!(
                "waits for {}, queued at {}, which its ordered queue starts only after {before} \
                 other(s), and these only after the waiting item: wait in the order of queueing, \
                 or outside of the queue's items",
                text::name((of.name)()),
                of.site,
            );
            never_ends(running, "a wait", location, &complaint);
        }
        true
    });
}

/// Ends a wait of the current item for an item that can't end, since `needs` can't come about: all
/// threads that could help wait as well. Returns if it has come about meanwhile.
///
/// # Panics
/// Else.
#[cold]
#[track_caller]
pub(crate) fn in_vain(item: LentItem<'_>, needs: Need) {
    let location = Location::caller();
    let seen = item.look(|job| {
        let ticket = job.ticket.as_ref();
        let shared = ticket.map(|ticket| &Pwq::of(ticket).shared);
        let most = shared.map_or(0, |shared| shared.pools.max_workers());
        let placed = ticket.is_none_or(is_placed);
        (job.site, job.queue_name().to_owned(), most, placed, item.is_held())
    });
    let name = text::name(item.name());
    let complaint = match (seen, needs) {
        (Some((site, queue, .., true)), Need::Place | Need::Turn) => format!(
            "waits for {name}, queued on '{queue}' at {site}, which the queue's limit or order holds \
             back for items that wait for this one: wait outside of the queue's items, or raise its \
             max_active"
        ),
        (Some((site, queue, most, placed, false)), Need::Worker) => {
            let (cause, remedy) = match placed {
                true => (
                    "the rest of this stack is too small to run it here",
                    "raise max_workers, or give the workers more stack (RUST_MIN_STACK)",
                ),
                false => (
                    "it may not run here: its queue is bound, strict or of another niceness, and this thread is not a worker of its pool",
                    "raise max_workers, or wait for it in items of its own queue and CPU (more stack \
                     does not help)",
                ),
            };
            format!(
                "waits for {name}, queued on '{queue}' at {site}, but no worker can run it: all \
                 {most} workers that its pool may have (PoolsBuilder::max_workers) wait as well, \
                 for each other; and {cause}: nest waits less deep, {remedy}"
            )
        }
        (None, Need::End) if item.state.snapshot().running() => {
            format!("waits for {name}, which is running and waits for this one")
        }
        _ => return,
    };
    given_up("a wait", location, &complaint)
}

/// Ends a flush by the current item that can't come to its end, as [`in_vain`] does.
///
/// # Panics
/// Always.
#[cold]
pub(crate) fn flush_in_vain(queue: &QueueCore, location: &Location<'_>) -> ! {
    let (name, most) = (&queue.name, queue.pools.max_workers());
    let complaint = format!(
        "waits for all items of queue '{name}', but some of them cannot end: they wait for this \
         one, or are held back for others that do, or no worker can run them, because all {most} \
         workers that their pool may have (PoolsBuilder::max_workers) wait as well, and this stack \
         is too small for them or they may not run here: flush outside of items, nest waits less \
         deep, or raise max_workers"
    );
    given_up("a flush", location, &complaint)
}

#[cold]
fn given_up(what: &str, location: &Location<'_>, complaint: &str) -> ! {
    running::current(|running| match running {
        Some(running) => never_ends(running, what, location, complaint),
        None => panic!("an item {complaint}: {what} at {location}"),
    })
}

/// Reports a wait that can't end, and ends it by a panic, which is the waiting item's.
#[cold]
fn never_ends(running: &Running, what: &str, location: &Location<'_>, complaint: &str) -> ! {
    refused(running, format_args!("{complaint}: {what} at {location}; this would never end"))
}

/// Reports what an item must not do, and ends it by a panic, which is the item's.
#[cold]
fn refused(running: &Running, said: fmt::Arguments<'_>) -> ! {
    let (queue, site) = (running.job.queue_name(), running.job.site);
    let function = text::name(running.name());
    quietly(|| {
        tracing::error!(target: "corewise_workqueue", queue, %function, %site, "a work item {said}");
    });
    panic!("work item {function} of queue '{queue}', queued at {site}, {said}");
}
