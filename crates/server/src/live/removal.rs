//! Removals in a change: exports drain, volumes close. A device that hangs is reported, and
//! `on_hang` decides whether the server waits on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use corewise::device::{self, CallbackFailure, HangPolicy};
use corewise::nbd::FlushOutcome;
use corewise::timeline::{Outcome, Span, SpanKind, Timeline, duration};

use super::Live;
use crate::control::changes::{ChangeReport, StepFailure};
use crate::drivers::export::disconnected;
use crate::manifest::{Manifest, export_name};

/// The time after which a device is reported if the manifest doesn't set one, the same as at
/// shutdown.
pub(super) const USUAL: Duration = Duration::from_secs(10);

/// The result of a removal.
pub(super) struct Removal {
    pub(super) timeline: Timeline,
    /// Device that hangs, and those that were to go after it. They are still there.
    pub(super) left: Vec<String>,
}

/// The errors of callbacks, by device.
pub(super) type RemovalErrors = Result<Vec<CallbackFailure>, device::Error>;

/// The result of the removal of one device.
pub(super) enum RemovalResult {
    Done(RemovalErrors),
    /// The removal continues after this time, but no client waits for it.
    Hangs(Duration),
}

impl Live {
    /// Drains exports, all at once; then flushes and closes volumes, each after its consumers.
    /// Returns `None` if the server ends meanwhile.
    pub(super) fn remove(
        &self,
        exports: &[String],
        devices: &[String],
        has: &Manifest,
        deadline: Duration,
        changed: &mut ChangeReport,
    ) -> Option<Removal> {
        let mut timeline = Timeline::new("removal");
        let begin = Instant::now();
        let names = exports;
        let exports: Vec<&str> = exports.iter().map(String::as_str).collect();
        let (going, devices_of, exports_of): (HashSet<&str>, _, HashMap<&str, _>) = (
            exports.iter().copied().collect(),
            has.by_name(),
            has.exports.iter().map(|export| (export.name.as_str(), export)).collect(),
        );
        if let Some(report) = self.server.remove_exports(&exports, deadline) {
            changed.notes.extend(disconnected(&report));
            for flush in &report.flushes {
                let name = export_name(&flush.export);
                match &flush.outcome {
                    FlushOutcome::Done => {}
                    FlushOutcome::Failed(why) => {
                        let why = format!("the flush failed, so recent writes may be lost: {why}");
                        changed.failed.push(StepFailure { name, why });
                    }
                    // The deadline gave the flush no time.
                    FlushOutcome::Unfinished if deadline.is_zero() => {}
                    FlushOutcome::Unfinished => changed.notes.push(format!(
                        "{name}: the flush takes longer than {}, and continues; the device ends \
                         after the flush",
                        duration(deadline)
                    )),
                }
            }
        }
        let drained = begin.elapsed();
        self.shown.lock().retain(|shown| !going.contains(shown.name.as_str()));
        let of_export = |name: &String| {
            let limit = exports_of.get(name.as_str()).map(|export| export.shutdown_timeout);
            (export_name(name), limit, true)
        };
        let of_device = |name: &String| {
            let limit = devices_of.get(name.as_str()).map(|device| device.tuning.shutdown_timeout);
            (name.clone(), limit, false)
        };
        let all: Vec<_> =
            (names.iter().map(of_export)).chain(devices.iter().map(of_device)).collect();
        for (n, (name, limit, is_export)) in all.iter().enumerate() {
            let rest = || all[n + 1..].iter().map(|(name, _, _)| name.clone());
            let start = if *is_export { Duration::ZERO } else { begin.elapsed() };
            let result = self.remove_one(name, limit.unwrap_or(USUAL), rest);
            let end = if *is_export { drained } else { begin.elapsed() };
            let mut left = Vec::new();
            let why = match result {
                // The device was never up.
                RemovalResult::Done(Err(device::Error::NoSuchDevice(_))) => None,
                RemovalResult::Done(Err(device::Error::ShuttingDown)) => return None,
                RemovalResult::Done(Err(error)) => Some(error.to_string()),
                RemovalResult::Done(Ok(failed)) => {
                    failed.first().map(|first| first.error.to_string())
                }
                RemovalResult::Hangs(after) => {
                    left.extend(std::iter::once(name.clone()).chain(rest()));
                    Some(format!(
                        "the device isn't down after {}, and the server waits no longer \
                         ('on_hang'); the shutdown continues",
                        duration(after)
                    ))
                }
            };
            let mut span = Span::new(name.clone(), SpanKind::Shutdown, start, end);
            if let Some(why) = why {
                span.outcome = Outcome::Failed(why.clone());
                changed.failed.push(StepFailure { name: name.clone(), why });
            }
            timeline.push(span);
            if !left.is_empty() {
                return Some(Removal { timeline, left });
            }
        }
        Some(Removal { timeline, left: Vec::new() })
    }

    /// Removes one device, which holds up the `rest`. Blocks longer than `limit` only if `on_hang`
    /// says so.
    pub(super) fn remove_one<R: Iterator<Item = String>>(
        &self,
        name: &str,
        limit: Duration,
        rest: impl FnOnce() -> R,
    ) -> RemovalResult {
        let Some(told) = self.begin_removal(name) else {
            return RemovalResult::Done(self.manager.remove(name));
        };
        match told.recv_timeout(limit) {
            Ok(result) => return RemovalResult::Done(result),
            // Only a bug disconnects the channel.
            Err(RecvTimeoutError::Disconnected) => return RemovalResult::Done(Ok(Vec::new())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let rest: Vec<String> = rest().collect();
        self.overdue("removal", name, limit, &rest);
        match self.settings.now().on_hang {
            HangPolicy::WaitOn => {
                RemovalResult::Done(told.recv().unwrap_or_else(|_| Ok(Vec::new())))
            }
            _ => RemovalResult::Hangs(limit),
        }
    }

    /// Removes one device on a thread of its own. Returns `None` if no thread can be started.
    pub(super) fn begin_removal(&self, name: &str) -> Option<Receiver<RemovalErrors>> {
        let (manager, of) = (Arc::clone(&self.manager), name.to_string());
        let (tell, told) = channel();
        let run = move || drop(tell.send(manager.remove(&of)));
        let started = std::thread::Builder::new().name("removal".to_string()).spawn(run);
        started.is_ok().then_some(told)
    }

    /// Reports a device of a change that takes too long.
    pub(super) fn overdue(&self, what: &str, device: &str, after: Duration, held_up: &[String]) {
        self.status.overdue(device);
        self.report.overdue(what, device, after, held_up);
    }
}
