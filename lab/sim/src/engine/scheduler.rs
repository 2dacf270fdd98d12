//! The scheduler, roughly as Linux's: it chooses CPUs, preempts threads and picks the next one.

use super::{Event, Sim};
use crate::costs::AfterIdle;
use crate::machine::{Distance, Mask};
use crate::task::{Policy, State, Tid, Woken};

/// Idle time after which a CPU is cold, in nanoseconds.
const COOLS: f64 = 500_000.0;

impl Sim {
    /// Puts a thread that slept or is new on a CPU. `now` is the time of the caller's CPU. Returns
    /// the idle time of the chosen CPU, if it had to be called.
    pub(super) fn make_runnable(&mut self, tid: Tid, now: f64, by_thread: bool) -> Option<f64> {
        let waker = by_thread.then(|| self.here());
        let target = self.choose(tid, waker);
        self.enqueue(tid, target, now, waker)
    }

    /// Chooses the CPU of a woken thread: its last one if that is idle, else an idle one near it,
    /// else its last one.
    pub(super) fn choose(&mut self, tid: Tid, waker: Option<usize>) -> usize {
        let thread = &self.threads[tid.index()];
        let allowed = thread.affinity.and(&self.all);
        let last = thread.cpu;
        let fits = |cpu: usize| allowed.has(cpu);
        let idle = |cpu: usize| {
            let cpu = &self.cpus[cpu];
            cpu.current.is_none() && cpu.queue.is_empty() && !cpu.called
        };
        if fits(last) && idle(last) {
            return last;
        }
        let home = if fits(last) { Some(last) } else { waker.filter(|waker| fits(*waker)) };
        let Some(home) = home.or_else(|| allowed.iter().next()) else { return last };
        let cpus = self.cpus.len();
        let around =
            (1..=cpus).map(|step| (home + step) % cpus).filter(|cpu| fits(*cpu) && idle(*cpu));
        let mut nearest: Option<(Distance, usize)> = None;
        for cpu in around {
            let distance = self.machine.distance(home, cpu);
            if distance <= Distance::Cache {
                return cpu;
            }
            if nearest.is_none_or(|(least, _)| distance < least) {
                nearest = Some((distance, cpu));
            }
        }
        nearest.map_or(home, |(_, cpu)| cpu)
    }

    /// Puts a thread on the queue of `target`; see [`Sim::make_runnable`].
    pub(super) fn enqueue(
        &mut self,
        tid: Tid,
        target: usize,
        now: f64,
        waker: Option<usize>,
    ) -> Option<f64> {
        let from = waker.unwrap_or(target);
        self.tally.wake(self.machine.distance(from, target));
        let least = self.cpus[target].least_share;
        let thread = &mut self.threads[tid.index()];
        thread.state = State::Runnable;
        thread.since = now;
        thread.cpu = target;
        // A sleeper saves no share: as with EEVDF, it comes in where the running threads are.
        thread.share = thread.share.max(least);
        let (share, policy) = (thread.share, thread.policy);
        self.cpus[target].queue.push(tid);
        self.waiting += 1;
        let Some(current) = self.cpus[target].current else {
            if self.cpus[target].called {
                return None;
            }
            self.cpus[target].called = true;
            let idle = (now - self.cpus[target].now).max(0.0);
            let latency = self.latency(idle, waker == Some(target));
            self.at(now + latency, Event::Resched(target));
            return Some(idle);
        };
        let runs = &self.threads[current.index()];
        let run_now = (self.cpus[target].now - runs.since).max(0.0);
        let at_once = match (policy, runs.policy) {
            (Policy::Fifo(new), Policy::Fifo(old)) => new > old,
            (Policy::Fifo(_), Policy::Normal) => true,
            (Policy::Normal, Policy::Fifo(_)) => false,
            (Policy::Normal, Policy::Normal) => {
                share + self.costs.wake_preemption < runs.share + run_now
            }
        };
        let give_way = if at_once {
            now + if waker == Some(target) { 0.0 } else { self.costs.interrupt }
        } else if matches!(runs.policy, Policy::Fifo(_)) {
            f64::INFINITY
        } else {
            now.max(runs.since + self.costs.slice)
        };
        let cpu = &mut self.cpus[target];
        cpu.give_way_at = cpu.give_way_at.min(give_way);
        if Some(target) == waker {
            self.horizon = self.horizon.min(give_way);
        }
        self.start_balancing(now);
        None
    }

    pub(super) fn start_balancing(&mut self, now: f64) {
        if !self.balancing && self.waiting > 0 {
            self.balancing = true;
            self.at(now + self.costs.balance, Event::Balance);
        }
    }

    /// Draws the time until a CPU that was idle for `idle` runs a thread.
    pub(super) fn latency(&mut self, idle: f64, own: bool) -> f64 {
        if own {
            return self.crowded(self.costs.switch);
        }
        let AfterIdle { p50, p99, .. } = self.costs.after_idle(idle);
        let chance = self.chance();
        // Most draws lie near the median. One in fifty lies toward the 99th percentile and beyond.
        if chance < 0.98 {
            p50 * (0.85 + 0.3 * chance)
        } else {
            p50 + (p99 - p50) * (chance - 0.98) * 100.0
        }
    }

    pub(crate) fn set_affinity(&mut self, tid: Tid, mask: Mask) -> bool {
        let mask = mask.and(&self.all);
        if mask.is_empty() {
            return false;
        }
        self.spend(self.costs.syscall);
        self.threads[tid.index()].affinity = mask;
        let (state, cpu) = (self.threads[tid.index()].state, self.threads[tid.index()].cpu);
        if mask.has(cpu) {
            return true;
        }
        match state {
            State::Running if Some(tid) == self.running => {
                // The thread moves at once, from its CPU to the chosen one.
                let now = self.now();
                self.cpus[cpu].give_way_at = now;
                self.horizon = f64::NEG_INFINITY;
            }
            State::Running => {
                let now = self.now();
                self.cpus[cpu].give_way_at =
                    self.cpus[cpu].give_way_at.min(now + self.costs.interrupt);
            }
            State::Runnable => {
                self.cpus[cpu].queue.retain(|waiting| *waiting != tid);
                self.waiting -= 1;
                let now = self.now();
                self.make_runnable(tid, now, true);
            }
            State::Asleep | State::Done => {}
        }
        true
    }

    /// Sets the policy of the running thread.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.spend(self.costs.syscall);
        let (here, now) = (self.here(), self.now());
        let tid = self.running.expect("called from a simulated thread");
        self.threads[tid.index()].policy = policy;
        let queue = self.cpus[here].queue.iter();
        let most = queue.map(|waiting| self.threads[waiting.index()].policy.level()).max();
        let give_way = match most {
            Some(level) if level > policy.level() => now,
            Some(0) if policy == Policy::Normal => {
                now.max(self.threads[tid.index()].since + self.costs.slice)
            }
            _ => f64::INFINITY,
        };
        self.cpus[here].give_way_at = give_way;
        self.horizon = self.horizon.min(give_way);
    }

    /// Takes the running thread off a CPU: it sleeps, has ended, or gives way.
    pub(super) fn off(&mut self, at: usize) {
        let Some(tid) = self.cpus[at].current.take() else { return };
        let now = self.cpus[at].now;
        let thread = &mut self.threads[tid.index()];
        let run = now - thread.since;
        thread.ran += run;
        thread.share += run;
        thread.since = now;
        let share = thread.share;
        let cpu = &mut self.cpus[at];
        cpu.busy += run;
        cpu.least_share = cpu.least_share.max(share.min(cpu.least_share + run));
        cpu.give_way_at = f64::INFINITY;
        self.tally.switches += 1;
        if thread.state == State::Running {
            thread.state = State::Runnable;
            if thread.affinity.has(at) {
                self.tally.preemptions += 1;
                self.cpus[at].queue.push(tid);
                self.waiting += 1;
            } else {
                let target = self.choose(tid, None);
                self.enqueue(tid, target, now, None);
            }
        }
        let switch = self.crowded(self.costs.switch);
        self.next(at, switch);
    }

    /// Runs the next thread that waits for a CPU, from `cost` after the CPU's clock. If none waits,
    /// the CPU falls idle.
    pub(super) fn next(&mut self, at: usize, cost: f64) {
        debug_assert!(self.cpus[at].current.is_none());
        if self.cpus[at].queue.is_empty() {
            self.pull(at);
        }
        let best = self.cpus[at].queue.iter().enumerate().min_by(|(one, a), (other, b)| {
            let rank = |tid: &Tid| {
                let thread = &self.threads[tid.index()];
                match thread.policy {
                    Policy::Fifo(priority) => (-i32::from(priority), 0.0),
                    Policy::Normal => (1, thread.share),
                }
            };
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(one.cmp(other))
        });
        let Some((index, _)) = best else {
            // The switch to the idle thread is half a switch.
            self.cpus[at].now += cost / 2.0;
            self.cpus[at].busy += cost / 2.0;
            return;
        };
        let tid = self.cpus[at].queue.remove(index);
        self.waiting -= 1;
        let others = !self.cpus[at].queue.is_empty();
        let cpu = &mut self.cpus[at];
        cpu.now += cost;
        self.tally.switching += cost;
        cpu.current = Some(tid);
        let thread = &mut self.threads[tid.index()];
        cpu.ahead.from(cpu.now);
        let waited = cpu.now - thread.since;
        self.tally.waited(waited);
        thread.waited += waited;
        thread.state = State::Running;
        // The coming thread pays for the switch.
        thread.since = cpu.now - cost;
        thread.cpu = at;
        let fifo = matches!(thread.policy, Policy::Fifo(_));
        cpu.give_way_at = if others && !fifo { cpu.now + self.costs.slice } else { f64::INFINITY };
        cpu.least_share = cpu.least_share.max(thread.share);
    }

    /// Takes a thread that waits elsewhere to a CPU that falls idle, if that CPU tends to be idle
    /// long.
    pub(super) fn pull(&mut self, at: usize) {
        if self.waiting == 0 || self.cpus[at].mean_idle < self.costs.migration {
            return;
        }
        self.take_from_busiest(at);
    }

    pub(super) fn take_from_busiest(&mut self, at: usize) -> bool {
        let mut best: Option<(usize, Tid)> = None;
        for (index, cpu) in self.cpus.iter().enumerate() {
            if index == at || cpu.current.is_none() {
                continue;
            }
            let fits = cpu.queue.iter().find(|tid| self.threads[tid.index()].affinity.has(at));
            if let Some(tid) = fits {
                if best.is_none_or(|(most, _)| cpu.queue.len() > self.cpus[most].queue.len()) {
                    best = Some((index, *tid));
                }
            }
        }
        let Some((from, tid)) = best else { return false };
        self.cpus[from].queue.retain(|waiting| *waiting != tid);
        if self.cpus[from].queue.is_empty() {
            self.cpus[from].give_way_at = f64::INFINITY;
        }
        self.threads[tid.index()].cpu = at;
        self.cpus[at].queue.push(tid);
        self.tally.migrations += 1;
        true
    }

    /// Handles an event.
    pub(super) fn happen(&mut self, event: Event, now: f64) {
        match event {
            Event::Timer(tid, sleep) => {
                let thread = &self.threads[tid.index()];
                if thread.state == State::Asleep && thread.sleep == sleep {
                    self.rouse(tid, Woken::Timeout, now, false);
                }
            }
            Event::GoesOff(timer, set) => {
                if self.timers[timer].set == set {
                    self.timers[timer].off = true;
                    if let Some(tid) = self.timers[timer].waiter.take() {
                        self.rouse(tid, Woken::Called, now, false);
                    }
                }
            }
            Event::Resched(at) => {
                self.cpus[at].called = false;
                if self.cpus[at].current.is_none() && !self.cpus[at].queue.is_empty() {
                    let idle = (now - self.cpus[at].now).max(0.0);
                    let cpu = &mut self.cpus[at];
                    cpu.mean_idle += (idle.min(2e6) - cpu.mean_idle) / 8.0;
                    cpu.now = cpu.now.max(now);
                    let switch = self.costs.switch / 2.0;
                    self.cpus[at].now -= switch;
                    self.next(at, switch);
                    // The CPU's caches are cold.
                    self.cpus[at].now += self.costs.cold * (idle / COOLS).min(1.0);
                }
            }
            Event::Balance => {
                self.balancing = false;
                for at in 0..self.cpus.len() {
                    if self.waiting == 0 {
                        break;
                    }
                    let idle = self.cpus[at].current.is_none() && !self.cpus[at].called;
                    if idle && self.cpus[at].queue.is_empty() && self.take_from_busiest(at) {
                        self.cpus[at].called = true;
                        self.at(now + self.costs.interrupt, Event::Resched(at));
                    }
                }
                self.start_balancing(now);
            }
        }
    }
}
