//! The prefixes of a kernel's message: stamps, log levels, callers, the names of a journal.

mod fields;

use crate::form::Prefix;
use crate::form::{Clock, Stamp, digits, fraction_ns, unit};
use fields::WallClock;
use fields::{caller, logcat, task};

/// Nanoseconds from which a stamp counts from 1970: no kernel runs for 30 years.
const EPOCH: u64 = 1_000_000_000 * 1_000_000_000;

/// A message and its prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StrippedLine<'a> {
    pub stamp: Option<Stamp>,
    /// Thread that logged the line (`[ T8227]`); `None` also for a CPU (`[    C3]`).
    pub thread: Option<u32>,
    /// Prefixes that were found, outermost first.
    pub kinds: Vec<Prefix>,
    /// True for a journal's line of another program than the kernel.
    pub foreign: bool,
    /// Number that the kernel gave the message.
    pub sequence: Option<u64>,
    pub text: &'a str,
}

/// Reads prefixes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    wall: WallClock,
    /// Last stamp of a `dmesg --reltime`, which prints differences.
    relative: u64,
    /// True after a line with a minute alone: its distance from the line before is unknown.
    lost: bool,
}

impl Prefixes {
    /// Removes the prefixes of one line.
    pub(crate) fn strip<'a>(&mut self, line: &'a str) -> StrippedLine<'a> {
        let mut s = StrippedLine { text: line.trim_end(), ..StrippedLine::default() };
        let unquoted = quoted(s.text);
        if unquoted.len() < s.text.trim_start().len() {
            s.kinds.push(Prefix::MailQuote);
        }
        s.text = unquoted;
        // A log that passed through several programs has several prefixes. The inner ones are
        // nearer to the kernel, so their stamps win.
        for _ in 0..4 {
            if !self.one(&mut s) {
                break;
            }
        }
        s
    }

    /// Removes one prefix; returns false if there is none.
    fn one(&mut self, s: &mut StrippedLine<'_>) -> bool {
        let text = s.text;
        let Some(&first) = text.as_bytes().first() else { return false };
        match first {
            b'<' => {
                let Some((level, rest)) = text[1..].split_once('>') else { return false };
                if level.is_empty() || level.len() > 3 || !digits(level) {
                    return false;
                }
                s.kinds.push(Prefix::Level);
                s.text = rest;
                true
            }
            b'[' => self.bracket(s),
            b'0'..=b'9' => self.number(s),
            _ => facility(s) || self.journal(s),
        }
    }

    /// Reads `[    1.234567] `, also as `dmesg` and `printk` vary it.
    fn bracket(&mut self, s: &mut StrippedLine<'_>) -> bool {
        let Some((inside, rest)) = s.text[1..].split_once(']') else { return false };
        let inside = inside.trim_start();
        let plus = inside.strip_prefix('+');
        if let Some(difference) = plus.or_else(|| inside.strip_prefix('-')) {
            let Some((ns, false)) = seconds(difference) else { return false };
            // Two CPUs may have written in the wrong order.
            self.relative = match plus {
                Some(_) => self.relative.saturating_add(ns),
                None => self.relative.saturating_sub(ns),
            };
            let stamp = Stamp::new(self.relative, Clock::Log);
            s.stamp = Some(Stamp { coarse: self.lost, ..stamp });
            s.kinds.push(Prefix::DmesgDelta);
        } else if let Some((number, (ns, coarse))) = printk(inside) {
            let unit = unit(number);
            s.stamp = Some(Stamp { coarse, unit, ..Stamp::new(ns, Clock::Boot) });
            s.kinds.push(Prefix::Printk);
        } else if let Some(stamp) = self.wall.ctime(inside) {
            s.stamp = Some(stamp);
            s.kinds.push(Prefix::DmesgCtime);
        } else if let Some(stamp) = self.wall.iso(inside).or_else(|| self.wall.time(inside)) {
            s.stamp = Some(stamp);
            s.kinds.push(Prefix::Clock);
        } else if let Some(minutes) = self.wall.minute(inside) {
            // The line lies somewhere in this minute, as the first one did in its own.
            let earliest = minutes.saturating_sub(1).saturating_mul(60_000_000_000);
            self.lost |= self.relative > 0;
            self.relative = self.relative.max(earliest);
            let stamp = Stamp::new(self.relative, Clock::Log);
            s.stamp = Some(Stamp { coarse: true, ..stamp });
            s.kinds.push(Prefix::DmesgMinute);
        } else if inside.starts_with('<') && s.stamp.is_none() {
            // `dmesg --show-delta` without stamps.
            let delta = inside.trim_matches(['<', '>', ' ']);
            let Some((ns, false)) = seconds(delta) else { return false };
            self.relative = self.relative.saturating_add(ns);
            s.stamp = Some(Stamp::new(self.relative, Clock::Log));
            s.kinds.push(Prefix::DmesgDelta);
        } else if let Some(task) = caller(s.text) {
            s.thread = task.thread;
            s.kinds.push(task.kind);
            s.text = task.rest.trim_start();
            return true;
        } else {
            return false;
        }
        let mut rest = rest;
        if let Some(task) = task(rest) {
            s.thread = task.thread;
            s.kinds.push(task.kind);
            rest = task.rest;
        }
        s.text = rest.strip_prefix(' ').unwrap_or(rest);
        // `journalctl -o short-monotonic` puts its host and program behind such a stamp.
        if let Some(rest) = after_kernel(s.text) {
            s.text = rest;
            s.kinds.push(Prefix::JournalMonotonic);
        }
        true
    }

    /// Reads a prefix that begins with a digit: `/dev/kmsg`, an ISO date, or a stamp without
    /// brackets.
    fn number(&mut self, s: &mut StrippedLine<'_>) -> bool {
        if let Some(kmsg) = kmsg(s.text) {
            s.stamp = Some(kmsg.stamp);
            s.thread = kmsg.thread.or(s.thread);
            s.sequence = Some(kmsg.sequence);
            s.kinds.push(Prefix::Kmsg);
            s.text = kmsg.text;
            return true;
        }
        let Some(end) = s.text.find(' ') else { return false };
        let (mut word, mut rest) = s.text.split_at(end);
        // The version of syslog's protocol, RFC 5424, stands behind a level.
        let protocol = word == "1" && s.kinds.last() == Some(&Prefix::Level);
        if protocol {
            (word, rest) = rest.trim_start().split_once(' ').unwrap_or_default();
        }
        if let Some(stamp) = self.wall.iso(word) {
            s.stamp = Some(stamp);
            s.kinds.push(Prefix::Iso);
            s.text = rest.trim_start();
            if protocol {
                syslog(s);
            } else {
                program(s);
            }
            return true;
        }
        if let Some(stamp) = self.wall.time(word) {
            s.stamp = Some(stamp);
            s.kinds.push(Prefix::Clock);
            s.text = rest.trim_start();
            program(s);
            return true;
        }
        if word.matches('-').count() > 0 && word.split('-').all(digits) {
            return self.date_and_time(s, word, rest.trim_start());
        }
        match (seconds(word), word.split_once('.')) {
            (Some((ns, coarse)), Some((_, fraction))) if fraction.len() >= 6 => {
                // Seconds since 1970, as of `journalctl -o short-unix` and `ts %.s`, are the
                // receiver's.
                let received = ns >= EPOCH;
                let clock = if received { Clock::Wall } else { Clock::Log };
                s.stamp = Some(Stamp { coarse, received, ..Stamp::new(ns, clock) });
                s.kinds.push(Prefix::Bare);
                s.text = rest.trim_start();
                program(s);
                true
            }
            _ => false,
        }
    }

    /// Reads `01-01 00:00:05.140 0 0 I : `, as `logcat` writes it, or a date with its year, and a
    /// time.
    fn date_and_time<'a>(&mut self, s: &mut StrippedLine<'a>, date: &str, rest: &'a str) -> bool {
        let (time, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let day = date.rsplit('-').next().unwrap_or_default();
        let logcat = logcat(rest);
        if date.len() != 10 && (date.len() != 5 || logcat.is_none()) {
            return false;
        }
        let Some(stamp) = self.wall.date(day, time) else { return false };
        s.stamp = Some(stamp);
        if let Some((foreign, message)) = logcat {
            // The times of the kernel's lines are the kernel's.
            s.stamp = Some(Stamp { received: false, ..stamp });
            (s.foreign, s.text) = (foreign, message);
            s.kinds.push(Prefix::Logcat);
            return true;
        }
        s.text = rest.trim_start();
        s.kinds.push(Prefix::Clock);
        program(s);
        true
    }

    /// Reads `mar 06 13:18:23 kepler kernel: `; the month is a word of any language.
    fn journal(&mut self, s: &mut StrippedLine<'_>) -> bool {
        let Some((month, rest)) = s.text.split_once(' ') else { return false };
        let Some((day, rest)) = rest.trim_start().split_once(' ') else { return false };
        if month.chars().count() > 12 || !month.chars().all(|c| c.is_alphabetic() || c == '.') {
            return false;
        }
        let rest = rest.trim_start();
        let (time, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        // `Fri 2026-03-06 13:18:23 CET`, as with `-o short-full`.
        let full = day.len() == 10 && day.split('-').all(digits);
        let day = if full { &day[8..] } else { day };
        let Some(stamp) = self.wall.date(day, time) else { return false };
        s.stamp = Some(stamp);
        s.kinds.push(Prefix::Journal);
        s.text = match (full, rest.split_once(' ')) {
            (true, Some((_zone, rest))) => rest,
            _ => rest,
        };
        program(s);
        true
    }
}

/// Returns `line` without the marks of a mail's quotation.
fn quoted(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some(next) = rest.strip_prefix('>') {
        rest = next.trim_start_matches(' ');
    }
    rest
}

/// Reads `kern  :info  : `, as `dmesg -x` writes it.
fn facility(s: &mut StrippedLine<'_>) -> bool {
    const FACILITIES: [&str; 12] = [
        "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron",
        "authpriv", "ftp",
    ];
    const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"];
    let Some((facility, rest)) = s.text.split_once(':') else { return false };
    let facility = facility.trim_end();
    if !FACILITIES.contains(&facility) && !facility.starts_with("local") {
        return false;
    }
    let Some((level, rest)) = rest.split_once(':') else { return false };
    if !LEVELS.contains(&level.trim_end()) {
        return false;
    }
    s.kinds.push(Prefix::Facility);
    s.text = rest.trim_start();
    true
}

/// Removes `kepler kernel: `, or records that another program wrote the line.
fn program(s: &mut StrippedLine<'_>) {
    if let Some(rest) = after_kernel(s.text) {
        s.text = rest;
        if let Some(stamp) = &mut s.stamp {
            stamp.received = stamp.is_wall();
        }
        return;
    }
    let mut words = s.text.splitn(3, ' ');
    let (Some(host), Some(name)) = (words.next(), words.next()) else { return };
    s.foreign = !host.ends_with(':') && name.ends_with("]:") && name.contains('[');
}

/// Removes `HOST APP PROCID MSGID STRUCTURED-DATA `, the prefix of RFC 5424.
fn syslog(s: &mut StrippedLine<'_>) {
    let words: Vec<&str> = s.text.splitn(5, ' ').collect();
    let [_host, app, _process, _kind, rest] = words[..] else { return };
    let data = match rest.strip_prefix("- ") {
        Some(text) => Some(text),
        None => rest.strip_prefix('[').and_then(|data| Some(data.split_once("] ")?.1)),
    };
    let Some(text) = data else { return };
    s.foreign = app != "kernel";
    s.text = text.trim_start_matches('\u{feff}');
}

/// Returns the text behind `kernel: ` or `HOST kernel: `.
fn after_kernel(text: &str) -> Option<&str> {
    let (first, rest) = text.split_once(' ')?;
    if first == "kernel:" {
        return Some(rest);
    }
    rest.strip_prefix("kernel:").map(|rest| rest.strip_prefix(' ').unwrap_or(rest))
}

/// A message of `/dev/kmsg`.
struct Kmsg<'a> {
    stamp: Stamp,
    thread: Option<u32>,
    sequence: u64,
    text: &'a str,
}

/// Reads `6,339,5140900,-;text`, with further fields before the semicolon on newer kernels, and
/// with the kernel's release in front (netconsole with `+r`). Of a message that netconsole sent in
/// pieces, only the first piece has a beginning that can be read.
fn kmsg(text: &str) -> Option<Kmsg<'_>> {
    let (head, rest) = text.split_once(';')?;
    let mut fields = head.split(',');
    let mut level = fields.next()?;
    if level.contains('.') {
        level = fields.next()?;
    }
    let sequence = fields.next().filter(|s| digits(level) && digits(s))?;
    let micros: u64 = fields.next()?.parse().ok()?;
    let _flags = fields.next()?;
    let (mut thread, mut first) = (None, true);
    for field in fields {
        if let Some(caller) = field.strip_prefix("caller=T") {
            thread = caller.parse().ok();
        }
        if let Some(piece) = field.strip_prefix("ncfrag=") {
            first = piece.starts_with("0/");
        }
    }
    let stamp = Stamp::new(micros.saturating_mul(1000), Clock::Boot);
    let text = if first { rest } else { "" };
    Some(Kmsg { stamp, thread, sequence: sequence.parse().ok()?, text })
}

/// Splits the number off that begins the inside of a stamp's brackets, and reads it. Vendors write
/// their own marks behind its six digits: `5.140900@1`, `5.140900s`.
fn printk(inside: &str) -> Option<(&str, (u64, bool))> {
    let number = inside.split([' ', '<']).next().unwrap_or_default();
    if let Some(stamp) = seconds(number) {
        return Some((number, stamp));
    }
    let end = inside.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, mark) = inside.split_at(end);
    let known = mark.starts_with(['@', 's', ',', '/', '|', ':', '#']);
    let micros = number.split_once('.').is_some_and(|(_, fraction)| fraction.len() == 6);
    Some((number, seconds(number).filter(|_| known && micros)?))
}

/// Reads seconds with a fraction, as nanoseconds; and true if the fraction was blanked out
/// (`1125.***`).
fn seconds(text: &str) -> Option<(u64, bool)> {
    let (whole, fraction) = text.trim_end().split_once('.')?;
    if !digits(whole) {
        return None;
    }
    let ns = whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    if !fraction.is_empty() && fraction.bytes().all(|b| matches!(b, b'*' | b'x' | b'X' | b'?')) {
        return Some((ns, true));
    }
    Some((ns.checked_add(fraction_ns(fraction)?)?, false))
}

/// Returns the position in `text`, not at its beginning, of a `printk` stamp: two writers of one
/// console do not wait for each other's ends of line.
pub(crate) fn stamp_inside(text: &str) -> Option<usize> {
    let mut from = 1;
    while let Some(at) = text.get(from..)?.find('[').map(|at| from + at) {
        if let Some((inside, _)) = text[at + 1..].split_once(']') {
            let inside = inside.trim_start_matches(' ');
            let micros = inside.split_once('.').filter(|(s, us)| digits(s) && digits(us));
            // A stamp is padded with blanks to five digits of seconds.
            let width = inside.len() >= 8 && text[at + 1..].len() >= 12;
            if micros.is_some_and(|(_, us)| us.len() == 6) && width {
                return Some(at);
            }
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(line: &str) -> StrippedLine<'_> {
        Prefixes::default().strip(line)
    }

    const MESSAGE: &str = "nvme 0000:01:00.0: shutdown";

    /// Microseconds of the time of day 13:21:03.
    const DAY: u64 = (13 * 3600 + 21 * 60 + 3) * 1_000_000;

    #[test]
    fn a_prefix_is_taken_off_and_its_stamp_is_read() {
        const SYSLOG: &str = "<6>1 2026-03-04T13:21:03.123456Z kepler kernel - -";
        let rfc = ["-", "[origin software=\"rsyslogd\"]"].map(|data| format!("{SYSLOG} {data} "));
        for (prefix, us) in [
            ("[12345.678901] ", 12_345_678_901),
            ("[1125.***] ", 1_125_000_000),
            (&rfc[0], DAY + 123_456),
            (&rfc[1], DAY + 123_456),
            ("[Wed Mar  4 13:21:03 2026] ", DAY),
            ("2026-03-04T13:21:03,123456+00:00 ", DAY + 123_456),
            ("2026-03-04T13:21:03.123456+0100 kepler kernel: ", DAY + 123_456),
            ("2026-03-04T13:21:03.123456-05:00 kepler kernel: ", DAY + 123_456),
            // A journal has months of any language.
            ("mar 06 13:21:03 kepler kernel: ", DAY),
            ("Mär 06 13:21:03 kepler kernel: ", DAY),
            ("Mar  6 13:21:03 kepler kernel: ", DAY),
            ("févr. 06 13:21:03 kernel: ", DAY),
            ("Fri 2026-03-06 13:21:03 CET kepler kernel: ", DAY),
            ("[    5.140900] kernel: ", 5_140_900),
            (">> [  172.609825] ", 172_609_825),
            ("172.609825      ", 172_609_825),
            ("01-01 00:00:05.123     0     0 I         : ", 5_123_000),
        ] {
            let line = format!("{prefix}{MESSAGE}");
            let stripped = strip(&line);
            assert_eq!((stripped.text, stripped.foreign), (MESSAGE, false), "{prefix}");
            assert_eq!(stripped.stamp.map(|s| s.ns), Some(us * 1000), "{prefix}");
        }
        for none in [
            "",
            "[...]",
            "[root@localhost ~]# x",
            "<html> x",
            "nvme x: shutdown",
            "6.12.3,x,339,5140900,-;x",
            "a,b;x",
            "6,7;x",
            "6.12.3,7,339,-,5140900;x",
            "[2.0A] x",
            "[1.234567.8] x",
            "[1.5GHz] x",
            "[Nov23] a",
            "[00:06 Nov23] a",
            "[23 00:06] a",
            "[Nov32 00:06] a",
        ] {
            assert_eq!(strip(none).stamp, None, "{none}");
        }
        assert_eq!(strip("<html> x").text, "<html> x");
        assert!(strip("[5.0000011] ").kinds.contains(&Prefix::Printk));
    }

    #[test]
    fn prefixes_name_the_thread_and_say_what_they_are() {
        use Prefix::{CallerId, Facility, Journal, Level, MailQuote, Printk};
        for (prefix, thread, kinds) in [
            ("[   41.490716][ T8227] ", Some(8227), &[Printk, CallerId][..]),
            ("[   41.490716][    C3] ", None, &[Printk, CallerId]),
            ("[  T8227] ", Some(8227), &[CallerId]),
            ("6,339,5140900,-,caller=T17;", Some(17), &[Prefix::Kmsg]),
            ("6.13.0-rc2+,7,1,5140900,-,caller=T17;", Some(17), &[Prefix::Kmsg]),
            ("<6>[    5.000001] ", None, &[Level, Printk]),
            ("kern  :info  : [    2.000003] ", None, &[Facility, Printk]),
            ("Fri 2026-03-06 13:18:23 CET kepler kernel: ", None, &[Journal]),
            ("Mar  6 13:18:23 kepler kernel: [    5.140900] ", None, &[Journal, Printk]),
            ("> > [  172.609825] ", None, &[MailQuote, Printk]),
        ] {
            let line = format!("{prefix}{MESSAGE}");
            let stripped = strip(&line);
            assert_eq!((stripped.text, stripped.thread), (MESSAGE, thread), "{prefix}");
            assert_eq!(stripped.kinds, kinds, "{prefix}");
        }
        for (prefix, foreign) in [
            ("mar 06 13:18:23 kepler systemd[1]: ", true),
            ("mar 06 13:18:23 kepler kernel: ", false),
            ("<6>1 2026-03-04T13:21:03.123456Z kepler systemd 1 - - ", true),
            ("01-01 00:00:05.123   512   530 D Zygote  : ", true),
        ] {
            assert_eq!(strip(&format!("{prefix}x: shutdown")).foreign, foreign, "{prefix}");
        }
        assert_eq!(strip("6.12.3,7,339,5140900,-;x").sequence, Some(339));
        // Only the first piece of a message has a beginning that can be read.
        let piece = |at| format!("6,416,1758426,-,ncfrag={at}/33;probe of a");
        assert_eq!((strip(&piece(0)).text, strip(&piece(16)).text), ("probe of a", ""));
    }

    #[test]
    fn a_stamp_says_how_far_it_can_be_trusted() {
        for (line, is_wall, coarse, received) in [
            ("172.609825 x", false, false, false),
            ("[1125.***] x", false, true, false),
            ("Mar  6 13:18:23 kepler kernel: [    5.140900] x", false, false, false),
            ("[Wed Mar  4 13:21:03 2026] x", true, true, true),
            ("2026-03-04T13:21:03,123456+00:00 x", true, false, false),
            ("2026-03-04T13:21:03+0100 kepler kernel: x", true, true, true),
            ("mar 06 13:18:23 kepler kernel: x", true, true, true),
            ("Mar 06 13:18:23.123456 kepler kernel: x", true, false, true),
            ("1772630460.001001 host kernel: x", true, false, true),
            ("13:21:03.123456 x", true, false, true),
            ("<6>1 2026-03-04T13:21:03.123456Z kepler kernel - - - x", true, false, true),
        ] {
            let stamp = strip(line).stamp.unwrap();
            let found = (stamp.is_wall(), stamp.coarse, stamp.received);
            assert_eq!(found, (is_wall, coarse, received), "{line}");
        }
    }

    #[test]
    fn stamps_that_follow_each_other_add_up() {
        let mut prefixes = Prefixes::default();
        let mut next = |line: &str| prefixes.strip(line).stamp.unwrap().ns;
        assert_eq!(next("[  +0.000013] a"), 13_000);
        assert_eq!(next("[  +1.000000] a"), 1_000_013_000);
        assert_eq!(next("[  -0.000013] a"), 1_000_000_000);
        // If both are present, the stamp can be read.
        assert_eq!(next("[    7.000001 <    0.000013>] a"), 7_000_001_000);
        // Midnight goes forward.
        let before = next("mar 31 23:59:59 kepler kernel: a");
        assert_eq!(next("apr 01 00:00:01 kepler kernel: a") - before, 2_000_000_000);
    }

    #[test]
    fn minutes_of_dmesg_h_go_forward_and_say_no_more_than_that() {
        let mut prefixes = Prefixes::default();
        let mut next = |line: &str| {
            let stamp = prefixes.strip(line).stamp.unwrap();
            (stamp.ns, stamp.coarse)
        };
        assert_eq!(next("[Nov22 23:59] a"), (0, true));
        assert_eq!(next("[  +0.000013] a"), (13_000, false));
        // Between the two minutes lie some moments, or nearly two minutes.
        assert_eq!(next("[Nov23 00:00] a"), (13_000, true));
        assert_eq!(next("[  +0.000001] a").0, 14_000);
        assert_eq!(next("[Nov 23 00:05] a").0, 5 * 60_000_000_000);
    }

    #[test]
    fn the_time_or_the_task_of_other_programs_stands_around_the_stamp() {
        for prefix in [
            "[13:21:03.123] ",
            "13:21:03.123 ",
            "[2026-03-04 13:21:03.123] ",
            "2026-03-04 13:21:03.123 ",
            "[2026-03-04T13:21:03.123Z] ",
        ] {
            for (stamp, ns) in [("", (DAY + 123_000) * 1000), ("[    5.000001] ", 5_000_001_000)] {
                let line = format!("{prefix}{stamp}{MESSAGE}");
                assert_eq!(strip(&line).stamp.map(|s| s.ns), Some(ns), "{line}");
                assert_eq!(strip(&line).text, MESSAGE, "{line}");
            }
        }
        for prefix in [
            "[    5.000001] (0)[1:swapper/0]",
            "<6>[    5.000001]  (0)[1:swapper/0]",
            "[    5.000001] [3:      swapper/0:    1] ",
            "[    5.000001 / 01-01 00:00:05.123][3: swapper/0: 1] ",
            "01-01 00:00:05.000     0     0 I         : [    5.000001][ T1] ",
        ] {
            let line = format!("{prefix}{MESSAGE}");
            let found = strip(&line);
            assert_eq!((found.text, found.thread), (MESSAGE, Some(1)), "{prefix}");
            assert_eq!(found.stamp.map(|s| s.ns), Some(5_000_001_000), "{prefix}");
        }
    }

    #[test]
    fn a_second_stamp_in_a_line_is_found() {
        let line = "regulatory.0: shutdown [   41.491726][ T8227] sd 0:0:0:0: shutdown";
        assert_eq!(stamp_inside(line), Some(23));
        assert_eq!(stamp_inside("[   41.491726] sd 0:0:0:0: [sda] Synchronizing"), None);
        assert_eq!(stamp_inside("[   41.491726] version [1.234567]"), None);
        assert_eq!(stamp_inside(""), None);
    }
}
