//! One small log as mail, browsers, shells, phones and test labs pass it on, and logs that hold
//! several boots, or nothing readable.

use corewise_kernel_log::{KernelLog, Prefix, Reader, Unread};
use corewise_timeline::{Certainty, Driver, Length};
use std::io::Write as _;

use crate::common::{check, check_ways, plain, read, stamp, us};

fn bytes(bytes: &[u8]) -> KernelLog {
    let mut reader = Reader::new();
    reader.feed(bytes);
    reader.finish()
}

#[test]
fn damage_by_mail_and_browsers_is_undone() {
    let text = plain();
    let bare: String =
        text.lines().map(|l| l.replacen('[', "", 1).replacen(']', "", 1) + "\n").collect();
    for (how, changed) in [
        ("non-breaking spaces", text.replace(' ', "\u{a0}")),
        ("no brackets, non-breaking spaces", bare.replace(' ', "\u{a0}")),
        ("a mixture", text.replace("  ", " \u{a0}")),
        ("a byte order mark", format!("\u{feff}{text}")),
        ("a mark of direction in each line", text.replace('[', "\u{200e}[")),
        ("HTML", text.replace(' ', "&nbsp;").replace("->", "-&gt;")),
        ("quoted HTML", text.lines().map(|l| format!("&gt; {l}\n")).collect()),
        ("quoted and indented", text.lines().map(|l| format!("  >\u{a0}>> {l}\r\n")).collect()),
    ] {
        check(&read(&changed), how);
    }
}

#[test]
fn a_stamp_that_was_not_read_is_not_the_name_of_a_driver() {
    let log =
        read("[    1.0] x\n17:26 platform a: shutdown\n[x] nvme b: shutdown\nsd  c: shutdown\n");
    assert!(log.shutdown.is_empty(), "{:?}", log.shutdown);
    let lines: Vec<u64> = log.suspicious.iter().map(|s| s.line).collect();
    assert_eq!(lines, [2, 3, 4]);
    // A driver's name may begin with a digit.
    let log = read("[    1.0] 3c59x 0000:01:00.0: shutdown\n[    1.1] reboot: Power down\n");
    assert_eq!(log.shutdown.spans()[0].driver.as_ref().map(Driver::name), Some("3c59x"));
}

#[test]
fn a_mail_that_was_wrapped_behind_the_prefix_is_put_together() {
    let text = plain().replace("] probe", "]\nprobe").replace("] reboot", "]\n reboot");
    check(&read(&text), "wrapped behind the stamp");
    let quoted: String = text.lines().map(|line| format!("> {line}\n")).collect();
    check(&read(&quoted), "and quoted");
}

#[test]
fn behind_what_programs_put_before_each_line_the_log_is_the_same() {
    check_ways(&[
        ("journalctl -o export", Prefix::JournalExport, |at, t| {
            format!(
                "__CURSOR=s=1;i={at}\n__REALTIME_TIMESTAMP=1\n_TRANSPORT=kernel\nPRIORITY=6\n\
                 _SOURCE_MONOTONIC_TIMESTAMP={at}\nMESSAGE={t}\n\n"
            )
        }),
        ("MediaTek", Prefix::AndroidTask, |at, t| {
            format!("<6>[{}]  (0)[207:swapper/0]{t}\n", stamp(at))
        }),
        ("Samsung", Prefix::AndroidTask, |at, t| {
            format!("[{}] [3:      swapper/0:  207] {t}\n", stamp(at))
        }),
        ("HiSilicon", Prefix::AndroidTask, |at, t| {
            format!("[{}][pid:207,cpu3,swapper/0]{t}\n", stamp(at))
        }),
        ("logcat -b kernel", Prefix::Logcat, |at, t| {
            format!("01-01 00:00:05.140     0     0 I         : [{}] {t}\n", stamp(at))
        }),
        ("LAVA", Prefix::Lava, |at, t| {
            format!(
                "- {{\"dt\": \"2026-05-08T10:00:00.123456\", \"lvl\": \"target\", \"msg\": \
                 \"\\e[0m[{}] {t}\"}}\n- {{\"dt\": \"2026-05-08T10:00:00.2\", \"lvl\": \"debug\", \
                 \"msg\": \"probe of x returned 0 after 1 usecs\"}}\n",
                stamp(at)
            )
        }),
        ("ts", Prefix::Journal, |at, t| format!("Nov 23 00:06:27 [{}] {t}\n", stamp(at))),
        ("ts -s %.s", Prefix::Bare, |at, t| format!("0.123456 [{}] {t}\n", stamp(at))),
        ("tio", Prefix::Clock, |at, t| format!("[13:21:03.123] [{}] {t}\r\n", stamp(at))),
        ("minicom", Prefix::Clock, |at, t| {
            format!("[2026-03-04 13:21:03.123] [{}] {t}\r\n", stamp(at))
        }),
    ]);
}

#[test]
fn a_log_from_another_shell_or_a_compressed_one_is_the_same() {
    let text = plain();
    let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let log = bytes(&wide);
    check(&log, "UTF-16");
    assert!(log.notes[0].contains("UTF-16"), "{:?}", log.notes);
    let mut pack = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    pack.write_all(text.as_bytes()).unwrap();
    let packed = pack.finish().unwrap();
    let log = bytes(&packed);
    check(&log, "gzip");
    assert_eq!(log.notes[0], "the log is compressed with gzip");
    let cut = bytes(&packed[..packed.len() - 9]);
    assert!(cut.notes[0].contains("cut off") && cut.unread.is_none(), "{:?}", cut.notes);
    // No result comes of these.
    let mut damaged = packed[..300].to_vec();
    damaged[10..].fill(0xff);
    for bytes_of in [&packed[..2], &packed[..9], &packed[..14], &damaged] {
        assert_eq!(bytes(bytes_of).unread, Some(Unread::Damaged), "{}", bytes_of.len());
    }
}

#[test]
fn minutes_of_dmesg_h_order_and_do_not_measure() {
    let log = read(
        "[Nov23 00:06] Linux version 6.12.0\n[  +2.000000] nvme a: shutdown\n\
         [  +0.500000] nvme b: shutdown\n[Nov23 00:07] nvme c: shutdown\n\
         [  +0.250000] nvme d: shutdown\n[  +0.125000] reboot: Power down\n",
    );
    let found: Vec<_> = log
        .shutdown
        .spans()
        .iter()
        .map(|s| (s.name.as_str(), s.start, s.took(), s.end_certainty))
        .collect();
    assert_eq!(
        found,
        [
            ("a", us(2_000_000), Length::at_most(us(500_000)), Certainty::UpperBound),
            // Until some moment in the next minute.
            ("b", us(2_500_000), Length::UNKNOWN, Certainty::Assumed),
        ]
    );
    // The time between the two groups is unknown.
    let later: Vec<_> = log.shutdown.unplaced().iter().map(|u| u.name.as_str()).collect();
    assert_eq!(later, ["c", "d"]);
    assert_eq!(log.shutdown.makespan(), Length::at_least(us(500_000)));
    let notes = log.shutdown.notes();
    let said = |words: &str| notes.iter().any(|n| n.contains(words));
    assert!(said("only the minute where a minute begins"), "{notes:?}");
    assert!(!said("no times finer than a second"), "{notes:?}");
}

fn shutdown(from: u64, devices: &[&str], tail: &str) -> String {
    let mut text = String::new();
    for (i, device) in devices.iter().enumerate() {
        text += &format!("[{}] nvme {device}: shutdown\n", stamp(from + 1000 * i as u64));
    }
    if !tail.is_empty() {
        text += &format!("[{}] {tail}\n", stamp(from + 1000 * devices.len() as u64));
    }
    text
}

#[test]
fn two_shutdowns_are_of_two_boots() {
    let (first, second) = (172_000_000, 745_000_000);
    let down = "reboot: Restarting system";
    for (how, text) in [
        (
            "the machine was down",
            shutdown(first, &["a", "b"], down) + &shutdown(second, &["b", "c"], down),
        ),
        ("a device again", shutdown(first, &["a", "b"], "") + &shutdown(second, &["a", "b"], down)),
        (
            "the clock goes back",
            shutdown(second, &["x", "y"], "") + &shutdown(first, &["b", "c"], down),
        ),
        (
            "a probe behind it",
            shutdown(first, &["a", "b"], down)
                + "[  800.000000] probe of a returned 0 after 5 usecs\n"
                + &shutdown(801_000_000, &["b", "c"], down),
        ),
    ] {
        let log = read(&text);
        let names: Vec<&str> = log.shutdown.spans().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names.len(), 2, "{how}: {names:?}");
        assert!(log.shutdown.makespan().most() <= Some(us(2000)), "{how}");
        assert!(log.notes[0].starts_with("the log holds 2 boots"), "{how}: {:?}", log.notes);
        let listed: Vec<_> =
            log.boots.iter().map(|b| (b.first_line, b.lines, b.shutdowns, b.probes)).collect();
        let lines = text.lines().count() as u64;
        assert_eq!(listed[0].0, 1, "{how}");
        assert_eq!(listed[0].1 + listed[1].1, lines, "{how}: {listed:?}");
        assert_eq!(listed[1].0, listed[0].1 + 1, "{how}: {listed:?}");
        assert!(listed.iter().all(|l| l.2 == 2), "{how}: {listed:?}");
        let mut reader = Reader::every_boot();
        reader.feed(text.as_bytes());
        let all = reader.finish_all();
        assert_eq!(all.len(), 2, "{how}");
        for log in all {
            let longest = log.shutdown.finish() - log.shutdown.origin();
            assert!(longest <= us(2000), "{how}");
            assert_eq!(log.prefixes, [(Prefix::Printk, log.lines)], "{how}");
        }
    }
}

#[test]
fn one_shutdown_stays_one() {
    // A device's class and its bus, two devices at once, and a clock that is printed out of order.
    let text = "[    9.000000] tpm tpm0: shutdown_pre\n[    9.001000] tpm tpm0: shutdown\n\
                [    9.002000] nvme a: async_shutdown_start\n[    9.003000] nvme b: shutdown\n\
                [    9.002900] nvme c: shutdown\n[    9.004000] nvme a: async_shutdown_end\n\
                [    9.005000] reboot: Power down\n[    9.006000] ACPI: PM: Preparing to enter \
                system sleep state S5\n[    9.007000] reboot: Power down\n";
    let log = read(text);
    assert_eq!((log.shutdown.spans().len(), log.boots.len()), (4, 0));
    let class_and_bus = log.shutdown.span(log.shutdown.find("tpm0").expect("it is shut down"));
    assert_eq!(class_and_bus.took(), Length::at_most(us(2000)));
    // A boot's own words of rebooting end nothing.
    let log = read(&plain().replace(
        "] calling",
        "] reboot: Dell board detected. Selecting ACPI-method for reboots.\n[    2.000000] calling",
    ));
    check(&log, "a word about reboots");
    assert!(log.boots.is_empty());
}

#[test]
fn a_journal_names_its_boots() {
    let entry = |boot: &str, at: u64, text: &str| {
        format!(
            "{{\"_TRANSPORT\":\"kernel\",\"_BOOT_ID\":\"{boot}\",\
             \"_SOURCE_MONOTONIC_TIMESTAMP\":\"{at}\",\"MESSAGE\":\"{text}\"}}\n"
        )
    };
    let probe = "probe of a returned 0 after 5 usecs";
    let text = entry("1", 2_000_000, probe)
        + &entry("1", 3_000_000, probe)
        + &entry("2", 3_500_000, probe);
    let log = read(&text);
    assert_eq!((log.boot.spans().len(), log.boots.len()), (1, 2));
}

#[test]
fn unsupported_forms_are_named() {
    let log = bytes(b"\x28\xb5\x2f\xfd\x04\x00abcdefgh");
    assert_eq!((log.unread, log.lines), (Some(Unread::Zstd), 0));
    let mail = "Content-Transfer-Encoding: base64\n\nWyAgICAxLjBdIHg=\n";
    assert_eq!(read(mail).unread, Some(Unread::MailSource));
    // As a part of a mail, the format is reported and hides no other line.
    let log = read(&(plain() + mail));
    check(&log, "before a part in base64");
    assert!(
        log.unread.is_none() && log.notes.iter().any(|n| n.contains("base64")),
        "{:?}",
        log.notes
    );
    assert_eq!(read(&plain()).unread, None);
}

#[test]
fn the_kept_lines_are_bounded() {
    let mut reader = Reader::new();
    // Long lines fill the room soonest.
    let name = "x".repeat(16_000);
    for n in 0..7_000_u32 {
        let line = format!("[    9.000000] platform {n}{name}: Linked as a consumer to a\n");
        reader.feed(line.as_bytes());
    }
    let log = reader.finish();
    let kept = log.graph.edges().len();
    assert!((5_000..7_000).contains(&kept), "{kept}");
    let said = format!("{} lines were understood but not kept", 7_000 - kept);
    assert!(log.notes.iter().any(|note| note.starts_with(&said)), "{:?}", log.notes);
}
