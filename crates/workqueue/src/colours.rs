//! How a queue is flushed: instances are counted by colour, and a flush waits for the colours that
//! were in use before it.
//!
//! The kernel's scheme (`flush_workqueue`), with the counts kept per pod, so that queueing on
//! different pods shares no cache line. A flush moves the queue on to a colour that nobody uses,
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

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::{CachePadded, Completion, Mutex};

/// How many colours: as in the kernel, enough that flushes from many threads don't queue up behind
/// one another. Fewer under loom, which has a limit on atomics.
const COLOURS: usize = if cfg!(loom) { 3 } else { 16 };

/// The counts of one queue on one pod.
#[derive(Debug)]
struct PodCounts {
    /// A: instances queued and not over, by colour.
    in_flight: [AtomicUsize; COLOURS],
    /// A: statistics: instances ever queued here.
    queued: AtomicU64,
    /// A: statistics: instances queued here that ran in another pod.
    overflowed: AtomicU64,
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
#[derive(Debug)]
pub(crate) struct Colours<F: FencePolicy = FullFence> {
    /// A: the colour that new instances get; changed under the lock of `waiters`.
    current: AtomicU32,
    /// A: whether somebody waits; changed under the lock of `waiters`.
    waiting: AtomicBool,
    /// L: is the lock; guards the flushes under way.
    waiters: Mutex<Vec<Waiter>>,
    /// I: one entry a pod; the counts in them are atomic.
    pods: Box<[CachePadded<PodCounts>]>,
    fence: std::marker::PhantomData<F>,
}

impl<F: FencePolicy> Colours<F> {
    /// Colours of a queue on `pods` pods.
    pub(crate) fn new(pods: usize) -> Self {
        let counts = || {
            CachePadded::new(PodCounts {
                in_flight: std::array::from_fn(|_| AtomicUsize::new(0)),
                queued: AtomicU64::new(0),
                overflowed: AtomicU64::new(0),
            })
        };
        Colours {
            current: AtomicU32::new(0),
            waiting: AtomicBool::new(false),
            waiters: Mutex::new(Vec::new()),
            pods: (0..pods).map(|_| counts()).collect(),
            fence: std::marker::PhantomData,
        }
    }

    /// Counts an instance in; its colour.
    pub(crate) fn enter(&self, pod: usize) -> usize {
        // A colour read a moment before a flush moves on makes the two concurrent: that flush
        // needn't wait for this instance, the next one does, since it waits for every
        // colour but its own.
        let colour = self.current.load(Ordering::Relaxed) as usize;
        self.enter_as(pod, colour);
        colour
    }

    pub(crate) fn enter_as(&self, pod: usize, colour: usize) {
        let counts = &self.pods[pod];
        counts.in_flight[colour].fetch_add(1, Ordering::Relaxed);
        counts.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an instance out.
    pub(crate) fn leave(&self, pod: usize, colour: usize) {
        // Leave. Release: what the instance did is seen by the flusher, whose Count acquires.
        if self.pods[pod].in_flight[colour].fetch_sub(1, Ordering::Release) == 1 {
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

    /// Instances ever queued on a pod, and how many of those ran elsewhere.
    pub(crate) fn totals(&self, pod: usize) -> (u64, u64) {
        let counts = &self.pods[pod];
        (counts.queued.load(Ordering::Relaxed), counts.overflowed.load(Ordering::Relaxed))
    }

    /// Instances queued on a pod and not over (a moment ago).
    pub(crate) fn in_flight(&self, pod: usize) -> usize {
        self.pods[pod].in_flight.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// How many pods there are.
    pub(crate) fn pods(&self) -> usize {
        self.pods.len()
    }

    /// The colours in use, a bit each.
    fn busy(&self) -> u32 {
        let mut busy = 0;
        for pod in &self.pods {
            for (colour, count) in pod.in_flight.iter().enumerate() {
                // Acquire pairs with the Release of `leave`: a colour that has drained is over.
                if count.load(Ordering::Acquire) != 0 {
                    busy |= 1 << colour;
                }
            }
        }
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

/// Counts one instance in its queue, from queueing until dropped.
pub(crate) struct Ticket {
    colours: Arc<Colours>,
    pod: usize,
    colour: usize,
}

impl Ticket {
    pub(crate) fn new(colours: &Arc<Colours>, pod: usize) -> Ticket {
        Ticket { colour: colours.enter(pod), colours: Arc::clone(colours), pod }
    }

    pub(crate) fn overflowed(&self) {
        self.colours.pods[self.pod].overflowed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.colours.leave(self.pod, self.colour);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_flush_of_an_empty_queue_returns_at_once() {
        let colours = Colours::<FullFence>::new(2);
        colours.flush();
        let colour = colours.enter(1);
        colours.leave(1, colour);
        colours.flush();
        assert_eq!(colours.in_flight(1), 0);
    }

    #[test]
    fn a_flush_waits_for_what_came_before_and_not_for_what_comes_later() {
        let colours = Arc::new(Colours::<FullFence>::new(1));
        let before = colours.enter(0);
        let flusher = {
            let colours = Arc::clone(&colours);
            std::thread::spawn(move || colours.flush())
        };
        while colours.waiters.lock().is_empty() {
            std::thread::yield_now();
        }
        let later = colours.enter(0);
        assert_ne!(before, later, "a flush under way moves the queue to another colour");
        colours.leave(0, before);
        flusher.join().unwrap();
        assert_eq!(colours.in_flight(0), 1, "the later instance is still there");
    }

    #[test]
    fn more_flushes_than_colours_all_end() {
        let colours = Arc::new(Colours::<FullFence>::new(1));
        let mut flushers = Vec::new();
        let mut tickets = Vec::new();
        for n in 0..COLOURS + 4 {
            tickets.push(colours.enter(0));
            let shared = Arc::clone(&colours);
            flushers.push(std::thread::spawn(move || shared.flush()));
            while colours.waiters.lock().len() <= n {
                std::thread::yield_now();
            }
        }
        assert!(colours.waiters.lock().iter().any(|w| w.any), "some wait for a free colour");
        for colour in tickets {
            colours.leave(0, colour);
        }
        for flusher in flushers {
            flusher.join().unwrap();
        }
        assert!(colours.waiters.lock().is_empty());
    }
}
