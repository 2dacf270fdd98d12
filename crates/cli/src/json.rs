//! JSON that is shown: names in it may come from anybody, and what shows nothing by itself is
//! escaped.

use std::borrow::Cow;
use std::fmt::{self, Write};

use corewise::timeline::markup::is_invisible;
use serde::Serialize;

/// A document for people and programs.
pub(crate) fn pretty(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(escaped(&serde_json::to_string_pretty(value)?).into_owned())
}

/// The same JSON, all of which can be seen. Characters that can't stand inside strings alone; line
/// ends are between the values.
pub(crate) fn escaped(json: &str) -> Cow<'_, str> {
    let hidden = |c: char| c != '\n' && is_invisible(c);
    if !json.contains(hidden) {
        return json.into();
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        // Writing to a String can't fail.
        let _ = if hidden(c) { escape(&mut out, c) } else { out.write_char(c) };
    }
    out.into()
}

/// Writes a character as JSON's escapes do, in UTF-16.
pub(crate) fn escape(out: &mut dyn Write, c: char) -> fmt::Result {
    let mut room = [0; 2];
    c.encode_utf16(&mut room).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_cant_be_seen_is_escaped_and_read_back_as_it_was() {
        let value = json!({"a\u{202e}": ["x\u{200b}\u{e0041}\u{7f}\u{85}\n\t", "é 😀"]});
        for json in [pretty(&value).unwrap(), escaped(&value.to_string()).into_owned()] {
            assert!(!json.contains(|c| c != '\n' && is_invisible(c)), "{json:?}");
            assert!(json.contains("é 😀") && json.contains("\\u202e"), "{json}");
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
        assert!(matches!(escaped("{\n}"), Cow::Borrowed(_)));
    }
}
