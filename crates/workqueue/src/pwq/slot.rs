//! Where the pwqs of a queue lie: memory that a queuer may touch before it knows that the pwq is
//! still there.
//!
//! Read `README.md` beside this file first: the comments here use its names for the steps and states.

use std::mem::offset_of;
use std::ptr::{self, NonNull};

use corewise_sync::atomic::{AtomicPtr, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::hint;

use crate::pwq::counts::Tally;
use crate::task::ticket::{ADDRESS_BITS, Home, STRIPES};

/// What lies on a slot: a [`Pwq`](crate::pwq::Pwq), or a model's.
pub(crate) trait InSlot: Send + Sync {
    /// What stands at the head of its slot: the same for all of a queue.
    fn home(&self) -> Home;
    /// It was taken off its slot: all that was queued there is over. Under the lock of the colours.
    fn collected(&self);
}

/// A place for a pwq, and the counts of what is queued there.
#[repr(C, align(128))]
pub(crate) struct PwqSlot<L> {
    /// At the head, where a ticket's word points.
    pub(crate) home: Home,
    pub(crate) tally: Tally,
    /// P: written under the lock of the colours while the slot is on no list; read by a thread that has
    /// Validated, until the instance is over.
    pwq: UnsafeCell<Option<L>>,
}

// A ticket names a slot by its home.
const _: () = assert!(align_of::<PwqSlot<()>>() == STRIPES && offset_of!(PwqSlot<()>, home) == 0);

// SAFETY: the pwq is written while nobody reads it (`README.md`), and shared: `L: Send + Sync`.
unsafe impl<L: Send + Sync> Send for PwqSlot<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for PwqSlot<L> {}

impl<L> PwqSlot<L> {
    /// The pwq.
    ///
    /// # Safety
    /// One is there, for as long as the reference lives: the slot is on the list and the lock is
    /// held, or the caller's instance isn't over, or the caller has Validated and hasn't pushed yet.
    #[inline]
    pub(crate) unsafe fn pwq(&self) -> &L {
        // SAFETY: as the caller says.
        let pwq = self.pwq.with(|pwq| unsafe { (*pwq).as_ref() });
        if hint::EVERY_SCHEDULE || cfg!(debug_assertions) {
            return pwq.expect("a pwq is there for those who may ask");
        }
        // SAFETY: as the caller says.
        unsafe { pwq.unwrap_unchecked() }
    }
}

/// Owns a slot. Others have pointers to it.
pub(crate) struct Owned<L>(pub(super) NonNull<PwqSlot<L>>);

// SAFETY: as a `Box` of it.
unsafe impl<L: Send + Sync> Send for Owned<L> {}

impl<L> Owned<L> {
    pub(super) fn new(home: Home, stripes: usize) -> Self {
        let slot = PwqSlot { home, tally: Tally::new(stripes), pwq: UnsafeCell::new(None) };
        let slot = NonNull::from(Box::leak(Box::new(slot)));
        let high = (slot.addr().get() as u64) >> ADDRESS_BITS;
        let packed = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        assert!(!packed || high == 0, "no address in user space has more bits, without tags");
        Owned(slot)
    }

    pub(crate) fn slot(&self) -> &PwqSlot<L> {
        // SAFETY: it is owned, and freed by the drop alone.
        unsafe { self.0.as_ref() }
    }

    /// Fill.
    pub(super) fn fill(&self, pwq: L) {
        // SAFETY: it is spare: no entry has named it since it was collected, so nobody has Validated,
        // and one that hasn't reads no pwq.
        self.slot().pwq.with_mut(|place| unsafe { *place = Some(pwq) });
    }

    /// Takes the pwq off.
    pub(super) fn empty(&self) -> Option<L> {
        // SAFETY: it is quiet and retired: all that was queued is over, and nobody Validates any more.
        // `is_quiet` acquires what they did.
        self.slot().pwq.with_mut(|place| unsafe { (*place).take() })
    }
}

impl<L> Drop for Owned<L> {
    fn drop(&mut self) {
        // SAFETY: it came from a box. It is dropped with the queue, which is there for as long as there
        // is a handle, so that no queuer has a pointer to it, or a pwq on any slot, so that no
        // instance has.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The entry of a CPU: the slot that its work goes to, and the stripe there.
pub(crate) struct Entry<L> {
    /// A: the slot, and the stripe in its lowest bits; null where the CPU has no pwq. Stored under the
    /// lock of the attributes, read by everybody who queues.
    pub(super) place: AtomicPtr<PwqSlot<L>>,
}

impl<L> Entry<L> {
    /// No pwq.
    pub(crate) fn new() -> Self {
        Entry { place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Publish.
    pub(crate) fn publish(&self, to: Option<(NonNull<PwqSlot<L>>, u32)>) {
        let place = to.map_or(ptr::null_mut(), |(slot, stripe)| {
            slot.as_ptr().map_addr(|address| address | (stripe as usize % STRIPES))
        });
        // SeqCst: see `README.md`. Release: the pwq is seen whole.
        self.place.store(place, Ordering::SeqCst);
    }

    /// The slot, and the stripe; null without a pwq.
    #[inline]
    pub(super) fn parts(place: *mut PwqSlot<L>) -> (*mut PwqSlot<L>, u32) {
        // Slots are aligned to the number of stripes.
        let stripe = (place.addr() % STRIPES) as u32;
        (place.map_addr(|address| address & !(STRIPES - 1)), stripe)
    }
}
