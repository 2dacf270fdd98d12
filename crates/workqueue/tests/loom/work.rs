//! The state word of an item: every instance runs once, never two at a time, and sees earlier
//! writes.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::thread;
use corewise_workqueue::{Work, model::Pending};

#[test]
fn loom_work_instances_run_once_each_and_never_at_once() {
    loom::model(|| {
        // This is the function's own data, touched without a lock: loom reports two threads in
        // there.
        let mut runs = 0;
        let counted = Arc::new(AtomicUsize::new(0));
        let shown = Arc::clone(&counted);
        let work = Work::new(move || {
            runs += 1;
            shown.store(runs, Ordering::Relaxed);
        });
        let first = Pending::new(&work).expect("a fresh item is not pending");
        let worker = {
            let work = work.clone();
            thread::spawn(move || {
                first.run();
                Pending::new(&work).map(Pending::run).is_some()
            })
        };
        let mine = Pending::new(&work).map(Pending::run).is_some();
        let theirs = worker.join().unwrap();
        assert!(!work.is_pending() && !work.is_running());
        let ran = counted.load(Ordering::Relaxed);
        assert_eq!(ran, 1 + usize::from(mine) + usize::from(theirs));
    });
}

#[test]
fn loom_work_the_run_sees_writes_from_before_a_refused_queueing() {
    loom::model(|| {
        let written = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(AtomicUsize::new(0));
        let work = {
            let (written, seen) = (Arc::clone(&written), Arc::clone(&seen));
            Work::new(move || {
                seen.store(written.load(Ordering::Relaxed), Ordering::Relaxed);
            })
        };
        let pending = Pending::new(&work).expect("fresh");
        let worker = thread::spawn(move || pending.run());
        written.store(1, Ordering::Relaxed);
        let again = Pending::new(&work);
        let refused = again.is_none();
        if let Some(again) = again {
            again.run();
        }
        worker.join().unwrap();
        assert!(!refused || seen.load(Ordering::Relaxed) == 1);
    });
}

#[test]
fn loom_work_a_flush_waits_for_the_pending_instance() {
    loom::model(|| {
        let ran = Arc::new(AtomicUsize::new(0));
        let work = {
            let ran = Arc::clone(&ran);
            Work::new(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            })
        };
        let pending = Pending::new(&work).expect("fresh");
        let worker = thread::spawn(move || pending.run());
        work.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        worker.join().unwrap();
    });
}
