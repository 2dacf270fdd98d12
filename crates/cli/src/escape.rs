//! Text for JSON, logfmt and terminals. Any user may choose names, so invisible characters are
//! escaped.
//!
//! Logfmt is words and `key=value` pairs. A value of one word stands as it is. Any other value is
//! quoted and escaped as in JSON, so it can't break a line or change the direction of reading.

use std::borrow::Cow;
use std::fmt::{self, Write};

use corewise::timeline::markup::is_invisible;
use serde::Serialize;

/// Returns a JSON document with indents, for people and programs.
pub(crate) fn pretty(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(json(&serde_json::to_string_pretty(value)?).into_owned())
}

/// Escapes the invisible characters of a JSON document. Such characters stand in strings alone,
/// except line ends, which stand between values.
pub(crate) fn json(json: &str) -> Cow<'_, str> {
    let hidden = |c: char| c != '\n' && is_invisible(c);
    if !json.contains(hidden) {
        return json.into();
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        // Writing to a String can't fail.
        let _ = if hidden(c) { utf16(&mut out, c) } else { out.write_char(c) };
    }
    out.into()
}

/// Writes a character as JSON's escapes do, in UTF-16.
pub(crate) fn utf16(out: &mut dyn Write, c: char) -> fmt::Result {
    let mut room = [0; 2];
    c.encode_utf16(&mut room).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
}

/// Returns true for a character that is always escaped.
fn is_bad(c: char) -> bool {
    is_invisible(c) || c == '\u{fffd}'
}

fn is_word(text: &str) -> bool {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '=' | '\\') || is_bad(c);
    !text.is_empty() && !text.contains(ends)
}

/// Writes a value.
pub(crate) fn value(out: &mut dyn Write, value: &str) -> fmt::Result {
    if is_word(value) {
        return out.write_str(value);
    }
    out.write_char('"')?;
    for c in value.chars() {
        match c {
            '"' | '\\' => write!(out, "\\{c}")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if is_bad(c) => utf16(out, c)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

/// Writes words without a key. If a parser could take them for pairs, writes them as the value of
/// `key`.
pub(crate) fn words(out: &mut dyn Write, key: &str, words: &str) -> fmt::Result {
    if words.split(' ').all(|word| word.is_empty() || is_word(word)) {
        return out.write_str(words);
    }
    write!(out, "{key}=")?;
    value(out, words)
}

/// Returns a line with its invisible characters written as `\u{202e}`.
pub(crate) fn visible(line: &str) -> String {
    let shown = |c: char| match is_invisible(c) && c != '\t' {
        true => c.escape_unicode().to_string(),
        false => c.to_string(),
    };
    line.chars().map(shown).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_cant_be_seen_is_escaped_and_read_back_as_it_was() {
        let value = json!({"a\u{202e}": ["x\u{200b}\u{e0041}\u{7f}\u{85}\n\t", "é 😀"]});
        for json in [pretty(&value).unwrap(), super::json(&value.to_string()).into_owned()] {
            assert!(!json.contains(|c| c != '\n' && is_invisible(c)), "{json:?}");
            assert!(json.contains("é 😀") && json.contains("\\u202e"), "{json}");
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
        assert!(matches!(super::json("{\n}"), Cow::Borrowed(_)));
    }

    /// Returns the findings of a strict parser: keys with values, and words without one. `None` if
    /// the line isn't logfmt.
    pub(crate) fn parsed(line: &str) -> Option<Vec<(String, Option<String>)>> {
        let mut chars = line.chars().peekable();
        let mut pairs = Vec::new();
        loop {
            while chars.next_if_eq(&' ').is_some() {}
            let word = |c: &char| *c > ' ' && !matches!(c, '"' | '=');
            let mut key = String::new();
            while let Some(c) = chars.next_if(word) {
                key.push(c);
            }
            let mut found = None;
            if chars.next_if_eq(&'=').is_some() {
                let mut value = String::new();
                if chars.next_if_eq(&'"').is_some() {
                    let mut raw = String::from('"');
                    loop {
                        let c = chars.next()?;
                        raw.push(c);
                        match c {
                            '"' => break,
                            '\\' => raw.push(chars.next()?),
                            _ => {}
                        }
                    }
                    value = serde_json::from_str(&raw).ok()?;
                }
                while let Some(c) = chars.next_if(word) {
                    value.push(c);
                }
                found = Some(value);
            }
            match (chars.peek(), key.is_empty()) {
                (None, true) => return found.is_none().then_some(pairs),
                (None | Some(' '), false) => pairs.push((key, found)),
                _ => return None,
            }
        }
    }

    #[test]
    fn any_value_is_read_back_as_it_was() {
        let mut chance = fastrand::Rng::with_seed(7);
        let all: Vec<char> =
            "ab =\"\\\n\r\t\u{1b}\u{85}\u{202e}\u{2028}\u{200b}\u{e0041}\u{fffd}\u{1f600}'é"
                .chars()
                .collect();
        for _ in 0..20_000 {
            let text: String =
                (0..chance.usize(..6)).map(|_| all[chance.usize(..all.len())]).collect();
            let mut line = String::from("WARN some words a=");
            value(&mut line, &text).unwrap();
            line.push_str(" b=1");
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
            let read = parsed(&line).unwrap_or_else(|| panic!("{line:?}"));
            assert_eq!(read[3..], [("a".into(), Some(text)), ("b".into(), Some("1".into()))]);
        }
        for bad in ["a=\"b", "a=b\"c", "\"a\"", "a==b", "=b"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn words_stand_as_they_are_unless_they_would_be_taken_for_pairs() {
        let written = |text: &str| {
            let mut line = String::new();
            words(&mut line, "message", text).unwrap();
            line
        };
        assert_eq!(written("a client's request failed"), "a client's request failed");
        assert_eq!(written("set io=\"threads\""), "message=\"set io=\\\"threads\\\"\"");
        assert_eq!(written("a\nb"), "message=\"a\\nb\"");
    }

    #[test]
    fn a_message_shows_what_would_turn_or_hide_text() {
        assert_eq!(
            visible("a\u{202e}b\u{200b}\x1b[2J\tc é"),
            "a\\u{202e}b\\u{200b}\\u{1b}[2J\tc é"
        );
    }
}
