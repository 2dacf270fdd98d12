//! Probes whose thread no line names: nesting by time is likely, not proven.

use crate::common::{read, us};
use corewise_kernel_log::{DeviceGraph, KernelLog};
use corewise_timeline::analysis::{WhatIf, compare};
use corewise_timeline::{Driver, Length, SpanKind, html, json, perfetto, svg, text};

/// A probe on a thread of its own, while the init call of its driver runs.
const CALLERS: &str = "\
[    1.000000][  T100] calling  foo_init+0x0/0x10 [foo] @ 100
[    1.020000][   T55] probe of 0000:01:00.0 returned 0 after 15001 usecs
[    1.030000][  T100] initcall foo_init+0x0/0x10 [foo] returned 0 after 29991 usecs
";

fn without_callers() -> String {
    CALLERS.replace("[  T100]", "").replace("[   T55]", "")
}

fn own(log: &KernelLog, name: &str) -> Length {
    log.boot.costs().into_iter().find(|cost| cost.name == name).expect("it is there").own
}

#[test]
fn what_needs_the_thread_of_a_probe_is_bounded_where_no_line_names_it() {
    let (known, log) = (read(CALLERS), read(&without_callers()));
    let probe = log.boot.span(log.boot.find("0000:01:00.0").expect("a probe"));
    assert!(probe.may_be_nested, "{probe:?}");
    assert_eq!(probe.driver, Some(Driver::inferred("foo")));
    // No result contradicts what the callers prove, and none is surer.
    for name in ["foo_init [foo]", "0000:01:00.0"] {
        let proven = own(&known, name).known().expect("callers prove it");
        assert!(own(&log, name).allows(proven), "{name}: {:?}", own(&log, name));
    }
    assert!(!own(&log, "foo_init [foo]").is_exact());
    let both = [&known.boot, &log.boot];
    for [proven, told] in [
        both.map(|t| t.serial_sum()),
        both.map(|t| t.critical_path().length),
        both.map(|t| WhatIf::new().workers(2).predict(t).makespan),
        both.map(|t| WhatIf::new().workers(1).predict(t).makespan),
        both.map(|t| t.kind_cost(SpanKind::Initcall).own),
        both.map(|t| WhatIf::new().scaled(t.find("0000:01:00.0"), 0.5).predict(t).makespan),
    ] {
        let proven = proven.known().expect("callers prove it");
        assert!(told.allows(proven) && !told.is_exact(), "{proven:?} {told:?}");
    }
    assert_eq!(log.boot.makespan(), known.boot.makespan());
    // Two boots that were one: no change is sure.
    let change = compare(&log.boot, &known.boot);
    let foo = change.pairs.iter().find(|pair| pair.name == "foo_init [foo]").expect("in both");
    assert!(!foo.is_exact(), "{foo:?}");
}

#[test]
fn each_form_marks_what_is_only_likely() {
    let log = read(&without_callers());
    let rows = text::render(&log.boot, 100);
    for told in ["0000:01:00.0 (foo?)", "pid 100?", "serial sum ≥30.0 ms", "about 1 at once"] {
        assert!(rows.contains(told), "{told}: {rows}");
    }
    let analysis = text::analysis(&log.boot, 10, 100);
    assert!(analysis.contains("as far as is known which span ran inside which"), "{analysis}");
    let again = json::read(&json::render(&log.boot)).expect("what was just written");
    assert_eq!(again, std::slice::from_ref(&log.boot));
    let page = html::render(&html::Page { title: "log", facts: &[], timelines: &[&log.boot] });
    assert!(page.contains("foo?") && page.contains("about 1 at once"));
    assert!(svg::render(&log.boot).contains("by foo?"));
    assert!(perfetto::render(&[&log.boot]).contains("seems_to_have_run_inside"));
    for form in [&rows, &page, &json::render(&log.boot)] {
        assert!(form.contains("no line names the thread"), "{form}");
    }
    // Callers that name one thread for both prove it.
    let log = read(&CALLERS.replace("[   T55]", "[  T100]"));
    let rows = text::render(&log.boot, 100);
    assert!(rows.contains("(foo)") && rows.contains("at most 1 at once"), "{rows}");
    assert!(log.boot.is_exact() && log.boot.spans()[1].nested_in.is_some());
}

#[test]
fn the_tables_and_a_cut_name_mark_a_driver_that_is_only_likely() {
    let long = "a_driver_with_a_name_that_no_column_has_room_for";
    for name in ["foo", long] {
        let log = read(&without_callers().replace("foo", name));
        let driver = |cost: corewise_timeline::analysis::Cost| {
            (cost.name, cost.driver.is_some_and(|driver| driver.is_inferred()))
        };
        let costs: Vec<_> = log.boot.costs().into_iter().map(driver).collect();
        assert_eq!(
            costs,
            [(format!("{name}_init [{name}]"), false), ("0000:01:00.0".to_owned(), true)]
        );
        // The init call is the module's; the probe is likely its driver's.
        let of = &log.boot.driver_costs(9)[0];
        assert_eq!((of.driver.as_str(), of.spans, of.inferred), (name, 2, 1));
        let (least, most) = (us(14_990), us(44_992));
        assert_eq!((of.own.least(), of.own.most()), (least, Some(most)), "{:?}", of.own);
        assert!(of.parallel.allows(least) && of.parallel.allows(us(15_001)), "{:?}", of.parallel);
        for width in [60, 70, 80, 100, 200] {
            let (bars, tables) =
                (text::render(&log.boot, width), text::analysis(&log.boot, 9, width));
            for text in [&bars, &tables] {
                let is_probe = |l: &&str| l.trim_start_matches(['*', ' ']).starts_with("0000");
                let row = text.lines().find(is_probe).expect("a row of the probe");
                assert!(row.contains('?') || !row.contains(&name[..3]), "{text}");
            }
            let drivers = tables.split("drivers,").nth(1).expect("the table of drivers");
            let row = drivers.lines().nth(2).expect("a driver");
            assert!(row.split("  ").nth(1).is_some_and(|cell| cell.ends_with('?')), "{tables}");
        }
        let page = html::render(&html::Page { title: "", facts: &[], timelines: &[&log.boot] });
        assert_eq!(page.matches(&format!("<td>{name}?</td>")).count(), 2, "{page}");
        let view = json::analysis(&log.boot, 9);
        assert_eq!(view["costs"][1]["driver_inferred"], true);
        assert_eq!(
            (&view["drivers"][0]["spans"], &view["drivers"][0]["inferred"]),
            (&2.into(), &1.into())
        );
    }
}

#[test]
fn a_likely_driver_has_its_mark_wherever_its_device_is_named_until_something_proves_one() {
    let mut log = read(
        "[    1.000000] calling  foo_init+0x0/0x10 [foo] @ 100\n\
         [    1.002000] probe of b returned 5 after 5 usecs\n\
         [    1.020000] probe of a returned 0 after 15001 usecs\n\
         [    1.030000] initcall foo_init+0x0/0x10 [foo] returned 0 after 29991 usecs\n\
         [    2.000000] probe of a returned -517 after 5 usecs\n\
         probe of a returned -517 after 7 usecs\n\
         [    9.000000] platform a: shutdown\n[    9.100000] reboot: Power down\n",
    );
    let all = |log: &KernelLog, device: &str| {
        let phases = || [&log.boot, &log.shutdown].into_iter();
        let spans = phases().flat_map(|t| t.spans()).map(|s| (&s.name, &s.driver));
        let unplaced = phases().flat_map(|t| t.unplaced()).map(|u| (&u.name, &u.driver));
        let deferrals = log.deferrals.iter().map(|d| (&d.device, &d.driver));
        let of = spans.chain(unplaced).chain(deferrals).filter(|(name, _)| *name == device);
        of.map(|(_, driver)| driver.as_ref().expect("a driver").to_string()).collect::<Vec<_>>()
    };
    assert_eq!(log.drivers["a"], Driver::inferred("foo"));
    // Three probes, one of them without a place in time; the shutdown; the deferral.
    assert_eq!(all(&log, "a"), ["foo?"; 5]);
    let forms = |t| {
        let page = html::render(&html::Page { title: "", facts: &[], timelines: &[t] });
        [text::render(t, 100), svg::render(t), perfetto::render(&[t]), page]
    };
    for form in [&log.boot, &log.shutdown].into_iter().flat_map(forms) {
        assert!(form.contains("foo?"), "{form}");
    }
    let again = json::read(&json::render(&log.boot)).expect("what was just written");
    assert_eq!(again, std::slice::from_ref(&log.boot));

    let links = "a = bar\nb = bar\n";
    log.apply(&DeviceGraph::from_text(links).expect("two drivers"));
    assert_eq!((&log.drivers["a"], all(&log, "a")), (&"bar".into(), vec!["bar".to_owned(); 5]));
    // The device's present driver need not be the one that failed.
    assert_eq!(all(&log, "b"), ["foo?"]);
}

#[test]
fn a_probe_that_may_have_run_beside_a_call_raises_no_lower_bound_of_it() {
    // The call says that it took 2 ms, its lines allow 30, and the probe stands in the last 25 of
    // them.
    let text = CALLERS.replace("after 29991", "after 2000");
    let bounds = |text: &str| {
        let log = read(text);
        let took = log.boot.span(log.boot.find("foo_init [foo]").expect("a call")).took();
        (took.least(), took.most())
    };
    let unknown = text.replace("[  T100]", "").replace("[   T55]", "");
    assert_eq!(bounds(&unknown), (us(2000), Some(us(30_000))));
    // Callers prove that the probe ran inside.
    let inside = text.replace("[   T55]", "[  T100]");
    assert_eq!(bounds(&inside), (us(24_999 + 2), Some(us(30_000))));
}

#[test]
fn a_probe_within_anothers_time_may_have_run_beside_it() {
    let log = read(
        "[    1.003000] probe of 1-1 returned 0 after 500 usecs\n\
         [    1.010000] probe of usb1 returned 0 after 10000 usecs\n",
    );
    let own = |name| own(&log, name);
    assert_eq!((own("1-1"), own("usb1")), (us(500).into(), Length::between(us(9500), us(10_000))));
    let sum = log.boot.serial_sum();
    assert_eq!((sum.least(), sum.most()), (us(10_000), Some(us(10_500))));
    // A line that says that the probe is asynchronous proves that it ran beside.
    let log = read(
        "[    1.000000] nvme 0000:01:00.0: scheduling asynchronous probe\n\
         [    1.000100] calling  foo_init+0x0/0x10 [foo] @ 100\n\
         [    1.020000] probe of 0000:01:00.0 returned 0 after 15001 usecs\n\
         [    1.030000] initcall foo_init+0x0/0x10 [foo] returned 0 after 29891 usecs\n",
    );
    assert!(log.boot.is_exact(), "{:?}", log.boot.spans());
}
