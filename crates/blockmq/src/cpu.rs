//! On which CPU a thread is: the system's word, or, in a shuttle schedule, chance's.

#[cfg(not(shuttle))]
pub(crate) use corewise_topology::current_cpu;

/// Shuttle's threads are on no CPU, and where the one under them is would change from replay to replay. Some of the
/// numbers are no CPU of a small machine.
#[cfg(shuttle)]
#[allow(clippy::unnecessary_wraps, reason = "as the system's")]
pub(crate) fn current_cpu() -> Option<u32> {
    u32::try_from(corewise_sync::model::choose(4)).ok()
}
