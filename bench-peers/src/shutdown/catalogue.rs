//! Which runtimes take part in which cases, and the runs that follow from what was asked for.

use corewise_bench::shutdown::case::{Case, Shape};
use corewise_bench::shutdown::job::Job;
use corewise_bench::words::Effort;

use crate::arguments::Options;
use crate::programs::Tool;
use crate::results::OURS;
use crate::session::{Cell, Idle, chosen};

/// The plain loop: no peer, but what all are compared with where nothing is slow.
pub(crate) const SERIAL: &str = "serial";

/// Everybody, and what their idle workers do.
pub(crate) const RUNTIMES: [(&str, Idle); 4] = [
    (OURS, Idle::Hesitates),
    (SERIAL, Idle::Sleeps),
    ("tokio", Idle::Sleeps),
    ("rayon", Idle::Hesitates),
];

/// The cases of a session, in the order in which a round goes through them, each with its cells.
pub(crate) fn cells(options: &Options) -> Vec<Vec<Cell<Job>>> {
    let look = options.quick && options.workloads.is_empty();
    let chosen = |case: &Case| {
        let is_chosen = chosen::<Case>(&options.workloads, &case.to_string());
        is_chosen && if look { quick(*case) } else { !options.workloads.is_empty() || usual(*case) }
    };
    let effort = if options.quick { Effort::Quick } else { Effort::Full };
    let group = |case: Case| {
        let takes_part = |name: &str| {
            let begins = |word: &String| name.starts_with(&**word);
            // The sum of what sleeps is no news, and takes long.
            let is_told = name != SERIAL || case.slow().is_none_or(|slow| slow == 0);
            is_told
                && (matches!(name, OURS | SERIAL)
                    || options.peers.is_empty()
                    || options.peers.iter().any(begins))
        };
        let cell = |name: &str| Cell {
            case: case.to_string(),
            job: Job { seed: options.seed, ..Job::new(case, name, effort) },
            tool: Tool::Rust,
            mimalloc: false,
        };
        let names = RUNTIMES.iter().map(|(name, _)| *name);
        names.filter(|name| takes_part(name)).map(cell).collect()
    };
    Case::all().into_iter().filter(chosen).map(group).collect()
}

/// What a session runs unless it is asked for more: all but webs with two slow devices, which tell
/// nothing that those with none and with many don't.
fn usual(case: Case) -> bool {
    case.slow() != Some(2)
}

/// Those of the headlines, on few webs.
fn quick(case: Case) -> bool {
    match case {
        Case::Azure(_) => true,
        Case::Graph { shape, devices, slow } => {
            matches!(shape, Shape::Flat | Shape::Deep | Shape::Stacked)
                && devices == 5_000
                && slow != 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &Options, case: &str) -> Vec<String> {
        let cells = cells(options);
        let of_case = cells.into_iter().flatten().filter(|cell| cell.case == case);
        of_case.map(|cell| cell.job.runtime).collect()
    }

    #[test]
    fn everybody_takes_part_and_the_plain_loop_where_it_is_short() {
        let all = Options::default();
        assert_eq!(names(&all, "flat/500/0"), [OURS, SERIAL, "tokio", "rayon"]);
        assert_eq!(names(&all, "azure/serial"), [OURS, SERIAL, "tokio", "rayon"]);
        assert_eq!(names(&all, "flat/500/24"), [OURS, "tokio", "rayon"]);
        assert!(names(&all, "flat/500/2").is_empty());
        let look = Options { quick: true, ..Options::default() };
        assert!(names(&look, "flat/500/0").is_empty() && !names(&look, "flat/5000/24").is_empty());
        let workloads = vec!["flat/500/2".to_owned()];
        let asked = Options { workloads, peers: vec!["ray".to_owned()], ..look };
        assert_eq!(names(&asked, "flat/500/2"), [OURS, "rayon"]);
    }
}
