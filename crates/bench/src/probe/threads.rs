//! No design at all: a plain thread a device, which the system's scheduler puts where it likes.
//!
//! It says what the machine makes of the pattern by itself. Where there are fewer CPUs than devices
//! that is not what no design can beat: two probes that share a CPU wait for each other, and drift.

use std::time::Duration;

use corewise_sync::{thread, time};

use crate::error::BenchError;
use crate::probe::device::Device;
use crate::probe::ours::{Devices, How};
use crate::start::Start;

/// Nobody would start more threads than so many for it.
pub const MOST: usize = 100;

/// A thread a device, started beforehand and let go at the same moment.
#[derive(Debug)]
pub struct Threads;

impl Devices for Threads {
    fn bring_up(&self, devices: Vec<Device>, _how: How) -> Result<Duration, BenchError> {
        let start = &Start::new(devices.len());
        thread::scope(|scope| {
            let probe = |device: Device| {
                let probe = move || {
                    if start.wait() {
                        device.probe();
                    }
                };
                scope.spawn(probe)
            };
            let all: Vec<_> = devices.into_iter().map(probe).collect();
            start.all_ready();
            // Before: they may all run ahead of this thread once they are let go.
            let began = time::now();
            start.release();
            let done = all.into_iter().map(thread::ScopedJoinHandle::join);
            // Each is joined, also behind one that panicked.
            match done.fold(true, |well, one| well & one.is_ok()) {
                true => Ok(time::now() - began),
                false => Err(BenchError::WrongAnswer),
            }
        })
    }
}
