//! Notes before bars, times beside names, order in a picture, names from right to left.

use corewise_timeline::analysis::WhatIf;
use corewise_timeline::{Outcome, Span, SpanKind, Timeline, html, json, svg, text};
use std::time::Duration;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn page(t: &Timeline) -> String {
    html::render(&html::Page { title: "t", facts: &[], timelines: &[t] })
}

/// Creates a shutdown of `n` devices one after another on one worker, most of them in no time.
fn serial(n: u64) -> Timeline {
    let mut t = Timeline::new("shutdown");
    for i in 0..n {
        let (start, long) = (i / 8 * 800 + i % 8, if i % 8 == 7 { 700 } else { 1 });
        let name = format!("0000:{i:02x}:00.0");
        let mut span = Span::new(name, SpanKind::Shutdown, ms(start), ms(start + long));
        span.driver = Some("nvme".into());
        t.push(span.on("shutdown", None));
    }
    t
}

/// Returns left, top and right of each bar, in the order of their spans' names.
fn bars(picture: &str) -> Vec<(f64, f64, f64)> {
    let number = |tag: &str, name: &str| -> f64 {
        let value = tag.split(&format!(" {name}=\"")).nth(1).expect("the attribute");
        value.split('"').next().expect("a value").parse().expect("a number")
    };
    let mut bars: Vec<(&str, (f64, f64, f64))> = picture
        .split("<rect ")
        .filter_map(|tag| Some((tag, tag.split("<title>").nth(1)?)))
        .map(|(tag, title)| {
            let (x, width) = (number(tag, "x"), number(tag, "width"));
            (title.split('\n').next().expect("a name"), (x, number(tag, "y"), x + width))
        })
        .collect();
    bars.sort_by_key(|(name, _)| *name);
    bars.into_iter().map(|(_, bar)| bar).collect()
}

#[test]
fn in_an_svg_what_ran_later_on_one_worker_never_stands_above_what_ran_before() {
    for n in [9, 40, 119] {
        let picture = svg::render(&serial(n));
        let bars = bars(&picture);
        assert_eq!(bars.len(), n as usize);
        for pair in bars.windows(2) {
            assert!(pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1, "{n}: {pair:?}");
        }
        assert!(picture.contains("one after another on one worker"), "{n}");
    }
    // With more spans, labels that don't fit are left out: one row.
    let bars = bars(&svg::render(&serial(200)));
    assert!(bars.iter().all(|bar| bar.1 == bars[0].1), "{bars:?}");
}

#[test]
fn bars_that_overlap_or_have_no_known_worker_are_not_joined() {
    let mut t = Timeline::new("bring-up");
    for i in 0..4 {
        t.push(Span::new(format!("d{i}"), SpanKind::Probe, ms(i), ms(100 + i)).on("w", None));
        t.push(Span::new(format!("e{i}"), SpanKind::Probe, ms(i * 10), ms(i * 10 + 1)));
    }
    assert!(!svg::render(&t).contains("class=\"next\""));
}

#[test]
fn notes_stand_before_the_bars() {
    let mut t = serial(3);
    t.note("a reader has to know this");
    let page = page(&t);
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("no {what}"));
    assert!(at("a reader has to know this") < at("<canvas"));
    assert!(at("makespan ") < at("<canvas") && at("3 ok") < at("<canvas"));
    let picture = svg::render(&t);
    let note = picture.find("a reader has to know this").expect("the note");
    assert!(note < picture.find("<title>").expect("a bar"));
    let y: f64 = picture[..note]
        .rsplit("y=\"")
        .next()
        .and_then(|y| y.split('"').next())
        .and_then(|y| y.parse().ok())
        .expect("where it stands");
    assert!(bars(&picture).iter().all(|bar| bar.1 > y), "{y}");
}

#[test]
fn the_column_beside_each_name_is_a_time() {
    let mut t = serial(3);
    t.push(Span::new("b", SpanKind::Probe, ms(9), ms(19)));
    let mut columns = Vec::new();
    for table in page(&t).split("<table>\n<tr>").skip(1) {
        let head = table.split("</tr>").next().expect("a row of headings");
        let second = head.split("</th>").nth(1).expect("two columns");
        columns.push(second.rsplit('>').next().expect("a heading").to_owned());
    }
    assert_eq!(columns, ["its own time", "one by one", "takes"]);
}

#[test]
fn a_what_if_says_what_it_leaves_out_in_every_form() {
    let t = &serial(9);
    let wanted = "no dependency is known, so nothing waits";
    assert!(text::analysis(t, 5, 500).contains(wanted));
    assert!(json::analysis(t, 5)["caveats"].to_string().contains(wanted));
    let page = page(t);
    let table = page.split(">What if<").nth(1).expect("the predictions");
    assert!(table.split("</div>\n</div>").next().expect("its end").contains(wanted));
    // The predicted run shows the note too, in each form.
    let predicted = WhatIf::new().workers(2).predict(t).timeline;
    assert!(predicted.notes().iter().any(|note| note.contains(wanted)));
    let repeated = WhatIf::new().predict(t).timeline;
    assert_eq!(repeated.notes(), t.notes(), "what is repeated leaves nothing out");
}

#[test]
fn what_the_page_may_cut_is_a_name() {
    let script = include_str!("../../src/html/page.js");
    let calls = script.split("fit(").skip(1).filter(|call| !call.starts_with("context, text"));
    let mut cut = Vec::new();
    for call in calls {
        cut.push(call.split(", ").nth(1).expect("the text"));
    }
    assert_eq!(cut, ["s.n", "name"], "a number that is cut is another number");
}

#[test]
fn a_name_from_right_to_left_keeps_the_number_behind_it_in_its_place() {
    let mut t = Timeline::new("קובץ");
    let mut span = Span::new("جهاز", SpanKind::Shutdown, ms(0), ms(200)).on("عامل", None);
    span.end_certainty = corewise_timeline::Certainty::UpperBound;
    span.driver = Some("מנהל".into());
    span.outcome = Outcome::Failed("שגיאה 5".into());
    t.push(span);
    t.note("جهاز 3 is slow");
    let data = |page: &str| page.split("id=\"data\">").nth(1).expect("the data").to_owned();
    for (what, shown) in [
        ("text", text::render(&t, 100)),
        ("analysis", text::analysis(&t, 5, 100)),
        ("svg", svg::render(&t)),
        ("html", page(&t)),
        ("data", data(&page(&t))),
    ] {
        let isolated = shown.matches("\u{2068}جهاز\u{2069}").count();
        assert_eq!(isolated, shown.matches("جهاز").count(), "{what}: {shown}");
        assert!(isolated > 0, "{what}");
        for word in ["קובץ", "עامל", "מנהל", "שגיאה", "عامل"] {
            let isolated = shown.matches(&format!("\u{2068}{word}\u{2069}")).count();
            assert_eq!(isolated, shown.matches(word).count(), "{what}: {word}: {shown}");
        }
    }
    // Programs read the names as they are.
    assert!(!json::render(&t).contains('\u{2068}'));
}
