//! Decodes the bytes of a file: UTF-16 and gzip. Other formats are named and not read.

use flate2::write::MultiGzDecoder;
use std::io::Write;

/// Number of bytes that identify a format.
const HEAD: usize = 8;

/// Bytes that are unpacked at a time. A log gives the same result in any pieces, even a damaged
/// one, as the blocks do not depend on the pieces.
const BLOCK: usize = 4096;

/// Size to which any compressed log may unpack. Beyond this size, [`MOST_TIMES`] applies.
const UNPACKED_ANYWAY: u64 = 16 << 20;

/// Largest ratio of unpacked to compressed size. Logs unpack to some ten times their size; gzip
/// reaches a thousand times with zeros alone.
const MOST_TIMES: u64 = 200;

named! {
    /// The formats that are recognized, and not read.
    Unread {
        /// Compressed with `zstd`.
        Zstd = "compressed with zstd",
        /// Compressed with `xz`.
        Xz = "compressed with xz",
        /// Compressed with `bzip2`.
        Bzip2 = "compressed with bzip2",
        /// Compressed with `lz4`.
        Lz4 = "compressed with lz4",
        /// A compressed file within a compressed file.
        Twice = "compressed twice",
        /// Compressed with `gzip`, and cut or damaged before any known line.
        Damaged = "compressed with gzip, and cut off or damaged",
        /// An archive of several files.
        Archive = "an archive",
        /// A file in the format of `journald` itself.
        JournalFile = "a file of the journal itself",
        /// A program, or a dump of a machine's memory.
        Elf = "a program or a dump of memory",
        /// A picture or a printed page.
        Picture = "a picture",
        /// The body of a mail, as it was sent, in base64.
        MailSource = "the source of a mail, which is encoded in base64",
    }
}

impl Unread {
    /// Returns the way to get a readable log.
    pub fn instead(self) -> &'static str {
        match self {
            Unread::Zstd => "unpack it, as by 'zstd -dc FILE'",
            Unread::Xz => "unpack it, as by 'xz -dc FILE'",
            Unread::Bzip2 => "unpack it, as by 'bzip2 -dc FILE'",
            Unread::Lz4 => "unpack it, as by 'lz4 -dc FILE'",
            Unread::Twice => "unpack it once, as by 'gzip -dc FILE'",
            Unread::Damaged => "copy it again, and check it with 'gzip -t FILE'",
            Unread::Archive => "unpack it, and use the log inside",
            Unread::JournalFile => "convert it with 'journalctl --file FILE -k -o short-monotonic'",
            Unread::Elf => {
                "extract the log from a memory dump with 'makedumpfile --dump-dmesg' or 'crash'"
            }
            Unread::Picture => "use the text of the log",
            Unread::MailSource => "save the mail as text, which decodes it",
        }
    }

    fn of(head: &[u8]) -> Option<Unread> {
        const MAGIC: [(&[u8], Unread); 14] = [
            (b"\x28\xb5\x2f\xfd", Unread::Zstd),
            (b"\xfd7zXZ\0", Unread::Xz),
            (b"BZh", Unread::Bzip2),
            (b"\x04\x22\x4d\x18", Unread::Lz4),
            (b"PK\x03\x04", Unread::Archive),
            (b"7z\xbc\xaf\x27\x1c", Unread::Archive),
            (b"Rar!\x1a\x07", Unread::Archive),
            (b"LPKSHHRH", Unread::JournalFile),
            (b"\x7fELF", Unread::Elf),
            (b"KDUMP   ", Unread::Elf),
            (b"\x89PNG", Unread::Picture),
            (b"\xff\xd8\xff", Unread::Picture),
            (b"GIF8", Unread::Picture),
            (b"%PDF-", Unread::Picture),
        ];
        MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, unread)| *unread)
    }

    /// Returns the format that a line of a mail's head announces for its body.
    pub(crate) fn of_line(text: &str) -> Option<Unread> {
        let (name, value) = text.split_once(':')?;
        let encoded = value.trim().eq_ignore_ascii_case("base64");
        (encoded && name.eq_ignore_ascii_case("Content-Transfer-Encoding"))
            .then_some(Unread::MailSource)
    }
}

/// Decodes a stream of bytes, which may be cut anywhere.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// First bytes, until there are enough to identify the format.
    head: Vec<u8>,
    stage: Stage,
    /// True for a decoder of what another decoder unpacked.
    inner: bool,
    unread: Option<Unread>,
}

#[derive(Debug)]
enum Stage {
    Undecided,
    Plain,
    Utf16(Utf16),
    Gzip(Box<Gzip>),
    /// The bytes are ignored.
    Passed,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(false)
    }
}

impl Decoder {
    fn new(inner: bool) -> Decoder {
        Decoder { head: Vec::new(), stage: Stage::Undecided, inner, unread: None }
    }

    /// Decodes some bytes, and passes the result on.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut impl FnMut(&[u8])) {
        if !matches!(self.stage, Stage::Undecided) {
            return self.pass(bytes, out);
        }
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
        self.head.extend_from_slice(head);
        if self.head.len() == HEAD {
            self.decide(out);
            self.pass(rest, out);
        }
    }

    /// Passes the rest on.
    pub(crate) fn finish(&mut self, out: &mut impl FnMut(&[u8])) {
        if matches!(self.stage, Stage::Undecided) {
            self.decide(out);
        }
        if let Stage::Gzip(gzip) = &mut self.stage {
            gzip.finish(out);
        }
    }

    /// Returns the format, if it is one that is not read.
    pub(crate) fn unread(&self) -> Option<Unread> {
        match &self.stage {
            Stage::Gzip(gzip) => gzip.inner.unread(),
            _ => self.unread,
        }
    }

    /// Returns the format, if no known line was decoded.
    pub(crate) fn unread_without_events(&self) -> Option<Unread> {
        let Stage::Gzip(gzip) = &self.stage else { return None };
        matches!(gzip.end, GzipEnd::Cut | GzipEnd::Damaged).then_some(Unread::Damaged)
    }

    /// Reports how the bytes were decoded, as far as a reader has to know, a sentence each.
    pub(crate) fn notes(&self, each: &mut impl FnMut(String)) {
        match &self.stage {
            Stage::Utf16(_) => each("the log is in UTF-16".into()),
            Stage::Gzip(gzip) => {
                let written = gzip.written;
                each(match gzip.end {
                    GzipEnd::None | GzipEnd::Whole => "the log is compressed with gzip".into(),
                    GzipEnd::Cut => {
                        format!("the gzip file is cut off: the log ends after {written} bytes")
                    }
                    GzipEnd::Damaged => {
                        format!("the gzip file is damaged: the log was read up to byte {written}")
                    }
                    GzipEnd::Bomb => format!(
                        "the gzip file unpacks to more than {MOST_TIMES} times its size: the log \
                         was read up to byte {written}"
                    ),
                });
                gzip.inner.notes(each);
            }
            Stage::Undecided | Stage::Plain | Stage::Passed => {}
        }
    }

    fn decide(&mut self, out: &mut impl FnMut(&[u8])) {
        let head = std::mem::take(&mut self.head);
        let gzip = head.starts_with(b"\x1f\x8b");
        self.unread = Unread::of(&head).or((gzip && self.inner).then_some(Unread::Twice));
        let mut skip = 0;
        self.stage = if self.unread.is_some() {
            Stage::Passed
        } else if gzip {
            Stage::Gzip(Box::default())
        } else if let Some((big, mark)) = utf16(&head) {
            skip = mark;
            Stage::Utf16(Utf16 { big, ..Utf16::default() })
        } else {
            Stage::Plain
        };
        self.pass(&head[skip..], out);
    }

    fn pass(&mut self, bytes: &[u8], out: &mut impl FnMut(&[u8])) {
        match &mut self.stage {
            Stage::Plain => out(bytes),
            Stage::Utf16(utf16) => utf16.feed(bytes, out),
            Stage::Gzip(gzip) => gzip.feed(bytes, out),
            Stage::Passed | Stage::Undecided => {}
        }
    }
}

/// Returns the byte order of a text in UTF-16, true if the high byte comes first, and the length of
/// its byte order mark. Without a mark, two letters decide. Returns `None` for any other text.
fn utf16(head: &[u8]) -> Option<(bool, usize)> {
    let letter = |byte: u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match *head {
        [0xff, 0xfe, ..] => Some((false, 2)),
        [0xfe, 0xff, ..] => Some((true, 2)),
        [a, 0, b, 0, ..] if letter(a) && letter(b) => Some((false, 0)),
        [0, a, 0, b, ..] if letter(a) && letter(b) => Some((true, 0)),
        _ => None,
    }
}

/// UTF-16, as the shell of another system redirects it.
#[derive(Debug, Default)]
struct Utf16 {
    big: bool,
    /// First byte of a unit.
    byte: Option<u8>,
    /// First unit of a pair.
    high: Option<u16>,
}

impl Utf16 {
    fn feed(&mut self, bytes: &[u8], out: &mut impl FnMut(&[u8])) {
        let mut text = String::with_capacity(bytes.len());
        for &byte in bytes {
            let Some(first) = self.byte.take() else {
                self.byte = Some(byte);
                continue;
            };
            let unit = match self.big {
                true => u16::from_be_bytes([first, byte]),
                false => u16::from_le_bytes([first, byte]),
            };
            let pair = self.high.take();
            if let Some(Ok(c)) = pair.and_then(|high| char::decode_utf16([high, unit]).next()) {
                text.push(c);
                continue;
            }
            if pair.is_some() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            match (0xd800..0xdc00).contains(&unit) {
                true => self.high = Some(unit),
                false => {
                    text.push(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER))
                }
            }
        }
        out(text.as_bytes());
    }
}

/// Output of `gzip`: one file, or several in a row.
#[derive(Debug)]
struct Gzip {
    unpack: MultiGzDecoder<Vec<u8>>,
    block: Vec<u8>,
    read: u64,
    written: u64,
    end: GzipEnd,
    inner: Decoder,
}

/// Result of unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GzipEnd {
    /// Unpacking continues.
    None,
    Whole,
    Cut,
    Damaged,
    Bomb,
}

impl Default for Gzip {
    fn default() -> Gzip {
        Gzip {
            unpack: MultiGzDecoder::new(Vec::new()),
            block: Vec::with_capacity(BLOCK),
            read: 0,
            written: 0,
            end: GzipEnd::None,
            inner: Decoder::new(true),
        }
    }
}

impl Gzip {
    fn feed(&mut self, mut bytes: &[u8], out: &mut impl FnMut(&[u8])) {
        while !bytes.is_empty() && self.end == GzipEnd::None {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = rest;
            if self.block.len() == BLOCK {
                self.unpack(out);
            }
        }
    }

    fn unpack(&mut self, out: &mut impl FnMut(&[u8])) {
        self.read += self.block.len() as u64;
        let unpacked = self.unpack.write_all(&self.block);
        self.block.clear();
        self.hand_on(out);
        if unpacked.is_err() {
            self.end = GzipEnd::Damaged;
        }
    }

    fn hand_on(&mut self, out: &mut impl FnMut(&[u8])) {
        let text = std::mem::take(self.unpack.get_mut());
        self.written += text.len() as u64;
        self.inner.feed(&text, out);
        if self.written > UNPACKED_ANYWAY && self.written / MOST_TIMES > self.read {
            self.end = GzipEnd::Bomb;
        }
    }

    fn finish(&mut self, out: &mut impl FnMut(&[u8])) {
        if self.end == GzipEnd::None {
            self.unpack(out);
        }
        if self.end == GzipEnd::None {
            let ended = self.unpack.try_finish();
            self.hand_on(out);
            if self.end == GzipEnd::None {
                self.end = if ended.is_ok() { GzipEnd::Whole } else { GzipEnd::Cut };
            }
        }
        self.inner.finish(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8], piece: usize) -> (Vec<u8>, Option<Unread>, Vec<String>) {
        let (mut text, mut notes) = (Vec::new(), Vec::new());
        let mut decoder = Decoder::default();
        let mut out = |bytes: &[u8]| text.extend_from_slice(bytes);
        for piece in bytes.chunks(piece) {
            decoder.feed(piece, &mut out);
        }
        decoder.finish(&mut out);
        decoder.notes(&mut |note| notes.push(note));
        (text, decoder.unread(), notes)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut pack = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        pack.write_all(text).unwrap();
        pack.finish().unwrap()
    }

    fn units(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn both_orders_of_utf_16_are_read_with_and_without_a_mark() {
        let text = "[    1.0] né 𝄞\r\n";
        for bytes in [u16::to_le_bytes, u16::to_be_bytes] {
            for marked in [format!("\u{feff}{text}"), text.to_owned()] {
                for piece in [1, 3, 1000] {
                    let (found, unread, notes) = decoded(&units(&marked, bytes), piece);
                    assert_eq!(String::from_utf8(found).unwrap(), text);
                    assert_eq!((unread, notes.len()), (None, 1));
                }
            }
        }
        // Halves of pairs, and half a unit.
        let lone = [0xff, 0xfe, 0x00, 0xd8, 0x00, 0xd8, b'a', 0, 0x00, 0xdc, b'b', 0, b'c'];
        for piece in [1, 100] {
            assert_eq!(decoded(&lone, piece).0, "\u{fffd}\u{fffd}a\u{fffd}b".as_bytes());
        }
    }

    #[test]
    fn a_plain_text_stays_as_it_is() {
        for text in
            ["", "a", "[    0.000000] Linux", "\0\0\0\0\0\0\0\0[    1.0] x", "\u{feff}[ 1.0]"]
        {
            let found = decoded(text.as_bytes(), 1);
            assert_eq!(found, (text.as_bytes().to_vec(), None, vec![]), "{text}");
        }
    }

    #[test]
    fn gzip_is_unpacked_in_any_pieces_and_several_behind_each_other() {
        let text = "[    1.0] a line\n".repeat(5000);
        let packed = [gzip(text.as_bytes()), gzip(b"end\n")].concat();
        for piece in [1, 7, 4096, 1 << 20] {
            let (found, unread, notes) = decoded(&packed, piece);
            assert_eq!(found, format!("{text}end\n").as_bytes());
            assert_eq!(
                (unread, &notes[..]),
                (None, &["the log is compressed with gzip".into()][..])
            );
        }
        let wide = gzip(&units("\u{feff}x: y", u16::to_le_bytes));
        assert_eq!(decoded(&wide, 5).0, b"x: y");
    }

    #[test]
    fn a_compressed_log_that_is_cut_or_damaged_gives_what_is_there_and_says_so() {
        let text: String = (0..20_000).map(|n| format!("[    {n}] a line\n")).collect();
        let packed = gzip(text.as_bytes());
        let (found, _, notes) = decoded(&packed[..packed.len() - 100], 1000);
        assert!(text.as_bytes().starts_with(&found) && found.len() > text.len() / 2);
        assert!(notes[0].contains(&format!("cut off: the log ends after {} bytes", found.len())));
        let mut damaged = packed;
        let middle = damaged.len() / 2;
        damaged[middle..middle + 64].fill(0xff);
        let whole = decoded(&damaged, usize::MAX);
        assert!(whole.2[0].contains("damaged: the log was read up to byte"), "{:?}", whole.2);
        assert!(!whole.0.is_empty() && text.as_bytes().starts_with(&whole.0[..1000]));
        assert_eq!(whole, decoded(&damaged, 1));
    }

    #[test]
    fn a_bomb_is_given_up() {
        let packed = gzip(&vec![b' '; 40 << 20]);
        assert!(packed.len() < 60 << 10);
        let mut unpacked = 0_u64;
        let mut decoder = Decoder::default();
        decoder.feed(&packed, &mut |bytes: &[u8]| unpacked += bytes.len() as u64);
        decoder.finish(&mut |bytes: &[u8]| unpacked += bytes.len() as u64);
        let mut notes = Vec::new();
        decoder.notes(&mut |note| notes.push(note));
        assert!(unpacked < UNPACKED_ANYWAY + (8 << 20), "{unpacked}");
        assert!(notes[0].contains("more than 200 times its size"), "{notes:?}");
        // Twice is a bomb as well, and no one does that to a log.
        let (found, unread, _) = decoded(&gzip(&packed), 4096);
        assert_eq!((found.len(), unread), (0, Some(Unread::Twice)));
    }

    #[test]
    fn binary_files_are_named() {
        for (head, unread) in [
            (&b"\x28\xb5\x2f\xfd\x04\x00"[..], Unread::Zstd),
            (b"\xfd7zXZ\0\0\x04", Unread::Xz),
            (b"BZh91AY&SY", Unread::Bzip2),
            (b"LPKSHHRH\0\0", Unread::JournalFile),
            (b"PK\x03\x04", Unread::Archive),
            (b"\x7fELF\x02", Unread::Elf),
        ] {
            for piece in [1, 100] {
                let (text, found, _) = decoded(head, piece);
                assert_eq!((text.len(), found), (0, Some(unread)));
            }
            assert!(!unread.instead().is_empty());
        }
        assert_eq!(Unread::of_line("Content-Transfer-Encoding: base64"), Some(Unread::MailSource));
        assert_eq!(Unread::of_line("Content-Transfer-Encoding: 8bit"), None);
    }
}
