//! The thread that follows a live machine: it sleeps until the kernel reports that CPUs came or
//! went, and refreshes the machine. The kernel doesn't announce every change (in a container, one
//! that is written from outside). While there is more work than the pools can take, the thread is
//! reminded to look for such changes.
//!
//! The answer of the pools is in `pool/follow.rs`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_topology::{Machine, Watch, pin_current_thread};
use rustix::event::{self, EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::pool::spawn::{Limit, ServiceThread};

/// The thread `cw-follow`, and the bell that stops it.
pub(crate) struct Follower {
    /// I: wakes the thread.
    bell: Arc<Reminder>,
    /// I: true if the kernel announces all changes.
    all_told: bool,
    thread: ServiceThread,
}

/// A bell that makes a follower's thread look at the machine, or end.
pub(crate) struct Reminder {
    /// I: readable after a ring.
    rung: OwnedFd,
    /// A: true if the thread has to end. Release before the ring, Acquire after it.
    over: AtomicBool,
}

impl Reminder {
    pub(super) fn new() -> io::Result<Arc<Reminder>> {
        let rung = event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Reminder { rung, over: AtomicBool::new(false) }))
    }

    /// Asks the thread to look soon. Doesn't wait.
    pub(crate) fn ring(&self) {
        // It fails only if the counter is full: then it is readable already.
        let _ = rustix::io::write(&self.rung, &1_u64.to_ne_bytes());
    }

    /// Returns the reason of a ring since the last call, if there was one.
    pub(super) fn answer(&self) -> Option<FollowCause> {
        rustix::io::read(&self.rung, &mut [0; 8]).ok()?;
        Some(if self.over.load(Ordering::Acquire) {
            FollowCause::Over
        } else {
            FollowCause::Reminded
        })
    }
}

impl Follower {
    /// Starts the thread. It calls `looked` each time that the machine may have changed but hasn't
    /// for this process.
    pub(crate) fn start(machine: &Machine, looked: impl Fn() + Send + 'static) -> io::Result<Self> {
        let mut watch = Watch::new().map_err(io::Error::other)?;
        for missing in watch.unwatched() {
            tracing::info!(
                "{missing}; the pools follow such changes with the next change of another kind, or \
                 when work has to wait"
            );
        }
        let all_told = watch.unwatched().is_empty();
        let bell = Reminder::new()?;
        let (machine, rung) = (machine.clone(), Arc::clone(&bell));
        let run = move || run(&machine, &mut watch, &rung, looked);
        let thread = ServiceThread::spawn("cw-follow".into(), run)?;
        Ok(Follower { bell, all_told, thread })
    }

    /// Returns the bell that makes it look, if the kernel doesn't announce all changes.
    pub(crate) fn reminder(&self) -> Option<&Arc<Reminder>> {
        (!self.all_told).then_some(&self.bell)
    }

    /// Makes the thread end after its present step. Doesn't wait.
    pub(crate) fn stop(&self) {
        self.bell.over.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Stops the thread and waits for its end, unless it is the caller; returns its name if the
    /// time is up first. May block for as long as a listener of the machine runs on that thread.
    pub(crate) fn end(&self, limit: Limit) -> Result<(), String> {
        self.stop();
        self.thread.wait(limit)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The reason why the thread wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FollowCause {
    /// The thread has just begun, or the kernel says that the machine may have changed.
    Told,
    /// The thread was reminded.
    Reminded,
    /// The thread has to end.
    Over,
}

fn run(machine: &Machine, watch: &mut Watch, bell: &Reminder, looked: impl Fn()) {
    // Its starter may have been pinned; this thread's mask should show the CPUs that the process
    // may use (see `Machine::refresh`). If it can't be widened, the others' masks show them.
    let _ = pin_current_thread(machine.topology().allowed());
    let mut why = FollowCause::Told;
    loop {
        match (machine.refresh(), why) {
            (Ok(Some(change)), _) => tracing::info!("the machine has changed: {change}"),
            (Ok(None), FollowCause::Told) => looked(),
            // No program has changed the threads' masks.
            (Ok(None), _) => {}
            (Err(error), FollowCause::Told) => {
                tracing::warn!(%error, "cannot read the machine's state; the pools keep the old \
                                        one")
            }
            // This happens as often as work waits.
            (Err(error), _) => tracing::debug!(%error, "cannot read the machine's state"),
        }
        why = match wait(watch, bell) {
            Ok(FollowCause::Over) => return,
            Ok(why) => why,
            Err(error) => {
                tracing::warn!(%error, "the pools no longer follow the machine");
                return;
            }
        }
    }
}

/// Sleeps, without limit, until there is something to look at, or it is time to end.
fn wait(watch: &mut Watch, bell: &Reminder) -> io::Result<FollowCause> {
    loop {
        let mut ready = [PollFd::new(watch, PollFlags::IN), PollFd::new(&bell.rung, PollFlags::IN)];
        match event::poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let rung = bell.answer();
        if rung == Some(FollowCause::Over) {
            return Ok(FollowCause::Over);
        }
        if watch.take().map_err(io::Error::other)? {
            return Ok(FollowCause::Told);
        }
        if let Some(why) = rung {
            return Ok(why);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use corewise_topology::Topology;

    #[test]
    fn a_follower_that_is_reminded_looks_for_what_nobody_announces() {
        let tree = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| {
            let path = tree.path().join("devices/system/cpu").join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        for (file, text) in [("possible", "0-1"), ("present", "0-1"), ("online", "0-1")] {
            write(file, text);
        }
        let machine = Machine::new(Topology::from_sysfs(tree.path()).expect("a saved tree"));
        let (tell, told) = std::sync::mpsc::channel();
        let _listening = machine.on_change(move |change| drop(tell.send(change.clone())));
        let follower = Follower::start(&machine, || ()).expect("a thread");
        for online in ["0", "0-1", "1"] {
            write("online", online);
            follower.bell.ring();
            while told.recv().expect("it lives").after.online.to_string() != online {}
        }
        follower.end(Limit { until: None, joins: true }).expect("it ends");
    }
}
