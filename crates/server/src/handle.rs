//! A running server for a signal handler, and the devices left at the end, in words.

use std::fmt;
use std::sync::{Arc, Weak};

use corewise::device::{DeviceManager, DeviceState, Remaining, RemainingState};
use corewise::timeline::duration;

/// The part of a server that a handle reaches.
pub(crate) trait Reachable: Send + Sync {
    /// Follows the manifest's file, on a thread of its own.
    fn reload(self: Arc<Self>);

    /// Hands a line of the log to listeners on the control socket.
    fn logged(&self, line: &tracing::Event<'_>);
}

/// A server from before its bring-up to its end. It doesn't keep the server alive.
#[derive(Clone)]
pub struct Handle {
    /// Device manager, which knows more than the server while a shutdown is in progress.
    manager: Weak<DeviceManager>,
    server: Weak<dyn Reachable>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    pub(crate) fn new<S: Reachable + 'static>(
        manager: &Arc<DeviceManager>,
        server: &Arc<S>,
    ) -> Handle {
        let server: Weak<S> = Arc::downgrade(server);
        Handle { manager: Arc::downgrade(manager), server }
    }

    /// Follows the manifest's file, on a thread of its own.
    pub fn reload(&self) {
        if let Some(server) = self.server.upgrade() {
            server.reload();
        }
    }

    /// Hands a warning or an error of the log to listeners on the control socket.
    pub fn logged(&self, line: &tracing::Event<'_>) {
        if let Some(server) = self.server.upgrade() {
            server.logged(line);
        }
    }

    /// Returns the devices that are not shut down, in words; empty if there are none.
    pub fn not_shut_down(&self) -> String {
        let Some(manager) = self.manager.upgrade() else { return String::new() };
        let left = manager.remaining();
        match left.is_empty() {
            true => up(&manager).join(", "),
            false => waiting(&left),
        }
    }
}

/// Returns the devices that are up while no shutdown is in progress.
fn up(manager: &DeviceManager) -> Vec<String> {
    let devices = manager.devices().into_iter();
    devices.filter(|one| one.state == DeviceState::Bound).map(|one| one.name).collect()
}

/// Returns the devices left in words, those that hold up others first.
pub(crate) fn waiting(left: &[Remaining]) -> String {
    let rank = |remaining: &&Remaining| match remaining.state {
        RemainingState::Running { .. } => 0,
        RemainingState::Ready => 1,
        _ => 2,
    };
    let mut sorted: Vec<&Remaining> = left.iter().collect();
    sorted.sort_by_key(rank);
    sorted.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns the device whose shutdown has run for longest, and those that wait for it: as much as a
/// progress bar has room for.
pub(crate) fn blocker(left: &[Remaining]) -> Option<String> {
    let running = left.iter().filter_map(|one| match one.state {
        RemainingState::Running { elapsed } => Some((elapsed, &one.device)),
        _ => None,
    });
    let (elapsed, device) = running.max()?;
    let held_up = held_up_by(device, left);
    let others = match &held_up[..] {
        [] => String::new(),
        held_up => format!(", which holds up {}", held_up.join(", ")),
    };
    Some(format!("waiting for {device} ({}){others}", duration(elapsed)))
}

/// Returns the devices that wait for that device, directly or through others.
pub(crate) fn held_up_by(device: &str, left: &[Remaining]) -> Vec<String> {
    let waits = |one: &&Remaining| one.behind.as_ref().is_some_and(|b| b.device == device);
    left.iter().filter(waits).map(|one| one.device.clone()).collect()
}
