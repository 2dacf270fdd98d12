//! Epochs: readers that write only to their own memory, and a wait until all present readers have
//! stopped.
//!
//! A reader opens a *section*, and the objects that it finds in there stay until it closes the
//! section. A thread that removes an object unpublishes it first, so that no later section finds
//! it. Then it calls [`Epochs::synchronize`], which returns when each section that had begun has
//! ended. No thread can access the object any more, and it can be dropped.
//!
//! A section costs two plain stores to a cache line of the thread's own, no locked instruction, and
//! no line that other readers write. The whole cost is the writer's: one [heavy
//! fence](crate::fence::heavy), a load for each thread that has ever read, and the wait itself.
//!
//! ```
//! use corewise_sync::epoch::{Epochs, ReadMostly};
//!
//! let limits = ReadMostly::new(vec![1, 2, 3]);
//! assert_eq!(limits.read().len(), 3);
//! limits.replace(vec![4]); // waits for nobody; the old one is dropped after its last reader
//! assert_eq!(*limits.read(), [4]);
//!
//! // The bare thing, for structures of one's own:
//! static EPOCHS: Epochs = Epochs::new();
//! {
//!     let _section = EPOCHS.enter();
//!     // Follow pointers here.
//! }
//! EPOCHS.synchronize();
//! ```
//!
//! This is the kernel's RCU in user space, with its `synchronize_rcu`. The design is closest to
//! liburcu's "membarrier" flavour (<https://liburcu.org>), with one counter per reader in place of
//! a phase for all. The README beside this file names the steps and argues them.

#[cfg(debug_assertions)]
mod marked;
mod read_mostly;
mod slot;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use self::slot::{Sections, Slot};
use crate::context;
use crate::facade::fence::{Asymmetric, AsymmetricPolicy};
use crate::own::{self, Slots};

pub use read_mostly::{ReadGuard, ReadMostly};

/// A set of readers and the waiters for them. Clone it freely: clones are the same set.
///
/// Different epochs are independent: a waiter of one doesn't wait for the readers of another.
/// Things that are changed together share one. Each thread that reads takes a slot of 128 bytes at
/// its first section, and gives it back when it ends. The memory is freed with the last clone and
/// the last such thread.
///
/// `A` is the pair of fences; product code uses [`Asymmetric`].
pub struct Epochs<A: AsymmetricPolicy = Asymmetric> {
    /// Slots, created at the first use.
    slots: OnceLock<Arc<Slots<Slot>>>,
    fences: PhantomData<A>,
}

impl Epochs {
    /// Creates epochs without readers. (The first use in a process calls
    /// [`prepare_soon`](crate::fence::prepare_soon).)
    pub const fn new() -> Self {
        Self::with_fences()
    }
}

impl<A: AsymmetricPolicy> Epochs<A> {
    pub(crate) const fn with_fences() -> Self {
        Epochs { slots: OnceLock::new(), fences: PhantomData }
    }

    #[inline]
    fn slots(&self) -> &Arc<Slots<Slot>> {
        match self.slots.get() {
            Some(slots) => slots,
            None => self.make_slots(),
        }
    }

    #[cold]
    fn make_slots(&self) -> &Arc<Slots<Slot>> {
        // Outside the cell's own lock: it may start a thread.
        A::prepare();
        self.slots.get_or_init(|| Arc::new(Slots::new()))
    }

    /// Opens a section, until the guard is dropped. Sections nest, and guards may be dropped in any
    /// order; only the outermost section counts. It takes a few nanoseconds. A thread's first
    /// section in these epochs takes a lock and allocates. Any context.
    ///
    /// A section **must not block**: waiters in [`Epochs::synchronize`] would wait as long. In
    /// builds with debug assertions it is an [atomic section](crate::context::AtomicSection), so
    /// that a blocking call is reported with both sites.
    ///
    /// A guard that is forgotten keeps its section open for ever.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn enter(&self) -> Section<'_, A> {
        let slots = self.slots();
        match own::own(slots) {
            Some(slot) => Section::enter(slots, slot),
            None => self.enter_as_guest(),
        }
    }

    /// Enters a section in a destructor of a thread that ends.
    #[cold]
    #[cfg_attr(debug_assertions, track_caller)]
    fn enter_as_guest(&self) -> Section<'_, A> {
        let slots = self.slots();
        let slot = Arc::as_ptr(&slots.lend());
        // SAFETY: the epochs, which `self` keeps alive, keep every slot that they ever made.
        Section::enter(slots, unsafe { &*slot })
    }

    /// Creates a reader that a model takes before it begins: the lock under which a thread takes
    /// its own slot would order the rest.
    #[doc(hidden)]
    pub fn reader(&self) -> Reader<A> {
        Reader { epochs: self.clone(), slot: self.slots().take(), not_sync: PhantomData }
    }

    /// Waits until every section that had begun before this call has ended. Their reads happen
    /// before the return; sections that begin later see the caller's earlier writes. Sections that
    /// come and go meanwhile don't delay it.
    ///
    /// Without sections, it costs one [heavy fence](crate::fence::heavy) and a load for each thread
    /// that reads. Otherwise it checks for some microseconds, and then sleeps in a [blocking
    /// region](crate::context::blocking), to be woken by the end of the sections. Several threads
    /// may wait at once. May block: inside an atomic section that is reported.
    ///
    /// # Panics
    /// In a section of the calling thread in these epochs, where it would wait for itself.
    #[track_caller]
    pub fn synchronize(&self) {
        context::might_block("Epochs::synchronize");
        self.refuse_inside("synchronize");
        self.sections().wait::<A>();
    }

    /// Returns the sections that have begun.
    fn sections(&self) -> Sections {
        self.slots().sections::<A>()
    }

    /// Returns true if the calling thread is in a section.
    fn is_inside(&self) -> bool {
        own::if_any(self.slots(), Slot::is_inside) == Some(true)
    }

    #[track_caller]
    fn refuse_inside(&self, what: &str) {
        assert!(
            !self.is_inside(),
            "{what} inside a reading section of the same epochs would wait for itself"
        );
    }
}

impl<A: AsymmetricPolicy> Default for Epochs<A> {
    /// Creates epochs without readers, with any fences.
    fn default() -> Self {
        Self::with_fences()
    }
}

impl<A: AsymmetricPolicy> Clone for Epochs<A> {
    fn clone(&self) -> Self {
        Epochs { slots: OnceLock::from(Arc::clone(self.slots())), fences: PhantomData }
    }
}

impl<A: AsymmetricPolicy> fmt::Debug for Epochs<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").finish_non_exhaustive()
    }
}

/// An open section: closed when dropped, on the thread that opened it.
#[must_use = "the section ends when the guard is dropped"]
pub struct Section<'a, A: AsymmetricPolicy = Asymmetric> {
    slots: &'a Slots<Slot>,
    slot: &'a Slot,
    #[cfg(debug_assertions)]
    _marked: marked::Marked,
    /// Marker: not `Send`, as the slot is the thread's.
    not_send: PhantomData<(*const (), A)>,
}

impl<'a, A: AsymmetricPolicy> Section<'a, A> {
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn enter(slots: &'a Slots<Slot>, slot: &'a Slot) -> Self {
        slot.enter::<A>();
        Section {
            slots,
            slot,
            #[cfg(debug_assertions)]
            _marked: marked::Marked::enter(),
            not_send: PhantomData,
        }
    }
}

impl<A: AsymmetricPolicy> Drop for Section<'_, A> {
    #[inline]
    fn drop(&mut self) {
        if self.slot.exit::<A>() && self.slot.tell() {
            self.slots.give_back_lent(self.slot);
        }
    }
}

impl<A: AsymmetricPolicy> fmt::Debug for Section<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Section")
    }
}

/// A reader's slot that belongs to its holder, not to a thread. One section at a time, which may
/// nest. The reader may move to another thread while none is open.
#[doc(hidden)]
pub struct Reader<A: AsymmetricPolicy = Asymmetric> {
    epochs: Epochs<A>,
    slot: Arc<Slot>,
    /// Marker: one thread at a time writes to the slot.
    not_sync: PhantomData<Cell<()>>,
}

impl<A: AsymmetricPolicy> Reader<A> {
    /// Opens a section, like [`Epochs::enter`]; never locks, never allocates.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn enter(&self) -> Section<'_, A> {
        Section::enter(self.epochs.slots(), &self.slot)
    }
}

impl<A: AsymmetricPolicy> Drop for Reader<A> {
    fn drop(&mut self) {
        self.epochs.slots().give_back(Arc::clone(&self.slot));
    }
}
