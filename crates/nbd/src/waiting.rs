//! What a connection waits for: its oldest request in flight, replies that its client does not
//! take, and the rest of a request. For people who ask which client is slow; the server decides
//! nothing by it.

use corewise_sync::atomic::Ordering;
use corewise_sync::atomic::aside::AtomicU64;

/// Requests whose arrival is kept, at most. Those of a larger budget are in flight without it.
const MOST: u32 = 1024;

/// When each request in flight came, by the connection's clock.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// A: when the request came, or 0 where there is none. A slot is written by the reader while it
    /// is 0, and then by the thread that settles its request. Relaxed: the settling goes before the
    /// reader's next admission, by the load word.
    slots: Box<[AtomicU64]>,
}

/// Where the arrival of a request is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalSlot(u16);

impl ArrivalSlot {
    /// The slot of a request whose arrival is not kept.
    pub(crate) const NONE: ArrivalSlot = ArrivalSlot(u16::MAX);
}

impl Arrivals {
    /// ArrivalSlots for so many requests in flight.
    pub(crate) fn new(requests: u32) -> Arrivals {
        Arrivals { slots: (0..requests.clamp(1, MOST)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes a request that came at `came`. `last` is the slot that the call before returned.
    /// Reader only.
    pub(crate) fn enter(&self, last: ArrivalSlot, came: u64) -> ArrivalSlot {
        let (count, first) = (self.slots.len(), usize::from(last.0));
        // The next slot is free, except where ends came out of order.
        let mut next = (1..=count).map(|n| (first + n) % count);
        let free = next.find(|&slot| self.slots[slot].load(Ordering::Relaxed) == 0);
        let Some(slot) = free else { return ArrivalSlot::NONE };
        self.slots[slot].store(came.max(1), Ordering::Relaxed);
        ArrivalSlot(slot as u16)
    }

    /// Frees the slot of a request, before that is settled. Any context.
    pub(crate) fn leave(&self, slot: ArrivalSlot) {
        if let Some(slot) = self.slots.get(usize::from(slot.0)) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// When the oldest request in flight came.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let all = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        all.filter(|came| *came != 0).min()
    }
}

/// Replies that wait for their client to take earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Untaken {
    /// A: since when the oldest one has waited, by the connection's clock, or 0 where none does.
    /// Written by the holder of the flush right. Relaxed: for people.
    since: AtomicU64,
    /// A: bytes of all of them. As `since`, and added to by those that post replies meanwhile: it
    /// may be some replies off.
    bytes: AtomicU64,
}

impl Untaken {
    /// Notes that `bytes` wait, the oldest of them since `since`. The holder of the flush right
    /// only.
    pub(crate) fn wait(&self, since: u64, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.since.store(since.max(1), Ordering::Relaxed);
    }

    /// Notes that no reply waits any more. The holder of the flush right only.
    pub(crate) fn none(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Counts a posted reply that another thread sends.
    pub(crate) fn posted(&self, bytes: usize) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Returns since when the oldest reply has waited, and the bytes of all.
    pub(crate) fn read(&self) -> Option<(u64, u64)> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then(|| (since, self.bytes.load(Ordering::Relaxed)))
    }
}

/// A request of which a part has come.
#[derive(Debug, Default)]
pub(crate) struct PartialRequest {
    /// A: since when its rest is missing, by the connection's clock, or 0 where none is. Written by
    /// the reader. Relaxed: for people.
    since: AtomicU64,
}

impl PartialRequest {
    /// Notes that the rest of a request is missing since `since`. Reader only.
    pub(crate) fn begin(&self, since: u64) {
        self.since.store(since.max(1), Ordering::Relaxed);
    }

    /// Notes that no rest is missing any more. Reader only.
    pub(crate) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Returns since when the rest is missing.
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
        let first = arrivals.enter(ArrivalSlot::NONE, 0);
        let second = arrivals.enter(first, 20);
        let third = arrivals.enter(second, 10);
        assert_eq!(arrivals.oldest(), Some(1), "0 means that there is none");
        let beyond = arrivals.enter(third, 5);
        assert!(beyond.0 == ArrivalSlot::NONE.0, "no more than the budget are in flight");
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
        let mut slot = ArrivalSlot::NONE;
        for came in 1..=MOST {
            slot = arrivals.enter(slot, came.into());
        }
        assert_eq!(arrivals.enter(slot, 7).0, ArrivalSlot::NONE.0);
        assert_eq!(arrivals.oldest(), Some(1));
    }
}
