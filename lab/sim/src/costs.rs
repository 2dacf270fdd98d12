//! What things cost on a machine, in nanoseconds.

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
    /// The cost of a distance; nothing for here.
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

/// How long a CPU takes to run a thread that was woken, after it was idle for so long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AfterIdle {
    /// How long the CPU was idle.
    pub idle: f64,
    /// The median of the time until the thread runs, from the call that wakes it.
    pub p50: f64,
    /// Its 99th percentile.
    pub p99: f64,
    /// The call that wakes it.
    pub call: f64,
}

/// What things cost on a machine, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// What stands around each access: the instructions between two of them. Fitted, not measured.
    pub around: f64,
    /// How far ahead a core looks for lines that it will need, in time of the instructions between:
    /// the room that its reorder buffer gives. Fitted, not measured.
    pub window: f64,
    /// Whether it looks beyond a locked operation that isn't done.
    pub beyond_locked: bool,
    /// By what share the system's part of a switch or a wake-up takes longer for each other CPU
    /// that is busy.
    pub crowd: f64,
    /// A load or store of a line that is in the CPU's own cache.
    pub hit: f64,
    /// A locked operation on such a line; what the lock adds to one on another line.
    pub locked: f64,
    /// A full fence with nothing to wait for.
    pub fence: f64,
    /// A line that another CPU wrote, until it is here.
    pub modified: ByDistance,
    /// A line that others only read, or that nobody ever touched.
    pub shared: ByDistance,
    /// A load or store of a line that the hardware has fetched ahead, behind the one before it.
    pub prefetched: f64,
    /// A locked operation on such a line, which another CPU may have to give up first.
    pub prefetched_locked: f64,
    /// The least time between two hand-overs of one line: a contended line changes its owner so
    /// often.
    pub service: f64,
    /// A spin hint.
    pub spin_hint: f64,
    /// A read of the clock.
    pub clock: f64,
    /// A system call that does nothing.
    pub syscall: f64,
    /// A call that yields the CPU and finds nobody to yield it to.
    pub yields: f64,
    /// From one thread of a CPU to the next.
    pub switch: f64,
    /// What a thread runs longer that runs on a CPU which was idle for long: nothing is in its
    /// caches. Fitted.
    pub cold: f64,
    /// The call that wakes a thread on a CPU that runs one, or on its own.
    pub wake_call_here: f64,
    /// Until a woken thread runs, by how long its CPU was idle. Ordered by that.
    pub wake: Vec<AfterIdle>,
    /// Until a CPU that runs a thread notices that it should run another.
    pub interrupt: f64,
    /// How long a thread runs where another one waits for the CPU.
    pub slice: f64,
    /// How far behind in CPU time a woken thread has to be to take the CPU at once.
    pub wake_preemption: f64,
    /// An idle CPU takes a waiting thread from another one only if it is idle as long as this on
    /// average.
    pub migration: f64,
    /// How often idle CPUs look for threads that wait elsewhere.
    pub balance: f64,
    /// How late a timer is.
    pub timer_slack: f64,
    /// To create a thread, for its creator.
    pub spawn: f64,
    /// The first touch of a page, which the system gives then.
    pub fault: f64,
    /// An allocation.
    pub malloc: f64,
    /// To free it in the thread that made it, and in another one.
    pub free: f64,
    /// See above.
    pub free_elsewhere: f64,
    /// A membarrier call where no other CPU runs a thread.
    pub membarrier: f64,
    /// The same beside one that does: it is interrupted, and has to answer.
    pub membarrier_one: f64,
    /// What each further one adds.
    pub membarrier_each: f64,
}

impl Costs {
    /// Sixteen cores of an Intel Sapphire Rapids under KVM, as measured on 2026-11-22.
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

    /// Until a thread runs on a CPU that was idle for so long: the median, and the 99th percentile.
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
