//! Costs of a machine, in nanoseconds.

use crate::machine::Distance;

/// A cost for each distance: core, cache, node, far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByDistance {
    /// An SMT sibling.
    pub core: f64,
    /// Another core of the same last-level cache.
    pub cache: f64,
    /// Another last-level cache of the node.
    pub node: f64,
    /// Another node.
    pub far: f64,
}

impl ByDistance {
    /// Returns the cost of a distance. [`Distance::Here`] costs nothing.
    #[inline]
    pub fn of(&self, distance: Distance) -> f64 {
        match distance {
            Distance::Here => 0.0,
            Distance::Core => self.core,
            Distance::Cache => self.cache,
            Distance::Node => self.node,
            Distance::Far => self.far,
        }
    }
}

/// Costs of a wake-up on a CPU that was idle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AfterIdle {
    /// Time for which the CPU was idle.
    pub idle: f64,
    /// Median time from the call until the woken thread runs.
    pub p50: f64,
    /// 99th percentile of that time.
    pub p99: f64,
    /// Time of the call that wakes the thread.
    pub call: f64,
}

/// The costs of a machine, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// The instructions between two accesses. Fitted, not measured.
    pub around: f64,
    /// Time of the instructions that fit into a core's reorder buffer: so far ahead the core
    /// fetches lines. Fitted, not measured.
    pub window: f64,
    /// True if a core fetches lines beyond a locked operation that isn't done.
    pub beyond_locked: bool,
    /// Share by which each other busy CPU prolongs the system's part of a switch or a wake-up.
    pub crowd: f64,
    /// A load or store of a line that is in the CPU's own cache.
    pub hit: f64,
    /// A locked operation on a line in the CPU's own cache. On another line, the lock adds as much.
    pub locked: f64,
    /// A full fence with nothing to wait for.
    pub fence: f64,
    /// The transfer of a line that another CPU wrote.
    pub modified: ByDistance,
    /// The transfer of a line that others only read, or that no thread has touched.
    pub shared: ByDistance,
    /// A load or store of a line that the hardware has prefetched.
    pub prefetched: f64,
    /// A locked operation on a prefetched line, which another CPU may have to give up first.
    pub prefetched_locked: f64,
    /// The least time between two hand-overs of one line: the rate of a contended line.
    pub service: f64,
    /// A spin hint.
    pub spin_hint: f64,
    /// A read of the clock.
    pub clock: f64,
    /// A system call that does nothing.
    pub syscall: f64,
    /// A call that yields the CPU while no other thread wants it.
    pub yields: f64,
    /// A switch from one thread of a CPU to the next.
    pub switch: f64,
    /// Extra time of a thread that wakes on a CPU which was idle for long: its caches are cold.
    /// Fitted.
    pub cold: f64,
    /// The call that wakes a thread on a CPU that runs one, or on its own.
    pub wake_call_here: f64,
    /// Wake-ups by the time for which the CPU was idle, in this order.
    pub wake: Vec<AfterIdle>,
    /// The time until a busy CPU notices that it should run another thread.
    pub interrupt: f64,
    /// The time slice of a thread while another one waits for the CPU.
    pub slice: f64,
    /// The lag in CPU time with which a woken thread takes the CPU at once.
    pub wake_preemption: f64,
    /// The least average idle time of a CPU that takes a waiting thread from another one.
    pub migration: f64,
    /// The interval at which idle CPUs look for threads that wait elsewhere.
    pub balance: f64,
    /// The lateness of a timer.
    pub timer_slack: f64,
    /// The creation of a thread, for its creator.
    pub spawn: f64,
    /// The first touch of a page.
    pub fault: f64,
    /// An allocation.
    pub malloc: f64,
    /// A free in the thread that made the allocation.
    pub free: f64,
    /// A free in another thread.
    pub free_elsewhere: f64,
    /// A membarrier call while no other CPU runs a thread.
    pub membarrier: f64,
    /// A membarrier call while one other CPU runs a thread: that CPU is interrupted, and answers.
    pub membarrier_one: f64,
    /// The part that each further CPU adds.
    pub membarrier_each: f64,
}

impl Costs {
    /// Returns the measured costs of sixteen cores of an Intel Sapphire Rapids under KVM.
    pub fn sapphire_rapids_16() -> Costs {
        Costs {
            around: 1.5,
            window: 40.0,
            beyond_locked: true,
            crowd: 0.0,
            hit: 1.2,
            locked: 8.5,
            fence: 8.5,
            modified: ByDistance { core: 28.0, cache: 90.0, node: 130.0, far: 200.0 },
            shared: ByDistance { core: 20.0, cache: 60.0, node: 90.0, far: 150.0 },
            prefetched: 4.1,
            prefetched_locked: 4.1,
            service: 23.0,
            spin_hint: 40.0,
            clock: 42.5,
            syscall: 154.0,
            yields: 374.0,
            switch: 1150.0,
            cold: 0.0,
            wake_call_here: 690.0,
            wake: vec![
                AfterIdle { idle: 0.0, p50: 4000.0, p99: 20_000.0, call: 1480.0 },
                AfterIdle { idle: 20_000.0, p50: 6500.0, p99: 31_700.0, call: 1480.0 },
                AfterIdle { idle: 50_000.0, p50: 7200.0, p99: 35_000.0, call: 1480.0 },
                AfterIdle { idle: 200_000.0, p50: 15_400.0, p99: 700_000.0, call: 1480.0 },
                AfterIdle { idle: 1_000_000.0, p50: 26_800.0, p99: 1_000_000.0, call: 1480.0 },
                AfterIdle { idle: 5_000_000.0, p50: 37_200.0, p99: 1_300_000.0, call: 1480.0 },
            ],
            interrupt: 2000.0,
            slice: 2_800_000.0,
            wake_preemption: 1_000_000.0,
            migration: 500_000.0,
            balance: 4_000_000.0,
            timer_slack: 50_000.0,
            spawn: 15_000.0,
            fault: 700.0,
            malloc: 25.0,
            free: 21.0,
            free_elsewhere: 25.0,
            membarrier: 155.0,
            membarrier_one: 2270.0,
            membarrier_each: 470.0,
        }
    }

    /// Returns the costs of a wake-up on a CPU that was idle for this time, between two known ones.
    pub(crate) fn after_idle(&self, idle: f64) -> AfterIdle {
        let Some(next) = self.wake.iter().position(|entry| entry.idle >= idle) else {
            let nothing = AfterIdle { idle: 0.0, p50: 0.0, p99: 0.0, call: 0.0 };
            return self.wake.last().copied().unwrap_or(nothing);
        };
        let (to, from) = (self.wake[next], self.wake[next.saturating_sub(1)]);
        let share =
            if to.idle > from.idle { (idle - from.idle) / (to.idle - from.idle) } else { 1.0 };
        let between = |of: fn(&AfterIdle) -> f64| of(&from) + (of(&to) - of(&from)) * share;
        AfterIdle {
            idle,
            p50: between(|entry| entry.p50),
            p99: between(|entry| entry.p99),
            call: between(|entry| entry.call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_wake_up_lies_between_those_measured() {
        let costs = Costs::sapphire_rapids_16();
        assert_eq!(costs.after_idle(20_000.0).p50, 6500.0);
        let p50 = costs.after_idle(600_000.0).p50;
        assert!(p50 > 15_400.0 && p50 < 26_800.0);
        assert_eq!(costs.after_idle(1e12).p50, 37_200.0, "the last one measured, beyond it");
        assert_eq!(costs.after_idle(0.0).p50, 4000.0);
    }
}
