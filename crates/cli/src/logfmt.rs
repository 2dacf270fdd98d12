//! Lines of words and `key=value` pairs that a parser of logfmt reads. A value stands as it is where that is one word; else it is
//! quoted, and escaped as in JSON: what would break a line or turn the direction of reading comes out as text.

use std::fmt::{self, Write};

use corewise::timeline::markup::is_invisible;

use crate::json;

/// What is never written as it is.
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
            c if is_bad(c) => json::escape(out, c)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

/// Writes words without a key; where they would be taken for something else, as the value of `key`.
pub(crate) fn words(out: &mut dyn Write, key: &str, words: &str) -> fmt::Result {
    if words.split(' ').all(|word| word.is_empty() || is_word(word)) {
        return out.write_str(words);
    }
    write!(out, "{key}=")?;
    value(out, words)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a strict parser finds: keys with their values, words without one. `None`: it isn't logfmt.
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
}
