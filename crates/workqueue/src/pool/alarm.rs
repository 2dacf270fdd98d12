//! The pools' view of their timekeeper, which lies above: what wakes it, and how it goes to sleep
//! without missing anybody. Read `../timekeeper/README.md`: the steps named here are argued there.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::{CachePadded, Parker};

/// The keeper of pools that have more work than they can take.
pub(crate) trait PoolKeeper: Send + Sync {
    /// Wakes the thread, or makes it, once the alarm was raised.
    fn wake(self: Arc<Self>);
    /// Returns the time since the pools were made.
    fn now(&self) -> Duration;
    /// Returns true if the system may be asked for a thread again, that refused one at this moment.
    fn may_retry(&self, refused: Duration) -> bool;
    /// Returns true if any queue has a rescuer.
    fn has_rescuers(&self) -> bool;
    /// Notes that some pools are gone: the thread ends with the last, once all was closed.
    fn group_gone(&self);
}

/// The keeper of some pools, which a push on a saturated one asks by one load.
pub(crate) struct Keeper {
    /// The alarm, on a line of its own: pushes on saturated pools read it.
    pub(crate) alarm: Arc<CachePadded<Alarm>>,
    pub(crate) keeper: Arc<dyn PoolKeeper>,
}

impl Keeper {
    /// Carries out Ask: some pool has work that it can't take. The caller has put a full fence
    /// before.
    #[inline]
    pub(crate) fn ask(&self) {
        if self.alarm.raise() {
            Arc::clone(&self.keeper).wake();
        }
    }
}

impl Deref for Keeper {
    type Target = dyn PoolKeeper;

    fn deref(&self) -> &(dyn PoolKeeper + 'static) {
        &*self.keeper
    }
}

/// The flag whether pools are examined, and the parking spot of the thread that looks.
#[derive(Debug)]
pub(crate) struct Alarm<F: FencePolicy = FullFence> {
    /// A: somebody found a pool with more work than it can take, and the thread looks at the pools
    /// each tick until there is none.
    raised: AtomicBool,
    /// O: parked on by the timekeeper's thread.
    parker: Parker,
    fence: PhantomData<F>,
}

impl<F: FencePolicy> Alarm<F> {
    pub(crate) fn new() -> Self {
        Alarm { raised: AtomicBool::new(false), parker: Parker::new(), fence: PhantomData }
    }

    /// Returns true if the pools are examined.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Carries out Ask: the caller has left work in a pool that can't take it, and put a full fence
    /// after that. Returns true if nobody looks yet: the caller has to [`ring`](Alarm::ring), on a
    /// thread that is there. Takes one load if somebody looks.
    #[inline]
    pub(crate) fn raise(&self) -> bool {
        // SeqCst: the caller's fence, which may be no more than a SeqCst read-modify-write, pairs
        // with the one in `lower`.
        !self.raised.load(Ordering::SeqCst) && !self.raised.swap(true, Ordering::Relaxed)
    }

    /// Stops the looks, if there is nothing to look after. Called by the thread when it has found
    /// nothing. Returns true if the looks stopped.
    pub(crate) fn lower(&self, anything: impl FnOnce() -> bool) -> bool {
        // Lower. A swap where a store would do: loom doesn't know that a plain store comes after
        // the swap of a `raise` that saw the store before it.
        self.raised.swap(false, Ordering::Relaxed);
        // Pairs with the fence of the thread that raises: either that one reads `false`, and rings,
        // or what it left is found here.
        F::full();
        // Relook.
        if anything() {
            self.raised.store(true, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Wakes the thread: there is something new. A token, so that it isn't lost on a thread that
    /// is about to sleep. Any context.
    pub(crate) fn ring(&self) {
        self.parker.unparker().unpark();
    }

    /// Sleeps until the next ring, or until the limit. Only the timekeeper's thread calls it.
    pub(crate) fn rest(&self, limit: Option<Duration>) {
        match limit {
            None => self.parker.park(),
            Some(limit) => {
                self.parker.park_timeout(limit);
            }
        }
    }
}
