//! The kernel's facts about the machine.

use corewise_costs::Machine;
use corewise_topology::{CpuId, CpuSet};
use procfs::{CpuInfo, Current};

use crate::bench::Effort;

use super::Plan;

/// Describes the machine of these CPUs.
pub(super) fn machine(cpus: &[CpuId], plan: &Plan) -> Machine {
    let cpuinfo = CpuInfo::current().ok();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let effort = if plan.effort == Effort::Full { "full" } else { "quick" };
    Machine {
        cpu_model: cpuinfo.as_ref().and_then(|info| info.model_name(0)).unwrap_or("").to_owned(),
        cpus: cpus.iter().copied().collect::<CpuSet>().to_string(),
        cpu_count: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        kernel: format!("Linux {}", kernel.trim()),
        date: plan.date.clone(),
        commit: plan.commit.clone(),
        effort: effort.to_owned(),
    }
}
