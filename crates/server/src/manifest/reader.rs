//! Typed reading of TOML tables: each value with its place, each problem with its owner.
//!
//! serde would stop at the first wrong key and could not say which device it belongs to. Therefore
//! the parsed document is walked here, and all problems are collected.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::problem::{Located, Position, Problem, Subject};
use crate::{text, units};

/// An index that turns byte offsets into lines and columns.
pub(crate) struct LineIndex {
    /// Offset of each line's begin.
    starts: Vec<usize>,
}

impl LineIndex {
    pub(crate) fn new(text: &str) -> LineIndex {
        let after_newline = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        LineIndex {
            starts: std::iter::once(0).chain(after_newline.map(|(at, _)| at + 1)).collect(),
        }
    }

    pub(crate) fn place(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        Position { line, column: offset - self.starts[line - 1] + 1 }
    }
}

/// A table being read. It hands out values by key and, at the end, reports the unread keys.
pub(crate) struct Fields<'t, 'i> {
    table: &'t DeTable<'i>,
    lines: &'t LineIndex,
    /// Folder in which relative paths begin.
    pub(super) base: &'t Path,
    subject: Subject,
    /// Place of the header, and the declared thing in words.
    header: (Position, String),
    asked: Vec<&'static str>,
    /// Keys of other tables like this one. They aren't unknown, but no help lists them.
    others: Vec<&'static str>,
    problems: Vec<Problem>,
}

impl<'t, 'i> Fields<'t, 'i> {
    pub(crate) fn new(
        table: &'t DeTable<'i>,
        lines: &'t LineIndex,
        base: &'t Path,
        subject: Subject,
    ) -> Self {
        let header = (Position::default(), String::new());
        Fields {
            table,
            lines,
            base,
            subject,
            header,
            asked: Vec::new(),
            others: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Sets the subject of "needs" messages for missing keys: `what`, declared at `place`.
    pub(super) fn declares(&mut self, what: String, place: Position) {
        self.header = (place, what);
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns true if the table has this key, whatever its value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Returns the place of a key's value, or of the header if the key is missing.
    pub(super) fn place(&self, key: &str) -> Position {
        let value = self.table.get(key);
        value.map_or(self.header.0, |value| self.lines.place(value.span().start))
    }

    /// Returns the place of each key's value.
    pub(super) fn places(&self) -> BTreeMap<String, Position> {
        let place = |value: &Spanned<DeValue<'_>>| self.lines.place(value.span().start);
        self.table.iter().map(|(key, value)| (key.get_ref().to_string(), place(value))).collect()
    }

    pub(super) fn push(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Reports a problem with the value of a key. `help` may be empty.
    pub(super) fn refuse(&mut self, key: &str, message: impl Into<String>, help: &str) {
        let problem = Problem::new(self.place(key), self.subject.clone(), message);
        self.push(if help.is_empty() { problem } else { problem.help(help) });
    }

    /// Reports a missing key.
    pub(super) fn needs(&mut self, key: &str, example: &str) {
        let message = format!("{} needs '{key}'", self.header.1);
        self.refuse(key, message, &format!("such as {example}"));
    }

    /// Reports one of two keys that is given without the other.
    pub(super) fn both(&mut self, one: &str, other: &str) {
        for (key, other) in [(one, other), (other, one)] {
            if self.has(key) && !self.has(other) {
                self.refuse(key, format!("'{key}' needs its '{other}'"), "");
            }
        }
    }

    /// Reads the default value of a key that is left out.
    pub(super) fn usual<T>(
        &self,
        key: &str,
        value: &str,
        read: impl FnOnce(&mut Fields<'_, '_>) -> Option<Located<T>>,
    ) -> Option<Located<T>> {
        let text = format!("{key} = {value}");
        let (table, lines) = (DeTable::parse(&text).ok()?, LineIndex::new(&text));
        read(&mut Fields::new(table.get_ref(), &lines, self.base, Subject::Manifest))
    }

    /// Reports a size that isn't a whole number of blocks.
    pub(super) fn check_size(&mut self, size: u64, block_size: u32) {
        let block = u64::from(block_size);
        if size == 0 {
            self.refuse("size", "'size' must be greater than 0", "");
        } else if size % block != 0 {
            let below = size / block * block;
            let above = below.saturating_add(block);
            let near = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
            let message = format!("size {size} is not a multiple of its block size {block}");
            self.refuse("size", message, &format!("the nearest valid size: {near}"));
        }
    }

    /// Adds keys of other tables, which aren't unknown here.
    pub(super) fn know(&mut self, keys: impl IntoIterator<Item = &'static str>) {
        self.others.extend(keys);
    }

    /// Returns true if the key was read.
    pub(super) fn is_asked(&self, key: &str) -> bool {
        self.asked.contains(&key)
    }

    /// Returns the keys of the table, sorted by place.
    pub(crate) fn keys(&self) -> Vec<Located<String>> {
        let mut keys: Vec<Located<String>> = self
            .table
            .iter()
            .map(|(key, _)| {
                Located::new(key.get_ref().to_string(), self.lines.place(key.span().start))
            })
            .collect();
        keys.sort_by_key(|key| key.place);
        keys
    }

    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'i>>> {
        if !self.is_asked(key) {
            self.asked.push(key);
        }
        self.table.get(key)
    }

    fn complain(&mut self, value: &Spanned<DeValue<'_>>, message: String) {
        let place = self.lines.place(value.span().start);
        self.problems.push(Problem::new(place, self.subject.clone(), message));
    }

    fn wrong_type(&mut self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.complain(value, format!("'{key}' must be {wanted}, not {found}"));
    }

    /// Reads the value of `key` with `read`, or reports its problem.
    fn read<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, ValueRefusal>,
    ) -> Option<Located<T>> {
        let value = self.value(key)?;
        match read(value.get_ref()) {
            Ok(read) => Some(Located::new(read, self.lines.place(value.span().start))),
            Err(ValueRefusal::Type) => {
                self.wrong_type(key, value, wanted);
                None
            }
            Err(ValueRefusal::Range(range)) => {
                let found = self.found(key).unwrap_or_default();
                self.complain(value, format!("'{key}' must be {range}, not {found}"));
                None
            }
            Err(ValueRefusal::Message(message)) => {
                self.complain(value, format!("'{key}': {message}"));
                None
            }
        }
    }

    pub(crate) fn string(&mut self, key: &'static str) -> Option<Located<String>> {
        self.read(key, "a string", |value| match value {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(ValueRefusal::Type),
        })
    }

    pub(crate) fn boolean(&mut self, key: &'static str) -> Option<Located<bool>> {
        self.read(key, "true or false", |value| match value {
            DeValue::Boolean(value) => Ok(*value),
            _ => Err(ValueRefusal::Type),
        })
    }

    /// Reads a size in bytes: an integer, or a string such as `"64M"`.
    pub(crate) fn size(&mut self, key: &'static str) -> Option<Located<u64>> {
        self.read(key, "a size such as \"64M\" or a number of bytes", |value| match value {
            DeValue::String(text) => units::parse_size(text).map_err(ValueRefusal::Message),
            DeValue::Integer(number) => match integer(value).map(u64::try_from) {
                Some(Ok(bytes)) => Ok(bytes),
                None if !number.as_str().starts_with('-') => {
                    Err(ValueRefusal::Message(units::too_large(&written(number))))
                }
                _ => Err(ValueRefusal::Range("a size from 0 on")),
            },
            _ => Err(ValueRefusal::Type),
        })
    }

    pub(crate) fn duration(&mut self, key: &'static str) -> Option<Located<Duration>> {
        self.read(key, "a duration such as \"5s\"", |value| match value {
            DeValue::String(text) => units::parse_duration(text).map_err(ValueRefusal::Message),
            _ => Err(ValueRefusal::Type),
        })
    }

    pub(crate) fn number(&mut self, key: &'static str) -> Option<Located<u32>> {
        self.read(key, "a whole number", |value| match value {
            DeValue::Integer(_) => {
                let number = integer(value).and_then(|n| u32::try_from(n).ok());
                number.ok_or(ValueRefusal::Range("a whole number from 0 to 4294967295"))
            }
            _ => Err(ValueRefusal::Type),
        })
    }

    /// Reads a string, or an integer as a string (a port alone).
    pub(crate) fn string_or_number(&mut self, key: &'static str) -> Option<Located<String>> {
        self.read(key, "a string or a number", |value| match value {
            DeValue::String(text) => Ok(text.to_string()),
            // The caller that parses the text reports its problem.
            DeValue::Integer(number) => {
                Ok(integer(value).map_or_else(|| written(number), |n| n.to_string()))
            }
            _ => Err(ValueRefusal::Type),
        })
    }

    /// Reads a share, from 0 to 1.
    pub(crate) fn share(&mut self, key: &'static str) -> Option<Located<f64>> {
        self.read(key, "a number from 0 to 1", |value| {
            let number = match value {
                DeValue::Float(text) => text.as_str().parse().ok(),
                DeValue::Integer(_) => integer(value).map(|n| n as f64),
                _ => return Err(ValueRefusal::Type),
            };
            let within = number.filter(|n| (0.0..=1.0).contains(n));
            within.ok_or(ValueRefusal::Range("a number from 0 to 1"))
        })
    }

    /// Reads a list of names. `wanted` describes it in messages.
    pub(crate) fn names(
        &mut self,
        key: &'static str,
        wanted: &str,
    ) -> Option<Vec<Located<String>>> {
        let value = self.value(key)?;
        let DeValue::Array(array) = value.get_ref() else {
            self.wrong_type(key, value, wanted);
            return None;
        };
        let mut names = Vec::new();
        for item in array.iter() {
            match item.get_ref() {
                DeValue::String(name) => {
                    names.push(Located::new(name.to_string(), self.lines.place(item.span().start)));
                }
                _ => self.wrong_type(key, item, wanted),
            }
        }
        Some(names)
    }

    /// Returns the names in a list, without reporting anything.
    pub(super) fn silent_names(&self, key: &str) -> Vec<Located<String>> {
        let list = self.table.get(key).and_then(|value| value.get_ref().as_array());
        let name = |item: &Spanned<DeValue<'_>>| {
            let place = self.lines.place(item.span().start);
            Some(Located::new(item.get_ref().as_str()?.to_string(), place))
        };
        list.into_iter().flatten().filter_map(name).collect()
    }

    /// Returns true if the value of a key is `true` or `false`.
    pub(super) fn is_flag(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|value| value.get_ref().as_bool().is_some())
    }

    /// Returns the text of a key, as it is written.
    pub(super) fn written(&self, key: &str) -> Option<&str> {
        self.table.get(key)?.get_ref().as_str()
    }

    /// Returns the text of a number or a word, as it is written.
    pub(super) fn found(&self, key: &str) -> Option<String> {
        match self.table.get(key)?.get_ref() {
            DeValue::String(text) => Some(format!("\"{text}\"")),
            DeValue::Integer(number) => Some(written(number)),
            DeValue::Float(number) => Some(number.as_str().to_string()),
            _ => None,
        }
    }

    /// Reads a list of whole numbers. `wanted` describes it in messages.
    pub(crate) fn numbers(&mut self, key: &'static str, wanted: &str) -> Option<Vec<u32>> {
        let value = self.value(key)?;
        let number = |item: &Spanned<DeValue<'_>>| {
            integer(item.get_ref()).and_then(|number| u32::try_from(number).ok())
        };
        let numbers = match value.get_ref() {
            DeValue::Array(array) => array.iter().map(number).collect(),
            _ => None,
        };
        if numbers.is_none() {
            self.complain(value, format!("'{key}' must be {wanted}"));
        }
        numbers
    }

    /// Reads the table that is a key's value with `read`. Returns `None` if something is wrong with
    /// it.
    pub(super) fn inline<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(&mut Fields<'_, '_>) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(key, value, wanted);
            return None;
        };
        let mut fields = Fields::new(table, self.lines, self.base, self.subject.clone());
        let read = read(&mut fields);
        let found = fields.finish(|_| None);
        let read = read.filter(|_| found.is_empty());
        self.problems.extend(found);
        read
    }

    /// Reads a table, with the place of its header.
    pub(crate) fn table(&mut self, key: &'static str) -> Option<(&'t DeTable<'i>, Position)> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some((table, self.lines.place(value.span().start))),
            _ => {
                self.wrong_type(key, value, &format!("a table: write [{key}]"));
                None
            }
        }
    }

    /// Reads the tables of `[[key]]`, with the place of each header.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<(&'t DeTable<'i>, Position)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let wanted = format!("a list of tables: write [[{key}]]");
        let DeValue::Array(array) = value.get_ref() else {
            self.wrong_type(key, value, &wanted);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in array.iter() {
            match item.get_ref() {
                DeValue::Table(table) => {
                    tables.push((table, self.lines.place(item.span().start)));
                }
                _ => self.wrong_type(key, item, &wanted),
            }
        }
        tables
    }

    /// Ends the reading and returns the problems found, unknown keys included. `elsewhere` gives
    /// advice for a key of another table.
    pub(crate) fn finish(mut self, elsewhere: impl Fn(&str) -> Option<String>) -> Vec<Problem> {
        for key in self.keys() {
            let name = key.value.as_str();
            if self.is_asked(name) || self.others.contains(&name) {
                continue;
            }
            let known = || match text::closest(name, self.asked.iter().copied()) {
                Some(close) => format!("did you mean '{close}'?"),
                None => format!("known keys: {}", self.asked.join(", ")),
            };
            self.problems.push(
                Problem::new(key.place, self.subject.clone(), format!("unknown key '{name}'"))
                    .help(elsewhere(name).unwrap_or_else(known)),
            );
        }
        self.problems.sort_by_key(|problem| problem.place);
        self.problems
    }
}

/// The reason why a value is refused.
enum ValueRefusal {
    /// A type that isn't the key's.
    Type,
    /// A value outside this range.
    Range(&'static str),
    /// A reason in words.
    Message(String),
}

/// Returns an integer as it stands in the text.
fn written(number: &DeInteger<'_>) -> String {
    number.to_string()
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let DeValue::Integer(integer) = value else { return None };
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_become_lines_and_columns() {
        let lines = LineIndex::new("ab\n\ncd");
        let place = |offset| {
            let place = lines.place(offset);
            (place.line, place.column)
        };
        assert_eq!(place(0), (1, 1));
        assert_eq!(place(2), (1, 3));
        assert_eq!(place(3), (2, 1));
        assert_eq!(place(5), (3, 2));
        assert_eq!(LineIndex::new("").place(0), Position { line: 1, column: 1 });
    }
}
