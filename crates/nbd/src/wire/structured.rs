//! Chunks of structured replies, with compact heads or extended ones, and what is in them.

use bytes::BufMut;

use super::{
    BadMagic, EXTENDED_REPLY_MAGIC, Form, MAX_STRING, ReplyError, ReplyFlags, ReplyKind,
    STRUCTURED_REPLY_MAGIC, be,
};

/// Length of the head of a chunk in bytes.
pub const CHUNK_LEN: usize = 20;
/// Length of the extended head of a chunk in bytes.
pub const EXTENDED_CHUNK_LEN: usize = 32;

/// What a chunk repeats of the request that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The cookie.
    pub cookie: u64,
    /// The offset, wherever the data lies. It is in extended heads only.
    pub offset: u64,
}

/// The head of a chunk of a structured reply; `length` bytes follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Modifiers.
    pub flags: ReplyFlags,
    /// What follows.
    pub kind: ReplyKind,
    /// The request.
    pub tag: Tag,
    /// Length of what follows in bytes.
    pub length: u64,
}

/// One stretch of a block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// In bytes, not 0.
    pub length: u64,
    /// Of `base:allocation`: [`STATE_HOLE`](super::STATE_HOLE) and [`STATE_ZERO`](super::STATE_ZERO).
    pub flags: u32,
}

/// What an error chunk says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkError {
    /// The error number.
    pub error: u32,
    /// For people; may be empty.
    pub message: String,
    /// Where it happened, where that is known.
    pub offset: Option<u64>,
}

impl Chunk {
    /// Appends the head: a compact one, unless the form has extended ones.
    ///
    /// # Panics
    /// Where it is compact, and the length has more than 32 bits.
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

    /// Reads a head from its 20 bytes, which don't have the request's offset.
    ///
    /// # Errors
    /// `BadMagic` when the bytes don't begin with the number of a structured reply.
    pub fn decode(bytes: &[u8; CHUNK_LEN]) -> Result<Chunk, BadMagic> {
        Chunk::after(bytes, STRUCTURED_REPLY_MAGIC, 0, be::u32(bytes, 16).into())
    }

    /// Reads an extended head from its 32 bytes.
    ///
    /// # Errors
    /// `BadMagic` when the bytes don't begin with the number of an extended reply.
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

/// Appends the final chunk of a reply that has nothing more to say.
pub fn encode_done(out: &mut impl BufMut, form: Form, tag: Tag) {
    Chunk { flags: ReplyFlags::DONE, kind: ReplyKind::NONE, tag, length: 0 }.encode(form, out);
}

/// Appends what is in front of `length` bytes of data that lie at `offset`.
///
/// # Panics
/// Where a compact chunk can't be so long: `length` is more than 4 GiB less 9 bytes. No payload is.
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

/// Appends a chunk that says that `length` bytes at `offset` are zeroes.
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

/// Appends a chunk with an error, and with where it happened, where that is known. A message is cut to what the protocol
/// allows.
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

/// Appends a chunk with what is known of extents in metadata context `context`.
///
/// # Panics
/// Where an extent is longer than what the client, which doesn't have extended headers, can have asked for.
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

/// Reads what follows the head of a chunk of kind `BLOCK_STATUS` or `BLOCK_STATUS_EXT`: the context and its extents. `None`
/// where it is malformed.
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

/// Reads what follows the head of a chunk of kind `ERROR` or `ERROR_OFFSET`. `None` where it is malformed.
pub fn decode_error(kind: ReplyKind, data: &[u8]) -> Option<ChunkError> {
    let (head, rest) = data.split_first_chunk::<6>()?;
    let text = usize::from(be::u16(head, 4));
    // For people: an error of a server that speaks another character set is an error all the same.
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
