//! The latch that tells all devices over a device that it has become read-only.

use std::fmt;
use std::sync::{Arc, Weak};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{CleanAt, Mutex};

/// A latch that is set once a device can't be changed any more, although its
/// [geometry](crate::Geometry) allows changes: data of it is lost. The latch is set once, and for
/// good.
///
/// The driver of such a device makes [one](ReadOnlyLatch::unset), and [sets](ReadOnlyLatch::set)
/// it. A driver over other devices has the latch of [all](ReadOnlyLatch::any) of them. So a look at
/// a stack of devices costs the same for any height.
///
/// Clones are one latch.
#[derive(Clone)]
pub struct ReadOnlyLatch(
    /// The latch; `None` if it is never set.
    Option<Arc<Latch>>,
);

struct Latch {
    /// A: set once. Release, with Acquire at each look, which then sees the setter's earlier
    /// writes.
    set: AtomicBool,
    /// L: is the lock, held for a moment; guards the latches that are set with this one.
    above: Mutex<Above>,
}

#[derive(Default)]
struct Above {
    latches: Vec<Weak<Latch>>,
    /// The number of latches at which those of dropped devices are taken out.
    clean_at: CleanAt,
}

impl ReadOnlyLatch {
    /// Makes a latch for a device that may become read-only.
    #[must_use]
    pub fn unset() -> Self {
        Self(Some(Arc::new(Latch { set: AtomicBool::new(false), above: Mutex::default() })))
    }

    /// Makes one that is never set, for a device that stays as it is.
    #[must_use]
    pub const fn never() -> Self {
        Self(None)
    }

    /// Makes a latch that is set as soon as one of these is.
    #[must_use]
    pub fn any(latches: impl IntoIterator<Item = Self>) -> Self {
        let mut below = latches.into_iter().filter_map(|latch| latch.0);
        let Some(first) = below.next() else { return Self::never() };
        let Some(second) = below.next() else { return Self(Some(first)) };
        let all = Self::unset();
        for latch in [first, second].into_iter().chain(below) {
            if let Some(all) = &all.0 {
                latch.sets(all);
            }
        }
        all
    }

    /// Marks the device as read-only from now on. A latch that is [never](ReadOnlyLatch::never) set
    /// stays unset. Any context.
    pub fn set(&self) {
        if let Some(latch) = &self.0 {
            latch.set();
        }
    }

    /// Returns true once it is set. Any context.
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|latch| latch.set.load(Ordering::Acquire))
    }
}

impl Latch {
    /// Sets `above` with this one. Either the setter finds it in the list, or this one was set
    /// before and this thread sees that. The setter takes the lock after its store, and this thread
    /// takes it before its load.
    fn sets(&self, above: &Arc<Self>) {
        let mut list = self.above.lock();
        let Above { latches, clean_at } = &mut *list;
        let clean = |all: &mut Vec<Weak<Self>>| all.retain(|latch| latch.strong_count() != 0);
        clean_at.before_one_more(latches, Vec::len, clean);
        latches.push(Arc::downgrade(above));
        drop(list);
        if self.set.load(Ordering::Acquire) {
            above.set();
        }
    }

    /// Sets it and all above, without a deep stack.
    fn set(&self) {
        let mut todo = self.set_alone();
        while let Some(latch) = todo.pop() {
            if let Some(latch) = latch.upgrade() {
                todo.extend(latch.set_alone());
            }
        }
    }

    /// Sets it, and returns the latches to set next.
    fn set_alone(&self) -> Vec<Weak<Self>> {
        if self.set.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.above.lock().latches)
    }
}

impl fmt::Debug for ReadOnlyLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadOnlyLatch").field(&self.is_set()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latch_is_set_with_any_of_those_below_before_and_after_it_was_made() {
        let (a, b) = (ReadOnlyLatch::unset(), ReadOnlyLatch::unset());
        let both = ReadOnlyLatch::any([a.clone(), ReadOnlyLatch::never(), b.clone()]);
        let alone = ReadOnlyLatch::any([a.clone()]);
        let top = ReadOnlyLatch::any([both.clone(), alone.clone()]);
        assert!(![&a, &b, &both, &alone, &top].iter().any(|latch| latch.is_set()));
        b.set();
        assert!(both.is_set() && top.is_set() && !a.is_set() && !alone.is_set());
        assert!(ReadOnlyLatch::any([b, ReadOnlyLatch::unset()]).is_set());
        a.set();
        assert!(alone.is_set());
        ReadOnlyLatch::never().set();
        assert!(!ReadOnlyLatch::any([ReadOnlyLatch::never()]).is_set());
    }

    #[test]
    fn a_high_stack_is_set_without_a_deep_one_and_what_is_gone_is_forgotten() {
        let medium = ReadOnlyLatch::unset();
        let mut all = vec![medium.clone()];
        for _ in 0..100_000 {
            let last = all[all.len() - 1].clone();
            all.push(ReadOnlyLatch::any([last, ReadOnlyLatch::unset()]));
            drop(ReadOnlyLatch::any([medium.clone(), ReadOnlyLatch::unset()]));
        }
        let listed = medium.0.as_ref().map(|latch| latch.above.lock().latches.len());
        assert!(listed <= Some(32), "{listed:?}");
        medium.set();
        assert!(all.iter().all(ReadOnlyLatch::is_set));
    }
}
