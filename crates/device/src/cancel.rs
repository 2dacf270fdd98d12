//! A switch that says "stop", and wakes those who wait.

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, Ordering};
use std::fmt;
use std::sync::{Arc, Weak};

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
