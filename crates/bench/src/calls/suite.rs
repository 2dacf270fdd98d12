//! What `corewise bench calls` runs, and the headlines.

use corewise_topology::Machine;

use crate::advice::Series;
use crate::calls::case::{Case, Pace, Way};
use crate::calls::job::Job;
use crate::calls::reads;
use crate::rounds::{self, Cell, Headline, ratio, values};
use crate::words::Effort;

/// The cells of the cases that `wanted` takes, grouped by case.
pub fn cells(
    machine: &Machine,
    effort: Effort,
    way: Way,
    wanted: impl Fn(Case) -> bool,
) -> Vec<Vec<Cell<Job>>> {
    let online = machine.online();
    let group = |case: Case| {
        let cell = |variant: &&str| Cell {
            job: Job::new(case, variant, &online, effort),
            case: case.to_string(),
            variant: (*variant).to_owned(),
            count: counts(case) && variant.starts_with("corewise"),
        };
        variants(case).iter().map(cell).collect()
    };
    Case::all(online.len(), way).into_iter().filter(|case| wanted(*case)).map(group).collect()
}

/// Whether a quick call runs it: what the headlines need, and a look at the rest.
pub fn is_quick(case: Case, cpus: usize) -> bool {
    match case {
        Case::Broadcast { cpus: called, synthetic } => called == cpus && !synthetic,
        Case::HeldSpan(_) | Case::RoundTrip(_) | Case::Load(_) | Case::Reads => true,
    }
}

/// Whether a call could be free of allocations, so that they are worth counting.
fn counts(case: Case) -> bool {
    match case {
        Case::RoundTrip(_) | Case::Broadcast { synthetic: false, .. } | Case::Load(_) => true,
        Case::HeldSpan(_) | Case::Broadcast { .. } | Case::Reads => false,
    }
}

fn variants(case: Case) -> &'static [&'static str] {
    match case {
        Case::HeldSpan(_) => &["corewise", "before", "idle"],
        Case::RoundTrip(_) => &["corewise", "corewise-future", "eventfd"],
        Case::Reads => &reads::READS,
        Case::Broadcast { .. } | Case::Load(_) => &["corewise"],
    }
}

/// The headlines, those that were measured. In both less is better.
///
/// * `held_span_p99_vs_before`: the longest waits of urgent tasks, Corewise over the old design.
/// * `roundtrip_p50_vs_eventfd`: a call and its answer over a ping, where that is worse: back to
///   back, or after a pause.
pub fn headlines(series: &[Series], seed: u64) -> Vec<Headline> {
    let over = |case: Case, metric: &str, under: &str| {
        let of = |variant| values(series, &case.to_string(), variant, metric);
        ratio(of("corewise"), of(under), seed)
    };
    let held = Way::ALL.iter().find_map(|way| over(Case::HeldSpan(*way), "held_p99", "before"));
    let to_eventfd = |pace| over(Case::RoundTrip(pace), "latency_p50", "eventfd");
    let round = rounds::worst([Pace::Hot, Pace::Cold].into_iter().filter_map(to_eventfd));
    rounds::measured([("held_span_p99_vs_before", held), ("roundtrip_p50_vs_eventfd", round)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_cells_whose_names_are_told_apart() {
        let machine = Machine::synthetic("l3:2 core:4 pu:1").unwrap();
        let groups = cells(&machine, Effort::Full, Way::Priority, |_| true);
        assert_eq!(groups.len(), Case::all(8, Way::Priority).len());
        assert_eq!(groups[0][0].case, "held_span/priority", "what counts most is never left out");
        let names = groups.iter().flatten().map(|cell| format!("{} {}", cell.case, cell.variant));
        let mut names: Vec<String> = names.collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        let quick = cells(&machine, Effort::Quick, Way::Lock, |case| is_quick(case, 8));
        assert!(quick.len() < groups.len());
        assert!(quick.iter().any(|group| group[0].case == "broadcast/8"));
    }

    #[test]
    fn headlines_are_ratios_of_pairs_in_which_lower_is_better() {
        let series = Series::made_up;
        let all = [
            series("roundtrip/hot", "corewise", "latency_p50", [300.0, 400.0]),
            series("roundtrip/hot", "eventfd", "latency_p50", [3_000.0, 4_000.0]),
            series("roundtrip/cold", "corewise", "latency_p50", [30.0, 300.0]),
            series("roundtrip/cold", "eventfd", "latency_p50", [20.0, 200.0]),
            series("held_span/lock", "corewise", "held_p99", [1.0, 2.0]),
            series("held_span/lock", "before", "held_p99", [100.0, 200.0]),
        ];
        let found = headlines(&all, 1);
        assert_eq!((found[0].0, found[0].1.summary.median), ("held_span_p99_vs_before", 0.01));
        assert_eq!((found[1].0, found[1].1.summary.median), ("roundtrip_p50_vs_eventfd", 1.5));
        let records = rounds::records("calls", &all, &found);
        assert_eq!(records.len(), all.len() + 2);
        assert_eq!(records.last().unwrap().metric, "roundtrip_p50_vs_eventfd");
        assert!(headlines(&all[3..5], 1).is_empty(), "what wasn't measured has no headline");
    }
}
