//! Workloads, the `before` variants, and the statistics that make a comparison believable.
//!
//! * [`mod@bench`]: what a benchmark is, and all of them; [`job`]: a run as text.
//! * [`workqueue`]: workloads for workqueues, on each affinity scope, the old design, and others.
//! * [`calls`]: cross-CPU calls against an eventfd, and against waiters that hold their core.
//! * [`probe`]: devices that burn and wait in their probes, and where those run.
//! * [`shutdown`]: webs of devices that are shut down, against the plain loop and the old design.
//! * [`blockmq`]: the block layer: what its runs cost where nothing is pending, how long holds
//!   take.
//! * [`process`]: a run in a process of its own, [`mod@line`]: what it prints, [`meter`]: what it
//!   costs.
//! * [`start`]: threads, [`load`]: what else the machine does meanwhile.
//! * [`rounds`]: runs variants round by round in random order, so that a drift of the machine hits
//!   all.
//! * [`stats`]: medians, percentiles, ratios of pairs with a bootstrap interval.
//! * [`record`]: what a measurement prints, one JSON object per metric; [`names`]: what its case
//!   and its metric say.
//! * [`table`]: records as a table for people.
//! * [`machine`]: what this machine costs, by itself, in nanoseconds; [`counting`]: an allocator
//!   that counts.
//!
//! Nothing here prints: `corewise-bench` and `bench-peers` do. The comparisons that are allowed:
//! numbers of one call of one program. Records of different calls were measured on different
//! moments of a machine, and say little about each other.

pub mod bench;
pub mod blockmq;
pub mod calls;
pub mod counting;
pub mod job;
pub mod line;
pub mod load;
pub mod machine;
pub mod meter;
pub mod names;
pub mod probe;
pub mod process;
pub mod record;
pub mod rounds;
pub mod shutdown;
pub mod start;
pub mod stats;
pub mod table;
mod usage;
pub mod workqueue;

mod error;

pub use error::BenchError;
pub use job::Job;
pub use line::Line;
