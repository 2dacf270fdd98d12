//! What an instance in flight holds of its queue: a word.

use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::Ordering;

use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::counts::Careful;
use crate::pwq::deferred::DeferredEnds;
use crate::pwq::enter::leave;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::slot::{Kept, PwqSlot};
use crate::pwq::submit::push;
use word::Word;

/// The pwq of a ticket.
pub(crate) struct OfTicket(Word);

impl Deref for OfTicket {
    type Target = Pwq;

    #[inline]
    fn deref(&self) -> &Pwq {
        // SAFETY: it is part of a ticket, whose instance is in flight until that is dropped: so the
        // pwq is there (`README.md`).
        unsafe { self.0.slot().as_ref().pwq() }
    }
}

/// Counts one instance in its queue, from queueing until dropped. Once it is dropped, the pwq, its
/// pools and the queue may be gone.
pub(crate) struct Ticket {
    /// I: where it was queued. It is there for as long as the ticket. The same word says the stripe and
    /// the colour, and whether it has a place in the limiter.
    pub(crate) pwq: OfTicket,
}

// SAFETY: a pwq is shared, and its slot too (`PwqSlot`).
unsafe impl Send for Ticket {}
// SAFETY: as above.
unsafe impl Sync for Ticket {}

impl Ticket {
    /// For the instance of a queuer, who has Entered it.
    #[inline]
    pub(crate) fn new(place: Kept<Pwq>) -> Ticket {
        Ticket { pwq: OfTicket(Word::new(place)) }
    }

    /// The stripe of its pool that it lies in: that of the CPU that queued it.
    #[inline]
    pub(crate) fn stripe(&self) -> u32 {
        self.pwq.0.stripe()
    }

    /// What flushes know it by.
    pub(crate) fn colour(&self) -> u8 {
        self.pwq.0.colour()
    }

    /// Its pool, and the stripe there, for who has to do with them when the instance may be over.
    pub(crate) fn home(&self) -> (Arc<Group>, usize, u32) {
        (Arc::clone(&self.pwq.group), self.pwq.pool, self.stripe())
    }

    /// It has a place in the limiter now, to be given back. Before it is pushed, by who lets it
    /// through.
    pub(crate) fn count(&self) {
        self.pwq.0.count();
    }

    /// Whether it has a place in the limiter.
    pub(crate) fn is_counted(&self) -> bool {
        self.pwq.0.counted()
    }

    /// Lend: it gets a place in the limiter beyond the maximum, if it has none. As `count`, by its claimant.
    pub(crate) fn lend(&self) {
        if !self.is_counted() {
            self.pwq.slot.lend();
            self.count();
        }
    }

    /// The instance was never queued: the queue didn't take it.
    #[cold]
    pub(crate) fn withdraw(&self) {
        // SAFETY: the slot is there for as long as the ticket.
        unsafe { self.pwq.0.slot().as_ref() }.tally.undo(self.stripe());
    }

    /// The instance won't be run; counted.
    pub(crate) fn cancelled(&self) {
        self.pwq.counters.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    /// The instance has run for so long, which its queue wants to know; counted.
    pub(crate) fn took(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.pwq.counters.run_ns.fetch_add(took, Ordering::Relaxed);
    }

    /// The instance runs away from its home pod; counted.
    pub(crate) fn overflowed(&self) {
        self.pwq.counters.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Who waited for the instance runs it; counted.
    pub(crate) fn taken_back(&self) {
        self.pwq.counters.taken_back.fetch_add(1, Ordering::Relaxed);
    }
}

impl Ticket {
    #[inline]
    fn kept(&self) -> Kept<Pwq> {
        let word = &self.pwq.0;
        (word.slot(), word.stripe(), word.colour())
    }

    /// The instance is over, and its worker carries it, unless the limiter has to know.
    #[inline]
    fn carry(self, carry: &DeferredEnds<Pwq>) {
        if self.pwq.0.counted() {
            return;
        }
        let full = carry.add(self.kept());
        mem::forget(self);
        if full {
            carry.stops();
        }
    }
}

impl DeferredEnds<Pwq> {
    /// See [`Carry::count_out`].
    #[inline]
    pub(crate) fn stops(&self) {
        self.count_out::<Careful, QueueCore>(|pwq| Arc::clone(&pwq.shared));
    }

    /// Before the worker runs an instance, or does anything else with it. See [`Carry::before`].
    #[inline]
    pub(crate) fn starts(&self, next: Option<&Ticket>) {
        // Without a ticket only in models of a pool alone, where nothing is carried.
        if let Some(next) = next {
            let next = (!next.pwq.0.counted()).then(|| next.kept());
            self.before::<Careful, QueueCore>(next, |pwq| Arc::clone(&pwq.shared));
        }
    }
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        let word = &self.pwq.0;
        if word.counted() {
            self.pwq.slot.put(&mut push);
        }
        // SAFETY: it is the ticket's, which ends.
        unsafe {
            leave::<Careful, Pwq, QueueCore>(self.kept(), 1, |pwq| Arc::clone(&pwq.shared));
        }
    }
}

/// A ticket or none, in as much memory.
pub(crate) struct MaybeTicket(ManuallyDrop<Ticket>);

impl MaybeTicket {
    /// For an instance that no queue counts.
    pub(crate) fn none() -> MaybeTicket {
        MaybeTicket(ManuallyDrop::new(Ticket { pwq: OfTicket(Word::none()) }))
    }

    #[inline]
    fn is_none(&self) -> bool {
        self.0.pwq.0.is_none()
    }

    /// The ticket.
    #[inline]
    pub(crate) fn as_ref(&self) -> Option<&Ticket> {
        (!self.is_none()).then_some(&*self.0)
    }

    /// The instance is over. Its worker carries it; without one it is counted out.
    #[inline]
    pub(crate) fn end(mut self, carry: Option<&DeferredEnds<Pwq>>) {
        if let Some(carry) = carry
            && !self.is_none()
        {
            // SAFETY: it isn't used again: it isn't dropped either.
            let ticket = unsafe { ManuallyDrop::take(&mut self.0) };
            mem::forget(self);
            ticket.carry(carry);
        }
    }

    /// Takes the ticket out.
    pub(crate) fn take(&mut self) -> MaybeTicket {
        self.replace(MaybeTicket::none())
    }

    /// Puts another one there; the one that was.
    pub(crate) fn replace(&mut self, other: MaybeTicket) -> MaybeTicket {
        mem::replace(self, other)
    }
}

impl From<Ticket> for MaybeTicket {
    #[inline]
    fn from(ticket: Ticket) -> MaybeTicket {
        MaybeTicket(ManuallyDrop::new(ticket))
    }
}

impl Drop for MaybeTicket {
    #[inline]
    fn drop(&mut self) {
        if !self.is_none() {
            // SAFETY: it isn't used again.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

/// PwqSlot, stripe, colour and whether counted: all in one word. The stripe is in the lowest bits, which
/// a slot's alignment leaves free, the others in the highest, which no address in user space has.
#[cfg(all(target_pointer_width = "64", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod word {
    use std::ptr;

    use corewise_sync::atomic::aside::AtomicPtr;
    use corewise_sync::hint;

    use super::*;
    use crate::pwq::counts::COLOURS;
    use crate::pwq::slot::{ADDRESS_BITS, STRIPES};

    const COLOUR: u32 = ADDRESS_BITS;
    const COUNTED: usize = 1 << 63;
    const SLOT: usize = (1 << ADDRESS_BITS) - STRIPES;

    const _: () = assert!(COLOURS << COLOUR <= COUNTED);
    const _: () = assert!(size_of::<MaybeTicket>() == 8 || hint::IN_MODEL);

    pub(super) struct Word(
        /// A: null without a ticket. Changed by `count` alone, before the instance is pushed; read at
        /// its end. The push orders them, so Relaxed; atomic only because the claimant of a held
        /// instance may look at the ticket meanwhile.
        AtomicPtr<PwqSlot<Pwq>>,
    );

    impl Word {
        #[inline]
        pub(super) fn new((slot, stripe, colour): Kept<Pwq>) -> Word {
            let marks = stripe as usize | (colour as usize) << COLOUR;
            Word(AtomicPtr::new(slot.as_ptr().map_addr(|address| address | marks)))
        }

        pub(super) fn none() -> Word {
            Word(AtomicPtr::new(ptr::null_mut()))
        }

        #[inline]
        fn load(&self) -> *mut PwqSlot<Pwq> {
            self.0.load(Ordering::Relaxed)
        }

        #[inline]
        pub(super) fn is_none(&self) -> bool {
            self.load().is_null()
        }

        /// There is a ticket.
        #[inline]
        pub(super) fn slot(&self) -> NonNull<PwqSlot<Pwq>> {
            let slot = self.load().map_addr(|address| address & SLOT);
            debug_assert!(!slot.is_null(), "there is a ticket");
            // SAFETY: it is that of `new`.
            unsafe { NonNull::new_unchecked(slot) }
        }

        #[inline]
        pub(super) fn stripe(&self) -> u32 {
            (self.load().addr() % STRIPES) as u32
        }

        #[inline]
        pub(super) fn colour(&self) -> u8 {
            ((self.load().addr() & !COUNTED) >> COLOUR) as u8
        }

        #[inline]
        pub(super) fn counted(&self) -> bool {
            self.load().addr() & COUNTED != 0
        }

        pub(super) fn count(&self) {
            self.0.store(self.load().map_addr(|address| address | COUNTED), Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_word_says_what_it_was_made_of() {
            let slot = NonNull::<PwqSlot<Pwq>>::dangling();
            for (stripe, colour) in [(0, 0), (STRIPES as u32 - 1, 0), (5, COLOURS as u8 - 1)] {
                let word = Word::new((slot, stripe, colour));
                for counted in [false, true] {
                    assert!(!word.is_none());
                    assert_eq!(
                        (word.slot(), word.stripe(), word.colour(), word.counted()),
                        (slot, stripe, colour, counted)
                    );
                    word.count();
                }
            }
            assert!(Word::none().is_none());
        }
    }
}

/// The same in pieces: where addresses may have other bits.
#[cfg(not(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod word {
    use corewise_sync::atomic::AtomicBool;

    use super::*;

    pub(super) struct Word {
        place: Option<Kept<Pwq>>,
        /// A: as of the word above.
        counted: AtomicBool,
    }

    impl Word {
        pub(super) fn new(place: Kept<Pwq>) -> Word {
            Word { place: Some(place), counted: AtomicBool::new(false) }
        }

        pub(super) fn none() -> Word {
            Word { place: None, counted: AtomicBool::new(false) }
        }

        pub(super) fn is_none(&self) -> bool {
            self.place.is_none()
        }

        fn place(&self) -> Kept<Pwq> {
            self.place.expect("there is a ticket")
        }

        pub(super) fn slot(&self) -> NonNull<PwqSlot<Pwq>> {
            self.place().0
        }

        pub(super) fn stripe(&self) -> u32 {
            self.place().1
        }

        pub(super) fn colour(&self) -> u8 {
            self.place().2
        }

        pub(super) fn counted(&self) -> bool {
            self.counted.load(Ordering::Relaxed)
        }

        pub(super) fn count(&self) {
            self.counted.store(true, Ordering::Relaxed);
        }
    }
}
