//! Rescuers, with a clock that is driven by hand and a system that makes one worker and no more.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_topology::{AffinityScope, Machine};

use super::{Settings, Timekeeper};
use crate::attributes::At;
use crate::handle::join::JoinHandle;
use crate::pools::WorkerPools;
use crate::pwq::Pwq;
use crate::queue::Workqueue;
use crate::queue::builder::QueueBuilder;
use crate::task::running::Publication;
use crate::timekeeper::rescuer::Mayday;

const MS: Duration = Duration::from_millis(1);

/// One CPU, whose only worker waits, inside a blocking region, until `go`.
struct Stuck {
    pools: WorkerPools,
    keeper: Arc<Timekeeper>,
    go: Arc<Completion>,
    waits: Option<JoinHandle<()>>,
}

impl Stuck {
    fn new() -> Stuck {
        let keeper = Timekeeper::by_hand(Settings::default());
        let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").expect("a valid description");
        let asked = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&asked);
        let pools = WorkerPools::builder(&machine).keeper(&keeper).spawn_handler(move |worker| {
            if counts.fetch_add(1, Ordering::Relaxed) > 0 {
                return Err(io::Error::other("on purpose: no more threads"));
            }
            std::thread::spawn(|| worker.run());
            Ok(())
        });
        let pools = pools.build();
        let queue = builder("stuck").build(&pools).expect("a queue");
        let go = Arc::new(Completion::new());
        let gate = Arc::clone(&go);
        let waits = Some(queue.spawn(move || gate.wait()));
        // The spare worker that the pool wants then was refused, and isn't counted any more: only
        // now does it know that it is saturated.
        let refused = || asked.load(Ordering::Relaxed) > 1 && pools.report()[0].workers == 1;
        while !refused() {
            std::thread::yield_now();
        }
        Stuck { pools, keeper, go, waits }
    }

    fn queue(&self, name: &str) -> Workqueue {
        builder(name).rescuer(true).build(&self.pools).expect("a queue")
    }

    /// Returns what the timekeeper would call the queue's rescuer with.
    fn call(&self, queue: &Workqueue) -> Mayday {
        let (table, place) = (queue.table(), At::Here);
        let ticket = table.enter(place, table.pick(place));
        let (group, pool) = (Arc::clone(&Pwq::of(&ticket).group), Pwq::of(&ticket).pool);
        ticket.withdraw();
        Mayday { queue: Arc::clone(queue.shared()) as _, group, pool }
    }

    fn end(mut self) {
        self.go.complete();
        self.waits.take().expect("it is joined once").join().expect("no panic");
        self.pools.shutdown();
    }
}

/// Waits without a `join`, which might take the item back and run it here.
fn wait<T>(item: &JoinHandle<T>) {
    while !item.is_finished() {
        std::thread::yield_now();
    }
}

fn builder(name: &str) -> QueueBuilder {
    Workqueue::builder(name).scope(AffinityScope::System)
}

#[test]
fn rescuer_makes_progress_where_no_thread_can_be_made_and_is_never_counted() {
    let stuck = Stuck::new();
    let queue = stuck.queue("db");
    let pools = stuck.pools.clone();
    let rescued = queue.spawn(move || {
        let name = std::thread::current().name().map(String::from);
        (name, pools.report()[0].workers)
    });
    stuck.keeper.advance(9 * MS);
    assert_eq!(queue.stats().maydays, 0, "not before 10 ms");
    stuck.keeper.advance(10 * MS);
    stuck.keeper.advance(10 * MS);
    wait(&rescued);
    let (name, workers) = rescued.join().expect("no panic");
    assert_eq!((name.as_deref(), workers), (Some("cw-r-db"), 1));
    queue.flush();
    assert_eq!((queue.stats().maydays, queue.stats().rescued), (1, 1));
    stuck.end();
}

#[test]
fn rescuer_takes_only_items_of_its_queue() {
    let stuck = Stuck::new();
    let (queue, other) = (stuck.queue("db"), builder("other").build(&stuck.pools));
    let other = other.expect("a queue");
    let before = other.spawn(|| ());
    let mine = queue.spawn(|| ());
    for _ in 0..3 {
        stuck.keeper.advance(10 * MS);
    }
    wait(&mine);
    assert!(!before.is_finished(), "it is older, and another queue's");
    stuck.end();
    before.join().expect("the worker has run it");
}

#[test]
fn rescuer_runs_16_items_a_turn() {
    let stuck = Stuck::new();
    let queue = stuck.queue("db");
    let call = stuck.call(&queue);
    let items: Vec<_> = (0..20).map(|_| queue.spawn(|| ())).collect();
    assert!(call.turn(&Publication::new()), "there is more");
    assert_eq!(items.iter().filter(|item| item.is_finished()).count(), 16);
    assert!(!call.turn(&Publication::new()));
    assert!(items.iter().all(JoinHandle::is_finished));
    stuck.end();
}

#[test]
fn rescuer_stops_when_the_pool_has_a_worker_again() {
    let stuck = Stuck::new();
    let queue = stuck.queue("db");
    let call = stuck.call(&queue);
    let go = Arc::clone(&stuck.go);
    let pools = stuck.pools.clone();
    let first = queue.spawn(move || {
        go.complete();
        while pools.report()[0].blocked > 0 {
            std::thread::yield_now();
        }
    });
    let second = queue.spawn(|| std::thread::current().name().map(String::from));
    assert!(!call.turn(&Publication::new()));
    assert!(first.is_finished());
    second.join().expect("the worker has run it");
    assert_eq!(queue.stats().rescued, 1);
    stuck.end();
}

#[test]
fn rescuer_and_worker_may_both_shut_the_pools_down() {
    let stuck = Stuck::new();
    let (queue, plain) = (stuck.queue("db"), builder("plain").build(&stuck.pools));
    let plain = plain.expect("a queue");
    let ends = || {
        let pools = stuck.pools.clone();
        move || pools.shutdown()
    };
    let (by_worker, by_rescuer) = (plain.spawn(ends()), queue.spawn(ends()));
    for _ in 0..3 {
        stuck.keeper.advance(10 * MS);
    }
    while !queue.table().is_closed() {
        std::thread::yield_now();
    }
    stuck.go.complete();
    wait(&by_worker);
    wait(&by_rescuer);
    stuck.end();
}
