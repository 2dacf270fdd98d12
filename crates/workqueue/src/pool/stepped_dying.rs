//! Workers whose threads end by a panic that is no item's.
//!
//! Taking back what comes to a closed pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::FullFence;
use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::attributes::At;
use crate::error::Queued;
use crate::pool::PoolSpec;
use crate::pool::ending::WaitResult;
use crate::pool::group::{Group, Setup, Step};
use crate::pool::pins::Pinning;
use crate::pool::spawn::Spawner;
use crate::pool::stepped::{Log, group, park, push};
use crate::pool::worker::Worker;
use crate::pool::worker_thread::DeathGuard;
use crate::timekeeper::{Settings, Timekeeper};
use crate::{Work, WorkerPools, Workqueue};

/// Ends a worker as if a panic unwound through its body.
pub(super) fn die(group: &Arc<Group<FullFence>>, worker: &Arc<Worker>) {
    let died = catch_unwind(AssertUnwindSafe(|| {
        let _alive = DeathGuard { worker, group };
        panic!("on purpose");
    }));
    assert!(died.is_err());
}

#[test]
fn stepped_a_worker_that_dies_idle_or_woken_leaves_nothing_behind_and_another_takes_the_work() {
    let (group, log) = (group(1, 2), Log::default());
    let (stays, dies) = (group.enlist(0), group.enlist(0));
    park(&group, &stays);
    park(&group, &dies);
    die(&group, &dies);
    assert_eq!(group.pools[0].sizes(), (1, 1, 0, 0), "it was idle");
    die(&group, &dies);
    assert_eq!(group.pools[0].sizes(), (1, 1, 0, 0), "once is enough");

    let dies = group.enlist(0);
    park(&group, &dies);
    push(&group, 0, &log, 1);
    // It was taken off the idle list, and hasn't seen it.
    die(&group, &dies);
    assert!(stays.take_wake(), "the searcher has died: somebody else searches");
    assert_eq!(group.step(&stays), Step::Again);
    park(&group, &stays);
    assert_eq!(*log.lock(), [1]);
    assert_eq!(group.pools[0].sizes(), (1, 1, 0, 0));
}

#[test]
fn stepped_a_worker_that_dies_at_work_is_replaced_and_its_exemptions_go_with_it() {
    let (group, log) = (group(1, 1), Log::default());
    let (dies, other) = (group.enlist(0), group.enlist(0));
    park(&group, &other);
    group.begin_blocking(&dies);
    assert_eq!(group.pools[0].sizes().2, 1);
    push(&group, 0, &log, 1);
    die(&group, &dies);
    assert_eq!(group.pools[0].sizes().2, 0, "nobody is blocked");
    assert!(other.take_wake());
    assert_eq!(group.step(&other), Step::Again);
    park(&group, &other);
    group.close();
    die(&group, &other);
    assert_eq!(group.pools[0].sizes().0, 0);
    assert_eq!(group.wait_left(false, None), WaitResult::Not, "nobody is waited for");
}

#[test]
fn stepped_a_thread_whose_worker_died_has_no_lane_of_that_pool_any_more() {
    let lane = |group: &Group<FullFence>| group.pools[0].lanes.own(|| 0).map(ptr::from_ref);
    let (first, second) = (group(1, 1), group(1, 1));
    let dies = first.enlist(0);
    let own = lane(&first);
    assert!(own.is_some() && own == lane(&first));
    die(&first, &dies);
    assert_ne!(lane(&second), own);
    second.pools[0].lanes.leave();
}

/// Panics in each event.
struct Panics;

impl<S: Subscriber> Layer<S> for Panics {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        panic!("on purpose");
    }
}

#[test]
#[cfg_attr(miri, ignore = "it doesn't know the system call")]
fn a_thread_that_a_subscriber_s_panic_ends_is_no_worker_any_more() {
    let (died, tell) = (Arc::new(AtomicUsize::new(0)), Arc::new(corewise_sync::Completion::new()));
    let (counts, told) = (Arc::clone(&died), Arc::clone(&tell));
    let spawner = Spawner::by(move |worker| {
        let (died, tell) = (Arc::clone(&counts), Arc::clone(&tell));
        let body = move || {
            let subscriber = tracing_subscriber::registry().with(Panics);
            // It says that the worker can't be pinned.
            let run = || tracing::subscriber::with_default(subscriber, || worker.run());
            let ended = catch_unwind(AssertUnwindSafe(run));
            died.fetch_add(usize::from(ended.is_err()), Ordering::SeqCst);
            tell.complete();
        };
        std::thread::Builder::new().spawn(body).map(drop)
    });
    let no_such_cpu = CpuSet::from_iter([CpuId::new(1023)]);
    let spec = PoolSpec { pod: 0, cpus: no_such_cpu, node: None, max: 1, near: Vec::new() };
    let setup = Setup { pinning: Pinning::Cpu, spawner, ..Setup::by_hand(AffinityScope::Cpu) };
    let group: Arc<Group<FullFence>> = Arc::new(Group::new(setup, vec![spec]));
    group.start().expect("the handler makes a thread");
    told.wait();
    assert_eq!(died.load(Ordering::SeqCst), 1);
    assert_eq!(group.pools[0].sizes(), (0, 0, 0, 0));
    group.close();
    assert_eq!(group.wait_left(false, None), WaitResult::Not, "nobody is waited for");
}

#[test]
fn held_items_can_be_cancelled_also_in_closed_pools_with_busy_workers() {
    // Without a thread that looks at the pools now and then.
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("a valid description");
    let pools =
        WorkerPools::builder(&machine).keeper(&Timekeeper::by_hand(Settings::default())).build();
    let builder = || Workqueue::builder("closing").scope(AffinityScope::Cpu).strict(true);
    let plain = builder().build(&pools).expect("a queue");
    let limited = builder().max_active(1).build(&pools).expect("a queue");
    let (started, go) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (says, waits) = (Arc::clone(&started), Arc::clone(&go));
    // Without telling the pool, so that no other worker starts.
    let busy = plain.at(At::Cpu(CpuId::new(0))).spawn(move || {
        says.complete();
        while !waits.is_complete() {
            std::thread::yield_now();
        }
    });
    started.wait();
    let (active, held) = (Work::new(|| ()), Work::new(|| ()));
    assert_eq!(limited.at(At::Cpu(CpuId::new(0))).queue(&active), Ok(Queued::Now));
    assert_eq!(limited.at(At::Cpu(CpuId::new(0))).queue(&held), Ok(Queued::Now));
    assert_eq!((limited.active(), limited.held()), (1, 1));
    let shutdown = {
        let pools = pools.clone();
        std::thread::spawn(move || pools.shutdown())
    };
    // The pool of CPU 0 is closed before that of CPU 1, whose worker then leaves.
    while pools.report().iter().any(|pool| pool.pod == 1 && pool.workers > 0) {
        std::thread::yield_now();
    }
    assert!(active.cancel(), "its place goes to the one that was held back");
    assert!(held.cancel(), "which lies in the pool now");
    go.complete();
    shutdown.join().expect("no panic");
    busy.join().expect("it ran");
    assert_eq!(limited.stats().cancelled, 2);
}
