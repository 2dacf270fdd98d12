//! Deferred probing: the choice of devices to probe again, and the moment (rule 1.2.15 of
//! `RULES.md`).
//!
//! `README.md` beside this file has the protocol, its race and its proof. The comments here use its
//! names for the steps: ReadTriggers, Park, Recheck, Bump, Splice.

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::marker::PhantomData;

/// The devices that their drivers deferred.
///
/// Devices are opaque here, so that the type can be model-checked alone
/// (`tests/loom/deferred.rs`). Each method blocks at most for its own short lock.
#[derive(Debug)]
pub struct Deferred<D, R: RecheckPolicy = Recheck> {
    /// A: trigger count: number of binds that a pending device may have waited for.
    triggers: AtomicU64,
    /// L: is the lock; guards both lists and `enabled`.
    lists: Mutex<Lists<D>>,
    policy: PhantomData<R>,
}

#[derive(Debug)]
struct Lists<D> {
    /// True once deferral has begun. Before that, no device is retried.
    enabled: bool,
    /// Devices that wait for the next trigger.
    pending: Vec<D>,
    /// Devices to be probed again now.
    active: VecDeque<D>,
}

/// The trigger count before the begin of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(u64);

/// A policy that includes or omits the step Recheck. A model omits the step, to prove that it is
/// needed.
pub trait RecheckPolicy {
    /// True if Park reads the trigger count again.
    const RECHECK: bool;
}

/// The policy with Recheck.
#[derive(Debug)]
pub enum Recheck {}

impl RecheckPolicy for Recheck {
    const RECHECK: bool = true;
}

/// The policy without Recheck, for models only.
#[derive(Debug)]
pub enum NoRecheck {}

impl RecheckPolicy for NoRecheck {
    const RECHECK: bool = false;
}

impl<D, R: RecheckPolicy> Default for Deferred<D, R> {
    fn default() -> Self {
        Deferred::new()
    }
}

impl<D, R: RecheckPolicy> Deferred<D, R> {
    /// Creates empty lists. No device is retried before [`Deferred::enable`].
    pub fn new() -> Self {
        let lists = Lists { enabled: false, pending: Vec::new(), active: VecDeque::new() };
        Deferred { triggers: AtomicU64::new(0), lists: Mutex::new(lists), policy: PhantomData }
    }

    /// Reads the trigger count (step ReadTriggers). Call it before the driver is called. If the
    /// driver defers, pass the result to [`Deferred::park`].
    pub fn attempt(&self) -> Attempt {
        // Acquire pairs with the Release of Bump. If the count includes a trigger, the probe sees
        // the device that was bound before it, and has no reason to wait for that device.
        Attempt(self.triggers.load(Ordering::Acquire))
    }

    /// Stores a device whose probe, begun with `attempt`, was deferred (step Park). Returns true if
    /// the caller has to start a worker: a device was bound since, so this one is retried at once.
    #[must_use = "a worker has to be set going, or what is active waits for ever"]
    pub fn park(&self, device: D, attempt: Attempt) -> bool {
        let mut lists = self.lists.lock();
        lists.pending.push(device);
        // Recheck: a trigger between the attempt and this lock has not found the device. Relaxed:
        // the lock makes an earlier Bump visible, and the Splice of a later Bump finds the device.
        let stale = R::RECHECK && self.triggers.load(Ordering::Relaxed) != attempt.0;
        if stale && lists.enabled {
            return lists.splice();
        }
        false
    }

    /// Records that a device was bound, and makes every pending device active (steps Bump, Splice).
    /// Returns true if the caller has to start a worker.
    #[must_use = "a worker has to be set going, or what is active waits for ever"]
    pub fn trigger(&self) -> bool {
        let mut lists = self.lists.lock();
        // Bump is under the lock, so either Recheck sees it or Splice finds the device.
        self.triggers.fetch_add(1, Ordering::Release);
        lists.enabled && lists.splice()
    }

    /// Begins deferral: every pending device becomes active. Returns true if the caller has to
    /// start a worker.
    #[must_use = "a worker has to be set going, or what is active waits for ever"]
    pub fn enable(&self) -> bool {
        self.lists.lock().enabled = true;
        self.trigger()
    }

    /// Takes the next active device, which is to be probed again.
    pub fn next(&self) -> Option<D> {
        self.lists.lock().active.pop_front()
    }

    /// Returns true if there is an active device.
    pub fn is_active(&self) -> bool {
        !self.lists.lock().active.is_empty()
    }
}

impl<D> Lists<D> {
    fn splice(&mut self) -> bool {
        self.active.extend(self.pending.drain(..));
        !self.active.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active<R: RecheckPolicy>(list: &Deferred<u32, R>) -> Vec<u32> {
        std::iter::from_fn(|| list.next()).collect()
    }

    #[test]
    fn a_bind_during_the_attempt_makes_the_device_active_at_once() {
        let list: Deferred<u32> = Deferred::new();
        assert!(!list.enable());
        let attempt = list.attempt();
        assert!(!list.trigger(), "the list is empty: this wake-up would be lost");
        assert!(list.park(7, attempt));
        assert_eq!(active(&list), [7]);
        let attempt = list.attempt();
        assert!(!list.park(7, attempt), "nothing was bound since");
        assert!(active(&list).is_empty());
        assert!(list.trigger());
        assert_eq!(active(&list), [7]);
    }

    #[test]
    fn a_trigger_takes_the_whole_list_in_order() {
        let list: Deferred<u32> = Deferred::new();
        let _ = list.enable();
        for device in [3, 1, 2] {
            let attempt = list.attempt();
            assert!(!list.park(device, attempt));
        }
        assert!(list.trigger());
        assert_eq!(active(&list), [3, 1, 2]);
        assert!(!list.trigger());
    }

    #[test]
    fn nothing_is_retried_before_deferral_begins_and_then_all_is() {
        let list: Deferred<u32> = Deferred::new();
        let attempt = list.attempt();
        assert!(!list.trigger());
        assert!(!list.park(1, attempt), "deferral has not begun");
        assert!(!list.is_active());
        assert!(list.enable());
        assert_eq!(active(&list), [1]);
    }
}
