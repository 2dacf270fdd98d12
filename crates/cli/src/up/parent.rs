//! `--exit-with-parent`: the server stops in order when the process that started it has ended.
//!
//! `PR_SET_PDEATHSIG`, which nbdkit's option of this name takes, sends a signal when the *thread*
//! that forked has ended, though its process may go on, and none where that was before the call. A
//! descriptor of the parent (pidfd) becomes readable when the whole process has ended. It is opened
//! in three steps:
//!
//! 1. `ReadParent`: the id of the parent is read.
//! 2. `OpenParent`: a descriptor for that id is opened.
//! 3. `ReadAgain`: the id of the parent is read again.
//!
//! The race is a parent that ends between 1 and 2, whose id another process then has: the
//! descriptor would be of a stranger. A process that ends first hands its children to another
//! parent, and only then is its id free. So where 3 finds the id of 1, the parent had not ended at
//! 2, and the descriptor is its own. Otherwise the parent is gone, and the server doesn't start.
//!
//! A parent that ended before 1 can't be told from one that never ends: the server has init, or a
//! subreaper, as its parent then. 1 is among the first things that the program does, so that time
//! is an `exec` and a parsed command line.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use crate::exit::Failure;

/// The process that started this one.
#[derive(Debug)]
pub(super) struct Parent {
    ended: OwnedFd,
}

impl Parent {
    /// For the beginning of the program.
    pub(super) fn find() -> Result<Parent, Failure> {
        let cannot = |why: &str| Failure::new(format!("cannot use --exit-with-parent: {why}"));
        // ReadParent
        let Some(pid) = getppid() else {
            return Err(cannot("the parent is outside of this PID namespace")
                .help("start the server from a process inside, or leave the option out"));
        };
        Parent::open(pid, getppid)
            .map_err(|error| {
                cannot(&format!("the parent (process {pid}) cannot be watched: {error}"))
                    .help("this needs Linux 5.3 or later")
            })?
            .ok_or_else(|| cannot(&format!("the parent (process {pid}) has ended already")))
    }

    /// `None`: it has ended.
    fn open(pid: Pid, parent: impl FnOnce() -> Option<Pid>) -> io::Result<Option<Parent>> {
        // OpenParent
        let opened = pidfd_open(pid, PidfdFlags::empty());
        // ReadAgain
        if parent() != Some(pid) {
            return Ok(None);
        }
        Ok(Some(Parent { ended: opened? }))
    }

    /// Runs `ended`, on a thread of its own, when the parent has ended.
    pub(super) fn watch(self, ended: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let wait = move || {
            self.wait();
            ended();
        };
        std::thread::Builder::new().name("parent".to_string()).spawn(wait).map(drop)
    }

    /// Blocks until it has ended.
    fn wait(&self) {
        // Interrupted by a signal, or out of memory for a moment: again. A descriptor that can't be
        // polled would be readable.
        while poll(&mut [PollFd::new(&self.ended, PollFlags::IN)], None).is_err() {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_waited_for_and_one_that_is_no_parent_any_more_is_none() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&cat);
        let watched = Parent::open(pid, || Some(pid)).unwrap().unwrap();
        assert!(Parent::open(pid, || Pid::from_raw(1)).unwrap().is_none());
        // Its end; not waited for, so that its id stays its own.
        drop(cat.stdin.take());
        watched.wait();
        assert!(cat.wait().unwrap().success());
        assert!(Parent::open(pid, || Pid::from_raw(1)).unwrap().is_none());
        assert!(Parent::find().is_ok());
    }
}
