//! Tests with real changes of the machine that they run on: a CPU goes offline and comes back, a
//! cpuset is narrowed. They have a binary of their own and run one at a time. They are skipped,
//! with the reason, if the system doesn't permit them.
#![allow(clippy::unwrap_used, reason = "helpers of tests say what they expect by unwrapping")]

use std::sync::{Arc, Mutex};

use corewise_topology::{CpuSet, Machine, Watch};

#[path = "support/live.rs"]
mod live;
use live::{Cpuset, Group, Offline};

/// Waits for the kernel's message and refreshes until the machine is as wanted.
fn follow(machine: &Machine, watch: &mut Watch, wanted: impl Fn(&CpuSet) -> bool) {
    while !wanted(&machine.online()) {
        watch.wait().unwrap();
        machine.refresh().unwrap();
    }
}

#[test]
fn a_cpu_that_goes_offline_leaves_the_live_machine_and_comes_back() {
    const NAME: &str = "a CPU that goes offline";
    let _alone = live::alone();
    let cpu = match live::spare_cpu() {
        Ok(cpu) => cpu,
        Err(why) => return live::skipped(NAME, &why),
    };
    let machine = Machine::live().unwrap();
    let mut watch = Watch::new().unwrap();
    if let Some(missing) = watch.unwatched().iter().find(|missing| missing.what == "hotplug") {
        return live::skipped(NAME, &missing.to_string());
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&log);
    let _listening = machine.on_change(move |change| told.lock().unwrap().push(change.clone()));
    let (pods, online) = (machine.pods(8), machine.online());

    let offline = match Offline::take(cpu) {
        Ok(offline) => offline,
        Err(why) => return live::skipped(NAME, &why),
    };
    follow(&machine, &mut watch, |online| !online.contains(cpu));
    drop(offline);
    follow(&machine, &mut watch, |online| online.contains(cpu));

    assert_eq!(machine.online(), online);
    assert_eq!(machine.pods(8), pods, "pods keep their numbers");
    let log = log.lock().unwrap();
    assert!(!log[0].after.online.contains(cpu), "{log:?}");
    assert!(log.last().unwrap().after.online.contains(cpu), "{log:?}");
    assert_eq!(machine.epoch(), log.len() as u64 + 1);
}

#[test]
fn a_cpuset_that_is_narrowed_narrows_the_live_machine_and_widens_it_again() {
    const NAME: &str = "a cpuset that is narrowed";
    let _alone = live::alone();
    if let Err(why) = live::spare_cpu() {
        return live::skipped(NAME, &why);
    }
    match Cpuset::new("topology", &Machine::live().unwrap().online()) {
        Ok(group) => live::run_child("child_follows_its_cpuset", group),
        Err(why) => live::skipped(NAME, &why),
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_follows_its_cpuset() {
    let Some(group) = live::enter_group() else { return };
    let machine = Machine::live().unwrap();
    let mut watch = Watch::new().unwrap();
    let before = machine.online();
    let first = CpuSet::from_iter(before.first());

    group.set(&first.to_string());
    follow(&machine, &mut watch, |online| *online == first);
    assert_eq!(machine.epoch(), 2);

    // A thread that was pinned for its own reasons doesn't narrow the process.
    std::thread::spawn(move || {
        corewise_topology::pin_current_thread(&first).unwrap();
        group.set(&before.to_string());
        follow(&machine, &mut watch, |online| *online == before);
    })
    .join()
    .unwrap();
}

#[test]
fn a_cpu_quota_that_is_written_is_followed_on_the_live_machine() {
    const NAME: &str = "a CPU quota that is written";
    let _alone = live::alone();
    match Group::for_quota("quota") {
        Ok(group) => live::run_child("child_follows_its_quota", &group),
        Err(why) => live::skipped(NAME, &why),
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_follows_its_quota() {
    let Some(group) = live::enter_group() else { return };
    let before = Machine::live().unwrap();
    group.set_quota(Some(150));
    let machine = Machine::live().unwrap();
    assert_eq!(machine.cpu_quota().map(|quota| quota.cpus()), Some(1.5));
    assert_eq!(machine.parallelism(), 1);
    let mut watch = Watch::new().unwrap();
    if !watch.unwatched().is_empty() {
        before.refresh().unwrap();
        assert_eq!(before.cpu_quota(), machine.cpu_quota());
        return;
    }
    for (millis, cpus) in [(None, None), (Some(400), Some(4.0)), (Some(50), Some(0.5))] {
        group.set_quota(millis);
        while machine.cpu_quota().map(|quota| quota.cpus()) != cpus {
            watch.wait().unwrap();
            machine.refresh().unwrap();
        }
    }
}
