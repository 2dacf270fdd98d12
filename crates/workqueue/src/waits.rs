//! Waits inside an item that can't end, or that defeat a rescuer: reported before they begin.

use std::panic::Location;

use crate::current;
use crate::item::{Header, Job, Running};
use crate::link::Shared;
use crate::pool::publication::Label;
use crate::table::Table;

/// Somebody is about to wait for everything in a queue: `what` is the call.
#[track_caller]
pub(crate) fn for_queue(queue: &Shared, what: &'static str) {
    let location = Location::caller();
    current::with(|running| {
        let Some((own_item, ticket)) = running.and_then(|own| Some((own, own.ticket()?))) else {
            return;
        };
        let own = &ticket.link.shared;
        if own.id == queue.id {
            report(own_item, what, location, "waits for its own queue, and with it for itself");
        } else if own.rescuer.is_some() && queue.rescuer.is_none() {
            without_rescuer(own_item, what, location, queue);
        }
    });
}

/// The kernel's `check_flush_dependency`.
#[cold]
fn without_rescuer(running: &Running, what: &str, location: &Location<'_>, queue: &Shared) {
    tracing::warn!(
        target: "corewise_workqueue",
        queue = running.job.queue_name(),
        function = running.name(),
        site = %running.job.site,
        "a work item of a queue with a rescuer waits for queue '{}', which has none: {what} at \
         {location}; where no thread can be made it waits for ever",
        queue.name
    );
}

/// Somebody is about to wait for this pending instance, which a worker has to run: as above. What is to
/// be reported, when nobody looks at the instance any more.
pub(crate) fn for_instance(instance: &Job, table: &Table) -> Option<UnsafeWait> {
    let queue = &instance.ticket.as_ref()?.link.shared;
    if queue.rescuer.is_some() {
        return None;
    }
    current::with(|running| {
        let own = running.and_then(Running::ticket)?;
        own.link.shared.rescuer.as_ref()?;
        Some(UnsafeWait { queue: queue.name.clone(), of: instance.label(table) })
    })
}

/// The current item, of a queue with a rescuer, is about to wait for an item of one without.
pub(crate) struct UnsafeWait {
    queue: String,
    of: Label,
}

impl UnsafeWait {
    #[cold]
    pub(crate) fn report(self) {
        let UnsafeWait { queue, of } = self;
        current::with(|running| {
            let Some(running) = running else { return };
            tracing::warn!(
                target: "corewise_workqueue",
                queue = running.job.queue_name(),
                function = running.name(),
                site = %running.job.site,
                "a work item of a queue with a rescuer waits for an item of queue '{queue}', which \
                 has none: {} queued at {}; where no thread can be made it waits for ever",
                (of.name)(),
                of.site,
            );
        });
    }
}

/// Somebody is about to wait for an item.
#[track_caller]
pub(crate) fn for_item(item: &Header, what: &'static str) {
    let location = Location::caller();
    current::with(|running| {
        let Some(running) = running else { return };
        if running.is(item) {
            report(running, what, location, "waits for itself");
        }
    });
}

#[cold]
fn report(running: &Running, what: &str, location: &Location<'_>, complaint: &str) {
    tracing::error!(
        target: "corewise_workqueue",
        queue = running.job.queue_name(),
        function = running.name(),
        site = %running.job.site,
        "a work item {complaint}: {what} at {location}; this never ends"
    );
}
