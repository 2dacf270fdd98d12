//! Text above the chart (the numbers, the notes, the legend) and below it (the critical path, the
//! worst, the drivers, the predictions, the failures).

use crate::analysis::{DriverCost, Prediction, WhatIf, caveats};
use crate::markup::{escape, shown};
use crate::path::CriticalPath;
use crate::select::{is_urgent, needs_seeing};
use crate::span::{Driver, SpanId, Timeline, Unplaced};
use crate::text::analysis::{at_least, probes_alone};
use crate::text::{began_late, numbers};
use crate::units::{count, duration};
use std::cmp::Reverse;
use std::fmt::Write as _;

/// Number of rows of a table.
const ROWS: usize = 10;
/// Number of messages that are listed.
const MESSAGES: usize = 50;
/// Number of names of a critical path.
const PATH: usize = 40;
/// Number of rows of unplaced runs: there is no chart to find the others in.
const UNPLACED: usize = 1000;

const OUTCOMES: [&str; 5] = ["ok", "failed", "deferred", "skipped", "cancelled"];

/// Writes the text that a reader needs before the bars of one timeline.
pub(super) fn head(out: &mut String, t: &Timeline) {
    let _ = write!(out, "<header>\n<h2>{}</h2>\n", shown(t.name()));
    if t.is_empty() {
        out.push_str("<p>nothing was recorded</p>\n</header>\n");
        return;
    }
    for line in numbers(&t.summary()) {
        let _ = writeln!(out, "<p>{}</p>", escape(&line));
    }
    if !t.notes().is_empty() {
        out.push_str("<ul class=\"notes\">");
        for note in t.notes() {
            let _ = write!(out, "<li>{}</li>", shown(note));
        }
        out.push_str("</ul>\n");
    }
    legend(out, t);
    out.push_str("</header>\n");
}

/// Writes the section of one timeline.
pub(super) fn section(out: &mut String, t: &Timeline) {
    // If the script shows one timeline at a time, the head has the name.
    let _ = write!(out, "<section>\n<h2>{}</h2>\n", shown(t.name()));
    if !t.spans().is_empty() {
        let path = t.critical_path();
        critical_path(out, t, &path);
        out.push_str("<div class=\"tables\">\n");
        worst(out, t);
        drivers(out, t);
        predictions(out, t);
        out.push_str("</div>\n");
    }
    unplaced(out, t);
    messages(out, t);
    out.push_str("</section>\n");
}

/// Returns a button with a span's name, which shows the span in the chart.
fn go(t: &Timeline, id: SpanId) -> String {
    let name = shown(&t.span(id).name);
    format!("<button class=\"go\" data-i=\"{}\">{name}</button>", id.index())
}

fn legend(out: &mut String, t: &Timeline) {
    out.push_str("<div class=\"legend\">");
    for outcome in OUTCOMES {
        let outcomes = t.spans().iter().map(|s| &s.outcome);
        let outcomes = outcomes.chain(t.unplaced().iter().map(|u| &u.outcome));
        let count = outcomes.filter(|o| o.as_str() == outcome).count();
        if count > 0 {
            let _ = write!(
                out,
                "<span><i style=\"background:var(--{outcome});border-color:var(--{outcome}-edge)\">\
                 </i>{count} {outcome}</span>"
            );
        }
    }
    if !t.spans().is_empty() {
        out.push_str(
            "<span><i style=\"border:2px solid var(--path)\"></i>critical path</span><span>a \
             dotted line before a bar: the wait for a worker</span>",
        );
    }
    if t.spans().iter().any(|span| !span.took().is_exact()) {
        out.push_str(
            "<span><i class=\"maybe\"></i>hatched: may have ended (≤ at most, ≥ at least, ~ about, \
             ? not known)</span>",
        );
    }
    out.push_str("</div>\n");
}

fn critical_path(out: &mut String, t: &Timeline, path: &CriticalPath) {
    let _ = write!(out, "<h3>Critical path: {}</h3>\n<p>", path.length);
    let began = began_late(t, path);
    if !began.is_zero() {
        let began = duration(began);
        let _ = write!(out, "<span class=\"quiet\">({began} before) → </span>");
    }
    for (i, &id) in path.spans.iter().take(PATH).enumerate() {
        let arrow = if i == 0 { "" } else { " → " };
        let took = t.span(id).took();
        let _ = write!(out, "{arrow}{} <span class=\"quiet\">{took}</span>", go(t, id));
    }
    if path.spans.len() > PATH {
        let _ = write!(out, " … and {} more", path.spans.len() - PATH);
    }
    if t.edges().is_empty() {
        out.push_str(" <span class=\"quiet\">(no dependency is known)</span>");
    }
    out.push_str("</p>\n");
}

fn table(out: &mut String, heading: &str, columns: &[(&str, bool)], rows: &[Vec<String>]) {
    let _ = write!(out, "<div><h3>{heading}</h3>\n<table>\n<tr>");
    let class = |number: bool| if number { " class=\"n\"" } else { "" };
    for &(column, number) in columns {
        let _ = write!(out, "<th{}>{column}</th>", class(number));
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for (cell, &(_, number)) in row.iter().zip(columns) {
            let _ = write!(out, "<td{}>{cell}</td>", class(number));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn worst(out: &mut String, t: &Timeline) {
    let costs = t.costs();
    let rows: Vec<Vec<String>> = costs
        .iter()
        .take(ROWS)
        .filter_map(|cost| {
            let first = *cost.spans.first()?;
            Some(vec![
                go(t, first),
                cost.own.to_string(),
                cost.share.to_string(),
                cost.slack.to_string(),
                shown(&cost.driver_told()),
                cost.kind.as_str().to_owned(),
                cost.times.to_string(),
            ])
        })
        .collect();
    let columns = [
        ("name", false),
        ("its own time", true),
        ("of all", true),
        ("to spare", true),
        ("driver", false),
        ("kind", false),
        ("tries", true),
    ];
    table(out, &format!("The worst of {}", costs.len()), &columns, &rows);
}

fn drivers(out: &mut String, t: &Timeline) {
    if t.spans().iter().all(|s| s.driver.is_none()) {
        return;
    }
    let row = |cost: &DriverCost| {
        vec![
            shown(&cost.driver_told()),
            cost.own.to_string(),
            cost.parallel.to_string(),
            cost.spans.to_string(),
            go(t, cost.longest),
        ]
    };
    let rows: Vec<Vec<String>> = t.driver_costs(ROWS).iter().map(row).collect();
    let columns = [
        ("driver", false),
        ("one by one", true),
        ("side by side", true),
        ("spans", true),
        ("longest", false),
    ];
    table(out, "Drivers", &columns, &rows);
}

fn predictions(out: &mut String, t: &Timeline) {
    let row = |(name, p): (String, Prediction)| {
        let faster = t.makespan().times(p.makespan);
        vec![name, p.makespan.to_string(), faster, at_least(p.bound)]
    };
    let rows: Vec<Vec<String>> = WhatIf::usual_of(t).into_iter().map(row).collect();
    let columns =
        [("all asynchronous, with", false), ("takes", true), ("faster", true), ("at least", true)];
    out.push_str("<div>\n");
    table(out, "What if", &columns, &rows);
    for caveat in caveats(t) {
        let _ = writeln!(out, "<p class=\"quiet\">{}</p>", escape(&caveat));
    }
    if let Some(text) = probes_alone(t) {
        let _ = writeln!(out, "<p>{text}</p>");
    }
    out.push_str("</div>\n");
}

/// Writes the runs at unknown moments: a row each, the longest first, and a bar for the length
/// alone.
fn unplaced(out: &mut String, t: &Timeline) {
    if t.unplaced().is_empty() {
        return;
    }
    let mut all: Vec<&Unplaced> = t.unplaced().iter().collect();
    all.sort_by_key(|u| Reverse(u.took.told()));
    let longest = all.iter().filter_map(|u| u.took.told()).max().unwrap_or_default();
    let row = |u: &&Unplaced| {
        let part =
            u.took.told().unwrap_or_default().as_secs_f64() / longest.as_secs_f64().max(1e-9);
        let outcome = u.outcome.as_str();
        vec![
            shown(&u.name),
            u.took.to_string(),
            format!("<i class=\"length\" style=\"width:{:.1}em\"></i>", part * 20.0),
            shown(&u.driver.as_ref().map(Driver::to_string).unwrap_or_default()),
            u.kind.as_str().to_owned(),
            shown(&u.worker),
            if u.asynchronous { format!("{outcome}, asynchronous") } else { outcome.to_owned() },
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().take(UNPLACED).map(row).collect();
    let columns = [
        ("name", false),
        ("took", true),
        ("how long, not when", false),
        ("driver", false),
        ("kind", false),
        ("worker", false),
        ("outcome", false),
    ];
    let heading = format!("Without a place in time: {}, the longest first", all.len());
    table(out, &heading, &columns, &rows);
    if all.len() > UNPLACED {
        let _ = writeln!(out, "<p>and {}</p>", count(all.len() - UNPLACED, "shorter one"));
    }
}

fn messages(out: &mut String, t: &Timeline) {
    let placed = t.iter().filter(|(_, span)| is_urgent(span));
    let placed = placed.map(|(id, span)| (go(t, id), &span.outcome));
    let others = t.unplaced().iter().filter(|u| needs_seeing(&u.outcome, u.took, u.kind));
    let others = others.map(|u| (shown(&u.name), &u.outcome));
    let said: Vec<_> =
        placed.chain(others).filter_map(|(who, o)| Some((who, o.as_str(), o.message()?))).collect();
    if said.is_empty() {
        return;
    }
    out.push_str("<h3>Messages</h3>\n<p>");
    for (who, outcome, message) in said.iter().take(MESSAGES) {
        let _ = writeln!(out, "{outcome}: {who}: {}<br>", shown(message));
    }
    if said.len() > MESSAGES {
        let _ = write!(out, "and {} more: search for the outcome", said.len() - MESSAGES);
    }
    out.push_str("</p>\n");
}
