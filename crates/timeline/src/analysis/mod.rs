//! Analyses of a timeline: the most expensive parts, parallelism, predictions, and the difference
//! of two runs.
//!
//! Everything here is a pure function of a [`Timeline`](crate::span::Timeline), so it serves
//! recordings of Corewise and kernel logs alike.
//!
//! ```
//! use corewise_timeline::analysis::WhatIf;
//! use corewise_timeline::{EdgeKind, Span, SpanKind, Timeline};
//! use std::time::Duration;
//!
//! // Three that were shut down one after another; the bridge has to wait for its disk only.
//! let ms = Duration::from_millis;
//! let mut t = Timeline::new("shutdown");
//! let down = |t: &mut Timeline, name, start, end| {
//!     t.push(Span::new(name, SpanKind::Shutdown, ms(start), ms(end)).on("main", None))
//! };
//! let disk = down(&mut t, "disk", 0, 80);
//! let net = down(&mut t, "net", 80, 140);
//! let bridge = down(&mut t, "bridge", 140, 145);
//! t.push_edge(disk, bridge, EdgeKind::Parent);
//!
//! assert_eq!(t.costs()[0].name, "disk");
//! assert_eq!(WhatIf::new().all_async().predict(&t).makespan, ms(85));
//! assert_eq!(WhatIf::new().scaled([disk], 0.5).predict(&t).makespan, ms(105));
//! assert_eq!(t.slack()[net.index()], ms(25));
//! ```

mod compare;
mod concurrency;
mod costs;
mod nesting;
mod replay;
mod tasks;
mod what_if;

pub use compare::{Comparison, Pair, Side, compare};
pub use costs::{Cost, DriverCost, KindCost, Share};
pub(crate) use nesting::Nesting;
pub(crate) use tasks::chain;
pub use what_if::{Prediction, WhatIf};
pub(crate) use what_if::{caveats, is_boot};
