//! The rescuer of a queue: a thread that runs the queue's work if no worker can, so that the queue
//! always makes progress. The kernel's `rescuer_thread`.
//!
//! The timekeeper calls it if work waits, a core is free, and no thread can be made: after 10 ms,
//! then each 100 ms. It takes items of its own queue only, never counts among the workers of a
//! pool, and stops when the pool has a worker again. After 16 items it turns to the next pool that
//! called.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use corewise_sync::atomic::Ordering;
use corewise_sync::{Mutex, Parker, text};

use crate::pool::group::Group;
use crate::pool::spawn;
use crate::pool::spawn::{Limit, ServiceThread};
use crate::task::running::{Label, Publication};
use crate::timekeeper::Registered;

/// Number of items that it runs for a pool before it turns to the next: the kernel's
/// `RESCUER_BATCH`.
const BATCH: usize = 16;

/// The rescuer of one queue. Its thread ends with the queue.
pub(crate) struct Rescuer {
    desk: Arc<RescuerShared>,
    thread: ServiceThread,
}

/// The state that the thread shares.
struct RescuerShared {
    parker: Parker,
    /// The item that it runs, as shown to others.
    shown: Publication,
    /// L: is the lock; guards the calls.
    calls: Mutex<Maydays>,
}

#[derive(Default)]
struct Maydays {
    /// The pools that called, each once. While they wait they keep the queue.
    waiting: VecDeque<Mayday>,
    over: bool,
}

/// A pool in which work of the queue waits.
pub(crate) struct Mayday {
    pub(crate) queue: Arc<dyn Registered>,
    pub(crate) group: Arc<Group>,
    pub(crate) pool: usize,
}

impl Rescuer {
    /// Starts the thread; it sleeps until it is called.
    pub(crate) fn start(queue: &str, niceness: i32) -> io::Result<Rescuer> {
        let (parker, shown) = (Parker::new(), Publication::new());
        let desk = Arc::new(RescuerShared { parker, shown, calls: Mutex::default() });
        let its = Arc::clone(&desk);
        let run = move || {
            spawn::run_anywhere(niceness);
            its.run();
        };
        // A thread's name must not hold a NUL; a queue's may.
        let thread = ServiceThread::spawn(format!("cw-r-{queue}").replace('\0', "?"), run)?;
        Ok(Rescuer { desk, thread })
    }

    /// Calls the rescuer of a queue to a pool.
    pub(crate) fn call(queue: &Arc<dyn Registered>, group: &Arc<Group>, pool: usize) {
        let Some(rescuer) = queue.rescuer() else { return };
        let desk = &rescuer.desk;
        {
            let mut calls = desk.calls.lock();
            let same = |call: &Mayday| call.pool == pool && Arc::ptr_eq(&call.group, group);
            if calls.over || calls.waiting.iter().any(same) {
                return;
            }
            let (queue, group) = (Arc::clone(queue), Arc::clone(group));
            calls.waiting.push_back(Mayday { queue, group, pool });
        }
        queue.counters().maydays.fetch_add(1, Ordering::Relaxed);
        desk.parker.unparker().unpark();
    }

    /// Ends the thread once it has done what it was called for, and waits for it, unless it is the
    /// calling one. Returns its name, and what it runs, if the time is up first. May block.
    pub(crate) fn end(&self, limit: Limit) -> Result<(), String> {
        self.stop();
        self.thread.wait(limit).map_err(|name| match self.runs() {
            Some(label) => {
                let function = text::name((label.name)());
                format!("{name}, which runs {function}, queued at {}", label.site)
            }
            None => name,
        })
    }

    /// Returns what it runs (a moment ago).
    pub(crate) fn runs(&self) -> Option<Label> {
        Some(self.desk.shown.read()?.label)
    }

    /// Makes the thread end with what it was called for. Doesn't wait.
    pub(crate) fn stop(&self) {
        self.desk.calls.lock().over = true;
        self.desk.parker.unparker().unpark();
    }
}

impl Drop for Rescuer {
    /// Drops the rescuer with the queue, maybe on the rescuer's own thread: doesn't wait.
    fn drop(&mut self) {
        self.stop();
    }
}

impl RescuerShared {
    fn run(&self) {
        loop {
            let (call, over) = {
                let mut calls = self.calls.lock();
                (calls.waiting.pop_front(), calls.over)
            };
            match call {
                Some(call) => {
                    if call.turn(&self.shown) {
                        self.calls.lock().waiting.push_back(call);
                    }
                }
                None if over => return,
                None => self.parker.park(),
            }
        }
    }
}

impl Mayday {
    /// Runs up to 16 items; returns true if the pool still needs it.
    pub(crate) fn turn(&self, shown: &Publication) -> bool {
        for _ in 0..BATCH {
            if !self.group.is_helpless(self.pool) {
                return false;
            }
            let Some(mut running) = self.group.take_for(self.pool, self.queue.id()) else {
                return false;
            };
            let _placed = self.group.pools[self.pool].placement().enter();
            let ran = running.run(shown, None);
            self.queue.counters().rescued.fetch_add(ran, Ordering::Relaxed);
        }
        self.group.is_helpless(self.pool)
    }
}
