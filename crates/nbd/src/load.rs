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

const BYTES_BITS: u32 = 40;
const BYTES: u64 = (1 << BYTES_BITS) - 1;
const ONE: u64 = 1 << BYTES_BITS;
const COUNT: u64 = 0xffff << BYTES_BITS;
/// The reader waits until half of its budget is free. Set and cleared by the reader.
const WAIT_ROOM: u64 = 1 << 56;
/// The reader waits until nothing is owed. Set and cleared by the reader.
const WAIT_ZERO: u64 = 1 << 57;
/// New requests are refused. Set once by the thread that drains; never cleared.
const DRAINING: u64 = 1 << 58;
/// The connection is given up: replies are dropped. Set once; never cleared.
const CUT: u64 = 1 << 59;

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
    /// Their payload bytes.
    pub bytes: u64,
    /// New requests are refused.
    pub draining: bool,
    /// The connection is given up.
    pub cut: bool,
}

impl Snapshot {
    fn of(word: u64) -> Snapshot {
        Snapshot {
            requests: ((word & COUNT) >> BYTES_BITS) as u32,
            bytes: word & BYTES,
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
    unparker: Unparker,
}

impl Load {
    /// Nothing is owed. The parker belongs to the reader thread, the only one that may wait.
    pub fn new(budget: Budget) -> (Load, Parker) {
        let parker = Parker::new();
        // Half of what the field of the word holds, so that one request above the budget fits too.
        let budget = Budget { bytes: budget.bytes.min(BYTES / 2), ..budget };
        (Load { word: AtomicU64::new(0), budget, unparker: parker.unparker() }, parker)
    }

    /// A look at the word.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.word.load(Ordering::Acquire))
    }

    /// Admits a request of `bytes` where the budget has room: what the word was before, or `None`
    /// where there is no room. Reader only.
    pub fn try_admit(&self, bytes: u64) -> Option<Snapshot> {
        // Nobody else adds, so what has room now still has room at the addition.
        if !self.budget.has_room(self.snapshot(), bytes) {
            return None;
        }
        Some(Snapshot::of(self.word.fetch_add(ONE + bytes, Ordering::AcqRel)))
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

    /// The replies of `requests` requests of `bytes` together were sent, or dropped for good. True
    /// where nothing is owed any more and the connection is being drained: the caller then
    /// stops the reading side. Any context; never blocks.
    #[must_use]
    pub fn settle(&self, requests: u32, bytes: u64) -> bool {
        let by = u64::from(requests) * ONE + bytes;
        let word = self.word.fetch_sub(by, Ordering::AcqRel) - by;
        let load = Snapshot::of(word);
        if word & WAIT_ROOM != 0 && self.budget.is_half_free(load)
            || word & (WAIT_ROOM | WAIT_ZERO) != 0 && load.requests == 0
        {
            self.unparker.unpark();
        }
        load.requests == 0 && load.draining
    }

    /// Refuses new requests from now on; what was owed at that moment. Any context.
    pub fn drain(&self) -> Snapshot {
        Snapshot::of(self.word.fetch_or(DRAINING, Ordering::AcqRel))
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

    #[test]
    fn the_budget_limits_requests_and_bytes_but_never_the_only_request() {
        let (load, _parker) = Load::new(budget(2, 1000));
        assert!(load.try_admit(5000).is_some(), "alone, even a large one is served");
        assert!(load.try_admit(0).is_none(), "its bytes fill the budget");
        assert!(!load.settle(1, 5000));
        assert!(load.try_admit(400).is_some());
        assert!(load.try_admit(700).is_none(), "too many bytes");
        assert!(load.try_admit(600).is_some());
        assert!(load.try_admit(0).is_none(), "too many requests");
        let now = load.snapshot();
        assert_eq!((now.requests, now.bytes), (2, 1000));
    }

    #[test]
    fn the_last_reply_of_a_draining_connection_is_reported_once() {
        let (load, _parker) = Load::new(Budget::default());
        assert!(load.try_admit(10).is_some());
        assert!(load.try_admit(20).is_some());
        assert_eq!(load.drain().requests, 2);
        assert!(load.try_admit(0).unwrap().draining, "the reader learns of the drain");
        assert!(!load.settle(2, 30));
        assert!(load.settle(1, 0));
        assert_eq!(load.snapshot().requests, 0);
    }

    #[test]
    fn a_reader_that_waits_for_room_is_woken_when_half_is_free() {
        let (load, parker) = Load::new(budget(4, 1000));
        for _ in 0..4 {
            assert!(load.try_admit(250).is_some());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..4 {
                    let _ = load.settle(1, 250);
                }
            });
            load.wait_for_room(&parker, 250);
            load.wait_for_zero(&parker);
        });
        assert_eq!(load.snapshot().requests, 0);
    }

    #[test]
    fn a_cut_wakes_a_reader_that_waits_for_room() {
        let (load, parker) = Load::new(budget(1, 1));
        assert!(load.try_admit(1).is_some());
        std::thread::scope(|scope| {
            scope.spawn(|| load.cut());
            load.wait_for_room(&parker, 1);
        });
        assert!(load.snapshot().cut);
    }
}
