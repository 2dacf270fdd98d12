//! Reading and writing: a layout that people can read, and the checks that types don't make.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::{Costs, CostsError, VERSION};

const HEAD: &str = "\
# What a machine costs, in nanoseconds. 'corewise-bench machine' writes such a file, and
# docs/machine.md explains its keys. A figure is a median (p50) with its spread, or a number alone.
";

impl Costs {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`CostsError`] names the key that is missing, unknown or wrong.
    pub fn read(text: &str) -> Result<Costs, CostsError> {
        // First: a file of another version may have other keys.
        let table: Table =
            toml::from_str(text).map_err(|error| CostsError::Toml(error.to_string()))?;
        if let Some(found) = table.get("version").and_then(Value::as_integer) {
            if found != i64::from(VERSION) {
                return Err(CostsError::Version { found: u32::try_from(found).unwrap_or(0) });
            }
        }
        let costs: Costs =
            toml::from_str(text).map_err(|error| CostsError::Toml(error.to_string()))?;
        costs.check()?;
        Ok(costs)
    }

    /// The file's text. [`Costs::read`] gives the same costs again.
    ///
    /// # Panics
    /// Where a text of [`Machine`](crate::Machine) can't be TOML: none can't.
    pub fn write(&self) -> String {
        let table = Table::try_from(self).expect("structures of numbers, texts and lists are TOML");
        let mut text = HEAD.to_owned();
        section(&mut text, "", &table);
        text
    }

    /// What types don't check.
    fn check(&self) -> Result<(), CostsError> {
        let wrong = |key: &str, why: &str| CostsError::Value { key: key.into(), why: why.into() };
        if let Some(matrix) = &self.matrix {
            let size = matrix.cpus.len();
            let all = [
                ("matrix.one_way_ns", &matrix.one_way_ns),
                ("matrix.locked_ns", &matrix.locked_ns),
            ];
            for (key, rows) in all {
                if rows.len() != size || rows.iter().any(|row| row.len() != size) {
                    let why =
                        format!("matrix.cpus has {size} CPUs: write {size} rows of {size} numbers");
                    return Err(wrong(key, &why));
                }
                if rows.iter().flatten().any(|value| !value.is_finite() || *value < 0.0) {
                    return Err(wrong(key, "a cost must be a number of at least 0"));
                }
            }
        }
        if self.contended.iter().any(|one| one.cpus == 0) {
            return Err(wrong("contended.cpus", "no CPU writes: use 1 or more"));
        }
        if self.wake.iter().any(|one| !one.slept_us.is_finite() || one.slept_us < 0.0) {
            return Err(wrong("wake.slept_us", "write a number of microseconds, at least 0"));
        }
        if self.distance.contains_key(&crate::Distance::Same) {
            return Err(wrong(
                "distance.same",
                "no line is transferred at this distance: see [line]",
            ));
        }
        Ok(())
    }
}

/// The order of sections, and of the keys that tell one table of a list from another. Others follow
/// by the alphabet.
const ORDER: [&str; 18] = [
    "version",
    "machine",
    "noise",
    "line",
    "distance",
    "contended",
    "call",
    "switch",
    "scheduler",
    "wake",
    "allocator",
    "thread",
    "matrix",
    "target",
    "slept_us",
    "bytes",
    "cpus",
    "pairs",
];

/// A table's keys in the order of the file.
fn in_order(table: &Table) -> Vec<(&String, &Value)> {
    let mut all: Vec<_> = table.iter().collect();
    let place = |key: &str| ORDER.iter().position(|known| *known == key).unwrap_or(ORDER.len());
    all.sort_by_key(|(key, _)| place(key));
    all
}

/// Writes what a table holds itself, then the tables in it, each below its name.
fn section(text: &mut String, path: &str, table: &Table) {
    for (key, value) in in_order(table) {
        if is_inline(value) {
            // Writing to a String can't fail.
            let _ = writeln!(text, "{key} = {}", inline(value));
        }
    }
    for (key, value) in in_order(table) {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            _ if is_inline(value) => {}
            Value::Table(inner) => {
                if inner.is_empty() || inner.values().any(is_inline) {
                    let _ = writeln!(text, "\n[{name}]");
                }
                section(text, &name, inner);
            }
            Value::Array(all) => {
                for inner in all.iter().filter_map(Value::as_table) {
                    let _ = writeln!(text, "\n[[{name}]]");
                    section(text, &name, inner);
                }
            }
            _ => {}
        }
    }
}

/// Whether a value stands behind its key: numbers, texts, lists of numbers, and figures.
fn is_inline(value: &Value) -> bool {
    match value {
        Value::Table(table) => table.contains_key("p50"),
        Value::Array(all) => !all.is_empty() && !all.iter().any(Value::is_table),
        _ => true,
    }
}

fn inline(value: &Value) -> String {
    match value {
        // A row of a matrix stands on a line of its own.
        Value::Array(all) if all.iter().any(Value::is_array) => {
            let rows: Vec<String> = all.iter().map(|row| format!("  {},\n", inline(row))).collect();
            format!("[\n{}]", rows.concat())
        }
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(inline).collect();
            format!("[{}]", all.join(", "))
        }
        Value::Table(table) => {
            let order = ["p10", "p50", "p90", "p99"];
            let all = order.iter().filter_map(|key| Some((key, table.get(*key)?)));
            let all: Vec<String> =
                all.map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", all.join(", "))
        }
        other => other.to_string(),
    }
}
