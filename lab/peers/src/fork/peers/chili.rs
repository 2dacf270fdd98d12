//! chili: the calling thread takes part, with one thread fewer than there are CPUs beside it. It
//! has no map.

use std::num::NonZero;

use chili::{Config, Scope, ThreadPool};
use corewise_bench::Job;

use crate::fork::peers::Library;
use crate::fork::work::{Forks, Output};

/// The pool.
#[derive(Debug)]
pub(crate) struct Chili(ThreadPool);

impl Chili {
    pub(crate) fn new(job: &Job) -> Chili {
        let thread_count = NonZero::new(job.workers);
        Chili(ThreadPool::with_config(Config { thread_count, ..Config::default() }))
    }
}

impl Library for Chili {
    type Forks = Chili;

    fn run(&self, part: impl FnOnce(&mut Scope<'_>) -> Output + Send + 'static) -> Output {
        part(&mut self.0.scope())
    }
}

impl Forks for Chili {
    type Handle<'h> = Scope<'h>;

    #[inline]
    fn join<A: Send, B: Send>(
        here: &mut Scope<'_>,
        a: impl FnOnce(&mut Scope<'_>) -> A + Send,
        b: impl FnOnce(&mut Scope<'_>) -> B + Send,
    ) -> (A, B) {
        here.join(a, b)
    }
}
