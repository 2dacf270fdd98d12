//! The pools' view of their timekeeper, which lies above: how pools wake it, and how it goes to
//! sleep without missing a wake-up. `../timekeeper/README.md` argues the steps that are named here.

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
    /// Returns true if it is time to retry a system that refused a thread at this moment.
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
    /// Carries out Ask: some pool has work that it can't take. The caller has issued a full fence
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
    /// A: true if a pool was found with more work than it can take: the thread inspects the pools
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

    /// Carries out Ask: the caller has left work in a pool that can't take it, and issued a full
    /// fence after that. Returns true if the thread doesn't look yet: the caller has to
    /// [`ring`](Alarm::ring) it, once it exists. Takes one load if the thread looks already.
    #[inline]
    pub(crate) fn raise(&self) -> bool {
        // SeqCst: the caller's fence, which may be no more than a SeqCst read-modify-write, pairs
        // with the one in `lower`.
        !self.raised.load(Ordering::SeqCst) && !self.raised.swap(true, Ordering::Relaxed)
    }

    /// Stops the looks, if no pool needs one. The thread calls this when it has found nothing.
    /// Returns true if the looks stopped.
    pub(crate) fn lower(&self, anything: impl FnOnce() -> bool) -> bool {
        // Lower. A store would do in place of the swap, but loom doesn't know that a plain store
        // comes after the swap of a `raise` that saw the store before it.
        self.raised.swap(false, Ordering::Relaxed);
        // Pairs with the fence of the thread that raises: either that one reads `false`, and rings,
        // or this thread finds its work.
        F::full();
        // Relook.
        if anything() {
            self.raised.store(true, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Wakes the thread for new work. It leaves a token, which isn't lost on a thread that is about
    /// to sleep. Any context.
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
