//! The CPUs that may be used, as they follow from what the system says.

use crate::cpuset::CpuSet;
use crate::quota::CpuQuota;

/// What the masks are derived from.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// CPUs that run, may this process use them or not.
    pub(super) running: CpuSet,
    /// CPUs that the process may use.
    pub(super) allowed: CpuSet,
    /// CPUs that are set apart from general work.
    pub(super) isolated: CpuSet,
    /// The CPU time that the process may use.
    pub(super) quota: Option<CpuQuota>,
}

/// The masks of a machine at one moment; see [`Machine::read`](crate::Machine::read).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Masks {
    /// The CPUs that may be used: online and allowed.
    pub online: CpuSet,
    /// The online CPUs that are not isolated; all online ones if that leaves none.
    pub housekeeping: CpuSet,
    /// The online CPUs that are isolated: set apart from general work.
    pub isolated: CpuSet,
    /// The CPU time that the process may use, where that is limited.
    pub cpu_quota: Option<CpuQuota>,
    /// Changes whenever one of these does, always upwards. Starts at 1, so 0 is a good "never
    /// seen" value.
    pub epoch: u64,
}

impl Masks {
    pub(super) fn derive(given: &Given, epoch: u64) -> Masks {
        let online = given.running.intersection(&given.allowed);
        let isolated = online.intersection(&given.isolated);
        let rest = online.difference(&isolated);
        let housekeeping = if rest.is_empty() { online.clone() } else { rest };
        Masks { online, housekeeping, isolated, cpu_quota: given.quota, epoch }
    }

    /// How many threads may compute at once, for all that is known: as many as there are CPUs for
    /// general work, or as the CPU quota is worth ([`CpuQuota::whole_cpus`]), whichever is less. At
    /// least 1.
    pub fn parallelism(&self) -> usize {
        let quota = self.cpu_quota.map_or(usize::MAX, CpuQuota::whole_cpus);
        self.housekeeping.len().min(quota).max(1)
    }
}
