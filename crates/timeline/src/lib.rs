//! Spans on lanes, critical path and renderers for bring-up and shutdown.
//!
//! # What it is
//!
//! A [`Timeline`] records a run of things with dependencies. It has one [`Span`] per device (or
//! initcall, or task), and one [`Edge`] per dependency. A span has the worker that ran it, the
//! times at which it became ready, started and ended, its result, and its release. The same model
//! carries what Corewise recorded itself and what a kernel log says.
//!
//! The three numbers that tell whether running in parallel paid are
//!
//! * [`Timeline::makespan`]: the time that it took;
//! * [`Timeline::serial_sum`]: the time that the same work would have taken one after another;
//! * [`Timeline::critical_path`]: the shortest possible time with any number of workers.
//!
//! Each of them is a [`Length`], no more exact than the lengths that it is computed from. A run at
//! an unknown moment is [`Unplaced`] and counts in none of them.
//!
//! # Renderers
//!
//! A timeline's `Display` and [`text::render`] serve a terminal, [`svg::render`] makes a picture.
//! With the feature `json`, [`html::render`] makes a page to zoom into, [`json::render`] serves
//! programs, and [`perfetto::render`] the tools that read Chrome's traces. [`markup`] holds what
//! they share with other pictures.
//!
//! # What it is not
//!
//! The crate is pure: it reads no clock, starts no thread, opens no file. Times are [`Duration`]s
//! since the timeline's zero, given by their recorder. Every function here may be called
//! from any context; none blocks.
//!
//! # Example
//!
//! ```
//! use corewise_timeline::{EdgeKind, Span, SpanKind, Timeline};
//! use std::time::Duration;
//!
//! let ms = Duration::from_millis;
//! let mut t = Timeline::new("bring-up");
//! let disk = t.push(Span::new("disk", SpanKind::Probe, ms(0), ms(30)).on("worker 0", Some(0)));
//! let log = t.push(Span::new("log", SpanKind::Probe, ms(0), ms(10)).on("worker 1", Some(1)));
//! let mut volume = Span::new("volume", SpanKind::Probe, ms(30), ms(50)).on("worker 0", Some(0));
//! volume.queued = ms(30);
//! volume.released_by = Some("disk".into());
//! let volume = t.push(volume);
//! t.push_edge(disk, volume, EdgeKind::Parent);
//! t.push_edge(log, volume, EdgeKind::Supplier);
//!
//! assert_eq!(t.makespan(), ms(50));
//! assert_eq!(t.serial_sum(), ms(60));
//! assert_eq!(t.critical_path().spans, [disk, volume]);
//! println!("{t:100}");
//! ```
//!
//! [`Duration`]: std::time::Duration

pub mod analysis;
#[cfg(test)]
mod fixtures;
#[cfg(feature = "json")]
pub mod html;
#[cfg(feature = "json")]
pub mod json;
mod lanes;
mod length;
pub mod markup;
mod path;
#[cfg(feature = "json")]
pub mod perfetto;
mod select;
mod span;
pub mod svg;
pub mod text;
mod units;

pub use lanes::{Lane, LaneRow};
pub use length::Length;
pub use path::{CriticalPath, Summary};
pub use span::{
    Certainty, Driver, Edge, EdgeKind, Outcome, Span, SpanId, SpanKind, Timeline, Unplaced,
};
pub use units::{count, duration, verb};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
