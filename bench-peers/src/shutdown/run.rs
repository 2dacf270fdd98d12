//! One run of a shutdown, in this process: Corewise, the plain loop, or a peer that is Rust.

use std::error::Error;

use corewise_bench::BenchError;
use corewise_bench::line::Line;
use corewise_bench::shutdown::job::Job;
use corewise_bench::shutdown::run::run as run_on;

use crate::session;
use crate::shutdown::peers::{rayon, tokio};

/// Runs the job that these words say.
pub(crate) fn run(words: &[String]) -> Result<Line, Box<dyn Error>> {
    session::one(words, peer)
}

fn peer(job: &Job) -> Result<Option<Line>, BenchError> {
    Ok(Some(match job.runtime.as_str() {
        "tokio" => run_on(job, tokio::prepare)?,
        "rayon" => run_on(job, rayon::prepare)?,
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Options;
    use crate::session::Workload;
    use crate::shutdown::catalogue;
    use corewise_bench::process::Job as _;

    /// Every cell of a session with few devices, small; the order is checked in each run.
    #[test]
    fn everybody_shuts_every_small_web_down_in_order() {
        let cells = catalogue::cells(&Options::default());
        let small = |case: &str| case.contains("/500/") || case.starts_with("azure");
        for cell in cells.iter().flatten().filter(|cell| small(&cell.case)) {
            let job = Job { longest_ms: 20, shortest_ms: 1, ..cell.job.clone().small() };
            let line = run(&job.to_words()).unwrap();
            assert_eq!(line.unsupported, None, "{}", job.name());
            assert!(line.metrics.contains_key("makespan_p50"), "{}", job.name());
        }
    }

    #[test]
    fn who_is_not_there_is_named() {
        let words = ["case=flat/5/0".to_owned(), "runtime=none".to_owned()];
        let problem = run(&words).unwrap_err().to_string();
        assert!(problem.contains("none"), "{problem}");
    }
}
