//! Items that wait for each other in a way that can't end. One of the waits ends with a panic that
//! gives the reason, or a limit lets one more through. No thread waits for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::{AffinityScope, CpuId};
use corewise_workqueue::{
    At, JoinError, JoinHandle, PoolsBuilder, QueueKind, Queued, Work, WorkerPools, Workqueue,
};

use crate::nested::by_scope;
use crate::setup::{capped, on_small_stack};
use crate::spin::spin_until;

fn pools(cpus: u32, max_workers: usize) -> PoolsBuilder {
    // A wait of this length counts as long.
    capped(cpus, max_workers).stall_after(Duration::from_millis(20))
}

/// Returns pools with workers whose stacks are small.
fn small(max_workers: usize) -> WorkerPools {
    pools(2, max_workers).spawn_handler(on_small_stack).build()
}

fn queue(pools: &WorkerPools) -> Workqueue {
    Workqueue::builder("test").scope(AffinityScope::System).build(pools).expect("a queue")
}

fn by_join(queue: &Workqueue, left: u32) -> Result<u32, JoinError> {
    if left == 0 {
        return Ok(0);
    }
    let own = queue.clone();
    queue.spawn(move || by_join(&own, left - 1)).join()?.map(|depth| depth + 1)
}

/// Checks a pool whose two workers run items of a plain queue. One of these queues an item that
/// takes the only place of the limited one; then each waits there, behind that item.
fn a_place_lies_in_the_full_pool(limited: &Workqueue, plain: &Workqueue, wait: fn(&Workqueue)) {
    let both = Arc::new(Barrier::new(2));
    let handles: Vec<_> = (0..2)
        .map(|n| {
            let (both, limited) = (Arc::clone(&both), limited.clone());
            plain.spawn(move || {
                both.wait();
                if n == 0 {
                    drop(limited.spawn(|| ()));
                }
                both.wait();
                wait(&limited);
            })
        })
        .collect();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        // They come one after the other, and not by a wait that could run an item here.
        spin_until(|| handles.iter().all(JoinHandle::is_finished));
        let ended: Vec<_> = handles.into_iter().map(|handle| handle.join().is_ok()).collect();
        let _ = tell.send(ended);
    });
    let ended = told.recv_timeout(Duration::from_secs(300)).expect("nobody waits for ever");
    // The one that isn't the next to be let through on an ordered queue goes on after the other
    // one.
    assert_eq!(ended, [true, true], "both waits end");
}

#[test]
fn a_wait_for_a_place_that_lies_in_the_full_pool_ends() {
    for ordered in [true, false] {
        let waits: [fn(&Workqueue); 3] = [
            |queue| queue.spawn(|| ()).join().expect("it runs"),
            |queue| queue.scope(|s| drop(s.spawn(|| ()))),
            |queue| {
                let work = Work::new(|| ());
                assert_eq!(queue.queue(&work), Ok(Queued::Now));
                work.flush();
            },
        ];
        for wait in waits {
            let pools = pools(2, 2).build();
            let builder = Workqueue::builder("limited").scope(AffinityScope::System);
            let builder =
                if ordered { builder.kind(QueueKind::Ordered) } else { builder.max_active(1) };
            let limited = builder.build(&pools).expect("a queue");
            a_place_lies_in_the_full_pool(&limited, &queue(&pools), wait);
            pools.shutdown();
        }
    }
}

#[test]
fn a_chain_that_no_stack_holds_ends_with_a_panic_that_says_so_and_the_pool_goes_on() {
    for max_workers in [1, 2] {
        let pools = small(max_workers);
        let queue = queue(&pools);
        let own = queue.clone();
        let said = queue.spawn(move || by_join(&own, 400)).join().expect("it was told");
        let error = said.expect_err("no stack holds so many");
        let message = error.message().expect("it panicked");
        assert!(message.contains("no worker can run it"), "{message}");
        assert!(message.contains(&format!("all {max_workers} workers")), "{message}");
        assert!(message.contains("of queue 'test'") && message.contains("tests/it/stuck.rs"));
        queue.flush();
        assert_eq!(queue.spawn(|| 7).join().unwrap(), 7);
        pools.shutdown();
    }
}

#[test]
fn a_scope_that_no_stack_holds_panics_and_nothing_that_it_lent_is_used_after() {
    let pools = small(2);
    let queue = queue(&pools);
    let own = queue.clone();
    let error = queue.spawn(move || by_scope(&own, 400)).join().expect_err("no stack holds it");
    assert!(error.message().unwrap().contains("no worker can run it"), "{error}");
    assert_eq!(queue.spawn(|| 7).join().unwrap(), 7);
    pools.shutdown();
}

#[test]
fn a_scope_whose_part_runs_elsewhere_and_waits_for_it_is_found() {
    let pools = pools(1, 8).build();
    let queue = queue(&pools);
    let (give, take) = mpsc::channel::<JoinHandle<()>>();
    let own = queue.clone();
    let item = queue.spawn(move || {
        let begun = &Completion::new();
        own.scope(|s| {
            let part = s.spawn(move || {
                begun.complete();
                drop(take.recv().expect("it is given").join());
            });
            drop(part);
            begun.wait();
        });
    });
    let (says, said) = mpsc::channel();
    // One of the two is given up.
    let waits = queue.spawn(move || {
        let waited = catch_unwind(AssertUnwindSafe(|| item.join()));
        let message = match waited {
            Ok(ended) => ended.err().and_then(|error| error.message().map(String::from)),
            Err(payload) => payload.downcast::<String>().ok().map(|text| *text),
        };
        says.send(message).expect("the test listens");
    });
    give.send(waits).expect("it waits for that");
    let message = said.recv().expect("it ends").expect("one of them panicked");
    assert!(message.contains("which is running and waits for this one"), "{message}");
    assert_eq!(queue.spawn(|| 7).join().unwrap(), 7);
}

#[test]
fn a_wait_for_what_may_only_run_elsewhere_is_not_blamed_on_the_stack() {
    let pools = pools(2, 1).build();
    let bound = Workqueue::builder("bound").kind(QueueKind::Bound).build(&pools).expect("a queue");
    let (there, back) = (bound.clone(), bound.clone());
    let item = bound.at(At::Cpu(CpuId::new(0))).spawn(move || {
        let other = there
            .at(At::Cpu(CpuId::new(1)))
            .spawn(move || back.at(At::Cpu(CpuId::new(0))).spawn(|| 4).join().unwrap());
        other.join()
    });
    let error = item.join().expect("it was told").expect_err("CPU 0 has no worker for it");
    let message = error.message().expect("it panicked");
    assert!(message.contains("it may not run here"), "{message}");
    assert!(!message.contains("RUST_MIN_STACK"), "{message}");
    assert_eq!(bound.at(At::Cpu(CpuId::new(0))).spawn(|| 7).join().unwrap(), 7);
    pools.shutdown();
}

#[test]
fn items_that_wait_in_a_circle_are_found() {
    let pools = pools(1, 8).build();
    let queue = queue(&pools);
    a_circle_is_found(&[queue.clone(), queue.clone(), queue]);
}

#[test]
fn a_circle_through_several_worker_pools_is_found() {
    let all = [(); 2].map(|()| pools(1, 8).build());
    let [one, other] = &all;
    a_circle_is_found(&[queue(one), queue(other), queue(other), queue(one)]);
    all.iter().for_each(WorkerPools::shutdown);
}

/// Checks that a circle of items of these queues is found.
fn a_circle_is_found(queues: &[Workqueue]) {
    let n = queues.len();
    let (give, take): (Vec<_>, Vec<_>) =
        (0..n).map(|_| mpsc::channel::<JoinHandle<Option<String>>>()).unzip();
    let (says, said) = mpsc::channel();
    // Each waits for the next one, and reports the result.
    let all = Arc::new(corewise_sync::Countdown::new(n));
    let item = |(queue, take): (&Workqueue, mpsc::Receiver<JoinHandle<_>>)| {
        let (says, all) = (says.clone(), Arc::clone(&all));
        queue.spawn(move || {
            all.done();
            all.wait();
            let next = take.recv().expect("it is given");
            let waited = catch_unwind(AssertUnwindSafe(|| drop(next.join())));
            let message = waited.err().map(|payload| *payload.downcast::<String>().expect("text"));
            says.send(message.clone()).expect("the test listens");
            message
        })
    };
    let mut items: Vec<_> = queues.iter().zip(take).map(item).collect();
    items.rotate_left(1);
    give.iter().zip(items).for_each(|(give, next)| give.send(next).expect("it waits for that"));
    let messages: Vec<_> = (0..n).filter_map(|_| said.recv().expect("each ends")).collect();
    assert_eq!(messages.len(), 1, "one of them was given up: {messages:?}");
    assert!(messages[0].contains("which is running and waits for this one"), "{messages:?}");
    for queue in queues {
        queue.flush();
        assert_eq!(queue.spawn(|| 7).join().ok(), Some(7));
    }
}

#[test]
fn a_circle_of_flushes_is_found() {
    let pools = pools(1, 8).build();
    let queue = queue(&pools);
    let works: Arc<[std::sync::OnceLock<Work>; 2]> = Arc::default();
    let (both, panics) =
        (Arc::new(corewise_sync::Countdown::new(2)), Arc::<AtomicUsize>::default());
    for own in 0..2 {
        let (works, both, panics) = (Arc::clone(&works), Arc::clone(&both), Arc::clone(&panics));
        let all = Arc::clone(&works);
        works[own].get_or_init(|| {
            Work::new(move || {
                both.done();
                both.wait();
                let other = all[1 - own].get().expect("both were made");
                let flushed = catch_unwind(AssertUnwindSafe(|| other.flush()));
                let message =
                    flushed.err().map(|payload| payload.downcast::<String>().expect("text"));
                let named = |message: &String| message.contains(&format!("a wait at {}", file!()));
                assert!(message.as_deref().is_none_or(named), "the caller's place: {message:?}");
                panics.fetch_add(usize::from(message.is_some()), Ordering::SeqCst);
            })
        });
    }
    works
        .iter()
        .for_each(|work| assert_eq!(queue.queue(work.get().expect("just made")), Ok(Queued::Now)));
    queue.flush();
    assert_eq!(panics.load(Ordering::SeqCst), 1);
}

#[test]
fn limited_queues_whose_items_wait_for_each_other_s_queue_let_one_more_through() {
    let pools = pools(2, 8).build();
    let build = || Workqueue::builder("limited").scope(AffinityScope::System);
    let pairs = [
        [build().max_active(1), build().max_active(1)],
        [build().kind(QueueKind::Ordered), build().kind(QueueKind::Ordered)],
        [
            build().kind(QueueKind::Ordered),
            Workqueue::builder("bound").kind(QueueKind::Bound).max_active(1),
        ],
    ];
    for pair in pairs {
        let queues = pair.map(|builder| builder.build(&pools).expect("a queue"));
        let both = Arc::new(corewise_sync::Countdown::new(2));
        let item = |own: &Workqueue, other: &Workqueue| {
            let (other, both) = (other.clone(), Arc::clone(&both));
            own.at(At::Cpu(CpuId::new(0))).spawn(move || {
                both.done();
                both.wait();
                other.at(At::Cpu(CpuId::new(0))).spawn(|| 4).join().unwrap()
            })
        };
        let [one, two] = &queues;
        let items = [item(one, two), item(two, one)];
        assert_eq!(items.map(|item| item.join().unwrap()), [4, 4]);
        for queue in &queues {
            queue.flush();
            assert_eq!((queue.active(), queue.held()), (0, 0), "each place was given back");
        }
    }
}

#[test]
fn a_circle_of_limits_that_leads_through_a_stolen_fork_lets_one_more_through() {
    // A join in which a thief has the second closure: each of the two has a place of the first
    // queue.
    let pools = pools(3, 8).build();
    let limited = |most| {
        let builder = Workqueue::builder("limited").scope(AffinityScope::System).max_active(most);
        builder.build(&pools).expect("a queue")
    };
    let (first, second) = (limited(2), limited(1));
    let (stolen, runs) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let waits_for_first = {
        let (first, stolen, runs) = (first.clone(), Arc::clone(&stolen), Arc::clone(&runs));
        second.spawn(move || {
            runs.complete();
            stolen.wait();
            first.spawn(|| 1).join().expect("it is let through")
        })
    };
    runs.wait();
    let joins = {
        let (own, second) = (first.clone(), second.clone());
        first.spawn(move || {
            let fork = || {
                stolen.complete();
                second.spawn(|| 2).join().expect("it is let through")
            };
            own.join(|| stolen.wait(), fork).1
        })
    };
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let _ = tell.send([waits_for_first.join(), joins.join()].map(|ended| ended.ok()));
    });
    let ended = told.recv_timeout(Duration::from_secs(300)).expect("nobody waits for ever");
    assert_eq!(ended, [Some(1), Some(2)]);
    for queue in [first, second] {
        queue.flush();
        assert_eq!((queue.active(), queue.held()), (0, 0), "each place was given back");
    }
}

#[test]
fn an_item_on_another_worker_may_wait_for_what_its_own_waiter_s_limit_holds_back() {
    let pools = pools(2, 8).build();
    let other = queue(&pools);
    for limited in [
        Workqueue::builder("bound").kind(QueueKind::Bound).max_active(1),
        Workqueue::builder("ordered")
            .scope(AffinityScope::Cpu)
            .strict(true)
            .kind(QueueKind::Ordered),
    ] {
        let limited = limited.build(&pools).expect("a queue");
        let (between, own) = (other.clone(), limited.clone());
        let value = limited.at(At::Cpu(CpuId::new(0))).spawn(move || {
            let between =
                between.spawn(move || own.at(At::Cpu(CpuId::new(0))).spawn(|| 4).join().unwrap());
            between.join().unwrap()
        });
        assert_eq!(value.join().unwrap(), 4);
    }
}
