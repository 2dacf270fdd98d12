//! For models: the proof that one can see what it is there to see, and choices left to chance. Empty, but where a
//! checker is the backend.

#[allow(unused_imports, unreachable_pub, reason = "only checkers have any")]
pub use crate::facade::backend::testing::*;
