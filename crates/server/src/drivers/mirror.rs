//! Mirrors, with a record if their legs outlive the server, and with reports of their events.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use corewise::blockmq::BlockDevice;
use corewise::device::ProbeError;
use corewise::drivers::{Mirror, MirrorEvent, MirrorLeg, MirrorOptions};
use corewise::sync::{Mutex, Throttle};

use super::context::VolumeContext;
use super::volume::{DataOrigin, Parts, Volume};
use crate::control::mirrors::names;
use crate::manifest;
use crate::report::{Audience, Report};

/// Opens the mirror over its legs.
pub(super) fn open(
    context: &VolumeContext,
    name: &str,
    asked: &manifest::Mirror,
    parts: &Parts,
) -> Result<Arc<Mirror>, ProbeError> {
    let legs = parts.lock().clone();
    let devices: Vec<_> = legs.iter().map(|leg| leg.device()).collect();
    let here: Vec<_> = devices.iter().filter_map(|device| device.as_ref().ok()).cloned().collect();
    // A leg that can't be written can't keep a record.
    let read_only = here.iter().any(|device| device.geometry().read_only);
    let lasts = here.iter().any(|device| device.geometry().can_flush);
    let record = asked.bitmap.unwrap_or(lasts && !read_only);
    if let (false, Some(missing)) =
        (record, devices.iter().find_map(|device| device.as_ref().err()))
    {
        return Err(missing.clone());
    }
    let usual = MirrorOptions::default();
    let lines = EventLimiter::new(context.report.clone(), name);
    let theirs = Arc::clone(parts);
    // L: is the lock, held until the mirror exists, so that earlier events wait. Guards the mirror,
    // which knows its legs.
    let itself: Arc<Mutex<Weak<Mirror>>> = Arc::default();
    let known = |itself: &Arc<Mutex<Weak<Mirror>>>| {
        let itself = Arc::clone(itself);
        move || {
            let mirror = itself.lock().upgrade();
            mirror.map(|mirror| names(&mirror)).unwrap_or_default()
        }
    };
    let (named, found) = (known(&itself), known(&itself));
    let mut opening = itself.lock();
    let options = usual
        .record(record)
        .retry(asked.retry)
        .degraded(asked.degraded)
        .resync_least(asked.resync_least)
        .resync_most(asked.resync_most)
        .observer(move |event: &MirrorEvent| lines.tell(&named(), event))
        .find(move |n| {
            let name = found().into_iter().nth(n).ok_or("the mirror has no such leg")?;
            let leg = theirs.lock().iter().find(|leg| leg.name() == name).cloned();
            let leg = leg.ok_or("the leg's device was removed")?;
            leg.appear()
        });
    let side = |(leg, device): (&Arc<Volume>, Result<_, ProbeError>)| match device {
        Ok(device) if leg.origin() != DataOrigin::Before => MirrorLeg::New(device),
        Ok(device) => MirrorLeg::Here(device),
        Err(_) => MirrorLeg::Missing { name: leg.name().to_owned(), why: leg.why.lock().clone() },
    };
    let sides: Vec<_> = legs.iter().zip(devices).map(side).collect();
    let mirror = Mirror::open(sides, options, &context.workqueue).map_err(ProbeError::failed)?;
    let mirror = Arc::new(mirror);
    *opening = Arc::downgrade(&mirror);
    drop(opening);
    Ok(mirror)
}

/// A reporter of a mirror's events that limits repeated lines.
pub(super) struct EventLimiter {
    report: Report,
    device: String,
    /// L: is the lock, held for a moment; guards a limit for each kind of line about each leg, of
    /// which there are few.
    limits: Mutex<BTreeMap<(LineKind, usize), LineLimit>>,
}

/// The limit of one kind of line about a leg.
#[derive(Clone, Default)]
struct LineLimit {
    throttle: Arc<Throttle>,
    /// The leg's name.
    leg: String,
}

/// The kinds of lines that may repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LineKind {
    Dropped,
    Resync,
    Resynced,
}

/// Returns the kind and the leg by which an event is limited. Returns `None` for an event that an
/// operator asked for.
fn limited(event: &MirrorEvent) -> Option<(LineKind, usize)> {
    let first = |legs: &[usize]| legs.first().copied().unwrap_or_default();
    match event {
        MirrorEvent::Dropped { leg, .. } => Some((LineKind::Dropped, *leg)),
        MirrorEvent::ResyncBegan { legs, .. } => Some((LineKind::Resync, first(legs))),
        MirrorEvent::ResyncEnded { legs, .. } => Some((LineKind::Resynced, first(legs))),
        _ => None,
    }
}

impl EventLimiter {
    pub(super) fn new(report: Report, device: &str) -> EventLimiter {
        EventLimiter { report, device: device.to_owned(), limits: Mutex::default() }
    }

    /// Reports an event. `legs` are the names of the legs. Any thread may call it.
    pub(super) fn tell(&self, legs: &[String], event: &MirrorEvent) {
        let EventLimiter { report, device, .. } = self;
        report.mirror(device, legs, event, Audience::Listeners);
        let Some(key) = limited(event) else {
            return report.mirror(device, legs, event, Audience::People { left_out: None });
        };
        let limit = {
            let mut limits = self.limits.lock();
            let limit = limits.entry(key).or_default();
            // Another device may have the leg's place by now.
            limit.leg.clone_from(legs.get(key.1).unwrap_or(&self.device));
            Arc::clone(&limit.throttle)
        };
        limit.tell(|| {
            let (report, device) = (self.report.clone(), self.device.clone());
            let (legs, event) = (legs.to_vec(), event.clone());
            move |left_out| report.mirror(&device, &legs, &event, Audience::People { left_out })
        });
    }
}

impl Drop for EventLimiter {
    fn drop(&mut self) {
        let device = &self.device;
        for ((kind, _), LineLimit { throttle, leg }) in self.limits.lock().iter() {
            let what = match kind {
                LineKind::Dropped => "was left out",
                LineKind::Resync => "began to be resynced",
                LineKind::Resynced => "came in sync",
            };
            throttle.take_left_out().tell(|times| {
                self.report.warning(format_args!(
                    "device '{device}': leg '{leg}' {what} {times} more times"
                ));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise::blockmq::{IoError, IoErrorKind};

    use super::*;
    use crate::events::{Events, ListenerSlot};

    #[test]
    fn a_leg_that_fails_for_good_is_told_some_times_and_programs_hear_of_each() {
        let events = Arc::new(Events::new().unwrap());
        let listening = ListenerSlot::new(Arc::clone(&events)).unwrap();
        let report = Report { observer: Arc::new(()), quiet: true, events };
        let lines = EventLimiter::new(report, "m");
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
        for kind in [LineKind::Dropped, LineKind::Resync] {
            let limit = lines.limits.lock()[&(kind, 1)].clone();
            assert_eq!(limit.leg, "b");
            // A machine so slow that this takes minutes reports more lines.
            assert!(limit.throttle.take_left_out().messages() > 50, "{kind:?}");
        }
        assert_eq!(lines.limits.lock().len(), 2);
    }
}
