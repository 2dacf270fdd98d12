//! The dump: the present and past work of targets, read while they work.
#![cfg(not(loom))]

use std::sync::mpsc;

use crate::support::machine;
use corewise_smp::model::{self, Step};
use corewise_smp::{AllCpus, CpuState, Dump, Priority, Progress, Smp};
use corewise_topology::CpuId;

#[test]
fn stepped_the_dump_shows_what_runs_where_it_was_called_and_nothing_after() {
    let (smp, mut owners) = model::stepped(Smp::builder(&machine(2)));
    let within = smp.clone();
    let line = line!() + 1;
    let call = smp.call(CpuId::new(1), move || within.dump()).expect("online");
    assert_eq!(smp.dump().cpus[1].running, None, "not begun");
    let _ = owners[1].step();
    let dump: Dump = call.wait().expect("no panic");
    let running = dump.cpus[1].running.expect("the dump was made inside of it");
    assert_eq!((running.site.file(), running.site.line()), (file!(), line));
    assert!(running.function.contains("stepped_the_dump_shows"), "{}", running.function);
    assert_eq!(dump.cpus[0].running, None);
    assert!(dump.to_string().contains("CPU 1 runs "), "{dump}");
    assert_eq!(smp.dump().cpus[1].running, None, "it is over");
}

#[test]
fn stepped_a_call_in_place_is_what_runs_and_then_its_caller_again() {
    let (smp, mut owners) = model::stepped(Smp::builder(&machine(1)));
    let within = smp.clone();
    let site = |dump: &Dump| dump.cpus[0].running.expect("a handler made it").site.line();
    let call = smp.call(CpuId::new(0), move || {
        let outer = site(&within.dump());
        let dumps = within.clone();
        let inner = within.call(CpuId::new(0), move || site(&dumps.dump())).expect("online").wait();
        (outer, inner.expect("no panic"), site(&within.dump()))
    });
    let _ = owners[0].step();
    let (outer, inner, after) = call.expect("online").wait().expect("no panic");
    assert!(inner > outer && after == outer, "{outer} {inner} {after}");
    assert_eq!(smp.dump().cpus[0].stats.inline, 1);
}

#[test]
fn each_cpu_s_state_is_told() {
    let (smp, mut owners) = model::stepped(Smp::builder(&machine(3)));
    let states = |smp: &Smp| smp.dump().cpus.iter().map(|cpu| cpu.state).collect::<Vec<_>>();
    assert_eq!(states(&smp), [CpuState::Online; 3]);
    let leaving = smp.cpu_offline(CpuId::new(1));
    assert_eq!(states(&smp)[1], CpuState::Leaving);
    let _ = owners[1].step();
    leaving.wait();
    drop(owners.pop());
    assert_eq!(states(&smp), [CpuState::Online, CpuState::Offline, CpuState::Abandoned]);
    drop(smp.shutdown());
    let _ = owners[0].step();
    assert_eq!(states(&smp), [CpuState::Stopped, CpuState::Stopped, CpuState::Abandoned]);
}

#[test]
fn calls_are_counted_and_those_that_wake_are_timed() {
    let smp = Smp::builder(&machine(2)).priority(Priority::Nice(1)).build().expect("threads");
    for _ in 0..100 {
        smp.call(CpuId::new(1), || ()).expect("online").wait().expect("no panic");
    }
    smp.call_each(AllCpus, |_| ()).wait().into_values().expect("no panic");
    let dump = smp.dump();
    let [idle, busy] = &dump.cpus[..] else { panic!("two CPUs") };
    assert_eq!((idle.stats.calls, busy.stats.calls), (1, 101));
    assert_eq!((idle.priority, busy.priority), (Some(Priority::Nice(1)), Some(Priority::Nice(1))));
    assert!(busy.delivery.count() > 0 && busy.handlers.count() > 0, "{dump}");
    assert!(busy.delivery.longest() >= busy.delivery.quantile(0.5));
    let text = dump.to_string();
    assert!(text.contains("online") && text.contains("nice 1"), "{text}");
    smp.cpu_offline(CpuId::new(0)).wait();
    // The thread reports its priority last.
    smp.cpu_online(CpuId::new(0)).expect("a thread");
    assert_eq!(smp.dump().cpus[0].stats.calls, 1, "the counts survive");
}

#[test]
fn the_dump_is_read_while_calls_run() {
    let smp = Smp::new(&machine(2)).expect("threads");
    let (done, over) = mpsc::channel::<()>();
    let caller = {
        let smp = smp.clone();
        std::thread::spawn(move || {
            for _ in 0..2_000 {
                smp.call_each(AllCpus, |cpu| cpu).wait().into_values().expect("no panic");
            }
            drop(done);
        })
    };
    let mut before = 0;
    while let Err(mpsc::TryRecvError::Empty) = over.try_recv() {
        let dump = smp.dump();
        assert!(dump.cpus[1].stats.calls >= before);
        before = dump.cpus[1].stats.calls;
        let _ = dump.to_string();
    }
    caller.join().expect("no panic");
    assert_eq!(smp.dump().cpus[1].stats.calls, 2_000);
}

#[test]
fn stepped_calls_under_way_are_listed_until_they_end_with_where_they_are() {
    let (smp, mut owners) = model::stepped(Smp::builder(&machine(2)));
    let within = smp.clone();
    let line = line!() + 1;
    let first = smp.call(CpuId::new(0), move || within.dump()).expect("online");
    let second = smp.call_each(AllCpus, |cpu| cpu);
    smp.detached().call(CpuId::new(1), || ()).expect("online");

    let before = smp.dump();
    let seen: Vec<_> = before.outstanding.iter().map(|c| (c.cpu, c.progress, c.urgent)).collect();
    assert_eq!(seen.len(), 4, "{before}");
    assert!(seen.contains(&(CpuId::new(1), Progress::Unseen, false)), "{before}");
    assert_eq!(seen.iter().filter(|(_, _, urgent)| *urgent).count(), 3);
    let lines = || before.outstanding.iter().map(|call| call.site.line());
    assert!(lines().any(|at| at == line) && lines().all(|at| at >= line));
    assert!(before.to_string().contains("Calls under way: 4"), "{before}");
    assert!(before.to_string().contains("; nobody waits"), "{before}");

    let _ = owners[0].step();
    let within = first.wait().expect("no panic");
    let of_0: Vec<_> = within.outstanding.iter().filter(|call| call.cpu == CpuId::new(0)).collect();
    let [running, next] = &of_0[..] else { panic!("two calls: {within}") };
    assert_eq!((running.progress, running.site.line()), (Progress::Running, line));
    assert_eq!(next.progress, Progress::Before);

    while owners[1].step() != Step::Idle {}
    assert!(smp.dump().outstanding.is_empty(), "ended, though one answer wasn't taken yet");
    assert_eq!(second.wait().into_values().expect("no panic").len(), 2);
    assert!(smp.dump().outstanding.is_empty());
}

#[test]
fn stepped_the_functions_of_calls_that_borrow_are_named() {
    let (smp, mut owners) = model::stepped(Smp::builder(&machine(1)));
    let within = smp.clone();
    let borrowed = 7;
    let stepper = std::thread::spawn(move || while owners[0].step() == Step::Idle {});
    let line = line!() + 1;
    let dump = smp.run(CpuId::new(0), || (within.dump(), borrowed)).expect("online").0;
    let running = dump.cpus[0].running.expect("the dump was made inside of it");
    assert!(running.function.contains("stepped_the_functions_of_calls"), "{}", running.function);
    assert_eq!(running.site.line(), line);
    stepper.join().expect("no panic");
}
