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
        let Some(job) = job else { return };
        if job.ticket.as_ref().is_some_and(|ticket| ticket.link.shared.id == queue.id) {
            report(job, what, location, "waits for its own queue, and with it for itself");
        }
    });
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
        function = (job.item.header().name)(),
        site = %job.site,
        "a work item {complaint}: {what} at {location}; this never ends"
    );
}
