//! The loop's steps, and the transition from it to the counters.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::MutexGuard;
use corewise_sync::sys::Tid;
use corewise_timeline::Outcome;

use crate::bound::Bound;
use crate::counters::{Counters, Release, Settled};
use crate::graph::{DeviceId, Graph};
use crate::record::Site;
use crate::shutdown::batch::BATCH;
use crate::shutdown::options::{Kind, Outline};
use crate::shutdown::policy;
use crate::shutdown::policy::{Pace, WatchStep};
use crate::shutdown::report::{LoopNotes, ShutdownNotes};
use crate::shutdown::state::{
    CallerRests, EndedCallback, HelpersWanted, LoopTimes, ProgressState, RunningCallback, Scratch,
    ShutdownState, StepResult,
};
use crate::takeover::{Walk, WalkNote};

/// Number of callbacks that the loop walks at first, before it checks how long they take.
const FIRST: usize = 4;

impl ShutdownState {
    /// Begins the loop. Returns false if the counting has begun already.
    pub(crate) fn loop_begins(&self, site: &Site, thread: Option<Tid>) -> bool {
        let mut st = self.state.lock();
        st.loop_site = Some(site.clone());
        st.loop_thread = thread;
        !self.is_counted()
    }

    /// Returns the places that the loop walks next, before it checks how long they take.
    pub(crate) fn loop_walks(&self, place: usize) -> Range<usize> {
        place..(place + place.clamp(FIRST, BATCH)).min(self.total())
    }

    /// Ends the callback of that place, for the loop or a batch (step Step). Returns the end if the
    /// rest was taken over: then it counts like any other one.
    pub(crate) fn step(
        &self,
        walk: &Walk,
        place: usize,
        ended: EndedCallback,
    ) -> Result<(), EndedCallback> {
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

    /// Records that the callback of that place has returned, and that the loop waits for the
    /// device's end. Returns `None` if it need not: the counting has begun, or the shutdown was
    /// aborted.
    pub(crate) fn loop_waits(&self, device: DeviceId) -> Option<EndedCallback> {
        let mut st = self.state.lock();
        st.loop_detached = true;
        loop {
            if let Some(ended) = st.ended_meanwhile(device) {
                st.loop_detached = false;
                return Some(ended);
            }
            if self.is_counted() {
                // The counting may have begun before this thread came here.
                st.detach(device);
                return None;
            }
            if self.stops(&st) {
                return None;
            }
            st = self.caller.wait(st);
        }
    }

    /// Records a callback that ends later, as [`ShutdownState::loop_waits`] does, after the
    /// counting has begun. Returns the end if it has come already.
    pub(crate) fn loop_detaches(&self, device: DeviceId) -> Option<EndedCallback> {
        let mut st = self.state.lock();
        let later = st.ended_meanwhile(device);
        if later.is_none() {
            st.detach(device);
        }
        later
    }

    /// Records that the loop was aborted before it called the device of its place.
    pub(crate) fn loop_leaves(&self) {
        let mut st = self.state.lock();
        st.loop_left = true;
        if self.is_counted() {
            let next = self.outline.calls.get(self.walk.over());
            st.running.retain(|r| Some(&r.device) != next);
        }
    }

    /// Returns the place of the loop, and the start of its callback; `None` if there is no loop
    /// (any more).
    pub(super) fn loop_is_at(&self, st: &ProgressState) -> Option<(usize, Duration)> {
        let place = self.walk.over();
        let at_one = !self.is_counted()
            && !st.loop_left
            && st.loop_site.is_some()
            && place < self.outline.calls.len();
        at_one.then(|| (place, self.loop_start(place)))
    }

    /// Returns the start of the callback of that place: the end of the one before.
    pub(super) fn loop_start(&self, place: usize) -> Duration {
        let before = place.checked_sub(1);
        before.map_or(Duration::ZERO, |before| Duration::from_nanos(self.walk.note(before).at))
    }

    /// Decides whether the loop should continue as one, and whether batches are held up. `blocked`
    /// returns true if the loop's thread sleeps.
    pub(crate) fn look(
        &self,
        now: Duration,
        pace: &mut Pace,
        blocked: impl FnOnce(Option<Tid>) -> bool,
    ) -> WatchStep {
        let mut st = self.state.lock();
        if self.is_counted() {
            return self.look_at_batches(&mut st, now, &mut Scratch::default());
        }
        if st.loop_site.is_none() {
            return WatchStep::Again(policy::SLOW); // It has not begun: its thread may be late.
        }
        // The running callback may be the last that could have run elsewhere.
        let others = |place: &usize| place + 1 < self.outline.asyncs_until && !self.stops(&st);
        let Some((place, since)) = self.loop_is_at(&st).filter(|(place, _)| others(place)) else {
            st.looked_at = false;
            return WatchStep::Over;
        };
        let thread = st.loop_thread;
        drop(st);
        policy::look(now, place, now.saturating_sub(since), pace, || blocked(thread))
    }

    /// Begins to count. Callbacks that are over count as such, those that run as running. A device
    /// that nothing depends on any more becomes ready, or is done if it has no callback. Does
    /// nothing if nothing is left to count, or if another thread counts.
    ///
    /// Linear in devices and links. The larger part, which needs no lock, is done before.
    pub(crate) fn count(&self, scratch: &mut Scratch) {
        self.count_from(scratch, false);
    }

    /// Begins to count like [`ShutdownState::count`], for the loop itself, between two callbacks.
    /// Returns false if another thread did, and expects the loop to report how the next one ended;
    /// or if the loop is to continue.
    pub(crate) fn count_between(&self, scratch: &mut Scratch) -> bool {
        self.count_from(scratch, true)
    }

    /// Begins to count; `between` says that the loop is in no callback.
    fn count_from(&self, scratch: &mut Scratch, between: bool) -> bool {
        if self.is_counted() {
            return false;
        }
        let counted = CountedState::new(&self.outline);
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
                let mut running = RunningCallback::new(device, self.loop_start(over), site);
                running.detached = st.loop_detached;
                running.walked = true;
                st.lead_in = (!running.detached).then_some(device);
                st.running.push(running);
            }
        }
        // In reverse base order: each device after all that depend on it. So a device that is
        // released here is released by its own seed.
        for &id in self.graph().order().iter().rev() {
            if self.counted().counters.seed(id.0) != Release::Waiting {
                self.seeded(&st, id, is_over[id.index()], scratch);
            }
        }
        st.take_in(self, scratch);
        drop(st);
        // A loop that waits for an end continues by counters.
        self.wake_caller();
        true
    }

    /// Returns the time that the loop's callbacks took. It excludes the first, which is counted
    /// from the beginning of the shutdown.
    fn loop_took(&self, over: usize) -> LoopTimes {
        let Some(last) = over.checked_sub(1).filter(|&last| last > 0) else {
            return LoopTimes::default();
        };
        let span = self.loop_start(over).saturating_sub(self.loop_start(1));
        LoopTimes { callbacks: last, in_all: span }
    }

    /// Returns true if helpers pay for the rest of the loop from that place on.
    pub(crate) fn helpers_pay(&self, place: usize) -> bool {
        let outline = &self.outline;
        let asyncs = outline.calls.len() - outline.sync;
        let left = outline.asyncs_until.saturating_sub(place).min(asyncs);
        let threads = self.cpus.min(outline.abreast);
        let mean = self.loop_took(place).mean();
        !self.is_counted() && policy::helpers_pay(left, mean, outline.kinds.len(), threads)
    }

    /// Settles a device that nothing depends on, or nothing any more, when the counting begins.
    fn seeded(&self, st: &ProgressState, id: DeviceId, is_over: bool, scratch: &mut Scratch) {
        if st.running.iter().any(|r| r.device == id) {
            return; // Its runner will come to finish it.
        }
        if is_over || self.settle(id, scratch) == Settled::Done {
            self.cascade(id, scratch);
        }
    }
}

// The end of a callback: what it releases, and what is recorded.

/// The result of a shutdown.
pub(crate) struct ShutdownResult {
    pub notes: ShutdownNotes,
    /// Bound objects by device.
    pub bound: Vec<Option<Arc<dyn Bound>>>,
}

impl ShutdownState {
    /// Records that the observer has got a finished callback that counts. Not called if there is
    /// none.
    pub(crate) fn told(&self) {
        let mut st = self.state.lock();
        st.untold -= 1;
        if st.is_over() {
            st.caller = CallerRests::No;
            drop(st);
            self.wake_caller();
        }
    }

    /// Records that the device's callback has returned, and that the device will be over later. If
    /// it is over already, the thread that finished it has been here.
    pub(crate) fn detached(&self, device: DeviceId) {
        self.state.lock().detach(device);
    }

    /// Ends a device whose callback had returned before. Returns `None` if its end is left to the
    /// walker that called it: the loop, or the thread of a batch.
    pub(crate) fn ended_later(
        &self,
        ended: EndedCallback,
        scratch: &mut Scratch,
    ) -> Option<HelpersWanted> {
        let at = ended.at;
        let mut st = self.state.lock();
        // The walker may not have recorded yet that the callback has returned. It has objects of
        // other devices: it must not drop those after all is over.
        let walked = |r: &RunningCallback| r.device == ended.device && r.walked && !r.detached;
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
        let (mut st, counts) = self.conclude(StepResult::One(ended), scratch);
        Some(self.owed(&mut st, at, counts, scratch))
    }

    /// Returns the data for the report, and the bound objects. Callbacks that still run (after an
    /// abort) are recorded as cancelled now, while they continue. Called once, by the caller of the
    /// shutdown.
    pub(crate) fn finish(&self, now: Duration) -> ShutdownResult {
        let mut st = self.state.lock();
        if self.is_counted() {
            self.take_all_over(&mut st, &mut Scratch::default());
        }
        let walked = st.walked.iter().cloned();
        // All of them are over, and their threads have not reported it yet.
        let walks = st.walks.iter().map(|batch| (batch.clone(), batch.devices.len()));
        let walked = walked.chain(walks).collect();
        let mut notes = if st.left > 0 { st.notes.clone() } else { std::mem::take(&mut st.notes) };
        notes.extend(st.running.iter().map(|r| r.note(now, Outcome::Cancelled)));
        if let (Some((place, since)), Some(site)) = (self.loop_is_at(&st), &st.loop_site) {
            let running = RunningCallback::new(self.outline.calls[place], since, site.clone());
            notes.push(running.note(now, Outcome::Cancelled));
        }
        let looped = LoopNotes {
            walk: self.walk.clone(),
            over: self.walk.over(),
            worker: st.loop_site.as_ref().map(|site| site.worker.clone()),
            all: !self.is_counted(),
        };
        let late = st.late.clone();
        let (failed, gave_up) = (std::mem::take(&mut st.walk_failed), st.gave_up);
        let notes =
            ShutdownNotes { looped, walked, failed, notes, helpers: st.asked, late, gave_up };
        ShutdownResult { notes, bound: std::mem::take(&mut *self.bound.write()) }
    }

    /// Records a thread's callback, after it has released the callback's dependents (without the
    /// lock). Returns false if the end doesn't count, since the device was skipped before.
    pub(super) fn conclude(
        &self,
        ran: StepResult,
        scratch: &mut Scratch,
    ) -> (MutexGuard<'_, ProgressState>, bool) {
        let ended = match ran {
            StepResult::Nothing => return (self.state.lock(), false),
            StepResult::One(ended) => ended,
            // No other thread takes ended callbacks over: this thread releases their dependents.
            StepResult::Batch(batch) => {
                batch.devices.iter().for_each(|&device| self.cascade(device, scratch));
                let mut st = self.state.lock();
                self.batch_is_over(&mut st, &batch);
                st.take_in(self, scratch);
                return (st, true);
            }
        };
        let device = ended.device;
        // Only if a device may be skipped can another thread release its dependents.
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

    /// Counts one callback less to come.
    pub(super) fn is_done(&self, st: &mut ProgressState, device: DeviceId) {
        st.left -= 1;
        st.untold += usize::from(self.observed);
        if self.outline.kinds[device.index()] == Kind::Sync {
            st.sync_left -= 1;
            st.sync_mask &= !self.counted().own(device);
        }
    }

    /// Finishes a device: releases the devices that it depended on, and further ones without a
    /// callback.
    pub(super) fn cascade(&self, id: DeviceId, scratch: &mut Scratch) {
        let needs = |d: u32| self.graph().needs(DeviceId(d));
        let mut stack = std::mem::take(&mut scratch.stack);
        // This happens also if its callback failed: that is no reason to omit the others.
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

// Counters of a shutdown, created when the counting begins, so that the loop pays for none of it.

/// Counters, and the order of devices by their needs.
pub(super) struct CountedState {
    /// I: the counters are atomic themselves: unfinished children and consumers.
    pub(super) counters: Counters,
    /// I: the synchronous devices that each device's end is needed for.
    pub(super) below: Option<Below>,
}

impl CountedState {
    /// Creates counters for devices of which nothing is over yet, and nothing is seeded.
    pub(super) fn new(outline: &Outline) -> CountedState {
        let (graph, kinds) = (&outline.graph, &outline.kinds);
        let feeds = |d: DeviceId| u32::try_from(graph.feeds(d).len()).expect("as many as devices");
        CountedState {
            counters: Counters::new(graph.ids().map(feeds)),
            below: Below::new(graph, kinds, outline.sync),
        }
    }

    /// Returns the bit of a synchronous device, if there are few enough.
    pub(super) fn own(&self, device: DeviceId) -> u64 {
        self.below.as_ref().map_or(0, |b| b.own[device.index()])
    }
}

/// Synchronous devices by bit, if there are few enough.
pub(super) struct Below {
    /// Masks by device: those that need it to be finished first, directly or not.
    pub(super) masks: Vec<u64>,
    /// Bit by device, if it is one of them.
    own: Vec<u64>,
}

impl Below {
    /// Creates the masks; `None` if there is no synchronous device, or there are more of them than
    /// bits.
    fn new(graph: &Graph, kinds: &[Kind], sync: usize) -> Option<Below> {
        if sync == 0 || sync > u64::BITS as usize {
            return None;
        }
        let mut below = Below { masks: vec![0; graph.len()], own: vec![0; graph.len()] };
        let mut bits = (0..u64::BITS).map(|n| 1u64 << n);
        // In base order: what a device needs comes before it.
        for &id in graph.order() {
            let through = |n: &DeviceId| below.masks[n.index()] | below.own[n.index()];
            below.masks[id.index()] = graph.needs(id).iter().map(through).fold(0, |a, b| a | b);
            if kinds[id.index()] == Kind::Sync {
                below.own[id.index()] = bits.next().expect("as many bits as synchronous devices");
            }
        }
        Some(below)
    }
}

// Asynchronous devices that are ready, by urgency.

/// The urgency of a ready device: how long the longest chain behind it is expected to take, then
/// its rank.
pub(super) type Urgency = (u64, u32);

/// The queue of those devices. The one with the greatest urgency goes first.
///
/// Most become ready in order, when the counting begins. These make a list. A thread takes a piece
/// of it at the cost of a few cache lines that lie beside each other.
#[derive(Default)]
pub(super) struct ReadyQueue {
    /// Devices in order; a new device is put here if it is more urgent than these.
    listed: Vec<(Urgency, DeviceId)>,
    /// All others.
    mapped: BTreeMap<Urgency, DeviceId>,
}

impl ReadyQueue {
    pub(super) fn insert(&mut self, urgency: Urgency, device: DeviceId) {
        if self.listed.last().is_none_or(|(last, _)| *last < urgency) {
            self.listed.push((urgency, device));
        } else {
            self.mapped.insert(urgency, device);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.listed.len() + self.mapped.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.mapped.is_empty()
    }

    pub(super) fn pop_last(&mut self) -> Option<DeviceId> {
        let listed = self.listed.last().map(|(urgency, _)| *urgency);
        if listed > self.mapped.last_key_value().map(|(urgency, _)| *urgency) {
            self.listed.pop().map(|(_, device)| device)
        } else {
            self.mapped.pop_last().map(|(_, device)| device)
        }
    }

    pub(super) fn remove(&mut self, urgency: Urgency) -> Option<DeviceId> {
        let listed = self.listed.binary_search_by_key(&urgency, |(urgency, _)| *urgency);
        listed.map_or_else(
            |_| self.mapped.remove(&urgency),
            |place| Some(self.listed.remove(place).1),
        )
    }

    /// Returns the devices, the most urgent first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Urgency, DeviceId)> {
        let mut listed = self.listed.iter().rev().copied().peekable();
        let mut mapped = self.mapped.iter().rev().map(|(u, d)| (*u, *d)).peekable();
        std::iter::from_fn(move || match (listed.peek(), mapped.peek()) {
            (Some(a), Some(b)) if a < b => mapped.next(),
            (Some(_), _) => listed.next(),
            _ => mapped.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_out_by_urgency_in_whatever_order_they_went_in() {
        for order in [[1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2], [2, 4, 1, 3]] {
            let mut ready = ReadyQueue::default();
            order.iter().for_each(|&n| ready.insert((0, n), DeviceId(n)));
            let listed: Vec<u32> = ready.iter().map(|(_, device)| device.0).collect();
            assert_eq!((listed, ready.len()), (vec![4, 3, 2, 1], 4), "{order:?}");
            assert_eq!(ready.remove((0, 2)), Some(DeviceId(2)), "{order:?}");
            assert_eq!(ready.remove((0, 2)), None);
            let popped: Vec<u32> = std::iter::from_fn(|| ready.pop_last()).map(|d| d.0).collect();
            assert_eq!((popped, ready.is_empty()), (vec![4, 3, 1], true), "{order:?}");
        }
    }
}
