//! The drivers that come with the crate. `null` and `memory` finish requests on the spot, `file`
//! asks the kernel, `stripe`, `mirror`, `partition`, `delay` and `error` stand on other block devices.

mod below;
mod chance;
mod content;
mod delay;
mod faulty;
mod file;
mod file_guard;
mod memory;
mod mirror;
mod null;
mod partition;
mod stripe;

pub use content::holds_data;
pub use delay::{Delay, Delays};
pub use faulty::{Fault, Faulty};
pub use file::{
    Alignment, FileDriver, FileEvent, FileOptions, FileRings, IoPath, OnLoss, OpenError,
    OpenErrorKind, PathInUse,
};
pub use file_guard::{FileFault, FileGuard};
pub use memory::Memory;
pub use mirror::{
    Degraded, FindLeg, LegState, Mirror, MirrorCheck, MirrorChecked, MirrorEvent, MirrorLeg,
    MirrorObserver, MirrorOptions, MirrorPlace, MirrorStatus,
};
pub use null::{Null, NullOptions};
pub use partition::{Partition, PartitionEntry, PartitionTable};
pub use stripe::Stripe;

use std::fmt;

use crate::error::IoError;

/// Why devices can't be put together into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackError(String);

impl StackError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl From<IoError> for StackError {
    fn from(error: IoError) -> Self {
        Self::new(error.to_string())
    }
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StackError {}
