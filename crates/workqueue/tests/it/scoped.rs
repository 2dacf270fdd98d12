//! Scoped spawns on real threads: their borrows, and their waits for each other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::{Completion, Mutex};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{JoinError, QueueKind, WorkerPools, Workqueue};

use crate::setup::{inside, queue};
use crate::spin::spin_until;

#[test]
fn scoped_closures_borrow_and_the_scope_waits_for_them() {
    let (_pools, queue) = queue(2);
    let mut numbers: Vec<u64> = (0..64).collect();
    let total = AtomicUsize::new(0);
    queue.scope(|s| {
        for part in numbers.chunks_mut(10) {
            s.spawn(|| {
                for number in part.iter_mut() {
                    *number *= 2;
                }
                total.fetch_add(part.len(), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(total.into_inner(), 64);
    assert!(numbers.iter().enumerate().all(|(n, doubled)| *doubled == 2 * n as u64));
}

#[test]
fn a_scoped_handle_yields_a_value_that_borrows() {
    let (_pools, queue) = queue(2);
    let words = [String::from("one"), String::from("twelve"), String::from("five")];
    let longest = queue.scope(|s| {
        let longest = s.spawn(|| words.iter().max_by_key(|word| word.len()));
        longest.join().expect("no panic").expect("there are words")
    });
    assert_eq!(longest, "twelve");
}

#[test]
fn scoped_closures_spawn_more_and_open_scopes_on_the_only_worker() {
    fn sum(queue: &Workqueue, numbers: &[u64]) -> u64 {
        if numbers.len() < 4 {
            return numbers.iter().sum();
        }
        let (left, right) = numbers.split_at(numbers.len() / 2);
        queue.scope(|s| {
            let left = s.spawn(|| sum(queue, left));
            sum(queue, right) + left.join().expect("no panic")
        })
    }
    let (_pools, queue) = queue(1);
    let numbers: Vec<u64> = (1..=32).collect();
    assert_eq!(sum(&queue, &numbers), 528);
    let inner = queue.clone();
    let ran = queue.spawn(move || {
        let ran = AtomicUsize::new(0);
        inner.scope(|s| {
            s.spawn(|| {
                ran.fetch_add(1, Ordering::Relaxed);
                s.spawn(|| s.spawn(|| ran.fetch_add(1, Ordering::Relaxed)));
            });
        });
        ran.into_inner()
    });
    assert_eq!(ran.join().unwrap(), 2, "the scope waits for the grandchildren too");
}

#[test]
fn the_scope_waits_for_all_also_when_its_body_panics() {
    let (_pools, queue) = queue(1);
    let (started, gate) = (Completion::new(), Completion::new());
    let ran = AtomicBool::new(false);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        queue.scope(|s| {
            s.spawn(|| {
                started.complete();
                gate.wait();
                (0..1000).for_each(|_| std::thread::yield_now());
                ran.store(true, Ordering::SeqCst);
            });
            started.wait();
            gate.complete();
            panic!("the body's");
        })
    }));
    let payload = panicked.expect_err("the body's panic goes on");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the body's"));
    assert!(ran.into_inner());
}

#[test]
fn the_first_panic_that_nobody_has_seen_is_passed_on() {
    let (_pools, queue) = queue(1);
    let ran = AtomicUsize::new(0);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        queue.scope(|s| {
            let seen = s.spawn(|| panic!("seen"));
            assert!(matches!(seen.join(), Err(JoinError::Panicked(_))));
            // There is one worker: they run in this order.
            s.spawn(|| panic!("first"));
            let last = s.spawn(|| panic!("second"));
            spin_until(|| last.is_finished());
            s.spawn(|| ran.fetch_add(1, Ordering::Relaxed));
            panic!("third, the body's");
        })
    }));
    let payload = panicked.expect_err("a panic goes on");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"first"));
    assert_eq!(ran.into_inner(), 1, "the closures after it ran all the same");
    queue.scope(|s| assert!(s.spawn(|| panic!("seen")).join().is_err()));
    assert_eq!(queue.spawn(|| 3).join().unwrap(), 3, "the worker goes on");
}

#[test]
fn values_that_nobody_takes_are_dropped_before_the_scope_ends() {
    struct Counts<'a>(&'a AtomicUsize);
    impl Drop for Counts<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (_pools, queue) = queue(2);
    // Miri is slow, and a few of its runs find more than ten thousand of the others.
    for _ in 0..if cfg!(miri) { 4 } else { 50 } {
        let dropped = AtomicUsize::new(0);
        queue.scope(|s| {
            drop(s.spawn(|| Counts(&dropped)));
            let _kept = s.spawn(|| Counts(&dropped));
            drop(s.spawn(|| Counts(&dropped)).join());
            // It is never dropped, which does no harm.
            std::mem::forget(s.spawn(|| Counts(&dropped)));
        });
        assert_eq!(dropped.into_inner(), 3);
    }
}

#[test]
fn a_value_that_panics_when_it_is_dropped_is_no_business_of_the_scope_s() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, in drop");
        }
    }
    let (pools, queue) = queue(1);
    let gate = Completion::new();
    queue.scope(|s| {
        s.spawn(|| gate.wait());
        drop(s.spawn(|| Bomb));
        gate.complete();
    });
    assert_eq!(queue.spawn(|| 3).join().unwrap(), 3);
    assert!(pools.report()[0].threads_made <= 2);
}

#[test]
fn closures_that_a_closed_queue_refuses_run_on_the_calling_thread() {
    let (pools, queue) = queue(1);
    pools.shutdown();
    let here = std::thread::current().id();
    let ran = Mutex::new(Vec::new());
    let joined = queue.scope(|s| {
        let joined = s.spawn(|| std::thread::current().id());
        s.spawn(|| {
            ran.lock().push((1, std::thread::current().id()));
            s.spawn(|| ran.lock().push((2, std::thread::current().id())));
        });
        let joined = joined.join().expect("no panic");
        assert!(ran.lock().is_empty(), "the others wait for the end");
        joined
    });
    assert_eq!(joined, here);
    assert_eq!(ran.into_inner(), [(1, here), (2, here)]);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        queue.scope(|s| drop(s.spawn(|| panic!("also there"))));
    }));
    assert!(panicked.is_err());
}

#[test]
fn an_item_that_runs_during_a_shutdown_finishes_its_scope() {
    let (pools, queue) = queue(1);
    let (gate, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let ran = {
        let (gate, started, queue) = (Arc::clone(&gate), Arc::clone(&started), queue.clone());
        queue.clone().spawn(move || {
            started.complete();
            gate.wait();
            let ran = AtomicUsize::new(0);
            queue.scope(|s| {
                for _ in 0..10 {
                    s.spawn(|| ran.fetch_add(1, Ordering::Relaxed));
                }
            });
            ran.into_inner()
        })
    };
    started.wait();
    std::thread::scope(|threads| {
        let down = threads.spawn(|| pools.shutdown());
        spin_until(|| queue.queue(&corewise_workqueue::Work::new(|| ())).is_err());
        gate.complete();
        down.join().unwrap();
    });
    assert_eq!(ran.join().unwrap(), 10);
}

#[test]
fn a_scope_with_many_closures_forgets_those_that_are_over() {
    let (_pools, queue) = queue(2);
    let ran = AtomicUsize::new(0);
    queue.scope(|s| {
        for _ in 0..1_000 {
            s.spawn(|| ran.fetch_add(1, Ordering::Relaxed));
        }
    });
    assert_eq!(ran.into_inner(), 1_000);
    assert_eq!(queue.stats().queued, 1_000);
}

#[test]
fn a_scope_inside_the_one_active_item_of_its_queue_goes_on() {
    let (pools, _queue) = queue(2);
    let builder = || Workqueue::builder("one").scope(AffinityScope::System);
    let ordered = builder().kind(QueueKind::Ordered).build(&pools).unwrap();
    let limited = builder().max_active(1).build(&pools).unwrap();
    for queue in [ordered, limited] {
        let inner = queue.clone();
        let sum = queue.spawn(move || {
            let sum = AtomicUsize::new(0);
            inner.scope(|s| {
                let joined = s.spawn(|| 1).join().expect("no panic");
                for n in [joined, 10, 100] {
                    let sum = &sum;
                    s.spawn(move || sum.fetch_add(n, Ordering::Relaxed));
                }
            });
            sum.into_inner()
        });
        assert_eq!(sum.join().unwrap(), 111);
        queue.flush();
        assert_eq!((queue.active(), queue.held()), (0, 0), "the places are free again");
        assert_eq!(queue.spawn(|| 5).join().unwrap(), 5);
    }
}

#[test]
fn a_join_gives_both_values_and_a_panic_of_either_ends_it_when_both_are_over() {
    let (_pools, queue) = queue(2);
    let (mut left, mut right) = (vec![3, 1, 2], vec![6, 5, 4]);
    let sizes = queue.join(
        || {
            left.sort_unstable();
            left.len()
        },
        || right.sort_unstable(),
    );
    assert_eq!((sizes, left, right), ((3, ()), vec![1, 2, 3], vec![4, 5, 6]));
    for (a, b) in [(true, false), (false, true), (true, true)] {
        let over = AtomicUsize::new(0);
        let half = |panics: bool, name: &'static str| {
            over.fetch_add(1, Ordering::SeqCst);
            if panics {
                panic!("{name}");
            }
        };
        let joined =
            catch_unwind(AssertUnwindSafe(|| queue.join(|| half(a, "a"), || half(b, "b"))));
        let payload = joined.expect_err("one panics");
        let said = payload.downcast_ref::<String>().unwrap();
        assert_eq!(said, if a { "a" } else { "b" });
        assert_eq!(over.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_map_gives_what_each_item_came_to_in_the_order_of_the_items() {
    let (_pools, queue) = queue(4);
    let none: [u8; 0] = [];
    assert!(queue.map(none, |n| n).is_empty());
    let numbers: Vec<u64> = (0..1_000).collect();
    let sums = queue.map(numbers.chunks(7), |chunk| chunk.iter().sum::<u64>());
    assert_eq!(sums, numbers.chunks(7).map(|chunk| chunk.iter().sum()).collect::<Vec<u64>>());
    let mut doubled = numbers.clone();
    queue.map(doubled.chunks_mut(7), |chunk| chunk.iter_mut().for_each(|n| *n *= 2));
    assert!(doubled.into_iter().eq(numbers.iter().map(|n| n * 2)));
    // The items may be moved out.
    let words = queue.map(["one".to_owned(), "two".to_owned()], |word| word + ".");
    assert_eq!(words, ["one.", "two."]);
}

#[test]
fn a_map_inside_a_map_inside_the_one_active_item_of_its_queue_goes_on() {
    for kind in [QueueKind::Unbound, QueueKind::Ordered] {
        let (pools, _) = queue(1);
        let queue = Workqueue::builder("one").scope(AffinityScope::System).kind(kind);
        let queue = queue.build(&pools).expect("a queue");
        let inner = queue.clone();
        let sums = queue.spawn(move || {
            inner.map(1..=3_u64, |n| inner.map(1..=n, |n| n).into_iter().sum::<u64>())
        });
        assert_eq!(sums.join().unwrap(), [1, 3, 6]);
    }
}

#[test]
fn a_panic_in_a_map_ends_it_when_what_has_begun_is_over_and_the_rest_is_dropped() {
    struct Counted<'a>(usize, &'a AtomicUsize);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
            assert!(self.0 != 50, "on purpose, in a destructor");
        }
    }
    let (_pools, queue) = queue(1);
    let (called, dropped) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let panics = catch_unwind(AssertUnwindSafe(|| {
        let items: Vec<_> = (0..100).map(|n| Counted(n, &dropped)).collect();
        queue.map(items, |item| {
            called.fetch_add(1, Ordering::SeqCst);
            assert!(item.0 != 3, "on purpose");
        })
    }));
    let message = panics.expect_err("it is handed on");
    assert_eq!(message.downcast_ref(), Some(&"on purpose"));
    assert_eq!((called.into_inner(), dropped.into_inner()), (4, 100));
}

#[test]
fn after_a_shutdown_the_calling_thread_does_all_of_a_map() {
    let (pools, queue) = queue(4);
    pools.shutdown();
    let threads = queue.map(0..10, |_| std::thread::current().id());
    assert_eq!(threads, [std::thread::current().id(); 10]);
}

#[test]
fn a_map_lets_what_waits_for_its_worker_run_beside_it() {
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").expect("a valid description");
    // A worker that computes for long must not be found: then another one would come.
    let pools = WorkerPools::builder(&machine).cpu_intensive_after(Duration::ZERO).build();
    let queue = Workqueue::builder("scoped").scope(AffinityScope::System).build(&pools).unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    queue.for_each(0..3, |n| {
        if n == 0 {
            let ran = Arc::clone(&ran);
            queue.execute(move || ran.store(true, Ordering::SeqCst)).expect("it is open");
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2) || n == 2 && !ran.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    });
}

#[test]
fn a_scope_that_an_item_opens_queues_one_item_however_many_closures_its_only_worker_runs() {
    let (_pools, queue) = queue(1);
    let sum = inside(&queue, |queue| {
        let sum = AtomicUsize::new(0);
        queue.scope(|s| {
            for n in 0..1_000 {
                let sum = &sum;
                s.spawn(move || sum.fetch_add(n, Ordering::Relaxed));
            }
        });
        sum.into_inner()
    });
    assert_eq!(sum, 499_500);
    assert_eq!(queue.stats().queued, 2, "the item, and one that would have helped it");
}

#[test]
fn a_scope_that_waits_for_one_of_its_closures_gets_a_worker_for_it() {
    let (_pools, queue) = queue(1);
    let order = inside(&queue, |queue| {
        let (first, second) = (Completion::new(), Completion::new());
        let order = Mutex::new(Vec::new());
        let say = |word| order.lock().push(word);
        queue.scope(|s| {
            s.spawn(|| {
                second.wait();
                say("first");
                first.complete();
            });
            s.spawn(|| {
                say("second");
                second.complete();
            });
            first.wait();
        });
        order.into_inner()
    });
    assert_eq!(order, ["second", "first"]);
}

#[test]
fn closures_of_an_item_s_scope_may_be_joined_in_any_order_and_by_each_other() {
    let (_pools, queue) = queue(2);
    let sum = inside(&queue, |queue| {
        queue.scope(|s| {
            let mut handles: Vec<_> = (0..100_u64).map(|n| s.spawn(move || n)).collect();
            let odd: Vec<_> = (0..50).map(|n| handles.remove(n)).collect();
            let odd = s.spawn(|| odd.into_iter().map(|one| one.join().unwrap()).sum::<u64>());
            let even: u64 = handles.into_iter().rev().map(|one| one.join().unwrap()).sum();
            even + odd.join().unwrap()
        })
    });
    assert_eq!(sum, 4_950);
}

#[test]
fn a_scoped_closure_is_named_in_dumps_by_the_line_that_spawned_it_whoever_runs_it() {
    let (pools, queue) = queue(2);
    let (called, over) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (own, says, ends) = (queue.clone(), Arc::clone(&called), Arc::clone(&over));
    let item = queue.spawn(move || {
        own.scope(|s| {
            s.spawn(|| {
                says.complete();
                ends.wait();
            });
            // This lets another worker run it.
            ends.wait();
        });
    });
    let named = format!("scoped.rs:{}:", line!() - 8);
    called.wait();
    let running = pools.dump().running;
    assert!(running.iter().any(|one| one.site.contains(&named)), "{named} in {running:?}");
    over.complete();
    item.join().expect("no panic");
}

#[test]
fn a_scope_that_an_item_opened_keeps_nothing_of_its_pools_when_it_is_over() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("a valid description");
    let pools = WorkerPools::builder(&machine).on_stall(move |_| drop(tell.clone())).build();
    let queue = Workqueue::builder("scoped").build(&pools).expect("a queue");
    inside(&queue, |queue| {
        for _ in 0..10 {
            queue.scope(|s| {
                let first = s.spawn(|| ());
                s.spawn(|| drop(s.spawn(|| ())));
                first.join().expect("no panic");
            });
        }
    });
    pools.shutdown();
    drop((queue, pools));
    assert!(told.recv().is_err(), "the callback is dropped with the pools");
}

/// Calls `f` on a stack of which this many times 40 kB more are used.
fn deeper(levels: u32, f: &mut dyn FnMut()) {
    let frame = std::hint::black_box([1_u8; 40_000]);
    if levels == 0 {
        f()
    } else {
        deeper(levels - 1, f)
    }
    std::hint::black_box(&frame);
}

#[test]
fn a_closure_that_is_joined_on_a_nearly_full_stack_runs_on_another_though_the_limit_is_reached() {
    let (pools, _) = queue(2);
    for kind in [QueueKind::Unbound, QueueKind::Ordered] {
        let builder = Workqueue::builder("limited").scope(AffinityScope::System).kind(kind);
        let queue = builder.max_active(1).build(&pools).expect("a queue");
        let ran = inside(&queue, |queue| {
            let mut ran = Vec::new();
            for levels in 19..24 {
                // Each worker has 2 MiB.
                deeper(levels, &mut || {
                    let queue = queue.clone();
                    ran.push(queue.scope(|s| s.spawn(|| 7).join().expect("no panic")));
                });
            }
            ran
        });
        assert_eq!(ran, [7; 5]);
    }
}
