//! The closures that a worker's items have spawned without a join.
//!
//! `README.md` beside this file has the protocol (Enter, Want). The comments here use its names for
//! the steps.

use std::any::type_name;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::panic::Location;
use std::ptr::{self, NonNull};

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};
use corewise_sync::spin::{Spin, SpinGuard};
use corewise_sync::{CachePadded, hint};

use crate::error::shielded;
use crate::task::header::{Header, Job, Queued};
use crate::task::header::{Item, ItemRef, OneShotItem, Table, TableOf};
use crate::task::running::Publication;
use crate::task::running::Running;
use crate::task::ticket::DeferredEnds;
use crate::task::ticket::{Event, MaybeTicket};

/// Number of closures that a ring holds. A block of this size is the largest that glibc's allocator
/// hands out from a thread's own cache.
pub(crate) const ROOM: usize = if hint::IN_MODEL { 2 } else { 15 };
/// Number of words of a closure that fit.
const WORDS: usize = 5;

type Words = MaybeUninit<[usize; WORDS]>;

/// A closure that waits for its run, and is counted in its queue. Dropping it cancels it.
pub(crate) struct Closure {
    table: &'static Table,
    job: Job,
    words: Words,
}

/// The table of closures of a type.
struct Of<C>(PhantomData<C>);

impl<C: FnOnce() + Send + 'static> Of<C> {
    const TABLE: Table = Table::of_part(type_name::<C>, run::<C>, release::<C>, no_span);
}

impl Closure {
    /// Returns true if a closure of this type fits.
    pub(crate) const fn holds<C>() -> bool {
        size_of::<C>() <= size_of::<Words>() && align_of::<C>() <= align_of::<Words>()
    }

    /// Takes a closure that [fits](Closure::holds).
    #[inline]
    pub(crate) fn new<C: FnOnce() + Send + 'static>(closure: C, job: Job) -> Closure {
        assert!(Closure::holds::<C>(), "asked before");
        let mut words = Words::uninit();
        // SAFETY: it fits, and is aligned.
        unsafe { words.as_mut_ptr().cast::<C>().write(closure) };
        Closure { table: &Of::<C>::TABLE, job, words }
    }

    /// Runs it as an instance of its queue. Never unwinds.
    #[inline]
    pub(crate) fn run(self, shown: &Publication, carry: &DeferredEnds) {
        carry.starts(self.job.ticket.as_ref());
        let closure = ManuallyDrop::new(self);
        let shell = SpawnedItem::new(closure.table, closure.words);
        // SAFETY: the closure isn't used again, and nothing of it is dropped.
        let job = unsafe { ptr::read(&raw const closure.job) };
        let mut running = Running::new(shell.item(), job);
        running.run(shown, Some(carry));
    }

    /// Counts that the closure runs away from its home pod.
    pub(crate) fn overflowed(&self) {
        self.job.ticket.as_ref().into_iter().for_each(|ticket| ticket.note(Event::Overflowed));
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        if let Some(ticket) = self.job.ticket.as_ref() {
            ticket.note(Event::Cancelled);
        }
        self.table.give_up(SpawnedItem::new(self.table, self.words).item(), true);
    }
}

/// The item as which a closure runs, in the frame of the thread that runs it.
#[repr(C)]
struct SpawnedItem {
    header: Header,
    words: Cell<Words>,
}

impl SpawnedItem {
    #[inline]
    fn new(table: &'static Table, words: Words) -> SpawnedItem {
        SpawnedItem { header: Header::new(table), words: Cell::new(words) }
    }

    /// Returns the item's hold, by a pointer to all of it.
    #[inline]
    fn item(&self) -> ItemRef {
        // SAFETY: the hold is the only one, and the table's functions don't free what they are
        // given.
        unsafe { ItemRef::kept(NonNull::from(self).cast()) }
    }
}

/// Takes the closure out.
///
/// # Safety
/// The header is that of a [`SpawnedItem`] with a `C`, by a pointer to all of it, and the closure
/// is taken once.
#[inline]
unsafe fn take<C>(item: NonNull<Header>) -> C {
    // SAFETY: as the caller says.
    let words = unsafe { item.cast::<SpawnedItem>().as_ref() }.words.as_ptr();
    // SAFETY: a `C` was written there.
    unsafe { words.cast::<C>().read() }
}

/// Calls the closure.
///
/// # Safety
/// See [`take`].
unsafe fn run<C: FnOnce()>(item: NonNull<Header>) {
    // SAFETY: as the caller says.
    let closure = unsafe { take::<C>(item) };
    closure();
}

/// Drops the closure, which isn't called.
///
/// # Safety
/// See [`take`].
unsafe fn release<C>(item: NonNull<Header>) {
    // SAFETY: as the caller says.
    drop(unsafe { take::<C>(item) });
}

/// Returns no span: no subscriber wanted spans when the closure was spawned.
///
/// # Safety
/// The same as for each function of a table.
unsafe fn no_span(_: NonNull<Header>) -> Option<NonNull<tracing::Span>> {
    None
}

/// Room for closures. A full block goes to a pool's list as one item, which isn't run itself.
#[repr(C)]
pub(crate) struct Block<T> {
    header: Header,
    /// Positions of the oldest and behind the newest, while it is in no ring. Position `n` lies in
    /// slot `n % ROOM`.
    from: usize,
    to: usize,
    slots: [MaybeUninit<T>; ROOM],
}

// SAFETY: `repr(C)`; the header comes first, and is made here only.
unsafe impl Item for Block<Closure> {}

// SAFETY: its owner alone touches the closures, which are `Send`.
unsafe impl<T: Send> Sync for Block<T> {}

impl OneShotItem for Block<Closure> {
    fn run(self: Box<Self>) {
        unreachable!("a worker takes the closures out")
    }
}

impl<T> Block<T> {
    pub(crate) fn new() -> Box<Block<T>> {
        let header = Header::new(&Block::<Closure>::TABLE);
        let slots = [const { MaybeUninit::uninit() }; ROOM];
        Box::new(Block { header, from: 0, to: 0, slots })
    }
}

impl Block<Closure> {
    const TABLE: Table = TableOf::<Block<Closure>, Block<Closure>>::ALONE.of_block();

    /// Returns the block as an item to be pushed. It has no ticket, but its closures have.
    pub(super) fn into_queued(mut self: Box<Self>, site: &'static Location<'static>) -> Queued {
        self.header = Header::new(&Block::TABLE);
        let block = NonNull::from(Box::leak(self)).cast();
        let job = Job { ticket: MaybeTicket::none(), site };
        // SAFETY: it was leaked from a box, is pending from its making, and is handed over.
        unsafe { Queued::new(ItemRef::kept(block), job) }
    }

    /// Returns the block of an item.
    ///
    /// # Safety
    /// It is the item of a block that the caller has started, and uses up.
    pub(crate) unsafe fn from_item(item: NonNull<Header>) -> Box<Self> {
        // SAFETY: it was leaked from a box.
        unsafe { Box::from_raw(item.cast::<Self>().as_ptr()) }
    }

    /// Returns the closures, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Closure> {
        let slots = (self.from..self.to).map(|position| &self.slots[position % ROOM]);
        // SAFETY: these are filled.
        slots.map(|slot| unsafe { slot.assume_init_ref() })
    }
}

impl<T> Iterator for Block<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.from == self.to {
            return None;
        }
        let slot = &self.slots[self.from % ROOM];
        self.from += 1;
        // SAFETY: it was filled, and counts as empty from here on.
        Some(unsafe { slot.assume_init_read() })
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        for closure in self {
            shielded("dropping a spawned closure", || drop(closure));
        }
    }
}

/// The closures that the items of one worker have spawned and no thread has begun: first in, first
/// out. Its owner appends and takes without a locked operation. Thieves take several at once.
pub(crate) struct SpawnRing<T, P: AsymmetricPolicy = Asymmetric> {
    owner: CachePadded<OwnerSide<T>>,
    thieves: CachePadded<ThievesSide>,
    policy: PhantomData<P>,
}

struct OwnerSide<T> {
    /// A: the owner is inside. Release as it leaves; pairs with the Acquire of a thief.
    inside: AtomicBool,
    /// A: the position behind the newest. Written by the owner, inside: Relaxed.
    tail: AtomicUsize,
    /// A: the position of the oldest. Written by the owner, inside, and by thieves: Relaxed.
    head: AtomicUsize,
    /// A: number of times that the ring was empty and isn't any more. As `tail`.
    begun: AtomicUsize,
    /// P: the owner's while it is inside, and a thief's that has found it outside.
    block: UnsafeCell<Box<Block<T>>>,
}

struct ThievesSide {
    /// A: a thief wants the ring. Release as it leaves; pairs with the Acquire of the owner.
    wanted: AtomicBool,
    /// L: is the lock; its holder steals, or is the owner that waits for a thief.
    stealing: Spin<()>,
}

/// The oldest closure of a ring, as a thief has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OldestSpawned {
    begun: usize,
    head: usize,
}

// SAFETY: the block is one thread's at a time, as the protocol says, and what it holds is `Send`.
unsafe impl<T: Send, P: AsymmetricPolicy> Sync for SpawnRing<T, P> {}

impl<T, P: AsymmetricPolicy> SpawnRing<T, P> {
    /// Returns an empty ring.
    pub(crate) fn new() -> Self {
        P::prepare();
        SpawnRing {
            owner: CachePadded::new(OwnerSide {
                inside: AtomicBool::new(false),
                tail: AtomicUsize::new(0),
                head: AtomicUsize::new(0),
                begun: AtomicUsize::new(0),
                block: UnsafeCell::new(Block::new()),
            }),
            thieves: CachePadded::new(ThievesSide {
                wanted: AtomicBool::new(false),
                stealing: Spin::new(()),
            }),
            policy: PhantomData,
        }
    }

    #[inline]
    fn range(&self) -> (usize, usize) {
        let head = self.owner.head.load(Ordering::Relaxed);
        (head, self.owner.tail.load(Ordering::Relaxed))
    }

    /// Returns how many closures wait (a moment ago).
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let (head, tail) = self.range();
        tail.saturating_sub(head)
    }

    /// Carries out Enter.
    #[inline]
    fn enter(&self) -> OwnerGuard<'_, T, P> {
        self.owner.inside.store(true, Ordering::Relaxed);
        P::light();
        // Acquire: a thief that has finished has read the closures that it took, and moved the
        // head.
        let waits = self.thieves.wanted.load(Ordering::Acquire);
        let waited = if waits { Some(self.outwait()) } else { None };
        OwnerGuard { ring: self, waited }
    }

    #[cold]
    #[inline(never)]
    fn outwait(&self) -> SpinGuard<'_, ()> {
        self.owner.inside.store(false, Ordering::Release);
        self.thieves.stealing.lock()
    }

    /// Appends a closure, as the owner. Returns true if the ring was empty: a worker may have to be
    /// woken for the closure. The closure comes back if the ring is full.
    #[inline]
    pub(crate) fn append(&self, closure: T) -> Result<bool, T> {
        let _inside = self.enter();
        let (head, tail) = self.range();
        let first = head == tail;
        if first {
            self.begins(tail);
        }
        if tail - head == ROOM {
            return Err(closure);
        }
        self.owner.block.with_mut(|block| {
            // SAFETY: the owner is inside.
            let block = unsafe { &mut **block };
            block.slots[tail % ROOM].write(closure);
        });
        self.owner.tail.store(tail + 1, Ordering::Relaxed);
        Ok(first)
    }

    /// Notes that the ring is empty, and the owner inside: the next closure, at `head`, isn't the
    /// one that a thief has seen.
    #[inline]
    fn begins(&self, head: usize) {
        self.owner.tail.store(head, Ordering::Relaxed);
        self.owner.head.store(head, Ordering::Relaxed);
        let begun = self.owner.begun.load(Ordering::Relaxed);
        self.owner.begun.store(begun.wrapping_add(1), Ordering::Relaxed);
    }

    /// Takes the oldest closure, as the owner.
    #[inline]
    pub(crate) fn take(&self) -> Option<T> {
        let _inside = self.enter();
        self.take_first()
    }

    /// Takes all closures, as the owner, in their block, and leaves an empty one.
    pub(crate) fn take_all(&self, empty: Box<Block<T>>) -> Box<Block<T>> {
        let _inside = self.enter();
        let range = self.range();
        self.begins(0);
        self.owner.block.with_mut(|block| {
            // SAFETY: the owner is inside.
            let mut block = mem::replace(unsafe { &mut *block }, empty);
            (block.from, block.to) = range;
            block
        })
    }

    /// Puts a block of closures into the ring, which is empty, as the owner. Returns an empty
    /// block.
    pub(crate) fn put(&self, mut full: Box<Block<T>>) -> Box<Block<T>> {
        let _inside = self.enter();
        debug_assert_eq!(self.len(), 0, "the ring is empty");
        self.begins(full.from);
        self.owner.tail.store(full.to, Ordering::Relaxed);
        (full.from, full.to) = (0, 0);
        self.owner.block.with_mut(|block| {
            // SAFETY: the owner is inside.
            mem::replace(unsafe { &mut *block }, full)
        })
    }

    /// Takes the oldest. The ring is the caller's.
    #[inline]
    fn take_first(&self) -> Option<T> {
        let (head, tail) = self.range();
        if head == tail {
            return None;
        }
        self.owner.head.store(head + 1, Ordering::Relaxed);
        Some(self.owner.block.with(|block| {
            // SAFETY: the ring is the caller's.
            let block = unsafe { &**block };
            // SAFETY: it was filled, and counts as empty from here on.
            unsafe { block.slots[head % ROOM].assume_init_read() }
        }))
    }

    /// Returns the oldest closure, for a thief (a moment ago).
    pub(crate) fn oldest(&self) -> Option<OldestSpawned> {
        let begun = self.owner.begun.load(Ordering::Relaxed);
        let (head, tail) = self.range();
        (head < tail).then_some(OldestSpawned { begun, head })
    }

    /// Steals the older half of the closures, if the oldest is the one that the thief has seen, and
    /// gives them to `each`, the oldest first. Returns their number; 0 also if another thread holds
    /// the ring.
    pub(crate) fn steal(&self, seen: OldestSpawned, mut each: impl FnMut(T)) -> usize {
        let Some(_stealing) = self.thieves.stealing.try_lock() else { return 0 };
        if self.oldest() != Some(seen) {
            return 0;
        }
        // Want.
        self.thieves.wanted.store(true, Ordering::Relaxed);
        P::heavy();
        let mut stolen = 0;
        // Acquire: the owner's closures are seen whole.
        if !self.owner.inside.load(Ordering::Acquire) {
            let most = self.len().div_ceil(2);
            while stolen < most {
                let Some(closure) = self.take_first() else { break };
                each(closure);
                stolen += 1;
            }
        }
        self.thieves.wanted.store(false, Ordering::Release);
        stolen
    }
}

/// The owner is inside, until this is dropped.
struct OwnerGuard<'a, T, P: AsymmetricPolicy> {
    ring: &'a SpawnRing<T, P>,
    /// The owner has waited for a thief, and keeps others out by the lock.
    waited: Option<SpinGuard<'a, ()>>,
}

impl<T, P: AsymmetricPolicy> Drop for OwnerGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        if self.waited.is_none() {
            self.ring.owner.inside.store(false, Ordering::Release);
        }
    }
}

impl<T, P: AsymmetricPolicy> Drop for SpawnRing<T, P> {
    fn drop(&mut self) {
        let range = self.range();
        self.owner.block.with_mut(|block| {
            // SAFETY: no other thread has the ring.
            let block = unsafe { &mut **block };
            (block.from, block.to) = range;
        });
    }
}
