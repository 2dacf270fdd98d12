//! The text of `corewise timeline`.

use std::fmt::Write;

use corewise::kernel_log::{Bound, Deferral, KernelLog, Split, SplitShare};
use corewise::timeline::analysis::compare;
use corewise::timeline::{Length, Timeline, markup, text};
use corewise_server::units::count;

use super::source::Log;
use super::what_if::NamedPrediction;
use crate::args::timeline::Args;
use crate::screen::{FAINT, TITLE, styled};

/// Largest number of unknown lines that are shown.
const SUSPICIOUS: usize = 10;

/// Largest number of boots of a log that are listed.
const BOOTS: usize = 20;

/// Returns the whole text, in lines of at most `width` columns.
pub(super) fn text(
    args: &Args,
    logs: &[Log],
    predicted: &[Vec<NamedPrediction>],
    width: usize,
) -> String {
    let mut out = String::new();
    for (log, predicted) in logs.iter().zip(predicted) {
        if !out.is_empty() {
            out.push('\n');
        }
        head(&mut out, log, width);
        if args.compare {
            continue;
        }
        for (i, t) in log.timelines.iter().enumerate() {
            timeline(&mut out, args, t, width);
            for prediction in predicted.iter().filter(|p| p.of == i) {
                said(&mut out, args, t, prediction, width);
            }
        }
        if let Some(kernel) = &log.kernel {
            deferrals(&mut out, args, kernel, width);
            suspicious(&mut out, kernel, width);
        }
    }
    if args.compare {
        comparison(&mut out, args, logs, width);
    }
    out
}

/// Returns the facts about a log, each a name and a value.
pub(super) fn facts(log: &Log) -> Vec<(String, String)> {
    let mut facts = vec![("log".to_owned(), log.name.clone())];
    let Some(kernel) = &log.kernel else { return facts };
    let mut say = |name: &str, value: Option<String>| {
        facts.extend(value.map(|value| (name.to_owned(), value)));
    };
    say("kernel", kernel.kernel.clone());
    say("machine", kernel.machine.clone());
    say("lines", Some(kernel.lines.to_string()));
    let sources: Vec<&str> = kernel.edges_from().iter().map(|source| source.as_str()).collect();
    let edges = kernel.graph.edges().len();
    say(
        "dependencies",
        Some(match edges {
            0 => "none known".to_owned(),
            n => format!("{n}, from {}", sources.join(", ")),
        }),
    );
    let suspicious = kernel.suspicious_total;
    say("not understood", (suspicious > 0).then(|| lines(suspicious)));
    for note in &kernel.notes {
        say("note", Some(note.clone()));
    }
    facts
}

fn head(out: &mut String, log: &Log, width: usize) {
    let facts = facts(log);
    let mut facts = facts.iter();
    let name = facts.next().map_or("", |(_, name)| name.as_str());
    let _ = writeln!(out, "{}", styled(TITLE, markup::printable(name)));
    let (notes, facts): (Vec<_>, Vec<_>) = facts.partition(|(name, _)| name == "note");
    let said = |out: &mut String, facts: Vec<&(String, String)>| {
        for (name, value) in facts {
            wrapped(out, &format!("{name}: {value}"), width);
        }
    };
    said(out, facts);
    let Some(kernel) = &log.kernel else { return };
    let counts = |pairs: Vec<(&str, u64)>| {
        let pairs: Vec<String> =
            pairs.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect();
        pairs.join("; ")
    };
    let forms: Vec<_> = kernel.forms.iter().map(|&(form, n)| (form.as_str(), n)).collect();
    let prefixes: Vec<_> =
        kernel.prefixes.iter().map(|&(prefix, n)| (prefix.as_str(), n)).collect();
    for (name, counts) in [("understood", counts(forms)), ("prefixes", counts(prefixes))] {
        if !counts.is_empty() {
            wrapped(out, &format!("{name}: {counts}"), width);
        }
    }
    said(out, notes);
    boots(out, kernel, width);
}

/// Lists the boots of a log that holds several.
fn boots(out: &mut String, kernel: &KernelLog, width: usize) {
    let last = kernel.boots.len();
    for (i, boot) in kernel.boots.iter().enumerate() {
        // If there are very many boots, the last are listed; the shown one is among them.
        if i + BOOTS < last {
            continue;
        }
        let mut facts = vec![lines(boot.lines) + &format!(" from {}", boot.first_line)];
        if let (Some(from), Some(to)) = (boot.from, boot.to) {
            facts.push(format!("{:.3} to {:.3} s", from.as_secs_f64(), to.as_secs_f64()));
        }
        let counts =
            [(boot.initcalls, "init call"), (boot.probes, "probe"), (boot.shutdowns, "shutdown")];
        let counts = counts.iter().filter(|(n, _)| *n > 0);
        facts.extend(counts.map(|&(n, what)| count(n as u64, what)));
        facts.extend(boot.kernel.clone());
        wrapped(out, &format!("--boot {}: {}", i + 1, facts.join(", ")), width);
    }
}

/// Writes `text` in lines of at most `width` columns, with two blanks before each.
fn wrapped(out: &mut String, text: &str, width: usize) {
    for line in markup::wrap(&markup::printable(text), width.saturating_sub(2).max(20), 2) {
        let _ = writeln!(out, "  {}", markup::isolate(&line));
    }
}

fn lines(n: u64) -> String {
    count(n, "line")
}

/// Bars with the title in bold.
fn bars(out: &mut String, text: &str) {
    let (title, rest) = text.split_once('\n').unwrap_or((text, ""));
    let _ = write!(out, "\n{}\n{rest}", styled(TITLE, title));
}

fn timeline(out: &mut String, args: &Args, t: &Timeline, width: usize) {
    bars(out, &text::render_rows(t, width, args.rows));
    out.push_str(&text::analysis(t, args.top, width));
}

/// Writes the predictions that the user asked for.
fn said(out: &mut String, args: &Args, t: &Timeline, p: &NamedPrediction, width: usize) {
    out.push('\n');
    out.push_str(&text::prediction(t, &p.what_if, &p.asked, width));
    let name = format!("{}, predicted: {}", t.name(), p.asked);
    bars(out, &text::render_rows(&p.prediction.timeline.clone().named(name), width, args.rows));
}

fn deferrals(out: &mut String, args: &Args, kernel: &KernelLog, width: usize) {
    if kernel.deferrals.is_empty() {
        return;
    }
    let attempts: usize = kernel.deferrals.iter().map(|d| d.attempts).sum();
    let total: Length = kernel.deferrals.iter().map(|d| d.total).sum();
    let devices = kernel.deferrals.len();
    let tries = if attempts == 1 { "1 try".to_owned() } else { format!("{attempts} tries") };
    let of = count(devices as u64, "device");
    let title = format!("Deferred probes: {tries} of {of}, {total} wasted");
    let _ = writeln!(out, "\n{}", styled(TITLE, title));
    let stamp = |time: std::time::Duration| format!("{:.6}", time.as_secs_f64());
    let row = |cells: [&str; 7], [name, driver]: [usize; 2]| {
        let [device, its, tries, total, first, bound, reasons] = cells;
        let line = format!(
            "  {:<name$}  {:<driver$}  {tries:>5}  {total:>11}  {first:>11}  {bound:>11}  ",
            markup::fit(device, name),
            markup::fit(its, driver),
        );
        let line = markup::printable(&line).into_owned();
        let reasons = markup::printable(reasons).into_owned();
        // Reasons that don't fit go below, uncut.
        let (line, below) = match line.chars().count() + reasons.chars().count() > width {
            true => (line, reasons),
            false => (line + &reasons, String::new()),
        };
        let mut lines = vec![markup::isolate(line.trim_end()).into_owned()];
        if !below.is_empty() {
            let below = markup::wrap(&below, width.saturating_sub(6).max(20), 0);
            lines.extend(below.iter().map(|line| format!("      {}", markup::isolate(line))));
        }
        lines.join("\n")
    };
    let driver = |d: &Deferral| d.driver.as_ref().map(ToString::to_string).unwrap_or_default();
    let longest = |f: &dyn Fn(&Deferral) -> usize, most: usize| {
        kernel.deferrals.iter().take(args.top).map(f).max().unwrap_or(0).clamp(6, most)
    };
    let widths =
        [longest(&|d| d.device.chars().count(), 30), longest(&|d| driver(d).chars().count(), 16)];
    let told = kernel.deferrals.iter().take(args.top).any(|d| !d.reasons.is_empty());
    let reasons = if told { "waits for" } else { "" };
    let head = ["device", "driver", "tries", "wasted", "first at", "bound at", reasons];
    let _ = writeln!(out, "{}", styled(FAINT, row(head, widths)));
    for d in kernel.deferrals.iter().take(args.top) {
        let cells = [
            d.device.as_str(),
            &driver(d),
            &d.attempts.to_string(),
            &d.total.to_string(),
            &d.first.map_or("?".to_owned(), stamp),
            &match d.bound {
                Bound::Never => "never".to_owned(),
                Bound::At(at) => stamp(at),
                Bound::Somewhen => "later".to_owned(),
            },
            &d.reasons.join("; "),
        ];
        let _ = writeln!(out, "{}", row(cells, widths));
    }
    if devices > args.top {
        let more = count((devices - args.top) as u64, "more device");
        let them = if devices - args.top == 1 { "it" } else { "them" };
        let _ = writeln!(out, "  and {more}; --top shows {them}");
    }
    if let Some(split) = &kernel.deferred_probe {
        split_up(out, args, split, width);
    }
}

/// Writes how the init function that waits for probes spent its time.
fn split_up(out: &mut String, args: &Args, split: &Split, width: usize) {
    let shares: Vec<String> = split
        .shares
        .iter()
        .take(args.top)
        .map(|SplitShare { device, times, took, .. }| match times {
            1 => format!("{device} {took}"),
            n => format!("{device} {took} ({n} times)"),
        })
        .collect();
    let more = split.shares.len().saturating_sub(args.top);
    let more = match more {
        0 => String::new(),
        n => format!(", {}", count(n as u64, "more device")),
    };
    wrapped(
        out,
        &format!(
            "the init function that waits for them took {}: {}{more}; for {} none of them ran",
            split.total,
            shares.join(", "),
            split.rest,
        ),
        width,
    );
}

fn suspicious(out: &mut String, kernel: &KernelLog, width: usize) {
    if kernel.suspicious_total == 0 {
        return;
    }
    let title =
        format!("Not understood: {} similar to a known form", lines(kernel.suspicious_total));
    let _ = writeln!(out, "\n{}", styled(TITLE, title));
    for line in kernel.suspicious.iter().take(SUSPICIOUS) {
        wrapped(out, &format!("line {}: {} ({})", line.line, line.text, line.why), width);
    }
    let shown = kernel.suspicious.len().min(SUSPICIOUS) as u64;
    if kernel.suspicious_total > shown {
        let more = count(kernel.suspicious_total - shown, "more line");
        let _ = writeln!(out, "  and {more}; --json has the first thousand");
    }
}

/// Compares two logs, phase by phase.
fn comparison(out: &mut String, args: &Args, logs: &[Log], width: usize) {
    let [a, b] = logs else { return };
    for (first, second) in pairs(a, b) {
        out.push('\n');
        let c = compare(first, second);
        let names = [a.name.as_str(), b.name.as_str()];
        bars(out, text::comparison([first, second], names, &c, args.top, width).trim_start());
    }
}

/// Returns the timelines of two logs that show the same phase. Two logs with one timeline each make
/// a pair in any case.
pub(super) fn pairs<'l>(a: &'l Log, b: &'l Log) -> Vec<(&'l Timeline, &'l Timeline)> {
    if let ([a], [b]) = (&a.timelines[..], &b.timelines[..]) {
        return vec![(a, b)];
    }
    a.timelines
        .iter()
        .filter_map(|t| Some((t, b.timelines.iter().find(|o| o.name() == t.name())?)))
        .collect()
}
