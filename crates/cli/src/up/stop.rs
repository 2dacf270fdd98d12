//! The end of a server: a signal, the end of `--for` or of the parent; and an end at once if a user
//! can't wait.
//!
//! `--exit-with-parent`: the server stops in order when the process that started it has ended.
//!
//! `PR_SET_PDEATHSIG`, which nbdkit's option of this name takes, sends a signal when the *thread*
//! that forked has ended, though its process may continue. It sends none if that was before the
//! call. A descriptor of the parent (pidfd) becomes readable when the whole process has ended. The
//! server opens it in three steps:
//!
//! 1. `ReadParent`: the id of the parent is read.
//! 2. `OpenParent`: a descriptor for that id is opened.
//! 3. `ReadAgain`: the id of the parent is read again.
//!
//! The race is a parent that ends between 1 and 2, and whose id another process then gets: the
//! descriptor would be a stranger's. A process that ends first hands its children to another
//! parent, and only then is its id free. So if 3 finds the id of 1, the parent had not ended at 2,
//! and the descriptor is its own. Otherwise the parent is gone, and the server doesn't start.
//!
//! A parent that ended before 1 can't be distinguished from one that never ends: the server then
//! has init, or a subreaper, as its parent. Step 1 is among the first that the program takes, so
//! this window is an `exec` and a parsed command line.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use corewise::device::Cancel;
use corewise::sync::Mutex;
use corewise::timeline::duration;
use corewise_server::{Cleanup, Handle};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::signals::{self, StopRequest, StopRequests};
use crate::exit::Failure;
use crate::screen;
use crate::streams::Bars;

/// The requests to stop that a server waits for.
#[derive(Debug)]
pub(crate) struct Stop {
    /// L: is the lock, held while the end is waited for, which one thread does.
    signals: Mutex<Receiver<&'static str>>,
    /// Cancelled by the first signal.
    cancel: Cancel,
    /// I: set once, before there is anything to undo. The server whose devices a second signal
    /// leaves undone, and that follows the manifest.
    server: Arc<OnceLock<Handle>>,
}

impl Stop {
    /// Starts the handling of signals. The first cancels a bring-up and ends a wait. One that comes
    /// a second later, or after that, runs `cleanup`, prints the devices that are left, and ends
    /// the process. SIGHUP reads the manifest again if there is one. The end of `parent` counts as
    /// a first signal.
    pub(crate) fn watch(
        cleanup: Arc<Cleanup>,
        bars: Bars,
        can_reload: bool,
        parent: Option<Parent>,
    ) -> io::Result<Stop> {
        let (sender, signals) = channel();
        let cancel = Cancel::new();
        let server: Arc<OnceLock<Handle>> = Arc::default();
        let (theirs, undone) = (cancel.clone(), Arc::clone(&server));
        let told = Arc::clone(&server);
        let hang_up = move || {
            if let (true, Some(server)) = (can_reload, told.get()) {
                server.reload();
            }
            can_reload
        };
        let requests = Arc::new(Mutex::new(StopRequests::default()));
        let stop = move |name| {
            theirs.cancel();
            // No thread receives that if the server ends by itself.
            let _ = sender.send(name);
        };
        if let Some(parent) = parent {
            let (requests, stop) = (Arc::clone(&requests), stop.clone());
            parent.watch(move || {
                if requests.lock().other(Instant::now()) == StopRequest::InOrder {
                    stop("the end of the process that started it");
                }
            })?;
        }
        let at_once = move |name| {
            let left = match undone.get().map(Handle::not_shut_down).unwrap_or_default().as_str() {
                "" => "no device was up".to_string(),
                words => format!("not shut down: {words}"),
            };
            // A bar that is removed here doesn't come back.
            bars.above(|| {
                for (path, error) in cleanup.run() {
                    screen::warning(format_args!("cannot remove {}: {error}", path.display()));
                }
                screen::error(format_args!("{name} while stopping: ended at once, {left}"));
                // This isn't an `ExitCode`, since other threads are busy with work that is
                // abandoned.
                std::process::exit(1)
            })
        };
        signals::watch(hang_up, move |name| {
            let request = requests.lock().signal(Instant::now());
            match request {
                StopRequest::InOrder => stop(name),
                StopRequest::Repeated => {}
                StopRequest::AtOnce => at_once(name),
            }
        })?;
        Ok(Stop { signals: Mutex::new(signals), cancel, server })
    }

    /// Sets the server that signals act on.
    pub(crate) fn manages(&self, server: &Handle) {
        self.server.get_or_init(|| server.clone());
    }

    /// Returns the handle that cancels a bring-up.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Returns the signal that has already come.
    pub(crate) fn came(&self) -> Option<&'static str> {
        self.signals.lock().try_recv().ok()
    }

    /// Waits for a signal, or for `at_most`. Returns the reason for its end.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> String {
        let signals = self.signals.lock();
        let signal = match at_most {
            None => signals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at_most) => signals.recv_timeout(at_most),
        };
        match (signal, at_most) {
            (Ok(name), _) => name.to_string(),
            (Err(RecvTimeoutError::Timeout), Some(at_most)) => {
                format!("the {} of --for have passed", duration(at_most))
            }
            // The thread of signals never ends; without it no signal could stop the server in
            // order.
            (Err(_), _) => "cannot receive signals".to_string(),
        }
    }
}

/// The process that started this one.
#[derive(Debug)]
pub(super) struct Parent {
    ended: OwnedFd,
}

impl Parent {
    /// Opens the parent. Must be called at the beginning of the program.
    pub(super) fn find() -> Result<Parent, Failure> {
        let cannot = |why: &str| Failure::new(format!("cannot use --exit-with-parent: {why}"));
        // ReadParent
        let Some(pid) = getppid() else {
            return Err(cannot("the parent is outside of this PID namespace")
                .help("start the server from a process inside, or leave the option out"));
        };
        Parent::open(pid, getppid)
            .map_err(|error| {
                cannot(&format!("the server cannot watch the parent (process {pid}): {error}"))
                    .help("this needs Linux 5.3 or later")
            })?
            .ok_or_else(|| cannot(&format!("the parent (process {pid}) has ended already")))
    }

    /// Opens a process. Returns `None` if it has ended.
    fn open(pid: Pid, parent: impl FnOnce() -> Option<Pid>) -> io::Result<Option<Parent>> {
        // OpenParent
        let opened = pidfd_open(pid, PidfdFlags::empty());
        // ReadAgain
        if parent() != Some(pid) {
            return Ok(None);
        }
        Ok(Some(Parent { ended: opened? }))
    }

    /// Runs `ended` on a thread of its own when the parent has ended.
    pub(super) fn watch(self, ended: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let wait = move || {
            self.wait();
            ended();
        };
        std::thread::Builder::new().name("parent".to_string()).spawn(wait).map(drop)
    }

    /// Blocks until the parent has ended.
    fn wait(&self) {
        // Interrupted by a signal, or briefly out of memory: try again. A descriptor that can't be
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
        // The end of `cat`. The test doesn't wait for it, so its id stays taken.
        drop(cat.stdin.take());
        watched.wait();
        assert!(cat.wait().unwrap().success());
        assert!(Parent::open(pid, || Pid::from_raw(1)).unwrap().is_none());
        assert!(Parent::find().is_ok());
    }
}
