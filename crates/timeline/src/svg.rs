//! A timeline as a picture: a self-contained SVG with a lane per worker.
//!
//! A bar is one span, coloured by its outcome; pointing at it shows everything that is known of
//! it. One that may have been over sooner is pale, with a dashed outline, and its label has its sign
//! and its time. Runs without a place in time stand below in words, as do the notes. The critical path
//! has a dark outline and is joined by lines. Nothing is fetched from elsewhere and nothing is
//! scripted, so that the file can be mailed or put into a page.

use crate::lanes::Lane;
use crate::markup::{CHAR_WIDTH as CHAR, FONT, escape};
use crate::model::{Certainty, Outcome, Span, SpanId, Timeline, Unplaced};
use crate::path::CriticalPath;
use crate::select::{FOLD_ABOVE, is_urgent, needs_seeing};
use crate::text::{numbers, path_names};
use crate::units::{count, duration, fit, how_sure, printable, wrap};
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::Duration;

/// The width of the picture, in pixels at its natural size.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 16.0;
/// The same for the name of a lane, which is bold.
const LANE_CHAR: f64 = 8.2;
/// Up to so many spans get a label each, and their lanes the rows that this takes; with more,
/// only those whose label fits into the bar have one.
const LABEL_EACH: usize = 120;
/// Labels longer than that are cut; the tooltip has the whole name.
const LABEL_CHARS: usize = 36;
/// A shorter bar could not be seen or pointed at.
const MIN_BAR: f64 = 2.0;
/// So many messages of spans that did not end well stand below the chart.
const MAX_MESSAGES: usize = 20;
/// So many of those that have no place in time have a line.
const MAX_UNPLACED: usize = 40;
/// Characters in a line of text below the chart.
const TEXT_CHARS: usize = 150;

const STYLE: &str = "\
.title{font-size:18px;font-weight:600}\
.quiet{fill:#5b6472}\
.lane{font-weight:600}\
.grid{stroke:#dfe3ea;stroke-width:1}\
.ok{fill:#9cc4e4;stroke:#5d93bd}\
.failed{fill:#e5675f;stroke:#a3231b}\
.skipped{fill:#e4e6ea;stroke:#8a93a1;stroke-dasharray:3 2}\
.cancelled{fill:#f3cf7a;stroke:#a67c1a}\
.deferred{fill:#e3d4f1;stroke:#8a63b5}\
.maybe{fill-opacity:.35;stroke-dasharray:4 3}\
.critical{stroke:#1b2a41;stroke-width:2}\
.path{fill:none;stroke:#1b2a41;stroke-width:1.5;stroke-opacity:.6;stroke-dasharray:4 3}\
.label{pointer-events:none}";

/// Renders `t` as one SVG document, 1200 pixels wide and as high as its lanes need.
///
/// Names are escaped; characters that XML forbids are replaced. The size of the text grows with
/// the number of spans (about 300 bytes each).
pub fn render(t: &Timeline) -> String {
    let path = t.critical_path();
    let chart = Chart::plan(t, &path);
    let below = below(t, &path);
    let height = chart.bottom + 20.0 + below.len() as f64 * 17.0 + MARGIN;

    let mut out = String::new();
    let name = escape(t.name());
    line(
        &mut out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{name}\">"
        ),
    );
    line(&mut out, format_args!("<style>text{{{FONT};fill:#1f2430}}{STYLE}</style>"));
    line(&mut out, format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
    head(&mut out, t, &name);
    chart.draw(&mut out);
    let mut y = chart.bottom + 26.0;
    for text in &below {
        line(&mut out, format_args!("<text x=\"{MARGIN}\" y=\"{y:.1}\">{}</text>", escape(text)));
        y += 17.0;
    }
    out.push_str("</svg>\n");
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

/// Title, numbers and legend.
fn head(out: &mut String, t: &Timeline, name: &str) {
    let s = t.summary();
    line(out, format_args!("<text class=\"title\" x=\"{MARGIN}\" y=\"32\">{name}</text>"));
    let said = match numbers(&s).into_iter().next() {
        _ if t.is_empty() => "nothing was recorded".to_owned(),
        Some(numbers) if s.unplaced < s.spans => numbers,
        _ => "no order in time is known".to_owned(),
    };
    let said = escape(&said);
    line(out, format_args!("<text class=\"quiet\" x=\"{MARGIN}\" y=\"52\">{said}</text>"));
    let mut x = MARGIN;
    let mut entry = |class: &str, what: String| {
        line(
            out,
            format_args!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"64\" width=\"16\" height=\"12\" \
                 rx=\"2\"/><text x=\"{:.1}\" y=\"74\">{what}</text>",
                x + 22.0
            ),
        );
        x += 22.0 + what.chars().count() as f64 * CHAR + 18.0;
    };
    let counts = [
        ("ok", s.ok),
        ("failed", s.failed),
        ("skipped", s.skipped),
        ("cancelled", s.cancelled),
        ("deferred", s.deferred),
    ];
    for (word, n) in counts {
        if n > 0 {
            entry(word, format!("{n} {word}"));
        }
    }
    if s.unplaced < s.spans {
        entry("ok critical", "on the critical path".into());
    }
    if t.spans().iter().any(|span| !span.took().is_exact()) {
        entry("ok maybe", "may have ended (≤ at most, ≥ at least, ~ about, ? not known)".into());
    }
}

/// The lines of text below the chart: the critical path, and what went wrong.
fn below(t: &Timeline, path: &CriticalPath) -> Vec<String> {
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

/// The longest of those that have no place in time, a line each: a bar would have one.
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

/// Where a span's bar and its label go, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    x: f64,
    width: f64,
    label: Label,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Label {
    None,
    Inside,
    Right,
    Left,
}

struct Chart<'a> {
    t: &'a Timeline,
    path: &'a CriticalPath,
    critical: Vec<bool>,
    lanes: Vec<Lane>,
    scale: Scale,
    row_height: f64,
    top: f64,
    bottom: f64,
}

/// Time on the horizontal axis.
struct Scale {
    left: f64,
    right: f64,
    from: Duration,
    length: Duration,
    label_each: bool,
    fold: bool,
}

impl Scale {
    fn x(&self, moment: Duration) -> f64 {
        let length = self.length.as_secs_f64().max(1e-9);
        let part = moment.saturating_sub(self.from).as_secs_f64() / length;
        self.left + part * (self.right - self.left)
    }

    fn place(&self, span: &Span) -> Place {
        let x = self.x(span.start).min(self.right - MIN_BAR);
        let width = (self.x(span.end) - x).max(MIN_BAR);
        let label_width = label(span).chars().count() as f64 * CHAR + 10.0;
        let label = if self.fold && span.no_callback && span.outcome.is_ok() {
            Label::None
        } else if label_width <= width {
            Label::Inside
        } else if !self.label_each {
            Label::None
        } else if x + width + label_width <= self.right {
            Label::Right
        } else {
            Label::Left
        };
        Place { x, width, label }
    }

    /// The room that bar and label take, in hundredths of a pixel. A bar that was widened to be
    /// seen may touch the next one.
    fn extent(&self, span: &Span) -> (u64, u64) {
        let p = self.place(span);
        let label_width = label(span).chars().count() as f64 * CHAR + 10.0;
        let (from, to) = match p.label {
            Label::None | Label::Inside => (self.x(span.start), self.x(span.end)),
            Label::Right => (p.x, p.x + p.width + label_width),
            Label::Left => (p.x - label_width, p.x + p.width),
        };
        ((from.max(0.0) * 100.0) as u64, (to.max(0.0) * 100.0) as u64)
    }
}

/// A span's name, and how long it took where its bar doesn't say that exactly.
fn label(span: &Span) -> String {
    let name = fit(&span.name, LABEL_CHARS);
    match span.took() {
        took if took.is_exact() => name,
        took => format!("{name} {took}"),
    }
}

impl<'a> Chart<'a> {
    fn plan(t: &'a Timeline, path: &'a CriticalPath) -> Chart<'a> {
        let critical = path.marks(t);
        let folds = |s: &&Span| s.no_callback && s.outcome.is_ok();
        let fold = t.spans().iter().filter(folds).count() > FOLD_ABOVE;
        let labelled = t.spans().iter().filter(|s| !(fold && folds(s))).count();
        let label_each = labelled <= LABEL_EACH;

        let longest = t.lanes().iter().map(|l| l.name.chars().count()).max().unwrap_or(0);
        let left = MARGIN + longest.min(24) as f64 * LANE_CHAR + 12.0;
        let scale = Scale {
            left,
            right: WIDTH - MARGIN - 24.0,
            from: t.origin(),
            length: t.finish().saturating_sub(t.origin()),
            label_each,
            fold,
        };
        let lanes = t.lanes_with(|span| scale.extent(span), |_| true);
        let rows: usize = lanes.iter().map(|l| l.rows.len()).sum();
        let row_height = match rows {
            _ if label_each => 22.0,
            0..=100 => 18.0,
            _ => 8.0,
        };
        let top = 112.0;
        let mut chart = Chart { t, path, critical, lanes, scale, row_height, top, bottom: top };
        chart.bottom += chart.lanes.iter().map(|lane| chart.lane_height(lane)).sum::<f64>();
        chart
    }

    /// Room for its rows, and for its name.
    fn lane_height(&self, lane: &Lane) -> f64 {
        (lane.rows.len() as f64 * self.row_height).max(10.0) + 6.0
    }

    fn draw(&self, out: &mut String) {
        if self.t.spans().is_empty() {
            return;
        }
        let mut tops = Vec::new();
        let mut y = self.top;
        for lane in &self.lanes {
            tops.push(y);
            y += self.lane_height(lane);
        }
        for (i, (lane, y)) in self.lanes.iter().zip(&tops).enumerate() {
            self.band(out, lane, *y, i % 2 == 0);
        }
        self.axis(out);

        let mut middles: Vec<f64> = vec![0.0; self.t.spans().len()];
        // Layers: nothing may lie on the critical path, and no bar on a label.
        let mut critical = String::new();
        let mut labels = String::new();
        for (lane, lane_top) in self.lanes.iter().zip(&tops) {
            for (r, row) in lane.rows.iter().enumerate() {
                let y = lane_top + 3.0 + r as f64 * self.row_height;
                for &id in &row.spans {
                    middles[id.index()] = y + self.row_height / 2.0;
                    let layer = if self.critical[id.index()] { &mut critical } else { &mut *out };
                    self.bar(layer, &mut labels, id, y);
                }
            }
        }
        out.push_str(&critical);
        self.join_path(out, &middles);
        out.push_str(&labels);
    }

    fn band(&self, out: &mut String, lane: &Lane, y: f64, shaded: bool) {
        let height = self.lane_height(lane);
        let fill = if shaded { "#f6f8fb" } else { "#ffffff" };
        line(
            out,
            format_args!(
                "<rect x=\"{MARGIN}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
                 fill=\"{fill}\"/><text class=\"lane\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - 2.0 * MARGIN,
                MARGIN + 4.0,
                y + 3.0 + (self.row_height / 2.0 + 4.0).max(10.0),
                escape(&fit(&lane.name, 24)),
            ),
        );
    }

    fn axis(&self, out: &mut String) {
        for (moment, label) in ticks(self.scale.length) {
            let x = self.scale.x(self.scale.from + moment);
            line(
                out,
                format_args!(
                    "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
                     <text class=\"quiet\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}\
                     </text>",
                    self.top - 6.0,
                    self.bottom,
                    self.top - 10.0,
                ),
            );
        }
    }

    fn bar(&self, out: &mut String, labels: &mut String, id: SpanId, y: f64) {
        let span = self.t.span(id);
        let place = self.scale.place(span);
        let class = span.outcome.as_str();
        let critical = if self.critical[id.index()] { " critical" } else { "" };
        let maybe = if span.took().is_exact() { "" } else { " maybe" };
        let height = self.row_height - if self.row_height > 10.0 { 4.0 } else { 2.0 };
        let shape = match place.width {
            // The outline of a narrow bar would hide its colour.
            w if w < 4.0 && critical.is_empty() => " stroke-width=\"0.5\"",
            w if w <= 6.0 || self.row_height <= 10.0 => "",
            _ => " rx=\"2\"",
        };
        line(
            out,
            format_args!(
                "<rect class=\"{class}{maybe}{critical}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
                 height=\"{height:.1}\"{shape}><title>{}</title></rect>",
                place.x,
                y + 2.0,
                place.width,
                escape(&tooltip(span, self.critical[id.index()])),
            ),
        );
        let (x, anchor) = match place.label {
            Label::None => return,
            // Nobody could read it.
            Label::Inside if self.row_height <= 10.0 => return,
            Label::Inside => (place.x + 5.0, "start"),
            Label::Right => (place.x + place.width + 5.0, "start"),
            Label::Left => (place.x - 5.0, "end"),
        };
        line(
            labels,
            format_args!(
                "<text class=\"label\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                y + self.row_height / 2.0 + 4.0,
                escape(&label(span)),
            ),
        );
    }

    /// Lines from the end of each span of the critical path to the start of the next.
    fn join_path(&self, out: &mut String, middles: &[f64]) {
        let mut d = String::new();
        for pair in self.path.spans.windows(2) {
            let [before, after] = [pair[0], pair[1]];
            let from = self.scale.place(self.t.span(before));
            let to = self.scale.place(self.t.span(after));
            let (x1, y1) = (from.x + from.width, middles[before.index()]);
            let (x2, y2) = (to.x.max(x1), middles[after.index()]);
            let _ = write!(d, "M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}");
        }
        if !d.is_empty() {
            line(out, format_args!("<path class=\"path\" d=\"{d}\"/>"));
        }
    }
}

/// Everything that is known of a span, a line each.
fn tooltip(span: &Span, critical: bool) -> String {
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
        place.push(span.worker.clone());
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
        how => format!(" ({})", how_sure(how)),
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
    lines.iter().map(|l| printable(l)).collect::<Vec<_>>().join("\n")
}

/// The marks of the time axis: multiples of 1, 2 or 5 of a power of ten, at most ten of them.
fn ticks(length: Duration) -> Vec<(Duration, String)> {
    let ns = length.as_nanos().max(1);
    let mut step = 1u128;
    while ns / step >= 10 {
        // 1, 2, 5, 10, 20, ...
        let leading = step.to_string().starts_with('2');
        step = if leading { step / 2 * 5 } else { step * 2 };
    }
    let (unit, name) = match ns {
        _ if ns < 1_000 => (1u128, "ns"),
        _ if ns < 1_000_000 => (1_000, "µs"),
        _ if ns < 1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let decimals = if step % unit == 0 { 0 } else { 1 };
    (0..=ns / step)
        .map(|i| i * step)
        .map(|at| {
            let label = format!("{:.decimals$} {name}", at as f64 / unit as f64);
            let at = u64::try_from(at).unwrap_or(u64::MAX);
            (Duration::from_nanos(at), if at == 0 { "0".into() } else { label })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (ns, last, n) in [
            (0, "1 ns", 2),
            (1, "1 ns", 2),
            (312_000_000, "300 ms", 7),
            (1_210_000_000, "1.2 s", 7),
            (9_999, "9 µs", 10),
            (10_000, "10 µs", 6),
            (57_000_000_000, "50 s", 6),
        ] {
            let ticks = ticks(Duration::from_nanos(ns));
            assert_eq!((ticks.last().unwrap().1.as_str(), ticks.len()), (last, n), "{ns}");
            assert_eq!(ticks[0].1, "0");
        }
    }

    #[test]
    fn a_label_goes_inside_then_right_then_left() {
        let ms = Duration::from_millis;
        let scale = Scale {
            left: 100.0,
            right: 1100.0,
            from: ms(0),
            length: ms(1000),
            label_each: true,
            fold: false,
        };
        let label = |start, end| {
            let span = Span::new("volume-0", crate::SpanKind::Probe, ms(start), ms(end));
            scale.place(&span).label
        };
        assert_eq!(label(0, 500), Label::Inside);
        assert_eq!(label(0, 10), Label::Right);
        assert_eq!(label(990, 1000), Label::Left);
    }
}
