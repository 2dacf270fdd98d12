//! The priority of threads, and how long one was ready to run and didn't.

use std::io;

use corewise_sync::sys::{self, Policy};
use corewise_sync::thread;

pub use crate::usage::RunDelay;

/// Gives the calling thread the real-time priority `level` (1 to 99, SCHED_FIFO): it runs before
/// every ordinary one, and before those of a lower level. Threads that it starts don't inherit it.
///
/// # Errors
/// The process may not. Root may, and a user with `CAP_SYS_NICE` or a large enough `RLIMIT_RTPRIO`.
pub fn real_time(level: u8) -> io::Result<()> {
    sys::set_policy(Policy::Fifo(level))
}

/// Makes the calling thread an ordinary one again; it keeps its nice value.
///
/// # Errors
/// The system's; none is known for that.
pub fn ordinary() -> io::Result<()> {
    sys::set_policy(Policy::Ordinary)
}

/// Gives the calling thread the least share of its CPU (nice 19).
pub fn lowest() {
    // Lowering is always allowed.
    let _ = sys::set_niceness(19);
}

/// Whether threads of this process may have a real-time priority. Asked in a thread of its own.
pub fn may_be_real_time() -> bool {
    thread::spawn(|| real_time(1).is_ok()).join().unwrap_or(false)
}
