//! A dump: everything about call targets at one moment, as plain data.
//!
//! A dump is collected by reading: nothing stops for it. Each figure is exact for its own moment,
//! and the moments of one dump lie close together.

use corewise_topology::CpuId;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use corewise_sync::text;
use corewise_sync::time::{Latencies, Stamp};

use crate::priority::Priority;
use crate::smp::Smp;
use crate::stats::CallStats;
use crate::stats::RunningCall;
use crate::target::Target;
use crate::target_state::CpuState;
use crate::watch::{CallStall, Progress};

/// Number of calls that are written out.
const LINES: usize = 64;

/// The result of [`Smp::dump`]. [`Display`](fmt::Display) writes it as a table for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Dump {
    /// Each CPU's call target, in CPU order.
    pub cpus: Vec<CpuDump>,
    /// Calls that have been sent and haven't begun or ended, the oldest first.
    pub outstanding: Vec<OutstandingCall>,
    /// The last reports of long waits, the oldest first; at most sixteen.
    pub stalls: Vec<CallStall>,
}

/// One CPU's call target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuDump {
    /// The CPU.
    pub cpu: CpuId,
    /// State of the target: whether it takes calls.
    pub state: CpuState,
    /// The priority that its thread got; `None` if it has no thread of ours. A thread that spins
    /// for long gives its priority up until it sleeps.
    pub priority: Option<Priority>,
    /// The kernel's number of that thread, for a debugger or `/proc`.
    pub thread: Option<u32>,
    /// The call that it runs.
    pub running: Option<RunningCall>,
    /// Counters.
    pub stats: CallStats,
    /// Time from a call's push to its start. A call that found the target asleep is measured, and
    /// one in sixteen of the others, which counts for all. Calls that took more than 32 ms are
    /// always counted.
    pub delivery: Latencies,
    /// Time of the target at each call: the function, and telling the waiter, which takes a system
    /// call if that sleeps. Measured like `delivery`.
    pub handlers: Latencies,
}

/// A call to one CPU, or one CPU's share of a call to many, that hasn't ended. An unawaited call
/// counts until it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutstandingCall {
    /// The CPU that is called.
    pub cpu: CpuId,
    /// The progress of the call there.
    pub progress: Progress,
    /// The name of the function, as the compiler has it.
    pub function: &'static str,
    /// The place of the call in the source.
    pub site: &'static Location<'static>,
    /// The CPU from which it was called.
    pub source: CpuId,
    /// True if a thread may wait for it: such calls run first.
    pub urgent: bool,
    /// Time since it was sent, to some milliseconds.
    pub age: Duration,
}

impl CpuDump {
    fn of(target: &Target) -> CpuDump {
        let own_thread = target.own_thread();
        CpuDump {
            cpu: target.cpu,
            state: CpuState::of(target.state().snapshot()),
            priority: own_thread.map(|info| info.granted),
            thread: own_thread.map(|info| info.thread.number()),
            running: target.stats.running().map(RunningCall::of),
            stats: target.stats.snapshot(target.cpu),
            delivery: target.stats.delivery(),
            handlers: target.stats.handlers(),
        }
    }
}

impl Smp {
    /// Returns the work of each call target so far, the calls under way, and the long waits. It
    /// reads, and stops nothing; any context. But it allocates, and reads every cell that was ever
    /// in use at once.
    pub fn dump(&self) -> Dump {
        let shared = &self.shared;
        let now = Stamp::precise();
        let mut outstanding = Vec::new();
        shared.pools.for_each(|cell| {
            if let Some(call) = cell.outstanding() {
                outstanding.push(OutstandingCall {
                    cpu: call.target,
                    progress: shared.watch.progress(cell, &call),
                    function: call.name,
                    site: call.site,
                    source: call.source,
                    urgent: call.urgent,
                    age: now.since(call.queued.stamp().unwrap_or(now)),
                });
            }
        });
        outstanding.sort_by_key(|call| std::cmp::Reverse(call.age));
        Dump {
            cpus: shared.targets.iter().map(|target| CpuDump::of(target)).collect(),
            outstanding,
            stalls: shared.watch.reports(),
        }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Call targets (times: median / 99 % / longest)")?;
        let head = ["calls", "wakeups", "batches", "in place", "panics"];
        write!(f, "  {:>4}  {:<9}  {:<13}", "CPU", "state", "priority")?;
        head.into_iter().try_for_each(|name| write!(f, "  {name:>8}"))?;
        writeln!(f, "  {:<28}  handlers", "delivery")?;
        for cpu in &self.cpus {
            let priority = cpu.priority.map_or_else(|| "-".into(), |p| p.to_string());
            write!(f, "  {:>4}  {:<9}  {priority:<13}", cpu.cpu, cpu.state)?;
            let CallStats { calls, wakeups, batches, inline, panics, .. } = cpu.stats;
            let counts = [calls, wakeups, batches, inline, panics];
            counts.into_iter().try_for_each(|count| write!(f, "  {count:>8}"))?;
            writeln!(f, "  {:<28}  {}", cpu.delivery.to_string(), cpu.handlers)?;
        }
        for cpu in &self.cpus {
            if let Some(running) = &cpu.running {
                writeln!(f, "  CPU {} runs {running}", cpu.cpu)?;
            }
        }
        let outstanding = self.outstanding.len();
        if outstanding > 0 {
            writeln!(f, "Calls under way: {outstanding}")?;
            self.outstanding.iter().take(LINES).try_for_each(|call| writeln!(f, "  {call}"))?;
            if outstanding > LINES {
                writeln!(f, "  and {} younger ones", outstanding - LINES)?;
            }
        }
        if !self.stalls.is_empty() {
            writeln!(f, "Long waits, the last {}", self.stalls.len())?;
        }
        for stall in &self.stalls {
            writeln!(f, "  {}", stall.to_string().replace('\n', "\n  "))?;
        }
        Ok(())
    }
}

impl fmt::Display for OutstandingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutstandingCall { cpu, progress, function, site, source, urgent, age } = self;
        let function = text::name(function);
        let progress = match progress {
            Progress::Unseen => "has not seen",
            Progress::Before => "has before it",
            Progress::Running => "is on",
        };
        write!(
            f,
            "CPU {cpu} {progress} {function}, called at {site} on CPU {source}, {age:.1?} ago"
        )?;
        if *urgent { Ok(()) } else { f.write_str("; nobody waits") }
    }
}
