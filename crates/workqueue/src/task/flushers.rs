//! Those who wait for an instance of a reusable item: `Work::flush` and its kin.
//!
//! Read `state.md` first: the comments here use its names for the steps.

use std::sync::Arc;

use corewise_sync::{Completion, Mutex};

use crate::task::state::{Seq, Snapshot, WorkState};

/// The waiters of one item.
#[derive(Default)]
pub(crate) struct Flushers {
    /// L: is the lock; guards those who wait, each for the instance of its number. Never taken by a thread that
    /// has given up what keeps the item alive. In a box, since most items have none: so they are small.
    waiting: Mutex<Option<Box<Waiting>>>,
}

/// Another thread is in the middle of a short step with the pending instance: it isn't known yet what
/// is to be waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsettled;

/// Those who wait, each for the instance of its number.
#[derive(Default)]
struct Waiting(Vec<(Seq, Arc<Completion>)>);

impl Flushers {
    /// The end of the instance that was queued last, or of the one that runs where the last one's timer
    /// still runs; `None` where there is none to wait for. `on_timer` tells whether the pending instance
    /// lies in a timer; `None`, and so an error: that isn't settled yet.
    pub(crate) fn join(
        &self,
        state: &WorkState,
        on_timer: impl Fn(Snapshot) -> Option<bool>,
    ) -> Result<Option<Arc<Completion>>, Unsettled> {
        let mut lock = self.waiting.lock();
        let waiting = &mut lock.get_or_insert_default().0;
        // Announce. Under the lock: an instance whose end comes after the announcement sees it, and
        // takes this lock before it ends.
        let now = state.announce_flusher();
        let on_timer = if now.pending() { on_timer(now) } else { Some(false) };
        let target = on_timer.map(|on_timer| match on_timer {
            // A number that no pending instance has when the running one ends.
            true => (now.running(), now.seq().wrapping_sub(1)),
            // Where nothing is pending it is the instance that runs: whatever its number, it isn't
            // the number of one that is pending when it ends.
            false => (now.pending() || now.running(), now.seq()),
        });
        let joined = match target {
            None => Err(Unsettled),
            Some((false, _)) => Ok(None),
            Some((true, target)) => {
                let event = Arc::new(Completion::new());
                waiting.push((target, Arc::clone(&event)));
                Ok(Some(event))
            }
        };
        if waiting.is_empty() {
            state.clear_flushers();
        }
        joined
    }

    /// Collect: the caller is about to end an instance. Takes out those who have nothing left to wait
    /// for then: all but those who wait for an instance that is pending, and `outlasts` this. The word
    /// to end the instance by: if that has moved, others may have come.
    pub(crate) fn collect(
        &self,
        state: &WorkState,
        outlasts: bool,
        ended: &mut Vec<Arc<Completion>>,
    ) -> Snapshot {
        let mut lock = self.waiting.lock();
        let waiting = &mut lock.get_or_insert_default().0;
        let now = state.flushers_seen();
        waiting.retain(|(target, event)| {
            let stays = outlasts && now.pending() && *target == now.seq();
            if !stays {
                ended.push(Arc::clone(event));
            }
            stays
        });
        if waiting.is_empty() { state.clear_flushers() } else { now }
    }

    /// How many wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().as_ref().map_or(0, |waiting| waiting.0.len())
    }
}

/// They go on.
pub(crate) fn wake(ended: Vec<Arc<Completion>>) {
    for event in ended {
        event.complete();
    }
}
