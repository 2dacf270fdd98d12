//! The system of a model: threads have no priority, and each request is granted.

use std::io;
use std::time::Duration;

use crate::facade::sys::{Limits, Mask, Policy, RunState, Tid};

/// The threads are the checker's.
pub(crate) const KERNEL_THREADS: bool = false;

pub(crate) fn machine() -> Option<String> {
    None
}

pub(crate) fn cpus() -> usize {
    2
}

pub(crate) fn affinity(_thread: Option<Tid>) -> Option<Mask> {
    None
}

pub(crate) fn set_affinity(_thread: Option<Tid>, _mask: &Mask) -> io::Result<()> {
    Ok(())
}

/// Returns the same number for all threads.
pub(crate) fn tid() -> u32 {
    1
}

pub(crate) fn run_state(_thread: Tid) -> Option<RunState> {
    None
}

pub(crate) fn own_cpu_time() -> Option<Duration> {
    None
}

pub(crate) fn is_ordinary() -> bool {
    true
}

pub(crate) fn niceness() -> i32 {
    0
}

pub(crate) fn set_niceness(_nice: i32) -> io::Result<()> {
    Ok(())
}

pub(crate) fn set_policy(_policy: Policy) -> io::Result<()> {
    Ok(())
}

pub(crate) fn limits() -> Limits {
    Limits { fifo: 0, nice: 0, files: 1024 }
}

pub(crate) fn room_for_stack(_bytes: usize) -> io::Result<()> {
    Ok(())
}

pub(crate) fn may_have_any_priority() -> bool {
    false
}

pub(crate) fn wake_on_time() -> io::Result<()> {
    Ok(())
}

pub(crate) fn stack() -> Option<(usize, usize)> {
    None
}

/// A type without values: a model has no timers.
#[derive(Debug)]
pub(crate) enum Timer {}

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn set(&self, _after: Duration) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn wait(&self) -> io::Result<()> {
        match *self {}
    }
}
