//! A worker: its parking spot, the facts about its own work, the batch that it has reserved and not
//! taken, its counts, and its permit to be one of the pools' threads.

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
    /// The instance that it runs, as shown to others.
    pub(crate) shown: CachePadded<Publication>,
    /// A: the kernel's number of its thread; 0 before that has started, and for one that is driven
    /// by hand.
    pub(super) tid: AtomicU32,
    /// L: the pool's lock: what it is exempt for, see
    /// [`Exemption`](crate::pool::exemption::Exemption); atomic only because a worker is shared.
    pub(super) exemptions: AtomicU32,
    /// A: the CPU that it was woken from last, and one; 0 if that isn't known. A hint, written
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
    /// O: number of items run after which its turn at a list may be over; 0: ask before each. As
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
    /// O: items that it had run when it last was out of work for long enough to go idle; as
    /// `searching`.
    rose: AtomicU64,
    /// O: items that it had run when it yielded last; as `searching`.
    yielded: AtomicU64,
    /// O: how often it has yielded since it ran the last of them; as `searching`.
    yields: AtomicU32,
    /// O: what came of making way for the thread that queues on its CPU, as bits of a
    /// [`YieldHabit`]; as `searching`.
    yield_habit: AtomicU32,
    /// I: the moment from which `blocked` counts.
    born: Instant,
    /// A: when its blocking region began, in nanoseconds since `born`; 0 outside of one, and until
    /// it is noted. Written by the worker; others read it under the pool's lock where `exemptions`
    /// says that it is in one: Relaxed.
    pub(super) blocked: AtomicU64,
    /// The ends that it hasn't counted out: none while it is idle or runs anything else.
    pub(crate) carry: DeferredEnds,
    pub(crate) ran: Ran,
    /// The items that it has reserved.
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

    /// Returns true if it is counted among the takers. Called under the pool's lock.
    pub(super) fn is_taker(&self) -> bool {
        self.taker.load(Ordering::Relaxed)
    }

    /// Counts it among the takers, which run one tiny item after the other, or doesn't any more.
    /// Called under the pool's lock.
    pub(crate) fn counts_as_taker(&self, counts: &mut Counts, takes: bool) {
        if self.taker.swap(takes, Ordering::Relaxed) != takes {
            counts.takers = counts.takers + usize::from(takes) - usize::from(!takes);
        }
        if counts.takers == 0 {
            counts.enough = 0;
        }
    }

    /// Returns true if it has run no item since the last such call. Called under the pool's lock.
    pub(super) fn has_run_nothing(&self) -> bool {
        let (ran, _) = self.ran.read();
        self.seen.swap(ran, Ordering::Relaxed) == ran
    }

    /// Returns the kernel's number of its thread, once that has started.
    pub(crate) fn tid(&self) -> Option<u32> {
        Some(self.tid.load(Ordering::Relaxed)).filter(|tid| *tid != 0)
    }

    /// Marks it as woken, under the pool's lock. Called by the thread that took it off the idle
    /// list.
    pub(super) fn wake_up(&self, from: Option<CpuId>) {
        // A model's threads are on no CPU, and each atomic operation makes it longer.
        if let Some(cpu) = from {
            self.waker.store(cpu.number().wrapping_add(1), Ordering::Relaxed);
            self.woken_at.store(self.age(), Ordering::Relaxed);
        }
        self.woken.store(true, Ordering::Relaxed);
    }

    /// Unparks it, after the lock was released.
    pub(super) fn unpark(&self) {
        self.parker.unpark();
    }

    /// Returns true if it was woken; it is then the searcher.
    pub(crate) fn take_wake(&self) -> bool {
        let woken = self.woken.swap(false, Ordering::Relaxed);
        if woken {
            self.searching.store(true, Ordering::Relaxed);
        }
        woken
    }

    /// Returns true if it is the searcher. Called by the worker itself.
    #[inline]
    pub(super) fn is_searching(&self) -> bool {
        self.searching.load(Ordering::Relaxed)
    }

    /// Returns how long ago it was woken for work. Called by the worker itself, once.
    pub(super) fn woken_for(&self) -> Duration {
        match self.woken_at.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            at => {
                self.woken_at.store(0, Ordering::Relaxed);
                Duration::from_nanos(self.age().saturating_sub(at))
            }
        }
    }

    /// Returns nanoseconds since it was made.
    pub(super) fn age(&self) -> u64 {
        let since = time::now().saturating_duration_since(self.born);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Notes that its blocking region begins.
    pub(super) fn blocks(&self) {
        self.blocked.store(self.age().max(1), Ordering::Relaxed);
    }

    /// Notes that its blocking region is about to end. Called before the exemption ends, so that
    /// nobody takes this time for that of the next region.
    pub(super) fn has_blocked(&self) {
        self.blocked.store(0, Ordering::Relaxed);
    }

    /// Returns the number of items that it has run one after the other. Called by the worker
    /// itself, as all below.
    fn streak(&self) -> u64 {
        self.ran.items() - self.rose.load(Ordering::Relaxed)
    }

    /// Returns how often it has yielded since it ran the last item, and counts one more.
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

    /// Returns whether a worker that has found nothing yields and looks again before it goes idle.
    pub(super) fn pauses(&self) -> bool {
        let pauses = policy::yields_before_idle(self.streak(), self.next_yield());
        if !pauses {
            self.rose.store(self.ran.items(), Ordering::Relaxed);
        }
        pauses
    }

    /// Returns whether a worker that has found nothing that was queued on its CPU yields before it
    /// takes what was queued on another.
    pub(super) fn makes_way(&self) -> bool {
        change(&self.yield_habit, |yield_habit| yield_habit.makes_way(self.streak()))
    }

    /// Learns from a yield: whether it found something then.
    pub(super) fn made_way(&self, well: bool) {
        change(&self.yield_habit, |yield_habit| yield_habit.learn(well));
    }

    /// Returns true if its turn at the list of its CPU may be over, before it takes something.
    #[inline]
    pub(super) fn looks_around(&self) -> bool {
        self.ran.items() >= self.look_at.load(Ordering::Relaxed)
    }

    /// Returns true if its turn at a list is over.
    pub(super) fn turn_is_over(&self) -> bool {
        let items = self.ran.items() - self.turn_items.load(Ordering::Relaxed);
        let took = self.age() - self.turn_began.load(Ordering::Relaxed);
        policy::turn_is_over(items, Duration::from_nanos(took))
    }

    /// Plans its next reading of the clock, since its turn isn't over: before the next item, or
    /// after some if they are short.
    pub(super) fn looks_later(&self) {
        let items = self.ran.items();
        let ran = items - self.turn_items.load(Ordering::Relaxed);
        let took = Duration::from_nanos(self.age() - self.turn_began.load(Ordering::Relaxed));
        let next = if policy::are_short(ran, took) { items + policy::LOOK_ITEMS } else { 0 };
        self.look_at.store(next, Ordering::Relaxed);
    }

    /// Returns the list whose turn it is, if that isn't the one of its CPU.
    pub(super) fn turn(&self) -> Option<usize> {
        (self.turn.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Begins the turn of another list, or that of the one of its CPU. Returns how many have begun
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

    /// Gives the turn to this list, or to the one of its CPU.
    pub(super) fn gives_turn(&self, list: Option<usize>) {
        let turn = list.map_or(0, |list| list as u32 + 1);
        self.turn.store(turn, Ordering::Relaxed);
        if turn != 0 {
            self.look_at.store(0, Ordering::Relaxed);
        }
    }

    /// Records what it sees now, and returns which of the two it saw the last time.
    pub(super) fn saw(&self, now: [u64; 2]) -> [bool; 2] {
        std::array::from_fn(|at| {
            let before = self.saw[at].load(Ordering::Relaxed);
            self.saw[at].store(now[at], Ordering::Relaxed);
            before == now[at]
        })
    }

    /// Makes it the searcher, under the pool's lock, if there is no searcher. Returns true if there
    /// was none.
    pub(super) fn begin_searching(&self, counts: &mut Counts) -> bool {
        self.searching.store(true, Ordering::Relaxed);
        !mem::replace(&mut counts.searching, true)
    }

    /// Notes that it has found something, or gives up, under the pool's lock. Returns true if it
    /// was the searcher.
    pub(super) fn stop_searching(&self, counts: &mut Counts) -> bool {
        let searched = self.searching.swap(false, Ordering::Relaxed);
        if searched {
            counts.searching = false;
        }
        searched
    }

    /// Returns true if it was woken from this CPU (the last time).
    pub(super) fn was_woken_from(&self, cpu: CpuId) -> bool {
        self.waker.load(Ordering::Relaxed) == cpu.number().wrapping_add(1)
    }

    /// Notes that it begins to spin and is `quick`, or that it ends.
    pub(super) fn spins(&self, quick: bool) {
        self.spins.store(quick, Ordering::Relaxed);
    }

    /// Returns true if it spins and is quick (a moment ago). In a model of every schedule none
    /// does.
    pub(super) fn is_awake(&self) -> bool {
        !hint::EVERY_SCHEDULE && self.spins.load(Ordering::Relaxed)
    }

    /// Returns true if it has been woken, and so doesn't sleep.
    pub(crate) fn try_park(&self) -> bool {
        self.parker.try_park() && self.take_wake()
    }

    /// Parks until woken; returns false if a surplus worker's time ran out first.
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
/// Longest wait of an item in a batch, if those before it are as long as the last ones were.
const BATCH_TAKES: Duration = Duration::from_micros(5);
/// Number of items at most between two readings of the clock.
const SAMPLE: u64 = 16;

/// Number of such reports of workers after which the lists in use are counted. A count at each
/// report would slow many producers down.
pub(super) const COUNT: u32 = 16;
/// Longest time of a tiny item, in nanoseconds, and the number of samples in a row that prove it.
const TINY: u64 = 2_000;
const PROOF: u32 = 4;
/// Number of looks at the clock after which a worker that runs one tiny item after the other says
/// how long they take.
const TELL: u32 = 32;
/// Number of vain looks during which a worker that runs tiny items leaves alone what others have
/// reserved. Otherwise workers fetch more of each other's cache lines.
const LEAVES: u32 = 2;
/// Number of workers that are never too many: if each has its own CPU's list, one that stops costs
/// more than two that are in each other's way at times.
pub(super) const ALWAYS: usize = 2;
/// Shortest time, in nanoseconds, in which one CPU queues an item.
const QUEUED_IN: u64 = 100;

/// Returns how many workers can be of use for what is queued on this many lists, if an item takes
/// one of them so long. Without the limit, a stream of tiny items would be several times slower,
/// and take many times the CPU time.
pub(crate) fn most_takers(lists: usize, each: u64) -> usize {
    lists.max(1).saturating_mul(usize::try_from(each.div_ceil(QUEUED_IN)).unwrap_or(usize::MAX))
}

/// Returns true if the takers of a list don't keep up, given the number of items that wait in it.
pub(crate) fn piles_up(waiting: u64) -> bool {
    waiting >= 8 * BATCH_MOST
}

/// Returns how long a tiny item takes by itself, given the previous estimate `least` and the time
/// of one item just now. Workers that are in each other's way make items longer, so the estimate
/// sinks at once and rises slowly.
pub(crate) fn least(least: u64, each: u64) -> u64 {
    each.min(least.saturating_add(each.saturating_sub(least) / 256))
}

/// Returns how many of `waiting` items a worker reserves that may take `most` at once, if this many
/// workers share them.
pub(crate) fn share(waiting: u64, workers: u64, most: u64) -> u64 {
    (waiting / workers.max(1)).clamp(1, most.clamp(1, BATCH_MOST))
}

/// Returns how many items may be reserved at once if each takes this many nanoseconds.
pub(crate) fn most_at_once(each: u64) -> u64 {
    (BATCH_TAKES.as_nanos() as u64 / each).clamp(1, BATCH_MOST)
}

/// A worker that runs one tiny item after the other says this.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// Time that an item takes, in nanoseconds.
    pub(super) each: u64,
    /// Number of items that waited in the list that it took from last.
    pub(super) waiting: u64,
}

/// The batch of a worker.
pub(crate) struct Batch {
    /// The list that it is of.
    pub(super) list: usize,
    pub(super) of: Reserved,
    /// Maximum of items to reserve at once.
    pub(crate) most: u64,
    /// Items that were reserved since the clock was read.
    items: u64,
    /// Time of that reading; `None`: it has done something else since.
    read: Option<Instant>,
    /// Number of items that weren't learnt from, and the time that they took.
    before: (u64, Duration),
    /// Number of items that waited when they were reserved.
    waiting: u64,
    /// Time of one item among the last ones, in nanoseconds.
    each: u64,
    /// Number of times in a row that this time was short.
    tiny: u32,
    /// Number of times that this was learnt since the pool was told.
    untold: u32,
    /// True once it has told the pool that it runs one tiny item after the other.
    told: bool,
    /// True if it is to tell the pool.
    pub(super) tells: bool,
    /// Number of times that it has found nothing since it took something.
    dry: u32,
    /// Number of times that another taker was faster, since the last sample.
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

    /// Begins another batch.
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

    /// Adopts what another worker has reserved and left as its batch.
    pub(super) fn adopts(&mut self, list: usize, of: Reserved) {
        (self.list, self.of) = (list, of);
    }

    /// Learns from what the worker has run since it reserved something last. Called when it is
    /// about to reserve more.
    #[inline(always)]
    pub(super) fn learns(&mut self) {
        if self.items >= SAMPLE {
            self.reads_clock();
        }
    }

    /// Counts that another taker was faster.
    #[cold]
    pub(super) fn loses(&mut self) {
        self.lost += 1;
    }

    /// Ends the row of items: the worker looks elsewhere.
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

    /// Returns what the pool is to know, if the worker runs one tiny item after the other.
    pub(super) fn tell(&mut self) -> Option<Stream> {
        self.tells = false;
        self.told = self.is_proven();
        self.told.then_some(Stream { each: self.each, waiting: self.waiting })
    }

    /// Notes that it has, once more, found nothing that nobody has reserved. Returns whether it
    /// leaves what others have to them for a moment.
    pub(super) fn waits_for_others(&mut self) -> bool {
        self.dry = self.dry.saturating_add(1);
        self.told && self.dry <= LEAVES
    }

    /// Leaves what the worker has reserved to the others, since it does something else.
    pub(super) fn rests(&mut self) {
        self.of = Reserved::default();
        (self.items, self.read, self.dry) = (0, None, 0);
        // It tells what it knows when it takes something.
        (self.told, self.tells) = (false, self.is_proven());
    }

    /// Forgets what was learnt: the items are long, or not known.
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

    /// Calls `with` with the batch. Called by the worker itself, and not inside of itself.
    #[inline(always)]
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut Batch) -> R) -> R {
        // SAFETY: the worker alone calls this, with what doesn't come back here.
        self.0.with_mut(|batch| with(unsafe { &mut *batch }))
    }
}

/// Statistics of a pool, without what its workers count.
#[derive(Debug, Default)]
pub(crate) struct PoolStats {
    /// Counts of its former workers.
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

/// Counts of a worker. Written by it alone.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    /// A: statistics: items run.
    items: AtomicU64,
    /// A: statistics: of those, items taken over from a saturated pod.
    taken_over: AtomicU64,
}

impl Ran {
    /// Adds to the counts. Only the worker itself calls it: no read-modify-write.
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

    /// Returns the number of items run. Called by the worker itself.
    #[inline]
    pub(super) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Returns the number of items run, and of those taken over.
    pub(crate) fn read(&self) -> (u64, u64) {
        (self.items.load(Ordering::Relaxed), self.taken_over.load(Ordering::Relaxed))
    }
}

impl PoolStats {
    pub(crate) fn count(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Keeps what a worker counted, under the pool's lock, as it goes off the list of workers. Its
    /// CPU time is kept, too, if the calling thread, which is about to end, is this worker's.
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

    /// Returns a permit for one more thread of a pool that has this many workers, this one
    /// included, of which `base` may hold a core at once. Returns `None` if there are enough.
    pub(crate) fn seat(self: &Arc<Self>, workers: usize, base: usize) -> Option<ThreadPermit> {
        let take = |now| policy::may_have_thread(now, self.most, workers, base).then_some(now + 1);
        let taken = self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok().then(|| ThreadPermit(Arc::clone(self)))
    }

    /// Returns true, once, if it has to be logged that there are enough.
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

    /// Returns a batch whose worker has taken this many items one by one, each of which took
    /// `each`, and was overtaken this often with each.
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
