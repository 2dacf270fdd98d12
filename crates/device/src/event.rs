//! What an observer is told while devices come up or go down.

use crate::error::caught;
use corewise_sync::text;
use corewise_timeline::Outcome;
use std::sync::Arc;
use std::time::Duration;

/// Something happened to a device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Its probe or its shutdown callback is about to be called.
    Started {
        /// The device's name.
        device: &'a str,
    },
    /// It is done with, one way or the other: also skipped and cancelled devices get here, and
    /// those without a shutdown callback don't.
    Finished {
        /// The device's name.
        device: &'a str,
        /// How it ended.
        outcome: &'a Outcome,
        /// How many are done with now, this one included.
        done: usize,
        /// How many there are.
        total: usize,
    },
    /// Its deadline has passed, and it is not over. Told once.
    Overdue {
        /// The device's name.
        device: &'a str,
        /// How long it has been at it.
        after: Duration,
    },
    /// The rest is left undone, because of what is overdue. The last event, but for callbacks that
    /// end after all.
    GaveUp {
        /// How many are not done with.
        left: usize,
    },
}

impl<'a> Event<'a> {
    /// The name of the device that it is about.
    fn device(&self) -> Option<&'a str> {
        match *self {
            Event::Started { device }
            | Event::Finished { device, .. }
            | Event::Overdue { device, .. } => Some(device),
            Event::GaveUp { .. } => None,
        }
    }
}

/// Told about each [`Event`], for progress bars and logs.
///
/// Called on whatever thread the event happens on, several at once, with no lock held. It should be
/// quick: the thread has work to do. A call that waits for devices is refused there
/// ([`Error::InsideProbe`](crate::Error)). A panic in it is caught and logged.
///
/// Its time counts into the deadline of the device whose start it is told, and in a shutdown, after an
/// end, into that of the thread's next one. So one that hangs is found out, in that device's name.
pub type Observer = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Tells the observer, if there is one; its panic harms nobody.
pub(crate) fn tell(observer: Option<&Observer>, event: &Event<'_>) {
    if let Some(observer) = observer {
        if let Err(panic) = caught(|| observer(event)) {
            let device = event.device().map(text::name);
            tracing::error!(
                device = device.map(tracing::field::display),
                panic,
                "an observer of device events panicked"
            );
        }
    }
}
