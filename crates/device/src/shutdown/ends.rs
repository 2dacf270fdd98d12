//! How a callback ends: what it releases, and what is noted.

use super::drawn::{Looped, Notes};
use super::plan::Kind;
use super::state::{CallerRests, Ended, Owed, Ran, Running, Scratch, ShutdownState, State};
use crate::bound::Bound;
use crate::counters::Settled;
use crate::graph::DeviceId;
use corewise_sync::MutexGuard;
use corewise_timeline::Outcome;
use std::sync::Arc;
use std::time::Duration;

/// What a shutdown leaves.
pub(crate) struct Finished {
    pub notes: Notes,
    /// By device.
    pub bound: Vec<Option<Arc<dyn Bound>>>,
}

impl ShutdownState {
    /// The observer was told about a finished callback that counts. Not called where there is none.
    pub(crate) fn told(&self) {
        let mut st = self.state.lock();
        st.untold -= 1;
        if st.is_over() {
            st.caller = CallerRests::No;
            drop(st);
            self.wake_caller();
        }
    }

    /// The device's callback has returned, and it will be over later, or is already: then the thread that
    /// finished it has been here.
    pub(crate) fn detached(&self, device: DeviceId) {
        self.state.lock().detach(device);
    }

    /// A device is over whose callback had returned before. `None` where its end is left to the
    /// walker that called it: the loop, or the thread of a batch.
    pub(crate) fn ended_later(&self, ended: Ended, scratch: &mut Scratch) -> Option<Owed> {
        let at = ended.at;
        let mut st = self.state.lock();
        // It may not have said yet that it has returned. It has objects of other devices: those must not be
        // dropped by it after all is over.
        let walked = |r: &Running| r.device == ended.device && r.walked && !r.detached;
        let counted = self.is_counted();
        if !counted || Self::batch_in(&st, ended.device).is_some() || st.running.iter().any(walked)
        {
            st.walk_later.push(ended);
            drop(st);
            if !counted {
                self.wake_caller();
            }
            return None;
        }
        drop(st);
        let (mut st, counts) = self.conclude(Ran::One(ended), scratch);
        Some(self.owed(&mut st, at, counts, scratch))
    }

    /// What there is to report, and the bound objects. Callbacks that still run (after an abort)
    /// are noted as cancelled now, while they go on. Called once, by the caller of the shutdown.
    pub(crate) fn finish(&self, now: Duration) -> Finished {
        let mut st = self.state.lock();
        if self.is_counted() {
            self.take_all_over(&mut st, &mut Scratch::default());
        }
        let walked = st.walked.iter().cloned();
        // All of them are over, and their threads have not said so yet.
        let walks = st.walks.iter().map(|batch| (batch.clone(), batch.devices.len()));
        let walked = walked.chain(walks).collect();
        let mut notes = if st.left > 0 { st.notes.clone() } else { std::mem::take(&mut st.notes) };
        notes.extend(st.running.iter().map(|r| r.note(now, Outcome::Cancelled)));
        if let (Some((place, since)), Some(site)) = (self.loop_is_at(&st), &st.loop_site) {
            let running = Running::new(self.outline.calls[place], since, site.clone());
            notes.push(running.note(now, Outcome::Cancelled));
        }
        let looped = Looped {
            walk: self.walk.clone(),
            over: self.walk.over(),
            worker: st.loop_site.as_ref().map(|site| site.worker.clone()),
            all: !self.is_counted(),
        };
        let late = st.late.clone();
        let (failed, gave_up) = (std::mem::take(&mut st.walk_failed), st.gave_up);
        let notes = Notes { looped, walked, failed, notes, helpers: st.asked, late, gave_up };
        Finished { notes, bound: std::mem::take(&mut *self.bound.write()) }
    }

    /// Takes in what a thread ran: releases what waited for it (without the lock), then notes it.
    /// False where the end doesn't count, since the device was skipped before.
    pub(super) fn conclude(
        &self,
        ran: Ran,
        scratch: &mut Scratch,
    ) -> (MutexGuard<'_, State>, bool) {
        let ended = match ran {
            Ran::Nothing => return (self.state.lock(), false),
            Ran::One(ended) => ended,
            // Nobody takes over what is over: it is this thread's to release.
            Ran::Batch(batch) => {
                batch.devices.iter().for_each(|&device| self.cascade(device, scratch));
                let mut st = self.state.lock();
                self.batch_is_over(&mut st, &batch);
                st.take_in(self, scratch);
                return (st, true);
            }
        };
        let device = ended.device;
        // Only where a device may be skipped does somebody else release what it holds up.
        if self.skips() {
            let mut st = self.state.lock();
            match st.running.iter_mut().find(|r| r.device == device) {
                Some(running) => running.concluding = true,
                None => {
                    st.ends_late(&ended);
                    return (st, false);
                }
            }
        }
        self.cascade(device, scratch);
        let mut st = self.state.lock();
        let running = st.record_end(ended);
        self.is_done(&mut st, running);
        st.take_in(self, scratch);
        (st, true)
    }

    /// One callback less is to come.
    pub(super) fn is_done(&self, st: &mut State, device: DeviceId) {
        st.left -= 1;
        st.untold += usize::from(self.observed);
        if self.outline.kinds[device.index()] == Kind::Sync {
            st.sync_left -= 1;
            st.sync_mask &= !self.counted().own(device);
        }
    }

    /// Finishes a device: releases what it depended on, and what has no callback behind it.
    pub(super) fn cascade(&self, id: DeviceId, scratch: &mut Scratch) {
        let needs = |d: u32| self.graph().needs(DeviceId(d));
        let mut stack = std::mem::take(&mut scratch.stack);
        // Also where its callback failed: that is no reason to leave others alone.
        self.counted()
            .counters
            .finish(id.0, &mut stack, needs, |device| self.settle(DeviceId(device), scratch));
        scratch.stack = stack;
    }

    /// Decides about a device that was just released.
    pub(super) fn settle(&self, device: DeviceId, scratch: &mut Scratch) -> Settled {
        if self.outline.kinds[device.index()].has_callback() {
            scratch.ready.push(device);
            return Settled::Queued;
        }
        Settled::Done
    }
}
