//! Logs of the journal and other logs with fields.
//!
//! * JSON: `journalctl -o json` and `json-pretty`, `dmesg --json`, and what LAVA writes, which is
//!   YAML with an object of JSON in each line.
//! * A field a line: `journalctl -o export` and `-o verbose`. An empty line stands behind each
//!   entry, or a line with its time before it.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::form::{Clock, Prefix, Stamp};

/// One entry: the message and its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    pub message: String,
    pub stamp: Option<Stamp>,
    pub thread: Option<u32>,
    pub kind: Prefix,
    /// True if a program other than the kernel wrote the entry.
    pub foreign: bool,
    /// Name of the boot of the entry.
    pub boot: Option<String>,
    /// True if the message is a line of a console, with its own prefixes.
    pub console: bool,
}

/// The relevant fields, under the names of both programs.
#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "MESSAGE")]
    message: Option<FieldText>,
    #[serde(rename = "_SOURCE_MONOTONIC_TIMESTAMP")]
    source: Option<FieldText>,
    #[serde(rename = "__MONOTONIC_TIMESTAMP")]
    monotonic: Option<FieldText>,
    #[serde(rename = "_TRANSPORT")]
    transport: Option<FieldText>,
    #[serde(rename = "_BOOT_ID")]
    boot: Option<FieldText>,
    msg: Option<FieldText>,
    time: Option<Value>,
    caller: Option<FieldText>,
}

/// A journal writes bytes that are no UTF-8 as an array of numbers, and a field that an entry has
/// twice as an array of texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum FieldText {
    Plain(String),
    Bytes(Vec<u8>),
    Other(IgnoredAny),
}

impl FieldText {
    fn text(self) -> Option<String> {
        match self {
            FieldText::Plain(text) => Some(text),
            FieldText::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            FieldText::Other(_) => None,
        }
    }
}

impl Fields {
    fn entry(self) -> Option<JournalEntry> {
        let text = |t: Option<FieldText>| t.and_then(FieldText::text);
        if let Some(message) = text(self.message) {
            // The kernel's own stamp, or the time at which the journal got the entry.
            let source = text(self.source);
            let received = source.is_none();
            let micros = source.or(text(self.monotonic));
            let ns =
                micros.and_then(|us| us.parse::<u64>().ok()).and_then(|us| us.checked_mul(1000));
            return Some(JournalEntry {
                message,
                stamp: ns.map(|ns| Stamp { received, ..Stamp::new(ns, Clock::Boot) }),
                thread: None,
                kind: Prefix::JournalJson,
                foreign: text(self.transport).is_some_and(|t| t != "kernel"),
                boot: text(self.boot),
                console: false,
            });
        }
        let message = text(self.msg)?;
        let seconds = match self.time {
            Some(Value::Number(n)) => n.as_f64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            _ => None,
        };
        let ns =
            seconds.filter(|s| (0.0..1e9).contains(s)).map(|s| (s * 1e6).round() as u64 * 1000);
        let caller = text(self.caller);
        Some(JournalEntry {
            message,
            // Another program's line that contains a line of the console.
            console: ns.is_none(),
            stamp: ns.map(|ns| Stamp::new(ns, Clock::Boot)),
            thread: caller.and_then(|c| c.trim().strip_prefix('T')?.parse().ok()),
            kind: Prefix::DmesgJson,
            foreign: false,
            boot: None,
        })
    }
}

/// Reads a line that is a whole object, perhaps behind `data:` or a separator, as in two forms of
/// `journalctl -o json`.
pub(crate) fn line(text: &str) -> Option<JournalEntry> {
    let text = text.trim().trim_start_matches('\u{1e}').trim_end_matches(',');
    let text = text.strip_prefix("data: ").unwrap_or(text);
    if let Some(object) = text.strip_prefix("- {").map(|_| &text[2..]) {
        return lava(object);
    }
    if !text.starts_with('{') || !text.ends_with('}') {
        return None;
    }
    let known = serde_json::from_str::<Fields>(text).ok().and_then(Fields::entry);
    known.or_else(|| line_of_console(serde_json::from_str(text).ok()?))
}

/// Fields in which programs that write a line of JSON for each line of a console put that line.
const FIELDS: [&str; 8] =
    ["log", "message", "textPayload", "line", "text", "body", "_raw", "@message"];

/// Reads an object with a line of a console in one of its fields, or in a field of one of them.
fn line_of_console(object: serde_json::Map<String, Value>) -> Option<JournalEntry> {
    let inner = object.values().filter_map(Value::as_object);
    let text = std::iter::once(&object)
        .chain(inner)
        .find_map(|fields| FIELDS.iter().find_map(|name| fields.get(*name)?.as_str()))?;
    Some(JournalEntry {
        message: text.to_owned(),
        stamp: None,
        thread: None,
        kind: Prefix::JsonLine,
        foreign: false,
        boot: None,
        console: true,
    })
}

/// A line of LAVA's log. The board's own words have the level `target`.
#[derive(Deserialize)]
struct Lava {
    lvl: String,
    msg: Value,
}

fn lava(object: &str) -> Option<JournalEntry> {
    let read = |text: &str| serde_json::from_str::<Lava>(text).ok();
    let json = read(object).or_else(|| read(&json_escapes(object)));
    let Lava { lvl, msg } = json.or_else(|| flow(object))?;
    let message = match msg {
        Value::String(text) => text,
        _ => String::new(),
    };
    let foreign = !matches!(lvl.as_str(), "target" | "feedback");
    let kind = Prefix::Lava;
    Some(JournalEntry {
        message,
        stamp: None,
        thread: None,
        kind,
        foreign,
        boot: None,
        console: true,
    })
}

/// Reads `{dt: '…', lvl: target, msg: '…'}`, the form of older versions: the message is last.
fn flow(object: &str) -> Option<Lava> {
    let inside = object.strip_prefix('{')?.trim_end().strip_suffix('}')?;
    let (before, msg) = inside.split_once("msg: ").or_else(|| inside.split_once("msg': "))?;
    let (_, lvl) = before.split_once("lvl")?;
    let lvl = lvl.split(',').next()?.trim_matches(['\'', '"', ':', ' ']).to_owned();
    let text = match msg.strip_prefix('\'') {
        Some(quoted) => quoted.strip_suffix('\'')?.replace("''", "'"),
        None => msg.to_owned(),
    };
    Some(Lava { lvl, msg: Value::String(text) })
}

/// Rewrites those escapes of YAML that JSON lacks as JSON's.
fn json_escapes(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        json.push_str(before);
        let letter = escape[1..].chars().next().unwrap_or('\\');
        rest = &escape[1 + escape[1..].chars().next().map_or(0, char::len_utf8)..];
        match letter {
            'x' => json.push_str("\\u00"),
            'e' => json.push_str("\\u001b"),
            '0' => json.push_str("\\u0000"),
            'a' => json.push_str("\\u0007"),
            'v' => json.push_str("\\u000b"),
            '_' => json.push('\u{a0}'),
            'N' => json.push('\u{85}'),
            'L' => json.push('\u{2028}'),
            'P' => json.push('\u{2029}'),
            ' ' => json.push(' '),
            _ => json.extend(['\\', letter]),
        }
    }
    json.push_str(rest);
    json
}

/// Collects objects that stand on several lines, with a field on each.
#[derive(Debug, Default)]
pub(crate) struct PrettyJson {
    fields: Option<serde_json::Map<String, Value>>,
}

/// Result of a line for [`PrettyJson`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JournalStep {
    /// The line is no part of an object.
    No,
    /// The line is a part of an object.
    Part,
    /// The line is the last part.
    Entry(JournalEntry),
    /// The line is no part, so the lines before it are an entry.
    Behind(JournalEntry),
}

impl PrettyJson {
    /// Takes one line.
    pub(crate) fn line(&mut self, text: &str) -> JournalStep {
        let text = text.trim();
        let opens = text.ends_with('{') && matches!(text, "{" | "},{" | "}, {");
        let closes = text.starts_with('}') && text.len() <= 4;
        if opens || (closes && self.fields.is_some()) {
            let whole = self.fields.take();
            self.fields = opens.then(serde_json::Map::new);
            let entry = whole.and_then(|fields| {
                serde_json::from_value::<Fields>(Value::Object(fields)).ok()?.entry()
            });
            return entry.map_or(JournalStep::Part, JournalStep::Entry);
        }
        let Some(fields) = &mut self.fields else { return JournalStep::No };
        let field = text.strip_prefix('"').and_then(|t| t.split_once('"'));
        let Some((name, rest)) = field else {
            // The brackets around all of it, or a line that is no JSON.
            if !matches!(text, "]" | "[" | "") {
                self.fields = None;
                return JournalStep::No;
            }
            return JournalStep::Part;
        };
        let value = rest.trim_start().trim_start_matches(':').trim().trim_end_matches(',');
        if fields.len() < 256 {
            if let Ok(value) = serde_json::from_str(value) {
                fields.insert(name.to_owned(), value);
            }
        }
        JournalStep::Part
    }
}

/// Collects the fields of entries.
///
/// A value that holds a line's end or a control character stands on lines of its own, behind its
/// length. The kernel writes no such value; they are skipped.
#[derive(Debug, Default)]
pub(crate) struct Export {
    entry: Option<ExportFields>,
    /// True if fields are indented, and a line that is not ends the entry.
    verbose: bool,
}

#[derive(Debug, Default)]
struct ExportFields {
    message: Option<String>,
    source: Option<u64>,
    monotonic: Option<u64>,
    boot: Option<String>,
    foreign: bool,
}

impl Export {
    /// Takes one line.
    pub(crate) fn line(&mut self, text: &str) -> JournalStep {
        if heads(text) {
            self.verbose = true;
            return self.begin();
        }
        if self.verbose && self.entry.is_some() && !text.starts_with(' ') {
            self.verbose = false;
            return match self.finish() {
                Some(entry) => JournalStep::Behind(entry),
                None => JournalStep::No,
            };
        }
        let Some((name, value)) = field(if self.verbose { text.trim_start() } else { text }) else {
            return match &self.entry {
                None => JournalStep::No,
                Some(_) if text.is_empty() => {
                    self.finish().map_or(JournalStep::Part, JournalStep::Entry)
                }
                // A value that is not text, or its name.
                Some(_) => JournalStep::Part,
            };
        };
        if name == "__CURSOR" {
            self.verbose = false;
            return self.begin();
        }
        let Some(fields) = &mut self.entry else { return JournalStep::No };
        match name {
            // If an entry has several, the first one counts.
            "MESSAGE" if fields.message.is_none() => fields.message = Some(value.to_owned()),
            "_SOURCE_MONOTONIC_TIMESTAMP" => fields.source = value.parse().ok(),
            "__MONOTONIC_TIMESTAMP" => fields.monotonic = value.parse().ok(),
            "_BOOT_ID" => fields.boot = Some(value.to_owned()),
            "_TRANSPORT" => fields.foreign = value != "kernel",
            _ => {}
        }
        JournalStep::Part
    }

    fn begin(&mut self) -> JournalStep {
        let ended = self.finish();
        self.entry = Some(ExportFields::default());
        ended.map_or(JournalStep::Part, JournalStep::Entry)
    }

    /// Returns the entry that has begun: the next one begins, or the log is over.
    pub(crate) fn finish(&mut self) -> Option<JournalEntry> {
        let fields = self.entry.take()?;
        let message = fields.message?;
        let received = fields.source.is_none();
        let ns = fields.source.or(fields.monotonic).and_then(|us| us.checked_mul(1000));
        Some(JournalEntry {
            message,
            stamp: ns.map(|ns| Stamp { received, ..Stamp::new(ns, Clock::Boot) }),
            thread: None,
            kind: Prefix::JournalExport,
            foreign: fields.foreign,
            boot: fields.boot,
            console: false,
        })
    }
}

/// Returns true for `Wed 2026-03-04 13:21:00.000000 UTC [s=ab12;i=1;b=cd34]`, the line before the
/// fields of an entry.
fn heads(text: &str) -> bool {
    let cursor = text.strip_suffix(']').and_then(|text| text.split_once(" [s="));
    cursor.is_some_and(|(time, cursor)| !time.starts_with(' ') && cursor.contains(";i="))
}

/// Splits `NAME=value`.
fn field(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let letter = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    (!name.is_empty() && name.bytes().all(letter)).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journals_line_has_the_kernels_own_stamp() {
        let entry = line(
            "{\"_SOURCE_MONOTONIC_TIMESTAMP\":\"5140900\",\"__MONOTONIC_TIMESTAMP\":\"9\",\
             \"_TRANSPORT\":\"kernel\",\"MESSAGE\":\"a \\\"b\\\"\",\"PRIORITY\":\"6\"}",
        )
        .unwrap();
        assert_eq!((entry.message.as_str(), entry.foreign), ("a \"b\"", false));
        assert_eq!(entry.stamp.unwrap().ns, 5_140_900_000);
        assert_eq!(entry.kind, Prefix::JournalJson);
    }

    #[test]
    fn a_message_can_be_bytes_and_another_programs() {
        let entry = line("{\"MESSAGE\":[104,105,255],\"_TRANSPORT\":\"stdout\"}").unwrap();
        assert_eq!((entry.message.as_str(), entry.foreign), ("hi\u{fffd}", true));
        assert_eq!(line("{\"MESSAGE\":null}"), None);
        assert_eq!(line("{\"x\":1}"), None);
        assert_eq!(line("{ not json }"), None);
    }

    #[test]
    fn a_line_of_a_console_stands_in_a_field_of_many_names() {
        let told = |text: &str| line(text).map(|e| (e.message, e.console, e.kind));
        let text = "[    1.0] x\r\n".to_owned();
        for json in [
            r#"{"log": "[    1.0] x\r\n", "stream": "stdout", "time": "2026-03-04T13:21:00Z"}"#,
            r#"{"textPayload": "[    1.0] x\r\n"},"#,
            r#"{"a": 1, "jsonPayload": {"message": "[    1.0] x\r\n"}}"#,
        ] {
            assert_eq!(told(json), Some((text.clone(), true, Prefix::JsonLine)), "{json}");
        }
        let pino = r#"{"level": 30, "time": "now", "msg": "[    1.0] x\r\n"}"#;
        assert_eq!(told(pino), Some((text, true, Prefix::DmesgJson)));
        for none in [r#"{"log": 1}"#, r#"{"log": {"a": "b"}}"#, "{}"] {
            assert_eq!(told(none), None, "{none}");
        }
        let journal = r#"{"MESSAGE": "x", "_SOURCE_MONOTONIC_TIMESTAMP": "1"}"#;
        for form in [format!("\u{1e}{journal}"), format!("data: {journal}")] {
            assert_eq!(told(&form), Some(("x".into(), false, Prefix::JournalJson)), "{form}");
        }
    }

    #[test]
    fn lava_says_what_the_board_said_and_what_it_did_itself() {
        let found = |text: &str| line(text).map(|e| (e.message, e.foreign, e.console));
        let target = "- {\"dt\": \"2023-05-08T10:00:00.123456\", \"lvl\": \"target\", \"msg\": \"\\e[1m[    1.0] \\xe9\\\\x\\0\"}";
        assert_eq!(found(target), Some(("\x1b[1m[    1.0] é\\x\0".into(), false, true)));
        for flow in [
            "- {dt: '2018-05-08T10:00:00', lvl: target, msg: '[    1.0] it''s'}",
            "- {'dt': '2018-05-08T10:00:00', 'lvl': 'target', 'msg': '[    1.0] it''s'}",
            "- {lvl: target, msg: [    1.0] it's}",
        ] {
            assert_eq!(found(flow), Some(("[    1.0] it's".into(), false, true)), "{flow}");
        }
        let own = "- {\"lvl\": \"results\", \"msg\": {\"case\": \"boot\"}}";
        assert_eq!(found(own), Some((String::new(), true, true)));
        for bad in ["- {", "- {}", "- {\"lvl\": \"target\"}", "- {\\", "- {\"\\"] {
            assert_eq!(found(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_json_of_dmesg_stands_on_several_lines() {
        let mut pretty = PrettyJson::default();
        let text = "{\n   \"dmesg\": [\n      {\n         \"pri\": 6,\n         \"time\":     \
                    5.140900,\n         \"caller\": \"T17\",\n         \"msg\": \"one\"\n      },{\n\
                    \"pri\": 6,\n\"time\": 6.0,\n\"msg\": \"two\"\n      }\n   ]\n}\n";
        let mut entries = Vec::new();
        for line in text.lines() {
            match pretty.line(line) {
                JournalStep::Entry(entry) => entries.push(entry),
                taken => assert!(taken == JournalStep::Part || line.trim().len() <= 2, "{line}"),
            }
        }
        let found: Vec<_> =
            entries.iter().map(|e| (e.message.as_str(), e.stamp.unwrap().ns, e.thread)).collect();
        assert_eq!(found, [("one", 5_140_900_000, Some(17)), ("two", 6_000_000_000, None)]);
    }

    #[test]
    fn a_lone_brace_does_not_swallow_a_log() {
        let mut pretty = PrettyJson::default();
        assert_eq!(pretty.line("{"), JournalStep::Part);
        assert_eq!(pretty.line("[    1.0] nvme x: shutdown"), JournalStep::No);
        assert_eq!(pretty.line("\"quoted\""), JournalStep::No);
    }

    fn entries(text: &str) -> Vec<JournalEntry> {
        let mut export = Export::default();
        let taken = text.lines().map(|line| export.line(line)).collect::<Vec<_>>();
        let last = export.finish();
        let entry = |taken| match taken {
            JournalStep::Entry(entry) | JournalStep::Behind(entry) => Some(entry),
            _ => None,
        };
        taken.into_iter().filter_map(entry).chain(last).collect()
    }

    #[test]
    fn an_entry_ends_at_an_empty_line_or_at_the_next_one() {
        let text = "__CURSOR=s=1;i=2\n__MONOTONIC_TIMESTAMP=9\n_BOOT_ID=ab\n_TRANSPORT=kernel\n\
                    _SOURCE_MONOTONIC_TIMESTAMP=5140900\nMESSAGE=a=b\nMESSAGE=c\n\n\
                    __CURSOR=s=1;i=3\n__MONOTONIC_TIMESTAMP=7\n_TRANSPORT=stdout\nMESSAGE\n\
                    \x0c\0\0\0\0\0\0\0probe of a\nx\nSYSLOG_PID=1\nMESSAGE=d\n\
                    __CURSOR=s=1;i=4\nMESSAGE=e\n";
        let found: Vec<_> = entries(text)
            .into_iter()
            .map(|e| (e.message, e.stamp.map(|s| s.ns), e.boot, e.foreign))
            .collect();
        assert_eq!(
            found,
            [
                ("a=b".into(), Some(5_140_900_000), Some("ab".into()), false),
                ("d".into(), Some(7000), None, true),
                ("e".into(), None, None, false),
            ]
        );
    }

    #[test]
    fn the_fields_of_a_verbose_entry_are_indented_behind_its_time() {
        let head = |i| format!("Wed 2026-03-04 13:21:00.000000 UTC [s=ab12;i={i};b=cd34]\n");
        let text = head(1)
            + "    _TRANSPORT=kernel\n    MESSAGE=a=b\n    _SOURCE_MONOTONIC_TIMESTAMP=7\n"
            + &head(2)
            + "    MESSAGE=c\n            more of it\n-- Boot 12 --\n"
            + &head(3)
            + "    _TRANSPORT=stdout\n    MESSAGE=d\n";
        let found: Vec<_> = entries(&text)
            .into_iter()
            .map(|e| (e.message, e.stamp.map(|s| s.ns), e.foreign))
            .collect();
        let told = |text: &str, ns, foreign| (text.to_owned(), ns, foreign);
        assert_eq!(
            found,
            [told("a=b", Some(7000), false), told("c", None, false), told("d", None, true)]
        );
    }

    #[test]
    fn other_texts_are_none_of_it() {
        let mut export = Export::default();
        for line in ["", "MESSAGE=x", "[    1.0] a=b", "PATH=/bin", "a: b"] {
            assert_eq!(export.line(line), JournalStep::No, "{line}");
        }
    }
}
