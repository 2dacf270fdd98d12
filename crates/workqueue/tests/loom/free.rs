//! The end of an item that its state word keeps: the last handle is dropped while an instance is
//! queued, run or cancelled. It is freed once, after every thread's last access.

use std::sync::Arc;

use corewise_sync::cell::UnsafeCell;
use corewise_sync::thread;
use corewise_workqueue::Work;
use corewise_workqueue::model::QueueModel;

use crate::bounded::bounded;

/// Loom reports a drop that isn't ordered after its uses, and a value that is never dropped.
struct Witness {
    /// P: read by the runner of the item, written by the thread that frees it.
    cell: UnsafeCell<u32>,
    /// Loom counts the references.
    _kept: loom::sync::Arc<()>,
}

// SAFETY: loom reports accesses that race.
unsafe impl Sync for Witness {}

impl Drop for Witness {
    fn drop(&mut self) {
        self.cell.with_mut(|_| ());
    }
}

fn witnessed() -> (Work, loom::sync::Arc<()>) {
    let alive = loom::sync::Arc::new(());
    let witness = Witness { cell: UnsafeCell::new(0), _kept: loom::sync::Arc::clone(&alive) };
    let witness = Arc::new(witness);
    (Work::new(move || witness.cell.with(|_| ())), alive)
}

#[test]
fn loom_free_by_the_worker_or_by_the_last_handle() {
    bounded(3).check(|| {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, alive) = witnessed();
        assert!(queue.queue(0, &work));
        let other = {
            let work = work.clone();
            thread::spawn(move || drop(work))
        };
        let last = thread::spawn(move || drop(work));
        worker.step();
        other.join().unwrap();
        last.join().unwrap();
        assert_eq!(loom::sync::Arc::strong_count(&alive), 1, "it is gone");
        queue.flush();
    });
}

#[test]
fn loom_free_after_a_cancel_or_a_run() {
    bounded(3).check(|| {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, alive) = witnessed();
        assert!(queue.queue(0, &work));
        let canceller = thread::spawn(move || drop((work.cancel(), work)));
        worker.step();
        canceller.join().unwrap();
        worker.step();
        assert_eq!(loom::sync::Arc::strong_count(&alive), 1, "it is gone");
        queue.flush();
    });
}

#[test]
fn loom_free_after_a_flush_that_the_worker_ended() {
    bounded(2).check(|| {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, alive) = witnessed();
        assert!(queue.queue(0, &work));
        let flusher = thread::spawn(move || {
            // This does the same as `Work::flush` where the item may not be run here.
            corewise_workqueue::model::flush_or_run(&work, false);
            drop(work);
        });
        worker.step();
        flusher.join().unwrap();
        assert_eq!(loom::sync::Arc::strong_count(&alive), 1, "it is gone");
        queue.flush();
    });
}
