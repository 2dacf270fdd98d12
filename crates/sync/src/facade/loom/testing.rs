//! For models in loom.

use std::panic::{AssertUnwindSafe, catch_unwind};

#[path = "../real/portable/lot.rs"]
mod lot;

use super::atomic::ASKED;
pub use super::model::must_fail;
pub use lot::Lot;

/// Runs `model` in every interleaving with at most so many preemptions. A store and a load that pass each other need
/// one on each side; the full space of three threads is mostly too large.
pub fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// As [`bounded`], and in every order of the accesses to atomics: loom leaves some out by itself, where a word is only read
/// by one thread, and read and then written by another. It multiplies schedules.
pub fn every_order(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    /// Also where the model fails.
    struct Asked;
    impl Drop for Asked {
        fn drop(&mut self) {
            ASKED.set(false);
        }
    }
    ASKED.set(true);
    let _asked = Asked;
    bounded(preemptions, model);
}

/// Runs `model`, which has to fail with a message that contains `what`: its own assertion's, or that of a cell that
/// is touched by two. For what ends in a deadlock there is [`must_fail`].
///
/// # Panics
/// Where the model passes, or fails for another reason.
pub fn must_panic(what: &str, model: impl FnOnce()) {
    let failed = catch_unwind(AssertUnwindSafe(model));
    let payload = failed.expect_err("the model had to fail, and passed");
    let message = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(message.contains(what), "failed for another reason: {message}");
}
