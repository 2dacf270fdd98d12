//! The rules of "Attributes and CPUs", one test each, on real threads.

use std::io;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::sys::niceness;
use corewise_sync::{Completion, Mutex};
use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine};
use corewise_workqueue::{At, Attributes, BuildError, QueueKind, WorkerPools, Workqueue};

use crate::setup::{described as pools, pod, pod_of};
use crate::spin::spin_until;

/// Two nodes, each of two caches of four cores.
const MACHINE: &str = "numa:2 l3:2 core:4 pu:1";

fn with(queue: &Workqueue, edit: impl FnOnce(&mut Attributes)) -> Attributes {
    let mut attributes = queue.attributes();
    edit(&mut attributes);
    attributes
}

#[test]
fn attributes_start_as_they_were_built() {
    let queue = Workqueue::builder("plain").build(&pools(MACHINE)).unwrap();
    assert_eq!((queue.kind(), queue.attributes()), (QueueKind::Unbound, Attributes::default()));
    let queue = Workqueue::builder("set")
        .scope(AffinityScope::Numa)
        .strict(true)
        .cpus(CpuSet::full(3))
        .nice(7)
        .max_active(5)
        .build(&pools(MACHINE))
        .unwrap();
    let set = queue.attributes();
    assert_eq!(
        (set.scope, set.strict, set.nice, set.max_active),
        (AffinityScope::Numa, true, 7, 5)
    );
    assert_eq!(set.cpus, Some(CpuSet::full(3)));
}

#[test]
fn a_change_of_scope_takes_effect_for_what_is_queued_later() {
    let queue = Workqueue::builder("scope").strict(true).build(&pools(MACHINE)).unwrap();
    for (scope, pod) in [
        (AffinityScope::Cpu, 13),
        (AffinityScope::Cache, 3),
        (AffinityScope::Numa, 1),
        (AffinityScope::System, 0),
    ] {
        queue.set_attributes(&with(&queue, |a| a.scope = scope)).unwrap();
        assert_eq!(queue.attributes().scope, scope);
        assert_eq!(pod_of(&queue, 13), Some(pod), "{scope}");
    }
}

#[test]
fn a_change_that_fails_leaves_everything_as_it_was() {
    let refuse = Arc::new(AtomicBool::new(false));
    let refuses = Arc::clone(&refuse);
    let machine = Machine::synthetic(MACHINE).unwrap();
    let pools = WorkerPools::builder(&machine)
        .spawn_handler(move |worker| {
            if refuses.load(Ordering::SeqCst) {
                return Err(io::Error::other("no thread today"));
            }
            std::thread::Builder::new().spawn(move || worker.run()).map(drop)
        })
        .build();
    let queue = Workqueue::builder("fails").strict(true).max_active(4).build(&pools).unwrap();
    let before = queue.attributes();
    let pod = pod_of(&queue, 13);

    let elsewhere = with(&queue, |a| {
        a.cpus = Some(CpuSet::from_iter([CpuId::new(99)]));
        a.max_active = 1;
    });
    let error = queue.set_attributes(&elsewhere).unwrap_err();
    assert!(matches!(error, BuildError::NoCpus { .. }), "{error}");

    refuse.store(true, Ordering::SeqCst);
    let wider = with(&queue, |a| {
        a.scope = AffinityScope::Numa;
        a.max_active = 1;
    });
    let error = queue.set_attributes(&wider).unwrap_err();
    assert!(matches!(error, BuildError::Threads { .. }), "{error}");

    assert_eq!(queue.attributes(), before);
    assert_eq!(pod_of(&queue, 13), pod);
    queue.flush();
    let gate = Arc::new(Completion::new());
    for _ in 0..4 {
        let gate = Arc::clone(&gate);
        drop(queue.at(At::Cpu(CpuId::new(0))).spawn(move || gate.wait()));
    }
    assert_eq!((queue.active(), queue.held()), (4, 0), "the maximum too");
    gate.complete();
    queue.flush();
}

#[test]
fn a_spawn_handler_may_look_at_the_queue_whose_attributes_change() {
    let seen: Arc<Mutex<Option<Workqueue>>> = Arc::default();
    let looks = Arc::clone(&seen);
    let machine = Machine::synthetic(MACHINE).unwrap();
    let pools = WorkerPools::builder(&machine)
        .spawn_handler(move |worker| {
            let queue = looks.lock().clone();
            assert!(queue.is_none_or(|queue| queue.attributes().nice == 0));
            std::thread::Builder::new().spawn(move || worker.run()).map(drop)
        })
        .build();
    let queue = Workqueue::builder("looked at").build(&pools).unwrap();
    *seen.lock() = Some(queue.clone());
    queue.set_attributes(&with(&queue, |a| a.scope = AffinityScope::Numa)).unwrap();
    assert_eq!(queue.attributes().scope, AffinityScope::Numa);
    let held = seen.lock().take();
    drop(held);
}

#[test]
fn an_attribute_out_of_range_is_cut_and_reads_back_as_what_holds() {
    let pools = pools(MACHINE);
    let cut = |queue: &Workqueue| (queue.attributes().max_active, queue.attributes().nice);
    let queue = Workqueue::builder("far").max_active(5000).nice(i32::MAX).build(&pools).unwrap();
    assert_eq!(cut(&queue), (2048, 19));
    queue.set_attributes(&with(&queue, |a| (a.max_active, a.nice) = (2049, 20))).unwrap();
    assert_eq!(cut(&queue), (2048, 19));
    queue.set_max_active(7).unwrap();
    queue.set_max_active(usize::MAX).unwrap();
    assert_eq!(cut(&queue), (2048, 19));
    let least = Workqueue::builder("near").nice(i32::MIN).build(&pools).unwrap();
    assert_eq!(cut(&least), (0, -20));
}

#[test]
fn only_unbound_queues_can_change() {
    let pools = pools(MACHINE);
    let queue = Workqueue::builder("b").kind(QueueKind::Bound).build(&pools).unwrap();
    let before = queue.attributes();
    assert_eq!((before.scope, before.strict), (AffinityScope::Cpu, true));
    let error = queue.set_attributes(&Attributes::default()).unwrap_err();
    assert!(matches!(error, BuildError::Fixed { .. }), "{error}");
    assert!(error.to_string().contains("bound"), "{error}");
    assert_eq!(queue.attributes(), before);
}

#[test]
fn old_links_die_when_their_items_end_and_unused_pools_after_them() {
    let pools = pools(MACHINE);
    let queue = Workqueue::builder("old").scope(AffinityScope::Cpu).build(&pools).unwrap();
    let (inside, gate) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (says, waits) = (Arc::clone(&inside), Arc::clone(&gate));
    let old = queue.at(At::Cpu(CpuId::new(3))).spawn(move || {
        says.complete();
        waits.wait();
        pod()
    });
    inside.wait();
    let scopes = |pools: &WorkerPools| {
        let mut scopes: Vec<_> = pools.report().into_iter().map(|pool| pool.scope).collect();
        scopes.dedup();
        scopes
    };
    queue.set_attributes(&with(&queue, |a| a.scope = AffinityScope::Numa)).unwrap();
    queue.set_attributes(&with(&queue, |a| a.scope = AffinityScope::System)).unwrap();
    let both = [AffinityScope::Cpu, AffinityScope::System];
    assert_eq!(scopes(&pools), both, "one has an item in it, one is in use, one was neither");
    gate.complete();
    assert_eq!(old.join().unwrap(), Some(3), "it ended where it was queued");
    queue.flush();
    queue.set_attributes(&with(&queue, |a| a.scope = AffinityScope::Cache)).unwrap();
    // The worker keeps the link a moment longer than its item; the next change then ends the pool.
    while scopes(&pools).contains(&AffinityScope::Cpu) {
        std::thread::yield_now();
        queue.set_attributes(&queue.attributes()).unwrap();
    }
    assert_eq!(queue.stats().queued, 1, "what former links counted isn't forgotten");
}

#[test]
fn an_item_may_change_the_attributes_of_its_own_queue() {
    let queue = Workqueue::builder("own").build(&pools(MACHINE)).unwrap();
    let inner = queue.clone();
    let changed =
        queue.spawn(move || inner.set_attributes(&with(&inner, |a| a.scope = AffinityScope::Cpu)));
    changed.join().unwrap().unwrap();
    assert_eq!(queue.attributes().scope, AffinityScope::Cpu);
}

#[test]
fn the_effective_cpus_are_those_asked_for_that_the_machine_has() {
    let pools = pools(MACHINE);
    let queue = Workqueue::builder("cpus").strict(true).scope(AffinityScope::Cache);
    let queue = queue.cpus(CpuSet::from_iter([1, 2, 9, 40].map(CpuId::new))).build(&pools).unwrap();
    let cpus: Vec<_> = pools.report().into_iter().map(|pool| pool.cpus.to_string()).collect();
    assert_eq!(cpus, ["1-2", "9"], "a pool for each pod that has some of them");
    // Work for CPUs that the machine doesn't have goes to those that it has.
    assert!(matches!(pod_of(&queue, 15), Some(0 | 2)));
    queue.set_attributes(&with(&queue, |a| a.cpus = None)).unwrap();
    assert_eq!(pod_of(&queue, 15), Some(3));
}

#[test]
fn cpus_that_are_offline_may_be_asked_for() {
    let machine = Machine::synthetic(MACHINE).unwrap();
    machine.set_online(CpuId::new(3), false).unwrap();
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("later").strict(true).cpus(CpuSet::from_iter([CpuId::new(3)]));
    let queue = queue.build(&pools).unwrap();
    assert_eq!(pod_of(&queue, 3), Some(0), "its pod has no online CPU: it runs elsewhere");
    machine.set_online(CpuId::new(3), true).unwrap();
    assert_eq!(pod_of(&queue, 3), Some(0));
    let mixed = with(&queue, |a| a.cpus = Some(CpuSet::from_iter([3, 4, 99].map(CpuId::new))));
    queue.set_attributes(&mixed).unwrap();
    assert_eq!(pod_of(&queue, 4), Some(1));
}

/// Returns the niceness of the worker that runs it, and its name.
fn worker(queue: &Workqueue) -> (i32, String) {
    let look = || {
        let nice = niceness();
        let name = std::thread::current().name().expect("a worker has a name").to_owned();
        (nice, name)
    };
    queue.spawn(look).join().expect("no panic")
}

#[test]
fn nice_is_that_of_the_workers_threads_and_only_theirs() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread has a niceness.
        return;
    }
    let own = niceness();
    let pools = pools(MACHINE);
    let queue = Workqueue::builder("nice").build(&pools).unwrap();
    assert_eq!(worker(&queue).0, own);
    queue.set_attributes(&with(&queue, |a| a.nice = 15)).unwrap();
    assert_eq!(worker(&queue).0, 15);
    let plain = Workqueue::builder("plain").build(&pools).unwrap();
    assert_eq!(worker(&plain).0, own, "queues of another niceness have other pools");
    assert_eq!(niceness(), own);
}

#[test]
fn queues_of_a_low_niceness_have_pools_of_their_own_with_elevated_priority() {
    let pools = pools("numa:1 l3:1 core:1 pu:1");
    let high = Workqueue::builder("high").nice(-20).build(&pools).unwrap();
    let plain = Workqueue::builder("plain").build(&pools).unwrap();
    assert_eq!(pools.report().len(), 2);
    // They don't interact: the plain pool's only worker is busy, without declaring it.
    let (inside, stop) = (Arc::new(Completion::new()), Arc::new(AtomicBool::new(false)));
    let (says, stopped) = (Arc::clone(&inside), Arc::clone(&stop));
    let busy = plain.spawn(move || {
        says.complete();
        spin_until(|| stopped.load(Ordering::SeqCst));
    });
    inside.wait();
    let (nice, name) = worker(&high);
    stop.store(true, Ordering::SeqCst);
    busy.join().unwrap();
    assert!(name.ends_with('H'), "{name}");
    if nice != -20 {
        // Without the privilege the worker runs all the same, and that is logged.
        assert_eq!(nice, niceness());
    }
}

#[test]
fn a_worker_made_by_one_of_another_priority_has_that_of_its_own_queue() {
    let own = niceness();
    let pools = pools("numa:1 l3:1 core:1 pu:1");
    let (high, plain) = (
        Workqueue::builder("high").nice(-20).build(&pools).unwrap(),
        Workqueue::builder("plain").build(&pools).unwrap(),
    );
    // These items block on the plain queue: it needs more workers, and the high one's thread makes
    // them.
    let niceness = high.spawn(move || {
        let gate = Arc::new(Completion::new());
        let items: Vec<_> = (0..5)
            .map(|_| {
                let gate = Arc::clone(&gate);
                plain.spawn(move || {
                    gate.wait();
                    niceness()
                })
            })
            .collect();
        gate.complete();
        items.into_iter().map(|item| item.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(niceness.join().unwrap(), [own; 5]);
}

#[test]
fn statistics_do_not_go_back_while_links_go() {
    let pools = pools("core:2 pu:1");
    // They keep the pools of both.
    let _others = [AffinityScope::Cpu, AffinityScope::System]
        .map(|scope| Workqueue::builder("other").scope(scope).build(&pools).unwrap());
    let queue = Workqueue::builder("moves").timed(true).build(&pools).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut before = queue.stats().run_time;
            while !over.load(Ordering::Relaxed) {
                let now = queue.stats().run_time;
                assert!(now >= before, "{now:?} after {before:?}");
                before = now;
            }
        });
        for n in 0..4_000 {
            queue.spawn(|| ()).join().unwrap();
            queue.flush();
            let scope = [AffinityScope::Cpu, AffinityScope::System][n % 2];
            queue.set_attributes(&with(&queue, |a| a.scope = scope)).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
}
