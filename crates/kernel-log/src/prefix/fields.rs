//! Fields of a prefix. The author of a line comes from kernels and vendors behind a stamp, and from
//! Android's `logcat`. Clocks on the wall (the time of day) come from the programs that save logs.

use crate::form::{Clock, Prefix, Stamp, digits, fraction_ns, unit};

/// A task, or a CPU, behind a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task<'a> {
    /// Thread; `None` if only the CPU is known.
    pub thread: Option<u32>,
    pub kind: Prefix,
    /// Text behind it.
    pub rest: &'a str,
}

/// Reads `[ T8227]`, `[    C3]`, and those of Android's vendors.
pub(crate) fn task(text: &str) -> Option<Task<'_>> {
    let text = text.trim_start_matches(' ');
    caller(text).or_else(|| cpu_and_task(text)).or_else(|| in_brackets(text))
}

/// Reads the field of `CONFIG_PRINTK_CALLER`, which stands alone without stamps.
pub(crate) fn caller(text: &str) -> Option<Task<'_>> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let inside = inside.trim_start();
    let kind = Prefix::CallerId;
    match (inside.strip_prefix('T'), inside.strip_prefix('C')) {
        (Some(id), _) if digits(id) => Some(Task { thread: id.parse().ok(), kind, rest }),
        (_, Some(id)) if digits(id) => Some(Task { thread: None, kind, rest }),
        _ => None,
    }
}

/// Reads `(0)[1:swapper/0]`, perhaps behind a level and a mark of the context.
fn cpu_and_task(text: &str) -> Option<Task<'_>> {
    let text = match text.strip_prefix('<').and_then(|t| t.split_once('>')) {
        Some((level, rest)) if digits(level) => rest,
        _ => text,
    };
    let text = text.trim_start_matches(['.', '-', '~', '*', ' ']);
    let (cpu, rest) = text.strip_prefix('(')?.split_once(")[")?;
    let (inside, rest) = rest.split_once(']')?;
    let (thread, name) = inside.split_once(':')?;
    named(cpu, name, thread, rest)
}

/// Reads `[3: swapper/0: 1]`, perhaps behind a letter for the level, or `[pid:1,cpu3,swapper/0]`.
fn in_brackets(text: &str) -> Option<Task<'_>> {
    let text = text.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or(text);
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    if let Some(inside) = inside.strip_prefix("pid:") {
        let (thread, inside) = inside.split_once(',')?;
        let (cpu, name) = inside.strip_prefix("cpu")?.split_once(',')?;
        return named(cpu, name, thread, rest);
    }
    let (cpu, inside) = inside.split_once(':')?;
    let (name, thread) = inside.rsplit_once(':')?;
    named(cpu, name, thread, rest)
}

fn named<'a>(cpu: &str, name: &str, thread: &str, rest: &'a str) -> Option<Task<'a>> {
    let (cpu, thread) = (cpu.trim(), thread.trim());
    let thread = thread.parse().ok().filter(|_| digits(thread) && digits(cpu))?;
    // A task's name has 15 letters.
    (1..=16).contains(&name.trim().len()).then_some(Task {
        thread: Some(thread),
        kind: Prefix::AndroidTask,
        rest,
    })
}

/// Reads what `adb logcat` puts behind the time: `  0     0 I         : `. Returns true if a
/// program other than the kernel logged the line, and the rest of the line.
pub(crate) fn logcat(text: &str) -> Option<(bool, &str)> {
    let mut rest = text.trim_start();
    let mut word = || -> Option<&str> {
        let (word, behind) = rest.split_once(' ')?;
        rest = behind.trim_start();
        Some(word)
    };
    let mut process = word()?;
    if !digits(process) {
        // `-v uid` adds the user.
        process = word()?;
    }
    let (thread, level) = (word()?, word()?);
    if !digits(process) || !digits(thread) || !matches!(level, "V" | "D" | "I" | "W" | "E" | "F") {
        return None;
    }
    // The kernel is process 0, and its message follows its empty tag. `logcat` takes a driver and
    // its device for the tag: then the tag belongs to the message.
    let message = match rest.split_once(": ") {
        Some((tag, message)) if matches!(tag.trim_end(), "" | "kernel") => message,
        _ => rest.strip_prefix(": ").unwrap_or(rest),
    };
    Some((process != "0", message))
}

const MINUTE: u64 = 60 * 1_000_000_000;
const DAY: u64 = 24 * 60 * MINUTE;

/// Remembers the days that have passed, which these clocks don't show.
#[derive(Clone, Debug, Default)]
pub(crate) struct WallClock {
    day: Option<u64>,
    days: u64,
    /// Last time of a day whose date is unknown.
    time: u64,
    /// First minute that stood alone.
    first_minute: Option<u64>,
}

impl WallClock {
    /// Reads a date and a time. The month does not matter: a new day of the month is the next day.
    pub(crate) fn date(&mut self, day: &str, time: &str) -> Option<Stamp> {
        let day: u64 = day.parse().ok().filter(|d| (1..=31).contains(d))?;
        let (ns, coarse) = time_of_day(time)?;
        Some(Stamp { unit: unit(time), ..self.on(day, ns, coarse) })
    }

    fn on(&mut self, day: u64, ns: u64, coarse: bool) -> Stamp {
        if self.day.replace(day).is_some_and(|last| last != day) {
            self.days += 1;
        }
        let ns = self.days.saturating_mul(DAY).saturating_add(ns);
        received(ns, coarse, "")
    }

    /// Reads `13:18:23.123` alone. If it goes back by hours, it is midnight.
    pub(crate) fn time(&mut self, time: &str) -> Option<Stamp> {
        let (ns, coarse) = time_of_day(time)?;
        if std::mem::replace(&mut self.time, ns) > ns + DAY / 2 {
            self.days += 1;
        }
        let ns = self.days.saturating_mul(DAY).saturating_add(ns);
        Some(received(ns, coarse, time))
    }

    /// Reads `Wed Mar  4 13:21:03 2026`, as `dmesg -T` writes it.
    pub(crate) fn ctime(&mut self, text: &str) -> Option<Stamp> {
        let mut words = text.split_ascii_whitespace();
        let (_weekday, _month, day) = (words.next()?, words.next()?, words.next()?);
        let time = words.next()?;
        let _year = words.next().filter(|y| digits(y))?;
        self.date(day, time)
    }

    /// Reads `2026-03-04T13:21:03,123456+00:00`, or the form with a blank in place of the letter.
    pub(crate) fn iso(&mut self, text: &str) -> Option<Stamp> {
        let (date, time) = text.split_once(['T', ' '])?;
        let day = date.rsplit('-').next().unwrap_or_default();
        if date.split('-').count() != 3 || !date.split('-').all(digits) {
            return None;
        }
        let time = time.split_once(['+', 'Z']).map_or(time, |(time, _)| time);
        // `-05:00` behind the time.
        let time = time.split_once('-').map_or(time, |(time, _)| time);
        // `dmesg` writes the kernel's times with a comma; receivers write theirs with a point.
        let kernels = text.contains('T') && time.contains(',');
        let stamp = self.date(day, time)?;
        Some(Stamp { received: !kernels, ..stamp })
    }

    /// Reads `Nov23 00:06`, as `dmesg -H` writes it at the first line of a minute. Returns the
    /// minutes since the first one that was read.
    pub(crate) fn minute(&mut self, text: &str) -> Option<u64> {
        let (date, time) = text.trim().rsplit_once(' ')?;
        let day = date.trim_start_matches(char::is_alphabetic);
        if day.len() == date.len() || time.len() != 5 {
            return None;
        }
        let day: u64 = day.trim().parse().ok().filter(|d| (1..=31).contains(d))?;
        let (ns, _) = time_of_day(&format!("{time}:00"))?;
        let minute = self.on(day, ns, true).ns / MINUTE;
        Some(minute.saturating_sub(*self.first_minute.get_or_insert(minute)))
    }
}

/// Creates a stamp of a receiver: a program read its clock when it got a line, unless the caller
/// knows better.
fn received(ns: u64, coarse: bool, time: &str) -> Stamp {
    Stamp { coarse, received: true, unit: unit(time), ..Stamp::new(ns, Clock::Wall) }
}

/// Reads `13:18:23`, with a fraction or without, as nanoseconds; and true if it has none.
fn time_of_day(time: &str) -> Option<(u64, bool)> {
    let (hms, fraction) = time.split_once(['.', ',']).unwrap_or((time, ""));
    let mut parts = hms.split(':');
    let mut two = |most: u64| {
        let part = parts.next().filter(|p| p.len() == 2 && digits(p))?;
        part.parse::<u64>().ok().filter(|&n| n <= most)
    };
    let (hours, minutes, secs) = (two(23)?, two(59)?, two(60)?);
    if parts.next().is_some() {
        return None;
    }
    let fraction_ns = if fraction.is_empty() { 0 } else { fraction_ns(fraction)? };
    let ns = ((hours * 60 + minutes) * 60 + secs) * 1_000_000_000 + fraction_ns;
    Some((ns, fraction.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_read_as_each_vendor_writes_it() {
        for text in [
            "(0)[1:swapper/0]x",
            " (0)[1:swapper/0]x",
            "<6>.(0)[1:swapper/0]x",
            "-(10)[1:kworker/0:1H]x",
            "[3:  swapper/0:    1]x",
            "  [0:      swapper:    1]x",
            "I[3:    kworker/3:1:    1]x",
            "[pid:1,cpu3,swapper/0]x",
        ] {
            let task = task(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((task.thread, task.kind, task.rest), (Some(1), Prefix::AndroidTask, "x"));
        }
        for text in ["", "[", "(0)x", "[drm:radeon:1]", "[1:2]", "[a: b: c]", "(x)[1:a]", "[1::2]"]
        {
            assert_eq!(task(text), None, "{text}");
        }
    }

    #[test]
    fn logcat_names_process_thread_and_level() {
        assert_eq!(logcat(" 0     0 I         : probe of a"), Some((false, "probe of a")));
        assert_eq!(logcat("root     0     0 I kernel  : x"), Some((false, "x")));
        assert_eq!(logcat(" 0 0 I nvme 1: shutdown"), Some((false, "nvme 1: shutdown")));
        assert_eq!(logcat("512  530 D Zygote  : begin"), Some((true, "Zygote  : begin")));
        assert_eq!(logcat("a b c d e"), None);
        assert_eq!(logcat(""), None);
    }
}
