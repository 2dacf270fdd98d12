//! Reads kernel logs and reports the cost of boot and shutdown, device by device.
//!
//! A [`Reader`] takes the bytes of a log, in any pieces, and returns a [`KernelLog`]. It knows the
//! lines that a kernel prints with `initcall_debug`, those that its driver core prints with dynamic
//! debugging, and those of a few patches ([`Form`]). It also knows the prefixes of the programs
//! that save logs ([`Prefix`]). Any excerpt will do: it need not begin at a boot, or end with one.
//! A line that only looks like one of the forms is kept with its number ([`SuspiciousLine`]);
//! nothing is dropped silently.
//!
//! ```
//! use corewise_kernel_log::Reader;
//!
//! let mut reader = Reader::new();
//! reader.feed(b"[    5.140900][  T207] calling  nvme_init+0x0/0xff0 [nvme] @ 207\n");
//! reader.feed(b"[    5.240900][  T207] probe of 0000:01:00.0 returned 0 after 90000 usecs\n[   ");
//! reader.feed(b" 5.240950][  T207] initcall nvme_init+0x0/0xff0 [nvme] ");
//! reader.feed(b"returned 0 after 100040 usecs\n");
//! let log = reader.finish();
//! assert_eq!(log.boot.spans().len(), 2);
//! assert_eq!(log.boot.serial_sum(), std::time::Duration::from_micros(100_040));
//! ```
//!
//! # What a log says, and what it does not
//!
//! * **Init calls** have two lines, which are paired by function, module and, where the log names
//!   it, thread. The duration is the printed one. A kernel begins with a clock that ticks, and
//!   prints durations in whole ticks (0, 4000, 8000 µs) until it takes a better one. The stamps of
//!   the two lines then bound the durations. Without its first line a call took at least what is
//!   printed, as all threads' calls share one clock since 4.17. Older kernels print units of 1.024
//!   µs. If one pair of lines, one probe inside or two ticks show that, the durations are
//!   corrected. If nothing shows it either way, both units bound them.
//! * **Probes** have one line, at their end. The start is computed ([`Certainty::Inferred`]); the
//!   driver comes from the line since 7.3, before from others. A kernel prints a negative result if
//!   it did not get as far as calling the driver, and a positive one if the driver itself refused.
//!   So -517 and 517 are both deferrals. Kernels before 5.14 print 1 for a device that was bound,
//!   and 0 for one that was not: a line within the probe says why (`failed with error`,
//!   `requests probe deferral`), or nobody knows. Such a line without the probe's last one is named
//!   in a note.
//! * **What is nested in what** is proven by threads, where lines name them
//!   (`CONFIG_PRINTK_CALLER`). Else it is found by time. A probe within the time of another one, or
//!   of an init call, seems to have run inside it, unless a sign shows that they ran side by side
//!   ([`nesting`]). It may have run on another thread, so what follows from that is marked
//!   ([`may_be_nested`](corewise_timeline::Span::may_be_nested)).
//! * **An order in time** needs stamps below the second that are the kernel's own. Without one
//!   ([`Unplaced`](corewise_timeline::Unplaced)) only what the lines themselves print is known. A
//!   journal's own stamps tell when it got a line, and count only where init calls show that they
//!   keep up.
//! * **Shutdowns** have one line, at their beginning. The end is the beginning of the next one of
//!   the same thread ([`Certainty::UpperBound`]). If lines name no thread, a kernel that shuts down
//!   asynchronously makes that wrong, and the log doesn't show it; notes say so.
//! * **A line that is there twice**, with the same exact stamp and the same text, is one event.
//! * **The graph** comes from device links, deferrals, parents that lines name, PCI bridges and
//!   names that are paths ([`EdgeSource`]). More can be [applied](KernelLog::apply): that of a
//!   sysfs tree ([`sysfs`]), or one that was written down ([`DeviceGraph::from_text`]).
//!
//! # Memory
//!
//! The reader's memory grows with the lines that were understood, not with the log: some 300 bytes
//! each, and four times that at the end. It is bounded. Beyond some 300 000 such lines, which no
//! machine prints, the reader only counts lines, and a note says so. The reader remembers some 260
//! 000 messages with their moments, to find those that are there twice, and a megabyte of a dump
//! whose parts must be reordered. It gives up a compressed log that unpacks to far more than logs
//! do.
//!
//! [`Certainty::Inferred`]: corewise_timeline::Certainty::Inferred
//! [`Certainty::UpperBound`]: corewise_timeline::Certainty::UpperBound
//! [`nesting`]: corewise_timeline::Span::nested_in

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* #[doc = concat!("`", $text, "`")] $variant,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Returns its text for people.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

mod conclude;
mod facts;
mod form;
mod graph;
mod journal;
mod lines;
mod log;
mod message;
mod prefix;
mod reader;
pub mod sysfs;

pub use form::{Form, Prefix};
pub use graph::{DependencyError, DeviceGraph, EdgeSource, GraphEdge};
pub use lines::encoding::Unread;
pub use log::{BootSummary, Bound, Deferral, KernelLog, Split, SplitShare, SuspiciousLine};
pub use reader::Reader;

/// The README, whose example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
