//! Volumes in servers that speak S3, over connections that fail, and in emulators of other clouds.
//! `cargo xtask test --long --only s3` runs them.
#![allow(clippy::unwrap_used)]

#[path = "../../../../crates/cli/tests/common/client.rs"]
#[allow(dead_code, missing_docs, missing_debug_implementations)]
mod client;
mod creation;
mod disk;
mod emulators;
mod faults;
mod inside;
mod kills;
mod many;
mod program;
mod proxy;
mod weed;
