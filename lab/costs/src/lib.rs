//! What a machine costs, in nanoseconds: one TOML file, measured by `corewise-bench machine` or
//! written by hand, as the cost model of a simulator or to be compared with another machine's.
//!
//! [`Costs`] is the file, [`Figure`] a number with its spread, [`Distance`] how far apart two CPUs
//! are. `docs/machine.md` explains each key and how it is measured.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let text = corewise_costs::EXAMPLE;
//! use corewise_costs::{Costs, Distance};
//!
//! let costs = Costs::read(text)?;
//! let line = costs.transfer(Distance::Cache).expect("the file has a distance");
//! assert!(line.list_ns.p50 > costs.line.load_hit_ns.p50);
//! assert_eq!(Costs::read(&costs.write())?, costs);
//! # Ok(())
//! # }
//! ```
//!
//! What a file must say: all of `[line]`, `[call]`, `[switch]`, `[scheduler]` and `[thread]`, since
//! no number would be right on all machines. These may be left out: `[machine]`, `[noise]` and
//! `[matrix]`, which describe where the figures come from; and any distance, wake-up, crowd or size
//! of `[distance]`, `[[wake]]`, `[[contended]]` and `[[allocator]]`: a machine with one CPU has no
//! distances. [`Costs::transfer`], [`Costs::wake`], [`Costs::contended`] and [`Costs::allocator`]
//! answer from the nearest one that is there.

mod costs;
mod error;
mod figure;
mod nearest;
mod write;

pub use costs::{
    Allocator, Calls, Contended, Costs, Distance, Line, Machine, Matrix, Noise, Scheduler, Switch,
    Target, Thread, Transfer, VERSION, Wake,
};
pub use error::CostsError;
pub use figure::Figure;

/// A file written by hand: a machine with two CPUs, in round numbers.
pub const EXAMPLE: &str = include_str!("example.toml");

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
