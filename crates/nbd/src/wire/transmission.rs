//! The messages of the transmission phase: requests of 28 bytes (extended: 32), simple replies of
//! 16 bytes, and the chunks of structured replies. The heads of chunks are compact or extended.

use bytes::BufMut;

use super::{
    BadMagic, Command, CommandFlags, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, Form,
    MAX_STRING, REQUEST_MAGIC, ReplyError, ReplyFlags, ReplyKind, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, be,
};

/// Length of a request without its payload, in bytes.
pub const REQUEST_LEN: usize = 28;
/// Length of an extended request without its payload, in bytes.
pub const EXTENDED_REQUEST_LEN: usize = 32;
/// Length of a simple reply without its payload, in bytes.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Length of a [`StatusQuery`] in bytes.
pub const STATUS_QUERY_LEN: usize = 12;

/// A request, as the client sent it: only its magic number has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Modifiers.
    pub flags: CommandFlags,
    /// The command.
    pub command: Command,
    /// The client's name for this request; the reply repeats it.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes, or of [the payload](Request::payload_len); for a `WRITE` the
    /// two are the same.
    pub length: u64,
}

impl Request {
    /// Decodes a request.
    ///
    /// # Errors
    /// That of [`Form::check_request`].
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Request, BadMagic> {
        Request::with_length(bytes, Form::Simple, be::u32(bytes, 24).into())
    }

    /// Decodes an extended request.
    ///
    /// # Errors
    /// As [`Request::decode`].
    pub fn decode_extended(bytes: &[u8; EXTENDED_REQUEST_LEN]) -> Result<Request, BadMagic> {
        Request::with_length(bytes, Form::Extended, be::u64(bytes, 24))
    }

    /// Decodes the first 24 bytes, which both forms have in common.
    fn with_length(bytes: &[u8], form: Form, length: u64) -> Result<Request, BadMagic> {
        form.check_request([bytes[0], bytes[1], bytes[2], bytes[3]])?;
        Ok(Request {
            flags: CommandFlags(be::u16(bytes, 4)),
            command: Command(be::u16(bytes, 6)),
            cookie: be::u64(bytes, 8),
            offset: be::u64(bytes, 16),
            length,
        })
    }

    /// Encodes the request.
    ///
    /// # Panics
    /// If the length has more than 32 bits.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let length = u32::try_from(self.length).expect("a compact request has a 32-bit length");
        let mut out = [0; REQUEST_LEN];
        self.encode_front(REQUEST_MAGIC, &mut out);
        out[24..28].copy_from_slice(&length.to_be_bytes());
        out
    }

    /// Encodes the extended request.
    pub fn encode_extended(&self) -> [u8; EXTENDED_REQUEST_LEN] {
        let mut out = [0; EXTENDED_REQUEST_LEN];
        self.encode_front(EXTENDED_REQUEST_MAGIC, &mut out);
        out[24..32].copy_from_slice(&self.length.to_be_bytes());
        out
    }

    fn encode_front(&self, magic: u32, out: &mut [u8]) {
        out[0..4].copy_from_slice(&magic.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.0.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
    }

    /// Returns the number of payload bytes that follow the request on the wire. In a compact
    /// request only a `WRITE` has a payload. In an extended one the flag `PAYLOAD_LEN` decides,
    /// whatever the command.
    pub fn payload_len(&self, form: Form) -> u64 {
        let has = match form {
            Form::Simple | Form::Structured => self.command == Command::WRITE,
            Form::Extended => self.flags.contains(CommandFlags::PAYLOAD_LEN),
        };
        if has { self.length } else { 0 }
    }
}

/// The payload of a `BLOCK_STATUS` that names one metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// Length of the range in bytes.
    pub length: u64,
    /// Context number.
    pub context: u32,
}

impl StatusQuery {
    /// Decodes a query.
    pub fn decode(bytes: &[u8; STATUS_QUERY_LEN]) -> StatusQuery {
        StatusQuery { length: be::u64(bytes, 0), context: be::u32(bytes, 8) }
    }

    /// Encodes the query.
    pub fn encode(&self) -> [u8; STATUS_QUERY_LEN] {
        let mut out = [0; STATUS_QUERY_LEN];
        out[0..8].copy_from_slice(&self.length.to_be_bytes());
        out[8..12].copy_from_slice(&self.context.to_be_bytes());
        out
    }
}

/// A simple reply. The payload of a successful `READ` follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// The error number; 0 is success.
    pub error: u32,
    /// The cookie of the request.
    pub cookie: u64,
}

impl SimpleReply {
    /// Creates the reply to the request `cookie`: success, or one of the errors.
    pub fn new(cookie: u64, result: Result<(), ReplyError>) -> SimpleReply {
        SimpleReply { error: result.err().map_or(0, ReplyError::code), cookie }
    }

    /// Encodes the reply.
    pub fn encode(&self) -> [u8; SIMPLE_REPLY_LEN] {
        let mut out = [0; SIMPLE_REPLY_LEN];
        out[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.error.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out
    }

    /// Decodes a reply.
    ///
    /// # Errors
    /// `BadMagic` if the bytes don't begin with the number of a simple reply.
    pub fn decode(bytes: &[u8; SIMPLE_REPLY_LEN]) -> Result<SimpleReply, BadMagic> {
        let found = be::u32(bytes, 0);
        if found != SIMPLE_REPLY_MAGIC {
            return Err(BadMagic { found: found.into(), expected: SIMPLE_REPLY_MAGIC.into() });
        }
        Ok(SimpleReply { error: be::u32(bytes, 4), cookie: be::u64(bytes, 8) })
    }
}

/// Length of the head of a chunk in bytes.
pub const CHUNK_LEN: usize = 20;
/// Length of the extended head of a chunk in bytes.
pub const EXTENDED_CHUNK_LEN: usize = 32;

/// The fields of a request that a chunk of its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The cookie.
    pub cookie: u64,
    /// The offset of the request, wherever the data lies. Only extended heads carry it.
    pub offset: u64,
}

/// The head of a chunk of a structured reply; `length` bytes follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Modifiers.
    pub flags: ReplyFlags,
    /// Kind of the data that follows.
    pub kind: ReplyKind,
    /// The request.
    pub tag: Tag,
    /// Length of the data that follows, in bytes.
    pub length: u64,
}

/// One extent of a block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Length in bytes, not 0.
    pub length: u64,
    /// Flags of `base:allocation`: [`STATE_HOLE`](super::STATE_HOLE) and
    /// [`STATE_ZERO`](super::STATE_ZERO).
    pub flags: u32,
}

/// The content of an error chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkError {
    /// The error number.
    pub error: u32,
    /// Message for people; may be empty.
    pub message: String,
    /// Offset of the failure, if known.
    pub offset: Option<u64>,
}

impl Chunk {
    /// Appends the head: a compact one, unless the form has extended ones.
    ///
    /// # Panics
    /// If it is compact, and the length has more than 32 bits.
    pub fn encode(&self, form: Form, out: &mut impl BufMut) {
        let Chunk { flags, kind, tag, length } = *self;
        let mut head = [0; EXTENDED_CHUNK_LEN];
        head[4..6].copy_from_slice(&flags.0.to_be_bytes());
        head[6..8].copy_from_slice(&kind.0.to_be_bytes());
        head[8..16].copy_from_slice(&tag.cookie.to_be_bytes());
        if form == Form::Extended {
            head[0..4].copy_from_slice(&EXTENDED_REPLY_MAGIC.to_be_bytes());
            head[16..24].copy_from_slice(&tag.offset.to_be_bytes());
            head[24..32].copy_from_slice(&length.to_be_bytes());
        } else {
            let length = u32::try_from(length).expect("a compact chunk has a 32-bit length");
            head[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
            head[16..20].copy_from_slice(&length.to_be_bytes());
        }
        out.put_slice(&head[..form.chunk_len()]);
    }

    /// Decodes a head, which doesn't contain the request's offset.
    ///
    /// # Errors
    /// `BadMagic` if the bytes don't begin with the number of a structured reply.
    pub fn decode(bytes: &[u8; CHUNK_LEN]) -> Result<Chunk, BadMagic> {
        Chunk::after(bytes, STRUCTURED_REPLY_MAGIC, 0, be::u32(bytes, 16).into())
    }

    /// Decodes an extended head.
    ///
    /// # Errors
    /// `BadMagic` if the bytes don't begin with the number of an extended reply.
    pub fn decode_extended(bytes: &[u8; EXTENDED_CHUNK_LEN]) -> Result<Chunk, BadMagic> {
        Chunk::after(bytes, EXTENDED_REPLY_MAGIC, be::u64(bytes, 16), be::u64(bytes, 24))
    }

    fn after(bytes: &[u8], expected: u32, offset: u64, length: u64) -> Result<Chunk, BadMagic> {
        let found = be::u32(bytes, 0);
        if found != expected {
            return Err(BadMagic { found: found.into(), expected: expected.into() });
        }
        let (flags, kind) = (ReplyFlags(be::u16(bytes, 4)), ReplyKind(be::u16(bytes, 6)));
        let tag = Tag { cookie: be::u64(bytes, 8), offset };
        Ok(Chunk { flags, kind, tag, length })
    }
}

/// Appends an empty final chunk of a reply.
pub fn encode_done(out: &mut impl BufMut, form: Form, tag: Tag) {
    Chunk { flags: ReplyFlags::DONE, kind: ReplyKind::NONE, tag, length: 0 }.encode(form, out);
}

/// Appends the head in front of `length` bytes of data that lie at `offset`.
///
/// # Panics
/// If a compact chunk can't be that long: `length` is more than 4 GiB less 9 bytes. No payload is.
pub fn encode_data(
    out: &mut impl BufMut,
    form: Form,
    flags: ReplyFlags,
    tag: Tag,
    offset: u64,
    length: u32,
) {
    let length = u64::from(length) + 8;
    Chunk { flags, kind: ReplyKind::OFFSET_DATA, tag, length }.encode(form, out);
    out.put_u64(offset);
}

/// Appends a chunk for `length` zero bytes at `offset`.
pub fn encode_hole(
    out: &mut impl BufMut,
    form: Form,
    flags: ReplyFlags,
    tag: Tag,
    offset: u64,
    length: u32,
) {
    Chunk { flags, kind: ReplyKind::OFFSET_HOLE, tag, length: 12 }.encode(form, out);
    out.put_u64(offset);
    out.put_u32(length);
}

/// Appends a chunk with an error, and its offset if that is known. A message is cut to the
/// protocol's limit.
pub fn encode_error(
    out: &mut impl BufMut,
    form: Form,
    flags: ReplyFlags,
    tag: Tag,
    error: ReplyError,
    message: &str,
    offset: Option<u64>,
) {
    let mut end = message.len().min(MAX_STRING);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let message = &message.as_bytes()[..end];
    let text = u16::try_from(message.len()).expect("cut to 4096 bytes");
    let (kind, rest) = match offset {
        Some(_) => (ReplyKind::ERROR_OFFSET, 8),
        None => (ReplyKind::ERROR, 0),
    };
    let length = 6 + u64::from(text) + rest;
    Chunk { flags, kind, tag, length }.encode(form, out);
    out.put_u32(error.code());
    out.put_u16(text);
    out.put_slice(message);
    if let Some(offset) = offset {
        out.put_u64(offset);
    }
}

/// Appends a chunk with the status of extents in metadata context `context`.
///
/// # Panics
/// If an extent is longer than a request of a client without extended headers can be.
pub fn encode_block_status(
    out: &mut impl BufMut,
    form: Form,
    flags: ReplyFlags,
    tag: Tag,
    context: u32,
    extents: &[StatusExtent],
) {
    let count = u32::try_from(extents.len()).expect("so many extents nobody asks for");
    let (kind, length) = match form {
        Form::Extended => (ReplyKind::BLOCK_STATUS_EXT, 8 + 16 * u64::from(count)),
        Form::Simple | Form::Structured => (ReplyKind::BLOCK_STATUS, 4 + 8 * u64::from(count)),
    };
    Chunk { flags, kind, tag, length }.encode(form, out);
    out.put_u32(context);
    if form == Form::Extended {
        out.put_u32(count);
    }
    for extent in extents {
        if form == Form::Extended {
            out.put_u64(extent.length);
            out.put_u64(extent.flags.into());
        } else {
            let length = u32::try_from(extent.length);
            out.put_u32(length.expect("within the request, whose length has 32 bits"));
            out.put_u32(extent.flags);
        }
    }
}

/// Decodes the data of a chunk of kind `BLOCK_STATUS` or `BLOCK_STATUS_EXT`: the context and its
/// extents. Returns `None` if it is malformed.
pub fn decode_block_status(kind: ReplyKind, data: &[u8]) -> Option<(u32, Vec<StatusExtent>)> {
    let (context, mut rest) = data.split_first_chunk::<4>()?;
    let context = u32::from_be_bytes(*context);
    let extended = kind == ReplyKind::BLOCK_STATUS_EXT;
    if extended {
        let (count, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        if u32::from_be_bytes(*count) as usize != rest.len() / 16 {
            return None;
        }
    }
    let each = if extended { 16 } else { 8 };
    if rest.is_empty() || rest.len() % each != 0 {
        return None;
    }
    let extent = |bytes: &[u8]| match extended {
        false => Some(StatusExtent { length: be::u32(bytes, 0).into(), flags: be::u32(bytes, 4) }),
        true => {
            let flags = u32::try_from(be::u64(bytes, 8)).ok()?;
            Some(StatusExtent { length: be::u64(bytes, 0), flags })
        }
    };
    let extents: Option<Vec<_>> = rest.chunks_exact(each).map(extent).collect();
    Some((context, extents?))
}

/// Decodes the data of a chunk of kind `ERROR` or `ERROR_OFFSET`. Returns `None` if it is
/// malformed.
pub fn decode_error(kind: ReplyKind, data: &[u8]) -> Option<ChunkError> {
    let (head, rest) = data.split_first_chunk::<6>()?;
    let text = usize::from(be::u16(head, 4));
    // The text is for people: a server may use another character set, and its error counts all the
    // same.
    let message = String::from_utf8_lossy(rest.get(..text)?).into_owned();
    let offset = match (kind, &rest[text..]) {
        (ReplyKind::ERROR, []) => None,
        (ReplyKind::ERROR_OFFSET, rest) => Some(u64::from_be_bytes(rest.try_into().ok()?)),
        _ => return None,
    };
    Some(ChunkError { error: be::u32(head, 0), message, offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{STATE_HOLE, STATE_ZERO};

    #[test]
    fn a_request_has_the_bytes_of_the_specification() {
        let request = Request {
            flags: CommandFlags::FUA,
            command: Command::WRITE,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            length: 512,
        };
        let bytes = request.encode();
        assert_eq!(
            bytes,
            [
                0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10,
                0, 0, 0, 2, 0
            ]
        );
        assert_eq!(Request::decode(&bytes), Ok(request));
        assert_eq!(request.payload_len(Form::Structured), 512);
    }

    #[test]
    fn an_extended_request_has_the_bytes_of_the_specification_and_a_flag_says_whether_a_payload_follows()
     {
        let request = Request {
            flags: CommandFlags::PAYLOAD_LEN,
            command: Command::WRITE_ZEROES,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            length: 1 << 40 | 512,
        };
        let bytes = request.encode_extended();
        assert_eq!(bytes[..8], [0x21, 0xe4, 0x1c, 0x71, 0, 32, 0, 6]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..], [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0, 2, 0]);
        assert_eq!(Request::decode_extended(&bytes), Ok(request));
        assert_eq!(request.payload_len(Form::Extended), 1 << 40 | 512);
        let write = Request { flags: CommandFlags::empty(), command: Command::WRITE, ..request };
        assert_eq!(write.payload_len(Form::Extended), 0);
        let query = StatusQuery { length: 1 << 40, context: 1 };
        assert_eq!(query.encode(), [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(StatusQuery::decode(&query.encode()), query);
    }

    #[test]
    fn a_reply_has_the_bytes_of_the_specification() {
        let reply = SimpleReply::new(7, Err(ReplyError::Inval));
        let bytes = reply.encode();
        assert_eq!(bytes, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(SimpleReply::decode(&bytes), Ok(reply));
        assert_eq!(SimpleReply::new(7, Ok(())).error, 0);
    }

    #[test]
    fn a_wrong_magic_number_is_reported_with_both_numbers() {
        let error = Request::decode(&[0; REQUEST_LEN]).unwrap_err();
        assert_eq!(error.to_string(), "magic number is 0x0, expected 0x25609513");
        assert!(SimpleReply::decode(&[0; SIMPLE_REPLY_LEN]).is_err());
        let (flags, command) = (CommandFlags::empty(), Command::READ);
        let request = Request { flags, command, cookie: 0, offset: 0, length: 0 };
        let mut compact = [0; EXTENDED_REQUEST_LEN];
        compact[..REQUEST_LEN].copy_from_slice(&request.encode());
        let error = Request::decode_extended(&compact).unwrap_err().to_string();
        assert!(error.contains("a compact request, though"), "{error}");
        let extended = request.encode_extended();
        let error = Request::decode(extended.first_chunk().unwrap()).unwrap_err().to_string();
        assert!(error.contains("an extended request, though"), "{error}");
    }

    const TAG: Tag = Tag { cookie: 7, offset: 0x200 };

    #[test]
    fn chunks_have_the_bytes_of_the_specification() {
        let (mut head, form) = (Vec::new(), Form::Structured);
        encode_data(&mut head, form, ReplyFlags::DONE, TAG, 0x1000, 512);
        assert_eq!(head[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(head[8..], [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let chunk = Chunk::decode(head.first_chunk().unwrap()).unwrap();
        assert_eq!((chunk.kind, chunk.length), (ReplyKind::OFFSET_DATA, 520));
        let mut done = Vec::new();
        encode_done(&mut done, form, TAG);
        assert_eq!(done[4..8], [0, 1, 0, 0]);
        let mut hole = Vec::new();
        encode_hole(&mut hole, form, ReplyFlags::empty(), TAG, 512, 1024);
        assert_eq!(hole[4..8], [0, 0, 0, 2]);
        assert_eq!(hole[16..], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0]);
        assert!(Chunk::decode(&[0; CHUNK_LEN]).is_err());
    }

    #[test]
    fn extended_chunks_have_the_bytes_of_the_specification() {
        let (mut head, form) = (Vec::new(), Form::Extended);
        encode_data(&mut head, form, ReplyFlags::DONE, TAG, 0x1000, 512);
        assert_eq!(head[..8], [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 1]);
        assert_eq!(head[8..24], [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(head[24..], [0, 0, 0, 0, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let chunk = Chunk::decode_extended(head.first_chunk().unwrap()).unwrap();
        assert_eq!((chunk.kind, chunk.length, chunk.tag), (ReplyKind::OFFSET_DATA, 520, TAG));
        assert!(Chunk::decode_extended(&[0; EXTENDED_CHUNK_LEN]).is_err());
        let extents = [StatusExtent { length: 1 << 40, flags: STATE_HOLE }];
        let mut out = Vec::new();
        encode_block_status(&mut out, form, ReplyFlags::DONE, TAG, 9, &extents);
        assert_eq!(out[6..8], [0, 6]);
        assert_eq!(out[24..40], [0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 9, 0, 0, 0, 1]);
        assert_eq!(out[40..], [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn errors_and_block_status_survive_the_round_trip_and_malformed_ones_are_refused() {
        let latin = decode_error(ReplyKind::ERROR, &[0, 0, 0, 5, 0, 2, 0xE9, b'!']).unwrap();
        assert_eq!((latin.error, &*latin.message), (5, "\u{FFFD}!"));
        for (form, offset) in [(Form::Structured, None), (Form::Extended, Some(1 << 40))] {
            let (mut out, len) = (Vec::new(), form.chunk_len());
            let text = "the disk is gone";
            encode_error(&mut out, form, ReplyFlags::DONE, TAG, ReplyError::Io, text, offset);
            let head = match form {
                Form::Extended => Chunk::decode_extended(out.first_chunk().unwrap()),
                _ => Chunk::decode(out.first_chunk().unwrap()),
            };
            let (head, data) = (head.unwrap(), &out[len..]);
            assert_eq!(head.length as usize, data.len());
            let error = decode_error(head.kind, data).unwrap();
            assert_eq!((error.error, error.offset), (5, offset));
            assert_eq!(error.message, text);
            assert!((0..data.len()).all(|cut| decode_error(head.kind, &data[..cut]).is_none()));
        }
        let mut long = Vec::new();
        let (text, form) = ("ä".repeat(MAX_STRING), Form::Structured);
        encode_error(&mut long, form, ReplyFlags::DONE, TAG, ReplyError::Io, &text, None);
        assert_eq!(long.len(), CHUNK_LEN + 6 + MAX_STRING);
        let extents = [
            StatusExtent { length: 512, flags: 0 },
            StatusExtent { length: u32::MAX.into(), flags: STATE_HOLE | STATE_ZERO },
        ];
        for (form, kind) in [
            (Form::Structured, ReplyKind::BLOCK_STATUS),
            (Form::Extended, ReplyKind::BLOCK_STATUS_EXT),
        ] {
            let mut out = Vec::new();
            encode_block_status(&mut out, form, ReplyFlags::DONE, TAG, 9, &extents);
            let data = &out[form.chunk_len()..];
            assert_eq!(decode_block_status(kind, data), Some((9, extents.to_vec())));
            assert_eq!(decode_block_status(kind, &data[..data.len() - 1]), None);
            assert_eq!(decode_block_status(kind, &data[..4]), None);
            assert_eq!(decode_block_status(kind, &data[..8]), None);
        }
    }
}
