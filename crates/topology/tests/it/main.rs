//! Machines: live, read from files, made up, and changing.

#[path = "../support/mod.rs"]
mod support;

mod change;
mod live;
mod machine;
mod machines;
mod refresh;
mod shard_table;
mod synthetic;
mod sysfs;
mod xml;
