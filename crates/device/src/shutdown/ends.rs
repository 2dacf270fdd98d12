//! How a callback ends: what it releases, what is noted, and what remains.

use super::plan::Kind;
use super::remaining::{self, Remaining};
use super::report::Notes;
use super::state::{
    CallerRests, Ended, Finished, Owed, Ready, Running, Scratch, ShutdownState, State,
};
use crate::DeviceId;
use crate::counters::Settled;
use crate::record::Record;
use corewise_sync::MutexGuard;
use corewise_timeline::Outcome;
use std::time::Duration;

impl ShutdownState {
    /// The observer was told about a finished callback. Not called where there is none.
    pub(crate) fn told(&self) {
        let mut st = self.state.lock();
        st.untold -= 1;
        if st.untold == 0 && (st.left == 0 || !self.is_counted()) {
            st.caller = CallerRests::No;
            drop(st);
            self.wake_caller();
        }
    }

    /// What is not shut down now. From any thread, also while callbacks run.
    pub(crate) fn remaining(&self, now: Duration) -> Vec<Remaining> {
        let st = self.state.lock();
        let mut done = vec![false; self.graph.len()];
        for record in &st.records {
            done[record.device.index()] = true;
        }
        let elapsed = |r: &Running| (r.ready.device, now.saturating_sub(r.since));
        let running = st.running.iter().map(elapsed).collect();
        drop(st);
        remaining::of(&self.graph, &self.kinds, &done, &running)
    }

    /// What there is to report, and the bound objects. Callbacks that still run (after an abort)
    /// are noted as cancelled now, while they go on. Called once, by the caller when it is through.
    pub(crate) fn finish(&self, now: Duration) -> Finished {
        let mut st = self.state.lock();
        // After an abort the notes go on to tell what remains.
        let mut records =
            if st.left > 0 { st.records.clone() } else { std::mem::take(&mut st.records) };
        records.extend(st.running.iter().map(|r| r.record(now, Outcome::Cancelled)));
        let bound = std::mem::take(&mut st.bound);
        Finished { notes: Notes { records, helpers: st.asked, looped: st.looped }, bound }
    }

    /// Takes in what a thread ran: releases what waited for it (without the lock), then notes it.
    pub(super) fn conclude(
        &self,
        ended: Option<Ended>,
        scratch: &mut Scratch,
    ) -> MutexGuard<'_, State> {
        let Some(ended) = ended else { return self.state.lock() };
        let device = ended.device;
        self.counted().set_end(device, ended.at);
        self.cascade(device, scratch);
        let mut st = self.state.lock();
        st.record_end(ended);
        st.left -= 1;
        st.untold += usize::from(self.observed);
        if self.kinds[device.index()] == Kind::Sync {
            st.sync_left -= 1;
            st.sync_mask &= !self.counted().own(device);
        }
        st.take_in(&self.graph, &self.kinds, scratch);
        st
    }

    /// The device's callback has returned, and it will be over later, or is already: then whoever
    /// finished it has been here.
    pub(crate) fn detached(&self, device: DeviceId) {
        let mut st = self.state.lock();
        if let Some(running) = st.running.iter_mut().find(|r| r.ready.device == device) {
            running.detached = true;
        }
    }

    /// A device is over whose callback had returned before.
    pub(crate) fn ended_later(&self, ended: Ended, scratch: &mut Scratch) -> Owed {
        let at = ended.at;
        match self.serial_end(ended) {
            Ok(owed) => {
                self.wake_caller(); // It waits for nothing else, see `serial_wait`.
                owed
            }
            Err(ended) => {
                let mut st = self.conclude(Some(ended), scratch);
                self.owed(&mut st, at)
            }
        }
    }

    /// Finishes a device: releases what it depended on, and what has no callback behind it.
    pub(super) fn cascade(&self, id: DeviceId, scratch: &mut Scratch) {
        let needs = |d: u32| self.graph.needs(DeviceId(d));
        let mut stack = std::mem::take(&mut scratch.stack);
        // A failed callback is no reason to leave others alone, so nobody is ever blamed here.
        self.counted().counters.finish(id.0, None, &mut stack, needs, |device, by, _| {
            self.settle(DeviceId(device), Some(DeviceId(by)), scratch)
        });
        scratch.stack = stack;
    }

    pub(super) fn settle(
        &self,
        device: DeviceId,
        by: Option<DeviceId>,
        scratch: &mut Scratch,
    ) -> Settled {
        let kind = self.kinds[device.index()];
        let at = self.counted().released_at(&self.graph, device);
        match kind {
            Kind::Sync | Kind::Async => {
                scratch.ready.push(Ready { device, queued: at, by });
                return Settled::Queued;
            }
            Kind::NoCallback => {
                scratch.records.push(Record::instant(device, at, by, Outcome::Ok, true));
            }
            Kind::Absent => {}
        }
        self.counted().set_end(device, at);
        Settled::Done
    }
}
