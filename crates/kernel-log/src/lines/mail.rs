//! The source of a mail: lines that are encoded as quoted-printable.

use super::LONGEST;

/// Decodes the bodies of mails whose heads say that they are quoted-printable. Other lines pass as
/// they are.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    state: State,
    /// What parts of the mail are divided by.
    boundary: Option<Vec<u8>>,
    /// The beginning of a line whose end stands on the next one.
    part: Vec<u8>,
    /// Something was decoded.
    decoded: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Plain,
    /// The head says that the body is encoded.
    Head,
    Body,
}

/// What a line was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MailLine<'a> {
    /// Nothing to decode.
    Plain(&'a [u8]),
    /// A line, decoded.
    Decoded(Vec<u8>),
    /// The beginning of one, which the next line goes on with.
    Part,
}

impl Mail {
    /// Takes one line, without what ends it.
    pub(crate) fn line<'a>(&mut self, line: &'a [u8]) -> MailLine<'a> {
        match self.state {
            State::Plain | State::Head => {
                if line.is_empty() && self.state == State::Head {
                    self.state = State::Body;
                }
                // Nearly no line is one of a head.
                if line.first().is_some_and(|b| b"Cc \t".contains(b)) {
                    self.head(line);
                }
                MailLine::Plain(line)
            }
            State::Body if self.divides(line) => {
                self.state = State::Plain;
                let part = std::mem::take(&mut self.part);
                if part.is_empty() { MailLine::Plain(line) } else { MailLine::Decoded(part) }
            }
            State::Body => {
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

    /// The beginning of a line whose end never came.
    pub(crate) fn finish(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.part)).filter(|part| !part.is_empty())
    }

    /// Whether something was decoded.
    pub(crate) fn decoded(&self) -> bool {
        self.decoded
    }

    /// A line that may be one of a mail's head, or of the head of a part.
    fn head(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let lower = text.to_ascii_lowercase();
        if let Some(encoding) = lower.strip_prefix("content-transfer-encoding:") {
            let encoded = encoding.trim() == "quoted-printable";
            self.state = if encoded { State::Head } else { State::Plain };
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

    /// Whether the body ends here: at a boundary, or where another mail of a mailbox begins.
    fn divides(&self, line: &[u8]) -> bool {
        let named = |rest: &[u8]| self.boundary.as_ref().is_some_and(|name| rest.starts_with(name));
        line.strip_prefix(b"--").is_some_and(named)
            || line.starts_with(b"From ") && line.contains(&b'@')
    }
}

/// Decodes what is encoded; what looks as if it were, and isn't, stays.
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

    fn decoded(text: &str) -> Vec<String> {
        let mut mail = Mail::default();
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
