//! Tests of `WorkerPools::dump`, on real threads of described machines.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::mpsc::channel;
use std::time::Duration;

use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{At, Dump, QueueKind, Queued, Work, WorkerPools, Workqueue};

fn two_nodes() -> WorkerPools {
    WorkerPools::new(&Machine::synthetic("numa:2 l3:1 core:12 pu:1").unwrap())
}

/// Returns pools of one CPU that don't find out that an item blocks: the items behind it go on
/// waiting.
fn one_at_a_time() -> WorkerPools {
    let machine = Machine::synthetic("core:1 pu:1").unwrap();
    WorkerPools::builder(&machine).cpu_intensive_after(Duration::ZERO).build()
}

/// Dumps until `seen` returns true: a worker may not have done its next step yet.
#[track_caller]
fn dump_until(pools: &WorkerPools, seen: impl Fn(&Dump) -> bool) -> Dump {
    loop {
        let dump = pools.dump();
        if seen(&dump) {
            return dump;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_dump_of_pools_without_a_queue_has_the_scopes() {
    let dump = two_nodes().dump();
    assert_eq!(dump.pools, []);
    assert_eq!(dump.queues, []);
    assert_eq!((dump.cpus.to_string().as_str(), dump.epoch), ("0-23", 1));
    let names: Vec<_> = dump.scopes.iter().map(|scope| (scope.scope, scope.pods.len())).collect();
    assert_eq!(
        names,
        [
            (AffinityScope::Cpu, 24),
            (AffinityScope::Smt, 24),
            (AffinityScope::Cache, 2),
            (AffinityScope::CacheShard, 4),
            (AffinityScope::Numa, 2),
            (AffinityScope::System, 1)
        ]
    );
    assert_eq!(dump.scopes.iter().filter(|scope| scope.default).count(), 1);
}

#[test]
fn counters_of_queues_links_and_pools_add_up() {
    let pools = two_nodes();
    let first = Workqueue::builder("first").strict(true).build(&pools).unwrap();
    let second = Workqueue::builder("second").scope(AffinityScope::Numa).build(&pools).unwrap();
    for _ in 0..10 {
        first.at(At::Cpu(CpuId::new(0))).spawn(|| ()).join().unwrap();
        first.at(At::Cpu(CpuId::new(13))).spawn(|| ()).join().unwrap();
        second.at(At::Node(1)).spawn(|| ()).join().unwrap();
    }
    first.flush();
    second.flush();
    let ran = |dump: &Dump| dump.pools.iter().map(|pool| pool.state.ran).sum::<u64>();
    let dump = dump_until(&pools, |dump| ran(dump) == 30);
    let names: Vec<_> = dump.queues.iter().map(|queue| (queue.id, queue.name.as_str())).collect();
    assert_eq!(names, [(1, "first"), (2, "second")]);
    let [first_dump, second_dump] = &dump.queues[..] else { unreachable!() };
    assert_eq!((first_dump.stats.queued, first_dump.stats.completed), (20, 20));
    assert_eq!((second_dump.stats.queued, second_dump.in_flight), (10, 0));
    assert_eq!(first_dump.links.len(), 4);
    for queue in &dump.queues {
        let of_links: u64 = queue.links.iter().map(|link| link.stats.queued).sum();
        assert_eq!(of_links, queue.stats.queued, "{}", queue.name);
        for link in &queue.links {
            let pool = &dump.pools[link.pool];
            assert_eq!((pool.id, pool.state.scope), (link.pool, queue.scope));
        }
    }
    // The queue is strict: items that were queued on a pod ran there.
    for link in &first_dump.links {
        assert_eq!(dump.pools[link.pool].state.ran, link.stats.queued);
    }
    assert!(dump.pools.iter().all(|pool| pool.links == 1), "{dump:?}");
    pools.shutdown();
    assert_eq!(pools.dump().queues.len(), 2, "it can be asked for after the shutdown");
    drop((first, second));
    assert_eq!(pools.dump().queues, [], "queues that are gone are left out");
}

#[test]
fn a_new_link_has_counted_nothing_whatever_was_counted_in_its_place() {
    let pools = two_nodes();
    let queue = Workqueue::builder("moves").scope(AffinityScope::Numa).build(&pools).unwrap();
    // The pods have as many CPUs: their items are counted in the same places, in turn.
    for scope in [AffinityScope::Cache, AffinityScope::Numa] {
        queue.at(At::Cpu(CpuId::new(0))).spawn(|| ()).join().unwrap();
        queue.flush();
        let mut attributes = queue.attributes();
        attributes.scope = scope;
        queue.set_attributes(&attributes).unwrap();
    }
    let dump = pools.dump();
    let [moves] = &dump.queues[..] else { unreachable!() };
    assert_eq!((moves.stats.queued, moves.stats.completed), (2, 2));
    for link in &moves.links {
        assert_eq!((link.stats.queued, link.stats.completed), (0, 0), "{dump:?}");
    }
}

#[test]
fn a_finished_item_is_over_while_its_worker_runs_the_next() {
    let pools = one_at_a_time();
    let queue = Workqueue::builder("quick and slow").build(&pools).unwrap();
    let (start, starting) = channel::<()>();
    let first = queue.spawn(move || {
        let _ = starting.recv();
    });
    let quick: Vec<_> = (0..5).map(|_| queue.spawn(|| ())).collect();
    let (release, released) = channel::<()>();
    let (started, starts) = channel();
    let slow = queue.spawn(move || {
        started.send(()).unwrap();
        let _ = released.recv();
    });
    drop(start);
    starts.recv().unwrap();
    let (dump, stats) = (pools.dump(), queue.stats());
    assert_eq!(dump.queues[0].in_flight, 1, "{dump:?}");
    assert_eq!((stats.queued, stats.completed, queue.active()), (7, 6, 1));
    drop(release);
    queue.flush();
    assert_eq!(queue.stats().completed, 7);
    for handle in quick.into_iter().chain([first, slow]) {
        handle.join().unwrap();
    }
}

#[test]
fn a_running_item_is_shown_with_its_function_and_the_line_that_queued_it() {
    let pools = WorkerPools::new(&Machine::synthetic("core:2 pu:1").unwrap());
    let queue = Workqueue::builder("slow").build(&pools).unwrap();
    let other = Workqueue::builder("other").build(&pools).unwrap();
    assert_eq!(pools.dump().running, []);
    let (release, released) = channel::<()>();
    let handle = queue.spawn(move || released.recv().is_ok());
    let line = line!() - 1;
    let dump = dump_until(&pools, |dump| !dump.running.is_empty());
    let [running] = &dump.running[..] else { panic!("{dump:?}") };
    assert_eq!((running.queue, running.pool, running.instance), (1, 0, 1));
    assert!(running.site.starts_with(&format!("{}:{line}:", file!())), "{}", running.site);
    assert!(running.function.contains("a_running_item_is_shown"), "{}", running.function);
    assert!(running.thread.is_some());
    let mut others = pools.dump();
    others.retain_queues(|name| name == "other");
    assert_eq!(others.running, []);
    drop(release);
    handle.join().unwrap();
    dump_until(&pools, |dump| dump.running.is_empty());
    drop(other);
}

#[test]
fn kinds_priorities_and_limits_of_queues_are_shown_and_who_is_held_back() {
    let pools = two_nodes();
    let _limited = Workqueue::builder("limited").max_active(3).nice(5).build(&pools).unwrap();
    let ordered = Workqueue::builder("ordered").kind(QueueKind::Ordered).build(&pools).unwrap();
    let _bound =
        Workqueue::builder("bound").kind(QueueKind::Bound).max_active(1).build(&pools).unwrap();
    let (release, released) = channel::<()>();
    let (started, starts) = channel();
    let first = ordered.at(At::Cpu(CpuId::new(0))).spawn(move || {
        started.send(()).unwrap();
        let _ = released.recv();
    });
    starts.recv().unwrap();
    let second = ordered.at(At::Cpu(CpuId::new(23))).spawn(|| ());
    let dump = pools.dump();
    let queue = |name: &str| dump.queues.iter().find(|queue| queue.name == name).unwrap();
    assert_eq!((queue("limited").nice, queue("limited").max_active), (5, Some(3)));
    assert_eq!(queue("bound").kind.name(), "bound");
    let places = |name: &str| -> Vec<_> {
        queue(name).slots.iter().map(|s| (s.place, s.active, s.max, s.held)).collect()
    };
    use corewise_workqueue::SlotPlace::{NoNode, Node, Pod, Queue};
    // At least 8 a node would be more than the maximum in all.
    let three = Some(3);
    assert_eq!(
        places("limited"),
        [(Node(0), 0, three, 0), (Node(1), 0, three, 0), (NoNode, 0, three, 0)]
    );
    assert_eq!(places("ordered"), [(Queue, 1, Some(1), 1)]);
    assert_eq!(places("bound").len(), 24);
    assert_eq!(places("bound")[23], (Pod(23), 0, Some(1), 0));
    assert_eq!(queue("ordered").in_flight, 2);
    let pool_of = |name: &str| &dump.pools[queue(name).links[0].pool];
    assert_eq!((pool_of("limited").nice, pool_of("bound").kind.name()), (5, "bound"));
    drop(release);
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn started_cancelled_and_run_time_are_counted_where_the_queue_is_timed() {
    let pools = one_at_a_time();
    let timed = Workqueue::builder("timed").timed(true).build(&pools).unwrap();
    let other = Workqueue::builder("other").build(&pools).unwrap();
    let (release, released) = channel::<()>();
    let (started, starts) = channel();
    let first = timed.spawn(move || {
        started.send(()).unwrap();
        let _ = released.recv();
    });
    starts.recv().unwrap();
    let work = Work::new(|| ());
    assert_eq!(timed.queue(&work), Ok(Queued::Now));
    let waiting = other.spawn(|| ());
    let dump = pools.dump();
    let numbers = |dump: &Dump, index: usize| {
        let queue = &dump.queues[index];
        let stats = &queue.stats;
        (stats.queued, queue.started(), queue.running, stats.completed, stats.cancelled)
    };
    assert_eq!(numbers(&dump, 0), (2, 1, 1, 0, 0), "{dump:?}");
    assert_eq!(numbers(&dump, 1), (1, 0, 0, 0, 0), "{dump:?}");
    assert!(work.cancel());
    drop(release);
    first.join().unwrap();
    waiting.join().unwrap();
    let dump = dump_until(&pools, |dump| dump.running.is_empty());
    timed.flush();
    assert_eq!(numbers(&dump, 0), (2, 1, 0, 2, 1), "{dump:?}");
    assert_eq!(timed.stats().cancelled, 1);
    assert!(timed.stats().run_time > Duration::ZERO);
    assert_eq!(other.stats().run_time, Duration::ZERO);
    assert_eq!((dump.queues[0].timed, dump.queues[1].timed), (true, false));
}

#[test]
fn delayed_items_and_the_rescuer_of_a_queue_are_shown() {
    let pools = WorkerPools::new(&Machine::synthetic("core:1 pu:1").unwrap());
    let queue = Workqueue::builder("careful").rescuer(true).build(&pools).unwrap();
    let plain = Workqueue::builder("plain").build(&pools).unwrap();
    let work = Work::new(|| ());
    assert_eq!(queue.queue_delayed(&work, Duration::from_secs(3600)), Ok(Queued::Now));
    let dump = pools.dump();
    let shown = |index: usize| {
        let queue = &dump.queues[index];
        (queue.rescuer, queue.delayed, queue.in_flight, queue.stats.queued)
    };
    assert_eq!((shown(0), shown(1)), ((true, 1, 0, 0), (false, 0, 0, 0)));
    assert!(work.cancel());
    assert_eq!(pools.dump().queues[0].delayed, 0);
    drop(plain);
}

#[test]
fn the_cpu_time_of_a_pool_grows_with_its_work_and_keeps_that_of_workers_that_left() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The CPU time of a thread isn't known here.
        return;
    }
    let pools = WorkerPools::new(&Machine::live().unwrap());
    let queue = Workqueue::builder("busy").scope(AffinityScope::System).build(&pools).unwrap();
    let spent = |dump: &Dump| dump.pools[0].cpu_time;
    let before = spent(&pools.dump());
    // This repeats until the scheduler has counted the time.
    while spent(&pools.dump()) <= before {
        let spin = || (0..1_000_000u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
        queue.spawn(spin).join().unwrap();
    }
    let live = spent(&pools.dump());
    pools.shutdown();
    let dump = pools.dump();
    assert_eq!(dump.pools[0].state.workers, 0);
    assert!(spent(&dump) >= live, "{:?} became {:?}", live, spent(&dump));
}

#[test]
fn queues_can_be_left_out() {
    let pools = WorkerPools::new(&Machine::synthetic("core:2 pu:1").unwrap());
    let _queues: Vec<_> =
        ["a", "b", "c"].map(|name| Workqueue::builder(name).build(&pools).unwrap()).into();
    let mut dump = pools.dump();
    dump.retain_queues(|name| name != "b");
    let names: Vec<_> = dump.queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(dump.pools[0].links, 3, "the pools stay as they are");
}
