//! The state that all callers and handlers of one torture share: the call targets, the records of
//! each CPU, the counters, and the findings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_smp::Smp;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::{hint, time};
use corewise_topology::{CpuId, CpuSet, Machine};

use super::check::{Check, Findings};
use super::kind::KINDS;
use super::mistake::Mistake;
use super::plain::Plain;

pub(super) struct World {
    pub(super) smp: Smp,
    /// All CPUs of the machine that are online at first.
    pub(super) all: CpuSet,
    /// CPUs that may leave; the others never do.
    pub(super) leaves: CpuSet,
    /// Records by CPU number.
    sides: Box<[Side]>,
    pub(super) callers: Box<[CallerWatch]>,
    pub(super) findings: Findings,
    pub(super) counts: Counts,
    /// A: the callers and the one that plugs CPUs end soon.
    pub(super) stop: AtomicBool,
    /// A: something is stuck: each thread that can goes on.
    pub(super) give_up: AtomicBool,
    pub(super) mistake: Option<Mistake>,
    pub(super) began: Instant,
}

/// The record of one CPU.
pub(super) struct Side {
    /// A: a handler is running. Relaxed: they all run on one thread, or the check fails.
    busy: AtomicBool,
    /// A: the CPU has left, and isn't back yet. Set after the leave was waited for, cleared before
    /// the CPU is brought in: release and acquire are those of the targets.
    pub(super) dead: AtomicBool,
    /// A: the number of its leaves. The plugger counts up when the leave is over.
    pub(super) left: AtomicU64,
    /// A: odd while the system has the CPU offline, or may have: its thread may be anywhere.
    pub(super) away: AtomicU64,
    /// Number of the last call of each caller: of those waited for, and of those not.
    last: Box<[[Plain; 2]]>,
}

/// The watcher's record of a caller.
pub(super) struct CallerWatch {
    /// A: the start of its wait, in milliseconds after the beginning, and one; 0 if it doesn't
    /// wait.
    since: AtomicU64,
    /// A: the kind of the act that waits, as a position in [`KINDS`].
    what: AtomicU64,
}

/// Relaxed counters: they order nothing, and are read when the threads have been joined.
#[derive(Default)]
pub(super) struct Counts {
    /// A: functions run, by their own count.
    pub(super) ran: AtomicU64,
    /// A: calls that were accepted, one for each CPU.
    pub(super) accepted: AtomicU64,
    /// A: CPUs that refused, because they were offline.
    pub(super) refused: AtomicU64,
    /// A: calls that handlers made, and were accepted.
    pub(super) nested: AtomicU64,
    /// A: those of them that ran.
    pub(super) nested_ran: AtomicU64,
    /// A: tokens made.
    made: AtomicU64,
    /// A: tokens dropped.
    dropped: AtomicU64,
    /// A: panics on purpose.
    pub(super) panics: AtomicU64,
    /// A: leaves and joins for calls alone.
    pub(super) leaves: AtomicU64,
    /// A: leaves and joins by the machine's mask.
    pub(super) follows: AtomicU64,
    /// A: times that the system took the CPU offline.
    pub(super) plugs: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

pub(super) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl World {
    pub(super) fn new(
        smp: Smp,
        machine: &Machine,
        leaves: CpuSet,
        callers: usize,
        mistake: Option<Mistake>,
    ) -> World {
        let numbers = machine.topology().cpu_set().last().map_or(0, |last| last.index() + 1);
        let side = |_| Side {
            busy: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            left: AtomicU64::new(0),
            away: AtomicU64::new(0),
            last: (0..callers).map(|_| [Plain::new(), Plain::new()]).collect(),
        };
        let desk = |_| CallerWatch { since: AtomicU64::new(0), what: AtomicU64::new(0) };
        World {
            all: machine.online(),
            leaves,
            sides: (0..numbers).map(side).collect(),
            callers: (0..callers).map(desk).collect(),
            findings: Findings::new(),
            counts: Counts::default(),
            stop: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
            mistake,
            began: time::now(),
            smp,
        }
    }

    pub(super) fn side(&self, cpu: CpuId) -> &Side {
        &self.sides[cpu.index()]
    }

    /// Returns one more than the highest CPU number.
    pub(super) fn numbers(&self) -> usize {
        self.sides.len()
    }

    pub(super) fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub(super) fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn gives_up(&self) -> bool {
        self.give_up.load(Ordering::Relaxed)
    }

    /// Returns the milliseconds since the beginning, and one.
    fn clock(&self) -> u64 {
        let since = time::now().saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Waits, and records the wait for the watcher.
    pub(super) fn waiting<T>(&self, caller: usize, what: usize, wait: impl FnOnce() -> T) -> T {
        let desk = &self.callers[caller];
        desk.what.store(what as u64, Ordering::Relaxed);
        // Release pairs with the Acquire of `longest_wait`, which then reads the kind.
        desk.since.store(self.clock(), Ordering::Release);
        let value = wait();
        desk.since.store(0, Ordering::Relaxed);
        value
    }

    /// Returns the longest wait just now: for how long, which caller, and for what.
    pub(super) fn longest_wait(&self) -> Option<(Duration, usize, &'static str)> {
        let waits = self.callers.iter().enumerate().filter_map(|(caller, desk)| {
            let since = desk.since.load(Ordering::Acquire);
            let what = KINDS.get(read(&desk.what) as usize).map_or("the end", |(_, name, _)| name);
            let for_ms = self.clock().saturating_sub(since);
            (since != 0).then_some((Duration::from_millis(for_ms), caller, what))
        });
        waits.max()
    }

    /// Returns how many tokens were made and not dropped; negative if some were dropped twice.
    pub(super) fn tokens(&self) -> i128 {
        i128::from(read(&self.counts.made)) - i128::from(read(&self.counts.dropped))
    }
}

impl Side {
    /// Begins a handler; returns false if another one hadn't ended.
    pub(super) fn begin(&self) -> bool {
        !self.busy.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.busy.store(false, Ordering::Relaxed);
    }

    /// Notes that this call of a caller runs; returns false if a later one ran before it.
    pub(super) fn follows(&self, caller: usize, waited_for: bool, stamp: u64) -> bool {
        let last = &self.last[caller][usize::from(waited_for)];
        let before = last.get();
        last.set(stamp);
        before < stamp
    }

    /// Returns the count of the times that it went away; `None` while it is.
    pub(super) fn stays(&self) -> Option<u64> {
        Some(self.away.load(Ordering::SeqCst)).filter(|away| away % 2 == 0)
    }
}

/// A token that has to be dropped exactly once.
pub(super) struct Token(Arc<World>);

impl Token {
    pub(super) fn new(world: &Arc<World>) -> Token {
        add(&world.counts.made, 1);
        Token(Arc::clone(world))
    }
}

impl Token {
    pub(super) fn world(&self) -> &World {
        &self.0
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        add(&self.0.counts.dropped, 1);
    }
}

/// Uses CPU time.
pub(super) fn spin(length: Duration) {
    let end = time::now() + length;
    while time::now() < end {
        hint::spin_loop();
    }
}

/// Returns the CPU whose call target this thread is, by its name.
pub(super) fn target_of_this_thread() -> Option<CpuId> {
    let thread = std::thread::current();
    thread.name()?.strip_prefix("cw-call/")?.parse().ok().map(CpuId::new)
}

impl World {
    /// Counts a call to a CPU that refused; one that never leaves mustn't.
    pub(super) fn refused(&self, cpu: CpuId) {
        add(&self.counts.refused, 1);
        let may = self.leaves.contains(cpu) || !self.all.contains(cpu);
        self.findings.expect(Check::Reach, may, || format!("CPU {cpu} never leaves, and refused"));
    }
}
