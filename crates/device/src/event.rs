//! Arguments of a bring-up or a shutdown: an observer that is called, and a switch that stops it.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, text};
use corewise_timeline::Outcome;

use crate::error::caught;

/// An event of a device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The device's probe or shutdown callback is about to be called.
    Started {
        /// The device's name.
        device: &'a str,
    },
    /// The device is settled, in whatever way. Skipped and cancelled devices get here too; those
    /// without a shutdown callback don't.
    Finished {
        /// The device's name.
        device: &'a str,
        /// Its result.
        outcome: &'a Outcome,
        /// Number of devices that are settled now, this one included.
        done: usize,
        /// Number of all devices.
        total: usize,
    },
    /// The deadline has passed, and the device is not settled. Reported once.
    Overdue {
        /// The device's name.
        device: &'a str,
        /// Time that the device has taken so far.
        after: Duration,
    },
    /// The rest is left undone, because of what is overdue. This is the last event, except for
    /// callbacks that end after all.
    GaveUp {
        /// Number of devices that are not settled.
        left: usize,
    },
}

impl<'a> Event<'a> {
    /// Returns the name of the device that the event is about.
    fn device(&self) -> Option<&'a str> {
        match *self {
            Event::Started { device }
            | Event::Finished { device, .. }
            | Event::Overdue { device, .. } => Some(device),
            Event::GaveUp { .. } => None,
        }
    }
}

/// A callback that gets each [`Event`], for progress bars and logs.
///
/// Called on the thread on which the event happens, several at once, with no lock held. It should
/// be quick: the thread has work to do. A call in it that waits for devices is refused
/// ([`Error::InsideProbe`](crate::Error)). A panic in it is caught and logged.
///
/// Its time counts into the deadline of the device whose start it gets and, in a shutdown, after an
/// end, into that of the thread's next device. So an observer that hangs is detected, under that
/// device's name.
pub type Observer = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Calls the observer, if there is one, and catches its panic.
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

// The switch that says "stop", and wakes those who wait.

/// Asks a bring-up to stop starting probes, or a shutdown to leave the rest undone.
///
/// A handle: clones are the same switch, and the switch can be thrown once.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Switch>);

#[derive(Default)]
struct Switch {
    /// A: true once cancelled.
    cancelled: AtomicBool,
    /// L: is the lock; guards the list of listeners to wake.
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

/// A listener that is woken when the switch is thrown.
pub(crate) trait Listener: Send + Sync {
    /// Wakes the waiter. An implementation has to take the lock under which the waiter checks the
    /// switch before it sleeps: then either the waiter sees the switch, or the wake-up finds it
    /// asleep.
    fn cancelled(&self);
}

impl Cancel {
    /// Creates a switch that was not thrown.
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

    /// Returns true if the switch was thrown.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Adds a listener that is woken when the switch is thrown. If it is thrown already nothing
    /// happens: the caller checks it after this call, and before it sleeps.
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
