//! Other load while the machine is measured.

use corewise_costs::Noise as Record;
use corewise_topology::Machine;

use crate::load::Load;

/// Share of all CPUs' time: more than a quiet machine's own housekeeping.
const OTHERS_PERCENT: f64 = 3.0;
/// Share of all CPUs' time.
const STEAL_PERCENT: f64 = 1.0;

/// Returns the load that `load` saw while `cpus` CPUs were measured.
pub(super) fn noise(load: &Load, machine: &Machine, cpus: usize) -> Record {
    let mut record = Record::default();
    let mut said = Vec::new();
    match load.spent() {
        Some(spent) => {
            record.others_percent = round(spent.others / spent.all * 100.0);
            record.steal_percent = round(spent.stolen / spent.all * 100.0);
        }
        None => said.push("the system doesn't tell what else ran".to_owned()),
    }
    if let Some(quota) = machine.cpu_quota().filter(|quota| quota.cpus() < cpus as f64) {
        said.push(format!("the process may use {} CPUs' time of {cpus}", round(quota.cpus())));
    }
    if record.others_percent > OTHERS_PERCENT {
        said.push(format!("other processes took {} % of the CPUs' time", record.others_percent));
    }
    if record.steal_percent > STEAL_PERCENT {
        said.push(format!("the hypervisor took {} % of the CPUs' time", record.steal_percent));
    }
    record.quiet = said.is_empty();
    record.said = said.join("; ");
    record
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
