//! The form of replies that a client has chosen: simple or structured. It makes bytes and sends nothing.

use bytes::BytesMut;
use corewise_blockmq::{Extent, ExtentKind, IoError};

use super::sink::Body;
use crate::handshake::ALLOCATION_CONTEXT;
use crate::wire::{
    Chunk, Command, DATA_CHUNK_LEN, ReplyError, ReplyFlags, SIMPLE_REPLY_LEN, STATE_HOLE,
    STATE_ZERO, SimpleReply, StatusExtent, encode_block_status, encode_error, encode_hole,
};

/// Extents that one `BLOCK_STATUS` is answered with, at most: 8 KiB of them.
pub(super) const EXTENTS: u32 = 1024;

/// The form of a client's replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) structured: bool,
}

impl Form {
    /// The head of a successful read of `length` bytes, with room for them behind it.
    pub(super) fn read(self, cookie: u64, offset: u64, length: u32) -> BytesMut {
        if self.structured {
            return data(ReplyFlags::DONE, cookie, offset, length);
        }
        let mut message = BytesMut::with_capacity(SIMPLE_REPLY_LEN + length as usize);
        message.extend_from_slice(&SimpleReply::new(cookie, Ok(())).encode());
        message
    }

    /// A request without an answer of its own has succeeded. A simple reply says that to everybody.
    pub(super) fn done(self, cookie: u64) -> Body {
        Body::Head(SimpleReply::new(cookie, Ok(())).encode())
    }

    /// What is said of a request that the device hasn't seen.
    pub(super) fn unseen(
        self,
        command: Command,
        cookie: u64,
        result: Result<(), ReplyError>,
    ) -> Body {
        match result {
            Ok(()) if self.structured && command == Command::READ => end(cookie),
            Ok(()) => self.done(cookie),
            Err(error) => self.refused(cookie, error, error.message(), None),
        }
    }

    /// The device has failed a request.
    pub(super) fn failed(self, cookie: u64, error: &IoError) -> Body {
        let (message, offset) = (error.to_string(), error.range().map(|range| range.start));
        self.refused(cookie, ReplyError::from_errno(error.errno()), &message, offset)
    }

    fn refused(self, cookie: u64, error: ReplyError, message: &str, offset: Option<u64>) -> Body {
        if !self.structured {
            return Body::Head(SimpleReply::new(cookie, Err(error)).encode());
        }
        let mut out = BytesMut::new();
        encode_error(&mut out, ReplyFlags::DONE, cookie, error, message, offset);
        Body::Message(out)
    }
}

/// The head of a chunk of `length` bytes of data, with room for them behind it.
pub(super) fn data(flags: ReplyFlags, cookie: u64, offset: u64, length: u32) -> BytesMut {
    let mut message = BytesMut::with_capacity(DATA_CHUNK_LEN + length as usize);
    message.extend_from_slice(&Chunk::data(flags, cookie, offset, length));
    message
}

/// The last chunk of a reply whose others have gone.
pub(super) fn end(cookie: u64) -> Body {
    Body::Message(BytesMut::from(&Chunk::done(cookie)[..]))
}

/// Chunks for holes; the last one ends the reply where there is nothing else.
pub(super) fn holes(cookie: u64, holes: &[(u64, u32)], ends: bool) -> BytesMut {
    let mut out = BytesMut::with_capacity(holes.len() * (DATA_CHUNK_LEN + 4));
    for (n, (offset, length)) in holes.iter().enumerate() {
        let last = ends && n + 1 == holes.len();
        let flags = ReplyFlags::empty().with_if(last, ReplyFlags::DONE);
        encode_hole(&mut out, flags, cookie, *offset, *length);
    }
    out
}

/// A chunk of a reply that goes on, which says what failed.
pub(super) fn failure(cookie: u64, error: &IoError, offset: u64) -> BytesMut {
    let at = error.range().map_or(offset, |range| range.start);
    let mut out = BytesMut::new();
    let code = ReplyError::from_errno(error.errno());
    encode_error(&mut out, ReplyFlags::empty(), cookie, code, &error.to_string(), Some(at));
    out
}

/// The answer to `BLOCK_STATUS`.
pub(super) fn status(cookie: u64, extents: impl Iterator<Item = Extent>) -> Body {
    let extents: Vec<StatusExtent> = extents.map(status_of).collect();
    let mut out = BytesMut::new();
    encode_block_status(&mut out, ReplyFlags::DONE, cookie, ALLOCATION_CONTEXT, &extents);
    Body::Message(out)
}

fn status_of(extent: Extent) -> StatusExtent {
    let flags = match extent.kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => STATE_ZERO,
        ExtentKind::Hole => STATE_HOLE | STATE_ZERO,
    };
    let length = u32::try_from(extent.len).expect("within the request, whose length is one");
    StatusExtent { length, flags }
}
