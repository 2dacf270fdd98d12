//! What a thread inherits from the one that makes it, and should not keep: any thread may have to make
//! a worker, one of high priority too, or one that is pinned to another pod.

use corewise_sync::sys;
pub(crate) use corewise_sync::sys::{niceness, set_niceness};
use corewise_topology::{CpuSet, pin_current_thread};

/// For threads that belong to no pool: this niceness, and any CPU that the process may use.
pub(crate) fn run_anywhere(nice: i32) {
    if let Err(error) = set_niceness(nice) {
        tracing::debug!(nice, %error, "a thread keeps the niceness of the worker that made it");
    }
    // The kernel leaves out those that the process may not use.
    if let Err(error) = pin_current_thread(&CpuSet::full(1024)) {
        tracing::debug!(%error, "a thread keeps the CPUs of the worker that made it");
    }
}

/// Has the calling thread woken on time. By default the kernel waits up to 50 us longer, to wake
/// several at once.
pub(crate) fn wake_on_time() {
    if let Err(error) = sys::wake_on_time() {
        tracing::debug!(%error, "timers may be up to 50 us late");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_niceness_of_its_own_and_passes_it_on() {
        if !sys::KERNEL_THREADS {
            // No thread has a niceness.
            return;
        }
        let own = niceness();
        std::thread::spawn(move || {
            set_niceness(own + 1).expect("to be nicer is always allowed");
            let child = std::thread::spawn(niceness).join().expect("no panic");
            assert_eq!(child, own + 1);
        })
        .join()
        .expect("no panic");
        assert_eq!(niceness(), own);
    }
}
