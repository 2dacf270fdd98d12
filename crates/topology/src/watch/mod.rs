//! A file descriptor that tells when to read the machine again.

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

/// A watch that waits, without polling, for events that may have changed the CPUs of this process.
///
/// It only says *when* to look; [`Machine::refresh`](crate::Machine::refresh) looks. Events before
/// the watch was made are not reported, so a loop refreshes once at its beginning:
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
/// The kernel doesn't announce `taskset`. It doesn't announce a move of the process to another
/// cgroup either, unless the old one is left empty, nor that a sibling group became an isolated
/// partition. Writes are announced only to processes that see the group through the same cgroup
/// namespace. Inside of most containers that is not so, and then [`Watch::unwatched`] says it. For
/// these, the program calls [`Machine::refresh`](crate::Machine::refresh) at times of its own
/// choice.
///
/// On other systems than Linux there is nothing to wait for: [`Watch::new`] fails.
#[derive(Debug)]
pub struct Watch(imp::Watch);

/// Something that a [`Watch`] could not watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unwatched {
    /// Subject that isn't watched: `hotplug`, or `cpuset`, which stands for the CPU quota too.
    pub what: &'static str,
    /// Reason, or the part that isn't watched.
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
    /// If the system gives no file descriptor to wait on. Only Linux does.
    pub fn new() -> Result<Watch, TopologyError> {
        imp::Watch::new().map(Watch)
    }

    /// Returns the subjects that could not be watched, and why. Empty if all are watched.
    pub fn unwatched(&self) -> &[Unwatched] {
        self.0.unwatched()
    }

    /// Sleeps until an event may have changed the CPUs that can be used, and consumes all events so
    /// far. It has no timeout. In between, only the kernel's messages about other devices wake it.
    ///
    /// # Errors
    /// If the system fails to wait, or to report the events.
    pub fn wait(&mut self) -> Result<(), TopologyError> {
        self.0.wait()
    }

    /// Consumes all events so far, without waiting. Returns true if they may have changed the CPUs
    /// that can be used. It is for a thread that waits on [`Watch::as_fd`] together with other
    /// things: that is readable until this is called.
    ///
    /// # Errors
    /// If the system fails to report the events.
    pub fn take(&mut self) -> Result<bool, TopologyError> {
        self.0.take()
    }
}

impl AsFd for Watch {
    /// Returns a descriptor that is readable when there may be something to [`take`](Watch::take).
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
