//! Calls whose functions borrow from the caller.
#![cfg(not(loom))]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use crate::support::{machine, set, synthetic};
use corewise_smp::{CallError, CallFailed, RunError, Smp, model};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::context::{self, BlockingObserver, Standing};
use corewise_topology::CpuId;

#[test]
fn rule_16_run_lends_what_the_caller_has_and_sees_what_was_written() {
    let smp = synthetic(2);
    let mut text = String::from("called");
    for round in 0..100 {
        let length = smp.run(CpuId::new(round % 2), || {
            text.push('!');
            text.len()
        });
        assert_eq!(length.unwrap(), text.len());
    }
    assert_eq!(text.len(), 106);
}

#[test]
fn run_gives_the_function_back_where_it_is_refused() {
    let smp = synthetic(2);
    smp.cpu_offline(CpuId::new(1)).wait();
    let text = String::from("still mine");
    let mine = &text;
    let RunError::Refused(refused) = smp.run(CpuId::new(1), move || mine.len()).unwrap_err() else {
        panic!("it can't have run");
    };
    assert!(matches!(refused, CallError::NotOnline { cpu, .. } if cpu == CpuId::new(1)));
    assert_eq!(refused.into_inner()(), 10);
    drop(smp.shutdown());
    let refused = smp.run(CpuId::new(0), || mine.len()).unwrap_err();
    assert!(matches!(refused, RunError::Refused(CallError::ShuttingDown { .. })));
    assert!(refused.to_string().contains("shutting down"), "{refused}");
}

#[test]
fn run_gives_the_function_back_where_nobody_steps_the_target_any_more() {
    let (smp, mut cpus) = model::stepped(Smp::builder(&machine(1)));
    let text = String::from("still mine");
    thread::scope(|scope| {
        let (smp, mine) = (&smp, &text);
        let caller = scope.spawn(move || match smp.run(CpuId::new(0), move || mine.len()) {
            Err(RunError::Refused(CallError::NotOnline { f, .. })) => f(),
            _ => panic!("it can't have run"),
        });
        // The call is accepted, and then dropped with the target.
        while !format!("{:?}", cpus[0]).contains("online calls") {
            thread::yield_now();
        }
        drop(cpus.pop());
        assert_eq!(caller.join().unwrap(), 10);
    });
}

#[test]
fn run_tells_of_a_panic() {
    let smp = synthetic(1);
    let failed = smp.run(CpuId::new(0), || panic!("on purpose 9")).unwrap_err();
    assert!(failed.to_string().contains("on purpose 9"), "{failed}");
    assert!(
        matches!(failed, RunError::Failed(CallFailed::Panicked { cpu, .. }) if cpu == CpuId::new(0))
    );
}

#[test]
fn a_handler_may_run_on_its_own_cpu() {
    let smp = synthetic(1);
    let inner = smp.clone();
    let nested = smp.call(CpuId::new(0), move || {
        let mut n = 1;
        inner.run(CpuId::new(0), || n += 1).unwrap();
        n
    });
    assert_eq!(nested.unwrap().wait().unwrap(), 2);
}

#[test]
fn run_many_shares_what_the_caller_has_and_drops_the_function_here() {
    struct Dropped<'a>(&'a Cell<Option<thread::ThreadId>>, &'a AtomicUsize);
    // SAFETY: the handlers touch the count alone; the cell is touched where it is dropped.
    unsafe impl Sync for Dropped<'_> {}
    impl Dropped<'_> {
        fn count(&self) -> usize {
            self.1.fetch_add(1, Ordering::Relaxed)
        }
    }
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.set(Some(thread::current().id()));
        }
    }
    let smp = synthetic(3);
    smp.cpu_offline(CpuId::new(1)).wait();
    let (by, ran) = (Cell::new(None), AtomicUsize::new(0));
    let shared = Dropped(&by, &ran);
    let answers = smp.run_each(&set("0-2"), move |cpu| {
        shared.count();
        cpu.number() * 10
    });
    assert_eq!(by.get(), Some(thread::current().id()));
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    assert_eq!(answers.skipped.len(), 1);
    assert_eq!(answers.into_values().unwrap(), [0, 2].map(|cpu| (CpuId::new(cpu), cpu * 10)));
}

#[test]
fn a_panicking_block_observer_does_not_end_a_borrow_early() {
    /// A pool that panics when the caller begins to wait; only then may the handler end.
    struct Pool(mpsc::Sender<()>);
    impl BlockingObserver for Pool {
        fn begin(&self) {
            self.0.send(()).expect("the handler waits for this");
            panic!("on purpose");
        }
        fn end(&self) {}
    }
    let smp = synthetic(2);
    for many in [false, true] {
        let (release, released) = mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(released);
        let ended = AtomicUsize::new(0);
        let (guard, standing) = (context::observe(Rc::new(Pool(release))), Standing::now());
        let wait = || {
            gate.lock().expect("nobody panics with it").recv().expect("sent by `begin`");
            ended.fetch_add(1, Ordering::Relaxed);
        };
        let panicked = catch_unwind(AssertUnwindSafe(|| match many {
            true => drop(smp.run_each(&set("1"), |_| wait())),
            false => drop(smp.run(CpuId::new(1), wait)),
        }));
        drop(guard);
        // The panic of `begin` left the thread inside of the region.
        standing.restore();
        assert!(panicked.is_err());
        assert_eq!(ended.load(Ordering::Relaxed), 1, "the handler had ended before the frame did");
    }
}

#[test]
fn a_called_function_is_reported_by_its_own_name() {
    let smp = synthetic(1);
    let violation = smp.run(CpuId::new(0), || {
        context::might_block("on purpose");
        context::take_violation().map(|violation| violation.section.what)
    });
    if cfg!(debug_assertions) {
        let what = violation.expect("it ran").expect("it was reported");
        assert!(what.contains("a_called_function_is_reported_by_its_own_name"), "{what}");
    }
}
