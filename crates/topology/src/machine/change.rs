//! Changes of a machine's masks, and their listeners.
//!
//! Guard letters: `I:` immutable after construction; `L:` the field is a lock, and says what it
//! guards. The protocol stands in `README.md` beside this file, "How listeners learn of a change".

use std::collections::VecDeque;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Weak};

use corewise_sync::{Mutex, MutexGuard, panics};

use super::Masks;
use crate::cpuset::CpuSet;

/// One change of a machine's masks; see [`Machine::on_change`](crate::Machine::on_change).
/// [`Display`](fmt::Display) writes the difference in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Masks before the change.
    pub before: Masks,
    /// Masks after the change. The epoch is one more.
    pub after: Masks,
}

impl Change {
    /// Returns the CPUs that can no longer be used.
    fn went(&self) -> CpuSet {
        self.before.online.difference(&self.after.online)
    }

    /// Returns the CPUs that can be used now, and couldn't before.
    fn came(&self) -> CpuSet {
        self.after.online.difference(&self.before.online)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.after.epoch)?;
        for (what, cpus) in [("went", self.went()), ("came", self.came())] {
            if !cpus.is_empty() {
                write!(f, ", CPUs {cpus} {what}")?;
            }
        }
        if self.before.isolated != self.after.isolated {
            write!(f, ", isolated now '{}'", self.after.isolated)?;
        }
        match (self.before.cpu_quota, self.after.cpu_quota) {
            (before, after) if before == after => {}
            (_, Some(quota)) => write!(f, ", CPU quota now {quota}")?,
            (_, None) => write!(f, ", no CPU quota now")?,
        }
        write!(f, "; usable now {}", self.after.online)
    }
}

type Call = dyn Fn(&Change) + Send + Sync;

/// A listener of a machine's changes, for as long as this value lives.
///
/// Dropping it unsubscribes: no call begins after the drop has returned. A call that another thread
/// has begun continues, and the drop doesn't wait for it, so it can't deadlock. The closure is
/// dropped here, or by that thread.
#[must_use = "dropping it unsubscribes"]
pub struct Subscription {
    /// I: weak, so that a subscription doesn't keep the others' closures.
    listeners: Weak<Listeners>,
    /// I: number of the listener.
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(listeners) = self.listeners.upgrade() {
            // The closure is dropped outside of the lock: its destructors are the user's.
            let mut pending = listeners.lock();
            let gone = pending.position(self.id).map(|at| pending.listeners.remove(at));
            drop(pending);
            drop(gone);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The listeners of a machine's changes, and the changes that wait to be reported.
#[derive(Default)]
pub(crate) struct Listeners {
    /// L: is the lock; guards the list, and whose turn it is to tell. Nothing is called under it.
    pending: Mutex<PendingChanges>,
}

#[derive(Default)]
struct PendingChanges {
    next: u64,
    /// Listeners in the order in which they subscribed, and so by rising number.
    listeners: Vec<Listener>,
    /// Changes in the order in which they were made.
    waiting: VecDeque<Arc<Change>>,
    /// True while a thread reports changes; it will report those that are added meanwhile.
    telling: bool,
}

#[derive(Clone)]
struct Listener {
    id: u64,
    /// Epoch when it subscribed. It isn't called for older changes that are still waiting.
    since: u64,
    call: Arc<Call>,
}

impl PendingChanges {
    fn position(&self, id: u64) -> Option<usize> {
        self.listeners.binary_search_by_key(&id, |listener| listener.id).ok()
    }
}

impl Listeners {
    pub(crate) fn subscribe(this: &Arc<Self>, since: u64, call: Arc<Call>) -> Subscription {
        let mut pending = this.lock();
        let id = pending.next;
        pending.next += 1;
        pending.listeners.push(Listener { id, since, call });
        Subscription { listeners: Arc::downgrade(this), id }
    }

    /// Adds a change to report (Add).
    pub(crate) fn add(&self, change: &Arc<Change>) {
        self.lock().waiting.push_back(Arc::clone(change));
    }

    /// Calls the listeners for the waiting changes, unless another thread does (Tell).
    pub(crate) fn tell(&self) {
        {
            let mut pending = self.lock();
            if pending.telling {
                return;
            }
            pending.telling = true;
        }
        while let Some((change, listeners)) = self.next() {
            for listener in listeners {
                let came_before = listener.since < change.after.epoch;
                if !came_before || self.lock().position(listener.id).is_none() {
                    continue;
                }
                // The drop is inside too: the subscription may have ended, and then the closure
                // dies here.
                let called = panic::catch_unwind(AssertUnwindSafe(|| {
                    (listener.call)(&change);
                    drop(listener);
                }));
                // The panic hook has reported it.
                called.unwrap_or_else(panics::discard);
            }
        }
    }

    /// Returns the next change and its listeners. If there is none the turn ends, under the same
    /// lock: a change that is added later is reported by its adder.
    fn next(&self) -> Option<(Arc<Change>, Vec<Listener>)> {
        let mut pending = self.lock();
        let Some(change) = pending.waiting.pop_front() else {
            pending.telling = false;
            return None;
        };
        Some((change, pending.listeners.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, PendingChanges> {
        self.pending.lock()
    }
}
