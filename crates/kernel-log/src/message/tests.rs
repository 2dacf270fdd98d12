//! Tests of each line form, and of texts that look like one.

use super::*;
use crate::form::Form;
use std::time::Duration;

fn us(n: u64) -> PrintedDuration {
    PrintedDuration { time: Duration::from_micros(n), unit: Duration::from_micros(1) }
}

fn form(text: &str) -> Option<Form> {
    parse(text).form()
}

#[test]
fn an_init_call_begins_with_two_blanks_and_its_thread() {
    let nvme = Function { name: "nvme_init", module: Some("nvme") };
    let message = Message::InitcallStart { function: nvme, pid: Some(207) };
    assert_eq!(parse("calling  nvme_init+0x0/0xff0 [nvme] @ 207"), message);
    // A vendor's kernel, and a build id behind the module.
    assert_eq!(parse("calling  nvme_init+0x0/0xff0 [nvme] @ 207 irqs_disabled() 0"), message);
    assert_eq!(parse("calling  nvme_init+0x0/0xff0 [nvme 0123abcd] @ 207"), message);
    let bare = Function { name: "0xffffffff81d2b0a0", module: None };
    let message = Message::InitcallStart { function: bare, pid: Some(1) };
    assert_eq!(parse("calling  0xffffffff81d2b0a0 @ 1"), message);
}

#[test]
fn until_2_6_27_an_init_call_names_no_thread() {
    let start =
        |name| Message::InitcallStart { function: Function { name, module: None }, pid: None };
    assert_eq!(parse("calling  acpi_button_init+0x0/0x51"), start("acpi_button_init"));
    assert_eq!(parse("calling  0xc0123456"), start("0xc0123456"));
    for none in ["calling  somebody", "calling  a_init+0x0/0x51 @", "calling  b c+0x0/0x51"] {
        assert!(!matches!(parse(none), Message::InitcallStart { .. }), "{none}");
    }
}

#[test]
fn blanks_in_the_brackets_of_a_module_are_no_part_of_its_name() {
    let function = Function { name: "beta_init", module: Some("beta") };
    let start = Message::InitcallStart { function, pid: Some(1) };
    assert_eq!(parse("calling beta_init+0x0/0x20 [ beta] @ 1"), start);
    let end = Message::InitcallEnd { function, result: 0, took: us(6000) };
    assert_eq!(parse("initcall beta_init+0x0/0x20 [ beta] returned 0 after 6000 usecs"), end);
}

#[test]
fn an_init_call_that_the_command_line_forbids_is_no_end_of_one() {
    assert_eq!(form("blacklisting initcall alpha_init"), Some(Form::Blacklisted));
    assert_eq!(form("initcall alpha_init blacklisted"), Some(Form::Blacklisted));
}

#[test]
fn a_name_that_no_device_has_is_an_encoding_or_a_prefix_that_was_not_read() {
    for text in [
        "6.12.3,7,9400,9000000,-;beta 0000:00:05.0: shutdown",
        "MESSAGE=sd 6:0:0:0: shutdown",
        "probe of a=20b returned 0 after 5 usecs",
        "initcall a_init+0x0/0x10 [beta_driver_of_some_le=] returned 0 after 5 usecs",
        "platform x: Linked as a consumer to y=",
        "x|nvme a: shutdown",
    ] {
        assert!(matches!(parse(text), Message::Suspicious(_)), "{text}");
    }
}

#[test]
fn the_kernel_says_when_its_clock_ticks_no_more() {
    for text in [
        "clocksource: Switched to clocksource tsc-early",
        "Switched to clocksource arch_sys_counter",
        "Switching to clocksource hpet",
    ] {
        assert_eq!(parse(text), Message::ClockSource { ticks: false }, "{text}");
    }
}

#[test]
fn an_init_call_ends_in_micro_or_in_milliseconds() {
    let function = Function { name: "tun_init", module: None };
    let end = |took| Message::InitcallEnd { function, result: -19, took };
    let unit = Duration::from_millis(1);
    let ms = PrintedDuration { time: Duration::from_millis(5), unit };
    assert_eq!(parse("initcall tun_init+0x0/0x30 returned -19 after 5 usecs"), end(us(5)));
    assert_eq!(parse("initcall tun_init+0x0/0x30 returned -19 after 5 msecs"), end(ms));
    let vendor = "initcall tun_init+0x0/0x30 returned -19 after 5 usecs, irqs_disabled() 0";
    assert_eq!(parse(vendor), end(us(5)));
    assert_eq!(
        form("initcall x+0x0/0x1 returned with preemption imbalance "),
        Some(Form::InitcallWarning)
    );
    assert_eq!(form("entering initcall level: device"), Some(Form::InitcallLevel));
}

#[test]
fn a_pci_fixup_is_no_init_call() {
    let function = Function { name: "quirk_usb_early_handoff", module: None };
    let device = "0000:00:03.0";
    assert_eq!(
        parse("pci 0000:00:03.0: calling  quirk_usb_early_handoff+0x0/0x7e0 @ 1"),
        Message::FixupStart { device, function, pid: 1 }
    );
    assert_eq!(
        parse("pci 0000:00:03.0: quirk_usb_early_handoff+0x0/0x7e0 took 20110 usecs"),
        Message::FixupEnd { device, function, took: us(20110) }
    );
}

#[test]
fn a_probe_ends_with_its_result_of_either_sign() {
    let end = |device, result, took| Message::ProbeEnd {
        device,
        driver: None,
        result,
        took,
        form: Form::ProbeEnd,
    };
    assert_eq!(
        parse("probe of 1c00000.pcie returned -517 after 8 usecs"),
        end("1c00000.pcie", -517, us(8))
    );
    assert_eq!(parse("probe of leds returned 517 after 7 usecs"), end("leds", 517, us(7)));
    assert_eq!(
        parse("probe of Fixed MDIO bus.0 returned 0 after 12 usecs"),
        end("Fixed MDIO bus.0", 0, us(12))
    );
}

#[test]
fn a_probe_line_may_name_the_driver() {
    for (text, device, driver, result, took) in [
        (
            "0000:00:04.0 with driver nvme returned 0 after 756405 usecs",
            "0000:00:04.0",
            "nvme",
            0,
            756405,
        ),
        ("00:01 with driver i8042 aux returned 0 after 131 usecs", "00:01", "i8042 aux", 0, 131),
        (
            "Fixed MDIO bus.0 with driver x returned -517 after 6 usecs",
            "Fixed MDIO bus.0",
            "x",
            -517,
            6,
        ),
    ] {
        let (driver, took, form) = (Some(driver), us(took), Form::ProbeEndDriver);
        let expected = Message::ProbeEnd { device, driver, result, took, form };
        assert_eq!(parse(&format!("probe of {text}")), expected, "{text}");
    }
}

#[test]
fn the_patched_probe_line_names_the_driver() {
    let driver = Some("RTL8211F-VD Gigabit Ethernet");
    assert_eq!(
        parse(
            "probe phy_probe in driver RTL8211F-VD Gigabit Ethernet for device gpio-0:00 \
             returned 0 after 1503 usecs"
        ),
        Message::ProbeEnd {
            device: "gpio-0:00",
            driver,
            result: 0,
            took: us(1503),
            form: Form::ProbeEndPatched
        }
    );
    assert_eq!(form("platform probe pcs_probe is being called"), Some(Form::ProbeCalled));
}

#[test]
fn the_cost_of_a_probe_names_cpu_and_worker() {
    assert_eq!(
        parse("nvme 0000:01:00.0: CPU: 5, COMM: kworker/u1025:5, probe cost: 34765890 ns"),
        Message::ProbeCost {
            driver: "nvme",
            device: "0000:01:00.0",
            cpu: 5,
            worker: "kworker/u1025:5",
            took: Duration::from_nanos(34_765_890),
        }
    );
}

#[test]
fn dynamic_debugging_says_where_a_probe_begins_in_old_and_new_words() {
    let (driver, device) = ("nvme", "0000:01:00.0");
    for text in [
        "pci 0000:01:00.0: bus: 'pci': really_probe: probing driver nvme with device",
        "bus: 'pci': really_probe: probing driver nvme with device 0000:01:00.0",
    ] {
        assert_eq!(parse(text), Message::ProbeStart { driver, device }, "{text}");
    }
    for text in [
        "nvme 0000:01:00.0: driver: 'nvme': driver_bound: bound to device",
        "driver: 'nvme': driver_bound: bound to device '0000:01:00.0'",
        "nvme 0000:01:00.0: bus: 'pci': really_probe: bound device to driver nvme",
        "bus: 'pci': really_probe: bound device 0000:01:00.0 to driver nvme",
    ] {
        assert_eq!(parse(text), Message::Bound { driver, device }, "{text}");
    }
    let text = "pci 0000:01:00.0: probing driver nvme asynchronously";
    assert_eq!(parse(text), Message::ProbeAsync { driver: Some(driver), device });
    let text = "pci 0000:01:00.0: scheduling asynchronous probe";
    assert_eq!(parse(text), Message::ProbeAsync { driver: None, device });
    for (text, expected) in [
        ("nvme 0000:01:00.0: driver nvme async attach completed: 0", Form::ProbeAsync),
        (
            "pci 0000:01:00.0: bus: 'pci': __driver_probe_device: matched device with driver nvme",
            Form::BusDebug,
        ),
        ("device: 'nvme0': device_add", Form::DeviceAdd),
    ] {
        assert_eq!(form(text), Some(expected), "{text}");
    }
}

#[test]
fn a_probe_that_failed_names_the_driver() {
    let (driver, device) = ("nvme", "0000:01:00.0");
    for text in [
        "nvme 0000:01:00.0: probe with driver nvme failed with error -12",
        "nvme: probe of 0000:01:00.0 failed with error -12",
    ] {
        let error = -12;
        assert_eq!(parse(text), Message::ProbeFailed { driver, device, error }, "{text}");
    }
}

#[test]
fn links_and_deferrals_name_the_supplier() {
    let link = |orders| Message::Link { consumer: "fa00000.mmc", supplier: "601000.gpio", orders };
    assert_eq!(parse("platform fa00000.mmc: Linked as a consumer to 601000.gpio"), link(true));
    assert_eq!(
        parse("platform fa00000.mmc: Linked as a sync state only consumer to 601000.gpio"),
        link(false)
    );
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
    for text in [
        "/soc@0/usb@a8: Fixed dependency cycle(s) with /soc@0/phy@88",
        "\\_SB_.PC00: Fixed dependency cycle(s) with \\_SB_.PC00.LNK0",
        "/soc@0/usb@a8 Linked as a fwnode consumer to /soc@0/phy@88",
        "qcom_pmic_glink pmic-glink: Failed to create device link (0x180) with supplier a600000.usb for /x",
        "platform x: Dropping the link to y",
    ] {
        assert_eq!(form(text), Some(Form::LinkNote), "{text}");
    }
    assert_eq!(form("platform x: Added to deferred list"), Some(Form::DeferredList));
}

#[test]
fn a_bridge_names_the_buses_behind_it() {
    let device = "0000:00:06.0";
    assert_eq!(
        parse("pci 0000:00:06.0: PCI bridge to [bus 01-0f]"),
        Message::Bridge { device, first: 1, last: 15 }
    );
    assert_eq!(
        parse("pci 0000:00:06.0: PCI bridge to [bus 10]"),
        Message::Bridge { device, first: 16, last: 16 }
    );
}

#[test]
fn a_resume_callback_names_the_parent() {
    let message = Message::PmStart { device: "21-0068", parent: "i2c-21" };
    let text =
        "i2c_hid 21-0068: PM: calling i2c_hid_resume+0x0/0x30 [i2c_hid] @ 92, parent: i2c-21";
    assert_eq!(parse(text), message);
    assert_eq!(parse("calling  21-0068+ @ 92, parent: i2c-21"), message);
    assert_eq!(form("i2c_hid 21-0068: PM: x+0x0/0x30 returned 0 after 7 usecs"), Some(Form::PmEnd));
    assert_eq!(form("call 21-0068+ returned 0 after 7 usecs"), Some(Form::PmEnd));
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
    // A device that speaks while it is shut down, and a program.
    assert_eq!(form("mlx5_core 1610:00:02.0: Shutdown was called"), None);
    assert_eq!(form("systemd[1]: x y: shutdown"), None);
    assert_eq!(form("reboot: Restarting system"), Some(Form::ShutdownTail));
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
    ] {
        assert!(matches!(parse(text), Message::Suspicious(_)), "{text}: {:?}", parse(text));
    }
    for text in ["usb usb1: New USB device strings: Mfr=3", "nvme nvme1: 2/0/0 queues", ""] {
        assert!(!matches!(parse(text), Message::Suspicious(_)), "{text}");
    }
}
