//! What stands below the chart: the numbers, the critical path, the worst, the drivers, the failures.

use crate::analysis::{DriverCost, Prediction, WhatIf};
use crate::markup::escape;
use crate::model::{SpanId, SpanKind, Timeline};
use crate::path::CriticalPath;
use crate::select::is_urgent;
use crate::text::{numbers, probes_alone};
use crate::units::{duration, printable};
use std::fmt::Write as _;

/// So many rows a table has.
const ROWS: usize = 10;
/// So many messages are listed.
const MESSAGES: usize = 50;
/// So many names of a critical path.
const PATH: usize = 40;

const OUTCOMES: [&str; 5] = ["ok", "failed", "deferred", "skipped", "cancelled"];

/// Writes the section of one timeline.
pub(super) fn section(out: &mut String, t: &Timeline) {
    let _ = write!(out, "<section>\n<h2>{}</h2>\n", name(t.name()));
    if t.is_empty() {
        out.push_str("<p>nothing was recorded</p>\n</section>\n");
        return;
    }
    let _ = writeln!(out, "<p>{}</p>", escape(&numbers(&t.summary())));
    legend(out, t);
    let path = t.critical_path();
    critical_path(out, t, &path);
    out.push_str("<div class=\"tables\">\n");
    worst(out, t);
    drivers(out, t);
    predictions(out, t);
    out.push_str("</div>\n");
    if let Some(text) = probes_alone(t).filter(|_| is_boot(t)) {
        let _ = writeln!(out, "<p>{text}</p>");
    }
    messages(out, t);
    out.push_str("</section>\n");
}

fn name(text: &str) -> String {
    escape(&printable(text))
}

/// A span's name, which shows it in the chart.
fn go(t: &Timeline, id: SpanId) -> String {
    let name = name(&t.span(id).name);
    format!("<button class=\"go\" data-i=\"{}\">{name}</button>", id.index())
}

fn legend(out: &mut String, t: &Timeline) {
    out.push_str("<div class=\"legend\">");
    for outcome in OUTCOMES {
        let count = t.spans().iter().filter(|s| s.outcome.as_str() == outcome).count();
        if count > 0 {
            let _ = write!(
                out,
                "<span><i style=\"background:var(--{outcome});border-color:var(--{outcome}-edge)\">\
                 </i>{count} {outcome}</span>"
            );
        }
    }
    out.push_str(
        "<span><i style=\"border:2px solid var(--path)\"></i>critical path</span>\
         <span>a dotted line before a bar: waited for a worker</span>\
         <span>a dotted end: over by then at the latest</span></div>\n",
    );
}

fn critical_path(out: &mut String, t: &Timeline, path: &CriticalPath) {
    let _ = write!(out, "<h3>Critical path: {}</h3>\n<p>", duration(path.length));
    for (i, &id) in path.spans.iter().take(PATH).enumerate() {
        let arrow = if i == 0 { "" } else { " → " };
        let took = duration(t.span(id).took());
        let _ = write!(out, "{arrow}{} <span class=\"quiet\">{took}</span>", go(t, id));
    }
    if path.spans.len() > PATH {
        let _ = write!(out, " … and {} more", path.spans.len() - PATH);
    }
    if t.edges().is_empty() {
        out.push_str(" <span class=\"quiet\">(no dependency is known: the longest alone)</span>");
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
            let driver = t.span(first).driver.as_deref().unwrap_or_default();
            Some(vec![
                go(t, first),
                name(driver),
                cost.kind.as_str().to_owned(),
                cost.spans.len().to_string(),
                duration(cost.own),
                format!("{:.1} %", cost.share * 100.0),
                duration(cost.slack),
            ])
        })
        .collect();
    let columns = [
        ("name", false),
        ("driver", false),
        ("kind", false),
        ("tries", true),
        ("time of its own", true),
        ("of all", true),
        ("to spare", true),
    ];
    table(out, &format!("The worst of {}", costs.len()), &columns, &rows);
}

fn drivers(out: &mut String, t: &Timeline) {
    if t.spans().iter().all(|s| s.driver.is_none()) {
        return;
    }
    let row = |cost: &DriverCost| {
        let driver = if cost.driver.is_empty() { "(not known)".into() } else { name(&cost.driver) };
        vec![
            driver,
            cost.spans.to_string(),
            duration(cost.own),
            go(t, cost.longest),
            duration(cost.parallel),
        ]
    };
    let rows: Vec<Vec<String>> = t.driver_costs(ROWS).iter().map(row).collect();
    let columns = [
        ("driver", false),
        ("spans", true),
        ("one by one", true),
        ("longest", false),
        ("side by side", true),
    ];
    table(out, "Drivers", &columns, &rows);
}

fn predictions(out: &mut String, t: &Timeline) {
    let row = |(name, p): (String, Prediction)| {
        let faster = t.makespan().as_secs_f64() / p.makespan.as_secs_f64().max(1e-9);
        vec![name, duration(p.makespan), format!("{faster:.2}x"), duration(p.bound)]
    };
    let rows: Vec<Vec<String>> = WhatIf::usual_of(t).into_iter().map(row).collect();
    let columns =
        [("all asynchronous, with", false), ("takes", true), ("faster", true), ("at least", true)];
    table(out, "What if", &columns, &rows);
}

/// Whether there is more than devices in it.
fn is_boot(t: &Timeline) -> bool {
    t.spans().iter().any(|s| s.kind == SpanKind::Initcall)
}

fn messages(out: &mut String, t: &Timeline) {
    let urgent = t.iter().filter(|(_, span)| is_urgent(span));
    let said: Vec<_> =
        urgent.filter_map(|(id, span)| Some((id, span, span.outcome.message()?))).collect();
    if said.is_empty() {
        return;
    }
    out.push_str("<h3>Messages</h3>\n<p>");
    for (id, span, message) in said.iter().take(MESSAGES) {
        let outcome = span.outcome.as_str();
        let _ = writeln!(out, "{outcome}: {}: {}<br>", go(t, *id), name(message));
    }
    if said.len() > MESSAGES {
        let _ = write!(out, "and {} more: search for the outcome", said.len() - MESSAGES);
    }
    out.push_str("</p>\n");
}
