//! Deferred probing: which devices are probed again, and when (rule 1.2.15 of `RULES.md`).
//!
//! The protocol, its race and its proof stand in `README.md` beside this file; the steps named
//! there (ReadTriggers, Park, Recheck, Bump, Splice) are the names used in the comments here.

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::marker::PhantomData;

/// The devices whose drivers asked to be called again later.
///
/// Devices are opaque here, so that the type can be model-checked alone
/// (`tests/loom/deferred.rs`). No method blocks for longer than its own short lock.
#[derive(Debug)]
pub struct Deferred<D, R: RecheckPolicy = Recheck> {
    /// A: number of binds that a pending device may have waited for.
    triggers: AtomicU64,
    /// L: is the lock; guards both lists, and whether deferral has begun.
    lists: Mutex<Lists<D>>,
    policy: PhantomData<R>,
}

#[derive(Debug)]
struct Lists<D> {
    /// True once deferral has begun; nothing is retried before.
    enabled: bool,
    /// Devices that wait for the next trigger.
    pending: Vec<D>,
    /// Devices to be probed again now.
    active: VecDeque<D>,
}

/// The trigger count before a probe was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(u64);

/// A policy that says whether the step Recheck is done. A model leaves the step out, to prove that
/// it is needed.
pub trait RecheckPolicy {
    /// True if a device that is put on the list checks the trigger count again.
    const RECHECK: bool;
}

/// A policy with the step.
#[derive(Debug)]
pub enum Recheck {}

impl RecheckPolicy for Recheck {
    const RECHECK: bool = true;
}

/// A policy without the step, for models only.
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
    /// Creates empty lists. Nothing is retried before [`Deferred::enable`].
    pub fn new() -> Self {
        let lists = Lists { enabled: false, pending: Vec::new(), active: VecDeque::new() };
        Deferred { triggers: AtomicU64::new(0), lists: Mutex::new(lists), policy: PhantomData }
    }

    /// Reads the trigger count (step ReadTriggers). Call it before a probe looks for anything, and
    /// hand the result to [`Deferred::park`] if the probe found too little.
    pub fn attempt(&self) -> Attempt {
        // Acquire pairs with the Release of Bump: a probe that counts a trigger among those before
        // it sees what was bound before that trigger, so that it has no reason to wait for it.
        Attempt(self.triggers.load(Ordering::Acquire))
    }

    /// Stores a device whose probe, begun with `attempt`, asked to be called later (step Park).
    /// Returns true if a worker has to be started: something was bound since, so the device is to
    /// be probed again at once.
    #[must_use = "a worker has to be set going, or what is active waits for ever"]
    pub fn park(&self, device: D, attempt: Attempt) -> bool {
        let mut lists = self.lists.lock();
        lists.pending.push(device);
        // Recheck: a trigger between the attempt and this lock has not found the device. Relaxed: a
        // Bump that came before is seen because of the lock, and one that comes after finds it.
        let stale = R::RECHECK && self.triggers.load(Ordering::Relaxed) != attempt.0;
        if stale && lists.enabled {
            return lists.splice();
        }
        false
    }

    /// Records that something was bound, so every pending device is to be probed again (steps Bump,
    /// Splice). Returns true if a worker has to be started.
    #[must_use = "a worker has to be set going, or what is active waits for ever"]
    pub fn trigger(&self) -> bool {
        let mut lists = self.lists.lock();
        // Under the lock, so that Recheck sees it or Splice finds the device.
        self.triggers.fetch_add(1, Ordering::Release);
        lists.enabled && lists.splice()
    }

    /// Begins deferral: what is pending is to be probed again. Returns true if a worker has to be
    /// started.
    #[must_use = "a worker has to be set going, or what is active waits for ever"]
    pub fn enable(&self) -> bool {
        self.lists.lock().enabled = true;
        self.trigger()
    }

    /// Takes the next device to be probed again.
    pub fn next(&self) -> Option<D> {
        self.lists.lock().active.pop_front()
    }

    /// Returns true if a device is to be probed again now.
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
