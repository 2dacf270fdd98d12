//! Joins inside items: their second closures are forks, which idle workers steal.

use std::cell::RefCell;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use corewise_sync::Completion;
use corewise_sync::context::{self, AtomicSection};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{At, Work, WorkerPools, Workqueue, blocking};

use crate::chance;
use crate::setup::queue;
use crate::spin::spin_until;
use crate::trees::{Size, scenario};

/// Runs `f` in an item, on a worker.
fn on_a_worker<R: Send + 'static>(
    queue: &Workqueue,
    f: impl FnOnce(&Workqueue) -> R + Send + 'static,
) -> R {
    let (own, (sends, result)) = (queue.clone(), mpsc::channel());
    queue.execute(move || drop(sends.send(f(&own)))).expect("an open queue");
    // A wait of the library would take the item back.
    result.recv().expect("no panic")
}

fn fib(queue: &Workqueue, n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (one, other) = queue.join(|| fib(queue, n - 1), || fib(queue, n - 2));
    one + other
}

#[test]
fn a_fork_is_stolen_while_its_owner_is_busy_and_runs_as_an_item_of_its_queue() {
    let (pools, queue) = queue(2);
    let (here, there): (ThreadId, ThreadId) = on_a_worker(&queue, |queue| {
        let (tells, told) = mpsc::channel();
        let busy = || {
            blocking("the other closure", || told.recv()).expect("it is called");
            thread::current().id()
        };
        let stolen = move || {
            tells.send(()).expect("the owner waits");
            thread::current().id()
        };
        queue.join(busy, stolen)
    });
    assert_ne!(here, there);
    queue.flush();
    assert_eq!(queue.stats().queued, 1, "a fork is a part of its item");
    pools.shutdown();
}

/// Returns this machine, with its pools; `None` if it has one CPU, since the guest needs that.
fn live() -> Option<WorkerPools> {
    let machine = Machine::live().expect("this machine");
    let pools = WorkerPools::builder(&machine).concurrency(usize::MAX);
    (machine.online().len() > 1).then(|| pools.build())
}

/// Returns whether a join's second closure was called on another thread. Its first closure ends
/// when the second has been called.
fn is_helped(queue: &Workqueue) -> bool {
    let (tells, told) = mpsc::channel();
    let (here, there) = queue.join(
        || {
            told.recv().expect("it is called");
            thread::current().id()
        },
        move || {
            tells.send(()).expect("the owner waits");
            thread::current().id()
        },
    );
    here != there
}

#[test]
fn a_join_outside_of_the_items_wakes_a_worker_that_steals() {
    let Some(pools) = live() else { return };
    let queue = Workqueue::builder("outside").scope(AffinityScope::System).build(&pools);
    assert!(is_helped(&queue.expect("a queue")));
}

#[test]
fn a_thread_outside_may_block_in_a_long_part_of_its_join() {
    let Some(pools) = live() else { return };
    let queue = Workqueue::builder("outside").scope(AffinityScope::System).build(&pools);
    let queue = queue.expect("a queue");
    let blocks = || context::blocking("a test", || is_helped(&queue));
    let long = || context::long_running("a test", blocks);
    assert_eq!(queue.join(long, || is_helped(&queue)), (true, true));
    assert!(is_helped(&queue), "it counts as one thread again");
}

#[test]
fn a_join_in_an_item_of_another_queue_wakes_a_worker_of_its_own_queue() {
    let Some(pools) = live() else { return };
    let [of_cpus, of_all] = [AffinityScope::Cpu, AffinityScope::System].map(|scope| {
        Workqueue::builder("pools").scope(scope).strict(scope == AffinityScope::Cpu).build(&pools)
    });
    let (of_cpus, of_all) = (of_cpus.expect("a queue"), of_all.expect("a queue"));
    let cpus = Machine::live().expect("this machine").online();
    for cpu in &cpus {
        let of_all = of_all.clone();
        assert!(
            of_cpus.at(At::Cpu(cpu)).spawn(move || is_helped(&of_all)).join().expect("no panic")
        );
    }
}

#[test]
fn a_queue_whose_limit_is_reached_lets_no_fork_be_stolen() {
    let machine = Machine::synthetic("numa:1 l3:1 core:4 pu:1").expect("valid");
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("one").scope(AffinityScope::System).max_active(1);
    let queue = queue.build(&pools).expect("a queue");
    let spins = |queue: &Workqueue| {
        let here = thread::current().id();
        let there = || {
            std::hint::black_box((0..100_000_u64).fold(0, |a, b| a ^ std::hint::black_box(b)));
            thread::current().id()
        };
        for _ in 0..20 {
            assert_eq!(queue.join(there, there), (here, here));
        }
    };
    on_a_worker(&queue, spins);
}

#[test]
fn trees_of_joins_scopes_and_maps_come_to_what_a_plain_recursion_does() {
    chance::torture(|chance| scenario(chance, Size { trees: 6, depth: 7, rounds: 2_000 }));
}

/// Joins when it is dropped, and sends whether the result is right.
struct JoinsInDrop(Workqueue, mpsc::Sender<bool>);

impl Drop for JoinsInDrop {
    fn drop(&mut self) {
        // The receiver may be gone.
        let _ = self.1.send(fib(&self.0, 10) == 55);
    }
}

thread_local! {
    static AT_THE_END: RefCell<Option<JoinsInDrop>> = const { RefCell::new(None) };
}

#[test]
fn a_destructor_of_an_item_may_join() {
    let (_pools, queue) = queue(2);
    let (tells, told) = mpsc::channel();
    let joins = || JoinsInDrop(queue.clone(), tells.clone());
    // The destructors run inside the run, after it, and without a run.
    let captured = joins();
    queue.spawn(move || drop(captured)).join().expect("no panic");
    let captured = joins();
    queue.queue(&Work::new(move || _ = &captured)).expect("an open queue");
    queue.flush();
    let (captured, open, gate) =
        (joins(), Arc::new(Completion::new()), Arc::new(Completion::new()));
    drop(Work::new(move || _ = &captured));
    let (says, waits) = (Arc::clone(&open), Arc::clone(&gate));
    let full = Workqueue::builder("full").max_active(1).build(&_pools).expect("a queue");
    let busy = full.spawn(move || {
        says.complete();
        waits.wait();
    });
    open.wait();
    let captured = joins();
    full.spawn(move || _ = &captured).abort();
    gate.complete();
    busy.join().expect("no panic");
    full.flush();
    drop(tells);
    assert_eq!(told.iter().collect::<Vec<_>>(), [true; 4]);
}

#[test]
fn a_destructor_of_a_thread_s_variable_may_join_on_a_worker_and_elsewhere() {
    let machines = [Machine::synthetic("core:2 pu:1"), Machine::live()];
    for machine in machines.map(|machine| machine.expect("a machine")) {
        let pools = WorkerPools::new(&machine);
        let queue = Workqueue::builder("ends").scope(AffinityScope::System).build(&pools);
        let queue = queue.expect("a queue");
        let (tells, told) = mpsc::channel();
        let at_the_end = {
            let (queue, tells) = (queue.clone(), tells.clone());
            move || AT_THE_END.set(Some(JoinsInDrop(queue.clone(), tells.clone())))
        };
        thread::spawn(at_the_end.clone()).join().expect("no panic");
        assert_eq!(told.recv(), Ok(true), "on a thread of its own");
        on_a_worker(&queue, move |_| at_the_end());
        // Its worker ends, and the queue takes nothing any more.
        pools.shutdown();
        assert_eq!(told.recv(), Ok(true), "on a worker");
    }
}

#[test]
fn a_join_in_an_atomic_section_offers_nothing_whatever_its_item_has_offered() {
    let (_pools, queue) = queue(4);
    on_a_worker(&queue, |queue| {
        let before = context::violations();
        let inside = || {
            let _section = AtomicSection::enter("the test");
            let here = thread::current().id();
            let there = || thread::current().id();
            (0..50).for_each(|_| assert_eq!(queue.join(there, there), (here, here)));
            let nested = || queue.join(|| fib(queue, 8), || fib(queue, 9));
            assert_eq!(queue.join(nested, nested), ((21, 34), (21, 34)));
            context::violations()
        };
        // The fork is off the ring, on it, and beside a full one.
        assert_eq!(inside(), before);
        queue.join(|| assert_eq!(inside(), before), || ());
        fn below(queue: &Workqueue, levels: u32, inside: &(dyn Fn() + Sync)) {
            match levels {
                0 => inside(),
                _ => drop(queue.join(|| below(queue, levels - 1, inside), || ())),
            }
        }
        below(queue, 10, &|| assert_eq!(inside(), before));
    });
}

/// Sums up a recursion with one closure that recurses, the first or the second, and one that ends.
fn list(queue: &Workqueue, left: u32, first_goes_on: bool) -> u32 {
    if left == 0 {
        return 0;
    }
    let goes_on = || list(queue, left - 1, first_goes_on);
    let (one, others) =
        if first_goes_on { queue.join(goes_on, || 1) } else { queue.join(|| 1, goes_on) };
    one + others
}

#[test]
fn a_recursion_of_a_thousand_levels_ends_whichever_closure_goes_on() {
    let (_pools, queue) = queue(4);
    for first_goes_on in [false, true] {
        for _ in 0..5 {
            let came_to = on_a_worker(&queue, move |queue| list(queue, 1_000, first_goes_on));
            assert_eq!(came_to, 1_000);
        }
    }
}

#[test]
fn a_stolen_fork_is_named_by_the_line_of_its_join_in_dumps_and_stall_reports() {
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("valid");
    let (reports, reported) = mpsc::channel();
    let reports = Mutex::new(reports);
    let pools = WorkerPools::builder(&machine)
        .cpu_intensive_after(Duration::ZERO)
        .stall_after(Duration::from_millis(1))
        .on_stall(move |report| {
            let _ = reports.lock().expect("no panic").send(report.to_string());
        })
        .build();
    let queue = Workqueue::builder("named").scope(AffinityScope::System).build(&pools);
    let queue = queue.expect("a queue");
    let (called, over) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    // Both items hold their cores.
    let spins_until = |event: &Completion| spin_until(|| event.is_complete());
    let (own, says, ends) = (queue.clone(), Arc::clone(&called), Arc::clone(&over));
    let item = queue.spawn(move || {
        let fork = || {
            says.complete();
            spins_until(&ends);
        };
        own.join(|| spins_until(&ends), fork);
    });
    let line = line!() - 2;
    called.wait();
    let named = format!("forks.rs:{line}:");
    let running = pools.dump().running;
    assert!(running.iter().any(|one| one.site.contains(&named)), "{named} in {running:?}");
    assert_eq!(running.len(), 2, "its owner too: {running:?}");
    // No worker can take this one.
    let waits = queue.spawn(|| ());
    let report = reported.recv().expect("a stall");
    assert!(report.contains(&named), "{named} in {report}");
    over.complete();
    item.join().expect("no panic");
    waits.join().expect("no panic");
}

#[test]
fn a_join_of_which_both_closures_fail_has_the_panic_of_the_first_also_where_a_destructor_panics() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in the destructor of the second's value");
        }
    }
    fn deep(queue: &Workqueue, levels: usize) {
        if levels == 0 {
            let first: fn() = || panic!("in the first");
            drop(queue.join(first, || Bomb));
        } else {
            queue.join(|| deep(queue, levels - 1), || ());
        }
    }
    let (_pools, queue) = queue(1);
    for levels in [0, 10] {
        let message = on_a_worker(&queue, move |queue| {
            let caught =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| deep(queue, levels)));
            caught.expect_err("it panics").downcast_ref::<&str>().map(|text| (*text).to_owned())
        });
        assert_eq!(message.as_deref(), Some("in the first"), "{levels} levels");
    }
}

#[test]
fn a_reduction_that_panics_begins_no_further_item() {
    let (_pools, queue) = queue(1);
    let called = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&called);
    on_a_worker(&queue, move |queue| {
        let count = |n: u32| {
            *counts.lock().expect("no panic") += 1;
            n
        };
        let panics = |_, _| -> u32 { panic!("on purpose") };
        let reduced = || queue.reduce(0..1_000_u32, count, panics);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(reduced)).expect_err("it panics");
    });
    assert!(*called.lock().expect("no panic") < 1_000);
}

#[test]
fn an_item_that_a_thief_takes_back_forks_nothing_that_the_waiting_owner_would_call() {
    thread_local! {
        static JOINS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    let (_pools, queue) = queue(2);
    let foreign = on_a_worker(&queue, |queue| {
        let (tells, told) = mpsc::channel();
        let foreign = Mutex::new(0_u32);
        JOINS.set(true);
        let owner = || blocking("the other closure", || told.recv()).expect("it is called");
        queue.join(owner, || {
            tells.send(()).expect("the owner waits");
            // The owner hasn't made this item: its thief takes it back, and the item forks.
            let own = queue.clone();
            let other = thread::spawn(move || {
                let forks = own.clone();
                own.spawn(move || {
                    let spin = || (0..20_000_u64).fold(0, |a, b| a ^ std::hint::black_box(b));
                    let wrong = Mutex::new(0);
                    for _ in 0..50 {
                        forks.join(spin, || {
                            *wrong.lock().expect("no panic") += u32::from(JOINS.get());
                            spin()
                        });
                    }
                    wrong.into_inner().expect("no panic")
                })
            });
            let item = other.join().expect("no panic");
            *foreign.lock().expect("no panic") = item.join().expect("no panic");
        });
        JOINS.set(false);
        foreign.into_inner().expect("no panic")
    });
    assert_eq!(foreign, 0, "parts of another item ran inside the join");
}

/// Checks a join after the end of the library's thread-locals, which are younger.
#[test]
fn a_destructor_of_a_thread_local_that_is_older_than_the_library_s_joins() {
    struct Joins(mpsc::Sender<(u32, u32)>, Workqueue);
    impl Drop for Joins {
        fn drop(&mut self) {
            self.0.send(self.1.join(|| 1, || 2)).expect("the test waits");
        }
    }
    thread_local! {
        static JOINS: std::cell::RefCell<Option<Joins>> = const { std::cell::RefCell::new(None) };
    }
    let pools = WorkerPools::new(&Machine::live().expect("this machine"));
    let queue = Workqueue::builder("outside").scope(AffinityScope::System).build(&pools);
    let queue = queue.expect("a queue");
    let (tells, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        JOINS.with(|joins| *joins.borrow_mut() = Some(Joins(tells, queue.clone())));
        queue.join(|| (), || ());
    });
    thread.join().expect("no panic");
    assert_eq!(told.recv(), Ok((1, 2)));
}

#[test]
fn a_worker_s_loop_that_is_run_on_another_worker_s_thread_is_lost_and_harms_no_lane() {
    let (pools, queue) = queue(2);
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("valid");
    let (sends, workers) = mpsc::channel::<corewise_workqueue::WorkerThread>();
    let sends = Mutex::new(sends);
    let hands_over = move |worker| {
        let sent = sends.lock().expect("no panic").send(worker);
        sent.map_err(|_| std::io::Error::other("nobody takes it"))
    };
    let others = WorkerPools::builder(&machine).spawn_handler(hands_over).build();
    let other = Workqueue::builder("others").scope(AffinityScope::System).build(&others);
    let other = other.expect("a queue");
    let item = other.spawn(|| 7);
    on_a_worker(&queue, move |queue| {
        assert_eq!(queue.join(|| 1, || 2), (1, 2));
        workers.recv().expect("a worker is wanted").run();
        assert_eq!(queue.join(|| 1, || 2), (1, 2));
        drop(workers);
    });
    pools.shutdown();
    drop(pools);
    // No test thread runs the other pools' workers: the waiter runs their items.
    others.shutdown();
    assert!(item.join().is_err(), "it was cancelled");
    assert_eq!(other.map(0..3, |n: i32| n + 1), [1, 2, 3]);
}
