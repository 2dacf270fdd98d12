//! When to stop: a signal or the end of `--for`; and what happens when somebody can't wait.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use corewise::device::{Cancel, DeviceManager, Remaining, RemainingState};
use corewise::timeline::duration;

use super::cleanup::Cleanup;
use super::signals;
use crate::screen;

/// Where a server waits for its end.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: Receiver<&'static str>,
    /// Thrown by the first signal.
    cancel: Cancel,
}

impl Stop {
    /// From now on signals are handled: the first cancels a bring-up and ends a wait, the second
    /// ends the process, after `cleanup` and after saying what of `manager`'s is left undone.
    pub(crate) fn watch(manager: Arc<DeviceManager>, cleanup: Arc<Cleanup>) -> io::Result<Stop> {
        let (sender, signals) = channel();
        let cancel = Cancel::new();
        let theirs = cancel.clone();
        let first = move |name| {
            theirs.cancel();
            // Nobody waits any more where the server ends by itself.
            let _ = sender.send(name);
        };
        let again = move |name| {
            let left = manager.remaining();
            for (path, error) in cleanup.run() {
                screen::warning(format_args!("cannot remove {}: {error}", path.display()));
            }
            screen::error(format_args!("{name} while stopping: ended at once, {}", undone(&left)));
            // Not `ExitCode`: other threads are in the midst of what nobody waits for.
            std::process::exit(1);
        };
        signals::watch(first, again)?;
        Ok(Stop { signals, cancel })
    }

    /// What cancels a bring-up.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// The signal that came already.
    pub(crate) fn came(&self) -> Option<&'static str> {
        self.signals.try_recv().ok()
    }

    /// Waits for a signal, or for as long as that. Says what ended it.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> String {
        let signal = match at_most {
            None => self.signals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at_most) => self.signals.recv_timeout(at_most),
        };
        match (signal, at_most) {
            (Ok(name), _) => name.to_string(),
            (Err(RecvTimeoutError::Timeout), Some(at_most)) => {
                format!("{} are over", duration(at_most))
            }
            // The thread of signals never ends; without it nobody could stop us in order.
            (Err(_), _) => "signals can't be received".to_string(),
        }
    }
}

/// What is not shut down, those that hold up the others first.
fn undone(left: &[Remaining]) -> String {
    if left.is_empty() {
        return "with no device shut down".to_string();
    }
    let rank = |remaining: &&Remaining| match remaining.state {
        RemainingState::Running { .. } => 0,
        RemainingState::Ready => 1,
        _ => 2,
    };
    let mut sorted: Vec<&Remaining> = left.iter().collect();
    sorted.sort_by_key(rank);
    let words = sorted.iter().map(|remaining| match &remaining.state {
        RemainingState::Running { elapsed } => {
            format!("{} (still at it after {})", remaining.device, duration(*elapsed))
        }
        RemainingState::Waiting { on } => {
            format!("{} (waits for {})", remaining.device, on.join(", "))
        }
        _ => remaining.device.clone(),
    });
    format!("not shut down: {}", words.collect::<Vec<_>>().join(", "))
}
