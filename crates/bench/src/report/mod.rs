//! A run as one HTML file: charts with the tables behind them, the advice, and what to bear in mind.
//!
//! The file is whole: style and pictures are inside, nothing is fetched, and no script is needed. It
//! follows the reader's light or dark mode, prints, and says everything in words and numbers too.
//! The same input gives the same bytes. It holds any records, of workloads known here or not.

mod about;
mod chart;
mod group;
pub mod markdown;
mod number;
mod scale;
#[cfg(test)]
mod tests;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::advice::Advice;
use crate::names::Better;
use crate::record::Record;
use group::{Block, Figure, Section, Source};
pub use number::show;

const STYLE: &str = include_str!("style.css");

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

/// The page. Its size grows with the records, by about 1 KiB each.
pub fn render(page: &Page<'_>) -> String {
    let sections = group::sections(page.records, page.peers);
    let title = format!("Corewise: {}", page.name);
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
                (hatching())
                header {
                    h1 { (title) }
                    (facts(page.facts))
                }
                main {
                    @if let Some(advice) = page.advice { (advice_section(advice)) }
                    (headlines(page))
                    (contents(&sections))
                    @for (n, section) in sections.iter().enumerate() { (workload(section, n)) }
                    (notes(page))
                }
            }
        }
    };
    markup.into_string()
}

/// The pattern of what others are held against; the charts refer to it.
fn hatching() -> Markup {
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" {
            pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
                patternTransform="rotate(45)" {
                rect.hatch-ground width="6" height="6" {}
                line.hatch-line x1="0" y1="0" x2="0" y2="6" {}
            }
        }
    }
}

fn facts(facts: &[(String, String)]) -> Markup {
    html! {
        @if !facts.is_empty() {
            dl.facts {
                @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            }
        }
    }
}

fn advice_section(advice: &Advice) -> Markup {
    html! {
        section.advice aria-labelledby="advice" {
            h2 id="advice" { "What this run says" }
            p.lead { (with_code(&advice.lead)) }
            @if !advice.findings.is_empty() {
                ul { @for finding in &advice.findings { li { (with_code(finding)) } } }
            }
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

fn headlines(page: &Page<'_>) -> Markup {
    let headlines = group::headlines(page.records, page.peers);
    html! {
        @if !headlines.is_empty() {
            section aria-labelledby="headlines" {
                h2 id="headlines" { "Headlines" }
                p {
                    "Ratios of pairs of runs of one call. The interval holds the true median in 95 of \
                     100 such calls; one that holds 1 shows no difference."
                }
                (scroll("Headlines", html! {
                    table {
                        thead { tr {
                            th scope="col" { "Headline" }
                            th.n scope="col" { "Median" }
                            th.n scope="col" { "Least" }
                            th.n scope="col" { "Most" }
                            th.n scope="col" { "Runs" }
                            th.n scope="col" { "95 % interval" }
                            th scope="col" { "Read as" }
                        } }
                        tbody { @for headline in &headlines { tr {
                            th scope="row" { (headline.record.metric) }
                            (numbers(headline.record))
                            td.n { @if let Some(interval) = headline.interval {
                                (value(interval.min, interval)) " to " (value(interval.max, interval))
                            } }
                            td { (Better::of_headline(headline.record).map_or("", Better::words)) }
                        } } }
                    }
                }))
            }
        }
    }
}

fn contents(sections: &[Section<'_>]) -> Markup {
    html! {
        @if sections.len() > 1 {
            nav aria-label="Workloads" {
                ul {
                    @for (n, section) in sections.iter().enumerate() {
                        li { a href={ "#workload-" (n) } { (section.workload) } }
                    }
                }
            }
        }
    }
}

fn workload(section: &Section<'_>, n: usize) -> Markup {
    let id = format!("workload-{n}");
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (section.workload) }
            @if let Some(about) = about::workload(&section.workload) { p { (about) } }
            @for (m, block) in section.blocks.iter().enumerate() {
                (case(block, &format!("{id}-{m}")))
            }
        }
    }
}

fn case(block: &Block<'_>, id: &str) -> Markup {
    let (drawn, told): (Vec<_>, Vec<_>) = block.figures.iter().partition(|f| block.draws(f));
    let both = if block.has_both() { "charts both" } else { "charts" };
    html! {
        section.case aria-labelledby=(id) {
            h3 id=(id) { (block.case) }
            div class=(both) {
                @for (n, figure) in drawn.iter().enumerate() {
                    (drawn_figure(block, figure, &format!("{id}-{n}")))
                }
            }
            @if !told.is_empty() {
                details {
                    summary { "Other figures of " (block.case) }
                    (scroll(&format!("Other figures of {}", block.case), table(&told, true)))
                }
            }
        }
    }
}

fn drawn_figure(block: &Block<'_>, figure: &Figure<'_>, id: &str) -> Markup {
    let (class, whose) = match figure.source {
        Source::Own if figure.has_scopes() => ("own", " by scope"),
        Source::Own => ("own", ""),
        Source::Peers => ("peers", " beside other runtimes"),
    };
    let heading = format!("{}{whose}", about::metric(&figure.stem));
    let log = if chart::is_log(figure) { ", logarithmic axis" } else { "" };
    let reading = format!("{}, {}{log}", number::counted(figure.unit), figure.better().words());
    html! {
        figure class=(class) {
            figcaption { strong { (heading) } " " span.quiet { (reading) } }
            (chart::draw(figure, id, &format!("{}: {heading}", block.case)))
            details {
                summary { "The figures" }
                (scroll(&format!("{}: {heading}", block.case), table(&[figure], false)))
            }
        }
    }
}

/// Every record of the figures; `whose` tells which program each is of.
fn table(figures: &[&Figure<'_>], whose: bool) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Variant" }
                th scope="col" { "Metric" }
                th.n scope="col" { "Median" }
                th.n scope="col" { "Least" }
                th.n scope="col" { "Most" }
                th.n scope="col" { "Runs" }
            } }
            tbody {
                @for figure in figures { @for row in &figure.rows { @for mark in &row.marks { tr {
                    th scope="row" {
                        (row.label)
                        @if whose && figure.source == Source::Peers {
                            span.quiet { " (bench-peers)" }
                        }
                    }
                    td { (mark.record.metric) }
                    (numbers(mark.record))
                } } } }
            }
        }
    }
}

/// The cells of a record's numbers.
fn numbers(record: &Record) -> Markup {
    html! {
        @for value in [record.median, record.min, record.max] {
            td.n { (self::value(value, record)) }
        }
        td.n { (record.runs) }
    }
}

/// A value of a record: rounded for people, whole for programs.
fn value(value: f64, record: &Record) -> Markup {
    html! { data value=(value) { (show(value, &record.unit)) } }
}

/// What may be wider than a narrow screen, in a box that scrolls, also by the keyboard.
fn scroll(name: &str, inside: Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(name) tabindex="0" { (inside) } }
}

fn notes(page: &Page<'_>) -> Markup {
    html! {
        section aria-labelledby="reading" {
            h2 id="reading" { "How to read this" }
            ul { @for note in about::READING { li { (note) } } }
        }
        @if !page.peers.is_empty() {
            section aria-labelledby="unfair" {
                h2 id="unfair" { "What is unfair to whom" }
                ul { @for note in about::UNFAIR { li { (note) } } }
            }
        }
    }
}
