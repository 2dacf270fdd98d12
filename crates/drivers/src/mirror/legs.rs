//! The legs of a mirror: their devices, and the requests that go to them.

use std::sync::Arc;

use corewise_blockmq::BlockDevice;
use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use corewise_sync::epoch::{Epochs, ReadMostly};
use corewise_sync::{CachePadded, Mutex, SpinLock, Throttle};

use super::leg_states::{self, LegView};
use crate::below::StackError;
use crate::mirror::leg_states::LegStates;

/// The target of log lines that the owner of a mirror also has as a
/// [`MirrorEvent`](super::MirrorEvent).
pub(super) const EVENTS: &str = "corewise_drivers::mirror_events";

/// Largest number of legs of a mirror: a bit each in half a word.
pub(super) const MOST_LEGS: usize = 32;

/// The devices, and the state of each.
pub(super) struct Legs {
    /// The places, one for each number that a leg may have.
    legs: Box<[Leg]>,
    /// A: count of the numbers that legs have, or had: no higher number is used. Changed by the
    /// keeper, as `removed`; Relaxed: the legs' states are in `states`.
    len: AtomicUsize,
    /// A: numbers whose legs were removed. Changed by the keeper.
    removed: AtomicU32,
    pub(super) states: LegStates,
    /// I: legs that were made just now, a bit each, by the places in which they were given.
    new: u32,
    /// A: legs that are out and wanted back; Relaxed, for reports.
    called: AtomicU32,
    /// L: is the lock, held by the thread that gives a leg a device.
    giving: Mutex<()>,
}

/// A leg, as given to a new mirror.
#[non_exhaustive]
pub enum MirrorLeg {
    /// A device.
    Here(Arc<dyn BlockDevice>),
    /// A device that was made just now. It is refused as the first leg of a new mirror if another
    /// leg may hold data.
    New(Arc<dyn BlockDevice>),
    /// A device that could not be had.
    Missing {
        /// Name of the device.
        name: String,
        /// The reason why it is missing.
        why: String,
    },
}

impl From<Arc<dyn BlockDevice>> for MirrorLeg {
    fn from(device: Arc<dyn BlockDevice>) -> Self {
        Self::Here(device)
    }
}

struct Leg {
    /// L: is the lock, held for a moment; guards the name of its device.
    name: SpinLock<Arc<str>>,
    /// The leg's device. A leg without one is out, and it gets another one only while it is.
    there: ReadMostly<Option<Arc<LegPresence>>>,
    /// A: number of devices that it had so far. Relaxed: changed by the thread that gives it one.
    eras: AtomicU64,
    /// L: is the lock, held for a moment; guards the reason why the leg is out.
    why: SpinLock<String>,
    load: CachePadded<LegLoad>,
    /// Throttle of the log lines that say that it was dropped; the two below are for lines that it
    /// stays out, and that it failed and is kept. These may go on for ever.
    dropped: Throttle,
    stays: Throttle,
    kept: Throttle,
}

impl Drop for Leg {
    fn drop(&mut self) {
        let device = &*self.name.lock();
        self.dropped.take_left_out().tell(|left_out| {
            tracing::warn!(target: EVENTS, device = &**device, left_out, "a leg of a mirror was dropped more often");
        });
        for (throttle, what) in
            [(&self.stays, "found to stay out"), (&self.kept, "kept in spite of failures")]
        {
            throttle.take_left_out().tell(|left_out| {
                tracing::warn!(
                    device = &**device,
                    left_out,
                    "a leg of a mirror was {what} more often"
                );
            });
        }
    }
}

/// A device in the place of a leg.
pub(super) struct LegPresence {
    pub(super) device: Arc<dyn BlockDevice>,
    /// Number of devices that were here before: the result of a request to one of them says nothing
    /// about this one.
    pub(super) era: u64,
}

const THERE: &str = "a leg without a device is out, and nothing goes there";

/// The numbers by which reads are spread and the resync paces itself. Relaxed throughout: a stale
/// number costs balance only.
#[derive(Default)]
struct LegLoad {
    /// A: number of requests in flight.
    in_flight: AtomicU64,
    /// A: number of requests so far.
    begun: AtomicU64,
    /// A: end of the last read.
    head: AtomicU64,
    /// A: number of reads that failed and were forgiven.
    forgiven: AtomicU64,
    /// A: true if the device seeks.
    rotational: AtomicBool,
}

impl Legs {
    /// Creates legs. All present ones are in sync, until [`set`](LegStates::set) names those that
    /// are.
    pub(super) fn new(legs: Vec<MirrorLeg>) -> Result<Self, StackError> {
        match legs.len() {
            0 => return Err(StackError::new("a mirror needs at least one leg")),
            1..=MOST_LEGS => {}
            n => {
                return Err(StackError::new(format!(
                    "a mirror has at most {MOST_LEGS} legs, not {n}"
                )));
            }
        }
        let is_new = |leg: &MirrorLeg| matches!(leg, MirrorLeg::New(_));
        let new = legs
            .iter()
            .enumerate()
            .filter(|(_, leg)| is_new(leg))
            .fold(0, |new, (n, _)| new | 1 << n);
        let epochs = Epochs::new();
        let leg = |leg: MirrorLeg| {
            let (name, device, why): (Arc<str>, _, _) = match leg {
                MirrorLeg::Here(device) | MirrorLeg::New(device) => {
                    (device.name().into(), Some(device), String::new())
                }
                MirrorLeg::Missing { name, why } => (name.into(), None, why),
            };
            let load = LegLoad::default();
            let rotational = device.as_ref().is_some_and(|device| device.geometry().rotational);
            load.rotational.store(rotational, Ordering::Relaxed);
            let is_here = device.is_some();
            let there = device.map(|device| Arc::new(LegPresence { device, era: 0 }));
            let there = ReadMostly::with_epochs(epochs.clone(), there);
            let eras = AtomicU64::new(u64::from(is_here));
            let (name, why) = (SpinLock::new(name), SpinLock::new(why));
            let [dropped, stays, kept] = [(); 3].map(|()| Throttle::new());
            Leg { name, there, eras, why, load: CachePadded::new(load), dropped, stays, kept }
        };
        let len = AtomicUsize::new(legs.len());
        let nobody = || MirrorLeg::Missing { name: String::new(), why: String::new() };
        let legs = legs.into_iter().chain(std::iter::repeat_with(nobody)).take(MOST_LEGS);
        let legs: Box<[Leg]> = legs.map(leg).collect();
        let here = legs.iter().enumerate().filter(|(_, leg)| leg.there.read().is_some());
        let states = LegStates::new(here.fold(0, |here, (n, _)| here | 1 << n));
        let (called, removed) = (AtomicU32::new(0), AtomicU32::new(0));
        Ok(Self { legs, len, removed, states, new, called, giving: Mutex::new(()) })
    }

    /// Returns true if the leg that was given in this place was made just now.
    pub(super) fn is_new(&self, place: usize) -> bool {
        self.new & 1 << place != 0
    }

    /// Gives the legs these numbers, each higher than the one before it; `removed` ones were
    /// removed. Called before any other thread sees the mirror.
    pub(super) fn renumber(&mut self, numbers: &[usize], removed: u32) {
        // From the last one on: its new place is free.
        for (at, &n) in numbers.iter().enumerate().rev() {
            self.legs.swap(at, n);
        }
        let len = numbers.last().map_or(0, |n| n + 1).max(all_used(removed));
        self.len.store(len, Ordering::Relaxed);
        self.removed.store(removed, Ordering::Relaxed);
    }

    /// Returns how many numbers legs have, or had.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns the numbers that are legs.
    pub(super) fn members(&self) -> u32 {
        all(self.len()) & !self.removed()
    }

    /// Returns the numbers whose legs were removed.
    pub(super) fn removed(&self) -> u32 {
        self.removed.load(Ordering::Relaxed)
    }

    /// Returns the number of the next leg. A removed one's is used only if there is no other, since
    /// the legs are given in the order of their numbers.
    pub(super) fn free(&self) -> Option<usize> {
        let len = self.len();
        if len < MOST_LEGS { Some(len) } else { each(self.removed()).next() }
    }

    /// Makes number `n`, which was [`free`](Legs::free), a leg, which is out.
    pub(super) fn admit(&self, n: usize) {
        self.len.fetch_max(n + 1, Ordering::Relaxed);
        self.removed.fetch_and(!(1 << n), Ordering::Relaxed);
    }

    /// Removes leg `n`, which is out.
    pub(super) fn dismiss(&self, n: usize) {
        self.removed.fetch_or(1 << n, Ordering::Relaxed);
    }

    /// Returns the device in the place of leg `n`, if it has one.
    pub(super) fn there(&self, n: usize) -> Option<Arc<LegPresence>> {
        self.legs[n].there.read().clone()
    }

    /// Returns the device of leg `n`, which is there. A caller that may meet a [`swap`](Legs::swap)
    /// says why the other device would do as well.
    pub(super) fn device(&self, n: usize) -> Arc<dyn BlockDevice> {
        self.there(n).expect(THERE).device.clone()
    }

    /// Returns the devices that are there.
    pub(super) fn devices(&self) -> impl Iterator<Item = Arc<dyn BlockDevice>> {
        (0..self.len()).filter_map(|n| Some(self.there(n)?.device.clone()))
    }

    /// Returns true if leg `n` has a device.
    pub(super) fn is_there(&self, n: usize) -> bool {
        self.there(n).is_some()
    }

    /// Returns true if leg `n` still has the device of that era, so that a request's result
    /// concerns it.
    pub(super) fn is_of(&self, n: usize, era: u64) -> bool {
        self.there(n).is_some_and(|there| there.era == era)
    }

    /// Gives leg `n`, which is out, this device. If it has one by now, or was removed meanwhile,
    /// nothing changes. May block.
    pub(super) fn put(&self, n: usize, device: Arc<dyn BlockDevice>) {
        let giving = self.giving.lock();
        if !self.is_there(n) && self.removed() & 1 << n == 0 {
            drop(self.give(n, device));
        }
        drop(giving);
    }

    /// Gives leg `n` this device in place of its own, which the caller gets. No step of the resync
    /// is in progress. May block.
    pub(super) fn swap(
        &self,
        n: usize,
        device: Arc<dyn BlockDevice>,
    ) -> Option<Arc<dyn BlockDevice>> {
        let giving = self.giving.lock();
        let former = self.give(n, device);
        drop(giving);
        former.map(|there| there.device.clone())
    }

    /// Takes the device of leg `n`, which was removed. No step of the resync is in progress. May
    /// block.
    pub(super) fn take(&self, n: usize) -> Option<Arc<dyn BlockDevice>> {
        let giving = self.giving.lock();
        let former = self.legs[n].there.swap(None);
        drop(giving);
        former.map(|there| there.device.clone())
    }

    fn give(&self, n: usize, device: Arc<dyn BlockDevice>) -> Option<Arc<LegPresence>> {
        let (leg, name) = (&self.legs[n], Arc::from(device.name()));
        let era = leg.eras.fetch_add(1, Ordering::Relaxed);
        leg.load.rotational.store(device.geometry().rotational, Ordering::Relaxed);
        leg.load.forgiven.store(0, Ordering::Relaxed);
        let former = std::mem::replace(&mut *leg.name.lock(), name);
        drop(former);
        // A request that takes the new device from here on sees that the leg was dropped before.
        leg.there.swap(Some(Arc::new(LegPresence { device, era })))
    }

    /// Returns the name of leg `n`'s device. Any context.
    pub(super) fn name(&self, n: usize) -> Arc<str> {
        self.legs[n].name.lock().clone()
    }

    /// Returns why leg `n` is out.
    pub(super) fn why(&self, n: usize) -> String {
        self.legs[n].why.lock().clone()
    }

    /// Sets the reason why leg `n` is out. Any context.
    pub(super) fn set_why(&self, n: usize, why: String) {
        let former = std::mem::replace(&mut *self.legs[n].why.lock(), why);
        drop(former);
    }

    /// Returns the throttle of log lines that leg `n` was dropped.
    pub(super) fn dropped(&self, n: usize) -> &Throttle {
        &self.legs[n].dropped
    }

    /// Returns the throttle of log lines that it failed and is kept.
    pub(super) fn kept(&self, n: usize) -> &Throttle {
        &self.legs[n].kept
    }

    /// Returns the throttle of log lines that it stays out.
    pub(super) fn stays(&self, n: usize) -> &Throttle {
        &self.legs[n].stays
    }

    /// Marks these legs, which are out, as wanted back.
    pub(super) fn call(&self, legs: u32) {
        self.called.fetch_or(legs, Ordering::Relaxed);
    }

    /// Clears the mark of these legs: it is decided whether they come back.
    pub(super) fn answered(&self, legs: u32) {
        self.called.fetch_and(!legs, Ordering::Relaxed);
    }

    /// Returns the legs that are wanted back and not decided.
    pub(super) fn called(&self) -> u32 {
        self.called.load(Ordering::Relaxed)
    }

    /// Returns the legs to which no request goes.
    pub(super) fn out(&self) -> u32 {
        self.members() & !self.states.active()
    }

    /// Chooses the leg for a read at `offset` that failed on the legs `tried`. `source`: where the
    /// legs may differ, all reads go to the same one.
    pub(super) fn choose(&self, offset: u64, tried: u32, source: bool) -> Option<usize> {
        let legs = self.states.in_sync() & !tried;
        if source {
            return each(legs).next();
        }
        let view = |leg: usize| {
            let load = &self.legs[leg].load;
            let in_flight = load.in_flight.load(Ordering::Relaxed);
            let head = load.head.load(Ordering::Relaxed);
            let rotational = load.rotational.load(Ordering::Relaxed);
            LegView { leg, in_flight, head, rotational }
        };
        leg_states::choose(each(legs).map(view), offset)
    }

    /// Counts a read of the bytes up to `end` that goes to leg `n`.
    pub(super) fn begin_read(&self, n: usize, end: u64) {
        self.legs[n].load.head.store(end, Ordering::Relaxed);
        self.begin(n);
    }

    /// Counts a read of leg `n` that failed and another leg could do. Returns true if the leg may
    /// go on all the same.
    pub(super) fn forgive(&self, n: usize) -> bool {
        self.legs[n].load.forgiven.fetch_add(1, Ordering::Relaxed) < leg_states::MOST_FORGIVEN
    }

    /// Counts a request that goes to leg `n`.
    pub(super) fn begin(&self, n: usize) {
        let load = &self.legs[n].load;
        load.in_flight.fetch_add(1, Ordering::Relaxed);
        load.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts its end.
    pub(super) fn end(&self, n: usize) {
        self.legs[n].load.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many requests have gone to legs so far; the resync's own aren't counted.
    pub(super) fn begun(&self) -> u64 {
        self.legs.iter().map(|leg| leg.load.begun.load(Ordering::Relaxed)).sum()
    }

    /// Returns true if requests are in flight.
    pub(super) fn busy(&self) -> bool {
        self.legs.iter().any(|leg| leg.load.in_flight.load(Ordering::Relaxed) != 0)
    }
}

/// Returns a bit for each of `n` legs.
pub(super) fn all(n: usize) -> u32 {
    u32::MAX.checked_shr((MOST_LEGS - n) as u32).unwrap_or(0)
}

/// Returns how many numbers are in use if these are.
fn all_used(legs: u32) -> usize {
    MOST_LEGS - legs.leading_zeros() as usize
}

/// Iterates over the legs whose bit is set.
pub(super) fn each(mut legs: u32) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let n = legs.trailing_zeros();
        legs = legs.checked_sub(1)? & legs;
        Some(n as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_blockmq::Geometry;
    use corewise_blockmq::Request;

    struct EmptyDevice;

    impl BlockDevice for EmptyDevice {
        fn name(&self) -> &str {
            "nothing"
        }
        fn geometry(&self) -> Geometry {
            Geometry::new(512)
        }
        fn submit(&self, _rq: Request) {}
    }

    fn legs(n: usize) -> Legs {
        Legs::new((0..n).map(|_| MirrorLeg::Here(Arc::new(EmptyDevice))).collect()).unwrap()
    }

    #[test]
    fn a_leg_that_is_tried_again_and_again_is_told_some_times_and_then_counted() {
        let missing = |n: u8| MirrorLeg::Missing { name: n.to_string(), why: String::new() };
        let legs = Legs::new((0..2).map(missing).collect()).unwrap();
        let told = (0..1000).filter(|_| legs.stays(0).admit()).count();
        assert!((1..100).contains(&told), "{told}");
        assert!(legs.stays(1).admit() && legs.dropped(0).admit(), "each its own");
    }

    #[test]
    fn a_leg_without_a_device_is_out_until_it_has_one() {
        let missing = MirrorLeg::Missing { name: "x".into(), why: "gone".into() };
        let legs = Legs::new(vec![MirrorLeg::Here(Arc::new(EmptyDevice)), missing]).unwrap();
        assert_eq!((legs.states.in_sync(), legs.out(), &*legs.name(1)), (0b01, 0b10, "x"));
        assert_eq!(
            (legs.why(1).as_str(), legs.is_there(1), legs.devices().count()),
            ("gone", false, 1)
        );
        legs.put(1, Arc::new(EmptyDevice));
        assert!(legs.is_there(1) && legs.out() == 0b10, "it lacks what was written meanwhile");
        assert_eq!((&*legs.name(1), legs.is_of(1, 0)), ("nothing", true));
    }

    #[test]
    fn legs_keep_their_numbers_and_one_that_was_removed_is_used_again_last() {
        let mut legs = legs(3);
        legs.renumber(&[0, 2, 5], 0b1_1010);
        assert_eq!((legs.len(), legs.members(), legs.free()), (6, 0b10_0101, Some(6)));
        assert!([0, 2, 5].iter().all(|&n| legs.is_there(n)) && !legs.is_there(1));
        legs.states.set(0b10_0101);
        assert!(legs.states.drop_leg(2));
        let before = legs.there(2).unwrap().era;
        legs.dismiss(2);
        assert!(legs.take(2).is_some() && !legs.is_of(2, before));
        legs.put(2, Arc::new(EmptyDevice));
        assert!(!legs.is_there(2) && legs.out() == 0, "it is no leg");
        legs.renumber(&[0, 31], all(31) & !1);
        assert_eq!((legs.free(), legs.members()), (Some(1), 1 << 31 | 1));
        legs.admit(1);
        assert!(legs.swap(1, Arc::new(EmptyDevice)).is_none() && legs.out() & 0b10 != 0);
        assert_eq!((all(0), all(1), all(32)), (0, 1, u32::MAX));
    }

    #[test]
    fn what_became_of_a_request_to_the_former_device_says_nothing_about_the_next_one() {
        let legs = legs(2);
        let before = legs.there(1).unwrap().era;
        let former: Arc<dyn BlockDevice> = legs.device(1);
        let given = legs.swap(1, Arc::new(EmptyDevice)).unwrap();
        assert!(Arc::ptr_eq(&given, &former) && !legs.is_of(1, before) && legs.is_of(0, 0));
        legs.put(1, former);
        assert!(!legs.is_of(1, before + 2), "it has one");
    }

    #[test]
    fn where_legs_may_differ_all_reads_go_to_one() {
        let legs = legs(3);
        legs.begin(0);
        assert_eq!(legs.choose(0, 0, true), Some(0));
        assert_eq!(legs.choose(0, 0, false), Some(1));
        assert_eq!((legs.choose(0, 0b1, true), legs.choose(0, 0b111, true)), (Some(1), None));
        assert!(each(0b1010_0001).eq([0, 5, 7]) && each(0).next().is_none());
    }
}
