//! One figure as SVG: a row a variant, bars from zero or points on an axis, whiskers for the spread.
//!
//! Nothing depends on colour: rows are named, kinds differ by their filling too, percentiles by the
//! shape of their points, and every value stands beside its mark.

use maud::{Markup, html};

use corewise_timeline::markup::{CHAR_WIDTH, fit};

use super::group::{Figure, Kind, Mark, Row};
use super::number::{show, tick};
use super::scale::Scale;

/// The picture's natural width in pixels; it is as wide as its column.
const WIDTH: f64 = 540.0;
/// The room of a character of the font, which is 13 px high.
const CHAR: f64 = CHAR_WIDTH * 13.0 / 12.0;
/// Longer names are cut in the middle; the table has them whole.
const LABEL_CHARS: usize = 25;
const BAR: f64 = 24.0;
const LANE: f64 = 18.0;
const BETWEEN: f64 = 8.0;
const TOP: f64 = 6.0;
/// Below the rows, for the labels of the ticks.
const AXIS: f64 = 26.0;
/// So many rows are told to those who can't see the picture; the table has all.
const DESCRIBED: usize = 12;

/// The picture. `id` is unique in the page.
pub(super) fn draw(figure: &Figure<'_>, id: &str, title: &str) -> Markup {
    let chart = Chart::plan(figure);
    let (title_id, desc_id) = (format!("{id}-title"), format!("{id}-desc"));
    let view = format!("0 0 {WIDTH} {:.0}", chart.bottom + AXIS);
    html! {
        svg viewBox=(view) role="img" aria-labelledby={ (title_id) " " (desc_id) } {
            title id=(title_id) { (title) }
            desc id=(desc_id) { (description(figure)) }
            (chart.axis())
            (chart.rows())
        }
    }
}

struct Chart<'f> {
    figure: &'f Figure<'f>,
    scale: Scale,
    /// Whether it has points, not bars.
    points: bool,
    left: f64,
    right: f64,
    bottom: f64,
}

impl<'f> Chart<'f> {
    fn plan(figure: &'f Figure<'f>) -> Chart<'f> {
        let points = figure.rows.iter().flat_map(|row| &row.marks).any(|m| m.percentile.is_some());
        let values = figure.records().flat_map(|record| [record.median, record.min, record.max]);
        let scale = if points { Scale::for_points(values) } else { Scale::from_zero(values) };
        let longest = figure.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
        let lanes = if points { 5.0 * CHAR } else { 0.0 };
        let widest = figure.records().map(|record| show(record.median, figure.unit));
        let widest = widest.map(|shown| shown.chars().count()).max().unwrap_or(0);
        let bottom = TOP + figure.rows.iter().map(|row| height(row, points) + BETWEEN).sum::<f64>();
        Chart {
            figure,
            scale,
            points,
            left: longest.min(LABEL_CHARS) as f64 * CHAR + lanes + 8.0,
            right: WIDTH - widest as f64 * CHAR - 10.0,
            bottom,
        }
    }

    fn x(&self, value: f64) -> f64 {
        self.left + self.scale.at(value) * (self.right - self.left)
    }

    fn axis(&self) -> Markup {
        let mut free = f64::NEG_INFINITY;
        // A label that would touch the one before it is left out; its line stays.
        let ticks = self.scale.ticks().iter().map(|&value| {
            let (x, label) = (self.x(value), tick(value, self.figure.unit));
            let half = label.chars().count() as f64 * CHAR / 2.0;
            let label = (x - half > free).then_some(label);
            if label.is_some() {
                free = x + half + 4.0;
            }
            (x, label)
        });
        html! {
            @for (x, label) in ticks.collect::<Vec<_>>() {
                line.grid x1=(px(x)) x2=(px(x)) y1=(px(TOP)) y2=(px(self.bottom)) {}
                @if let Some(label) = label {
                    text.tick x=(px(x)) y=(px(self.bottom + 17.0)) { (label) }
                }
            }
        }
    }

    fn rows(&self) -> Markup {
        let tops = self.figure.rows.iter().scan(TOP, |next, row| {
            let top = *next;
            *next += height(row, self.points) + BETWEEN;
            Some(top)
        });
        html! { @for (row, top) in self.figure.rows.iter().zip(tops) { (self.row(row, top)) } }
    }

    fn row(&self, row: &Row<'_>, top: f64) -> Markup {
        let class = class(row.kind);
        let middle = top + height(row, self.points) / 2.0;
        html! {
            g class=(class) {
                title { (row_words(row, self.figure.unit)) }
                text.name x="0" y=(px(middle + 4.5)) { (fit(&row.label, LABEL_CHARS)) }
                @for (n, mark) in row.marks.iter().enumerate() {
                    @if self.points {
                        (self.point(mark, top + (n as f64 + 0.5) * LANE))
                    } @else {
                        (self.bar(mark, top + n as f64 * BAR))
                    }
                }
            }
        }
    }

    fn bar(&self, mark: &Mark<'_>, top: f64) -> Markup {
        let record = mark.record;
        let end = self.x(record.median);
        let middle = top + BAR / 2.0;
        html! {
            rect.bar x=(px(self.left)) y=(px(top + 2.0)) width=(px((end - self.left).max(1.0)))
                height=(px(BAR - 4.0)) {}
            (self.whisker(mark, middle))
            (self.value(mark, middle))
        }
    }

    fn point(&self, mark: &Mark<'_>, middle: f64) -> Markup {
        let x = self.x(mark.record.median);
        html! {
            text.lane x=(px(self.left - 8.0)) y=(px(middle + 4.0)) { (mark.label()) }
            line.guide x1=(px(self.left)) x2=(px(x)) y1=(px(middle)) y2=(px(middle)) {}
            (self.whisker(mark, middle))
            path.point d=(shape(mark.percentile, x, middle)) {}
            (self.value(mark, middle))
        }
    }

    /// From the smallest run to the largest.
    fn whisker(&self, mark: &Mark<'_>, y: f64) -> Markup {
        let (low, high) = (self.x(mark.record.min), self.x(mark.record.max));
        let cap = if self.points { 3.5 } else { 5.0 };
        let d = format!(
            "M{low:.1} {:.1}v{:.1}M{low:.1} {y:.1}H{high:.1}M{high:.1} {:.1}v{:.1}",
            y - cap,
            2.0 * cap,
            y - cap,
            2.0 * cap
        );
        html! { path.halo d=(d) {} path.whisker d=(d) {} }
    }

    fn value(&self, mark: &Mark<'_>, y: f64) -> Markup {
        let shown = show(mark.record.median, self.figure.unit);
        html! { text.value x=(px(WIDTH)) y=(px(y + 4.5)) { (shown) } }
    }
}

/// A coordinate, short.
fn px(value: f64) -> String {
    format!("{value:.1}")
}

fn height(row: &Row<'_>, points: bool) -> f64 {
    row.marks.len().max(1) as f64 * if points { LANE } else { BAR }
}

/// A shape of its own for each percentile: circle, square, triangle, diamond, cross for the rest.
fn shape(percentile: Option<f64>, x: f64, y: f64) -> String {
    match percentile {
        Some(p) if p <= 50.0 => {
            format!("M{:.1} {y:.1}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", x - 4.5)
        }
        Some(p) if p < 97.0 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        Some(p) if p < 99.5 => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.0),
        Some(p) if p < 100.0 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
        _ => format!("M{:.1} {:.1}h2.5v10h-2.5z", x - 1.25, y - 5.0),
    }
}

/// The class of a row; the style knows no others.
pub(super) fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Corewise => "ours",
        Kind::Yardstick => "yard",
        Kind::Peer => "peer",
    }
}

/// A row in words: `cpu: p50 90.0 ns (85.0 ns to 95.0 ns), ...`.
fn row_words(row: &Row<'_>, unit: &str) -> String {
    let marks = row.marks.iter().map(|mark| {
        let record = mark.record;
        let label = mark.label();
        let label = if label.is_empty() { label } else { format!("{label} ") };
        format!(
            "{label}{} ({} to {})",
            show(record.median, unit),
            show(record.min, unit),
            show(record.max, unit)
        )
    });
    format!("{}: {}", row.label, marks.collect::<Vec<_>>().join(", "))
}

fn description(figure: &Figure<'_>) -> String {
    let rows = figure.rows.iter().take(DESCRIBED);
    let told: Vec<String> = rows.map(|row| row_words(row, figure.unit)).collect();
    let more = match figure.rows.len().saturating_sub(DESCRIBED) {
        0 => String::new(),
        more => format!(" And {more} more; the table has all."),
    };
    let axis = if Chart::plan(figure).scale.is_log() { " The axis is logarithmic." } else { "" };
    format!("{}.{more}{axis}", told.join("; "))
}

/// Whether equal distances in the picture are equal factors, which its caption has to say.
pub(super) fn is_log(figure: &Figure<'_>) -> bool {
    Chart::plan(figure).scale.is_log()
}
