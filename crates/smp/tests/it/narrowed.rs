//! A process whose threads are narrowed from outside (`taskset --all-tasks`, a cpuset): a CPU that
//! it may no longer use takes no more calls, and nothing that was accepted is lost.
#![cfg(not(loom))]

use std::sync::mpsc;

use corewise_smp::{AllCpus, CallError, Smp};
use corewise_topology::{CpuId, CpuSet, Machine, Tid, current_cpu, pin_thread};

/// Returns two CPUs that this process may use; none if it has only one.
fn two_cpus(machine: &Machine) -> Option<(u32, u32)> {
    let online = machine.online();
    let mut cpus = online.iter();
    Some((cpus.next()?.number(), cpus.next()?.number()))
}

/// Narrows the thread that runs a CPU's calls, as another process would.
fn narrow(smp: &Smp, cpu: u32, to: &[u32]) {
    let thread = smp.call(CpuId::new(cpu), Tid::current).expect("online").wait().expect("no panic");
    pin_thread(thread, &to.iter().copied().map(CpuId::new).collect())
        .expect("CPUs of this process");
}

#[test]
fn a_cpu_that_was_taken_from_the_process_refuses_calls_once_its_target_has_seen_that() {
    let machine = Machine::live().expect("Linux");
    let Some((kept, lost)) = two_cpus(&machine) else { return };
    let smp = Smp::new(&machine).expect("threads");
    narrow(&smp, lost, &[kept]);
    // The call was accepted before any thread could know.
    assert_eq!(
        smp.call(CpuId::new(lost), || 7).expect("nobody knows yet").wait().expect("no panic"),
        7
    );

    let refused = smp.call(CpuId::new(lost), || 8).expect_err("it is offline");
    assert!(
        matches!(refused, CallError::NotOnline { cpu, .. } if cpu == CpuId::new(lost)),
        "{refused}"
    );
    assert_eq!(refused.into_inner()(), 8);
    assert!(!smp.online().contains(CpuId::new(lost)));
    let skipped = smp.call_each(AllCpus, |cpu| cpu).reach().skipped.len();
    assert_eq!(skipped, 1, "a broadcast names the CPU that it skips");
    let here = smp.call(CpuId::new(kept), current_cpu).expect("online").wait().expect("no panic");
    assert_eq!(here, Some(CpuId::new(kept)), "other CPUs go on");
}

#[test]
fn calls_that_were_accepted_before_a_cpu_was_taken_all_run_in_its_target_s_thread() {
    let machine = Machine::live().expect("Linux");
    let Some((kept, lost)) = two_cpus(&machine) else { return };
    let smp = Smp::new(&machine).expect("threads");
    let mask = CpuSet::from_iter([CpuId::new(kept)]);
    // The thread narrows itself while the calls behind it gather.
    let (go, gone) = mpsc::channel::<()>();
    let first = smp.call(CpuId::new(lost), move || {
        gone.recv().expect("the test sends");
        pin_thread(Tid::current(), &mask).expect("a CPU of this process");
        Tid::current()
    });
    let first = first.expect("online");
    let behind: Vec<_> =
        (0..10).map(|_| smp.call(CpuId::new(lost), Tid::current).expect("online")).collect();
    let (ran, runs) = mpsc::channel();
    smp.detached()
        .call(CpuId::new(lost), move || ran.send(Tid::current()).expect("the test waits"))
        .expect("online");
    go.send(()).expect("it waits");
    let thread = first.wait().expect("no panic");
    for call in behind {
        assert_eq!(call.wait().expect("it was accepted"), thread);
    }
    assert_eq!(runs.recv(), Ok(thread));
    assert!(smp.call(CpuId::new(lost), || ()).is_err(), "it is offline");
}

#[test]
fn a_target_that_may_still_use_its_cpu_goes_back_there() {
    let machine = Machine::live().expect("Linux");
    let Some((other, own)) = two_cpus(&machine) else { return };
    let smp = Smp::new(&machine).expect("threads");
    // It is on the other CPU for certain, and may go back.
    let (both, only) =
        (CpuSet::from_iter([other, own].map(CpuId::new)), CpuSet::from_iter([CpuId::new(other)]));
    let moved = smp.call(CpuId::new(own), move || {
        pin_thread(Tid::current(), &only).expect("a CPU of this process");
        pin_thread(Tid::current(), &both).expect("CPUs of this process");
        current_cpu()
    });
    assert!(moved.expect("online").wait().expect("no panic").is_some());
    let found = smp.call(CpuId::new(own), current_cpu).expect("online").wait().expect("no panic");
    assert_eq!(found, Some(CpuId::new(own)));
    assert!(smp.online().contains(CpuId::new(own)));
}

#[test]
fn a_cpu_that_was_given_back_is_taken_in_again() {
    let machine = Machine::live().expect("Linux");
    let Some((kept, lost)) = two_cpus(&machine) else { return };
    let smp = Smp::new(&machine).expect("threads");
    for by_following in [false, true] {
        narrow(&smp, lost, &[kept]);
        smp.call(CpuId::new(lost), || ())
            .expect("nobody knows yet")
            .wait()
            .expect("it was accepted");
        assert!(!smp.online().contains(CpuId::new(lost)));
        if by_following {
            assert!(smp.follow_machine().joined.contains(CpuId::new(lost)));
        } else {
            smp.cpu_online(CpuId::new(lost)).expect("this process may use it");
        }
        let found =
            smp.call(CpuId::new(lost), current_cpu).expect("online").wait().expect("no panic");
        assert_eq!(found, Some(CpuId::new(lost)));
    }
}
