//! The end of workers: one leaves when it isn't needed, and all leave when the pools are closed.
//! Another thread may wait for that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_sync::atomic::Ordering;
use corewise_sync::fence::FencePolicy;
use corewise_sync::thread::{self, JoinHandle, ThreadId};
use corewise_sync::time;

use super::group::{Group, Step};
use super::worker::Worker;
use super::{Pool, PoolState};
use crate::error::quietly;
use crate::pool::worker::{ThreadPermit, Threads};

/// A pool's record of a worker and its thread. Either half of the thread's record may come first:
/// the worker gives its thread's number, and its maker the handle. A worker that is driven by hand
/// has neither.
pub(super) struct PoolMember {
    pub(super) worker: Arc<Worker>,
    /// Its place among the threads of all pools; `None` for one that is driven by hand, and until a
    /// thread is made for it.
    seat: Option<ThreadPermit>,
    id: Option<ThreadId>,
    handle: Option<JoinHandle<()>>,
}

/// The result of waiting for workers to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WaitResult {
    /// The workers had left before.
    Not,
    /// The workers have left meanwhile.
    Long,
    /// The time ran out first.
    InVain,
}

impl PoolState {
    /// Creates a worker of the pool with this index, whose thread is about to be made.
    pub(super) fn enroll(&mut self, pool: usize) -> Arc<Worker> {
        let id = self.next_worker;
        self.next_worker += 1;
        let worker = Arc::new(Worker::new(pool, id));
        self.workers.insert(
            id,
            PoolMember { worker: Arc::clone(&worker), seat: None, id: None, handle: None },
        );
        worker
    }

    /// Reserves a thread for the worker; returns false if there are enough.
    pub(super) fn seat(&mut self, id: u32, threads: &Arc<Threads>) -> bool {
        let seat = threads.seat(self.counts.total, self.counts.base);
        let seated = seat.is_some();
        if let Some(member) = self.workers.get_mut(&id) {
            member.seat = seat;
        }
        seated
    }

    /// Keeps the handle of a thread that was made. Its worker may have left already.
    pub(super) fn made(&mut self, id: u32, handle: Option<JoinHandle<()>>) {
        match self.workers.get_mut(&id) {
            Some(member) => member.handle = handle,
            None if self.closing => self.ending.extend(handle),
            None => drop(handle),
        }
    }

    /// Notes that the calling thread is the worker's, which has started.
    pub(super) fn arrived(&mut self, id: u32) {
        if let Some(member) = self.workers.get_mut(&id) {
            member.id = Some(thread::current().id());
        }
    }

    fn has(&self, id: ThreadId) -> bool {
        self.workers.values().any(|member| member.id == Some(id))
    }
}

impl<F: FencePolicy> Pool<F> {
    /// Waits until no more than these workers are left, or the time is up.
    fn wait_left(
        &self,
        others: impl Fn(&PoolState) -> usize,
        until: Option<Instant>,
    ) -> WaitResult {
        let mut waited = WaitResult::Not;
        let mut inner = self.inner.lock();
        while inner.counts.total > others(&inner) {
            waited = WaitResult::Long;
            inner = match until.map(|until| until.saturating_duration_since(time::now())) {
                None => self.left.wait(inner),
                Some(Duration::ZERO) => return WaitResult::InVain,
                Some(rest) => self.left.wait_timeout(inner, rest).0,
            };
        }
        waited
    }
}

impl<F: FencePolicy> Group<F> {
    /// Removes a worker that is off the idle list, and leaves.
    pub(super) fn leave(
        &self,
        me: &Worker,
        mut inner: corewise_sync::MutexGuard<'_, PoolState>,
    ) -> Step {
        let pool = &self.pools[me.pool];
        inner.counts.total -= 1;
        self.publish(me.pool, &inner);
        // Recheck: an item that was pushed before the pool was closed, or raced with the closing,
        // is run. So is work that a saturated pod can't take, since no thread wakes a worker that
        // has left.
        let last = inner.counts.total == 0 && pool.has_waiting();
        let helps = inner.closing && inner.counts.has_core() && !inner.aside;
        if last || helps && self.others_need_help(me.pool) {
            inner.counts.total += 1;
            self.publish(me.pool, &inner);
            return Step::Again;
        }
        // Both happen under the lock: a sum finds the worker in one place or the other.
        pool.stats.worker_leaves(me);
        let member = inner.workers.remove(&me.id);
        if inner.closing {
            inner.ending.extend(member.and_then(|member| member.handle));
            pool.left.notify_all();
        }
        Step::Exit
    }

    /// Handles a panic that is no item's (a subscriber's, say) and has ended the worker's thread.
    /// The pool continues as if the worker had left, and makes another if one is needed.
    pub(super) fn died(self: &Arc<Self>, me: &Worker) {
        let pool = &self.pools[me.pool];
        let action = {
            let mut inner = pool.inner.lock();
            // It may have left before.
            let Some(member) = inner.workers.remove(&me.id) else { return };
            if let Some(position) = inner.idle.iter().position(|w| w.id == me.id) {
                inner.idle.remove(position);
                inner.counts.idle -= 1;
            }
            // It may have been woken, and not have got so far as to see it.
            me.take_wake();
            if me.stop_searching(&mut inner.counts) {
                // It has done nothing since it came or was woken, and the next one might do the
                // same: treat this as if no thread could be made.
                inner.refused = Some(self.keeper.now());
            }
            me.drop_exemptions(&mut inner.counts);
            me.counts_as_taker(&mut inner.counts, false);
            inner.counts.total -= 1;
            pool.stats.worker_leaves(me);
            if inner.closing {
                inner.ending.extend(member.handle);
                pool.left.notify_all();
            }
            let last = inner.counts.total == 0 && pool.has_waiting();
            if inner.closing && last && inner.refused.is_none() && !self.is_sealed() {
                // Accepted items are run.
                self.recruit(me.pool, &mut inner)
            } else {
                self.settle(me.pool, &mut inner, false)
            }
        };
        self.perform(me.pool, action);
        quietly(|| {
            tracing::error!(
                pod = pool.spec.pod,
                worker = me.id,
                "a worker's thread panicked outside of any item; its pool goes on without it"
            );
        });
    }

    /// Takes no more work; the workers run queued items, and leave. If a pool has no workers,
    /// because no thread could be made, its items are cancelled: that runs the user's destructors.
    pub(crate) fn close(&self) {
        for (index, pool) in self.pools.iter().enumerate() {
            let (woken, stranded) = {
                let mut inner = pool.inner.lock();
                inner.closing = true;
                let idle = std::mem::take(&mut inner.idle);
                inner.counts.idle = 0;
                self.publish(index, &inner);
                // Recheck. A push that isn't seen here reads CLOSED.
                (idle, inner.counts.total == 0 && pool.has_waiting())
            };
            for worker in woken {
                worker.wake_up(None);
                worker.unpark();
            }
            if stranded {
                self.refuse(index);
            }
        }
    }

    /// Notes that the calling thread waits for the workers to leave, if it is one of them. No other
    /// worker that does so waits for it, or each would wait for the other. Returns true if it is
    /// one.
    pub(crate) fn enter_join(&self) -> bool {
        let own = thread::current().id();
        self.pools.iter().any(|pool| {
            let mut inner = pool.inner.lock();
            let mine = inner.has(own);
            if mine {
                inner.joining += 1;
                pool.left.notify_all();
            }
            mine
        })
    }

    /// Ends an [`enter_join`](Group::enter_join) that returned true.
    pub(crate) fn exit_join(&self) {
        let own = thread::current().id();
        for pool in &self.pools {
            let mut inner = pool.inner.lock();
            if inner.has(own) {
                inner.joining -= 1;
            }
        }
    }

    /// Waits until the workers have left, or the time is up; `by_worker`: except those that wait
    /// for the same. A remaining worker may have started one in a pool that was empty. So only a
    /// round without a wait proves that all have left. May block.
    pub(crate) fn wait_left(&self, by_worker: bool, until: Option<Instant>) -> WaitResult {
        let others = |inner: &PoolState| if by_worker { inner.joining } else { 0 };
        let mut waited = WaitResult::Not;
        for pool in &self.pools {
            waited = waited.max(pool.wait_left(others, until));
            if waited == WaitResult::InVain {
                break;
            }
        }
        waited
    }

    /// Carries out Seal: pools without workers get none any more, and cancel later items.
    /// [`wait_left`](Group::wait_left) has to follow, which takes each pool's lock. A worker that
    /// was made before is seen there, and a thread that comes to the pool later sees the seal.
    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::Relaxed);
    }

    /// Returns true if the pools are sealed. Called under a pool's lock, which orders it.
    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Relaxed)
    }

    /// Joins the threads of the workers that have left: they are about to end. May block.
    pub(crate) fn join_ending(&self) {
        for pool in &self.pools {
            let ending = std::mem::take(&mut pool.inner.lock().ending);
            for handle in ending {
                // A worker catches its items' panics; if it died of its own, that is logged there.
                let _ = handle.join();
            }
        }
    }
}
