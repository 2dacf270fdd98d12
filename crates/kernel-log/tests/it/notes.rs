//! Notes name what a log leaves open, and numbers are bounded accordingly.

use crate::common::{read, stamp, us};
use corewise_kernel_log::Reader;
use corewise_timeline::analysis::WhatIf;
use corewise_timeline::{Timeline, html, json, text};
use std::path::Path;

#[test]
fn one_of_something_is_told_in_the_singular() {
    let long = "x".repeat(17 << 10);
    let lines = [
        "[    1.000000] calling  a_init+0x0/0x10 @ 1",
        "[    1.000100] calling  b_init+0x0/0x10 @ 2",
        "[    1.200000] initcall b_init+0x0/0x10 returned 0 after 100 usecs",
        "[    1.200100] probe of early returned -19 after 5",
        " usecs",
        "[    1.300000] initcall a_init+0x0/0x10 returned -19 after 100 usecs",
        "[    1.300100] calling  open_init+0x0/0x10 @ 1",
        "[    1.400000] probe of dev returned -517 after 5 usecs",
        "probe of unstamped returned 0 after 7 usecs",
        "[    1.400100] platform foo: PM: calling platform_pm_resume @ 1, parent: platform",
        &format!("[    1.400200] {long}"),
        "Mar 04 10:00:01 host systemd[1]: hello",
        "[    2.000000] nvme 0000:01:00.0: shutdown",
        "[    1.900000] nvme 0000:02:00.0: shutdown",
        "nvme 0000:03:00.0: shutdown",
    ];
    let log = read(&lines.join("\n"));
    let told = [&log.notes[..], log.boot.notes(), log.shutdown.notes()].concat();
    let one = |text: &str, what: &str| {
        text.match_indices(what).any(|(at, _)| !text[..at].ends_with(|c: char| c.is_ascii_digit()))
    };
    for what in ["line", "message", "init call", "probe", "shutdown", "callback", "time"] {
        let many = format!("1 {what}s");
        assert!(!told.iter().any(|note| one(note, &many)), "{many}: {told:#?}");
        let single = told.iter().filter(|note| one(note, &format!("1 {what}"))).count();
        assert!(single > 0, "{what}: {told:#?}");
    }
}

#[test]
fn a_probe_that_one_of_several_calls_may_have_run_bounds_own_times_and_sums() {
    let log = read(
        "[    1.100000] calling  a_init+0x0/0x10 @ 1\n[    1.101000] calling  b_init+0x0/0x10 @ 2\n\
         [    1.150000] probe of dev returned 0 after 40000 usecs\n\
         [    1.160000] initcall b_init+0x0/0x10 returned 0 after 58999 usecs\n\
         [    1.200000] initcall a_init+0x0/0x10 returned 0 after 99999 usecs\n",
    );
    let probe = log.boot.span(log.boot.find("dev").unwrap());
    assert!(probe.may_be_nested && probe.nested_in.is_none());
    let own = log.boot.costs();
    let own = |name: &str| own.iter().find(|cost| cost.name == name).unwrap().own;
    for (name, inside, alone) in [("a_init", 59_999, 99_999), ("b_init", 18_999, 58_999)] {
        for time in [inside, alone] {
            assert!(own(name).allows(us(time)), "{name}: {:?}", own(name));
        }
    }
    assert_eq!(own("dev"), us(40_000));
    let sum = log.boot.serial_sum();
    assert!(sum.allows(us(158_998)) && sum.allows(us(198_998)), "{sum:?}");
    let again = corewise_timeline::json::read(&corewise_timeline::json::render(&log.boot)).unwrap();
    assert_eq!(again[0].serial_sum(), sum);
}

#[test]
fn a_clock_that_goes_back_in_a_boot_is_told() {
    let text = "[    1.200000] probe of a returned 0 after 100 usecs\n\
                [    0.700000] probe of b returned 0 after 100 usecs\n";
    let notes = read(text).boot.notes().to_vec();
    assert!(notes.iter().any(|n| n.starts_with("stamps go back 1 time: ")), "{notes:?}");
    // Two CPUs may print the wrong way round.
    let near = text.replace("0.700000", "1.199000");
    assert!(!read(&near).boot.notes().iter().any(|n| n.contains("go back")));
}

#[test]
fn no_number_that_needs_an_order_is_exact_where_the_clock_goes_back() {
    let before = "[  100.000000][    T1] calling  a_init+0x0/0x10 @ 1\n\
                  [  100.050000][    T1] initcall a_init+0x0/0x10 returned 0 after 49990 usecs\n";
    let after = "[   40.010000][    T1] calling  b_init+0x0/0x10 @ 1\n\
                 [   40.020000][    T1] probe of dev returned 0 after 9000 usecs\n\
                 [   40.050000][    T1] initcall b_init+0x0/0x10 returned 0 after 39990 usecs\n";
    let boot = read(&format!("{before}{after}")).boot;
    assert!(boot.clock_went_back() && !boot.is_exact());
    // The bars show a minute between the two; the duration of each is known.
    let both = [&boot, &json::read(&json::render(&boot)).unwrap()[0]];
    for t in both {
        let s = t.summary();
        for length in [s.makespan, s.critical_path, WhatIf::new().workers(2).predict(t).makespan] {
            assert!(length.to_string().starts_with('~') && length.allows(us(90_000)), "{length:?}");
        }
        assert!(s.serial_sum.allows(us(89_980)) && s.serial_sum.allows(us(98_980)));
        assert!(!s.serial_sum.is_exact() && t.slack().iter().all(|slack| !slack.is_exact()));
        assert_eq!(t.span(t.find("b_init").unwrap()).took(), us(39_990));
        assert!(t.costs().iter().all(|cost| !cost.own.is_exact()), "{:?}", t.costs());
        assert!(text::render(t, 100).contains("about 1 at once"), "{}", text::render(t, 100));
        assert!(text::analysis(t, 9, 100).contains("at once, as far as the stamps tell"));
    }
    assert!(boot.notes().iter().any(|n| n.contains("makespan and chains are estimates (`~`)")));
    // No span stands on both sides of the point.
    for text in [format!("[  100.000000] x\n{after}"), format!("{before}[   40.000000] x\n")] {
        let log = read(&text);
        assert!(log.boot.notes().iter().any(|n| n.starts_with("stamps go back 1 time")));
        assert!(log.boot.is_exact() && log.boot.makespan().is_exact(), "{text}");
    }
    // In a shutdown.
    let log = read(
        "[  100.000000] nvme a: shutdown\n[  101.000000] nvme b: shutdown\n\
         [  100.995000] nvme c: shutdown\n[  101.200000] reboot: Power down\n",
    );
    let makespan = log.shutdown.makespan();
    assert!(
        makespan.to_string().starts_with('~') && makespan.allows(us(1_500_000)),
        "{makespan:?}"
    );
}

#[test]
fn characters_without_width_that_are_taken_out_are_said() {
    let line = |name: &str| format!("[    1.000000] probe of {name} returned 0 after 800 usecs\n");
    let said = |text: &str| {
        let found = read(text).notes.into_iter().find(|note| note.contains("without width"));
        found.map(|note| note.split(':').next().unwrap_or_default().to_owned())
    };
    let of = |lines: &str| {
        let what = "characters without width (joiners, marks of direction) were taken out of";
        Some(format!("{what} {lines}"))
    };
    assert_eq!(said(&(line("a\u{202e}b") + &line("ab"))), of("1 line"));
    assert_eq!(said(&(line("a\u{200d}b") + &line("\u{2066}ab"))), of("2 lines"));
    // A byte order mark is no part of a name.
    assert_eq!(said(&format!("\u{feff}{}", line("ab"))), None);
    let json = r#"{"MESSAGE":"probe of a\u202eb returned 0 after 8 usecs","_SOURCE_MONOTONIC_TIMESTAMP":"5"}"#;
    assert_eq!(said(json), of("1 line"));
}

#[test]
fn what_follows_a_reboot_is_another_boot_though_its_first_lines_are_equal() {
    for down in ["", " nvme 0000:01:00.0: shutdown\n"] {
        let boot = |took: u64| {
            let at = |moment: u64| stamp(moment + took);
            let down = match down {
                "" => String::new(),
                down => format!("[{}]{down}", at(10_000_000)),
            };
            format!(
                "[    0.000000] Linux version 6.12.1 (x)\n\
                 [    0.500000] clocksource: Switched to clocksource tsc\n\
                 [    1.010000] probe of dev0 returned 0 after {took} usecs\n\
                 [    2.010000] probe of dev{took} returned 0 after 7000 usecs\n\
                 {down}[{}] reboot: Restarting system\n",
                at(10_090_000)
            )
        };
        let text = boot(8000) + &boot(7000) + &boot(6000);
        let mut reader = Reader::every_boot();
        reader.feed(text.as_bytes());
        let all = reader.finish_all();
        assert_eq!(all.len(), 3, "{down}");
        for (log, took) in all.iter().zip([8000, 7000, 6000]) {
            assert_eq!(log.boot.spans().len(), 2, "{down}{took}");
            assert_eq!(log.boot.spans()[0].took(), us(took), "{down}");
            assert_eq!(log.lines, 5 + u64::from(!down.is_empty()), "{down}");
            assert!(!log.notes.iter().any(|n| n.contains("there already")), "{:?}", log.notes);
        }
        // The same log twice is one boot.
        assert!(read(&(boot(8000) + &boot(8000))).boots.is_empty(), "{down}");
    }
}

fn page(t: &Timeline) -> String {
    html::render(&html::Page { title: "t", facts: &[], timelines: &[t] })
}

#[test]
fn a_what_if_of_a_boot_says_what_it_leaves_out_in_every_form() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let log = data.join("qemu-6.12-16nvme-serial-probe-and-reboot.log");
    let t = &read(&std::fs::read_to_string(log).expect("a stored log")).boot;
    for wanted in ["init functions keep their order", "a span with an unknown starter"] {
        assert!(text::analysis(t, 5, 500).contains(wanted), "{wanted}");
        assert!(json::analysis(t, 5)["caveats"].to_string().contains(wanted), "{wanted}");
        let page = page(t);
        let table = page.split(">What if<").nth(1).expect("the predictions");
        assert!(
            table.split("</div>\n</div>").next().expect("its end").contains(wanted),
            "{wanted}"
        );
        // The predicted run, too, in every form.
        let predicted = WhatIf::new().workers(2).predict(t).timeline;
        assert!(predicted.notes().iter().any(|note| note.contains(wanted)), "{wanted}");
        let repeated = WhatIf::new().predict(t).timeline;
        assert_eq!(repeated.notes(), t.notes(), "what is repeated leaves nothing out");
    }
}
