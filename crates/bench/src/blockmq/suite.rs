//! What `corewise bench blockmq` runs, and the headlines.

use crate::advice::Series;
use crate::blockmq::case::{Case, Class, Device, Load};
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
        Case::Io(load) => load == Load::headline(load.device) && load.device != Device::Memory,
        Case::Hold { load, .. } => load,
        Case::QuiesceAll { queues } => queues == 16,
        Case::Tags { submitters, .. } => submitters == 4,
    }
}

/// Whether allocations are worth counting.
fn counts(case: Case, variant: &str) -> bool {
    matches!(case, Case::SeqRead { .. } | Case::Io(_)) && variant == "corewise"
}

fn variants(case: Case) -> &'static [&'static str] {
    match case {
        Case::SeqRead { .. } => &["corewise", "before", "mutex", "spin", "unchecked"],
        Case::Io(Load { device: Device::File, .. }) => &["corewise", "corewise-polling", "fio"],
        Case::Io(_) => &["corewise", "fio"],
        Case::Hold { .. } => &["corewise"],
        Case::QuiesceAll { .. } => &["corewise", "one_by_one"],
        Case::Tags { .. } => &["corewise", "mutex_list"],
    }
}

/// The headlines, those that were measured.
///
/// * `seqread_vs_before`: bytes per second that eight completion threads read, over those with a
///   mutex that inherits priorities around the second look.
/// * `seqread_vs_unchecked`: the same over a queue that never looks again.
/// * `file_iops_vs_fio`: random reads per second of a file, 32 in flight, over fio's.
/// * `file_p99_vs_fio`: the 99th percentile of how long one takes, over fio's: less is better.
/// * `overhead_ns_per_request`: what a request to a device that does nothing takes.
/// * `allocations_per_item`: how often such a request allocates.
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
    let io = |device, variant, metric| {
        values(series, &Case::Io(Load::headline(device)).to_string(), variant, metric)
    };
    let vs_fio =
        |metric| ratio(io(Device::File, "corewise", metric), io(Device::File, "fio", metric), seed);
    let of_null = |metric| {
        let values = io(Device::Null, "corewise", metric)?;
        ratio(Some(values), Some(&vec![1.0; values.len()]), seed)
    };
    rounds::measured([
        ("seqread_vs_before", seqread("before")),
        ("seqread_vs_unchecked", seqread("unchecked")),
        ("file_iops_vs_fio", vs_fio("items_per_second")),
        ("file_p99_vs_fio", vs_fio("latency_p99")),
        ("overhead_ns_per_request", of_null("overhead_ns_per_request")),
        ("allocations_per_item", of_null("allocations_per_item")),
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
        let (fifo, ordinary) = ("seqread/8/1000/fifo", "seqread/8/1000/ordinary");
        let all = [
            rate(ordinary, "corewise", [100.0, 100.0]),
            rate(ordinary, "before", [50.0, 50.0]),
            rate(fifo, "corewise", [100.0, 200.0]),
            rate(fifo, "before", [20.0, 40.0]),
            rate(fifo, "unchecked", [100.0, 200.0]),
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

    #[test]
    fn headlines_of_random_requests_are_over_fios_or_as_they_are() {
        let of = Series::made_up;
        let all = [
            of("null/randread/32/1", "corewise", "overhead_ns_per_request", [250.0, 250.0]),
            of("null/randread/32/1", "corewise", "allocations_per_item", [0.0, 0.0]),
            of("file/randread/32/1", "corewise", "items_per_second", [90.0, 90.0]),
            of("file/randread/32/1", "corewise", "latency_p99", [90.0, 90.0]),
            of("file/randread/32/1", "fio", "items_per_second", [100.0, 100.0]),
            of("file/randread/32/1", "fio", "latency_p99", [60.0, 60.0]),
        ];
        let found = headlines(&all, 1);
        let records = &rounds::records("blockmq", &all, &found)[all.len()..];
        let said: Vec<_> = records
            .iter()
            .map(|one| (&*one.metric, one.median, &*one.unit, Better::of_headline(one)))
            .collect();
        let (low, high) = (Some(Better::Lower), Some(Better::Higher));
        assert_eq!(
            said,
            [
                ("file_iops_vs_fio", 0.9, "ratio", high),
                ("file_p99_vs_fio", 1.5, "ratio", low),
                ("overhead_ns_per_request", 250.0, "ns", low),
                ("allocations_per_item", 0.0, "count", low),
            ]
        );
    }
}
