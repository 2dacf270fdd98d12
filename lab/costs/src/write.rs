//! Reading and writing: a layout for people, and the checks that types don't make.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::{Costs, CostsError, VERSION};

const HEAD: &str = "\
# What a machine costs, in nanoseconds. 'corewise-bench machine' writes such a file, and
# lab/machine.md explains its keys. A figure is a median (p50) with its spread, or a number alone.
";

impl Costs {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`CostsError`] names the key that is missing, unknown or wrong.
    pub fn read(text: &str) -> Result<Costs, CostsError> {
        // The version comes first: a file of another version may have other keys.
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

    /// Returns the file's text. [`Costs::read`] gives the same costs again.
    ///
    /// # Panics
    /// If a text of [`Machine`](crate::Machine) can't be TOML: each can.
    pub fn write(&self) -> String {
        let table = Table::try_from(self).expect("structures of numbers, texts and lists are TOML");
        let mut text = HEAD.to_owned();
        section(&mut text, "", &table);
        text
    }

    fn check(&self) -> Result<(), CostsError> {
        let wrong = |key: &str, why: &str| CostsError::Value { key: key.into(), why: why.into() };
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

/// Writes a table: its values, a line each, then the tables in it.
fn section(text: &mut String, path: &str, table: &Table) {
    for (key, value) in table.iter().filter(|(_, value)| is_inline(value)) {
        let _ = writeln!(text, "{key} = {value}");
    }
    for (key, value) in table {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            _ if is_inline(value) => {}
            Value::Table(inner) => {
                if inner.values().any(is_inline) {
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

/// Returns true for a value that stands behind its key: a number, a text or a figure.
fn is_inline(value: &Value) -> bool {
    match value {
        Value::Table(table) => table.contains_key("p50"),
        Value::Array(_) => false,
        _ => true,
    }
}
