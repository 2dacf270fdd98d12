//! How a queue is flushed: instances are counted by colour, and a flush waits for the colours that
//! were in use before it.
//!
//! The kernel's scheme (`flush_workqueue`), with the counts kept per link (queue and pod) and CPU
//! (`tally.rs`), so that queueing on different CPUs shares no cache line. A flush moves the queue on to
//! a colour that nobody uses, and waits until each other colour that was in use has drained. Work
//! queued after it gets the new colour and isn't waited for.
//!
//! A *pair* is the two counts of one colour on one stripe of one link: how many came, and how many
//! are over. It has drained where they are equal, those that are over read first: each of them is
//! among those that came, which are read after, and so are all that were queued before the flush.
//!
//! The race is between the last instance of a pair and the flusher, who decides in one and the same
//! word:
//!
//! ```text
//! flusher (under the lock)          worker that ends the last instance
//! Count: over = n, came = n + 1     Look: over = n, not watched
//! Announce: over |= WATCHED         Leave: over = n + 1, if it still is n and not watched
//! Count again
//! ```
//!
//! Either Leave comes first, and is counted again, or it finds the word changed and looks again. Who
//! would be the last of a watched pair leaves under the lock, and tells those who wait: it has a
//! reference to the queue by then, which may be gone once it has left. All others touch nothing after
//! Leave. `tests/loom_flush.rs`; without Look, or with a Count in the other
//! order, that model fails.

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use corewise_sync::atomic::{self, AtomicU32, Ordering};
use corewise_sync::{Completion, Mutex};

use crate::link::Link;
use crate::tally::{COLOURS, Care, Careful, Pair, Tally};

/// Something with a tally: a [`Link`], or in models the tally alone.
pub(crate) trait Counted: Send + Sync {
    fn tally(&self) -> &Tally;
}

#[derive(Debug)]
struct Waiter {
    /// Colours still to drain, a bit each.
    mask: u32,
    /// Satisfied as soon as any of them has drained: waits for a free colour, not for work.
    any: bool,
    event: Arc<Completion>,
}

/// The colours of one queue.
pub(crate) struct Colours<C: Care = Careful, L: Counted = Link> {
    /// A: the colour that new instances get; changed under the lock of `flushes`.
    current: AtomicU32,
    /// L: is the lock; guards the flushes under way, and which pairs are watched.
    flushes: Mutex<Flushes>,
    /// L: is the lock, taken inside that of `flushes`; guards the list of the queue's links, also of
    /// those that it doesn't queue on any more. A link that nobody has is gone from the queue, and
    /// all that came there is over.
    links: Mutex<Vec<Weak<L>>>,
    care: PhantomData<C>,
}

#[derive(Debug, Default)]
struct Flushes {
    waiters: Vec<Waiter>,
    /// Pairs that are watched, by colour.
    watched: [usize; COLOURS],
}

impl<C: Care, L: Counted> Colours<C, L> {
    /// Colours of a queue that has no links yet.
    pub(crate) fn new() -> Self {
        Colours {
            current: AtomicU32::new(0),
            flushes: Mutex::default(),
            links: Mutex::new(Vec::new()),
            care: PhantomData,
        }
    }

    /// From here on flushes look at this link; before anything is queued on it. They do so for as
    /// long as somebody has it.
    pub(crate) fn add(&self, link: &Arc<L>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    /// Calls `see` with each link that somebody has, under the lock of the list.
    pub(crate) fn each(&self, mut see: impl FnMut(&L)) {
        for link in self.links.lock().iter() {
            match link.upgrade() {
                Some(link) => see(&link),
                // Pairs with the Release of the drop that was the last: what the link's instances
                // did is seen, as with a pair that has drained.
                None => atomic::fence(Ordering::Acquire),
            }
        }
    }

    /// Counts an instance in; its colour.
    #[inline]
    pub(crate) fn enter(&self, tally: &Tally, stripe: u32) -> u8 {
        // A colour read a moment before a flush moves on makes the two concurrent: that flush
        // needn't wait for this instance, the next one does, since it waits for every
        // colour but its own.
        let colour = self.current.load(Ordering::Relaxed) as u8;
        tally.enter(stripe, colour);
        colour
    }

    /// Counts an instance out.
    #[inline]
    pub(crate) fn leave(&self, tally: &Tally, stripe: u32, colour: u8) {
        if !tally.leave::<C>(stripe, colour) {
            self.leave_watched(tally, stripe, colour);
        }
    }

    #[cold]
    fn leave_watched(&self, tally: &Tally, stripe: u32, colour: u8) {
        let drained = {
            let mut flushes = self.flushes.lock();
            let drained = tally.leave_watched(stripe, colour);
            if drained { flushes.drained(colour as usize) } else { Vec::new() }
        };
        complete_all(drained);
    }

    /// Waits for every instance that was queued before the call. May block.
    #[track_caller]
    pub(crate) fn flush(&self) {
        loop {
            let (event, last) = {
                let mut flushes = self.flushes.lock();
                let busy = self.watch(&mut flushes);
                if busy == 0 {
                    return;
                }
                let current = self.current.load(Ordering::Relaxed);
                let event = Arc::<Completion>::default();
                let waiter = match Self::free_colour(busy, current) {
                    Some(next) => {
                        self.current.store(next, Ordering::Relaxed);
                        Waiter { mask: busy, any: false, event: Arc::clone(&event) }
                    }
                    None => {
                        let mask = busy & !(1 << current);
                        Waiter { mask, any: true, event: Arc::clone(&event) }
                    }
                };
                let last = !waiter.any;
                flushes.waiters.push(waiter);
                (event, last)
            };
            event.wait();
            if last {
                return;
            }
        }
    }

    /// Watches each pair that hasn't drained; the colours of these, a bit each.
    fn watch(&self, flushes: &mut Flushes) -> u32 {
        // Pairs with the queuers' Enter and ReadGate. The accesses are SeqCst, which loom takes for
        // weaker ones.
        #[cfg(loom)]
        atomic::fence(Ordering::SeqCst);
        self.each(|link| {
            link.tally().watch::<C>(|colour, pair| {
                if pair == Pair::Watched {
                    flushes.watched[colour] += 1;
                }
            });
        });
        let busy = flushes.watched.iter().enumerate().filter(|(_, pairs)| **pairs > 0);
        busy.fold(0, |busy, (colour, _)| busy | 1 << colour)
    }

    fn free_colour(busy: u32, current: u32) -> Option<u32> {
        (0..COLOURS as u32).find(|colour| busy & (1 << colour) == 0 && *colour != current)
    }
}

impl Flushes {
    /// One more pair of a colour has drained. Takes out the flushes that have nothing left to wait
    /// for, to be told.
    fn drained(&mut self, colour: usize) -> Vec<Arc<Completion>> {
        self.watched[colour] -= 1;
        let mut ended = Vec::new();
        if self.watched[colour] > 0 {
            return ended;
        }
        self.waiters.retain_mut(|waiter| {
            let left = waiter.mask & !(1 << colour);
            let over = left == 0 || (waiter.any && left != waiter.mask);
            waiter.mask = left;
            if over {
                ended.push(Arc::clone(&waiter.event));
            }
            !over
        });
        ended
    }
}

/// Outside the lock: a woken waiter may want it at once.
fn complete_all(events: Vec<Arc<Completion>>) {
    for event in events {
        event.complete();
    }
}

#[cfg(any(test, loom))]
impl Counted for Tally {
    fn tally(&self) -> &Tally {
        self
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Alone = Colours<Careful, Tally>;

    fn colours<const N: usize>() -> (Arc<Alone>, [Arc<Tally>; N]) {
        let colours = Arc::new(Colours::new());
        let tallies = std::array::from_fn(|_| {
            let tally = Arc::new(Tally::new(2));
            colours.add(&tally);
            tally
        });
        (colours, tallies)
    }

    /// As a flush sees it.
    fn busy(colours: &Alone) -> u32 {
        colours.watch(&mut colours.flushes.lock())
    }

    #[test]
    fn a_flush_of_an_empty_queue_returns_at_once() {
        let (colours, [_, tally]) = colours();
        colours.flush();
        let colour = colours.enter(&tally, 0);
        colours.leave(&tally, 0, colour);
        colours.flush();
        assert_eq!(tally.in_flight(), 0);
    }

    #[test]
    fn a_flush_waits_for_what_came_before_and_not_for_what_comes_later() {
        let (colours, [tally]) = colours();
        let before = colours.enter(&tally, 0);
        let flusher = {
            let colours = Arc::clone(&colours);
            std::thread::spawn(move || colours.flush())
        };
        while colours.flushes.lock().waiters.is_empty() {
            std::thread::yield_now();
        }
        let later = colours.enter(&tally, 0);
        assert_ne!(before, later, "a flush under way moves the queue to another colour");
        colours.leave(&tally, 0, before);
        flusher.join().unwrap();
        assert_eq!(tally.in_flight(), 1, "the later instance is still there");
    }

    #[test]
    fn a_flush_waits_for_what_is_left_on_links_of_former_attributes() {
        let (colours, [former]) = colours();
        let last = colours.enter(&former, 1);
        let current = Arc::new(Tally::new(2));
        colours.add(&current);
        assert_eq!(busy(&colours), 1 << last);
        colours.leave(&former, 1, last);
        drop(former);
        assert_eq!(busy(&colours), 0);
        colours.flush();
        colours.add(&Arc::new(Tally::new(2)));
        assert_eq!(colours.links.lock().len(), 2, "a link that nobody has is forgotten");
    }

    #[test]
    fn more_flushes_than_colours_all_end() {
        let (colours, [tally]) = colours();
        let mut flushers = Vec::new();
        let mut tickets = Vec::new();
        for n in 0..COLOURS + 4 {
            tickets.push(colours.enter(&tally, 0));
            let shared = Arc::clone(&colours);
            flushers.push(std::thread::spawn(move || shared.flush()));
            while colours.flushes.lock().waiters.len() <= n {
                std::thread::yield_now();
            }
        }
        assert!(
            colours.flushes.lock().waiters.iter().any(|w| w.any),
            "some wait for a free colour"
        );
        for colour in tickets {
            colours.leave(&tally, 0, colour);
        }
        for flusher in flushers {
            flusher.join().unwrap();
        }
        assert!(colours.flushes.lock().waiters.is_empty());
    }
}
