//! What the requests of a connection came to: counters that one thread at a time writes, and any thread reads.
//!
//! A request is counted when its reply leaves, by the holder of the [flush right](crate::reply), of which there is one at a time: so
//! counting takes no locked operation. The clock is read once for each piece that was received, and once for the replies that
//! left in one call. A request that never was answered is not counted.

use std::sync::OnceLock;
use std::time::Duration;

use corewise_blockmq::{Op, OpStats};
use corewise_sync::atomic::Ordering;
use corewise_sync::atomic::aside::AtomicU64;
use corewise_sync::time::Histogram;

use crate::load::Charge;
use crate::waiting::ArrivalSlot;

/// What clients have been answered, by operation. An operation's `latency` goes from the arrival of a request to the moment
/// when all of its reply was given to the system, waiting for limits and for memory included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    ops: [OpStats; Op::ALL.len()],
}

impl Traffic {
    /// Those of one operation. A trim is a [`Discard`](Op::Discard), block status is [`Extents`](Op::Extents), and `CACHE` is
    /// a [`Prefetch`](Op::Prefetch).
    pub fn of(&self, op: Op) -> &OpStats {
        &self.ops[op as usize]
    }

    /// All operations, in the order of [`Op::ALL`].
    pub fn all(&self) -> [(Op, &OpStats); Op::ALL.len()] {
        Op::ALL.map(|op| (op, self.of(op)))
    }

    pub(crate) fn add(&mut self, other: &Traffic) {
        for (sum, more) in self.ops.iter_mut().zip(&other.ops) {
            sum.requests += more.requests;
            sum.errors += more.errors;
            sum.bytes += more.bytes;
            sum.latency.merge(&more.latency);
        }
    }
}

/// What a request was admitted with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) charge: Charge,
    /// When it was there, in nanoseconds since the connection was made.
    pub(crate) came: u64,
    /// Where that is kept while it is in flight.
    pub(crate) slot: ArrivalSlot,
}

impl Cost {
    /// What there is to settle when the request has been answered: `done` bytes, or failed; without an operation it isn't counted.
    pub(crate) fn due(self, op: Option<Op>, done: Option<u64>) -> Due {
        Due { cost: self, op, done }
    }
}

/// What is settled when a reply has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) cost: Cost,
    op: Option<Op>,
    done: Option<u64>,
}

impl Due {
    /// The same where it failed after all.
    pub(crate) fn failed(self) -> Due {
        Due { done: None, ..self }
    }
}

/// The counters of one connection.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// By the operation's place in [`Op::ALL`].
    ops: [OfOp; Op::ALL.len()],
}

#[derive(Debug, Default)]
struct OfOp {
    /// A: written by the holder of the flush right alone, as all here. Relaxed: it decides nothing.
    requests: AtomicU64,
    /// A: as `requests`.
    errors: AtomicU64,
    /// A: as `requests`.
    bytes: AtomicU64,
    /// Made when there is something to count.
    latency: OnceLock<Box<Histogram>>,
}

/// Adds where nobody else does.
fn add_alone(to: &AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Counts {
    /// A reply has left at `now`. The holder of the flush right only.
    pub(crate) fn answered(&self, due: &Due, now: u64) {
        let Some(op) = due.op else { return };
        let of_op = &self.ops[op as usize];
        add_alone(&of_op.requests, 1);
        match due.done {
            Some(0) => {}
            Some(bytes) => add_alone(&of_op.bytes, bytes),
            None => add_alone(&of_op.errors, 1),
        }
        let took = Duration::from_nanos(now.saturating_sub(due.cost.came));
        of_op.latency.get_or_init(Box::default).record_alone(took, 1);
    }

    /// What was counted so far.
    pub(crate) fn read(&self) -> Traffic {
        let mut traffic = Traffic::default();
        for (sum, of_op) in traffic.ops.iter_mut().zip(&self.ops) {
            sum.requests = of_op.requests.load(Ordering::Relaxed);
            sum.errors = of_op.errors.load(Ordering::Relaxed);
            sum.bytes = of_op.bytes.load(Ordering::Relaxed);
            if let Some(times) = of_op.latency.get() {
                sum.latency = times.read();
            }
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_counted_by_its_operation_with_the_time_since_its_request_came() {
        let counts = Counts::default();
        let cost = Cost { charge: Charge::NONE, came: 1_000, slot: ArrivalSlot::NONE };
        counts.answered(&cost.due(Some(Op::Read), Some(4096)), 5_000);
        counts.answered(&cost.due(Some(Op::Read), Some(512)).failed(), 9_000);
        counts.answered(&cost.due(None, Some(7)), 9_000);
        let mut traffic = counts.read();
        let reads = traffic.of(Op::Read);
        assert_eq!((reads.requests, reads.errors, reads.bytes), (2, 1, 4096));
        assert_eq!(reads.latency.longest(), Some(Duration::from_nanos(8_000)));
        assert_eq!(traffic.of(Op::Write), &OpStats::default());
        let again = traffic.clone();
        traffic.add(&again);
        assert_eq!((traffic.of(Op::Read).requests, traffic.of(Op::Read).latency.count()), (4, 4));
        let named: Vec<Op> = traffic.all().iter().map(|(op, _)| *op).collect();
        assert_eq!(named, Op::ALL);
    }
}
