//! How a queue is flushed: instances are counted by colour, and a flush waits for the colours that
//! were in use before it.
//!
//! The kernel's scheme (`flush_workqueue`), with the counts kept per pwq (queue and pod) and CPU
//! (`counts.rs`), so that queueing on different CPUs shares no cache line. A flush moves the queue on to
//! a colour that nobody uses, and waits until each other colour that was in use has drained. Work
//! queued after it gets the new colour and isn't waited for.
//!
//! A *pair* is the two counts of one colour on one stripe of one pwq: how many came, and how many
//! are over. It has drained where they are equal, those that are over read first: each of them is
//! among those that came, which are read after, and so are all that were queued before the flush.
//!
//! The race is between the last instance of a pair and the flusher, which decides in one and the same
//! word:
//!
//! ```text
//! flusher (under the lock)          worker that ends the last instance
//! Count: over = n, came = n + 1     Look: over = n, not watched
//! Announce: over |= WATCHED         Leave: over = n + 1, if it still is n and not watched
//! Count again
//! ```
//!
//! Either Leave comes first, and is counted again, or it finds the word changed and looks again. A thread that
//! would be the last of a watched pair leaves under the lock, and tells those who wait: it has a
//! reference to the queue by then, which may be gone once it has left. All others touch nothing after
//! Leave. `tests/loom/flush.rs`; without Look, or with a Count in the other
//! order, that model fails.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::{Completion, Mutex};

use crate::pwq::counts::Care;
use crate::pwq::slot::{InSlot, Owned, PwqSlot};
use crate::task::ticket::{Awaited, COLOURS};

#[derive(Debug)]
struct Waiter {
    /// What has to drain yet. Where any of them is enough it waits for a free colour, not for work.
    left: Awaited,
    event: Arc<Completion>,
}

/// The colours of one queue, and the slots of its pwqs.
pub(crate) struct Colours<C: Care, L: InSlot> {
    /// A: the colour that new instances get; changed under the lock of `members`.
    current: AtomicU32,
    /// L: is the lock; guards the slots, which of their pairs are watched, and the flushes under way.
    pub(crate) members: Mutex<Members<L>>,
    care: PhantomData<C>,
}

/// The queue's slots (`README.md`), and the waiters for what is queued there.
pub(crate) struct Members<L: InSlot> {
    /// Those with a pwq, oldest first, also of former attributes.
    pub(crate) slots: Vec<Owned<L>>,
    pub(crate) spares: Vec<Owned<L>>,
    pub(crate) flushes: Flushes,
}

#[derive(Debug, Default)]
pub(crate) struct Flushes {
    waiters: Vec<Waiter>,
    /// Pairs that are watched, by colour.
    watched: [usize; COLOURS],
}

impl<C: Care, L: InSlot> Colours<C, L> {
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

    /// Calls `see` with each slot that has a pwq, and that, under the lock.
    pub(crate) fn each(&self, mut see: impl FnMut(&PwqSlot<L>, &L)) {
        for owned in &self.members.lock().slots {
            let slot: &PwqSlot<L> = owned.slot();
            // SAFETY: it is on the list, whose lock is held.
            see(slot, unsafe { slot.pwq() });
        }
    }

    /// The colour of what is counted in now.
    #[inline]
    pub(crate) fn colour(&self) -> u8 {
        // A colour read a moment before a flush moves on makes the two concurrent: that flush
        // needn't wait for this instance, the next one does, since it waits for every
        // colour but its own.
        self.current.load(Ordering::Relaxed) as u8
    }

    /// Waits for every instance that was queued before the call; `wait` waits for an event. May block.
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
                        Awaited { mask: busy, any: false }
                    }
                    None => Awaited { mask: busy & !(1 << current), any: true },
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

    /// What the flush with this event waits for (a moment ago); `None` where it is over.
    pub(crate) fn awaited_by(&self, event: &Completion) -> Option<Awaited> {
        let members = self.members.lock();
        let mut waiters = members.flushes.waiters.iter();
        waiters.find(|waiter| ptr::eq(&*waiter.event, event)).map(|own| own.left)
    }
}

impl<L: InSlot> Members<L> {
    /// All slots, also those that have no pwq any more.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&PwqSlot<L>, Option<&L>)> {
        let live = self.slots.iter().map(|owned| {
            let slot: &PwqSlot<L> = owned.slot();
            // SAFETY: it is on the list, whose lock is held.
            (slot, Some(unsafe { slot.pwq() }))
        });
        live.chain(self.spares.iter().map(|owned| (owned.slot(), None)))
    }

    /// Watches each pair that hasn't drained; the colours of these, a bit each.
    fn watch<C: Care>(&mut self) -> u32 {
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
    /// One more pair of a colour has drained. Takes out the flushes that have nothing left to wait
    /// for, to be told.
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

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::pwq::counts::Tally;

    use crate::pwq::counts::Careful;

    type Alone = Colours<Careful, ()>;
    /// Which the test's colours keep.
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

    /// As a flush sees it.
    fn busy(colours: &Alone) -> u32 {
        colours.members.lock().watch::<Careful>()
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
