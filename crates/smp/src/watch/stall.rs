//! The watchdog's report of an awaited call without an answer: the CPUs that haven't answered, and
//! why.

use std::collections::HashMap;
use std::panic::Location;
use std::time::Duration;
use std::{fmt, ptr};

use corewise_sync::sys::{RunState, Tid, run_state};
use corewise_sync::text;
use corewise_sync::time::Stamp;
use corewise_topology::CpuId;

use crate::cells::{Cell, Outstanding, Phase, Pools};
use crate::stats::{RunSnapshot, RunningCall};
use crate::target_state::CpuState;
use crate::watch::{Watch, next_report};

/// A long wait for a call. [`Display`](fmt::Display) writes it as some lines of text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStall {
    /// Length of the wait: a thread's since it began to wait, a future's since the call was sent.
    pub waited: Duration,
    /// The waiter.
    pub waiter: Waiter,
    /// The name of the function, as the compiler has it.
    pub function: &'static str,
    /// The place of the call in the source.
    pub site: &'static Location<'static>,
    /// The CPU from which it was called, if it is known.
    pub source: Option<CpuId>,
    /// The CPUs that haven't answered yet, in CPU order. May be empty: the last has answered just
    /// now.
    pub missing: Vec<MissingAnswer>,
}

/// The waiter for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Waiter {
    /// A thread, which makes the report.
    Thread,
    /// A future; the watching thread makes the report.
    Future,
}

/// A CPU that hasn't answered a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingAnswer {
    /// The CPU.
    pub cpu: CpuId,
    /// The progress of the call there.
    pub progress: Progress,
    /// State of the CPU: whether it takes calls.
    pub state: CpuState,
    /// The call that its target runs: this very call, if `progress` says so, or another.
    pub running: Option<RunningCall>,
    /// State of its target's thread, by the kernel; `None` if it has no thread of ours.
    pub thread: Option<ThreadState>,
}

/// The progress of a call on its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Progress {
    /// The target never saw it: the call is in the queue.
    Unseen,
    /// The target has taken it from the queue, and runs others first.
    Before,
    /// The target runs it.
    Running,
}

/// State of a target's thread, by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ThreadState {
    /// The thread runs, or waits for its core.
    Ready,
    /// The thread sleeps.
    Asleep,
    /// Stopped, for instance by a debugger.
    Stopped,
}

impl fmt::Display for MissingAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {}", self.cpu)?;
        match (self.progress, &self.running) {
            (Progress::Running, Some(running)) => {
                write!(f, " has been running it for {:.1?}", running.since)?;
            }
            (Progress::Running, None) => f.write_str(" is on it")?,
            (Progress::Before, Some(running)) => {
                write!(f, " has not reached it, and is running {running}")?
            }
            (Progress::Before, None) => f.write_str(" has not reached it")?,
            (Progress::Unseen, Some(running)) => {
                write!(f, " has not seen it, and is running {running}")?
            }
            (Progress::Unseen, None) => f.write_str(" has not seen it, and is idle")?,
        }
        match self.thread {
            Some(ThreadState::Ready) => f.write_str("; its thread runs, or waits for its core")?,
            Some(ThreadState::Asleep) => f.write_str("; its thread sleeps")?,
            Some(ThreadState::Stopped) => f.write_str("; its thread is stopped")?,
            None => f.write_str("; the program itself steps it")?,
        }
        if self.state != CpuState::Online {
            write!(f, "; the CPU is {}", self.state)?;
        }
        Ok(())
    }
}

impl fmt::Display for CallStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallStall { waited, waiter, function, site, source, missing } = self;
        let function = text::name(function);
        let who = match waiter {
            Waiter::Thread => "a thread",
            Waiter::Future => "a future",
        };
        write!(f, "{who} has waited {waited:.1?} for {function}, called at {site}")?;
        if let Some(source) = source {
            write!(f, " on CPU {source}")?;
        }
        missing.iter().try_for_each(|missing| write!(f, "\n  {missing}"))
    }
}

/// The thread's memory between checks.
pub(super) struct ReportHistory {
    limit: Duration,
    /// Calls that were reported, by the cell's address.
    told: HashMap<usize, ReportedCall>,
}

/// A call that was reported.
struct ReportedCall {
    /// The life of its cell.
    life: u32,
    times: u32,
    /// True if it was met at this check.
    met: bool,
}

impl ReportHistory {
    pub(super) fn new(limit: Duration) -> Self {
        ReportHistory { limit, told: HashMap::new() }
    }

    /// Checks all cells. Returns the reports that are due, and the time of the next check; `None`
    /// if no call is awaited.
    pub(super) fn look(
        &mut self,
        watch: &Watch,
        pools: &Pools,
    ) -> (Vec<CallStall>, Option<Duration>) {
        let now = Stamp::precise();
        let (mut reports, mut next) = (Vec::new(), None);
        pools.for_each(|cell| {
            let Some(awaited) = awaited(cell) else { return };
            let waited = now.since(awaited.queued.stamp().unwrap_or(now));
            let known = self.told.get(&ptr::from_ref(cell).addr());
            let mut told = known.filter(|told| told.life == awaited.life).map_or(0, |t| t.times);
            if waited >= next_report(self.limit, told) {
                reports.extend(report_on(watch, cell, Waiter::Future, waited));
                // There is one report for any number of missed ones.
                while waited >= next_report(self.limit, told) {
                    told += 1;
                }
                let told = ReportedCall { life: awaited.life, times: told, met: true };
                self.told.insert(ptr::from_ref(cell).addr(), told);
            } else if told > 0 {
                let known = self.told.get_mut(&ptr::from_ref(cell).addr());
                known.into_iter().for_each(|told| told.met = true);
            }
            // A thread that begins to wait after this check is late at the earliest when the limit
            // has passed from now.
            let left = next_report(self.limit, told).saturating_sub(waited);
            next = Some(next.unwrap_or(self.limit).min(left));
        });
        self.told.retain(|_, told| std::mem::take(&mut told.met));
        (reports, next)
    }
}

/// Returns the call of a cell, if the call is awaited.
fn awaited(cell: &Cell) -> Option<Outstanding> {
    let call = cell.diagnosis.read().filter(|call| call.queued.is_awaited())?;
    (!cell.signal().is_complete() && cell.diagnosis.life() == call.life).then_some(call)
}

/// Returns true if any call is awaited.
pub(super) fn any_awaited(pools: &Pools) -> bool {
    let mut any = false;
    pools.for_each(|cell| any |= awaited(cell).is_some());
    any
}

/// Returns the report on a call; `None` if it has ended meanwhile.
pub(super) fn report_on(
    watch: &Watch,
    cell: &Cell,
    waiter: Waiter,
    waited: Duration,
) -> Option<CallStall> {
    let call = cell.diagnosis.read()?;
    let mut missing = Vec::new();
    if call.phase == Phase::Head {
        cell.for_each_share(|share, call| missing.extend(missing_on(watch, share, call)));
        missing.sort_by_key(|missing| missing.cpu);
    } else {
        missing.extend(missing_on(watch, cell, &call));
    }
    // The reading counts, whole or not: the cell still had this call.
    (cell.diagnosis.life() == call.life).then_some(CallStall {
        waited,
        waiter,
        function: call.name,
        site: call.site,
        source: Some(call.source),
        missing,
    })
}

/// Wakes the targets that have never seen the call.
pub(super) fn wake_again(watch: &Watch, cell: &Cell) {
    let Some(call) = cell.diagnosis.read() else { return };
    if call.phase == Phase::Head {
        cell.for_each_share(|share, call| wake_unseen(watch, share, call));
    } else {
        wake_unseen(watch, cell, &call);
    }
}

fn wake_unseen(watch: &Watch, cell: &Cell, call: &Outstanding) {
    let Some(target) = watch.target(call.target) else { return };
    if progress(cell, call, target.stats.running()) == Progress::Unseen {
        target.wake_again();
    }
}

/// Returns how far a call, or a share of one, has come on its target.
fn missing_on(watch: &Watch, cell: &Cell, call: &Outstanding) -> Option<MissingAnswer> {
    let target = watch.target(call.target)?;
    let running = target.stats.running();
    let progress = progress(cell, call, running);
    if progress == Progress::Unseen {
        // The kernel likewise sends its interrupt once more.
        target.wake_again();
    }
    Some(MissingAnswer {
        cpu: call.target,
        progress,
        state: CpuState::of(target.state().snapshot()),
        running: running.map(RunningCall::of),
        thread: target.own_thread().and_then(|info| thread_state(info.thread)),
    })
}

/// Returns how far a call has come on a target that runs this.
pub(super) fn progress(cell: &Cell, call: &Outstanding, running: Option<RunSnapshot>) -> Progress {
    match call.phase {
        _ if running.is_some_and(|shown| shown.label.call == ptr::from_ref(cell).addr()) => {
            Progress::Running
        }
        Phase::Taken => Progress::Before,
        _ => Progress::Unseen,
    }
}

/// Returns the kernel's state of a thread of this process; `None` if it reports none.
fn thread_state(thread: Tid) -> Option<ThreadState> {
    Some(match run_state(thread)? {
        RunState::Ready => ThreadState::Ready,
        RunState::Stopped => ThreadState::Stopped,
        RunState::Asleep => ThreadState::Asleep,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_14_a_report_names_source_target_function_and_where_each_target_is() {
        let site = Location::caller();
        let running = RunningCall {
            function: "other",
            site,
            source: Some(CpuId::new(7)),
            since: Duration::ZERO,
        };
        let missing = |cpu, progress, running| MissingAnswer {
            cpu,
            progress,
            state: CpuState::Online,
            running,
            thread: Some(ThreadState::Ready),
        };
        let report = CallStall {
            waited: Duration::from_secs(5),
            waiter: Waiter::Thread,
            function: "slow",
            site,
            source: Some(CpuId::new(3)),
            missing: vec![
                missing(CpuId::new(0), Progress::Running, Some(running)),
                missing(CpuId::new(1), Progress::Before, Some(running)),
                missing(CpuId::new(2), Progress::Unseen, Some(running)),
                MissingAnswer {
                    state: CpuState::Leaving,
                    ..missing(CpuId::new(4), Progress::Unseen, None)
                },
            ],
        };
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let here = format!("a thread has waited 5.0s for slow, called at {site} on CPU 3");
        assert_eq!(lines[0], here);
        assert!(lines[1].starts_with("CPU 0 has been running it for 0.0ns"), "{text}");
        assert!(
            lines[2].starts_with("CPU 1 has not reached it, and is running other, called at "),
            "{text}"
        );
        assert!(lines[3].starts_with("CPU 2 has not seen it, and is running other"), "{text}");
        assert!(lines[4].ends_with("the CPU is leaving"), "{text}");
    }
}
