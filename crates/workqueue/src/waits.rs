//! Waits inside an item that can't end, or that defeat a rescuer: reported before they begin.

use std::panic::Location;

use crate::current;
use crate::item::{Header, Job};
use crate::link::Shared;
use crate::pool::publication::Label;

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

/// Somebody is about to wait for this pending instance, which a worker has to run: as above. What is to
/// be reported, when nobody looks at the instance any more.
pub(crate) fn for_instance(instance: &Job) -> Option<UnsafeWait> {
    let queue = &instance.ticket.as_ref()?.link.shared;
    if queue.rescuer.is_some() {
        return None;
    }
    current::with(|job| {
        let own = job.and_then(|job| job.ticket.as_ref())?;
        own.link.shared.rescuer.as_ref()?;
        Some(UnsafeWait { queue: queue.name.clone(), of: instance.label() })
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
        current::with(|job| {
            let Some(job) = job else { return };
            tracing::warn!(
                target: "corewise_workqueue",
                queue = job.queue_name(),
                function = job.item.header().name(),
                site = %job.site,
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
