//! The floor of the ping-pong: a bare thread that sleeps on a futex and wakes the client.
//!
//! No queue is faster than that if its worker sleeps. A queue whose worker spins is faster, at the
//! price of its CPU time.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Parker, Unparker, thread};
use corewise_topology::{CpuId, CpuSet, Machine};

use crate::error::BenchError;
use crate::start::pinned;

/// The thread that wakes the client. Dropping this ends and joins it.
struct Echo {
    wake: Unparker,
    /// A: Release before the wake, Acquire after it.
    closed: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Makes a function that wakes a thread, which then wakes the client. The thread is pinned if the
/// job asks for it.
///
/// # Errors
/// The thread couldn't be started or pinned.
pub(super) fn futex(
    machine: &Machine,
    cpu: Option<CpuId>,
    client: Unparker,
) -> Result<impl Fn() + use<>, BenchError> {
    let (parker, closed) = (Parker::new(), Arc::new(AtomicBool::new(false)));
    let (wake, over) = (parker.unparker(), Arc::clone(&closed));
    let cpus = cpu.map(|cpu| CpuSet::from_iter([cpu]));
    let thread = pinned(machine, "futex", cpus, move || {
        loop {
            parker.park();
            if over.load(Ordering::Acquire) {
                return;
            }
            client.unpark();
        }
    })?;
    let echo = Echo { wake, closed, thread: Some(thread) };
    Ok(move || echo.wake.unpark())
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.wake.unpark();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}
