//! The tables: a case each, a row for each scope and variant, medians with their spread.

use corewise_bench::advice::verdict;
use corewise_bench::line::unit;
use corewise_bench::names::CaseName;
use corewise_bench::report::show;
use corewise_bench::rounds::Series;
use corewise_bench::stats::{PairedRatio, Summary};

use crate::{FAINT, TITLE, words};

/// The metrics and their column heads, the most telling first: what doesn't fit is left out from the
/// end.
const COLUMNS: &[(&str, &str)] = &[
    ("bytes_per_second", "read"),
    ("items_per_second", "items"),
    ("cost_mean", "mean cost"),
    ("overhead_per_device", "overhead"),
    ("overhead_ns_per_request", "a request"),
    ("cost_max", "highest cost"),
    ("cpus", "CPUs"),
    ("held_p50", "held p50"),
    ("held_p99", "held p99"),
    ("held_max", "longest"),
    ("calls_per_second", "calls"),
    ("read_p50", "read p50"),
    ("replace_p50", "replace p50"),
    ("wakeups_per_1000", "wake-ups per 1000"),
    ("waiting", "waiting"),
    ("wait_max", "longest wait"),
    ("wait_p50", "wait p50"),
    ("wait_p99", "wait p99"),
    ("short_p50", "short p50"),
    ("short_p99", "short p99"),
    ("call_p50", "call p50"),
    ("latency_p50", "latency p50"),
    ("makespan_p50", "time p50"),
    ("critical_path", "path"),
    ("bound", "bound"),
    ("cpu_per_item", "CPU/item"),
    ("allocations_per_item", "allocations"),
    ("call_p95", "call p95"),
    ("latency_p99", "latency p99"),
    ("resume_p50", "resumed p50"),
    ("resume_p99", "resumed p99"),
    ("makespan_p99", "time p99"),
    ("short_p999", "short p99.9"),
    ("latency_p999", "latency p99.9"),
    ("threads", "threads"),
    ("call_p90", "call p90"),
    ("voluntary_switches", "switches"),
    ("latency_max", "longest"),
    ("short_max", "longest"),
    ("peak_rss", "memory"),
    ("cpu_seconds", "CPU"),
    ("call_p99", "call p99"),
    ("latency_p90", "latency p90"),
    ("read_p99", "read p99"),
];

/// All tables, each below a line of its own.
pub(crate) fn tables(series: &[Series], note: &str, width: usize) -> String {
    let mut text = String::new();
    for workload in in_order(series.iter().map(|one| CaseName::of(&one.case).workload)) {
        let of: Vec<&Series> =
            series.iter().filter(|one| CaseName::of(&one.case).workload == workload).collect();
        text.push_str(&format!("\n{TITLE}{workload}{TITLE:#}\n"));
        text.push_str(&table(&workload, &of, width));
    }
    text.push('\n');
    for line in wrapped(note, width).lines() {
        text.push_str(&format!("{FAINT}{line}{FAINT:#}\n"));
    }
    text
}

/// The headlines, in words, below a title.
pub(crate) fn headlines(
    title: &str,
    headlines: &[(&'static str, PairedRatio)],
    width: usize,
) -> String {
    let mut text = String::new();
    for (name, ratio) in headlines {
        let what = words::headline(name);
        let unit = unit(name).unwrap_or("ratio");
        let noise = verdict(ratio, unit);
        let [median, low, high] =
            [ratio.summary.median, ratio.low, ratio.high].map(|value| show(value, unit));
        let sentence = format!("{what}: {median} ({low} to {high}), {noise}");
        text.push_str(&wrapped(&sentence, width));
    }
    if !text.is_empty() {
        text = format!("\n{TITLE}{title}{TITLE:#}\n{text}");
    }
    text
}

/// A sentence, indented, in lines that fit.
pub(crate) fn wrapped(sentence: &str, width: usize) -> String {
    let mut text = String::new();
    let mut line = String::from(" ");
    for word in sentence.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > width && line.len() > 1 {
            text.push_str(&line);
            text.push('\n');
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(word);
    }
    format!("{text}{line}\n")
}

/// Columns for text: those of the terminal within what can be read well, 100 elsewhere.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    match size.map_or(0, |size| usize::from(size.ws_col)) {
        0 => 100,
        columns => columns.clamp(60, 160),
    }
}

fn table(workload: &str, series: &[&Series], width: usize) -> String {
    let rows = in_order(series.iter().map(|one| (one.case.clone(), one.variant.clone())));
    let names = rows.iter().map(|(case, variant)| row_name(case, variant));
    let names = [String::new()].into_iter().chain(names).collect();
    let figures = columns(workload, series).into_iter().map(|(metric, head)| {
        let figure = |(case, variant): &(String, String)| {
            let found = series
                .iter()
                .find(|one| one.case == *case && one.variant == *variant && one.metric == metric);
            found.and_then(|one| cell(one)).unwrap_or_default()
        };
        [head.to_owned()].into_iter().chain(rows.iter().map(figure)).collect()
    });
    side_by_side(names, figures, width)
}

/// The rows of a table whose columns are given, each with its head. Names stand to the left, figures to the right. The
/// last columns of figures are left out where `width` has no room for them.
pub(crate) fn side_by_side(
    names: Vec<String>,
    figures: impl IntoIterator<Item = Vec<String>>,
    width: usize,
) -> String {
    let widest = |cells: &[String]| cells.iter().map(|cell| cell.chars().count()).max();
    let room = widest(&names).unwrap_or_default();
    let mut rows: Vec<String> = names.iter().map(|name| format!("  {name:<room$}")).collect();
    let mut used = 2 + room;
    for cells in figures {
        let room = widest(&cells).unwrap_or_default();
        used += 2 + room;
        if used > width {
            break;
        }
        for (row, cell) in rows.iter_mut().zip(cells) {
            row.push_str(&format!("  {cell:>room$}"));
        }
    }
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let row = row.trim_end();
        text.push_str(&match number {
            0 => format!("{FAINT}{row}{FAINT:#}\n"),
            _ => format!("{row}\n"),
        });
    }
    text
}

/// The columns of a workload's table. At rest there are no items, and a ping's rate says what its
/// latency does.
fn columns(workload: &str, series: &[&Series]) -> Vec<(&'static str, &'static str)> {
    let here = |metric: &str| series.iter().any(|one| one.metric == metric);
    let pings = ["pingpong", "roundtrip", "broadcast"].iter().any(|one| workload.starts_with(one));
    let idle = workload == "idle";
    let wanted = |metric: &str| match metric {
        "items_per_second" => !pings,
        "cpu_seconds" => idle,
        _ => true,
    };
    let mut columns: Vec<_> =
        COLUMNS.iter().copied().filter(|(metric, _)| here(metric) && wanted(metric)).collect();
    let first: &[&str] = match () {
        () if pings => {
            &["latency_p50", "latency_p90", "latency_p99", "latency_p999", "cpu_per_item"]
        }
        () if workload.starts_with("seqread") => {
            &["bytes_per_second", "items_per_second", "voluntary_switches", "wait_max"]
        }
        () => &[],
    };
    columns.sort_by_key(|(metric, _)| {
        first.iter().position(|one| one == metric).unwrap_or(first.len())
    });
    columns
}

/// `cache_shard`, or `before (cache)`.
fn row_name(case: &str, variant: &str) -> String {
    match (CaseName::of(case).place, variant) {
        (Some(place), "corewise") => place.to_string(),
        (Some(place), _) => format!("{variant} ({place})"),
        (None, _) => variant.to_owned(),
    }
}

/// The median with its unit, and the spread.
fn cell(series: &Series) -> Option<String> {
    let summary = Summary::of(&series.values)?;
    let median = match series.metric.as_str() {
        "threads" | "cpus" => format!("{:.0}", summary.median),
        "wakeups_per_1000" => format!("{:.1}", summary.median),
        "allocations_per_item" => format!("{:.2}", summary.median),
        _ => show(summary.median, &series.unit),
    };
    let half = (summary.max - summary.min) / 2.0;
    Some(match summary.runs {
        0 | 1 => median,
        _ if summary.median == 0.0 => median,
        _ => match format!("{:.0}", half / summary.median * 100.0) {
            // Of more digits than the column has, the number isn't told.
            percent if percent.len() > 3 => format!("{median} ±>999"),
            percent => format!("{median} ±{percent:<3}"),
        },
    })
}

/// Each once, in the order of its first appearance.
fn in_order<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(case: &str, variant: &str, metric: &str, unit: &str, values: &[f64]) -> Series {
        Series {
            case: case.to_owned(),
            variant: variant.to_owned(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            values: values.to_vec(),
        }
    }

    fn storm() -> Vec<Series> {
        let mut all = Vec::new();
        for (case, variant) in
            [("storm/boxed/cache_shard", "corewise"), ("storm/boxed/cache", "before")]
        {
            all.push(series(case, variant, "items_per_second", "items/s", &[2e6, 3e6, 4e6]));
            for (metric, _) in COLUMNS.iter().skip(1) {
                all.push(series(case, variant, metric, "ns", &[10.0, 20.0, 30.0]));
            }
        }
        all
    }

    #[test]
    fn a_table_has_medians_and_spreads_and_fits_the_width() {
        for width in [60, 80, 100, 120, 160] {
            let text =
                anstream::adapter::strip_str(&tables(&storm(), "A note.", width)).to_string();
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.contains("3.00 M/s ±33"), "{text}");
            assert!(
                text.contains("  cache_shard ") && text.contains("  before (cache) "),
                "{text}"
            );
        }
    }

    #[test]
    fn a_spread_that_has_no_room_is_no_number() {
        let cell = |values| cell(&series("storm", "corewise", "call_p50", "ns", values)).unwrap();
        assert_eq!(cell(&[10.0, 10.0, 209.8]), "10.0 ns ±999");
        assert_eq!(cell(&[10.0, 10.0, 210.0]), "10.0 ns ±>999");
        assert_eq!(cell(&[1.0, 1.0, 1e12]), "1.00 ns ±>999");
        assert_eq!(cell(&[1.0, 1.0, 2.0]), "1.00 ns ±50 ");
    }

    #[test]
    fn pings_show_latency_and_no_rate() {
        let case = "pingpong/free/hot/cpu";
        let all = [
            series(case, "corewise", "items_per_second", "items/s", &[1.0]),
            series(case, "corewise", "latency_p50", "ns", &[4_000.0]),
            series("pingpong/free/hot", "futex", "latency_p50", "ns", &[3_000.0]),
        ];
        let text = tables(&all, "", 80);
        assert!(text.contains("4.00 µs") && text.contains("futex") && !text.contains("items\n"));
    }

    #[test]
    fn headlines_say_what_is_over_what() {
        let ratio = PairedRatio::of(&[4.0; 6], &[2.0; 6], 1).unwrap();
        let text = headlines("Title", &[("azure_vs_serial", ratio)], 100);
        assert!(text.contains("worse log: 2.00 (2.00 to 2.00), beyond"), "{text}");
        assert_eq!(headlines("Title", &[], 100), "");
    }

    #[test]
    fn sentences_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 9), "  one two\n  three\n");
        assert_eq!(wrapped("incomprehensible", 5), "  incomprehensible\n");
    }
}
