//! What a pool runs: an item's header, its state word, and the handles that move it along.
//!
//! Read `state.md` beside this file first.

pub(crate) mod claim;
pub(crate) mod current;
pub(crate) mod flushers;
pub(crate) mod header;
pub(crate) mod run;
pub(crate) mod state;
pub(crate) mod vtable;
