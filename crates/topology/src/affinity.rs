//! The affinity of threads: which CPUs a thread may use, which one it is on, and pinning it.
//!
//! CPU numbers here are those of the machine that the process runs on. Linux only.

use std::io;
use std::path::Path;

use rustix::thread;

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::sysfs;

/// Makes the calling thread run on these CPUs only, from now on. Threads that it starts later
/// inherit that. The kernel silently leaves out CPUs that are offline or outside of the process's
/// cpuset.
///
/// May be called from any thread; doesn't block, but may move the thread before it returns.
///
/// # Errors
/// [`TopologyError::Pin`] if the set is empty, if none of its CPUs may be used, if it holds a CPU
/// above 1023 (the system call's usual limit), or if the system refuses.
pub fn pin_current_thread(cpus: &CpuSet) -> Result<(), TopologyError> {
    pin(None, cpus)
}

/// A thread of this process, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tid(rustix::process::Pid);

impl Tid {
    /// The calling thread.
    pub fn current() -> Tid {
        Tid(thread::gettid())
    }
}

/// As [`pin_current_thread`], for another thread. It is moved at once, also where it runs or
/// sleeps.
///
/// The caller makes sure that the thread hasn't ended: the kernel gives its number to other
/// threads, also of other processes, and those would be pinned instead. May wait for a moment until
/// the thread has been moved.
///
/// # Errors
/// As [`pin_current_thread`].
pub fn pin_thread(thread: Tid, cpus: &CpuSet) -> Result<(), TopologyError> {
    pin(Some(thread.0), cpus)
}

fn pin(whom: Option<rustix::process::Pid>, cpus: &CpuSet) -> Result<(), TopologyError> {
    let wrong = |error| TopologyError::Pin { cpus: cpus.clone(), error };
    let invalid = |reason| wrong(io::Error::new(io::ErrorKind::InvalidInput, reason));
    if cpus.is_empty() {
        return Err(invalid("the set is empty"));
    }
    let mut set = thread::CpuSet::new();
    for cpu in cpus {
        if cpu as usize >= thread::CpuSet::MAX_CPU {
            return Err(invalid("threads can be pinned to CPUs 0-1023 only"));
        }
        set.set(cpu as usize);
    }
    thread::sched_setaffinity(whom, &set).map_err(|errno| wrong(errno.into()))
}

/// The CPU that the calling thread is on at this moment; it may have moved before the caller looks.
/// `None` where the system doesn't tell. Never blocks. A load of the thread's own memory where the
/// C library has the kernel keep it there (glibc since 2.35), else a call.
#[inline]
pub fn current_cpu() -> Option<u32> {
    #[cfg(all(
        target_os = "linux",
        target_env = "gnu",
        target_pointer_width = "64",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(miri)
    ))]
    if let Some(cpu) = crate::rseq::current_cpu() {
        return Some(cpu);
    }
    by_system_call()
}

pub(crate) fn by_system_call() -> Option<u32> {
    u32::try_from(thread::sched_getcpu()).ok()
}

/// The CPUs that the calling thread may use. With CPUs of its mask that are offline at the moment
/// where the kernel tells about them. `None` if nothing could be learnt. Reads a file of `/proc`.
///
/// # Errors
/// [`TopologyError::Content`] if the kernel's list of CPUs can't be read as one.
pub fn current_affinity() -> Result<Option<CpuSet>, TopologyError> {
    // The status file has the whole mask. The system call leaves out offline CPUs, and fails on
    // machines with more CPUs than its buffer has bits.
    let path = Path::new("/proc/thread-self/status");
    if let Some(mask) = mask_in(path)? {
        return Ok(Some(mask));
    }
    let Ok(set) = thread::sched_getaffinity(None) else { return Ok(None) };
    let cpus = (0..thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    Ok(Some(cpus.map(|cpu| cpu as u32).collect()))
}

/// The CPUs that some thread of this process may use, with offline ones where the kernel tells
/// about them. Doesn't look further once they cover `enough`. `None` if nothing could be learnt.
///
/// Of all threads, since any of them may have been pinned for a reason of its own, by us or by the
/// user: that narrows that thread. A cpuset, or `taskset --all-tasks`, narrows each.
pub(crate) fn process_affinity(enough: &CpuSet) -> Option<CpuSet> {
    let mut union: Option<CpuSet> = None;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end while we look.
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
    let text = sysfs::text(status)?;
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
    fn pinning_to_nothing_or_beyond_the_system_calls_limit_says_so() {
        for (cpus, wanted) in [("", "empty"), ("1,1024", "0-1023")] {
            let error = pin_current_thread(&cpus.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
