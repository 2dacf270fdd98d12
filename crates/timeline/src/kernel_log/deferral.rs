//! Groups the probes that were put off, by device, in the order of the log's lines.

use super::facts::Facts;
use super::policy::Rules;
use super::{Bound, Deferral, assemble};
use crate::driver::{Driver, Drivers};
use crate::model::Outcome;
use std::collections::HashMap;
use std::time::Duration;

/// All devices that were put off, those that cost most first.
pub(crate) fn group(facts: &Facts, rules: &Rules, drivers: &Drivers) -> Vec<Deferral> {
    let mut groups: HashMap<&str, Deferral> = HashMap::new();
    for probe in &facts.probes {
        let ended = probe.ended.filter(|s| !s.coarse).map(|s| Duration::from_nanos(s.ns));
        match assemble::outcome(probe, rules) {
            Outcome::Deferred(_) => {
                let known = drivers.get(&probe.device);
                let named = probe.driver.as_ref().map(Driver::from);
                let group = groups.entry(&probe.device).or_insert_with(|| Deferral {
                    device: probe.device.clone(),
                    driver: named.filter(|named| named.is_surer_than(known)).or(known.cloned()),
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
