//! The affinity of threads: the CPUs that a thread may use, its current CPU, and pinning.
//!
//! CPU numbers here are those of the machine that the process runs on. Systems other than Linux
//! refuse to pin.

use std::io;
use std::path::Path;

pub use corewise_sync::sys::Tid;
use corewise_sync::sys::{self, Mask};

use crate::cpuset::{CpuId, CpuSet};
use crate::error::TopologyError;
use crate::files;

/// Returns the CPU that the calling thread is on; the thread may have moved before the caller uses
/// the answer. Returns `None` if the system doesn't tell. Never blocks. Costs no system call if the
/// C library lets the kernel keep the number in the thread's own memory (glibc since 2.35).
#[inline]
#[must_use]
pub fn current_cpu() -> Option<CpuId> {
    sys::current_cpu().map(CpuId::new)
}

/// Restricts the calling thread to these CPUs from now on. Threads that it starts later inherit
/// that. The kernel silently leaves out CPUs that are offline or outside of the process's cpuset.
///
/// May be called from any thread; doesn't block, but may move the thread before it returns.
///
/// # Errors
/// [`TopologyError::Pin`] if the set is empty, if none of its CPUs may be used, if it holds a CPU
/// above 1023 (the system call's usual limit), or if the system refuses. Every system but Linux
/// does.
pub fn pin_current_thread(cpus: &CpuSet) -> Result<(), TopologyError> {
    pin(None, cpus)
}

/// Restricts another thread as [`pin_current_thread`] does. It is moved at once, even if it runs or
/// sleeps.
///
/// The caller makes sure that the thread hasn't ended: the kernel gives its number to other
/// threads, also of other processes, and those would be pinned instead. May wait for a moment until
/// the thread has been moved.
///
/// # Errors
/// See [`pin_current_thread`].
pub fn pin_thread(thread: Tid, cpus: &CpuSet) -> Result<(), TopologyError> {
    pin(Some(thread), cpus)
}

fn pin(whom: Option<Tid>, cpus: &CpuSet) -> Result<(), TopologyError> {
    let wrong = |error| TopologyError::Pin { cpus: cpus.clone(), error };
    let invalid = |reason| wrong(io::Error::new(io::ErrorKind::InvalidInput, reason));
    if cpus.is_empty() {
        return Err(invalid("the set is empty"));
    }
    let mut mask = Mask::none();
    for cpu in cpus.iter().map(CpuId::number) {
        if cpu >= Mask::CPUS {
            return Err(invalid("threads can be pinned to CPUs 0-1023 only"));
        }
        mask.add(cpu);
    }
    sys::set_affinity(whom, &mask).map_err(wrong)
}

/// Returns the CPUs that the calling thread may use: those of the system call, which proves them,
/// and CPUs of its mask that are offline, if the kernel reports them. Returns `None` if the system
/// reports nothing. Reads a file of `/proc`.
///
/// # Errors
/// [`TopologyError::Content`] if the kernel's list of CPUs can't be read as one.
pub fn current_affinity() -> Result<Option<CpuSet>, TopologyError> {
    // The status file has the whole mask. The system call leaves out offline CPUs, and fails on
    // machines with more CPUs than its buffer has bits.
    let path = Path::new("/proc/thread-self/status");
    let told = if sys::KERNEL_THREADS { mask_in(path)? } else { None };
    Ok(match (told, proven(None)) {
        (Some(told), Some(proven)) => Some(told.union(&proven)),
        (one, other) => one.or(other),
    })
}

/// Returns the CPUs that a thread (`None`: the calling one) may use and that are online, by the
/// system call. The kernel answers with the thread's mask and its own mask of active CPUs, so the
/// answer beats the content of files: containers have made-up files in `/sys` and `/proc`.
pub(crate) fn proven(thread: Option<Tid>) -> Option<CpuSet> {
    sys::affinity(thread).map(|mask| mask.iter().map(CpuId::new).collect())
}

/// Returns the CPUs of `wanted` that the system call proves to be online: CPUs that some thread of
/// this process may use.
pub(crate) fn proven_of(wanted: &CpuSet) -> CpuSet {
    let mut found = CpuSet::new();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let tasks = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    for thread in [None].into_iter().chain(tasks.map(|number| Some(Tid::from_number(number)))) {
        if wanted.is_subset(&found) {
            break;
        }
        // A thread may end meanwhile.
        if let Some(proven) = proven(thread) {
            found = found.union(&proven.intersection(wanted));
        }
    }
    found
}

/// Returns the CPUs that some thread of this process may use, with offline ones if the kernel
/// reports them. Stops once they cover `enough`. Returns `None` if the system reports nothing.
///
/// All threads count, since any of them may have been pinned for a reason of its own, by us or by
/// the user: that narrows only that thread. A cpuset, or `taskset --all-tasks`, narrows each.
pub(crate) fn process_affinity(enough: &CpuSet) -> Option<CpuSet> {
    let mut union: Option<CpuSet> = None;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end meanwhile.
        let Ok(Some(mask)) = mask_in(&task.path().join("status")) else { continue };
        let wider = union.map_or_else(|| mask.clone(), |union| union.union(&mask));
        let covered = enough.is_subset(&wider);
        union = Some(wider);
        if covered {
            break;
        }
    }
    union
}

fn mask_in(status: &Path) -> Result<Option<CpuSet>, TopologyError> {
    let text = files::text(status)?;
    let Some(list) = text.as_deref().and_then(allowed_in_status) else { return Ok(None) };
    list.parse().map(Some).map_err(|error: TopologyError| TopologyError::Content {
        path: status.to_owned(),
        found: list.to_owned(),
        reason: error.to_string(),
    })
}

fn allowed_in_status(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file_tells_the_whole_mask() {
        let status = "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\nMems_allowed:\t1\n";
        assert_eq!(allowed_in_status(status), Some("0-7"));
        assert_eq!(allowed_in_status("Name:\tx\n"), None);
    }

    #[test]
    fn a_thread_proves_the_cpu_that_it_may_use_to_another_that_may_not() {
        if !sys::KERNEL_THREADS {
            return;
        }
        let all = proven(None).expect("Linux says it");
        let ends = [all.first(), all.last()].map(CpuSet::from_iter);
        let (first, last) = (ends[0].clone(), ends[1].clone());
        // Threads of their own, so that no other test is pinned.
        let (pinned, wait) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let only = last.clone();
        let other = std::thread::spawn(move || {
            pin_current_thread(&only).unwrap();
            pinned.send(Tid::current()).unwrap();
            let _ = end.recv();
        });
        let other_thread = wait.recv().unwrap();
        std::thread::spawn(move || {
            pin_current_thread(&first).unwrap();
            assert_eq!(proven(None), Some(first));
            assert_eq!(proven(Some(other_thread)), Some(last.clone()));
            assert_eq!(proven_of(&last), last);
            let beyond = CpuSet::from_iter([CpuId::new(CpuSet::MAX_CPU)]);
            assert_eq!(proven_of(&beyond.union(&last)), last);
        })
        .join()
        .unwrap();
        drop(done);
        other.join().unwrap();
    }

    #[test]
    fn pinning_to_nothing_or_beyond_the_system_calls_limit_says_so() {
        for (cpus, wanted) in [("", "empty"), ("1,1024", "0-1023")] {
            let error = pin_current_thread(&cpus.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
