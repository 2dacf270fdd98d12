//! Tests of each line form, and of texts that look like one.

use super::*;
use crate::form::Form;
use std::time::Duration;

fn us(n: u64) -> PrintedDuration {
    PrintedDuration { time: Duration::from_micros(n), unit: Duration::from_micros(1) }
}

const NVME: &str = "0000:01:00.0";

fn function<'a>(name: &'a str, module: Option<&'a str>) -> Function<'a> {
    Function { name, module }
}

fn calling<'a>(function: Function<'a>, pid: Option<u32>) -> Message<'a> {
    Message::InitcallStart { function, pid }
}

fn returned<'a>(function: Function<'a>, result: i64, took: PrintedDuration) -> Message<'a> {
    Message::InitcallEnd { function, result, took }
}

fn probe<'a>(form: Form, of: (&'a str, Option<&'a str>), result: i64, took: u64) -> Message<'a> {
    let (device, driver) = of;
    Message::ProbeEnd { device, driver, result, took: us(took), form }
}

#[test]
fn a_message_tells_its_names_and_numbers() {
    let nvme_init = function("nvme_init", Some("nvme"));
    let (beta_init, tun_init) = (function("beta_init", Some("beta")), function("tun_init", None));
    let unit = Duration::from_millis(1);
    let ms = |n| PrintedDuration { time: n * unit, unit };
    let quirk = function("quirk_usb_early_handoff", None);
    let (driver, device) = ("nvme", NVME);
    let mdio = "Fixed MDIO bus.0";
    let (consumer, supplier) = ("fa00000.mmc", "601000.gpio");
    let bridge = |first, last| Message::Bridge { device: "0000:00:06.0", first, last };
    let resume = Message::PmStart { device: "21-0068", parent: "i2c-21" };
    let with = Form::ProbeEndDriver;
    for (text, message) in [
        ("calling  nvme_init+0x0/0xff0 [nvme] @ 207", calling(nvme_init, Some(207))),
        // A vendor's kernel, and a build id behind the module.
        (
            "calling  nvme_init+0x0/0xff0 [nvme] @ 207 irqs_disabled() 0",
            calling(nvme_init, Some(207)),
        ),
        ("calling  nvme_init+0x0/0xff0 [nvme 0123abcd] @ 207", calling(nvme_init, Some(207))),
        ("calling  0xffffffff81d2b0a0 @ 1", calling(function("0xffffffff81d2b0a0", None), Some(1))),
        // Until 2.6.27 no line names the thread.
        ("calling  acpi_button_init+0x0/0x51", calling(function("acpi_button_init", None), None)),
        ("calling  0xc0123456", calling(function("0xc0123456", None), None)),
        // Blanks in the brackets of a module are no part of its name.
        ("calling beta_init+0x0/0x20 [ beta] @ 1", calling(beta_init, Some(1))),
        (
            "initcall beta_init+0x0/0x20 [ beta] returned 0 after 6000 usecs",
            returned(beta_init, 0, us(6000)),
        ),
        ("initcall tun_init+0x0/0x30 returned -19 after 5 usecs", returned(tun_init, -19, us(5))),
        ("initcall tun_init+0x0/0x30 returned -19 after 5 msecs", returned(tun_init, -19, ms(5))),
        (
            "initcall tun_init+0x0/0x30 returned -19 after 5 usecs, irqs_disabled() 0",
            returned(tun_init, -19, us(5)),
        ),
        (
            "pci 0000:00:03.0: calling  quirk_usb_early_handoff+0x0/0x7e0 @ 1",
            Message::FixupStart { device: "0000:00:03.0", function: quirk, pid: 1 },
        ),
        (
            "pci 0000:00:03.0: quirk_usb_early_handoff+0x0/0x7e0 took 20110 usecs",
            Message::FixupEnd { device: "0000:00:03.0", function: quirk, took: us(20110) },
        ),
        (
            "probe of 1c00000.pcie returned -517 after 8 usecs",
            probe(Form::ProbeEnd, ("1c00000.pcie", None), -517, 8),
        ),
        ("probe of leds returned 517 after 7 usecs", probe(Form::ProbeEnd, ("leds", None), 517, 7)),
        (
            "probe of Fixed MDIO bus.0 returned 0 after 12 usecs",
            probe(Form::ProbeEnd, (mdio, None), 0, 12),
        ),
        (
            "probe of 0000:01:00.0 with driver nvme returned 0 after 756405 usecs",
            probe(with, (NVME, Some("nvme")), 0, 756_405),
        ),
        (
            "probe of 00:01 with driver i8042 aux returned 0 after 131 usecs",
            probe(with, ("00:01", Some("i8042 aux")), 0, 131),
        ),
        (
            "probe of Fixed MDIO bus.0 with driver x returned -517 after 6 usecs",
            probe(with, (mdio, Some("x")), -517, 6),
        ),
        (
            "probe phy_probe in driver RTL8211F-VD Gigabit Ethernet for device gpio-0:00 \
             returned 0 after 1503 usecs",
            probe(
                Form::ProbeEndPatched,
                ("gpio-0:00", Some("RTL8211F-VD Gigabit Ethernet")),
                0,
                1503,
            ),
        ),
        (
            "nvme 0000:01:00.0: CPU: 5, COMM: kworker/u1025:5, probe cost: 34765890 ns",
            Message::ProbeCost {
                driver,
                device,
                cpu: 5,
                worker: "kworker/u1025:5",
                took: Duration::from_nanos(34_765_890),
            },
        ),
        (
            "pci 0000:01:00.0: bus: 'pci': really_probe: probing driver nvme with device",
            Message::ProbeStart { driver, device },
        ),
        (
            "bus: 'pci': really_probe: probing driver nvme with device 0000:01:00.0",
            Message::ProbeStart { driver, device },
        ),
        (
            "nvme 0000:01:00.0: driver: 'nvme': driver_bound: bound to device",
            Message::Bound { driver, device },
        ),
        (
            "driver: 'nvme': driver_bound: bound to device '0000:01:00.0'",
            Message::Bound { driver, device },
        ),
        (
            "nvme 0000:01:00.0: bus: 'pci': really_probe: bound device to driver nvme",
            Message::Bound { driver, device },
        ),
        (
            "bus: 'pci': really_probe: bound device 0000:01:00.0 to driver nvme",
            Message::Bound { driver, device },
        ),
        (
            "pci 0000:01:00.0: probing driver nvme asynchronously",
            Message::ProbeAsync { driver: Some(driver), device },
        ),
        (
            "pci 0000:01:00.0: scheduling asynchronous probe",
            Message::ProbeAsync { driver: None, device },
        ),
        (
            "nvme 0000:01:00.0: probe with driver nvme failed with error -12",
            Message::ProbeFailed { driver, device, error: -12 },
        ),
        (
            "nvme: probe of 0000:01:00.0 failed with error -12",
            Message::ProbeFailed { driver, device, error: -12 },
        ),
        (
            "platform fa00000.mmc: Linked as a consumer to 601000.gpio",
            Message::Link { consumer, supplier, orders: true },
        ),
        (
            "platform fa00000.mmc: Linked as a sync state only consumer to 601000.gpio",
            Message::Link { consumer, supplier, orders: false },
        ),
        ("pci 0000:00:06.0: PCI bridge to [bus 01-0f]", bridge(1, 15)),
        ("pci 0000:00:06.0: PCI bridge to [bus 10]", bridge(16, 16)),
        (
            "i2c_hid 21-0068: PM: calling i2c_hid_resume+0x0/0x30 [i2c_hid] @ 92, parent: i2c-21",
            resume.clone(),
        ),
        ("calling  21-0068+ @ 92, parent: i2c-21", resume),
        ("clocksource: Switched to clocksource tsc-early", Message::ClockSource { ticks: false }),
        ("Switched to clocksource arch_sys_counter", Message::ClockSource { ticks: false }),
        ("Switching to clocksource hpet", Message::ClockSource { ticks: false }),
    ] {
        assert_eq!(parse(text), message, "{text}");
    }
    for none in ["calling  somebody", "calling  a_init+0x0/0x51 @", "calling  b c+0x0/0x51"] {
        assert!(!matches!(parse(none), Message::InitcallStart { .. }), "{none}");
    }
}

#[test]
fn a_line_without_more_to_tell_has_its_form() {
    for (text, expected) in [
        ("blacklisting initcall alpha_init", Some(Form::Blacklisted)),
        ("initcall alpha_init blacklisted", Some(Form::Blacklisted)),
        ("initcall x+0x0/0x1 returned with preemption imbalance ", Some(Form::InitcallWarning)),
        ("entering initcall level: device", Some(Form::InitcallLevel)),
        ("platform probe pcs_probe is being called", Some(Form::ProbeCalled)),
        ("nvme 0000:01:00.0: driver nvme async attach completed: 0", Some(Form::ProbeAsync)),
        (
            "pci 0000:01:00.0: bus: 'pci': __driver_probe_device: matched device with driver nvme",
            Some(Form::BusDebug),
        ),
        ("device: 'nvme0': device_add", Some(Form::DeviceAdd)),
        ("/soc@0/usb@a8: Fixed dependency cycle(s) with /soc@0/phy@88", Some(Form::LinkNote)),
        ("\\_SB_.PC00: Fixed dependency cycle(s) with \\_SB_.PC00.LNK0", Some(Form::LinkNote)),
        ("/soc@0/usb@a8 Linked as a fwnode consumer to /soc@0/phy@88", Some(Form::LinkNote)),
        (
            "qcom_pmic_glink pmic-glink: Failed to create device link (0x180) with supplier \
             a600000.usb for /x",
            Some(Form::LinkNote),
        ),
        ("platform x: Dropping the link to y", Some(Form::LinkNote)),
        ("platform x: Added to deferred list", Some(Form::DeferredList)),
        ("i2c_hid 21-0068: PM: x+0x0/0x30 returned 0 after 7 usecs", Some(Form::PmEnd)),
        ("call 21-0068+ returned 0 after 7 usecs", Some(Form::PmEnd)),
        ("reboot: Restarting system", Some(Form::ShutdownTail)),
        // A device that speaks while it is shut down, and a program.
        ("mlx5_core 1610:00:02.0: Shutdown was called", None),
        ("systemd[1]: x y: shutdown", None),
    ] {
        assert_eq!(parse(text).form(), expected, "{text}");
    }
}

#[test]
fn a_deferral_names_the_supplier() {
    for (text, supplier) in [
        ("platform x: error -EPROBE_DEFER: supplier regulator-5 not ready", Some("regulator-5")),
        ("platform x: probe deferral - supplier regulator-5 not ready", Some("regulator-5")),
        (
            "platform x: deferred probe pending: platform: supplier regulator-5 not ready",
            Some("regulator-5"),
        ),
        ("platform x: error -EPROBE_DEFER: wait for supplier /soc@0/clk@a0", Some("/soc@0/clk@a0")),
        ("platform x: error -517: failed to get clk", None),
        ("platform x: deferred probe pending", None),
        ("platform x: Driver foo requests probe deferral", None),
        ("platform x: Driver foo force probe deferral", None),
        ("platform x: Device match requests probe deferral", None),
    ] {
        match parse(text) {
            Message::Deferral { device: "x", supplier: found, .. } => {
                assert_eq!(found, supplier, "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_shutdown_has_driver_and_device_with_blanks_and_colons() {
    for (text, driver, device) in [
        ("nvme 0000:10:00.0: shutdown", "nvme", "0000:10:00.0"),
        ("platform Fixed MDIO bus.0: shutdown", "platform", "Fixed MDIO bus.0"),
        ("i8042 aux 00:01: shutdown", "i8042 aux", "00:01"),
        ("sd 0:0:0:0: shutdown", "sd", "0:0:0:0"),
        ("aer 0000:00:15.0:pcie002: shutdown", "aer", "0000:00:15.0:pcie002"),
    ] {
        match parse(text) {
            Message::Shutdown { head, step: Step::Shutdown } => {
                assert_eq!(split_head(head), Some((driver, device)), "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let step = |text| match parse(text) {
        Message::Shutdown { step, .. } => step,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(step("tpm tpm0: shutdown_pre"), Step::Pre);
    assert_eq!(step("nvme 0000:01:00.0: async_shutdown_start"), Step::AsyncStart);
    assert_eq!(step("nvme 0000:01:00.0: async_shutdown_end"), Step::AsyncEnd);
}

#[test]
fn a_line_similar_to_a_form_is_suspicious() {
    for text in [
        "probe of 0000:01:00.0 returned 0 af",
        "probe of 0000:01:00.0 returned 0 after 99999999999999999999 usecs",
        "initcall nvme_init+0x0/0xff0 [nvme] ret",
        "calling  nvme_init+0x0/0xff0 [nvme]",
        "nvme 0000:01:00.0: CPU: x, COMM: kworker/0:1, probe cost: 5 ns",
        "regulator.0: shutdown",
        "platform x: Linked as a friend of y",
        // No device has such a name: an encoding, or a prefix, was not read.
        "6.12.3,7,9400,9000000,-;beta 0000:00:05.0: shutdown",
        "MESSAGE=sd 6:0:0:0: shutdown",
        "probe of a=20b returned 0 after 5 usecs",
        "initcall a_init+0x0/0x10 [beta_driver_of_some_le=] returned 0 after 5 usecs",
        "platform x: Linked as a consumer to y=",
        "x|nvme a: shutdown",
    ] {
        assert!(matches!(parse(text), Message::Suspicious(_)), "{text}: {:?}", parse(text));
    }
    for text in ["usb usb1: New USB device strings: Mfr=3", "nvme nvme1: 2/0/0 queues", ""] {
        assert!(!matches!(parse(text), Message::Suspicious(_)), "{text}");
    }
}
