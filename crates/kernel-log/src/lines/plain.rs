//! Undoes the changes that mail, browsers and terminals make to the characters of a line.

use std::borrow::Cow;

/// Kinds of text that were removed from a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    /// True if tags of HTML were removed.
    pub tags: bool,
    /// True if characters without width, other than a byte order mark, were removed.
    pub invisible: bool,
}

/// Returns the text of one line as UTF-8 with plain blanks and no invisible characters, and what
/// was removed.
///
/// Bytes that are no UTF-8 are replaced; a lone A0 is the non-breaking space of Latin-1. Every
/// other blank of Unicode, and the tab, becomes a blank. Characters without width (joiners, marks
/// of direction, a byte order mark), tags of HTML and colours of a terminal are removed, also
/// colours whose first character was written out. Entities of HTML are replaced by their
/// characters.
pub(crate) fn plain(bytes: &[u8]) -> (Cow<'_, str>, Removed) {
    // Nearly all lines are printable ASCII without an entity, a tag or a colour.
    let mut before = b' ';
    let is_plain = bytes.iter().all(|&byte| {
        let colour = byte == b'[' && matches!(before, b'[' | b'b' | b'B' | b'3' | b'e');
        let tag = before == b'<' && (byte == b'/' || byte.is_ascii_alphabetic());
        before = byte;
        (b' '..=b'~').contains(&byte) && byte != b'&' && !colour && !tag
    });
    if is_plain {
        return (String::from_utf8_lossy(bytes), Removed::default());
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push(if *byte == 0xa0 { ' ' } else { char::REPLACEMENT_CHARACTER });
        }
    }
    for spelled in SPELLED_ESCAPES {
        if text.contains(spelled) {
            text = text.replace(spelled, "\x1b[");
        }
    }
    if text.contains('\x1b') {
        text = without_escapes(&text);
    }
    let length = text.len();
    if text.contains('<') {
        text = without_tags(&text);
    }
    let tags = text.len() < length;
    if text.contains('&') {
        text = without_entities(&text);
    }
    let taken = Removed { tags, invisible: text.contains(|c| c != '\u{feff}' && invisible(c)) };
    if text.contains(|c| blank(c) || invisible(c)) {
        text = text
            .chars()
            .filter(|c| !invisible(*c))
            .map(|c| if blank(c) { ' ' } else { c })
            .collect();
    }
    (text.into(), taken)
}

/// Beginnings of a colour, as `cat -v`, `rsyslog`, and quoting programs write it.
const SPELLED_ESCAPES: [&str; 6] = ["^[[", "#033[", "\\x1b[", "\\x1B[", "\\033[", "\\e["];

/// Returns `text` without the end that a CR leaves if a program writes it out, as `cat -v`,
/// `cat -A`, `rsyslog` and quoting programs do; and true if there was one.
pub(crate) fn without_spelled_cr(text: Cow<'_, str>) -> (Cow<'_, str>, bool) {
    const SPELLED: [&str; 7] = ["^M", "^M$", "#015", "\\r", "\\x0d", "\\015", "<CR>"];
    let mut end = text.len();
    while let Some(rest) = SPELLED.iter().find_map(|cr| text[..end].strip_suffix(cr)) {
        end = rest.len();
    }
    if end == text.len() {
        return (text, false);
    }
    let text = match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..end]),
        Cow::Owned(text) => Cow::Owned(text[..end].to_owned()),
    };
    (text, true)
}

/// Returns `text` without the tags of HTML that programs put around a log.
fn without_tags(text: &str) -> String {
    const TAGS: [&str; 20] = [
        "a",
        "b",
        "blockquote",
        "body",
        "br",
        "code",
        "div",
        "font",
        "head",
        "html",
        "i",
        "li",
        "p",
        "pre",
        "samp",
        "span",
        "td",
        "tr",
        "tt",
        "wbr",
    ];
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        kept.push_str(&rest[..at]);
        let tag = &rest[at + 1..];
        let name = tag.strip_prefix('/').unwrap_or(tag);
        let length = name.bytes().take_while(u8::is_ascii_alphabetic).count();
        let known = TAGS.iter().any(|t| name[..length].eq_ignore_ascii_case(t));
        let ends = name[length..].starts_with(['>', ' ', '/']);
        match tag.find('>').filter(|_| known && ends) {
            Some(end) => rest = &tag[end + 1..],
            None => {
                kept.push('<');
                rest = tag;
            }
        }
    }
    kept.push_str(rest);
    kept
}

fn blank(c: char) -> bool {
    c == '\t' || c != ' ' && !c.is_control() && c.is_whitespace()
}

/// Returns true for a character without width: soft hyphen, joiners, marks of direction, byte order
/// mark.
fn invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns `text` without terminal control sequences: `dmesg` and `systemd` colour their output.
fn without_escapes(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            kept.push(c);
        } else if chars.as_str().starts_with('[') {
            chars.next();
            // A control sequence ends with a character of its final range.
            chars.by_ref().find(|c| ('\x40'..='\x7e').contains(c));
        } else if let Some(title) = chars.as_str().strip_prefix(']') {
            // A terminal's title. Without an end, the text is none.
            let ends =
                ["\x07", "\x1b\\"].into_iter().filter_map(|end| Some((title.find(end)?, end)));
            chars = match ends.min() {
                Some((at, end)) => title[at + end.len()..].chars(),
                None => title.chars(),
            };
        } else {
            chars.next();
        }
    }
    kept
}

/// Returns `text` with the few entities that programs write for a log's characters, and numeric
/// ones, replaced.
fn without_entities(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        kept.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match entity(rest) {
            Some((c, behind)) => {
                kept.push(c);
                rest = behind;
            }
            None => kept.push('&'),
        }
    }
    kept.push_str(rest);
    kept
}

fn entity(text: &str) -> Option<(char, &str)> {
    let end = text.as_bytes().iter().take(8).position(|&b| b == b';')?;
    let (name, rest) = (&text[..end], &text[end + 1..]);
    let c = match name {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        _ => {
            let number = name.strip_prefix('#')?;
            let number = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => number.parse(),
            };
            char::from_u32(number.ok()?)?
        }
    };
    Some((c, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bytes: &[u8]) -> Cow<'_, str> {
        super::plain(bytes).0
    }

    #[test]
    fn every_blank_is_a_blank() {
        for blank in ["\u{a0}", "\u{202f}", "\u{2007}", "\u{2003}", "\u{3000}", "\t", "&nbsp;"] {
            let line = format!("[{blank}{blank}1.5]{blank}x");
            assert_eq!(plain(line.as_bytes()), "[  1.5] x", "{blank:?}");
        }
        // Latin-1.
        assert_eq!(plain(b"[\xa0 1.5]\xa0x \xff"), "[  1.5] x \u{fffd}");
    }

    #[test]
    fn nothing_is_invisible() {
        assert_eq!(plain("\u{feff}[ 1.5]\u{200b} x\u{ad}y\u{2060}".as_bytes()), "[ 1.5] xy");
        assert_eq!(plain("Mär \u{200e}06".as_bytes()), "Mär 06");
    }

    #[test]
    fn entities_are_what_they_stand_for() {
        assert_eq!(
            plain(b"&gt; &lt;6&gt;[ 1.5] &#39;a&#x26;b&quot;&amp;lt;"),
            "> <6>[ 1.5] 'a&b\"&lt;"
        );
        for none in ["a & b", "&", "&&;", "&#;", "&#x110000;", "&notanentity;", "a &am"] {
            assert_eq!(plain(none.as_bytes()), none);
        }
    }

    #[test]
    fn colours_are_taken_out() {
        let coloured = b"\x1b[32m[    0.000000] \x1b[0m\x1b[33mLinux\x1b[0m version";
        assert_eq!(plain(coloured), "[    0.000000] Linux version");
        assert_eq!(plain(b"a\x1b"), "a");
    }

    #[test]
    fn colours_and_ends_of_lines_are_taken_out_where_they_are_written_out() {
        for escape in ["^[", "#033", "\\x1b", "\\033", "\\e"] {
            let line = format!("{escape}[32m[    1.0] {escape}[0mx");
            assert_eq!(plain(line.as_bytes()), "[    1.0] x", "{escape}");
        }
        for end in ["^M", "^M$", "#015", "\\r", "\\x0d", "\\015", "<CR>", "^M^M"] {
            let (text, spelled) = without_spelled_cr(format!("[    1.0] x{end}").into());
            assert_eq!((&*text, spelled), ("[    1.0] x", true), "{end}");
        }
        for none in ["[    1.0] a^Mb", "x #01", ""] {
            assert_eq!(without_spelled_cr(none.into()), (none.into(), false));
        }
    }

    #[test]
    fn tags_of_html_are_taken_out_and_nothing_else() {
        assert_eq!(
            plain(b"<html><body class=\"x\">[&nbsp;1.5]&nbsp;<SPAN id=a>x</span></body></html>"),
            "[ 1.5] x"
        );
        for none in ["<6>[ 1.5] x", "a < b > c", "<unknown> x", "<a", "<brand>", "x <", "</"] {
            assert_eq!(plain(none.as_bytes()), none);
        }
        // An entity becomes its character, and no tag.
        assert_eq!(plain(b"&lt;br&gt;"), "<br>");
    }

    #[test]
    fn titles_of_terminals_are_taken_out() {
        assert_eq!(
            plain(b"\x1b]0;title\x07nvme x\x1b]2;other\x1b\\: shutdown"),
            "nvme x: shutdown"
        );
        assert_eq!(plain(b"a\x1b]b"), "ab");
    }
}
