//! The rules of section 2.2 of `RULES.md`, the kernel's weakness (2.3) and the traps (2.5), as
//! far as the tests of calls, of leaving CPUs and the models don't show it already. The whole list
//! is in `src/README.md`.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};
use std::thread;

use crate::support::{four_cpus, machine, set, synthetic};
use corewise_smp::model::Step;
use corewise_smp::{AnyOf, CallFailed, Leaving, Smp};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::context::{self, AtomicSection};
use corewise_topology::CpuId;
use corewise_workqueue::{At, QueueKind, WorkerPools, Workqueue};

#[test]
fn rule_2_the_captures_of_a_function_are_dropped_before_its_waiter_goes_on() {
    struct Captured(Arc<AtomicBool>);
    impl Drop for Captured {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let smp = synthetic(4);
    for round in 0..200 {
        let dropped = Arc::new(AtomicBool::new(false));
        let captured = Captured(Arc::clone(&dropped));
        let call = smp.call(CpuId::new(round % 4), move || {
            let _held = &captured;
        });
        call.unwrap().wait().unwrap();
        assert!(dropped.load(Ordering::Relaxed));
    }
}

#[test]
fn rule_9_a_handler_that_calls_many_has_a_wait_set_of_its_own() {
    let (smp, mut cpus) = four_cpus();
    let inner = smp.clone();
    // The trap: a call to many from inside a call to many, on the same CPU, to the same CPUs.
    let outer = smp.call_each(&set("0-2"), move |cpu| {
        (cpu, inner.call_each(&set("0-2"), move |to| cpu.number() * 10 + to.number()))
    });
    for cpu in &mut cpus[..3] {
        while matches!(cpu.step(), Step::Ran(_)) {}
    }
    for (cpu, (own, nested)) in {
        // CPU 0 and 1 had got the call from those after them.
        for cpu in &mut cpus[..2] {
            while matches!(cpu.step(), Step::Ran(_)) {}
        }
        outer.wait().into_values().unwrap()
    } {
        assert_eq!(own, cpu);
        let expected = [0, 1, 2].map(|to| (CpuId::new(to), cpu.number() * 10 + to));
        assert_eq!(nested.wait().into_values().unwrap(), expected);
    }
}

#[test]
fn rule_10_nothing_is_freed_under_a_waiter_when_the_cpu_the_target_and_the_handle_go() {
    let (smp, mut cpus) = four_cpus();
    let value = Arc::new(7);
    let (one, many) = (Arc::clone(&value), Arc::clone(&value));
    let one = smp.call(CpuId::new(3), move || one).unwrap();
    let many = smp.call_each(&set("2-3"), move |_| Arc::clone(&many));
    drop(smp.cpu_offline(CpuId::new(3)));
    assert_eq!(cpus[3].step(), Step::Left);
    cpus[2].step();
    assert!(one.is_complete() && many.is_complete());
    drop(cpus);
    drop(smp);
    assert_eq!(*one.wait().unwrap(), 7);
    let values = many.wait().into_values().unwrap();
    assert_eq!(
        values.iter().map(|(cpu, value)| (cpu.number(), **value)).collect::<Vec<_>>(),
        [(2, 7), (3, 7)]
    );
    drop(values);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn rule_12_any_context_may_call_and_only_waiting_is_reported() {
    let (smp, mut cpus) = four_cpus();
    let before = context::violations();
    let section = AtomicSection::enter("a section of the test");
    smp.detached().call(CpuId::new(0), || ()).unwrap();
    let calls =
        [smp.call(CpuId::new(1), || ()).unwrap(), smp.call(AnyOf(&set("1")), || ()).unwrap()];
    let many = smp.call_each(&set("0-1"), |_| ());
    drop(smp.detached().call_each(&set("0-3"), |_| ()));
    drop(smp.cpu_offline(CpuId::new(3)));
    for cpu in &mut cpus {
        while matches!(cpu.step(), Step::Ran(_)) {}
    }
    assert_eq!(context::violations(), before, "calling never blocks");
    // This holds also if the answer is there already: a call that may block is reported, whether it
    // blocks or not.
    for call in calls {
        call.wait().unwrap();
    }
    assert!(many.is_complete());
    drop(section);
    assert_eq!(context::violations(), before + 2);
    many.wait().into_values().unwrap();
    assert_eq!(context::violations(), before + 2);
    let _ = context::take_violation();
}

#[test]
fn rule_13_a_wait_inside_the_callers_own_atomic_section_still_ends() {
    let smp = synthetic(4);
    let before = context::violations();
    let section = AtomicSection::enter("the caller's own");
    assert_eq!(smp.call(CpuId::new(2), || 5).unwrap().wait().unwrap(), 5);
    drop(section);
    assert_eq!(context::violations(), before + 1, "and is reported");
    let _ = context::take_violation();
}

#[test]
fn rule_15_blocking_work_for_a_cpu_goes_to_its_workqueue() {
    let machine = machine(4);
    let smp = Smp::new(&machine).unwrap();
    let pools = WorkerPools::new(&machine);
    let queue =
        Arc::new(Workqueue::builder("blocks").kind(QueueKind::Bound).build(&pools).unwrap());
    let (inner, back) = (Arc::clone(&queue), smp.clone());
    // A handler must not wait, but may queue an item that does.
    let item = smp.call(CpuId::new(1), move || {
        inner.at(At::Cpu(CpuId::new(1))).spawn(move || {
            let sum = back.call(CpuId::new(2), || 40).unwrap().wait().unwrap() + 2;
            (sum, context::violations())
        })
    });
    let item = item.unwrap().wait().unwrap();
    assert_eq!(item.join().unwrap(), (42, 0));
}

#[test]
fn weakness_a_a_caller_never_waits_for_its_earlier_calls() {
    let (smp, mut cpus) = four_cpus();
    // The kernel's second call without waiting to a CPU spins until the first has been taken.
    for _ in 0..100 {
        smp.detached().call(CpuId::new(1), || ()).unwrap();
    }
    let calls: Vec<_> = (0..100).map(|n| smp.call(CpuId::new(1), move || n).unwrap()).collect();
    let casts: Vec<_> = (0..100).map(|n| smp.call_each(&set("1-2"), move |_| n)).collect();
    while cpus[1].step() != Step::Idle {}
    assert_eq!(cpus[2].step(), Step::Ran(100));
    for (n, (call, cast)) in calls.into_iter().zip(casts).enumerate() {
        assert_eq!(call.wait().unwrap(), n);
        assert_eq!(cast.wait().into_values().unwrap(), [1, 2].map(|cpu| (CpuId::new(cpu), n)));
    }
}

#[test]
fn weakness_b_a_later_call_of_the_same_cpu_to_the_same_target_delays_no_waiter() {
    let (smp, mut cpus) = four_cpus();
    let first = smp.call(CpuId::new(1), || "first").unwrap();
    assert_eq!(cpus[1].step(), Step::Ran(1));
    // Before the first waiter looks, another call takes the slot that it would have in the kernel.
    let second = smp.call(CpuId::new(1), || "second").unwrap();
    assert!(first.is_complete());
    assert_eq!(first.wait().unwrap(), "first");
    assert!(!second.is_complete());
    assert_eq!(cpus[1].step(), Step::Ran(1));
    assert_eq!(second.wait().unwrap(), "second");
}

/// Returns the state of a thread of this process, by the kernel: `S` if it sleeps, `R` if it runs.
#[cfg(target_os = "linux")]
fn state(thread: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[test]
#[cfg(target_os = "linux")]
fn weakness_c_a_waiter_sleeps_and_burns_no_cpu() {
    let smp = synthetic(4);
    let (release, gate) = mpsc::channel::<()>();
    let call = smp.call(CpuId::new(1), move || gate.recv()).unwrap();
    let (tell, told) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let me = std::fs::read_link("/proc/thread-self").unwrap();
        tell.send(me.file_name().unwrap().to_str().unwrap().to_owned()).unwrap();
        call.wait().unwrap().unwrap();
    });
    let waiter_id = told.recv().unwrap();
    // A waiter that spun for ever would never be seen asleep.
    while state(&waiter_id) != Some('S') {
        thread::yield_now();
    }
    release.send(()).unwrap();
    waiter.join().unwrap();
}

#[test]
fn trap_a_function_that_nobody_waits_for_may_send_itself_again_from_inside() {
    let (smp, mut cpus) = four_cpus();
    let (tell, told) = mpsc::channel();
    fn again(smp: Smp, left: u32, tell: mpsc::Sender<u32>) {
        tell.send(left).unwrap();
        if left > 0 {
            let next = smp.clone();
            smp.detached().call(CpuId::new(0), move || again(next, left - 1, tell)).unwrap();
        }
    }
    again(smp.clone(), 100, tell);
    while cpus[0].step() != Step::Idle {}
    assert_eq!(told.iter().count(), 101);
}

#[test]
fn a_function_that_waits_until_its_own_cpu_has_left_is_stopped() {
    let smp = synthetic(4);
    let ways: [fn(&Smp) -> Leaving; 2] =
        [|smp| smp.cpu_offline(CpuId::new(1)), |smp| smp.shutdown()];
    for (cpu, way) in [1, 0].map(CpuId::new).into_iter().zip(ways) {
        let inside = smp.clone();
        let call = smp.call(cpu, move || way(&inside).wait()).unwrap();
        let Err(CallFailed::Panicked { panic, .. }) = call.wait() else { panic!("it went on") };
        assert!(panic.message().contains("would wait for itself"), "{}", panic.message());
    }
    smp.shutdown().wait();
}
