//! Workloads, the `before` variants, and the statistics of a comparison.
//!
//! * [`mod@bench`] has all benchmarks, and the type of one. [`job`] is a run as text.
//! * [`workqueue`]: workloads for workqueues, on each affinity scope and on the old design.
//! * [`calls`]: cross-CPU calls against an eventfd, and against waiters that hold their core.
//! * [`probe`]: devices that burn and wait in their probes.
//! * [`shutdown`]: webs of devices that are shut down, against the plain loop and the old design.
//! * [`blockmq`]: the block layer, with runs that find nothing pending, and the length of holds.
//! * [`process`] makes a run in a process of its own. [`mod@line`] is its output, [`meter`] its
//!   costs.
//! * [`start`] starts threads. [`load`] reads other load of the machine.
//! * [`rounds`]: runs of all variants, round by round in random order.
//! * [`stats`]: medians, percentiles, ratios of pairs with a bootstrap interval.
//! * [`record`] has the figures of a call, one JSON object per metric. [`names`] has the names of
//!   cases, metrics and headlines.
//! * [`table`]: records as a table for people.
//! * [`machine`] measures the costs of this machine, in nanoseconds. [`counting`] is an allocator
//!   that counts.
//!
//! Nothing here prints: `corewise-bench` and `bench-peers` do. Compare only numbers of one call of
//! one program: two calls are different moments of a machine.

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

pub use error::{BenchError, with_causes};
pub use job::Job;
pub use line::Line;
