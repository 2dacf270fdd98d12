//! A file, and the ways of a request that need no ring: on the spot, or on a worker.
//!
//! Requests that the host's cache can serve are done on the spot: a copy, by the submitter's own
//! CPU. A worker does the rest. If there is no ring, that is each call that blocks. It is also each
//! change of the host's cache that can't be tried without waiting, and each request that a ring
//! left half done (short, interrupted, not supported). The worker continues a request until that
//! has succeeded or failed for good.

use std::sync::Arc;
use std::time::Instant;

use corewise_blockmq::for_drivers::PutOffWork;
use corewise_blockmq::{IoError, IoErrorKind, Op, Request, RequestMut, Started, for_drivers};
use corewise_sync::atomic::{AtomicU16, AtomicU64, Ordering};
use corewise_sync::{context, time};
use corewise_workqueue::Workqueue;

use super::lane::{CACHED_CHANGES, CALM_AFTER, FileWorkers, LONG, Lanes};
use super::store::Store;

/// A file, and the workers that do its I/O.
pub(super) struct Volume {
    store: Store,
    wq: Workqueue,
    lanes: Lanes,
    write_policy: CacheWritePolicy,
}

impl Volume {
    pub(super) fn new(store: Store, wq: &Workqueue, crew: &Arc<FileWorkers>) -> Arc<Self> {
        let lanes = Lanes::new(crew, store.align().is_none());
        Arc::new(Self { store, wq: wq.below(), lanes, write_policy: CacheWritePolicy::new() })
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Does a request that needs no waiting; gives back any other, perhaps with a read's first
    /// bytes in it.
    #[inline]
    pub(super) fn now(&self, mut rq: Started) -> Option<Started> {
        match self.store.now(&mut RequestMut::from(&mut rq)) {
            Some(result) => rq.complete(result),
            None => return Some(rq),
        }
        None
    }

    /// Returns true if a worker serves the request better than a ring: the kernel would only give
    /// it to a thread of its own.
    pub(super) fn is_for_workers(&self, rq: &Request) -> bool {
        let logged = self.store.is_logged() && !matches!(rq.op(), Op::Read | Op::Extents);
        logged || rq.op() == Op::Write && self.store.align().is_none()
    }

    /// Makes the submitter do a change of the cache when it may block, if it
    /// [works](for_drivers::works), and no such change has been slow lately. Gives back any other
    /// request, also one with `fua`, which waits for the disk each time.
    pub(super) fn put_off(self: &Arc<Self>, mut rq: Started) -> Option<Started> {
        // A change that is logged may be a flush.
        let may = self.is_for_workers(&rq) && !self.store.is_logged() && !rq.flags().fua;
        if !may || !for_drivers::works() || !self.write_policy.allows(time::now()) {
            return Some(rq);
        }
        rq.set_owner(Arc::clone(self) as _);
        let away = |mut rq| match of(&mut rq) {
            Some(volume) => volume.work(rq),
            None => rq.complete(Err(lost())),
        };
        for_drivers::put_off(PutOffWork { rq, here: by_submitter, away });
        None
    }

    /// Makes a worker do the request, or its rest. (A read's progress is in the request.)
    pub(super) fn work(self: &Arc<Self>, rq: Started) {
        let lane = if rq.op() == Op::Write { &self.lanes.changes } else { &self.lanes.others };
        lane.push(self, rq, &self.wq);
    }

    /// Does a request, and returns true if that was quick, as changes of the cache should be.
    /// Blocks.
    fn perform(&self, rq: &mut RequestMut<'_>) -> (Result<(), IoError>, bool) {
        let is_change = self.is_for_workers(rq) && !rq.flags().fua;
        let mut perform = || context::blocking("file I/O", || self.store.perform(rq, 0));
        if is_change { self.write_policy.watch(perform) } else { (perform(), true) }
    }

    /// Makes a worker carry on a write whose first `done` bytes are written.
    pub(super) fn carry_on(self: Arc<Self>, rq: Started, done: u64) {
        self.on_worker(rq, move |store, rq| store.perform(rq, done));
    }

    /// Makes a worker find out why a write with `fua` failed in a ring.
    pub(super) fn failed_fua(self: Arc<Self>, rq: Started, error: IoError) {
        self.on_worker(rq, move |store, rq| store.failed_fua(rq, error));
    }

    /// Runs on a worker. If there are no workers any more, the request completes as gone.
    fn on_worker(
        self: Arc<Self>,
        rq: Started,
        work: impl FnOnce(&Store, &mut RequestMut<'_>) -> Result<(), IoError> + Send + 'static,
    ) {
        let wq = self.wq.clone();
        let mut waiting = WaitingRequest(Some(rq));
        let job = move || {
            let Some(mut rq) = waiting.0.take() else { return };
            let result =
                context::blocking("file I/O", || work(&self.store, &mut RequestMut::from(&mut rq)));
            // The file goes before the request, which may be the last to keep the device.
            drop(self);
            rq.complete(result);
        };
        drop(wq.execute(job));
    }
}

/// Returns the volume of a request that was taken out of a lane or an inbox.
pub(super) fn of(rq: &mut Started) -> Option<Arc<Volume>> {
    rq.take_owner()?.downcast().ok()
}

/// Does a request that was taken out of a lane. Blocks.
pub(super) fn perform(mut rq: Started) {
    let Some(volume) = of(&mut rq) else { return rq.complete(Err(lost())) };
    let (result, _) = volume.perform(&mut RequestMut::from(&mut rq));
    // The file goes before the request, which may be the last to keep the device.
    drop(volume);
    rq.complete(result);
}

/// Does a change that was put off, unless enough submitters make changes already. Returns false if
/// workers do better with the next ones. Blocks.
fn by_submitter(mut rq: Started) -> bool {
    let Some(volume) = of(&mut rq) else {
        rq.complete(Err(lost()));
        return true;
    };
    let done = volume.write_policy.one_of_few(|| volume.perform(&mut RequestMut::from(&mut rq)));
    let Some((result, quick)) = done else {
        volume.work(rq);
        return false;
    };
    drop(volume);
    rq.complete(result);
    quick
}

/// Completes a request that was taken out of a lane: there are no workers.
pub(super) fn gone(mut rq: Started) {
    drop(of(&mut rq));
    rq.complete(Err(IoError::workers_gone()));
}

/// Makes the error of a request without its volume, which can't happen: the pusher pushed both.
pub(super) fn lost() -> IoError {
    IoError::with(IoErrorKind::Gone, "the file device lost track of the request's file")
}

/// A request that waits for a worker. Its drop completes it: no worker comes any more.
struct WaitingRequest(Option<Started>);

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        if let Some(rq) = self.0.take() {
            rq.complete(Err(IoError::workers_gone()));
        }
    }
}

/// The policy by which a submitter may change a file's cache itself: such changes have been quick
/// lately, and few submitters make one. It has the time of the last slow change.
pub(super) struct CacheWritePolicy {
    made: Instant,
    /// A: time when the last slow change ended, in ms since `made`, plus 1; 0: never. Relaxed: a
    /// hint.
    disturbed: AtomicU64,
    /// A: number of submitters that make a change. Relaxed: a hint.
    submitters: AtomicU16,
}

impl CacheWritePolicy {
    pub(super) fn new() -> Self {
        Self { made: time::now(), disturbed: AtomicU64::new(0), submitters: AtomicU16::new(0) }
    }

    pub(super) fn allows(&self, now: Instant) -> bool {
        let disturbed = self.disturbed.load(Ordering::Relaxed);
        disturbed == 0 || self.ms(now) >= disturbed + CALM_AFTER.as_millis() as u64
    }

    /// Does a change, and returns true if that was quick.
    pub(super) fn watch<R>(&self, change: impl FnOnce() -> R) -> (R, bool) {
        let began = time::now();
        let done = change();
        (done, self.note(began, time::now()))
    }

    /// Runs `change` in a submitter; `None` if enough submitters make changes already, so that it
    /// would only wait for them.
    pub(super) fn one_of_few<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let others = self.submitters.fetch_add(1, Ordering::Relaxed);
        let _place = SubmitterCount(self);
        (others < CACHED_CHANGES).then(change)
    }

    fn note(&self, began: Instant, over: Instant) -> bool {
        let quick = over.saturating_duration_since(began) < LONG;
        if !quick {
            self.disturbed.store(self.ms(over), Ordering::Relaxed);
        }
        quick
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.made).as_millis() as u64 + 1
    }

    /// Acts as if one change had been so slow that none counts as quick any more.
    #[cfg(test)]
    pub(super) fn disturb_for_ever(&self) {
        self.note(self.made, self.made + 1_000_000 * CALM_AFTER);
    }
}

/// A submitter, counted in.
struct SubmitterCount<'a>(&'a CacheWritePolicy);

impl Drop for SubmitterCount<'_> {
    fn drop(&mut self) {
        self.0.submitters.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{self, ThreadId};

    use corewise_blockmq::{BlockDevice, Completed, Plug, Queue};
    use corewise_topology::Machine;
    use corewise_workqueue::WorkerPools;

    use super::*;
    use crate::file::{FileDriver, FileOptions};

    /// A device whose writes are too long to be done on the spot.
    struct Rig {
        pools: WorkerPools,
        driver: Arc<FileDriver>,
        queue: Arc<Queue>,
        _dir: tempfile::TempDir,
        told: Sender<(ThreadId, Completed)>,
        done: Receiver<(ThreadId, Completed)>,
    }

    impl Rig {
        fn new() -> Rig {
            let machine = Machine::live().unwrap();
            let pools = WorkerPools::new(&machine);
            let wq = Workqueue::builder("submitter-test").build(&pools).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let options = FileOptions::new(dir.path().join("disk")).size(1 << 20);
            let driver = Arc::new(FileDriver::open(options, &wq).unwrap());
            let queue = Queue::builder(&machine, driver.clone()).build(&wq);
            let (told, done) = channel();
            Rig { pools, driver, queue, _dir: dir, told, done }
        }

        fn submit(&self) {
            self.queue.submit(self.write());
        }

        fn write(&self) -> Request {
            let told = self.told.clone();
            let write = Request::write(0, vec![7; 128 << 10]);
            write.on_complete(move |done| told.send((thread::current().id(), done)).unwrap())
        }

        /// Returns how many of `count` requests this thread has done.
        fn mine(&self, count: usize) -> usize {
            let done = self.done.iter().take(count);
            let mine = done.filter(|(thread, done)| {
                done.result.as_ref().unwrap();
                *thread == thread::current().id()
            });
            mine.count()
        }

        fn end(self) {
            self.queue.drain();
            self.pools.shutdown();
        }
    }

    #[test]
    fn a_submitter_that_may_block_does_its_writes_by_itself_when_its_plug_is_gone() {
        let rig = Rig::new();
        Plug::working(|_| {
            (0..8).for_each(|_| rig.submit());
            assert!(rig.done.try_recv().is_err());
        });
        assert_eq!(rig.mine(8), 8);
        rig.submit();
        assert_eq!(rig.mine(1), 0, "without that a worker does it");
        rig.end();
    }

    #[test]
    fn a_submitter_that_blocks_or_panics_or_lets_go_leaves_its_writes_to_a_worker() {
        let rig = Rig::new();
        Plug::working(|_| {
            rig.submit();
            assert_eq!(context::blocking("test", || rig.mine(1)), 0);
            rig.submit();
            rig.submit();
        });
        assert_eq!(rig.mine(2), 2, "and the next ones are its own again");
        Plug::working(|plug| {
            rig.submit();
            plug.flush();
            assert_eq!(rig.mine(1), 0);
        });
        let panics = || {
            Plug::working(|_| {
                rig.submit();
                panic!("a test")
            })
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(rig.mine(1), 0);
        context::blocking("test", || Plug::working(|_| rig.submit()));
        assert_eq!(rig.mine(1), 0, "in a region it isn't asked again");
        let outer = Plug::start();
        Plug::working(|_| rig.submit());
        drop(outer);
        assert_eq!(rig.mine(1), 0, "nor under another plug");
        rig.end();
    }

    #[test]
    fn a_submitter_that_waits_or_may_not_block_and_one_of_a_durable_write_leaves_it_to_a_worker() {
        let rig = Rig::new();
        Plug::working(|_| {
            context::blocking("test", || {
                // No plug holds back a batch.
                rig.queue.submit_batch(&mut [rig.write()].into_iter());
                assert_eq!(rig.mine(1), 0);
            });
        });
        Plug::working(|_| rig.queue.submit(rig.write().fua()));
        assert_eq!(rig.mine(1), 0, "it waits for the disk, and nobody else should");
        let section = Plug::working(|_| {
            rig.submit();
            context::AtomicSection::enter("test")
        });
        drop(section);
        assert_eq!(rig.mine(1), 0);
        rig.end();
    }

    #[test]
    fn after_a_write_that_took_long_workers_do_them() {
        let rig = Rig::new();
        rig.driver.volume.write_policy.disturb_for_ever();
        Plug::working(|_| rig.submit());
        assert_eq!(rig.mine(1), 0);
        rig.end();
    }

    #[test]
    fn a_completion_that_submits_again_does_not_keep_a_submitter_at_work() {
        let rig = Rig::new();
        let (queue, told) = (Arc::clone(&rig.queue), rig.told.clone());
        Plug::working(|_| {
            rig.queue.submit(Request::write(0, vec![1; 128 << 10]).on_complete(move |_| {
                let tell = move |done| told.send((thread::current().id(), done)).unwrap();
                queue.submit(Request::write(0, vec![2; 128 << 10]).on_complete(tell));
            }));
        });
        assert_eq!(rig.mine(1), 0);
        rig.end();
    }

    #[test]
    fn after_a_change_that_took_long_it_takes_a_while_until_it_is_calm_again() {
        let write_policy = CacheWritePolicy::new();
        let at = |ms: u64| write_policy.made + std::time::Duration::from_millis(ms);
        assert!(
            write_policy.allows(at(0))
                && write_policy.note(at(0), at(9))
                && write_policy.allows(at(9))
        );
        assert!(!write_policy.note(at(10), at(20)));
        assert!(!write_policy.allows(at(20)) && !write_policy.allows(at(1019)));
        assert!(write_policy.allows(at(1020)));
    }

    #[test]
    fn a_submitter_that_would_wait_for_others_is_told_so() {
        let write_policy = CacheWritePolicy::new();
        let third = || write_policy.one_of_few(|| "done");
        let second = || write_policy.one_of_few(third);
        assert_eq!(write_policy.one_of_few(second), Some(Some(None)));
        assert_eq!(write_policy.one_of_few(third), Some(Some("done")));
    }
}
