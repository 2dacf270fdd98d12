//! The counterpart of `follow.rs` for a system that announces no change of its CPUs: nobody can be
//! woken by one, and nobody is reminded.

use std::io;
use std::sync::Arc;

use corewise_topology::{Machine, Watch};

use crate::pool::spawn::Limit;

/// A type without values.
pub(crate) enum Follower {}

/// A type without values.
pub(crate) enum Reminder {}

impl Reminder {
    pub(crate) fn ring(&self) {
        match *self {}
    }
}

impl Follower {
    pub(crate) fn start(_: &Machine, _looked: impl Fn() + Send + 'static) -> io::Result<Self> {
        // Fails, and says why.
        Watch::new().map_err(io::Error::other)?;
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn reminder(&self) -> Option<&Arc<Reminder>> {
        match *self {}
    }

    pub(crate) fn stop(&self) {
        match *self {}
    }

    pub(crate) fn end(&self, _: Limit) -> Result<(), String> {
        match *self {}
    }
}
