//! What `corewise bench probe` runs, and the headlines.

use crate::advice::Series;
use crate::probe::case::Case;
use crate::probe::job::Job;
use crate::rounds::{self, Cell, Headline, ratio, values};
use crate::words::Effort;

/// The cells of the cases that `wanted` takes, grouped by case.
pub fn cells(effort: Effort, wanted: impl Fn(Case) -> bool) -> Vec<Vec<Cell<Job>>> {
    let group = |case: Case| {
        let cell = |variant: &str| Cell {
            job: Job::new(case, variant, effort),
            case: case.to_string(),
            variant: variant.to_owned(),
            count: false,
        };
        ["corewise", "before", "nested", "threads"].map(cell).into()
    };
    Case::all().into_iter().filter(|case| wanted(*case)).map(group).collect()
}

/// Whether a quick call runs it: what the headlines need, from the fewest devices to the most.
pub fn is_quick(case: Case) -> bool {
    match case {
        Case::Devices(count) => [3, 10, 100, 1_000, 10_000].contains(&count),
        Case::Overhead(count) => count == 10_000,
        Case::Sync | Case::NoNode => false,
    }
}

/// The headlines, those that were measured. In both less is better.
///
/// * `mean_cost_vs_before`: the mean cost of three devices' probes, Corewise over the old design.
/// * `makespan_vs_bound`: until all are up, over what no design can beat, where that is worst.
pub fn headlines(series: &[Series], seed: u64) -> Vec<Headline> {
    let of = |case: &str, variant, metric| values(series, case, variant, metric);
    let three = Case::Devices(3).to_string();
    let cost = ratio(of(&three, "corewise", "cost_mean"), of(&three, "before", "cost_mean"), seed);
    let over_bound = |one: &Series| {
        let bound = of(&one.case, "corewise", "bound");
        ratio(of(&one.case, "corewise", "makespan_p50"), bound, seed)
    };
    let ours =
        series.iter().filter(|one| one.variant == "corewise" && one.metric == "makespan_p50");
    let worst = rounds::worst(ours.filter_map(over_bound));
    rounds::measured([("mean_cost_vs_before", cost), ("makespan_vs_bound", worst)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_call_has_what_the_headlines_need() {
        let groups = cells(Effort::Quick, is_quick);
        assert!(groups.len() < cells(Effort::Full, |_| true).len());
        assert_eq!(groups[0][0].case, "devices/3", "what counts most is never left out");
        assert!(groups.iter().any(|group| group[0].case == "devices/10000"));
        assert!(groups.iter().all(|group| group.len() == 4));
    }

    #[test]
    fn headlines_are_ratios_of_pairs_in_which_lower_is_better() {
        let series = Series::made_up;
        let all = [
            series("devices/3", "corewise", "cost_mean", [34.0, 17.0]),
            series("devices/3", "before", "cost_mean", [50.0, 25.0]),
            series("devices/3", "corewise", "makespan_p50", [36.0, 36.0]),
            series("devices/3", "corewise", "bound", [36.0, 36.0]),
            series("devices/9", "corewise", "makespan_p50", [150.0, 150.0]),
            series("devices/9", "corewise", "bound", [100.0, 100.0]),
            series("devices/9", "before", "makespan_p50", [900.0, 900.0]),
            series("devices/9", "before", "bound", [100.0, 100.0]),
        ];
        let found = headlines(&all, 1);
        assert_eq!((found[0].0, found[0].1.summary.median), ("mean_cost_vs_before", 0.68));
        assert_eq!((found[1].0, found[1].1.summary.median), ("makespan_vs_bound", 1.5));
        let records = rounds::records("probe", &all, &found);
        assert_eq!(records.len(), all.len() + 2);
        assert_eq!(records.last().unwrap().metric, "makespan_vs_bound");
        assert!(headlines(&all[1..2], 1).is_empty(), "what wasn't measured has no headline");
    }
}
