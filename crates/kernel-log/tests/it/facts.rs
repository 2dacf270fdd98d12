//! Facts from lines: probes and their ends, edges, shutdowns, and the certainty of moments.

use corewise_kernel_log::{Bound, DeviceGraph, EdgeSource, Form};
use corewise_timeline::{Certainty, Driver, EdgeKind, Length, Outcome};
use std::fmt::Write as _;

use crate::common::{plain, read, shifted_log, us};

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
    // The consumer goes down first, then the disk behind its supplier.
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
    // The place follows from its duration, not from its line.
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
    let shares: Vec<_> =
        split.shares.iter().map(|share| (&*share.device, share.times, share.took)).collect();
    let share = |device, times, took| (device, times, us(took).into());
    assert_eq!(shares, [share("mmc", 2, 200_000), share("usb", 1, 170_000)]);
    assert_eq!(split.rest, us(499_990 - 370_000));
    assert_eq!(log.boot.span(split.span).name, "deferred_probe_initcall");
}
