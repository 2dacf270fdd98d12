//! One small log, and the results that it must give in every form of writing.
#![allow(dead_code, reason = "each test takes what it needs")]

use corewise_kernel_log::{KernelLog, Prefix, Reader};
use corewise_timeline::{Driver, Length, SpanKind};
use std::fmt::Write as _;
use std::time::Duration;

pub(crate) const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Messages of the kernel, each with its microseconds.
pub(crate) const LOG: [(u64, &str); 12] = [
    (1_000_000, "Linux version 6.12.0 (someone@somewhere)"),
    (2_000_000, "calling  nvme_init+0x0/0xff0 [nvme] @ 207"),
    (2_000_100, "nvme 0000:01:00.0: enabling device (0000 -> 0002)"),
    (2_090_000, "probe of 0000:01:00.0 returned 0 after 89900 usecs"),
    (2_090_100, "initcall nvme_init+0x0/0xff0 [nvme] returned 0 after 90050 usecs"),
    (2_100_000, "platform leds: error -EPROBE_DEFER: supplier gpio not ready"),
    (2_100_010, "probe of leds returned -517 after 9 usecs"),
    (9_000_000, "leds leds: shutdown"),
    (9_000_500, "nvme 0000:01:00.0: shutdown"),
    (9_050_000, "nvme 0000:01:00.0: the device speaks"),
    (9_080_500, "platform Fixed MDIO bus.0: shutdown"),
    (9_080_700, "reboot: Restarting system"),
];

pub(crate) fn read(text: &str) -> KernelLog {
    let mut reader = Reader::new();
    reader.feed(text.as_bytes());
    reader.finish()
}

pub(crate) fn written(line: impl Fn(u64, &str) -> String) -> String {
    LOG.iter().map(|(at, text)| line(*at, text)).collect()
}

pub(crate) fn stamp(at: u64) -> String {
    format!("{:5}.{:06}", at / 1_000_000, at % 1_000_000)
}

pub(crate) fn plain() -> String {
    written(|at, text| format!("[{}] {text}\n", stamp(at)))
}

/// Checks the results that every form of writing must give.
pub(crate) fn check(log: &KernelLog, how: &str) {
    let boot: Vec<_> = log
        .boot
        .spans()
        .iter()
        .map(|s| (s.name.as_str(), s.kind, s.start, s.end, s.driver.as_ref().map(Driver::name)))
        .collect();
    let leds_driver = Some("leds");
    assert_eq!(
        boot,
        [
            ("nvme_init [nvme]", SpanKind::Initcall, us(2_000_050), us(2_090_100), Some("nvme")),
            ("0000:01:00.0", SpanKind::Probe, us(2_000_100), us(2_090_000), Some("nvme")),
            ("leds", SpanKind::Probe, us(2_100_001), us(2_100_010), leds_driver),
        ],
        "{how}"
    );
    let probe = log.boot.find("0000:01:00.0").expect("it is one of the spans above");
    assert_eq!(log.boot.span(probe).worker, "pid 207", "{how}");
    let shutdown: Vec<_> =
        log.shutdown.spans().iter().map(|s| (s.name.as_str(), s.took())).collect();
    let down = [("leds", 500), ("0000:01:00.0", 80_000), ("Fixed MDIO bus.0", 200)];
    assert_eq!(shutdown, down.map(|(name, gap)| (name, Length::at_most(us(gap)))), "{how}");
    assert_eq!(log.kernel.as_deref(), Some("6.12.0"), "{how}");
    assert_eq!(log.deferrals.len(), 1, "{how}");
    assert_eq!(log.deferrals[0].reasons, ["supplier gpio not ready"], "{how}");
    assert_eq!(log.suspicious_total, 0, "{how}: {:?}", log.suspicious);
}

/// A name, the prefix that the reader must find, and a function that writes a line.
pub(crate) type Way = (&'static str, Prefix, fn(u64, &str) -> String);

/// Checks that the log is the same in each of these forms.
#[track_caller]
pub(crate) fn check_ways(ways: &[Way]) {
    for (how, prefix, line) in ways {
        let log = read(&written(line));
        check(&log, how);
        assert!(log.prefixes.iter().any(|(p, _)| p == prefix), "{how}: {:?}", log.prefixes);
    }
}

/// Returns a log of `others` and init calls. A call is the stamp of its first line, that of its
/// last, and its printed duration.
pub(crate) fn shifted_log(calls: &[(u64, u64, u64)], others: &str) -> KernelLog {
    let mut text = others.to_owned();
    for (i, (from, to, printed)) in calls.iter().enumerate() {
        writeln!(text, "[{}] calling  a{i}+0x0/0x10 @ 1", stamp(*from)).expect("into a text");
        let to = stamp(*to);
        writeln!(text, "[{to}] initcall a{i}+0x0/0x10 returned 0 after {printed} usecs")
            .expect("into a text");
    }
    read(&text)
}
