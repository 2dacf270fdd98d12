//! What a connection waits for: which of its requests has been in flight for longest, whether its client takes its replies, and
//! whether it has sent a part of a request. For people who ask which client is slow; nothing is decided by it.

use corewise_sync::atomic::Ordering;
use corewise_sync::atomic::aside::AtomicU64;

/// Requests whose arrival is kept, at most. Those of a larger budget are in flight without it.
const MOST: u32 = 1024;

/// When each request in flight came, by the connection's clock.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// A: when the request came, or 0 where there is none. A slot is written by the reader while it is 0, and then by the
    /// thread that settles its request. Relaxed: the settling goes before the reader's next admission, by the load word.
    slots: Box<[AtomicU64]>,
}

/// Where the arrival of a request is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot(u16);

impl Slot {
    /// No place.
    pub(crate) const NONE: Slot = Slot(u16::MAX);
}

impl Arrivals {
    /// Slots for so many requests in flight.
    pub(crate) fn new(requests: u32) -> Arrivals {
        Arrivals { slots: (0..requests.clamp(1, MOST)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A request that came at `came` is in flight. `last`: the slot that this gave before. Reader only.
    pub(crate) fn enter(&self, last: Slot, came: u64) -> Slot {
        let (count, first) = (self.slots.len(), usize::from(last.0));
        // Mostly the next one.
        let mut next = (1..=count).map(|n| (first + n) % count);
        let free = next.find(|&slot| self.slots[slot].load(Ordering::Relaxed) == 0);
        let Some(slot) = free else { return Slot::NONE };
        self.slots[slot].store(came.max(1), Ordering::Relaxed);
        Slot(slot as u16)
    }

    /// The request is not in flight any more: before it is settled. Any context.
    pub(crate) fn leave(&self, slot: Slot) {
        if let Some(slot) = self.slots.get(usize::from(slot.0)) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// When the oldest one came.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let all = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        all.filter(|came| *came != 0).min()
    }
}

/// Replies that wait for their client to take earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Untaken {
    /// A: since when the oldest one has waited, by the connection's clock, or 0 where none does. Written by the holder of
    /// the flush right. Relaxed: for people.
    since: AtomicU64,
    /// A: bytes of all of them. As `since`, and added to by those that post replies meanwhile: it may be some replies off.
    bytes: AtomicU64,
}

impl Untaken {
    /// So many bytes wait, the oldest since then. The holder of the flush right only.
    pub(crate) fn wait(&self, since: u64, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.since.store(since.max(1), Ordering::Relaxed);
    }

    /// Nothing waits any more. The holder of the flush right only.
    pub(crate) fn none(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// A reply was posted that somebody else sends.
    pub(crate) fn posted(&self, bytes: usize) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Since when the oldest one has waited, and the bytes of all.
    pub(crate) fn read(&self) -> Option<(u64, u64)> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then(|| (since, self.bytes.load(Ordering::Relaxed)))
    }
}

/// A request of which a part has come.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    /// A: since when its rest is waited for, by the connection's clock, or 0 where none is. Written by the reader. Relaxed: for
    /// people.
    since: AtomicU64,
}

impl Partial {
    /// The rest is waited for since then. Reader only.
    pub(crate) fn begin(&self, since: u64) {
        self.since.store(since.max(1), Ordering::Relaxed);
    }

    /// Nothing is waited for any more. Reader only.
    pub(crate) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Since when the rest is waited for.
    pub(crate) fn read(&self) -> Option<u64> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_arrival_is_known_whatever_the_order_of_the_ends() {
        let arrivals = Arrivals::new(3);
        assert_eq!(arrivals.oldest(), None);
        let first = arrivals.enter(Slot::NONE, 0);
        let second = arrivals.enter(first, 20);
        let third = arrivals.enter(second, 10);
        assert_eq!(arrivals.oldest(), Some(1), "0 means that there is none");
        let beyond = arrivals.enter(third, 5);
        assert!(beyond.0 == Slot::NONE.0, "no more than the budget are in flight");
        arrivals.leave(beyond);
        arrivals.leave(first);
        assert_eq!(arrivals.oldest(), Some(10));
        let again = arrivals.enter(third, 30);
        assert_eq!(again.0, first.0, "the one that is free");
        [second, third].into_iter().for_each(|slot| arrivals.leave(slot));
        assert_eq!(arrivals.oldest(), Some(30));
        arrivals.leave(again);
        assert_eq!(arrivals.oldest(), None);
    }

    #[test]
    fn a_budget_beyond_all_slots_has_requests_without_one() {
        let arrivals = Arrivals::new(u32::MAX);
        let mut slot = Slot::NONE;
        for came in 1..=MOST {
            slot = arrivals.enter(slot, came.into());
        }
        assert_eq!(arrivals.enter(slot, 7).0, Slot::NONE.0);
        assert_eq!(arrivals.oldest(), Some(1));
    }
}
