//! How a queue is flushed: instances are counted by colour, and a flush waits for the colours that
//! were in use before it.
//!
//! The kernel's scheme (`flush_workqueue`), with the counts kept per link (queue and pod), so
//! that queueing on different pods shares no cache line. A flush moves the queue on to a colour that nobody uses,
//! and waits until each other colour that was in use has drained. Work queued after it gets the new
//! colour and isn't waited for.
//!
//! The race is between the last instance of a colour and the flusher:
//!
//! ```text
//! flusher (under the lock)          worker that ends the last instance
//! Announce: waiting = true          Leave: count -= 1
//! full fence                        full fence
//! Count: read the counts            Look: read waiting; if set, lock and settle
//! ```
//!
//! Without the fences Count may read the old count and Look the old flag, and the flush never ends.
//! `tests/loom_flush.rs`; without the fences that model fails.

use std::sync::{Arc, Weak};

use corewise_sync::atomic::{self, AtomicBool, AtomicU32, AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::{Completion, Mutex};

use crate::link::Link;

/// How many colours: as in the kernel, enough that flushes from many threads don't queue up behind
/// one another. Fewer under loom, which has a limit on atomics, and under shuttle, so that they run
/// out.
const COLOURS: usize = if cfg!(any(loom, shuttle)) { 3 } else { 16 };

/// What a flush counts on one link.
#[derive(Debug)]
pub(crate) struct Tally {
    /// A: instances queued and not over, by colour.
    in_flight: [AtomicUsize; COLOURS],
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { in_flight: std::array::from_fn(|_| AtomicUsize::new(0)) }
    }

    /// Instances queued and not over (a moment ago).
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// The colours in use, a bit each.
    fn busy(&self) -> u32 {
        let mut busy = 0;
        for (colour, count) in self.in_flight.iter().enumerate() {
            // Acquire pairs with the Release of `leave`: a colour that has drained is over.
            if count.load(Ordering::Acquire) != 0 {
                busy |= 1 << colour;
            }
        }
        busy
    }
}

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
pub(crate) struct Colours<F: FencePolicy = FullFence, L: Counted = Link> {
    /// A: the colour that new instances get; changed under the lock of `waiters`.
    current: AtomicU32,
    /// A: whether somebody waits; changed under the lock of `waiters`.
    waiting: AtomicBool,
    /// L: is the lock; guards the flushes under way.
    waiters: Mutex<Vec<Waiter>>,
    /// L: is the lock, taken inside that of `waiters`; guards the list of the queue's links, also of
    /// those that it doesn't queue on any more. A link that nobody has is gone from the queue, and
    /// its counts are 0.
    links: Mutex<Vec<Weak<L>>>,
    fence: std::marker::PhantomData<F>,
}

impl<F: FencePolicy, L: Counted> Colours<F, L> {
    /// Colours of a queue that has no links yet.
    pub(crate) fn new() -> Self {
        Colours {
            current: AtomicU32::new(0),
            waiting: AtomicBool::new(false),
            waiters: Mutex::new(Vec::new()),
            links: Mutex::new(Vec::new()),
            fence: std::marker::PhantomData,
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
                // did is seen, as with a count that is read as 0.
                None => atomic::fence(Ordering::Acquire),
            }
        }
    }

    /// Counts an instance in; its colour.
    pub(crate) fn enter(&self, tally: &Tally) -> usize {
        // A colour read a moment before a flush moves on makes the two concurrent: that flush
        // needn't wait for this instance, the next one does, since it waits for every
        // colour but its own.
        let colour = self.current.load(Ordering::Relaxed) as usize;
        Self::enter_as(tally, colour);
        colour
    }

    pub(crate) fn enter_as(tally: &Tally, colour: usize) {
        // Enter (`limiter/README.md`). SeqCst: pairs with who closes the limiter's gate and then looks
        // at the counts.
        tally.in_flight[colour].fetch_add(1, Ordering::SeqCst);
    }

    /// Counts an instance out.
    pub(crate) fn leave(&self, tally: &Tally, colour: usize) {
        // Leave. Release: what the instance did is seen by the flusher, whose Count acquires.
        if tally.in_flight[colour].fetch_sub(1, Ordering::Release) == 1 {
            F::full();
            // Look.
            if self.waiting.load(Ordering::Relaxed) {
                self.settle();
            }
        }
    }

    /// Waits for every instance that was queued before the call. May block.
    #[track_caller]
    pub(crate) fn flush(&self) {
        loop {
            let (event, last, drained) = {
                let mut waiters = self.waiters.lock();
                // Announce.
                self.waiting.store(true, Ordering::Relaxed);
                F::full();
                // Count.
                let busy = self.busy();
                // Who waits for a colour that has drained is done with it before it is given out
                // again.
                let drained = Self::drained(&mut waiters, busy);
                let current = self.current.load(Ordering::Relaxed);
                let waiter = match Self::free_colour(busy, current) {
                    _ if busy == 0 => None,
                    Some(next) => {
                        self.current.store(next, Ordering::Relaxed);
                        Some(Waiter { mask: busy, any: false, event: Arc::default() })
                    }
                    None => {
                        let mask = busy & !(1 << current);
                        Some(Waiter { mask, any: true, event: Arc::default() })
                    }
                };
                let event = waiter.as_ref().map(|w| Arc::clone(&w.event));
                let last = waiter.as_ref().is_none_or(|w| !w.any);
                waiters.extend(waiter);
                self.waiting.store(!waiters.is_empty(), Ordering::Relaxed);
                (event, last, drained)
            };
            complete_all(drained);
            if let Some(event) = event {
                event.wait();
            }
            if last {
                return;
            }
        }
    }

    /// The colours in use, a bit each.
    fn busy(&self) -> u32 {
        let mut busy = 0;
        self.each(|link| busy |= link.tally().busy());
        busy
    }

    fn free_colour(busy: u32, current: u32) -> Option<u32> {
        (0..COLOURS as u32).find(|colour| busy & (1 << colour) == 0 && *colour != current)
    }

    /// Ends the flushes whose colours have drained.
    fn settle(&self) {
        let drained = {
            let mut waiters = self.waiters.lock();
            let drained = Self::drained(&mut waiters, self.busy());
            self.waiting.store(!waiters.is_empty(), Ordering::Relaxed);
            drained
        };
        complete_all(drained);
    }

    /// Takes out the flushes that have nothing left to wait for.
    fn drained(waiters: &mut Vec<Waiter>, busy: u32) -> Vec<Arc<Completion>> {
        let mut ended = Vec::new();
        waiters.retain_mut(|waiter| {
            let left = waiter.mask & busy;
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

    type Alone = Colours<FullFence, Tally>;

    fn colours<const N: usize>() -> (Arc<Alone>, [Arc<Tally>; N]) {
        let colours = Arc::new(Colours::new());
        let tallies = std::array::from_fn(|_| {
            let tally = Arc::new(Tally::new());
            colours.add(&tally);
            tally
        });
        (colours, tallies)
    }

    #[test]
    fn a_flush_of_an_empty_queue_returns_at_once() {
        let (colours, [_, tally]) = colours();
        colours.flush();
        let colour = colours.enter(&tally);
        colours.leave(&tally, colour);
        colours.flush();
        assert_eq!(tally.in_flight(), 0);
    }

    #[test]
    fn a_flush_waits_for_what_came_before_and_not_for_what_comes_later() {
        let (colours, [tally]) = colours();
        let before = colours.enter(&tally);
        let flusher = {
            let colours = Arc::clone(&colours);
            std::thread::spawn(move || colours.flush())
        };
        while colours.waiters.lock().is_empty() {
            std::thread::yield_now();
        }
        let later = colours.enter(&tally);
        assert_ne!(before, later, "a flush under way moves the queue to another colour");
        colours.leave(&tally, before);
        flusher.join().unwrap();
        assert_eq!(tally.in_flight(), 1, "the later instance is still there");
    }

    #[test]
    fn a_flush_waits_for_what_is_left_on_links_of_former_attributes() {
        let (colours, [former]) = colours();
        let last = colours.enter(&former);
        let current = Arc::new(Tally::new());
        colours.add(&current);
        assert_eq!(colours.busy(), 1 << last);
        colours.leave(&former, last);
        drop(former);
        assert_eq!(colours.busy(), 0);
        colours.flush();
        colours.add(&Arc::new(Tally::new()));
        assert_eq!(colours.links.lock().len(), 2, "a link that nobody has is forgotten");
    }

    #[test]
    fn more_flushes_than_colours_all_end() {
        let (colours, [tally]) = colours();
        let mut flushers = Vec::new();
        let mut tickets = Vec::new();
        for n in 0..COLOURS + 4 {
            tickets.push(colours.enter(&tally));
            let shared = Arc::clone(&colours);
            flushers.push(std::thread::spawn(move || shared.flush()));
            while colours.waiters.lock().len() <= n {
                std::thread::yield_now();
            }
        }
        assert!(colours.waiters.lock().iter().any(|w| w.any), "some wait for a free colour");
        for colour in tickets {
            colours.leave(&tally, colour);
        }
        for flusher in flushers {
            flusher.join().unwrap();
        }
        assert!(colours.waiters.lock().is_empty());
    }
}
