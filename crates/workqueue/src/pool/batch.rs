//! What a worker has reserved and not taken: its batch; and how many items it may reserve at once.

use std::time::{Duration, Instant};

use corewise_sync::cell::UnsafeCell;
use corewise_sync::ring::Reserved;
use corewise_sync::time;

/// The most items of a batch.
pub(super) const MOST: u64 = 32;
/// An item of a batch waits for so long, at most, if those before it are as long as the last ones were.
const BATCH_TAKES: Duration = Duration::from_micros(5);
/// The clock is read once in so many items, at most.
const SAMPLE: u64 = 16;

/// Once in so many times that a worker says so it is counted how many lists are in use. (Each time, on 16 simulated CPUs: fan takes 1.5
/// [1.3..1.9] of the time, a storm of one producer makes 0.90 [0.85..0.94]; ab2d844.)
pub(super) const COUNT: u32 = 16;
/// Items that take so many nanoseconds at most are tiny, once so many samples in a row have said so.
const TINY: u64 = 2_000;
const PROOF: u32 = 4;
/// A worker that runs one tiny item after the other says how long they take once in so many looks at the clock.
const TELL: u32 = 32;
/// Before so many looks in vain a worker that runs tiny items leaves alone what others have reserved. (Without it, on 16 simulated CPUs:
/// a storm of 16 producers that count apart makes 0.92 [0.62..1.05], an item takes 3.9 lines for 2.4; c607082.)
const LEAVES: u32 = 2;
/// So few workers are never too many: where each has its own CPU's list, one that stops costs more than two that are in
/// each other's way at times.
pub(super) const ALWAYS: usize = 2;
/// One CPU queues no faster than an item in so many nanoseconds.
const QUEUED_IN: u64 = 100;

/// How many workers can be of use for what is queued on so many lists, where an item takes one of them so long. (Without such a
/// limit, on 16 simulated CPUs: inside makes 0.21 for 7 times the CPU time, a storm of one producer 0.37 for 25 times; ab2d844.)
pub(crate) fn most_takers(lists: usize, each: u64) -> usize {
    lists.max(1).saturating_mul(usize::try_from(each.div_ceil(QUEUED_IN)).unwrap_or(usize::MAX))
}

/// Whether those that take from a list don't keep up, where so many items wait in it.
pub(crate) fn piles_up(waiting: u64) -> bool {
    waiting >= 8 * MOST
}

/// How long a tiny item takes by itself, where that was taken for `least`, and one took so long just now. Workers that
/// are in each other's way make items longer, so it sinks at once and rises slowly. (Where it rises at once, on 16 simulated
/// CPUs: inside makes 0.68 [0.38..1.00], a storm of one producer takes 2.2 of the CPU time; ab2d844.)
pub(crate) fn least(least: u64, each: u64) -> u64 {
    each.min(least.saturating_add(each.saturating_sub(least) / 256))
}

/// How many of `waiting` items a worker reserves that may take `most` at once, where so many workers share them. (Where none
/// does, on 72 simulated CPUs: a storm of one producer makes 0.80 [0.73..0.84], though one of four makes more on 16; ab2d844.)
pub(crate) fn share(waiting: u64, workers: u64, most: u64) -> u64 {
    (waiting / workers.max(1)).clamp(1, most.clamp(1, MOST))
}

/// How many items may be reserved at once of which each takes so many nanoseconds.
pub(crate) fn most_at_once(each: u64) -> u64 {
    (BATCH_TAKES.as_nanos() as u64 / each).clamp(1, MOST)
}

/// A worker that runs one tiny item after the other says this.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// How long an item takes, in nanoseconds.
    pub(super) each: u64,
    /// How many waited in the list that it took from last.
    pub(super) waiting: u64,
}

/// The batch of a worker.
pub(crate) struct Batch {
    /// The list that it is of.
    pub(super) list: usize,
    pub(super) of: Reserved,
    /// How many may be reserved at once.
    pub(crate) most: u64,
    /// Items that were reserved since the clock was read.
    items: u64,
    /// When that was; `None`: it has done something else since.
    read: Option<Instant>,
    /// Those that weren't learnt from, and how long they took.
    before: (u64, Duration),
    /// How many items waited when they were reserved.
    waiting: u64,
    /// How long each of the last ones took, in nanoseconds.
    each: u64,
    /// How often in a row that was little.
    tiny: u32,
    /// How often that was learnt since it was told.
    untold: u32,
    /// It has told the pool that it runs one tiny item after the other.
    told: bool,
    /// It is to be told.
    pub(super) tells: bool,
    /// How often it has found nothing since it took something.
    dry: u32,
    /// How often another taker was faster, since the last sample.
    lost: u64,
}

impl Batch {
    fn new() -> Batch {
        Batch {
            list: 0,
            of: Reserved::default(),
            most: 1,
            items: 0,
            read: None,
            before: (0, Duration::ZERO),
            waiting: 0,
            each: 0,
            tiny: 0,
            untold: 0,
            told: false,
            tells: false,
            dry: 0,
            lost: 0,
        }
    }

    /// Another batch begins.
    #[inline(always)]
    pub(super) fn begins(&mut self, list: usize, of: Reserved, waiting: u64) {
        // One item at a time says nothing of a row of them, and two looks at the clock are a tenth of a ping-pong.
        if self.read.is_none() && waiting > 1 {
            self.read = Some(time::now());
        }
        if self.read.is_some() {
            self.items += of.len() as u64;
        }
        (self.list, self.of, self.waiting, self.dry) = (list, of, waiting, 0);
    }

    /// What another worker has reserved and left is its batch.
    pub(super) fn adopts(&mut self, list: usize, of: Reserved) {
        (self.list, self.of) = (list, of);
    }

    /// The worker is about to reserve something: learns from what it has run since it did that last.
    #[inline(always)]
    pub(super) fn learns(&mut self) {
        if self.items >= SAMPLE {
            self.reads_clock();
        }
    }

    /// Another taker was faster.
    #[cold]
    pub(super) fn loses(&mut self) {
        self.lost += 1;
    }

    /// The row of items is over: the worker looks elsewhere.
    pub(super) fn pauses(&mut self) {
        if self.items > 0 {
            self.reads_clock();
        }
        self.read = None;
    }

    #[inline(never)]
    fn reads_clock(&mut self) {
        let now = time::now();
        let Some(before) = self.read.replace(now) else { return };
        let (items, took) = self.before;
        let (items, took) = (items + self.items, took + now.saturating_duration_since(before));
        self.items = 0;
        self.before = (items, took);
        if items < SAMPLE {
            return;
        }
        self.before = (0, Duration::ZERO);
        self.each = (took.as_nanos() as u64 / items).max(1);
        self.most = most_at_once(self.each);
        self.untold += 1;
        // Takers that are in each other's way make items look long.
        let are_tiny = self.each <= TINY || self.lost >= items;
        self.tiny = if are_tiny { self.tiny.saturating_add(1) } else { 0 };
        self.lost = 0;
        let proven = self.is_proven();
        if self.told != proven || proven && self.untold >= TELL {
            (self.tells, self.untold) = (true, 0);
        }
    }

    fn is_proven(&self) -> bool {
        self.tiny >= PROOF
    }

    /// What the pool is to know, if it runs one tiny item after the other.
    pub(super) fn tell(&mut self) -> Option<Stream> {
        self.tells = false;
        self.told = self.is_proven();
        self.told.then_some(Stream { each: self.each, waiting: self.waiting })
    }

    /// It has found nothing that nobody has reserved, once more: whether it leaves what others have to them for a moment.
    pub(super) fn waits_for_others(&mut self) -> bool {
        self.dry = self.dry.saturating_add(1);
        self.told && self.dry <= LEAVES
    }

    /// The worker does something else, and leaves what it has reserved to the others.
    pub(super) fn rests(&mut self) {
        self.of = Reserved::default();
        (self.items, self.read, self.dry) = (0, None, 0);
        // It tells what it knows when it takes something.
        (self.told, self.tells) = (false, self.is_proven());
    }

    /// Its items are long, or not known.
    pub(super) fn forgets(&mut self) {
        (self.most, self.items, self.read, self.tiny) = (1, 0, None, 0);
        (self.before, self.told, self.tells) = ((0, Duration::ZERO), false, false);
    }
}

/// The batch in a worker that is shared.
pub(crate) struct OwnBatch(
    /// O: of the worker's thread.
    UnsafeCell<Batch>,
);

// SAFETY: only its worker's thread touches it, see `with`.
unsafe impl Sync for OwnBatch {}

impl OwnBatch {
    pub(super) fn new() -> OwnBatch {
        OwnBatch(UnsafeCell::new(Batch::new()))
    }

    /// Called by the worker itself, and not inside of itself.
    #[inline(always)]
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut Batch) -> R) -> R {
        // SAFETY: the worker alone calls this, with what doesn't come back here.
        self.0.with_mut(|batch| with(unsafe { &mut *batch }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch whose worker has taken so many items one by one, each of which took `each`, and was overtaken so often with each.
    fn ran(items: u64, each: Duration, lost: u64) -> Batch {
        let mut batch = Batch::new();
        for _ in 0..items {
            batch.learns();
            (0..lost).for_each(|_| batch.loses());
            // The clock is set back by what the item takes.
            batch.read = Some(batch.read.unwrap_or_else(time::now).checked_sub(each).unwrap());
            batch.items += 1;
        }
        batch
    }

    #[test]
    fn takers_in_each_others_way_run_tiny_items_however_long_they_look() {
        let long = Duration::from_micros(50);
        let proof = SAMPLE * u64::from(PROOF) + 1;
        assert!(!ran(proof, long, 0).is_proven(), "the items are long");
        assert!(ran(proof, long, 1).is_proven(), "each was taken after another try");
    }
}
