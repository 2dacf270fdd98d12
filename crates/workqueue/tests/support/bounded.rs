//! Bounds for the exploration of this crate's models.
//!
//! With three threads and some dozens of steps, bounded preemptions keep a model under some
//! seconds. The known failures (no fence) show with two.
//!
//! Loom remembers one access per atomic to come back to: if a thread reads before it writes, loom
//! forgets an earlier read of another thread. So the side that begins with a read runs in the
//! spawned thread, which loom lets run second at first.

/// Returns a model in which threads are preempted at most `preemptions` times.
pub(crate) fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    // A group has many steps from its first thread to its drop.
    model.max_branches = 4_000;
    model
}

/// Returns one preemption more in a long run, for models that take a minute with it.
#[allow(dead_code)] // not each test that includes this file has such a model
pub(crate) fn more_if_long(preemptions: usize) -> usize {
    preemptions + usize::from(std::env::var_os("COREWISE_LONG").is_some())
}
