//! The rules of `max_active`, one test each, on real threads.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Completion, Mutex};
use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{At, BuildError, QueueBuilder, QueueKind, Work, WorkerPools, Workqueue};

use crate::spin::spin_until;

/// Returns a queue on a machine; its workers are not pinned, so two cores are enough.
fn queue(description: &str, set: impl FnOnce(QueueBuilder) -> QueueBuilder) -> Workqueue {
    let machine = Machine::synthetic(description).expect("a valid description");
    set(Workqueue::builder("test")).build(&WorkerPools::new(&machine)).expect("a queue")
}

/// One node of four shards of eight cores.
const FOUR_SHARDS: &str = "numa:1 l3:1 core:32 pu:1";

/// Queues `n` items that wait for the returned event, on `cpu`.
fn occupy(queue: &Workqueue, cpu: u32, n: usize) -> Arc<Completion> {
    let gate = Arc::new(Completion::new());
    for _ in 0..n {
        let inside = Arc::clone(&gate);
        drop(queue.at(At::Cpu(CpuId::new(cpu))).spawn(move || inside.wait()));
    }
    gate
}

#[test]
fn the_maximum_is_divided_among_the_nodes_by_their_cpus_and_holds_for_each_cpu_of_a_bound_queue() {
    type Set = fn(QueueBuilder) -> QueueBuilder;
    const TWO_NODES: &str = "numa:2 l3:1 core:16 pu:1";
    /// The machine, the queue, the CPUs on which items wait with their number, and how many are
    /// active and held then.
    type Case = (&'static str, Set, &'static [(u32, usize)], (u64, u64));
    let cases: [Case; 4] = [
        (TWO_NODES, |queue| queue.max_active(40), &[(0, 25)], (20, 5)),
        (TWO_NODES, |queue| queue.max_active(40), &[(0, 25), (16, 25)], (40, 10)),
        // A quarter would be 3.
        ("numa:4 l3:1 core:4 pu:1", |queue| queue.max_active(10), &[(0, 10)], (8, 2)),
        (
            "numa:1 l3:1 core:2 pu:1",
            |queue| queue.kind(QueueKind::Bound).max_active(1),
            &[(0, 2), (1, 2)],
            (2, 2),
        ),
    ];
    for (machine, set, items, wanted) in cases {
        let queue = queue(machine, set);
        let gates: Vec<_> = items.iter().map(|&(cpu, n)| occupy(&queue, cpu, n)).collect();
        assert_eq!((queue.active(), queue.held()), wanted, "{machine}: {items:?}");
        gates.iter().for_each(|gate| gate.complete());
        queue.flush();
        assert_eq!((queue.active(), queue.held()), (0, 0));
    }
}

#[test]
fn the_division_follows_the_cpus_that_can_be_used() {
    let machine = Machine::synthetic("numa:2 l3:1 core:16 pu:1").unwrap();
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("shares").max_active(40).build(&pools).unwrap();
    for cpu in 0..8 {
        machine.set_online(CpuId::new(cpu), false).unwrap();
    }
    let first = occupy(&queue, 0, 25);
    assert_eq!((queue.active(), queue.held()), (14, 11), "a third of the CPUs, rounded up");
    for cpu in 0..8 {
        machine.set_online(CpuId::new(cpu), true).unwrap();
    }
    assert_eq!((queue.active(), queue.held()), (20, 5), "those that wait go at once");
    queue
        .set_attributes(&{
            let mut attributes = queue.attributes();
            attributes.cpus = Some((0..4).chain(16..32).map(CpuId::new).collect());
            attributes
        })
        .unwrap();
    let second = occupy(&queue, 16, 40);
    assert_eq!((queue.active(), queue.held()), (20 + 32, 5 + 8), "16 of its 20 CPUs are here");
    first.complete();
    second.complete();
    queue.flush();
}

/// Logs the order in which items of these CPUs run, one at a time, after they have all been queued.
fn order(queue: &Workqueue, cpus: &[u32]) -> Vec<(u32, usize)> {
    let gate = occupy(queue, 0, 1);
    let log = Arc::new(Mutex::new(Vec::new()));
    for (n, &cpu) in cpus.iter().enumerate() {
        let log = Arc::clone(&log);
        drop(queue.at(At::Cpu(CpuId::new(cpu))).spawn(move || log.lock().push((cpu, n))));
    }
    assert_eq!(queue.held(), cpus.len() as u64);
    gate.complete();
    queue.flush();
    log.lock().clone()
}

#[test]
fn the_hand_over_is_fair_between_pods() {
    let queue = queue(FOUR_SHARDS, |queue| queue.max_active(1));
    // CPUs 0, 8 and 16 are of three shards.
    let order = order(&queue, &[0, 0, 0, 0, 8, 8, 16]);
    let cpus: Vec<_> = order.iter().map(|(cpu, _)| *cpu).collect();
    assert_eq!(cpus, [0, 8, 16, 0, 8, 0, 0], "they take turns");
}

#[test]
fn a_newcomer_waits_behind_older_inactive_items() {
    let queue = queue(FOUR_SHARDS, |queue| queue.max_active(2));
    let gate = occupy(&queue, 0, 3);
    let ran = Arc::new(AtomicBool::new(false));
    let says = Arc::clone(&ran);
    // Two are active, one is held back: this one is the second that waits, though its pod is idle.
    let newcomer =
        queue.at(At::Cpu(CpuId::new(8))).spawn(move || says.store(true, Ordering::SeqCst));
    assert_eq!(queue.held(), 2);
    assert!(!ran.load(Ordering::SeqCst));
    gate.complete();
    newcomer.join().unwrap();
}

#[test]
fn an_item_that_queues_itself_gives_others_their_turn() {
    let queue = queue(FOUR_SHARDS, |queue| queue.max_active(1));
    let (stop, again) = (Arc::new(AtomicBool::new(false)), queue.clone());
    let slot: Arc<Mutex<Option<Work>>> = Arc::default();
    let (stopped, own) = (Arc::clone(&stop), Arc::clone(&slot));
    let work = Work::new(move || {
        if !stopped.load(Ordering::SeqCst) {
            if let Some(work) = &*own.lock() {
                again.queue(work).unwrap();
            }
        }
    });
    *slot.lock() = Some(work.clone());
    queue.queue(&work).unwrap();
    for n in 0..100 {
        assert_eq!(queue.spawn(move || n).join().unwrap(), n);
    }
    stop.store(true, Ordering::SeqCst);
    work.flush();
    slot.lock().take();
}

#[test]
fn a_higher_maximum_takes_effect_at_once_and_a_lower_one_stops_nobody() {
    let queue = queue(FOUR_SHARDS, |queue| queue.max_active(1));
    let gate = occupy(&queue, 0, 6);
    assert_eq!((queue.active(), queue.held()), (1, 5));
    queue.set_max_active(4).unwrap();
    assert_eq!((queue.active(), queue.held()), (4, 2));
    queue.set_max_active(2).unwrap();
    assert_eq!((queue.active(), queue.held()), (4, 2));
    queue.set_max_active(0).unwrap();
    assert_eq!((queue.active(), queue.held()), (6, 0), "0 is no limit");
    assert_eq!(queue.attributes().max_active, 0);
    gate.complete();
    queue.flush();
}

#[test]
fn a_limit_for_a_queue_that_had_none_counts_what_comes_later() {
    let queue = queue(FOUR_SHARDS, |queue| queue);
    let before = occupy(&queue, 0, 5);
    queue.set_max_active(1).unwrap();
    let after = occupy(&queue, 0, 3);
    assert_eq!((queue.active(), queue.held()), (6, 2));
    before.complete();
    after.complete();
    queue.flush();
    assert_eq!((queue.active(), queue.held()), (0, 0));
}

#[test]
fn the_maximum_of_an_ordered_queue_is_one() {
    let queue = queue(FOUR_SHARDS, |q| q.kind(QueueKind::Ordered));
    assert!(matches!(queue.set_max_active(2), Err(BuildError::Conflict { .. })));
    queue.set_max_active(1).unwrap();
    let gate = occupy(&queue, 0, 2);
    assert_eq!((queue.active(), queue.held()), (1, 1));
    gate.complete();
    queue.flush();
}

#[test]
fn held_items_run_at_a_shutdown_also_on_pods_without_workers() {
    let machine = Machine::synthetic(FOUR_SHARDS).unwrap();
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("held").strict(true).max_active(1).build(&pools).unwrap();
    let gate = occupy(&queue, 0, 1);
    let items: Vec<_> =
        (0..32).map(|cpu| queue.at(At::Cpu(CpuId::new(cpu))).spawn(move || cpu)).collect();
    std::thread::scope(|scope| {
        let down = scope.spawn(|| pools.shutdown());
        spin_until(|| pools.report().iter().filter(|pool| pool.workers > 0).count() <= 1);
        gate.complete();
        down.join().unwrap();
    });
    for (cpu, item) in (0..).zip(items) {
        assert_eq!(item.join().unwrap(), cpu);
    }
}

#[test]
fn the_scope_does_not_matter_to_the_maximum() {
    for scope in AffinityScope::ALL {
        let queue = queue("numa:1 l3:2 core:4 pu:2", |queue| queue.scope(scope).max_active(3));
        let gates: Vec<_> = (0..16).map(|cpu| occupy(&queue, cpu, 1)).collect();
        assert_eq!((queue.active(), queue.held()), (3, 13), "{scope}");
        gates.iter().for_each(|gate| gate.complete());
        queue.flush();
    }
}
