//! Waits inside an item that can't end, or that defeat a rescuer: reported before they begin.

use std::panic::Location;

use crate::current;
use crate::item::{Header, Job};
use crate::link::Shared;

/// Somebody is about to wait for everything in a queue: `what` is the call.
#[track_caller]
pub(crate) fn for_queue(queue: &Shared, what: &'static str) {
    let location = Location::caller();
    current::with(|job| {
        let Some((job, ticket)) = job.and_then(|job| Some((job, job.ticket.as_ref()?))) else {
            return;
        };
        let own = &ticket.link.shared;
        if own.id == queue.id {
            report(job, what, location, "waits for its own queue, and with it for itself");
        } else if own.rescuer.is_some() && queue.rescuer.is_none() {
            without_rescuer(job, what, location, queue);
        }
    });
}

/// The kernel's `check_flush_dependency`.
#[cold]
fn without_rescuer(job: &Job, what: &str, location: &Location<'_>, queue: &Shared) {
    tracing::warn!(
        target: "corewise_workqueue",
        queue = job.queue_name(),
        function = job.item.header().name(),
        site = %job.site,
        "a work item of a queue with a rescuer waits for queue '{}', which has none: {what} at \
         {location}; where no thread can be made it waits for ever",
        queue.name
    );
}

/// Somebody is about to wait for this pending instance, which a worker has to run: as above.
pub(crate) fn for_instance(instance: &Job) {
    let Some(ticket) = &instance.ticket else { return };
    let queue = &ticket.link.shared;
    if queue.rescuer.is_some() {
        return;
    }
    current::with(|job| {
        let Some((job, own)) = job.and_then(|job| Some((job, job.ticket.as_ref()?))) else {
            return;
        };
        if own.link.shared.rescuer.is_some() {
            item_without_rescuer(job, instance, &queue.name);
        }
    });
}

#[cold]
fn item_without_rescuer(job: &Job, instance: &Job, queue: &str) {
    tracing::warn!(
        target: "corewise_workqueue",
        queue = job.queue_name(),
        function = job.item.header().name(),
        site = %job.site,
        "a work item of a queue with a rescuer waits for an item of queue '{queue}', which has none: \
         {} queued at {}; where no thread can be made it waits for ever",
        instance.item.header().name(),
        instance.site,
    );
}

/// Somebody is about to wait for an item.
#[track_caller]
pub(crate) fn for_item(item: &Header, what: &'static str) {
    let location = Location::caller();
    current::with(|job| {
        let Some(job) = job else { return };
        if std::ptr::eq(job.item.header(), item) {
            report(job, what, location, "waits for itself");
        }
    });
}

#[cold]
fn report(job: &Job, what: &str, location: &Location<'_>, complaint: &str) {
    tracing::error!(
        target: "corewise_workqueue",
        queue = job.queue_name(),
        function = job.item.header().name(),
        site = %job.site,
        "a work item {complaint}: {what} at {location}; this never ends"
    );
}
