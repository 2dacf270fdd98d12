//! Groups the probes that were put off, by device, in the order of the log's lines.

use super::facts::Facts;
use super::policy::Rules;
use super::{Bound, Deferral, assemble};
use crate::model::Outcome;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// All devices that were put off, those that cost most first.
pub(crate) fn group(
    facts: &Facts,
    rules: &Rules,
    drivers: &BTreeMap<String, String>,
) -> Vec<Deferral> {
    let mut groups: HashMap<&str, Deferral> = HashMap::new();
    for probe in &facts.probes {
        let ended = probe.ended.filter(|s| !s.coarse).map(|s| Duration::from_nanos(s.ns));
        match assemble::outcome(probe, rules) {
            Outcome::Deferred(_) => {
                let group = groups.entry(&probe.device).or_insert_with(|| Deferral {
                    device: probe.device.clone(),
                    driver: drivers.get(&probe.device).cloned().or_else(|| probe.driver.clone()),
                    first: ended,
                    reasons: facts.reasons.get(&probe.device).cloned().unwrap_or_default(),
                    ..Deferral::default()
                });
                group.attempts += 1;
                group.by_driver += usize::from(probe.result != -517);
                group.last = ended;
                group.total = group.total + rules.probe(probe).length();
                group.bound = Bound::Never;
            }
            Outcome::Ok => {
                if let Some(group) = groups.get_mut(probe.device.as_str()) {
                    if group.bound == Bound::Never {
                        group.bound = ended.map_or(Bound::Somewhen, Bound::At);
                    }
                }
            }
            _ => {}
        }
    }
    let mut groups: Vec<Deferral> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        let rank = |d: &Deferral| (d.total.told(), d.attempts);
        rank(b).cmp(&rank(a)).then_with(|| a.device.cmp(&b.device))
    });
    groups
}
