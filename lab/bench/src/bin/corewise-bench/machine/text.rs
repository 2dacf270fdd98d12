//! The tables, and the transfers by pair of CPUs as a picture made of text.

use std::fmt::Write;

use corewise_bench::advice::shard_size;
use corewise_bench::report::show;
use corewise_costs::{Costs, Distance, Figure, Matrix, Target};

use crate::table::{side_by_side, wrapped};
use crate::{FAINT, TITLE};

/// All of it, in lines of at most `width` columns as far as words allow.
pub(super) fn render(costs: &Costs, width: usize) -> String {
    let mut text = head(costs, width);
    for (title, rows) in tables(costs) {
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{TITLE}{title}{TITLE:#}");
        let (names, figures): (Vec<String>, Vec<Figure>) = rows.into_iter().unzip();
        let names = [String::new()].into_iter().chain(names).collect();
        let values = |one: &Figure| [Some(one.p50), Some(one.p10), Some(one.p90), one.p99];
        let heads = ["median", "p10", "p90", "p99"].into_iter().enumerate();
        // A table without a tail has no column for it.
        let heads = heads.filter(|(at, _)| figures.iter().any(|one| values(one)[*at].is_some()));
        let columns = heads.map(|(at, head)| {
            let cell = |one| values(one)[at].map(|value| show(value, "ns")).unwrap_or_default();
            [head.to_owned()].into_iter().chain(figures.iter().map(cell)).collect()
        });
        text.push_str(&side_by_side(names, columns, width));
    }
    if let Some(matrix) = costs.matrix.as_ref().filter(|matrix| matrix.cpus.len() > 1) {
        text.push_str(&map(matrix, width));
    }
    if let Some(advice) = shard_size(costs) {
        text.push('\n');
        text.push_str(&wrapped(&advice, width));
    }
    text
}

fn head(costs: &Costs, width: usize) -> String {
    let mut text = format!("{TITLE}Costs of this machine{TITLE:#}\n");
    if let Some(machine) = &costs.machine {
        let mut words = vec![machine.cpu_model.clone(), format!("CPUs {}", machine.cpus)];
        words.push(machine.kernel.clone());
        if !machine.hypervisor.is_empty() {
            words.push(format!("a guest of {}", machine.hypervisor));
        }
        words.push(format!("measured in {} s", machine.took_seconds));
        text.push_str(&wrapped(&words.join(", "), width));
    }
    if let Some(noise) = costs.noise.as_ref().filter(|noise| !noise.quiet) {
        let said = format!("The machine wasn't quiet: {}. Figures may be too high.", noise.said);
        text.push_str(&wrapped(&said, width));
    }
    text
}

type Rows = Vec<(String, Figure)>;

fn tables(costs: &Costs) -> Vec<(&'static str, Rows)> {
    let named = |rows: &[(&str, Figure)]| -> Rows {
        rows.iter().map(|(what, figure)| ((*what).to_owned(), *figure)).collect()
    };
    let line = &costs.line;
    let mut lines = named(&[
        ("load, first-level cache", line.load_hit_ns),
        ("load, line that all CPUs read", line.load_shared_hit_ns),
        ("load, memory", line.load_memory_ns),
        ("store", line.store_ns),
        ("atomic operation", line.locked_ns),
        ("full fence", line.fence_ns),
    ]);
    for one in &costs.contended {
        if one.cpus > 1 {
            lines.push((format!("atomic addition, {} CPUs at once", one.cpus), one.each_ns));
        }
    }
    let mut between = Rows::new();
    for (distance, transfer) in &costs.distance {
        let words = distance.words();
        between.push((format!("{words}: one way, stores"), transfer.one_way_ns));
        between.push((format!("{words}: one way, atomic operations"), transfer.locked_ns));
        between.push((format!("{words}: a modified line of a list"), transfer.list_ns));
        between.push((format!("{words}: of an array"), transfer.array_ns));
        between.extend(
            transfer
                .array_locked_ns
                .map(|locked| (format!("{words}: of an array, atomic operations"), locked)),
        );
        between.extend(
            transfer
                .list_read_ns
                .map(|read| (format!("{words}: of a list, read by a third"), read)),
        );
    }
    let call = &costs.call;
    let mut system = named(&[
        ("a call that does nothing", call.bare_ns),
        ("futex wake, no thread sleeps", call.futex_wake_none_ns),
        ("sched_yield", call.yield_ns),
        ("clock", call.clock_ns),
        ("getcpu", call.getcpu_ns),
    ]);
    for (what, figure) in [
        ("the first write to a page", call.fault_ns),
        ("membarrier, alone", call.membarrier_alone_ns),
        ("membarrier, one other CPU runs", call.membarrier_one_ns),
        ("membarrier, all CPUs run", call.membarrier_all_ns),
    ] {
        system.extend(figure.map(|figure| (what.to_owned(), figure)));
    }
    let threads = named(&[
        ("switch by sched_yield", costs.switch.yield_ns),
        ("switch by wake and sleep", costs.switch.block_ns),
        ("time slice of two computing threads", costs.scheduler.slice_ns),
        ("thread, start and join", costs.thread.spawn_join_ns),
        ("spin-loop hint", costs.thread.spin_hint_ns),
    ]);
    let wakes = |of: fn(&corewise_costs::Wake) -> Figure| {
        costs.wake.iter().map(|wake| (woken(wake), of(wake))).collect::<Rows>()
    };
    let mut allocator = Rows::new();
    for one in &costs.allocator {
        let bytes = one.bytes;
        let mut add = |what: &str, figure: Option<Figure>| {
            allocator.extend(figure.map(|figure| (format!("{bytes} bytes: {what}"), figure)));
        };
        add("malloc", Some(one.malloc_ns));
        add("free", Some(one.free_ns));
        add("free by another thread", one.free_elsewhere_ns);
        add("malloc, another thread frees", one.malloc_after_elsewhere_ns);
        add("malloc and free of one", Some(one.pair_ns));
        add("malloc and free, all CPUs", Some(one.pair_all_ns));
    }
    vec![
        ("Cache lines of one CPU, and one line that many CPUs write", lines),
        ("Cache lines from CPU to CPU", between),
        ("System calls", system),
        ("Threads of one CPU", threads),
        ("Wake-ups: until the woken thread runs", wakes(|wake| wake.latency_ns)),
        ("Wake-ups: the call", wakes(|wake| wake.call_ns)),
        ("Allocator", allocator),
    ]
}

fn woken(wake: &corewise_costs::Wake) -> String {
    let place = match (wake.distance, wake.target) {
        (Distance::Same, Target::Idle) => "the same CPU, the waker sleeps",
        (Distance::Same, Target::Busy) => "the same CPU, the waker computes on",
        (distance, Target::Idle) => distance.words(),
        (Distance::Smt, Target::Busy) => "an SMT sibling that computes",
        (Distance::Cache, Target::Busy) => "the same last-level cache, a CPU that computes",
        (Distance::Numa, Target::Busy) => "another last-level cache, a CPU that computes",
        (Distance::System, Target::Busy) => "another NUMA node, a CPU that computes",
    };
    format!("{place}; slept {}", show(wake.slept_us, "us"))
}

/// From cheap to dear.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];

/// The one-way transfers as a map: with numbers where they fit.
fn map(matrix: &Matrix, width: usize) -> String {
    let title = "One way of a modified line, in nanoseconds, from row to column";
    let mut text = format!("\n{TITLE}{title}{TITLE:#}\n");
    let size = matrix.cpus.len();
    let (least, most) = range(&[&matrix.one_way_ns]);
    let shade = |value: f64| {
        let place = if most > least { (value - least) / (most - least) } else { 0.0 };
        SHADES[((place * SHADES.len() as f64) as usize).min(SHADES.len() - 1)]
    };
    // Room for four digits, or for three.
    let digits = if most < 999.5 { 3 } else { 4 };
    let wide = digits + 1;
    let with_numbers = wide + 1;
    let cell = [with_numbers, 2, 1].into_iter().find(|cell| 7 + cell * size <= width).unwrap_or(1);
    let has_numbers = cell == with_numbers;
    if has_numbers {
        let heads: String = matrix.cpus.iter().map(|cpu| format!("{cpu:>wide$} ")).collect();
        let _ = writeln!(text, "{FAINT}  CPU  {}{FAINT:#}", heads.trim_end());
    }
    for (row, cpu) in matrix.one_way_ns.iter().zip(&matrix.cpus) {
        let mut line = format!("  {cpu:>4} ");
        for (value, other) in row.iter().zip(&matrix.cpus) {
            let _ = match (has_numbers, cpu == other) {
                (true, true) => write!(line, "{:>wide$} ", "-"),
                (true, false) => {
                    write!(line, "{value:>wide$.0}{}", shade(*value))
                }
                (false, true) => write!(line, "{:cell$}", ""),
                (false, false) => write!(line, "{}", shade(*value).to_string().repeat(cell)),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if most <= least {
        // A pair alone has nothing to be compared with.
        return text;
    }
    let step = (most - least) / SHADES.len() as f64;
    let legend = SHADES.iter().enumerate().map(|(number, shade)| {
        let low = least + step * number as f64;
        format!("{shade} from {low:.0}")
    });
    let legend = legend.collect::<Vec<_>>().join("  ");
    let _ = writeln!(text, "{FAINT}  {legend}, to {most:.0} ns{FAINT:#}");
    text
}

/// The least and the most of pairs.
pub(super) fn range(maps: &[&[Vec<f64>]]) -> (f64, f64) {
    let values = maps.iter().copied().flatten().flatten().copied().filter(|value| *value > 0.0);
    let (least, most) =
        values.fold((f64::MAX, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if most > 0.0 { (least, most) } else { (0.0, 0.0) }
}

#[cfg(test)]
mod tests {
    use corewise_costs::EXAMPLE;

    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn matrix(size: u32) -> Matrix {
        let cpus: Vec<u32> = (0..size).map(|cpu| cpu * 3).collect();
        let row = |a: u32| cpus.iter().map(|&b| f64::from(a.abs_diff(b)) + 20.0).collect();
        let rows: Vec<Vec<f64>> = cpus.iter().map(|&a| row(a)).collect();
        Matrix { cpus, one_way_ns: rows.clone(), locked_ns: rows }
    }

    #[test]
    fn every_figure_of_a_file_is_in_the_tables() {
        let mut costs = Costs::read(EXAMPLE).unwrap();
        costs.line.fence_ns = Figure { p10: 6.0, p50: 7.5, p90: 9.0, p99: None };
        let text = plain(&render(&costs, 100));
        for part in [
            "the same last-level cache: of an array",
            "atomic addition, 2 CPUs at once",
            "the same last-level cache, a CPU that computes; slept 20.0 µs",
            "64 bytes: free by another thread",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        let fence = text.lines().find(|line| line.contains("full fence")).unwrap();
        let words: Vec<&str> = fence.split_whitespace().collect();
        assert_eq!(words.join(" "), "full fence 7.50 ns 6.00 ns 9.00 ns");
        assert!(!text.contains("membarrier") && !text.contains("One way of a"), "{text}");
    }

    #[test]
    fn a_map_has_numbers_or_shades_and_fits_up_to_64_cpus() {
        for (size, numbers) in [(2, true), (16, true), (18, true), (19, false), (64, false)] {
            let text = plain(&map(&matrix(size), 100));
            let rows: Vec<&str> = text.lines().skip(2).collect();
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{size}:\n{text}");
            assert_eq!(rows[0].starts_with("  CPU"), numbers, "{size}:\n{text}");
            let shaded = |row: &&&str| row.contains(['·', '█']);
            assert!(rows.iter().filter(shaded).count() >= size as usize, "{size}:\n{text}");
        }
    }
}
