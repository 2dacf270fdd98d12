//! Splits a stream of bytes into lines of bounded length. Lines in the source of a mail may be
//! encoded as quoted-printable.

pub(crate) mod encoding;
pub(crate) mod plain;

use std::borrow::Cow;

use plain::{plain, without_spelled_cr};

/// Bytes of a line that are kept. No kernel line is that long (`printk` cuts at 1024 bytes), and a
/// line of JSON seldom is. The rest of a longer line is skipped.
pub(crate) const LONGEST: usize = 16 * 1024;

/// One line as it was found.
#[derive(Debug, Default)]
pub(crate) struct Line<'a> {
    /// Its number; the first is 1.
    pub number: u64,
    /// The [plain] text, without the line's end.
    pub text: Cow<'a, str>,
    /// True if the line ended in CR and LF, as on a serial console, even if the CR is written out.
    pub crlf: bool,
    /// True if the line was longer than [`LONGEST`], and so its end is missing.
    pub cut: bool,
    /// Number of lines in the file; 0 if HTML broke the line here.
    pub count: u64,
    /// True if a terminal had broken the line and the parts were joined.
    pub joined: bool,
    /// True if tags of HTML were removed.
    pub html: bool,
    /// True if characters without width were removed.
    pub invisible: bool,
}

impl Line<'_> {
    /// Returns a copy that can be kept.
    pub(crate) fn kept(&self) -> Line<'static> {
        let Line { number, crlf, cut, count, joined, html, invisible, .. } = *self;
        let text = Cow::Owned(self.text.to_string());
        Line { number, text, crlf, cut, count, joined, html, invisible }
    }
}

/// Keeps the bytes of a line that has not ended yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    part: Vec<u8>,
    cut: bool,
    number: u64,
    mail: QuotedPrintable,
    /// Number of the first of several lines that a mail's encoding joins.
    first: Option<u64>,
}

impl Lines {
    /// Takes some bytes, in any pieces, and passes on each line that ends among them.
    pub(crate) fn feed(&mut self, bytes: &[u8], each: &mut impl FnMut(Line<'_>)) {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|&b| b == b'\n') {
            if self.part.is_empty() && at <= LONGEST {
                self.line(&rest[..at], false, each);
            } else {
                self.keep(&rest[..at]);
                self.end(each);
            }
            rest = &rest[at + 1..];
        }
        self.keep(rest);
    }

    /// Passes on the text behind the last line's end, if there is any.
    pub(crate) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) {
        if !self.part.is_empty() {
            self.end(each);
        }
        if let Some(part) = self.mail.finish() {
            let first = self.first.take().unwrap_or(self.number);
            hand_on(first, self.number + 1 - first, &part, false, false, each);
        }
    }

    /// Returns true if the source of a mail was decoded.
    pub(crate) fn decoded(&self) -> bool {
        self.mail.decoded()
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST - self.part.len();
        self.cut |= bytes.len() > room;
        self.part.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end(&mut self, each: &mut impl FnMut(Line<'_>)) {
        let (mut part, cut) = (std::mem::take(&mut self.part), std::mem::take(&mut self.cut));
        self.line(&part, cut, each);
        part.clear();
        self.part = part;
    }

    fn line(&mut self, bytes: &[u8], cut: bool, each: &mut impl FnMut(Line<'_>)) {
        self.number += 1;
        let crlf = bytes.ends_with(b"\r");
        // A console that is written to twice adds a second CR; a dump of it may keep NULs.
        let end = bytes.iter().rposition(|&b| b != b'\r' && b != 0).map_or(0, |at| at + 1);
        let start = bytes[..end].iter().position(|&b| b != 0).unwrap_or(end);
        let number = *self.first.get_or_insert(self.number);
        let count = self.number + 1 - number;
        match self.mail.line(&bytes[start..end]) {
            MailLine::Plain(line) => hand_on(number, count, line, crlf, cut, each),
            MailLine::Decoded(line) => {
                let cut = cut || line.len() > LONGEST;
                hand_on(number, count, &line[..line.len().min(LONGEST)], crlf, cut, each);
            }
            MailLine::Part => return,
        }
        self.first = None;
    }
}

/// Passes on one line, or several if HTML breaks it.
fn hand_on(
    number: u64,
    count: u64,
    bytes: &[u8],
    crlf: bool,
    cut: bool,
    each: &mut impl FnMut(Line<'_>),
) {
    let mut one = |bytes: &[u8], cut: bool, count: u64| {
        let (text, taken) = plain(bytes);
        let (text, spelled) = without_spelled_cr(text);
        let (crlf, html) = (crlf || spelled, taken.tags || count == 0);
        let invisible = taken.invisible;
        each(Line { number, text, crlf, cut, count, joined: false, html, invisible });
    };
    let (mut rest, mut count) = (bytes, count);
    while let Some((at, behind)) = line_break(rest) {
        one(&rest[..at], false, count);
        (rest, count) = (behind, 0);
    }
    // A break at the end of a line is that end.
    if count > 0 || !rest.is_empty() {
        one(rest, cut, count);
    }
}

/// Returns the position of `<br>` and the bytes behind it.
fn line_break(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut from = 0;
    loop {
        let at = from + bytes.get(from..)?.iter().position(|&b| b == b'<')?;
        let tag = &bytes[at + 1..];
        if tag.len() >= 3 && tag[..2].eq_ignore_ascii_case(b"br") && b" />".contains(&tag[2]) {
            let end = tag.iter().take(16).position(|&b| b == b'>')?;
            return Some((at, &tag[end + 1..]));
        }
        from = at + 1;
    }
}

/// Decodes the bodies of mails whose heads announce quoted-printable. Other lines pass unchanged.
#[derive(Debug, Default)]
pub(crate) struct QuotedPrintable {
    state: MailState,
    /// Text that divides the parts of the mail.
    boundary: Option<Vec<u8>>,
    /// Beginning of a line whose end stands on the next one.
    part: Vec<u8>,
    /// True if a line was decoded.
    decoded: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MailState {
    #[default]
    Plain,
    /// The head announces an encoded body.
    Head,
    Body,
}

/// Result of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MailLine<'a> {
    /// The line needs no decoding.
    Plain(&'a [u8]),
    /// The decoded line.
    Decoded(Vec<u8>),
    /// The beginning of a line that continues on the next one.
    Part,
}

impl QuotedPrintable {
    /// Takes one line, without its end.
    pub(crate) fn line<'a>(&mut self, line: &'a [u8]) -> MailLine<'a> {
        match self.state {
            MailState::Plain | MailState::Head => {
                if line.is_empty() && self.state == MailState::Head {
                    self.state = MailState::Body;
                }
                // Few lines belong to a head.
                if line.first().is_some_and(|b| b"Cc \t".contains(b)) {
                    self.head(line);
                }
                MailLine::Plain(line)
            }
            MailState::Body if self.divides(line) => {
                self.state = MailState::Plain;
                let part = std::mem::take(&mut self.part);
                if part.is_empty() { MailLine::Plain(line) } else { MailLine::Decoded(part) }
            }
            MailState::Body => {
                self.decoded = true;
                let end =
                    line.iter().rposition(|b| !b.is_ascii_whitespace()).map_or(0, |at| at + 1);
                let (text, more) = match line[..end].strip_suffix(b"=") {
                    Some(text) => (text, true),
                    None => (&line[..end], false),
                };
                decode(text, &mut self.part);
                if more && self.part.len() <= LONGEST {
                    return MailLine::Part;
                }
                MailLine::Decoded(std::mem::take(&mut self.part))
            }
        }
    }

    /// Returns the beginning of a line whose end never came.
    pub(crate) fn finish(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.part)).filter(|part| !part.is_empty())
    }

    /// Returns true if a line was decoded.
    pub(crate) fn decoded(&self) -> bool {
        self.decoded
    }

    /// Reads a line that may be one of a mail's head, or of the head of a part.
    fn head(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let lower = text.to_ascii_lowercase();
        if let Some(encoding) = lower.strip_prefix("content-transfer-encoding:") {
            let encoded = encoding.trim() == "quoted-printable";
            self.state = if encoded { MailState::Head } else { MailState::Plain };
        }
        let about_type = lower.starts_with("content-type:") || line.starts_with(b" ");
        if let Some(at) = lower.find("boundary=").filter(|_| about_type || line.starts_with(b"\t"))
        {
            let name = text[at + "boundary=".len()..].split(';').next().unwrap_or_default();
            let name = name.trim().trim_matches('"');
            if !name.is_empty() && name.len() <= 70 {
                self.boundary = Some(name.as_bytes().to_vec());
            }
        }
    }

    /// Returns true if the body ends here: at a boundary, or before another mail of a mailbox.
    fn divides(&self, line: &[u8]) -> bool {
        let named = |rest: &[u8]| self.boundary.as_ref().is_some_and(|name| rest.starts_with(name));
        line.strip_prefix(b"--").is_some_and(named)
            || line.starts_with(b"From ") && line.contains(&b'@')
    }
}

/// Decodes the encoded characters. Text that only looks encoded stays.
fn decode(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&b| b == b'=') {
        out.extend_from_slice(&rest[..at]);
        let digits = rest.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.unwrap_or(b'='));
        rest = &rest[at + if byte.is_some() { 3 } else { 1 }..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<(u64, String, bool, bool)> {
        let mut found = Vec::new();
        let mut each = |l: Line<'_>| found.push((l.number, l.text.into_owned(), l.crlf, l.cut));
        let mut reader = Lines::default();
        for part in parts {
            reader.feed(part, &mut each);
        }
        reader.finish(&mut each);
        found
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_are_cut() {
        let text = b"one\r\ntwo\n\nfour \xff\r\r\nfive";
        let whole = lines(&[text]);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(whole, lines(&bytes));
        assert_eq!(whole.len(), 5);
        assert_eq!(whole[0], (1, "one".into(), true, false));
        assert_eq!(whole[3], (4, "four \u{fffd}".into(), true, false));
        assert_eq!(whole[4], (5, "five".into(), false, false));
    }

    #[test]
    fn breaks_of_html_divide_a_line_and_keep_its_number() {
        let found = lines(&[b"a<br>b<BR />c<br/>\n<br>d<bra>e\n"]);
        let told: Vec<_> = found.iter().map(|(n, text, ..)| (*n, text.as_str())).collect();
        assert_eq!(told, [(1, "a"), (1, "b"), (1, "c"), (2, ""), (2, "d<bra>e")]);
    }

    #[test]
    fn lines_that_an_encoding_makes_one_have_the_first_ones_number() {
        let found =
            lines(&[b"Content-Transfer-Encoding: quoted-printable\n\na=\nb\nc=3D\n=\nd=\n"]);
        let told: Vec<_> = found[2..].iter().map(|(n, text, ..)| (*n, text.as_str())).collect();
        assert_eq!(told, [(3, "ab"), (5, "c="), (6, "d")]);
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let mut reader = Lines::default();
        for _ in 0..1000 {
            reader.feed(&[b'x'; 4096], &mut |_| panic!("no line has ended"));
            assert!(reader.part.capacity() <= 2 * LONGEST);
        }
        let mut found = Vec::new();
        reader.feed(b"\nnext\n", &mut |l: Line<'_>| found.push((l.number, l.text.len(), l.cut)));
        assert_eq!(found, [(1, LONGEST, true), (2, 4, false)]);
    }

    fn decoded(text: &str) -> Vec<String> {
        let mut mail = QuotedPrintable::default();
        let mut lines = Vec::new();
        for line in text.split('\n') {
            match mail.line(line.as_bytes()) {
                MailLine::Plain(line) => lines.push(String::from_utf8_lossy(line).into_owned()),
                MailLine::Decoded(line) => lines.push(String::from_utf8_lossy(&line).into_owned()),
                MailLine::Part => {}
            }
        }
        lines.extend(mail.finish().map(|line| String::from_utf8_lossy(&line).into_owned()));
        lines
    }

    #[test]
    fn a_body_that_its_head_calls_quoted_printable_is_decoded() {
        let text = "Subject: x\nContent-Transfer-Encoding: Quoted-Printable\nX-Other: =41\n\n\
                    a =3D b=\n c=20\n=C3=A9=zz\nlast=";
        assert_eq!(
            decoded(text)[4..],
            ["a = b c ".to_owned(), "é=zz".to_owned(), "last".to_owned()]
        );
        assert_eq!(decoded(text)[2], "X-Other: =41", "the head itself is no body");
    }

    #[test]
    fn what_no_head_announces_stays_as_it_is() {
        for text in ["a=\nb=3D", "Content-Transfer-Encoding: 8bit\n\na=\nb", "\n\nx="] {
            assert_eq!(decoded(text).join("\n"), text);
        }
    }

    #[test]
    fn a_body_ends_at_its_boundary_and_at_the_next_mail() {
        let text = "Content-Type: multipart/mixed; boundary=\"b1\"\n\n--b1\n\
                    Content-Transfer-Encoding: quoted-printable\n\n-- =41\n--b1\nx=41\n\
                    Content-Transfer-Encoding: quoted-printable\n\n=42\nFrom a@b Mon\ny=41";
        let lines = decoded(text);
        for line in ["-- A", "--b1", "x=41", "B", "From a@b Mon", "y=41"] {
            assert!(lines.iter().any(|l| l == line), "{line}: {lines:?}");
        }
    }
}
