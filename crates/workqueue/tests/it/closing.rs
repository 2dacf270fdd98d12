//! Tests of closed pools: the work that is left is run or cancelled, and no thread waits for ever.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{Completion, Mutex};
use corewise_workqueue::{JoinError, Queued, Work, WorkerPools, Workqueue};

use crate::setup::{machine, pools};
use crate::spin::spin_until;

#[test]
fn a_shutdown_cancels_what_has_no_worker_and_gets_none() {
    // The spawn handler promises to run the workers, and then doesn't; and the end comes when the
    // timekeeper has just looked.
    let (kept, to_end) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let (keeps, ends) = (Arc::clone(&kept), Arc::clone(&to_end));
    let pools = WorkerPools::builder(&machine(1))
        .spawn_handler(move |worker| {
            keeps.lock().push(worker);
            Ok(())
        })
        .stall_after(Duration::from_millis(1))
        .on_stall(move |_| {
            let pools: Option<WorkerPools> = ends.lock().take();
            pools.expect("it stalls once").shutdown();
        })
        .build();
    let queue = Workqueue::builder("alone").build(&pools).expect("it was promised a worker");
    let (task, work) = (queue.spawn(|| ()), Work::new(|| ()));
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    let workers = std::mem::take(&mut *kept.lock());
    *to_end.lock() = Some(pools);
    drop(workers);
    assert!(matches!(task.join(), Err(JoinError::Cancelled)));
    queue.flush();
    assert!(!work.is_pending());
}

/// Reports the beginning of its drop, and waits until it may go on.
struct Slow(Arc<Completion>, Arc<Completion>);

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.complete();
        self.1.wait();
    }
}

#[test]
fn items_let_through_after_the_shutdown_are_cancelled() {
    let pools = pools(1);
    let plain = Workqueue::builder("plain").build(&pools).expect("a queue");
    let limited = Workqueue::builder("limited").max_active(1).build(&pools).expect("a queue");
    let completion = || Arc::new(Completion::new());
    let (started, go, ending, end) = (completion(), completion(), completion(), completion());
    let (says, waits) = (Arc::clone(&started), Arc::clone(&go));
    // It doesn't declare this to the pool, so that no other worker starts.
    let busy = plain.spawn(move || {
        says.complete();
        spin_until(|| waits.is_complete());
    });
    started.wait();
    let slow = Slow(Arc::clone(&ending), Arc::clone(&end));
    let active = limited.spawn(move || drop(slow));
    let ran = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&ran);
    let held = Work::new(move || {
        counts.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(limited.queue(&held), Ok(Queued::Now));
    assert_eq!((limited.active(), limited.held()), (1, 1));
    std::thread::scope(|scope| {
        let cancel = scope.spawn(|| active.abort());
        // The active one is out of its pool, and has its place still.
        ending.wait();
        go.complete();
        busy.join().expect("it ran");
        pools.shutdown();
        assert!(held.is_pending(), "nobody has let it through");
        end.complete();
        cancel.join().expect("no panic");
    });
    held.flush();
    assert_eq!(ran.load(Ordering::SeqCst), 0, "nothing runs in pools that were shut down");
    assert_eq!(limited.stats().cancelled, 2);
    assert!(pools.report().iter().all(|pool| pool.workers == 0));
}
