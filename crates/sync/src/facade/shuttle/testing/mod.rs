//! For scenarios in shuttle.

pub mod schedules;

pub use super::model::must_fail;

/// A number below `below`, which must not be 0: part of the schedule, so that the same seed chooses
/// the same again. Only inside a shuttle execution.
pub fn choose(below: u64) -> u64 {
    use shuttle::rand::RngCore as _;
    shuttle::rand::thread_rng().next_u64() % below
}
