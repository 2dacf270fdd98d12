//! Tests of the machine that the tests run on, compared with what the system reports elsewhere.

use std::thread;

use corewise_sync::sys;
use corewise_topology::{
    AffinityScope, CpuId, CpuSet, Machine, Pods, Topology, current_cpu, pin_current_thread,
};

#[test]
fn online_and_allowed_cpus_agree_with_the_standard_library() {
    let machine = Machine::live().unwrap();
    assert_eq!(machine.is_synthetic(), !sys::KERNEL_THREADS);
    let source = if sys::KERNEL_THREADS { "live" } else { "flat" };
    assert_eq!(machine.topology().source().to_string(), source);
    // The standard library counts the affinity mask too, but also heeds CPU quotas.
    let threads = thread::available_parallelism().unwrap().get();
    assert!(machine.online().len() >= threads, "{:?}, {threads} threads", machine);
    assert!(machine.online().is_subset(machine.topology().allowed()));
}

#[test]
fn every_online_cpu_has_its_facts_and_its_pods() {
    let machine = Machine::live().unwrap();
    let pods = machine.pods(8);
    for cpu in &machine.online() {
        let facts = machine.topology().cpu(cpu).unwrap();
        assert!(facts.online && facts.core.is_some() && facts.package.is_some());
        let llc = &machine.topology().llcs()[facts.llc.unwrap() as usize];
        assert!(llc.cpus.contains(cpu));
        for scope in AffinityScope::ALL {
            let pod = pods.pod_of(scope, cpu).unwrap();
            assert!(pods.scope(scope)[pod as usize].cpus.contains(cpu));
        }
    }
    assert!(!machine.topology().nodes().is_empty());
}

#[test]
fn the_affinity_mask_of_the_calling_thread_is_honoured() {
    if !sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let last = Machine::live().unwrap().online().last().unwrap();
    let only = CpuSet::from_iter([last]);
    // A thread of its own, so that no other test is pinned.
    let pinned = only.clone();
    let topology = thread::spawn(move || {
        pin_current_thread(&pinned).unwrap();
        assert_eq!(current_cpu(), pinned.first());
        Topology::live().unwrap()
    });
    let topology = topology.join().unwrap();
    assert_eq!(topology.allowed(), &only);
    assert_eq!(Machine::new(topology.clone()).online(), only);
    let pods = Pods::new(&topology, 8);
    for scope in AffinityScope::ALL {
        assert_eq!(pods.scope(scope).len(), 1, "{scope}");
        assert_eq!(pods.scope(scope)[0].cpus, only, "{scope}");
    }
}

#[test]
fn a_live_machine_really_pins_its_threads() {
    if !sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let machine = Machine::live().unwrap();
    for cpu in &machine.online() {
        let machine = machine.clone();
        let seen = thread::spawn(move || {
            assert!(machine.pin_current_thread(&CpuSet::from_iter([cpu])).unwrap());
            current_cpu()
        });
        assert_eq!(seen.join().unwrap(), Some(cpu));
    }
}

#[test]
fn pinning_to_cpus_that_are_not_there_is_refused() {
    let last = Machine::live().unwrap().topology().cpu_set().last().unwrap();
    let beyond = CpuId::new(last.number() + 1);
    let error = pin_current_thread(&CpuSet::from_iter([beyond])).unwrap_err().to_string();
    assert!(error.contains(&format!("'{beyond}'")), "{error}");
}
