//! Callbacks that take too long: their names, the takeover, and the policy.

use super::options::HangPolicy;
use super::policy::{self, HangAction};
use super::report;
use super::state::{EndedCallback, ProgressState, Scratch, ShutdownState};
use crate::graph::DeviceId;
use corewise_timeline::Outcome;
use std::time::Duration;

/// A callback that was late.
#[derive(Clone, Debug)]
pub(crate) struct LateDevice {
    pub device: DeviceId,
    /// Time that it had been running at detection, without the pauses of this process.
    pub after: Duration,
    /// Time that it took in the end, if it has ended.
    pub took: Option<Duration>,
    /// True if the devices that it held up were shut down without it.
    pub skipped: bool,
}

/// Events for an observer, besides callbacks that end.
#[derive(Clone, Debug)]
pub(crate) enum HangReport {
    /// A callback is late.
    Overdue { device: DeviceId, after: Duration },
    /// The device is done without its callback: this outcome counts, and `done` devices are over
    /// now.
    Skipped { device: DeviceId, outcome: Outcome, done: usize },
    /// The rest, `left` devices, is left undone.
    GaveUp { left: usize },
}

/// Number of pauses that are kept one by one.
const KEPT: usize = 16;

/// The times for which this process was stopped during a shutdown, in order, since its beginning.
/// No callback ran then, so no pause makes one late.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses(Vec<Pause>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    /// The time when it was noticed.
    end: Duration,
    length: Duration,
}

impl Pauses {
    /// Records a pause that has just been noticed.
    pub(crate) fn add(&mut self, end: Duration, length: Duration) {
        if length.is_zero() {
            return;
        }
        if self.0.len() >= KEPT {
            let oldest = self.0.remove(0);
            self.0[0].length += oldest.length;
        }
        self.0.push(Pause { end, length });
    }

    /// Returns for how long this process ran from `since` until `now`.
    pub(crate) fn ran(&self, since: Duration, now: Duration) -> Duration {
        let within = |pause: &Pause| pause.length.min(pause.end.saturating_sub(since));
        let paused: Duration = self.0.iter().map(within).sum();
        now.saturating_sub(since).saturating_sub(paused)
    }
}

impl ShutdownState {
    /// Returns true if a device may be skipped in this shutdown.
    pub(super) fn skips(&self) -> bool {
        self.timeouts.policy == HangPolicy::Skip
    }

    fn timeout(&self, device: DeviceId) -> Option<Duration> {
        let own = self.outline.timeouts.get(&device).copied();
        own.or(self.timeouts.device).or(self.timeouts.run)
    }

    /// Returns the time of the first check of deadlines, if there is one. No deadline comes before
    /// that.
    pub(crate) fn first_deadline(&self) -> Option<Duration> {
        let own = self.outline.timeouts.values().copied();
        own.chain(self.timeouts.device).chain(self.timeouts.run).min()
    }

    /// Records that this process was stopped until now, for that long.
    pub(crate) fn was_paused(&self, now: Duration, length: Duration) {
        self.state.lock().pauses.add(now, length);
    }

    /// Finds late callbacks. Returns the time of the next check, if there is one. Returns also
    /// whether the counting has to begin first, since the loop is in a late callback.
    pub(crate) fn look_at_deadlines(&self, now: Duration) -> (Option<Duration>, bool) {
        let Some(shortest) = self.first_deadline() else { return (None, false) };
        let mut st = self.state.lock();
        if self.stops(&st) {
            return (None, false);
        }
        let run_left =
            self.timeouts.run.map(|run| run.saturating_sub(st.pauses.ran(Duration::ZERO, now)));
        let run_is_late = run_left == Some(Duration::ZERO);
        if let Some((place, since)) = self.loop_is_at(&st) {
            let timeout = self.timeout(self.outline.calls[place]);
            let left = timeout.map(|t| t.saturating_sub(st.pauses.ran(since, now)));
            let next = [left, run_left].into_iter().flatten().min().map(|l| l.min(shortest));
            return (next, run_is_late || left == Some(Duration::ZERO));
        }
        if !self.is_counted() && st.loop_site.is_none() {
            return (Some(shortest), false); // It has not begun: its thread may be late.
        }
        if !self.is_counted() || st.left == 0 {
            return (None, false);
        }
        let mut next = shortest;
        // A callback that runs at that moment is named, but isn't late for that: its own time isn't
        // up.
        let all_named = run_is_late && !st.run_is_late;
        if all_named {
            st.run_is_late = true;
            st.gave_up = policy::gives_up_when_all_is_late(self.timeouts.policy);
        }
        let mut named = Vec::new();
        let mut overdue = 0;
        let st = &mut *st;
        for running in st.running.iter_mut().filter(|r| !r.overdue && !r.concluding) {
            let after = st.pauses.ran(running.since, now);
            let left = self.timeout(running.device).map(|t| t.saturating_sub(after));
            let is_late = left == Some(Duration::ZERO);
            if is_late || all_named {
                running.overdue = is_late;
                overdue += usize::from(is_late);
                if !std::mem::replace(&mut running.named, true) {
                    named.push((running.device, after));
                }
            }
            if !is_late {
                next = left.map_or(next, |left| next.min(left));
            }
        }
        st.overdue += overdue;
        for (device, after) in named {
            st.late.push(LateDevice { device, after, took: None, skipped: false });
            st.news.push(HangReport::Overdue { device, after });
        }
        if st.gave_up {
            let left = st.left;
            st.news.push(HangReport::GaveUp { left });
        }
        let next = run_left.filter(|left| !left.is_zero()).map_or(next, |left| next.min(left));
        (Some(next), false)
    }

    /// Returns the duties of a thread that checked the deadlines.
    pub(crate) fn owes(&self, now: Duration, scratch: &mut Scratch) -> super::state::HelpersWanted {
        let mut st = self.state.lock();
        match self.is_counted() {
            true => self.owed(&mut st, now, false, scratch),
            false => Default::default(),
        }
    }

    /// Applies the policy if only late callbacks run.
    pub(super) fn apply_policy(
        &self,
        st: &mut ProgressState,
        now: Duration,
        scratch: &mut Scratch,
    ) {
        if st.running.iter().any(|r| r.concluding) || self.stops(st) {
            return;
        }
        let ready = st.sync.len() + st.asyncs.len();
        let running = st.running.len() + st.walks.len();
        match policy::hang(self.timeouts.policy, st.overdue, running, ready) {
            HangAction::Wait => {}
            HangAction::GiveUp => {
                st.gave_up = true;
                let left = st.left;
                st.news.push(HangReport::GaveUp { left });
                self.watcher.notify_all();
            }
            HangAction::Skip => {
                for running in std::mem::take(&mut st.running) {
                    let (device, since) = (running.device, running.since);
                    st.overdue -= 1;
                    let after = now.saturating_sub(since);
                    let outcome = Outcome::Failed(format!(
                        "the callback did not end within {after:.1?} and was skipped; the devices \
                         that this one needs were shut down"
                    ));
                    st.notes.push(running.note(now, outcome.clone()));
                    st.skipped.push((device, since));
                    for late in st.late.iter_mut().filter(|l| l.device == device) {
                        late.skipped = true;
                    }
                    self.cascade(device, scratch);
                    self.is_done(st, device);
                    let done = self.total() - st.left;
                    if self.observed {
                        st.news.push(HangReport::Skipped { device, outcome, done });
                    }
                }
                st.take_in(self, scratch);
            }
        }
    }

    /// Returns the number for a deputy that has to take the caller's part. It has to if the caller
    /// is in a late callback, and its part has something to do.
    pub(super) fn deputy(&self, st: &mut ProgressState) -> Option<u64> {
        let is_stuck = |device| st.running.iter().any(|r| r.device == device && r.overdue);
        let is_skipped = |device| st.skipped.iter().any(|(skipped, _)| *skipped == device);
        let device = st.lead_in?;
        let something = self.has_sync(st) || !st.asyncs.is_empty();
        if !something || self.stops(st) || !(is_stuck(device) || is_skipped(device)) {
            return None;
        }
        st.lead += 1;
        st.lead_in = None;
        Some(st.lead)
    }

    /// Returns its part to the former thread, as no thread could be started for a deputy.
    pub(crate) fn deputy_lost(&self, lead: u64) {
        let mut st = self.state.lock();
        if st.lead == lead {
            st.lead -= 1;
        }
    }

    /// Returns further news for the thread that has reported the earlier ones. So observers get one
    /// event after the other, in order.
    pub(crate) fn more_news(&self) -> Vec<HangReport> {
        let mut st = self.state.lock();
        st.telling = false;
        let news = st.take_news();
        drop(st);
        if news.is_empty() {
            self.wake_caller(); // It may wait for that.
        }
        news
    }

    /// Records that the thread with the caller's part has finished.
    pub(crate) fn lead_is_through(&self) {
        let mut st = self.state.lock();
        st.lead_is_through = true;
        let awaited = st.end_is_awaited;
        drop(st);
        // A wake-up is a system call, also without a sleeper. Mostly the caller had the part.
        if awaited {
            self.wake_caller();
        }
    }

    /// Waits until all is shut down, or the policy gives the rest up, and until the observer has
    /// the report on late callbacks. It is called by a thread that has not, or no longer, the
    /// caller's part.
    pub(crate) fn wait_for_the_end(&self) {
        let mut st = self.state.lock();
        let over = |st: &ProgressState| self.is_counted() && st.is_over();
        let told = |st: &ProgressState| self.is_aborted() || (!st.telling && st.news.is_empty());
        while !((st.lead_is_through || over(&st) || self.stops(&st)) && told(&st)) {
            st.end_is_awaited = true;
            st = self.caller.wait(st);
        }
    }

    /// Returns the devices that are not shut down now. Any thread may call it, also while callbacks
    /// run.
    pub(crate) fn remaining(&self, now: Duration) -> Vec<report::Remaining> {
        let st = self.state.lock();
        let over = self.walk.over();
        let calls = &self.outline.calls;
        let all = if self.is_counted() { st.left == 0 } else { over == calls.len() };
        if all && st.skipped.is_empty() {
            return Vec::new();
        }
        let mut open = vec![false; self.outline.kinds.len()];
        calls[over..].iter().for_each(|id| open[id.index()] = true);
        st.notes.iter().for_each(|note| open[note.device.index()] = false);
        let at = self.loop_is_at(&st).map(|(place, since)| (calls[place], since));
        let mut inside: Vec<_> = st.running.iter().map(|r| (r.device, r.since)).chain(at).collect();
        let walks = st.walks.iter().map(|batch| (batch, batch.walk.over()));
        for (batch, over) in walks.chain(st.walked.iter().map(|(batch, over)| (batch, *over))) {
            batch.devices[..over].iter().for_each(|device| open[device.index()] = false);
        }
        // A callback that ended meanwhile is reported as running: it was, when this began.
        for batch in &st.walks {
            let at = batch.is_at().map(|(over, since)| (batch.devices[over], since));
            inside.extend(at.filter(|(device, _)| open[device.index()]));
        }
        let since = |(device, since): (DeviceId, Duration)| (device, now.saturating_sub(since));
        let running = inside.into_iter().map(since).collect();
        let skipped = st.skipped.iter().map(|&(d, since)| (d, now.saturating_sub(since))).collect();
        let late = st.running.iter().filter(|r| r.named).map(|r| r.device).collect();
        drop(st);
        report::of(self.outline(), open, &running, skipped, &late)
    }
}

impl ProgressState {
    /// Takes the news, for one thread at a time.
    pub(super) fn take_news(&mut self) -> Vec<HangReport> {
        if self.telling || self.news.is_empty() {
            return Vec::new();
        }
        self.telling = true;
        std::mem::take(&mut self.news)
    }

    /// Records that a callback has ended that was skipped before.
    pub(super) fn ends_late(&mut self, ended: &EndedCallback) {
        let Some(place) = self.skipped.iter().position(|(d, _)| *d == ended.device) else { return };
        let (device, since) = self.skipped.swap_remove(place);
        self.late_has_ended(device, ended.at.saturating_sub(since));
    }

    pub(super) fn late_has_ended(&mut self, device: DeviceId, took: Duration) {
        for late in self.late.iter_mut().filter(|l| l.device == device) {
            late.took = Some(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_is_the_time_without_the_pauses_within_it_however_many_they_were() {
        let second = Duration::from_secs(1);
        let mut pauses = Pauses::default();
        pauses.add(10 * second, 4 * second);
        assert_eq!(pauses.ran(Duration::ZERO, 12 * second), 8 * second);
        assert_eq!(pauses.ran(8 * second, 12 * second), 2 * second, "it began within the pause");
        assert_eq!(pauses.ran(11 * second, 12 * second), second, "it began after the pause");
        for n in 0..100 {
            pauses.add(second * (20 + 2 * n), second);
            pauses.add(second * (20 + 2 * n), Duration::ZERO);
        }
        assert_eq!(pauses.0.len(), KEPT);
        assert_eq!(pauses.ran(Duration::ZERO, 220 * second), 116 * second);
    }
}
