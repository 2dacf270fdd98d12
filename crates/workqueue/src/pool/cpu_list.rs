//! The work that waits in a pool, and the pool's published word. Each CPU has a list, a ring of
//! pointers with an overflow. A push reads the published word, which is written under the pool's
//! lock alone.
//!
//! `README.md` has the steps (Begin, Check, Fill, Publish, Spill; Reserve, Take, Sweep, Refill) and
//! argues why no waiting item is overlooked.

use std::marker::PhantomData;
use std::ptr::NonNull;

use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, aside};
use corewise_sync::fence::FencePolicy;
use corewise_sync::inbox::{Inbox, Node};
use corewise_sync::list::List;
use corewise_sync::ring::{Ring, Scan};
use corewise_sync::{CachePadded, SpinLock, SpinLockGuard, hint};
use corewise_topology::{CpuId, CpuSet};

use crate::pool::policy::Counts;
use crate::task::claim::Container;
use crate::task::header::{Header, Queued};
use crate::task::running::Running;

/// Maximum of lists of a pool. A worker that is about to park searches each.
const MOST: usize = 16;

/// Number of items that the ring of a list has room for: in a pool of several CPUs, in one of a
/// single CPU, and in a model.
const CELLS: usize = 16384;
const FEW_CELLS: usize = 64;
const MODEL_CELLS: usize = 2;

/// The lists of one pool.
pub(crate) struct CpuLists<F: FencePolicy> {
    /// I: at least one.
    lists: Box<[CpuList<F>]>,
    /// I: by CPU, the list of items that are queued there. For further CPUs the number wraps.
    by_cpu: Box<[u8]>,
}

/// The waiting items of a pool that were queued from one of its CPUs.
pub(crate) struct CpuList<F: FencePolicy> {
    /// The items that were queued while there was room.
    pub(crate) ring: Ring<Header, F>,
    /// A: the items that were queued without room, and aren't in the list yet.
    inbox: CachePadded<Inbox<Queued>>,
    more: CachePadded<Overflow>,
    fence: PhantomData<F>,
}

struct Overflow {
    /// L: is the lock; guards the list, oldest first. A thread may take it while it holds the
    /// pool's lock. Its holder calls no code of the user's.
    list: SpinLock<List<Queued>>,
    /// A: true if the list has items; written under its lock, and set before the inbox is emptied
    /// into it.
    listed: AtomicBool,
    /// A: items started from the list; written under its lock.
    started: AtomicU64,
    /// L: the pool's lock: number of items that were taken at the last look.
    seen: AtomicU64,
}

/// An overflow whose lock is held.
pub(crate) struct OverflowGuard<'a, F: FencePolicy> {
    of: &'a CpuList<F>,
    list: SpinLockGuard<'a, List<Queued>>,
}

impl<F: FencePolicy> CpuLists<F> {
    /// Creates the lists of a pool of these CPUs.
    pub(super) fn new(cpus: &CpuSet) -> CpuLists<F> {
        let many = cpus.len().clamp(1, MOST);
        let mut by_cpu = vec![0; cpus.last().map_or(0, |last| last.index() + 1)];
        for (cpu, list) in by_cpu.iter_mut().enumerate() {
            *list = (cpu % many) as u8;
        }
        for (position, cpu) in cpus.iter().enumerate() {
            by_cpu[cpu.index()] = (position % many) as u8;
        }
        let cells = match many {
            _ if hint::IN_MODEL => MODEL_CELLS,
            1 => FEW_CELLS,
            _ => CELLS,
        };
        let list = |_| CpuList {
            ring: Ring::new(cells),
            inbox: CachePadded::new(Inbox::new()),
            more: CachePadded::new(Overflow {
                list: SpinLock::new(List::new()),
                listed: AtomicBool::new(false),
                started: AtomicU64::new(0),
                seen: AtomicU64::new(0),
            }),
            fence: PhantomData,
        };
        CpuLists { lists: (0..many).map(list).collect(), by_cpu: by_cpu.into() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Returns the list for items from this CPU, which needn't be one of the pool's.
    #[inline]
    pub(super) fn of(&self, cpu: CpuId) -> u32 {
        match self.by_cpu.get(cpu.index()) {
            Some(&list) => u32::from(list),
            None => cpu.number() % self.lists.len() as u32,
        }
    }

    /// Returns the list with this number, which a push has named.
    #[inline]
    pub(crate) fn at(&self, list: u32) -> &CpuList<F> {
        let list = list as usize;
        // The number from `of` is in range.
        let list = if list < self.lists.len() { list } else { list % self.lists.len() };
        &self.lists[list]
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, CpuList<F>> {
        self.lists.iter()
    }

    /// Returns true if an item that isn't started waited in any of them a moment ago.
    pub(super) fn any_waits(&self) -> bool {
        self.lists.iter().any(CpuList::waits)
    }

    /// Returns `any_waits` as a hint, and without reserved items.
    pub(super) fn any_may_wait(&self) -> bool {
        self.lists.iter().any(CpuList::may_wait)
    }

    /// Returns true if something has come to any of them, as a hint for a searcher.
    pub(super) fn any_has_next(&self) -> bool {
        self.lists.iter().any(CpuList::has_next)
    }

    /// Returns the number of lists from which something was taken since the last call. Called under
    /// the pool's lock.
    pub(super) fn in_use(&self) -> usize {
        let moves = |list: &&CpuList<F>| {
            let taken = list.taken();
            list.more.seen.swap(taken, Ordering::Relaxed) != taken
        };
        self.lists.iter().filter(moves).count()
    }

    /// Returns the list in which something waits, as a hint: the one of this CPU, if something
    /// waits there.
    pub(super) fn waiting_near(&self, cpu: CpuId) -> Option<u32> {
        let own = self.of(cpu);
        let waits = |at: &u32| self.lists[*at as usize].may_wait();
        Some(own).filter(waits).or_else(|| (0..self.lists.len() as u32).find(waits))
    }

    /// Returns true if something waits in the list of this CPU, as a hint.
    pub(super) fn waits_for(&self, cpu: CpuId) -> bool {
        self.at(self.of(cpu)).may_wait()
    }

    /// Returns the number of items taken so far. Those that were taken after other workers had
    /// reserved them count twice.
    pub(super) fn taken(&self) -> u64 {
        self.lists.iter().map(CpuList::taken).sum()
    }
}

impl<F: FencePolicy> CpuList<F> {
    /// Queues an item: Begin, Check, Fill and Publish; or Spill. Returns the word that Check has
    /// read.
    #[inline(always)]
    pub(super) fn append(&self, queued: Queued, word: &Word) -> Reading {
        // The order matters: an item that leaves the inbox is listed before, and one that leaves
        // the list is in the ring before.
        if self.inbox.is_empty() && !self.more.listed.load(Ordering::Acquire) {
            if let Some(begun) = self.ring.begin() {
                // Pairs with the one in `publish`: either Check reads the word that a worker
                // published before it went idle, or that worker's Recheck sees the push that has
                // begun.
                F::implied();
                let reading = word.read().after_push(|| begun.is_first());
                queued.set_place(Container::Ring(begun.cell()));
                begun.fill(queued.into_raw());
                return reading;
            }
        }
        self.spill(queued, word)
    }

    #[inline(never)]
    pub(crate) fn spill(&self, queued: Queued, word: &Word) -> Reading {
        queued.set_place(Container::Pushed);
        // A SeqCst read-modify-write.
        let first = self.inbox.push(queued);
        F::implied();
        word.read().after_push(|| first)
    }

    /// Returns true if an item that isn't started waited in it a moment ago. It checks in the order
    /// in which an item moves on. An item that leaves the inbox is listed before, and one that
    /// leaves the list is in the ring before.
    pub(super) fn waits(&self) -> bool {
        // SeqCst: see `settle`.
        !self.inbox.is_empty()
            || self.more.listed.load(Ordering::SeqCst)
            || self.ring.waits()
            || self.ring.left().is_some()
    }

    /// Returns true if there was an item to take a moment ago, and no thread in the middle of an
    /// append or a refill.
    pub(super) fn is_to_be_had(&self) -> bool {
        !self.ring.is_empty() || self.overflows() && self.more.list.try_lock().is_some()
    }

    /// Returns true if an item was on its way in a moment ago.
    pub(super) fn is_busy(&self) -> bool {
        self.ring.is_busy() || self.overflows()
    }

    /// Waits until a moment without a thread that appends, or refills the ring.
    pub(super) fn outwait(&self) {
        self.ring.outwait();
        if self.overflows() {
            drop(self.lock());
        }
    }

    /// Returns true if anything waits to be reserved, as a hint.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        !self.ring.is_empty() || self.overflows()
    }

    /// Returns true if something has come, as a hint for a searcher: see [`Ring::has_next`].
    pub(super) fn has_next(&self) -> bool {
        self.ring.has_next() || self.overflows()
    }

    /// Returns true if the overflow has something, as a hint.
    #[inline]
    pub(super) fn overflows(&self) -> bool {
        self.more.listed.load(Ordering::Relaxed) || !self.inbox.is_empty()
    }

    /// Returns the number of items taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.ring.reserved().wrapping_add(self.more.started.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn lock(&self) -> OverflowGuard<'_, F> {
        OverflowGuard { of: self, list: self.more.list.lock() }
    }

    /// Carries out Take: returns the item at this position, which the caller has reserved.
    #[inline(always)]
    pub(super) fn take(&self, at: u64) -> Option<Queued> {
        // SAFETY: it was put into the ring by `append`, and is out.
        self.ring.take(at).map(|item| unsafe { Queued::from_raw(item) })
    }

    /// Carries out Sweep: takes an item that another worker has reserved, and hasn't taken yet.
    pub(super) fn sweep(&self) -> Option<Queued> {
        // SAFETY: as in `take`.
        self.ring.sweep().map(|item| unsafe { Queued::from_raw(item) })
    }

    /// Takes and starts the oldest item, for a caller that does that once in a while.
    pub(super) fn start_one(&self) -> Option<Running> {
        while !self.ring.is_empty() {
            let queued = self.ring.reserve(|_| 1).ok().and_then(|mut of| self.take(of.next()?));
            if let Some(running) = queued.and_then(Queued::start) {
                return Some(running);
            }
        }
        if self.overflows() { self.refill() } else { None }
    }

    /// Carries out Refill: if the ring is empty, takes and starts the oldest item of the overflow,
    /// and moves more of it into the ring. If another thread does so, it is left to that one.
    #[cold]
    pub(super) fn refill(&self) -> Option<Running> {
        let list = self.more.list.try_lock()?;
        let mut held = OverflowGuard { of: self, list };
        if !self.ring.is_empty() {
            return None;
        }
        let running = held.start_next();
        held.refill();
        running
    }

    /// Takes out the oldest item that `wanted` accepts, among the first `most`, and starts it.
    pub(super) fn start_first(
        &self,
        most: usize,
        mut wanted: impl FnMut(&Header) -> bool,
    ) -> Option<Running> {
        let mut seen = 0;
        let mut see = |item: NonNull<Header>| {
            seen += 1;
            match () {
                () if seen > most => Scan::Stop,
                // SAFETY: no thread takes the item meanwhile, and so none frees it.
                () if wanted(unsafe { item.as_ref() }) => Scan::Take,
                () => Scan::Next,
            }
        };
        while let Some(found) = self.ring.look(&mut see) {
            // SAFETY: as in `take`.
            let queued = unsafe { Queued::from_raw(found) };
            // An item that runs elsewhere, or is claimed, is another thread's from here on: try the
            // next one.
            if let Some(running) = queued.start() {
                return Some(running);
            }
        }
        let mut held = self.lock();
        held.drain();
        loop {
            let found = {
                let mut near = held.list.iter().take(most.saturating_sub(seen));
                NonNull::from(near.find(|item| wanted(item))?)
            };
            // SAFETY: it was found in the list, whose lock is held.
            let queued = unsafe { held.remove(found) };
            if let Some(running) = queued.start() {
                return Some(running);
            }
        }
    }

    /// Shows the items, oldest first, until it says false.
    pub(super) fn see(&self, mut see: impl FnMut(&Header) -> bool) {
        let mut more = true;
        self.ring.look(|item| {
            // SAFETY: as in `start_first`.
            more = see(unsafe { item.as_ref() });
            if more { Scan::Next } else { Scan::Stop }
        });
        if more {
            let mut held = self.lock();
            held.drain();
            let _ = held.list.iter().all(see);
        }
    }

    /// Returns how many items wait.
    pub(super) fn waiting(&self) -> usize {
        let mut held = self.lock();
        held.drain();
        let mut waiting = held.list.len();
        self.ring.look(|_| {
            waiting += 1;
            Scan::Next
        });
        waiting
    }

    /// Takes any item out, for a caller that ends or starts it by `with`; the order doesn't matter.
    pub(super) fn take_any<R>(&self, with: impl FnOnce(Queued) -> R) -> Option<R> {
        self.outwait();
        loop {
            let Ok(reserved) = self.ring.reserve(|_| 1) else { continue };
            let none = reserved.len() == 0;
            let taken = match none {
                true => self.sweep(),
                false => reserved.filter_map(|at| self.take(at)).next(),
            };
            if let Some(queued) = taken {
                return Some(with(queued));
            }
            if none {
                break;
            }
        }
        let mut held = self.lock();
        held.pop().map(with)
    }
}

impl<F: FencePolicy> Drop for CpuList<F> {
    fn drop(&mut self) {
        while self.take_any(drop).is_some() {}
    }
}

impl<F: FencePolicy> OverflowGuard<'_, F> {
    /// Carries out Drain: moves spilled items to the end of the list.
    #[inline]
    pub(super) fn drain(&mut self) {
        if !self.of.inbox.is_empty() {
            // This comes before the inbox is emptied: a thread that finds it empty then reads this.
            // No other thread empties it meanwhile, so it becomes true.
            self.of.more.listed.store(true, Ordering::Relaxed);
            self.list.append(&self.of.inbox, |item| item.set_place(Container::Listed));
        }
    }

    /// Takes the oldest item out.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Queued> {
        if self.list.is_empty() {
            // Only the list is older than all of the inbox.
            self.drain();
        }
        let queued = self.list.pop_front()?;
        self.one_less();
        Some(queued)
    }

    /// Takes the oldest item and starts it. Under the lock, as in the kernel: until it has started
    /// an item lies in the list, and afterwards it is neither there nor pending. An item that runs
    /// elsewhere is left to the worker that runs it, a claimed one to its claimant, and the next
    /// one is tried.
    fn start_next(&mut self) -> Option<Running> {
        while let Some(queued) = self.pop() {
            let started = &self.of.more.started;
            started.store(started.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            if let Some(running) = queued.start() {
                return Some(running);
            }
        }
        None
    }

    /// Moves the oldest items into the ring, up to the half of that.
    fn refill(&mut self) {
        self.drain();
        let mut begun = self.of.ring.begin();
        for _ in 0..self.of.ring.capacity() / 2 {
            let Some(queued) = begun.as_ref().and_then(|_| self.list.pop_front()) else { break };
            begun = begun.and_then(|begun| {
                queued.set_place(Container::Ring(begun.cell()));
                begun.put(queued.into_raw())
            });
        }
        drop(begun);
        // This comes after the items that have left the list are in the ring.
        self.one_less();
    }

    /// Takes an item out of the list.
    ///
    /// # Safety
    /// It is in the list.
    pub(super) unsafe fn remove(&mut self, item: NonNull<Header>) -> Queued {
        // In a model that has to fail it may have left: that is found without undefined behaviour.
        if hint::EVERY_SCHEDULE {
            let listed = self.list.iter().any(|listed| NonNull::from(listed) == item);
            assert!(listed, "run or cancelled, once: it isn't in the list any more");
        }
        // SAFETY: as the caller says.
        let queued = unsafe { self.list.remove(item) };
        self.one_less();
        queued
    }

    /// Counts that an item has left the list.
    #[inline]
    fn one_less(&self) {
        if self.list.is_empty() && self.of.more.listed.load(Ordering::Relaxed) {
            // Release pairs with the Acquire in `append`: items that have left the list for the
            // ring come before later appends. It also pairs with the Acquire of `waits`.
            self.of.more.listed.store(false, Ordering::Release);
        }
    }
}

/// Bit: a push has to wake (or make) a worker of this pool.
const WAKE: u32 = 1;
/// Bit: the pod's cores are all taken: a push may look for another pod.
const SATURATED: u32 = 1 << 1;
/// Bit: more workers hold a core than the pod has: the next worker that looks for work goes idle.
const CROWDED: u32 = 1 << 2;
/// Bit: the pool takes no more work.
const CLOSED: u32 = 1 << 3;
/// Bit: the pod has no usable CPU: its workers run elsewhere.
const AWAY: u32 = 1 << 4;
/// Bit: the system refused a thread, and no retry has come yet.
const REFUSED: u32 = 1 << 5;
/// Bit: the pool is short of workers, and a waiter can run its awaited item itself.
const WANTED: u32 = 1 << 6;
/// Bit: the pod has no share of the CPU quota: work that may run anywhere is for others.
const ASIDE: u32 = 1 << 7;
/// Bit: a searcher is under way: a push that finds an older item counts the one that it leaves to
/// the searcher.
const SEARCHING: u32 = 1 << 8;
/// Bit: waiting items are left to the workers that run tiny items. A push asks the timekeeper to
/// watch these.
const ENOUGH: u32 = 1 << 9;
/// First bit of the number of workers that share the waiting items.
const SHARE: u32 = 16;

/// A decoded reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading(u32);

impl Reading {
    pub(super) fn of(counts: &Counts, rest: Conditions) -> Reading {
        let bits = [
            (counts.wake_on_push(), WAKE),
            (counts.saturated(), SATURATED),
            (!counts.may_take() || counts.has_too_many(), CROWDED),
            (counts.searching, SEARCHING),
            (counts.has_enough(), ENOUGH),
            (rest.closed, CLOSED),
            (rest.away, AWAY),
            (rest.aside, ASIDE),
            (rest.refused, REFUSED),
            (rest.wanted && counts.is_short(), WANTED),
        ];
        let workers = if counts.has_enough() { counts.takers } else { counts.base };
        let workers = u32::try_from(workers).unwrap_or(u32::MAX).min(u32::from(u16::MAX));
        let bits = bits.into_iter().filter_map(|(set, bit)| set.then_some(bit));
        Reading(bits.fold(workers << SHARE, |all, bit| all | bit))
    }

    /// Returns the duties of a push. If the push is the `first`, no item lay there before, and the
    /// searcher comes for that one. Only a push that finds that the searcher hasn't come yet is
    /// counted: one item at a time writes no line for that.
    #[inline]
    pub(super) fn after_push(self, first: impl FnOnce() -> bool) -> Reading {
        if self.searching() && first() { Reading(self.0 & !SEARCHING) } else { self }
    }

    pub(crate) fn wake(self) -> bool {
        self.0 & WAKE != 0
    }
    pub(crate) fn saturated(self) -> bool {
        self.0 & SATURATED != 0
    }
    /// Returns true if waiting items are left to the present takers.
    pub(crate) fn enough(self) -> bool {
        self.0 & ENOUGH != 0
    }
    pub(crate) fn crowded(self) -> bool {
        self.0 & CROWDED != 0
    }
    pub(crate) fn closed(self) -> bool {
        self.0 & CLOSED != 0
    }
    pub(crate) fn away(self) -> bool {
        self.0 & AWAY != 0
    }
    pub(crate) fn wanted(self) -> bool {
        self.0 & WANTED != 0
    }
    pub(crate) fn searching(self) -> bool {
        self.0 & SEARCHING != 0
    }
    /// Returns the number of workers that share the waiting items.
    pub(super) fn workers(self) -> u64 {
        u64::from(self.0 >> SHARE)
    }
    pub(crate) fn aside(self) -> bool {
        self.0 & ASIDE != 0
    }
    /// Returns true if a worker of the pool may be woken for the work of another pod.
    pub(crate) fn may_help(self) -> bool {
        (self.wake() || self.enough() && !self.saturated()) && !self.aside()
    }
    /// Returns true if the pusher has a duty.
    #[inline]
    pub(crate) fn concerns_pusher(self) -> bool {
        self.0 & (WAKE | CLOSED | SATURATED | SEARCHING | ENOUGH) != 0
    }
    /// Returns true if a worker that has taken an item has a duty: to name or make another worker,
    /// or to ask the system for a thread again.
    pub(crate) fn concerns_taker(self) -> bool {
        self.0 & (WAKE | REFUSED) != 0
    }
}

/// The conditions in a reading beside the counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Conditions {
    pub(super) closed: bool,
    pub(super) away: bool,
    pub(super) aside: bool,
    pub(super) refused: bool,
    /// True if a thread waits for an item of this pool, and could run it.
    pub(super) wanted: bool,
}

/// The word.
#[derive(Debug)]
pub(crate) struct Word {
    /// A: a [`Reading`]; written under the pool's lock.
    bits: AtomicU32,
}

impl Word {
    pub(crate) fn new(reading: Reading) -> Self {
        Word { bits: AtomicU32::new(reading.0) }
    }

    /// Reads the word (Check). SeqCst: a push comes before it, see `README.md`.
    #[inline]
    pub(crate) fn read(&self) -> Reading {
        Reading(self.bits.load(Ordering::SeqCst))
    }

    /// Publishes; the caller holds the pool's lock. Returns the word published before. A swap, for
    /// the sake of its order before later loads.
    pub(crate) fn publish(&self, reading: Reading) -> Reading {
        let old = Reading(self.bits.load(Ordering::Relaxed));
        if old != reading {
            self.bits.swap(reading.0, Ordering::SeqCst);
        }
        old
    }
}

/// Number of pushes that are left to the searcher that is under way.
#[derive(Debug, Default)]
pub(crate) struct SearcherBacklog {
    /// A: one, plus the pushes since the searcher was named that found an item before them. A hint:
    /// a wrong count names a searcher too few or too many, so Relaxed.
    pushes: aside::AtomicU32,
}

impl SearcherBacklog {
    /// Begins a count for a searcher that is named for one push. Called under the pool's lock.
    pub(super) fn begin(&self) {
        if self.pushes.load(Ordering::Relaxed) != 1 {
            self.pushes.store(1, Ordering::Relaxed);
        }
    }

    /// Counts one more push, and returns their number. Once there are many, no push writes any
    /// more.
    pub(super) fn one_more(&self) -> u32 {
        match self.pushes.load(Ordering::Relaxed) {
            many @ MANY.. => many,
            _ => self.pushes.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}

/// Number of pushes beyond which none is counted: a storm's producers write one line for each, and
/// wake more than tiny items pay.
const MANY: u32 = 9;
