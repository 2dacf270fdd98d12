//! The analyses as text for a terminal.

use super::{Lines, Noun};
use crate::analysis::{Comparison, Pair, Prediction, Side, WhatIf, caveats, is_boot};
use crate::length::Length;
use crate::span::{Span, SpanKind, Timeline};
use crate::units::{duration, fit, printable, verb};
use std::time::Duration;

/// Returns the [`analysis`](crate::analysis) of `t` for a terminal of `width` columns, as
/// [`render`](super::render) takes it: the `top` worst devices and drivers, the parallelism, and
/// the predictions with everything asynchronous. Empty for an empty timeline. If nothing has a
/// place in time, only the worst are shown: the rest needs one.
pub fn analysis(t: &Timeline, top: usize, width: usize) -> String {
    let mut out = Lines::new(width);
    if t.is_empty() {
        return out.text;
    }
    worst(&mut out, t, top);
    if t.spans().is_empty() {
        return out.text;
    }
    drivers(&mut out, t, top);
    concurrency(&mut out, t);
    what_if(&mut out, t);
    out.text
}

/// One column of a table: its heading, and whether it holds numbers.
type Column = (&'static str, bool);

/// Writes rows under headings. If they are too wide, the widest text column is cut.
pub(super) fn table(out: &mut Lines, columns: &[Column], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = columns.iter().map(|(head, _)| head.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let indent = 2;
    while widths.iter().sum::<usize>() + 2 * widths.len() + indent > out.width + 2 {
        let texts = (0..columns.len()).filter(|&i| !columns[i].1 && widths[i] > 6);
        let Some(widest) = texts.max_by_key(|&i| widths[i]) else { break };
        widths[widest] -= 1;
    }
    let heads: Vec<String> = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = " ".repeat(indent);
        for ((cell, &width), (_, number)) in row.iter().zip(&widths).zip(columns) {
            let cell = fit(cell, width);
            let padded = match number {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
            line.push_str(&padded);
        }
        out.line(&line);
    }
}

fn worst(out: &mut Lines, t: &Timeline, top: usize) {
    let costs = t.costs();
    let noun = Noun::of(t);
    let placed = !t.spans().is_empty();
    let by = if placed { "by time of their own:" } else { "by what they took, tries together:" };
    if !placed {
        // The rows above show all but the tries. If nothing is known, nothing is worst.
        let tried = costs.iter().take(top).any(|cost| cost.times > 1);
        if !tried || costs.iter().all(|cost| cost.took.told().is_none()) {
            return;
        }
    }
    out.line("");
    out.wrapped(&format!("the worst of {}, {by}", noun.count(costs.len())), 2);
    let tried = costs.iter().take(top).any(|cost| cost.times > 1);
    let rows: Vec<Vec<String>> = costs
        .iter()
        .take(top)
        .map(|cost| {
            let mut row =
                vec![cost.name.clone(), cost.driver_told(), cost.kind.as_str().to_owned()];
            if placed {
                row.push(cost.own.to_string());
                row.push(cost.share.to_string());
                row.push(cost.slack.to_string());
            } else {
                row.push(cost.took.to_string());
            }
            if tried {
                row.push(cost.times.to_string());
            }
            row
        })
        .collect();
    let mut columns = vec![(noun.one, false), ("driver", false), ("kind", false), ("took", true)];
    if placed {
        columns.extend([("of all", true), ("to spare", true)]);
    }
    if tried {
        columns.push(("tries", true));
    }
    table(out, &columns, &rows);
}

fn drivers(out: &mut Lines, t: &Timeline, top: usize) {
    if t.spans().iter().all(|s| s.driver.is_none()) {
        return;
    }
    out.line("");
    out.wrapped("drivers, all their devices one by one and side by side:", 2);
    let rows: Vec<Vec<String>> = t
        .driver_costs(top)
        .iter()
        .map(|cost| {
            vec![
                cost.driver_told(),
                cost.spans.to_string(),
                cost.own.to_string(),
                cost.parallel.to_string(),
                t.span(cost.longest).name.clone(),
            ]
        })
        .collect();
    let columns = [
        ("driver", false),
        ("spans", true),
        ("one by one", true),
        ("side by side", true),
        ("longest", false),
    ];
    table(out, &columns, &rows);
}

fn concurrency(out: &mut Lines, t: &Timeline) {
    let c = t.concurrency();
    let all: Duration = c.time_at.iter().sum();
    if all.is_zero() {
        return;
    }
    let share = |n: usize| {
        let time = c.time_at.get(n).copied().unwrap_or_default();
        100.0 * time.as_secs_f64() / all.as_secs_f64()
    };
    let exact = t.spans().iter().all(|span| span.took().is_exact());
    let known = t.spans().iter().all(|span| span.took().told().is_some());
    let were = match exact {
        _ if !t.has_order() => "at once, as far as the stamps tell",
        _ if t.spans().iter().any(Span::seems_nested) => {
            "at once, as far as is known which span ran inside which"
        }
        _ if t.is_open_ended() || !known => "at once, as far as starts and ends are known",
        true => "at once",
        false => "at once, were each to take its longest",
    };
    let mut text = format!("{were}: {:.2} in the mean, {} at most", c.mean, c.most);
    if c.most > 1 {
        let from = c.most_at.saturating_sub(t.origin());
        text += &format!(" ({} after the beginning)", duration(from));
    }
    text += &format!("; none {:.1}\u{a0}% of the time, one {:.1}\u{a0}%", share(0), share(1));
    if c.most > 1 {
        text += &format!(", more {:.1}\u{a0}%", (100.0 - share(0) - share(1)).max(0.0));
    }
    out.line("");
    out.wrapped(&text, 2);
}

fn what_if(out: &mut Lines, t: &Timeline) {
    out.line("");
    let predictions = WhatIf::usual_of(t);
    match &predictions[..] {
        [_] => out.wrapped(
            &format!(
                "what if everything were asynchronous: {} instead of {}, with any number of workers",
                WhatIf::new().all_async().predict(t).makespan,
                t.makespan()
            ),
            2,
        ),
        _ => {
            out.wrapped("what if everything were asynchronous, with so many workers:", 2);
            let row = |(name, p): &(String, Prediction)| {
                vec![
                    name.clone(),
                    p.makespan.to_string(),
                    t.makespan().times(p.makespan),
                    at_least(p.bound),
                ]
            };
            let rows: Vec<Vec<String>> = predictions.iter().map(row).collect();
            let columns = [("with", false), ("takes", true), ("faster", true), ("at least", true)];
            table(out, &columns, &rows);
        }
    }
    if let Some(text) = probes_alone(t) {
        out.wrapped(&text, 2);
    }
    for caveat in caveats(t) {
        out.wrapped(&format!("({caveat})"), 1);
    }
}

/// Returns the time that the probes of a boot would take by themselves, in words.
pub(crate) fn probes_alone(t: &Timeline) -> Option<String> {
    let probes = t.kind_cost(SpanKind::Probe);
    (probes.spans > 1 && is_boot(t)).then(|| {
        format!(
            "the {} probes alone: {} one by one, {} side by side",
            probes.spans, probes.own, probes.parallel
        )
    })
}

/// Returns the lower bound of every schedule, in words. A bound that was computed from upper bounds
/// is none.
pub(crate) fn at_least(bound: Length) -> String {
    match bound.known() {
        Some(bound) => duration(bound),
        None if bound.least().is_zero() => "-".into(),
        None => duration(bound.least()),
    }
}

/// Returns a prediction beside the run that it is based on, in a line or two. `asked` says what was
/// to be different.
pub fn prediction(t: &Timeline, what_if: &WhatIf, asked: &str, width: usize) -> String {
    let mut out = Lines::new(width);
    let p = what_if.predict(t);
    let mut text = format!(
        "predicted, {}: {} instead of {} ({})",
        printable(asked),
        p.makespan,
        t.makespan(),
        t.makespan().times(p.makespan),
    );
    if what_if.schedules_anew() && p.bound.known().is_some() {
        text += &format!("; no such schedule takes less than {}", p.bound);
    }
    out.wrapped(&text, 2);
    out.text
}

/// Returns two timelines side by side, called `names`: the `top` devices that differ most, and all
/// together. The text fits a terminal of `width` columns.
pub fn comparison(
    timelines: [&Timeline; 2],
    names: [&str; 2],
    c: &Comparison,
    top: usize,
    width: usize,
) -> String {
    let mut out = Lines::new(width);
    let [a, b] = timelines;
    out.wrapped(&format!("{}: A is {}, B is {}", a.name(), names[0], names[1]), 2);
    for (name, t) in [("A", a), ("B", b)] {
        for note in t.notes() {
            out.wrapped(&format!("  note on {name}: {}", printable(note)), 4);
        }
    }
    if c.what_ran_inside {
        let text = "without an order in time the nesting is not known: each time includes the \
                    spans inside";
        out.wrapped(&format!("  note: {text}"), 4);
    }
    out.line("");
    let mut rows = Vec::new();
    if !c.what_ran_inside {
        let (summary_a, summary_b) = (a.summary(), b.summary());
        for (what, in_a, in_b) in [
            ("makespan", summary_a.makespan, summary_b.makespan),
            ("serial sum", summary_a.serial_sum, summary_b.serial_sum),
            ("critical path", summary_a.critical_path, summary_b.critical_path),
        ] {
            let told = in_a.told().zip(in_b.told());
            let change = told.map(|(a, b)| b.as_nanos() as i128 - a.as_nanos() as i128);
            let exact = in_a.is_exact() && in_b.is_exact();
            let (a, b) = (in_a.to_string(), in_b.to_string());
            let row = [what.into(), String::new(), a, b, signed(change, exact), ratio(in_a, in_b)];
            rows.push(row.to_vec());
        }
    }
    let one = |side: Option<Side>| match side {
        None => "-".to_owned(),
        Some(side) if side.spans > 1 => format!("{} ({})", side.time(), side.spans),
        Some(side) => side.time().to_string(),
    };
    let times = |side: Option<Side>| side.map(|side| side.spans);
    let differ = |pair: &&Pair| pair.change_ns() != Some(0) || times(pair.a) != times(pair.b);
    let took = |side: Option<Side>| side.map_or(Length::ZERO, Side::time);
    for pair in c.pairs.iter().filter(differ).take(top) {
        rows.push(vec![
            pair.name.clone(),
            pair.kind.as_str().into(),
            one(pair.a),
            one(pair.b),
            signed(pair.change_ns(), pair.is_exact()),
            ratio(took(pair.a), took(pair.b)),
        ]);
    }
    let noun = Noun::of(a);
    let columns = [
        (noun.one, false),
        ("kind", false),
        ("A", true),
        ("B", true),
        ("change", true),
        ("B/A", true),
    ];
    table(&mut out, &columns, &rows);
    let both = c.pairs.len() - c.only_a - c.only_b;
    let counted = if noun.one == "span" { Noun { one: "name", many: "names" } } else { noun };
    // A retry of a probe may be in one of them only, though its device is in both.
    let more = |in_a: fn(&Side, &Side) -> bool| {
        c.pairs.iter().filter(|p| p.a.zip(p.b).is_some_and(|(a, b)| in_a(&a, &b))).count()
    };
    let often = match (more(|a, b| a.spans > b.spans), more(|a, b| a.spans < b.spans)) {
        (0, 0) => String::new(),
        (a, b) => format!(", {a} ran more often in A and {b} in B"),
    };
    let shown = c.pairs.iter().filter(differ).take(top).count();
    out.line("");
    out.wrapped(
        &format!(
            "{} in both, {} in A only, {} in B only{often}; {shown} of them {} shown",
            counted.count(both),
            c.only_a,
            c.only_b,
            verb(shown, "is", "are"),
        ),
        2,
    );
    out.text
}

fn ratio(a: Length, b: Length) -> String {
    let times = b.times(a);
    times.strip_suffix('x').unwrap_or(&times).to_owned()
}

/// Writes a change, with a sign unless both lengths are exact.
fn signed(ns: Option<i128>, exact: bool) -> String {
    let Some(ns) = ns else { return "?".into() };
    let length = Duration::from_nanos(u64::try_from(ns.unsigned_abs()).unwrap_or(u64::MAX));
    let about = if exact { "" } else { "~" };
    match ns {
        0 => format!("{about}0"),
        1.. => format!("{about}+{}", duration(length)),
        _ => format!("{about}-{}", duration(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare;
    use crate::fixtures::ms;
    use crate::span::{EdgeKind, Span};

    fn timeline() -> Timeline {
        let mut t = Timeline::new("shutdown");
        for (name, driver, start, end) in [
            ("0000:01:00.0", "nvme", 0, 80),
            ("0000:02:00.0", "nvme", 80, 150),
            ("00:04", "rtc", 150, 151),
        ] {
            let mut span = Span::new(name, SpanKind::Shutdown, ms(start), ms(end)).on("main", None);
            span.driver = Some(driver.into());
            t.push(span);
        }
        t
    }

    #[test]
    fn the_worst_the_drivers_and_the_predictions_are_told() {
        let t = timeline();
        let text = analysis(&t, 2, 80);
        assert!(text.contains("the worst of 3 devices"), "{text}");
        let told: Vec<String> =
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in [
            "0000:01:00.0 nvme shutdown 80.0 ms 53.0 % 0 ns",
            "nvme 2 150 ms 80.0 ms 0000:01:00.0",
            "at once: 1.00 in the mean, 1 at most; none 0.0 % of the time, one 100.0 %",
            "1 worker 151 ms 1.00x 151 ms",
            "2 workers or more 80.0 ms 1.89x 80.0 ms",
        ] {
            assert!(told.iter().any(|told| told == line), "{line}\n{text}");
        }
        assert!(text.contains("no dependency is known"), "{text}");
        assert!(!text.contains("00:04  "), "two rows were asked for: {text}");
        assert_eq!(analysis(&Timeline::new("t"), 10, 80), "");
    }

    #[test]
    fn no_line_is_wider_than_asked() {
        let mut t = timeline();
        let long = "a-very-long-name-of-a-device-that-no-terminal-has-room-for-".repeat(4);
        t.push(Span::new(long, SpanKind::Initcall, ms(200), ms(300)));
        let (a, b) = (t.find("00:04"), t.find("0000:02:00.0"));
        t.push_edge(a.expect("there"), b.expect("there"), EdgeKind::Parent);
        for width in [60, 80, 200] {
            let comparison =
                comparison([&t, &timeline()], ["a", "b"], &compare(&t, &timeline()), 10, width);
            for line in analysis(&t, 10, width).lines().chain(comparison.lines()) {
                assert!(line.chars().count() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn a_try_in_one_of_two_runs_is_counted() {
        let mut a = timeline();
        a.push(Span::new("00:04", SpanKind::Shutdown, ms(151), ms(151)).on("main", None));
        a.push(Span::new("init", SpanKind::Initcall, ms(151), ms(152)));
        let mut b = timeline();
        b.push(Span::new("init", SpanKind::Initcall, ms(151), ms(152)));
        let text = comparison([&a, &b], ["a", "b"], &compare(&a, &b), 10, 200);
        let said =
            "4 names in both, 0 in A only, 0 in B only, 1 ran more often in A and 0 in B; 1 of";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn two_runs_are_told_with_totals_and_changes() {
        let mut b = timeline();
        b.push(Span::new("new", SpanKind::Shutdown, ms(151), ms(155)).on("main", None));
        let c = compare(&timeline(), &b);
        let text = comparison([&timeline(), &b], ["a.log", "b.log"], &c, 10, 100);
        let told: Vec<String> =
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in [
            "makespan 151 ms 155 ms +4.00 ms 1.03",
            "new shutdown - 4.00 ms +4.00 ms -",
            "3 devices in both, 0 in A only, 1 in B only; 1 of them is shown",
        ] {
            assert!(told.iter().any(|told| told == line), "{line}\n{text}");
        }
        assert!(!text.contains("0000:01:00.0"), "what is the same isn't listed: {text}");
    }

    #[test]
    fn a_prediction_says_what_it_is_held_against() {
        let t = timeline();
        let text = prediction(&t, &WhatIf::new().workers(2), "2 workers", 100);
        assert!(text.contains("less than 80.0 ms"), "{text}");
        let again = prediction(&t, &WhatIf::new().scaled(t.find("00:04"), 2.0), "slower", 100);
        assert_eq!(again, "predicted, slower: 152 ms instead of 151 ms (0.99x)\n");
        assert!(
            text.starts_with("predicted, 2 workers: 80.0 ms instead of 151 ms (1.89x)"),
            "{text}"
        );
    }
}
