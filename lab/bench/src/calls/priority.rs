//! Priorities of threads, and the time for which a ready thread didn't run.

use std::io;

use corewise_sync::sys::{self, Policy};
use corewise_sync::thread;

pub use crate::usage::run_delay;

/// Gives the calling thread the real-time priority `level` (1 to 99, SCHED_FIFO). The thread runs
/// before each ordinary one, and before those of a lower level. Its children don't inherit it.
///
/// # Errors
/// The process may not. Root may, and a user with `CAP_SYS_NICE` or a large enough `RLIMIT_RTPRIO`.
pub fn real_time(level: u8) -> io::Result<()> {
    sys::set_policy(Policy::Fifo(level))
}

/// Makes the calling thread an ordinary one again. The thread keeps its nice value.
///
/// # Errors
/// The system refuses. No reason is known.
pub fn ordinary() -> io::Result<()> {
    sys::set_policy(Policy::Ordinary)
}

/// Gives the calling thread the least share of its CPU (nice 19).
pub fn lowest() {
    // The system always allows a lower priority.
    let _ = sys::set_niceness(19);
}

/// Returns true if threads of this process may have a real-time priority. A thread of its own
/// tries.
pub fn may_be_real_time() -> bool {
    thread::spawn(|| real_time(1).is_ok()).join().unwrap_or(false)
}
