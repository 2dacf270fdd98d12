//! Every renderer with few and with many spans: nothing too wide, nothing unsafe, nothing broken.

use crate::samples::bring_up;
use corewise_timeline::analysis::{WhatIf, compare};
use corewise_timeline::{EdgeKind, Outcome, Span, SpanKind, Timeline};
use corewise_timeline::{html, json, perfetto, svg, text};
use std::time::Duration;

const SIZES: [usize; 5] = [0, 1, 3, 40, 2000];

#[test]
fn a_timeline_is_displayed_as_it_is_rendered_at_the_width_that_is_asked_for() {
    let t = bring_up(7, 4);
    assert_eq!(format!("{t}\n"), text::render(&t, 80));
    assert_eq!(format!("{t:120}\n"), text::render(&t, 120));
}

#[test]
fn no_line_of_text_is_wider_than_asked() {
    for devices in SIZES {
        let t = bring_up(devices, 4);
        for width in [60, 61, 72, 80, 100, 132, 200, 333, 500] {
            let shown = text::render(&t, width);
            for line in shown.lines() {
                assert!(line.chars().count() <= width, "{devices} at {width}: {line:?}");
                assert_eq!(line, line.trim_end());
            }
            assert!(shown.ends_with('\n'));
        }
    }
}

#[test]
fn widths_out_of_range_count_as_the_nearest_in_range() {
    let t = bring_up(40, 4);
    assert_eq!(text::render(&t, 0), text::render(&t, 60));
    assert_eq!(text::render(&t, 5000), text::render(&t, 500));
}

#[test]
fn the_numbers_stand_in_the_summary_line() {
    let ms = Duration::from_millis;
    let mut t = Timeline::new("bring-up");
    t.push(Span::new("a", SpanKind::Probe, ms(0), ms(100)).on("w0", Some(0)));
    t.push(Span::new("b", SpanKind::Probe, ms(0), ms(50)).on("w1", Some(1)));
    let shown = text::render(&t, 120);
    assert!(shown.starts_with("bring-up: 2 devices, all ok\n"), "{shown}");
    assert!(
        shown.contains(
            "makespan 100 ms, serial sum 150 ms (1.50x), critical path 100 ms, \
             at most 2 at once"
        ),
        "{shown}"
    );
    assert!(shown.contains("critical path: a (100 ms)"), "{shown}");
}

#[test]
fn an_empty_timeline_says_so() {
    assert_eq!(text::render(&Timeline::new("shutdown"), 80), "shutdown: nothing was recorded\n");
    assert!(svg::render(&Timeline::new("shutdown")).contains("nothing was recorded"));
}

#[test]
fn of_two_thousand_the_critical_path_and_the_longest_are_shown_and_the_rest_is_counted() {
    let t = bring_up(2000, 4);
    let shown = text::render(&t, 160);
    let path = t.critical_path();
    for &id in &path.spans {
        assert!(shown.contains(&t.span(id).name), "{} is not there", t.span(id).name);
    }
    let rows = shown.lines().filter(|l| l.contains("worker ") && l.contains("cpu ")).count();
    assert_eq!(rows, 40);
    let folded = t.spans().iter().filter(|s| s.no_callback && s.outcome.is_ok()).count();
    assert!(shown.contains(&format!("+ {folded} devices without a callback")), "{shown}");
    let left_out = 2000 - 40 - folded;
    assert!(shown.contains(&format!("+ {left_out} devices left out")), "{shown}");
}

#[test]
fn failures_and_their_messages_are_shown_even_among_two_thousand() {
    let mut t = Timeline::new("bring-up");
    let ms = Duration::from_millis;
    for i in 0..2000 {
        let mut span = Span::new(format!("d{i}"), SpanKind::Probe, ms(i), ms(i + 5));
        if i == 1234 {
            span.end = span.start;
            span.outcome = Outcome::Failed("no such file".into());
        }
        t.push(span);
    }
    let shown = text::render(&t, 80);
    assert!(shown.contains("1999 ok, 1 failed"), "{shown}");
    assert!(shown.contains("failed: d1234: no such file"), "{shown}");
}

#[test]
fn a_hostile_name_moves_no_cursor_and_opens_no_tag() {
    let mut t = Timeline::new("x\x1b[31m<script>");
    let ms = Duration::from_millis;
    let mut span = Span::new("a\x1b]0;t\x07<b>&\"'\u{0}", SpanKind::Probe, ms(0), ms(1));
    span.worker = "w\r\n".into();
    span.outcome = Outcome::Failed("</svg>\x1b[2J".into());
    span.released_by = Some("\u{202e}<i>".into());
    t.push(span);
    let shown = text::render(&t, 100);
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    let picture = svg::render(&t);
    assert_well_formed(&picture);
    for tag in ["<script", "<b>", "<i>"] {
        assert!(!picture.contains(tag));
    }
    assert_eq!(picture.matches("</svg>").count(), 1);
    assert!(serde_json::from_str::<serde_json::Value>(&json::render(&t)).is_ok());
}

#[test]
fn the_svg_is_well_formed_and_has_a_bar_with_a_tooltip_for_each_span() {
    for devices in SIZES {
        let t = bring_up(devices, 4);
        let picture = svg::render(&t);
        assert_well_formed(&picture);
        assert_eq!(picture.matches("<title>").count(), devices);
        assert!(!picture.contains("href") && !picture.contains("<script"));
        if devices > 0 {
            let marked = picture.matches(" critical\"").count();
            // One more stands in the legend.
            assert_eq!(marked, t.critical_path().spans.len() + 1);
        }
    }
}

#[test]
fn stamps_at_the_end_of_time_and_ids_of_nobody_break_nothing() {
    let ns = Duration::from_nanos;
    let far = [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let mut t = Timeline::new("broken");
    for (i, &start) in far.iter().enumerate() {
        for (j, &end) in far.iter().enumerate() {
            let kinds = [SpanKind::Probe, SpanKind::Initcall, SpanKind::Shutdown];
            let mut span = Span::new(format!("{i} {j}"), kinds[j % 3], ns(start), ns(end));
            span = span.on(["", "w"][i % 2], None);
            span.nested_in = t.iter().map(|(id, _)| id).nth((i * 7 + j * 3) % 25);
            t.push(span);
        }
    }
    let ids: Vec<_> = t.iter().map(|(id, _)| id).collect();
    for (i, &a) in ids.iter().enumerate() {
        t.push_edge(a, ids[(i * 11) % ids.len()], EdgeKind::Supplier);
    }
    for t in [&t, &t.filtered(|name, _| name != "0 0")] {
        text::render(t, 80);
        assert!(text::analysis(t, 5, 80).contains("what if"));
        assert_well_formed(&svg::render(t));
        html::render(&html::Page { title: "t", facts: &[], timelines: &[t] });
        perfetto::render(&[t]);
        json::analysis(t, 5);
        assert_eq!(json::read(&json::render(t)).unwrap(), std::slice::from_ref(t));
        for what_if in [WhatIf::new(), WhatIf::new().workers(2).scaled(ids.first().copied(), 1e300)]
        {
            what_if.predict(t);
        }
        compare(t, t);
    }
}

#[test]
fn the_same_timeline_renders_the_same() {
    let (a, b) = (bring_up(200, 3), bring_up(200, 3));
    assert_eq!(text::render(&a, 100), text::render(&b, 100));
    assert_eq!(svg::render(&a), svg::render(&b));
    assert_eq!(json::render(&a), json::render(&b));
}

/// Checks that tags nest and that text holds no bare `&` or `<`: enough of XML for the renderers'
/// output.
fn assert_well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        assert_entities(&rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag is closed");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closes what was opened last");
        } else {
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes pair in <{tag}>");
            assert_entities(tag);
            if !tag.ends_with('/') {
                open.push(tag.split(' ').next().expect("split gives one part at least"));
            }
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    assert_eq!(rest, "\n");
}

fn assert_entities(text: &str) {
    for after in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
        assert!(known.iter().any(|k| after.starts_with(k)), "bare & before {after:?}");
    }
}
