//! Counters of answered requests, for people.

use std::sync::OnceLock;
use std::time::Duration;

use corewise_blockmq::{Op, OpStats};
use corewise_sync::atomic::{Ordering, aside};
use corewise_sync::time::Histogram;

/// Counters of answered requests, by operation. An operation's `latency` runs from the arrival of a
/// request until the client's system has its answer. It includes the waits for limits and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    ops: [OpStats; Op::ALL.len()],
}

impl Traffic {
    /// Returns the counters of one operation. A trim counts as a [`Discard`](Op::Discard), block
    /// status as [`Extents`](Op::Extents), and `CACHE` as a [`Prefetch`](Op::Prefetch).
    pub fn of(&self, op: Op) -> &OpStats {
        &self.ops[op as usize]
    }

    /// Adds the counters of another client.
    pub fn add(&mut self, other: &Traffic) {
        for (sum, more) in self.ops.iter_mut().zip(&other.ops) {
            sum.requests += more.requests;
            sum.errors += more.errors;
            sum.bytes += more.bytes;
            sum.latency.merge(&more.latency);
        }
    }
}

/// The counters of one client. One thread at a time writes them, so counting takes no locked
/// operation; any thread reads them.
#[derive(Debug, Default)]
pub struct Counts {
    /// Counters, by the operation's position in [`Op::ALL`].
    ops: [OpCounts; Op::ALL.len()],
}

#[derive(Debug, Default)]
struct OpCounts {
    /// A: written by one thread at a time, as all fields here. Relaxed: no decision depends on it.
    requests: aside::AtomicU64,
    /// A: as `requests`.
    errors: aside::AtomicU64,
    /// A: as `requests`.
    bytes: aside::AtomicU64,
    /// A histogram, allocated at the first request.
    latency: OnceLock<Box<Histogram>>,
}

/// Adds to a counter that no other thread writes.
fn add_alone(to: &aside::AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Counts {
    /// Counts a request that has ended after `took`. `done` is its bytes, or `None` if it failed.
    /// One thread at a time.
    pub fn ended(&self, op: Op, done: Option<u64>, took: Duration) {
        let of_op = &self.ops[op as usize];
        add_alone(&of_op.requests, 1);
        match done {
            Some(0) => {}
            Some(bytes) => add_alone(&of_op.bytes, bytes),
            None => add_alone(&of_op.errors, 1),
        }
        of_op.latency.get_or_init(Box::default).record_alone(took, 1);
    }

    /// Returns the counters so far.
    pub fn read(&self) -> Traffic {
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
