//! Statistics of a disk: its operations, their bytes and their times.
//!
//! A request is counted when it **ends**, on the line of the CPU that it ends on, before its
//! completion function runs. So no CPU writes another one's line, and a completion function finds
//! its request counted.
//!
//! Clocks are the cost: a precise one takes some 25 ns to read, and a request's time with its share
//! in the driver takes three of them. So all requests are counted; of requests that follow each
//! other fast, one in eight is timed and stands for the others (`weight`).

use std::sync::OnceLock;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::time::{Histogram, Latencies};
use std::time::Duration;

use crate::request::Op;

/// The detail that a queue records about its requests' times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoStats {
    /// Requests and bytes are counted, nothing is timed.
    Counted,
    /// Requests are counted, and one request in eight is timed, which stands for the others.
    #[default]
    Sampled,
    /// Each request is timed: some 75 ns of clock reading for each.
    Timed,
}

/// Number of requests of which one is timed.
const SAMPLED: u32 = 8;

/// Returns the number of requests for which this one stands in the histograms; 0 if it isn't timed.
/// The first uses of a box (see `cache.rs`) are all timed, so that a disk with few requests isn't
/// measured by one in eight.
pub(crate) fn weight(how: IoStats, use_of_box: u32) -> u32 {
    match how {
        IoStats::Counted => 0,
        IoStats::Timed => 1,
        IoStats::Sampled if use_of_box < SAMPLED => 1,
        IoStats::Sampled if use_of_box % SAMPLED == 0 => SAMPLED,
        IoStats::Sampled => 0,
    }
}

/// The counters of one operation of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpStats {
    /// Requests that have ended, well or not.
    pub requests: u64,
    /// Requests that have failed.
    pub errors: u64,
    /// Bytes of those that ended well. The range of a request without bytes of its own counts too.
    pub bytes: u64,
    /// Time from the submission to the end, before the completion function.
    pub latency: Latencies,
}

/// The counters of a disk, as Linux's `/proc/diskstats`. Read while it works, the numbers are a
/// moment apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Reads.
    pub reads: OpStats,
    /// Writes.
    pub writes: OpStats,
    /// Flushes.
    pub flushes: OpStats,
    /// Discards.
    pub discards: OpStats,
    /// Write-zeroes.
    pub write_zeroes: OpStats,
    /// Requests for extents.
    pub extents: OpStats,
    /// Prefetches.
    pub prefetches: OpStats,
    /// Time that the driver had requests, of any operation, as they came to it: split to its
    /// limits, merged. For the rest of their latency, they waited in the queue, for a tag or for
    /// the driver.
    pub in_driver: Latencies,
}

/// The counters of a disk, each CPU's on lines of their own.
pub(crate) struct Counters {
    slots: Box<[CachePadded<Slot>]>,
}

#[derive(Default)]
struct Slot {
    /// The counters by the operation's index.
    ops: [OfOp; Op::ALL.len()],
    /// The histogram, made when there is something to count: so a CPU without requests for the disk
    /// costs no more memory than this.
    in_driver: OnceLock<Box<Histogram>>,
}

#[derive(Default)]
struct OfOp {
    /// A: Relaxed counter, as all here; written by threads on this CPU, and only for a moment by
    /// one that has just been moved away.
    requests: AtomicU64,
    /// A: as `requests`.
    errors: AtomicU64,
    /// A: as `requests`.
    bytes: AtomicU64,
    latency: OnceLock<Box<Histogram>>,
}

impl Counters {
    /// Creates counters for `slots` CPUs; at least one.
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: (0..slots.max(1)).map(|_| CachePadded::new(Slot::default())).collect() }
    }

    /// Counts a request that ends on the CPU of `slot`, with this many bytes done, or failed.
    /// `latency`: its time, and the number of requests that it stands for, if it was timed.
    #[inline]
    pub(crate) fn ended(
        &self,
        slot: usize,
        op: Op,
        done: Option<u64>,
        latency: Option<(Duration, u32)>,
    ) {
        let of_op = &self.slots[slot].ops[op.index()];
        of_op.requests.fetch_add(1, Ordering::Relaxed);
        match done {
            Some(0) => {}
            Some(bytes) => _ = of_op.bytes.fetch_add(bytes, Ordering::Relaxed),
            None => _ = of_op.errors.fetch_add(1, Ordering::Relaxed),
        }
        if let Some((latency, weight)) = latency {
            of_op.latency.get_or_init(Box::default).record(latency, weight);
        }
    }

    /// Counts the time that the driver had a request; `weight` is the number of requests that it
    /// stands for.
    pub(crate) fn in_driver(&self, slot: usize, time: Duration, weight: u32) {
        self.slots[slot].in_driver.get_or_init(Box::default).record(time, weight);
    }

    /// Returns the sum over all CPUs.
    pub(crate) fn read(&self) -> DiskStats {
        let of = |op: Op| {
            let mut sum = OpStats::default();
            for of_op in self.slots.iter().map(|slot| &slot.ops[op.index()]) {
                sum.requests += of_op.requests.load(Ordering::Relaxed);
                sum.errors += of_op.errors.load(Ordering::Relaxed);
                sum.bytes += of_op.bytes.load(Ordering::Relaxed);
                add(&mut sum.latency, &of_op.latency);
            }
            sum
        };
        let mut in_driver = Latencies::default();
        self.slots.iter().for_each(|slot| add(&mut in_driver, &slot.in_driver));
        DiskStats {
            reads: of(Op::Read),
            writes: of(Op::Write),
            flushes: of(Op::Flush),
            discards: of(Op::Discard),
            write_zeroes: of(Op::WriteZeroes),
            extents: of(Op::Extents),
            prefetches: of(Op::Prefetch),
            in_driver,
        }
    }
}

fn add(sum: &mut Latencies, times: &OnceLock<Box<Histogram>>) {
    if let Some(times) = times.get() {
        sum.merge(&times.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_timed_each_time_at_first_and_then_stands_for_those_that_are_not() {
        for (how, timed) in [(IoStats::Timed, 80), (IoStats::Sampled, 17), (IoStats::Counted, 0)] {
            let weights: Vec<u32> = (0..80).map(|n| weight(how, n)).collect();
            assert_eq!(weights.iter().filter(|w| **w != 0).count(), timed, "{how:?}");
            let all = if how == IoStats::Counted { 0 } else { 80 };
            assert_eq!(weights.iter().sum::<u32>(), all, "{how:?}");
        }
    }

    #[test]
    fn each_end_is_counted_once_by_its_operation_on_any_cpu() {
        let counters = Counters::new(3);
        let took = |micros| Some((Duration::from_micros(micros), 8));
        counters.ended(0, Op::Read, Some(4096), took(100));
        counters.ended(2, Op::Read, Some(512), took(200));
        counters.in_driver(2, Duration::from_micros(100), 8);
        counters.ended(2, Op::Read, None, None);
        counters.ended(1, Op::Flush, Some(0), None);
        let stats = counters.read();
        assert_eq!((stats.reads.requests, stats.reads.errors, stats.reads.bytes), (3, 1, 4608));
        assert_eq!(stats.reads.latency.count(), 16);
        assert_eq!(stats.reads.latency.longest(), Some(Duration::from_micros(200)));
        assert_eq!(stats.in_driver.longest(), Some(Duration::from_micros(100)));
        assert_eq!((stats.flushes.requests, stats.flushes.latency.count()), (1, 0));
        let DiskStats { writes, discards, write_zeroes, extents, prefetches, .. } = stats;
        let others = [writes, discards, write_zeroes, extents, prefetches];
        assert!(others.iter().all(|of| *of == OpStats::default()));
    }
}
