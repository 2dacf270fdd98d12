//! Delayed items, with a clock that is driven by hand; workers are real threads.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::context::Placement;
use corewise_topology::{AffinityScope, CpuId, Machine};

use super::{Settings, Timekeeper};
use crate::attributes::{At, QueueKind};
use crate::error::{QueueError, Queued};
use crate::handle::work::Work;
use crate::pools::WorkerPools;
use crate::queue::Workqueue;
use crate::queue::builder::QueueBuilder;

const SEC: Duration = Duration::from_secs(1);

/// Pools of a machine of two CPUs, and their clock.
fn pools() -> (WorkerPools, Arc<Timekeeper>) {
    let keeper = Timekeeper::by_hand(Settings::default());
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("a valid description");
    (WorkerPools::builder(&machine).keeper(&keeper).build(), keeper)
}

fn builder() -> QueueBuilder {
    Workqueue::builder("delayed").scope(AffinityScope::Cpu).strict(true)
}

fn queue() -> (Workqueue, Arc<Timekeeper>) {
    let (pools, keeper) = pools();
    (builder().build(&pools).expect("a queue"), keeper)
}

/// Returns an item, and how often it has run.
fn counting() -> (Work, Arc<AtomicU32>) {
    let runs = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&runs);
    let work = Work::new(move || {
        counts.fetch_add(1, Ordering::Relaxed);
    });
    (work, runs)
}

fn ran(runs: &AtomicU32) -> u32 {
    runs.load(Ordering::Relaxed)
}

/// Queues an item that runs until it is told to go on, and waits until it has begun.
fn held(queue: &Workqueue, cpu: CpuId) -> Arc<Completion> {
    let (go, begun) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (waits, says) = (Arc::clone(&go), Arc::clone(&begun));
    // It keeps its core: the clock stands still, so nobody finds that out.
    drop(queue.at(At::Cpu(cpu)).spawn(move || {
        says.complete();
        while !waits.is_complete() {
            std::thread::yield_now();
        }
    }));
    begun.wait();
    go
}

#[test]
fn delayed_an_item_is_queued_when_its_time_has_come_and_not_before() {
    let (queue, keeper) = queue();
    let (work, runs) = counting();
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now));
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::AlreadyPending), "it is pending");
    assert_eq!(queue.queue(&work), Ok(Queued::AlreadyPending), "it is pending");
    assert!(keeper.advance(SEC - Duration::from_nanos(1)));
    queue.flush();
    assert!(work.is_pending() && ran(&runs) == 0, "a flush of the queue doesn't wait for it");
    assert!(!keeper.advance(Duration::from_nanos(1)), "no timer is left");
    work.flush();
    assert_eq!(ran(&runs), 1);
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now), "and it can be queued again");
    work.cancel();
}

#[test]
fn delayed_zero_is_an_immediate_queue_without_a_timer() {
    let (queue, keeper) = queue();
    let (work, runs) = counting();
    assert_eq!(queue.queue_delayed(&work, Duration::ZERO), Ok(Queued::Now));
    work.flush();
    assert_eq!(ran(&runs), 1);
    assert!(!keeper.advance(Duration::ZERO));
}

#[test]
fn delayed_timers_fire_on_the_remembered_cpu() {
    let (queue, keeper) = queue();
    for cpu in [1, 0] {
        let pod = Arc::new(AtomicU32::new(99));
        let says = Arc::clone(&pod);
        let work = Work::new(move || {
            let pod = Placement::current().and_then(|placed| placed.pod);
            says.store(pod.expect("a worker is placed"), Ordering::Relaxed);
        });
        assert_eq!(
            queue.queue_later(At::Cpu(CpuId::new(cpu)), &work, SEC, Location::caller(), false),
            Ok(Queued::Now)
        );
        keeper.advance(SEC);
        work.flush();
        assert_eq!(pod.load(Ordering::Relaxed), cpu);
    }
}

#[test]
fn delayed_an_item_is_flushed_cancelled_and_disabled_as_any_other() {
    let (queue, keeper) = queue();
    let (work, runs) = counting();
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now));
    assert!(work.cancel());
    assert!(!work.is_pending() && !work.cancel());
    assert!(!keeper.advance(SEC), "its timer is gone");
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now));
    let flush = {
        let work = work.clone();
        std::thread::spawn(move || work.flush())
    };
    work.disable_sync();
    flush.join().expect("no panic");
    assert_eq!(queue.queue_delayed(&work, SEC), Err(QueueError::Disabled));
    assert_eq!(queue.mod_delayed(&work, SEC), Err(QueueError::Disabled));
    assert!(work.enable());
    assert!(!keeper.advance(SEC));
    queue.flush();
    assert_eq!(ran(&runs), 0);
}

#[test]
fn without_a_timer_an_open_queue_refuses_a_delay_and_leaves_all_as_it_was() {
    let (queue, keeper) = queue();
    let ((idle, never), (pending, runs)) = (counting(), counting());
    let go = held(&queue, CpuId::new(0));
    assert_eq!(queue.at(At::Cpu(CpuId::new(0))).queue(&pending), Ok(Queued::Now));
    // As if the system gave it no thread: there is no timer, and the queue takes work.
    keeper.close();
    assert_eq!(queue.queue_delayed(&idle, SEC), Err(QueueError::NoThread));
    assert_eq!(queue.mod_delayed(&idle, SEC), Err(QueueError::NoThread));
    assert_eq!(queue.mod_delayed(&pending, SEC), Err(QueueError::NoThread));
    assert!(!idle.is_pending() && pending.is_pending());
    go.complete();
    queue.flush();
    assert_eq!((ran(&never), ran(&runs)), (0, 1));
}

#[test]
fn mod_delayed_arms_an_idle_item_and_says_so() {
    let (queue, keeper) = queue();
    let (work, runs) = counting();
    assert_eq!(queue.mod_delayed(&work, SEC), Ok(Queued::Now));
    keeper.advance(SEC);
    work.flush();
    assert_eq!(ran(&runs), 1);
    assert_eq!(queue.mod_delayed(&work, Duration::ZERO), Ok(Queued::Now), "zero is now");
    work.flush();
    assert_eq!(ran(&runs), 2);
}

#[test]
fn mod_delayed_steals_an_item_from_its_timer() {
    let (queue, keeper) = queue();
    let (work, runs) = counting();
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now));
    assert_eq!(queue.mod_delayed(&work, 3 * SEC), Ok(Queued::AlreadyPending));
    keeper.advance(2 * SEC);
    assert!(work.is_pending(), "later than it was to be");
    assert_eq!(queue.mod_delayed(&work, Duration::ZERO), Ok(Queued::AlreadyPending));
    work.flush();
    assert_eq!(ran(&runs), 1);
    assert!(!keeper.advance(9 * SEC));
    queue.flush();
    assert_eq!(ran(&runs), 1, "one instance, one run");
}

#[test]
fn mod_delayed_steals_an_item_from_the_list() {
    let (queue, keeper) = queue();
    let go = held(&queue, CpuId::new(0));
    let (work, runs) = counting();
    assert_eq!(queue.at(At::Cpu(CpuId::new(0))).queue(&work), Ok(Queued::Now));
    assert_eq!(queue.mod_delayed(&work, SEC), Ok(Queued::AlreadyPending));
    go.complete();
    queue.flush();
    assert!(work.is_pending() && ran(&runs) == 0);
    keeper.advance(SEC);
    work.flush();
    assert_eq!(ran(&runs), 1);
}

#[test]
fn mod_delayed_steals_an_item_that_is_held_back() {
    let (pools, keeper) = pools();
    let ordered =
        Workqueue::builder("ordered").kind(QueueKind::Ordered).build(&pools).expect("a queue");
    let other = builder().build(&pools).expect("a queue");
    let go = held(&ordered, CpuId::new(0));
    let (work, runs) = counting();
    assert_eq!(ordered.queue(&work), Ok(Queued::Now));
    assert_eq!(other.mod_delayed(&work, SEC), Ok(Queued::AlreadyPending), "to another queue, too");
    keeper.advance(SEC);
    work.flush();
    assert_eq!(ran(&runs), 1, "while the first queue is still busy");
    go.complete();
    ordered.flush();
    assert_eq!((ordered.stats().queued, other.stats().queued), (2, 1));
}

#[test]
fn mod_delayed_steals_an_instance_that_was_handed_over() {
    let (queue, keeper) = queue();
    let (go, begun) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let runs = Arc::new(AtomicU32::new(0));
    let (waits, says, counts) = (Arc::clone(&go), Arc::clone(&begun), Arc::clone(&runs));
    let work = Work::new(move || {
        counts.fetch_add(1, Ordering::Relaxed);
        says.complete();
        waits.wait();
    });
    assert_eq!(queue.at(At::Cpu(CpuId::new(0))).queue(&work), Ok(Queued::Now));
    begun.wait();
    // Its own pod's next worker pops it, finds it running, and hands it over.
    assert_eq!(queue.at(At::Cpu(CpuId::new(1))).queue(&work), Ok(Queued::Now));
    queue.at(At::Cpu(CpuId::new(1))).spawn(|| ()).join().expect("no panic");
    assert_eq!(queue.mod_delayed(&work, SEC), Ok(Queued::AlreadyPending));
    go.complete();
    queue.flush();
    assert!(work.is_pending() && ran(&runs) == 1);
    keeper.advance(SEC);
    work.flush();
    assert_eq!(ran(&runs), 2);
}

#[test]
fn flush_delayed_work_fires_the_timer_now() {
    let (queue, keeper) = queue();
    let (work, runs) = counting();
    assert!(!work.flush_delayed(), "nothing to wait for");
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now));
    // It may be over before the flush looks: then there is nothing to wait for.
    work.flush_delayed();
    assert_eq!(ran(&runs), 1);
    assert!(!keeper.advance(SEC), "the timer is gone");
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    work.flush_delayed();
    assert_eq!(ran(&runs), 2, "where no timer runs it is a flush");
}

#[test]
fn delayed_items_of_a_queue_that_is_destroyed_are_cancelled() {
    let (pools, keeper) = pools();
    let (queue, other) = (builder().build(&pools), builder().build(&pools));
    let (queue, other) = (queue.expect("a queue"), other.expect("a queue"));
    let ((work, runs), (kept, kept_runs)) = (counting(), counting());
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now));
    assert_eq!(other.queue_delayed(&kept, SEC), Ok(Queued::Now));
    queue.destroy();
    assert!(!work.is_pending());
    assert_eq!(
        queue.queue_delayed(&work, SEC),
        Err(QueueError::Closed),
        "it takes nothing any more"
    );
    keeper.advance(SEC);
    kept.flush();
    assert_eq!((ran(&runs), ran(&kept_runs)), (0, 1));
}

#[test]
fn delayed_a_timer_keeps_its_queue_until_it_has_fired() {
    let (queue, keeper) = queue();
    let (work, runs) = counting();
    assert_eq!(queue.queue_delayed(&work, SEC), Ok(Queued::Now));
    drop(queue);
    keeper.advance(SEC);
    work.flush();
    assert_eq!(ran(&runs), 1);
}
