//! What the watchdog reports: a call that is waited for, and isn't answered.

use corewise_topology::CpuId;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use corewise_sync::text;

use crate::running::RunningCall;
use crate::target_state::CpuState;

/// A wait for a call that has taken long. [`Display`](fmt::Display) writes it as some lines of text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStall {
    /// For how long: a thread since it began to wait, a future since the call was sent.
    pub waited: Duration,
    /// The waiter.
    pub waiter: Waiter,
    /// The name of the function, as the compiler has it.
    pub function: &'static str,
    /// Where it was called.
    pub site: &'static Location<'static>,
    /// The CPU on which that was, where it is known.
    pub source: Option<CpuId>,
    /// The CPUs that haven't answered yet, in CPU order. May be empty: the last has answered just now.
    pub missing: Vec<Missing>,
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
pub struct Missing {
    /// The CPU.
    pub cpu: CpuId,
    /// How far the call has come there.
    pub progress: Progress,
    /// Whether the CPU takes calls.
    pub state: CpuState,
    /// What its target runs: this very call, where `progress` says so, or another.
    pub running: Option<RunningCall>,
    /// What the kernel says of its target's thread; `None` where it has no thread of ours.
    pub thread: Option<ThreadState>,
}

/// How far a call has come on its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Progress {
    /// The target never saw it: it is in the queue.
    Unseen,
    /// The target has taken it from the queue, and is before it: it runs others first.
    Before,
    /// The target is on it.
    Running,
}

/// What a target's thread does, by the kernel's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ThreadState {
    /// It runs, or it waits for its core.
    Ready,
    /// It sleeps.
    Asleep,
    /// Stopped, for instance by a debugger.
    Stopped,
}

impl fmt::Display for Missing {
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
        let missing = |cpu, progress, running| Missing {
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
                Missing {
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
