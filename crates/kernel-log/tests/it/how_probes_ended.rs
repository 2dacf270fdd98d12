//! Outcomes of probes by the lines within them: kernels before 5.14 print 0 at the end of each
//! probe that did not bind its device.

use crate::common::{read, us};
use corewise_kernel_log::{Bound, KernelLog};
use corewise_timeline::{Driver, Outcome, html, json, text};

/// A log of Linux 4.19, with each probe as its driver core prints it.
const OLD: &str = "\
[    0.000000] Linux version 4.19.0-5-amd64 (x)
[    1.100000] probe of usb1 returned 1 after 1234 usecs
[    1.200000] probe of usb2 returned 0 after 1234 usecs
[    1.300000] foo: probe of usb3 failed with error -5
[    1.300010] probe of usb3 returned 0 after 1234 usecs
[    1.400000] foo: probe of usb4 rejects match -19
[    1.400010] probe of usb4 returned 0 after 1234 usecs
[    1.500000] platform usb5: Driver foo requests probe deferral
[    1.500010] probe of usb5 returned 0 after 1234 usecs
[    1.900000] probe of usb5 returned 1 after 3210 usecs
";

fn outcome(log: &KernelLog, name: &str) -> Outcome {
    log.boot.span(log.boot.find(name).unwrap_or_else(|| panic!("no {name}"))).outcome.clone()
}

fn notes(log: &KernelLog) -> String {
    log.boot.notes().join("\n")
}

#[test]
fn a_line_within_an_older_kernels_probe_says_how_it_ended() {
    let failed = |error: &str| Outcome::Failed(error.to_owned());
    let without_version = OLD.split_once('\n').expect("lines").1;
    let stated = |text: &str| {
        let log = read(text);
        assert_eq!(outcome(&log, "usb1"), Outcome::Ok);
        assert_eq!(outcome(&log, "usb3"), failed("EIO"));
        assert_eq!(outcome(&log, "usb4"), Outcome::Skipped("ENODEV: no such device".to_owned()));
        assert_eq!(outcome(&log, "usb5"), Outcome::Deferred("the driver asked for it".to_owned()));
        let usb5 = &log.deferrals[0];
        assert_eq!(
            (usb5.device.as_str(), usb5.driver.as_ref().map(Driver::name)),
            ("usb5", Some("foo"))
        );
        assert_eq!((usb5.attempts, usb5.by_driver, usb5.total), (1, 1, us(1234).into()));
        assert_eq!(usb5.bound, Bound::At(us(1_900_000)));
        // No line tells the second probe's reason, nor its driver.
        assert_eq!(outcome(&log, "usb2").as_str(), "skipped");
        assert!(!log.drivers.contains_key("usb3") && !log.drivers.contains_key("usb4"));
        log
    };
    let log = stated(OLD);
    stated(without_version);
    stated(&OLD.replace("4.19.0-5-amd64", "2.6.39"));
    // A note counts only the probe that printed ENODEV.
    let notes = notes(&log);
    assert!(notes.contains("1 probe found no device that is its own (ENODEV"), "{notes}");
    assert!(notes.contains("of 1 probe with 0 no line says why it didn't bind"), "{notes}");
    // Each form shows it.
    let rows = text::render(&log.boot, 100);
    let page = html::render(&html::Page { title: "log", facts: &[], timelines: &[&log.boot] });
    let again = json::read(&json::render(&log.boot)).expect("what was just written");
    assert!(rows.contains("1 failed, 2 skipped, 1 deferred"), "{rows}");
    assert!(rows.contains("failed: usb3: EIO") && page.contains("EIO"), "{rows}");
    assert_eq!(again[0].summary(), log.boot.summary());
    for form in [&rows, &page, &json::render(&log.boot)] {
        assert!(form.contains("no line says why"), "{form}");
    }
}

#[test]
fn a_driver_that_says_itself_that_it_defers_is_believed_where_nothing_was_bound() {
    let text = OLD
        .replace("4.19.0-5-amd64", "5.10.0")
        .replace("Driver foo requests probe deferral", "error -EPROBE_DEFER: no clock");
    let log = read(&text);
    assert_eq!(outcome(&log, "usb5"), Outcome::Deferred("no clock".to_owned()));
    // A probe that continues and binds its device was not deferred.
    let log = read(&text.replace("usb5 returned 0", "usb5 returned 1"));
    assert_eq!((outcome(&log, "usb5"), log.deferrals.len()), (Outcome::Ok, 0));
}

#[test]
fn a_failure_whose_probe_has_no_last_line_is_told() {
    // The last line of usb6's probe, and of the first one of usb7, aren't in the log.
    let lines = "[    2.000000] foo: probe of usb6 failed with error -12\n\
                 [    2.100000] bar: probe of usb7 failed with error -22\n\
                 [    2.900000] probe of usb7 returned 1 after 1000 usecs\n\
                 [    3.000000] baz: probe of usb8 rejects match -19\n";
    let log = read(&format!("{OLD}{lines}"));
    assert_eq!(outcome(&log, "usb7"), Outcome::Ok);
    let told = "2 probes have a line of how they ended and none of when (`returned`), so no bar, \
                number or table has them: usb6 (foo) failed: ENOMEM, usb7 (bar) failed: EINVAL";
    assert!(notes(&log).contains(told), "{}", notes(&log));
    for form in [text::render(&log.boot, 100), json::render(&log.boot)] {
        assert!(form.contains("usb6 (foo) failed: ENOMEM"), "{form}");
    }
    // Of many, a note gives the number.
    let many = |i: u32| format!("[    2.{i:06}] foo: probe of x{i} failed with error -12\n");
    let log = read(&format!("{OLD}{}", (0..20).map(many).collect::<String>()));
    assert!(notes(&log).contains(", and 4 more"), "{}", notes(&log));
}

#[test]
fn todays_kernels_say_it_in_the_last_line() {
    let log = read(
        "[    0.000000] Linux version 6.12.1 (x)\n\
         [    1.000000] foo usb3: probe with driver foo failed with error -5\n\
         [    1.000010] probe of usb3 returned 5 after 1000 usecs\n\
         [    1.000020] foo usb4: probe with driver foo failed with error -5\n\
         [    1.000030] probe of usb4 returned 0 after 5 usecs\n\
         [    1.100000] probe of usb5 returned 1 after 5 usecs\n",
    );
    assert_eq!(outcome(&log, "usb3"), Outcome::Failed("EIO".to_owned()));
    // 0 means a bound device, so the line before is of a probe whose last line isn't there.
    assert_eq!(outcome(&log, "usb4"), Outcome::Ok);
    assert_eq!(outcome(&log, "usb5"), Outcome::Failed("EPERM".to_owned()));
    assert!(notes(&log).contains("usb4 (foo) failed: EIO"), "{}", notes(&log));
    assert!(!notes(&log).contains("usb3"), "{}", notes(&log));
}
