//! The interface for models, and for fuzzers of code that reads untrusted bytes. It is no part of
//! the public interface, and hidden from its documentation.

pub use crate::client::{client_handshake, fuzzed};
pub use crate::load::*;
pub use crate::memory::*;
pub use crate::policy::*;
pub use crate::reply::*;
