//! Calls on real threads: placement, ordering, waiting, leaving under load, and the end.
#![cfg(not(loom))]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use corewise_smp::{AllCpus, CallError, Smp, model};
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::context::{self, BlockingObserver};
use corewise_topology::{CpuId, CpuSet, Machine, current_cpu};

fn synthetic(cores: u32) -> (Machine, Smp) {
    let machine = Machine::synthetic(&format!("core:{cores} pu:1")).expect("a valid description");
    let smp = Smp::new(&machine).expect("threads that need no pinning");
    (machine, smp)
}

/// A plain memory cell: only an ordering that the calls give keeps its accesses apart.
struct Plain(UnsafeCell<usize>);
// SAFETY: the tests touch it only in turns that the calls order.
unsafe impl Sync for Plain {}
impl Plain {
    fn set(&self, value: usize) {
        // SAFETY: as above.
        self.0.with_mut(|p| unsafe { *p = value });
    }
    fn get(&self) -> usize {
        // SAFETY: as above.
        self.0.with(|p| unsafe { *p })
    }
}

#[test]
fn on_the_live_machine_each_handler_runs_on_its_cpu() {
    let machine = Machine::live().unwrap();
    let smp = Smp::new(&machine).unwrap();
    let answers = smp.call_each(AllCpus, |_| current_cpu()).wait();
    assert_eq!(answers.values.len(), machine.online().len());
    for (cpu, found) in answers.into_values().unwrap() {
        assert_eq!(found, Some(cpu));
    }
}

/// Tests by the kernel's word, not that of a thread that may have been on the right CPU by chance.
#[test]
fn on_the_live_machine_each_target_may_run_on_its_cpu_alone() {
    let machine = Machine::live().unwrap();
    let smp = Smp::new(&machine).unwrap();
    let masks =
        smp.call_each(AllCpus, |_| std::fs::read_to_string("/proc/thread-self/status").unwrap());
    for (cpu, status) in masks.wait().into_values().unwrap() {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        assert_eq!(field("Name:"), Some(format!("cw-call/{cpu}")));
        assert_eq!(field("Cpus_allowed_list:"), Some(cpu.to_string()));
    }
}

#[test]
fn rule_1_the_handler_sees_earlier_writes_and_the_waiter_sees_the_handlers() {
    let (_machine, smp) = synthetic(2);
    let cell = Arc::new(Plain(UnsafeCell::new(0)));
    for round in 1..500 {
        cell.set(2 * round);
        let shared = Arc::clone(&cell);
        let call = smp.call(CpuId::new(1), move || {
            let seen = shared.get();
            shared.set(seen + 1);
            seen
        });
        assert_eq!(call.unwrap().wait().unwrap(), 2 * round);
        assert_eq!(cell.get(), 2 * round + 1);
    }
}

#[test]
fn rule_5_a_waiter_tells_its_pool_that_it_blocks_and_that_it_goes_on() {
    /// A pool that lets the handler end only once the waiter has been seen to block.
    struct Pool {
        release: mpsc::Sender<()>,
        told: Cell<(usize, usize)>,
    }
    impl BlockingObserver for Pool {
        fn begin(&self) {
            self.told.set((self.told.get().0 + 1, self.told.get().1));
            self.release.send(()).expect("the handler waits for this");
        }
        fn end(&self) {
            self.told.set((self.told.get().0, self.told.get().1 + 1));
        }
    }
    let (_machine, smp) = synthetic(2);
    let (release, released) = mpsc::channel::<()>();
    let pool = Rc::new(Pool { release, told: Cell::new((0, 0)) });
    let guard = context::observe(pool.clone());
    let call = smp.call(CpuId::new(0), move || released.recv()).unwrap();
    assert!(call.wait().unwrap().is_ok());
    drop(guard);
    assert_eq!(pool.told.get(), (1, 1));
}

#[test]
fn each_callers_calls_run_once_and_in_its_order_under_many_callers() {
    const CALLERS: usize = 4;
    const EACH: usize = 2_000;
    let (_machine, smp) = synthetic(3);
    // Per CPU and caller: the number of the call that is due next. Only that CPU's handlers touch
    // it.
    let due: Arc<Vec<Vec<Plain>>> = Arc::new(
        (0..3).map(|_| (0..CALLERS).map(|_| Plain(UnsafeCell::new(0))).collect()).collect(),
    );
    let wrong = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (smp, due, wrong) = (smp.clone(), Arc::clone(&due), Arc::clone(&wrong));
            thread::spawn(move || {
                for n in 0..EACH {
                    for cpu in 0..3u32 {
                        let (due, wrong) = (Arc::clone(&due), Arc::clone(&wrong));
                        smp.detached()
                            .call(CpuId::new(cpu), move || {
                                let next = &due[cpu as usize][caller];
                                if next.get() != n {
                                    wrong.fetch_add(1, Ordering::Relaxed);
                                }
                                next.set(n + 1);
                            })
                            .unwrap();
                    }
                    if n % 64 == caller {
                        let seen = smp.call(CpuId::new((n % 3) as u32), move || n).unwrap().wait();
                        assert_eq!(seen.unwrap(), n);
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().unwrap();
    }
    smp.shutdown().wait();
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    for of_cpu in due.iter() {
        assert!(of_cpu.iter().all(|next| next.get() == EACH), "each ran exactly once");
    }
    for stats in smp.stats() {
        assert!(stats.calls >= (CALLERS * EACH) as u64);
        assert!(stats.wakeups <= stats.batches, "no batch was announced by two wake-ups");
    }
}

#[test]
fn rule_3_a_burst_costs_one_wakeup_at_most_and_none_where_the_target_is_awake() {
    let (_machine, smp) = synthetic(2);
    let (go, gate) = mpsc::channel::<()>();
    let (running, runs) = mpsc::channel();
    let held = smp.call(CpuId::new(1), move || {
        running.send(()).unwrap();
        gate.recv().unwrap();
    });
    runs.recv().unwrap();
    let before = smp.cpu_stats(CpuId::new(1)).unwrap().wakeups;
    assert!(before <= 1);
    for _ in 0..1000 {
        smp.detached().call(CpuId::new(1), || ()).unwrap();
    }
    let last = smp.call(CpuId::new(1), || ()).unwrap();
    assert_eq!(
        smp.cpu_stats(CpuId::new(1)).unwrap().wakeups,
        before,
        "it is awake, in its handler"
    );
    go.send(()).unwrap();
    held.unwrap().wait().unwrap();
    last.wait().unwrap();
}

/// Lets callers and other targets wake those that sleep: `src/README.md`, race 5.
#[test]
fn rule_7_calls_to_many_from_many_callers_reach_each_sleeping_target_once_each() {
    const CPUS: usize = 24;
    const CALLS: usize = 60;
    let (_machine, smp) = synthetic(CPUS as u32);
    let ran: Arc<[AtomicUsize]> = (0..CPUS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for call in 0..CALLS {
                    let ran = Arc::clone(&ran);
                    let count = move |cpu: CpuId| ran[cpu.index()].fetch_add(1, Ordering::Relaxed);
                    if call % 3 == 2 {
                        let reach =
                            smp.detached().call_each(&CpuSet::full(CPUS as u32), move |cpu| {
                                count(cpu);
                            });
                        assert_eq!(reach.reached.len(), CPUS);
                    } else {
                        assert_eq!(
                            smp.call_each(AllCpus, count).wait().into_values().unwrap().len(),
                            CPUS
                        );
                    }
                }
            });
        }
    });
    // A call without a waiter runs after those called before it.
    smp.shutdown().wait();
    for (cpu, ran) in ran.iter().enumerate() {
        assert_eq!(ran.load(Ordering::Relaxed), 3 * CALLS, "CPU {cpu}");
    }
}

#[test]
fn rule_11_under_cpus_that_leave_and_join_every_accepted_call_runs_once_and_every_waiter_ends() {
    const ROUNDS: usize = 60;
    let (machine, smp) = synthetic(3);
    let stop = Arc::new(AtomicBool::new(false));
    let ran = Arc::new(AtomicUsize::new(0));
    let start = Arc::new(Barrier::new(4));
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let (smp, ran) = (smp.clone(), Arc::clone(&ran));
            let (stop, start) = (Arc::clone(&stop), Arc::clone(&start));
            thread::spawn(move || {
                let (mut accepted, mut refused) = (0, 0);
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    let count = |ran: &Arc<AtomicUsize>| {
                        let ran = Arc::clone(ran);
                        move || ran.fetch_add(1, Ordering::Relaxed)
                    };
                    match smp.call(CpuId::new(1), count(&ran)) {
                        Ok(call) => {
                            call.wait().unwrap();
                            accepted += 1;
                        }
                        Err(CallError::NotOnline { cpu, f }) => {
                            assert_eq!(cpu, CpuId::new(1));
                            drop(f);
                            refused += 1;
                        }
                        Err(_) => unreachable!("nobody shuts down"),
                    }
                    let each = count(&ran);
                    let many = smp.call_each(AllCpus, move |_| each());
                    let reached = many.reach().reached.len();
                    assert!(reached >= 2, "CPUs 0 and 2 never leave (caller {caller})");
                    let answers = many.wait();
                    assert_eq!(answers.values.len() + answers.skipped.len(), 3);
                    accepted += answers.into_values().unwrap().len();
                }
                (accepted, refused)
            })
        })
        .collect();
    start.wait();
    for round in 0..ROUNDS {
        machine.set_online(CpuId::new(1), false).unwrap();
        let followed = smp.follow_machine();
        assert!(followed.left.contains(CpuId::new(1)), "round {round}");
        followed.leaving.wait();
        assert!(!smp.online().contains(CpuId::new(1)));
        machine.set_online(CpuId::new(1), true).unwrap();
        assert!(smp.follow_machine().failed.is_empty());
        // Something runs on it again in each round.
        smp.call(CpuId::new(1), || ()).unwrap().wait().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let mut accepted = 0;
    for caller in callers {
        accepted += caller.join().unwrap().0;
    }
    assert_eq!(ran.load(Ordering::Relaxed), accepted, "no call was lost or run twice");
}

#[test]
fn trap_two_cpus_can_call_each_other_as_long_as_their_handlers_do_not_wait() {
    let (_machine, smp) = synthetic(2);
    let (done, seen) = mpsc::channel();
    fn bounce(smp: Smp, left: u32, done: mpsc::Sender<u32>) {
        if left == 0 {
            done.send(left).unwrap();
            return;
        }
        let next = smp.clone();
        smp.detached().call(CpuId::new(left % 2), move || bounce(next, left - 1, done)).unwrap();
    }
    bounce(smp.clone(), 1_000, done);
    assert_eq!(seen.recv(), Ok(0));
}

#[test]
fn dropping_the_last_handle_runs_what_was_accepted() {
    let (_machine, smp) = synthetic(2);
    let ran = Arc::new(AtomicUsize::new(0));
    for n in 0..100 {
        let ran = Arc::clone(&ran);
        smp.detached()
            .call(CpuId::new(n % 2), move || {
                ran.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
    }
    drop(smp);
    assert_eq!(ran.load(Ordering::Relaxed), 100);
}

#[test]
fn the_last_handle_may_be_dropped_on_a_targets_own_thread() {
    let (_machine, smp) = synthetic(2);
    let (done, seen) = mpsc::channel();
    let owned = smp.clone();
    smp.detached()
        .call(CpuId::new(1), move || {
            drop(owned);
            done.send(()).unwrap();
        })
        .unwrap();
    // Either of the two may be last: on this thread the drop waits for the targets, on theirs it
    // doesn't.
    drop(smp);
    seen.recv().unwrap();

    let (_machine, smp) = synthetic(2);
    let (go, gate) = mpsc::channel::<()>();
    let (done, seen) = mpsc::channel();
    let owned = smp.clone();
    smp.detached()
        .call(CpuId::new(1), move || {
            gate.recv().unwrap();
            drop(owned);
            done.send(context::violations()).unwrap();
        })
        .unwrap();
    drop(smp);
    go.send(()).unwrap();
    assert_eq!(seen.recv(), Ok(0), "that drop was the last, and didn't block");
}

#[test]
fn an_idle_cpu_that_leaves_gives_its_thread_up_and_gets_one_again() {
    let (_machine, smp) = synthetic(2);
    for _ in 0..20 {
        smp.cpu_offline(CpuId::new(1)).wait();
        assert!(smp.call(CpuId::new(1), || ()).is_err());
        smp.cpu_online(CpuId::new(1)).unwrap();
        let name =
            smp.call(CpuId::new(1), || thread::current().name().map(str::to_owned)).unwrap().wait();
        assert_eq!(name.unwrap().as_deref(), Some("cw-call/1"));
    }
}

#[test]
fn a_program_may_run_the_targets_in_threads_of_its_own() {
    let machine = Machine::synthetic("core:2 pu:1").unwrap();
    let (smp, targets) = model::stepped(Smp::builder(&machine));
    let threads: Vec<_> = targets
        .into_iter()
        .map(|mut target| {
            thread::spawn(move || {
                target.run();
                target.cpu()
            })
        })
        .collect();
    assert_eq!(
        smp.call_each(AllCpus, |cpu| cpu).wait().into_values().unwrap(),
        [0, 1].map(|cpu| (CpuId::new(cpu), CpuId::new(cpu)))
    );
    drop(smp);
    for (cpu, thread) in (0u32..).zip(threads) {
        assert_eq!(thread.join().unwrap(), CpuId::new(cpu));
    }
}
