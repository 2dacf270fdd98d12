//! A variable that has a value for each CPU.

use std::fmt;
use std::iter::Sum;

use corewise_sync::CachePadded;
use corewise_topology::{CpuId, Machine, current_cpu};

/// A variable with one value for each CPU of a machine, each on cache lines of its own: writes of
/// threads on different CPUs don't meet.
///
/// There is a value for every CPU of the topology, online or not. It is made with the variable and
/// stays where it is while its CPU leaves and comes back, so a sum loses nothing and a reference
/// never goes stale.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use corewise_smp::{AllCpus, PerCpu, Smp};
/// use corewise_topology::Machine;
///
/// let machine = Machine::synthetic("core:4 pu:1")?;
/// let smp = Smp::new(&machine)?;
///
/// let calls = Arc::new(PerCpu::new(&machine, |_| AtomicU64::new(0)));
/// let counts = Arc::clone(&calls);
/// let count = move |cpu| counts.on(cpu).map(|count| count.fetch_add(1, Ordering::Relaxed));
/// smp.call_each(AllCpus, count).wait();
/// assert_eq!(calls.sum(|count| count.load(Ordering::Relaxed)), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Access to a value
/// A thread may be moved to another CPU right after it has read its CPU, and on a described machine
/// the CPUs are only names. So values are shared, and have to be `T: Sync`: atomics, mostly. They
/// don't save the locked instruction, but the wait for a cache line that another CPU has. Code that
/// needs a CPU's value for itself has to run on its call target: [`Smp::call`](crate::Smp::call)
/// runs one function at a time there.
///
/// For a mere count, a [`Counter`](corewise_sync::Counter) has a count for each thread, needs no
/// machine, and costs a third.
///
/// This is the counterpart of the kernel's `DEFINE_PER_CPU`, without the promise that a thread
/// isn't moved meanwhile.
pub struct PerCpu<T> {
    /// I: the values, in CPU order.
    values: Box<[CachePadded<T>]>,
    /// I: the CPUs, in the same order.
    cpus: Box<[CpuId]>,
    /// I: position by CPU number; for a number without a CPU in the machine, some position.
    positions: Box<[u32]>,
}

impl<T> PerCpu<T> {
    /// Creates a value for each CPU of the machine's topology: `init` is called with the number of
    /// each, in order, on this thread.
    pub fn new(machine: &Machine, mut init: impl FnMut(CpuId) -> T) -> Self {
        let cpus: Box<[CpuId]> = machine.topology().cpu_set().iter().collect();
        let values = cpus.iter().map(|&cpu| CachePadded::new(init(cpu))).collect();
        let mut positions = vec![0; cpus.last().map_or(0, |&last| last.index() + 1)];
        for (position, &cpu) in (0..).zip(&cpus) {
            positions[cpu.index()] = position;
        }
        PerCpu { values, cpus, positions: positions.into() }
    }

    /// Returns the value of the caller's present CPU; a moment later the caller may be on another.
    /// It takes a few nanoseconds. Never blocks; any context.
    ///
    /// The CPU may be missing in the topology: it was plugged in since, the machine is a described
    /// one, or the system doesn't report it. Then the value is another CPU's, always the same one
    /// for a CPU.
    #[inline]
    pub fn local(&self) -> &T {
        let cpu = current_cpu().map_or(0, CpuId::index);
        let position = match self.positions.get(cpu) {
            Some(&position) => position as usize,
            None => cpu % self.values.len(),
        };
        &self.values[position]
    }

    /// Returns a CPU's value; `None` if the topology has no such CPU. Any thread.
    #[inline]
    pub fn on(&self, cpu: CpuId) -> Option<&T> {
        let position = *self.positions.get(cpu.index())? as usize;
        (self.cpus[position] == cpu).then(|| &*self.values[position])
    }

    /// Returns every CPU's number and value, in CPU order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (CpuId, &T)> {
        self.cpus.iter().copied().zip(self.values.iter().map(|value| &**value))
    }

    /// Returns the sum of what `part` returns for each value. While others write, it is the sum of
    /// values that didn't all exist at one moment.
    pub fn sum<N: Sum<N>>(&self, part: impl FnMut(&T) -> N) -> N {
        self.values.iter().map(|value| &**value).map(part).sum()
    }
}

impl<T: fmt::Debug> fmt::Debug for PerCpu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(cpu, value)| (cpu.number(), value))).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use corewise_topology::pin_current_thread;

    use super::*;

    fn machine(description: &str) -> Machine {
        Machine::synthetic(description).expect("the description is right")
    }

    #[test]
    fn each_cpu_has_its_value_and_no_other_has_one() {
        let names = PerCpu::new(&machine("core:3 pu:1"), |cpu| format!("cpu{cpu}"));
        assert_eq!(names.on(CpuId::new(2)).map(String::as_str), Some("cpu2"));
        assert_eq!((names.on(CpuId::new(3)), names.on(CpuId::new(u32::MAX))), (None, None));
        let all: Vec<_> = names.iter().map(|(cpu, name)| (cpu.number(), name.as_str())).collect();
        assert_eq!(all, [(0, "cpu0"), (1, "cpu1"), (2, "cpu2")]);
        assert_eq!(names.sum(String::len), 12);
        assert_eq!(format!("{names:?}"), r#"{0: "cpu0", 1: "cpu1", 2: "cpu2"}"#);
    }

    #[test]
    fn numbers_between_the_cpus_have_no_value() {
        let four = machine("core:4 pu:1(indexes=0,4,2,6)");
        let counts = PerCpu::new(&four, CpuId::number);
        assert_eq!(
            (0..8).map(|cpu| counts.on(CpuId::new(cpu)).copied()).collect::<Vec<_>>(),
            [Some(0), None, Some(2), None, Some(4), None, Some(6), None]
        );
    }

    #[test]
    fn a_cpu_that_leaves_keeps_its_value() {
        let machine = machine("core:2 pu:1");
        machine.set_online(CpuId::new(1), false).expect("a described CPU can leave");
        let names = PerCpu::new(&machine, |cpu| Mutex::new(cpu.number()));
        *names.on(CpuId::new(1)).expect("offline, and there").lock().expect("nobody panicked") += 6;
        machine.set_online(CpuId::new(1), true).expect("and come back");
        assert_eq!(names.sum(|name| *name.lock().expect("nobody panicked")), 7);
    }

    #[test]
    fn there_is_a_local_value_on_any_cpu_also_where_the_machine_has_fewer() {
        let one = PerCpu::new(&machine("core:1 pu:1"), |_| Mutex::new(0));
        *one.local().lock().expect("nobody panicked") += 1;
        assert_eq!(one.sum(|count| *count.lock().expect("nobody panicked")), 1);
    }

    #[test]
    fn a_pinned_thread_gets_the_value_of_its_cpu() {
        let machine = Machine::live().expect("this machine can be read");
        let numbers = PerCpu::new(&machine, |cpu| cpu);
        for cpu in &machine.online() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let pinned = pin_current_thread(&[cpu].into_iter().collect()).is_ok();
                    let here = *numbers.local();
                    // Another test may take the CPU out at any moment.
                    if pinned && current_cpu() == Some(cpu) {
                        assert_eq!(here, cpu);
                    }
                });
            });
        }
    }
}
