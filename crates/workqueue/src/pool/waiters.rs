//! The threads that wait for an item of a pool and could run it themselves, if no worker can come
//! for it.
//!
//! `README.md` beside this file has the steps (Want, Call).

use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::Unparker;
use corewise_sync::fence::FencePolicy;

use crate::pool::group::Group;
use crate::pool::{Pool, PoolState};
use crate::task::header::{Header, LentItem};

/// A thread that waits.
struct PoolWaiter {
    id: u64,
    /// The item that it waits for. It is there for as long as this is on the list.
    item: NonNull<Header>,
    unparker: Unparker,
    /// True if it was called, and hasn't answered yet.
    called: bool,
}

// SAFETY: a `Header` is shared.
unsafe impl Send for PoolWaiter {}

/// The list, which the pool's lock guards.
#[derive(Default)]
pub(crate) struct PoolWaiters {
    wants: Vec<PoolWaiter>,
    last: u64,
}

impl PoolWaiters {
    pub(super) fn is_empty(&self) -> bool {
        self.wants.is_empty()
    }

    /// Adds a waiter, and returns its number.
    pub(crate) fn add(&mut self, item: LentItem<'_>, unparker: Unparker) -> u64 {
        self.last += 1;
        self.wants.push(PoolWaiter {
            id: self.last,
            item: item.pointer(),
            unparker,
            called: false,
        });
        self.last
    }

    /// Carries out Call of one whose item lies in a list, unless one was called that hasn't
    /// answered.
    fn call(&mut self) -> Option<Unparker> {
        if self.wants.iter().any(|want| want.called) {
            return None;
        }
        // SAFETY: it is on the list.
        let found = |want: &&mut PoolWaiter| unsafe { want.item.as_ref() }.may_be_taken_back();
        let want = self.wants.iter_mut().find(found)?;
        want.called = true;
        Some(want.unparker.clone())
    }
}

impl PoolState {
    /// Returns the thread to wake, if work waits and no worker can come for it.
    pub(super) fn call(&mut self) -> Option<Unparker> {
        if self.wants.is_empty() || !self.counts().is_short() { None } else { self.wants.call() }
    }
}

/// A place on the list of a pool, which is given up when it is dropped.
pub(crate) struct PoolWait<'a, F: FencePolicy> {
    group: &'a Arc<Group<F>>,
    pool: usize,
    id: u64,
    item: LentItem<'a>,
}

impl<F: FencePolicy> Group<F> {
    /// Carries out Want: the caller waits for `item`, whose ticket names this pool, and would run
    /// it. It is woken if no worker can run it.
    pub(crate) fn want<'a>(
        self: &'a Arc<Self>,
        pool: usize,
        item: LentItem<'a>,
        unparker: Unparker,
    ) -> PoolWait<'a, F> {
        let id = self.change_wants(pool, |wants| wants.add(item, unparker));
        PoolWait { group: self, pool, id, item }
    }

    fn change_wants<R>(
        self: &Arc<Self>,
        index: usize,
        change: impl FnOnce(&mut PoolWaiters) -> R,
    ) -> R {
        let pool: &Pool<F> = &self.pools[index];
        let (result, action) = {
            let mut inner = pool.inner.lock();
            let result = change(&mut inner.wants);
            (result, self.settle(index, &mut inner, false))
        };
        self.perform(index, action);
        result
    }

    /// Returns how many workers a pool has, if no more can be made and none of them is at work or
    /// idle (a moment ago).
    pub(crate) fn all_it_has(&self, index: usize) -> Option<usize> {
        let inner = self.pools[index].inner.lock();
        // If the system refuses threads it is asked once more.
        let short = inner.refused.is_none() && inner.counts.is_short();
        short.then_some(inner.counts.total)
    }

    /// Returns true if a core of the pool is free and no worker can come for it (a moment ago).
    pub(super) fn is_short(&self, index: usize) -> bool {
        self.pools[index].inner.lock().counts().is_short()
    }
}

impl<F: FencePolicy> PoolWait<'_, F> {
    /// Returns true if the caller should run the item now.
    pub(crate) fn is_called_for(&self) -> bool {
        self.item.may_be_taken_back() && self.group.is_short(self.pool)
    }

    /// Notes that the caller was woken, maybe because it was called, and goes on waiting: another
    /// thread may be called.
    pub(crate) fn declines(&self) {
        self.group.change_wants(self.pool, |wants| {
            let own = wants.wants.iter_mut().find(|want| want.id == self.id);
            own.into_iter().for_each(|want| want.called = false);
        });
    }
}

impl<F: FencePolicy> Drop for PoolWait<'_, F> {
    fn drop(&mut self) {
        self.group.change_wants(self.pool, |wants| {
            wants.wants.retain(|want| want.id != self.id);
        });
    }
}
