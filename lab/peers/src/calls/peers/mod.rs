//! The peers that are Rust, one file each, all behind the trait of the call workloads.

pub(crate) mod channels;
pub(crate) mod rayon;
pub(crate) mod tokio;

use corewise_bench::calls::roundtrip::called;
use corewise_bench::start::pinned;
use corewise_bench::{BenchError, Job};
use corewise_sync::thread;
use corewise_topology::{CpuId, CpuSet, Machine};

/// The targets of a job's calls.
#[derive(Clone)]
pub(crate) struct Targets {
    machine: Machine,
    /// The CPUs of the called threads.
    pub(crate) cpus: Vec<CpuId>,
    /// 1 if the caller answers too: in a call to many it does its own CPU's share. Else 0.
    pub(crate) own: u64,
}

impl Targets {
    pub(crate) fn of(job: &Job, machine: &Machine) -> Result<Targets, BenchError> {
        let mut cpus: Vec<CpuId> = called(job, machine)?.iter().collect();
        let all = cpus.len();
        if job.case.starts_with("broadcast/") {
            cpus.retain(|&cpu| cpu != job.client());
        }
        let own = (all - cpus.len()) as u64;
        Ok(Targets { machine: machine.clone(), cpus, own })
    }
}

/// Computes the answer of a target to a value.
#[inline]
pub(crate) fn answer(value: u64) -> u64 {
    value + 1
}

/// Threads pinned to a CPU each, and the senders of their messages, in the order of the CPUs.
/// Dropping this drops the senders, so that the threads end, and waits for them.
pub(crate) struct Called<S> {
    senders: Vec<S>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl<S> Called<S> {
    /// Starts a thread for each target, and returns once all are pinned. `make` makes the function
    /// that it runs.
    ///
    /// # Errors
    /// A function couldn't be made, or a thread couldn't be started or pinned.
    pub(crate) fn start<F: FnOnce() + Send + 'static>(
        to: &Targets,
        name: &str,
        mut make: impl FnMut() -> Result<(S, F), BenchError>,
    ) -> Result<Called<S>, BenchError> {
        let mut called = Called { senders: Vec::new(), threads: Vec::new() };
        for &cpu in &to.cpus {
            let (sender, body) = make()?;
            called.senders.push(sender);
            let (name, cpus) = (format!("{name}/{cpu}"), Some(CpuSet::from_iter([cpu])));
            called.threads.push(pinned(&to.machine, &name, cpus, body)?);
        }
        Ok(called)
    }

    #[inline]
    pub(crate) fn senders(&self) -> &[S] {
        &self.senders
    }
}

impl<S> Drop for Called<S> {
    fn drop(&mut self) {
        self.senders.clear();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}
