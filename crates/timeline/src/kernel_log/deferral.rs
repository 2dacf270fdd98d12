//! Groups the probes that were put off, by device.

use super::Deferral;
use super::facts::Facts;
use crate::model::{Outcome, SpanKind, Timeline};
use std::collections::{BTreeMap, HashMap};

/// All devices that were put off, those that cost most first. `boot` has the spans of `facts`.
pub(crate) fn group(
    facts: &Facts,
    boot: &Timeline,
    drivers: &BTreeMap<String, String>,
) -> Vec<Deferral> {
    let mut groups: HashMap<&str, Deferral> = HashMap::new();
    let probes = || boot.spans().iter().filter(|s| s.kind == SpanKind::Probe);
    for span in probes().filter(|s| matches!(s.outcome, Outcome::Deferred(_))) {
        let group = groups.entry(&span.name).or_insert_with(|| Deferral {
            device: span.name.clone(),
            driver: drivers.get(&span.name).cloned().or_else(|| span.driver.clone()),
            first: span.end,
            reasons: facts.reasons.get(&span.name).cloned().unwrap_or_default(),
            ..Deferral::default()
        });
        group.attempts += 1;
        group.first = group.first.min(span.end);
        group.last = group.last.max(span.end);
        group.total += span.took();
    }
    for probe in facts.probes.iter().filter(|p| p.result == 517) {
        if let Some(group) = groups.get_mut(probe.device.as_str()) {
            group.by_driver += 1;
        }
    }
    for span in probes().filter(|s| s.outcome.is_ok()) {
        if let Some(group) = groups.get_mut(span.name.as_str())
            && span.end >= group.last
            && group.bound.is_none_or(|bound| span.end < bound)
        {
            group.bound = Some(span.end);
        }
    }
    let mut groups: Vec<Deferral> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        (b.total, b.attempts).cmp(&(a.total, a.attempts)).then_with(|| a.device.cmp(&b.device))
    });
    groups
}
