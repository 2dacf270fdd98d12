//! A run as one HTML page: a chart for each metric that is a table too, the advice, and what to bear in mind.
//!
//! The page is whole: its style is inside, nothing is fetched, and no script is needed. It
//! follows the reader's light or dark mode, prints, and says everything in words and numbers too.
//! The same input gives the same bytes. It holds any records, of workloads known here or not.

mod number;
#[cfg(test)]
mod tests;

use corewise_timeline::markup::printable;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::advice::Advice;
use crate::names::{BESIDE, Better, CaseName, HEADLINE, INTERVAL, MetricName, Place, sums_up};
use crate::record::{Record, grouped};
pub use number::show;

const STYLE: &str = include_str!("style.css");
/// What the page says of each workload, of its metrics, and of what is unfair: a line each, behind its key.
const ABOUT: &str = include_str!("about.txt");
/// Metrics that hardly differ, or say what another one says: they are folded up.
const MINOR: [&str; 5] =
    ["threads", "peak_rss", "voluntary_switches", "allocations_per_item", "cpu_seconds"];
/// Where values are so many times apart, equal lengths are equal factors.
const LOG_FROM: f64 = 30.0;

/// What a page is made of.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// What was measured, in the heading: `workqueue`.
    pub name: &'a str,
    /// Where and how: name and value of machine, kernel, commit, date, command.
    pub facts: &'a [(String, String)],
    /// What the run says.
    pub advice: Option<&'a Advice>,
    /// What `corewise bench` measured.
    pub records: &'a [Record],
    /// What `bench-peers` measured; empty where it wasn't run.
    pub peers: &'a [Record],
}

/// Which program wrote a record. Figures of two programs never share a scale: they were measured at
/// different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `corewise bench`: the scopes, and the old design.
    Own,
    /// `bench-peers`: Corewise and other runtimes.
    Peers,
}

/// A record, and where it stands.
struct Mark<'r> {
    source: Source,
    /// The workload with its parameters.
    case: String,
    place: Option<Place>,
    metric: MetricName<'r>,
    record: &'r Record,
}

impl Mark<'_> {
    fn of(source: Source) -> impl Fn(&Record) -> Mark<'_> {
        move |record| {
            let CaseName { workload, place } = CaseName::of(&record.case);
            let (case, metric) =
                (printable(&workload).into_owned(), MetricName::of(&record.metric));
            Mark { source, case, place, metric, record }
        }
    }

    fn label(&self) -> String {
        label(self.source, self.record, self.place)
    }

    /// `p50`, `max`, or nothing.
    fn percentile(&self) -> String {
        match self.metric.percentile {
            Some(100.0) => "max".to_owned(),
            Some(percentile) => format!("p{percentile}"),
            None => String::new(),
        }
    }
}

/// What the text says behind a key.
fn about(key: &str) -> impl Iterator<Item = &'static str> {
    ABOUT.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix(": "))
}

/// The page. Its size grows with the records, by about half a KiB each.
pub fn render(page: &Page<'_>) -> String {
    let title = format!("Corewise: {}", page.name);
    let own = page.records.iter().map(Mark::of(Source::Own));
    let marks = own.chain(page.peers.iter().map(Mark::of(Source::Peers)));
    let marks = marks.filter(|mark| !sums_up(&mark.record.case));
    let first = |case: &str| case.split('/').next().unwrap_or_default().to_owned();
    let workloads = grouped(marks, |mark| first(&mark.case));
    let notes: &[(&str, &str)] = match page.peers {
        [] => &[("reading", "How to read this")],
        _ => &[("reading", "How to read this"), ("unfair", "What is unfair to whom")],
    };
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    dl.facts { @for (name, value) in page.facts { div { dt { (name) } dd { (value) } } } }
                }
                main {
                    @if let Some(advice) = page.advice { (advice_section(advice)) }
                    (headlines(page))
                    @if workloads.len() > 1 {
                        nav aria-label="Workloads" { ul {
                            @for (n, (name, _)) in workloads.iter().enumerate() {
                                li { a href={ "#workload-" (n) } { (name) } }
                            }
                        } }
                    }
                    @for (n, (name, marks)) in workloads.into_iter().enumerate() {
                        section {
                            h2 id={ "workload-" (n) } { (name) }
                            @for about in about(&format!("workload {name}")) { p { (about) } }
                            @for (case, marks) in grouped(marks, |mark| mark.case.clone()) {
                                (case_section(&case, marks))
                            }
                        }
                    }
                    @for (key, heading) in notes {
                        section { h2 { (heading) } ul { @for note in about(key) { li { (note) } } } }
                    }
                }
            }
        }
    };
    markup.into_string()
}

fn advice_section(advice: &Advice) -> Markup {
    html! {
        section.advice {
            h2 { "What this run says" }
            p.lead { (with_code(&advice.lead)) }
            ul { @for finding in &advice.findings { li { (with_code(finding)) } } }
            @if !advice.limits.is_empty() {
                h3 { "What it can't say" }
                ul { @for limit in &advice.limits { li { (with_code(limit)) } } }
            }
        }
    }
}

/// The text with what stands between backticks set as code.
fn with_code(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() {
            @if n % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A ratio that sums a call up, with its interval where there is one: the headlines of a program in their order, and
/// behind them what stands beside.
pub fn ratios(records: &[Record]) -> impl Iterator<Item = (&Record, Option<&Record>)> {
    let interval = |of: &Record| {
        records.iter().find(|other| other.case == INTERVAL && other.metric == of.metric)
    };
    let of_case = |case| records.iter().filter(move |record| record.case == case);
    [HEADLINE, BESIDE].into_iter().flat_map(of_case).map(move |of| (of, interval(of)))
}

fn headlines(page: &Page<'_>) -> Markup {
    let all: Vec<_> = ratios(page.records).chain(ratios(page.peers)).collect();
    html! {
        @if !all.is_empty() {
            section {
                h2 { "Headlines" }
                p {
                    "Ratios of pairs of runs of one call. The interval holds the true median in 95 of \
                     100 such calls; one that holds 1 shows no difference."
                }
                table {
                    thead { tr { @for head in ["Headline", "Median", "Least to most", "Runs", "95 % interval", "Read as"] {
                        th scope="col" { (head) }
                    } } }
                    tbody { @for (record, interval) in all { tr {
                        th scope="row" { (record.metric) }
                        (numbers(record))
                        td.n { @if let Some(one) = interval {
                            (value(one.min, one)) " to " (value(one.max, one))
                        } }
                        td { (Better::of_headline(record).map_or("", Better::words)) }
                    } } }
                }
            }
        }
    }
}

/// All metrics of a case: what `corewise bench` measured at the left, and the peers beside it.
fn case_section(case: &str, marks: Vec<Mark<'_>>) -> Markup {
    let metrics = grouped(marks, |mark| (mark.metric.stem, mark.record.unit.as_str()));
    let (minor, major): (Vec<_>, Vec<_>) =
        metrics.into_iter().partition(|((stem, _), _)| MINOR.contains(stem));
    let figures = |metrics: Vec<(_, Vec<Mark<'_>>)>| {
        let sources = metrics.into_iter().flat_map(|(_, marks)| grouped(marks, |m| m.source));
        html! { div.charts { @for (_, marks) in sources { (figure(case, marks)) } } }
    };
    html! {
        h3 { (case) }
        (figures(major))
        @if !minor.is_empty() {
            details { summary { "Other figures of " (case) } (figures(minor)) }
        }
    }
}

/// One metric, or all its percentiles, of each variant: a table whose rows have bars.
fn figure(case: &str, marks: Vec<Mark<'_>>) -> Markup {
    let (source, first) = (marks[0].source, marks[0].metric.stem);
    let (class, whose) = match source {
        Source::Own if marks.iter().any(|mark| mark.place.is_some()) => ("own", " by scope"),
        Source::Own => ("own", ""),
        Source::Peers => ("peers", " beside other runtimes"),
    };
    let unit = marks[0].record.unit.as_str();
    let better = Better::of_unit(unit);
    let scale = Scale::of(&marks);
    let mut rows = grouped(marks, Mark::label);
    for (_, marks) in &mut rows {
        let key = |mark: &Mark<'_>| mark.metric.percentile.unwrap_or(0.0);
        marks.sort_by(|a, b| key(a).total_cmp(&key(b)));
    }
    // Scopes keep their order, from the finest to the coarsest.
    if source == Source::Peers {
        rows.sort_by(|(_, a), (_, b)| better.compare(a[0].record.median, b[0].record.median));
    }
    let heading =
        about(&format!("metric {first}")).next().map_or_else(|| words(first), str::to_owned);
    let log = if scale.low > 0.0 { ", lengths by the logarithm" } else { "" };
    html! {
        figure class=(class) {
            figcaption {
                strong { (heading) (whose) } " "
                span.quiet { (case) ", " (unit) ", " (better.words()) (log) }
            }
            div.scroll role="region" aria-label={ (case) ": " (heading) (whose) } tabindex="0" {
                table {
                    thead { tr { @for head in ["Variant", "", "", "Median", "Least to most", "Runs"] {
                        th scope="col" { (head) }
                    } } }
                    @for (label, marks) in &rows {
                        tbody class=(kind(marks[0].record)) {
                            @for (n, mark) in marks.iter().enumerate() { tr {
                                @if n == 0 { th scope="rowgroup" rowspan=(marks.len()) { (label) } }
                                td.quiet { (mark.percentile()) }
                                td.track { (scale.bar(mark.record)) }
                                (numbers(mark.record))
                            } }
                        }
                    }
                }
            }
        }
    }
}

/// A name as a heading: `speed_of_light` is `Speed of light`.
fn words(name: &str) -> String {
    let words = name.replace('_', " ");
    let mut letters = words.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => "Unnamed".to_owned(),
    }
}

/// How long bars are.
struct Scale {
    /// 0: what is twice as long is twice as much.
    low: f64,
    high: f64,
}

impl Scale {
    /// Percentiles that are far apart by the logarithm.
    fn of(marks: &[Mark<'_>]) -> Scale {
        let values = marks.iter().flat_map(|m| [m.record.median, m.record.min, m.record.max]);
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) =
            values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        let far =
            marks.iter().any(|mark| mark.metric.percentile.is_some()) && high / LOG_FROM > low;
        Scale { low: if far { (low / 2.0).max(f64::MIN_POSITIVE) } else { 0.0 }, high }
    }

    /// In percent; nothing lies outside.
    fn at(&self, value: f64) -> f64 {
        let part = match self.low > 0.0 {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => value / self.high,
        };
        if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) * 100.0 }
    }

    /// The median as a bar, and a line from the smallest run to the largest.
    fn bar(&self, record: &Record) -> Markup {
        let [bar, low, high] = [record.median, record.min, record.max].map(|value| self.at(value));
        html! {
            div.bar style={ "width:" (format!("{bar:.1}")) "%" } {}
            div.line style={ "left:" (format!("{low:.1}")) "%;width:" (format!("{:.1}", (high - low).max(0.0))) "%" } {}
        }
    }
}

/// The cells of a record's numbers.
fn numbers(record: &Record) -> Markup {
    html! {
        td.n { (value(record.median, record)) }
        td.n { (value(record.min, record)) " to " (value(record.max, record)) }
        td.n { (record.runs) }
    }
}

/// A value of a record: rounded for people, whole for programs.
fn value(value: f64, record: &Record) -> Markup {
    html! { data value=(value) { (show(value, &record.unit)) } }
}

/// The name of a row.
pub fn label(source: Source, record: &Record, place: Option<Place>) -> String {
    // Runtimes whose idle workers spin for a good while: their latencies are to be read with their CPU time.
    let spins = ["rayon", "tbb", "glommio-spins", "seastar-poll-mode"];
    match (source, &*printable(&record.variant), place) {
        (Source::Own, "corewise", Some(place)) if place.is_default() => {
            format!("{place} (default)")
        }
        (Source::Own, "corewise", Some(place)) => place.to_string(),
        // Among its peers it is the default that counts.
        (_, "corewise", Some(place)) if !place.is_default() => format!("Corewise ({place})"),
        (_, "corewise", _) => "Corewise".to_owned(),
        (_, variant, Some(place)) => format!("{variant} ({place})"),
        (_, variant, None) if spins.iter().any(|name| variant.starts_with(name)) => {
            format!("{variant} (spins)")
        }
        (_, variant, None) => variant.to_owned(),
    }
}

/// The class of a row: ours, what others are held against, or a peer.
fn kind(record: &Record) -> &'static str {
    let yardsticks = [
        "before",
        "futex",
        "eventfd",
        "idle",
        "mutex",
        "mutex_list",
        "one_by_one",
        "spin",
        "unchecked",
        "serial",
        "nested",
        "threads",
    ];
    match record.variant.as_str() {
        variant if yardsticks.contains(&variant) => "yard",
        variant if variant.starts_with("corewise") => "ours",
        _ => "peer",
    }
}
