//! Clocks on the wall: what the programs that save logs write of the time of day.

use crate::stamp::{Clock, Stamp, digits, fraction_ns, unit};

const MINUTE: u64 = 60 * 1_000_000_000;
const DAY: u64 = 24 * 60 * MINUTE;

/// Remembers what these clocks don't say: how many days have gone by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wall {
    day: Option<u64>,
    days: u64,
    /// The last time of a day whose date is not said.
    time: u64,
    /// The first minute that stood alone.
    first_minute: Option<u64>,
}

impl Wall {
    /// Which month it is does not matter: a new day of the month is the next day.
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

    /// `13:18:23.123` alone: where it goes back by hours, it is midnight.
    pub(crate) fn time(&mut self, time: &str) -> Option<Stamp> {
        let (ns, coarse) = time_of_day(time)?;
        if std::mem::replace(&mut self.time, ns) > ns + DAY / 2 {
            self.days += 1;
        }
        let ns = self.days.saturating_mul(DAY).saturating_add(ns);
        Some(received(ns, coarse, time))
    }

    /// `Wed Mar  4 13:21:03 2026`, as `dmesg -T` writes it.
    pub(crate) fn ctime(&mut self, text: &str) -> Option<Stamp> {
        let mut words = text.split_ascii_whitespace();
        let (_weekday, _month, day) = (words.next()?, words.next()?, words.next()?);
        let time = words.next()?;
        let _year = words.next().filter(|y| digits(y))?;
        self.date(day, time)
    }

    /// `2026-03-04T13:21:03,123456+00:00`, or with a blank for the letter.
    pub(crate) fn iso(&mut self, text: &str) -> Option<Stamp> {
        let (date, time) = text.split_once(['T', ' '])?;
        let day = date.rsplit('-').next().unwrap_or_default();
        if date.split('-').count() != 3 || !date.split('-').all(digits) {
            return None;
        }
        let time = time.split_once(['+', 'Z']).map_or(time, |(time, _)| time);
        // `-05:00` behind the time.
        let time = time.split_once('-').map_or(time, |(time, _)| time);
        // `dmesg` writes the kernel's times with a comma, receivers theirs with a point.
        let kernels = text.contains('T') && time.contains(',');
        let stamp = self.date(day, time)?;
        Some(Stamp { received: !kernels, ..stamp })
    }

    /// `Nov23 00:06`, as `dmesg -H` writes it where a minute begins: the minutes since the first one
    /// that was told.
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

/// A program read its clock when it got a line, unless somebody knows better.
fn received(ns: u64, coarse: bool, time: &str) -> Stamp {
    Stamp { coarse, received: true, unit: unit(time), ..Stamp::new(ns, Clock::Wall) }
}

/// `13:18:23`, with a fraction or without, as nanoseconds; and whether it has none.
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
