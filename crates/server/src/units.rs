//! Sizes and durations as people write and read them: `64M`, `64 MiB`, `5s`.

use std::time::Duration;

use corewise::topology::{CpuId, CpuSet};

/// Returns the day, hour, minute and second in UTC, `seconds` after the begin of 1970.
pub fn utc(seconds: u64) -> (String, [u64; 3]) {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day ends one; 400 of them have a fixed length
    // (Howard Hinnant's `civil_from_days`).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    (format!("{year}-{month:02}-{day:02}"), [second / 3_600, second / 60 % 60, second % 60])
}

/// Formats seconds since 1970 as a date and a time in UTC.
pub fn moment(seconds: f64) -> String {
    let (day, [hour, minute, second]) = utc(seconds.max(0.0) as u64);
    format!("{day}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Formats a number and its noun: `1 pod`, `2 pods`.
pub fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Parses bytes from `512`, `4K`, `64M`, `64MiB`, `1G` or `2T`. Each letter is a power of 1024.
///
/// `64MB` is refused: half of the readers would take it for 64,000,000.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let example = "write it like 512, 64K, 64M, 1G or 1T";
    if number.is_empty() {
        return Err(format!("'{text}' is not a size: {example}"));
    }
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => {
            let letter = &unit[..1];
            return Err(format!(
                "'{text}' is ambiguous: write {number}{letter} (powers of 1024) or plain bytes"
            ));
        }
        _ => return Err(format!("'{text}' has an unknown unit '{unit}': {example}")),
    };
    let number: u64 = number.parse().map_err(|_| too_large(text))?;
    // The largest offset that a file has is 2^63 - 1.
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes <= i64::MAX as u64)
        .ok_or_else(|| too_large(text))
}

/// Returns the message for a size that no volume has.
pub(crate) fn too_large(text: &str) -> String {
    format!("'{text}' exceeds the largest volume, 8 EiB")
}

/// Formats bytes in the largest unit that divides them: `64 MiB`, `1536 B`.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in units {
        if bytes >= 1 << shift && bytes % (1 << shift) == 0 {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// Formats bytes in the largest unit of which there is at least one, with one digit after the
/// point: `5.7 GiB`.
pub fn about(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// Parses a duration from `500ms`, `5s`, `1.5s`, `2m`, `1h` or `7d`. The unit is required.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let example = "write it like 500ms, 5s, 2m, 1h or 7d";
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let (number, unit) = text.split_at(text.len() - digits.len());
    let unit = unit.trim_start();
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "" if !number.is_empty() => return Err(format!("'{text}' has no unit: {example}")),
        _ => return Err(format!("'{text}' is not a duration: {example}")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("'{text}' is not a duration: {example}"))?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        // A century. Leaving a key out means "for ever" with some keys only.
        .filter(|d| d.as_secs() < 100 * 366 * 86_400)
        .ok_or_else(|| format!("'{text}' is too long: a hundred years are the limit"))
}

/// Formats numbers of pods, nodes, caches or cores in the list format of CPUs: `0-3,8`.
pub fn list(numbers: impl IntoIterator<Item = u32>) -> String {
    // A set of CPUs has that format, so the numbers stand in for CPUs.
    numbers.into_iter().map(CpuId::new).collect::<CpuSet>().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("4K"), Ok(4096));
        assert_eq!(parse_size(" 64 MiB "), Ok(64 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("2T"), Ok(2 << 40));
        assert_eq!(parse_size("0"), Ok(0));
    }

    #[test]
    fn bad_sizes_say_what_to_write() {
        for (text, says) in [
            ("", "not a size"),
            ("M", "not a size"),
            ("-1", "not a size"),
            ("64MB", "write 64M"),
            ("64 parsecs", "unknown unit 'parsecs'"),
            ("1.5G", "unknown unit"),
            ("99999999999999999999", "largest volume"),
            ("9999999T", "exceeds"),
        ] {
            let message = parse_size(text).unwrap_err();
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn sizes_print_without_rounding() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1536), "1536 B");
        assert_eq!(size(64 << 10), "64 KiB");
        assert_eq!(size((64 << 20) + 4096), "65540 KiB");
        assert_eq!(size(3 << 30), "3 GiB");
    }

    #[test]
    fn a_moment_is_written_as_others_write_it() {
        for (seconds, text) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_399.9, "2000-02-28T23:59:59Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
            (1_795_747_320.0, "2026-11-27T02:42:00Z"),
        ] {
            assert_eq!(moment(seconds), text);
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1 h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for (text, says) in [
            ("5", "no unit"),
            ("s", "not a duration"),
            ("", "not a duration"),
            ("1.2.3s", "not a duration"),
            ("-5s", "not a duration"),
            ("5 days", "not a duration"),
            ("99999999999h", "too long"),
        ] {
            let message = parse_duration(text).unwrap_err();
            assert!(message.contains(says), "{text}: {message}");
        }
    }
}
