//! `--svg`: line transfers by pair of CPUs as a map of colours, one for stores and one for atomic
//! operations, on a card with a light ground of its own. Nothing in it is fetched or scripted.

use std::fmt::Write;

use corewise_costs::{Costs, Matrix};
use corewise_timeline::markup::{FONT, escape, wrap};

const MARGIN: usize = 16;
const LINE: usize = 18;
/// Room for a CPU's number beside its row.
const AXIS: usize = 32;
/// Between the two maps.
const GAP: usize = 40;
/// Two maps side by side are at most so wide.
const SIDE_BY_SIDE: usize = 1400;
const LEAST_WIDTH: usize = 640;
/// A map's title needs so much.
const LEAST_MAP: usize = 220;
/// Steps of the scale.
const STEPS: usize = 24;

const STYLE: &str = "\
.title{font-size:18px;font-weight:600}\
.quiet{fill:#5b6472}\
.head{font-weight:600}\
.n{font-size:10px;text-anchor:middle}\
.a{font-size:10px;fill:#5b6472}\
.d{fill:#fff}";

/// Light to dark, of one hue family, so that it reads without colours too (after ColorBrewer's OrRd).
const STOPS: [[f64; 3]; 5] = [
    [255.0, 247.0, 236.0],
    [253.0, 212.0, 158.0],
    [252.0, 141.0, 89.0],
    [215.0, 48.0, 31.0],
    [127.0, 0.0, 0.0],
];

/// The picture as one SVG document.
pub(super) fn render(costs: &Costs) -> String {
    let empty = Matrix { cpus: Vec::new(), one_way_ns: Vec::new(), locked_ns: Vec::new() };
    let matrix = costs.matrix.as_ref().unwrap_or(&empty);
    let size = matrix.cpus.len();
    let cell = match size {
        0..=24 => 30,
        25..=40 => 24,
        _ => 14,
    };
    let map = (AXIS + size * cell).max(LEAST_MAP);
    let beside = 2 * map + GAP + 2 * MARGIN <= SIDE_BY_SIDE;
    let width = (if beside { 2 * map + GAP } else { map } + 2 * MARGIN).max(LEAST_WIDTH);
    let columns = (width - 2 * MARGIN) * 10 / 72;

    let mut out = String::new();
    let mut y = MARGIN + 18;
    let title = "Cost of a cache line from CPU to CPU";
    let _ = writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"{y}\">{title}</text>");
    let mut said = Vec::new();
    if let Some(machine) = &costs.machine {
        said.push(format!(
            "{}, CPUs {}, {}, {}, commit {}",
            machine.cpu_model, machine.cpus, machine.kernel, machine.date, machine.commit
        ));
    }
    if let Some(noise) = costs.noise.as_ref().filter(|noise| !noise.quiet) {
        said.push(format!("The machine wasn't quiet: {}.", noise.said));
    }
    for line in said.iter().flat_map(|line| wrap(line, columns, 2)) {
        y += LINE;
        let line = escape(&line);
        let _ = writeln!(out, "<text class=\"quiet\" x=\"{MARGIN}\" y=\"{y}\">{line}</text>");
    }
    let scale = Scale::of(matrix);
    y += 12;
    y = scale.draw(&mut out, y);
    let maps = [
        ("One way, by stores", &matrix.one_way_ns),
        ("One way, by atomic operations", &matrix.locked_ns),
    ];
    let mut bottom = y;
    let mut x = MARGIN;
    for (title, rows) in maps {
        bottom = draw(&mut out, (x, y), cell, title, matrix, rows, &scale);
        if beside {
            x += map + GAP;
        } else {
            y = bottom + 12;
        }
    }
    y = bottom + 12;
    for (distance, transfer) in &costs.distance {
        y += LINE;
        let line = format!(
            "{}: {:.0} ns ({:.0} to {:.0}) by stores, {:.0} ns by atomic operations; a written line of a \
             list {:.0} ns, of an array {:.1} ns",
            distance.words(),
            transfer.one_way_ns.p50,
            transfer.one_way_ns.p10,
            transfer.one_way_ns.p90,
            transfer.locked_ns.p50,
            transfer.list_ns.p50,
            transfer.array_ns.p50
        );
        for (number, line) in wrap(&line, columns, 2).iter().enumerate() {
            y += if number == 0 { 0 } else { LINE };
            let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{y}\">{}</text>", escape(line));
        }
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">{title}</title>\n<desc id=\"desc\">{}</desc>\n\
         <style>text{{{FONT};fill:#1f2430}}{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#ffffff\"/>\n{out}</svg>\n",
        escape(&said.join(" "))
    )
}

/// One map; gives where it ends.
fn draw(
    out: &mut String,
    (x, y): (usize, usize),
    cell: usize,
    title: &str,
    matrix: &Matrix,
    rows: &[Vec<f64>],
    scale: &Scale,
) -> usize {
    let (left, top) = (x + AXIS, y + LINE + 20);
    let _ = writeln!(out, "<text class=\"head\" x=\"{x}\" y=\"{}\">{title}</text>", y + LINE);
    // Of many CPUs each eighth has its number.
    let every = if cell >= 24 { 1 } else { 8 };
    let numbers = matrix.cpus.iter().enumerate();
    for (at, cpu) in numbers.clone().filter(|(at, _)| at % every == 0) {
        let middle = at * cell + cell / 2;
        let _ = writeln!(
            out,
            "<text class=\"n\" x=\"{}\" y=\"{}\">{cpu}</text><text class=\"a\" x=\"{x}\" \
             y=\"{}\">{cpu}</text>",
            left + middle,
            top - 5,
            top + middle + 4
        );
    }
    for ((row, from), values) in numbers.zip(rows) {
        for ((column, to), value) in matrix.cpus.iter().enumerate().zip(values) {
            let (cx, cy) = (left + column * cell, top + row * cell);
            if from == to {
                continue;
            }
            let (colour, dark) = scale.colour(*value);
            let _ = write!(
                out,
                "<g><title>CPU {from} to CPU {to}: {value:.1} ns</title><rect x=\"{cx}\" y=\"{cy}\" \
                 width=\"{cell}\" height=\"{cell}\" fill=\"{colour}\"/>"
            );
            if cell >= 24 {
                let class = if dark { "n d" } else { "n" };
                let (tx, ty) = (cx + cell / 2, cy + cell / 2 + 4);
                let _ =
                    write!(out, "<text class=\"{class}\" x=\"{tx}\" y=\"{ty}\">{value:.0}</text>");
            }
            out.push_str("</g>\n");
        }
    }
    top + matrix.cpus.len() * cell
}

/// Which colour stands for how long.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    fn of(matrix: &Matrix) -> Scale {
        let (least, most) = super::text::range(&[&matrix.one_way_ns, &matrix.locked_ns]);
        Scale { least, most }
    }

    /// By the logarithm, so that near pairs can be told apart where far ones are ten times as dear.
    /// And whether the colour is dark.
    fn colour(&self, value: f64) -> (String, bool) {
        let whole = (self.most / self.least).ln();
        let place = if whole > 0.0 { (value / self.least).ln() / whole } else { 0.0 };
        let place = place.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
        let below = (place as usize).min(STOPS.len() - 2);
        let part = place - below as f64;
        let [red, green, blue] = [0, 1, 2].map(|channel| {
            let (low, high) = (STOPS[below][channel], STOPS[below + 1][channel]);
            (low + (high - low) * part).round() as u8
        });
        (format!("#{red:02x}{green:02x}{blue:02x}"), place > 2.6)
    }

    /// The legend; gives where it ends.
    fn draw(&self, out: &mut String, y: usize) -> usize {
        if self.most <= 0.0 {
            let text = "The machine has one CPU, so no line moves between CPUs.";
            let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{}\">{text}</text>", y + LINE);
            return y + LINE;
        }
        let ratio = self.most / self.least;
        for step in 0..STEPS {
            let value = self.least * ratio.powf(step as f64 / (STEPS - 1) as f64);
            let (colour, _) = self.colour(value);
            let x = MARGIN + 80 + step * 8;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"8\" height=\"14\" fill=\"{colour}\"/>"
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{0}\">{1:.0} ns</text><text x=\"{2}\" y=\"{0}\">{3:.0} ns</text>",
            y + 11,
            self.least,
            MARGIN + 88 + STEPS * 8,
            self.most
        );
        y + 14
    }
}

#[cfg(test)]
mod tests {
    use corewise_costs::{EXAMPLE, Noise};

    use super::*;

    /// A machine whose CPUs are the dearer to each other the farther they are.
    fn costs(size: u32) -> Costs {
        let cpus: Vec<u32> = (0..size).collect();
        let row = |a: u32| cpus.iter().map(|&b| f64::from(a.abs_diff(b)) * 4.0).collect();
        let rows: Vec<Vec<f64>> = cpus.iter().map(|&a| row(a)).collect();
        let mut costs = Costs::read(EXAMPLE).unwrap();
        costs.noise = Some(Noise { said: "<others> & more".to_owned(), ..Noise::default() });
        costs.matrix = Some(Matrix { cpus, one_way_ns: rows.clone(), locked_ns: rows });
        costs
    }

    #[test]
    fn each_pair_has_a_cell_in_each_map_inside_of_the_picture() {
        for size in [1u32, 2, 16, 24, 25, 40, 41, 64] {
            let picture = render(&costs(size));
            let cells = (size * (size - 1) * 2) as usize;
            assert_eq!(picture.matches("<g><title>CPU ").count(), cells, "{size}");
            let side = |name: &str| -> f64 {
                let from = picture.split(&format!(" {name}=\"")).nth(1).unwrap();
                from.split('"').next().unwrap().parse().unwrap()
            };
            let (width, height) = (side("width"), side("height"));
            for (name, end) in [("x", width), ("y", height)] {
                let sought = format!(" {name}=\"");
                let places = picture.split(&sought).skip(1);
                let places = places.map(|rest| rest.split('"').next().unwrap().parse().unwrap());
                let most = places.fold(0.0, f64::max);
                assert!(most < end, "{size}: {name} {most} of {end}");
            }
            assert_eq!(picture.contains("The machine has one CPU"), size == 1);
            assert!(picture.contains("&lt;others&gt; &amp; more") && !picture.contains("<others>"));
        }
    }

    #[test]
    fn the_cheapest_pair_is_light_and_the_dearest_dark() {
        let scale = Scale { least: 20.0, most: 400.0 };
        assert_eq!(scale.colour(20.0), ("#fff7ec".to_owned(), false));
        assert_eq!(scale.colour(400.0), ("#7f0000".to_owned(), true));
        let one = Scale { least: 64.0, most: 64.0 };
        assert!(!one.colour(64.0).1, "nothing to compare with");
    }
}
