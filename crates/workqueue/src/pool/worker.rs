//! A worker: its parking spot, and what it knows of its own work.

use corewise_topology::CpuId;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, aside};
use corewise_sync::{CachePadded, Parker, hint, time};

use super::batch::OwnBatch;
use super::pins::OwnCpu;
use super::stats::Ran;
use crate::pool::policy::{self, Counts, Manners};
use crate::task::deferred::DeferredEnds;
use crate::task::publication::Publication;

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
    /// L: the pool's lock: what it is excused for, see [`Excuse`](super::excuse::Excuse); atomic
    /// only because a worker is shared.
    pub(super) excuses: AtomicU32,
    /// A: the CPU that it was woken from last, and one; 0 where that isn't known. A hint, written
    /// before `woken`: Relaxed.
    waker: AtomicU32,
    /// A: when it was woken for work, in nanoseconds since `born`; 0 once it has asked. Written before `woken`: Relaxed.
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
    /// O: items that it had run when it last was out of work for so long that it went idle; as `searching`.
    rose: AtomicU64,
    /// O: items that it had run when it yielded last; as `searching`.
    yielded: AtomicU64,
    /// O: how often it has yielded since it ran the last of them; as `searching`.
    yields: AtomicU32,
    /// O: what came of making way for the thread that queues on its CPU, as bits of a [`Manners`]; as `searching`.
    manners: AtomicU32,
    /// I: since when `blocked` counts.
    born: Instant,
    /// A: when its blocking region began, in nanoseconds since `born`; 0 outside of one, and until it is
    /// noted. Written by the worker; others read it under the pool's lock where `excuses` says that it is
    /// in one: Relaxed.
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
            excuses: AtomicU32::new(0),
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
            manners: AtomicU32::new(Manners::NEW.to_bits()),
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

    /// Its blocking region is about to end. Before the excuse does: nobody takes this time for that of the next region.
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

    /// It has found nothing that was queued on its CPU: whether to yield before it takes what was queued
    /// on another.
    pub(super) fn makes_way(&self) -> bool {
        change(&self.manners, |manners| manners.makes_way(self.streak()))
    }

    /// It has yielded, and found something then, or not.
    pub(super) fn made_way(&self, well: bool) {
        change(&self.manners, |manners| manners.learn(well));
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

    /// Its turn isn't over: it looks at the clock again before the next item, or after some where they are short.
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

    /// The turn of another list begins, or that of the one of its CPU. How often one has begun before.
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

    /// Under the pool's lock, where nobody else is: it is the searcher. Whether there was none before.
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

/// Changes manners that are kept as bits, and that the calling worker alone changes.
fn change<R>(bits: &AtomicU32, change: impl FnOnce(&mut Manners) -> R) -> R {
    let mut manners = Manners::from_bits(bits.load(Ordering::Relaxed));
    let result = change(&mut manners);
    bits.store(manners.to_bits(), Ordering::Relaxed);
    result
}
