//! One run: the devices of its case, brought up some times by the design that it names.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time;
use corewise_topology::{CpuSet, Machine};

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Meter, nanoseconds, thread_cpu};
use crate::probe::before::{Second, Twice};
use crate::probe::case::Case;
use crate::probe::device::{Costs, Device, oversleep};
use crate::probe::job::Job;
use crate::probe::ours::{Devices, How, Managed};
use crate::probe::threads::{self, Threads};
use crate::process::Job as _;
use crate::stats::median;

/// Runs a job on `corewise`, on an old design (`before`, `nested`), or on plain `threads`. `None`: the
/// runtime is none of these.
///
/// # Errors
/// The workload couldn't be run.
pub fn run_own(job: &Job) -> Result<Option<Line>, BenchError> {
    let machine = &Machine::live()?;
    let (node, cpus) = home(machine);
    let first = cpus.first().unwrap_or(0);
    let meter = &Meter::new(false, None);
    let run = |devices: &dyn Devices| run(job, devices, node, cpus.len(), meter);
    Ok(Some(match job.runtime.as_str() {
        "corewise" => run(&Managed::new(machine))?,
        "nested" if job.case == Case::Sync => job.cannot("it is about asynchronous probes"),
        "before" => run(&Twice::new(machine, Second::On(first))?)?,
        "nested" => run(&Twice::new(machine, Second::Near)?)?,
        "threads" if !matches!(job.case, Case::Devices(count) if count <= threads::MOST) => {
            job.cannot("a thread for each of a few devices that burn and wait is all it is")
        }
        "threads" => run(&Threads)?,
        _ => return Ok(None),
    }))
}

/// The node of the first CPU for general work, and all such CPUs of it.
fn home(machine: &Machine) -> (Option<u32>, CpuSet) {
    let usable = machine.housekeeping();
    let all = machine.topology().cpus().iter().filter(|c| usable.contains(c.cpu));
    let node = all.clone().next().and_then(|c| c.node);
    (node, all.filter(|c| c.node == node).map(|c| c.cpu).collect())
}

/// What one pass took.
#[derive(Debug)]
struct Pass {
    makespan: f64,
    costs: Vec<u64>,
    cpus: usize,
}

fn run(
    job: &Job,
    design: &dyn Devices,
    node: Option<u32>,
    cpus: usize,
    meter: &Meter,
) -> Result<Line, BenchError> {
    let how = How {
        node: node.filter(|_| job.case != Case::NoNode),
        synchronous: job.case == Case::Sync,
    };
    let oversleep = oversleep(job.pattern.wait);
    let device = Device { pattern: job.pattern, oversleep, costs: Arc::<Costs>::default() };
    let pass = |count: usize| {
        let devices = vec![device.clone(); count];
        let makespan = design.bring_up(devices, how)?;
        let (costs, seen) = device.costs.take();
        Ok::<_, BenchError>(Pass {
            makespan: makespan.as_secs_f64() * 1e9,
            costs,
            cpus: seen.len(),
        })
    };
    // One that doesn't count makes the threads. A few devices are enough where there are many.
    pass(job.case.devices().min(1_000))?;
    let alone: Vec<Alone> = (0..3).map(|_| alone(&device)).collect();
    let passes: Vec<Pass> =
        (0..job.passes).map(|_| pass(job.case.devices())).collect::<Result<_, _>>()?;
    let of = |value: fn(&Pass) -> f64| {
        median(&passes.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let mut line = job.line();
    let makespan = of(|pass| pass.makespan);
    if let Case::Overhead(count) = job.case {
        line.set("overhead_per_device", makespan / count as f64);
    } else {
        line.set("cost_mean", of(|pass| mean(&pass.costs)));
        line.set("cost_max", of(|pass| pass.costs.iter().max().copied().unwrap_or(0) as f64));
        line.set("makespan_p50", makespan);
        line.set("cpus", of(|pass| pass.cpus as f64));
        if let Case::Devices(count) = job.case {
            line.set("bound", bound(count, cpus, &alone));
        }
    }
    line.set("threads", meter.new_threads() as f64);
    Ok(line)
}

/// What a probe takes that nobody disturbs.
struct Alone {
    wall: Duration,
    /// CPU time, that of going to sleep and waking up included: what no design can save.
    cpu: Duration,
}

/// The device alone, on this thread.
fn alone(device: &Device) -> Alone {
    let (began, cpu) = (time::now(), thread_cpu());
    device.probe();
    let alone = Alone { wall: time::now() - began, cpu: thread_cpu() - cpu };
    device.costs.take();
    alone
}

/// In nanoseconds: no design brings them up in less. The least of some probes counts.
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
    use crate::line::unit;
    use crate::probe::device::Pattern;

    #[test]
    fn no_design_beats_the_longest_probe_nor_the_work_over_the_cpus() {
        let ms = Duration::from_millis;
        let alone = [(11, 20), (10, 21)].map(|(cpu, wall)| Alone { wall: ms(wall), cpu: ms(cpu) });
        assert_eq!(bound(3, 8, &alone), 20e6);
        assert_eq!(bound(30, 2, &alone), 150e6);
    }

    /// Every case of every design, small: what it reports has names and values.
    #[test]
    fn every_design_runs_every_case_or_says_why_not() {
        for runtime in ["corewise", "before", "nested", "threads"] {
            for case in [Case::Devices(5), Case::Overhead(7), Case::Sync, Case::NoNode] {
                let us = Duration::from_micros;
                let pattern = match case {
                    Case::Overhead(_) => Pattern::NOTHING,
                    _ => Pattern { pieces: 2, burn: us(20), wait: us(20) },
                };
                let job = Job { case, runtime: runtime.into(), pattern, passes: 2 };
                let line = run_own(&job).unwrap().unwrap();
                let cannot = match runtime {
                    "nested" => case == Case::Sync,
                    "threads" => case != Case::Devices(5),
                    _ => false,
                };
                assert_eq!(line.unsupported.is_some(), cannot, "{runtime} {case}");
                for (name, value) in &line.metrics {
                    assert!(unit(name).is_some() && value.is_finite(), "{name}");
                }
                let has = |metric: &str| line.metrics.get(metric).is_some_and(|v| *v > 0.0);
                match case {
                    _ if cannot => {}
                    Case::Overhead(_) => assert!(has("overhead_per_device"), "{line:?}"),
                    Case::Devices(_) => {
                        assert!(
                            has("cost_mean") && has("makespan_p50") && has("bound"),
                            "{line:?}"
                        );
                    }
                    _ => assert!(has("cost_max"), "{line:?}"),
                }
            }
        }
        let job =
            Job { case: Case::Sync, runtime: "x".into(), pattern: Pattern::NOTHING, passes: 1 };
        assert!(run_own(&job).unwrap().is_none());
    }
}
