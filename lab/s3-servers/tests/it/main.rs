//! Volumes in servers that speak S3.
#![allow(clippy::unwrap_used)]

#[path = "../../../../crates/cli/tests/common/client.rs"]
#[allow(dead_code, missing_docs, missing_debug_implementations)]
mod client;
mod creation;
mod faults;
mod kills;
mod many;
