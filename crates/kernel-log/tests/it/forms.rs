//! One small log behind every prefix, with every trap, and cut, interleaved and wrapped: small
//! imitations of what programs write.

use corewise_kernel_log::{Bound, KernelLog, Prefix, Reader};
use corewise_timeline::{Certainty, Length};

use crate::common::{check, check_ways, plain, read, stamp, us, written};

#[test]
fn behind_every_prefix_the_log_is_the_same() {
    check_ways(&[
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
    ]);
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
    // The end of an init call alone: its start is computed.
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
    // No two boots are equal to the microsecond.
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
    // A boot without a line that counts hides no other boot.
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
