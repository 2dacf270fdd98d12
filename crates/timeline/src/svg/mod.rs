//! A timeline as a picture: a self-contained SVG with a lane per worker.
//!
//! A bar is one span, coloured by its outcome; its tooltip shows everything that is known of it. A
//! span that may have been over sooner is pale, with a dashed outline, and its label has its sign
//! and its time. In a lane, later bars never stand above earlier ones. A thin line leads from a
//! span that was over to the next one, so that a sequence doesn't look parallel where bars are
//! narrower than their labels. Notes stand above the lanes; runs without a place in time are listed
//! below. The critical path has a dark outline and is joined by lines. Nothing is fetched and
//! nothing is scripted, so that the file can be mailed or put into a page.

mod words;

use crate::lanes::{Lane, RowPacking};
use crate::markup::{CHAR_WIDTH as CHAR, FONT, escape, shown};
use crate::path::CriticalPath;
use crate::select::FOLD_ABOVE;
use crate::span::{Span, SpanId, Timeline};
use crate::text::numbers;
use crate::units::fit;
use std::fmt::Write as _;
use std::time::Duration;
use words::{below, notes, tooltip};

/// The width of the picture, in pixels at its natural size.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 16.0;
/// Width of a character in the name of a lane, which is bold.
const LANE_CHAR: f64 = 8.2;
/// Number of spans up to which each gets a label, and its lane the rows that this takes. With more,
/// only spans whose label fits into the bar have one.
const LABEL_EACH: usize = 120;
/// Length of a label. A longer one is cut; the tooltip has the whole name.
const LABEL_CHARS: usize = 36;
/// Smallest width of a bar. A narrower one could not be seen or pointed at.
const MIN_BAR: f64 = 2.0;
/// The height of a line of text above or below the chart.
const LINE: f64 = 17.0;
/// Where the first note stands, below the legend.
const NOTES: f64 = 98.0;

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
.next{fill:none;stroke:#8a93a1;stroke-width:1}\
.path{fill:none;stroke:#1b2a41;stroke-width:1.5;stroke-opacity:.6;stroke-dasharray:4 3}\
.label{pointer-events:none}";

/// Renders `t` as one SVG document, 1200 pixels wide and as high as its lanes need.
///
/// Names are escaped; characters that XML forbids are replaced. The size of the text grows with
/// the number of spans (about 300 bytes each).
pub fn render(t: &Timeline) -> String {
    let path = t.critical_path();
    let notes = notes(t);
    let chart = Chart::plan(t, &path, notes.len() as f64 * LINE);
    let below = below(t, &path);
    let height = chart.bottom + 20.0 + below.len() as f64 * LINE + MARGIN;

    let mut out = String::new();
    let name = shown(t.name());
    line(
        &mut out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{name}\">"
        ),
    );
    line(&mut out, format_args!("<style>text{{{FONT};fill:#1f2430}}{STYLE}</style>"));
    line(&mut out, format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
    head(&mut out, t, &name, !chart.neighbours.is_empty());
    lines(&mut out, NOTES, &notes);
    chart.draw(&mut out);
    lines(&mut out, chart.bottom + 26.0, &below);
    out.push_str("</svg>\n");
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

/// Writes lines of text, the first at `y`.
fn lines(out: &mut String, mut y: f64, texts: &[String]) {
    for text in texts {
        line(out, format_args!("<text x=\"{MARGIN}\" y=\"{y:.1}\">{}</text>", shown(text)));
        y += LINE;
    }
}

/// Writes title, numbers and legend. `joined`: some bars are joined to their neighbours.
fn head(out: &mut String, t: &Timeline, name: &str, joined: bool) {
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
    if joined {
        let text = x + 22.0;
        line(
            out,
            format_args!(
                "<path class=\"next\" d=\"M{x:.1} 64V76H{:.1}\"/><text x=\"{text:.1}\" y=\"74\">one \
                 after another on one worker</text>",
                x + 16.0
            ),
        );
    }
}

/// Where a span's bar and its label go, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BarPlacement {
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
    scale: TimeScale,
    row_height: f64,
    top: f64,
    bottom: f64,
    /// The lines from bars to what the same worker ran next, as a path's data.
    neighbours: String,
}

/// Time on the horizontal axis.
struct TimeScale {
    left: f64,
    right: f64,
    from: Duration,
    length: Duration,
    label_each: bool,
    fold: bool,
}

impl TimeScale {
    fn x(&self, moment: Duration) -> f64 {
        let length = self.length.as_secs_f64().max(1e-9);
        let part = moment.saturating_sub(self.from).as_secs_f64() / length;
        self.left + part * (self.right - self.left)
    }

    fn place(&self, span: &Span) -> BarPlacement {
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
        BarPlacement { x, width, label }
    }

    /// Returns the room that bar and label take, in hundredths of a pixel. A bar that was widened
    /// to be seen may touch the next one.
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

/// Returns a span's name, and its time if the bar doesn't show that exactly.
fn label(span: &Span) -> String {
    let name = fit(&span.name, LABEL_CHARS);
    match span.took() {
        took if took.is_exact() => name,
        took => format!("{name} {took}"),
    }
}

impl<'a> Chart<'a> {
    /// Plans the chart with `notes` pixels left free above.
    fn plan(t: &'a Timeline, path: &'a CriticalPath, notes: f64) -> Chart<'a> {
        let critical = path.marks(t);
        let folds = |s: &&Span| s.no_callback && s.outcome.is_ok();
        let fold = t.spans().iter().filter(folds).count() > FOLD_ABOVE;
        let labelled = t.spans().iter().filter(|s| !(fold && folds(s))).count();
        let label_each = labelled <= LABEL_EACH;

        let longest = t.lanes().iter().map(|l| l.name.chars().count()).max().unwrap_or(0);
        let left = MARGIN + longest.min(24) as f64 * LANE_CHAR + 12.0;
        let scale = TimeScale {
            left,
            right: WIDTH - MARGIN - 24.0,
            from: t.origin(),
            length: t.finish().saturating_sub(t.origin()),
            label_each,
            fold,
        };
        // With labels, rows don't mean overlap, so they show the order.
        let pack = if label_each { RowPacking::Stairs } else { RowPacking::Tight };
        let lanes = t.lanes_with(pack, |span| scale.extent(span), |_| true);
        let rows: usize = lanes.iter().map(|l| l.rows.len()).sum();
        let row_height = match rows {
            _ if label_each => 22.0,
            0..=100 => 18.0,
            _ => 8.0,
        };
        let top = 112.0 + if notes > 0.0 { notes + 6.0 } else { 0.0 };
        let neighbours = String::new();
        let mut chart =
            Chart { t, path, critical, lanes, scale, row_height, top, bottom: top, neighbours };
        chart.bottom += chart.lanes.iter().map(|lane| chart.lane_height(lane)).sum::<f64>();
        chart.neighbours = chart.neighbours();
        chart
    }

    /// Returns the room for its rows and its name.
    fn lane_height(&self, lane: &Lane) -> f64 {
        (lane.rows.len() as f64 * self.row_height).max(10.0) + 6.0
    }

    fn draw(&self, out: &mut String) {
        if self.t.spans().is_empty() {
            return;
        }
        let tops = self.tops();
        for (i, (lane, y)) in self.lanes.iter().zip(&tops).enumerate() {
            self.band(out, lane, *y, i % 2 == 0);
        }
        self.axis(out);

        let mut middles: Vec<f64> = vec![0.0; self.t.spans().len()];
        // Layers: nothing may cover the critical path, and no bar a label.
        let mut critical = String::new();
        let mut labels = String::new();
        if !self.neighbours.is_empty() {
            line(out, format_args!("<path class=\"next\" d=\"{}\"/>", self.neighbours));
        }
        for (lane, lane_top) in self.lanes.iter().zip(&tops) {
            for (r, row) in lane.rows.iter().enumerate() {
                let y = self.row_top(*lane_top, r);
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
                shown(&fit(&lane.name, 24)),
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
            // Too small to read.
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
                shown(&label(span)),
            ),
        );
    }

    /// Returns the top of each lane.
    fn tops(&self) -> Vec<f64> {
        let top = |y: &mut f64, lane: &Lane| {
            let top = *y;
            *y += self.lane_height(lane);
            Some(top)
        };
        self.lanes.iter().scan(self.top, top).collect()
    }

    /// Returns the top of a row of a lane that begins at `lane_top`.
    fn row_top(&self, lane_top: f64, row: usize) -> f64 {
        lane_top + 3.0 + row as f64 * self.row_height
    }

    /// Returns the lines of each worker's lane: from the end of each row's last bar to the first
    /// bar of the next row, if that began no sooner.
    fn neighbours(&self) -> String {
        let mut d = String::new();
        for (lane, top) in self.lanes.iter().zip(self.tops()).filter(|_| self.scale.label_each) {
            for (row, pair) in lane.rows.windows(2).enumerate() {
                let (Some(&before), Some(&after)) = (pair[0].spans.last(), pair[1].spans.first())
                else {
                    continue;
                };
                let (before, after) = (self.t.span(before), self.t.span(after));
                let is_one_worker = !before.worker.is_empty() || before.cpu.is_some();
                if !is_one_worker || before.end > after.start {
                    continue;
                }
                let (x1, x2) = (self.scale.x(before.end), self.scale.place(after).x);
                let from = self.row_top(top, row) + self.row_height / 2.0;
                let to = from + self.row_height;
                let _ = write!(d, "M{x1:.1} {from:.1}V{to:.1}H{x2:.1}");
            }
        }
        d
    }

    /// Draws lines from the end of each span of the critical path to the start of the next.
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

/// Returns the marks of the time axis: multiples of 1, 2 or 5 of a power of ten, at most ten of
/// them.
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
        let scale = TimeScale {
            left: 100.0,
            right: 1100.0,
            from: ms(0),
            length: ms(1000),
            label_each: true,
            fold: false,
        };
        let label = |start, end| {
            let span = Span::new("volume-0", crate::span::SpanKind::Probe, ms(start), ms(end));
            scale.place(&span).label
        };
        assert_eq!(label(0, 500), Label::Inside);
        assert_eq!(label(0, 10), Label::Right);
        assert_eq!(label(990, 1000), Label::Left);
    }
}
