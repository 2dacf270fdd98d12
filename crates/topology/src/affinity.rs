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
    thread::sched_setaffinity(None, &set).map_err(|errno| wrong(errno.into()))
}

/// The CPU that the calling thread is on at this moment; it may have moved before the caller looks.
/// `None` where the system doesn't tell. Never blocks.
pub fn current_cpu() -> Option<u32> {
    u32::try_from(thread::sched_getcpu()).ok()
}

/// The CPUs that the calling thread may use. With CPUs of its mask that are offline at the moment
/// where the kernel tells about them. `None` if nothing could be learnt.
pub(crate) fn current_affinity() -> Result<Option<CpuSet>, TopologyError> {
    // The status file has the whole mask. The system call leaves out offline CPUs, and fails on
    // machines with more CPUs than its buffer has bits.
    let path = Path::new("/proc/thread-self/status");
    if let Some(status) = sysfs::text(path)?
        && let Some(list) = allowed_in_status(&status)
    {
        return list.parse().map(Some).map_err(|error: TopologyError| TopologyError::Content {
            path: path.to_owned(),
            found: list.to_owned(),
            reason: error.to_string(),
        });
    }
    let Ok(set) = thread::sched_getaffinity(None) else { return Ok(None) };
    let cpus = (0..thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    Ok(Some(cpus.map(|cpu| cpu as u32).collect()))
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
