//! Real logs. Those of this project and free ones lie in `data/`. Logs of others are read if a
//! folder `shared` lies beside the repository, and skipped with a message otherwise.

use corewise_kernel_log::{Bound, EdgeSource, Form, KernelLog, Prefix, Reader};
use corewise_timeline::{Certainty, Driver, Length, Outcome, Span, SpanKind, Timeline};
use std::path::Path;
use std::time::Duration;

fn read(path: &Path) -> Option<KernelLog> {
    let bytes = std::fs::read(path).ok()?;
    let mut reader = Reader::new();
    // The log comes in odd pieces, as from a pipe.
    for piece in bytes.chunks(4093) {
        reader.feed(piece);
    }
    Some(reader.finish())
}

fn own(name: &str) -> KernelLog {
    // Logs that the benchmarks replay lie with them.
    let bench = name.starts_with("shutdown-azure");
    let folder = if bench { "../../lab/bench/data" } else { "tests/data" };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name);
    read(&path).unwrap_or_else(|| panic!("{} cannot be read", path.display()))
}

/// Returns a log that the repository does not carry.
#[allow(clippy::print_stderr, reason = "that is how a test says it")]
fn others(name: &str) -> Option<KernelLog> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/kernel-logs");
    let log = read(&Path::new(folder).join(name));
    if log.is_none() {
        eprintln!("skipped: {name}: there is none in a folder `shared` beside the repository");
    }
    log
}

fn count(log: &KernelLog, form: Form) -> u64 {
    log.forms.iter().find(|(f, _)| *f == form).map_or(0, |(_, n)| *n)
}

fn span<'a>(timeline: &'a Timeline, name: &str) -> &'a Span {
    let id = timeline.find(name).unwrap_or_else(|| panic!("there is no {name}"));
    timeline.span(id)
}

/// Returns the names of the spans around a span, innermost first.
fn around(timeline: &Timeline, name: &str) -> Vec<String> {
    let first = span(timeline, name).nested_in;
    let outer = std::iter::successors(first, |id| timeline.span(*id).nested_in);
    outer.map(|id| timeline.span(id).name.clone()).collect()
}

/// Returns the longest time that a span can have taken.
fn most(span: &Span) -> Duration {
    span.took().most().unwrap_or_else(|| panic!("{} has no bound", span.name))
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn the_serial_shutdown_of_sixteen_disks_adds_up_to_what_was_logged() {
    for name in [
        "qemu-6.12-16nvme-serial-probe-and-reboot.log",
        "qemu-6.12-16nvme-async-probe-and-reboot.log",
    ] {
        let log = own(name);
        assert_eq!(count(&log, Form::Shutdown), 103, "{name}");
        assert_eq!(log.suspicious_total, 0, "{name}: {:?}", log.suspicious);
        let disks: Vec<&Span> = log
            .shutdown
            .spans()
            .iter()
            .filter(|s| s.driver.as_ref().map(Driver::name) == Some("nvme"))
            .collect();
        assert_eq!(disks.len(), 16, "{name}");
        // They ran one after another without a gap: the sum is the time between the first and the
        // next event.
        let sum: Duration = disks.iter().map(|s| most(s)).sum();
        assert_eq!(sum, disks[15].end - disks[0].start, "{name}");
        assert!(disks.iter().all(|s| s.end_certainty == Certainty::UpperBound), "{name}");
        let together = log.shutdown.finish() - log.shutdown.origin();
        assert_eq!(log.shutdown.serial_sum(), Length::at_most(together), "{name}");
        // Only the end of the last one is unknown.
        let last = log.shutdown.spans().last().map(most);
        assert_eq!(log.shutdown.makespan().most(), Some(together), "{name}");
        assert_eq!(log.shutdown.makespan().least(), together - last.unwrap(), "{name}");
        assert_eq!(log.shutdown.summary().max_parallelism, 1, "{name}");
        assert!(disks.iter().all(|s| s.worker == "shutdown"), "{name}");
        // In parallel they would take as long as the longest.
        let longest = disks.iter().map(|s| most(s)).max().unwrap();
        assert!(ms(80) < longest && longest < ms(100), "{name}: {longest:?}");
    }
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    assert_eq!(log.shutdown.serial_sum(), Length::at_most(us(14_016_348 - 12_644_290)));
    assert_eq!(most(span(&log.shutdown, "0000:10:00.0")), us(12_732_964 - 12_663_017));
    // The device's own words belong to its shutdown.
    assert_eq!(most(span(&log.shutdown, "6:0:0:0")), us(12_647_375 - 12_644_610));
}

#[test]
fn disks_that_hang_on_bridges_are_shut_down_before_them() {
    let log = own("qemu-6.12-16nvme-serial-probe-and-reboot.log");
    assert_eq!(log.edges_from(), [EdgeSource::BridgeLine, EdgeSource::Name]);
    let before = |first: &str, then: &str| {
        log.shutdown.edges().iter().any(|e| {
            log.shutdown.span(e.before).name == first && log.shutdown.span(e.after).name == then
        })
    };
    assert!(before("0000:10:00.0", "0000:00:15.0"));
    assert!(before("0000:00:15.0:pcie001", "0000:00:15.0"));
    assert!(before("usb1-port4", "1-0:1.0") || log.shutdown.find("1-0:1.0").is_some());
    assert_eq!(log.shutdown.edges_not_kept().count(), 0);
    // There is one disk and its bridge, not sixteen.
    let path = log.shutdown.critical_path();
    assert!(path.length.most() < Some(ms(120)), "{:?}", path.length);
}

#[test]
fn probes_are_inside_the_init_call_and_the_probe_that_ran_them() {
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    assert_eq!(count(&log, Form::InitcallStart), 761);
    assert_eq!(count(&log, Form::InitcallEnd), 761);
    assert_eq!(count(&log, Form::ProbeEnd), 99);
    let boot = &log.boot;
    assert_eq!(around(boot, "0000:00:06.0:pcie001"), ["0000:00:06.0", "pcie_portdrv_init"]);
    assert_eq!(around(boot, "1-0:1.0"), ["usb1", "0000:00:03.0", "xhci_pci_init [xhci_pci]"]);
    assert_eq!(span(boot, "1-0:1.0").worker, "pid 189");
    assert_eq!(around(boot, "00:03:0"), ["00:03", "serial8250_init"]);
}

#[test]
fn asynchronous_probes_are_inside_nothing_and_beside_each_other() {
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    let disks: Vec<&Span> = log
        .boot
        .spans()
        .iter()
        .filter(|s| {
            s.driver.as_ref().map(Driver::name) == Some("nvme") && s.kind == SpanKind::Probe
        })
        .collect();
    assert_eq!(disks.len(), 16);
    assert!(disks.iter().all(|s| s.nested_in.is_none() && s.asynchronous));
    assert_eq!(log.boot.summary().max_parallelism, 16);
}

#[test]
fn each_device_has_its_driver() {
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    for (device, driver) in [
        ("0000:10:00.0", "nvme"),
        ("0000:00:06.0", "pcieport"),
        ("00:01", "i8042 aux"),
        ("6:0:0:0", "sd"),
        ("0000:00:1f.2", "ahci"),
        ("serio0", "atkbd"),
    ] {
        assert_eq!(log.drivers.get(device).map(Driver::name), Some(driver), "{device}");
    }
    // No driver has it: a bus stands in the driver's place.
    assert_eq!(log.drivers.get("pcspkr"), None);
}

#[test]
fn todays_probe_lines_name_device_and_driver() {
    let log = own("qemu-7.3-3nvme-probe-and-poweroff.log");
    assert_eq!((count(&log, Form::ProbeEndDriver), count(&log, Form::ProbeEnd)), (24, 0));
    assert_eq!(log.suspicious_total, 0, "{:?}", log.suspicious);
    for (device, driver, took) in [
        ("0000:00:04.0", "nvme", us(756_405)),
        ("00:00", "i8042 kbd", us(416)),
        ("PNP0B00:00", "rtc_cmos", us(89_882)),
        ("00:04", "serial", us(19_906)),
    ] {
        let probe = span(&log.boot, device);
        assert_eq!(
            (probe.driver.as_ref().map(Driver::name), probe.took().known()),
            (Some(driver), Some(took))
        );
        assert_eq!(log.drivers[device].name(), driver);
        assert_eq!(
            span(&log.shutdown, device).driver.as_ref().map(Driver::name),
            Some(driver),
            "{device}"
        );
    }
    let probed = log.boot.spans().iter().filter(|s| s.kind == SpanKind::Probe);
    assert!(probed.clone().all(|s| s.driver.is_some() && !s.name.contains(" with driver ")));
    // A driver that was tried and declined is the driver of the probe, not of the device.
    for (device, driver) in [("serio1", "atkbd"), ("PNP0103:00", "hpet_acpi")] {
        assert_eq!(
            span(&log.boot, device).driver.as_ref().map(Driver::name),
            Some(driver),
            "{device}"
        );
        assert_eq!(span(&log.shutdown, device).driver, None, "{device}");
        assert!(!log.drivers.contains_key(device), "{device}");
    }
    // The three disks were probed at once, the other devices in their init calls.
    let beside: Vec<&str> = probed.filter(|s| s.asynchronous).map(|s| s.name.as_str()).collect();
    assert_eq!(beside, ["0000:00:05.0", "0000:00:04.0", "0000:00:06.0"]);
    assert_eq!(around(&log.boot, "00:00"), ["i8042_init"]);
    assert_eq!(log.shutdown.spans().len(), 25);
}

#[test]
fn pci_fixups_are_no_init_calls() {
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    assert_eq!((count(&log, Form::FixupStart), count(&log, Form::FixupEnd)), (12, 12));
    let calls = log.boot.spans().iter().filter(|s| s.kind == SpanKind::Initcall);
    assert_eq!(calls.count(), 761);
    let name = "quirk_usb_early_handoff (0000:00:03.0)";
    let quirk = span(&log.boot, name);
    assert_eq!(quirk.kind, SpanKind::Task);
    // [    3.158075] calling, [    3.178845] took 20110 usecs: those of 1024 ns, by the stamps.
    assert!(quirk.took().allows(us(20_592)) && quirk.took().least() == us(20_110));
    assert_eq!(around(&log.boot, name), ["pci_apply_final_quirks"]);
}

#[test]
fn durations_in_whole_ticks_are_replaced_by_stamps_and_said() {
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    // [    1.280255] initcall kcompactd_init+0x0/0x90 returned 0 after 4000 usecs
    let coarse = span(&log.boot, "kcompactd_init");
    assert!(most(coarse) < ms(4), "{:?}", coarse.took());
    let notes = log.boot.notes();
    assert!(notes.iter().any(|n| n.contains("whole ticks of 4.00 ms")), "{notes:?}");
}

#[test]
fn init_calls_that_found_no_device_did_not_fail() {
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    let call = span(&log.boot, "unpopulated_init");
    assert_eq!(call.outcome, Outcome::Skipped("ENODEV: no such device".into()));
    let summary = log.boot.summary();
    assert_eq!((summary.skipped, summary.failed), (47, 5));
    let said = "43 init calls and 4 probes found no device that is theirs";
    assert!(log.boot.notes().iter().any(|n| n.starts_with(said)), "{:?}", log.boot.notes());
}

#[test]
fn a_serial_console_has_cr_and_lf_and_what_users_print() {
    let log = own("qemu-6.12-16nvme-async-probe-and-reboot.log");
    let prefix = |p| log.prefixes.iter().find(|(q, _)| *q == p).map(|(_, n)| *n);
    assert_eq!(prefix(Prefix::CrLf), Some(log.lines));
    assert!(prefix(Prefix::Printk) < Some(log.lines));
    assert_eq!(log.kernel.as_deref(), Some("6.12.117+deb12-amd64"));
    assert!(log.command_line.as_deref().unwrap().contains("driver_async_probe=nvme,virtio_blk"));
    assert!(log.machine.as_deref().unwrap().starts_with("QEMU Standard PC"));
}

#[test]
fn probe_costs_say_where_they_ran_and_not_when() {
    for (name, cpus, first) in [
        ("probe-epyc-before.txt", [0, 0, 0], 53_372_612),
        ("probe-epyc-after.txt", [5, 1, 2], 34_765_890),
    ] {
        let log = own(name);
        assert!(log.boot.spans().is_empty(), "{name}: they have no place in time");
        let probes = log.boot.unplaced();
        let mut found: Vec<_> = probes.iter().map(|s| s.cpu.unwrap()).collect();
        found.sort_unstable();
        let mut cpus = cpus;
        cpus.sort_unstable();
        assert_eq!(found, cpus, "{name}");
        let longest = probes.iter().max_by_key(|s| s.took.known()).unwrap();
        assert_eq!(longest.took, Duration::from_nanos(first), "{name}");
        assert_eq!(longest.name, "0000:01:00.0");
        assert!(longest.worker.starts_with("kworker/"), "{}", longest.worker);
        let notes = log.boot.notes();
        assert!(notes.iter().any(|n| n.contains("have no stamp")), "{notes:?}");
    }
}

#[test]
fn the_published_shutdowns_add_up_to_the_published_times() {
    for (name, total, nvme_to_hv_pci) in [
        ("shutdown-azure-16vcpu-serial-6.11.txt", 320_471, None),
        // 172.609825 to 172.961360, and 164.7 ms between the first nvme and the next hv_pci line.
        ("shutdown-azure-16vcpu-async-v9.txt", 351_535, Some(164_652)),
    ] {
        let log = own(name);
        assert_eq!(count(&log, Form::Shutdown), 39);
        assert_eq!(log.shutdown.serial_sum(), Length::at_most(us(total)), "{name}");
        if let Some(gap) = nvme_to_hv_pci {
            let start = |name| span(&log.shutdown, name).start;
            let hv = start("ba152dae-1610-4c67-b925-81ac4902e4ce");
            assert_eq!(hv - start("c2b7:00:00.0"), us(gap));
        }
        assert_eq!(span(&log.shutdown, "Fixed MDIO bus.0").driver, None);
        let notes = log.shutdown.notes();
        assert!(notes.iter().any(|n| n.contains("asynchronously")), "{notes:?}");
    }
}

#[test]
fn most_probes_of_an_arm_laptop_were_put_off_and_are_grouped_by_device() {
    let Some(log) = others("x13s-aarch64-6.13.1-initcall-debug.dmesg") else { return };
    assert_eq!(count(&log, Form::ProbeEnd), 807);
    assert_eq!((count(&log, Form::InitcallEnd), log.lines), (1332, 4492));
    assert_eq!(log.deferrals.iter().map(|d| d.attempts).sum::<usize>(), 534);
    assert_eq!(log.deferrals.iter().map(|d| d.by_driver).sum::<usize>(), 187);
    let pinctrl = log.deferrals.iter().find(|d| d.device == "33c0000.pinctrl").unwrap();
    assert_eq!((pinctrl.attempts, pinctrl.by_driver), (82, 80));
    assert_eq!(pinctrl.bound, Bound::At(us(13_358_063)));
    assert!(log.deferrals.is_sorted_by(|a, b| a.total.told() >= b.total.told()));
    // 1 340 lines have `calling`: 8 of them are PCI fixups.
    assert_eq!((count(&log, Form::InitcallStart), count(&log, Form::FixupStart)), (1332, 8));
    assert_eq!(around(&log.boot, "usb6"), ["xhci-hcd.6.auto", "xhci_plat_init [xhci_plat_hcd]"]);
    assert_eq!(log.suspicious_total, 0, "{:?}", log.suspicious);
}

#[test]
fn a_patched_kernel_names_drivers_and_the_deferred_probe_call_is_split_by_device() {
    let Some(log) = others("beagleplay-patched-probe-format.log") else { return };
    assert_eq!(count(&log, Form::ProbeEndPatched), 180);
    assert_eq!(log.drivers["gpio-0:00"].name(), "RTL8211F-VD Gigabit Ethernet");
    let split = log.deferred_probe.unwrap();
    assert_eq!(split.total, us(394_128));
    assert_eq!(split.shares[0].device, "mdio");
    assert!(split.rest.told() < Some(ms(20)), "{:?}", split.rest);
    let first = log.boot.spans().iter().find(|s| s.name == "leds").unwrap();
    assert!(matches!(first.outcome, Outcome::Deferred(_)));
}

#[test]
fn caller_ids_and_a_wrapped_first_line_of_a_mail() {
    let Some(log) = others("kexec-shutdown-arm64-6.6-printk-caller.log") else { return };
    assert_eq!(log.shutdown.spans().len(), 121);
    let first = &log.shutdown.spans()[0];
    assert_eq!((first.name.as_str(), most(first)), ("regulatory.0", us(1010)));
    assert!(log.shutdown.spans().iter().all(|s| s.worker == "pid 8227"));
    assert_eq!(
        span(&log.shutdown, "ARMH0011:00").driver.as_ref().map(Driver::name),
        Some("sbsa-uart")
    );
    let longest = log.shutdown.spans().iter().max_by_key(|s| s.took().told()).unwrap();
    assert_eq!(longest.name, "0000:02:00.0");
    assert!(longest.took().told() > Some(ms(320)), "{:?}", longest.took());
}

#[test]
fn nested_probes_with_three_modules_loading_at_once() {
    let Some(log) = others("nested-probes-6.8-rc3.log") else { return };
    let call = "intel_lpss_pci_driver_init [intel_lpss_pci]";
    assert_eq!(around(&log.boot, "i2c_designware.0"), ["0000:00:15.0", call]);
    assert_eq!(around(&log.boot, "idma64.1"), ["0000:00:15.1", call]);
    assert_eq!(log.drivers["0000:00:15.0"].name(), "intel-lpss");
    assert!(log.notes.iter().any(|n| n.contains("crct10dif_intel_mod_init")), "{:?}", log.notes);
}

#[test]
fn two_ports_that_were_put_off_and_bound_later() {
    let Some(log) = others("qcom-pcie-deferred.log") else { return };
    let found: Vec<_> =
        log.deferrals.iter().map(|d| (d.device.as_str(), d.total.known(), d.bound)).collect();
    let told = |device, total, bound| (device, Some(us(total)), Bound::At(us(bound)));
    assert_eq!(found, [told("1c10000.pcie", 12, 1_345_910), told("1c00000.pcie", 8, 616_452)]);
}
