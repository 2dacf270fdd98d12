//! Threads with an `io_uring`, which the drivers and the front ends of a program share.
//!
//! A thread is the only one that touches its ring, so the ring needs no lock. The kernel can leave
//! the work of completions to that thread (`SINGLE_ISSUER`, `DEFER_TASKRUN`): no thread is
//! interrupted, and what a submitting thread began isn't cancelled when that thread ends.
//!
//! There is a ring for each few CPUs that share a cache, whatever the number of files and disks. A
//! ring has [users](RingUser), such as the file driver and ublk. Each keeps an inbox of its own,
//! which other threads fill before they [wake](RingPort::wake) the ring's thread. The thread gives
//! all users their turn, and submits the entries of all of them in one system call. So a disk of
//! this machine whose volume is a file costs no wake-up between the two, and few calls.
//!
//! A thread at rest sleeps in the kernel. `README.md` has the protocol.
#![cfg(target_os = "linux")]

mod port;
mod rings;
#[cfg(test)]
mod tests;
mod thread;

pub use port::RingPort;
pub use rings::{RingSet, Rings};
pub use thread::{Entries, RingUser};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
