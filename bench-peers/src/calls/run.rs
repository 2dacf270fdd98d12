//! One run of a call workload, in this process: Corewise, the floor, or a peer that is Rust.

use std::error::Error;

use corewise_bench::BenchError;
use corewise_bench::calls::case::Case;
use corewise_bench::calls::job::Job;
use corewise_bench::calls::roundtrip::run as run_on;
use corewise_bench::line::Line;
use corewise_bench::meter::Meter;
use corewise_bench::process::Job as _;
use corewise_topology::Machine;

use crate::calls::peers::channels::{Channels, Crossbeam, Kanal, Std};
use crate::calls::peers::rayon::Rayon;
use crate::calls::peers::tokio::Tokio;
use crate::calls::peers::{FIFO, Targets};
use crate::{counting, session};

/// Runs the job that these words say.
pub(crate) fn run(words: &[String]) -> Result<Line, Box<dyn Error>> {
    session::one(words, peer)
}

fn peer(job: &Job) -> Result<Option<Line>, BenchError> {
    let machine = &Machine::live()?;
    let meter = &mut Meter::new(job.count, Some(counting::allocations));
    let to = &Targets::of(job, machine)?;
    let name = job.runtime.strip_suffix(FIFO).unwrap_or(&job.runtime);
    let line = match (name, job.case) {
        ("crossbeam", _) => run_on(job, machine, meter, || Channels::<Crossbeam>::new(to))?,
        ("kanal", _) => run_on(job, machine, meter, || Channels::<Kanal>::new(to))?,
        ("std-mpsc", _) => run_on(job, machine, meter, || Channels::<Std>::new(to))?,
        ("tokio", _) => run_on(job, machine, meter, || Tokio::new(to))?,
        ("rayon", Case::Broadcast { .. }) => run_on(job, machine, meter, || Rayon::new(to))?,
        ("rayon", Case::RoundTrip(_)) => job.cannot("it has no call to one thread"),
        _ => return Ok(None),
    };
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::catalogue;
    use crate::programs::Tool;
    use crate::session::Cell;
    use corewise_topology::CpuSet;

    /// Every cell of a full run that is made in this program, small; every answer is checked there.
    #[test]
    fn every_rust_runtime_answers_a_few_calls_of_each_of_its_cases() {
        let online: CpuSet = Machine::live().unwrap().online();
        let options = crate::arguments::Options {
            peers: ["", "crossbeam-fifo", "kanal-fifo", "tokio-fifo"].map(str::to_owned).into(),
            ..Default::default()
        };
        let cells = catalogue::cells(&options, &online);
        let rust = |cell: &&Cell<Job>| cell.tool == Tool::Rust;
        for cell in cells.iter().flatten().filter(rust) {
            let gap_us = cell.job.gap_us.min(10);
            let job = Job { items: 50, gap_us, ..cell.job.clone() };
            let line = run(&job.to_words()).unwrap();
            assert_eq!(line.unsupported, None, "{}", job.name());
            assert!(line.metrics.contains_key("latency_p50"), "{}", job.name());
        }
    }

    #[test]
    fn what_cant_be_done_is_said() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let line = run(&words("case=roundtrip/hot runtime=rayon items=1")).unwrap();
        assert!(line.unsupported.is_some());
        let problem = run(&words("case=roundtrip/hot runtime=none")).unwrap_err().to_string();
        assert!(problem.contains("none"), "{problem}");
        let problem = run(&words("case=roundtrips runtime=tokio")).unwrap_err().to_string();
        assert!(problem.contains("roundtrips"), "{problem}");
    }
}
