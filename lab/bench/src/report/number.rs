//! Numbers for people: three digits and a unit of a fitting size.

/// `value` in its unit: `6.81 M/s`, `12.3 µs`, `31.0 MiB`, `1.42`.
///
/// Units known by name are times (`ns`, `us`, `ms`, `s`), `bytes`, rates (`.../s`), `count` and
/// `ratio`; any other is put behind the number as it is.
pub fn show(value: f64, unit: &str) -> String {
    match unit {
        "ns" => time(value),
        "us" => time(value * 1e3),
        "ms" => time(value * 1e6),
        "s" => time(value * 1e9),
        "bytes/s" => scaled(value, 1e3, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
        "bytes" => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
        "ratio" => digits(value),
        "count" => scaled(value, 1e3, &["", "k", "M", "G", "T"]),
        _ if unit.ends_with("/s") => scaled(value, 1e3, &["/s", "k/s", "M/s", "G/s", "T/s"]),
        _ => format!("{} {unit}", digits(value)),
    }
}

fn time(ns: f64) -> String {
    // Minutes and hours of a measurement say less than seconds.
    scaled(ns, 1e3, &["ns", "µs", "ms", "s"])
}

/// The value in the largest of the units, each `step` of the one before, that leaves at least 1.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    // 999.6 would be rounded to a fourth digit.
    while value.abs() >= step * 0.9995 && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    let number = digits(value);
    match units[at] {
        "" => number,
        unit => format!("{number} {unit}"),
    }
}

/// Three significant digits; very large and very small numbers by their power of ten.
fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "not a number".to_owned(),
        0.0 => "0".to_owned(),
        _ if !(0.001..99_999.5).contains(&size) => format!("{value:.2e}"),
        _ if size < 0.9995 => format!("{value:.3}"),
        _ if size < 9.995 => format!("{value:.2}"),
        _ if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_fitting_unit() {
        for (value, unit, shown) in [
            (6_810_000.0, "items/s", "6.81 M/s"),
            (0.0, "items/s", "0 /s"),
            (999_960.0, "items/s", "1.00 M/s"),
            (1e300, "items/s", "1.00e288 T/s"),
            (90.0, "ns", "90.0 ns"),
            (12_345.0, "ns", "12.3 µs"),
            (1.5, "s", "1.50 s"),
            (0.25, "us", "250 ns"),
            (0.8, "ratio", "0.800"),
            (31.0 * 1024.0 * 1024.0, "bytes", "31.0 MiB"),
            (640e6, "bytes/s", "640 MB/s"),
            (1.0, "count", "1.00"),
            (0.004, "count", "0.004"),
            (1e-9, "count", "1.00e-9"),
            (1.417, "ratio", "1.42"),
            (-2.0, "ratio", "-2.00"),
            (7.0, "apples", "7.00 apples"),
            (f64::NAN, "ratio", "not a number"),
        ] {
            assert_eq!(show(value, unit), shown);
        }
    }
}
