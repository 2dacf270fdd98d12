//! Model-checks which thread concludes a callback: steps and race are named in
//! `src/handoff/README.md`.

use corewise_device::model::Handoff;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

#[test]
fn loom_exactly_one_side_concludes_and_it_has_the_result() {
    for result in [None, Some(7)] {
        loom::model(move || {
            let call = Arc::new(Handoff::new());
            let done = Arc::new(AtomicUsize::new(0));
            let (theirs, their_work) = (call.clone(), done.clone());
            let finisher = thread::spawn(move || {
                their_work.store(1, Ordering::Relaxed); // The callback did this.
                theirs.finish(result)
            });
            let of_caller = call.returned();
            if of_caller.is_some() {
                assert_eq!(done.load(Ordering::Relaxed), 1);
            }
            let of_finisher = finisher.join().unwrap();
            assert_eq!([of_caller, of_finisher].iter().flatten().collect::<Vec<_>>(), [&result]);
        });
    }
}

#[test]
fn loom_a_panic_is_concluded_by_the_caller_alone() {
    loom::model(|| {
        let call = Arc::new(Handoff::new());
        let theirs = call.clone();
        let finisher = thread::spawn(move || theirs.finish(Some(7)));
        let _result_or_panic = call.panicked();
        assert_eq!(finisher.join().unwrap(), None);
    });
}

#[test]
fn loom_of_two_finishes_one_counts() {
    loom::model(|| {
        let call = Arc::new(Handoff::new());
        let theirs = call.clone();
        let finisher = thread::spawn(move || theirs.finish(None::<i32>));
        let mine = call.finish(Some(2));
        let of_caller = call.returned();
        let of_finisher = finisher.join().unwrap();
        let got = [mine, of_finisher, of_caller].iter().flatten().count();
        assert_eq!(got, 1);
    });
}

/// Proves the model: a read and then a write leave a result that no thread concludes.
#[test]
fn loom_a_handoff_that_looks_before_it_writes_loses_the_result() {
    let failed = std::panic::catch_unwind(|| {
        loom::model(|| {
            let word = Arc::new(AtomicUsize::new(0)); // 1: finished, 2: returned
            let theirs = word.clone();
            let finisher = thread::spawn(move || {
                let concludes = theirs.load(Ordering::SeqCst) == 2;
                if !concludes {
                    theirs.store(1, Ordering::SeqCst);
                }
                concludes
            });
            let concludes = word.load(Ordering::SeqCst) == 1;
            if !concludes {
                word.store(2, Ordering::SeqCst);
            }
            assert!(concludes != finisher.join().unwrap(), "nobody concludes, or both do");
        });
    });
    assert!(failed.is_err(), "the handoff without a lock was expected to lose a result");
}
