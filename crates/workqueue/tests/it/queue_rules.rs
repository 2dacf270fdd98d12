//! The rules of "Flags", and of draining and destroying, one test each, on real threads. Those of
//! `max_active` and of the attributes have files of their own.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::{Completion, Countdown, Mutex};
use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{
    At, BuildError, JoinError, QueueBuilder, QueueError, QueueKind, Work, WorkerPools, Workqueue,
};

use crate::setup::{block, described as pools, pod};
use crate::spin::spin_until;

/// One node of four shards of eight cores.
const FOUR_SHARDS: &str = "numa:1 l3:1 core:32 pu:1";
const FOUR_CPUS: &str = "numa:1 l3:1 core:4 pu:1";

fn build(description: &str, set: impl FnOnce(QueueBuilder) -> QueueBuilder) -> Workqueue {
    set(Workqueue::builder("test")).build(&pools(description)).expect("a queue")
}

/// Waits until a drain has begun: until the queue refuses items from outside.
fn await_drain(queue: &Workqueue) {
    // Each is a new one, so that it can't be refused for being pending.
    spin_until(|| queue.queue(&Work::new(|| ())) == Err(QueueError::Draining));
}

// Bound.

#[test]
fn a_bound_queues_item_runs_on_the_cpu_that_queued_it() {
    let queue = build(FOUR_CPUS, |q| q.kind(QueueKind::Bound));
    assert_eq!(queue.kind(), QueueKind::Bound);
    // This holds also while that CPU's worker is busy and the others are idle.
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let busy = queue
        .at(At::Cpu(CpuId::new(2)))
        .spawn(move || spin_until(|| stopped.load(Ordering::SeqCst)));
    let items: Vec<_> =
        (0..4).map(|cpu| (cpu, queue.at(At::Cpu(CpuId::new(cpu))).spawn(pod))).collect();
    let second = queue.at(At::Cpu(CpuId::new(2))).spawn(pod);
    for (cpu, item) in items.into_iter().filter(|(cpu, _)| *cpu != 2) {
        assert_eq!(item.join().unwrap(), Some(cpu));
    }
    stop.store(true, Ordering::SeqCst);
    busy.join().unwrap();
    assert_eq!(second.join().unwrap(), Some(2));
}

#[test]
fn on_the_live_machine_a_bound_item_is_on_the_cpu_that_queued_it() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let machine = Machine::live().expect("it can be read");
    let queue = Workqueue::builder("live")
        .kind(QueueKind::Bound)
        .build(&WorkerPools::new(&machine))
        .unwrap();
    for cpu in &machine.online() {
        let here = queue.at(At::Cpu(cpu)).spawn(corewise_topology::current_cpu).join().unwrap();
        assert_eq!(here, Some(cpu));
    }
}

#[test]
fn a_bound_pool_starts_another_worker_when_its_running_one_blocks() {
    let queue = build(FOUR_CPUS, |q| q.kind(QueueKind::Bound));
    let gate = block(&queue, 1);
    assert_eq!(queue.at(At::Cpu(CpuId::new(1))).spawn(pod).join().unwrap(), Some(1));
    gate.complete();
}

#[test]
fn bound_and_unbound_pools_of_a_cpu_do_not_interact() {
    let pools = pools("numa:1 l3:1 core:1 pu:1");
    let bound = Workqueue::builder("bound").kind(QueueKind::Bound).build(&pools).unwrap();
    let unbound = Workqueue::builder("unbound").scope(AffinityScope::Cpu).strict(true);
    let unbound = unbound.build(&pools).unwrap();
    let (inside, stop) = (Arc::new(Completion::new()), Arc::new(AtomicBool::new(false)));
    let (says, stopped) = (Arc::clone(&inside), Arc::clone(&stop));
    let busy = bound.spawn(move || {
        says.complete();
        spin_until(|| stopped.load(Ordering::SeqCst));
    });
    inside.wait();
    unbound.spawn(|| ()).join().unwrap();
    stop.store(true, Ordering::SeqCst);
    busy.join().unwrap();
}

// Unbound.

#[test]
fn an_unbound_queues_items_start_as_soon_as_possible() {
    let queue = build(FOUR_CPUS, |queue| queue.scope(AffinityScope::System));
    // All four run at once, though one CPU queued them.
    let all = Arc::new(Countdown::new(4));
    let items: Vec<_> = (0..4)
        .map(|_| {
            let all = Arc::clone(&all);
            queue.at(At::Cpu(CpuId::new(0))).spawn(move || {
                all.done();
                spin_until(|| all.remaining() == 0);
            })
        })
        .collect();
    items.into_iter().for_each(|item| item.join().unwrap());
}

// Ordered.

#[test]
fn an_ordered_queue_runs_one_item_at_a_time_in_queueing_order_wherever_they_are_queued() {
    let queue = build(FOUR_SHARDS, |q| q.kind(QueueKind::Ordered));
    let (log, inside) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    for n in 0..2_000_u32 {
        let (log, inside) = (Arc::clone(&log), Arc::clone(&inside));
        drop(queue.at(At::Cpu(CpuId::new(n % 32))).spawn(move || {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            log.lock().push((n, pod()));
            inside.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    queue.flush();
    assert!(log.lock().iter().map(|(n, _)| *n).eq(0..2_000));
}

#[test]
fn an_ordered_queue_has_no_other_maximum_and_a_bound_one_no_other_scope() {
    let pools = pools(FOUR_CPUS);
    let ordered = || Workqueue::builder("o").kind(QueueKind::Ordered);
    let bound = || Workqueue::builder("b").kind(QueueKind::Bound);
    for queue in [ordered().max_active(2), bound().scope(AffinityScope::Numa)] {
        assert!(matches!(queue.build(&pools), Err(BuildError::Conflict { .. })));
    }
    ordered().max_active(1).build(&pools).unwrap();
    bound().scope(AffinityScope::Cpu).build(&pools).unwrap();
}

#[test]
fn a_queue_is_of_the_kind_that_was_asked_for_last() {
    let queue = Workqueue::builder("o").kind(QueueKind::Bound).kind(QueueKind::Ordered);
    assert_eq!(queue.build(&pools(FOUR_CPUS)).unwrap().kind(), QueueKind::Ordered);
}

// Draining.

#[test]
fn a_drain_accepts_only_what_the_queues_own_items_queue() {
    let queue = build(FOUR_SHARDS, |queue| queue);
    let gate = Arc::new(Completion::new());
    let (waits, inner) = (Arc::clone(&gate), queue.clone());
    let chain = Arc::new(AtomicUsize::new(0));
    let links = Arc::clone(&chain);
    drop(queue.spawn(move || {
        waits.wait();
        let (again, more) = (inner.clone(), Arc::clone(&links));
        drop(inner.at(At::Cpu(CpuId::new(8))).spawn(move || {
            drop(
                again
                    .at(At::Cpu(CpuId::new(16)))
                    .spawn(move || more.fetch_add(1, Ordering::SeqCst)),
            );
        }));
    }));
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| queue.drain());
        // The item is refused as soon as the drain has begun.
        await_drain(&queue);
        let work = Work::new(|| ());
        assert_eq!(queue.queue(&work), Err(QueueError::Draining));
        assert!(matches!(queue.spawn(|| ()).join(), Err(JoinError::Cancelled)));
        assert!(!work.is_pending() && !work.flush(), "it leaves no trace");
        gate.complete();
        drain.join().unwrap();
    });
    assert_eq!(chain.load(Ordering::SeqCst), 1, "the whole chain ran");
    queue.spawn(|| ()).join().expect("after the drain it accepts everything again");
}

#[test]
fn an_item_of_another_queue_is_no_chained_work() {
    let pools = pools(FOUR_CPUS);
    let drained = Workqueue::builder("drained").build(&pools).unwrap();
    let other = Workqueue::builder("other").build(&pools).unwrap();
    let gate = block(&drained, 0);
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| drained.drain());
        await_drain(&drained);
        let work = Work::new(|| ());
        let inner = drained.clone();
        assert_eq!(
            other.spawn(move || inner.queue(&work)).join().unwrap(),
            Err(QueueError::Draining)
        );
        gate.complete();
        drain.join().unwrap();
    });
}

#[test]
fn drains_of_several_threads_all_end_and_the_last_one_opens_the_queue() {
    let queue = build(FOUR_CPUS, |queue| queue.max_active(2));
    let gate = block(&queue, 0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| queue.drain());
        }
        await_drain(&queue);
        gate.complete();
    });
    queue.spawn(|| ()).join().unwrap();
}

#[test]
fn a_future_that_waits_is_let_through_a_drain_when_it_is_woken() {
    let queue = build(FOUR_CPUS, |queue| queue);
    let event = Arc::new(Completion::new());
    let waits = Arc::clone(&event);
    let (polled, says) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let told = Arc::clone(&polled);
    let future = queue.spawn_future(async move {
        told.complete();
        std::future::poll_fn(|cx| waits.poll_complete(cx)).await;
    });
    polled.wait();
    let gate = block(&queue, 1);
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| queue.drain());
        await_drain(&queue);
        event.complete();
        future.join().expect("it was accepted before the drain");
        gate.complete();
        drain.join().unwrap();
    });
    says.complete();
}

// The end.

#[test]
fn a_destroyed_queue_has_run_what_it_had_and_accepts_nothing() {
    let pools = pools(FOUR_SHARDS);
    let queue = Workqueue::builder("ends").max_active(1).build(&pools).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    for cpu in 0..32 {
        let ran = Arc::clone(&ran);
        drop(queue.at(At::Cpu(CpuId::new(cpu))).spawn(move || ran.fetch_add(1, Ordering::SeqCst)));
    }
    queue.destroy();
    assert_eq!(ran.load(Ordering::SeqCst), 32);
    assert_eq!(queue.queue(&Work::new(|| ())), Err(QueueError::Closed));
    assert!(matches!(queue.spawn(|| ()).join(), Err(JoinError::Cancelled)));
    let other = Workqueue::builder("stays").build(&pools).unwrap();
    other.spawn(|| ()).join().expect("the pools and their other queues go on");
}

#[test]
fn dropping_a_queue_leaves_its_work_to_run_also_what_is_held_back() {
    let pools = pools(FOUR_SHARDS);
    let queue = Workqueue::builder("dropped").max_active(1).build(&pools).unwrap();
    let gate = block(&queue, 0);
    let items: Vec<_> =
        (0..32).map(|cpu| queue.at(At::Cpu(CpuId::new(cpu))).spawn(move || cpu)).collect();
    drop((queue, pools));
    gate.complete();
    for (cpu, item) in (0..).zip(items) {
        assert_eq!(item.join().unwrap(), cpu);
    }
}

#[test]
fn items_queued_from_inside_are_counted_and_flushed_as_all_others() {
    let pools = WorkerPools::new(&Machine::synthetic("core:1 pu:1").unwrap());
    let queue = Arc::new(Workqueue::builder("chains").build(&pools).unwrap());
    let ran = Arc::new(AtomicUsize::new(0));
    fn link(queue: &Arc<Workqueue>, ran: &Arc<AtomicUsize>, left: usize) {
        let (inner, ran) = (Arc::clone(queue), Arc::clone(ran));
        drop(queue.spawn(move || {
            ran.fetch_add(1, Ordering::SeqCst);
            if left > 1 {
                link(&inner, &ran, left - 1);
            }
        }));
    }
    // This is more than a worker keeps to itself.
    (0..10).for_each(|_| link(&queue, &ran, 300));
    queue.drain();
    assert_eq!(ran.load(Ordering::SeqCst), 3_000);
    let stats = queue.stats();
    assert_eq!((stats.queued, stats.completed), (3_000, 3_000));
}
