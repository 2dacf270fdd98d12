//! The page from made-up records: whole, well-formed, and with every record in a table.

use quick_xml::Reader;
use quick_xml::events::Event;

use super::{Page, render};
use crate::record::Record;
use crate::stats::PairedRatio;

fn record(case: &str, variant: &str, metric: &str, unit: &str, median: f64) -> Record {
    Record::made_up(case, variant, metric, unit, (median * 0.9, median, median * 1.2))
}

/// What one variant of one case gives.
fn of_variant(case: &str, variant: &str, size: f64) -> [Record; 3] {
    [
        record(case, variant, "items_per_second", "items/s", 1e6 * size),
        record(case, variant, "call_p50", "ns", 90.0 / size),
        record(case, variant, "allocations_per_item", "count", 0.0),
    ]
}

fn own() -> Vec<Record> {
    let mut records = Vec::new();
    for case in ["kernel_test", "storm/boxed", "storm/reused"] {
        for (n, scope) in ["cpu", "cache", "cache_shard", "cache_shard:4"].iter().enumerate() {
            records.extend(of_variant(&format!("{case}/{scope}"), "corewise", 1.0 + n as f64));
        }
        records.extend(of_variant(&format!("{case}/cache"), "before", 0.3));
    }
    records.push(record("headline", "corewise", "cache_shard_vs_before_items", "ratio", 3.4));
    records
}

fn peers() -> Vec<Record> {
    let ratio = |case, metric, median| record(case, "corewise", metric, "ratio", median);
    let of = ["corewise", "crossbeam", "rayon", "tokio"].iter().enumerate();
    let mut records: Vec<Record> =
        of.flat_map(|(n, peer)| of_variant("storm/boxed", peer, 4.0 - n as f64)).collect();
    records.extend([
        ratio("beside", "storm_boxed_vs_tokio", 7.0),
        ratio("headline", "inside_vs_best_peer", 1.5),
    ]);
    records
}

fn page(own: &[Record], peers: &[Record]) -> String {
    let facts = [("Machine".to_owned(), "two <fast> CPUs & more".to_owned())];
    let advice = ["Leave it: `Workqueue::builder(\"<x>\")`.".to_owned(), "Few CPUs.".to_owned()];
    render(&Page { name: "workqueue", facts: &facts, advice: &advice, records: own, peers })
}

/// Everything that is opened is closed, and nothing is loaded from elsewhere.
fn check(html: &str) {
    let mut reader = Reader::from_str(html);
    // HTML's elements without an end, as far as the page has them.
    reader.config_mut().check_end_names = false;
    let mut open: Vec<Vec<u8>> = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(element) if element.name().as_ref() == b"meta" => {}
            Event::Start(element) => open.push(element.name().as_ref().to_owned()),
            Event::End(element) => {
                assert_eq!(open.pop().as_deref(), Some(element.name().as_ref()));
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert!(open.is_empty());
    let elsewhere = "http: https: @import url( data: <script <link <img <iframe <object <image <use src= href= onclick=";
    for elsewhere in elsewhere.split(' ') {
        assert!(!html.contains(elsewhere), "{elsewhere}");
    }
}

/// The rows of all tables, as (metric, median, least, most).
fn rows(html: &str) -> Vec<Vec<String>> {
    let rows = html.split("<tr").skip(1).map(|row| row.split("</tr>").next().unwrap());
    let values = rows.map(|row| {
        let datas = row.split("<data value=\"").skip(1);
        datas.map(|data| data.split('"').next().unwrap().to_owned()).collect::<Vec<_>>()
    });
    values.filter(|values| !values.is_empty()).collect()
}

#[track_caller]
fn every_record_is_in_a_table(html: &str, records: &[&[Record]]) {
    let mut expected: Vec<Vec<String>> = records
        .iter()
        .flat_map(|records| records.iter())
        .map(|r| [r.median, r.min, r.max].map(|value| value.to_string()).to_vec())
        .collect();
    let mut found = rows(html);
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn the_page_is_whole_and_has_every_record_once() {
    let (own, mut peers) = (own(), peers());
    let html = page(&own, &peers);
    check(&html);
    every_record_is_in_a_table(&html, &[&own, &peers]);
    assert!(html.contains("two &lt;fast&gt; CPUs &amp; more"));
    assert!(html.contains("<code>Workqueue::builder(&quot;&lt;x&gt;&quot;)</code>"));
    assert!(html.contains("cache_shard (default)") && html.contains("before (cache)"));
    assert!(html.contains("What is unfair to whom"));
    assert_eq!(html, page(&own, &peers), "it is not deterministic");
    peers.push(record("interval95", "corewise", "storm_boxed_vs_tokio", "ratio", 7.5));
    let html = page(&[], &peers);
    let rows: Vec<&str> = html.split("<tr>").filter(|row| row.contains("_vs_")).collect();
    assert!(rows[0].contains("inside_vs_best_peer") && rows[1].contains("storm_boxed_vs_tokio"));
    assert!(rows[1].contains(">6.75</data> to <data value=\"9\">9.00</data>"), "{}", rows[1]);
    assert!(!html.contains("interval95"), "it is no workload");
}

#[test]
fn each_headline_of_a_call_has_its_interval_and_what_that_shows() {
    let headlines = [
        ("surely", PairedRatio::of(&[4.0, 4.1, 3.9, 4.0, 4.2, 3.8], &[2.0; 6], 1).unwrap()),
        ("noise", PairedRatio::of(&[1.0, 3.0, 1.5, 2.5, 1.9, 2.1], &[2.0; 6], 1).unwrap()),
        ("too_few", PairedRatio::of(&[4.0, 6.0], &[2.0; 2], 1).unwrap()),
    ];
    let html = page(&crate::rounds::records("workqueue", &[], &headlines), &[]);
    check(&html);
    let said = ["beyond the noise", "within the noise", "too few rounds to rule out noise"];
    for ((name, ratio), said) in headlines.iter().zip(said) {
        let row = html.split("<tr>").find(|row| row.contains(&format!(">{name}</th>"))).unwrap();
        for end in [ratio.low, ratio.high] {
            assert!(row.contains(&format!("<data value=\"{end}\">")), "{end}: {row}");
        }
        assert!(row.contains(said), "{row}");
    }
}

#[test]
fn peers_stand_beside_the_scopes_of_the_same_case_in_figures_of_their_own() {
    let html = page(&own(), &peers());
    let boxed = html.split(">storm/boxed</h3>").nth(1).unwrap().split("<h3").next().unwrap();
    let (own, beside) = boxed.split_once("items per second beside").unwrap();
    assert!(own.contains("items per second by scope") && !own.contains("tokio"));
    assert!(beside.find(">Corewise<") < beside.find(">crossbeam<"), "the best comes first");
}

#[test]
fn hostile_names_extreme_values_unknown_workloads_and_nothing_at_all_are_shown() {
    let name = format!("{}<script>alert(1)</script>\u{202e}\"'&", "a very long name ".repeat(20));
    let mut records = of_variant(&format!("{name}/cpu"), &name, 1.0).to_vec();
    for (scope, value) in [("cpu", 0.0), ("smt", 1e300), ("cache", 1e-300), ("numa", f64::MAX)] {
        for (metric, unit) in [("items_per_second", "items/s"), ("call_p50", "ns"), ("x", "")] {
            let case = format!("new/thing/{scope}");
            let one = record(&case, "corewise", metric, unit, value);
            records.push(Record { min: 0.0, max: value, ..one });
        }
    }
    let html = page(&records, &[]);
    check(&html);
    every_record_is_in_a_table(&html, &[&records]);
    assert!(!html.contains("<script") && !html.contains('\u{202e}'));
    for percent in
        html.split("style=\"").skip(1).flat_map(|rest| rest.split('"').next().unwrap().split(';'))
    {
        let (_, percent) = percent.split_once(':').unwrap();
        let percent: f64 = percent.trim_end_matches('%').parse().unwrap();
        assert!((0.0..=100.0).contains(&percent), "{percent}");
    }
    assert!(!html.contains("unfair"), "there are no peers");
    let empty = Page { name: "", facts: &[], advice: &[], records: &[], peers: &[] };
    check(&render(&empty));
}
