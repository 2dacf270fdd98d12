//! The loop's steps, and the way from it to the counters.

use super::batch::BATCH;
use super::counted::Counted;
use super::plan::Kind;
use super::policy::{self, Look, Pace};
use super::state::{Ended, Running, Scratch, ShutdownState, State, Took};
use crate::counters::{Release, Settled};
use crate::graph::DeviceId;
use crate::record::Site;
use crate::takeover::{Walk, WalkNote};
use corewise_sync::sys::Tid;
use corewise_timeline::Outcome;
use std::ops::Range;
use std::time::Duration;

/// How many callbacks the loop walks at first, before it looks how long they take.
const FIRST: usize = 4;

impl ShutdownState {
    /// The loop is asked to begin. False where the counting has begun already.
    pub(crate) fn loop_begins(&self, site: &Site, thread: Option<Tid>) -> bool {
        let mut st = self.state.lock();
        st.loop_site = Some(site.clone());
        st.loop_thread = thread;
        !self.is_counted()
    }

    /// Which places the loop walks next, before it looks how long they take.
    pub(crate) fn loop_walks(&self, place: usize) -> Range<usize> {
        place..(place + place.clamp(FIRST, BATCH)).min(self.total())
    }

    /// Step: a walk, the loop or a batch, ended the callback of that place. Gives the end back where
    /// the rest was taken over: then it counts as any other one.
    pub(crate) fn step(&self, walk: &Walk, place: usize, ended: Ended) -> Result<(), Ended> {
        if let Outcome::Failed(message) = &ended.outcome {
            self.state.lock().walk_failed.push((ended.device, message.clone()));
        }
        let at = u64::try_from(ended.at.as_nanos()).unwrap_or(u64::MAX);
        let mark = ended.cpu.and_then(|cpu| u16::try_from(cpu.number() + 1).ok()).unwrap_or(0);
        if walk.step(place, WalkNote { at, mark }) {
            return Ok(());
        }
        if let Outcome::Failed(_) = &ended.outcome {
            self.state.lock().walk_failed.retain(|(device, _)| *device != ended.device);
        }
        Err(ended)
    }

    /// The callback of that place has returned, and the device will be over later: the loop waits
    /// for it. `None` where it need not: the counting has begun, or the shutdown was aborted.
    pub(crate) fn loop_waits(&self, device: DeviceId) -> Option<Ended> {
        let mut st = self.state.lock();
        st.loop_detached = true;
        loop {
            if let Some(ended) = st.ended_meanwhile(device) {
                st.loop_detached = false;
                return Some(ended);
            }
            if self.is_counted() {
                // It may have begun before this thread came here.
                st.detach(device);
                return None;
            }
            if self.stops(&st) {
                return None;
            }
            st = self.caller.wait(st);
        }
    }

    /// As [`ShutdownState::loop_waits`], but the counting has begun: the end, where it has come
    /// already.
    pub(crate) fn loop_detaches(&self, device: DeviceId) -> Option<Ended> {
        let mut st = self.state.lock();
        let later = st.ended_meanwhile(device);
        if later.is_none() {
            st.detach(device);
        }
        later
    }

    /// The loop was aborted before it called what its place says.
    pub(crate) fn loop_leaves(&self) {
        let mut st = self.state.lock();
        st.loop_left = true;
        if self.is_counted() {
            let next = self.outline.calls.get(self.walk.over());
            st.running.retain(|r| Some(&r.device) != next);
        }
    }

    /// What the loop is at, and since when: `None` where there is no loop (any more).
    pub(super) fn loop_is_at(&self, st: &State) -> Option<(usize, Duration)> {
        let place = self.walk.over();
        let at_one = !self.is_counted()
            && !st.loop_left
            && st.loop_site.is_some()
            && place < self.outline.calls.len();
        at_one.then(|| (place, self.loop_start(place)))
    }

    /// When the loop began the callback of that place: when it ended the one before.
    pub(super) fn loop_start(&self, place: usize) -> Duration {
        let before = place.checked_sub(1);
        before.map_or(Duration::ZERO, |before| Duration::from_nanos(self.walk.note(before).at))
    }

    /// Somebody looks whether the loop should go on as one, or whether batches are held up. `blocked`
    /// says whether the loop's thread sleeps.
    pub(crate) fn look(
        &self,
        now: Duration,
        pace: &mut Pace,
        blocked: impl FnOnce(Option<Tid>) -> bool,
    ) -> Look {
        let mut st = self.state.lock();
        if self.is_counted() {
            return self.look_at_batches(&mut st, now, &mut Scratch::default());
        }
        if st.loop_site.is_none() {
            return Look::Again(policy::SLOW); // It has not begun: its thread may be late.
        }
        // The one that runs may be the last that could have been run elsewhere.
        let others = |place: &usize| place + 1 < self.outline.asyncs_until && !self.stops(&st);
        let Some((place, since)) = self.loop_is_at(&st).filter(|(place, _)| others(place)) else {
            st.looked_at = false;
            return Look::Over;
        };
        let thread = st.loop_thread;
        drop(st);
        policy::look(now, place, now.saturating_sub(since), pace, || blocked(thread))
    }

    /// Begins to count, with what is over counted as such and what runs as running: what nothing
    /// depends on any more becomes ready, or is done where it has no callback. Does nothing where
    /// there is nothing left to count, or somebody counts.
    ///
    /// Linear in devices and links. The larger part, which needs no lock, is done before.
    pub(crate) fn count(&self, scratch: &mut Scratch) {
        self.count_from(scratch, false);
    }

    /// As [`ShutdownState::count`], by the loop itself, between two callbacks. False where somebody
    /// else did, and expects it to say how the next one ended; or where it is to go on.
    pub(crate) fn count_between(&self, scratch: &mut Scratch) -> bool {
        self.count_from(scratch, true)
    }

    /// `between`: the loop is in no callback.
    fn count_from(&self, scratch: &mut Scratch, between: bool) -> bool {
        if self.is_counted() {
            return false;
        }
        let counted = Counted::new(&self.outline);
        let mut st = self.state.lock();
        let is_through = self.walk.over() == self.total();
        if is_through || self.stops(&st) || self.counted.set(counted).is_err() {
            return false;
        }
        let calls = &self.outline.calls;
        let begun = st.loop_site.is_some() && !between;
        let over = self.walk.take();
        st.left = calls.len() - over;
        st.took = self.loop_took(over);
        let mut is_over = vec![false; self.outline.kinds.len()];
        calls[..over].iter().for_each(|id| is_over[id.index()] = true);
        for &id in &calls[over..] {
            if self.outline.kinds[id.index()] == Kind::Sync {
                st.sync_left += 1;
                st.sync_mask |= self.counted().own(id);
            }
        }
        if let (Some(&device), Some(site)) = (calls.get(over), st.loop_site.clone()) {
            if begun {
                let mut running = Running::new(device, self.loop_start(over), site);
                running.detached = st.loop_detached;
                running.walked = true;
                st.lead_in = (!running.detached).then_some(device);
                st.running.push(running);
            }
        }
        // In reverse base order: each device after all that depend on it. So it is its own seed
        // that releases it, here, if anything here does.
        for &id in self.graph().order().iter().rev() {
            if self.counted().counters.seed(id.0) != Release::Waiting {
                self.seeded(&st, id, is_over[id.index()], scratch);
            }
        }
        st.take_in(self, scratch);
        drop(st);
        // A loop that waits for an end goes on by counters.
        self.wake_caller();
        true
    }

    /// How long the loop's callbacks took, the first one left out: it is counted from the beginning
    /// of the shutdown on.
    fn loop_took(&self, over: usize) -> Took {
        let Some(last) = over.checked_sub(1).filter(|&last| last > 0) else {
            return Took::default();
        };
        let span = self.loop_start(over).saturating_sub(self.loop_start(1));
        Took { callbacks: last, in_all: span }
    }

    /// Whether helpers pay for what the loop has left from that place on.
    pub(crate) fn helpers_pay(&self, place: usize) -> bool {
        let outline = &self.outline;
        let asyncs = outline.calls.len() - outline.sync;
        let left = outline.asyncs_until.saturating_sub(place).min(asyncs);
        let threads = self.cpus.min(outline.abreast);
        let mean = self.loop_took(place).mean();
        !self.is_counted() && policy::helpers_pay(left, mean, outline.kinds.len(), threads)
    }

    /// Settles a device that nothing depends on, or nothing any more, when the counting begins.
    fn seeded(&self, st: &State, id: DeviceId, is_over: bool, scratch: &mut Scratch) {
        if st.running.iter().any(|r| r.device == id) {
            return; // Its runner will come to finish it.
        }
        if is_over || self.settle(id, scratch) == Settled::Done {
            self.cascade(id, scratch);
        }
    }
}
