//! No design at all: a plain thread a device, which the system's scheduler puts where it likes.
//!
//! It says what the machine makes of the pattern by itself. Where there are fewer CPUs than devices
//! that is not what no design can beat: two probes that share a CPU wait for each other, and drift.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::probe::device::Device;
use crate::probe::ours::{Devices, How};

/// Nobody would start more threads than so many for it.
pub const MOST: usize = 100;

/// A thread a device, started beforehand and let go at the same moment.
#[derive(Debug)]
pub struct Threads;

impl Devices for Threads {
    fn bring_up(&self, devices: Vec<Device>, _how: How) -> Result<Duration, BenchError> {
        let begin = &Barrier::new(devices.len() + 1);
        thread::scope(|scope| {
            let probe = |device: Device| {
                let probe = move || {
                    begin.wait();
                    device.probe();
                };
                scope.spawn(probe)
            };
            let all: Vec<_> = devices.into_iter().map(probe).collect();
            // Before: they may all run ahead of this thread once they are let go.
            let began = Instant::now();
            begin.wait();
            let done = all.into_iter().map(thread::ScopedJoinHandle::join);
            // Each is joined, also behind one that panicked.
            match done.fold(true, |well, one| well & one.is_ok()) {
                true => Ok(began.elapsed()),
                false => Err(BenchError::WrongAnswer),
            }
        })
    }
}
