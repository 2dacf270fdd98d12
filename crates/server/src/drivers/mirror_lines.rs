//! How often it is told that a mirror does without a leg, and resyncs it: with `retry`, a leg that
//! fails for good is dropped and resynced without an end.
//!
//! The observer gets the first of these lines, and then one now and then. Programs that listen
//! on the control socket hear of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use corewise::drivers::MirrorEvent;
use corewise::sync::{Mutex, Throttle};

use crate::report::{Report, To};

/// Tells what happens to a mirror.
pub(super) struct Lines {
    report: Report,
    device: String,
    /// L: is the lock, held for a moment; guards a limit for each kind of line about each leg, of
    /// which there are few.
    limits: Mutex<BTreeMap<(Kind, usize), Limit>>,
}

/// How often a line about a leg is told.
#[derive(Clone, Default)]
struct Limit {
    throttle: Arc<Throttle>,
    /// The leg's name.
    leg: String,
}

/// Lines that come again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Dropped,
    Resync,
    Resynced,
}

/// What an event is limited by: its kind, and the leg; `None`: somebody asked for it.
fn limited(event: &MirrorEvent) -> Option<(Kind, usize)> {
    let first = |legs: &[usize]| legs.first().copied().unwrap_or_default();
    match event {
        MirrorEvent::Dropped { leg, .. } => Some((Kind::Dropped, *leg)),
        MirrorEvent::ResyncBegan { legs, .. } => Some((Kind::Resync, first(legs))),
        MirrorEvent::ResyncEnded { legs, .. } => Some((Kind::Resynced, first(legs))),
        _ => None,
    }
}

impl Lines {
    pub(super) fn new(report: Report, device: &str) -> Lines {
        Lines { report, device: device.to_owned(), limits: Mutex::default() }
    }

    /// Tells it. `legs`: their names. From any thread.
    pub(super) fn tell(&self, legs: &[String], event: &MirrorEvent) {
        let Lines { report, device, .. } = self;
        report.mirror(device, legs, event, To::Listeners);
        let Some(key) = limited(event) else {
            return report.mirror(device, legs, event, To::People { left_out: None });
        };
        let limit = {
            let mut limits = self.limits.lock();
            let limit = limits.entry(key).or_default();
            // Another device may have its place by now.
            limit.leg.clone_from(legs.get(key.1).unwrap_or(&self.device));
            Arc::clone(&limit.throttle)
        };
        limit.tell(|| {
            let (report, device) = (self.report.clone(), self.device.clone());
            let (legs, event) = (legs.to_vec(), event.clone());
            move |left_out| report.mirror(&device, &legs, &event, To::People { left_out })
        });
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let device = &self.device;
        for ((kind, _), Limit { throttle, leg }) in self.limits.lock().iter() {
            let what = match kind {
                Kind::Dropped => "was left out",
                Kind::Resync => "began to be resynced",
                Kind::Resynced => "came in sync",
            };
            throttle.take_left_out().tell(|times| {
                self.report.warning(format_args!(
                    "device '{device}': its leg '{leg}' {what} {times} more times"
                ));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise::blockmq::{IoError, IoErrorKind};

    use super::*;
    use crate::events::{Events, Listening};

    #[test]
    fn a_leg_that_fails_for_good_is_told_some_times_and_programs_hear_of_each() {
        let events = Arc::new(Events::new().unwrap());
        let listening = Listening::new(Arc::clone(&events)).unwrap();
        let report = Report { observer: Arc::new(()), quiet: true, events };
        let lines = Lines::new(report, "m");
        let legs = ["a".to_string(), "b".to_string()];
        for _ in 0..100 {
            lines.tell(&legs, &MirrorEvent::ResyncBegan { legs: vec![1], bytes: 4096 });
            let error = IoError::with(IoErrorKind::Io(5), "the disk is gone");
            lines.tell(&legs, &MirrorEvent::Dropped { leg: 1, error });
        }
        let mut heard = Vec::new();
        listening.take(&mut heard);
        let heard = String::from_utf8(heard).unwrap();
        assert_eq!(heard.matches("\"what\":\"dropped\"").count(), 100, "{heard}");
        for kind in [Kind::Dropped, Kind::Resync] {
            let limit = lines.limits.lock()[&(kind, 1)].clone();
            assert_eq!(limit.leg, "b");
            // A machine that is so slow that it takes minutes for that tells more of them.
            assert!(limit.throttle.take_left_out().messages() > 50, "{kind:?}");
        }
        assert_eq!(lines.limits.lock().len(), 2);
    }
}
