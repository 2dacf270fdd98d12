//! The serial loop's steps, and the way from it to the counters.

use super::counted::Counted;
use super::plan::Kind;
use super::policy;
use super::state::{Ended, Owed, Ready, Scratch, ShutdownState, State, Task};
use crate::DeviceId;
use crate::counters::{Release, Settled};
use crate::record::{Record, Site};
use std::time::Duration;

/// What somebody who looks at a serial loop finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It goes well: look again after that long.
    Again(Duration),
    /// It takes long, and others could help: count.
    Count,
    /// There is nothing to see any more.
    Over,
}

impl ShutdownState {
    /// The serial loop begins a callback; `passed` are the devices without one before it. `None`
    /// where the counting has begun: whatever the loop has not noted is not done.
    pub(crate) fn serial_start(
        &self,
        device: DeviceId,
        now: Duration,
        site: &Site,
        passed: &mut Vec<Record>,
    ) -> Option<Task> {
        let mut st = self.state.lock();
        if self.is_counted() {
            passed.clear();
            return None;
        }
        st.async_left -= usize::from(self.kinds()[device.index()] == Kind::Async);
        st.records.append(passed);
        Some(st.start(Ready { device, queued: now, by: None }, now, site))
    }

    /// The serial loop ended a callback. Gives the end back, where the counting has begun and it
    /// counts.
    pub(crate) fn serial_end(&self, ended: Ended) -> Result<Owed, Ended> {
        let mut st = self.state.lock();
        if self.is_counted() {
            return Err(ended);
        }
        st.sync_left -= usize::from(self.kinds()[ended.device.index()] == Kind::Sync);
        st.record_end(ended);
        st.left -= 1;
        st.untold += usize::from(self.is_observed());
        Ok(Owed { done: self.total() - st.left, ..Owed::default() })
    }

    /// The serial loop waits for a device whose callback has returned: until it is over, or until
    /// something else is to be done. The observer has been told of it then.
    pub(crate) fn serial_wait(&self) {
        let mut st = self.state.lock();
        let open = |st: &State| !st.running.is_empty() || st.untold > 0;
        while open(&st) && !self.is_counted() && !self.is_aborted() {
            st = self.caller.wait(st);
        }
    }

    /// The serial loop is through: `passed` are the devices without a callback that were last.
    pub(crate) fn serial_passed(&self, passed: &mut Vec<Record>) {
        let mut st = self.state.lock();
        if !self.is_counted() {
            st.records.append(passed);
            st.looped = st.records.len();
        }
    }

    /// Somebody looks at the serial loop.
    pub(crate) fn look(&self, now: Duration) -> Look {
        let st = self.state.lock();
        if self.is_counted() || st.left == 0 || st.async_left == 0 || self.is_aborted() {
            return Look::Over;
        }
        let running = st.running.first().map(|r| now.saturating_sub(r.since));
        match policy::look_again_after(running, st.busy, self.total() - st.left) {
            Some(after) => Look::Again(after),
            None => Look::Count,
        }
    }

    /// Begins to count, with what is over counted as such and what runs as running: what nothing
    /// depends on any more becomes ready, or is done where it has no callback. Called once at most;
    /// does nothing where there is nothing left to count.
    ///
    /// Linear in devices and links. The larger part, which needs no lock, is done before.
    pub(crate) fn count(&self, scratch: &mut Scratch) {
        let counted = Counted::new(self.graph(), self.kinds());
        let mut st = self.state.lock();
        if st.left == 0 || self.is_aborted() || self.counted.set(counted).is_err() {
            return;
        }
        let mut over: Vec<Option<Duration>> = vec![None; self.kinds().len()];
        for record in &st.records {
            over[record.device.index()] = Some(record.end);
        }
        st.looped = st.records.len();
        // In reverse base order: each device after all that depend on it. So it is its own seed
        // that releases it, here, if anything here does.
        for &id in self.graph().order().iter().rev() {
            if over[id.index()].is_none() && self.kinds()[id.index()] == Kind::Sync {
                st.sync_mask |= self.counted().own(id);
            }
            if self.counted().counters.seed(id.0) != Release::Waiting {
                self.seeded(&mut st, id, over[id.index()], scratch);
            }
        }
        st.take_in(self.graph(), self.kinds(), scratch);
    }

    /// Who has to be set going when somebody else than the caller began to count.
    pub(crate) fn owes(&self, now: Duration) -> Owed {
        let mut st = self.state.lock();
        if self.is_counted() { self.owed(&mut st, now) } else { Owed::default() }
    }

    /// Settles a device that nothing depends on, or nothing any more, when the counting begins.
    fn seeded(&self, st: &mut State, id: DeviceId, over: Option<Duration>, scratch: &mut Scratch) {
        let by = self.counted().released_by(self.graph(), self.kinds(), id);
        let running = st.running.iter_mut().find(|r| r.ready.device == id);
        if let Some(end) = over {
            self.counted().set_end(id, end);
        } else if let Some(running) = running {
            // Whoever runs it will come to finish it.
            let queued = self.counted().released_at(self.graph(), id).min(running.since);
            (running.ready.by, running.ready.queued) = (by, queued);
            return;
        } else if self.settle(id, by, scratch) == Settled::Queued {
            return;
        }
        self.cascade(id, scratch);
    }
}
