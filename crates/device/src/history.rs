//! The durations of shutdowns in earlier runs.

use corewise_timeline::{Outcome, SpanKind, Timeline};
use std::collections::HashMap;
use std::time::Duration;

/// Number of runs without a device after which it is forgotten.
const FORGET_AFTER: u32 = 20;

/// The duration of each device's shutdown in earlier runs. The devices that take long start first.
///
/// For each device it keeps a *decaying maximum*: a longer time counts at once, a shorter one takes
/// a quarter of the difference away. A device that is started too early costs nothing; one that is
/// started too late costs the whole of its length. So a device that was slow now and then is taken
/// as slow, and one that has become quick counts as quick after some runs. A median would put
/// devices last that are slow every third time.
///
/// Plain data: nothing here blocks. With the feature `serde` a program can keep it from run to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct History {
    devices: HashMap<String, DeviceHistory>,
}

/// Entry of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct DeviceHistory {
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    shutdown_ns: Option<u64>,
    /// Runs since it was last seen.
    #[cfg_attr(feature = "serde", serde(default))]
    unseen: u32,
}

impl History {
    /// Creates an empty history.
    pub fn new() -> History {
        History::default()
    }

    /// Records a bring-up or a shutdown: the spans that ended well. A device that was not seen in
    /// twenty of either is forgotten.
    pub fn note(&mut self, timeline: &Timeline) {
        for known in self.devices.values_mut() {
            known.unseen = known.unseen.saturating_add(1);
        }
        for span in timeline.spans() {
            if span.no_callback || span.outcome != Outcome::Ok {
                continue;
            }
            let known = match self.devices.get_mut(&span.name) {
                Some(known) => known,
                None => self.devices.entry(span.name.clone()).or_default(),
            };
            known.unseen = 0;
            let took = span.took().known().filter(|_| span.kind == SpanKind::Shutdown);
            let Some(took) = took else { continue };
            let kept = &mut known.shutdown_ns;
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            *kept = Some(kept.map_or(took, |before| decayed_maximum(before, took)));
        }
        self.devices.retain(|_, known| known.unseen <= FORGET_AFTER);
    }

    /// Returns the expected duration of that device's shutdown.
    pub(crate) fn expected_shutdown(&self, device: &str) -> Option<Duration> {
        self.devices.get(device)?.shutdown_ns.map(Duration::from_nanos)
    }

    /// Returns the number of devices with an entry.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }
}

/// Returns the new decaying maximum; see [`History`].
fn decayed_maximum(before: u64, took: u64) -> u64 {
    took.max(before - before.saturating_sub(took) / 4)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
mod tests {
    use super::*;
    use corewise_timeline::Span;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn run(kind: SpanKind, devices: &[(&str, u64)]) -> Timeline {
        let mut timeline = Timeline::new("test");
        for (name, ms) in devices {
            timeline.push(Span::new(*name, kind, MS(1), MS(1 + ms)));
        }
        timeline
    }

    #[test]
    fn a_longer_time_counts_at_once_and_a_shorter_one_a_quarter() {
        let mut history = History::new();
        for (took, expected) in [(100, 100), (400, 400), (0, 300), (0, 225), (230, 230)] {
            history.note(&run(SpanKind::Shutdown, &[("disk", took)]));
            assert_eq!(history.expected_shutdown("disk"), Some(MS(expected)));
        }
    }

    #[test]
    fn failed_and_empty_shutdowns_are_not_recorded() {
        let mut timeline = run(SpanKind::Shutdown, &[]);
        let mut failed = Span::new("failed", SpanKind::Shutdown, MS(0), MS(9));
        failed.outcome = Outcome::Failed("on purpose".into());
        let mut quiet = Span::new("quiet", SpanKind::Shutdown, MS(0), MS(0));
        quiet.no_callback = true;
        timeline.push(failed);
        timeline.push(quiet);
        let mut history = History::new();
        history.note(&timeline);
        assert!(history.is_empty());
    }

    #[test]
    fn a_device_that_is_not_seen_for_long_is_forgotten() {
        let mut history = History::new();
        history.note(&run(SpanKind::Probe, &[("gone", 3), ("there", 3)]));
        for _ in 0..FORGET_AFTER {
            history.note(&run(SpanKind::Probe, &[("there", 3)]));
        }
        assert_eq!(history.len(), 2);
        history.note(&run(SpanKind::Probe, &[("there", 3)]));
        assert_eq!(history.len(), 1);
    }
}
