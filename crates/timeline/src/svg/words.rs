//! Texts of the picture: above the lanes, below them, and in tooltips.

use crate::path::CriticalPath;
use crate::select::{is_urgent, needs_seeing};
use crate::span::{Certainty, Outcome, Span, Timeline, Unplaced};
use crate::text::{numbers, path_names};
use crate::units::{count, duration, fit, isolate, printable, wrap};
use std::cmp::Reverse;

/// Number of messages of spans that did not end well, below the chart.
const MAX_MESSAGES: usize = 20;
/// Number of runs without a place in time that have a line.
const MAX_UNPLACED: usize = 40;
/// Characters in a line of text above or below the chart.
const TEXT_CHARS: usize = 150;

/// Returns the notes that a reader needs before the bars.
pub(super) fn notes(t: &Timeline) -> Vec<String> {
    let mut lines = Vec::new();
    if t.is_empty() {
        return lines;
    }
    for note in t.notes() {
        lines.extend(wrap(&printable(&format!("note: {note}")), TEXT_CHARS, 4));
    }
    if !t.unplaced().is_empty() {
        for line in numbers(&t.summary()).into_iter().rev().take(1) {
            lines.extend(wrap(&format!("note: {line}"), TEXT_CHARS, 4));
        }
    }
    lines
}

/// Returns the lines of text below the chart: the critical path, and what went wrong.
pub(super) fn below(t: &Timeline, path: &CriticalPath) -> Vec<String> {
    let mut lines = Vec::new();
    if t.is_empty() {
        return lines;
    }
    if !path.spans.is_empty() {
        lines.extend(wrap(&path_names(t, path), TEXT_CHARS, 4));
    }
    lines.extend(unplaced(t));
    let placed = t.spans().iter().filter(|s| is_urgent(s)).map(|s| (&s.name, &s.outcome));
    let others = t.unplaced().iter().filter(|u| needs_seeing(&u.outcome, u.took, u.kind));
    let urgent = placed.chain(others.map(|u| (&u.name, &u.outcome)));
    let mut said = urgent.filter_map(|(name, outcome)| {
        Some(format!("{}: {name}: {}", outcome.as_str(), outcome.message()?))
    });
    for message in said.by_ref().take(MAX_MESSAGES) {
        lines.extend(wrap(&printable(&message), TEXT_CHARS, 4));
    }
    match said.count() {
        0 => {}
        more => lines.push(format!("and {more} more; the bars' tooltips have their messages")),
    }
    lines
}

/// Returns the longest of the runs without a place in time, a line each.
fn unplaced(t: &Timeline) -> Vec<String> {
    let mut all: Vec<&Unplaced> = t.unplaced().iter().collect();
    if all.is_empty() {
        return Vec::new();
    }
    all.sort_by_key(|u| Reverse(u.took.told()));
    let mut lines = vec![format!("without a place in time: {}, the longest first", all.len())];
    for u in all.iter().take(MAX_UNPLACED) {
        let driver = u.driver.as_ref().map(|d| format!(" ({d})")).unwrap_or_default();
        let (kind, outcome) = (u.kind.as_str(), u.outcome.as_str());
        let line = format!("    {}  {}{driver}, {kind}, {outcome}", u.took, u.name);
        lines.push(fit(&line, TEXT_CHARS));
    }
    if all.len() > MAX_UNPLACED {
        lines.push(format!("    and {}", count(all.len() - MAX_UNPLACED, "shorter one")));
    }
    lines
}

/// Returns everything that is known of a span, a line each.
pub(super) fn tooltip(span: &Span, critical: bool) -> String {
    let mut lines = vec![span.name.clone()];
    let outcome = match span.outcome.message() {
        Some(message) => format!("{}: {message}", span.outcome.as_str()),
        None => span.outcome.as_str().to_owned(),
    };
    let kind = match &span.driver {
        Some(driver) => format!("{} by {driver}", span.kind.as_str()),
        None => span.kind.as_str().to_owned(),
    };
    let path = if critical { ", on the critical path" } else { "" };
    lines.push(format!("{kind}, {outcome}{path}"));
    let mut place = Vec::new();
    if !span.worker.is_empty() {
        place.push(span.worker_told());
    }
    place.extend(span.cpu.map(|cpu| format!("CPU {cpu}")));
    place.extend(span.node.map(|node| format!("asked for node {node}")));
    if span.asynchronous {
        place.push("beside the span that started it".into());
    }
    if !place.is_empty() {
        lines.push(place.join(", "));
    }
    let sure = |how: Certainty| match how {
        Certainty::Measured => String::new(),
        how => format!(" ({})", how.words()),
    };
    lines.push(format!(
        "from {}{} to {}{}",
        duration(span.start),
        sure(span.start_certainty),
        duration(span.end),
        sure(span.end_certainty)
    ));
    let ran = match span.outcome {
        Outcome::Ok if span.no_callback => "nothing to call",
        _ => "took",
    };
    lines.push(format!("waited {} for a worker, {ran} {}", duration(span.waited()), span.took()));
    if let Some(by) = &span.released_by {
        lines.push(format!("released by {by} at {}", duration(span.queued)));
    }
    lines.iter().map(|l| isolate(&printable(l)).into_owned()).collect::<Vec<_>>().join("\n")
}
