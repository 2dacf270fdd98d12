//! A timeline as text for a terminal: a row per device with its bar, and the numbers below.
//!
//! A `*` marks the critical path. A sign before a time says how exact it is, as in a [`Length`]'s
//! text. In a bar, `·` waits for a dependency, `░` waits for a worker, `█` runs, `▒` may have run,
//! and `▏` runs for less than half a column.

pub(crate) mod analysis;

use crate::length::Length;
use crate::path::{CriticalPath, Summary};
use crate::select::{HiddenSpans, Selection, is_urgent, needs_seeing, select};
use crate::span::Driver;
use crate::span::{Outcome, Span, SpanId, SpanKind, Timeline, Unplaced};
use crate::units::{duration, fit, isolate, printable, verb, wrap};
use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

pub use analysis::{analysis, comparison, prediction};

/// Number of spans above which only those that matter most are shown.
const MAX_ROWS: usize = 40;
/// Number of names above which a critical path shows only its ends.
const MAX_PATH_NAMES: usize = 12;
/// Number of printed messages of spans that did not end well.
const MAX_MESSAGES: usize = 20;

/// The fewest and the most columns of a text.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=500;

/// Renders `t` for a terminal of `width` columns (less than 60 counts as 60, more than 500 as 500),
/// with a newline at the end of each line. No line is wider; each character counts as one column.
/// The text has no colours and no control characters, whatever the names hold. Words that are
/// written from right to left are [isolated](crate::markup::isolate).
///
/// At most 40 spans get a row: first those that did not end well, then those on the critical path,
/// then the longest. The text says how many were left out. More than four spans without a callback
/// become one line. Runs without a place in time have rows of their own, without bars. The
/// timeline's notes stand below the heading.
pub fn render(t: &Timeline, width: usize) -> String {
    render_rows(t, width, MAX_ROWS)
}

/// A timeline is displayed as [`render`] writes it for 80 columns, or for the requested width
/// (`{:120}`), without the last newline.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(render(self, f.width().unwrap_or(80)).trim_end_matches('\n'))
    }
}

/// Renders like [`render`], with at most `rows` rows instead of 40.
pub fn render_rows(t: &Timeline, width: usize, rows: usize) -> String {
    let noun = Noun::of(t);
    let mut out = Lines::new(width);
    if t.is_empty() {
        out.wrapped(&format!("{}: nothing was recorded", printable(t.name())), 0);
        return out.text;
    }

    let summary = t.summary();
    let path = t.critical_path();
    let selection = select(t, &path, rows);
    out.wrapped(&heading(t, &summary, &noun), 2);
    for note in t.notes() {
        out.wrapped(&format!("  note: {}", printable(note)), 4);
    }
    out.line("");
    if !selection.shown.is_empty() {
        table(&mut out, t, &path, &selection, &noun);
    }
    rest(&mut out, &selection.folded, &selection.left_out, &noun);
    if !t.spans().is_empty() {
        out.line("");
    }
    let listed = unplaced_table(&mut out, t, rows, &noun);
    for line in numbers(&summary) {
        out.wrapped(&line, 2);
    }
    if !path.spans.is_empty() {
        out.wrapped(&path_names(t, &path), 2);
    }
    let shown = selection.shown.iter().map(|&id| t.span(id));
    let shown = shown.filter(|s| is_urgent(s)).map(|s| (s.name.as_str(), &s.outcome));
    let listed = listed.iter().filter(|u| needs_seeing(&u.outcome, u.took, u.kind));
    messages(&mut out, shown.chain(listed.map(|u| (u.name.as_str(), &u.outcome))));
    out.text
}

/// The text so far, and the width that no line may exceed.
struct Lines {
    width: usize,
    text: String,
}

impl Lines {
    fn new(width: usize) -> Lines {
        Lines { width: width.clamp(*WIDTHS.start(), *WIDTHS.end()), text: String::new() }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(&isolate(line.trim_end()));
        self.text.push('\n');
    }

    fn wrapped(&mut self, text: &str, indent: usize) {
        for line in wrap(text, self.width, indent) {
            self.line(&line);
        }
    }
}

/// Singular and plural of what the spans are called.
struct Noun {
    one: &'static str,
    many: &'static str,
}

impl Noun {
    fn of(t: &Timeline) -> Noun {
        let all = |k: &[SpanKind]| {
            let placed = t.spans().iter().map(|s| s.kind);
            placed.chain(t.unplaced().iter().map(|u| u.kind)).all(|kind| k.contains(&kind))
        };
        if all(&[SpanKind::Probe, SpanKind::Shutdown]) {
            Noun { one: "device", many: "devices" }
        } else if all(&[SpanKind::Initcall]) {
            Noun { one: "initcall", many: "initcalls" }
        } else if all(&[SpanKind::Task]) {
            Noun { one: "task", many: "tasks" }
        } else {
            Noun { one: "span", many: "spans" }
        }
    }

    fn count(&self, n: usize) -> String {
        format!("{n} {}", if n == 1 { self.one } else { self.many })
    }
}

fn heading(t: &Timeline, s: &Summary, noun: &Noun) -> String {
    let mut text = format!("{}: {}", printable(t.name()), noun.count(s.spans));
    let parts = [(s.ok, "ok"), (s.failed, "failed"), (s.skipped, "skipped")];
    for (n, what) in parts.into_iter().chain([(s.cancelled, "cancelled"), (s.deferred, "deferred")])
    {
        match n {
            0 => {}
            _ if n == s.spans && n > 1 => text += &format!(", all {what}"),
            _ if n == s.spans => text += &format!(", {what}"),
            _ => text += &format!(", {n} {what}"),
        }
    }
    text
}

/// Returns the numbers of a heading, a sentence each. Unplaced runs are in none of them.
pub(crate) fn numbers(s: &Summary) -> Vec<String> {
    let placed = s.spans - s.unplaced;
    let mut lines = Vec::new();
    if placed > 0 {
        let mut serial = format!("serial sum {}", s.serial_sum);
        if let (Some(sum), Some(makespan)) = (s.serial_sum.known(), s.makespan.known()) {
            let times = sum.as_secs_f64() / makespan.as_secs_f64().max(1e-12);
            // A ratio below 1 isn't a loss: at times, only unrecorded work ran.
            if !makespan.is_zero() && times >= 0.995 {
                serial += &format!(" ({times:.2}x)");
            }
        }
        let least = match s.unplaced {
            _ if !s.resolution.is_zero() => "about",
            0 if s.open_ended => "about",
            0 => "at most",
            _ => "at least",
        };
        lines.push(format!(
            "makespan {}, {serial}, critical path {}, {least} {} at once",
            s.makespan, s.critical_path, s.max_parallelism,
        ));
    }
    match (s.unplaced, placed) {
        (0, _) => {}
        (_, 0) => lines.push(
            "without an order in time the total time, concurrency, nesting, critical path and \
             predictions are unknown"
                .to_owned(),
        ),
        (n, _) => lines.push(format!(
            "{n} of {} {} no place in time: makespan, chains, concurrency and predictions leave \
             them out",
            s.spans,
            verb(n, "has", "have")
        )),
    }
    lines
}

/// Returns the names of a critical path; empty if there is none.
pub(crate) fn path_names(t: &Timeline, path: &CriticalPath) -> String {
    let name = |&id: &SpanId| {
        let span = t.span(id);
        format!("{} ({})", fit(&span.name, 40), span.took())
    };
    let mut names: Vec<String> = path.spans.iter().map(name).collect();
    if names.is_empty() {
        return String::new();
    }
    if names.len() > MAX_PATH_NAMES {
        let half = MAX_PATH_NAMES / 2;
        let left_out = names.len() - 2 * half;
        names.splice(half..half + left_out, [format!("({left_out} more)")]);
    }
    let began = began_late(t, path);
    let late =
        if began.is_zero() { String::new() } else { format!("({} before) > ", duration(began)) };
    format!("critical path: {late}{}", names.join(" > "))
}

/// Returns the moment at which the first span of the path was ready, from the timeline's origin.
/// Its cause isn't known.
pub(crate) fn began_late(t: &Timeline, path: &CriticalPath) -> Duration {
    let first = path.spans.first().map(|&id| t.span(id));
    match first.filter(|span| span.kind != SpanKind::Shutdown) {
        Some(first) => first.queued.saturating_sub(t.origin()),
        None => Duration::ZERO,
    }
}

fn rest(out: &mut Lines, folded: &HiddenSpans, left: &HiddenSpans, noun: &Noun) {
    if folded.count > 0 {
        let who = noun.count(folded.count);
        out.wrapped(
            &format!("+ {who} without a callback, completed on the spot ({} in all)", folded.took),
            4,
        );
    }
    if left.count > 0 {
        let not_ok = match left.not_ok {
            0 => String::new(),
            n => format!(", {n} of them not ok"),
        };
        let longest = match left.longest.most() {
            Some(most) => format!(", none longer than {}", duration(most)),
            None => String::new(),
        };
        let all = match left.took.told() {
            Some(_) => format!(" ({} in all)", left.took),
            None => String::new(),
        };
        out.wrapped(&format!("+ {} left out{longest}{not_ok}{all}", noun.count(left.count)), 4);
    }
}

fn messages<'a>(out: &mut Lines, shown: impl Iterator<Item = (&'a str, &'a Outcome)>) {
    let said =
        shown.filter_map(|(name, outcome)| Some((name, outcome.as_str(), outcome.message()?)));
    for (i, (name, word, message)) in said.enumerate() {
        if i == MAX_MESSAGES {
            out.line("and more messages; the JSON has them all");
            return;
        }
        out.wrapped(&format!("{word}: {}: {}", printable(name), printable(message)), 4);
    }
}

/// Width of a span's time, with its sign.
const TOOK: usize = 8;

/// Widths of the other columns. 0: no row has anything there, so there is no such column.
#[derive(Debug, PartialEq, Eq)]
struct Columns {
    name: usize,
    place: usize,
    waited: usize,
    state: usize,
    released: usize,
    bar: usize,
}

impl Columns {
    /// Gives each text column what it needs if the bar keeps a quarter of the width. Otherwise it
    /// takes from the widest until all fit. `need` is name, place, state, released.
    fn plan(width: usize, need: [usize; 4], waited: bool) -> Columns {
        let [name, place, state, released] = need;
        let mut text = [name.min(width.max(100) * 32 / 100), place.min(24), released.min(24)];
        let least = [10, 6, 7];
        let waited = if waited { 7 } else { 0 };
        // The mark, and each column with the blank behind it.
        let column = |width: usize| width + usize::from(width > 0);
        let fixed = 2 + column(TOOK) + column(state) + column(waited);
        let total = |text: &[usize; 3]| text.iter().map(|&w| column(w)).sum::<usize>() + fixed;
        for bar_wanted in [width / 4, 16, 8] {
            while total(&text) + bar_wanted > width {
                let shrinkable = (0..3).filter(|&i| text[i] > least[i]);
                let Some(widest) = shrinkable.max_by_key(|&i| text[i]) else { break };
                // The bar's quarter is only preferred: legible text comes first.
                if bar_wanted == width / 4 && text[widest] <= 16 {
                    break;
                }
                text[widest] -= 1;
            }
        }
        let [name, place, released] = text;
        let bar = width.saturating_sub(total(&text));
        Columns { name, place, waited, state, released, bar }
    }
}

/// The cells of one row, but for the bar.
struct Row {
    critical: bool,
    /// The device with its driver, and without it.
    name: Vec<String>,
    /// Place where it ran: all that is known, then shorter forms.
    place: Vec<String>,
    waited: String,
    took: String,
    state: &'static str,
    /// Name that released it, then shorter forms.
    released: Vec<String>,
}

/// Returns the first of `ways` that fits. If none does, the first one is cut.
fn first_fit(ways: &[String], width: usize) -> String {
    let way = ways.iter().find(|way| way.chars().count() <= width);
    fit(way.map_or(in_full(ways), String::as_str), width)
}

fn in_full(ways: &[String]) -> &str {
    ways.first().map_or("", String::as_str)
}

impl Row {
    fn of(span: &Span, critical: bool) -> Row {
        let cpu = span.cpu.map(|cpu| format!("cpu {cpu}"));
        let ran = span.took() != Length::ZERO
            || !matches!(span.outcome, Outcome::Skipped(_) | Outcome::Cancelled);
        let worker = Some(span.worker_told()).filter(|worker| !worker.is_empty());
        let both =
            worker.as_ref().zip(cpu.as_ref()).map(|(worker, cpu)| format!("{worker}, {cpu}"));
        let with_driver = span.driver.as_ref().map(|driver| format!("{} ({driver})", span.name));
        Row {
            critical,
            name: with_driver.into_iter().chain([span.name.clone()]).collect(),
            place: [both, worker, cpu].into_iter().flatten().collect(),
            waited: if span.waited().is_zero() { "-".into() } else { duration(span.waited()) },
            took: if ran { span.took().to_string() } else { "-".into() },
            state: span.outcome.as_str(),
            released: span.released_by.clone().into_iter().collect(),
        }
    }

    fn text(&self, c: &Columns, bar: &str) -> String {
        let mut line = if self.critical { "* " } else { "  " }.to_owned();
        let cells = [
            (first_fit(&self.name, c.name), c.name, false),
            (first_fit(&self.place, c.place), c.place, false),
            (self.waited.clone(), c.waited, true),
            (self.took.clone(), TOOK, true),
            (self.state.to_owned(), c.state, false),
            (first_fit(&self.released, c.released), c.released, false),
        ];
        for (cell, width, is_number) in cells.into_iter().filter(|(_, width, _)| *width > 0) {
            line += &match is_number {
                true => format!("{cell:>width$} "),
                false => format!("{cell:<width$} "),
            };
        }
        line + bar
    }
}

fn table(out: &mut Lines, t: &Timeline, path: &CriticalPath, selection: &Selection, noun: &Noun) {
    let critical = path.marks(t);
    let header = Row {
        critical: false,
        name: vec![noun.one.into()],
        place: vec!["worker".into()],
        waited: "waited".into(),
        took: "took".into(),
        state: "state",
        released: vec!["released by".into(), "after".into()],
    };
    let rows: Vec<(Row, SpanId)> =
        selection.shown.iter().map(|&id| (Row::of(t.span(id), critical[id.index()]), id)).collect();

    let mut need = [0usize; 4];
    for row in rows.iter().map(|(row, _)| row).chain([&header]) {
        let cells = [in_full(&row.name), in_full(&row.place), row.state, in_full(&row.released)];
        for (need, cell) in need.iter_mut().zip(cells) {
            *need = (*need).max(cell.chars().count());
        }
    }
    // A column that is empty in every row is left out.
    let said = |f: fn(&Row) -> bool| rows.iter().any(|(row, _)| f(row));
    if !said(|row| !row.place.is_empty()) {
        need[1] = 0;
    }
    if !said(|row| !row.released.is_empty()) {
        need[3] = 0;
    }
    let columns = Columns::plan(out.width, need, said(|row| row.waited != "-"));
    let length = t.finish().saturating_sub(t.origin());
    let scale = BarScale { from: t.origin(), length, columns: columns.bar };

    out.line(&header.text(&columns, &scale.axis()));
    let mut used = String::new();
    for (row, id) in &rows {
        let bar = scale.bar(t.span(*id));
        used.push_str(&bar);
        out.line(&row.text(&columns, &bar));
    }
    let legend = [
        ('*', "critical path"),
        ('·', "waits for a dependency"),
        ('░', "waits for a worker"),
        ('█', "runs"),
        ('▒', "may have run"),
    ];
    let seen = legend.iter().filter(|(mark, _)| *mark == '*' || used.contains(*mark));
    let legend: Vec<String> = seen.map(|(mark, what)| format!("{mark} {what}")).collect();
    out.line("");
    out.wrapped(&legend.join(", "), 2);
}

/// Time on the columns of a bar.
struct BarScale {
    from: Duration,
    length: Duration,
    columns: usize,
}

impl BarScale {
    fn axis(&self) -> String {
        let end = duration(self.length);
        let room = self.columns.saturating_sub(1);
        format!("0{end:>room$}")
    }

    /// Returns the column, with fraction, at which a moment lies.
    fn at(&self, moment: Duration) -> f64 {
        let length = self.length.as_secs_f64();
        if length == 0.0 {
            return 0.0;
        }
        moment.saturating_sub(self.from).as_secs_f64() / length * self.columns as f64
    }

    fn bar(&self, span: &Span) -> String {
        let last = self.columns.saturating_sub(1);
        let column = |moment| (self.at(moment) as usize).min(last);
        let (queued, start) = (column(span.queued), column(span.start));
        let end = (self.at(span.end).ceil() as usize).clamp(start + 1, self.columns.max(start + 1));
        let blocked = if span.released_by.is_some() { '·' } else { ' ' };
        let short = self.at(span.end) - self.at(span.start) < 0.5;
        let end = if short { start + 1 } else { end };
        // From there on the span may have been over.
        let sure = (self.at(span.start + span.took().least()).ceil() as usize).max(start);
        (0..end)
            .map(|i| match i {
                _ if i < queued => blocked,
                _ if i < start => '░',
                _ if short => '▏',
                _ if i < sure => '█',
                _ => '▒',
            })
            .collect()
    }
}

/// Writes at most `rows` of the unplaced runs: first those that failed (up to half the room), then
/// the longest. Returns those that were written.
fn unplaced_table<'t>(
    out: &mut Lines,
    t: &'t Timeline,
    rows: usize,
    noun: &Noun,
) -> Vec<&'t Unplaced> {
    let mut all: Vec<&Unplaced> = t.unplaced().iter().collect();
    if all.is_empty() {
        return all;
    }
    all.sort_by_key(|u| Reverse(u.took.told()));
    let mut urgent_left = rows / 2;
    all.sort_by_cached_key(|u| {
        let urgent = urgent_left > 0 && needs_seeing(&u.outcome, u.took, u.kind);
        urgent_left -= usize::from(urgent);
        !urgent
    });
    let mut left_out = HiddenSpans::default();
    for u in all.drain(rows.min(all.len())..) {
        left_out.add(u.took, u.outcome.is_ok());
    }
    all.sort_by_key(|u| Reverse(u.took.told()));
    let known = all.iter().any(|u| u.took.told().is_some());
    let order = if known { ", the longest first" } else { "" };
    out.wrapped(&format!("without a place in time{order}:"), 2);
    let cells = |u: &&Unplaced| {
        let beside = if u.asynchronous { "asynchronous" } else { "" };
        vec![
            u.name.clone(),
            u.driver.as_ref().map(Driver::to_string).unwrap_or_default(),
            u.kind.as_str().to_owned(),
            u.worker.clone(),
            u.took.to_string(),
            u.outcome.as_str().to_owned(),
            beside.to_owned(),
        ]
    };
    let columns = [
        (noun.one, false),
        ("driver", false),
        ("kind", false),
        ("worker", false),
        ("took", true),
        ("state", false),
        ("", false),
    ];
    analysis::table(out, &columns, &all.iter().map(cells).collect::<Vec<_>>());
    rest(out, &HiddenSpans::default(), &left_out, noun);
    out.line("");
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ms;

    #[test]
    fn a_bar_shows_both_kinds_of_waiting_and_the_run() {
        let scale = BarScale { from: ms(0), length: ms(100), columns: 20 };
        let mut span = Span::new("a", SpanKind::Probe, ms(50), ms(75));
        span.queued = ms(25);
        span.released_by = Some("b".into());
        assert_eq!(scale.bar(&span), "·····░░░░░█████");
        span.released_by = None;
        assert_eq!(scale.bar(&span), "     ░░░░░█████");
    }

    #[test]
    fn a_run_of_no_length_at_the_very_end_is_still_seen() {
        let scale = BarScale { from: ms(0), length: ms(100), columns: 10 };
        assert_eq!(scale.bar(&Span::new("a", SpanKind::Probe, ms(100), ms(100))), "         ▏");
        let nothing = BarScale { from: ms(0), length: ms(0), columns: 10 };
        assert_eq!(nothing.bar(&Span::new("a", SpanKind::Probe, ms(0), ms(0))), "▏");
    }

    #[test]
    fn columns_fill_the_width_exactly_and_none_vanishes() {
        for width in 60..=200 {
            for need in [[1, 1, 2, 1], [60, 40, 9, 60], [10, 10, 9, 30], [32, 6, 5, 11]] {
                let c = Columns::plan(width, need, true);
                assert_eq!(
                    2 + 7 + TOOK + 6 + c.name + c.place + c.state + c.released + c.bar,
                    width
                );
                assert!(c.bar >= 5, "{width} {need:?} {c:?}");
                assert!(c.name >= need[0].min(10) && c.released >= need[3].min(7));
            }
        }
    }

    #[test]
    fn a_column_that_says_nothing_gives_its_room_to_the_bar() {
        let c = Columns::plan(100, [20, 0, 2, 0], false);
        assert_eq!((c.place, c.waited, c.released), (0, 0, 0));
        assert_eq!(c.bar, 100 - 2 - 21 - (TOOK + 1) - 3);
        let mut t = Timeline::new("shutdown");
        t.push(Span::new("disk", SpanKind::Shutdown, ms(0), ms(4)));
        let text = render(&t, 80);
        assert!(!text.contains("released") && !text.contains("waited"), "{text}");
        assert!(!text.contains("worker"), "{text}");
    }
}
