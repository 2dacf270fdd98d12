//! Helpers of the integration tests: those of the block layer, mirrors, and bad disks.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test file uses its part

#[path = "../../../blockmq/tests/common/mod.rs"]
mod shared;

pub mod mirrors;
pub mod platters;

pub use shared::*;
