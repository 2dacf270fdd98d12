//! When to look at the machine again: a file descriptor to wait on.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod none;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(target_os = "linux")]
use self::linux as imp;
#[cfg(not(target_os = "linux"))]
use self::none as imp;
use crate::error::TopologyError;

/// Waits, without polling, for something that may have changed which CPUs this process may use.
///
/// It only says *when* to look; [`Machine::refresh`](crate::Machine::refresh) looks. What happened
/// before the watch was made is not reported, so a loop looks once at its beginning:
///
/// ```no_run
/// use corewise_topology::{Machine, Watch};
///
/// let machine = Machine::live()?;
/// let mut watch = Watch::new()?;
/// machine.refresh()?;
/// loop {
///     watch.wait()?;
///     if let Some(change) = machine.refresh()? {
///         println!("{change}");
///     }
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), corewise_topology::TopologyError>(())
/// ```
///
/// # What it watches
/// - The kernel's hotplug messages (netlink, `kobject_uevent`): CPUs that go offline, come online,
///   or are added or removed.
/// - Writes to the cpuset and CPU quota files of the process's cgroups and of those above
///   (inotify).
///
/// # What nobody can wait for
/// The kernel announces neither `taskset`, nor that the process was moved to another cgroup (but
/// where the old one is left empty), nor that a sibling group was made an isolated partition. It
/// announces such writes only to those that see the group through the same cgroup namespace: inside
/// of most containers that is not so, and then [`Watch::unwatched`] says it. For these,
/// [`Machine::refresh`](crate::Machine::refresh) at an occasion of the program's own choice
/// remains.
///
/// On other systems than Linux there is nothing to wait for: [`Watch::new`] fails.
#[derive(Debug)]
pub struct Watch(imp::Watch);

/// Something that a [`Watch`] could not watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unwatched {
    /// What isn't watched: `hotplug`, or `cpuset`, which stands for the CPU quota too.
    pub what: &'static str,
    /// Why not, or which part of it.
    pub why: String,
}

impl fmt::Display for Unwatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot watch {}: {}", self.what, self.why)
    }
}

impl Watch {
    /// Begins to watch. A file that can't be watched is left out; see [`Watch::unwatched`].
    ///
    /// # Errors
    /// If the system gives no file descriptor to wait on. None but Linux does.
    pub fn new() -> Result<Watch, TopologyError> {
        imp::Watch::new().map(Watch)
    }

    /// What could not be watched, and why. Empty where all is.
    pub fn unwatched(&self) -> &[Unwatched] {
        self.0.unwatched()
    }

    /// Sleeps until something happened that may have changed which CPUs can be used, and takes note
    /// of all that happened so far. There is no timeout, and nothing wakes it in between but the
    /// kernel's messages about other devices.
    ///
    /// # Errors
    /// If the system fails to wait, or to say what happened.
    pub fn wait(&mut self) -> Result<(), TopologyError> {
        self.0.wait()
    }

    /// Takes note of all that happened so far, without waiting: true if it may have changed which
    /// CPUs can be used. For a thread that waits on [`Watch::as_fd`] together with other things: it
    /// is readable until this is called.
    ///
    /// # Errors
    /// If the system fails to say what happened.
    pub fn take(&mut self) -> Result<bool, TopologyError> {
        self.0.take()
    }
}

impl AsFd for Watch {
    /// Readable when there may be something to [`take`](Watch::take).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwatched_sources_are_named_with_the_reason() {
        let missed = Unwatched { what: "cpuset", why: "it can't be seen".into() };
        assert_eq!(missed.to_string(), "cannot watch cpuset: it can't be seen");
    }
}
