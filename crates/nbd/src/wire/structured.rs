//! Structured replies: chunks, and what is in them.

use super::{BadMagic, MAX_STRING, ReplyError, ReplyFlags, ReplyKind, STRUCTURED_REPLY_MAGIC, be};

/// Length of the head of a chunk in bytes.
pub const CHUNK_LEN: usize = 20;
/// Length of a chunk's head and the offset behind it, in bytes: what is in front of data.
pub const DATA_CHUNK_LEN: usize = CHUNK_LEN + 8;

/// The head of a chunk of a structured reply; `length` bytes follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Modifiers.
    pub flags: ReplyFlags,
    /// What follows.
    pub kind: ReplyKind,
    /// The cookie of the request.
    pub cookie: u64,
    /// Length of what follows in bytes.
    pub length: u32,
}

/// One stretch of a block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// In bytes, not 0.
    pub length: u32,
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
    /// The bytes of the head.
    pub fn encode(&self) -> [u8; CHUNK_LEN] {
        let mut out = [0; CHUNK_LEN];
        out[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.0.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..20].copy_from_slice(&self.length.to_be_bytes());
        out
    }

    /// Reads a head from its 20 bytes.
    ///
    /// # Errors
    /// `BadMagic` when the bytes don't begin with the number of a structured reply.
    pub fn decode(bytes: &[u8; CHUNK_LEN]) -> Result<Chunk, BadMagic> {
        let found = be::u32(bytes, 0);
        if found != STRUCTURED_REPLY_MAGIC {
            return Err(BadMagic { found: found.into(), expected: STRUCTURED_REPLY_MAGIC.into() });
        }
        Ok(Chunk {
            flags: ReplyFlags(be::u16(bytes, 4)),
            kind: ReplyKind(be::u16(bytes, 6)),
            cookie: be::u64(bytes, 8),
            length: be::u32(bytes, 16),
        })
    }

    /// The final chunk of a reply that has nothing more to say.
    pub fn done(cookie: u64) -> [u8; CHUNK_LEN] {
        let (flags, kind) = (ReplyFlags::DONE, ReplyKind::NONE);
        Chunk { flags, kind, cookie, length: 0 }.encode()
    }

    /// What is in front of `length` bytes of data that lie at `offset`.
    ///
    /// # Panics
    /// Where such a chunk can't be: `length` is more than 4 GiB less 9 bytes. No payload is.
    pub fn data(flags: ReplyFlags, cookie: u64, offset: u64, length: u32) -> [u8; DATA_CHUNK_LEN] {
        let length = length.checked_add(8).expect("a payload is far below 4 GiB");
        let head = Chunk { flags, kind: ReplyKind::OFFSET_DATA, cookie, length };
        let mut out = [0; DATA_CHUNK_LEN];
        out[..CHUNK_LEN].copy_from_slice(&head.encode());
        out[CHUNK_LEN..].copy_from_slice(&offset.to_be_bytes());
        out
    }
}

/// Appends a chunk that says that `length` bytes at `offset` are zeroes.
pub fn encode_hole(
    out: &mut impl Extend<u8>,
    flags: ReplyFlags,
    cookie: u64,
    offset: u64,
    length: u32,
) {
    let kind = ReplyKind::OFFSET_HOLE;
    out.extend(Chunk { flags, kind, cookie, length: 12 }.encode());
    out.extend(offset.to_be_bytes());
    out.extend(length.to_be_bytes());
}

/// Appends a chunk with an error, and with where it happened, where that is known. A message is cut to what the protocol
/// allows.
pub fn encode_error(
    out: &mut impl Extend<u8>,
    flags: ReplyFlags,
    cookie: u64,
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
    let length = 6 + u32::from(text) + rest;
    out.extend(Chunk { flags, kind, cookie, length }.encode());
    out.extend(error.code().to_be_bytes());
    out.extend(text.to_be_bytes());
    out.extend(message.iter().copied());
    if let Some(offset) = offset {
        out.extend(offset.to_be_bytes());
    }
}

/// Appends a chunk with what is known of extents in metadata context `context`.
pub fn encode_block_status(
    out: &mut impl Extend<u8>,
    flags: ReplyFlags,
    cookie: u64,
    context: u32,
    extents: &[StatusExtent],
) {
    let length = u32::try_from(4 + 8 * extents.len()).expect("so many extents nobody asks for");
    out.extend(Chunk { flags, kind: ReplyKind::BLOCK_STATUS, cookie, length }.encode());
    out.extend(context.to_be_bytes());
    for extent in extents {
        out.extend(extent.length.to_be_bytes());
        out.extend(extent.flags.to_be_bytes());
    }
}

/// Reads what follows the head of a chunk of kind `BLOCK_STATUS`: the context and its extents. `None` where it is
/// malformed.
pub fn decode_block_status(data: &[u8]) -> Option<(u32, Vec<StatusExtent>)> {
    let (context, rest) = data.split_first_chunk::<4>()?;
    if rest.is_empty() || rest.len() % 8 != 0 {
        return None;
    }
    let extent =
        |bytes: &[u8]| StatusExtent { length: be::u32(bytes, 0), flags: be::u32(bytes, 4) };
    Some((u32::from_be_bytes(*context), rest.chunks_exact(8).map(extent).collect()))
}

/// Reads what follows the head of a chunk of kind `ERROR` or `ERROR_OFFSET`. `None` where it is malformed.
pub fn decode_error(kind: ReplyKind, data: &[u8]) -> Option<ChunkError> {
    let (head, rest) = data.split_first_chunk::<6>()?;
    let text = usize::from(be::u16(head, 4));
    let message = std::str::from_utf8(rest.get(..text)?).ok()?.to_owned();
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
    fn chunks_have_the_bytes_of_the_specification() {
        let head = Chunk::data(ReplyFlags::DONE, 7, 0x1000, 512);
        assert_eq!(head[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(head[8..], [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let chunk = Chunk::decode(head.first_chunk().unwrap()).unwrap();
        assert_eq!((chunk.kind, chunk.length), (ReplyKind::OFFSET_DATA, 520));
        assert_eq!(Chunk::done(1)[4..8], [0, 1, 0, 0]);
        let mut hole = Vec::new();
        encode_hole(&mut hole, ReplyFlags::empty(), 1, 512, 1024);
        assert_eq!(hole[4..8], [0, 0, 0, 2]);
        assert_eq!(hole[16..], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0]);
        assert!(Chunk::decode(&[0; CHUNK_LEN]).is_err());
    }

    #[test]
    fn errors_and_block_status_survive_the_round_trip_and_malformed_ones_are_refused() {
        for offset in [None, Some(1 << 40)] {
            let mut out = Vec::new();
            encode_error(&mut out, ReplyFlags::DONE, 3, ReplyError::Io, "the disk is gone", offset);
            let head = Chunk::decode(out.first_chunk().unwrap()).unwrap();
            let data = &out[CHUNK_LEN..];
            assert_eq!(head.length as usize, data.len());
            let error = decode_error(head.kind, data).unwrap();
            assert_eq!((error.error, error.offset), (5, offset));
            assert_eq!(error.message, "the disk is gone");
            assert!((0..data.len()).all(|cut| decode_error(head.kind, &data[..cut]).is_none()));
        }
        let mut long = Vec::new();
        let text = "ä".repeat(MAX_STRING);
        encode_error(&mut long, ReplyFlags::DONE, 3, ReplyError::Io, &text, None);
        assert_eq!(long.len(), CHUNK_LEN + 6 + MAX_STRING);
        let extents = [
            StatusExtent { length: 512, flags: 0 },
            StatusExtent { length: u32::MAX, flags: STATE_HOLE | STATE_ZERO },
        ];
        let mut out = Vec::new();
        encode_block_status(&mut out, ReplyFlags::DONE, 3, 9, &extents);
        assert_eq!(decode_block_status(&out[CHUNK_LEN..]), Some((9, extents.to_vec())));
        assert_eq!(decode_block_status(&out[CHUNK_LEN..out.len() - 1]), None);
        assert_eq!(decode_block_status(&out[CHUNK_LEN..CHUNK_LEN + 4]), None);
    }
}
