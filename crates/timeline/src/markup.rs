//! What every picture of Corewise shares: escaped text, the room that text takes, the font.

use std::borrow::Cow;

use crate::units;

/// The CSS declarations of a picture's text, without colour: 12 px of whatever the viewer's own
/// user interface is set in.
pub const FONT: &str = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',\
                        sans-serif;font-size:12px";

/// The room that one character of 12 px is given, in pixels. Fonts differ: this is a wide one.
pub const CHAR_WIDTH: f64 = 7.2;

/// `text` as XML character data that may also stand in an attribute. Line ends stay; other
/// characters that XML forbids are replaced by U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // The tooltip's own line ends.
            '\n' => out.push('\n'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// `text` in at most `width` characters, its middle cut out where it is longer, without what would
/// move a cursor or break a line.
pub fn fit(text: &str, width: usize) -> String {
    units::fit(text, width)
}

/// `text` without what would move a cursor, break a line, turn the direction of reading or take no
/// room: names may come from anybody. Replaced by U+FFFD.
pub fn printable(text: &str) -> Cow<'_, str> {
    units::printable(text)
}

/// Whether a character shows nothing by itself: [`printable`] replaces it.
pub fn is_invisible(c: char) -> bool {
    units::is_invisible(c)
}

/// Encloses each word that has letters written from right to left in FIRST STRONG ISOLATE and POP
/// DIRECTIONAL ISOLATE, so that words keep their places: the number behind such a name would else
/// be shown before it, its sign behind it. Brackets and commas around a word stay outside.
///
/// For a line as it is written: the two characters have no width. Text that has them stays as it
/// is.
pub fn isolate(line: &str) -> Cow<'_, str> {
    units::isolate(line)
}

/// `text` from somebody else's hands in a picture or page: [`printable`], [isolated](isolate),
/// [escaped](escape).
pub(crate) fn shown(text: &str) -> String {
    escape(&units::isolate(&units::printable(text)))
}

/// Breaks `text` at blanks into lines of at most `width` characters; later lines begin with
/// `indent` blanks. A word that is wider than a line is cut.
pub fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    units::wrap(text, width, indent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_xml_forbids_are_escaped_or_replaced() {
        assert_eq!(escape("a<b>&\"'\u{1}\u{ffff}"), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}\u{fffd}");
    }
}
