//! When to stop: a signal, the end of `--for` or of the parent; and what happens when somebody
//! can't wait.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use corewise::device::Cancel;
use corewise::sync::Mutex;
use corewise::timeline::duration;
use corewise_server::{Cleanup, Handle};

use super::parent::Parent;
use super::signals::{self, Wish, Wishes};
use crate::bars::Bars;
use crate::screen;

/// Where a server waits for its end.
#[derive(Debug)]
pub(crate) struct Stop {
    /// L: is the lock, held while the end is waited for, which one thread does.
    signals: Mutex<Receiver<&'static str>>,
    /// Thrown by the first signal.
    cancel: Cancel,
    /// I: set once, before there is anything to undo. Whose devices are left undone where a second
    /// signal comes, and what follows the manifest.
    server: Arc<OnceLock<Handle>>,
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
        let server: Arc<OnceLock<Handle>> = Arc::default();
        let (theirs, undone) = (cancel.clone(), Arc::clone(&server));
        let told = Arc::clone(&server);
        let hang_up = move || {
            if let (true, Some(server)) = (can_reload, told.get()) {
                server.reload();
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
            let left = match undone.get().map(Handle::not_shut_down).unwrap_or_default().as_str() {
                "" => "no device was up".to_string(),
                words => format!("not shut down: {words}"),
            };
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
        Ok(Stop { signals: Mutex::new(signals), cancel, server })
    }

    /// The server that signals are about.
    pub(crate) fn manages(&self, server: &Handle) {
        self.server.get_or_init(|| server.clone());
    }

    /// What cancels a bring-up.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// The signal that came already.
    pub(crate) fn came(&self) -> Option<&'static str> {
        self.signals.lock().try_recv().ok()
    }

    /// Waits for a signal, or for as long as that. Says what ended it.
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
            // The thread of signals never ends; without it nobody could stop us in order.
            (Err(_), _) => "cannot receive signals".to_string(),
        }
    }
}
