//! A thread pool on a `crossbeam-channel`: what many programs write for themselves.
//!
//! Its best mode for this workload: an unbounded channel, items that are made once and sent as
//! counted references (so sending one allocates nothing but the channel's blocks), one worker per
//! online CPU. The workers aren't pinned: the channel is one queue for the whole machine, and its
//! users don't pin. A worker that finds nothing spins and yields for a moment before it parks, as
//! the channel's `recv` does.

use std::sync::Arc;
use std::thread;

use corewise_bench::BenchError;
use corewise_bench::workqueue::runtime::{Runtime, Signal};
use corewise_sync::Unparker;
use crossbeam_channel::Sender;

type Job = Arc<dyn Fn() + Send + Sync>;

/// The pool. Dropping it runs what was sent and joins the workers.
pub(crate) struct ChannelPool {
    /// Gone once the pool is being dropped: that ends the workers.
    sender: Option<Sender<Job>>,
    workers: Vec<thread::JoinHandle<()>>,
}

impl ChannelPool {
    pub(crate) fn new(workers: usize) -> Result<ChannelPool, BenchError> {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        let mut pool = ChannelPool { sender: Some(sender), workers: Vec::new() };
        for _ in 0..workers {
            let receiver = receiver.clone();
            let builder = thread::Builder::new().name("crossbeam".to_owned());
            let worker = builder.spawn(move || receiver.iter().for_each(|job| job()));
            pool.workers.push(worker.map_err(BenchError::Thread)?);
        }
        Ok(pool)
    }
}

/// A channel has no flush. The workload has waited for each item, so there is nothing left to wait
/// for: a peer that can't flush pays nothing for it.
impl Runtime for ChannelPool {}

impl Signal for ChannelPool {
    type Item = Job;

    fn item(&self, done: Unparker) -> Job {
        Arc::new(move || done.unpark())
    }

    fn queue(&self, item: &Job) {
        let sender = self.sender.as_ref().expect("only the drop takes it");
        let sent = sender.send(Arc::clone(item));
        sent.expect("the workers receive for as long as the pool lives");
    }
}

impl Drop for ChannelPool {
    fn drop(&mut self) {
        self.sender = None;
        for worker in self.workers.drain(..) {
            // A worker that panicked has no more to say here.
            drop(worker.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_runs_once_per_queueing() {
        let pool = ChannelPool::new(2).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let job: Job = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        for _ in 0..1_000 {
            pool.queue(&job);
        }
        drop(pool);
        assert_eq!(ran.load(Ordering::Relaxed), 1_000);
    }
}
