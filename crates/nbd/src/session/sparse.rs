//! Reads that leave out holes. A large read of a client with structured replies asks the device for
//! its extents first, and then reads the data between the holes.
//!
//! The query costs a request. So if it found nothing, queries become rarer: at most one in 64 reads
//! of a device without holes.

use std::mem;
use std::sync::Arc;

use bytes::BytesMut;
use corewise_blockmq::{Buffer, Completed, Extents, IoError, IoErrorKind, Op, Payload, Request};
use corewise_export::InDevice;
use corewise_export::turn::{self, Work};
use corewise_sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::Session;
use super::sink::{Body, Reply};
use crate::load::{Cost, Settlement};
use crate::wire::{ReplyFlags, Tag};

/// Least number of bytes of a read that queries extents.
const WORTH_ASKING: u32 = 64 << 10;
/// Number of extents in a query.
const EXTENTS: u32 = 64;
/// Least number of zero bytes that are left out; fewer are read with the data beside them. A chunk
/// has 28 bytes, and a read costs more.
const WORTH_LEAVING: u64 = 16 << 10;
/// Largest number of reads without a query after one that found nothing.
const SKIP_MOST: u32 = 63;

/// The decision which reads query extents.
#[derive(Debug, Default)]
pub(super) struct HoleProbe {
    /// A: reads left without a query. Relaxed, as the other: a guess.
    left: AtomicU32,
    /// A: number of reads that the last pause began with.
    skip: AtomicU32,
}

impl HoleProbe {
    /// Returns true if a read of `length` bytes queries extents. Called by the reader only.
    pub(super) fn asks(&self, length: u32) -> bool {
        // A longer one enters in pieces, each by its turn.
        if length < WORTH_ASKING || u64::from(length) > turn::PIECE {
            return false;
        }
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn learn(&self, found: bool) {
        let skip = self.skip.load(Ordering::Relaxed);
        let skip = if found { 0 } else { (2 * skip + 1).min(SKIP_MOST) };
        self.skip.store(skip, Ordering::Relaxed);
        self.left.store(skip, Ordering::Relaxed);
    }
}

/// A part of a read: data, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    offset: u64,
    length: u32,
    zero: bool,
}

/// Cuts a read into holes and data. The part that the extents don't cover counts as data. Pure.
fn cut(offset: u64, length: u32, extents: &Extents) -> Vec<Stretch> {
    let end = offset + u64::from(length);
    let mut list: Vec<Stretch> = Vec::new();
    let mut add = |from: u64, to: u64, zero: bool| {
        let length = (to - from) as u32;
        match list.last_mut() {
            Some(last) if last.zero == zero => last.length += length,
            _ if length != 0 => list.push(Stretch { offset: from, length, zero }),
            _ => {}
        }
    };
    let mut at = offset;
    for extent in extents.iter() {
        let to = (at + extent.len).min(end);
        add(at, to, extent.kind.is_zero() && to - at >= WORTH_LEAVING);
        at = to;
    }
    add(at, end, false);
    list
}

/// A read whose data comes in several chunks.
struct Parts {
    session: Arc<Session>,
    tag: Tag,
    length: u32,
    due: Settlement,
    /// A: set if a part has failed. Relaxed: `left` orders it.
    failed: AtomicBool,
    /// A: parts that haven't posted their chunk, plus one for the thread that submits them.
    /// Decremented (Release) after the chunk. The last one acquires, and its chunk ends the reply
    /// after all others. That thread adds while it holds its own one.
    left: AtomicU32,
}

/// One part that a reply waits for, until this is dropped, also by a panic of the device.
struct Part(Arc<Parts>);

impl Part {
    fn new(parts: &Arc<Parts>) -> Part {
        parts.left.fetch_add(1, Ordering::Relaxed);
        Part(Arc::clone(parts))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let Part(parts) = self;
        if parts.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The query had taken the places of the whole read.
            parts.session.client.left(Work::Question, parts.length.into());
            let end = parts.session.form.end(parts.tag);
            let due = match parts.failed.load(Ordering::Relaxed) {
                true => parts.due.failed(),
                false => parts.due,
            };
            parts.session.post(Reply::new(end, due));
        }
    }
}

/// Returns the request that queries the extents of a read, and then reads. Its reply comes in any
/// number of chunks.
pub(super) fn ask(session: &Arc<Session>, tag: Tag, length: u32, cost: Cost) -> Request {
    let session = Arc::clone(session);
    let rq = Request::extents_of(tag.offset, length.into(), EXTENTS);
    let question = InDevice::without_change(Work::Question);
    rq.on_complete(move |done| {
        match done.result.as_ref().map_err(IoError::kind) {
            Err(IoErrorKind::Gone) => session.completed(tag, cost, question, false, done),
            // If the device doesn't know its extents, the part is read.
            _ => {
                let extents = done.into_extents().unwrap_or_default();
                answer(session, tag, length, cost, &extents);
            }
        }
    })
}

fn answer(session: Arc<Session>, tag: Tag, length: u32, cost: Cost, extents: &Extents) {
    let due = cost.due(Some(Op::Read), Some(length.into()));
    let found = session.sound(tag, || {
        let stretches = cut(tag.offset, length, extents);
        let (zeroes, data): (Vec<_>, Vec<_>) = stretches.into_iter().partition(|part| part.zero);
        let list: Vec<_> = zeroes.iter().map(|part| (part.offset, part.length)).collect();
        (session.form.holes(tag, &list, data.is_empty()), data, zeroes.is_empty())
    });
    let Some((holes, data, none)) = found else {
        session.client.left(Work::Question, length.into());
        return session.post(Reply::new(session.form.broken(tag), due.failed()));
    };
    session.hole_probe.learn(!none);
    if none {
        let device = Arc::clone(session.device());
        let bytes = InDevice::without_change(Work::Bytes);
        let message = session.form.read(tag, length, None);
        let rq = Request::read_into(tag.offset, length as usize, message).quiet();
        return device
            .submit(rq.on_complete(move |done| session.completed(tag, cost, bytes, false, done)));
    }
    if data.is_empty() {
        session.client.left(Work::Question, length.into());
        return session.post(Reply::new(Body::Message(holes), due));
    }
    session.post(Reply::more(holes));
    let (failed, left) = (AtomicBool::new(false), AtomicU32::new(0));
    let parts = Arc::new(Parts { session, tag, length, due, failed, left });
    let sender = Part::new(&parts);
    let reads = data.iter().map(|stretch| {
        let (part, offset) = (Part::new(&sender.0), stretch.offset);
        let message = parts.session.form.data(ReplyFlags::empty(), tag, offset, stretch.length);
        let rq = Request::read_into(offset, stretch.length as usize, message).quiet();
        rq.on_complete(move |done| {
            let session = &part.0.session;
            if done.result.is_err() {
                part.0.failed.store(true, Ordering::Relaxed);
            }
            session.post(Reply::more(chunk(session, tag, offset, done)));
        })
    });
    let submit = || parts.session.device().submit_batch(&mut reads.into_iter());
    if parts.session.sound(tag, submit).is_none() {
        // Some parts were never made, and post no chunk.
        parts.failed.store(true, Ordering::Relaxed);
        let failed = parts.session.form.failure(tag, &IoError::new(IoErrorKind::Gone), tag.offset);
        parts.session.post(Reply::more(failed));
    }
}

/// Creates the chunk of a part that was read, or failed.
fn chunk(session: &Session, tag: Tag, offset: u64, mut done: Completed) -> BytesMut {
    let payload = mem::take(&mut done.payload);
    let made = session.sound(tag, || match (&done.result, payload) {
        (Ok(()), Payload::One(Buffer::BytesMut(message))) => message,
        (Err(error), _) => {
            session.tell_failure(&done, error);
            session.form.failure(tag, error, offset)
        }
        // The device exchanged the buffer.
        (Ok(()), _) => session.form.failure(tag, &IoError::new(IoErrorKind::Gone), offset),
    });
    made.unwrap_or_else(|| session.form.failure(tag, &IoError::new(IoErrorKind::Io(5)), offset))
}

#[cfg(test)]
mod tests {
    use corewise_blockmq::{Extent, ExtentKind};

    use super::*;

    const KIB: u64 = 1 << 10;

    fn cuts(length: u32, extents: &[(u64, ExtentKind)]) -> Vec<(u64, u64, bool)> {
        let mut rq = Request::extents_of(0, u64::MAX, 64);
        extents.iter().for_each(|&(len, kind)| _ = rq.put_extent(Extent { len, kind }));
        let cuts = cut(1 << 40, length, rq.extents().unwrap());
        cuts.iter()
            .map(|c| ((c.offset - (1 << 40)) / KIB, u64::from(c.length) / KIB, c.zero))
            .collect()
    }

    #[test]
    fn zeroes_that_are_worth_it_are_left_out_and_all_else_is_read() {
        let (hole, data) = (ExtentKind::Hole, ExtentKind::Data);
        let length = 128 << 10;
        assert_eq!(cuts(length, &[]), [(0, 128, false)]);
        assert_eq!(cuts(length, &[(1 << 50, hole)]), [(0, 128, true)]);
        assert_eq!(
            cuts(
                length,
                &[(16 * KIB, data), (64 * KIB, hole), (8 * KIB, data), (4 * KIB, hole), (1, data)]
            ),
            [(0, 16, false), (16, 64, true), (80, 48, false)],
            "a small hole is read with what is around it, and so is what nobody knows"
        );
        assert_eq!(
            cuts(length, &[(64 * KIB, hole), (64 * KIB, ExtentKind::Zero)]),
            [(0, 128, true)]
        );
    }

    #[test]
    fn a_device_without_holes_is_asked_less_and_less() {
        let hole_probe = HoleProbe::default();
        assert!(!hole_probe.asks(4096), "a small read is read");
        let mut asked = Vec::new();
        for n in 0..1000 {
            if hole_probe.asks(256 << 10) {
                asked.push(n);
                hole_probe.learn(false);
            }
        }
        assert_eq!(asked[..5], [0, 2, 6, 14, 30]);
        assert!(asked.len() < 25, "{asked:?}");
        while !hole_probe.asks(256 << 10) {}
        hole_probe.learn(true);
        assert!(hole_probe.asks(256 << 10) && hole_probe.asks(256 << 10), "holes bring it back");
    }
}
