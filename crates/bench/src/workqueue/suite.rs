//! What `corewise bench workqueue` runs: every scope and shard size that differs on this machine,
//! and the old design; and the headlines.

use corewise_topology::{AffinityScope, Machine};

use crate::advice::{Layout, Series};
use crate::names::Place;
use crate::rounds::{self, Cell, Headline, ratio, values};
use crate::words::Effort;
use crate::workqueue::case::{Case, Items, Placement};
use crate::workqueue::job::Job;

/// Shard sizes beside the default: those that give other pods than what there is already are run.
pub const SHARD_SIZES: [u32; 4] = [2, 4, 16, 32];

/// The cells of the cases that `wanted` takes, grouped by case.
pub fn cells(
    machine: &Machine,
    effort: Effort,
    wanted: impl Fn(Case) -> bool,
) -> Vec<Vec<Cell<Job>>> {
    let layout = Layout::of(machine.topology(), &SHARD_SIZES);
    let cases = Case::all().into_iter().filter(|case| wanted(*case));
    cases.map(|case| group(case, machine, &layout, effort)).collect()
}

/// Whether a quick call runs it: what the headlines and the advice need, and a look at the rest.
pub fn is_quick(case: Case) -> bool {
    match case {
        Case::KernelTest { inline } => !inline,
        Case::Storm { striped, .. } => !striped,
        Case::Inside | Case::Idle => true,
        Case::PingPong { placement, gap_us } => placement == Placement::Free && gap_us == 0,
        Case::Mix { load, hint } => load == 50 && !hint,
        Case::Fan | Case::Oversubscribed { .. } => false,
    }
}

fn group(case: Case, machine: &Machine, layout: &Layout, effort: Effort) -> Vec<Cell<Job>> {
    let online = machine.online();
    let cell = |runtime: String, variant: &str, place: Option<Place>| Cell {
        job: Job::new(case, &runtime, &online, effort),
        case: place.map_or(case.to_string(), |place| format!("{case}/{place}")),
        variant: variant.to_owned(),
        count: counts(case),
    };
    let corewise = |place: Place| cell(format!("corewise/{place}"), "corewise", Some(place));
    // Its pods are the caches.
    let cache = Place::of(AffinityScope::Cache);
    let before = || cell("before".to_owned(), "before", Some(cache));
    let floor = || cell("futex".to_owned(), "futex", None);
    match case {
        Case::PingPong { placement: Placement::Same | Placement::Cross, .. } => {
            // One CPU is one pod, whatever the scope.
            let cpu = Place::of(AffinityScope::Cpu);
            let mut before = before();
            before.case = format!("{case}/{cpu}");
            vec![corewise(cpu), before, floor()]
        }
        Case::PingPong { .. } => {
            let mut cells: Vec<Cell<Job>> =
                places(layout, false).into_iter().map(corewise).collect();
            cells.extend([before(), floor()]);
            cells
        }
        Case::KernelTest { inline: true } => {
            places(layout, false).into_iter().map(corewise).collect()
        }
        Case::Idle => vec![corewise(Place::default()), before()],
        _ => {
            let mut cells: Vec<Cell<Job>> =
                places(layout, decides(case)).into_iter().map(corewise).collect();
            cells.push(before());
            cells
        }
    }
}

/// Whether one chooses a scope by this case; then two scopes with the same pods are run too, if
/// there are any, to see how far nothing but the noise goes.
fn decides(case: Case) -> bool {
    match case {
        Case::KernelTest { inline } => !inline,
        Case::Storm { striped, .. } => !striped,
        Case::Inside => true,
        _ => false,
    }
}

fn counts(case: Case) -> bool {
    let once = [Items::Reused, Items::Boxed].map(|items| Case::Storm { items, striped: false });
    once.contains(&case) || case == Case::Inside || case == Case::KernelTest { inline: false }
}

/// The default, and every scope and shard size with other pods than those before it. With `again`
/// one that has the same pods as the default.
fn places(layout: &Layout, again: bool) -> Vec<Place> {
    let mut places = vec![Place::default()];
    let scopes = AffinityScope::ALL.map(Place::of).into_iter();
    for place in scopes.chain(SHARD_SIZES.map(Place::shards)) {
        if !places.iter().any(|known| layout.same(*known, place)) {
            places.push(place);
        }
    }
    if again {
        let mut alike = [AffinityScope::Cache, AffinityScope::System].map(Place::of).into_iter();
        places.extend(alike.find(|place| layout.same(*place, Place::default())));
    }
    places
}

/// The headlines: the default scope against the old design in the kernel's test, pair by pair. Those
/// that were measured.
pub fn headlines(series: &[Series], seed: u64) -> Vec<Headline> {
    let place = |place: Place| format!("kernel_test/{place}");
    let (ours, theirs) = (place(Place::default()), place(Place::of(AffinityScope::Cache)));
    let ours = |metric| values(series, &ours, "corewise", metric);
    let theirs = |metric| values(series, &theirs, "before", metric);
    let items = ratio(ours("items_per_second"), theirs("items_per_second"), seed);
    let p50 = ratio(theirs("call_p50"), ours("call_p50"), seed);
    rounds::measured([("cache_shard_vs_before_items", items), ("cache_shard_vs_before_p50", p50)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(groups: &[Vec<Cell<Job>>]) -> Vec<String> {
        groups.iter().flatten().map(|cell| format!("{} {}", cell.case, cell.variant)).collect()
    }

    #[test]
    fn scopes_and_shard_sizes_that_differ_are_run_and_one_twice() {
        let machine = Machine::synthetic("l3:1 core:16 pu:2").unwrap();
        let kernel_test = |case| case == Case::KernelTest { inline: false };
        let groups = cells(&machine, Effort::Full, kernel_test);
        assert_eq!(
            names(&groups),
            [
                "kernel_test/cache_shard corewise",
                "kernel_test/cpu corewise",
                "kernel_test/smt corewise",
                "kernel_test/cache corewise",
                "kernel_test/cache_shard:2 corewise",
                "kernel_test/cache_shard:4 corewise",
                "kernel_test/cache before",
            ]
        );
        let machine = Machine::synthetic("l3:1 core:2 pu:1").unwrap();
        assert_eq!(
            names(&cells(&machine, Effort::Full, kernel_test)),
            [
                "kernel_test/cache_shard corewise",
                "kernel_test/cpu corewise",
                "kernel_test/cache corewise",
                "kernel_test/cache before",
            ]
        );
    }

    #[test]
    fn every_case_has_cells_whose_names_are_told_apart() {
        let machine = Machine::synthetic("l3:2 core:4 pu:2").unwrap();
        let groups = cells(&machine, Effort::Full, |_| true);
        assert_eq!(groups.len(), Case::all().len());
        let mut names = names(&groups);
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        let quick = cells(&machine, Effort::Quick, is_quick);
        assert!(quick.len() < groups.len() && quick.iter().all(|group| !group.is_empty()));
    }

    #[test]
    fn headlines_are_ratios_of_pairs_in_which_higher_is_better() {
        let series = Series::made_up;
        let all = [
            series("kernel_test/cache", "before", "items_per_second", [100.0, 10.0]),
            series("kernel_test/cache", "before", "call_p50", [600.0, 6_000.0]),
            series("kernel_test/cache", "corewise", "call_p50", [1.0, 1.0]),
            series("kernel_test/cache_shard", "corewise", "items_per_second", [500.0, 50.0]),
            series("kernel_test/cache_shard", "corewise", "call_p50", [100.0, 1_000.0]),
        ];
        let found = headlines(&all, 1);
        assert_eq!(found[0].1.summary.median, 5.0);
        assert_eq!(found[1].1.summary.median, 6.0);
        let records = rounds::records("workqueue", &all, &found);
        assert_eq!(records.len(), all.len() + 2);
        let last = records.last().unwrap();
        assert_eq!((last.case.as_str(), last.unit.as_str()), ("headline", "ratio"));
        assert_eq!((last.metric.as_str(), last.runs), ("cache_shard_vs_before_p50", 2));
        assert!(headlines(&all[..3], 1).is_empty(), "what wasn't measured has no headline");
    }
}
