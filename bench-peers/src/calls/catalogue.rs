//! Which runtimes take part in which cases, and the runs that follow from what was asked for.

use corewise_bench::calls::case::{Case, Pace};
use corewise_bench::calls::job::Job;
use corewise_bench::words::Effort;
use corewise_topology::CpuSet;

use crate::arguments::Options;
use crate::calls::peers::FIFO;
use crate::programs::Tool;
use crate::results::OURS;
use crate::session::{Cell, Idle, chosen};

/// The floor: no call, and no peer.
pub(crate) const EVENTFD: &str = "eventfd";

/// A runtime that takes part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runtime {
    /// Its name in records.
    pub(crate) name: &'static str,
    tool: Tool,
    pub(crate) idle: Idle,
    takes: Takes,
}

/// In which cases it has a way of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    All,
    /// It can't have something run on several at once.
    One,
    /// It can't have something run on one that the caller chooses.
    Many,
}

const fn runtime(name: &'static str, tool: Tool, idle: Idle, takes: Takes) -> Runtime {
    Runtime { name, tool, idle, takes }
}

/// Everybody.
pub(crate) const RUNTIMES: [Runtime; 15] = [
    runtime(OURS, Tool::Rust, Idle::Hesitates, Takes::All),
    runtime(EVENTFD, Tool::Rust, Idle::Sleeps, Takes::One),
    runtime("crossbeam", Tool::Rust, Idle::Hesitates, Takes::All),
    runtime("kanal", Tool::Rust, Idle::Hesitates, Takes::All),
    runtime("std-mpsc", Tool::Rust, Idle::Sleeps, Takes::All),
    runtime("tokio", Tool::Rust, Idle::Sleeps, Takes::All),
    runtime("rayon", Tool::Rust, Idle::Hesitates, Takes::Many),
    runtime("go-channel", Tool::GoCalls, Idle::Sleeps, Takes::All),
    runtime("glommio", Tool::Glommio, Idle::Sleeps, Takes::All),
    runtime("glommio-spins", Tool::Glommio, Idle::Spins, Takes::All),
    runtime("seastar", Tool::Seastar, Idle::Hesitates, Takes::All),
    runtime("seastar-poll-mode", Tool::Seastar, Idle::Spins, Takes::All),
    // Only where they are asked for by their names.
    runtime("crossbeam-fifo", Tool::Rust, Idle::Hesitates, Takes::All),
    runtime("kanal-fifo", Tool::Rust, Idle::Hesitates, Takes::All),
    runtime("tokio-fifo", Tool::Rust, Idle::Sleeps, Takes::All),
];

impl Runtime {
    fn takes(&self, case: Case) -> bool {
        match (self.takes, case) {
            (Takes::All, _) => true,
            (Takes::One, Case::RoundTrip(_)) | (Takes::Many, Case::Broadcast { .. }) => true,
            (Takes::One | Takes::Many, _) => false,
        }
    }

    fn is_asked_for(&self, options: &Options) -> bool {
        let begins = |word: &String| self.name.starts_with(&**word);
        if self.name.ends_with(FIFO) {
            return options.peers.iter().any(|word| word == self.name);
        }
        if matches!(self.name, OURS | EVENTFD) {
            return true;
        }
        options.peers.is_empty() || options.peers.iter().any(begins)
    }
}

/// The cases of a session, in the order in which a round goes through them, each with its cells.
pub(crate) fn cells(options: &Options, cpus: &CpuSet) -> Vec<Vec<Cell<Job>>> {
    let look = options.quick && options.workloads.is_empty();
    let chosen = |case: &Case| {
        chosen::<Case>(&options.workloads, &case.to_string()) && (!look || quick(*case))
    };
    let cases = cases(cpus.len()).into_iter().filter(chosen);
    let cells = |case: Case| {
        let takes = |runtime: &&Runtime| runtime.takes(case) && runtime.is_asked_for(options);
        let cell = |runtime: &Runtime| Cell {
            case: case.to_string(),
            job: job(case, runtime.name, cpus, options.quick),
            tool: runtime.tool,
            mimalloc: false,
        };
        RUNTIMES.iter().filter(takes).map(cell).collect()
    };
    cases.map(cells).collect()
}

/// Those of the headline.
fn quick(case: Case) -> bool {
    matches!(case, Case::RoundTrip(Pace::Hot | Pace::Cold))
}

/// A run that keeps a session with a dozen runtimes within its time.
fn job(case: Case, name: &str, cpus: &CpuSet, quick: bool) -> Job {
    let pick = |full: usize, short: usize| if quick { short } else { full };
    let items = match case {
        Case::RoundTrip(Pace::Hot) => pick(20_000, 5_000),
        Case::RoundTrip(Pace::Cold) => pick(1_000, 150),
        // Where ordinary work comes first a call takes some milliseconds.
        Case::RoundTrip(Pace::Busy) => pick(300, 60),
        _ => pick(500, 100),
    };
    let effort = if quick { Effort::Quick } else { Effort::Full };
    Job { items, ..Job::new(case, name, cpus, effort) }
}

/// All round trips, and the call to all: sizes between one and all tell nothing about peers, and
/// a waiter that holds its core is compared with the old design, not with peers.
fn cases(cpus: usize) -> Vec<Case> {
    let all = Case::Broadcast { cpus, synthetic: false };
    Pace::ALL.into_iter().map(Case::RoundTrip).chain([all]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &Options, case: &str) -> Vec<String> {
        let cells = cells(options, &CpuSet::full(4));
        let of_case = cells.into_iter().flatten().filter(|cell| cell.case == case);
        of_case.map(|cell| cell.job.runtime).collect()
    }

    #[test]
    fn each_takes_part_in_what_it_has_a_way_for() {
        let all = Options::default();
        for case in ["roundtrip/hot", "roundtrip/cold", "roundtrip/busy"] {
            let names = names(&all, case);
            assert!(names.iter().any(|name| name == EVENTFD), "{names:?}");
            assert!(!names.iter().any(|name| name == "rayon"), "{names:?}");
        }
        let many = names(&all, "broadcast/4");
        assert!(many.iter().any(|name| name == "rayon"), "{many:?}");
        assert!(!many.iter().any(|name| name == EVENTFD), "{many:?}");
        assert!(names(&all, "broadcast/2").is_empty());
        let look = Options { quick: true, ..Options::default() };
        assert!(
            names(&look, "roundtrip/busy").is_empty() && !names(&look, "roundtrip/cold").is_empty()
        );
        let asked = Options { workloads: vec!["roundtrip/busy".to_owned()], ..look };
        assert!(!names(&asked, "roundtrip/busy").is_empty());
    }

    #[test]
    fn peers_and_cases_are_chosen_by_beginnings_and_ours_stays() {
        let mut options = Options {
            peers: vec!["glommio".to_owned(), "tokio-fifo".to_owned()],
            workloads: vec!["roundtrip/cold".to_owned()],
            ..Options::default()
        };
        let expected = [OURS, EVENTFD, "glommio", "glommio-spins", "tokio-fifo"];
        assert_eq!(names(&options, "roundtrip/cold"), expected);
        assert!(names(&options, "roundtrip/hot").is_empty());
        options.peers.clear();
        let all = names(&options, "roundtrip/cold");
        assert!(all.iter().all(|name| !name.ends_with(FIFO)), "{all:?}");
    }
}
