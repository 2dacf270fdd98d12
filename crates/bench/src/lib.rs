//! Workloads, the `before` variants, and the statistics that make a comparison believable.
//!
//! * [`record`]: what a measurement prints, one JSON object per metric; [`names`]: what its case and
//!   its metric say.
//! * [`stats`]: medians, percentiles, ratios of pairs with a bootstrap interval.
//! * [`paired`]: runs variants round by round in random order, so that a drift of the machine hits
//!   all.
//! * [`workqueue`]: workloads for workqueues, on each affinity scope, the old design, and others.
//! * [`calls`]: cross-CPU calls against an eventfd, and against waiters that hold their core.
//! * [`probe`]: devices that burn and wait in their probes, and where those run.
//! * [`shutdown`]: webs of devices that are shut down, against the plain loop and the old design.
//! * [`blockmq`]: the block layer: what its runs cost where nothing is pending, how long holds take.
//! * [`machine`]: what this machine costs, by itself, in nanoseconds.
//! * [`process`]: a run in a process of its own, [`words`]: what it is told, [`mod@line`]: what it prints, [`meter`]: what it costs,
//!   [`rounds`]: many of them.
//! * [`counting`]: an allocator that counts.
//! * [`advice`]: what a run says about the scope to choose, in sentences.
//! * [`report`]: a run as one HTML file.
//!
//! Nothing here prints: `corewise bench` and `bench-peers` do. The comparisons that are allowed:
//! numbers of one call of one program. Records of different calls were measured on different
//! moments of a machine, and say little about each other.

pub mod advice;
pub mod blockmq;
pub mod calls;
pub mod counting;
pub mod line;
pub mod machine;
pub mod meter;
pub mod names;
pub mod paired;
pub mod probe;
pub mod process;
pub mod record;
pub mod report;
pub mod rng;
pub mod rounds;
pub mod shutdown;
pub mod stats;
mod usage;
pub mod words;
pub mod workqueue;

mod error;
mod start;

pub use error::BenchError;
