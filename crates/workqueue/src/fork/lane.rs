//! The lane of a worker: where its running items offer their forks. And the lanes of a pool.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::Duration;

use corewise_sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, aside};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, FencePolicy};
use corewise_sync::{CachePadded, Mutex, Parker, hint, per_thread};

use crate::fork::record::Fork;
use crate::fork::ring::{Oldest, Ring};

/// How many lanes a pool has at most. Items of further workers offer no forks.
const MOST: usize = if hint::IN_MODEL { 4 } else { 256 };

per_thread! {
    /// The lane of the calling thread, which is a worker's, and the address of the lanes that it is
    /// one of; null until it forks or steals.
    static OWN: Cell<(*const (), *const Lane)> = Cell::new((ptr::null(), ptr::null()));
}

/// Items fork, or have forked since a watch ended.
const FORKING: u32 = 1;
/// An idle worker looks at the lanes now and then, so that a push needn't wake one.
const WATCHED: u32 = 2;

/// Where the items that one worker runs offer their forks.
pub(crate) struct Lane {
    pub(crate) ring: Ring<Fork>,
    /// O: the lowest address of the stack from which the owner offers forks.
    floor: aside::AtomicUsize,
    /// The owner sleeps here while a thief has a fork that it joins.
    parker: Parker,
}

impl Lane {
    fn new() -> Lane {
        Lane { ring: Ring::new(), floor: aside::AtomicUsize::new(0), parker: Parker::new() }
    }

    /// Whether its owner, the caller, has enough left of its stack to fork.
    #[inline(always)]
    pub(crate) fn has_stack_here(&self) -> bool {
        let here = MaybeUninit::<u8>::uninit();
        (&raw const here).addr() >= self.floor.load(Ordering::Relaxed)
    }

    /// Sleeps, as the owner of a stolen fork, until its thief is done with it, or for so long:
    /// false then.
    pub(crate) fn wait_for(&self, fork: &Fork, limit: Option<Duration>) -> bool {
        while fork.begin_sleep() {
            // A token may have been left earlier.
            let woken = match limit {
                Some(limit) => self.parker.park_timeout(limit),
                None => {
                    self.parker.park();
                    true
                }
            };
            if !woken {
                return false;
            }
        }
        true
    }

    pub(super) fn wake(&self) {
        self.parker.unpark();
    }
}

/// The lanes of a pool.
pub(crate) struct Lanes<P: AsymmetricPolicy = Asymmetric> {
    /// A: the first `made` aren't null. Release, pairs with the Acquire of `iter`.
    places: Box<[AtomicPtr<Lane>]>,
    /// A: how many lanes there are. As `places`.
    made: AtomicUsize,
    /// A: [`FORKING`] and [`WATCHED`].
    watch: CachePadded<AtomicU32>,
    /// A: how many threads take part that are no workers. A hint: Relaxed.
    guests: aside::AtomicUsize,
    /// L: is the lock; guards those that nobody has.
    free: Mutex<Vec<NonNull<Lane>>>,
    policy: PhantomData<P>,
}

// SAFETY: the pointers are those of lanes, which are shared and live as long as this.
unsafe impl<P: AsymmetricPolicy> Send for Lanes<P> {}
// SAFETY: as above.
unsafe impl<P: AsymmetricPolicy> Sync for Lanes<P> {}

impl<P: AsymmetricPolicy> Lanes<P> {
    pub(crate) fn new() -> Self {
        Lanes {
            places: (0..MOST).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            made: AtomicUsize::new(0),
            watch: CachePadded::new(AtomicU32::new(0)),
            guests: aside::AtomicUsize::new(0),
            free: Mutex::new(Vec::new()),
            policy: PhantomData,
        }
    }

    /// Whether any worker has ever forked here.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.made.load(Ordering::Relaxed) > 0
    }

    /// All lanes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        let made = self.made.load(Ordering::Acquire);
        self.places[..made].iter().map(|place| {
            // SAFETY: it was stored before it was counted, and is freed with the lanes.
            unsafe { &*place.load(Ordering::Relaxed) }
        })
    }

    /// What stands for them, to be compared.
    fn key(&self) -> *const () {
        ptr::from_ref(self).cast()
    }

    /// The lane of the calling thread, which is a worker of this pool; a new one, with this floor,
    /// where it has none yet. `None` where the pool has as many as it may have.
    pub(crate) fn own(&self, floor: impl FnOnce() -> usize) -> Option<&Lane> {
        let (whose, own) = OWN.with(Cell::get);
        if whose == self.key() {
            // SAFETY: it is one of these, which are there.
            return unsafe { own.as_ref() };
        }
        if !whose.is_null() {
            return None;
        }
        let own = self.take()?;
        own.floor.store(floor(), Ordering::Relaxed);
        OWN.with(|cell| cell.set((self.key(), own)));
        Some(own)
    }

    #[cold]
    fn take(&self) -> Option<&Lane> {
        let mut free = self.free.lock();
        let lane = match free.pop() {
            Some(lane) => lane,
            None => {
                let made = self.made.load(Ordering::Relaxed);
                let place = self.places.get(made)?;
                let lane = Box::into_raw(Box::new(Lane::new()));
                place.store(lane, Ordering::Relaxed);
                self.made.store(made + 1, Ordering::Release);
                NonNull::new(lane)?
            }
        };
        // SAFETY: it is freed with the lanes.
        Some(unsafe { lane.as_ref() })
    }

    /// A lane for the calling thread, which is no worker, or is one that runs an item of another
    /// queue. `counted`: its CPU is none that a worker of this pool holds.
    pub(crate) fn guest(&self, floor: usize, counted: bool) -> Option<GuestLane<'_, P>> {
        let lane = self.take()?;
        lane.floor.store(floor, Ordering::Relaxed);
        self.guests.fetch_add(usize::from(counted), Ordering::Relaxed);
        Some(GuestLane { lanes: self, lane, counted })
    }

    /// A guest sleeps.
    pub(crate) fn guest_sleeps(&self) {
        self.guests.fetch_sub(1, Ordering::Relaxed);
    }

    /// It goes on.
    pub(crate) fn guest_wakes(&self) {
        self.guests.fetch_add(1, Ordering::Relaxed);
    }

    /// How many threads take part that are no workers, and don't sleep.
    pub(crate) fn guests(&self) -> usize {
        self.guests.load(Ordering::Relaxed)
    }

    /// The calling thread, a worker of this pool, ends: its lane is free for another one.
    pub(crate) fn leave(&self) {
        let (whose, own) = OWN.with(Cell::get);
        if whose == self.key() {
            OWN.with(|cell| cell.set((ptr::null(), ptr::null())));
            self.free.lock().extend(NonNull::new(own.cast_mut()));
        }
    }

    /// The lanes that have forks, each with its oldest, from the calling worker's own on.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = (&Lane, Oldest)> {
        let (_, own) = OWN.with(Cell::get);
        let first = self.iter().position(|lane| ptr::eq(lane, own)).map_or(0, |own| own + 1);
        let (before, after) = (self.iter().take(first), self.iter().skip(first));
        after.chain(before).filter_map(|lane| Some((lane, lane.ring.oldest()?)))
    }

    /// Call, by an owner that has pushed the first fork of its ring: whether nobody watches, so
    /// that it has to wake a thief, if one can be woken.
    #[inline]
    pub(crate) fn calls<F: FencePolicy>(&self) -> bool {
        // Pairs with the heavy side in `end_watch`.
        P::light();
        let watch = self.watch.load(Ordering::Relaxed);
        if watch == 0 {
            self.begin_forking::<F>();
        }
        watch & WATCHED == 0
    }

    /// Open. From here on a worker that goes idle watches.
    #[cold]
    fn begin_forking<F: FencePolicy>(&self) {
        self.watch.fetch_or(FORKING, Ordering::Relaxed);
        // Pairs with the transition of a worker that goes idle: it sees FORKING, or the owner reads
        // WAKE.
        F::full();
    }

    /// Whether there are forks that nobody watches (a moment ago).
    pub(crate) fn need_thief(&self) -> bool {
        self.watch.load(Ordering::Relaxed) == FORKING
            && self.iter().any(|lane| lane.ring.has_forks())
    }

    /// Watch, by a worker that goes idle: it looks at the lanes now and then. False where no item
    /// forks, or another worker watches.
    pub(crate) fn begin_watch(&self) -> bool {
        let (from, to) = (FORKING, FORKING | WATCHED);
        self.watch.load(Ordering::Relaxed) == from
            && self.watch.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The watcher has found something to do. Another one watches, as soon as it has taken that.
    pub(crate) fn leave_watch(&self) {
        self.watch.fetch_and(!WATCHED, Ordering::Relaxed);
    }

    /// The watch is over, since no item seems to fork; true where the watcher has to go on, as it
    /// has found a fork since.
    pub(crate) fn end_watch(&self) -> bool {
        self.watch.store(0, Ordering::Relaxed);
        P::heavy();
        if self.iter().any(|lane| lane.ring.has_forks()) {
            self.watch.fetch_or(FORKING, Ordering::Relaxed);
        }
        self.begin_watch()
    }
}

/// The lane of a guest, until it is dropped.
pub(crate) struct GuestLane<'a, P: AsymmetricPolicy = Asymmetric> {
    lanes: &'a Lanes<P>,
    pub(crate) lane: &'a Lane,
    counted: bool,
}

impl<P: AsymmetricPolicy> Drop for GuestLane<'_, P> {
    fn drop(&mut self) {
        self.lanes.guests.fetch_sub(usize::from(self.counted), Ordering::Relaxed);
        self.lanes.free.lock().push(NonNull::from(self.lane));
    }
}

impl<P: AsymmetricPolicy> Drop for Lanes<P> {
    fn drop(&mut self) {
        for place in &self.places {
            let lane = place.load(Ordering::Relaxed);
            if !lane.is_null() {
                // SAFETY: it came from a `Box`, and nobody uses it without the lanes.
                drop(unsafe { Box::from_raw(lane) });
            }
        }
    }
}
