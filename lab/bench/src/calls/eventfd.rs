//! The floor of a round trip: a thread that sleeps on an eventfd, and answers through another.
//!
//! Nothing that sleeps is woken faster. A spinning thread is, at the price of its CPU.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_sync::thread;
use corewise_topology::{CpuId, CpuSet, Machine};
use rustix::event::{self, EventfdFlags};
use rustix::io::{read, retry_on_intr, write};

use crate::calls::priority;
use crate::error::BenchError;
use crate::start::pinned;

/// The real-time priority of the threads that are called: what Corewise's call targets ask for.
const TARGET_PRIORITY: u8 = 50;

/// The thread. Dropping this ends and joins it.
struct Echo {
    files: Arc<[OwnedFd; 2]>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Of the two files, the one to the thread, and the one from it.
const QUESTION: usize = 0;
const ANSWER: usize = 1;

/// Asks the thread to end: no number is that large.
const END: u64 = u64::MAX - 1;

/// What asks a thread that is pinned to `cpu` and, where that is allowed, has [`TARGET_PRIORITY`].
///
/// # Errors
/// It couldn't be started or pinned.
pub(super) fn eventfd(
    machine: &Machine,
    cpu: CpuId,
) -> Result<impl FnMut(u64) -> u64 + use<>, BenchError> {
    let file =
        || event::eventfd(0, EventfdFlags::empty()).map_err(|e| BenchError::Thread(e.into()));
    let files = Arc::new([file()?, file()?]);
    let theirs = Arc::clone(&files);
    let thread = pinned(machine, "eventfd", Some(CpuSet::from_iter([cpu])), move || {
        // Where it isn't allowed, call targets haven't it either.
        let _ = priority::real_time(TARGET_PRIORITY);
        while let Some(number) = get(&theirs[QUESTION]).filter(|number| *number != END) {
            put(&theirs[ANSWER], number + 1);
        }
    })?;
    let echo = Echo { files, thread: Some(thread) };
    Ok(move |number| {
        put(&echo.files[QUESTION], number);
        get(&echo.files[ANSWER]).unwrap_or(0)
    })
}

impl Drop for Echo {
    fn drop(&mut self) {
        put(&self.files[QUESTION], END);
        if let Some(thread) = self.thread.take() {
            // One that panicked has no more to say here.
            drop(thread.join());
        }
    }
}

/// Adds to an eventfd, which is empty.
fn put(file: &OwnedFd, number: u64) {
    // It fails where the count would overflow, and then the answer is missed.
    let _ = retry_on_intr(|| write(file, &number.to_ne_bytes()));
}

/// Sleeps until there is a number, and takes it.
fn get(file: &OwnedFd) -> Option<u64> {
    let mut number = [0; 8];
    retry_on_intr(|| read(file, &mut number)).ok()?;
    Some(u64::from_ne_bytes(number))
}
