//! The pools follow the machine that the tests run on: a CPU goes offline and comes back, a cpuset
//! is narrowed. In a binary of its own, one test at a time; skipped, with the reason, where the
//! system doesn't permit it.
#![allow(clippy::unwrap_used, reason = "helpers of tests say what they expect by unwrapping")]

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use corewise_sync::Completion;
use corewise_topology::{
    AffinityScope, Change, CpuId, CpuSet, Machine, Subscription, Watch, current_cpu,
    pin_current_thread,
};
use corewise_workqueue::{At, WorkerPools, Workqueue};

#[path = "../../topology/tests/support/live.rs"]
mod live;
use live::{Cpuset, Group, Offline};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// Returns what each thread with such a name may use, as the kernel says.
fn masks(name: &str) -> Vec<CpuSet> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
    let of = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().trim().to_owned()
    };
    // One that ends meanwhile is no thread any more.
    let status = status.filter_map(Result::ok).filter(|s| of(s, "Name:").starts_with(name));
    status.map(|status| set(&of(&status, "Cpus_allowed_list:"))).collect()
}

/// Pools that follow the live machine by themselves, and a queue with a pod a CPU.
struct Followed {
    machine: Machine,
    pools: WorkerPools,
    queue: Workqueue,
    changes: Receiver<Change>,
    _listening: Subscription,
}

impl Followed {
    fn new() -> Followed {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::builder(&machine).follow(true).build();
        let queue = Workqueue::builder("test").scope(AffinityScope::Cpu).strict(true).build(&pools);
        // Subscribed after the pools, and so told when they have followed.
        let (tell, changes) = mpsc::channel();
        let listening = machine.on_change(move |change| drop(tell.send(change.clone())));
        Followed { machine, pools, queue: queue.unwrap(), changes, _listening: listening }
    }

    /// Waits until the pools have followed to such CPUs.
    fn until(&self, wanted: impl Fn(&CpuSet) -> bool) {
        while !wanted(&self.changes.recv().unwrap().after.online) {}
    }

    /// Queues an item on a CPU's worker that waits until told; another worker stands in for it
    /// meanwhile.
    fn busy(&self, cpu: CpuId) -> Busy {
        let (gate, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
        let (waits, rings) = (Arc::clone(&gate), Arc::clone(&started));
        let item = self.queue.at(At::Cpu(cpu)).spawn(move || {
            rings.complete();
            waits.wait();
            current_cpu().unwrap()
        });
        started.wait();
        Busy { gate, item }
    }
}

struct Busy {
    gate: Arc<Completion>,
    item: corewise_workqueue::JoinHandle<CpuId>,
}

impl Busy {
    /// Lets it end; says which CPU it was on then.
    fn end(self) -> u32 {
        self.gate.complete();
        self.item.join().unwrap().number()
    }
}

#[test]
fn workers_of_a_cpu_that_goes_offline_run_elsewhere_and_come_home() {
    const NAME: &str = "workers of a CPU that goes offline";
    let _alone = live::alone();
    let cpu = match live::spare_cpu() {
        Ok(cpu) => cpu,
        Err(why) => return live::skipped(NAME, &why),
    };
    let watch = Watch::new().unwrap();
    if let Some(missing) = watch.unwatched().iter().find(|missing| missing.what == "hotplug") {
        return live::skipped(NAME, &missing.to_string());
    }
    let followed = Followed::new();
    let (home, rest) = (CpuSet::from_iter([cpu]), followed.machine.online());
    let rest = rest.difference(&home);
    let busy = followed.busy(cpu);
    let workers = format!("cw-cpu{cpu}:");
    assert!(masks(&workers).iter().all(|mask| *mask == home));

    let offline = match Offline::take(cpu) {
        Ok(offline) => offline,
        Err(why) => {
            busy.end();
            return live::skipped(NAME, &why);
        }
    };
    followed.until(|online| !online.contains(cpu));
    let away = masks(&workers);
    let ran_on = followed.queue.at(At::Cpu(cpu)).spawn(|| current_cpu().unwrap()).join().unwrap();
    drop(offline);
    followed.until(|online| online.contains(cpu));
    let back = masks(&workers);

    assert!(!away.is_empty() && away.iter().all(|mask| *mask == rest), "{away:?}");
    assert_ne!(ran_on, cpu);
    assert!(!back.is_empty() && back.iter().all(|mask| *mask == home), "{back:?}");
    assert_eq!(busy.end(), cpu.number(), "also the one that was inside of an item all the time");
    followed.pools.shutdown();
    assert!(masks("cw-").is_empty(), "the follower has ended too");
}

#[test]
fn workers_follow_a_cpuset_that_is_narrowed() {
    const NAME: &str = "workers follow a cpuset";
    let _alone = live::alone();
    if let Err(why) = live::spare_cpu() {
        return live::skipped(NAME, &why);
    }
    match Cpuset::new("workqueue", &Machine::live().unwrap().online()) {
        Ok(group) => live::run_child("child_workers_follow_a_cpuset", group),
        Err(why) => live::skipped(NAME, &why),
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_workers_follow_a_cpuset() {
    let Some(group) = live::enter_group() else { return };
    let followed = Followed::new();
    let all = followed.machine.online();
    let (first, last) = (all.first().unwrap(), all.last().unwrap());
    let workers = format!("cw-cpu{last}:");
    let busy = followed.busy(last);

    let narrow = CpuSet::from_iter([first]);
    group.set(&narrow.to_string());
    followed.until(|online| *online == narrow);
    assert!(masks(&workers).iter().all(|mask| *mask == narrow));
    assert_eq!(
        followed.queue.at(At::Cpu(last)).spawn(|| current_cpu().unwrap()).join().unwrap(),
        first
    );

    group.set(&all.to_string());
    followed.until(|online| *online == all);
    let home = CpuSet::from_iter([last]);
    assert!(masks(&workers).iter().all(|mask| *mask == home));
    assert_eq!(busy.end(), last.number());

    // Something pins a worker elsewhere, as the kernel does when a CPU goes and is back at once. It
    // comes home with the next word of the kernel, although the machine is as it was.
    // No join: this thread may be on that CPU, take the closure back, and be pinned itself.
    let (pins, pinned) = std::sync::mpsc::channel();
    let pin = move || pins.send(pin_current_thread(&narrow).is_ok()).unwrap();
    assert!(followed.queue.at(At::Cpu(last)).execute(pin).is_ok() && pinned.recv().unwrap());
    assert!(masks(&workers).iter().any(|mask| *mask != home));
    group.set(&all.to_string());
    while masks(&workers).iter().any(|mask| *mask != home) {
        std::thread::yield_now();
    }
    followed.pools.shutdown();
}

#[test]
fn pools_follow_a_cpu_quota_that_is_written() {
    const NAME: &str = "pools follow a CPU quota";
    let _alone = live::alone();
    if let Err(why) = live::spare_cpu() {
        return live::skipped(NAME, &why);
    }
    match Group::for_quota("quota-of-pools") {
        Ok(group) => live::run_child("child_pools_follow_a_quota", group),
        Err(why) => live::skipped(NAME, &why),
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_pools_follow_a_quota() {
    let Some(group) = live::enter_group() else { return };
    if !Watch::new().unwrap().unwatched().is_empty() {
        return live::skipped("pools follow a CPU quota", "the kernel doesn't announce it here");
    }
    let machine = Machine::live().unwrap();
    let pools = WorkerPools::builder(&machine).follow(true).build();
    let queue = Workqueue::builder("test").scope(AffinityScope::System).build(&pools).unwrap();
    let concurrency = || pools.report()[0].concurrency;
    let all = concurrency();
    for (millis, wanted) in [(Some(130), 1), (None, all), (Some(20), 1)] {
        group.set_quota(millis);
        while concurrency() != wanted {
            std::thread::yield_now();
        }
    }
    queue.spawn(|| ()).join().unwrap();
    pools.shutdown();
}
