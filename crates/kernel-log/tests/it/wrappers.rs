//! One small log as containers, mails, terminals and crash dumps pass it on. An unknown prefix is
//! found by the message behind it, and no line is read twice, in another order, or in part.

use corewise_kernel_log::Prefix;
use corewise_timeline::Driver;

use crate::common::{check, check_ways, plain, read, stamp, us, written};

#[test]
fn behind_what_containers_vendors_and_networks_put_before_each_line_the_log_is_the_same() {
    check_ways(&[
        ("journalctl -o verbose", Prefix::JournalExport, |at, t| {
            format!(
                "Wed 2026-03-04 13:21:00.000000 UTC [s=ab12;i={at:x};b=cd34]\n    _TRANSPORT=kernel\n    \
                 PRIORITY=7\n    MESSAGE={t}\n    _SOURCE_MONOTONIC_TIMESTAMP={at}\n"
            )
        }),
        ("journalctl -o json-seq", Prefix::JournalJson, |at, t| {
            format!("\u{1e}{{\"MESSAGE\":\"{t}\",\"_SOURCE_MONOTONIC_TIMESTAMP\":\"{at}\"}}\n")
        }),
        ("journalctl -o json-sse", Prefix::JournalJson, |at, t| {
            format!("data: {{\"MESSAGE\":\"{t}\",\"_SOURCE_MONOTONIC_TIMESTAMP\":\"{at}\"}}\n\n")
        }),
        ("netconsole +r", Prefix::Kmsg, |at, t| format!("6.12.3,7,{},{at},-;{t}\n", at / 10)),
        ("netconsole +r, callers", Prefix::Kmsg, |at, t| {
            format!("6.13.0-rc2+,7,{},{at},-,caller=T207;{t}\n", at / 10)
        }),
        ("Amlogic", Prefix::Printk, |at, t| format!("[{}@1] {t}\n", stamp(at))),
        ("dmesg of Android", Prefix::Level, |at, t| {
            format!("[{}] <7>[{}@1] {t}\n", stamp(at), stamp(at))
        }),
        ("Huawei", Prefix::AndroidTask, |at, t| {
            format!("<7>[{}s][pid:207,cpu1,swapper/0]{t}\n", stamp(at))
        }),
        ("docker's json-file", Prefix::JsonLine, |at, t| {
            format!(
                "{{\"log\": \"[{}] {t}\\r\\n\", \"stream\": \"stdout\", \"time\": \
                 \"2026-03-04T13:21:00.000000000Z\"}}\n",
                stamp(at)
            )
        }),
        ("a cloud's log", Prefix::JsonLine, |at, t| {
            format!("{{\"id\": 7, \"jsonPayload\": {{\"message\": \"[{}] {t}\"}}}},\n", stamp(at))
        }),
        ("Kubernetes", Prefix::Iso, |at, t| {
            format!("2026-03-04T13:21:00.000000000Z stdout F [{}] {t}\n", stamp(at))
        }),
        ("a pod's name", Prefix::Carrier, |at, t| format!("[pod/a-b/c] [{}] {t}\n", stamp(at))),
        ("GitHub Actions", Prefix::Iso, |at, t| {
            format!("2026-03-04T13:21:00.1234567Z [{}] {t}\n", stamp(at))
        }),
        ("RFC 5424", Prefix::Iso, |at, t| {
            format!("<6>1 2026-03-04T13:21:00.003Z kepler kernel - - - [{}] {t}\n", stamp(at))
        }),
        ("line numbers", Prefix::Carrier, |at, t| format!("{}:[{}] {t}\n", at / 7, stamp(at))),
        ("cat -A", Prefix::CrLf, |at, t| format!("[{}] {t}^M$\n", stamp(at))),
        ("cat -v and colours", Prefix::CrLf, |at, t| {
            format!("^[[32m[{}] ^[[0m^[[33m{t}^[[0m^M\n", stamp(at))
        }),
        ("rsyslog", Prefix::CrLf, |at, t| format!("[{}] {t}#015\n", stamp(at))),
        ("HTML", Prefix::Printk, |at, t| {
            let line = format!("[{}] {t}", stamp(at)).replace(' ', "&nbsp;").replace('>', "&gt;");
            format!("<span class=\"l\">{line}</span><br>\n")
        }),
    ]);
    // The whole log in one line.
    let page: String = plain().lines().map(|line| format!("{line}<br/>")).collect();
    let log = read(&format!("<html><body>{page}</body></html>"));
    check(&log, "one line of HTML");
    assert_eq!((log.lines, log.notes[0].as_str()), (1, "the log is HTML: its tags were taken out"));
}

#[test]
fn behind_an_unknown_prefix_without_stamps_names_and_durations_are_right_and_nothing_else_is_told()
{
    for prefix in ["|app-7 (tty)| ", "2026/03/04 13:21 kepler: kern #7; ", "{k} "] {
        let log = read(&written(|_, t| format!("{prefix}{t}\n")));
        assert_eq!(log.suspicious_total, 0, "{prefix}: {:?}", log.suspicious);
        let told: Vec<_> = log
            .boot
            .unplaced()
            .iter()
            .map(|u| (u.name.as_str(), u.driver.as_ref().map(Driver::name), u.took.known()))
            .collect();
        let probe = ("0000:01:00.0", Some("nvme"), Some(us(89_900)));
        let call = ("nvme_init [nvme]", Some("nvme"), Some(us(90_050)));
        assert_eq!(told[..2], [call, probe], "{prefix}");
        let down: Vec<_> = log
            .shutdown
            .unplaced()
            .iter()
            .map(|u| (u.name.as_str(), u.driver.as_ref().map(Driver::name)))
            .collect();
        let devices =
            [("leds", Some("leds")), ("0000:01:00.0", Some("nvme")), ("Fixed MDIO bus.0", None)];
        assert_eq!(down, devices, "{prefix}");
        assert!(log.prefixes.iter().any(|&(p, n)| p == Prefix::Carrier && n > 6), "{prefix}");
    }
    // If no message shows the prefix, no part of it is taken for a driver, not even of a device's
    // words.
    let log = read(
        "6.1;7|x=nvme 0000:01:00.0: enabling device\n\
         [    1.0] probe of 0000:01:00.0 returned 0 after 5 usecs\n",
    );
    assert!(log.drivers.is_empty() && log.boot.spans()[0].driver.is_none(), "{:?}", log.drivers);
    let log = read("6.12.3;7|9,-;beta 0000:00:05.0: shutdown\n{k} nvme a: shutdown\n");
    assert!(log.boot.is_empty() && log.shutdown.is_empty(), "{:?}", log.shutdown);
    assert_eq!(log.suspicious_total, 2);
}

#[test]
fn times_of_whoever_got_the_lines_are_not_the_kernels() {
    let precise = |at: u64, t: &str| {
        let s = at / 1_000_000;
        format!("Mar 04 13:21:{s:02}.{:06} kepler kernel: {t}\n", at % 1_000_000)
    };
    // All lines came at once.
    let at_once = |n: u64| 1_000_000 + n / 1_000_000;
    let expected = read(&written(|at, t| precise(at_once(at), t)));
    assert!(expected.boot.spans().is_empty());
    type Way = (&'static str, fn(u64, &str) -> String);
    let ways: [Way; 4] = [
        ("journalctl -o short-unix", |at, t| {
            format!("17726304{:02}.{:06} kepler kernel: {t}\n", at / 1_000_000, at % 1_000_000)
        }),
        ("ts %.s", |at, t| format!("17726304{:02}.{:06} {t}\n", at / 1_000_000, at % 1_000_000)),
        ("ts", |at, t| format!("Mar 04 13:21:{:02}.{:06} {t}\n", at / 1_000_000, at % 1_000_000)),
        ("a terminal program", |at, t| {
            format!("[13:21:{:02}.{:06}] {t}\n", at / 1_000_000, at % 1_000_000)
        }),
    ];
    for (how, line) in ways {
        let log = read(&written(|at, t| line(at_once(at), t)));
        assert_eq!(log.boot, expected.boot, "{how}");
        assert_eq!(log.shutdown, expected.shutdown, "{how}");
        // If init calls show that the stamps keep up, they are an order in time.
        assert_eq!(read(&written(line)).boot.spans().len(), 3, "{how}");
    }
}

#[test]
fn a_line_that_is_there_twice_counts_once() {
    let text = "[    0.500000] Booting on physical CPU 0\n".to_owned() + &plain();
    // One copy lacks the less important lines.
    let few: String = text
        .lines()
        .filter(|line| !line.contains("call"))
        .map(|line| format!("{line}\n"))
        .collect();
    for (how, text) in
        [("all of it twice", text.clone() + &text), ("first without some", few + &text)]
    {
        let log = read(&text);
        assert!(log.boots.is_empty(), "{how}: {:?}", log.boots);
        assert_eq!(log.boot.spans().len(), 3, "{how}");
        assert_eq!(log.shutdown.spans().len(), 3, "{how}");
        assert_eq!(log.deferrals[0].attempts, 1, "{how}");
        let back = log.boot.notes().iter().any(|n| n.contains("stamps go back"));
        assert!(!back, "{how}: {:?}", log.boot.notes());
        let said = log.notes.iter().any(|n| n.contains("there already"));
        assert!(said, "{how}: {:?}", log.notes);
        if how != "first without some" {
            check(&log, how);
        }
    }
    // Two init functions of one name, and two fixups, while the clock of the stamps stands.
    let pair = "calling  activate_jump_labels+0x0/0x40 @ 1\n\
                initcall activate_jump_labels+0x0/0x40 returned 0 after 0 usecs\n\
                pci 0000:00:01.0: calling  quirk+0x0/0x20 @ 1\n\
                pci 0000:00:01.0: quirk+0x0/0x20 took 3906 usecs\n";
    let once: String =
        pair.repeat(2).lines().map(|line| format!("[    0.967866] {line}\n")).collect();
    let doubled: String = once.lines().map(|line| format!("{line}\n{line}\n")).collect();
    let again = once.clone() + "[    1.000000] calling  b_init+0x0/0x40 @ 1\n" + &once;
    for (how, text) in [("once", once), ("two consoles", doubled), ("again", again)] {
        let log = read(&text);
        assert_eq!(log.boot.spans().len(), 4, "{how}");
        assert!(
            !log.notes.iter().any(|n| n.contains("did not end: act")),
            "{how}: {:?}",
            log.notes
        );
    }
    // Another boot after a repeated part is another one.
    let part: String = text.lines().skip(2).take(5).map(|line| format!("{line}\n")).collect();
    let other = written(|at, text| format!("[{}] {text}\n", stamp(at + 3)));
    for other in [other.clone(), other.lines().skip(1).map(|line| format!("{line}\n")).collect()] {
        let log = read(&(text.clone() + &part + &other));
        assert_eq!(log.boots.len(), 2, "{:?}", log.boots);
        assert_eq!(log.boots[0].probes, 2);
    }
    // Without stamps, or with whole seconds, equal lines are as many events.
    let log = read(&"probe of leds returned -517 after 9 usecs\n".repeat(3));
    assert_eq!(log.deferrals[0].attempts, 3);
    let log =
        read(&"[Wed Mar  4 13:21:03 2026] probe of a returned -517 after 9 usecs\n".repeat(3));
    assert_eq!(log.deferrals[0].attempts, 3);
}

#[test]
fn the_source_of_a_mail_is_decoded() {
    // Blanks and equal signs are encoded here, and lines are broken at 40 characters.
    let encoded: String = plain()
        .lines()
        .map(|line| {
            let mut out = String::new();
            let mut width = 0;
            for c in line.chars() {
                let one = if matches!(c, ':' | '=') {
                    format!("={:02X}", u32::from(c))
                } else {
                    c.into()
                };
                if width + one.len() > 39 {
                    out += "=\n";
                    width = 0;
                }
                width += one.len();
                out += &one;
            }
            out + "\n"
        })
        .collect();
    let text = format!("Subject: x\nContent-Transfer-Encoding: quoted-printable\n\n{encoded}");
    let log = read(&text);
    check(&log, "quoted-printable");
    assert!(log.notes[0].contains("quoted-printable was decoded"), "{:?}", log.notes);
    assert_eq!(log.lines, text.lines().count() as u64);
    // Without the head, lines that break so are joined so.
    let broken = "[   12.401500] probe of 32a00000.bridge-with-a-name returned -517 after 24 =\nusecs\n\
                  [   12.406900] initcall b_init+0x0/0x1000 [beta_driver_of_some_le=\nngth] returned 0 \
                  after 6866 usecs\n";
    let log = read(broken);
    assert_eq!(log.suspicious_total, 0, "{:?}", log.suspicious);
    let names: Vec<_> = log.boot.spans().iter().map(|s| s.name.as_str()).collect();
    assert!(names.contains(&"b_init [beta_driver_of_some_length]"), "{names:?}");
}

#[test]
fn what_a_journal_shows_as_bytes_is_told() {
    let log = read(
        "Mar 04 13:21:00 kepler kernel: [41B blob data]\n\
         Mar 04 13:21:01 kepler kernel: probe of a returned 0 after 5 usecs\n",
    );
    assert!(log.notes.iter().any(|n| n.starts_with("1 message is shown")), "{:?}", log.notes);
}

/// Returns the messages of a log in `tests/data` with their stamps.
fn messages(name: &str) -> Vec<(u64, String)> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let message = |line: &str| {
        let (stamp, text) = line.trim_end_matches('\r').strip_prefix('[')?.split_once("] ")?;
        let (s, us) = stamp.trim().split_once('.')?;
        Some((s.parse::<u64>().ok()? * 1_000_000 + us.parse::<u64>().ok()?, text.to_owned()))
    };
    String::from_utf8_lossy(&bytes).lines().filter_map(message).collect()
}

fn lines(messages: &[(u64, String)]) -> Vec<String> {
    messages.iter().map(|(at, text)| format!("[{}] {text}\n", stamp(*at))).collect()
}

/// Returns the lines as a terminal of that many columns breaks them.
fn broken(messages: &[(u64, String)], columns: usize) -> String {
    let broken = |line: &String| -> Vec<String> {
        let letters: Vec<char> = line.trim_end_matches('\n').chars().collect();
        letters.chunks(columns).map(|piece| piece.iter().collect::<String>() + "\n").collect()
    };
    lines(messages).iter().flat_map(broken).collect()
}

#[test]
fn logs_of_real_kernels_are_the_same_however_they_are_handed_on() {
    type Way = (&'static str, Option<&'static str>, fn(&[(u64, String)]) -> String);
    let twice = Some("there already");
    let ways: [Way; 8] = [
        ("netconsole, each third packet overtakes the one before", Some("overtaken on"), |all| {
            let line =
                |(n, (at, text)): (usize, &(u64, String))| format!("6.1.0,7,{n},{at},-;{text}\n");
            let mut lines: Vec<String> = all.iter().enumerate().map(line).collect();
            lines.chunks_mut(3).for_each(|three| three.rotate_left(1));
            lines.concat()
        }),
        ("a terminal of 80 columns", None, |all| broken(all, 80)),
        ("a terminal of 93 columns", None, |all| broken(all, 93)),
        ("two consoles", twice, |all| {
            lines(all).iter().flat_map(|line| [line.as_str(); 2]).collect()
        }),
        ("its half before it", twice, |all| {
            lines(&all[..all.len() / 2]).concat() + &lines(all).concat()
        }),
        ("its half behind it", twice, |all| {
            lines(all).concat() + &lines(&all[all.len() / 2..]).concat()
        }),
        ("pstore", Some("parts of a dump"), |all| {
            let parts = all.chunks(150).enumerate().collect::<Vec<_>>().into_iter().rev();
            let count = all.len().div_ceil(150);
            parts
                .map(|(n, part)| format!("Oops#1 Part{}\n{}", count - n, lines(part).concat()))
                .collect()
        }),
        ("HTML", None, |all| {
            let escaped = |line: &String| line.replace('&', "&amp;").replace('<', "&lt;");
            lines(all).iter().map(|line| escaped(line).replace('\n', "<br>\n")).collect()
        }),
    ];
    for name in
        ["qemu-7.3-3nvme-probe-and-poweroff.log", "qemu-6.12-16nvme-async-probe-and-reboot.log"]
    {
        let all = messages(name);
        assert!(all.len() > 400, "{name}");
        let whole = read(&lines(&all).concat());
        for (how, said, way) in ways {
            let text = way(&all);
            let log = read(&text);
            assert_eq!(log.lines, text.lines().count() as u64, "{name}, {how}");
            let told = |note: &String| said.is_none_or(|said| note.contains(said));
            assert!(said.is_none() || log.notes.iter().any(told), "{name}, {how}: {:?}", log.notes);
            assert_eq!(log.boot, whole.boot, "{name}, {how}");
            assert_eq!(log.shutdown, whole.shutdown, "{name}, {how}");
            assert_eq!(log.drivers, whole.drivers, "{name}, {how}");
            assert_eq!(log.suspicious_total, whole.suspicious_total, "{name}, {how}");
            assert!(log.boots.is_empty(), "{name}, {how}: {:?}", log.boots);
        }
    }
}
