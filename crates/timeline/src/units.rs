//! Lengths of time as text for people, and names made fit to print.

use std::borrow::Cow;
use std::time::Duration;

/// Writes a length of time with three significant digits and its unit, at most seven characters
/// wide: `0 ns`, `12.3 µs`, `310 ms`, `1.21 s`, `83.0 s`. From 10 000 s on it is as wide as it
/// needs.
pub fn duration(d: Duration) -> String {
    let ns = d.as_nanos() as f64;
    // The limits are where the next unit's rounding begins, so that 999.6 µs is not `1000 µs`.
    let (value, unit) = match ns {
        _ if ns < 999.5 => return format!("{ns:.0} ns"),
        _ if ns < 999.5e3 => (ns / 1e3, "µs"),
        _ if ns < 999.5e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    match value {
        _ if value < 9.995 => format!("{value:.2} {unit}"),
        _ if value < 99.95 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// Returns a length of time in nanoseconds, up to 584 years. A longer one is a broken stamp.
pub(crate) fn ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes a number and its noun: `1 probe`, `2 probes`. If a phrase has two nouns, call it once for
/// each.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Returns the form of a verb that agrees with `n` things.
pub fn verb(n: usize, one: &'static str, many: &'static str) -> &'static str {
    if n == 1 { one } else { many }
}

/// Returns true if a character shows nothing by itself: it moves a cursor, breaks a line, turns the
/// direction of reading, or takes no room. These are Unicode's controls, line and paragraph
/// separators, interlinear annotations, and `Default_Ignorable_Code_Point`.
pub(crate) fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Replaces characters that show nothing by themselves: names may come from a log that anyone could
/// have written to.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(is_invisible) {
        true => text.replace(is_invisible, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// Returns true if `c` is a letter of a script that is written from right to left.
fn is_rtl(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefe}')
        || matches!(c, '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
}

/// Encloses each word with right-to-left letters in FIRST STRONG ISOLATE and POP DIRECTIONAL
/// ISOLATE, so that words keep their places. Otherwise the number behind such a name would be shown
/// before it, and its sign behind it. Brackets and commas around a word stay outside.
///
/// Call this on a finished line, after everything that counts characters: the two characters have
/// no width. A line that already has them is unchanged.
pub(crate) fn isolate(text: &str) -> Cow<'_, str> {
    if !text.contains(is_rtl) || text.contains('\u{2068}') {
        return text.into();
    }
    let is_edge =
        |c: char| c.is_whitespace() || c.is_ascii_punctuation() && !matches!(c, '-' | '_' | '.');
    let mut out = String::with_capacity(text.len() + 16);
    for word in text.split_inclusive(char::is_whitespace) {
        if !word.contains(is_rtl) {
            out.push_str(word);
            continue;
        }
        let inner = word.trim_matches(is_edge);
        let (before, after) = word.split_once(inner).unwrap_or_default();
        for part in [before, "\u{2068}", inner, "\u{2069}", after] {
            out.push_str(part);
        }
    }
    out.into()
}

/// Shortens `text` to at most `width` characters and marks the cut by `…`. The beginning of a name
/// mostly says what kind it is and the end which one it is, so the middle goes.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let text = printable(text);
    let len = text.chars().count();
    if len <= width {
        return text.into_owned();
    }
    let Some(keep) = width.checked_sub(1) else { return String::new() };
    let head = keep.div_ceil(2);
    let tail = keep - head;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(len - tail)).collect()
}

/// Breaks `text` at blanks into lines of at most `width` characters; later lines begin with
/// `indent` blanks. A word that is wider than a line is cut.
pub(crate) fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let mut word: &str = word;
        let mut len = word.chars().count();
        if used > 0 && used + 1 + len > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            used = indent;
        } else if used > 0 {
            line.push(' ');
            used += 1;
        }
        while used + len > width && width > indent {
            let cut = word.char_indices().nth(width - used).map_or(word.len(), |(at, _)| at);
            line.push_str(&word[..cut]);
            word = &word[cut..];
            len = word.chars().count();
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            used = indent;
        }
        line.push_str(word);
        used += len;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_three_digits_and_at_most_seven_characters() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (9_994, "9.99 µs"),
            (9_996, "10.0 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (34_765_890, "34.8 ms"),
            (999_600_000, "1.00 s"),
            (83_000_000_000, "83.0 s"),
            (9_999_000_000_000, "9999 s"),
        ] {
            let shown = duration(Duration::from_nanos(ns));
            assert_eq!(shown, text);
            assert!(shown.chars().count() <= 7);
        }
    }

    #[test]
    fn a_long_name_keeps_its_beginning_and_its_end() {
        assert_eq!(fit("volume", 6), "volume");
        assert_eq!(fit("pci-0000:01:00.0", 9), "pci-…00.0");
        assert_eq!(fit("abc", 1), "…");
        assert_eq!(fit("abc", 0), "");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(fit("a\x1b[2Jb\n", 20), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(printable("a\u{202e}b"), "a\u{fffd}b");
        assert_eq!(
            printable("a\u{200b}\u{2060}\u{feff}\u{e0041}b"),
            "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}b"
        );
        assert_eq!(printable("é 漢 😀 …"), "é 漢 😀 …");
    }

    #[test]
    fn words_from_right_to_left_are_isolated_and_what_stands_beside_them_is_not() {
        for (text, isolated) in [
            ("disk ≤200 µs", "disk ≤200 µs"),
            ("جهاز ≤200 µs", "<جهاز> ≤200 µs"),
            ("path: جهاز (≤200 µs)", "path: <جهاز> (≤200 µs)"),
            ("(جهاز), b", "(<جهاز>), b"),
            ("usb-جهاز-2 ok", "<usb-جهاز-2> ok"),
            ("مخزن كبير 3 ms, קובץ", "<مخزن> <كبير> 3 ms, <קובץ>"),
            ("a קובץ: קובץ", "a <קובץ>: <קובץ>"),
        ] {
            let found = isolate(text).replace('\u{2068}', "<").replace('\u{2069}', ">");
            assert_eq!(found, isolated, "{text}");
        }
    }

    #[test]
    fn each_isolate_is_closed_and_nothing_is_lost() {
        let letters = ['a', ' ', 'ק', '(', ')', '-', '\u{2003}', '≤', '"'];
        for n in 0..letters.len().pow(5) {
            let text: String =
                (0..5).map(|i| letters[n / letters.len().pow(i) % letters.len()]).collect();
            let isolated = isolate(&text);
            assert_eq!(isolated.replace(['\u{2068}', '\u{2069}'], ""), text);
            let mut open = false;
            for c in isolated.chars() {
                match c {
                    '\u{2068}' => assert!(!std::mem::replace(&mut open, true), "{text}"),
                    '\u{2069}' => assert!(std::mem::replace(&mut open, false), "{text}"),
                    c => assert!(open || !is_rtl(c), "{text}"),
                }
            }
            assert!(!open, "{text}");
        }
    }

    #[test]
    fn lines_break_at_blanks_and_long_words_are_cut() {
        assert_eq!(wrap("one two three", 8, 2), ["one two", "  three"]);
        assert_eq!(wrap("abcdefghij", 4, 1), ["abcd", " efg", " hij"]);
        assert_eq!(wrap("", 8, 2), [""]);
        for line in wrap(&"wörd ".repeat(40), 20, 4) {
            assert!(line.chars().count() <= 20, "{line}");
        }
    }
}
