//! The machine at work: the threads on its CPUs, and the CPUs' clocks.
//!
//! Each CPU that runs a thread has a clock. The thread on the CPU with the earliest clock runs, as
//! long as that clock is the earliest. So all accesses take place in the order of virtual time.

mod ahead;
mod scheduler;
mod sleep;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use self::ahead::Ahead;
use crate::costs::Costs;
use crate::lines::{Access, AccessRequest, Lines};
use crate::machine::{Machine, Mask};
use crate::memory::Memory;
use crate::report::{Site, Tally};
use crate::task::{Body, State, Thread, Tid};

/// A moment of virtual time, as an ordered key.
#[derive(Debug, Clone, Copy, PartialEq)]
struct At(f64);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A sleep's time is over.
    Timer(Tid, u64),
    /// A timer of the system goes off, if it wasn't set anew.
    GoesOff(usize, u64),
    /// An idle CPU has noticed that threads wait for it.
    Resched(usize),
    /// Idle CPUs look for threads that wait elsewhere.
    Balance,
}

#[derive(Debug)]
struct Cpu {
    /// The clock while the CPU runs a thread. Else the time at which it fell idle.
    now: f64,
    current: Option<Tid>,
    /// Threads that wait for the CPU.
    queue: Vec<Tid>,
    /// Time at which the running thread gives way to the next.
    give_way_at: f64,
    /// True while a call is on its way to the idle CPU.
    called: bool,
    /// Mean length of the CPU's idle times.
    mean_idle: f64,
    /// Time at which all of the CPU's stores are seen.
    stores_seen: f64,
    /// Least share of the next thread, in CPU time.
    least_share: f64,
    /// Time for which the CPU was busy.
    busy: f64,
    ahead: Ahead,
}

/// A timer of the system.
#[derive(Debug, Default)]
struct SystemTimer {
    /// Number of the setting. An event of an earlier setting is ignored.
    set: u64,
    /// True if the timer has gone off since the last wait.
    off: bool,
    waiter: Option<Tid>,
}

/// A whole simulated machine.
pub(crate) struct Sim {
    pub(crate) machine: Machine,
    pub(crate) costs: Costs,
    pub(crate) lines: Lines,
    cpus: Vec<Cpu>,
    pub(crate) threads: Vec<Thread>,
    events: BinaryHeap<Reverse<(At, u64, Event)>>,
    sequence: u64,
    random: u64,
    /// Sleepers by the address of their word, first come first woken.
    sleepers: FxHashMap<usize, Vec<Tid>>,
    /// Thread whose code runs now.
    running: Option<Tid>,
    /// Time until which no other thread has work.
    horizon: f64,
    pub(crate) memory: Memory,
    pub(crate) tally: Tally,
    /// Marked moments, and the counts at each.
    pub(crate) marks: Vec<(f64, Tally)>,
    all: Mask,
    timers: Vec<SystemTimer>,
    waiting: usize,
    balancing: bool,
}

impl Sim {
    pub(crate) fn new(machine: Machine, costs: Costs, seed: u64) -> Sim {
        let cpus = (0..machine.cpus())
            .map(|_| Cpu {
                now: 0.0,
                current: None,
                queue: Vec::new(),
                give_way_at: f64::INFINITY,
                called: false,
                mean_idle: 1e6,
                stores_seen: 0.0,
                least_share: 0.0,
                busy: 0.0,
                ahead: Ahead::default(),
            })
            .collect();
        let (lines, all) = (Lines::new(machine.cpus()), Mask::first(machine.cpus()));
        Sim {
            machine,
            costs,
            lines,
            cpus,
            threads: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            sleepers: FxHashMap::default(),
            running: None,
            horizon: 0.0,
            memory: Memory::default(),
            tally: Tally::default(),
            marks: Vec::new(),
            all,
            timers: Vec::new(),
            waiting: 0,
            balancing: false,
        }
    }

    /// Returns the next number of the seed's sequence (xorshift64*).
    pub(crate) fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a random number between 0 and 1.
    fn chance(&mut self) -> f64 {
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn at(&mut self, time: f64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((At(time), self.sequence, event)));
        self.horizon = self.horizon.min(time);
    }

    pub(crate) fn current(&self) -> Option<Tid> {
        self.running
    }

    fn here(&self) -> usize {
        let running = self.running.expect("called from a simulated thread");
        self.threads[running.index()].cpu
    }

    /// Returns the running thread's CPU.
    pub(crate) fn cpu(&self) -> usize {
        self.here()
    }

    /// Returns the time of the running thread's CPU.
    pub(crate) fn now(&self) -> f64 {
        self.cpus[self.here()].now
    }

    /// Returns the running thread's CPU time.
    pub(crate) fn ran(&self) -> f64 {
        let running = self.running.expect("called from a simulated thread");
        let thread = &self.threads[running.index()];
        thread.ran + (self.now() - thread.since)
    }

    /// Advances the clock by a system call or a pause. Nothing behind it begins earlier.
    pub(crate) fn spend(&mut self, time: f64) {
        let here = self.here();
        let cpu = &mut self.cpus[here];
        cpu.now += time;
        cpu.ahead.from(cpu.now);
    }

    /// Advances the clock by instructions.
    pub(crate) fn work(&mut self, time: f64) {
        let here = self.here();
        let cpu = &mut self.cpus[here];
        cpu.now += time;
        cpu.ahead.worked(time);
    }

    /// Advances the clock by a pause of a waiting loop. The core can't predict the loop's end.
    pub(crate) fn pause(&mut self) {
        let time = self.costs.spin_hint;
        self.tally.spinning += time;
        self.spend(time);
        let here = self.here();
        self.cpus[here].ahead.waits();
    }

    /// Notes the value that was just read: it may be the next address.
    pub(crate) fn loaded(&mut self, value: usize) {
        let here = self.here();
        self.cpus[here].ahead.loaded(value);
    }

    /// Returns the number of busy CPUs, less one.
    fn busy_others(&self) -> usize {
        self.cpus.iter().filter(|cpu| cpu.current.is_some()).count().saturating_sub(1)
    }

    /// Returns the time of the system's part of a switch or a wake-up, prolonged by busy CPUs.
    fn crowded(&self, time: f64) -> f64 {
        time * (1.0 + self.costs.crowd * self.busy_others() as f64)
    }

    /// Returns true if another thread has to run first.
    pub(crate) fn is_over(&self) -> bool {
        self.now() > self.horizon
    }

    pub(crate) fn access(
        &mut self,
        address: usize,
        kind: Access,
        site: &'static Location<'static>,
    ) {
        let (line, site) = (address >> 6, Site(site));
        let here = self.here();
        let cpu = &mut self.cpus[here];
        cpu.now += self.costs.around;
        cpu.ahead.worked(self.costs.around);
        let locked = kind == Access::Locked;
        let began = cpu.now;
        if locked {
            // A locked operation waits for the stores before it.
            cpu.now = cpu.now.max(cpu.stores_seen);
        }
        let alone = locked && !self.costs.beyond_locked;
        let issued =
            if alone { cpu.now } else { cpu.ahead.issued(began, self.costs.window, address) };
        let place = std::ptr::from_ref(site.0).addr();
        let asked = AccessRequest { cpu: here, line, kind, place, now: cpu.now, issued };
        let outcome = self.lines.access(&self.machine, &self.costs, asked);
        cpu.now = outcome.until;
        if kind == Access::Store {
            cpu.stores_seen = cpu.stores_seen.max(outcome.seen);
        }
        let extra = if locked { self.costs.locked } else { self.costs.hit };
        cpu.ahead.accessed(extra, outcome.until - began - extra, outcome.until);
        if alone {
            cpu.ahead.from(outcome.until);
        }
        self.tally.access(site, outcome.from, outcome.until - began);
    }

    pub(crate) fn prefetch(&mut self, address: usize, kind: Access) {
        let (here, now) = (self.here(), self.now());
        let asked =
            AccessRequest { cpu: here, line: address >> 6, kind, place: 1, now, issued: now };
        self.lines.prefetch(&self.machine, &self.costs, asked);
        self.spend(self.costs.hit);
    }

    pub(crate) fn fence(&mut self) {
        let here = self.here();
        let cpu = &mut self.cpus[here];
        cpu.now = cpu.now.max(cpu.stores_seen) + self.costs.fence;
        cpu.ahead.from(cpu.now);
    }

    pub(crate) fn membarrier(&mut self) {
        let others = self.busy_others();
        self.tally.membarriers += 1;
        let costs = &self.costs;
        let time = match others {
            0 => costs.membarrier,
            _ => costs.membarrier_one + costs.membarrier_each * (others - 1) as f64,
        };
        self.spend(time);
    }

    pub(crate) fn spawn(
        &mut self,
        name: Option<Arc<str>>,
        make: impl FnOnce(Tid) -> Box<Body>,
    ) -> Tid {
        let tid = Tid(u32::try_from(self.threads.len()).expect("fewer threads than that"));
        // The thread begins as an ordinary one, whatever its parent is (SCHED_RESET_ON_FORK).
        let mut thread = Thread::new(name, 0, self.all);
        let mut now = 0.0;
        if let Some(parent) = self.running {
            let parent = &self.threads[parent.index()];
            now = self.cpus[parent.cpu].now;
            (thread.cpu, thread.affinity) = (parent.cpu, parent.affinity);
            (thread.share, thread.on_time) = (parent.share, parent.on_time);
        }
        thread.since = now;
        thread.state = State::Asleep;
        thread.body = Some(make(tid));
        self.threads.push(thread);
        self.make_runnable(tid, now, self.running.is_some());
        tid
    }

    /// Handles all earlier events, then returns the thread that runs now. `None` if none ever will.
    pub(crate) fn pick(&mut self) -> Option<Tid> {
        loop {
            // The previous thread has left its departure to this call.
            if let Some(tid) = self.running.take() {
                let at = self.threads[tid.index()].cpu;
                let leaves = self.threads[tid.index()].state != State::Running
                    || self.cpus[at].now >= self.cpus[at].give_way_at;
                if leaves && self.cpus[at].current == Some(tid) {
                    self.off(at);
                }
            }
            let (mut first, mut second) = ((f64::INFINITY, 0), f64::INFINITY);
            for (index, cpu) in self.cpus.iter().enumerate() {
                if cpu.current.is_some() {
                    if cpu.now < first.0 {
                        second = first.0;
                        first = (cpu.now, index);
                    } else if cpu.now < second {
                        second = cpu.now;
                    }
                }
            }
            let due = self.events.peek().map_or(f64::INFINITY, |Reverse((At(time), _, _))| *time);
            if due.is_infinite() && first.0.is_infinite() {
                return None;
            }
            if due <= first.0 {
                let Some(Reverse((At(time), _, event))) = self.events.pop() else { continue };
                self.happen(event, time);
                continue;
            }
            let at = first.1;
            let tid = self.cpus[at].current.expect("it runs one");
            if self.cpus[at].now >= self.cpus[at].give_way_at {
                self.off(at);
                continue;
            }
            self.horizon = second.min(due).min(self.cpus[at].give_way_at);
            self.running = Some(tid);
            return Some(tid);
        }
    }

    /// Returns the CPU time of all threads until now.
    pub(crate) fn busy(&self) -> f64 {
        let running = self
            .cpus
            .iter()
            .filter_map(|cpu| Some(cpu.now - self.threads[cpu.current?.index()].since));
        self.cpus.iter().map(|cpu| cpu.busy).sum::<f64>() + running.sum::<f64>()
    }

    /// Returns the number of threads that haven't ended.
    pub(crate) fn threads(&self) -> usize {
        self.threads.iter().filter(|thread| thread.state != State::Done).count()
    }

    /// Returns the names of the unfinished threads, for a message.
    pub(crate) fn stuck(&self) -> String {
        let left =
            self.threads.iter().enumerate().filter(|(_, thread)| thread.state != State::Done);
        let told = left.map(|(index, thread)| {
            let name = thread.name.as_deref().unwrap_or("-");
            format!("{index} {name} ({:?} on {:#x})", thread.state, thread.sleeps_on)
        });
        told.collect::<Vec<_>>().join(", ")
    }
}
