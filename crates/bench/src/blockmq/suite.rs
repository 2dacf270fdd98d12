//! What `corewise bench blockmq` runs, and the headlines.

use crate::advice::Series;
use crate::blockmq::case::{Case, Class};
use crate::blockmq::job::Job;
use crate::rounds::{self, Cell, Headline, ratio, values};
use crate::stats::PairedRatio;
use crate::words::Effort;

/// The cells of the cases that `wanted` takes, grouped by case, where threads may be scheduled so.
pub fn cells(effort: Effort, best: Class, wanted: impl Fn(Case) -> bool) -> Vec<Vec<Cell<Job>>> {
    let group = |case: Case| {
        let cell = |variant: &&str| Cell {
            job: Job::new(case, variant, effort),
            case: case.to_string(),
            variant: (*variant).to_owned(),
            count: counts(case, variant),
        };
        variants(case).iter().map(cell).collect()
    };
    Case::all(best).into_iter().filter(|case| wanted(*case)).map(group).collect()
}

/// Whether a quick call runs it: what the headlines need, and a look at the rest.
pub fn is_quick(case: Case, best: Class) -> bool {
    match case {
        Case::SeqRead { .. } => case == Case::published(best),
        Case::Hold { load, .. } => load,
        Case::Tags { submitters, .. } => submitters == 4,
    }
}

/// Whether allocations are worth counting.
fn counts(case: Case, variant: &str) -> bool {
    matches!(case, Case::SeqRead { .. }) && variant == "corewise"
}

fn variants(case: Case) -> &'static [&'static str] {
    match case {
        Case::SeqRead { .. } => &["corewise", "before", "mutex", "spin", "unchecked"],
        Case::Hold { .. } => &["corewise"],
        Case::Tags { .. } => &["corewise", "mutex_list"],
    }
}

/// The headlines, those that were measured. In both more is better.
///
/// * `seqread_vs_before`: bytes per second that eight completion threads read, over those with a
///   mutex that inherits priorities around the second look.
/// * `seqread_vs_unchecked`: the same over a queue that never looks again.
pub fn headlines(series: &[Series], seed: u64) -> Vec<Headline> {
    let seqread = |variant| {
        let rate = |class, variant| {
            let case = Case::published(class).to_string();
            values(series, &case, variant, "bytes_per_second")
        };
        let over = |class| -> Option<PairedRatio> {
            ratio(rate(class, "corewise"), rate(class, variant), seed)
        };
        Class::ALL.into_iter().find_map(over)
    };
    rounds::measured([
        ("seqread_vs_before", seqread("before")),
        ("seqread_vs_unchecked", seqread("unchecked")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Better, HEADLINE};

    #[test]
    fn every_case_has_cells_and_a_quick_call_those_of_the_headlines() {
        for best in Class::ALL {
            let all = cells(Effort::Full, best, |_| true);
            assert_eq!(all.len(), Case::all(best).len());
            assert!(all.iter().all(|group| group[0].variant == "corewise"));
            let quick = cells(Effort::Quick, best, |case| is_quick(case, best));
            assert!(quick.len() < all.len());
            assert_eq!(quick[0][0].case, Case::published(best).to_string());
        }
    }

    #[test]
    fn headlines_are_of_the_best_class_that_was_measured() {
        let rate = |case: &str, variant, values| {
            Series::made_up(case, variant, "bytes_per_second", values)
        };
        let (urgent, ordinary) = ("seqread/8/1000/urgent", "seqread/8/1000/ordinary");
        let all = [
            rate(ordinary, "corewise", [100.0, 100.0]),
            rate(ordinary, "before", [50.0, 50.0]),
            rate(urgent, "corewise", [100.0, 200.0]),
            rate(urgent, "before", [20.0, 40.0]),
            rate(urgent, "unchecked", [100.0, 200.0]),
        ];
        let medians = |found: &[Headline]| -> Vec<_> {
            found.iter().map(|(name, of)| (*name, of.summary.median)).collect()
        };
        let found = headlines(&all, 1);
        assert_eq!(medians(&found), [("seqread_vs_before", 5.0), ("seqread_vs_unchecked", 1.0)]);
        assert_eq!(medians(&headlines(&all[..2], 1)), [("seqread_vs_before", 2.0)]);
        assert!(headlines(&all[..1], 1).is_empty(), "what wasn't measured has no headline");
        for record in &rounds::records("blockmq", &all, &found)[all.len()..] {
            assert_eq!((record.case.as_str(), record.unit.as_str()), (HEADLINE, "ratio"));
            assert_eq!(Better::of_headline(record), Some(Better::Higher), "{}", record.metric);
        }
    }
}
