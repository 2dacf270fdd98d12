//! The parser of the replies in the transmission phase, which puts their data into the requests.
//!
//! The server isn't trusted. A reply ends the connection if it names no request, carries more than
//! was asked for, or isn't a reply at all. Memory is bounded. Data goes straight into its request.
//! If data comes out of order, the memory for it is no more than was asked for. The length of any
//! other chunk is checked first.

use bytes::{Buf, BytesMut};
use corewise_blockmq::{Extent, ExtentKind, IoError, IoErrorKind, Op};

use super::client_handshake::words;
use super::policy;
use super::stream::ROOM;
use super::table::{Piece, Table};
use crate::wire::{
    CHUNK_LEN, Chunk, ReplyError, ReplyFlags, ReplyKind, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC,
    STATE_DIRTY, STATE_HOLE, STATE_ZERO, STRUCTURED_REPLY_MAGIC, SimpleReply, decode_block_status,
    decode_error,
};

/// Largest length of an error chunk in bytes.
const MOST_ERROR: u64 = 8 << 10;
/// Largest length of a block status in bytes: that of a million extents.
const MOST_STATUS: u64 = (8 << 20) + 4;

/// Least number of bytes of a read that are received straight into their place by a call of their
/// own. A call costs about as much as a copy of 64 KiB.
const LARGE: u64 = 64 << 10;
/// Room for the heads in front of such data.
const HEADS: usize = 4 << 10;

/// The reason why a connection can't continue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BrokenConnection(pub(super) String);

fn broken<T>(why: impl Into<String>) -> Result<T, BrokenConnection> {
    Err(BrokenConnection(why.into()))
}

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum RequestOutcome {
    /// The request was answered, with this result.
    Answered(usize, Result<(), IoError>),
    /// The server is shutting down and hasn't done the request.
    Refused(usize),
}

/// The parser of one connection's replies.
#[derive(Default)]
pub(super) struct ReplyParser {
    state: ReplyParserState,
    /// True if chunks were agreed on.
    structured: bool,
    /// Context number of `base:allocation`, or of a checkpoint.
    allocation: Option<u32>,
    /// True for a checkpoint.
    changes: bool,
    /// True if the last data was large enough to be received straight into its place.
    large: bool,
}

#[derive(Default)]
enum ReplyParserState {
    /// The next byte begins a message.
    #[default]
    Start,
    /// `left` bytes of data follow, which are the next ones of their read.
    Data { slot: usize, left: u64, last: bool },
    /// `left` bytes of data follow for `start`, before data that belongs in front of them.
    Early { slot: usize, start: u64, data: BytesMut, left: u64, last: bool },
    /// The rest of a message has to be received whole.
    Rest { slot: usize, chunk: Chunk },
}

impl ReplyParser {
    /// Creates the parser of a new connection. `changes` says that block status tells what changed
    /// since a checkpoint.
    pub(super) fn new(structured: bool, allocation: Option<u32>, changes: bool) -> ReplyParser {
        let state = ReplyParserState::Start;
        ReplyParser { state, structured, allocation, changes, large: false }
    }

    /// Returns the request that the next bytes belong to, and the number of those bytes. It does so
    /// only if they are many, and no earlier byte is still in a buffer. The caller may then receive
    /// them into the request, and reduces the number.
    pub(super) fn straight(&mut self) -> Option<(usize, &mut u64)> {
        match &mut self.state {
            ReplyParserState::Data { slot, left, .. } if *left >= LARGE => Some((*slot, left)),
            _ => None,
        }
    }

    /// Returns the number of bytes to receive for [`ReplyParser::take`]. It is small if the head of
    /// a large read is likely, whose data is received straight into its place.
    pub(super) fn room(&self) -> usize {
        if self.large { HEADS } else { ROOM }
    }

    /// Begins data that is the next of its read.
    fn data(&mut self, slot: usize, left: u64, last: bool) {
        self.large = left >= LARGE;
        self.state = ReplyParserState::Data { slot, left, last };
    }

    /// Parses the whole messages in `bytes`, which came on connection `on`, and appends the
    /// outcomes to `ends`.
    pub(super) fn take(
        &mut self,
        bytes: &mut BytesMut,
        table: &mut Table,
        on: usize,
        ends: &mut Vec<RequestOutcome>,
    ) -> Result<(), BrokenConnection> {
        while self.step(bytes, table, on, ends)? {}
        Ok(())
    }

    /// Parses one message or piece. Returns false if more bytes are needed.
    fn step(
        &mut self,
        bytes: &mut BytesMut,
        table: &mut Table,
        on: usize,
        ends: &mut Vec<RequestOutcome>,
    ) -> Result<bool, BrokenConnection> {
        match &mut self.state {
            ReplyParserState::Start => self.head(bytes, table, on, ends),
            ReplyParserState::Data { slot, left, last } => {
                let n = (bytes.len() as u64).min(*left) as usize;
                let entry = table.get_mut(*slot);
                entry.rq.put(&bytes[..n]);
                bytes.advance(n);
                *left -= n as u64;
                if *left != 0 {
                    return Ok(false);
                }
                entry.catch_up();
                let (slot, last) = (*slot, *last);
                self.state = ReplyParserState::Start;
                if last { finish(slot, table, ends) } else { Ok(true) }
            }
            ReplyParserState::Early { slot, start, data, left, last } => {
                let n = (bytes.len() as u64).min(*left) as usize;
                data.extend_from_slice(&bytes[..n]);
                bytes.advance(n);
                *left -= n as u64;
                if *left != 0 {
                    return Ok(false);
                }
                let piece = Piece::Data(std::mem::take(data).freeze());
                table.get_mut(*slot).put_piece(*start, piece);
                let (slot, last) = (*slot, *last);
                self.state = ReplyParserState::Start;
                if last { finish(slot, table, ends) } else { Ok(true) }
            }
            ReplyParserState::Rest { slot, chunk } => {
                let (slot, chunk) = (*slot, *chunk);
                if (bytes.len() as u64) < chunk.length {
                    return Ok(false);
                }
                let data = bytes.split_to(chunk.length as usize);
                self.state = ReplyParserState::Start;
                self.rest(slot, &chunk, &data, table, ends)
            }
        }
    }

    fn head(
        &mut self,
        bytes: &mut BytesMut,
        table: &mut Table,
        on: usize,
        ends: &mut Vec<RequestOutcome>,
    ) -> Result<bool, BrokenConnection> {
        let Some(magic) = bytes.first_chunk().map(|word| u32::from_be_bytes(*word)) else {
            return Ok(false);
        };
        match magic {
            SIMPLE_REPLY_MAGIC => {
                let Some(head) = bytes.first_chunk::<SIMPLE_REPLY_LEN>() else { return Ok(false) };
                let reply =
                    SimpleReply::decode(head).map_err(|e| BrokenConnection(e.to_string()))?;
                bytes.advance(SIMPLE_REPLY_LEN);
                self.simple(reply, table, on, ends)
            }
            STRUCTURED_REPLY_MAGIC if self.structured => {
                let Some(head) = bytes.first_chunk::<CHUNK_LEN>() else { return Ok(false) };
                let chunk = Chunk::decode(head).map_err(|e| BrokenConnection(e.to_string()))?;
                self.chunk(&chunk, bytes, table, on, ends)
            }
            other => broken(format!("an answer began with {other:#x}")),
        }
    }

    fn simple(
        &mut self,
        reply: SimpleReply,
        table: &mut Table,
        on: usize,
        ends: &mut Vec<RequestOutcome>,
    ) -> Result<bool, BrokenConnection> {
        let Some(slot) = table.find(reply.cookie, on) else {
            return broken(format!(
                "an answer with the cookie {:#x}, which no request has",
                reply.cookie
            ));
        };
        let entry = table.get_mut(slot);
        if reply.error != 0 {
            entry.answered = true;
            ends.push(failed(slot, entry.error.take(), reply.error, ""));
            return Ok(true);
        }
        match entry.rq.op() {
            Op::Read | Op::Extents if self.structured => {
                broken(format!("a {} was answered without chunks", entry.rq.op()))
            }
            Op::Read => {
                let left = entry.rq.len();
                self.data(slot, left, true);
                Ok(true)
            }
            _ => finish(slot, table, ends),
        }
    }

    fn chunk(
        &mut self,
        chunk: &Chunk,
        bytes: &mut BytesMut,
        table: &mut Table,
        on: usize,
        ends: &mut Vec<RequestOutcome>,
    ) -> Result<bool, BrokenConnection> {
        let Some(slot) = table.find(chunk.tag.cookie, on) else {
            return broken(format!(
                "a chunk with the cookie {:#x}, which no request has",
                chunk.tag.cookie
            ));
        };
        let (entry, last) = (table.get_mut(slot), chunk.flags.contains(ReplyFlags::DONE));
        let (op, length) = (entry.rq.op(), chunk.length);
        let unfit = || broken(format!("{} of {length} bytes for a {op}", chunk.kind));
        match chunk.kind {
            ReplyKind::NONE if length == 0 && last => {
                bytes.advance(CHUNK_LEN);
                finish(slot, table, ends)
            }
            ReplyKind::OFFSET_DATA if op == Op::Read && length > 8 => {
                let Some(head) = bytes.first_chunk::<{ CHUNK_LEN + 8 }>() else { return Ok(false) };
                let start = crate::wire::be::u64(head, CHUNK_LEN);
                let left = length - 8;
                let Some(next) = start.checked_add(left).and_then(|end| entry.takes(&(start..end)))
                else {
                    return broken(format!("{left} bytes at {start}, which were not asked for"));
                };
                bytes.advance(CHUNK_LEN + 8);
                match next {
                    true => self.data(slot, left, last),
                    false => {
                        self.state = ReplyParserState::Early {
                            slot,
                            start,
                            data: BytesMut::new(),
                            left,
                            last,
                        };
                    }
                }
                Ok(true)
            }
            ReplyKind::OFFSET_HOLE if op == Op::Read && length == 12 => {
                let Some(head) = bytes.first_chunk::<{ CHUNK_LEN + 12 }>() else {
                    return Ok(false);
                };
                let start = crate::wire::be::u64(head, CHUNK_LEN);
                let n = u64::from(crate::wire::be::u32(head, CHUNK_LEN + 8));
                if start.checked_add(n).and_then(|end| entry.takes(&(start..end))).is_none() {
                    return broken(format!("a hole of {n} bytes at {start}, not asked for"));
                }
                bytes.advance(CHUNK_LEN + 12);
                entry.put_piece(start, Piece::Zeroes(n));
                if last { finish(slot, table, ends) } else { Ok(true) }
            }
            ReplyKind::BLOCK_STATUS if op == Op::Extents && length <= MOST_STATUS => {
                bytes.advance(CHUNK_LEN);
                self.state = ReplyParserState::Rest { slot, chunk: *chunk };
                Ok(true)
            }
            kind if kind.is_error() && length <= MOST_ERROR && entry.may_err() => {
                bytes.advance(CHUNK_LEN);
                self.state = ReplyParserState::Rest { slot, chunk: *chunk };
                Ok(true)
            }
            _ => unfit(),
        }
    }

    /// Parses the rest of a chunk that is no data.
    fn rest(
        &mut self,
        slot: usize,
        chunk: &Chunk,
        data: &[u8],
        table: &mut Table,
        ends: &mut Vec<RequestOutcome>,
    ) -> Result<bool, BrokenConnection> {
        let (entry, last) = (table.get_mut(slot), chunk.flags.contains(ReplyFlags::DONE));
        let malformed = || broken(format!("a malformed {} of {} bytes", chunk.kind, data.len()));
        if chunk.kind == ReplyKind::BLOCK_STATUS {
            let Some((context, extents)) = decode_block_status(chunk.kind, data) else {
                return malformed();
            };
            if Some(context) != self.allocation || entry.has_extents {
                return malformed();
            }
            entry.has_extents = true;
            for extent in extents {
                if extent.length == 0 {
                    return malformed();
                }
                let is = |flag: u32| extent.flags & flag != 0;
                let kind = match (is(STATE_ZERO), is(STATE_HOLE)) {
                    _ if self.changes && is(STATE_DIRTY) => ExtentKind::Data,
                    _ if self.changes => ExtentKind::Zero,
                    (true, true) => ExtentKind::Hole,
                    (true, false) => ExtentKind::Zero,
                    (false, _) => ExtentKind::Data,
                };
                if !entry.rq.put_extent(Extent { len: extent.length, kind }) {
                    break;
                }
            }
            return if last { finish(slot, table, ends) } else { Ok(true) };
        }
        // An error chunk of an unknown kind begins as all error chunks do.
        let known = [ReplyKind::ERROR, ReplyKind::ERROR_OFFSET].contains(&chunk.kind);
        let (error, message) = match decode_error(chunk.kind, data) {
            Some(error) => (error.error, error.message),
            None if !known && data.len() >= 4 => (crate::wire::be::u32(data, 0), String::new()),
            None => return malformed(),
        };
        if error == 0 {
            return malformed();
        }
        if last {
            entry.answered = true;
            ends.push(failed(slot, entry.error.take(), error, &message));
        } else {
            entry.error.get_or_insert_with(|| io_error(error, &message));
        }
        Ok(true)
    }
}

/// Ends a request whose reply is complete.
fn finish(
    slot: usize,
    table: &mut Table,
    ends: &mut Vec<RequestOutcome>,
) -> Result<bool, BrokenConnection> {
    let entry = table.get_mut(slot);
    let result = match entry.error.take() {
        Some(error) => Err(error),
        None if entry.rq.op() == Op::Read && !entry.is_whole() => {
            return broken("a read was answered without all its bytes");
        }
        // All its bytes have to be sent before it can be done.
        None if entry.leaving && entry.payload() > 0 => {
            return broken("a write was answered before its bytes were sent");
        }
        None => Ok(()),
    };
    entry.answered = true;
    ends.push(RequestOutcome::Answered(slot, result));
    Ok(true)
}

fn failed(slot: usize, before: Option<IoError>, error: u32, message: &str) -> RequestOutcome {
    match before {
        Some(before) => RequestOutcome::Answered(slot, Err(before)),
        None if error == ReplyError::Shutdown.code() => RequestOutcome::Refused(slot),
        None => RequestOutcome::Answered(slot, Err(io_error(error, message))),
    }
}

fn io_error(error: u32, message: &str) -> IoError {
    let kind: IoErrorKind = policy::kind(error);
    match words(message.as_bytes()) {
        none if none.is_empty() => IoError::with(kind, "the remote server reports this error"),
        words => IoError::with(kind, format!("the remote server reports: {words}")),
    }
}

/// Entry points of the fuzzer: a server's bytes in the transmission phase, against requests without
/// a volume.
pub mod fuzzed {
    use std::time::Instant;

    use bytes::BytesMut;
    use corewise_blockmq::{IoError, IoErrorKind, Started};
    use corewise_sync::time;

    use crate::client::replies::{ReplyParser, RequestOutcome};
    use crate::client::table::Table;

    /// Returns the cookie of request number `n`.
    pub fn cookie(n: usize) -> u64 {
        (n as u64 + 1) << 16 | n as u64
    }

    /// Parses `pieces` as the bytes of a connection on which `requests` were sent, the last one not
    /// completely, and completes them all. Returns which ones were answered, in that order, and
    /// whether the connection could continue.
    pub fn answers<'a>(
        structured: bool,
        allocation: u32,
        requests: Vec<Started>,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> (Vec<usize>, bool) {
        let mut table = Table::default();
        let (now, all): (Instant, _) = (time::now(), requests.len());
        for rq in requests {
            table.add(rq, now);
        }
        for n in 0..all {
            let slot = table.send(0, 0);
            let entry = table.get_mut(slot);
            entry.leaving = n + 1 == all;
            assert_eq!((slot, entry.cookie), (n, cookie(n)));
        }
        let mut reader = ReplyParser::new(structured, Some(allocation), false);
        let (mut bytes, mut ends, mut order) = (BytesMut::new(), Vec::new(), Vec::new());
        let mut goes_on = true;
        for piece in pieces {
            bytes.extend_from_slice(piece);
            goes_on = reader.take(&mut bytes, &mut table, 0, &mut ends).is_ok();
            for end in ends.drain(..) {
                let (slot, result) = match end {
                    RequestOutcome::Answered(slot, result) => (slot, result),
                    RequestOutcome::Refused(slot) => (slot, Err(IoError::new(IoErrorKind::Gone))),
                };
                order.push(slot);
                table.remove(slot).complete(result);
            }
            if !goes_on {
                break;
            }
        }
        for slot in table.sent() {
            table.remove(slot).complete(Err(IoError::new(IoErrorKind::Gone)));
        }
        (order, goes_on)
    }
}
