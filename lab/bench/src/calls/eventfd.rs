//! The floor of a round trip: a thread that sleeps on an eventfd, and answers through another.
//!
//! No sleeping thread is woken faster. A spinning thread answers faster, at the price of its CPU.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_sync::thread;
use corewise_topology::{CpuId, CpuSet, Machine};
use rustix::event::{self, EventfdFlags};
use rustix::io::{read, retry_on_intr, write};

use crate::calls::priority;
use crate::error::BenchError;
use crate::start::pinned;

/// The real-time priority of the called threads, for which Corewise's call targets ask too.
const TARGET_PRIORITY: u8 = 50;

/// The thread that answers. Dropping this ends and joins it.
struct Echo {
    files: Arc<[OwnedFd; 2]>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Index of the file to the thread. The other one is the file from it.
const QUESTION: usize = 0;
const ANSWER: usize = 1;

/// The number that asks the thread to end. No other number is as large.
const END: u64 = u64::MAX - 1;

/// Makes a function that asks a thread, which is pinned to `cpu` and, if that is allowed, has
/// [`TARGET_PRIORITY`].
///
/// # Errors
/// The thread couldn't be started or pinned.
pub(super) fn eventfd(
    machine: &Machine,
    cpu: CpuId,
) -> Result<impl FnMut(u64) -> u64 + use<>, BenchError> {
    let file =
        || event::eventfd(0, EventfdFlags::empty()).map_err(|e| BenchError::Thread(e.into()));
    let files = Arc::new([file()?, file()?]);
    let theirs = Arc::clone(&files);
    let thread = pinned(machine, "eventfd", Some(CpuSet::from_iter([cpu])), move || {
        // If it isn't allowed, call targets don't have it either.
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
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}

/// Adds a number to an eventfd, which is empty.
fn put(file: &OwnedFd, number: u64) {
    // The write fails if the count would overflow, and then there is no answer.
    let _ = retry_on_intr(|| write(file, &number.to_ne_bytes()));
}

/// Sleeps until the eventfd has a number, and takes it.
fn get(file: &OwnedFd) -> Option<u64> {
    let mut number = [0; 8];
    retry_on_intr(|| read(file, &mut number)).ok()?;
    Some(u64::from_ne_bytes(number))
}
