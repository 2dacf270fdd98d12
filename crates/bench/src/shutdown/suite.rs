//! What `corewise bench shutdown` runs, and the headlines.

use crate::advice::Series;
use crate::rounds::{self, Cell, Headline, ratio, values};
use crate::shutdown::case::{Case, Log, Shape};
use crate::shutdown::job::Job;
use crate::words::Effort;

/// Devices of the webs in which every graph is looked at in a quick call.
const LOOK: usize = 5_000;

/// The cells of the cases that `wanted` takes, grouped by case.
pub fn cells(effort: Effort, wanted: impl Fn(Case) -> bool) -> Vec<Vec<Cell<Job>>> {
    let group = |case: Case| {
        let cell = |variant: &&str| Cell {
            job: Job::new(case, variant, effort),
            case: case.to_string(),
            variant: (*variant).to_owned(),
            count: false,
        };
        variants(case, effort).iter().map(cell).collect()
    };
    Case::all().into_iter().filter(|case| wanted(*case)).map(group).collect()
}

/// Whether a quick call runs it: what the headlines need, and a look at the rest.
pub fn is_quick(case: Case) -> bool {
    match case {
        Case::Azure(_) => true,
        Case::Graph { devices, slow: 0, shape } => devices == LOOK || shape == Shape::Flat,
        Case::Graph { devices, slow: 2, shape } => devices == 500 && shape == Shape::Flat,
        Case::Graph { devices, .. } => devices == LOOK,
    }
}

/// The runtimes of a case. The sum of what sleeps is no news, is the same for any graph, and takes long:
/// with slow devices the plain loop is run on the smallest flat webs, and not in a quick call, where
/// the old design too is run on two webs only.
fn variants(case: Case, effort: Effort) -> &'static [&'static str] {
    let full = effort == Effort::Full;
    let (before, serial) = match case {
        Case::Azure(_) | Case::Graph { slow: 0, .. } => (true, true),
        Case::Graph { shape, devices, .. } => {
            let is_flat = shape == Shape::Flat;
            (full || is_flat || shape == Shape::Deep, full && is_flat && devices == 500)
        }
    };
    match (before, serial) {
        (true, true) => &["corewise", "before", "serial"],
        (true, false) => &["corewise", "before"],
        (false, _) => &["corewise"],
    }
}

/// The headlines, those that were measured. In all of them less is better.
///
/// * `makespan_vs_critical_path`: the time that Corewise took over the least that anybody could, on
///   the graph with slow devices on which that is worst.
/// * `no_slow_vs_serial`: its time over the plain loop's where nothing is slow, on the worst web.
/// * `azure_vs_serial`: the same for the published machine, of whose two logs the worse one counts.
pub fn headlines(series: &[Series], seed: u64) -> Vec<Headline> {
    let of = |case: Case, variant: &str, metric: &str| {
        values(series, &case.to_string(), variant, metric)
    };
    let makespan = |case, variant| of(case, variant, "makespan_p50");
    let to_serial = |case| ratio(makespan(case, "corewise"), makespan(case, "serial"), seed);
    let all = Case::all();
    let slow = all.iter().copied().filter(|case| case.slow().is_some_and(|slow| slow > 0));
    let bound =
        |case| ratio(makespan(case, "corewise"), of(case, "corewise", "critical_path"), seed);
    let no_slow = all.iter().copied().filter(|case| case.slow() == Some(0));
    let azure = Log::ALL.map(Case::Azure).into_iter();
    rounds::measured([
        ("makespan_vs_critical_path", rounds::worst(slow.filter_map(bound))),
        ("no_slow_vs_serial", rounds::worst(no_slow.filter_map(to_serial))),
        ("azure_vs_serial", rounds::worst(azure.filter_map(to_serial))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_cells_and_a_quick_call_those_of_the_headlines() {
        assert_eq!(cells(Effort::Full, |_| true).len(), Case::all().len());
        let quick = cells(Effort::Quick, is_quick);
        assert!(quick.len() < Case::all().len());
        assert!(quick.iter().all(|group| group[0].variant == "corewise"));
        for case in ["flat/5000/24", "inverted/5000/24", "stacked/5000/0", "azure/serial"] {
            assert!(quick.iter().any(|group| group[0].case == case), "{case}");
        }
    }

    #[test]
    fn headlines_are_those_of_the_worst_web() {
        let series = Series::made_up;
        let makespan = "makespan_p50";
        let all = [
            series("flat/500/24", "corewise", makespan, [102.0, 204.0]),
            series("flat/500/24", "corewise", "critical_path", [100.0, 200.0]),
            series("deep/500/24", "corewise", makespan, [101.0, 101.0]),
            series("deep/500/24", "corewise", "critical_path", [100.0, 100.0]),
            series("flat/500/0", "corewise", makespan, [90.0, 90.0]),
            series("flat/500/0", "serial", makespan, [100.0, 100.0]),
            series("wide/50000/0", "corewise", makespan, [98.0, 98.0]),
            series("wide/50000/0", "serial", makespan, [100.0, 100.0]),
            series("azure/serial", "corewise", makespan, [45.0, 45.0]),
            series("azure/serial", "serial", makespan, [100.0, 100.0]),
        ];
        let found = headlines(&all, 1);
        let medians: Vec<_> = found.iter().map(|(name, of)| (*name, of.summary.median)).collect();
        assert_eq!(
            medians,
            [
                ("makespan_vs_critical_path", 1.02),
                ("no_slow_vs_serial", 0.98),
                ("azure_vs_serial", 0.45)
            ]
        );
        assert_eq!(rounds::records("shutdown", &all, &found).len(), all.len() + 3);
        assert!(headlines(&all[4..5], 1).is_empty(), "what wasn't measured has no headline");
    }
}
