//! A system of which a schedule sees chance alone: threads on any CPU.

pub(crate) use super::cpu_time::CpuTime;
pub(crate) use super::model::system::*;
use super::testing::choose;

/// Where the one thread under all of them is would change from replay to replay. Some of the numbers are no
/// CPU of a small machine.
#[allow(clippy::unnecessary_wraps, reason = "as the system's")]
pub(crate) fn current_cpu() -> Option<u32> {
    u32::try_from(choose(6)).ok()
}
