//! How requests change their shape on the way to the driver: flushes, merges and splits.

pub(crate) mod flush;
pub(crate) mod split;
