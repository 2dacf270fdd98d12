//! rayon's `broadcast`, its only operation that runs a function on each thread.
//!
//! In its best mode it has a pinned thread a CPU. The caller is one of them (`use_current_thread`),
//! so it runs its own share. rayon can't choose a CPU, so it has no round trip.

use corewise_bench::BenchError;
use corewise_topology::CpuSet;
use rayon::{BroadcastContext, ThreadPoolBuilder};

use crate::calls::peers::{Targets, answer};

/// Makes a function that calls these targets, with a thread for each beside the caller's own. The
/// caller must be pinned before.
///
/// # Errors
/// A thread couldn't be started or pinned.
pub(crate) fn rayon(to: &Targets) -> Result<impl FnMut(u64) -> u64 + use<>, BenchError> {
    let (threads, own, to) = (to.cpus.len() + 1, to.own, to.clone());
    let pin = move |number: usize| {
        // Number 0 is the caller.
        let cpu = number.checked_sub(1).and_then(|number| to.cpus.get(number));
        let Some(&cpu) = cpu else { return };
        if let Err(error) = to.machine.pin_current_thread(&CpuSet::from_iter([cpu])) {
            // A thread on another CPU must not be measured.
            panic!("a worker can't be pinned to CPU {cpu}: {error}");
        }
    };
    let builder = ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
    let pool = builder.start_handler(pin).build();
    let pool = pool.map_err(|error| BenchError::Thread(std::io::Error::other(error)))?;
    Ok(move |number| {
        let run = |context: BroadcastContext<'_>| match context.index() {
            0 => own * answer(number),
            _ => answer(number),
        };
        pool.broadcast(run).into_iter().sum()
    })
}
