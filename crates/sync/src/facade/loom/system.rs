//! A system of which a model sees nothing, no CPU either.

use std::io;

pub(crate) use super::model::system::*;
use crate::facade::sys::Reading;

/// Each run of a model has to be the same.
pub(crate) fn current_cpu() -> Option<u32> {
    None
}

/// The figures of one thread: there are none.
#[derive(Debug)]
pub(crate) struct CpuTime;

impl CpuTime {
    pub(crate) fn of(_tid: u32) -> io::Result<CpuTime> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn read(&self) -> Option<Reading> {
        None
    }
}
