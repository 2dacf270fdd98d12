//! What a caller gives a bring-up or a shutdown: an observer that is told, and a switch that stops
//! it.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, text};
use corewise_timeline::Outcome;

use crate::error::caught;

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
/// Its time counts into the deadline of the device whose start it is told, and in a shutdown, after
/// an end, into that of the thread's next one. So one that hangs is found out, in that device's
/// name.
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

// A switch that says "stop", and wakes those who wait.

/// Asks a bring-up to stop starting probes, or a shutdown to leave the rest undone.
///
/// A handle: clones are the same switch, and it can be thrown once.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Switch>);

#[derive(Default)]
struct Switch {
    /// A: true once cancelled.
    cancelled: AtomicBool,
    /// L: is the lock; guards who has to be woken.
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

/// Woken when the switch is thrown.
pub(crate) trait Listener: Send + Sync {
    /// Has to take the lock under which the waiter looks at the switch before it sleeps: then
    /// either the waiter sees the switch, or the wake-up finds it asleep.
    fn cancelled(&self);
}

impl Cancel {
    /// A switch that was not thrown.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Throws the switch. From any thread, but not from a signal handler: it takes short locks.
    /// More calls do nothing new.
    pub fn cancel(&self) {
        // Release pairs with the Acquire in `is_cancelled`; a listener that registers later sees it
        // because of the lock below.
        self.0.cancelled.store(true, Ordering::Release);
        let listeners = std::mem::take(&mut *self.0.listeners.lock());
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.cancelled();
        }
    }

    /// Whether it was thrown.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// `listener` is woken when the switch is thrown. Where it is thrown already nothing happens:
    /// the caller looks at it after this, and before it sleeps.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.0.listeners.lock();
        listeners.retain(|l| l.strong_count() > 0);
        listeners.push(listener);
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(Mutex<u32>);
    impl Listener for Count {
        fn cancelled(&self) {
            *self.0.lock() += 1;
        }
    }

    #[test]
    fn a_switch_is_thrown_once_for_all_its_clones_and_wakes_each_listener_once() {
        let cancel = Cancel::new();
        let count = Arc::new(Count::default());
        let weak: Weak<Count> = Arc::downgrade(&count);
        cancel.listen(weak);
        let clone = cancel.clone();
        clone.cancel();
        clone.cancel();
        assert!(cancel.is_cancelled());
        assert_eq!(*count.0.lock(), 1);
    }
}
