//! An item of a limited or ordered queue that waits for another one, held back there until the
//! first is over. The other one runs in its place, as a scope's closures do, or the wait ends with
//! a panic that gives the reason.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{Completion, Mutex};
use corewise_topology::{AffinityScope, CpuId};
use corewise_workqueue::{
    At, JoinError, QueueKind, Queued, Work, WorkerPools, Workqueue, blocking,
};

use crate::setup::{builder, counting, pod, pools};

/// Returns one queue of each kind that lets one instance through at a time.
fn one_at_a_time(pools: &WorkerPools) -> [Workqueue; 4] {
    let strict = Workqueue::builder("test").scope(AffinityScope::Cpu).strict(true);
    [
        builder().max_active(1),
        builder().kind(QueueKind::Ordered),
        Workqueue::builder("test").kind(QueueKind::Bound).max_active(1),
        strict.max_active(1),
    ]
    .map(|builder| builder.build(pools).expect("a queue"))
}

/// Runs `body` as an item of the queue.
fn inside<T: Send + 'static>(
    queue: &Workqueue,
    body: impl FnOnce(&Workqueue) -> T + Send + 'static,
) -> Result<T, JoinError> {
    let own = queue.clone();
    queue.at(At::Cpu(CpuId::new(0))).spawn(move || body(&own)).join()
}

#[test]
fn an_item_joins_what_it_has_spawned_on_its_own_limited_queue() {
    let pools = pools(2);
    for queue in one_at_a_time(&pools) {
        let sum = inside(&queue, |queue| {
            let handles: Vec<_> =
                (0..10).map(|n| queue.at(At::Cpu(CpuId::new(0))).spawn(move || n)).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).sum::<u32>()
        });
        assert_eq!(sum.unwrap(), 45);
        queue.flush();
        assert_eq!((queue.active(), queue.held()), (0, 0));
    }
}

#[test]
fn an_item_flushes_what_it_has_queued_on_its_own_limited_queue() {
    let pools = pools(2);
    for queue in one_at_a_time(&pools) {
        let (work, runs) = counting();
        let flushed = work.clone();
        inside(&queue, move |queue| {
            assert_eq!(queue.at(At::Cpu(CpuId::new(0))).queue(&flushed), Ok(Queued::Now));
            flushed.flush()
        })
        .unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        queue.flush();
    }
}

#[test]
fn the_waiting_item_may_be_further_up_the_stack() {
    let pools = pools(1);
    let other = builder().build(&pools).expect("a queue");
    // This queue uses the same pool as the other.
    for queue in one_at_a_time(&pools).into_iter().take(2) {
        let between = other.clone();
        let value = inside(&queue, move |queue| {
            let queue = queue.clone();
            let between =
                between.spawn(move || queue.at(At::Cpu(CpuId::new(0))).spawn(|| 4).join().unwrap());
            between.join().unwrap()
        });
        assert_eq!(value.unwrap(), 4);
    }
}

#[test]
fn an_item_that_may_not_run_what_it_waits_for_lends_it_its_place() {
    let pools = pools(2);
    for queue in one_at_a_time(&pools) {
        let own = queue.clone();
        let deep = inside(&queue, move |queue| {
            let here = thread::current().id();
            let other =
                queue.at(At::Cpu(CpuId::new(0))).spawn(move || thread::current().id() != here);
            blocking("the test", || other.join().unwrap())
        });
        assert!(deep.unwrap(), "another worker ran it");
        // This is deeper than items are nested on one stack.
        fn depth(queue: &Workqueue, left: u32) -> u32 {
            if left == 0 {
                return 0;
            }
            let own = queue.clone();
            queue.at(At::Cpu(CpuId::new(0))).spawn(move || depth(&own, left - 1)).join().unwrap()
                + 1
        }
        assert_eq!(inside(&own, |queue| depth(queue, 200)).unwrap(), 200);
        queue.flush();
        assert_eq!((queue.active(), queue.held()), (0, 0), "each place was given back");
    }
}

#[test]
fn while_a_place_is_lent_nobody_else_gets_one() {
    let pools = pools(4);
    let queue = builder().max_active(2).build(&pools).expect("a queue");
    let (inside, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let bodies: Vec<_> = (0..40)
        .map(|_| {
            let (own, inside, most) = (queue.clone(), Arc::clone(&inside), Arc::clone(&most));
            queue.spawn(move || {
                let body = move || {
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    (0..10).for_each(|_| thread::yield_now());
                    inside.fetch_sub(1, Ordering::SeqCst);
                };
                body();
                let inner = own.spawn(body.clone());
                blocking("the test", || inner.join().unwrap());
                body();
            })
        })
        .collect();
    bodies.into_iter().for_each(|body| body.join().unwrap());
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?} at once");
    queue.flush();
    assert_eq!((queue.active(), queue.held()), (0, 0));
}

#[test]
fn bound_work_for_another_cpu_stays_on_that_also_where_a_limit_holds_it_back() {
    let pools = pools(2);
    let queue = Workqueue::builder("test")
        .kind(QueueKind::Bound)
        .max_active(1)
        .build(&pools)
        .expect("a queue");
    let (started, gate) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (says, waits) = (Arc::clone(&started), Arc::clone(&gate));
    let first = queue.at(At::Cpu(CpuId::new(1))).spawn(move || {
        says.complete();
        waits.wait();
    });
    started.wait();
    let (opens, scoped) = (Arc::clone(&gate), queue.clone());
    let pods = queue.at(At::Cpu(CpuId::new(0))).spawn(move || {
        let own = scoped.clone();
        let joined = scoped.at(At::Cpu(CpuId::new(1))).spawn(pod);
        scoped.scope(|s| {
            let other = s.at(At::Cpu(CpuId::new(1))).spawn(pod);
            let opener = own.at(At::Cpu(CpuId::new(0))).spawn(move || opens.complete());
            opener.join().unwrap();
            [other.join().unwrap(), joined.join().unwrap()]
        })
    });
    assert_eq!(pods.join().unwrap(), [Some(1), Some(1)]);
    first.join().unwrap();
}

#[test]
fn an_item_of_an_ordered_queue_waits_for_nothing_that_comes_after_others() {
    let pools = pools(1);
    let queue = builder().kind(QueueKind::Ordered).build(&pools).expect("a queue");
    let order = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&order);
    let line = line!() + 8;
    let outcome = inside(&queue, move |queue| {
        let note = |n| {
            let noted = Arc::clone(&noted);
            move || noted.lock().push(n)
        };
        drop(queue.spawn(note(1)));
        let second = queue.spawn(note(2));
        second.join().unwrap();
    });
    let error = outcome.expect_err("it can't be");
    let message = error.message().expect("it panicked");
    assert!(message.contains("starts only after 1 other(s)"), "{message}");
    assert!(message.contains(&format!("tests/it/held.rs:{line}:")), "{message}");
    queue.flush();
    assert_eq!(*order.lock(), [1, 2], "they ran after, in order");
}

#[test]
fn a_wait_for_oneself_ends_with_a_panic() {
    let pools = pools(1);
    let (queue, other) = (builder().build(&pools).unwrap(), builder().build(&pools).unwrap());
    type Wait = fn(&Workqueue);
    for wait in [Workqueue::flush as Wait, Workqueue::drain, Workqueue::destroy] {
        let error = inside(&queue, wait).expect_err("it waits for itself");
        assert!(error.message().unwrap().contains("waits for its own queue"), "{error}");
        let between = other.clone();
        let nested = inside(&queue, move |queue| {
            let queue = queue.clone();
            between.spawn(move || wait(&queue)).join().unwrap_err().to_string()
        });
        assert!(nested.unwrap().contains("waits for its own queue"));
    }
    let said = Arc::new(Mutex::new(Vec::new()));
    let says = Arc::clone(&said);
    let work = Work::new(move || {
        let work = Work::current().expect("there is a handle");
        type Wait = fn(&Work) -> bool;
        for wait in [Work::flush as Wait, Work::cancel_sync, Work::disable_sync] {
            let waits = std::panic::AssertUnwindSafe(|| wait(&work));
            let payload = std::panic::catch_unwind(waits).expect_err("it waits for itself");
            says.lock().push(payload.downcast::<String>().expect("a message"));
        }
    });
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    work.flush();
    assert_eq!(said.lock().len(), 3);
    assert!(said.lock().iter().all(|message| message.contains("waits for itself")));
    assert!(!work.is_disabled(), "who can't wait for it hasn't disabled it");
    let (give, own) = std::sync::mpsc::channel::<corewise_workqueue::JoinHandle<()>>();
    let itself = queue.spawn(move || own.recv().unwrap().join().unwrap());
    give.send(itself).unwrap();
    queue.flush();
}

#[test]
fn a_wait_for_oneself_is_told_on_stderr_where_nobody_subscribes_to_the_log() {
    const CHILD: &str = "COREWISE_WAITS_FOR_ITSELF";
    if std::env::var_os(CHILD).is_some() {
        let queue = builder().build(&pools(1)).unwrap();
        inside(&queue, Workqueue::flush).expect_err("it waits for itself");
        return;
    }
    let mut own = std::process::Command::new(std::env::current_exe().unwrap());
    own.args(["a_wait_for_oneself_is_told_on_stderr", "--nocapture"]).env(CHILD, "1");
    let output = own.output().expect("it can run itself");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.matches("waits for its own queue, and with it for itself").count(),
        1,
        "{said}"
    );
}

#[test]
fn an_item_waits_for_a_delayed_one_of_its_own_limited_queue() {
    let pools = pools(1);
    for queue in one_at_a_time(&pools) {
        let (work, runs) = counting();
        let delayed = work.clone();
        inside(&queue, move |queue| {
            assert_eq!(queue.queue_delayed(&delayed, Duration::from_secs(3600)), Ok(Queued::Now));
            assert!(delayed.flush_delayed());
        })
        .unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
}
