//! The ticket of an instance in flight: one word that names its place in its queue. Also here: its
//! questions to the queue ([`Schedule`], as in tokio), and the ends that a worker defers: instances
//! that it has run, and not counted out yet.
//!
//! The queues lie above: an item knows only the [`QueueHome`] of its queue. The steps (Defer,
//! CountOut, Reuse) have the names of `../pwq/README.md`.

use std::mem::{self, ManuallyDrop};
use std::ptr::{self, NonNull};
use std::time::Duration;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use corewise_sync::hint;
use word::Word;

use crate::task::claim::Container;
use crate::task::header::{LentItem, Queued};

/// Number of colours. It is enough that flushes from many threads don't queue up behind one
/// another, and as many as fit on the lines. Loom has fewer, as it limits atomics, and so has
/// shuttle, so that they run out.
pub(crate) const COLOURS: usize = if hint::IN_MODEL { 3 } else { 14 };

/// Number of stripes that a ticket can tell apart. Homes are aligned to it.
pub(crate) const STRIPES: usize = 128;

/// Number of bits of a home's address that may be set. A ticket has others in the rest.
pub(crate) const ADDRESS_BITS: u32 = 48;

/// The scheduler of instances: a queue, on one of its pools.
pub(crate) trait Schedule: Sync {
    /// Returns the queue's name, for reports.
    fn queue_name<'a>(&self, ticket: &'a Ticket) -> &'a str;

    /// Takes an item that the caller has claimed out of the list in which it waits. That is a list
    /// of its pool or, if its place says so, of those that are held back. Returns `None` if it
    /// isn't there (yet, or any more).
    fn take_out(&self, ticket: &Ticket, item: LentItem<'_>, place: Container) -> Option<Queued>;

    /// Counts one more beside an instance: a part of it, which another thread runs meanwhile.
    /// Returns `None` if the limit of the queue has no place for that.
    ///
    /// # Safety
    /// See [`note`](Schedule::note). The instance isn't over before the part is.
    unsafe fn share(&self, at: Spot) -> Option<Ticket>;

    /// Counts an event of an instance.
    ///
    /// # Safety
    /// The home is one of these, and an instance that was counted there isn't over.
    unsafe fn note(&self, at: Spot, what: Event);

    /// Carries out Leave: this many instances are over. If `counted`, it is one instance, which
    /// gives up its place in the limiter first. The pwq, its pools and the queue may be gone then.
    ///
    /// # Safety
    /// See [`note`](Schedule::note). The same holds for each of the instances, and no thread uses
    /// their places again.
    unsafe fn leave(&self, at: Spot, many: u64, counted: bool);
}

/// An event in the life of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The instance won't be run.
    Cancelled,
    /// The instance was never queued: the queue didn't take it.
    Withdrawn,
    /// The instance runs away from its home pod.
    Overflowed,
    /// The instance has run for this time, which its queue wants to know.
    Took(Duration),
    /// The number of instances that were queued without having been counted in, since they took the
    /// place of others.
    Again(u64),
}

/// The head of a queue's data on a pool. Its items' instances, and the pool's workers, read nothing
/// else of the queue.
pub(crate) struct QueueHome {
    /// I: number of the queue in its worker pools, never used again; not 0.
    pub(crate) queue: u64,
    /// I: true if the queue measures the run time of its items.
    pub(crate) timed: bool,
    /// I: the functions of the structure that this is the head of.
    pub(crate) schedule: &'static dyn Schedule,
}

/// A place in the counts of a queue: stripe and colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The home, as a pointer to the whole of which it is the head.
    pub(crate) home: NonNull<QueueHome>,
    pub(crate) stripe: u32,
    pub(crate) colour: u8,
}

/// The colours that a flush waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AwaitedColours {
    /// Colours, a bit each.
    pub(crate) mask: u32,
    /// True if the end of any one colour is enough.
    pub(crate) any: bool,
}

impl AwaitedColours {
    pub(crate) fn has(self, colour: u8) -> bool {
        self.mask & (1 << colour) != 0
    }

    pub(crate) fn colours(self) -> impl Iterator<Item = u8> {
        (0..COLOURS as u8).filter(move |colour| self.has(*colour))
    }
}

/// The count of one instance in its queue, from queueing until the ticket is dropped: its place,
/// and whether it has one in the limiter. Once the ticket is dropped, the pwq, its pools and the
/// queue may be gone.
pub(crate) struct Ticket(Word);

// SAFETY: what it names is shared.
unsafe impl Send for Ticket {}
// SAFETY: as above.
unsafe impl Sync for Ticket {}

impl Ticket {
    /// Creates the ticket of a queuer's instance, which has Entered.
    ///
    /// # Safety
    /// The place is this instance's until the ticket is dropped, and until then the home exists.
    /// The home is aligned to [`STRIPES`]. It is the head of the structure that its schedule, and
    /// other code that knows such tickets, take it for.
    #[inline]
    pub(crate) unsafe fn new(at: Spot) -> Ticket {
        Ticket(Word::new(at))
    }

    /// Returns the home that it was queued on.
    #[inline]
    pub(crate) fn home(&self) -> &QueueHome {
        // SAFETY: it is there for as long as the ticket.
        unsafe { self.0.spot().home.as_ref() }
    }

    /// Returns its place in the counts.
    #[inline]
    pub(crate) fn spot(&self) -> Spot {
        self.0.spot()
    }

    /// Returns the stripe of its pool that it lies in: that of the CPU that queued it.
    #[inline]
    pub(crate) fn stripe(&self) -> u32 {
        self.0.spot().stripe
    }

    /// Returns its colour, by which flushes know it.
    pub(crate) fn colour(&self) -> u8 {
        self.0.spot().colour
    }

    /// Marks that the instance has a place in the limiter now, to be given back. The thread that
    /// lets it through calls this before the push.
    pub(crate) fn count(&self) {
        self.0.count();
    }

    /// Returns true if it has a place in the limiter.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        self.0.counted()
    }

    /// Withdraws an instance that was never queued: the queue didn't take it, or it has to be
    /// counted elsewhere.
    pub(crate) fn withdraw(self) {
        self.note(Event::Withdrawn);
    }

    /// Returns a ticket for a part of its instance, which another thread runs, and which is over
    /// before it. Returns `None` if the limit of the queue has no place for that.
    pub(crate) fn share(&self) -> Option<Ticket> {
        // SAFETY: its instance isn't over.
        unsafe { self.home().schedule.share(self.spot()) }
    }

    /// Counts an event of the instance.
    pub(crate) fn note(&self, what: Event) {
        // SAFETY: its instance isn't over.
        unsafe { self.home().schedule.note(self.spot(), what) };
    }
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the place is the ticket's, which ends.
        unsafe { self.home().schedule.leave(self.spot(), 1, self.is_counted()) };
    }
}

/// A ticket or none, in as much memory.
pub(crate) struct MaybeTicket(ManuallyDrop<Ticket>);

impl MaybeTicket {
    /// Creates the ticket of an instance that no queue counts.
    pub(crate) fn none() -> MaybeTicket {
        MaybeTicket(ManuallyDrop::new(Ticket(Word::none())))
    }

    #[inline]
    fn is_none(&self) -> bool {
        self.0.0.is_none()
    }

    /// Returns the ticket.
    #[inline]
    pub(crate) fn as_ref(&self) -> Option<&Ticket> {
        (!self.is_none()).then_some(&*self.0)
    }

    /// Takes the ticket out.
    pub(crate) fn take(&mut self) -> MaybeTicket {
        mem::replace(self, MaybeTicket::none())
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

/// Home, stripe, colour and whether counted: all in one word. The stripe is in the lowest bits,
/// which a home's alignment leaves free, the others in the highest, which no address in user space
/// has.
#[cfg(all(target_pointer_width = "64", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod word {
    use std::ptr;

    use corewise_sync::atomic::aside::AtomicPtr;

    use super::*;

    const COLOUR: u32 = ADDRESS_BITS;
    const COUNTED: usize = 1 << 63;
    const HOME: usize = (1 << ADDRESS_BITS) - STRIPES;

    const _: () = assert!(COLOURS << COLOUR <= COUNTED);
    const _: () = assert!(size_of::<MaybeTicket>() == 8 || hint::IN_MODEL);

    pub(super) struct Word(
        /// A: null without a ticket. Changed by `count` alone, before the instance is pushed; read
        /// at its end. The push orders them, so Relaxed; atomic only because the claimant of a held
        /// instance may look at the ticket meanwhile.
        AtomicPtr<QueueHome>,
    );

    impl Word {
        #[inline]
        pub(super) fn new(Spot { home, stripe, colour }: Spot) -> Word {
            let marks = stripe as usize | (colour as usize) << COLOUR;
            Word(AtomicPtr::new(home.as_ptr().map_addr(|address| address | marks)))
        }

        pub(super) fn none() -> Word {
            Word(AtomicPtr::new(ptr::null_mut()))
        }

        #[inline]
        fn load(&self) -> *mut QueueHome {
            self.0.load(Ordering::Relaxed)
        }

        #[inline]
        pub(super) fn is_none(&self) -> bool {
            self.load().is_null()
        }

        /// Returns the place of a ticket that exists.
        #[inline]
        pub(super) fn spot(&self) -> Spot {
            let word = self.load();
            let home = word.map_addr(|address| address & HOME);
            debug_assert!(!home.is_null(), "there is a ticket");
            // SAFETY: it is that of `new`.
            let home = unsafe { NonNull::new_unchecked(home) };
            let colour = ((word.addr() & !COUNTED) >> COLOUR) as u8;
            Spot { home, stripe: (word.addr() % STRIPES) as u32, colour }
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

        #[repr(align(128))]
        struct Aligned;

        const _: () = assert!(align_of::<Aligned>() == STRIPES);

        #[test]
        fn a_word_says_what_it_was_made_of() {
            let home = NonNull::<Aligned>::dangling().cast::<QueueHome>();
            for (stripe, colour) in [(0, 0), (STRIPES as u32 - 1, 0), (5, COLOURS as u8 - 1)] {
                let spot = Spot { home, stripe, colour };
                let word = Word::new(spot);
                for counted in [false, true] {
                    assert!(!word.is_none());
                    assert_eq!((word.spot(), word.counted()), (spot, counted));
                    word.count();
                }
            }
            assert!(Word::none().is_none());
        }
    }
}

/// The ticket in pieces, for platforms whose addresses may have other bits.
#[cfg(not(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod word {
    use corewise_sync::atomic::AtomicBool;

    use super::*;

    pub(super) struct Word {
        place: Option<Spot>,
        /// A: as of the word above.
        counted: AtomicBool,
    }

    impl Word {
        pub(super) fn new(place: Spot) -> Word {
            Word { place: Some(place), counted: AtomicBool::new(false) }
        }

        pub(super) fn none() -> Word {
            Word { place: None, counted: AtomicBool::new(false) }
        }

        pub(super) fn is_none(&self) -> bool {
            self.place.is_none()
        }

        pub(super) fn spot(&self) -> Spot {
            self.place.expect("there is a ticket")
        }

        pub(super) fn counted(&self) -> bool {
            self.counted.load(Ordering::Relaxed)
        }

        pub(super) fn count(&self) {
            self.counted.store(true, Ordering::Relaxed);
        }
    }
}

/// Maximum of ends that are carried, or taken over without notice to the queue.
const MOST: u64 = 64;

/// Number of bits of the count. Each part of a [`DeferredEnds`] word has 16 bits. The lowest are
/// the stripe and the colour; then comes the number of carried ends.
const MANY: u32 = 16;
/// Shift of the number that were taken over since.
const AGAIN: u32 = 32;
/// Shift of the number of CountOuts, so that two equal words are the same reading.
const TURN: u32 = 48;

fn part(what: u64, of: u32) -> u64 {
    what >> of & 0xffff
}

/// Instances of one pair that a worker has run, one right after the other, and not counted out.
pub(crate) struct DeferredEnds {
    /// O: the home on which they were queued, as long as there are any: their counts keep it.
    /// Atomic only because others look, for statistics.
    home: AtomicPtr<QueueHome>,
    /// O: the pair, and the counts; as `home`.
    what: AtomicU64,
}

/// Returns stripe and colour, as in the word.
#[inline]
fn pair_of(Spot { stripe, colour, .. }: Spot) -> u64 {
    u64::from(stripe) | u64::from(colour) << 8
}

impl DeferredEnds {
    pub(crate) fn new() -> DeferredEnds {
        DeferredEnds { home: AtomicPtr::new(ptr::null_mut()), what: AtomicU64::new(0) }
    }

    /// Returns true if it is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        part(self.what.load(Ordering::Relaxed), MANY) == 0
    }

    /// Returns true if the carried ends are of this pair.
    #[inline]
    fn is_of(&self, at: Spot) -> bool {
        part(self.what.load(Ordering::Relaxed), 0) == pair_of(at)
            && self.home.load(Ordering::Relaxed) == at.home.as_ptr()
    }

    /// Carries the worker's instance, which is over. If the limiter has to know, the instance is
    /// counted out instead.
    #[inline]
    pub(crate) fn ends(&self, ticket: MaybeTicket) {
        let Some(at) = ticket.as_ref().filter(|ticket| !ticket.is_counted()).map(Ticket::spot)
        else {
            return;
        };
        mem::forget(ticket);
        // SAFETY: the place was the ticket's, which is given up.
        if unsafe { self.add(at) } {
            self.stops();
        }
    }

    /// Carries out Defer: an instance is over. The instances carried already are of the same pair.
    /// Returns true if that is enough: CountOut has to follow.
    ///
    /// # Safety
    /// The place was this instance's alone, and its home is there until it has Left.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn add(&self, at: Spot) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let next = if part(what, MANY) == 0 {
            self.home.store(at.home.as_ptr(), Ordering::Relaxed);
            pair_of(at) | 1 << MANY | part(what, TURN) << TURN
        } else {
            debug_assert!(self.is_of(at), "of one pair");
            what + (1 << MANY)
        };
        // Release pairs with `look`: who counts these counts them among those that came.
        self.what.store(next, Ordering::Release);
        part(next, MANY) >= MOST || part(next, AGAIN) >= MOST
    }

    /// Carries out Reuse: an instance that is queued from inside gets the place of a carried one,
    /// if Enter would give it that place. One end stays. Returns true if the instance got the
    /// place.
    #[inline]
    #[must_use]
    pub(crate) fn reuse(&self, at: Spot) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let takes = part(what, MANY) > 1 && self.is_of(at);
        if takes {
            self.what.store(what - (1 << MANY) + (1 << AGAIN), Ordering::Release);
        }
        takes
    }

    /// Carries out CountOut before the worker runs an instance, or does anything else with it,
    /// unless that is of the same pair.
    #[inline]
    pub(crate) fn starts(&self, next: Option<&Ticket>) {
        // Without a ticket only in models of a pool alone, where nothing is carried.
        if let Some(next) = next {
            self.before((!next.is_counted()).then(|| next.spot()));
        }
    }

    /// Carries out CountOut: the worker is about to do something else than to start an instance of
    /// the same pair. All carried ends Leave.
    #[inline]
    pub(crate) fn stops(&self) {
        self.before(None);
    }

    /// Carries out CountOut before the worker runs an instance of this pair (`None`: an instance
    /// without a pair), unless it carries such ends.
    #[inline]
    pub(crate) fn before(&self, next: Option<Spot>) {
        if !self.is_empty() && !next.is_some_and(|next| self.is_of(next)) {
            self.count_out();
        }
    }

    #[cold]
    fn count_out(&self) {
        let what = self.what.load(Ordering::Relaxed);
        let Some(home) = NonNull::new(self.home.load(Ordering::Relaxed)) else { return };
        let at = Spot { home, stripe: (what & 0xff) as u32, colour: (what >> 8 & 0xff) as u8 };
        let (many, again) = (part(what, MANY), part(what, AGAIN));
        // SAFETY: the carried ends keep the home.
        let schedule = unsafe { home.as_ref() }.schedule;
        if again > 0 {
            // SAFETY: as above.
            unsafe { schedule.note(at, Event::Again(again)) };
        }
        // This comes before they are over, so that a reader of the carried ends doesn't subtract
        // them twice.
        self.what.store(part(what, TURN).wrapping_add(1) << TURN, Ordering::Relaxed);
        // SAFETY: this many places of this pair were handed over, and are given back once.
        unsafe { schedule.leave(at, many, false) }
    }

    /// Returns the ends that were carried a moment ago.
    pub(crate) fn look(&self) -> DeferredSnapshot {
        let home = self.home.load(Ordering::Acquire).addr();
        DeferredSnapshot { home, what: self.what.load(Ordering::Acquire) }
    }
}

/// The state of a `DeferredEnds` at a moment, if it is still the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeferredSnapshot {
    /// The home's address.
    pub(crate) home: usize,
    what: u64,
}

impl DeferredSnapshot {
    /// Returns how many are carried.
    pub(crate) fn many(self) -> u64 {
        part(self.what, MANY)
    }

    /// Returns how many instances were queued without an Enter of their own and are unknown to the
    /// slot.
    pub(crate) fn again(self) -> u64 {
        part(self.what, AGAIN)
    }
}
