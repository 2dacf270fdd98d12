//! User text in log lines and errors: bounded, and escaped once.
//!
//! A name or a panic message can have any length. And an error that contains such a text is often
//! the message of the next panic, by `unwrap`. If the text were escaped as `str`'s `Debug` does,
//! its backslashes would double with each level.

use std::fmt;
use std::io;

/// Maximum bytes of a shown name: queues, devices, threads, functions.
const NAME: usize = 256;
/// Maximum bytes of a shown message.
const MESSAGE: usize = 4096;

/// A text as a log line or an error shows it: if it is too long, its middle is replaced by a sign.
/// [`name`] and [`message`] create it.
///
/// `Debug` puts it into quotes. Line breaks and other characters that aren't printable are escaped;
/// quotes and backslashes aren't, so the `Debug` form of a text that holds another one's `Debug`
/// form hardly grows.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    text: &'a str,
    most: usize,
}

/// Shows a name in at most 256 bytes and a sign.
pub fn name(text: &str) -> Shown<'_> {
    Shown { text, most: NAME }
}

/// Shows a message in at most 4096 bytes and a sign.
pub fn message(text: &str) -> Shown<'_> {
    Shown { text, most: MESSAGE }
}

/// Bounds a name that is kept: a long name is replaced by its shown form.
pub fn bounded_name(text: String) -> String {
    if text.len() <= NAME { text } else { name(&text).to_string() }
}

/// Returns advice on a thread that could not be started, to be appended to its error. Empty for an
/// error that names another cause.
pub fn thread_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        // EAGAIN: too many threads, or no memory for the stack.
        io::ErrorKind::WouldBlock => {
            ": raise TasksMax or pids.max of the cgroup, or `ulimit -u` or `-v`"
        }
        _ => "",
    }
}

impl<'a> Shown<'a> {
    /// Returns the beginning, the number of bytes that are left out, and the end.
    fn parts(&self) -> (&'a str, usize, &'a str) {
        let Shown { text, most } = *self;
        if text.len() <= most {
            return (text, 0, "");
        }
        let mut begin = most / 2;
        while !text.is_char_boundary(begin) {
            begin -= 1;
        }
        let mut end = text.len() - most / 2;
        while !text.is_char_boundary(end) {
            end += 1;
        }
        (&text[..begin], end - begin, &text[end..])
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (whole, 0, _) => f.write_str(whole),
            (begin, out, end) => write!(f, "{begin}[... {out} bytes ...]{end}"),
        }
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begin, out, end) = self.parts();
        f.write_str("\"")?;
        once_escaped(begin, f)?;
        if out > 0 {
            write!(f, "[... {out} bytes ...]")?;
        }
        once_escaped(end, f)?;
        f.write_str("\"")
    }
}

fn once_escaped(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => fmt::Write::write_char(f, c)?,
            _ => fmt::Display::fmt(&c.escape_debug(), f)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_loses_its_middle_at_the_boundaries_of_characters() {
        for size in [1, 2, 3, 4] {
            let c = ["x", "\u{e9}", "\u{20ac}", "\u{1f600}"][size - 1];
            let long = c.repeat(500_000 / size);
            let shown = name(&long).to_string();
            assert!(shown.len() < NAME + 40, "{} bytes", shown.len());
            assert!(shown.starts_with(c) && shown.ends_with(c), "{shown}");
            let kept = shown.matches(c).count() * size;
            assert!(kept > NAME - 8, "{kept} bytes are kept");
            assert!(shown.contains(&format!("[... {} bytes ...]", long.len() - kept)), "{shown}");
            assert_eq!(bounded_name(long), shown);
        }
    }

    #[test]
    fn a_text_that_fits_is_shown_as_it_is() {
        let fits = "a".repeat(NAME);
        assert_eq!(name(&fits).to_string(), fits);
        assert_eq!(
            format!("{:?}", message("of \u{202e} two\nlines")),
            r#""of \u{202e} two\nlines""#
        );
    }

    #[test]
    fn debug_text_within_debug_text_is_escaped_once() {
        let mut text = "a \"quoted\" \\ word,\nand one".to_owned();
        for level in 0..1000 {
            let before = text.len();
            text = format!("an error: {:?}", message(&text));
            let grown = text.len() - before.min(text.len());
            assert!(grown <= 60, "by {grown} bytes at level {level}");
        }
        assert!(text.len() < MESSAGE + 100, "{} bytes", text.len());
    }
}
