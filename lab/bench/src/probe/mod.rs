//! Devices that burn and wait in their probes: the CPUs and the costs of the probes.
//!
//! `device` has the fake device, and the pattern of its probe. `before` has the old designs, which
//! place a probe twice. `ours` has a device manager, and a plain thread a device.
//!
//! # The words
//!
//! | word | means |
//! |---|---|
//! | `case` | the case |
//! | `runtime` | the design: `corewise`, `before`, `nested`, or none: `threads` |
//! | `pieces` | number of times that a probe burns and waits; 0: it does nothing |
//! | `burn_ns` | CPU time of one piece |
//! | `wait_ns` | length of the sleep after it |
//! | `passes` | number of measured bring-ups of all devices, after one that doesn't count |
//!
//! # The cases
//!
//! **`devices/K`**: K devices of one node, all asynchronous, none needs another.
//!
//! - `cost_mean`, `cost_max` are the times of the devices' probes, each from its start to its end,
//!   as the kernel's patch prints it.
//! - `makespan_p50` is the time until the last device is up.
//! - `bound` is the least time of any design: that of the longest probe (one alone, measured in the
//!   same process), or its CPU time, K times, over the node's CPUs.
//! - `cpus` is the number of CPUs on which the probes were seen.
//! - `threads` is the number of threads made meanwhile.
//!
//! **`overhead/K`**: the same with probes that do nothing. `overhead_per_device` is that time over
//! K: the whole cost of a device beside its own probe, including its placement.
//!
//! **`sync/3`**, **`no_node/3`** are the controls: three synchronous devices of one node, and three
//! asynchronous ones of none. A design should gain nothing there, and lose nothing.
//!
//! # The pattern
//!
//! The published figures are of three NVMe devices: 53/50/47 ms if all are probed on the node's
//! first CPU, 35/35/33 ms on CPUs of their own. A probe that burns once for b and waits once for w
//! takes b + w alone, and w + 3b beside two others. So b = 9.6, w = 24.7. But then the length of
//! the scheduler's slice matters. On a machine of two CPUs all three probes want both at the same
//! time, which no placement can help.
//!
//! A real probe alternates: it sends a command, waits for the interrupt, works on the answer. With
//! 16 pieces three of them keep one CPU busy all the time (3b = 50: the published mean). One alone
//! takes b + w = 34. If waits are a little longer than burns, as here, two CPUs are enough for
//! three devices, unless other work disturbs.
//!
//! A wait is that of the device until its prober runs again. A sleep takes longer than asked for,
//! even on a machine at rest. That excess is measured first, and each sleep is shorter by it.

mod before;
mod device;
mod ours;

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time;
use corewise_topology::{CpuId, CpuSet, Machine};
use corewise_workqueue::WorkerPools;

use crate::bench::{Bench, Cases, Workload, count, variants, worst};
use crate::meter::{Meter, nanoseconds, thread_cpu};
use crate::rounds::Series;
use crate::start::Pools;
use crate::stats::median;
use crate::{BenchError, Job, Line};
use before::{Second, Twice};
use device::{Device, Pattern, oversleep};
use ours::{BringUpStyle, managed, threads};

/// `corewise-bench probe`. One headline is the ratio of the mean cost of three devices' probes to
/// that of the old design. The other is the ratio of the time until all are up to the lower bound
/// of any design, for the worst number of devices. Less is better in both.
pub static BENCH: Bench = Bench {
    name: "probe",
    words: "pieces burn_ns wait_ns passes",
    workloads: &[PROBES],
    counting: |_| (),
    headlines: |pairs| {
        let cost = pairs.over("devices/3", "cost_mean", "before");
        let ours = |one: &&Series| one.variant == "corewise" && one.metric == "makespan_p50";
        let over_bound = |one: &Series| {
            pairs.ratio(Some(&one.values), pairs.values(&one.case, "corewise", "bound"))
        };
        let all = worst(pairs.series.iter().filter(ours).filter_map(over_bound));
        vec![("mean_cost_vs_before", cost), ("makespan_vs_bound", all)]
    },
};

/// CPU time of all probes of one pass, in a full call and in a short one.
const MOST_BURNT: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(2)];
/// Approximate CPU time of all passes of a run, which decides their number. So a run of three
/// devices isn't over at once.
const BURNT_IN_ALL: Duration = Duration::from_millis(500);
/// Largest number of devices for which plain threads are measured. No program would start more.
const MOST_THREADS: u32 = 100;

const PROBES: Workload = Workload {
    cases: Cases::Fit(
        |parts| match parts {
            ["devices" | "overhead", devices] => count(devices),
            _ => matches!(parts, ["sync" | "no_node", "3"]),
        },
        |_| {
            let devices =
                [3, 10, 30, 100, 300, 1_000, 3_000, 10_000].map(|n| format!("devices/{n}"));
            let overhead = [100, 1_000, 10_000].map(|n| format!("overhead/{n}"));
            let controls = ["sync/3", "no_node/3"].map(str::to_owned);
            devices.into_iter().chain(overhead).chain(controls).collect()
        },
    ),
    // The cases go from the fewest devices to the most.
    quick: |parts, _| {
        matches!(parts, ["devices", "3" | "10" | "100" | "1000" | "10000"] | ["overhead", "10000"])
    },
    numbers: |job, parts, on| {
        if parts[0] == "overhead" {
            job.passes = 10;
            return;
        }
        let devices = job.part(1);
        let pattern = Pattern::of(devices, on.pick(MOST_BURNT[0], MOST_BURNT[1]));
        let pass = pattern.cpu().as_secs_f64() * f64::from(devices);
        job.passes = (BURNT_IN_ALL.as_secs_f64() / pass).round().max(1.0) as usize;
        (job.pieces, job.burn_ns) = (pattern.pieces, nanoseconds(pattern.burn));
        job.wait_ns = nanoseconds(pattern.wait);
    },
    variants: |_, _| variants(&["corewise", "before", "nested", "threads"], false),
    run: |job, meter| {
        let machine = &Machine::live()?;
        let (node, cpus) = home(machine);
        let first = cpus.first().unwrap_or(CpuId::new(0));
        let run = |bring_up: BringUp<'_>| run(job, bring_up, node, cpus.len(), meter);
        let twice = |second| {
            let twice = Twice::new(machine, second)?;
            run(&|devices, how| twice.bring_up(devices, how))
        };
        let few = job.case.starts_with("devices/") && job.part(1) <= MOST_THREADS;
        match job.runtime.as_str() {
            "corewise" => {
                let pools = Pools(WorkerPools::new(machine));
                run(&|devices, how| managed(&pools.0, devices, how))
            }
            "nested" if job.case.starts_with("sync/") => {
                Ok(job.cannot("it is about asynchronous probes"))
            }
            "before" => twice(Second::On(first)),
            "nested" => twice(Second::Near),
            "threads" if few => run(&|devices, _| threads(&devices)),
            "threads" => {
                Ok(job.cannot("a thread for each of a few devices that burn and wait is all it is"))
            }
            _ => job.unknown(),
        }
    },
};

fn pattern(job: &Job) -> Pattern {
    let (burn, wait) = (Duration::from_nanos(job.burn_ns), Duration::from_nanos(job.wait_ns));
    Pattern { pieces: job.pieces, burn, wait }
}

/// Returns the node of the first CPU for general work, and all such CPUs of the node.
fn home(machine: &Machine) -> (Option<u32>, CpuSet) {
    let usable = machine.housekeeping();
    let all = machine.topology().cpus().iter().filter(|c| usable.contains(c.cpu));
    let node = all.clone().next().and_then(|c| c.node);
    (node, all.filter(|c| c.node == node).map(|c| c.cpu).collect())
}

/// A design under test: it brings devices up, and returns the time until the last one was.
type BringUp<'d> = &'d dyn Fn(Vec<Device>, BringUpStyle) -> Result<Duration, BenchError>;

/// Times of one pass.
struct Pass {
    makespan: f64,
    costs: Vec<u64>,
    cpus: usize,
}

fn run(
    job: &Job,
    bring_up: BringUp<'_>,
    node: Option<u32>,
    cpus: usize,
    meter: &Meter,
) -> Result<Line, BenchError> {
    let how = BringUpStyle {
        node: node.filter(|_| !job.case.starts_with("no_node")),
        synchronous: job.case.starts_with("sync"),
    };
    let pattern = pattern(job);
    let oversleep = oversleep(pattern.wait);
    let device = Device { pattern, oversleep, costs: Arc::default() };
    let count = job.part(1) as usize;
    let pass = |count: usize| {
        let devices = vec![device.clone(); count];
        let makespan = bring_up(devices, how)?;
        let (costs, seen) = device.take();
        Ok::<_, BenchError>(Pass {
            makespan: makespan.as_secs_f64() * 1e9,
            costs,
            cpus: seen.len(),
        })
    };
    // A pass that doesn't count makes the threads. If there are many devices, some are enough for
    // it.
    pass(count.min(1_000))?;
    let alone: Vec<Alone> = (0..3).map(|_| alone(&device)).collect();
    let passes: Vec<Pass> = (0..job.passes).map(|_| pass(count)).collect::<Result<_, _>>()?;
    let of = |value: fn(&Pass) -> f64| {
        median(&passes.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let mut line = job.line();
    let makespan = of(|pass| pass.makespan);
    if job.case.starts_with("overhead") {
        line.set("overhead_per_device", makespan / count as f64);
    } else {
        line.set("cost_mean", of(|pass| mean(&pass.costs)));
        line.set("cost_max", of(|pass| pass.costs.iter().max().copied().unwrap_or(0) as f64));
        line.set("makespan_p50", makespan);
        line.set("cpus", of(|pass| pass.cpus as f64));
        if job.case.starts_with("devices") {
            line.set("bound", bound(count, cpus, &alone));
        }
    }
    line.set("threads", meter.new_threads() as f64);
    Ok(line)
}

/// Costs of a probe without disturbance.
struct Alone {
    wall: Duration,
    /// CPU time, including that of going to sleep and waking up, which no design can save.
    cpu: Duration,
}

/// Probes the device alone, on this thread.
fn alone(device: &Device) -> Alone {
    let (began, cpu) = (time::now(), thread_cpu());
    device.probe();
    let alone = Alone { wall: time::now() - began, cpu: thread_cpu() - cpu };
    device.take();
    alone
}

/// Returns the nanoseconds below which no design brings the devices up, from the fastest of some
/// probes.
fn bound(devices: usize, cpus: usize, alone: &[Alone]) -> f64 {
    let least = |time: fn(&Alone) -> Duration| {
        nanoseconds(alone.iter().map(time).min().unwrap_or_default()) as f64
    };
    let work = least(|alone| alone.cpu) * devices as f64 / cpus.max(1) as f64;
    work.max(least(|alone| alone.wall))
}

fn mean(costs: &[u64]) -> f64 {
    costs.iter().sum::<u64>() as f64 / costs.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_design_beats_the_longest_probe_nor_the_work_over_the_cpus() {
        let ms = Duration::from_millis;
        let alone = [(11, 20), (10, 21)].map(|(cpu, wall)| Alone { wall: ms(wall), cpu: ms(cpu) });
        assert_eq!(bound(3, 8, &alone), 20e6);
        assert_eq!(bound(30, 2, &alone), 150e6);
    }
}
