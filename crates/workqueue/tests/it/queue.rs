//! The workqueue's rules, on real threads.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::context::{self, Placement};
use corewise_sync::{Completion, Countdown};
use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine};
use corewise_workqueue::{At, BuildError, JoinError, QueueError, Work, WorkerPools, Workqueue};

use crate::setup::{machine, occupy, pod, undisturbed as queue};
use crate::spin::spin_until;

/// Returns pools that find no item at its core: items of these tests keep a core for as long as
/// they need.
fn pools(machine: &Machine) -> WorkerPools {
    WorkerPools::builder(machine).cpu_intensive_after(std::time::Duration::ZERO).build()
}

#[test]
fn spawn_yields_the_value_or_the_panic_and_the_worker_goes_on() {
    let (pools, queue) = queue(1);
    assert_eq!(queue.spawn(|| 6 * 7).join().unwrap(), 42);
    match queue.spawn(|| -> () { panic!("on purpose") }).join() {
        Err(JoinError::Panicked(payload)) => {
            assert_eq!(payload.into_inner().downcast_ref::<&str>(), Some(&"on purpose"));
        }
        other => panic!("expected the panic, got {other:?}"),
    }
    let work = Work::new(|| panic!("also on purpose"));
    queue.queue(&work).unwrap();
    work.flush();
    assert_eq!(queue.spawn(|| 1).join().unwrap(), 1);
    let made: u64 = pools.report().iter().map(|p| p.threads_made).sum();
    assert_eq!(made, 1, "the one worker survived both panics");
}

#[test]
#[should_panic(expected = "polled again")]
fn a_handle_gives_its_value_once() {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    let (_pools, queue) = queue(1);
    let mut handle = queue.spawn(|| 5);
    queue.flush();
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(&mut handle).poll(&mut cx) {
        Poll::Ready(Ok(5)) => drop(handle.join()),
        // This isn't the panic that the test expects.
        other => panic!("the value was to be there, not {other:?}"),
    }
}

#[test]
fn an_item_may_flush_another_queue_on_the_only_worker_they_share() {
    let (pools, one) = queue(1);
    let two = Workqueue::builder("two").scope(AffinityScope::System).build(&pools).unwrap();
    assert_eq!(pools.report().len(), 1, "equal attributes share their pools");
    let ran = one
        .spawn(move || {
            let ran = Arc::new(AtomicBool::new(false));
            let says = Arc::clone(&ran);
            drop(two.spawn(move || says.store(true, Ordering::SeqCst)));
            two.flush();
            ran.load(Ordering::SeqCst)
        })
        .join()
        .unwrap();
    assert!(ran);
}

#[test]
fn a_pool_has_no_more_threads_than_it_may_and_surplus_ones_leave() {
    let pools =
        WorkerPools::builder(&machine(1)).max_workers(3).idle_timeout(std::time::Duration::ZERO);
    let pools = pools.build();
    let queue = Workqueue::builder("few").scope(AffinityScope::System).build(&pools).unwrap();
    let (gate, inside) = (Arc::new(Completion::new()), Arc::new(Countdown::new(3)));
    let items: Vec<_> = (0..10)
        .map(|n| {
            let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
            queue.spawn(move || {
                if n < 3 {
                    inside.done();
                }
                gate.wait();
            })
        })
        .collect();
    inside.wait();
    spin_until(|| pools.report()[0].blocked == 3);
    let report = &pools.report()[0];
    assert_eq!(report.workers, 3, "the others wait for these");
    gate.complete();
    items.into_iter().for_each(|item| item.join().unwrap());
    spin_until(|| {
        let report = &pools.report()[0];
        (report.workers, report.idle) == (1, 1)
    });
    assert_eq!(queue.spawn(|| 7).join().unwrap(), 7);
}

#[test]
fn no_more_items_run_at_once_than_the_pod_has_cpus() {
    let (_pools, queue) = queue(2);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handles: Vec<_> = (0..500)
        .map(|n| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            queue.spawn(move || {
                // A blocking region now and then brings replacements in; they must not add up. A
                // worker that returns from one goes on beside them, and isn't counted.
                if n % 7 == 0 {
                    return context::blocking("test", std::thread::yield_now);
                }
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    for handle in handles {
        handle.join().unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
}

#[test]
fn soft_work_leaves_a_saturated_pod_and_comes_home() {
    let pools = pools(&machine(2));
    let queue = Workqueue::builder("soft").scope(AffinityScope::Cpu).build(&pools).unwrap();
    let second_ran = Arc::new(Completion::new());
    let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
    // The item doesn't declare this to the pool: pod 0 has no worker left for the second item.
    let first = queue.at(At::Cpu(CpuId::new(0))).spawn(move || spin_until(|| waits.is_complete()));
    let second = queue.at(At::Cpu(CpuId::new(0))).spawn(move || {
        rings.complete();
        pod()
    });
    assert_eq!(second.join().unwrap(), Some(1), "the second ran in the other pod");
    first.join().unwrap();
    assert_eq!(queue.stats().overflowed, 1);
    // The handle is woken a moment before its worker is free again.
    spin_until(|| pools.report().iter().all(|pool| pool.idle == 1));
    let home = queue.at(At::Cpu(CpuId::new(0))).spawn(pod).join().unwrap();
    assert_eq!(home, Some(0), "once its pod has room, work stays at home");
}

#[test]
fn work_for_a_remote_node_is_spread_over_its_pods() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let machine = Machine::synthetic("numa:2 l3:1 core:24 pu:1").unwrap();
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("node").strict(true).build(&pools).unwrap();
    // This thread stays on one CPU, so that it is clear which node is the remote one.
    let here = corewise_topology::current_cpu().expect("Linux says it");
    corewise_topology::pin_current_thread(&CpuSet::from_iter([here])).expect("it runs there now");
    let remote = if (24..48).contains(&here.number()) { 0 } else { 1 };
    let mut pods: Vec<_> = (0..12)
        .map(|_| queue.at(At::Node(remote)).spawn(|| Placement::current().unwrap()).join().unwrap())
        .inspect(|placement| assert_eq!(placement.node, Some(remote)))
        .filter_map(|placement| placement.pod)
        .collect();
    pods.sort_unstable();
    pods.dedup();
    let first = remote * 3;
    assert_eq!(
        pods,
        [first, first + 1, first + 2],
        "24 cores are three shards, and none is left out"
    );
    let placed = queue.at(At::Node(99)).spawn(Placement::current).join().unwrap();
    assert!(placed.is_some(), "an unknown node is no error");
}

#[test]
fn shutdown_runs_what_is_queued_and_refuses_what_comes_later() {
    let (pools, queue) = queue(1);
    let gate = occupy(&queue);
    let queued: Vec<_> = (0..10).map(|n| queue.spawn(move || n)).collect();
    std::thread::scope(|scope| {
        let down = scope.spawn(|| pools.shutdown());
        gate.complete();
        down.join().unwrap();
    });
    for (n, handle) in queued.into_iter().enumerate() {
        assert_eq!(handle.join().unwrap(), n);
    }
    assert_eq!(queue.queue(&Work::new(|| ())), Err(QueueError::Closed));
    assert!(matches!(queue.spawn(|| ()).join(), Err(JoinError::Cancelled)));
    assert!(matches!(
        Workqueue::builder("late").build(&pools),
        Err(BuildError::ShutDown { queue }) if queue == "late"
    ));
    assert!(pools.report().iter().all(|pool| pool.workers == 0));
}

#[test]
fn cpus_that_the_machine_lacks_are_refused_by_name() {
    let pools = pools(&machine(2));
    let refused = |cpus: &[u32]| {
        let cpus = cpus.iter().map(|&cpu| CpuId::new(cpu)).collect();
        let error = Workqueue::builder("far").cpus(cpus).build(&pools).unwrap_err();
        assert!(matches!(error, BuildError::NoCpus { .. }));
        error.to_string()
    };
    assert_eq!(
        refused(&[7]),
        "workqueue 'far': asked for CPUs 7, but the process may use only 0-1, online or not: name \
         at least one of these"
    );
    assert_eq!(
        refused(&[]),
        "workqueue 'far': asked for an empty set of CPUs: name at least one of 0-1"
    );
}

#[test]
fn a_panic_in_a_destructor_kills_no_worker() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, in drop");
        }
    }
    let (pools, queue) = queue(1);
    let gate = occupy(&queue);
    let bomb = Bomb;
    let work = Work::new(move || {
        let _ = &bomb;
    });
    queue.queue(&work).unwrap();
    drop(work);
    gate.complete();
    queue.flush();
    assert_eq!(queue.spawn(|| 3).join().unwrap(), 3);
    assert_eq!(pools.report()[0].threads_made, 1);
}

#[test]
fn a_waker_that_panics_takes_nothing_from_its_task_or_from_the_worker() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic!("on purpose, in wake");
        }
    }
    let (pools, queue) = queue(1);
    let gate = occupy(&queue);
    let mut handle = pin!(queue.spawn(|| 5));
    let waker = Waker::from(Arc::new(Bomb));
    let mut cx = Context::from_waker(&waker);
    assert!(handle.as_mut().poll(&mut cx).is_pending());
    gate.complete();
    queue.flush();
    match handle.as_mut().poll(&mut cx) {
        Poll::Ready(value) => assert_eq!(value.unwrap(), 5),
        Poll::Pending => panic!("the task is over"),
    }
    assert_eq!(pools.report()[0].threads_made, 1);
}

#[test]
fn idle_workers_sleep_and_stay_asleep() {
    /// Returns state and voluntary context switches of this test's workers, by thread.
    fn workers() -> Vec<(String, char, String)> {
        let field = |status: &str, name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.map_or(String::new(), |line| line[name.len()..].trim().to_string())
        };
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let statuses =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
        let mut all: Vec<_> = statuses
            .map(|s| {
                (field(&s, "Name:"), field(&s, "State:"), field(&s, "voluntary_ctxt_switches:"))
            })
            .filter(|(name, ..)| name.starts_with("cw-smt"))
            .map(|(name, state, switches)| (name, state.chars().next().unwrap_or('?'), switches))
            .collect();
        all.sort();
        all
    }
    let pools = pools(&machine(4));
    // The scope is this test's own, and with it the names of its threads.
    let queue = Workqueue::builder("rest").scope(AffinityScope::Smt).build(&pools).unwrap();
    for cpu in 0..4 {
        queue.at(At::Cpu(CpuId::new(cpu))).spawn(|| ()).join().unwrap();
    }
    spin_until(|| workers().iter().all(|(_, state, _)| *state == 'S'));
    let asleep = workers();
    assert_eq!(asleep.len(), 4);
    // A worker that polled would be seen awake, or have slept anew, in one of many looks.
    for _ in 0..200 {
        std::thread::yield_now();
        assert_eq!(workers(), asleep);
    }
}

#[test]
fn nothing_is_lost_under_a_storm_from_many_threads() {
    const THREADS: usize = 4;
    let each = if std::env::var_os("COREWISE_LONG").is_some() { 500_000 } else { 20_000 };
    let pools = pools(&machine(4));
    let queue = Workqueue::builder("storm").scope(AffinityScope::Cpu).build(&pools).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (queue, ran) = (&queue, &ran);
            scope.spawn(move || {
                for n in 0..each {
                    let ran = Arc::clone(ran);
                    drop(queue.at(At::Cpu(CpuId::new((thread + n % 2) as u32))).spawn(move || {
                        ran.fetch_add(1, Ordering::Relaxed);
                    }));
                    if n % 1000 == 0 {
                        queue.flush();
                    }
                }
            });
        }
    });
    queue.flush();
    assert_eq!(ran.load(Ordering::Relaxed), THREADS * each);
    let stats = queue.stats();
    assert_eq!(stats.queued, stats.completed);
}
