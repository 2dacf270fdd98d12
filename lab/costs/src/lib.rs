//! Costs of a machine, in nanoseconds: one TOML file, the cost model of a simulator.
//! `corewise-bench machine` measures it, or you write it by hand.
//!
//! [`Costs`] is the file, [`Figure`] a number with its spread, [`Distance`] the distance of two
//! CPUs. `lab/machine.md` explains each key and how it is measured.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let text = corewise_costs::EXAMPLE;
//! use corewise_costs::{Costs, Distance};
//!
//! let costs = Costs::read(text)?;
//! let line = costs.transfer(Distance::Cache).expect("the file has a distance");
//! assert!(line.list_ns.p50 > costs.line.locked_ns.p50);
//! assert_eq!(Costs::read(&costs.write())?, costs);
//! # Ok(())
//! # }
//! ```
//!
//! A file must have all of `[line]`, `[call]`, `[switch]`, `[scheduler]` and `[thread]`: no default
//! would be right on all machines. `[machine]` and `[noise]` describe the measurement and may be
//! left out. So may `[allocator]` and each entry of `[distance]`, `[[contended]]` and `[[wake]]`: a
//! machine with one CPU has no distances. [`Costs::transfer`] and [`Costs::wake`] answer from the
//! nearest entry.

mod costs;
mod error;
mod figure;
mod nearest;
mod write;

pub use costs::{
    Allocator, Calls, Contended, Costs, Distance, Line, Machine, Noise, Scheduler, Switch, Target,
    Thread, Transfer, VERSION, Wake,
};
pub use error::CostsError;
pub use figure::Figure;

/// A file written by hand: a machine with two CPUs, in round numbers.
pub const EXAMPLE: &str = include_str!("example.toml");

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
