//! Corewise's calls, as the workloads make them.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use corewise_smp::{Priority, Smp, StartError};
use corewise_sync::Parker;
use corewise_topology::{CpuSet, Machine};

use crate::calls::roundtrip::Caller;
use crate::error::BenchError;

/// Call targets as they are measured: ahead of ordinary work, as the peers' threads that a broadcast
/// or an interrupt is compared with; on a synthetic machine, whose threads share the real CPUs, plain.
///
/// # Errors
/// Their threads couldn't be started or pinned.
pub fn targets(machine: &Machine) -> Result<Smp, StartError> {
    let priority =
        if machine.is_synthetic() { Priority::Plain } else { Priority::OF_INTERRUPT_THREADS };
    Smp::builder(machine).priority(priority).build()
}

/// Calls to one CPU, each waited for.
#[derive(Debug)]
pub struct One {
    smp: Smp,
    cpu: u32,
}

impl One {
    /// To `cpu`.
    ///
    /// # Errors
    /// The call targets couldn't be started.
    pub fn new(machine: &Machine, cpu: u32) -> Result<One, BenchError> {
        Ok(One { smp: targets(machine)?, cpu })
    }
}

impl Caller for One {
    fn call(&mut self, number: u64) -> u64 {
        let answer = self.smp.call(self.cpu, move || number + 1);
        answer.ok().and_then(|call| call.wait().ok()).unwrap_or(0)
    }
}

/// Calls to one CPU, each awaited as a future, by a thread that is parked meanwhile.
#[derive(Debug)]
pub struct Awaited {
    one: One,
    parker: Parker,
    waker: Waker,
}

impl Awaited {
    /// The same calls, awaited.
    pub fn new(one: One) -> Awaited {
        let parker = Parker::new();
        let waker = parker.waker();
        Awaited { one, parker, waker }
    }
}

impl Caller for Awaited {
    fn call(&mut self, number: u64) -> u64 {
        let Ok(mut call) = self.one.smp.call(self.one.cpu, move || number + 1) else { return 0 };
        let mut context = Context::from_waker(&self.waker);
        loop {
            match Pin::new(&mut call).poll(&mut context) {
                Poll::Ready(answer) => return answer.unwrap_or(0),
                Poll::Pending => self.parker.park(),
            }
        }
    }
}

/// Calls to several CPUs at once, waited for together.
#[derive(Debug)]
pub struct Many {
    smp: Smp,
    cpus: CpuSet,
}

impl Many {
    /// To these CPUs.
    ///
    /// # Errors
    /// The call targets couldn't be started.
    pub fn new(machine: &Machine, cpus: CpuSet) -> Result<Many, BenchError> {
        Ok(Many { smp: targets(machine)?, cpus })
    }
}

impl Caller for Many {
    fn call(&mut self, number: u64) -> u64 {
        let answers = self.smp.call_many(&self.cpus, move |_| number + 1).wait();
        answers.values.map(|(_, answer)| answer.unwrap_or(0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_to_one_and_to_many_answer() {
        let machine = Machine::synthetic("core:3 pu:1").unwrap();
        assert_eq!(One::new(&machine, 2).unwrap().call(4), 5);
        assert_eq!(Awaited::new(One::new(&machine, 1).unwrap()).call(6), 7);
        assert_eq!(Many::new(&machine, CpuSet::full(3)).unwrap().call(4), 15);
    }
}
