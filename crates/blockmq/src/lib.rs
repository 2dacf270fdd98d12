//! Multi-queue block dispatch whose common path takes no sleeping lock.

mod device;
mod error;
mod request;

pub use device::{BlockDevice, BlockDeviceExt, Geometry};
pub use error::{IoError, IoErrorKind};
pub use request::{Completed, Flags, Op, Payload, Request};
