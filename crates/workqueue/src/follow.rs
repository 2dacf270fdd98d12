//! The thread that drives a live machine: it sleeps until the kernel says that CPUs came or went, and
//! has the machine look.
//!
//! What the pools do about it is in `pool/follow.rs`.

use std::io;
use std::os::fd::OwnedFd;

use corewise_topology::{Machine, Watch, pin_current_thread};
use rustix::event::{self, EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::beside::{Beside, Limit};

/// The thread `cw-follow`, and how it is stopped.
pub(crate) struct Follower {
    /// I: readable once the thread has to end.
    stop: OwnedFd,
    thread: Beside,
}

impl Follower {
    /// Starts it. `looked` is called on it each time that the machine may have changed and, as far as
    /// this process is concerned, has not.
    pub(crate) fn start(machine: &Machine, looked: impl Fn() + Send + 'static) -> io::Result<Self> {
        let stop = event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let watch = Watch::new().map_err(io::Error::other)?;
        for missing in watch.unwatched() {
            tracing::info!(
                "{missing}; what it changes is followed with the next change of another kind"
            );
        }
        let (machine, stopped) = (machine.clone(), stop.try_clone()?);
        let run = move || run(&machine, watch, &stopped, looked);
        let thread = Beside::spawn("cw-follow".into(), run)?;
        Ok(Follower { stop, thread })
    }

    /// The thread ends with what it is at. Doesn't wait.
    pub(crate) fn stop(&self) {
        // It fails only where the counter is full: then it is readable already.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Stops it and waits for its end, unless it is the caller; its name where the time is up first. May
    /// block, as long as a listener of the machine takes that is called on it.
    pub(crate) fn end(&self, limit: Limit) -> Result<(), String> {
        self.stop();
        if self.thread.wait(limit) { Ok(()) } else { Err(self.thread.name().into()) }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(machine: &Machine, mut watch: Watch, stop: &OwnedFd, looked: impl Fn()) {
    // Whoever started it may have been pinned; this thread is the one whose mask says what the
    // process may use (see `Machine::refresh`). Where it can't be, the others' masks say it.
    let _ = pin_current_thread(machine.topology().allowed());
    loop {
        match machine.refresh() {
            Ok(Some(change)) => tracing::info!("the machine has changed: {change}"),
            Ok(None) => looked(),
            Err(error) => {
                tracing::warn!(%error, "the machine's state can't be read; it stays as it was")
            }
        }
        match wait(&mut watch, stop) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "the machine isn't followed any more");
                return;
            }
        }
    }
}

/// Sleeps, without limit, until there is something to look at; false where it is time to end.
fn wait(watch: &mut Watch, stop: &OwnedFd) -> io::Result<bool> {
    loop {
        let mut ready = [PollFd::new(watch, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match event::poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !ready[1].revents().is_empty() {
            return Ok(false);
        }
        if watch.take().map_err(io::Error::other)? {
            return Ok(true);
        }
    }
}
