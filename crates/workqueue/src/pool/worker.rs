//! A worker: its parking spot, what it knows of its own work, the batch that it has reserved and
//! not taken, what it counts, and its permit to be one of the pools' threads.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, aside};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::ring::Reserved;
use corewise_sync::{CachePadded, Parker, hint, sys, time};
use corewise_topology::CpuId;

use crate::pool::pins::OwnCpu;
use crate::pool::policy::{self, Counts, YieldHabit};
use crate::task::running::Publication;
use crate::task::ticket::DeferredEnds;

/// A worker of a pool.
pub(crate) struct Worker {
    /// I: the pool's index in its group.
    pub(crate) pool: usize,
    /// I: its number in the pool, never used again.
    pub(crate) id: u32,
    parker: Parker,
    /// The CPU that its thread is pinned to alone.
    pub(super) own_cpu: Arc<OwnCpu>,
    /// What it runs.
    pub(crate) shown: CachePadded<Publication>,
    /// A: the kernel's number of its thread; 0 before that has started, and for one that is driven
    /// by hand.
    pub(super) tid: AtomicU32,
    /// L: the pool's lock: what it is exempt for, see
    /// [`Exemption`](crate::pool::exemption::Exemption); atomic only because a worker is shared.
    pub(super) exemptions: AtomicU32,
    /// A: the CPU that it was woken from last, and one; 0 where that isn't known. A hint, written
    /// before `woken`: Relaxed.
    waker: AtomicU32,
    /// A: when it was woken for work, in nanoseconds since `born`; 0 once it has asked. Written
    /// before `woken`: Relaxed.
    woken_at: AtomicU64,
    /// A: it spins, and does what comes quickly. A hint: Relaxed.
    spins: AtomicBool,
    /// A: somebody took it off the idle list. Set under the pool's lock before the unpark, taken
    /// by the worker after its park: a park that returns without it was spurious. Relaxed: the
    /// token orders.
    woken: AtomicBool,
    /// O: it is the pool's searcher. Set by the worker when it takes `woken`; atomic only because
    /// a worker is shared.
    pub(super) searching: AtomicBool,
    /// O: how often it has looked at another list; as `searching`.
    looks: aside::AtomicU32,
    /// O: once it has run so many items its turn at a list may be over; 0: ask before each. As
    /// `searching`.
    look_at: aside::AtomicU64,
    /// O: items that it had run when that turn began; as `searching`.
    turn_items: aside::AtomicU64,
    /// O: when it began, in nanoseconds since `born`; as `searching`.
    turn_began: aside::AtomicU64,
    /// O: the list whose turn it is, and one; 0: that of its CPU. As `searching`.
    turn: aside::AtomicU32,
    /// O: what it saw there; as `searching`.
    saw: [aside::AtomicU64; 2],
    /// O: items that it had run when it last was out of work for so long that it went idle; as
    /// `searching`.
    rose: AtomicU64,
    /// O: items that it had run when it yielded last; as `searching`.
    yielded: AtomicU64,
    /// O: how often it has yielded since it ran the last of them; as `searching`.
    yields: AtomicU32,
    /// O: what came of making way for the thread that queues on its CPU, as bits of a
    /// [`YieldHabit`]; as `searching`.
    yield_habit: AtomicU32,
    /// I: since when `blocked` counts.
    born: Instant,
    /// A: when its blocking region began, in nanoseconds since `born`; 0 outside of one, and until
    /// it is noted. Written by the worker; others read it under the pool's lock where `exemptions`
    /// says that it is in one: Relaxed.
    pub(super) blocked: AtomicU64,
    /// What it has run and not counted out: nothing, while it is idle or runs anything else.
    pub(crate) carry: DeferredEnds,
    pub(crate) ran: Ran,
    /// What it has reserved.
    pub(crate) batch: OwnBatch,
    /// L: the pool's lock: it is counted among the takers. Atomic only because a worker is shared.
    taker: AtomicBool,
    /// L: the pool's lock: how many items it had run when the timekeeper looked last.
    seen: AtomicU64,
}

impl Worker {
    pub(crate) fn new(pool: usize, id: u32) -> Self {
        Worker {
            pool,
            id,
            parker: Parker::new(),
            own_cpu: Arc::new(OwnCpu::none()),
            shown: CachePadded::new(Publication::new()),
            tid: AtomicU32::new(0),
            exemptions: AtomicU32::new(0),
            waker: AtomicU32::new(0),
            woken_at: AtomicU64::new(0),
            spins: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            searching: AtomicBool::new(false),
            looks: aside::AtomicU32::new(0),
            look_at: aside::AtomicU64::new(0),
            turn_items: aside::AtomicU64::new(0),
            turn_began: aside::AtomicU64::new(0),
            turn: aside::AtomicU32::new(0),
            saw: [aside::AtomicU64::new(0), aside::AtomicU64::new(0)],
            rose: AtomicU64::new(0),
            yielded: AtomicU64::new(0),
            yields: AtomicU32::new(0),
            yield_habit: AtomicU32::new(YieldHabit::NEW.to_bits()),
            born: time::now(),
            blocked: AtomicU64::new(0),
            carry: DeferredEnds::new(),
            ran: Ran::default(),
            batch: OwnBatch::new(),
            taker: AtomicBool::new(false),
            seen: AtomicU64::new(u64::MAX),
        }
    }

    /// Under the pool's lock: whether it is counted among the takers.
    pub(super) fn is_taker(&self) -> bool {
        self.taker.load(Ordering::Relaxed)
    }

    /// Under the pool's lock: it runs one tiny item after the other, or doesn't any more.
    pub(crate) fn counts_as_taker(&self, counts: &mut Counts, takes: bool) {
        if self.taker.swap(takes, Ordering::Relaxed) != takes {
            counts.takers = counts.takers + usize::from(takes) - usize::from(!takes);
        }
        if counts.takers == 0 {
            counts.enough = 0;
        }
    }

    /// Under the pool's lock: whether it has run no item since this was asked the last time.
    pub(super) fn has_run_nothing(&self) -> bool {
        let (ran, _) = self.ran.read();
        self.seen.swap(ran, Ordering::Relaxed) == ran
    }

    /// The kernel's number of its thread, once that has started.
    pub(crate) fn tid(&self) -> Option<u32> {
        Some(self.tid.load(Ordering::Relaxed)).filter(|tid| *tid != 0)
    }

    /// Under the pool's lock, by the thread that took it off the idle list.
    pub(super) fn wake_up(&self, from: Option<CpuId>) {
        // A model's threads are on no CPU, and each atomic operation makes it longer.
        if let Some(cpu) = from {
            self.waker.store(cpu.number().wrapping_add(1), Ordering::Relaxed);
            self.woken_at.store(self.age(), Ordering::Relaxed);
        }
        self.woken.store(true, Ordering::Relaxed);
    }

    /// After the lock was released.
    pub(super) fn unpark(&self) {
        self.parker.unpark();
    }

    /// Whether it was woken; it is then the searcher.
    pub(crate) fn take_wake(&self) -> bool {
        let woken = self.woken.swap(false, Ordering::Relaxed);
        if woken {
            self.searching.store(true, Ordering::Relaxed);
        }
        woken
    }

    /// Whether it is the searcher. Asked by the worker itself.
    #[inline]
    pub(super) fn is_searching(&self) -> bool {
        self.searching.load(Ordering::Relaxed)
    }

    /// How long ago it was woken for work. Asked by the worker itself, once.
    pub(super) fn woken_for(&self) -> Duration {
        match self.woken_at.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            at => {
                self.woken_at.store(0, Ordering::Relaxed);
                Duration::from_nanos(self.age().saturating_sub(at))
            }
        }
    }

    /// Nanoseconds since it was made.
    pub(super) fn age(&self) -> u64 {
        let since = time::now().saturating_duration_since(self.born);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Its blocking region begins.
    pub(super) fn blocks(&self) {
        self.blocked.store(self.age().max(1), Ordering::Relaxed);
    }

    /// Its blocking region is about to end. Before the exemption does: nobody takes this time for
    /// that of the next region.
    pub(super) fn has_blocked(&self) {
        self.blocked.store(0, Ordering::Relaxed);
    }

    /// Items that it has run one after the other. Asked by the worker itself, as all below.
    fn streak(&self) -> u64 {
        self.ran.items() - self.rose.load(Ordering::Relaxed)
    }

    /// How often it has yielded since it ran the last item; from here on once more.
    fn next_yield(&self) -> u32 {
        let ran = self.ran.items();
        let before = match self.yielded.load(Ordering::Relaxed) == ran {
            true => self.yields.load(Ordering::Relaxed),
            false => 0,
        };
        self.yielded.store(ran, Ordering::Relaxed);
        self.yields.store(before + 1, Ordering::Relaxed);
        before
    }

    /// It has found nothing: whether to yield and look again before it goes idle.
    pub(super) fn pauses(&self) -> bool {
        let pauses = policy::yields_before_idle(self.streak(), self.next_yield());
        if !pauses {
            self.rose.store(self.ran.items(), Ordering::Relaxed);
        }
        pauses
    }

    /// It has found nothing that was queued on its CPU: whether to yield before it takes what was
    /// queued on another.
    pub(super) fn makes_way(&self) -> bool {
        change(&self.yield_habit, |yield_habit| yield_habit.makes_way(self.streak()))
    }

    /// It has yielded, and found something then, or not.
    pub(super) fn made_way(&self, well: bool) {
        change(&self.yield_habit, |yield_habit| yield_habit.learn(well));
    }

    /// It is about to take something: whether its turn at the list of its CPU may be over.
    #[inline]
    pub(super) fn looks_around(&self) -> bool {
        self.ran.items() >= self.look_at.load(Ordering::Relaxed)
    }

    /// Whether its turn at a list is over.
    pub(super) fn turn_is_over(&self) -> bool {
        let items = self.ran.items() - self.turn_items.load(Ordering::Relaxed);
        let took = self.age() - self.turn_began.load(Ordering::Relaxed);
        policy::turn_is_over(items, Duration::from_nanos(took))
    }

    /// Its turn isn't over: it looks at the clock again before the next item, or after some where
    /// they are short.
    pub(super) fn looks_later(&self) {
        let items = self.ran.items();
        let ran = items - self.turn_items.load(Ordering::Relaxed);
        let took = Duration::from_nanos(self.age() - self.turn_began.load(Ordering::Relaxed));
        let next = if policy::are_short(ran, took) { items + policy::LOOK_ITEMS } else { 0 };
        self.look_at.store(next, Ordering::Relaxed);
    }

    /// The list whose turn it is, if that isn't the one of its CPU.
    pub(super) fn turn(&self) -> Option<usize> {
        (self.turn.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// The turn of another list begins, or that of the one of its CPU. How often one has begun
    /// before.
    pub(super) fn begins_turn(&self) -> u32 {
        let (items, now) = (self.ran.items(), self.age());
        let ran = items - self.turn_items.load(Ordering::Relaxed);
        let long = ran < policy::TURN_ITEMS
            || now - self.turn_began.load(Ordering::Relaxed) >= policy::TURN.as_nanos() as u64;
        self.look_at.store(if long { 0 } else { items + policy::LOOK_ITEMS }, Ordering::Relaxed);
        self.turn_items.store(items, Ordering::Relaxed);
        self.turn_began.store(now, Ordering::Relaxed);
        let looks = self.looks.load(Ordering::Relaxed);
        self.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
        looks
    }

    /// It is that of this list, or of the one of its CPU.
    pub(super) fn gives_turn(&self, list: Option<usize>) {
        let turn = list.map_or(0, |list| list as u32 + 1);
        self.turn.store(turn, Ordering::Relaxed);
        if turn != 0 {
            self.look_at.store(0, Ordering::Relaxed);
        }
    }

    /// It sees these now: which of them it saw the last time.
    pub(super) fn saw(&self, now: [u64; 2]) -> [bool; 2] {
        std::array::from_fn(|at| {
            let before = self.saw[at].load(Ordering::Relaxed);
            self.saw[at].store(now[at], Ordering::Relaxed);
            before == now[at]
        })
    }

    /// Under the pool's lock, where nobody else is: it is the searcher. Whether there was none
    /// before.
    pub(super) fn begin_searching(&self, counts: &mut Counts) -> bool {
        self.searching.store(true, Ordering::Relaxed);
        !mem::replace(&mut counts.searching, true)
    }

    /// Under the pool's lock: it has found something, or gives up. Whether it was the searcher.
    pub(super) fn stop_searching(&self, counts: &mut Counts) -> bool {
        let searched = self.searching.swap(false, Ordering::Relaxed);
        if searched {
            counts.searching = false;
        }
        searched
    }

    /// Whether it was woken from this CPU (the last time).
    pub(super) fn was_woken_from(&self, cpu: CpuId) -> bool {
        self.waker.load(Ordering::Relaxed) == cpu.number().wrapping_add(1)
    }

    /// It begins to spin and is `quick`, or it ends.
    pub(super) fn spins(&self, quick: bool) {
        self.spins.store(quick, Ordering::Relaxed);
    }

    /// Whether it spins and is quick (a moment ago). In a model of every schedule none does.
    pub(super) fn is_awake(&self) -> bool {
        !hint::EVERY_SCHEDULE && self.spins.load(Ordering::Relaxed)
    }

    /// Whether it has been woken; it doesn't sleep.
    pub(crate) fn try_park(&self) -> bool {
        self.parker.try_park() && self.take_wake()
    }

    /// Parks until woken; false where a surplus worker's time ran out first.
    pub(crate) fn park(&self, limit: Option<std::time::Duration>) -> bool {
        loop {
            match limit {
                None => self.parker.park(),
                Some(limit) => {
                    if !self.parker.park_timeout(limit) {
                        return self.take_wake();
                    }
                }
            }
            if self.take_wake() {
                return true;
            }
        }
    }
}

/// Changes yield_habit that are kept as bits, and that the calling worker alone changes.
fn change<R>(bits: &AtomicU32, change: impl FnOnce(&mut YieldHabit) -> R) -> R {
    let mut yield_habit = YieldHabit::from_bits(bits.load(Ordering::Relaxed));
    let result = change(&mut yield_habit);
    bits.store(yield_habit.to_bits(), Ordering::Relaxed);
    result
}

/// The most items of a batch.
pub(super) const BATCH_MOST: u64 = 32;
/// An item of a batch waits for so long, at most, if those before it are as long as the last ones
/// were.
const BATCH_TAKES: Duration = Duration::from_micros(5);
/// The clock is read once in so many items, at most.
const SAMPLE: u64 = 16;

/// Once in so many times that a worker says so it is counted how many lists are in use. (Each time,
/// on 16 simulated CPUs: fan takes 1.5 [1.3..1.9] of the time, a storm of one producer makes 0.90
/// [0.85..0.94]; ab2d844.)
pub(super) const COUNT: u32 = 16;
/// Items that take so many nanoseconds at most are tiny, once so many samples in a row have said
/// so.
const TINY: u64 = 2_000;
const PROOF: u32 = 4;
/// A worker that runs one tiny item after the other says how long they take once in so many looks
/// at the clock.
const TELL: u32 = 32;
/// Before so many looks in vain a worker that runs tiny items leaves alone what others have
/// reserved. (Without it, on 16 simulated CPUs: a storm of 16 producers that count apart makes 0.92
/// [0.62..1.05], an item takes 3.9 lines for 2.4; c607082.)
const LEAVES: u32 = 2;
/// So few workers are never too many: where each has its own CPU's list, one that stops costs more
/// than two that are in each other's way at times.
pub(super) const ALWAYS: usize = 2;
/// One CPU queues no faster than an item in so many nanoseconds.
const QUEUED_IN: u64 = 100;

/// How many workers can be of use for what is queued on so many lists, where an item takes one of
/// them so long. (Without such a limit, on 16 simulated CPUs: inside makes 0.21 for 7 times the CPU
/// time, a storm of one producer 0.37 for 25 times; ab2d844.)
pub(crate) fn most_takers(lists: usize, each: u64) -> usize {
    lists.max(1).saturating_mul(usize::try_from(each.div_ceil(QUEUED_IN)).unwrap_or(usize::MAX))
}

/// Whether those that take from a list don't keep up, where so many items wait in it.
pub(crate) fn piles_up(waiting: u64) -> bool {
    waiting >= 8 * BATCH_MOST
}

/// How long a tiny item takes by itself, where that was taken for `least`, and one took so long
/// just now. Workers that are in each other's way make items longer, so it sinks at once and rises
/// slowly. (Where it rises at once, on 16 simulated CPUs: inside makes 0.68 [0.38..1.00], a storm
/// of one producer takes 2.2 of the CPU time; ab2d844.)
pub(crate) fn least(least: u64, each: u64) -> u64 {
    each.min(least.saturating_add(each.saturating_sub(least) / 256))
}

/// How many of `waiting` items a worker reserves that may take `most` at once, where so many
/// workers share them. (Where none does, on 72 simulated CPUs: a storm of one producer makes 0.80
/// [0.73..0.84], though one of four makes more on 16; ab2d844.)
pub(crate) fn share(waiting: u64, workers: u64, most: u64) -> u64 {
    (waiting / workers.max(1)).clamp(1, most.clamp(1, BATCH_MOST))
}

/// How many items may be reserved at once of which each takes so many nanoseconds.
pub(crate) fn most_at_once(each: u64) -> u64 {
    (BATCH_TAKES.as_nanos() as u64 / each).clamp(1, BATCH_MOST)
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
        // One item at a time says nothing of a row of them, and two looks at the clock are a tenth
        // of a ping-pong.
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

    /// The worker is about to reserve something: learns from what it has run since it did that
    /// last.
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

    /// It has found nothing that nobody has reserved, once more: whether it leaves what others have
    /// to them for a moment.
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

/// What happened in a pool so far, but for what its workers count.
#[derive(Debug, Default)]
pub(crate) struct PoolStats {
    /// What its former workers counted.
    pub(super) former: Ran,
    /// A: statistics: parked workers woken.
    pub(crate) wakeups: AtomicU64,
    /// A: statistics: items that were found to keep a core from others.
    pub(crate) caught: AtomicU64,
    /// A: statistics: threads made.
    pub(crate) threads_made: AtomicU64,
    /// A: statistics: time on CPUs of workers that have left, in nanoseconds.
    pub(crate) former_cpu_ns: AtomicU64,
}

/// What a worker counts. Written by it alone.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    /// A: statistics: items run.
    items: AtomicU64,
    /// A: statistics: of those, items taken over from a saturated pod.
    taken_over: AtomicU64,
}

impl Ran {
    /// So many more. Only the worker itself calls it: no read-modify-write.
    #[inline]
    pub(super) fn count(&self, items: u64, taken_over: u64) {
        let add = |counter: &AtomicU64, n: u64| {
            if n > 0 {
                counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
            }
        };
        add(&self.items, items);
        add(&self.taken_over, taken_over);
    }

    /// Items run. Asked by the worker itself.
    #[inline]
    pub(super) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Items run, and taken over.
    pub(crate) fn read(&self) -> (u64, u64) {
        (self.items.load(Ordering::Relaxed), self.taken_over.load(Ordering::Relaxed))
    }
}

impl PoolStats {
    pub(crate) fn count(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Under the pool's lock, as it goes off the list of workers: what it counted stays, and its
    /// time, if the calling thread, which is about to end, is this worker's.
    pub(super) fn worker_leaves(&self, worker: &Worker) {
        let (items, taken_over) = worker.ran.read();
        self.former.count(items, taken_over);
        // One that is driven by hand has no thread of its own.
        if worker.tid().is_some() {
            if let Some(spent) = sys::own_cpu_time() {
                Self::count(&self.former_cpu_ns, u64::try_from(spent.as_nanos()).unwrap_or(0));
            }
        }
    }
}

/// The threads of some [`WorkerPools`](crate::WorkerPools), counted.
#[derive(Debug)]
pub(crate) struct Threads {
    /// I: how many there may be, but for what each pool may have in any case.
    most: usize,
    /// A: how many there are. A count and nothing else: Relaxed.
    now: AtomicUsize,
    /// A: it was logged that there may be no more. Relaxed: a report more does no harm.
    told: AtomicBool,
}

/// A worker's place among them; dropped when the worker leaves.
pub(crate) struct ThreadPermit(Arc<Threads>);

impl Threads {
    pub(crate) fn new(most: usize) -> Arc<Threads> {
        let (now, told) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Threads { most, now, told })
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// A place for one more of a pool that has so many workers, this one included, of which `base`
    /// may hold a core at once. `None` where there are enough.
    pub(crate) fn seat(self: &Arc<Self>, workers: usize, base: usize) -> Option<ThreadPermit> {
        let take = |now| policy::may_have_thread(now, self.most, workers, base).then_some(now + 1);
        let taken = self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok().then(|| ThreadPermit(Arc::clone(self)))
    }

    /// Whether it is to be said that there are enough: once.
    pub(crate) fn is_to_be_told(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch whose worker has taken so many items one by one, each of which took `each`, and was
    /// overtaken so often with each.
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
