//! One small log behind every prefix, with every trap, and cut, interleaved and wrapped: small
//! imitations, each as a program writes it.

use corewise_kernel_log::{Bound, DeviceGraph, EdgeSource, Form, KernelLog, Prefix, Reader};
use corewise_timeline::{Certainty, Driver, EdgeKind, Length, Outcome};
use std::fmt::Write as _;

use crate::common::{check, plain, read, stamp, us, written};

#[test]
fn behind_every_prefix_the_log_is_the_same() {
    type Way = (&'static str, Prefix, fn(u64, &str) -> String);
    let ways: [Way; 15] = [
        ("dmesg", Prefix::Printk, |at, t| format!("[{}] {t}\n", stamp(at))),
        ("a serial console", Prefix::CrLf, |at, t| format!("[{}] {t}\r\n", stamp(at))),
        ("printk.caller", Prefix::CallerId, |at, t| format!("[{}][  T207] {t}\n", stamp(at))),
        ("interrupts", Prefix::CallerId, |at, t| format!("[{}][    C3] {t}\n", stamp(at))),
        ("a raw console", Prefix::Level, |at, t| format!("<6>[{}] {t}\n", stamp(at))),
        ("dmesg -x", Prefix::Facility, |at, t| format!("kern  :info  : [{}] {t}\n", stamp(at))),
        ("/dev/kmsg", Prefix::Kmsg, |at, t| {
            format!("6,{at},{at},-;{t}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
        }),
        ("journalctl -o short-monotonic", Prefix::JournalMonotonic, |at, t| {
            format!("[{}] kepler kernel: {t}\n", stamp(at))
        }),
        ("a file of syslog", Prefix::Journal, |at, t| {
            format!("Mar  6 13:18:23 kepler kernel: [{}] {t}\n", stamp(at))
        }),
        ("journalctl -o json", Prefix::JournalJson, |at, t| {
            format!(
                "{{\"_TRANSPORT\":\"kernel\",\"__REALTIME_TIMESTAMP\":\"1\",\
                 \"_SOURCE_MONOTONIC_TIMESTAMP\":\"{at}\",\"MESSAGE\":\"{t}\"}}\n"
            )
        }),
        ("journalctl -o json-pretty", Prefix::JournalJson, |at, t| {
            format!(
                "{{\n\t\"MESSAGE\" : \"{t}\",\n\t\"_TRANSPORT\" : \"kernel\",\n\
                 \t\"_SOURCE_MONOTONIC_TIMESTAMP\" : \"{at}\"\n}}\n"
            )
        }),
        ("dmesg --json", Prefix::DmesgJson, |at, t| {
            let stamp = stamp(at);
            format!("      }},{{\n\"pri\": 6,\n\"time\": {stamp},\n\"msg\": \"{t}\"\n      }}\n")
        }),
        ("a mail", Prefix::MailQuote, |at, t| format!("> > [{}] {t}\n", stamp(at))),
        ("a mail without brackets", Prefix::Bare, |at, t| {
            format!("{}.{:06}\t{t}\n", at / 1_000_000, at % 1_000_000)
        }),
        ("dmesg --color", Prefix::Printk, |at, t| {
            format!("\x1b[32m[{}] \x1b[0m\x1b[33m{t}\x1b[0m\n", stamp(at))
        }),
    ];
    for (how, prefix, line) in ways {
        let log = read(&written(line));
        check(&log, how);
        assert!(log.prefixes.iter().any(|(p, _)| *p == prefix), "{how}: {:?}", log.prefixes);
    }
}

#[test]
fn with_a_clock_on_the_wall_the_times_count_from_the_first_line() {
    let iso = written(|at, t| {
        let s = at / 1_000_000;
        format!("2026-03-04T13:21:{s:02},{:06}+00:00 {t}\n", at % 1_000_000)
    });
    let log = read(&iso);
    let probe = log.boot.span(log.boot.find("0000:01:00.0").unwrap());
    assert_eq!((probe.start, probe.end), (us(1_000_100), us(1_090_000)));
    assert_eq!(log.shutdown.spans()[1].took(), Length::at_most(us(80_000)));
}

#[test]
fn a_log_in_whole_seconds_gives_order_and_durations_and_says_so() {
    type Way = (&'static str, fn(u64, &str) -> String);
    let ways: [Way; 3] = [
        ("journalctl", |at, t| format!("mar 06 13:18:{:02} kepler kernel: {t}\n", at / 1_000_000)),
        ("dmesg -T", |at, t| format!("[Wed Mar  4 13:21:{:02} 2026] {t}\n", at / 1_000_000)),
        ("blanked stamps", |at, t| format!("[{}.***] {t}\n", 1125 + at / 1_000_000)),
    ];
    for (how, line) in ways {
        let log = read(&written(line));
        assert!(log.boot.spans().is_empty() && log.shutdown.spans().is_empty(), "{how}");
        let took: Vec<_> =
            log.boot.unplaced().iter().map(|u| (u.name.as_str(), u.took.known())).collect();
        let told = [("nvme_init [nvme]", 90_050), ("0000:01:00.0", 89_900), ("leds", 9)];
        assert_eq!(took, told.map(|(name, took)| (name, Some(us(took)))), "{how}");
        let devices: Vec<_> =
            log.shutdown.unplaced().iter().map(|u| (u.name.as_str(), u.took)).collect();
        let down = ["leds", "0000:01:00.0", "Fixed MDIO bus.0"];
        assert_eq!(devices, down.map(|name| (name, Length::UNKNOWN)), "{how}");
        assert_eq!((log.deferrals[0].first, log.deferrals[0].bound), (None, Bound::Never), "{how}");
        for t in [&log.boot, &log.shutdown] {
            let said = t.notes().iter().any(|n| n.contains("only the order is known"));
            assert!(said, "{how}: {:?}", t.notes());
        }
    }
}

#[test]
fn any_pieces_of_any_length_give_the_same() {
    let text = plain().replace('\n', "\r\n");
    let whole = read(&text);
    check(&whole, "whole");
    for size in [1, 2, 3, 7, 64, 1000] {
        let mut reader = Reader::new();
        for piece in text.as_bytes().chunks(size) {
            reader.feed(piece);
        }
        assert_eq!(reader.finish(), whole, "pieces of {size}");
    }
}

#[test]
fn any_excerpt_is_read() {
    let text = plain();
    let lines: Vec<&str> = text.lines().collect();
    for from in 0..=lines.len() {
        for to in from..=lines.len() {
            let log = read(&lines[from..to].join("\n"));
            assert_eq!(log.lines, (to - from) as u64, "{from}..{to}");
            assert_eq!(log.suspicious_total, 0, "{from}..{to}: {:?}", log.suspicious);
        }
    }
    // The end alone of an init call: when it began is computed.
    let log = read(lines[4]);
    assert_eq!(log.boot.spans()[0].start, us(2_000_050));
    assert_eq!(log.boot.spans()[0].start_certainty, Certainty::Inferred);
    // The last shutdown has nothing behind it.
    let log = read(lines[7]);
    assert_eq!(log.shutdown.spans()[0].end_certainty, Certainty::Assumed);
    let notes = log.shutdown.notes();
    assert!(notes.iter().any(|n| n.contains("no line follows the last")), "{notes:?}");
}

#[test]
fn a_truncated_line_is_shown_with_its_number() {
    let text = plain().replace("after 89900 usecs", "aft");
    let log = read(&text);
    let found: Vec<_> = log.suspicious.iter().map(|s| (s.line, s.why)).collect();
    assert_eq!(found, [(4, "begins like the end of a probe")]);
    assert!(log.suspicious[0].text.starts_with("probe of 0000:01:00.0 returned 0 aft"));
    assert_eq!(log.suspicious_total, 1);
    assert_eq!(log.boot.find("0000:01:00.0"), None);
}

#[test]
fn suspicious_lines_are_counted_beyond_those_that_are_kept() {
    let text = "[    1.000000] probe of x returned\n".repeat(1500);
    let log = read(&text);
    assert_eq!(log.suspicious_total, 1500);
    assert_eq!(log.suspicious.len(), KernelLog::SUSPICIOUS_KEPT);
    assert_eq!(log.suspicious[999].line, 1000);
}

#[test]
fn two_writers_of_one_console_do_not_wait_for_each_others_lines() {
    // The kernel speaks while a program prints, and another CPU while the first one does.
    let text = plain()
        .replace("[    2.090000] probe", "login: [    2.090000] probe")
        .replace("after 90050 usecs\n", "after 90050 usecs");
    check(&read(&text), "interleaved");
}

#[test]
fn lines_that_a_mail_program_wrapped_are_put_together() {
    let text = plain()
        .replace("platform Fixed MDIO bus.0: shutdown", "platform\nFixed MDIO bus.0: shutdown")
        .replace("returned 0 after 89900 usecs", "returned 0\nafter 89900 usecs");
    let log = read(&text);
    check(&log, "wrapped");
    assert!(log.notes.iter().any(|n| n.starts_with("2 messages were put together")));
    let quoted: String = text.lines().map(|line| format!("> {line}\n")).collect();
    check(&read(&quoted), "wrapped and quoted");
}

#[test]
fn a_cut_in_the_middle_says_nothing_wrong() {
    let text = plain().replace("[    2.100000]", "[...]\n[    2.100000]");
    check(&read(&text), "cut");
}

#[test]
fn lines_of_other_programs_are_passed_over_and_counted() {
    let text = written(|at, t| {
        format!(
            "2026-03-06T13:18:{:02}.{:06}+0100 kepler kernel: {t}\n\
             2026-03-06T13:18:{:02}.{:06}+0100 kepler systemd[1]: nvme 0000:09:00.0: shutdown\n",
            at / 1_000_000,
            at % 1_000_000,
            at / 1_000_000,
            at % 1_000_000
        )
    });
    let log = read(&text);
    assert_eq!(log.shutdown.spans().len(), 3);
    assert!(log.notes.iter().any(|n| n.starts_with("12 lines of other programs")));
}

#[test]
fn a_log_of_two_boots_is_two_logs() {
    // No boot is another one's equal to the microsecond.
    let other = written(|at, text| format!("[{}] {text}\n", stamp(at + 3)));
    let text = [other.as_str(), plain().as_str()].concat();
    let mut reader = Reader::every_boot();
    reader.feed(text.as_bytes());
    let all = reader.finish_all();
    assert_eq!(all.len(), 2);
    check(&all[1], "one of two");
    let log = read(&text);
    check(&log, "the last of two");
    assert_eq!(log.notes[0], "the log holds 2 boots; this is the last of them");
    let mut reader = Reader::new();
    reader.feed(text.as_bytes());
    assert_eq!(reader.finish_all().len(), 1, "only the last was kept");
    // Cut before the line that names the kernel: the clock goes back.
    let cut = |text: &str| -> String {
        let cut: String = text.lines().skip(1).map(|line| format!("{line}\n")).collect();
        cut.replace("[    2.", "[    0.")
    };
    let mut reader = Reader::every_boot();
    reader.feed([cut(&other), cut(&plain())].concat().as_bytes());
    assert_eq!(reader.finish_all().len(), 2);
    // A boot without a line that counts hides nothing.
    let log = read(&[plain().as_str(), "[    0.000000] Linux version 7\n[    0.1] x\n"].concat());
    check(&log, "before a boot without debugging");
    let said = "an earlier boot is shown: the last one (from line 13 on, of Linux 7) has no line of an init \
                call, a probe or a shutdown";
    assert_eq!(log.notes[0], said);
    let between = "[    0.000000] Linux version 7\n[    0.1] x\n";
    let log = read(&[other.as_str(), between, plain().as_str()].concat());
    check(&log, "behind a boot without debugging");
    assert_eq!(log.notes[0], "the log holds 2 boots; this is the last of them");
    assert!(log.notes.iter().any(|n| n.starts_with("1 boot without a line")), "{:?}", log.notes);
}

#[test]
fn older_kernels_print_one_for_a_device_that_was_bound() {
    let mut text = String::new();
    for i in 0..10 {
        let result = i32::from(i % 5 != 0);
        writeln!(text, "[    1.00000{i}] probe of d{i} returned {result} after 7 usecs").unwrap();
    }
    let log = read(&text);
    let ok = log.boot.spans().iter().filter(|s| s.outcome.is_ok()).count();
    assert_eq!(ok, 8);
    let notes = log.boot.notes();
    assert!(notes.iter().any(|n| n.contains("prints 1 for a probe that bound")));
    // On a newer one it is the driver's EPERM.
    let text = text.replace("returned 1", "returned 0").replacen("returned 0", "returned 1", 1);
    let log = read(&text);
    assert_eq!(log.boot.spans()[0].outcome, Outcome::Failed("EPERM".into()));
}

#[test]
fn both_signs_of_a_deferral_are_one() {
    let log = read(
        "[    1.000000] probe of leds returned -517 after 9 usecs\n\
         [    2.000000] probe of leds returned 517 after 100 usecs\n\
         [    3.000000] probe of leds returned 0 after 50 usecs\n\
         [    4.000000] probe of a returned 19 after 5 usecs\n\
         [    5.000000] probe of b returned 6 after 5 usecs\n",
    );
    let leds = &log.deferrals[0];
    assert_eq!((leds.attempts, leds.by_driver, leds.total), (2, 1, us(109).into()));
    assert_eq!((leds.first, leds.last), (Some(us(1_000_000)), Some(us(2_000_000))));
    assert_eq!(leds.bound, Bound::At(us(3_000_000)));
    let outcomes: Vec<_> = log.boot.spans().iter().map(|s| s.outcome.as_str()).collect();
    assert_eq!(outcomes, ["deferred", "deferred", "ok", "skipped", "skipped"]);
}

#[test]
fn a_driver_that_was_tried_is_the_probes_and_only_one_that_is_bound_the_devices() {
    let log = read(
        "[    1.000000] calling  foo_driver_init+0x0/0x10 [foo] @ 1\n\
         [    1.100000] probe of a returned -517 after 5 usecs\n\
         [    1.200000] probe of b returned 5 after 5 usecs\n\
         [    1.300000] probe of c returned 0 after 5 usecs\n\
         [    1.400000] initcall foo_driver_init+0x0/0x10 [foo] returned 0 after 399990 usecs\n\
         [    1.500000] bar d: some words\n[    1.600000] probe of d returned 19 after 5 usecs\n\
         [    2.000000] platform a: shutdown\n[    2.100000] platform b: shutdown\n\
         [    2.200000] platform c: shutdown\n[    2.300000] platform d: shutdown\n",
    );
    let driver = |t: &corewise_timeline::Timeline, name: &str| {
        t.span(t.find(name).expect("a span")).driver.clone()
    };
    for (device, tried, bound) in
        [("a", "foo", false), ("b", "foo", false), ("c", "foo", true), ("d", "bar", false)]
    {
        let of = driver(&log.boot, device);
        assert_eq!(of.as_ref().map(Driver::name), Some(tried), "{device}");
        assert_eq!(driver(&log.shutdown, device).is_some(), bound, "{device}");
        assert_eq!(log.drivers.contains_key(device), bound, "{device}");
    }
    assert_eq!(log.deferrals[0].driver.as_ref().map(Driver::name), Some("foo"));
}

#[test]
fn the_same_function_on_two_threads_is_paired_by_thread_or_by_time() {
    let log = read(
        "[    1.000000] calling  init_module+0x0/0x10 [a] @ 100\n\
         [    1.000010] calling  init_module+0x0/0x10 [a] @ 101\n\
         [    1.500010] initcall init_module+0x0/0x10 [a] returned 0 after 499995 usecs\n\
         [    1.900000] initcall init_module+0x0/0x10 [a] returned 0 after 899995 usecs\n",
    );
    let workers: Vec<_> = log.boot.spans().iter().map(|s| (s.took(), s.worker.as_str())).collect();
    assert!(workers.contains(&(us(499_995).into(), "pid 101")), "{workers:?}");
    assert!(workers.contains(&(us(899_995).into(), "pid 100")), "{workers:?}");
}

#[test]
fn edges_come_from_links_deferrals_parents_bridges_and_names() {
    let log = read(
        "[    0.100000] pci 0000:00:06.0: PCI bridge to [bus 01]\n\
         [    0.200000] platform mmc: Linked as a consumer to gpio\n\
         [    0.200001] platform mmc: Linked as a sync state only consumer to clk\n\
         [    0.300000] platform leds: error -EPROBE_DEFER: wait for supplier /soc@0/gpio@a0\n\
         [    1.000000] probe of gpio returned 0 after 5 usecs\n\
         [    1.000001] probe of clk returned 0 after 5 usecs\n\
         [    1.100000] probe of a0.gpio returned 0 after 5 usecs\n\
         [    2.000000] probe of mmc returned 0 after 5 usecs\n\
         [    2.100000] probe of leds returned 0 after 5 usecs\n\
         [    2.200000] probe of 0000:00:06.0 returned 0 after 5 usecs\n\
         [    2.300000] probe of 0000:00:06.0:pcie001 returned 0 after 5 usecs\n\
         [    2.400000] probe of 0000:01:00.0 returned 0 after 5 usecs\n\
         [    2.450000] probe of i2c-1 returned 0 after 5 usecs\n\
         [    2.500000] probe of 1-0050 returned 0 after 5 usecs\n\
         [    9.000000] at24 1-0050: PM: calling f+0x0/0x30 [at24] @ 92, parent: i2c-1\n",
    );
    let name = |id| log.boot.span(id).name.as_str();
    let mut edges: Vec<_> =
        log.boot.edges().iter().map(|e| (name(e.before), name(e.after), e.kind)).collect();
    edges.sort_unstable_by_key(|e| (e.0, e.1));
    assert_eq!(
        edges,
        [
            ("0000:00:06.0", "0000:00:06.0:pcie001", EdgeKind::Parent),
            ("0000:00:06.0", "0000:01:00.0", EdgeKind::Parent),
            ("a0.gpio", "leds", EdgeKind::Supplier),
            ("gpio", "mmc", EdgeKind::Supplier),
            ("i2c-1", "1-0050", EdgeKind::Parent),
        ]
    );
    assert_eq!(log.edges_from().len(), 5);
    assert!(log.boot.edges().iter().all(|e| log.boot.is_kept(e)));
}

#[test]
fn a_graph_from_elsewhere_joins_devices_across_those_without_spans() {
    let mut log = read(&plain());
    let text = "leds: bridge\nbridge ^ 0000:01:00.0\n\"Fixed MDIO bus.0\" = mdio-fixed\n";
    let graph = DeviceGraph::from_text(text).unwrap();
    log.apply(&graph);
    assert!(log.edges_from().contains(&EdgeSource::File));
    let name = |id| log.shutdown.span(id).name.as_str();
    let shutdown: Vec<_> =
        log.shutdown.edges().iter().map(|e| (name(e.before), name(e.after))).collect();
    // The consumer goes down first, and the disk that its supplier hangs on after it.
    assert_eq!(shutdown, [("leds", "0000:01:00.0")]);
    assert_eq!(log.drivers["Fixed MDIO bus.0"].name(), "mdio-fixed");
    let before = log.boot.edges().len();
    log.apply(&graph);
    assert_eq!(log.boot.edges().len(), before, "what is known is not added again");
}

#[test]
fn dynamic_debugging_gives_starts_and_asynchronous_probes() {
    let log = read(
        "[    1.000000] pci 0000:01:00.0: probing driver nvme asynchronously\n\
         [    1.000100] pci 0000:01:00.0: bus: 'pci': really_probe: probing driver nvme with device\n\
         [    1.050000] probe of 0000:01:00.0 returned 0 after 49880 usecs\n\
         [    1.050010] nvme 0000:01:00.0: driver: 'nvme': driver_bound: bound to device\n",
    );
    let probe = &log.boot.spans()[0];
    // Not where its line stands, but by what it took.
    assert_eq!((probe.start, probe.start_certainty), (us(1_000_120), Certainty::Inferred));
    assert!(probe.asynchronous);
    assert_eq!(probe.driver.as_ref().map(Driver::name), Some("nvme"));
}

#[test]
fn the_cost_inside_a_probe_and_its_end_are_one_probe() {
    let log = read(
        "[    1.050000] nvme 0000:01:00.0: CPU: 5, COMM: kworker/u1025:5, probe cost: 49000000 ns\n\
         [    1.050010] probe of 0000:01:00.0 returned 0 after 49880 usecs\n",
    );
    assert_eq!(log.boot.spans().len(), 1);
    let probe = &log.boot.spans()[0];
    assert_eq!((probe.cpu, probe.worker.as_str()), (Some(5), "kworker/u1025:5"));
    assert_eq!(probe.took(), us(49_880));
}

#[test]
fn a_shutdown_that_was_started_and_waited_for_is_as_long_as_that() {
    let log = read(
        "[    1.000000] nvme 0000:01:00.0: async_shutdown_start\n\
         [    1.000100] nvme 0000:02:00.0: async_shutdown_start\n\
         [    1.000200] platform pcspkr: shutdown\n\
         [    1.090000] nvme 0000:01:00.0: async_shutdown_end\n\
         [    1.095000] nvme 0000:02:00.0: async_shutdown_end\n\
         [    1.096000] reboot: Restarting system\n",
    );
    let took: Vec<_> = log.shutdown.spans().iter().map(|s| (s.took(), s.asynchronous)).collect();
    assert_eq!(took[..2], [90_000, 94_900].map(|gap| (Length::at_most(us(gap)), true)));
    assert_eq!(log.shutdown.summary().max_parallelism, 3);
}

#[test]
fn the_class_and_the_bus_shut_a_device_down_once() {
    let log = read(
        "[    1.000000] tpm tpm0: shutdown_pre\n[    1.010000] tpm tpm0: shutdown\n\
         [    1.020000] reboot: Power down\n",
    );
    let spans: Vec<_> = log.shutdown.spans().iter().map(|s| (s.name.as_str(), s.took())).collect();
    assert_eq!(spans, [("tpm0", Length::at_most(us(20_000)))]);
}

#[test]
fn a_start_is_measured_only_where_a_line_stands_at_it() {
    for (printed, certainty) in [(49_880, Certainty::Inferred), (50_000, Certainty::Measured)] {
        let log = read(&format!(
            "[    1.000000] calling  a+0x0/0x10 @ 1\n\
             [    1.050000] initcall a+0x0/0x10 returned 0 after {printed} usecs\n"
        ));
        assert_eq!(log.boot.spans()[0].start_certainty, certainty, "{printed}");
    }
}

#[test]
fn the_makespan_is_no_surer_than_its_spans() {
    let log = read(
        "[    0.500000] calling  a_init+0x0/0x10 @ 1\n\
         [    0.504000] initcall a_init+0x0/0x10 returned 0 after 2000 usecs\n",
    );
    let s = log.boot.summary();
    assert_eq!(s.makespan, log.boot.spans()[0].took());
    assert_eq!(s.makespan.to_string(), "~2.00 ms");
    // The chain is part of it.
    let calls: Vec<_> = (1..4).map(|i| (i * 10_000, i * 10_000 + 10_000, 9100)).collect();
    let s = shifted_log(&calls, "").boot.summary();
    assert!(!s.makespan.is_exact() && s.critical_path.most() <= s.makespan.most(), "{s:?}");
}

#[test]
fn a_shutdown_between_two_equal_stamps_took_up_to_their_resolution() {
    let log = read(
        "[    1.000000] nvme a: shutdown\n[    1.000000] nvme b: shutdown\n\
         [    0.999000] nvme c: shutdown\n[    1.000500] reboot: Power down\n",
    );
    let spans = log.shutdown.spans();
    let took: Vec<_> = spans.iter().map(|s| s.took().to_string()).collect();
    assert_eq!(took, ["≤1.00 µs", "?", "≤1.50 ms"]);
    assert_eq!(spans[1].end_certainty, Certainty::Assumed);
    let notes = log.shutdown.notes();
    assert!(notes.iter().any(|n| n.starts_with("stamps go back")), "{notes:?}");
    assert!(!notes.iter().any(|n| n.contains("no line follows")), "{notes:?}");
    assert_eq!(log.shutdown.makespan().most(), None);
}

#[test]
fn stamps_of_milliseconds_bound_by_a_millisecond_and_decide_nothing_within_one() {
    let lines = [
        ("500", "calling  a_init+0x0/0x10 @ 1"),
        ("502", "probe of devA returned 0 after 500 usecs"),
        ("502", "initcall a_init+0x0/0x10 returned 0 after 1190 usecs"),
        ("502", "probe of devB returned 0 after 100 usecs"),
    ];
    for before in ["[    0.{}] ", "01-01 00:00:00.{}  root     0     0 I         : "] {
        let text = lines.map(|(at, line)| before.replace("{}", at) + line + "\n").concat();
        let log = read(&text);
        assert_eq!(log.boot.spans().len(), 3);
        assert!(log.boot.spans().iter().all(|s| s.nested_in.is_none() && !s.asynchronous));
        let makespan = log.boot.makespan();
        assert!(makespan.allows(us(2190)) && !makespan.is_exact(), "{makespan:?}");
        assert!(log.boot.notes().iter().any(|n| n.contains("cut off to 1.00 ms")));
    }
    let log = read(
        "[   10.000] nvme a: shutdown\n[   10.001] nvme b: shutdown\n\
                    [   10.001] nvme c: shutdown\n[   10.003] reboot: Restarting system\n",
    );
    let took: Vec<_> = log.shutdown.spans().iter().map(|s| s.took().most()).collect();
    assert_eq!(took, [2000, 1000, 3000].map(|n| Some(us(n))));
}

#[test]
fn missing_facts_are_noted() {
    let log = read("hello\nworld\n");
    assert!(log.boot.is_empty() && log.shutdown.is_empty());
    assert!(log.notes[0].contains("initcall_debug"), "{:?}", log.notes);
    assert_eq!(read("").notes, ["the log is empty"]);
    let log =
        read("[    1.000000] calling  a+0x0/0x10 @ 1\n[    2.000000] calling  b+0x0/0x1 @ 2\n");
    assert!(log.notes.iter().any(|n| n.starts_with("2 init calls began and did not end")));
    assert_eq!(log.forms, [(Form::InitcallStart, 2)]);
}

fn shifted(log: &KernelLog) -> bool {
    log.boot.notes().iter().any(|n| n.contains("1.024 µs: they were corrected"))
}

#[test]
fn durations_of_init_calls_in_units_of_1024_nanoseconds_are_corrected() {
    let mut text = String::new();
    let took = [102_777, 103_801, 204_825, 305_849];
    for (i, took) in took.into_iter().enumerate() {
        let begun = 1_000_000 * (i as u64 + 1);
        let printed = (took * 1000) >> 10;
        let (from, to) = (stamp(begun), stamp(begun + took + 3));
        writeln!(text, "[{from}] calling  a{i}+0x0/0x10 @ 1").unwrap();
        writeln!(text, "[{to}] initcall a{i}+0x0/0x10 returned 0 after {printed} usecs").unwrap();
    }
    let log = read(&text);
    for (span, took) in log.boot.spans().iter().zip(took) {
        // Less than the unit was cut off.
        let told = span.took().known();
        assert!(Some(us(took - 2)) < told && told <= Some(us(took)), "{told:?}");
    }
    assert!(shifted(&log), "{:?}", log.boot.notes());
    assert!(!shifted(&read(&plain())));
}

#[test]
fn the_call_that_waits_for_deferred_probes_is_split_by_device() {
    let log = read(
        "[    0.900000] probe of mmc returned -517 after 5 usecs\n\
         [    0.900010] probe of usb returned -517 after 5 usecs\n\
         [    1.000000] calling  deferred_probe_initcall+0x0/0xc8 @ 1\n\
         [    1.100000] probe of mmc returned 517 after 50000 usecs\n\
         [    1.300000] probe of mmc returned 0 after 150000 usecs\n\
         [    1.480000] probe of usb returned 0 after 170000 usecs\n\
         [    1.500000] initcall deferred_probe_initcall+0x0/0xc8 returned 0 after 499990 usecs\n\
         [    1.600000] probe of late returned 0 after 10 usecs\n",
    );
    let split = log.deferred_probe.unwrap();
    assert_eq!(split.total, us(499_990));
    let share = |device: &str, times, took| (device.into(), times, us(took).into());
    assert_eq!(split.shares, [share("mmc", 2, 200_000), share("usb", 1, 170_000)]);
    assert_eq!(split.rest, us(499_990 - 370_000));
    assert_eq!(log.boot.span(split.span).name, "deferred_probe_initcall");
}

#[test]
fn a_tick_is_told_from_a_round_number() {
    let calls = |printed: [u64; 4]| {
        let mut text = String::new();
        for (i, printed) in printed.into_iter().enumerate() {
            writeln!(text, "[    1.0{i}0000] calling  a{i}+0x0/0x10 @ 1").unwrap();
            writeln!(
                text,
                "[    1.0{i}2500] initcall a{i}+0x0/0x10 returned 0 after {printed} usecs"
            )
            .unwrap();
        }
        read(&text)
    };
    let took = |log: &KernelLog| -> Vec<_> { log.boot.spans().iter().map(|s| s.took()).collect() };
    // The clock ticks, and then no more.
    let log = calls([0, 4000, 0, 2481]);
    let exact = |n| Length::exact(us(n));
    let bounded = Length::at_most(us(2500));
    // A zero may be of either time.
    assert_eq!(took(&log), [bounded, bounded, bounded, exact(2481)]);
    assert!(log.boot.notes().iter().any(|n| n.contains("whole ticks of 4.00 ms")));
    // Fine from the beginning.
    let log = calls([2481, 2000, 2490, 2491]);
    assert_eq!(took(&log)[1], us(2000));
    assert!(!log.boot.notes().iter().any(|n| n.contains("whole ticks")), "{:?}", log.boot.notes());
}

/// Other lines; then init calls by their first line's stamp, their last one's, and what was printed.
fn shifted_log(calls: &[(u64, u64, u64)], others: &str) -> KernelLog {
    let mut text = others.to_owned();
    for (i, (from, to, printed)) in calls.iter().enumerate() {
        writeln!(text, "[{}] calling  a{i}+0x0/0x10 @ 1", stamp(*from)).expect("into a text");
        let to = stamp(*to);
        writeln!(text, "[{to}] initcall a{i}+0x0/0x10 returned 0 after {printed} usecs")
            .expect("into a text");
    }
    read(&text)
}

#[test]
fn one_pair_of_lines_shows_the_unit_of_durations_of_an_old_kernel() {
    let old = "Linux version 5.10.0 (x)\n";
    // 102 777 µs, shifted: 100 368.
    let log = shifted_log(&[(1_000_000, 1_102_780, 100_368)], old);
    assert!(shifted(&log), "{:?}", log.boot.notes());
    let took = log.boot.spans()[0].took().known();
    assert!(Some(us(102_770)) < took && took <= Some(us(102_780)), "{took:?}");
    // As long as it says.
    let log = shifted_log(&[(1_000_000, 1_100_400, 100_368)], old);
    assert!(!shifted(&log) && log.boot.spans()[0].took() == us(100_368));
    assert!(log.boot.notes().is_empty(), "{:?}", log.boot.notes());
    // A slow console shows nothing, and neither does a short call.
    for (to, printed) in [(1_120_000, 100_368), (1_000_412, 400)] {
        let log = shifted_log(&[(1_000_000, to, printed)], old);
        let took = log.boot.spans()[0].took();
        assert!(took.allows(us(printed)) && took.allows(us(printed * 128 / 125)), "{took:?}");
        let notes = log.boot.notes();
        assert!(notes.iter().any(|n| n.contains("2.4 % longer")), "{notes:?}");
    }
    // One that fits among many that don't is chance.
    let many: Vec<_> = (1..5).map(|i| (i * 1_000_000, i * 1_000_000 + 50_131, 50_111)).collect();
    let log = shifted_log(&[&many[..], &[(9_000_000, 9_102_780, 100_368)]].concat(), old);
    assert!(!shifted(&log));
}

#[test]
fn a_gap_that_fits_by_chance_corrects_nothing() {
    // The console took 200 µs for each line: 2.41 % of the first call.
    let calls = [(500_000, 508_500, 8300), (510_000, 511_400, 1200)];
    let log = shifted_log(&calls, "Linux version 6.12.0 (x)\n");
    let took = |log: &KernelLog| [0, 1].map(|i| log.boot.spans()[i].took());
    assert_eq!(took(&log), [8300, 1200].map(|n| Length::exact(us(n))));
    assert!(log.boot.notes().is_empty(), "{:?}", log.boot.notes());
    // Without a version nobody knows.
    for version in ["", "Linux version unknown (x)\n"] {
        let log = shifted_log(&calls, version);
        for (took, printed) in took(&log).into_iter().zip([8300, 1200]) {
            assert!(!took.is_exact() && took.allows(us(printed)), "{took:?}");
            assert!(took.allows(us(printed * 128 / 125)), "{took:?}");
        }
        assert!(!shifted(&log));
    }
    for (version, is) in [("5.17.15-x", true), ("5.18.0", false), ("5.18-rc1", false)] {
        assert_eq!(shifted(&shifted_log(&calls, &format!("Linux version {version} (x)\n"))), is);
    }
    // One delay is no share of two calls, of which one takes thrice as long.
    let one = (1_000_000, 1_102_780, 100_368);
    assert!(!shifted(&shifted_log(&[one, (2_000_000, 2_102_780, 100_368)], "")));
    assert!(shifted(&shifted_log(&[one, (2_000_000, 2_307_202, 300_000)], "")));
}

#[test]
fn a_probe_that_was_longer_than_its_init_call_shows_the_unit_of_durations() {
    let lines = "calling  nvme_init+0x0/0xff0 [nvme] @ 207\n\
                 probe of 0000:01:00.0 returned 0 after 102000 usecs\n\
                 initcall nvme_init+0x0/0xff0 [nvme] returned 0 after 100368 usecs\n";
    let old = "Linux version 5.10.0 (x)\n";
    let log = read(&format!("{old}{lines}"));
    assert!(shifted(&log), "{:?}", log.boot.notes());
    let call = &log.boot.unplaced()[0];
    assert!(call.took.known() > Some(us(102_770)), "{:?}", call.took);
    // Without the first line too: an excerpt may begin anywhere.
    let (_, rest) = lines.split_once('\n').unwrap();
    assert!(shifted(&read(&format!("{old}{rest}"))));
    // By chance it ran beside the call; twice that is no chance.
    assert!(!shifted(&read(lines)) && shifted(&read(&lines.replace("nvme", "a").repeat(2))));
    // A newer kernel has no such unit, and one that was longer by more ran beside the call.
    assert!(!shifted(&read(&format!("Linux version 6.12.0 (x)\n{lines}"))));
    assert!(!shifted(&read(&format!("{old}{}", lines.replace("102000", "182000")))));
}

#[test]
fn an_init_call_during_which_another_began_took_longer_than_it_says() {
    // All threads' init calls share one clock in the kernel: the second one has set it.
    let text = "[    8.082267] calling  ath11k_pci_init+0x0/0x68 [ath11k_pci] @ 2933\n\
                [    9.094780] calling  ip_set_init+0x0/0xff8 [ip_set] @ 4821\n\
                [    9.094800] initcall ip_set_init+0x0/0xff8 [ip_set] returned 0 after 15 usecs\n\
                [    9.104746] initcall ath11k_pci_init+0x0/0x68 [ath11k_pci] returned 0 after 9949 usecs\n";
    let log = read(text);
    let call = log.boot.span(log.boot.find("ath11k_pci_init [ath11k_pci]").unwrap());
    assert_eq!((call.start, call.end), (us(8_082_267), us(9_104_746)));
    assert_eq!(call.took(), Length::between(us(9949), us(1_022_479)));
    let other = log.boot.span(log.boot.find("ip_set_init [ip_set]").unwrap());
    assert_eq!(other.took().least(), us(15));
    let notes = log.boot.notes();
    assert!(
        notes.iter().any(|n| n.starts_with("1 init call took longer than it says")),
        "{notes:?}"
    );
    // Without stamps there is no upper bound.
    let bare: String = text.lines().map(|line| format!("{}\n", &line[15..])).collect();
    let log = read(&bare);
    let took =
        |name: &str| log.boot.unplaced().iter().find(|u| u.name.starts_with(name)).unwrap().took;
    assert_eq!(took("ath11k_pci_init"), Length::at_least(us(9949)));
    assert_eq!(took("ip_set_init").least(), us(15));
    assert!(took("ip_set_init").most().is_some());
}
