//! Sleeps and wake-ups: on words, until a time, for a thread's end, for a timer.

use super::{Event, Sim, SystemTimer};
use crate::task::{Policy, State, Tid, Woken};

impl Sim {
    /// Puts the running thread to sleep, on a word or until a time.
    pub(crate) fn fall_asleep(&mut self, word: usize, until: Option<f64>) {
        let tid = self.running.expect("called from a simulated thread");
        let thread = &mut self.threads[tid.index()];
        thread.state = State::Asleep;
        thread.sleeps_on = word;
        thread.sleep += 1;
        let sleep = thread.sleep;
        // The system delays only ordinary threads that didn't ask for punctual timers.
        let late = thread.policy == Policy::Normal && !thread.on_time;
        if word != 0 {
            self.sleepers.entry(word).or_default().push(tid);
        }
        if let Some(until) = until {
            let slack = if late { self.costs.timer_slack } else { 0.0 };
            self.at(until + slack, Event::Timer(tid, sleep));
        }
        self.horizon = f64::NEG_INFINITY;
    }

    /// Makes a timer, and returns its number.
    pub(crate) fn make_timer(&mut self) -> usize {
        self.timers.push(SystemTimer::default());
        self.timers.len() - 1
    }

    /// Sets a timer to go off after some nanoseconds. `None` stops it.
    pub(crate) fn set_timer(&mut self, timer: usize, after: Option<u64>) {
        self.spend(self.costs.syscall * 2.0);
        self.timers[timer].set += 1;
        let set = self.timers[timer].set;
        if let Some(after) = after {
            self.at(self.now() + after as f64, Event::GoesOff(timer, set));
        }
    }

    /// Returns true if the timer has gone off, and forgets that. Else the running thread sleeps
    /// until it does.
    pub(crate) fn await_timer(&mut self, timer: usize) -> bool {
        self.spend(self.costs.syscall);
        if std::mem::take(&mut self.timers[timer].off) {
            return true;
        }
        self.timers[timer].waiter = self.running;
        self.fall_asleep(0, None);
        false
    }

    /// Forgets that the timer went off: the waiter knows.
    pub(crate) fn forget_timer(&mut self, timer: usize) {
        self.timers[timer].off = false;
    }

    /// Returns the CPU time of a thread, and true if it sleeps. `None` after its end.
    pub(crate) fn reading(&self, tid: Tid) -> Option<(f64, bool)> {
        let thread = self.threads.get(tid.index())?;
        let run = match thread.state {
            State::Done => return None,
            State::Running => (self.cpus[thread.cpu].now - thread.since).max(0.0),
            State::Runnable | State::Asleep => 0.0,
        };
        Some((thread.ran + run, thread.state == State::Asleep))
    }

    /// Wakes up to `most` threads that sleep on a word. The caller pays for each.
    pub(crate) fn wake(&mut self, word: usize, most: usize) -> usize {
        let Some(mut sleepers) = self.sleepers.remove(&word) else {
            self.spend(self.costs.syscall);
            return 0;
        };
        let rest = sleepers.split_off(most.min(sleepers.len()));
        if !rest.is_empty() {
            self.sleepers.insert(word, rest);
        }
        let woken = sleepers.len();
        for (nth, tid) in sleepers.into_iter().enumerate() {
            let now = self.now();
            let whole = match self.rouse(tid, Woken::Called, now, true) {
                Some(idle) => self.costs.after_idle(idle).call,
                None => self.costs.wake_call_here,
            };
            let whole = self.crowded(whole);
            // One call wakes them all: the call's own part is paid once.
            self.spend(if nth == 0 { whole } else { (whole - self.costs.syscall).max(0.0) });
        }
        woken
    }

    /// Wakes a thread; see [`Sim::make_runnable`].
    pub(super) fn rouse(&mut self, tid: Tid, why: Woken, now: f64, by_thread: bool) -> Option<f64> {
        let thread = &mut self.threads[tid.index()];
        let word = std::mem::take(&mut thread.sleeps_on);
        thread.woken = why;
        thread.sleep += 1;
        if word != 0 {
            if let Some(sleepers) = self.sleepers.get_mut(&word) {
                sleepers.retain(|sleeper| *sleeper != tid);
                if sleepers.is_empty() {
                    self.sleepers.remove(&word);
                }
            }
        }
        self.make_runnable(tid, now, by_thread)
    }

    /// Ends the running thread.
    pub(crate) fn end(&mut self) {
        let tid = self.running.expect("called from a simulated thread");
        self.threads[tid.index()].state = State::Done;
        let joiners = std::mem::take(&mut self.threads[tid.index()].joiners);
        for joiner in joiners {
            let now = self.now();
            self.rouse(joiner, Woken::Called, now, true);
        }
    }

    /// Returns true if a thread has ended. Else the running thread sleeps until it has.
    pub(crate) fn join(&mut self, tid: Tid) -> bool {
        if self.threads[tid.index()].state == State::Done {
            return true;
        }
        let running = self.running.expect("called from a simulated thread");
        self.threads[tid.index()].joiners.push(running);
        self.fall_asleep(0, None);
        false
    }

    pub(crate) fn yield_now(&mut self) {
        let here = self.here();
        self.spend(self.costs.yields);
        if !self.cpus[here].queue.is_empty() {
            // Each of the other threads goes first.
            let shares = self.cpus[here].queue.iter().map(|tid| self.threads[tid.index()].share);
            let most = shares.fold(f64::NEG_INFINITY, f64::max);
            let tid = self.running.expect("called from a simulated thread");
            let thread = &mut self.threads[tid.index()];
            let run = self.cpus[here].now - thread.since;
            thread.share = (thread.share).max(most - run) + 1.0;
            self.cpus[here].give_way_at = self.cpus[here].now;
            self.horizon = f64::NEG_INFINITY;
        }
    }
}
