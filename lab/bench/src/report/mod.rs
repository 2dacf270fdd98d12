//! A run as one HTML page: a table with bars for each metric of each case, the advice, and what to bear in mind.
//!
//! The page is whole: its style is inside, nothing is fetched, and no script is needed. It
//! follows the reader's light or dark mode, prints, and says everything in words and numbers too.
//! The same input gives the same bytes. It holds any records, of workloads known here or not.

mod number;
#[cfg(test)]
mod tests;

use corewise_timeline::markup::printable;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::advice::verdict;
use crate::names::{BESIDE, Better, CaseName, HEADLINE, INTERVAL, Place, sums_up};
use crate::record::{Record, grouped};
use crate::stats::{PairedRatio, Summary};
pub use number::show;

const STYLE: &str = include_str!("style.css");
/// What the page says of each workload, and of what is unfair: a line each, behind its key.
const ABOUT: &str = include_str!("about.txt");
/// What a page is made of.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// What was measured, in the heading: `workqueue`.
    pub name: &'a str,
    /// Where and how: name and value of machine, kernel, commit, date, command.
    pub facts: &'a [(String, String)],
    /// What the run says, the advice first.
    pub advice: &'a [String],
    /// What `corewise-bench` measured.
    pub records: &'a [Record],
    /// What `bench-peers` measured; empty where it wasn't run.
    pub peers: &'a [Record],
}

/// Which program wrote a record. Figures of two programs never share a scale: they were measured at
/// different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `corewise-bench`: the scopes, and the old design.
    Own,
    /// `bench-peers`: Corewise and other runtimes.
    Peers,
}

/// What the text says behind a key.
fn about(key: &str) -> impl Iterator<Item = &'static str> {
    ABOUT.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix(": "))
}

/// The page. Its size grows with the records, by about half a KiB each.
pub fn render(page: &Page<'_>) -> String {
    let title = format!("Corewise: {}", page.name);
    let own = page.records.iter().map(|record| (Source::Own, record));
    let all = own.chain(page.peers.iter().map(|record| (Source::Peers, record)));
    let marks = all.filter(|(_, record)| !sums_up(&record.case));
    let marks = marks.map(|(source, record)| (source, CaseName::of(&record.case), record));
    let first = |case: &str| printable(case.split('/').next().unwrap_or_default()).into_owned();
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
                    @if let [lead, found @ ..] = page.advice {
                        section.advice {
                            h2 { "What this run says" }
                            p.lead { (with_code(lead)) }
                            ul { @for sentence in found { li { (with_code(sentence)) } } }
                        }
                    }
                    (headlines(page))
                    @for (name, marks) in grouped(marks, |(_, case, _)| first(&case.workload)) {
                        section {
                            h2 { (name) }
                            @for about in about(&format!("workload {name}")) { p { (about) } }
                            @for (case, marks) in grouped(marks, |(_, case, _)| case.workload.clone()) {
                                h3 { (printable(&case)) }
                                div.charts {
                                    @for (_, marks) in grouped(marks, |(source, _, one)| (*source, &one.metric)) {
                                        (figure(marks))
                                    }
                                }
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
    let rows = html! {
        @for (record, interval) in &all { tr {
            th scope="row" { (record.metric) }
            (numbers(record))
            td.n { @if let Some(one) = interval {
                (value(one.min, one)) " to " (value(one.max, one))
            } }
            td { @if let Some(one) = interval { (verdict(&ratio(record, one), &record.unit)) } }
            td { (Better::of_headline(record).map_or("", Better::words)) }
        } }
    };
    html! {
        @if !all.is_empty() {
            section {
                h2 { "Headlines" }
                p {
                    "Ratios of pairs of runs of one call. Of six rounds or more, the interval holds the true median \
                     in 95 of 100 such calls; one that holds 1 shows no difference."
                }
                (table(&["Headline", "Median", "Least to most", "Runs", "95 % interval", "Difference", "Read as"], &rows))
            }
        }
    }
}

/// The ratio that a headline and its interval were made of.
fn ratio(headline: &Record, interval: &Record) -> PairedRatio {
    let Record { median, min, max, runs, .. } = *headline;
    let summary = Summary { median, min, max, runs };
    PairedRatio { summary, low: interval.min, high: interval.max }
}

fn table(heads: &[&str], rows: &Markup) -> Markup {
    html! {
        table {
            thead { tr { @for head in heads { th scope="col" { (head) } } } }
            tbody { (rows) }
        }
    }
}

/// A record, its case, and whose it is.
type Mark<'r> = (Source, CaseName, &'r Record);

/// One metric of each variant: a table whose rows have bars, a whole one for the largest.
fn figure(mut marks: Vec<Mark<'_>>) -> Markup {
    let (source, _, first) = marks[0];
    let whose = match source {
        Source::Own if marks.iter().any(|(_, case, _)| case.place.is_some()) => " by scope",
        Source::Own => "",
        Source::Peers => " beside other runtimes",
    };
    let better = Better::of_unit(&first.unit);
    // Scopes keep their order, from the finest to the coarsest.
    if source == Source::Peers {
        marks.sort_by(|(.., a), (.., b)| better.compare(a.median, b.median));
    }
    let high = marks.iter().map(|(.., record)| record.max).fold(0.0, f64::max);
    let percent = |value: f64| format!("{:.1}%", (value / high * 100.0).clamp(0.0, 100.0));
    let rows = html! {
        @for (_, case, record) in &marks {
            tr.ours[record.variant.starts_with("corewise")] {
                th scope="row" { (label(source, record, case.place)) }
                td.track { @if high > 0.0 {
                    div.bar style={ "width:" (percent(record.median)) } {}
                    div.line style={ "left:" (percent(record.min)) ";width:" (percent(record.max - record.min)) } {}
                } }
                (numbers(record))
            }
        }
    };
    html! {
        figure {
            figcaption {
                strong { (first.metric.replace('_', " ")) (whose) } " "
                span.quiet { (first.unit) ", " (better.words()) }
            }
            div.scroll { (table(&["Variant", "", "Median", "Least to most", "Runs"], &rows)) }
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
