//! The colours of a queue: how a queuer is counted in, and an instance counted out. A flush waits
//! for the colours that were in use before it.
//!
//! The kernel's scheme (`flush_workqueue`), with the counts kept per pwq (queue and pod) and CPU
//! (`slot.rs`), so that queueing on different CPUs shares no cache line. A flush moves the queue on
//! to an unused colour, and waits until each other colour that was in use has drained. Work queued
//! after it gets the new colour and isn't waited for.
//!
//! A *pair* is the two counts of one colour on one stripe of one pwq: the instances that came, and
//! those that are over. It has drained if the counts are equal. The flush reads those that are over
//! first: each of them is among those that came, which it reads after, and so are all that were
//! queued before the flush.
//!
//! The race is between the last instance of a pair and the flusher, which decides in one and the
//! same word:
//!
//! ```text
//! flusher (under the lock)          worker that ends the last instance
//! Count: over = n, came = n + 1     Look: over = n, not watched
//! Announce: over |= WATCHED         Leave: over = n + 1, if it still is n and not watched
//! Count again
//! ```
//!
//! Either Leave comes first, and Count sees it, or it finds the word changed and looks again. A
//! thread that would be the last of a watched pair leaves under the lock, and notifies the waiters.
//! By then it has a reference to the queue, which may be gone once it has left. All others touch
//! nothing after Leave. `tests/loom/flush.rs`; without Look, or with a Count in the other order,
//! that model fails.
//!
//! The other steps (Pick, Enter, Validate, Retract, Retire, Collect) are those of `README.md`
//! beside this file.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::{Completion, Mutex};

use crate::pwq::slot::{CountPolicy, CpuEntry, Pair, PwqSlot, SlotBox, SlotContent};
use crate::task::header;
use crate::task::ticket::{AwaitedColours, COLOURS, Spot};

#[derive(Debug)]
struct Waiter {
    /// The colours that have yet to drain. A flush that is satisfied by any of them waits for a
    /// free colour, not for work.
    left: AwaitedColours,
    event: Arc<Completion>,
}

/// The colours of one queue, and the slots of its pwqs.
pub(crate) struct Colours<C: CountPolicy, L: SlotContent> {
    /// A: the colour that new instances get; changed under the lock of `members`.
    current: AtomicU32,
    /// L: is the lock; guards the slots, which of their pairs are watched, and the flushes under
    /// way.
    pub(crate) members: Mutex<Members<L>>,
    care: PhantomData<C>,
}

/// The queue's slots (`README.md`), and the waiters for their instances.
pub(crate) struct Members<L: SlotContent> {
    /// The slots with a pwq, oldest first, also of former attributes.
    pub(crate) slots: Vec<SlotBox<L>>,
    pub(crate) spares: Vec<SlotBox<L>>,
    pub(crate) flushes: Flushes,
}

#[derive(Debug, Default)]
pub(crate) struct Flushes {
    waiters: Vec<Waiter>,
    /// Pairs that are watched, by colour.
    watched: [usize; COLOURS],
}

impl<C: CountPolicy, L: SlotContent> Colours<C, L> {
    /// Colours of a queue that has no pwqs yet.
    pub(crate) fn new() -> Self {
        Colours {
            current: AtomicU32::new(0),
            members: Mutex::new(Members {
                slots: Vec::new(),
                spares: Vec::new(),
                flushes: Flushes::default(),
            }),
            care: PhantomData,
        }
    }

    /// Calls `see` with each slot that has a pwq, and the pwq, under the lock.
    pub(crate) fn each(&self, mut see: impl FnMut(&PwqSlot<L>, &L)) {
        for owned in &self.members.lock().slots {
            let slot: &PwqSlot<L> = owned.slot();
            // SAFETY: it is on the list, whose lock is held.
            see(slot, unsafe { slot.pwq() });
        }
    }

    /// Returns the colour of instances that are counted in now.
    #[inline]
    pub(crate) fn colour(&self) -> u8 {
        // A colour read a moment before a flush moves on makes the two concurrent. That flush
        // needn't wait for this instance. The next one does, since it waits for every colour but
        // its own.
        self.current.load(Ordering::Relaxed) as u8
    }

    /// Waits for every instance that was queued before the call; `wait` waits for an event. May
    /// block.
    #[track_caller]
    pub(crate) fn flush_by(&self, mut wait: impl FnMut(&Completion)) {
        loop {
            let (event, last) = {
                let mut members = self.members.lock();
                let busy = members.watch::<C>();
                if busy == 0 {
                    return;
                }
                let current = self.current.load(Ordering::Relaxed);
                let free = |colour: &u32| busy & (1 << colour) == 0 && *colour != current;
                let left = match (0..COLOURS as u32).find(free) {
                    Some(next) => {
                        self.current.store(next, Ordering::Relaxed);
                        AwaitedColours { mask: busy, any: false }
                    }
                    None => AwaitedColours { mask: busy & !(1 << current), any: true },
                };
                let event = Arc::<Completion>::default();
                members.flushes.waiters.push(Waiter { left, event: Arc::clone(&event) });
                (event, !left.any)
            };
            wait(&event);
            if last {
                return;
            }
        }
    }

    /// Returns the colours that the flush with this event waited for a moment ago; `None` if it is
    /// over.
    pub(crate) fn awaited_by(&self, event: &Completion) -> Option<AwaitedColours> {
        let members = self.members.lock();
        let mut waiters = members.flushes.waiters.iter();
        waiters.find(|waiter| ptr::eq(&*waiter.event, event)).map(|own| own.left)
    }
}

impl<L: SlotContent> Members<L> {
    /// Returns all slots, also those that have no pwq any more.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&PwqSlot<L>, Option<&L>)> {
        let live = self.slots.iter().map(|owned| {
            let slot: &PwqSlot<L> = owned.slot();
            // SAFETY: it is on the list, whose lock is held.
            (slot, Some(unsafe { slot.pwq() }))
        });
        live.chain(self.spares.iter().map(|owned| (owned.slot(), None)))
    }

    /// Watches each pair that hasn't drained. Returns the colours of these, a bit each.
    fn watch<C: CountPolicy>(&mut self) -> u32 {
        // Pairs with the queuers' Enter and ReadGate. The accesses are SeqCst.
        FullFence::implied();
        let watched = &mut self.flushes.watched;
        for owned in &self.slots {
            owned.slot().tally.watch::<C>(|colour| watched[colour] += 1);
        }
        let busy = watched.iter().enumerate().filter(|(_, pairs)| **pairs > 0);
        busy.fold(0, |busy, (colour, _)| busy | 1 << colour)
    }
}

impl Flushes {
    /// Notes that one more pair of a colour has drained. Takes out the flushes that have nothing
    /// left to wait for; the caller notifies them.
    pub(crate) fn drained(&mut self, colour: usize) -> Vec<Arc<Completion>> {
        self.watched[colour] -= 1;
        let mut ended = Vec::new();
        if self.watched[colour] > 0 {
            return ended;
        }
        self.waiters.retain_mut(|waiter| {
            let was = waiter.left.mask;
            let mask = was & !(1 << colour);
            let over = mask == 0 || (waiter.left.any && mask != was);
            waiter.left.mask = mask;
            if over {
                ended.push(Arc::clone(&waiter.event));
            }
            !over
        });
        ended
    }
}

/// Orders the accesses around it under loom: they are SeqCst, and loom takes these for weaker ones.
#[inline]
fn order<C: CountPolicy>() {
    if C::ORDERED {
        FullFence::implied();
    }
}

impl<C: CountPolicy, L: SlotContent> Colours<C, L> {
    /// Carries out Fill: a slot for a pwq, that flushes look at from here on.
    pub(crate) fn fill(&self, stripes: usize, pwq: L) -> NonNull<PwqSlot<L>> {
        let mut members = self.members.lock();
        let fits = |spare: &SlotBox<L>| spare.slot().tally.stripes() == stripes;
        let owned = match members.spares.iter().position(fits) {
            Some(position) => members.spares.swap_remove(position),
            None => SlotBox::new(pwq.home(), stripes),
        };
        owned.fill(pwq);
        let slot = owned.0;
        members.slots.push(owned);
        slot
    }

    /// Carries out Pick; returns `None` if the CPU has no pwq. The entry names slots of these
    /// colours. It writes nothing.
    #[inline]
    pub(crate) fn pick<'a>(&'a self, entry: &'a CpuEntry<L>) -> Option<PickedEntry<'a, L>> {
        // Acquire: the slot is seen whole.
        let place = entry.place.load(Ordering::Acquire);
        let (slot, stripe) = CpuEntry::parts(place);
        let slot = NonNull::new(slot)?;
        let colour = self.colour();
        // SAFETY: entries name slots of these colours, which are freed with them.
        let pair = unsafe { slot.as_ref() }.tally.pair(stripe, colour);
        Some(PickedEntry { entry, place, colour, pair })
    }

    /// Carries out Enter and Validate. Returns the caller's place in the counts, to be given back
    /// by [`leave`]; `None` if the entry is another one meanwhile.
    #[inline]
    #[must_use]
    pub(crate) fn enter(&self, picked: PickedEntry<'_, L>) -> Option<Spot> {
        // Enter.
        picked.pair.enter();
        order::<C>();
        // Validate.
        let again = picked.entry.place.load(Ordering::SeqCst);
        if again != picked.place && C::VALIDATES {
            self.retract(picked.spot());
            return None;
        }
        Some(picked.spot())
    }

    /// Carries out Retract.
    #[cold]
    fn retract(&self, Spot { home, stripe, colour }: Spot) {
        let slot = home.cast::<PwqSlot<L>>();
        // SAFETY: slots of these colours are freed with them.
        let tally = &unsafe { slot.as_ref() }.tally;
        tally.undo(stripe);
        let pair = tally.pair(stripe, colour);
        if !pair.leave::<C>(1) {
            self.leave_watched(slot, pair, 1, colour);
        }
    }

    /// Carries out Leave, if the pair may be watched, and these are the last. The caller has a
    /// reference to the colours beside the pwq's.
    #[cold]
    pub(crate) fn leave_watched(
        &self,
        slot: NonNull<PwqSlot<L>>,
        pair: Pair<'_>,
        many: u64,
        colour: u8,
    ) {
        let (drained, gone) = {
            let mut members = self.members.lock();
            let drained = pair.leave_watched(many);
            let drained =
                if drained { members.flushes.drained(colour as usize) } else { Vec::new() };
            (drained, members.collect_if_quiet(slot))
        };
        // Outside the lock: a woken waiter may want it at once.
        header::wake(drained);
        drop(gone);
    }

    /// Carries out Retire: all slots but `live`, whose entries have been published instead.
    pub(crate) fn retire_all_but(&self, live: &[NonNull<PwqSlot<L>>]) {
        let gone: Vec<_> = {
            let mut members = self.members.lock();
            let old = members.slots.iter().filter(|owned| !live.contains(&owned.0));
            let old: Vec<_> = old.map(|owned| owned.0).collect();
            old.iter().for_each(|slot| {
                // SAFETY: it is on the list, whose lock is held.
                unsafe { slot.as_ref() }.tally.retire();
            });
            order::<C>();
            old.into_iter().map(|slot| members.collect_if_quiet(slot)).collect()
        };
        drop(gone);
    }
}

impl<L: SlotContent> Members<L> {
    /// Carries out Collect, if the slot is retired and quiet. The pwq is to be dropped with no lock
    /// held: it may have the last reference to the queue.
    #[must_use]
    pub(crate) fn collect_if_quiet(&mut self, slot: NonNull<PwqSlot<L>>) -> Option<L> {
        let quiet = |owned: &SlotBox<L>| {
            let tally = &owned.slot().tally;
            owned.0 == slot && tally.is_retired() && tally.is_quiet()
        };
        let position = self.slots.iter().position(quiet)?;
        let owned = self.slots.remove(position);
        let pwq = owned.empty();
        pwq.iter().for_each(SlotContent::collected);
        owned.slot().tally.recycle();
        self.spares.push(owned);
        pwq
    }
}

/// The slot and stripe that a queuer has Picked. It relies on nothing of them before it has Entered
/// and Validated.
pub(crate) struct PickedEntry<'a, L> {
    entry: &'a CpuEntry<L>,
    /// The place, as it was in the entry.
    place: *mut PwqSlot<L>,
    colour: u8,
    pair: Pair<'a>,
}

impl<L> PickedEntry<'_, L> {
    /// Returns the place where it would Enter.
    #[inline]
    pub(crate) fn spot(&self) -> Spot {
        let (slot, stripe) = CpuEntry::parts(self.place);
        // SAFETY: `pick` looked.
        let home = unsafe { NonNull::new_unchecked(slot) }.cast();
        Spot { home, stripe, colour: self.colour }
    }
}

/// Carries out Leave: `many` instances of a pair are over. `of` is called while they aren't, if the
/// colours are needed after.
///
/// # Safety
/// This many such places of an `L` were [Entered](Colours::enter), or taken over, and aren't used
/// again.
#[inline]
pub(crate) unsafe fn leave<C: CountPolicy, L: SlotContent, S: AsRef<Colours<C, L>> + ?Sized>(
    Spot { home, stripe, colour }: Spot,
    many: u64,
    of: impl FnOnce(&L) -> Arc<S>,
) {
    let at = home.cast::<PwqSlot<L>>();
    // SAFETY: they aren't over, so the slot is there; what lives on is a pair of references to
    // atomics, which aren't touched after Leave.
    let slot = unsafe { at.as_ref() };
    let pair = slot.tally.pair(stripe, colour);
    if !pair.leave::<C>(many) {
        // SAFETY: still in flight.
        let shared = of(unsafe { slot.pwq() });
        (*shared).as_ref().leave_watched(at, pair, many, colour);
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::pwq::slot::Tally;

    use crate::pwq::slot::RealCounts;

    type Alone = Colours<RealCounts, ()>;
    /// A slot that the test's colours keep.
    type Place = NonNull<PwqSlot<()>>;

    fn colours<const N: usize>() -> (Arc<Alone>, [Place; N]) {
        let colours = Arc::new(Colours::new());
        let slots = std::array::from_fn(|_| colours.fill(2, ()));
        (colours, slots)
    }

    fn tally(slot: &Place) -> &Tally {
        // SAFETY: the test's colours are there.
        &unsafe { slot.as_ref() }.tally
    }

    /// Returns the instances of a colour that a flush sees.
    fn busy(colours: &Alone) -> u32 {
        colours.members.lock().watch::<RealCounts>()
    }

    #[test]
    fn a_flush_of_an_empty_queue_returns_at_once() {
        let (colours, [_, slot]) = colours();
        colours.flush();
        let colour = colours.count(tally(&slot), 0);
        colours.leave(slot, 0, colour);
        colours.flush();
        assert_eq!(tally(&slot).in_flight(), 0);
    }

    #[test]
    fn a_flush_waits_for_what_came_before_and_not_for_what_comes_later() {
        let (colours, [slot]) = colours();
        let before = colours.count(tally(&slot), 0);
        let flusher = {
            let colours = Arc::clone(&colours);
            std::thread::spawn(move || colours.flush())
        };
        while colours.members.lock().flushes.waiters.is_empty() {
            std::thread::yield_now();
        }
        let later = colours.count(tally(&slot), 0);
        assert_ne!(before, later, "a flush under way moves the queue to another colour");
        colours.leave(slot, 0, before);
        flusher.join().unwrap();
        assert_eq!(tally(&slot).in_flight(), 1, "the later instance is still there");
    }

    #[test]
    fn a_flush_waits_for_what_is_left_on_links_of_former_attributes() {
        let (colours, [former]) = colours();
        let last = colours.count(tally(&former), 1);
        let current = colours.fill(2, ());
        colours.retire_all_but(&[current]);
        assert_eq!(busy(&colours), 1 << last);
        assert_eq!(colours.members.lock().slots.len(), 2, "something is in flight there");
        colours.leave(former, 1, last);
        assert_eq!(busy(&colours), 0);
        assert_eq!(colours.members.lock().slots.len(), 1, "the last one to leave collects it");
        colours.flush();
        assert_ne!(colours.fill(1, ()), former, "another size");
        assert_eq!(colours.fill(2, ()), former, "a slot that was given up is used again");
        assert!(!tally(&former).is_retired());
    }

    #[test]
    fn more_flushes_than_colours_all_end() {
        let (colours, [slot]) = colours();
        let mut flushers = Vec::new();
        let mut tickets = Vec::new();
        for n in 0..COLOURS + 4 {
            tickets.push(colours.count(tally(&slot), 0));
            let shared = Arc::clone(&colours);
            flushers.push(std::thread::spawn(move || shared.flush()));
            while colours.members.lock().flushes.waiters.len() <= n {
                std::thread::yield_now();
            }
        }
        assert!(
            colours.members.lock().flushes.waiters.iter().any(|w| w.left.any),
            "some wait for a free colour"
        );
        for colour in tickets {
            colours.leave(slot, 0, colour);
        }
        for flusher in flushers {
            flusher.join().unwrap();
        }
        assert!(colours.members.lock().flushes.waiters.is_empty());
    }
}
