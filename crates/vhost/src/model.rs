//! For models: no part of the interface, and hidden from its documentation.

pub use crate::waker::WakeState;
