//! The watch of a system that reports nothing about its CPUs: it can't be made.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::TopologyError;
use crate::watch::Unwatched;

/// The type of a [`crate::Watch`] that can't be made.
#[derive(Debug)]
pub(super) enum Watch {}

impl Watch {
    pub(super) fn new() -> Result<Watch, TopologyError> {
        let why = "CPUs that come or go are announced on Linux only";
        let error = io::Error::new(io::ErrorKind::Unsupported, why);
        Err(TopologyError::Watch { doing: "asking the system", error })
    }

    pub(super) fn unwatched(&self) -> &[Unwatched] {
        match *self {}
    }

    pub(super) fn wait(&mut self) -> Result<(), TopologyError> {
        match *self {}
    }

    pub(super) fn take(&mut self) -> Result<bool, TopologyError> {
        match *self {}
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}
