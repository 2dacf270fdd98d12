//! A number is exact only where two lines, or a printed value, prove it at the resolution of the
//! clock at that moment.

use crate::common::{read, stamp, us};
use corewise_kernel_log::KernelLog;
use corewise_timeline::analysis::WhatIf;
use corewise_timeline::{Length, text};
use std::fmt::Write as _;
use std::time::Duration;

/// Returns init calls, each with the time between its lines and its printed duration, 100 µs apart.
fn calls(head: &str, calls: &[(u64, u64)]) -> String {
    let (mut text, mut at) = (head.to_owned(), 1_000_000);
    for (i, (gap, printed)) in calls.iter().enumerate() {
        writeln!(text, "[{}] calling  f{i}_init+0x0/0x40 @ 1", stamp(at)).expect("into a text");
        at += gap;
        let end = stamp(at);
        writeln!(text, "[{end}] initcall f{i}_init+0x0/0x40 returned 0 after {printed} usecs")
            .expect("into a text");
        at += 100;
    }
    text
}

fn took(log: &KernelLog, name: &str) -> Length {
    let id = log.boot.find(name).unwrap_or_else(|| panic!("there is no {name}"));
    log.boot.span(id).took()
}

fn notes(log: &KernelLog) -> String {
    [log.boot.notes(), log.shutdown.notes()].concat().join("\n")
}

const NEW: &str = "[    0.000000] Linux version 6.12.0 (x)\n";
const SWITCHED: &str = "[    9.000000] clocksource: Switched to clocksource tsc-early\n";

#[test]
fn whole_ticks_are_known_at_each_rate_and_in_both_units() {
    for (hz, nanos, written) in [
        (100, 10_000_000, "10.0 ms"),
        (250, 4_000_000, "4.00 ms"),
        (300, 3_333_333, "3.33 ms"),
        (1000, 1_000_000, "1.00 ms"),
    ] {
        for (version, unit) in [("5.2.0", 1024), ("6.6.0", 1000)] {
            let how = format!("{hz} Hz, {version}");
            let ticks = |n: u64| n * nanos / unit;
            let gaps = [(700, 0), (485, ticks(1)), (2 * nanos / 1000 + 90, ticks(2)), (337, 0)];
            let log = read(&calls(&format!("Linux version {version} (x)\n"), &gaps));
            for (i, (gap, _)) in gaps.into_iter().enumerate() {
                let told = took(&log, &format!("f{i}_init"));
                assert_eq!(
                    (told.most(), told.told()),
                    (Some(us(gap)), Some(us(gap))),
                    "{how}, {i}"
                );
                assert!(told.least() <= us(nanos / 1000 + 1), "{how}, {i}: {told:?}");
            }
            let said = format!("the first 4 init calls are in whole ticks of {written}");
            assert!(notes(&log).contains(&said), "{how}: {}", notes(&log));
            assert!(log.boot.serial_sum().to_string().starts_with('≤'), "{how}");
            assert_eq!(notes(&log).contains("1.024"), unit == 1024, "{how}: {}", notes(&log));
        }
    }
}

#[test]
fn ticks_that_contradict_the_lines_bound_nothing() {
    // Interrupts were off, and the ticks of that time came within the second call.
    let text = calls("", &[(4100, 4000), (1831, 8000), (4000, 8000), (100, 0)])
        + "[    2.000000] pci 0000:00:01.0: calling  q+0x0/0x1 @ 1\n\
           [    2.001500] pci 0000:00:01.0: q+0x0/0x1 took 7812 usecs\n";
    let log = read(&(text + SWITCHED));
    for (name, gap) in [("f1_init", 1831), ("f2_init", 4000), ("q (0000:00:01.0)", 1500)] {
        assert_eq!(took(&log, name), Length::at_most(us(gap)), "{name}");
    }
}

#[test]
fn zeros_are_of_the_ticking_clock_until_the_kernel_changes_it() {
    let ticking = [(3000, 4000), (200, 0), (300, 0), (250, 0)];
    // Cut before the kernel changed its clock, or before a duration shows that it has.
    let cut = read(&calls("", &ticking));
    let fine = read(&calls(NEW, &[&ticking[..], &[(512, 500)]].concat()));
    for log in [&cut, &fine] {
        for (name, gap) in [("f1_init", 200), ("f2_init", 300), ("f3_init", 250)] {
            assert_eq!(took(log, name), Length::at_most(us(gap)));
        }
    }
    assert_eq!(took(&fine, "f4_init"), us(500));
    // With the line that says so, a zero behind it is a printed value.
    let (before, after) = (calls(NEW, &ticking), calls(SWITCHED, &[(130, 0)]));
    let log = read(&(before + &after.replace("f0_", "late_").replace("[    1.", "[    9.")));
    assert_eq!(took(&log, "f3_init"), Length::at_most(us(250)));
    assert_eq!(took(&log, "late_init"), us(0));
    // Zeros alone show it too, if that line follows them.
    let zeros = calls("", &[(200, 0), (300, 0), (250, 0)]);
    let log = read(&(zeros.clone() + SWITCHED));
    assert_eq!(took(&log, "f1_init"), Length::at_most(us(300)));
    assert!(notes(&log).contains("of unknown length"), "{}", notes(&log));
    assert!(!notes(&read(&zeros)).contains("whole ticks"));
}

#[test]
fn the_call_during_which_the_clock_changes_is_bounded_by_its_lines() {
    let text = calls("", &[(3000, 4000), (200, 0), (300, 0)])
        + "[    2.000000] calling  clocksource_done_booting+0x0/0x50 @ 1\n\
           [    2.000500] clocksource: Switched to clocksource tsc-early\n\
           [    2.000600] initcall clocksource_done_booting+0x0/0x50 returned 0 after 3271 usecs\n";
    let told = took(&read(&text), "clocksource_done_booting");
    assert_eq!((told.told(), told.most()), (Some(us(600)), Some(us(600))), "{told:?}");
}

#[test]
fn what_begins_before_the_clock_ceases_to_tick_and_ends_after_it_is_off_by_up_to_a_tick() {
    let ticking = [(3000, 4000), (200, 0), (300, 0)];
    let text = calls(NEW, &ticking)
        + "[    2.000000] calling  other_init+0x0/0x50 @ 2\n\
           [    2.490000] calling  clocksource_done_booting+0x0/0x50 @ 1\n\
           [    2.500000] clocksource: Switched to clocksource tsc-early\n\
           [    2.500100] initcall clocksource_done_booting+0x0/0x50 returned 0 after 10033 usecs\n\
           [    2.504000] calling  a_init+0x0/0x50 @ 1\n\
           [    2.505000] initcall a_init+0x0/0x50 returned 0 after 990 usecs\n\
           [    2.510000] probe of across returned 0 after 40700 usecs\n\
           [    2.510200] probe of behind returned 0 after 6100 usecs\n\
           [    2.520000] initcall other_init+0x0/0x50 returned 0 after 519000 usecs\n";
    let log = read(&text);
    let off = Length::between(us(36_700), us(44_700));
    assert_eq!((took(&log, "across"), off.to_string()), (off, "~40.7 ms".into()));
    assert_eq!(took(&log, "behind"), us(6100));
    assert_eq!(took(&log, "a_init"), us(990));
    let told = took(&log, "other_init");
    assert_eq!((told.least(), told.most()), (us(515_000), Some(us(520_000))));
    let said = "1 init call and 1 probe may have begun before the kernel took a clock that doesn't";
    assert!(notes(&log).contains(said), "{}", notes(&log));
    // Nothing shows the length of a tick.
    let probe = "[    2.500000] clocksource: Switched to clocksource tsc-early\n\
                 [    2.510000] probe of across returned 0 after 40700 usecs\n";
    let told = took(&read(&format!("{NEW}{probe}")), "across");
    assert_eq!((told.least(), told.most()), (us(30_700), Some(us(50_700))));
    // It ticked again for a while.
    let again = calls(NEW, &ticking)
        + SWITCHED
        + "[   10.000000] clocksource: Switched to clocksource jiffies\n\
           [   11.000000] clocksource: Switched to clocksource hpet\n\
           [   11.010000] probe of across returned 0 after 40700 usecs\n\
           [   11.060000] probe of behind returned 0 after 40700 usecs\n";
    let log = read(&again);
    assert_eq!((took(&log, "across"), took(&log, "behind").known()), (off, Some(us(40_700))));
}

#[test]
fn kernels_that_count_each_init_call_by_itself_are_known_by_their_version() {
    let lines = "[    3.000000] calling  1_async_port_probe+0x0/0x50 @ 5\n\
                 [    3.100000] calling  2_async_port_probe+0x0/0x50 @ 6\n\
                 [    3.308000] initcall 1_async_port_probe+0x0/0x50 returned 0 after 300000 usecs\n\
                 [    3.400000] initcall 2_async_port_probe+0x0/0x50 returned 0 after 299990 usecs\n";
    for (head, own) in
        [("", false), ("Linux version 6.12.0\n", false), ("Linux version 2.6.28\n", true)]
    {
        let log = read(&format!("{head}{lines}"));
        assert_eq!(took(&log, "1_async_port_probe") == us(300_000), own, "{head}");
        assert_eq!(notes(&log).contains("4.17"), !own, "{head}{}", notes(&log));
    }
}

#[test]
fn a_clock_that_stands_proves_nothing() {
    // All four lines have one stamp: the second call had ended by the next one that differs.
    let text = calls("", &[(3000, 4000), (200, 0)])
        + "[    2.000000] calling  a_init+0x0/0x10 @ 1\n\
           [    2.000000] initcall a_init+0x0/0x10 returned 0 after 0 usecs\n\
           [    2.000000] calling  b_init+0x0/0x10 @ 1\n\
           [    2.000000] initcall b_init+0x0/0x10 returned 0 after 0 usecs\n\
           [    2.000430] something else\n";
    let log = read(&text);
    for name in ["a_init", "b_init"] {
        assert_eq!(took(&log, name), Length::at_most(us(430)), "{name}");
    }
    // A printed duration by a clock that doesn't stand is right.
    let text = "[    2.954789] calling  a_init+0x0/0x10 @ 1\n\
                [    2.954789] initcall a_init+0x0/0x10 returned 0 after 172 usecs\n\
                [    2.955430] something else\n";
    assert_eq!(took(&read(&format!("Linux version 6.12.0 (x)\n{text}")), "a_init"), us(172));
}

#[test]
fn a_call_without_its_first_line_took_at_least_what_it_says() {
    let lines = "[   11.811900] calling  b_init+0x0/0xff8 [b] @ 7813\n\
                 [   11.812100] initcall b_init+0x0/0xff8 [b] returned 0 after 157 usecs\n\
                 [   13.284615] initcall a_init+0x0/0xff8 [a] returned 0 after 1472658 usecs\n";
    for (head, least) in
        [("", true), ("Linux version 6.13.1\n", true), ("Linux version 4.9.0\n", false)]
    {
        let log = read(&format!("{head}{lines}"));
        let told = took(&log, "a_init [a]");
        assert_eq!(told.to_string().starts_with('≥'), least, "{head}{told:?}");
        assert!(told.allows(us(1_472_658)), "{told:?}");
        assert_eq!(told.allows(us(5_312_000)), least, "{told:?}");
        assert_eq!(notes(&log).contains("1 init call has no first line"), least, "{}", notes(&log));
        // Numbers that are computed from it carry the sign too.
        if least {
            assert!(text::render(&log.boot, 100).contains("about 2 at once"));
            assert!(
                text::analysis(&log.boot, 9, 100).contains("as far as starts and ends are known")
            );
            for number in
                [log.boot.makespan(), log.boot.serial_sum(), log.boot.critical_path().length]
            {
                assert!(number.to_string().starts_with('≥'), "{number:?}");
            }
        }
    }
    // By a clock that doesn't count from the boot there is no upper bound.
    let log = read(&lines.replace("[   1", "[  +1"));
    assert_eq!(log.boot.unplaced()[0].took, Length::at_least(us(1_472_658)));
}

#[test]
fn a_duration_that_is_longer_than_the_kernel_had_run_is_no_exact_one() {
    for line in [
        "probe of x returned 0 after 99999999 usecs",
        "pci 0000:00:01.0: q+0x0/0x1 took 99999999 usecs",
    ] {
        let log = read(&format!("[    0.000000] Linux version 6.12.0\n[    2.600000] {line}\n"));
        let told = log.boot.spans()[0].took();
        assert_eq!(told.to_string(), "≥2.60 s", "{line}");
        assert!(notes(&log).contains("1 duration is longer than the kernel had run"), "{line}");
        // Neither are numbers that are computed from it.
        let summary = log.boot.summary();
        for length in [summary.makespan, summary.serial_sum, summary.critical_path] {
            assert_eq!(length.to_string(), "≥2.60 s", "{line}");
        }
    }
    // `dmesg -H` counts from its first line, which may be any.
    let log = read("[  +0.000001] x\n[  +2.600000] probe of x returned 0 after 9999999 usecs\n");
    assert!(!notes(&log).contains("longer than"), "{}", notes(&log));
}

#[test]
fn one_thread_works_no_longer_than_it_ran() {
    // By their addresses or drivers, neither device registers the other one.
    for [inner, outer] in [
        ["0000:03:00.0", "0000:00:1c.0"],
        ["0000:00:1d.0", "0000:00:1c.0"],
        ["a with driver d", "b with driver d"],
    ] {
        for bridge in ["", "[    0.600000][    T1] pci 0000:00:1c.0: PCI bridge to [bus 03]\n"] {
            let log = read(&format!(
                "{bridge}[    1.053000][   T50] probe of {inner} returned 0 after 2500 usecs\n\
                 [    1.054000][   T50] probe of {outer} returned 0 after 3900 usecs\n"
            ));
            assert_eq!(log.boot.serial_sum(), us(3900), "{inner}");
            let own: Vec<_> = log.boot.costs().iter().map(|cost| cost.own).collect();
            assert_eq!(own, [us(2500), us(1400)], "{inner}");
            assert_eq!(log.boot.summary().max_parallelism, 1, "{inner}");
        }
    }
}

#[test]
fn callers_show_that_devices_are_shut_down_at_once() {
    let log = read(
        "[  100.000000][ T100] nvme a: shutdown\n[  100.000010][ T101] nvme b: shutdown\n\
         [  100.000020][ T102] tpm c: shutdown_pre\n[  100.000030][ T100] nvme a: its own words\n\
         [  101.000000][ T100] pcieport d: shutdown\n[  101.500000][ T102] tpm c: shutdown\n\
         [  103.000000][ T101] pcieport e: shutdown\n[  103.500000][    T1] reboot: Power down\n",
    );
    assert!(log.boots.is_empty(), "{:?}", log.boots);
    let told: Vec<_> = log.shutdown.spans().iter().map(|s| (s.name.as_str(), s.took())).collect();
    let ms = |n| Length::at_most(Duration::from_millis(n));
    let to_the_end = Length::at_most(us(3_499_980));
    assert_eq!(
        told,
        [
            ("a", ms(1000)),
            ("b", Length::at_most(us(2_999_990))),
            ("c", to_the_end),
            ("d", ms(2500)),
            ("e", ms(500))
        ]
    );
    assert_eq!(log.shutdown.summary().max_parallelism, 3);
    assert!(notes(&log).contains("the next line of its thread"), "{}", notes(&log));
}

#[test]
fn a_chain_tells_no_more_than_the_whole_of_which_it_is_a_part() {
    // The first call may have begun a tick earlier, and the clock stood while the second one ran.
    let text = "[    0.967866] initcall a_init+0x0/0x80 returned 0 after 0 usecs\n\
                [    0.967866] calling  b_init+0x0/0x240 @ 1\n\
                [    0.967866] initcall b_init+0x0/0x240 returned 0 after 0 usecs\n\
                [    0.972420] calling  c_init+0x0/0x30 @ 1\n\
                [    1.176710] initcall c_init+0x0/0x30 returned 0 after 4000 usecs\n\
                [    1.250000] calling  d_init+0x0/0x30 @ 1\n\
                [    1.254144] initcall d_init+0x0/0x30 returned 0 after 4000 usecs\n";
    let boot = read(&format!("{NEW}{text}")).boot;
    let whole = boot.makespan();
    assert_eq!((whole.to_string(), whole.most()), ("~286 ms".into(), Some(us(290_278))));
    let anew = WhatIf::new().all_async().predict(&boot);
    for part in [boot.critical_path().length, anew.makespan, anew.bound] {
        assert_eq!((part.to_string(), part.most()), ("~286 ms".into(), whole.most()), "{part:?}");
    }
    let told = "what if everything were asynchronous: ~286 ms instead of ~286 ms";
    assert!(text::analysis(&boot, 9, 100).contains(told), "{}", text::analysis(&boot, 9, 100));
}

#[test]
fn a_share_of_what_nobody_knows_is_no_number() {
    let log = read("[  100.000000] nvme a: shutdown\n[  101.000000] pcieport b: shutdown\n");
    let text = text::analysis(&log.shutdown, 9, 100);
    let row = |name: &str| {
        let line = text.lines().find(|l| l.trim_start().starts_with(name)).expect("a row");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row("a ").contains("≤1.00 s ≤100.0 %"), "{text}");
    assert!(row("b ").contains("? ? "), "{text}");
    assert!(text.contains("as far as starts and ends are known"), "{text}");
    // Nothing begins behind it, so one ran at once.
    assert!(text::render(&log.shutdown, 100).contains("at most 1 at once"));
}

#[test]
fn the_forms_of_2_6_26_are_read() {
    let log = read(
        "[    2.210000] calling  acpi_button_init+0x0/0x51\n\
         [    2.237177] initcall acpi_button_init+0x0/0x51 returned 0 after 24 msecs\n\
         [    2.240000] calling  0xc0123456\n\
         [    2.250000] initcall 0xc0123456 returned 0 after 10 msecs\n\
         [    2.260000] initcall clk_init+0x0/0x16c [clk] returned with error code -19 \n",
    );
    assert_eq!(log.suspicious_total, 0, "{:?}", log.suspicious);
    let told = took(&log, "acpi_button_init");
    assert!(told.allows(us(24_000)) && told.allows(us(24_999)) && !told.allows(us(28_000)));
    assert_eq!(took(&log, "0xc0123456").least(), us(10_000));
}

#[test]
fn a_clock_that_ticks_is_known_by_probes_too() {
    let probes = |values: &[u64]| {
        let line = |(i, us): (usize, &u64)| {
            let at = stamp(200_000 + 4000 * i as u64);
            format!("[{at}] probe of d{i} returned 0 after {us} usecs\n")
        };
        values.iter().enumerate().map(line).collect::<String>()
    };
    let between = |least, most| Length::between(us(least), us(most));
    let told = |log: &KernelLog, name: &str, expected: Length| {
        let took = took(log, name);
        assert_eq!((took.least(), took.most()), (expected.least(), expected.most()), "{name}");
    };
    // Up to the line that says that the clock ticks no more, one value is enough.
    let later = "[    9.100000] probe of late returned 0 after 8000 usecs\n";
    let log = read(&format!("{NEW}{}{SWITCHED}{later}", probes(&[4000, 0, 8000])));
    told(&log, "d0", between(0, 8000));
    told(&log, "d1", between(0, 4000));
    told(&log, "d2", between(4000, 12_000));
    assert_eq!(took(&log, "late"), us(8000));
    assert!(!log.boot.serial_sum().is_exact());
    let said = "the durations of 3 probes are in whole ticks of 4.00 ms: a probe took up to a tick";
    assert!(notes(&log).contains(said), "{}", notes(&log));
    let log = read(&format!("{NEW}{}{SWITCHED}", probes(&[0])));
    told(&log, "d0", between(0, 10_000));
    // A value that is no whole tick shows that it didn't tick.
    let log = read(&format!("{NEW}{}{SWITCHED}", probes(&[4000, 12])));
    assert!(log.boot.is_exact() && !notes(&log).contains("ticks"), "{}", notes(&log));
    // Without that line three in a row show it, up to the first that is none.
    let log = read(&probes(&[3333, 6666, 10_000, 8123, 0]));
    let ticks = |n: u64| Duration::from_nanos(n * 3_333_333);
    told(&log, "d1", Length::between(ticks(1), ticks(3)));
    assert_eq!((took(&log, "d3"), took(&log, "d4")), (us(8123).into(), us(0).into()));
    assert!(read(&probes(&[3333, 6666, 17])).boot.is_exact());
}

#[test]
fn a_kernel_that_goes_back_to_the_ticking_clock_prints_whole_ticks_again() {
    let text = "[    2.000000] clocksource: Switched to clocksource tsc\n\
                [    2.100000] probe of fine returned 0 after 17 usecs\n\
                [    2.200000] clocksource: Switched to clocksource jiffies\n\
                [    2.300000] probe of a returned 0 after 4000 usecs\n\
                [    2.400000] calling  b_init+0x0/0x10 @ 1\n\
                [    2.404100] initcall b_init+0x0/0x10 returned 0 after 8000 usecs\n\
                [    2.500000] probe of c returned 0 after 0 usecs\n\
                [    2.600000] clocksource: Switched to clocksource hpet\n\
                [    2.700000] probe of d returned 0 after 4000 usecs\n";
    let log = read(&format!("{NEW}{text}"));
    assert_eq!((took(&log, "fine"), took(&log, "d")), (us(17).into(), us(4000).into()));
    let bounds = |name| (took(&log, name).least(), took(&log, name).most());
    assert_eq!(bounds("a"), (us(0), Some(us(8000))));
    assert_eq!(bounds("b_init"), (us(4000), Some(us(4100))));
    assert_eq!(bounds("c"), (us(0), Some(us(4000))));
    assert!(notes(&log).contains("the kernel took a clock that ticks"), "{}", notes(&log));
    // A kernel may name a clock that ticks first.
    let text = "[    1.200000] clocksource: Switched to clocksource jiffies\n\
                [    1.300000] probe of a returned 0 after 4000 usecs\n\
                [    1.400000] probe of b returned 0 after 0 usecs\n\
                [    1.500000] clocksource: Switched to clocksource tsc\n\
                [    1.600000] probe of c returned 0 after 4000 usecs\n";
    let log = read(&format!("{NEW}{text}"));
    assert_eq!((took(&log, "a").most(), took(&log, "b").most()), (Some(us(8000)), Some(us(4000))));
    assert_eq!(took(&log, "c"), us(4000));
}
