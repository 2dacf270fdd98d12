//! Volumes in servers that speak S3.
#![allow(clippy::unwrap_used)]

mod creation;
mod faults;
mod kills;
mod many;
