//! A thread beside the pools' workers (the timekeeper's, a rescuer's, `cw-follow`), and how its end is
//! waited for.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use corewise_sync::thread::{self, JoinHandle, ThreadId};
use corewise_sync::{Completion, Mutex, time};

use crate::pool::spawn::spawn;

/// A thread that runs until it is told to end; how, is its owner's business.
pub(crate) struct Beside {
    /// I: its name.
    name: String,
    /// I: completed at the end of its body, also by a panic.
    over: Arc<Completion>,
    /// I: which thread it is.
    id: ThreadId,
    /// L: is the lock; guards the thread, until somebody joins it.
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// How long somebody waits for threads to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// `None`: for ever.
    pub(crate) until: Option<Instant>,
    /// Also for the destructors of thread-local values, which nobody can wait for with a limit.
    pub(crate) joins: bool,
}

struct Over(Arc<Completion>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.complete();
    }
}

impl Beside {
    /// Starts it.
    pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<Beside> {
        let over = Arc::new(Completion::new());
        let completes = Over(Arc::clone(&over));
        let handle = spawn(name.clone(), move || {
            let _completes = completes;
            body();
        })?;
        Ok(Beside { name, over, id: handle.thread().id(), handle: Mutex::new(Some(handle)) })
    }

    /// Waits for its end, unless it is the calling thread; its name where the time is up first. May block.
    pub(crate) fn wait(&self, limit: Limit) -> Result<(), String> {
        if thread::current().id() == self.id {
            return Ok(());
        }
        if let Some(until) = limit.until {
            if !self.over.wait_timeout(until.saturating_duration_since(time::now())) {
                return Err(self.name.clone());
            }
        }
        let handle = if limit.joins { self.handle.lock().take() } else { None };
        if let Some(handle) = handle {
            // It catches panics; if it died of its own, that is logged there.
            let _ = handle.join();
        }
        Ok(())
    }
}
