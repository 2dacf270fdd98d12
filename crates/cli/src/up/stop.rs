//! When to stop: a signal, the end of `--for` or of the parent; and what happens when somebody
//! can't wait.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use corewise::device::{Cancel, DeviceManager, DeviceState, Remaining, RemainingState};
use corewise::sync::Mutex;
use corewise::timeline::duration;

use super::cleanup::Cleanup;
use super::live::Live;
use super::parent::Parent;
use super::signals::{self, Wish, Wishes};
use crate::screen::{self, Bars};

/// Where a server waits for its end.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: Receiver<&'static str>,
    /// Thrown by the first signal.
    cancel: Cancel,
    undo: Arc<Undo>,
}

/// What there is to undo.
#[derive(Debug, Default)]
struct Undo {
    /// I: set once, before there is anything to undo. Knows better while a shutdown is in
    /// progress.
    manager: OnceLock<Arc<DeviceManager>>,
    /// I: set with it.
    live: OnceLock<Arc<Live>>,
}

impl Stop {
    /// From now on signals are handled: the first cancels a bring-up and ends a wait; one that
    /// comes a second later, or after that, ends the process, after `cleanup` and after saying what
    /// is left undone. SIGHUP has the manifest read again, where that can be done. The end of
    /// `parent` counts as a first signal.
    pub(crate) fn watch(
        cleanup: Arc<Cleanup>,
        bars: Bars,
        can_reload: bool,
        parent: Option<Parent>,
    ) -> io::Result<Stop> {
        let (sender, signals) = channel();
        let cancel = Cancel::new();
        let undo: Arc<Undo> = Arc::default();
        let (theirs, undone) = (cancel.clone(), Arc::clone(&undo));
        let told = Arc::clone(&undo);
        let hang_up = move || {
            if let (true, Some(live)) = (can_reload, told.live.get()) {
                live.hang_up();
            }
            can_reload
        };
        let wishes = Arc::new(Mutex::new(Wishes::default()));
        let stop = move |name| {
            theirs.cancel();
            // Nobody waits any more where the server ends by itself.
            let _ = sender.send(name);
        };
        if let Some(parent) = parent {
            let (wishes, stop) = (Arc::clone(&wishes), stop.clone());
            parent.watch(move || {
                if wishes.lock().other(Instant::now()) == Wish::Stop {
                    stop("the end of the process that started it");
                }
            })?;
        }
        let at_once = move |name| {
            let left = undone.words();
            // A bar that is taken off here doesn't come back.
            bars.above(|| {
                for (path, error) in cleanup.run() {
                    screen::warning(format_args!("cannot remove {}: {error}", path.display()));
                }
                screen::error(format_args!("{name} while stopping: ended at once, {left}"));
                // Not `ExitCode`: other threads are in the midst of what nobody waits for.
                std::process::exit(1)
            })
        };
        signals::watch(hang_up, move |name| {
            let wish = wishes.lock().signal(Instant::now());
            match wish {
                Wish::Stop => stop(name),
                Wish::Same => {}
                Wish::AtOnce => at_once(name),
            }
        })?;
        Ok(Stop { signals, cancel, undo })
    }

    /// Whose devices are left undone where a second signal comes, and what follows the manifest.
    pub(crate) fn manages(&self, manager: &Arc<DeviceManager>, live: &Arc<Live>) {
        self.undo.manager.get_or_init(|| Arc::clone(manager));
        self.undo.live.get_or_init(|| Arc::clone(live));
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
                format!("the {} of --for have passed", duration(at_most))
            }
            // The thread of signals never ends; without it nobody could stop us in order.
            (Err(_), _) => "cannot receive signals".to_string(),
        }
    }
}

impl Undo {
    /// What is not shut down, in words.
    fn words(&self) -> String {
        let manager = self.manager.get();
        let left = manager.map(|manager| manager.remaining()).unwrap_or_default();
        let words = match (left.is_empty(), manager) {
            (true, Some(manager)) => up(manager).join(", "),
            _ => waiting(&left),
        };
        match words.as_str() {
            "" => "no device was up".to_string(),
            words => format!("not shut down: {words}"),
        }
    }
}

/// The devices that are up while no shutdown is in progress.
fn up(manager: &DeviceManager) -> Vec<String> {
    let devices = manager.devices().into_iter();
    devices.filter(|one| one.state == DeviceState::Bound).map(|one| one.name).collect()
}

/// Those that hold up the others first.
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

/// The one that has been at it for longest, and those that wait for it: what a progress bar has room for.
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

/// Those that wait for that device, directly or through others.
pub(crate) fn held_up_by(device: &str, left: &[Remaining]) -> Vec<String> {
    let waits = |one: &&Remaining| one.behind.as_ref().is_some_and(|b| b.device == device);
    left.iter().filter(waits).map(|one| one.device.clone()).collect()
}
