//! How much a thread has run: shuttle's are all one thread of the system, so what they have run, and
//! whether they sleep, is chance's word.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use super::testing::choose;
use crate::facade::sys::Reading;

/// The figures of one thread.
#[derive(Debug)]
pub(crate) struct CpuTime {
    ran: Cell<Duration>,
}

impl CpuTime {
    #[allow(clippy::unnecessary_wraps, reason = "as the system's")]
    pub(crate) fn of(_tid: u32) -> io::Result<CpuTime> {
        Ok(CpuTime { ran: Cell::new(Duration::ZERO) })
    }

    #[allow(clippy::unnecessary_wraps, reason = "as the system's")]
    pub(crate) fn read(&self) -> Option<Reading> {
        self.ran.set(self.ran.get() + Duration::from_millis(10 * choose(2)));
        Some(Reading { ran: self.ran.get(), asleep: choose(2) == 0 })
    }
}
