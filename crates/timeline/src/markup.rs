//! Parts that every picture of Corewise shares: escaped text, the room that text takes, the font.

use std::borrow::Cow;

use crate::units;

/// The CSS declarations of a picture's text, without colour: 12 px in the font of the viewer's user
/// interface.
pub const FONT: &str = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',\
                        sans-serif;font-size:12px";

/// Width of a character of 12 px, in pixels. Fonts differ: this is that of a wide one.
pub const CHAR_WIDTH: f64 = 7.2;

/// Returns `text` as XML character data that may also stand in an attribute. Line ends stay. Other
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
            // A tooltip keeps its line ends.
            '\n' => out.push('\n'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Shortens `text` to at most `width` characters by cutting out its middle. Characters that would
/// move a cursor or break a line are replaced.
pub fn fit(text: &str, width: usize) -> String {
    units::fit(text, width)
}

/// Replaces by U+FFFD each character that would move a cursor, break a line, turn the direction of
/// reading or take no room. Names may come from untrusted sources.
pub fn printable(text: &str) -> Cow<'_, str> {
    units::printable(text)
}

/// Returns true if a character shows nothing by itself: [`printable`] replaces it.
pub fn is_invisible(c: char) -> bool {
    units::is_invisible(c)
}

/// Encloses each word with right-to-left letters in FIRST STRONG ISOLATE and POP DIRECTIONAL
/// ISOLATE, so that words keep their places. Otherwise the number behind such a name would be shown
/// before it, and its sign behind it. Brackets and commas around a word stay outside.
///
/// Call this on a finished line: the two characters have no width. Text that already has them is
/// unchanged.
pub fn isolate(line: &str) -> Cow<'_, str> {
    units::isolate(line)
}

/// Makes untrusted `text` safe for a picture or page: [`printable`], [isolated](isolate),
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
