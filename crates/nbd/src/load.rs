//! What a connection owes its client: replies outstanding, their bytes, and whether it is being
//! drained or cut. One word, so that "nothing is owed" and "we are draining" can't be missed
//! between two.
//!
//! The reader is the only one that adds and the only one that waits (for room, or for nothing being
//! owed); the thread that has sent replies subtracts. Both meet in the one word by read-modify-write, so no
//! fence is needed: either the reader's wait bit comes first, and the subtraction sees it and
//! wakes; or the subtraction comes first, and the reader sees that there is room.
//!
//! Steps, races and proof: `load.md` beside this file. Model: `tests/loom/load.rs`.

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::{Parker, Unparker};

/// Bytes of the connection's own share.
const OWN_BITS: u32 = 24;
const OWN: u64 = (1 << OWN_BITS) - 1;
/// Units of [`UNIT`] bytes of the server's pool.
const POOL_BITS: u32 = 20;
const POOL: u64 = (1 << POOL_BITS) - 1;
const COUNT_AT: u32 = OWN_BITS + POOL_BITS;
const COUNT: u64 = 0xffff;
/// What is taken of the pool is counted in, in bytes.
const UNIT: u64 = 4096;
/// The reader waits until half of its budget is free. Set and cleared by the reader.
const WAIT_ROOM: u64 = 1 << 60;
/// The reader waits until nothing is owed. Set and cleared by the reader.
const WAIT_ZERO: u64 = 1 << 61;
/// New requests are refused. Set once by the thread that drains; never cleared.
const DRAINING: u64 = 1 << 62;
/// The connection is given up: replies are dropped. Set once; never cleared.
const CUT: u64 = 1 << 63;

/// Where the bytes of a request are counted: in the connection's own share, or in the server's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    own: u32,
    units: u32,
}

impl Charge {
    /// No bytes.
    pub const NONE: Charge = Charge { own: 0, units: 0 };

    /// So many bytes of the pool, rounded up.
    fn of_pool(bytes: u64) -> Charge {
        Charge { own: 0, units: u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX) }
    }

    /// The bytes that are counted in the pool.
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

/// The most that may be owed before the reader stops reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests in flight or answered but not sent: 1 to 65,535.
    pub requests: u32,
    /// Bytes of their payloads. A request larger than this is served alone.
    pub bytes: u64,
}

impl Default for Budget {
    /// 256 requests, 64 MiB.
    fn default() -> Self {
        Budget { requests: 256, bytes: 64 << 20 }
    }
}

impl Budget {
    /// True where a request of `bytes` may join what `load` shows.
    pub fn has_room(&self, load: Snapshot, bytes: u64) -> bool {
        load.requests == 0
            || (load.requests < self.requests.clamp(1, 0xffff) && load.bytes + bytes <= self.bytes)
    }

    /// True where so much is free that waking the reader pays.
    fn is_half_free(&self, load: Snapshot) -> bool {
        load.requests <= self.requests / 2 && load.bytes <= self.bytes / 2
    }
}

/// The word, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests that were admitted and whose reply hasn't been sent.
    pub requests: u32,
    /// Those of their payload bytes that are counted in the connection's own share.
    pub own: u64,
    /// All their payload bytes; those of the pool are rounded up.
    pub bytes: u64,
    /// New requests are refused.
    pub draining: bool,
    /// The connection is given up.
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
    /// A: counts and flags, laid out as the constants above say. Everything is a read-modify-write
    /// but the looks.
    word: AtomicU64,
    budget: Budget,
    /// Bytes that need no pool.
    share: u64,
    unparker: Unparker,
}

impl Load {
    /// Nothing is owed. The parker belongs to the reader thread, the only one that may wait. `share`: how many
    /// bytes of its requests the connection has for itself; what goes beyond is the pool's.
    pub fn new(budget: Budget, share: u64) -> (Load, Parker) {
        let parker = Parker::new();
        // Half of what the fields of the word hold, so that one request above the budget fits too.
        let budget = Budget { bytes: budget.bytes.min(POOL / 2 * UNIT), ..budget };
        let (share, unparker) = (share.min(OWN / 2), parker.unparker());
        (Load { word: AtomicU64::new(0), budget, share, unparker }, parker)
    }

    /// A look at the word.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.word.load(Ordering::Acquire))
    }

    /// Where a request of `bytes` would be counted: `None` where the budget has no room for it. It holds until the reader
    /// adds. Reader only.
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

    /// Admits a request that [`Load::charge`] had room for: what the word was before. Reader only.
    pub fn admit(&self, charge: Charge) -> Snapshot {
        // Nobody else adds, so what had room at the look still has room at the addition.
        Snapshot::of(self.word.fetch_add((1 << COUNT_AT) + charge.word(), Ordering::AcqRel))
    }

    /// What wakes the reader, for those that it waits for elsewhere.
    pub fn unparker(&self) -> &Unparker {
        &self.unparker
    }

    /// Waits until there may be room for `bytes`, or the connection is cut. Blocks. Reader only.
    pub fn wait_for_room(&self, parker: &Parker, bytes: u64) {
        self.wait(parker, WAIT_ROOM, |load| load.cut || self.budget.has_room(load, bytes));
    }

    /// Waits until nothing is owed. Blocks. Reader only. A cut connection too waits for its device:
    /// a request that runs holds buffers, and the shutdown of the device must not be told
    /// that nothing runs.
    pub fn wait_for_zero(&self, parker: &Parker) {
        self.wait(parker, WAIT_ZERO, |load| load.requests == 0);
    }

    fn wait(&self, parker: &Parker, bit: u64, enough: impl Fn(Snapshot) -> bool) {
        // Announce, then look at the value that the announcement saw: a subtraction after it sees
        // the bit and leaves a token.
        let mut seen = self.word.fetch_or(bit, Ordering::AcqRel);
        while !enough(Snapshot::of(seen)) {
            parker.park();
            seen = self.word.load(Ordering::Acquire);
        }
        self.word.fetch_and(!bit, Ordering::AcqRel);
    }

    /// The replies of `requests` requests, of `charge` together, were sent, or dropped for good. True
    /// where nothing is owed any more and the connection is being drained: the caller then
    /// stops the reading side. The caller gives the pool its part back. Any context; never blocks.
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

    /// Refuses new requests from now on; what was owed at that moment. Wakes the reader where it waits for memory: a
    /// request that is refused needs none. Any context.
    pub fn drain(&self) -> Snapshot {
        let was = Snapshot::of(self.word.fetch_or(DRAINING, Ordering::AcqRel));
        self.unparker.unpark();
        was
    }

    /// Gives the connection up; what was owed at that moment. Wakes the reader where it waits for
    /// room. Any context.
    pub fn cut(&self) -> Snapshot {
        let was = Snapshot::of(self.word.fetch_or(CUT, Ordering::AcqRel));
        self.unparker.unpark();
        was
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
    fn a_reader_that_waits_for_room_is_woken_when_half_is_free() {
        let (load, parker) = Load::new(budget(4, 1000), 1000);
        let charges = [(); 4].map(|()| admit(&load, 250).unwrap().0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for charge in charges {
                    let _ = load.settle(1, charge);
                }
            });
            load.wait_for_room(&parker, 250);
            load.wait_for_zero(&parker);
        });
        assert_eq!(load.snapshot().requests, 0);
    }

    #[test]
    fn a_cut_wakes_a_reader_that_waits_for_room() {
        let (load, parker) = Load::new(budget(1, 1), 1);
        assert!(admit(&load, 1).is_some());
        std::thread::scope(|scope| {
            scope.spawn(|| load.cut());
            load.wait_for_room(&parker, 1);
        });
        assert!(load.snapshot().cut);
    }
}
