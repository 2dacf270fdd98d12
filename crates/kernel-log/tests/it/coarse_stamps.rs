//! Stamps that are missing, coarse or late never contradict the whole log: each number is bounded
//! by what is known, in every form of the result.

use corewise_kernel_log::{Bound, KernelLog, Reader};
use corewise_timeline::analysis::{Cost, WhatIf, compare};
use corewise_timeline::{Length, SpanKind, Timeline, html, json, perfetto, svg, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

fn read(text: &str) -> KernelLog {
    let mut reader = Reader::new();
    reader.feed(text.as_bytes());
    reader.finish()
}

/// Returns logs with a stamp before each line of the kernel. Logs of others are included if they
/// lie beside the repository.
#[allow(clippy::print_stderr, reason = "that is how a test says it")]
fn logs() -> Vec<(&'static str, String)> {
    let own = [
        "qemu-6.12-16nvme-serial-probe-and-reboot.log",
        "qemu-6.12-16nvme-async-probe-and-reboot.log",
    ];
    let others = [
        "x13s-aarch64-6.13.1-initcall-debug.dmesg",
        "beagleplay-patched-probe-format.log",
        "nested-probes-6.8-rc3.log",
        "qcom-pcie-deferred.log",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut logs = Vec::new();
    for (folder, names) in [("tests/data", &own[..]), ("../../../shared/data/kernel-logs", &others)]
    {
        for name in names {
            match std::fs::read(root.join(folder).join(name)) {
                Ok(bytes) => logs.push((*name, String::from_utf8_lossy(&bytes).into_owned())),
                Err(error) if folder == "tests/data" => panic!("{name}: {error}"),
                Err(_) => eprintln!("skipped: {name}: there is none beside the repository"),
            }
        }
    }
    logs
}

/// Splits a line at its first stamp into the text before, the stamp's microseconds, and the text
/// behind. Two writers of one console may put two stamps into a line.
fn stamped(line: &str) -> Option<(&str, u64, &str)> {
    for (from, _) in line.match_indices('[') {
        let (stamp, rest) = line[from + 1..].split_once(']')?;
        let Some((seconds, micros)) = stamp.trim().split_once('.') else { continue };
        if let (Ok(s), Ok(us), 6) = (seconds.parse::<u64>(), micros.parse::<u64>(), micros.len()) {
            return Some((&line[..from], s * 1_000_000 + us, rest));
        }
    }
    None
}

/// Returns the log with `write` in the place of each stamp. `write` gets the number of the stamp
/// and its time.
fn rewritten(log: &str, mut write: impl FnMut(usize, u64) -> String) -> String {
    let mut out = String::new();
    let mut n = 0;
    for line in log.lines() {
        let mut rest = line;
        while let Some((before, at, behind)) = stamped(rest) {
            out += before;
            // Without its stamp, nothing would show where the second message of a line begins.
            out += if before.is_empty() { "" } else { "\n" };
            out += &write(n, at);
            // The caller stands behind a stamp, or is missing.
            let caller = behind.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            rest = caller.map_or(behind, |(_, rest)| rest);
            n += 1;
        }
        out += rest;
        out.push('\n');
    }
    out
}

type Way = (&'static str, fn(usize, u64) -> String);

fn clock(at: u64) -> String {
    let s = at / 1_000_000;
    format!("{:02}:{:02}:{:02}", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// Ways of writing that leave no order in time.
const ORDER_ONLY: [Way; 5] = [
    ("printk.time=0", |_, _| String::new()),
    ("dmesg -T", |_, at| format!("[Wed Mar  4 {} 2026]", clock(at))),
    ("journalctl -k", |_, at| format!("Mar 04 {} kepler kernel:", clock(at))),
    ("blanked stamps", |_, at| format!("[{:5}.***]", at / 1_000_000)),
    // The journal began after six seconds, and had to catch up.
    ("journalctl -o short-precise", |n, at| {
        let at = at.max(6_000_000 + n as u64);
        format!("Mar 04 {}.{:06} kepler kernel:", clock(at), at % 1_000_000)
    }),
];

/// Ways of writing that keep a part of the stamps.
const IN_PART: [Way; 3] = [
    ("every second stamp", |n, at| part(n % 2 == 0, at)),
    ("all but every seventh stamp", |n, at| part(n % 7 != 3, at)),
    ("stamps of one part", |n, at| part(n % 900 > 400, at)),
];

fn part(there: bool, at: u64) -> String {
    match there {
        true => format!("[{:5}.{:06}]", at / 1_000_000, at % 1_000_000),
        false => String::new(),
    }
}

fn overlap(a: Length, b: Length) -> bool {
    let reaches = |a: Length, b: Length| a.most().is_none_or(|most| b.least() <= most);
    reaches(a, b) && reaches(b, a)
}

/// Checks that `told` allows what is known from the whole log.
fn holds(told: Length, whole: Length, what: &str) {
    match whole.known() {
        Some(time) => assert!(told.allows(time), "{what}: told {told:?}, it was {time:?}"),
        None => assert!(overlap(told, whole), "{what}: told {told:?}, it was {whole:?}"),
    }
}

/// Returns the lengths of spans, by kind and name.
fn lengths(t: &Timeline) -> BTreeMap<(String, String), Vec<Length>> {
    let mut all: BTreeMap<_, Vec<Length>> = BTreeMap::new();
    let placed = t.spans().iter().map(|s| (s.kind, &s.name, s.took()));
    for (kind, name, took) in placed.chain(t.unplaced().iter().map(|u| (u.kind, &u.name, u.took))) {
        all.entry((kind.as_str().to_owned(), name.clone())).or_default().push(took);
    }
    all
}

fn timelines_hold(told: &Timeline, whole: &Timeline, how: &str) {
    let (mine, theirs) = (lengths(told), lengths(whole));
    let without: Vec<_> = mine.keys().filter(|name| !theirs.contains_key(*name)).collect();
    let missing: Vec<_> = theirs.keys().filter(|name| !mine.contains_key(*name)).collect();
    assert!(without.is_empty() && missing.is_empty(), "{how}: {without:?} {missing:?}");
    for (name, lengths) in &mine {
        let others = &theirs[name];
        assert_eq!(lengths.len(), others.len(), "{how}: {name:?}");
        for told in lengths {
            assert!(
                others.iter().any(|w| overlap(*told, *w)),
                "{how}: {name:?}: {told:?} {others:?}"
            );
        }
    }
    let costs = |t: &Timeline| -> BTreeMap<_, Cost> {
        t.costs().into_iter().map(|c| ((c.kind.as_str(), c.name.clone()), c)).collect()
    };
    let (mine, theirs) = (costs(told), costs(whole));
    for (name, cost) in &mine {
        let other = &theirs[name];
        assert_eq!(cost.times, other.times, "{how}: {name:?}");
        holds(cost.took, other.took, &format!("{how}: what {name:?} took"));
        holds(cost.own, other.own, &format!("{how}: the own time of {name:?}"));
        if let (Some(told), Some(slack)) = (cost.slack.known(), other.slack.known()) {
            assert_eq!(told, slack, "{how}: what {name:?} has to spare");
        }
    }
    let (mine, theirs) = (told.summary(), whole.summary());
    assert_eq!(
        (mine.spans, mine.ok, mine.failed, mine.skipped, mine.deferred),
        (theirs.spans, theirs.ok, theirs.failed, theirs.skipped, theirs.deferred),
        "{how}"
    );
    holds(mine.makespan, theirs.makespan, &format!("{how}: the makespan"));
    holds(mine.serial_sum, theirs.serial_sum, &format!("{how}: the serial sum"));
    holds(mine.critical_path, theirs.critical_path, &format!("{how}: the critical path"));
    let at_once = mine.max_parallelism <= theirs.max_parallelism;
    assert!(at_once || !mine.resolution.is_zero(), "{how}: at once");
}

fn logs_hold(told: &KernelLog, whole: &KernelLog, how: &str) {
    timelines_hold(&told.boot, &whole.boot, &format!("{how}, boot"));
    timelines_hold(&told.shutdown, &whole.shutdown, &format!("{how}, shutdown"));
    assert_eq!(told.deferrals.len(), whole.deferrals.len(), "{how}");
    let unit = told.boot.resolution();
    let near = |a: Duration, b: Duration| a.abs_diff(b) <= unit;
    for d in &told.deferrals {
        let other = whole.deferrals.iter().find(|other| other.device == d.device);
        let other = other.unwrap_or_else(|| panic!("{how}: {} was never put off", d.device));
        assert_eq!((d.attempts, d.by_driver), (other.attempts, other.by_driver), "{how}: {d:?}");
        holds(d.total, other.total, &format!("{how}: {}", d.device));
        match (d.bound, other.bound) {
            (Bound::Somewhen, Bound::At(_)) => {}
            (Bound::At(mine), Bound::At(theirs)) => assert!(near(mine, theirs), "{how}: {d:?}"),
            (mine, theirs) => assert_eq!(mine, theirs, "{how}: {}", d.device),
        }
        let both = d.first.zip(other.first);
        assert!(both.map_or(d.first.is_none(), |(a, b)| near(a, b)), "{how}: {}", d.device);
    }
    if let (Some(told), Some(whole)) = (&told.deferred_probe, &whole.deferred_probe) {
        holds(told.total, whole.total, how);
    }
    // Dependencies need no times, unless a device's driver is known from nesting alone.
    assert_eq!(told.graph, whole.graph, "{how}");
}

#[test]
fn without_an_order_in_time_only_printed_durations_are_told_and_they_are_right() {
    for (name, text) in logs() {
        let whole = read(&text);
        for (way, write) in ORDER_ONLY {
            let how = format!("{name}, {way}");
            let told = read(&rewritten(&text, write));
            assert!(told.boot.spans().is_empty(), "{how}");
            let shut = told.shutdown.spans().is_empty();
            // A journal can't lag behind during a shutdown.
            assert!(shut || way.contains("precise"), "{how}");
            logs_hold(&told, &whole, &how);
        }
    }
}

#[test]
fn with_an_order_in_part_what_is_told_is_bounded_by_what_is_missing() {
    for (name, text) in logs() {
        let whole = read(&text);
        for (way, write) in IN_PART {
            logs_hold(&read(&rewritten(&text, write)), &whole, &format!("{name}, {way}"));
        }
    }
}

/// Stamps with fewer digits than the kernel's.
const CUT_OFF: [Way; 2] = [
    ("milliseconds", |_, at| format!("[{:5}.{:03}]", at / 1_000_000, at / 1000 % 1000)),
    ("hundredths", |_, at| format!("[{:5}.{:02}]", at / 1_000_000, at / 10_000 % 100)),
];

#[test]
fn sums_chains_and_own_times_are_no_surer_than_the_stamps() {
    for (name, text) in logs() {
        let whole = read(&text);
        for (way, write) in CUT_OFF {
            let how = format!("{name}, {way}");
            let told = read(&rewritten(&text, write));
            logs_hold(&told, &whole, &how);
            let again = json::read(&json::render(&told.boot)).unwrap();
            assert_eq!(again[0].summary(), told.boot.summary(), "{how}");
            let predicted = WhatIf::new().all_async().predict(&told.boot);
            assert!(!predicted.makespan.is_exact() && !predicted.bound.is_exact(), "{how}");
            assert_eq!(predicted.timeline.resolution(), told.boot.resolution(), "{how}");
        }
    }
}

#[test]
fn stamps_of_a_journal_that_keep_up_with_init_calls_are_an_order_in_time() {
    let (_, text) = &logs()[0];
    let precise = rewritten(text, |_, at| {
        format!("Mar 04 {}.{:06} kepler kernel:", clock(at), at % 1_000_000)
    });
    let (told, whole) = (read(&precise), read(text));
    assert!(told.boot.unplaced().is_empty() && told.shutdown.unplaced().is_empty());
    assert_eq!(told.boot.summary(), whole.boot.summary());
    // Nothing shows it where there are only probes.
    let probes: String = precise
        .lines()
        .filter(|l| !l.contains("initcall"))
        .fold(String::new(), |text, line| text + line + "\n");
    let told = read(&probes);
    assert!(told.boot.spans().is_empty() && !told.boot.unplaced().is_empty());
    let notes = told.boot.notes();
    assert!(notes.iter().any(|n| n.contains("much later than the kernel's")), "{notes:?}");
}

#[test]
fn no_form_draws_or_counts_what_has_no_place_in_time() {
    let (_, log) = &logs()[0];
    for (way, write) in ORDER_ONLY.into_iter().take(4) {
        let log = read(&rewritten(log, write));
        for t in [&log.boot, &log.shutdown] {
            let shown = text::render(t, 120) + &text::analysis(t, 10, 120);
            for word in
                ["what if", "at once:", "critical path:", "makespan", "serial sum", "to spare", "█"]
            {
                assert!(!shown.contains(word), "{way}: {word}: {shown}");
            }
            let picture = svg::render(t);
            assert_eq!(picture.matches("<title>").count(), 0, "{way}");
            assert!(!picture.contains("makespan") && picture.contains("no order in time"), "{way}");
            let page = html::render(&html::Page { title: "t", facts: &[], timelines: &[t] });
            let data =
                page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data[0]["spans"], Value::Array(vec![]), "{way}");
            for word in ["What if", "Critical path", "makespan", "side by side"] {
                let below = page.split("<section>").nth(1).unwrap();
                assert!(!below.split("<script").next().unwrap().contains(word), "{way}: {word}");
            }
            let trace: Value = serde_json::from_str(&perfetto::render(&[t])).unwrap();
            let events = trace["traceEvents"].as_array().unwrap();
            assert!(events.iter().all(|event| event["ph"] == "M"), "{way}");
            let others = &trace["otherData"]["timelines"][0]["without_a_place_in_time"];
            assert_eq!(others.as_array().map(Vec::len), Some(t.unplaced().len()), "{way}");
            let analysis = json::analysis(t, 5);
            assert_eq!(analysis["concurrency"], Value::Null, "{way}");
            assert_eq!(analysis["what_if"], Value::Array(vec![]), "{way}");
            assert_eq!(analysis["costs"][0]["slack_ns"], Value::Null, "{way}");
            let value = serde_json::to_value(json::View(t)).unwrap();
            for field in ["makespan_ns", "critical_path_ns", "max_parallelism"] {
                assert_eq!(value["summary"][field], Value::Null, "{way}: {field}");
            }
        }
    }
}

/// Returns every form of a timeline, each with its name.
fn forms(t: &Timeline) -> Vec<(&'static str, String)> {
    let (nothing, c) = (Timeline::new("nothing"), compare(t, &Timeline::new("nothing")));
    vec![
        ("text", text::render(t, 500)),
        ("comparison", text::comparison([t, &nothing], ["a", "b"], &c, 10, 500)),
        ("SVG", svg::render(t)),
        ("HTML", html::render(&html::Page { title: "t", facts: &[], timelines: &[t] })),
        ("JSON", json::render(t)),
        ("Perfetto", perfetto::render(&[t])),
    ]
}

#[test]
fn every_form_carries_the_notes_and_the_signs() {
    let plain = |text: &str| -> String {
        let text = text.replace("&#39;", "'").replace("\\u003e", ">");
        let letters = text.chars().filter(|c| c.is_alphanumeric());
        letters.collect()
    };
    for (name, log) in logs() {
        for write in [(|_, at| part(true, at)) as fn(usize, u64) -> String, ORDER_ONLY[1].1] {
            let log = read(&rewritten(&log, write));
            for t in [&log.boot, &log.shutdown].into_iter().filter(|t| !t.is_empty()) {
                for (form, shown) in forms(t) {
                    for note in t.notes() {
                        // An SVG's lines break anywhere, each within its own element.
                        let note = plain(note);
                        let there = match form {
                            "SVG" => {
                                let lines = shown.split("<text ").filter_map(|l| l.split_once('>'));
                                let lines = lines.filter_map(|(_, l)| l.split("</text>").next());
                                plain(&lines.collect::<String>()).contains(&note)
                            }
                            _ => plain(&shown).contains(&note),
                        };
                        assert!(there, "{name}: {form} lacks {note}");
                    }
                    let bounds = t.spans().iter().any(|s| s.kind == SpanKind::Shutdown);
                    let sign = if form == "JSON" { "upper_bound" } else { "≤" };
                    assert!(!bounds || shown.contains(sign), "{name}: {form} lacks {sign}");
                }
            }
        }
    }
}
