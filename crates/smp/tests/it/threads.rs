//! Calls on real threads: placement, waiting, leaving, and the end. `tests/torture` has the rest:
//! the writes that callers and handlers see of each other, the order of calls, and CPUs that leave
//! under load.
#![cfg(not(loom))]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;

use crate::support::{machine, synthetic};
use corewise_smp::{AllCpus, Smp, model};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::context::{self, BlockingObserver};
use corewise_topology::{CpuId, Machine, current_cpu};

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
    let smp = synthetic(2);
    let (release, released) = mpsc::channel::<()>();
    let pool = Rc::new(Pool { release, told: Cell::new((0, 0)) });
    let guard = context::observe(pool.clone());
    let call = smp.call(CpuId::new(0), move || released.recv()).unwrap();
    assert!(call.wait().unwrap().is_ok());
    drop(guard);
    assert_eq!(pool.told.get(), (1, 1));
}

#[test]
fn rule_3_a_burst_costs_one_wakeup_at_most_and_none_where_the_target_is_awake() {
    let smp = synthetic(2);
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

#[test]
fn trap_two_cpus_can_call_each_other_as_long_as_their_handlers_do_not_wait() {
    let smp = synthetic(2);
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
    let smp = synthetic(2);
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
    let smp = synthetic(2);
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

    let smp = synthetic(2);
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
    let smp = synthetic(2);
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
    let machine = machine(2);
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
