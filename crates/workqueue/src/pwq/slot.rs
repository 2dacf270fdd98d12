//! The slots of a queue's pwqs: memory that a queuer may touch before it knows that the pwq is
//! still there. A slot counts its instances: those that came, and those that are over.
//!
//! The counts are striped, one stripe a CPU of the pod. CPUs that queue at once write no line in
//! common, and the thread that ends an instance writes another line than the queuer. Both counts
//! only grow.
//!
//! Read `README.md` beside this file first: the comments here use its names for the steps and
//! states, and those of `flush.rs` for Look, Count and Announce.

use std::mem::offset_of;
use std::ptr::{self, NonNull};

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::{CachePadded, hint};

use crate::task::ticket::{ADDRESS_BITS, COLOURS, QueueHome, STRIPES};

/// The content of a slot: a [`Pwq`](crate::pwq::Pwq), or a model's.
pub(crate) trait SlotContent: Send + Sync {
    /// Returns the head of its slot: the same for all pwqs of a queue.
    fn home(&self) -> QueueHome;
    /// Notes that it was taken off its slot: all instances there are over. The caller holds the
    /// lock of the colours.
    fn collected(&self);
}

/// A place for a pwq, and the counts of its instances.
#[repr(C, align(128))]
pub(crate) struct PwqSlot<L> {
    /// The home, at the head, where a ticket's word points.
    pub(crate) home: QueueHome,
    pub(crate) tally: Tally,
    /// P: written under the lock of the colours while the slot is on no list; read by a thread that
    /// has Validated, until the instance is over.
    pwq: UnsafeCell<Option<L>>,
}

// A ticket names a slot by its home.
const _: () = assert!(align_of::<PwqSlot<()>>() == STRIPES && offset_of!(PwqSlot<()>, home) == 0);

// SAFETY: the pwq is written while no thread reads it (`README.md`), and shared: `L: Send + Sync`.
unsafe impl<L: Send + Sync> Send for PwqSlot<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for PwqSlot<L> {}

impl<L> PwqSlot<L> {
    /// Returns the pwq.
    ///
    /// # Safety
    /// The slot has a pwq for as long as the reference lives. Either the slot is on the list and
    /// the lock is held, or the caller's instance isn't over, or the caller has Validated and
    /// hasn't pushed yet.
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

/// The owner of a slot, to which others have pointers.
pub(crate) struct SlotBox<L>(pub(super) NonNull<PwqSlot<L>>);

// SAFETY: as a `Box` of it.
unsafe impl<L: Send + Sync> Send for SlotBox<L> {}

impl<L> SlotBox<L> {
    pub(super) fn new(home: QueueHome, stripes: usize) -> Self {
        let slot = PwqSlot { home, tally: Tally::new(stripes), pwq: UnsafeCell::new(None) };
        let slot = NonNull::from(Box::leak(Box::new(slot)));
        let high = (slot.addr().get() as u64) >> ADDRESS_BITS;
        let packed = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        assert!(!packed || high == 0, "no address in user space has more bits, without tags");
        SlotBox(slot)
    }

    pub(crate) fn slot(&self) -> &PwqSlot<L> {
        // SAFETY: it is owned, and freed by the drop alone.
        unsafe { self.0.as_ref() }
    }

    /// Carries out Fill.
    pub(super) fn fill(&self, pwq: L) {
        // SAFETY: it is spare: no entry has named it since it was collected. So no thread has
        // Validated, and one that hasn't reads no pwq.
        self.slot().pwq.with_mut(|place| unsafe { *place = Some(pwq) });
    }

    /// Takes the pwq off.
    pub(super) fn empty(&self) -> Option<L> {
        // SAFETY: it is quiet and retired: all its instances are over, and no thread Validates any
        // more. `is_quiet` acquires their writes.
        self.slot().pwq.with_mut(|place| unsafe { (*place).take() })
    }
}

impl<L> Drop for SlotBox<L> {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is dropped with the queue. The queue exists for as long
        // as there is a handle, or a pwq on any slot. So neither a queuer nor an instance has a
        // pointer to the slot.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The entry of a CPU: the slot that its work goes to, and the stripe there.
pub(crate) struct CpuEntry<L> {
    /// A: the slot, and the stripe in its lowest bits; null if the CPU has no pwq. Stored under the
    /// lock of the attributes, read by each queuer.
    pub(super) place: AtomicPtr<PwqSlot<L>>,
}

impl<L> CpuEntry<L> {
    /// Creates an entry without a pwq.
    pub(crate) fn new() -> Self {
        CpuEntry { place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Carries out Publish.
    pub(crate) fn publish(&self, to: Option<(NonNull<PwqSlot<L>>, u32)>) {
        let place = to.map_or(ptr::null_mut(), |(slot, stripe)| {
            slot.as_ptr().map_addr(|address| address | (stripe as usize % STRIPES))
        });
        // SeqCst: see `README.md`. Release: the pwq is seen whole.
        self.place.store(place, Ordering::SeqCst);
    }

    /// Returns the slot, and the stripe; null without a pwq.
    #[inline]
    pub(super) fn parts(place: *mut PwqSlot<L>) -> (*mut PwqSlot<L>, u32) {
        // Slots are aligned to the number of stripes.
        let stripe = (place.addr() % STRIPES) as u32;
        (place.map_addr(|address| address & !(STRIPES - 1)), stripe)
    }
}

/// Mark: a flush waits for this pair of counts. The thread that would make them equal notifies it.
const WATCHED: u64 = 1;
/// Mark: the pwq takes no new instance, and is collected once all are over. The thread that ends
/// the last checks for this.
const RETIRED: u64 = 1 << 1;
/// One instance, in a count that has marks.
const ONE: u64 = 1 << 2;

/// The way to read and leave the counts: that of product code or, in models that have to fail,
/// another.
#[allow(unreachable_pub, reason = "models name it")]
pub trait CountPolicy: Send + Sync + 'static {
    /// True if Count reads the ended instances before those that came.
    const OVER_FIRST: bool;
    /// True if Leave looks for watchers.
    const LOOKS: bool;
    /// True if a queuer reads its entry again (`README.md`).
    const VALIDATES: bool;
    /// True if the two sides of Validate are ordered.
    const ORDERED: bool;
}

/// The policy of product code.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "models name it")]
pub struct RealCounts;

impl CountPolicy for RealCounts {
    const OVER_FIRST: bool = true;
    const LOOKS: bool = true;
    const VALIDATES: bool = true;
    const ORDERED: bool = true;
}

/// The counts of one pwq.
pub(crate) struct Tally {
    stripes: Box<[Stripe]>,
    /// A: statistics: instances ever queued here on pwqs that are gone. Written under the lock of
    /// the colours.
    before: AtomicU64,
}

struct Stripe {
    came: CachePadded<Arrivals>,
    /// A: instances counted in here that are over, by colour, and the marks, which change under the
    /// lock of the queue's colours.
    over: CachePadded<[AtomicU64; COLOURS]>,
}

struct Arrivals {
    /// A: instances that came and Retracted.
    undone: AtomicU64,
    /// A: statistics: instances that were queued without being counted in, since they took
    /// another's place over.
    again: AtomicU64,
    /// A: instances ever counted in, by colour.
    by_colour: [AtomicU64; COLOURS],
}

impl Tally {
    /// Creates a tally with this many stripes; at least one.
    pub(crate) fn new(stripes: usize) -> Tally {
        let by_colour = || std::array::from_fn(|_| AtomicU64::new(0));
        let stripe = || {
            let (undone, again) = (AtomicU64::new(0), AtomicU64::new(0));
            let came = CachePadded::new(Arrivals { undone, again, by_colour: by_colour() });
            Stripe { came, over: CachePadded::new(by_colour()) }
        };
        let stripes = (0..stripes.max(1)).map(|_| stripe()).collect();
        Tally { stripes, before: AtomicU64::new(0) }
    }

    /// Returns the number of stripes.
    pub(crate) fn stripes(&self) -> usize {
        self.stripes.len()
    }

    #[inline]
    fn stripe(&self, stripe: u32) -> &Stripe {
        let stripes = self.stripes.len();
        // With one stripe, or a number in range, no division is needed: always so except for CPUs
        // of tests.
        let stripe = stripe as usize;
        &self.stripes[if stripe < stripes { stripe } else { stripe % stripes }]
    }

    /// Takes an instance back that came here and never was queued: it will Leave.
    pub(crate) fn undo(&self, stripe: u32) {
        // Release: see `queued`.
        self.stripe(stripe).came.undone.fetch_add(1, Ordering::Release);
    }

    /// Returns the pair for Enter and Leave. Leave touches nothing else: the tally may be gone
    /// after it.
    #[inline]
    pub(crate) fn pair(&self, stripe: u32, colour: u8) -> Pair<'_> {
        let stripe = self.stripe(stripe);
        let colour = colour as usize;
        Pair { came: &stripe.came.by_colour[colour], over: &stripe.over[colour] }
    }

    /// Marks the pwq as retired: from now on the ender of the last instance looks for that. Called
    /// under the lock of the colours.
    pub(crate) fn retire(&self) {
        for stripe in &self.stripes {
            for over in stripe.over.iter() {
                over.fetch_or(RETIRED, Ordering::AcqRel);
            }
        }
    }

    /// Clears that mark, since the pwq was collected. Called under the lock.
    pub(crate) fn recycle(&self) {
        // A model of every schedule has no statistics: each access makes it longer.
        if !hint::EVERY_SCHEDULE {
            self.before.store(self.queued(), Ordering::Relaxed);
        }
        for stripe in &self.stripes {
            for over in stripe.over.iter() {
                over.fetch_and(!RETIRED, Ordering::Relaxed);
            }
        }
    }

    /// Returns true if it was retired, and not collected since. Called under the lock.
    pub(crate) fn is_retired(&self) -> bool {
        self.stripes[0].over[0].load(Ordering::Relaxed) & RETIRED != 0
    }

    /// Returns true if all instances that came are over. For a retired pwq it stays so, except for
    /// queuers that Retract.
    pub(crate) fn is_quiet(&self) -> bool {
        self.stripes.iter().all(Stripe::is_quiet)
    }

    /// Carries out Count, and Announce if something is in flight: under the lock of the colours,
    /// for each pair of counts. Calls `watched` with the colour of each that wasn't watched before.
    pub(crate) fn watch<C: CountPolicy>(&self, mut watched: impl FnMut(usize)) {
        for stripe in &self.stripes {
            (0..COLOURS).filter(|colour| stripe.watch::<C>(*colour)).for_each(&mut watched);
        }
    }

    /// Returns the number of instances in flight a moment ago, carried ends included; at least the
    /// true number.
    pub(crate) fn in_flight(&self) -> u64 {
        // The ended instances are read first. Otherwise one that comes and goes in between would
        // hide another.
        let of_stripe = |stripe: &Stripe| {
            let over = stripe.over();
            stripe.came() - over
        };
        self.stripes.iter().map(of_stripe).sum()
    }

    /// Returns the number of instances that are over, without carried ends.
    pub(crate) fn over(&self) -> u64 {
        self.stripes.iter().map(Stripe::over).sum()
    }

    /// Returns the number of instances ever counted in, also those that Retracted.
    pub(crate) fn ever_came(&self) -> u64 {
        self.stripes.iter().map(Stripe::came).sum()
    }

    /// Counts instances that were queued here without having been counted in.
    pub(crate) fn queued_again(&self, stripe: u32, many: u64) {
        self.stripe(stripe).came.again.fetch_add(many, Ordering::Relaxed);
    }

    /// Returns the number of instances ever queued so, as far as workers have reported them.
    pub(crate) fn again(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.came.again.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of instances ever queued here, as far as workers have reported them.
    pub(crate) fn queued(&self) -> u64 {
        // The retracted are read first: each is among those that came.
        let undone = |stripe: &Stripe| stripe.came.undone.load(Ordering::Acquire);
        self.stripes
            .iter()
            .map(|stripe| (undone(stripe), stripe.came()))
            .fold(self.again(), |queued, (undone, came)| queued + came.saturating_sub(undone))
    }

    /// Returns how many were queued on the pwq that is there now.
    pub(crate) fn queued_on_pwq(&self) -> u64 {
        self.queued().saturating_sub(self.before.load(Ordering::Relaxed))
    }
}

impl Stripe {
    fn over(&self) -> u64 {
        self.over.iter().map(|over| over.load(Ordering::Acquire) / ONE).sum()
    }

    fn came(&self) -> u64 {
        self.came.by_colour.iter().map(|came| came.load(Ordering::Relaxed)).sum()
    }

    fn is_quiet(&self) -> bool {
        // Acquire: a thread that finds it quiet sees the writes of those that are over. These are
        // read first: each is among those that came. The latter are SeqCst: see `README.md`.
        let over = self.over();
        let came = self.came.by_colour.iter().map(|came| came.load(Ordering::SeqCst));
        let came: u64 = came.sum();
        over == came
    }

    /// Returns true if the pair is watched from now on, and wasn't before.
    fn watch<C: CountPolicy>(&self, colour: usize) -> bool {
        let (came, over) = (&self.came.by_colour[colour], &self.over[colour]);
        let early = if C::OVER_FIRST { None } else { Some(came.load(Ordering::SeqCst)) };
        // Count. Those that are over are read first: each of them is among those that came, which
        // are read after. SeqCst: see `enter`.
        let now = over.load(Ordering::Acquire);
        if now / ONE == early.unwrap_or_else(|| came.load(Ordering::SeqCst)) {
            return false;
        }
        if now & WATCHED != 0 {
            return false;
        }
        // Announce. A thread that leaves after this sees it.
        let now = over.fetch_or(WATCHED, Ordering::AcqRel);
        // Count again: some may have left before that.
        if now / ONE == came.load(Ordering::SeqCst) {
            over.fetch_and(!WATCHED, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// The counts of one colour on one stripe, for Enter and Leave.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a> {
    came: &'a AtomicU64,
    over: &'a AtomicU64,
}

impl Pair<'_> {
    /// Counts an instance in.
    #[inline]
    pub(crate) fn enter(self) {
        // Enter (`limit.md`). SeqCst: pairs with the thread that closes the limiter's gate and then
        // looks at the counts.
        self.came.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts `many` instances out, and returns true. If the pair is watched, and these would be
    /// the last, returns false: they are in flight still, and [`Pair::leave_watched`] has to
    /// follow, under the lock of the colours.
    #[inline]
    pub(crate) fn leave<C: CountPolicy>(self, many: u64) -> bool {
        let left = self.over.fetch_update(Ordering::Release, Ordering::Relaxed, |now| {
            // Look: in the same word as Leave, so that no fence is needed.
            if C::LOOKS && now & (WATCHED | RETIRED) != 0 && self.is_last(many) {
                return None;
            }
            // Leave. Release: a thread that sees the instance over sees it counted in, and its
            // writes. Each Leave is a read-modify-write, so a thread that sees the last sees all of
            // them. This is the last access: a thread that sees it may take the memory.
            Some(now + many * ONE)
        });
        left.is_ok()
    }

    /// Returns true if the caller's instances are the last in flight of their colour. Once all
    /// others are over, it returns true: it sees at least those come that are over, and its own.
    #[cold]
    fn is_last(self, many: u64) -> bool {
        let over = self.over.load(Ordering::Acquire);
        over / ONE + many == self.came.load(Ordering::Acquire)
    }

    /// Counts `many` out, under the lock of the colours. Returns true if that drained a pair that
    /// is watched: it isn't watched any more.
    pub(crate) fn leave_watched(self, many: u64) -> bool {
        // Acquire: this thread notifies the flush on behalf of all that were over before.
        let old = self.over.fetch_add(many * ONE, Ordering::AcqRel);
        // Another instance may have come since this one looked, and is the last then.
        let drained = old & WATCHED != 0 && old / ONE + many == self.came.load(Ordering::Acquire);
        if drained {
            self.over.fetch_and(!WATCHED, Ordering::Relaxed);
        }
        drained
    }
}
