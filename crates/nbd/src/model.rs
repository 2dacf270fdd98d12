//! For models, and for the fuzzers of what reads untrusted bytes: no part of the interface, and
//! hidden from its documentation.

pub use crate::client::{client_handshake, fuzzed};
pub use crate::load::*;
pub use crate::memory::*;
pub use crate::policy::*;
pub use crate::reply::*;
