//! The floor of a round trip: a thread that sleeps on an eventfd, and answers through another.
//!
//! Nothing that sleeps is woken faster. A spinning thread is, at the price of its CPU.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_sync::thread;
use corewise_topology::{CpuId, CpuSet, Machine};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, retry_on_intr, write};

use crate::calls::priority;
use crate::calls::roundtrip::Caller;
use crate::error::BenchError;
use crate::start::pinned;

/// The real-time priority of the threads that are called: what Corewise's call targets ask for.
pub const TARGET_PRIORITY: u8 = 50;

/// The caller's side. Dropping it ends and joins the thread.
#[derive(Debug)]
pub struct Eventfd {
    files: Arc<Files>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Files {
    question: OwnedFd,
    answer: OwnedFd,
}

/// Asks the thread to end: no number is that large.
const END: u64 = u64::MAX - 1;

impl Eventfd {
    /// A thread that is pinned to `cpu` and, where that is allowed, has [`TARGET_PRIORITY`].
    ///
    /// # Errors
    /// It couldn't be started or pinned.
    pub fn new(machine: &Machine, cpu: CpuId) -> Result<Eventfd, BenchError> {
        let file = || eventfd(0, EventfdFlags::empty()).map_err(|e| BenchError::Thread(e.into()));
        let files = Arc::new(Files { question: file()?, answer: file()? });
        let theirs = Arc::clone(&files);
        let thread = pinned(machine, "eventfd", Some(CpuSet::from_iter([cpu])), move || {
            // Where it isn't allowed, call targets haven't it either.
            let _ = priority::real_time(TARGET_PRIORITY);
            while let Some(number) = get(&theirs.question).filter(|number| *number != END) {
                put(&theirs.answer, number + 1);
            }
        })?;
        Ok(Eventfd { files, thread: Some(thread) })
    }
}

impl Caller for Eventfd {
    fn call(&mut self, number: u64) -> u64 {
        put(&self.files.question, number);
        get(&self.files.answer).unwrap_or(0)
    }
}

impl Drop for Eventfd {
    fn drop(&mut self) {
        put(&self.files.question, END);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eventfd_server_answers_each_question_and_ends() {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let mut eventfd = Eventfd::new(&machine, CpuId::new(0)).unwrap();
        for number in 1..100 {
            assert_eq!(eventfd.call(number), number + 1);
        }
    }
}
