//! Batches: a thread takes several quick callbacks at once, and walks them as the loop walks its
//! list. If one is held up, the rest is taken over; see `README.md`.

use super::policy::{self, SLOW, WatchStep};
use super::state::{EndedCallback, ProgressState, RunningCallback, Scratch, ShutdownState};
use crate::bound::Bound;
use crate::graph::DeviceId;
use crate::record::Site;
use crate::takeover::Walk;
use std::sync::Arc;
use std::time::Duration;

/// Number of objects that a thread takes out of their lock at once, and of callbacks that it may
/// take at once. Their list is shorter than 1024 bytes: from that size on, glibc's allocator tidies
/// up before it gives memory.
pub(crate) const BATCH: usize = 32;

/// Devices that one thread calls back one after the other, all of them asynchronous.
#[derive(Debug)]
pub(crate) struct CallbackBatch {
    /// I: once it is begun. Never empty then.
    pub devices: Vec<DeviceId>,
    /// A: itself; the callbacks that are over, and the one that runs.
    pub walk: Walk,
    /// I: the time when it began.
    since: Duration,
    /// I: the site where it began.
    pub site: Site,
    /// I: the number by which the thread has the caller's part, if it has it.
    lead: Option<u64>,
}

impl CallbackBatch {
    /// Creates an empty batch, before the lock is taken.
    pub(super) fn blank(site: &Site) -> Arc<CallbackBatch> {
        Arc::new(CallbackBatch {
            devices: Vec::with_capacity(BATCH),
            walk: Walk::new(BATCH),
            since: Duration::ZERO,
            site: site.clone(),
            lead: None,
        })
    }

    /// Returns how many callbacks are over, and the start of the one that runs. `None`: all are
    /// over, and the thread that ran them is to report it.
    pub(super) fn is_at(&self) -> Option<(usize, Duration)> {
        let over = self.walk.over();
        (over < self.devices.len()).then(|| (over, self.ended(over)))
    }

    /// Returns when that many were over.
    pub(crate) fn ended(&self, over: usize) -> Duration {
        let last = over.checked_sub(1).map(|last| self.walk.note(last).at);
        last.map_or(self.since, Duration::from_nanos)
    }

    /// Returns when the first one began.
    pub(super) fn since(&self) -> Duration {
        self.since
    }

    /// Returns the longest of those that are over.
    fn longest(&self, over: usize) -> Duration {
        let took = |n: usize| self.ended(n + 1).saturating_sub(self.ended(n));
        (0..over).map(took).max().unwrap_or_default()
    }
}

impl ShutdownState {
    /// Sets whether the watch checks batches, as often as [`ShutdownState::look`] says.
    pub(crate) fn is_looked_at(&self, is: bool) {
        self.state.lock().looked_at = is;
    }

    /// Fetches the objects of those devices, the next one last. Leaves `objects` empty if they are
    /// gone, since no thread waits for the rest any more.
    pub(crate) fn objects(&self, devices: &[DeviceId], objects: &mut Vec<Arc<dyn Bound>>) {
        let bound = self.bound.read();
        let object = |id: &DeviceId| bound.get(id.index())?.clone();
        objects.extend(devices.iter().rev().filter_map(object));
    }

    /// Returns how many callbacks a thread takes at once if that many are ready.
    fn at_once(&self, st: &ProgressState, backlog: usize) -> usize {
        // It takes one alone in three cases: an observer gets each one; a device that may be
        // skipped is checked as it ends; a device with a long path must not wait behind another
        // one.
        let alone = self.paths.is_some() || self.observed || self.skips();
        if alone || st.slow_seen || st.later_seen || !st.looked_at {
            return 1;
        }
        policy::at_once(backlog, self.cpus.min(st.cap + 1), st.took.callbacks, st.took.mean())
    }

    /// Picks a batch for a thread, if it is to take one; `lead` is the number by which it has the
    /// caller's part.
    pub(super) fn pick_batch(
        &self,
        st: &mut ProgressState,
        now: Duration,
        lead: Option<u64>,
        scratch: &mut Scratch,
    ) -> Option<Arc<CallbackBatch>> {
        let most = self.at_once(st, st.asyncs.len()).min(BATCH);
        if most < 2 {
            return None;
        }
        let mut blank = scratch.blank.take()?;
        let batch = Arc::get_mut(&mut blank)?;
        (batch.since, batch.lead) = (now, lead);
        batch.devices.extend((0..most).map_while(|_| st.asyncs.pop_last()));
        st.walks.push(blank.clone());
        Some(blank)
    }

    /// Ends a batch: its thread is through, and has released what waited for it.
    pub(super) fn batch_is_over(&self, st: &mut ProgressState, batch: &Arc<CallbackBatch>) {
        st.walks.retain(|walk| !Arc::ptr_eq(walk, batch));
        self.note_batch(st, batch, batch.devices.len());
    }

    fn note_batch(&self, st: &mut ProgressState, batch: &Arc<CallbackBatch>, over: usize) {
        st.left -= over;
        st.slow_seen |= batch.longest(over) >= SLOW;
        st.took.callbacks += over;
        st.took.in_all += batch.ended(over).saturating_sub(batch.since);
        st.walked.push((batch.clone(), over));
    }

    /// Takes a batch over (step Take): records and releases the callbacks that are over; the
    /// present one runs like any other, and the rest is ready again. Nothing happens if all of it
    /// is over.
    fn take_over(&self, st: &mut ProgressState, place: usize, scratch: &mut Scratch) {
        let batch = st.walks[place].clone();
        let over = batch.walk.take();
        let Some(&device) = batch.devices.get(over) else { return };
        st.walks.swap_remove(place);
        // Under the lock: no thread sees that nothing runs and nothing is ready.
        batch.devices[..over].iter().for_each(|&device| self.cascade(device, scratch));
        self.note_batch(st, &batch, over);
        if batch.lead == Some(st.lead) {
            st.lead_in = Some(device);
        }
        let mut running = RunningCallback::new(device, batch.ended(over), batch.site.clone());
        running.walked = true;
        st.running.push(running);
        scratch.ready.extend(&batch.devices[over + 1..]);
        st.take_in(self, scratch);
    }

    /// Takes all batches over, as [`ShutdownState::take_over`] does.
    pub(super) fn take_all_over(&self, st: &mut ProgressState, scratch: &mut Scratch) {
        for place in (0..st.walks.len()).rev() {
            self.take_over(st, place, scratch);
        }
    }

    /// Returns the position of the batch that is in this device's callback, if one is.
    pub(super) fn batch_in(st: &ProgressState, device: DeviceId) -> Option<usize> {
        let is_in = |batch: &Arc<CallbackBatch>| {
            batch.is_at().is_some_and(|(over, _)| batch.devices[over] == device)
        };
        st.walks.iter().position(is_in)
    }

    /// Takes that batch over, as [`ShutdownState::take_over`] does.
    fn take_over_from(&self, st: &mut ProgressState, device: DeviceId, scratch: &mut Scratch) {
        if let Some(place) = Self::batch_in(st, device) {
            self.take_over(st, place, scratch);
        }
    }

    /// Records that the callback of a batch has returned, and that the device will be over later.
    /// If it is over already, returns how it ended. The rest is given back.
    pub(crate) fn batch_detaches(
        &self,
        device: DeviceId,
        scratch: &mut Scratch,
    ) -> Option<EndedCallback> {
        let mut st = self.state.lock();
        self.take_over_from(&mut st, device, scratch);
        let ended = st.ended_meanwhile(device);
        if ended.is_none() {
            st.detach(device);
        }
        ended
    }

    /// Leaves a batch before this device is called back, since the rest is left undone.
    pub(crate) fn batch_leaves(&self, device: DeviceId, scratch: &mut Scratch) {
        let mut st = self.state.lock();
        self.take_over_from(&mut st, device, scratch);
        st.lead_in = st.lead_in.filter(|&in_it| in_it != device);
        st.running.retain(|r| r.device != device);
        st.asyncs.insert(self.urgency(device), device);
    }

    /// Takes batches over that are in a callback for too long. Returns when to check again.
    pub(super) fn look_at_batches(
        &self,
        st: &mut ProgressState,
        now: Duration,
        scratch: &mut Scratch,
    ) -> WatchStep {
        // A callback that may be late by then is to be seen as such.
        let most = self.first_deadline().map_or(SLOW, |deadline| deadline.min(SLOW));
        let all = self.timeouts.run.is_some_and(|run| now >= run);
        let mut next = most;
        for place in (0..st.walks.len()).rev() {
            let Some((_, since)) = st.walks[place].is_at() else { continue };
            let runs = now.saturating_sub(since);
            st.slow_seen |= runs >= SLOW;
            let left = most.saturating_sub(runs);
            if all || left.is_zero() {
                self.take_over(st, place, scratch);
            } else {
                next = next.min(left);
            }
        }
        // There may be batches as long as there would be if all that is left were ready.
        if st.walks.is_empty() && (self.stops(st) || self.at_once(st, st.left) < 2) {
            st.looked_at = false;
            return WatchStep::Over;
        }
        WatchStep::Again(policy::not_too_soon(next))
    }
}
