//! Small programs that show a simulated machine's promises.

use std::cell::Cell;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

// The sleep is virtual: it takes no real time, and after it the awaited event has happened in each
// run.
use corewise_sim::thread::sleep as rest;
use corewise_sim::{
    Access, Costs, Machine, Mask, Policy, access, allocated, burn, current, current_cpu, freed,
    futex_wait, futex_wake, is_ordinary, lock_waited, membarrier, moment, now, run, set_affinity,
    set_policy, sim_thread_local, spin_loop, thread, touch, wake_on_time,
};

fn costs() -> Costs {
    Costs::sapphire_rapids_16()
}

/// Does an atomic operation, as the facade does.
#[track_caller]
fn add(counter: &AtomicU64) -> u64 {
    access(std::ptr::from_ref(counter) as usize, Access::Locked, Location::caller());
    counter.fetch_add(1, Ordering::SeqCst)
}

fn only(cpu: usize) -> Mask {
    let mut mask = Mask::EMPTY;
    mask.set(cpu);
    mask
}

fn pin(cpu: usize) {
    assert!(set_affinity(current().expect("simulated"), only(cpu)));
    assert_eq!(current_cpu(), Some(cpu));
}

/// Returns the nanoseconds of a locked add while `cpus` CPUs hammer one line.
fn contended(cpus: usize) -> f64 {
    const EACH: u64 = 500;
    let outcome = run(Machine::flat(16), costs(), 1, move || {
        let counter = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    pin(cpu);
                    // By then, all threads have started.
                    while now() < 10_000_000 {
                        burn(100.0);
                    }
                    let began = now();
                    (0..EACH).for_each(|_| _ = add(&counter));
                    now() - began
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it ended well"))
            .max()
            .expect("there are some")
    });
    outcome.value as f64 / EACH as f64
}

#[test]
fn one_line_that_all_write_costs_each_the_more_the_more_there_are() {
    let each: Vec<f64> = [1, 2, 4, 8, 16].into_iter().map(contended).collect();
    assert!(each.windows(2).all(|pair| pair[1] > pair[0] * 1.05), "{each:?}");
    // The measured machine of sixteen cores has 8.9, 43.5, 100.7, 170.1, 377.7.
    assert!(each[0] < 15.0 && (300.0..450.0).contains(&each[4]), "{each:?}");
}

/// Condenses all that happens into a number.
fn fingerprint(seed: u64) -> (u64, Duration, Vec<u64>) {
    let outcome = run(Machine::flat(8), costs(), seed, || {
        let word = Arc::new(AtomicU32::new(0));
        let counter = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..20)
            .map(|number| {
                let (word, counter) = (Arc::clone(&word), Arc::clone(&counter));
                thread::spawn(move || {
                    for round in 0..50_u64 {
                        add(&counter);
                        match (number + round) % 3 {
                            0 => drop(futex_wake(word.as_ptr() as usize, 1)),
                            1 => drop(futex_wait(word.as_ptr() as usize, || true, Some(20_000))),
                            _ => burn(5_000.0),
                        }
                    }
                    now()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it ended well"))
            .fold(0_u64, |all, end| all.wrapping_mul(31) ^ end)
    });
    let tally = outcome.tally;
    let counts = vec![tally.switches, tally.preemptions, tally.transfers(), tally.wakes[2]];
    (outcome.value, outcome.time, counts)
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another_one() {
    assert_eq!(fingerprint(7), fingerprint(7));
    assert_ne!(fingerprint(7).0, fingerprint(8).0);
}

#[test]
fn accesses_take_place_in_the_order_of_virtual_time() {
    let outcome = run(Machine::flat(4), costs(), 3, || {
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..4_u64)
            .map(|number| {
                let order = Arc::clone(&order);
                thread::spawn(move || {
                    for step in 0..100 {
                        burn((number * 37 + step * 11 % 97) as f64);
                        let time = now();
                        order.lock().unwrap().push(time);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it ended well"));
        Arc::try_unwrap(order).unwrap().into_inner().unwrap()
    });
    // A read of the clock and its next step are one, so two times may differ by such a read.
    assert!(outcome.value.windows(2).all(|pair| pair[1] + 50 >= pair[0]));
}

#[test]
fn a_thread_that_waits_for_its_cpu_gets_it_after_a_slice() {
    let outcome = run(Machine::flat(2), costs(), 1, || {
        let burner = thread::spawn(|| {
            pin(1);
            (0..1000).for_each(|_| burn(100_000.0));
        });
        rest(Duration::from_millis(3));
        let second = thread::spawn(|| {
            pin(1);
            let began = now();
            (0..100).for_each(|_| burn(100_000.0));
            now() - began
        });
        let took = second.join().expect("it ended well");
        burner.join().expect("it ended well");
        took
    });
    // The thread shares its CPU with the burner: it takes up to twice as long as alone.
    assert!((14_000_000..24_000_000).contains(&outcome.value), "{}", outcome.value);
    assert!(outcome.tally.preemptions >= 6, "{:?}", outcome.tally.preemptions);
}

#[test]
fn a_real_time_thread_takes_the_cpu_of_an_ordinary_one_at_once() {
    let outcome = run(Machine::flat(2).with_real_time(true), costs(), 1, || {
        let word = Arc::new(AtomicU32::new(0));
        let urgent = {
            let word = Arc::clone(&word);
            thread::spawn(move || {
                pin(1);
                assert!(set_policy(Policy::Fifo(50)));
                while word.load(Ordering::SeqCst) == 0 {
                    futex_wait(word.as_ptr() as usize, || word.load(Ordering::SeqCst) == 0, None);
                }
                now()
            })
        };
        rest(Duration::from_millis(1));
        let burner = thread::spawn(|| {
            pin(1);
            (0..1000).for_each(|_| burn(10_000.0));
        });
        rest(Duration::from_millis(2));
        word.store(1, Ordering::SeqCst);
        let called = now();
        futex_wake(word.as_ptr() as usize, 1);
        let ran = urgent.join().expect("it ended well");
        burner.join().expect("it ended well");
        ran - called
    });
    assert!(outcome.value < 20_000, "{} ns", outcome.value);
}

#[test]
fn sleepers_are_woken_in_the_order_in_which_they_fell_asleep() {
    let outcome = run(Machine::flat(4), costs(), 1, || {
        let word = Arc::new(AtomicU32::new(0));
        let awake = Arc::new(std::sync::Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (word, awake) = (Arc::clone(&word), Arc::clone(&awake));
                thread::spawn(move || {
                    rest(Duration::from_micros(500 * (number + 1)));
                    futex_wait(word.as_ptr() as usize, || true, None);
                    awake.lock().unwrap().push(number);
                })
            })
            .collect();
        rest(Duration::from_millis(5));
        for _ in 0..3 {
            assert_eq!(futex_wake(word.as_ptr() as usize, 1), 1);
            rest(Duration::from_millis(2));
        }
        assert_eq!(futex_wake(word.as_ptr() as usize, 1), 0);
        threads.into_iter().for_each(|thread| thread.join().expect("it ended well"));
        Arc::try_unwrap(awake).unwrap().into_inner().unwrap()
    });
    assert_eq!(outcome.value, [0, 1, 2]);
}

#[test]
fn a_spinning_thread_sees_what_another_cpu_writes() {
    let outcome = run(Machine::flat(2), costs(), 1, || {
        let flag = Arc::new(AtomicU64::new(0));
        let spinner = {
            let flag = Arc::clone(&flag);
            thread::spawn(move || {
                let mut spins = 0_u64;
                while flag.load(Ordering::SeqCst) == 0 {
                    access(flag.as_ptr() as usize, Access::Load, Location::caller());
                    spin_loop();
                    spins += 1;
                }
                (spins, now())
            })
        };
        rest(Duration::from_millis(1));
        let written = now();
        add(&flag);
        let (spins, seen) = spinner.join().expect("it ended well");
        (spins, seen - written)
    });
    let (spins, delay) = outcome.value;
    assert!(spins > 1000 && delay < 500, "{spins} spins, {delay} ns");
}

sim_thread_local! {
    static MINE: Cell<u32> = Cell::new(7);
    static GUARD: Rc<Guard> = Rc::new(Guard(current_cpu()));
}

struct Guard(Option<usize>);

static DROPPED: AtomicU32 = AtomicU32::new(0);

impl Drop for Guard {
    fn drop(&mut self) {
        assert_eq!(self.0, current_cpu(), "dropped by its own thread");
        DROPPED.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn each_thread_has_its_own_thread_locals_and_drops_them_as_it_ends() {
    let outcome = run(Machine::flat(2), costs(), 1, || {
        MINE.set(8);
        let other = thread::spawn(|| {
            pin(1);
            GUARD.with(|guard| assert_eq!(guard.0, Some(1)));
            MINE.get()
        });
        (other.join().expect("it ended well"), MINE.get())
    });
    assert_eq!(outcome.value, (7, 8));
    assert_eq!(DROPPED.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_of_a_thread_is_the_result_of_its_join() {
    let outcome = run(Machine::flat(2), costs(), 1, || {
        let handle = thread::spawn(|| panic!("on purpose"));
        handle.join().is_err()
    });
    assert!(outcome.value);
}

#[test]
#[should_panic(expected = "stands still")]
fn a_machine_on_which_nobody_can_go_on_says_so() {
    let word = AtomicU32::new(0);
    run(Machine::flat(2), costs(), 1, move || {
        futex_wait(word.as_ptr() as usize, || true, None);
    });
}

#[test]
fn the_tally_names_the_places_that_moved_lines() {
    let outcome = run(Machine::flat(2), costs(), 1, || {
        let data = Arc::new([0_u8; 640]);
        let at = data.as_ptr() as usize;
        touch(at, 640, Access::Store);
        let reader = thread::spawn(move || {
            pin(1);
            touch(at, 640, Access::Load);
            drop(data);
        });
        reader.join().expect("it ended well");
    });
    let sites = &outcome.tally.sites;
    let reads = sites.iter().find(|(_, count)| count.accesses[2] > 0).expect("lines moved");
    assert!(reads.0.to_string().contains("tests/machine.rs"), "{}", reads.0);
    assert!((10..=11).contains(&reads.1.transfers()), "{:?}", reads.1);
}

#[test]
fn a_scope_ends_after_its_threads_which_may_borrow() {
    let outcome = run(Machine::flat(4), costs(), 1, || {
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    rest(Duration::from_millis(1));
                    add(&sum);
                });
            }
            let panics = scope.spawn(|| panic!("on purpose"));
            assert!(panics.join().is_err());
        });
        sum.into_inner()
    });
    assert_eq!(outcome.value, 3);
}

/// Starts an ordinary thread on CPU 1 that burns 10 ms and returns the time of its end.
fn burner() -> thread::JoinHandle<u64> {
    thread::spawn(|| {
        pin(1);
        (0..1000).for_each(|_| burn(10_000.0));
        now()
    })
}

#[test]
fn a_thread_begins_as_an_ordinary_one_also_where_its_parent_is_urgent() {
    let outcome = run(Machine::flat(2).with_real_time(true), costs(), 1, || {
        assert!(set_policy(Policy::Fifo(50)));
        let (one, other) = (burner(), burner());
        (one.join().expect("it ended well"), other.join().expect("it ended well"))
    });
    // Both share the CPU to the end. An urgent one would have had the CPU first, for 10 ms.
    let (one, other) = outcome.value;
    assert!(one.abs_diff(other) < 5_000_000, "{one} {other}");
}

#[test]
fn a_thread_that_gives_up_its_priority_shares_its_cpu_with_waiting_ones() {
    let outcome = run(Machine::flat(2).with_real_time(true), costs(), 1, || {
        let urgent = thread::spawn(|| {
            assert!(set_policy(Policy::Fifo(50)));
            pin(1);
            let waits = burner();
            rest(Duration::from_micros(100));
            burn(1_000_000.0);
            assert!(set_policy(Policy::Normal));
            (0..3000).for_each(|_| burn(10_000.0));
            (waits, now())
        });
        let (waits, ended) = urgent.join().expect("it ended well");
        (waits.join().expect("it ended well"), ended)
    });
    let (waited, ended) = outcome.value;
    assert!(waited < ended, "{waited} {ended}");
}

#[test]
fn a_real_time_priority_is_refused_where_the_machine_does_not_permit_it() {
    let ask = || {
        let set = set_policy(Policy::Fifo(1));
        (set, is_ordinary(), set_policy(Policy::Normal), is_ordinary())
    };
    assert_eq!(run(Machine::flat(1), costs(), 1, ask).value, (false, true, true, true));
    let permits = Machine::flat(1).with_real_time(true);
    assert_eq!(run(permits, costs(), 1, ask).value, (true, false, true, true));
}

#[test]
fn timers_are_late_by_the_slack_but_for_those_who_asked() {
    let nap = || {
        let began = now();
        rest(Duration::from_millis(1));
        now() - began
    };
    let outcome = run(Machine::flat(1), costs(), 1, move || {
        let late = nap();
        wake_on_time();
        // Children of a thread that asked have punctual timers, too.
        let child = thread::spawn(nap).join().expect("it ended well");
        (late, nap(), child)
    });
    let (late, on_time, child) = outcome.value;
    assert!(late > 1_050_000 && on_time < 1_050_000 && child < 1_050_000, "{:?}", outcome.value);
}

#[test]
fn a_barrier_interrupts_each_cpu_that_runs_a_thread_and_waits_once() {
    let barrier = |burners: usize| {
        let outcome = run(Machine::flat(16), costs(), 1, move || {
            for cpu in 1..=burners {
                thread::spawn(move || {
                    pin(cpu);
                    while now() < 10_000_000 {
                        burn(500.0);
                    }
                });
            }
            rest(Duration::from_millis(1));
            let began = now();
            membarrier();
            now() - began
        });
        outcome.value as f64
    };
    let (alone, one, all) = (barrier(0), barrier(1), barrier(15));
    assert!(one > 5.0 * alone && all < 10.0 * one, "{alone} {one} {all}");
}

#[test]
fn the_thread_that_woke_first_runs_first_however_little_the_other_has_run() {
    let outcome = run(Machine::flat(2).with_real_time(true), costs(), 1, || {
        let at = |until: u64| rest(Duration::from_nanos(until.saturating_sub(now())));
        let has_run = thread::spawn(move || {
            pin(1);
            (0..500).for_each(|_| burn(10_000.0));
            at(7_000_000);
            now()
        });
        let has_slept = thread::spawn(move || {
            pin(1);
            at(10_000_000);
            now()
        });
        // No other thread gets the CPU meanwhile, and both want it at the end.
        let urgent = thread::spawn(move || {
            pin(1);
            assert!(set_policy(Policy::Fifo(50)));
            at(6_000_000);
            (0..600).for_each(|_| burn(10_000.0));
        });
        urgent.join().expect("it ended well");
        (has_run.join().expect("it ended well"), has_slept.join().expect("it ended well"))
    });
    let (first, second) = outcome.value;
    assert!(11_000_000 < first && first < second, "{first} {second}");
}

#[test]
fn the_user_of_new_memory_takes_the_line_from_its_allocator() {
    let outcome = run(Machine::flat(2), costs(), 1, || {
        let block = Arc::new([0_u8; 256]);
        let at = (block.as_ptr() as usize).next_multiple_of(64);
        allocated(at, 64);
        let reader = thread::spawn(move || {
            pin(1);
            touch(at, 64, Access::Load);
            freed(at);
            drop(block);
        });
        reader.join().expect("it ended well");
    });
    assert_eq!(outcome.tally.transfers(), 2, "one to read it, one to have it alone");
}

#[test]
fn time_between_the_marks_of_a_lock_is_a_wait_for_it() {
    let outcome = run(Machine::flat(1), costs(), 1, || {
        let began = moment();
        burn(500.0);
        lock_waited(began);
    });
    assert!((outcome.tally.lock_waits - 500.0).abs() < 1.0, "{}", outcome.tally.lock_waits);
}
