//! The ways to make an item: one to keep, one that runs once, a future, and those of a scope.

pub(crate) mod future;
pub(crate) mod future_state;
pub(crate) mod join;
mod once;
pub(crate) mod scope;
pub(crate) mod work;
