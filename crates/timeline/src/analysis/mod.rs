//! What a timeline tells beyond its bars: the worst, how many ran at once, what would change what,
//! and how two runs differ.
//!
//! Everything here is a pure function of a [`Timeline`](crate::Timeline), so it serves what
//! Corewise recorded and what a kernel log says alike.

mod compare;
mod concurrency;
mod costs;
mod nesting;
mod replay;
mod schedule;
mod tasks;
mod what_if;

pub use compare::{Comparison, Pair, Side, compare};
pub use concurrency::Concurrency;
pub use costs::{Cost, DriverCost, KindCost};
pub use nesting::Nesting;
pub use what_if::{Prediction, WhatIf};
