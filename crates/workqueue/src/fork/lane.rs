//! The lane of a worker, in which its running items offer their forks; and the lanes of a pool.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, aside};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, FencePolicy};
use corewise_sync::{CachePadded, Mutex, Parker, hint, per_thread};

use crate::fork::record::Fork;
use crate::fork::ring::{OldestFork, Ring};
use crate::fork::spawn_ring::{Block, Closure, OldestSpawned, SpawnRing};
use crate::task::header::Queued;

/// Maximum of lanes of a pool. Items of further workers offer no forks.
const MOST: usize = if hint::IN_MODEL { 4 } else { 256 };

per_thread! {
    /// The lane of the calling thread, which is a worker's, and the address of the lanes that it is
    /// one of; null until it forks or steals.
    static OWN: Cell<(*const (), *const Lane)> = Cell::new((ptr::null(), ptr::null()));
}

/// Number of coarse closures of which one is kept all the same.
const PROBE: u32 = 32;
/// Maximum of empty blocks of a lane; half of any surplus goes to those of all lanes. (If each
/// block were allocated by its maker and freed by its taker, both would wait for glibc's lock.)
const SPARE: usize = 32;
/// Maximum of those of all lanes.
const SPARE_OF_ALL: usize = 256;

/// Empty blocks, which go to a list and back whole.
type Blocks = Vec<Box<Block<Closure>>>;

/// Items fork, or have forked since a watch ended.
const FORKING: u32 = 1;
/// An idle worker looks at the lanes now and then, so that a push needn't wake one.
const WATCHED: u32 = 2;

/// A closure that a thief has seen in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StealTarget {
    /// The oldest fork.
    Fork(OldestFork),
    /// The oldest of what was spawned.
    Spawned(OldestSpawned),
}

/// The place where one worker's items offer their forks, and leave what they spawn.
pub(crate) struct Lane {
    pub(crate) ring: Ring<Fork>,
    /// The closures that the owner's items spawn.
    pub(crate) spawned: SpawnRing<Closure>,
    /// L: is the lock, which only its owner takes; guards empty blocks.
    spare: Mutex<Blocks>,
    /// O: some spawned closures went to a list since the owner began to keep them.
    overflowed: AtomicBool,
    /// O: number of closures that were spawned here while such ones were coarse.
    probes: aside::AtomicU32,
    /// O: its owner is a worker, which runs the closures that are spawned here once its item is
    /// over.
    takes_spawns: AtomicBool,
    /// The owner sleeps here while a thief has a fork that it joins.
    parker: Parker,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            ring: Ring::new(),
            spawned: SpawnRing::new(),
            spare: Mutex::new(Vec::new()),
            overflowed: AtomicBool::new(false),
            probes: aside::AtomicU32::new(0),
            takes_spawns: AtomicBool::new(false),
            parker: Parker::new(),
        }
    }

    /// Returns true if its owner, the caller, is a worker, which runs the closures that its items
    /// spawn here.
    #[inline]
    pub(crate) fn takes_spawns(&self) -> bool {
        self.takes_spawns.load(Ordering::Relaxed)
    }

    /// Notes that some spawned closures have gone to a list: the others are to go there too, behind
    /// it.
    pub(crate) fn overflows(&self) {
        self.overflowed.store(true, Ordering::Relaxed);
    }

    /// Returns true if that was noted, and clears the note.
    #[inline]
    pub(crate) fn takes_overflow(&self) -> bool {
        let overflowed = self.overflowed.load(Ordering::Relaxed);
        if overflowed {
            self.overflowed.store(false, Ordering::Relaxed);
        }
        overflowed
    }

    /// Returns whether a closure is kept although such ones were coarse, to see whether they still
    /// are: one in [`PROBE`].
    pub(crate) fn probes(&self) -> bool {
        let probes = self.probes.load(Ordering::Relaxed);
        self.probes.store(probes.wrapping_add(1), Ordering::Relaxed);
        probes % PROBE == 0
    }

    /// Returns true if there is something for a thief (a moment ago).
    fn has_any(&self) -> bool {
        self.ring.has_forks() || self.spawned.len() > 0
    }

    /// Returns true if its owner, the caller, has enough left of its stack to fork.
    #[inline(always)]
    pub(crate) fn has_stack_here(&self) -> bool {
        self.ring.has_stack(here())
    }

    /// Returns true if its owner, the caller, calls its forks itself: others have enough to steal.
    #[inline(always)]
    pub(crate) fn keeps_here(&self) -> bool {
        self.ring.keeps(here())
    }

    /// Returns the closure that a thief would have taken a moment ago: a fork, which its owner
    /// waits for, before a spawned closure.
    pub(crate) fn steal_target(&self) -> Option<StealTarget> {
        let spawned = || self.spawned.oldest().map(StealTarget::Spawned);
        self.fork().or_else(spawned)
    }

    /// Returns the fork that a thief would have taken a moment ago.
    pub(crate) fn fork(&self) -> Option<StealTarget> {
        self.ring.oldest().map(StealTarget::Fork)
    }

    /// Sleeps, as the owner of a stolen fork, until its thief has finished it. Returns false at the
    /// limit.
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

/// Returns an address in the caller's frame.
#[inline(always)]
fn here() -> usize {
    let here = MaybeUninit::<u8>::uninit();
    (&raw const here).addr()
}

/// The lanes of a pool.
pub(crate) struct Lanes<P: AsymmetricPolicy = Asymmetric> {
    /// A: the first `made` aren't null. Release, pairs with the Acquire of `iter`.
    places: Box<[AtomicPtr<Lane>]>,
    /// A: number of lanes. As `places`.
    made: AtomicUsize,
    /// A: [`FORKING`] and [`WATCHED`].
    watch: CachePadded<AtomicU32>,
    /// A: number of threads that take part and are no workers. A hint: Relaxed.
    guests: aside::AtomicUsize,
    /// A: the closures that are spawned here are long enough to wake a worker for them. Workers
    /// that run such closures write it when it changes. A hint: Relaxed.
    coarse: AtomicBool,
    /// L: is the lock; guards empty blocks.
    spare: CachePadded<Mutex<Blocks>>,
    /// L: is the lock; guards the lanes without an owner.
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
            coarse: AtomicBool::new(true),
            spare: CachePadded::default(),
            free: Mutex::new(Vec::new()),
            policy: PhantomData,
        }
    }

    /// Returns true if any worker has ever forked here.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.made.load(Ordering::Relaxed) > 0
    }

    /// Returns all lanes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        let made = self.made.load(Ordering::Acquire);
        self.places[..made].iter().map(|place| {
            // SAFETY: it was stored before it was counted, and is freed with the lanes.
            unsafe { &*place.load(Ordering::Relaxed) }
        })
    }

    /// Returns a key for the lanes, to be compared.
    fn key(&self) -> *const () {
        ptr::from_ref(self).cast()
    }

    /// Returns the lane of the calling thread, which is a worker of this pool; a new one, with this
    /// floor, if it has none yet. Returns `None` if the pool has as many as it may have.
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
        own.ring.set_floor(floor());
        own.takes_spawns.store(true, Ordering::Relaxed);
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

    /// Returns a lane for the calling thread, which is no worker, or a worker that runs an item of
    /// another queue. `counted`: no worker of this pool holds its CPU.
    pub(crate) fn guest(&self, floor: usize, counted: bool) -> Option<GuestLane<'_, P>> {
        let lane = self.take()?;
        lane.ring.set_floor(floor);
        lane.takes_spawns.store(false, Ordering::Relaxed);
        self.guests.fetch_add(usize::from(counted), Ordering::Relaxed);
        Some(GuestLane { lanes: self, lane, counted })
    }

    /// Notes that a guest sleeps.
    pub(crate) fn guest_sleeps(&self) {
        self.guests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that a guest continues.
    pub(crate) fn guest_wakes(&self) {
        self.guests.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of threads that take part, are no workers, and don't sleep.
    pub(crate) fn guests(&self) -> usize {
        self.guests.load(Ordering::Relaxed)
    }

    /// Frees the lane of the calling thread, a worker of this pool that ends, for another one.
    pub(crate) fn leave(&self) {
        let (whose, own) = OWN.with(Cell::get);
        if whose == self.key() {
            OWN.with(|cell| cell.set((ptr::null(), ptr::null())));
            self.free.lock().extend(NonNull::new(own.cast_mut()));
        }
    }

    /// Returns the lane of the calling thread, if it has one of these.
    #[inline]
    pub(crate) fn mine(&self) -> Option<&Lane> {
        let (whose, own) = OWN.with(Cell::get);
        if whose != self.key() {
            return None;
        }
        // SAFETY: it is one of these, which are there.
        unsafe { own.as_ref() }
    }

    /// Returns true if it pays to wake a worker for the closures that are spawned here.
    #[inline]
    pub(crate) fn is_coarse(&self) -> bool {
        self.coarse.load(Ordering::Relaxed)
    }

    /// Sets whether it pays, as seen from the closures that ran last.
    pub(crate) fn set_coarse(&self, coarse: bool) {
        if self.is_coarse() != coarse {
            self.coarse.store(coarse, Ordering::Relaxed);
        }
    }

    /// Returns true if short closures, which the caller has put into a list just now, are left to a
    /// watcher.
    #[inline]
    pub(crate) fn leaves_to_watcher(&self) -> bool {
        // Pairs with the heavy sides in `end_watch` and `leave_watch`.
        P::light();
        !self.is_coarse() && self.watch.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Returns true if items fork or spawn here (a moment ago).
    pub(crate) fn in_use(&self) -> bool {
        self.watch.load(Ordering::Relaxed) != 0
    }

    /// Returns all closures that the items of the calling worker have spawned, as an item to be
    /// pushed.
    pub(crate) fn take_spawned(&self, lane: &Lane, site: &'static Location<'static>) -> Queued {
        let mut own = lane.spare.lock();
        if own.is_empty() {
            let mut all = self.spare.lock();
            let rest = all.len().saturating_sub(SPARE / 2);
            own.extend(all.drain(rest..));
        }
        let empty = own.pop().unwrap_or_else(Block::new);
        drop(own);
        lane.spawned.take_all(empty).into_queued(site)
    }

    /// Keeps an empty block of the calling worker's.
    pub(crate) fn recycle(&self, lane: &Lane, empty: Box<Block<Closure>>) {
        let mut own = lane.spare.lock();
        own.push(empty);
        if own.len() > SPARE {
            let many = own.drain(SPARE / 2..);
            let mut all = self.spare.lock();
            let room = SPARE_OF_ALL.saturating_sub(all.len());
            all.extend(many.take(room));
        }
    }

    /// Returns the lanes in which `look` finds something, each with the finding, from the calling
    /// worker's own on.
    pub(crate) fn seen<'a>(
        &'a self,
        look: impl Fn(&Lane) -> Option<StealTarget> + 'a,
    ) -> impl Iterator<Item = (&'a Lane, StealTarget)> {
        let (_, own) = OWN.with(Cell::get);
        let first = self.iter().position(|lane| ptr::eq(lane, own)).map_or(0, |own| own + 1);
        let (before, after) = (self.iter().take(first), self.iter().skip(first));
        after.chain(before).filter_map(move |lane| Some((lane, look(lane)?)))
    }

    /// Carries out Call, by an owner that has pushed the first fork of its ring. Returns true if no
    /// worker watches, so that the owner has to wake a thief, if one can be woken.
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

    /// Carries out Open. From here on a worker that goes idle watches.
    #[cold]
    fn begin_forking<F: FencePolicy>(&self) {
        self.watch.fetch_or(FORKING, Ordering::Relaxed);
        // Pairs with the transition of a worker that goes idle: it sees FORKING, or the owner reads
        // WAKE.
        F::full();
    }

    /// Returns true if there were unwatched forks a moment ago.
    pub(crate) fn need_thief(&self) -> bool {
        self.watch.load(Ordering::Relaxed) == FORKING && self.iter().any(|lane| lane.has_any())
    }

    /// Begins Watch, by a worker that goes idle: it inspects the lanes now and then. Returns false
    /// if no item forks, or if another worker watches.
    pub(crate) fn begin_watch(&self) -> bool {
        let (from, to) = (FORKING, FORKING | WATCHED);
        self.watch.load(Ordering::Relaxed) == from
            && self.watch.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Leaves the watch: the watcher has found something to do, and inspects the lists next.
    /// Another worker watches as soon as it has taken that.
    pub(crate) fn leave_watch(&self) {
        self.watch.fetch_and(!WATCHED, Ordering::Relaxed);
        // Pairs with the light side in `leaves_to_watcher`.
        P::heavy();
    }

    /// Ends the watch, since no item seems to fork. Returns true if the watcher has to continue, as
    /// it has found a fork since.
    pub(crate) fn end_watch(&self) -> bool {
        self.watch.store(0, Ordering::Relaxed);
        P::heavy();
        if self.iter().any(|lane| lane.has_any()) {
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
                // SAFETY: it came from a `Box`, and no thread uses it without the lanes.
                drop(unsafe { Box::from_raw(lane) });
            }
        }
    }
}
