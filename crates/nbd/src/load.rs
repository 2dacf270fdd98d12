//! The load of a connection: replies outstanding, their bytes, and whether it is being drained or
//! cut.
//!
//! All of it is one word, so no thread can miss that a connection owes nothing while it is being
//! drained.
//!
//! Only the reader adds, and only the reader waits: for room, or until nothing is owed. The thread
//! that has sent replies subtracts. Both use read-modify-writes of the one word, so no fence is
//! needed. If the reader's wait bit comes first, the subtraction sees it and wakes the reader. If
//! the subtraction comes first, the reader sees that there is room.
//!
//! Steps, races and proof: `load.md` beside this file. Model: `tests/loom/load.rs`.
//!
//! # Slow clients
//!
//! [`Arrivals`], [`Untaken`] and [`PartialRequest`] record which request is the oldest, which
//! replies the client doesn't take, and how long a request has been incomplete. The server decides
//! nothing by them: they show people which client is slow.
//!
//! # Statistics
//!
//! A request is [counted](Counts) when its reply leaves, by the holder of the [flush
//! right](crate::reply). The clock is read once for each piece that was received, and once for the
//! replies that left in one call. A request that was never answered is not counted.

use std::time::Duration;

use corewise_blockmq::Op;
use corewise_export::Counts;
use corewise_sync::atomic::{AtomicU64, Ordering, aside};
use corewise_sync::{Parker, Unparker};

/// Width of the count of bytes in the connection's own share.
const OWN_BITS: u32 = 24;
const OWN: u64 = (1 << OWN_BITS) - 1;
/// Width of the count of units of [`UNIT`] bytes in the server's pool.
const POOL_BITS: u32 = 20;
const POOL: u64 = (1 << POOL_BITS) - 1;
const COUNT_AT: u32 = OWN_BITS + POOL_BITS;
const COUNT: u64 = 0xffff;
/// Unit of the pool's count in bytes.
const UNIT: u64 = 4096;
/// The reader waits until half of its budget is free. Set and cleared by the reader.
const WAIT_ROOM: u64 = 1 << 60;
/// The reader waits until nothing is owed. Set and cleared by the reader.
const WAIT_ZERO: u64 = 1 << 61;
/// New requests are refused. Set once by the thread that drains; never cleared.
const DRAINING: u64 = 1 << 62;
/// The connection is given up: replies are dropped. Set once; never cleared.
const CUT: u64 = 1 << 63;

/// The place where the bytes of a request are counted: the connection's own share, or the server's
/// pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    own: u32,
    units: u32,
}

impl Charge {
    /// A charge of no bytes.
    pub const NONE: Charge = Charge { own: 0, units: 0 };

    /// Creates a charge of `bytes` bytes of the pool, rounded up to units.
    fn of_pool(bytes: u64) -> Charge {
        Charge { own: 0, units: u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX) }
    }

    /// Returns the bytes that are counted in the pool.
    pub fn pool(self) -> u64 {
        u64::from(self.units) * UNIT
    }

    fn word(self) -> u64 {
        u64::from(self.own) | u64::from(self.units) << OWN_BITS
    }
}

impl std::ops::AddAssign for Charge {
    fn add_assign(&mut self, other: Charge) {
        self.own += other.own;
        self.units += other.units;
    }
}

/// The largest load at which the reader still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests in flight or answered but not sent: 1 to 65,535.
    pub requests: u32,
    /// Bytes of their payloads. A request larger than this is served alone.
    pub bytes: u64,
}

impl Default for Budget {
    /// Returns a budget of 256 requests and 64 MiB.
    fn default() -> Self {
        Budget { requests: 256, bytes: 64 << 20 }
    }
}

impl Budget {
    /// Returns true if a request of `bytes` may be added to `load`.
    pub fn has_room(&self, load: Snapshot, bytes: u64) -> bool {
        load.requests == 0
            || (load.requests < self.requests.clamp(1, 0xffff) && load.bytes + bytes <= self.bytes)
    }

    /// Returns true if enough is free that waking the reader pays.
    fn is_half_free(&self, load: Snapshot) -> bool {
        load.requests <= self.requests / 2 && load.bytes <= self.bytes / 2
    }
}

/// The decoded load word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests that were admitted and whose reply hasn't been sent.
    pub requests: u32,
    /// Payload bytes that are counted in the connection's own share.
    pub own: u64,
    /// All payload bytes. Those of the pool are rounded up.
    pub bytes: u64,
    /// True if new requests are refused.
    pub draining: bool,
    /// True if the connection is given up.
    pub cut: bool,
}

impl Snapshot {
    fn of(word: u64) -> Snapshot {
        let (own, pool) = (word & OWN, (word >> OWN_BITS & POOL) * UNIT);
        Snapshot {
            requests: (word >> COUNT_AT & COUNT) as u32,
            own,
            bytes: own + pool,
            draining: word & DRAINING != 0,
            cut: word & CUT != 0,
        }
    }
}

/// The load of one connection.
#[derive(Debug)]
pub struct Load {
    /// A: counts and flags, laid out as the constants above say. Every access is a
    /// read-modify-write, except the loads of `snapshot`.
    word: AtomicU64,
    budget: Budget,
    /// Bytes that are counted in the connection's own share, at most.
    share: u64,
    unparker: Unparker,
}

impl Load {
    /// Creates the load of a connection that owes nothing. The parker belongs to the reader thread,
    /// the only one that may wait. `share` is the number of bytes that the connection has for
    /// itself; further bytes are taken from the pool.
    pub fn new(budget: Budget, share: u64) -> (Load, Parker) {
        let parker = Parker::new();
        // Half of the largest values of the word's fields, so that one request above the budget
        // fits too.
        let budget = Budget { bytes: budget.bytes.min(POOL / 2 * UNIT), ..budget };
        let (share, unparker) = (share.min(OWN / 2), parker.unparker());
        (Load { word: AtomicU64::new(0), budget, share, unparker }, parker)
    }

    /// Returns the decoded word.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.word.load(Ordering::Acquire))
    }

    /// Returns where a request of `bytes` would be counted, or `None` if the budget has no room.
    /// The answer holds until the reader adds. Reader only.
    pub fn charge(&self, bytes: u64) -> Option<Charge> {
        let load = self.snapshot();
        if !self.budget.has_room(load, bytes) {
            return None;
        }
        match load.own + bytes <= self.share {
            true => Some(Charge { own: bytes as u32, units: 0 }),
            false => Some(Charge::of_pool(bytes)),
        }
    }

    /// Admits a request that [`Load::charge`] had room for, and returns the load before it. Reader
    /// only.
    pub fn admit(&self, charge: Charge) -> Snapshot {
        // No other thread adds, so the room that `charge` saw is still there.
        Snapshot::of(self.word.fetch_add((1 << COUNT_AT) + charge.word(), Ordering::AcqRel))
    }

    /// Returns the unparker of the reader, for its waits elsewhere.
    pub fn unparker(&self) -> &Unparker {
        &self.unparker
    }

    /// Waits until there may be room for `bytes`, or the connection is cut. Blocks. Reader only.
    pub fn wait_for_room(&self, parker: &Parker, bytes: u64) {
        self.wait(parker, WAIT_ROOM, |load| load.cut || self.budget.has_room(load, bytes));
    }

    /// Waits until nothing is owed. Blocks. Reader only. A cut connection waits too: a running
    /// request holds buffers, and the device's shutdown must wait for it.
    pub fn wait_for_zero(&self, parker: &Parker) {
        self.wait(parker, WAIT_ZERO, |load| load.requests == 0);
    }

    fn wait(&self, parker: &Parker, bit: u64, enough: impl Fn(Snapshot) -> bool) {
        // The reader announces, then checks the value that the announcement returned. A later
        // subtraction sees the bit and leaves a token.
        let mut seen = self.word.fetch_or(bit, Ordering::AcqRel);
        while !enough(Snapshot::of(seen)) {
            parker.park();
            seen = self.word.load(Ordering::Acquire);
        }
        self.word.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Subtracts `requests` requests, with the sum of their charges: their replies were sent, or
    /// dropped for good. Returns true if nothing is owed any more and the connection is being
    /// drained: then the caller stops the reading side. The caller returns the pool's part to the
    /// pool. Any context; never blocks.
    #[must_use]
    pub fn settle(&self, requests: u32, charge: Charge) -> bool {
        let by = (u64::from(requests) << COUNT_AT) + charge.word();
        let word = self.word.fetch_sub(by, Ordering::AcqRel) - by;
        let load = Snapshot::of(word);
        if word & WAIT_ROOM != 0 && self.budget.is_half_free(load)
            || word & (WAIT_ROOM | WAIT_ZERO) != 0 && load.requests == 0
        {
            self.unparker.unpark();
        }
        load.requests == 0 && load.draining
    }

    /// Refuses new requests from now on, and returns the load at that moment. Wakes a reader that
    /// waits for memory: a refused request needs none. Any context.
    pub fn drain(&self) -> Snapshot {
        let was = Snapshot::of(self.word.fetch_or(DRAINING, Ordering::AcqRel));
        self.unparker.unpark();
        was
    }

    /// Gives the connection up, and returns the load at that moment. Wakes a reader that waits for
    /// room. Any context.
    pub fn cut(&self) -> Snapshot {
        let was = Snapshot::of(self.word.fetch_or(CUT, Ordering::AcqRel));
        self.unparker.unpark();
        was
    }
}

/// Largest number of requests whose arrival is kept. If the budget is larger, further requests are
/// in flight without it.
const MOST: u32 = 1024;

/// The arrival time of each request in flight, by the connection's clock.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// A: the arrival time of a request, or 0 if the slot is free. The reader writes a slot while
    /// it is 0; then only the thread that settles the request does. Relaxed: the load word orders
    /// the settling before the reader's next admission.
    slots: Box<[aside::AtomicU64]>,
}

/// The slot that keeps the arrival of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalSlot(u16);

impl ArrivalSlot {
    /// The slot of a request whose arrival is not kept.
    pub(crate) const NONE: ArrivalSlot = ArrivalSlot(u16::MAX);
}

impl Arrivals {
    /// Creates slots for `requests` requests in flight.
    pub(crate) fn new(requests: u32) -> Arrivals {
        Arrivals { slots: (0..requests.clamp(1, MOST)).map(|_| aside::AtomicU64::new(0)).collect() }
    }

    /// Records the arrival of a request at `came`. `last` is the slot that the previous call
    /// returned. Reader only.
    pub(crate) fn enter(&self, last: ArrivalSlot, came: u64) -> ArrivalSlot {
        let (count, first) = (self.slots.len(), usize::from(last.0));
        // The next slot is free, unless requests ended out of order.
        let mut next = (1..=count).map(|n| (first + n) % count);
        let free = next.find(|&slot| self.slots[slot].load(Ordering::Relaxed) == 0);
        let Some(slot) = free else { return ArrivalSlot::NONE };
        self.slots[slot].store(came.max(1), Ordering::Relaxed);
        ArrivalSlot(slot as u16)
    }

    /// Frees the slot of a request. It comes before the request is settled. Any context.
    pub(crate) fn leave(&self, slot: ArrivalSlot) {
        if let Some(slot) = self.slots.get(usize::from(slot.0)) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the arrival time of the oldest request in flight.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let all = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        all.filter(|came| *came != 0).min()
    }
}

/// Replies that wait for their client to take earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Untaken {
    /// A: the time since which the oldest reply has waited, by the connection's clock, or 0.
    /// Written by the holder of the flush right. Relaxed: only shown to people.
    since: aside::AtomicU64,
    /// A: the bytes of all these replies. Threads that post replies meanwhile add to it, so it may
    /// be off by some replies. Otherwise it is as `since`.
    bytes: aside::AtomicU64,
}

impl Untaken {
    /// Records that `bytes` wait, the oldest of them since `since`. Only the holder of the flush
    /// right calls it.
    pub(crate) fn wait(&self, since: u64, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.since.store(since.max(1), Ordering::Relaxed);
    }

    /// Records that no reply waits any more. Only the holder of the flush right calls it.
    pub(crate) fn none(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Counts a posted reply that another thread sends.
    pub(crate) fn posted(&self, bytes: usize) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Returns the time since which the oldest reply has waited, and the bytes of all.
    pub(crate) fn read(&self) -> Option<(u64, u64)> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then(|| (since, self.bytes.load(Ordering::Relaxed)))
    }
}

/// A request of which only a part has come.
#[derive(Debug, Default)]
pub(crate) struct PartialRequest {
    /// A: the time since which its rest is missing, by the connection's clock, or 0. Written by the
    /// reader. Relaxed: only shown to people.
    since: aside::AtomicU64,
}

impl PartialRequest {
    /// Records that the rest of a request is missing since `since`. Reader only.
    pub(crate) fn begin(&self, since: u64) {
        self.since.store(since.max(1), Ordering::Relaxed);
    }

    /// Records that no rest is missing any more. Reader only.
    pub(crate) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Returns the time since which the rest is missing.
    pub(crate) fn read(&self) -> Option<u64> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then_some(since)
    }
}

/// The charge, arrival time and slot with which a request was admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) charge: Charge,
    /// Arrival time in nanoseconds since the connection was made.
    pub(crate) came: u64,
    /// Slot that keeps the arrival time while the request is in flight.
    pub(crate) slot: ArrivalSlot,
}

impl Cost {
    /// Returns the settlement of the request for the time when it has been answered. `done` is its
    /// bytes, or `None` if it failed. A request without an operation isn't counted.
    pub(crate) fn due(self, op: Option<Op>, done: Option<u64>) -> Settlement {
        Settlement { cost: self, op, done }
    }
}

/// The charge and the statistics that are settled when a reply has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settlement {
    pub(crate) cost: Cost,
    op: Option<Op>,
    done: Option<u64>,
}

impl Settlement {
    /// Counts a reply that has left at `now`. Only the holder of the flush right calls it.
    pub(crate) fn count(&self, counts: &Counts, now: u64) {
        if let Some(op) = self.op {
            let took = Duration::from_nanos(now.saturating_sub(self.cost.came));
            counts.ended(op, self.done, took);
        }
    }

    /// Returns the settlement of a request that failed after all.
    pub(crate) fn failed(self) -> Settlement {
        Settlement { done: None, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(requests: u32, bytes: u64) -> Budget {
        Budget { requests, bytes }
    }

    fn admit(load: &Load, bytes: u64) -> Option<(Charge, Snapshot)> {
        load.charge(bytes).map(|charge| (charge, load.admit(charge)))
    }

    #[test]
    fn the_budget_limits_requests_and_bytes_but_never_the_only_request() {
        let (load, _parker) = Load::new(budget(2, 1000), 10_000);
        let (large, _) = admit(&load, 5000).expect("alone, even a large one is served");
        assert!(load.charge(0).is_none(), "its bytes fill the budget");
        assert!(!load.settle(1, large));
        assert!(admit(&load, 400).is_some());
        assert!(load.charge(700).is_none(), "too many bytes");
        assert!(admit(&load, 600).is_some());
        assert!(load.charge(0).is_none(), "too many requests");
        let now = load.snapshot();
        assert_eq!((now.requests, now.bytes), (2, 1000));
    }

    #[test]
    fn the_share_of_the_connection_is_used_first_and_the_rest_is_the_pool_s() {
        let (load, _parker) = Load::new(Budget::default(), 10_000);
        let (first, _) = admit(&load, 6000).unwrap();
        assert_eq!(first.pool(), 0);
        let (second, _) = admit(&load, 6000).unwrap();
        assert_eq!(second.pool(), 8192, "whole pages of it");
        let (third, _) = admit(&load, 4000).unwrap();
        assert_eq!(third.pool(), 0, "there is a little left of the share");
        let now = load.snapshot();
        assert_eq!((now.own, now.bytes, now.requests), (10_000, 18_192, 3));
        let mut all = first;
        all += second;
        all += third;
        assert!(!load.settle(3, all));
        assert_eq!((load.snapshot().bytes, load.snapshot().requests), (0, 0));
    }

    #[test]
    fn the_last_reply_of_a_draining_connection_is_reported_once() {
        let (load, _parker) = Load::new(Budget::default(), 100);
        let mut all = admit(&load, 10).unwrap().0;
        all += admit(&load, 20).unwrap().0;
        assert_eq!(load.drain().requests, 2);
        assert!(admit(&load, 0).unwrap().1.draining, "the reader learns of the drain");
        assert!(!load.settle(2, all));
        assert!(load.settle(1, Charge::NONE));
        assert_eq!(load.snapshot().requests, 0);
    }

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

    #[test]
    fn an_answer_is_counted_by_its_operation_with_the_time_since_its_request_came() {
        let counts = Counts::default();
        let cost = Cost { charge: Charge::NONE, came: 1_000, slot: ArrivalSlot::NONE };
        cost.due(Some(Op::Read), Some(4096)).count(&counts, 5_000);
        cost.due(Some(Op::Read), Some(512)).failed().count(&counts, 9_000);
        cost.due(None, Some(7)).count(&counts, 9_000);
        let mut traffic = counts.read();
        let reads = traffic.of(Op::Read);
        assert_eq!((reads.requests, reads.errors, reads.bytes), (2, 1, 4096));
        assert_eq!(reads.latency.longest(), Some(Duration::from_nanos(8_000)));
        assert_eq!(traffic.of(Op::Write), &corewise_blockmq::OpStats::default());
        let again = traffic.clone();
        traffic.add(&again);
        assert_eq!((traffic.of(Op::Read).requests, traffic.of(Op::Read).latency.count()), (4, 4));
    }
}
