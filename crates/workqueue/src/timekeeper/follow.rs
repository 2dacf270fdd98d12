//! The thread that drives a live machine: it sleeps until the kernel says that CPUs came or went, and
//! has the machine look. What the kernel doesn't announce here (in a container: what is written from
//! outside) it looks for when it is reminded to, while there is more work than the pools can take.
//!
//! What the pools do about it is in `pool/follow.rs`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_topology::{Machine, Watch, pin_current_thread};
use rustix::event::{self, EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::pool::service_thread::{Beside, Limit};

/// The thread `cw-follow`, and how it is stopped.
pub(crate) struct Follower {
    /// I: readable once the thread has to end.
    stop: OwnedFd,
    /// I: what has the thread look, where not all is announced.
    reminder: Option<Reminder>,
    thread: Beside,
}

/// Has a follower's thread look at the machine, soon.
#[derive(Clone)]
pub(crate) struct Reminder(Arc<OwnedFd>);

impl Reminder {
    pub(crate) fn new() -> io::Result<Reminder> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Reminder(Arc::new(event::eventfd(0, flags)?)))
    }

    /// Doesn't wait.
    pub(crate) fn remind(&self) {
        // It fails only where the counter is full: then it is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Whether somebody has reminded since the last call.
    pub(crate) fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl Follower {
    /// Starts it. `looked` is called on it each time that the machine may have changed and, as far as
    /// this process is concerned, has not.
    pub(crate) fn start(machine: &Machine, looked: impl Fn() + Send + 'static) -> io::Result<Self> {
        let watch = Watch::new().map_err(io::Error::other)?;
        for missing in watch.unwatched() {
            tracing::info!(
                "{missing}; what it changes is followed with the next change of another kind, or when \
                 work has to wait"
            );
        }
        let reminder = if watch.unwatched().is_empty() { None } else { Some(Reminder::new()?) };
        Self::with(machine, watch, reminder, looked)
    }

    fn with(
        machine: &Machine,
        watch: Watch,
        reminder: Option<Reminder>,
        looked: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let stop = event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let (machine, stopped, reminded) = (machine.clone(), stop.try_clone()?, reminder.clone());
        let run = move || run(&machine, watch, (&stopped, reminded.as_ref()), looked);
        let thread = Beside::spawn("cw-follow".into(), run)?;
        Ok(Follower { stop, reminder, thread })
    }

    /// What has it look, where not all is announced.
    pub(crate) fn reminder(&self) -> Option<&Reminder> {
        self.reminder.as_ref()
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

/// Why the thread wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It has just begun, or the kernel says that the machine may have changed.
    Told,
    /// It was reminded.
    Reminded,
    /// It has to end.
    Over,
}

fn run(
    machine: &Machine,
    mut watch: Watch,
    (stop, reminder): (&OwnedFd, Option<&Reminder>),
    looked: impl Fn(),
) {
    // Whoever started it may have been pinned; this thread is the one whose mask says what the
    // process may use (see `Machine::refresh`). Where it can't be, the others' masks say it.
    let _ = pin_current_thread(machine.topology().allowed());
    let mut why = Why::Told;
    loop {
        match (machine.refresh(), why) {
            (Ok(Some(change)), _) => tracing::info!("the machine has changed: {change}"),
            (Ok(None), Why::Told) => looked(),
            // Nobody has touched the threads' masks.
            (Ok(None), _) => {}
            (Err(error), Why::Told) => {
                tracing::warn!(%error, "the machine's state can't be read; it stays as it was")
            }
            // As often as work waits.
            (Err(error), _) => tracing::debug!(%error, "the machine's state can't be read"),
        }
        why = match wait(&mut watch, stop, reminder) {
            Ok(Why::Over) => return,
            Ok(why) => why,
            Err(error) => {
                tracing::warn!(%error, "the machine isn't followed any more");
                return;
            }
        }
    }
}

/// Sleeps, without limit, until there is something to look at, or it is time to end.
fn wait(watch: &mut Watch, stop: &OwnedFd, reminder: Option<&Reminder>) -> io::Result<Why> {
    // Without one the same is asked for twice.
    let third = reminder.map_or(stop, |reminder| &*reminder.0);
    loop {
        let ready = |fd| PollFd::new(fd, PollFlags::IN);
        let mut ready = [PollFd::new(watch, PollFlags::IN), ready(stop), ready(third)];
        match event::poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !ready[1].revents().is_empty() {
            return Ok(Why::Over);
        }
        if watch.take().map_err(io::Error::other)? {
            return Ok(Why::Told);
        }
        if reminder.is_some_and(Reminder::take) {
            return Ok(Why::Reminded);
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
        let watch = Watch::new().expect("something to wait on");
        let reminder = Reminder::new().expect("a descriptor");
        let looked = || ();
        let follower = Follower::with(&machine, watch, Some(reminder), looked).expect("a thread");
        for online in ["0", "0-1", "1"] {
            write("online", online);
            follower.reminder().expect("it has one").remind();
            while told.recv().expect("it lives").after.online.to_string() != online {}
        }
        follower.end(Limit { until: None, joins: true }).expect("it ends");
    }
}
