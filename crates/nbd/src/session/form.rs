//! Replies in the form that a client has chosen. It makes bytes and sends nothing.

use bytes::BytesMut;
use corewise_blockmq::{Extent, ExtentKind, IoError};

use super::sink::Body;
use crate::handshake::ALLOCATION_CONTEXT;
use crate::wire::{
    Command, EXTENDED_CHUNK_LEN, Form, ReplyError, ReplyFlags, SIMPLE_REPLY_LEN, STATE_HOLE,
    STATE_ZERO, SimpleReply, StatusExtent, Tag, encode_block_status, encode_data, encode_done,
    encode_error, encode_hole,
};

/// Extents that one `BLOCK_STATUS` is answered with, at most: 16 KiB of them.
pub(super) const EXTENTS: u32 = 1024;

impl Form {
    /// How long the reply to a read of `length` bytes is.
    pub(super) fn read_len(self, length: u32) -> usize {
        let head = if self.has_chunks() { self.data_chunk_len() } else { SIMPLE_REPLY_LEN };
        head + length as usize
    }

    /// The head of a successful read of `length` bytes, with room for them behind it; in `spare`, where there is one.
    pub(super) fn read(self, tag: Tag, length: u32, spare: Option<BytesMut>) -> BytesMut {
        let mut message = spare.unwrap_or_else(|| BytesMut::with_capacity(self.read_len(length)));
        match self.has_chunks() {
            true => encode_data(&mut message, self, ReplyFlags::DONE, tag, tag.offset, length),
            false => message.extend_from_slice(&SimpleReply::new(tag.cookie, Ok(())).encode()),
        }
        message
    }

    /// A request without an answer of its own has succeeded. A simple reply says that, except to those with extended headers.
    pub(super) fn done(self, tag: Tag) -> Body {
        match self {
            Form::Simple | Form::Structured => {
                Body::Head(SimpleReply::new(tag.cookie, Ok(())).encode())
            }
            Form::Extended => self.end(tag),
        }
    }

    /// What is said of a request that the device hasn't seen.
    pub(super) fn unseen(self, command: Command, tag: Tag, result: Result<(), ReplyError>) -> Body {
        match result {
            Ok(()) if self.has_chunks() && command == Command::READ => self.end(tag),
            Ok(()) => self.done(tag),
            Err(error) => self.refused(tag, error, error.message(), None),
        }
    }

    /// The device has failed a request.
    pub(super) fn failed(self, tag: Tag, error: &IoError) -> Body {
        let (message, offset) = (error.to_string(), error.range().map(|range| range.start));
        self.refused(tag, ReplyError::from_errno(error.errno()), &message, offset)
    }

    /// Making the answer has panicked.
    pub(super) fn broken(self, tag: Tag) -> Body {
        self.refused(tag, ReplyError::Io, "the server failed to answer", None)
    }

    fn refused(self, tag: Tag, error: ReplyError, message: &str, offset: Option<u64>) -> Body {
        if !self.has_chunks() {
            return Body::Head(SimpleReply::new(tag.cookie, Err(error)).encode());
        }
        let mut out = BytesMut::new();
        encode_error(&mut out, self, ReplyFlags::DONE, tag, error, message, offset);
        Body::Message(out)
    }

    /// The head of a chunk of `length` bytes of data, with room for them behind it.
    pub(super) fn data(self, flags: ReplyFlags, tag: Tag, offset: u64, length: u32) -> BytesMut {
        let mut message = BytesMut::with_capacity(self.data_chunk_len() + length as usize);
        encode_data(&mut message, self, flags, tag, offset, length);
        message
    }

    /// The last chunk of a reply whose others have gone.
    pub(super) fn end(self, tag: Tag) -> Body {
        if self == Form::Extended {
            let mut head = [0; EXTENDED_CHUNK_LEN];
            encode_done(&mut &mut head[..], self, tag);
            return Body::Long(head);
        }
        let mut out = BytesMut::with_capacity(self.chunk_len());
        encode_done(&mut out, self, tag);
        Body::Message(out)
    }

    /// Chunks for holes; the last one ends the reply where there is nothing else.
    pub(super) fn holes(self, tag: Tag, holes: &[(u64, u32)], ends: bool) -> BytesMut {
        let mut out = BytesMut::with_capacity(holes.len() * (self.data_chunk_len() + 4));
        for (n, (offset, length)) in holes.iter().enumerate() {
            let last = ends && n + 1 == holes.len();
            let flags = ReplyFlags::empty().with_if(last, ReplyFlags::DONE);
            encode_hole(&mut out, self, flags, tag, *offset, *length);
        }
        out
    }

    /// A chunk of a reply that goes on, which says what failed.
    pub(super) fn failure(self, tag: Tag, error: &IoError, offset: u64) -> BytesMut {
        let at = error.range().map_or(offset, |range| range.start);
        let mut out = BytesMut::new();
        let code = ReplyError::from_errno(error.errno());
        let flags = ReplyFlags::empty();
        encode_error(&mut out, self, flags, tag, code, &error.to_string(), Some(at));
        out
    }

    /// The answer to `BLOCK_STATUS`.
    pub(super) fn status(self, tag: Tag, extents: impl Iterator<Item = Extent>) -> Body {
        let extents: Vec<StatusExtent> = extents.map(status_of).collect();
        let mut out = BytesMut::new();
        encode_block_status(&mut out, self, ReplyFlags::DONE, tag, ALLOCATION_CONTEXT, &extents);
        Body::Message(out)
    }
}

fn status_of(extent: Extent) -> StatusExtent {
    let flags = match extent.kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => STATE_ZERO,
        ExtentKind::Hole => STATE_HOLE | STATE_ZERO,
    };
    StatusExtent { length: extent.len, flags }
}
