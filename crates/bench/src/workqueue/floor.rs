//! The floor of the ping-pong: a bare thread that sleeps on a futex and wakes the client.
//!
//! No queue is faster than that with a worker that sleeps; one whose worker spins is, at the price
//! of its CPU time.

use corewise_sync::thread;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Completion, Mutex, Parker, Unparker};
use corewise_topology::{CpuId, CpuSet, Machine};

use crate::error::BenchError;
use crate::start::pinned;

/// The thread. Dropping this ends and joins it.
#[derive(Debug)]
pub struct Futex {
    wake: Unparker,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// A: Release before the wake, Acquire after it.
    closed: AtomicBool,
    /// L: is the lock; guards whom to wake. Taken when a client comes, not for each ping.
    client: Mutex<Option<Unparker>>,
    /// A: set once there is a client: the thread takes its copy then.
    ready: Completion,
}

impl Futex {
    /// A thread, pinned where that is asked for.
    ///
    /// # Errors
    /// It couldn't be started or pinned.
    pub fn new(machine: &Machine, cpu: Option<CpuId>) -> Result<Futex, BenchError> {
        let shared = Arc::new(Shared {
            closed: AtomicBool::new(false),
            client: Mutex::new(None),
            ready: Completion::new(),
        });
        let (parker, theirs) = (Parker::new(), Arc::clone(&shared));
        let wake = parker.unparker();
        let cpus = cpu.map(|cpu| CpuSet::from_iter([cpu]));
        let thread = pinned(machine, "futex", cpus, move || theirs.echo(&parker))?;
        Ok(Futex { wake, shared, thread: Some(thread) })
    }

    /// What asks the thread to wake its client. For one client only: the floor has no queue.
    pub fn signal(&self, done: Unparker) -> impl Fn() {
        *self.shared.client.lock() = Some(done);
        self.shared.ready.complete();
        || self.wake.unpark()
    }
}

impl Shared {
    fn echo(&self, parker: &Parker) {
        self.ready.wait();
        let Some(client) = self.client.lock().take() else { return };
        loop {
            parker.park();
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            client.unpark();
        }
    }
}

impl Drop for Futex {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.ready.complete();
        self.wake.unpark();
        if let Some(thread) = self.thread.take() {
            // One that panicked has no more to say here.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_answers_each_ping_and_ends_with_or_without_a_client() {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        drop(Futex::new(&machine, None).unwrap());
        let futex = Futex::new(&machine, Some(CpuId::new(0))).unwrap();
        let parker = Parker::new();
        let ping = futex.signal(parker.unparker());
        for _ in 0..100 {
            ping();
            parker.park();
        }
    }
}
