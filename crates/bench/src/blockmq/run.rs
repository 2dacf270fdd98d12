//! One run: a case on the runtime that the job names.

use std::time::Duration;

use corewise_sync::sys;

use crate::blockmq::case::{Case, Device};
use crate::blockmq::job::Job;
use crate::blockmq::{fio, hold, io, seqread, tags};
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Allocations;
use crate::process::{Job as _, NOT_SIMULATED};

/// Runs a job. `None`: the runtime is none that the case has.
///
/// # Errors
/// The workload couldn't be run, or gave a wrong answer.
pub fn run_own(job: &Job, allocations: Option<Allocations>) -> Result<Option<Line>, BenchError> {
    match job.case {
        Case::SeqRead { threads, cost_ns, class } => {
            let cost = Duration::from_nanos(cost_ns.into());
            seqread::run(job, seqread::Threads { threads, cost, class }, allocations)
        }
        Case::Io(load) => match job.runtime.as_str() {
            _ if !sys::KERNEL_THREADS && (load.device == Device::File || job.runtime == "fio") => {
                Ok(Some(job.cannot(NOT_SIMULATED)))
            }
            "corewise" => io::run(job, load, allocations).map(Some),
            io::POLLING if load.device == Device::File => io::run(job, load, allocations).map(Some),
            "fio" => fio::run(job, load).map(Some),
            _ => Ok(None),
        },
        Case::Hold { hold, load } => match job.runtime.as_str() {
            "corewise" => hold::one(job, hold, load).map(Some),
            _ => Ok(None),
        },
        Case::QuiesceAll { queues } => hold::many(job, queues),
        Case::Tags { submitters, depth } => tags::run(job, submitters, depth, allocations),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blockmq::case::{Class, Hold, Load, Mix};
    use crate::blockmq::disk::Disk;
    use crate::line::unit;
    use crate::words::Effort;

    fn check(case: Case, runtime: &str) -> Line {
        let job = Job::new(case, runtime, Effort::Quick);
        let job = Job { items: 50, gap_us: 50, length_ms: 20, ..job };
        let line = run_own(&job, None).unwrap().unwrap();
        assert_eq!((line.case.as_str(), line.runtime.as_str()), (&*case.to_string(), runtime));
        for (name, value) in &line.metrics {
            assert!(unit(name).is_some() && value.is_finite(), "{name}");
        }
        line
    }

    #[test]
    fn every_variant_reads_through_the_whole_layer() {
        let read = |class, runtime| {
            let line = check(Case::SeqRead { threads: 3, cost_ns: 200, class }, runtime);
            assert!(line.metrics["bytes_per_second"] > 0.0 && line.metrics["wait_max"] > 0.0);
        };
        for runtime in ["corewise", "before", "mutex", "spin", "unchecked"] {
            read(Class::Ordinary, runtime);
        }
        if Class::best().is_real_time() {
            read(Class::Fifo, "before");
            read(Class::Alone, "corewise");
        }
        let job = Job::new(Case::published(Class::Ordinary), "tokio", Effort::Quick);
        assert_eq!(run_own(&job, None).unwrap(), None, "others' runtimes aren't ours");
    }

    #[test]
    fn a_counting_run_reports_allocations_alone() {
        fn none() -> u64 {
            0
        }
        let case = Case::published(Class::Ordinary);
        let job = Job { items: 50, ..Job::new(case, "corewise", Effort::Quick) }.counting();
        let line = run_own(&job, Some(none)).unwrap().unwrap();
        assert_eq!(
            line.metrics.into_iter().collect::<Vec<_>>(),
            [("allocations_per_item".to_owned(), 0.0)]
        );
    }

    #[test]
    fn every_device_is_read_and_written_by_several_jobs_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::make(folder.path(), 4 << 20).unwrap();
        for device in Device::ALL {
            for mix in Mix::ALL {
                let load = Load { device, mix, depth: 3, jobs: 2 };
                let job = Job::new(Case::Io(load), "corewise", Effort::Quick);
                let job = Job { length_ms: 20, ..job };
                let line = io::run_on(&job, load, None, Some(&disk)).unwrap();
                if let Some(why) = line.unsupported {
                    assert!(device == Device::File && why.contains("page cache"), "{why}");
                    continue;
                }
                assert!(line.metrics["items_per_second"] > 0.0, "{}", line.case);
                assert!(line.metrics["latency_p50"] > 0.0, "{}", line.case);
            }
        }
    }

    #[test]
    fn fio_runs_the_same_case_or_says_why_not() {
        let load = Load { device: Device::Null, mix: Mix::RandWrite, depth: 2, jobs: 2 };
        let job = Job::new(Case::Io(load), "fio", Effort::Quick);
        let line = run_own(&Job { length_ms: 100, ..job }, None).unwrap().unwrap();
        match line.unsupported {
            Some(why) => assert!(why.contains("fio"), "{why}"),
            None => assert!(line.metrics["items_per_second"] > 0.0),
        }
    }

    #[test]
    fn holds_end_and_the_reads_go_on() {
        for hold in Hold::ALL {
            assert!(
                !check(Case::Hold { hold, load: false }, "corewise")
                    .metrics
                    .contains_key("resume_p50")
            );
            assert!(check(Case::Hold { hold, load: true }, "corewise").metrics["resume_p50"] > 0.0);
        }
        for runtime in ["corewise", "one_by_one"] {
            let line = check(Case::QuiesceAll { queues: 3 }, runtime);
            assert!(line.metrics["latency_p50"] > 0.0 && line.metrics["resume_p50"] > 0.0);
        }
    }

    #[test]
    fn tags_come_back_where_there_are_plenty_and_where_there_are_few() {
        for (submitters, depth) in [(1, 8), (3, 128), (4, 2)] {
            for runtime in ["corewise", "mutex_list"] {
                let line = check(Case::Tags { submitters, depth }, runtime);
                assert!(line.metrics["items_per_second"] > 0.0);
            }
        }
    }
}
