//! rayon's `broadcast`: the one operation of its that runs something on each thread.
//!
//! Its best mode: a thread a CPU, pinned, the caller's one of them (`use_current_thread`), so that
//! it runs its own share itself. It names no CPU, so it has no round trip.

use corewise_bench::BenchError;
use corewise_bench::calls::roundtrip::Caller;
use corewise_topology::CpuSet;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::calls::peers::{Targets, answer};

/// The pool.
pub(crate) struct Rayon {
    pool: ThreadPool,
    own: bool,
}

impl Rayon {
    /// With a thread for each target, beside the caller's own, which must be where it stays.
    ///
    /// # Errors
    /// A thread couldn't be started or pinned.
    pub(crate) fn new(to: &Targets) -> Result<Rayon, BenchError> {
        let (machine, cpus) = (to.machine.clone(), to.cpus.clone());
        let threads = cpus.len() + 1;
        let pin = move |number: usize| {
            // Number 0 is the caller.
            let Some(&cpu) = number.checked_sub(1).and_then(|number| cpus.get(number)) else {
                return;
            };
            if let Err(error) = machine.pin_current_thread(&CpuSet::from_iter([cpu])) {
                // A thread that isn't where it is measured must not be measured.
                panic!("a worker can't be pinned to CPU {cpu}: {error}");
            }
        };
        let builder = ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
        let pool = builder.start_handler(pin).build();
        let pool = pool.map_err(|error| BenchError::Thread(std::io::Error::other(error)))?;
        Ok(Rayon { pool, own: to.own })
    }
}

impl Caller for Rayon {
    fn call(&mut self, number: u64) -> u64 {
        let own = self.own;
        let run = |context: rayon::BroadcastContext<'_>| match context.index() {
            0 => Targets::own_answer(own, number),
            _ => answer(number),
        };
        self.pool.broadcast(run).into_iter().sum()
    }
}
