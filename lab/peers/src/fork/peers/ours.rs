//! Corewise, from inside an item of the queue (`corewise`), and from a thread that isn't a worker
//! (`corewise-outside`).

use std::sync::mpsc;

use corewise_bench::names::Place;
use corewise_bench::workqueue::variants::Corewise;
use corewise_bench::{BenchError, Job};
use corewise_topology::Machine;
use corewise_workqueue::{Idle, Workqueue};

use crate::fork::peers::Library;
use crate::fork::work::{Forks, Output};

/// The queue, and the kind of thread that forks.
#[derive(Debug)]
pub(crate) struct CorewiseForks {
    corewise: Corewise,
    is_outside: bool,
}

impl CorewiseForks {
    pub(crate) fn new(job: &Job, is_outside: bool) -> Result<CorewiseForks, BenchError> {
        // If the process has one CPU, the queue is an ordinary one there.
        let job = &Job { worker_cpu: None, ..job.clone() };
        let corewise = Corewise::new(job, &Machine::live()?, Place::default(), Idle::default())?;
        Ok(CorewiseForks { corewise, is_outside })
    }
}

impl Library for CorewiseForks {
    type Forks = Workqueue;

    fn run(&self, part: impl FnOnce(&mut &Workqueue) -> Output + Send + 'static) -> Output {
        let mut queue = self.corewise.queue();
        if self.is_outside {
            return part(&mut queue);
        }
        let (done, wait) = mpsc::channel();
        let own = queue.clone();
        let queued = queue.execute(move || drop(done.send(part(&mut &own))));
        assert!(queued.is_ok(), "the pools are open");
        wait.recv().expect("the item sends what it has made")
    }
}

impl Forks for Workqueue {
    type Handle<'h> = &'h Workqueue;

    #[inline]
    fn join<A: Send, B: Send>(
        here: &mut &Workqueue,
        a: impl FnOnce(&mut &Workqueue) -> A + Send,
        b: impl FnOnce(&mut &Workqueue) -> B + Send,
    ) -> (A, B) {
        let queue = *here;
        queue.join(|| a(&mut &*queue), || b(&mut &*queue))
    }

    fn map(
        here: &mut &Workqueue,
        items: &[u64],
        f: impl Fn(u64) -> u64 + Sync + Copy + Send,
    ) -> Vec<u64> {
        Workqueue::map(here, items, |item| f(*item))
    }
}
