//! rayon, from inside its pool (`install`).

use corewise_bench::{BenchError, Job};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::fork::peers::Library;
use crate::fork::work::{Forks, Output};

/// The pool: a thread for each CPU.
#[derive(Debug)]
pub(crate) struct Rayon(ThreadPool);

impl Rayon {
    pub(crate) fn new(job: &Job) -> Result<Rayon, BenchError> {
        let pool = ThreadPoolBuilder::new().num_threads(job.workers).build();
        pool.map(Rayon).map_err(|error| BenchError::Thread(std::io::Error::other(error)))
    }
}

impl Library for Rayon {
    type Forks = Rayon;

    fn run(&self, part: impl FnOnce(&mut ()) -> Output + Send + 'static) -> Output {
        self.0.install(|| part(&mut ()))
    }
}

impl Forks for Rayon {
    type Handle<'h> = ();

    #[inline]
    fn join<A: Send, B: Send>(
        (): &mut (),
        a: impl FnOnce(&mut ()) -> A + Send,
        b: impl FnOnce(&mut ()) -> B + Send,
    ) -> (A, B) {
        rayon::join(|| a(&mut ()), || b(&mut ()))
    }

    fn map((): &mut (), items: &[u64], f: impl Fn(u64) -> u64 + Sync + Copy + Send) -> Vec<u64> {
        items.par_iter().map(|item| f(*item)).collect()
    }
}
