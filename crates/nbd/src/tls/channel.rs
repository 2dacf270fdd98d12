//! The stream of one connection in TLS: its two directions, which share one lock. Errors of TLS are
//! put in words, since rustls shows parts of them by the names of its variants.

use std::io::{self, BufRead, ErrorKind, IoSlice, Write};
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use corewise_sync::Mutex;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::Tls;
use crate::connection::Connection;
use crate::deadline::Deadline;

/// Least room for ciphertext in bytes, and half of the largest. A record has up to 18,437.
const CIPHERTEXT: usize = 32 << 10;
/// Bytes of replies that are encrypted at a time.
const OUTGOING: usize = 64 << 10;
/// The head of a record: its kind, its version and its length.
const HEAD: usize = 5;
/// Largest content of a record in bytes.
const LONGEST: usize = (16 << 10) + 2048;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// Tags of UTF-8, printable and ASCII strings, which present certificates use for names.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// Object identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The TLS of one connection.
pub(crate) struct Channel {
    /// L: is the lock; guards the keys and counters of both directions, and the ciphertext that
    /// waits to be sent. The reader holds it for one record. The holder of the flush right holds it
    /// while it encrypts and sends, without waiting.
    tls: Mutex<ServerConnection>,
}

/// The receiving end, which belongs to the reader.
pub(crate) struct Incoming {
    channel: Arc<Channel>,
    /// Received bytes that aren't decrypted yet.
    ciphertext: BytesMut,
    /// Error of the bytes after the data that was taken.
    broken: Option<io::Error>,
}

impl Tls {
    /// Does the TLS handshake until the deadline. Returns the receiving end, and the names in the
    /// client's certificate. Blocks.
    ///
    /// # Errors
    /// `TimedOut`; `InvalidData` if the client breaks the protocol, or isn't vouched for;
    /// `UnexpectedEof`; those of the socket.
    pub(crate) fn accept(
        &self,
        connection: &Connection,
        deadline: &mut Deadline,
    ) -> io::Result<(Incoming, Vec<String>)> {
        let mut tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(OUTGOING));
        let mut ciphertext = BytesMut::new();
        let mut ended = Ok(());
        loop {
            let mut ours = Vec::new();
            while tls.wants_write() {
                tls.write_tls(&mut ours)?;
            }
            // The last bytes may be an alert.
            connection.send_until(&ours, deadline)?;
            ended?;
            if !tls.is_handshaking() {
                break;
            }
            match record(&ciphertext) {
                Some(length) => ended = decrypt(&mut tls, &mut ciphertext, length),
                None => {
                    ciphertext.reserve(CIPHERTEXT);
                    if connection.receive_until(&mut ciphertext, deadline)? == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    ended = Ok(());
                }
            }
        }
        let certificate = tls.peer_certificates().and_then(|chain| chain.first());
        let names = certificate.map(names).unwrap_or_default();
        let channel = Arc::new(Channel { tls: Mutex::new(tls) });
        Ok((Incoming { channel, ciphertext, broken: None }, names))
    }
}

/// Returns the length of the first record of this ciphertext, or `None` if it is incomplete. Bytes
/// that are no record count as one: rustls reports what is wrong with them.
fn record(ciphertext: &[u8]) -> Option<usize> {
    let (head, rest) = ciphertext.split_first_chunk::<HEAD>()?;
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if length > LONGEST || !(20..=24).contains(&head[0]) {
        return Some(ciphertext.len().min(HEAD + LONGEST));
    }
    (rest.len() >= length).then_some(HEAD + length)
}

/// Decrypts the first `length` bytes.
fn decrypt(tls: &mut ServerConnection, ciphertext: &mut BytesMut, length: usize) -> io::Result<()> {
    let mut record = &ciphertext[..length];
    while !record.is_empty() && tls.read_tls(&mut record)? > 0 {}
    let result = tls.process_new_packets();
    ciphertext.advance(length);
    let broken = |error: rustls::Error| {
        io::Error::new(ErrorKind::InvalidData, format!("TLS: {}", spoken(&error)))
    };
    result.map(drop).map_err(broken)
}

impl Incoming {
    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Returns true if a record has come in part.
    pub(crate) fn is_partial(&self) -> bool {
        !self.ciphertext.is_empty()
    }

    /// Receives into the room that follows the contents of `buffer`, up to `limit` bytes. Returns
    /// `None` if no data came, or no whole record, and 0 at the end of the stream. Blocks as long
    /// as [`Connection::receive`] does. With `now` it doesn't block: `WouldBlock`.
    pub(crate) fn receive(
        &mut self,
        connection: &Connection,
        buffer: &mut BytesMut,
        limit: usize,
        now: bool,
    ) -> io::Result<Option<usize>> {
        let found = self.take(buffer, limit)?;
        if found.is_some() {
            return Ok(found);
        }
        self.ciphertext.reserve(CIPHERTEXT);
        let received = match now {
            true => connection.receive_now(&mut self.ciphertext, usize::MAX),
            false => connection.receive(&mut self.ciphertext),
        };
        match received? {
            0 => Ok(Some(0)),
            _ => self.take(buffer, limit),
        }
    }

    /// Receives as [`Incoming::receive`] until the deadline: `TimedOut` after it.
    pub(crate) fn receive_until(
        &mut self,
        connection: &Connection,
        buffer: &mut BytesMut,
        deadline: &mut Deadline,
    ) -> io::Result<usize> {
        loop {
            if let Some(found) = self.take(buffer, usize::MAX)? {
                return Ok(found);
            }
            self.ciphertext.reserve(CIPHERTEXT);
            if connection.receive_until(&mut self.ciphertext, deadline)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Decrypts whole records while there is room for their data. Returns `None` if there was none,
    /// and the stream continues.
    fn take(&mut self, buffer: &mut BytesMut, limit: usize) -> io::Result<Option<usize>> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let room = (buffer.capacity() - buffer.len()).min(limit);
        let mut taken = 0;
        loop {
            // The lock is taken for each record, so that replies are sent in between.
            let mut tls = self.channel.tls.lock();
            let mut reader = tls.reader();
            match reader.fill_buf() {
                // The client has ended its direction.
                Ok([]) => return Ok(Some(taken)),
                Ok(data) => {
                    let count = data.len().min(room - taken);
                    buffer.extend_from_slice(&data[..count]);
                    reader.consume(count);
                    taken += count;
                    if taken == room {
                        return Ok(Some(taken));
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let Some(length) = record(&self.ciphertext) else { break };
            match decrypt(&mut tls, &mut self.ciphertext, length) {
                Ok(()) => {}
                Err(error) if taken > 0 => {
                    self.broken = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((taken > 0).then_some(taken))
    }
}

impl Channel {
    /// Sends replies without waiting. Returns the number of their bytes that have left: those that
    /// it encrypted last. `encrypted` belongs to the caller, and holds that number until they have
    /// left. Called by the holder of the flush right, with the same replies in front until they
    /// have left.
    ///
    /// # Errors
    /// As those of `sendmsg`; `PROTO` if the client has broken the protocol.
    pub(crate) fn send(
        &self,
        connection: &Connection,
        encrypted: &mut usize,
        replies: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        let mut tls = self.tls.lock();
        loop {
            while tls.wants_write() {
                let sent = tls.write_tls(&mut Socket(connection));
                sent.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PIPE))?;
            }
            if *encrypted > 0 {
                return Ok(std::mem::take(encrypted));
            }
            match tls.writer().write_vectored(replies) {
                Ok(0) | Err(_) => return Err(Errno::PROTO),
                Ok(count) => *encrypted = count,
            }
        }
    }

    /// Sends everything until the deadline: `TimedOut` after it. It is for the handshake, where
    /// there is one thread.
    pub(crate) fn send_until(
        &self,
        connection: &Connection,
        mut bytes: &[u8],
        deadline: &mut Deadline,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ciphertext = Vec::new();
            {
                let mut tls = self.tls.lock();
                bytes = &bytes[tls.writer().write(bytes)?..];
                while tls.wants_write() {
                    tls.write_tls(&mut ciphertext)?;
                }
            }
            connection.send_until(&ciphertext, deadline)?;
        }
        Ok(())
    }

    /// Ends this direction of the stream, if there is room for the alert. All replies have left,
    /// and no thread sends any more.
    pub(crate) fn close(&self, connection: &Connection) {
        let mut tls = self.tls.lock();
        tls.send_close_notify();
        let _ = tls.write_tls(&mut Socket(connection));
    }
}

/// The socket as rustls writes to it. Never blocks.
struct Socket<'a>(&'a Connection);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let nothing = &mut SendAncillaryBuffer::default();
        Ok(sendmsg(&self.0.socket, slices, nothing, flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the DNS names, URIs and common names in a certificate that was vouched for, unchanged.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    // It was parsed when it was verified.
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let more = certificate.valid_dns_names().chain(certificate.valid_uri_names());
    let mut names: Vec<String> = Vec::new();
    for name in more.chain(common_names(certificate.subject())) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the common names of a subject: sets of pairs of a type and a text.
fn common_names(mut subject: &[u8]) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some((SET, mut set)) = element(&mut subject) {
        while let Some((SEQUENCE, mut pair)) = element(&mut set) {
            if element(&mut pair) != Some((OBJECT, COMMON_NAME)) {
                continue;
            }
            if let Some((tag, text)) = element(&mut pair) {
                let text = std::str::from_utf8(text).ok().filter(|_| TEXTS.contains(&tag));
                found.extend(text.filter(|text| !text.is_empty()));
            }
        }
    }
    found
}

/// Takes the first DER element: its tag and its content.
fn element<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (length, after) = match **rest {
        [_, length @ ..=0x7f, ref after @ ..] => (usize::from(length), after),
        [_, 0x81, length, ref after @ ..] => (usize::from(length), after),
        [_, 0x82, high, low, ref after @ ..] => {
            (usize::from(u16::from_be_bytes([high, low])), after)
        }
        _ => return None,
    };
    let tag = *rest.first()?;
    let (content, after) = after.split_at_checked(length)?;
    *rest = after;
    Some((tag, content))
}

/// Variants of rustls's errors whose names need other words.
const SAID: [(&str, &str); 8] = [
    ("UnknownIssuer", "no authority that is known here has signed it"),
    ("CaUsedAsEndEntity", "it belongs to an authority, not to a client or a server"),
    ("UnsupportedCertVersion", "its version is not X.509 v3"),
    ("BadSignature", "its signature is not that of its authority"),
    ("InvalidPurpose", "it was made for another purpose"),
    ("CertificateRequired", "a certificate is required"),
    ("BadCertificate", "the certificate is refused"),
    ("UnknownCA", "the other side does not know the certificate's authority"),
];

/// Returns the text of an error of rustls, or of one that contains such an error.
pub(crate) fn spoken(error: &dyn std::fmt::Display) -> String {
    let text = without_fields(&error.to_string());
    let mut said = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphanumeric() || c == '"') {
        let (before, behind) = rest.split_at(at);
        if let Some(name) = behind.strip_prefix('"') {
            // A name, of a host or of a certificate.
            let end = name.find('"').map_or(behind.len(), |end| end + 2);
            said.push_str(before);
            said.push_str(&behind[..end]);
            rest = &behind[end..];
            continue;
        }
        let end = behind.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(behind.len());
        let (word, behind) = behind.split_at(end);
        said.push_str(before);
        rest = behind;
        match SAID.iter().find(|(name, _)| *name == word) {
            Some((_, instead)) => said.push_str(instead),
            // A wrapper of another name says nothing, so it is dropped with its parentheses.
            None if matches!(word, "Other" | "OtherError" | "Some") && rest.starts_with('(') => {
                let (inner, behind) = parenthesized(rest);
                said.push_str(&spoken(&inner));
                rest = behind;
            }
            None => said.push_str(&in_words(word)),
        }
    }
    said + rest
}

/// Returns the text without the fields of variants, `{ … }`.
fn without_fields(text: &str) -> String {
    let (mut depth, mut kept) = (0_usize, String::with_capacity(text.len()));
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            c if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    kept.trim_end().to_owned()
}

/// Returns the contents of the parentheses that the text begins with, and the text after them.
fn parenthesized(text: &str) -> (String, &str) {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return (text[1..at].to_owned(), &text[at + 1..]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    (text.trim_start_matches('(').to_owned(), "")
}

/// Turns `NoCipherSuitesInCommon` into "no cipher suites in common"; other words stay as they are.
fn in_words(word: &str) -> String {
    let letters: Vec<char> = word.chars().collect();
    let is_hump =
        |n: usize| n > 0 && letters[n].is_ascii_uppercase() && letters[n - 1].is_ascii_lowercase();
    let is_name =
        letters.first().is_some_and(char::is_ascii_uppercase) && (0..letters.len()).any(is_hump);
    if !is_name {
        return word.to_owned();
    }
    let mut words = String::new();
    for (n, letter) in letters.iter().enumerate() {
        if is_hump(n) {
            words.push(' ');
        }
        // An abbreviation stays one.
        let alone = letters.get(n + 1).is_none_or(|next| !next.is_ascii_uppercase());
        let follows = n > 0 && letters[n - 1].is_ascii_uppercase();
        words.push(if alone && !follows { letter.to_ascii_lowercase() } else { *letter });
    }
    words
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{
        AlertDescription, CertificateError, Error, OtherError, PeerIncompatible, PeerMisbehaved,
    };

    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8], content].concat()
    }

    fn pair(object: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        der(SET, &der(SEQUENCE, &[der(OBJECT, object), der(tag, text)].concat()))
    }

    #[test]
    fn common_names_are_found_among_others_and_no_cut_subject_is_read_beyond_its_end() {
        let subject = [
            pair(&[0x55, 0x04, 0x0a], 0x0c, b"an organization"),
            pair(COMMON_NAME, 0x13, b"first"),
            pair(COMMON_NAME, 0x0c, b"second"),
            pair(COMMON_NAME, 0x0c, b"\xff"),
            pair(COMMON_NAME, 0x1e, b"in two bytes each"),
        ]
        .concat();
        assert_eq!(common_names(&subject), ["first", "second"]);
        for cut in 0..subject.len() {
            assert!(common_names(&subject[..cut]).len() <= 2);
        }
    }

    #[test]
    fn lengths_of_every_form_are_read_and_false_ones_are_not() {
        let long = [&[4, 0x82, 0x01, 0x00][..], &[7; 256]].concat();
        assert_eq!(element(&mut &long[..]), Some((4, &[7; 256][..])));
        assert_eq!(element(&mut &[4, 0x81, 2, 1, 2, 3][..]), Some((4, &[1, 2][..])));
        for false_one in [&[4, 0x80][..], &[4, 0x83, 0, 0, 1, 9], &[4, 2, 1], &[4], &[]] {
            assert_eq!(element(&mut { false_one }), None, "{false_one:?}");
        }
    }

    #[test]
    fn an_error_of_tls_has_no_name_of_rust() {
        let other = |error| CertificateError::Other(OtherError(Arc::new(error)));
        let certificate = Error::InvalidCertificate;
        for (error, says) in [
            (certificate(CertificateError::UnknownIssuer), "no authority that is known here"),
            (certificate(other(webpki::Error::CaUsedAsEndEntity)), "belongs to an authority"),
            (certificate(other(webpki::Error::UnsupportedCertVersion)), "X.509 v3"),
            (certificate(CertificateError::NotValidForName), "not valid for name"),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "received fatal alert: the other side",
            ),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "alert: handshake failure"),
            (
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
                "no cipher suites in common",
            ),
            (
                Error::PeerMisbehaved(PeerMisbehaved::UnsolicitedCertExtension),
                "unsolicited cert extension",
            ),
            (Error::General("as it is".into()), "unexpected error: as it is"),
        ] {
            let said = spoken(&error);
            assert!(said.contains(says), "{error:?}: {said}");
            assert!(!said.contains(['(', '{']) && !said.contains("Other"), "{said}");
        }
    }

    #[test]
    fn fields_are_left_out_and_abbreviations_stay() {
        let shown = "invalid peer certificate: UnsupportedSignatureAlgorithmContext { id: [1, 2], all: {3} }";
        assert_eq!(
            spoken(&shown),
            "invalid peer certificate: unsupported signature algorithm context"
        );
        assert_eq!(
            spoken(&"received fatal alert: UnknownPSKIdentity"),
            "received fatal alert: unknown PSKIdentity"
        );
        assert_eq!(
            spoken(&"not valid for name \"VmOne\": BadName"),
            "not valid for name \"VmOne\": bad name"
        );
        assert_eq!(spoken(&"Some(BadThing) of host.example"), "bad thing of host.example");
        assert_eq!(spoken(&"Other(OtherError(NoSuchThing"), "no such thing");
    }
}
