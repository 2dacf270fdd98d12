//! Targets of cross-CPU calls as JSON and as text. The names in the JSON are a promise;
//! `docs/control.md` explains each.

use std::fmt::Write as _;
use std::time::Duration;

use corewise::smp::{CpuDump, Dump, OutstandingCall, Progress};
use corewise::sync::text;
use corewise::topology::CpuId;
use serde::Serialize;

use super::devices::indented;
use super::disks::Times;
use super::served;
use crate::text::Columns;

/// The call targets of a server, by which requests end on other CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CallTargetsReport {
    /// Targets, in CPU order.
    pub(crate) cpus: Vec<CallTarget>,
    /// Calls that were sent and aren't over, the oldest first.
    pub(crate) in_flight: Vec<CallInFlight>,
    /// Texts of the last reports about long waits, the oldest first.
    pub(crate) long_waits: Vec<String>,
}

/// The call target of a CPU. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CallTarget {
    pub(crate) cpu: u32,
    pub(crate) state: String,
    /// Priority of its thread; `None` without a thread.
    pub(crate) priority: Option<String>,
    pub(crate) thread: Option<u32>,
    /// Function that it runs, in words.
    pub(crate) running: Option<String>,
    pub(crate) calls: u64,
    pub(crate) wakeups: u64,
    pub(crate) batches: u64,
    /// Calls from the target itself, which run in place; part of `calls`.
    pub(crate) in_place: u64,
    pub(crate) panics: u64,
    /// Times from the sending of a call to its start.
    pub(crate) delivery: Times,
    pub(crate) handlers: Times,
}

/// A call that was sent and isn't over.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CallInFlight {
    pub(crate) cpu: u32,
    /// CPU on which it was sent.
    pub(crate) source: u32,
    /// Progress: `queued`, `taken` from the queue or `running`.
    pub(crate) progress: &'static str,
    pub(crate) function: String,
    pub(crate) site: String,
    pub(crate) age_seconds: f64,
}

impl From<&CpuDump> for CallTarget {
    fn from(dump: &CpuDump) -> CallTarget {
        let stats = &dump.stats;
        CallTarget {
            cpu: dump.cpu.number(),
            state: dump.state.to_string(),
            priority: dump.priority.map(|priority| priority.to_string()),
            thread: dump.thread,
            running: dump.running.as_ref().map(ToString::to_string),
            calls: stats.calls,
            wakeups: stats.wakeups,
            batches: stats.batches,
            in_place: stats.inline,
            panics: stats.panics,
            delivery: Times::from(&dump.delivery),
            handlers: Times::from(&dump.handlers),
        }
    }
}

impl From<&OutstandingCall> for CallInFlight {
    fn from(call: &OutstandingCall) -> CallInFlight {
        CallInFlight {
            cpu: call.cpu.number(),
            source: CpuId::number(call.source),
            progress: match call.progress {
                Progress::Unseen => "queued",
                Progress::Before => "taken",
                _ => "running",
            },
            function: text::name(call.function).to_string(),
            site: call.site.to_string(),
            age_seconds: call.age.as_secs_f64(),
        }
    }
}

impl From<&Dump> for CallTargetsReport {
    fn from(dump: &Dump) -> CallTargetsReport {
        CallTargetsReport {
            cpus: dump.cpus.iter().map(CallTarget::from).collect(),
            in_flight: dump.outstanding.iter().map(CallInFlight::from).collect(),
            long_waits: dump.stalls.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The number of calls in flight that the text shows.
const CALLS: usize = 64;

/// Returns a table of the targets, and the calls below it, in lines of at most `width` columns as
/// far as names allow.
pub(crate) fn text(targets: &CallTargetsReport, width: usize) -> String {
    let head = [
        "CPU",
        "state",
        "priority",
        "calls",
        "wakeups",
        "batches",
        "in place",
        "panics",
        "delivery p50",
        "p99",
        "longest",
        "handlers p50",
        "p99",
        "longest",
    ];
    let time = |seconds: Option<f64>| {
        served::time(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    };
    let row = |target: &CallTarget| {
        let counts = [target.calls, target.wakeups, target.batches, target.in_place, target.panics];
        let times = [&target.delivery, &target.handlers];
        let times = times.map(|of| [of.p50_seconds, of.p99_seconds, of.longest_seconds]);
        let priority = target.priority.clone().unwrap_or_else(|| "-".to_string());
        let mut row = vec![target.cpu.to_string(), target.state.clone(), priority];
        row.extend(counts.map(|count| count.to_string()));
        row.extend(times.into_iter().flatten().map(time));
        row
    };
    let rows = targets.cpus.iter().map(row).collect();
    let table = Columns { head: &head, keys: &[0], words: &[1, 2], rows };
    let mut out = String::from("\nCall targets\n");
    for line in table.lines(width) {
        let _ = writeln!(out, "{line}");
    }
    for CallTarget { cpu, running, .. } in &targets.cpus {
        if let Some(running) = running {
            indented(&mut out, &format!("CPU {cpu} runs {running}"), width);
        }
    }
    let calls = &targets.in_flight;
    for CallInFlight { cpu, source, progress, function, site, age_seconds } in
        calls.iter().take(CALLS)
    {
        let age = time(Some(*age_seconds));
        let call = format!(
            "{function}: {progress} on CPU {cpu}, called at {site} on CPU {source}, {age} ago"
        );
        indented(&mut out, &call, width);
    }
    if calls.len() > CALLS {
        indented(&mut out, &format!("and {} later calls", calls.len() - CALLS), width);
    }
    for wait in &targets.long_waits {
        wait.lines().for_each(|line| indented(&mut out, line, width));
    }
    out
}

#[cfg(test)]
mod tests {
    use corewise::smp::Smp;
    use corewise::topology::Machine;

    use super::*;

    #[test]
    fn the_report_of_real_targets_has_a_line_for_each_cpu() {
        let smp = Smp::new(&Machine::synthetic("l3:2 core:1 pu:1").unwrap()).unwrap();
        let last = smp.online().iter().last().unwrap();
        assert_eq!(smp.call(last, || 42).unwrap().wait().unwrap(), 42);
        let report = CallTargetsReport::from(&smp.dump());
        assert_eq!(report.cpus.iter().map(|target| target.cpu).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((report.cpus[0].calls, report.cpus[1].calls), (0, 1));
        assert!(report.cpus.iter().all(|target| target.state == "online"), "{report:?}");
        let text = text(&report, 200);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "Call targets");
        assert!(lines[2].starts_with("  CPU  state"), "{text}");
        assert!(lines[4].starts_with("    1  online"), "{text}");
        assert_eq!(serde_json::to_value(&report).unwrap()["cpus"][1]["calls"], 1);
    }

    #[test]
    fn the_text_has_calls_in_flight_and_long_waits_within_the_width() {
        let call = CallInFlight {
            cpu: 1,
            source: 0,
            progress: "queued",
            function: "end_requests".to_string(),
            site: "src/complete.rs:12:5".to_string(),
            age_seconds: 0.002,
        };
        let running = Some("end_requests, called at src/complete.rs:12:5, for 2.0ms".to_string());
        let report = CallTargetsReport {
            cpus: vec![CallTarget { cpu: 1, running, ..CallTarget::default() }],
            in_flight: vec![call; CALLS + 2],
            long_waits: vec!["a thread has waited 10 s\n  for CPU 1".to_string()],
        };
        let text = text(&report, 60);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        for part in ["CPU 1 runs end_requests", "queued on CPU 1", "2.00 ms ago", "10 s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("queued on CPU 1").count(), CALLS);
        assert!(text.contains("and 2 later calls"), "{text}");
    }
}
