//! Hiring of workers: a worker that is counted gets a thread, or is uncounted. In the latter case
//! the pool continues with its present workers.

use std::sync::Arc;

use corewise_sync::fence::FencePolicy;

use super::group::Group;
use super::worker::Worker;
use super::{Action, PoolState, PoolStats, worker_thread};
use crate::error::quietly;

impl<F: FencePolicy> Group<F> {
    /// Starts the thread of a worker that is counted already, as the searcher.
    pub(super) fn make_worker(self: &Arc<Self>, index: usize) {
        let pool = &self.pools[index];
        let (worker, seated) = {
            let mut inner = pool.inner.lock();
            inner.making += 1;
            let worker = inner.enroll(index);
            let seated = inner.seat(worker.id, &self.threads);
            (worker, seated)
        };
        let id = worker.id;
        if !seated {
            pool.inner.lock().making -= 1;
            return self.no_seat(index, id);
        }
        if self.keeper.has_rescuers() {
            // This may take long, and meanwhile the rescuers serve.
            self.keeper.ask();
        }
        match worker_thread::start(self, worker) {
            Ok(handle) => {
                PoolStats::count(&pool.stats.threads_made, 1);
                let mut inner = pool.inner.lock();
                inner.making -= 1;
                inner.made(id, handle);
            }
            Err(error) => {
                pool.inner.lock().making -= 1;
                self.not_made(index, id, &error);
            }
        }
    }

    /// Continues without a worker that was counted as the searcher, since there are enough threads.
    #[cold]
    fn no_seat(self: &Arc<Self>, index: usize, id: u32) {
        if self.threads.is_to_be_told() {
            quietly(|| {
                tracing::warn!(
                    pod = self.pools[index].spec.pod,
                    threads = self.threads.most(),
                    "the worker pools have reached their limit of threads: work waits until a \
                     blocking item ends; wait in futures instead, or raise \
                     PoolsBuilder::max_threads"
                );
            });
        }
        self.without(index, id);
    }

    /// Continues without a worker that was counted as the searcher, since there is no thread for
    /// it.
    pub(super) fn not_made(self: &Arc<Self>, index: usize, id: u32, error: &std::io::Error) {
        let pool = &self.pools[index];
        // The thread that makes a worker may have started an item, or let one through, and has to
        // continue.
        quietly(|| {
            tracing::warn!(
                pod = pool.spec.pod,
                %error,
                "cannot start a worker thread; the existing workers go on"
            );
        });
        self.without(index, id);
    }

    /// Continues without a worker that was counted as the searcher, and retries after a while.
    fn without(self: &Arc<Self>, index: usize, id: u32) {
        let pool = &self.pools[index];
        let mut inner = pool.inner.lock();
        inner.workers.remove(&id);
        inner.counts.total -= 1;
        inner.counts.searching = false;
        inner.refused = Some(self.keeper.now());
        if inner.closing {
            pool.left.notify_all();
        }
        let action = self.settle(index, &mut inner, false);
        drop(inner);
        match action {
            Action::Make => unreachable!("the system refused a thread just now"),
            other => self.perform(index, other),
        }
    }

    /// Makes the first worker of each pool, so that from here on there is always one.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        for (index, pool) in self.pools.iter().enumerate() {
            let worker = {
                let mut inner = pool.inner.lock();
                if inner.counts.total > 0 {
                    continue;
                }
                inner.counts.searching = true;
                let worker = self.hire(index, &mut inner);
                let seated = inner.seat(worker.id, &self.threads);
                debug_assert!(seated, "each pool may have its first one");
                worker
            };
            let id = worker.id;
            let made = worker_thread::start(self, worker);
            let mut inner = pool.inner.lock();
            match made {
                Ok(handle) => {
                    PoolStats::count(&pool.stats.threads_made, 1);
                    inner.made(id, handle);
                }
                Err(error) => {
                    inner.workers.remove(&id);
                    inner.counts.total = 0;
                    inner.counts.searching = false;
                    self.publish(index, &inner);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Adds one more worker, whose thread the caller sees to.
    pub(crate) fn hire(&self, index: usize, inner: &mut PoolState) -> Arc<Worker> {
        inner.counts.total += 1;
        self.publish(index, inner);
        inner.enroll(index)
    }
}
