//! Requests that cover blocks of the device in part.
//!
//! A change of a part of a block reads that block, changes it, and writes it: three steps, each
//! begun by the end of the one before. Meanwhile other changes of the block
//! [wait](crate::range_lock), whichever client they come from. Other requests are adapted: a read
//! fetches whole blocks, and a trim leaves out the blocks of which it covers only a part.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{Completed, Extent, ExtentKind, IoError, Op, Payload, Request, Whole};

use super::sink::Body;
use super::{InDevice, Session};
use crate::export::ExportShared;
use crate::load::Cost;
use crate::policy;
use crate::range_lock::Blocks;
use crate::turn::Work;
use crate::wire::Tag;

/// The entry of a change in the table. Dropping it begins the changes that waited for it.
struct ListedChange {
    shared: Arc<ExportShared>,
    id: u64,
}

impl Drop for ListedChange {
    fn drop(&mut self) {
        for (id, rq) in self.shared.locks.leave(self.id) {
            begin(ListedChange { shared: Arc::clone(&self.shared), id }, rq);
        }
    }
}

/// Submits a change, or leaves that to the end of a change that it has to wait for. Never blocks.
pub(super) fn submit_listed(shared: &Arc<ExportShared>, rq: Request) {
    let blocks = policy::around(rq.offset(), rq.len(), shared.block);
    let range = blocks.start / shared.block..=(blocks.end - 1) / shared.block;
    let exclusive = shared.is_unaligned(rq.offset(), rq.len());
    if let (id, Some(rq)) = shared.locks.enter(Blocks { range, exclusive }, rq) {
        begin(ListedChange { shared: Arc::clone(shared), id }, rq);
    }
}

fn begin(change: ListedChange, rq: Request) {
    let shared = Arc::clone(&change.shared);
    if shared.is_unaligned(rq.offset(), rq.len()) {
        return shared.device.submit(read(change, rq));
    }
    let (len, offset) = (rq.len(), rq.offset());
    let whole = Whole::with(rq, move |rq, result| {
        drop(change);
        rq.complete(result);
    });
    shared.device.submit(whole.part(0, len, offset));
}

/// Returns the first step of a change of a part of a block: the request that reads the block, and
/// whose end changes it.
fn read(change: ListedChange, rq: Request) -> Request {
    let block = change.shared.block;
    let at = rq.offset() / block * block;
    Request::read(at, block as usize).quiet().on_complete(move |done| {
        let mut bytes = match done.into_data() {
            Ok(bytes) => bytes,
            Err(error) => return end(change, rq, Err(error)),
        };
        let from = (rq.offset() - at) as usize;
        let part = &mut bytes[from..from + rq.len() as usize];
        match rq.op() {
            Op::Write => _ = rq.copy_to(part),
            _ => part.fill(0),
        }
        let mut write = Request::write(at, bytes).quiet();
        if rq.flags().fua {
            write = write.fua();
        }
        let shared = Arc::clone(&change.shared);
        shared.device.submit(write.on_complete(move |done| end(change, rq, done.result)));
    })
}

fn end(change: ListedChange, rq: Request, result: Result<(), IoError>) {
    drop(change);
    rq.complete(result);
}

/// Clamps the range of an error to the range of the client's request.
fn within(error: IoError, asked: &Range<u64>) -> IoError {
    let clamp = |at: u64| at.clamp(asked.start, asked.end);
    match error.range() {
        Some(range) => error.at(clamp(range.start)..clamp(range.end)),
        None => error,
    }
}

/// Returns the read of whole blocks for a read of parts of blocks.
pub(super) fn read_around(session: &Arc<Session>, tag: Tag, length: u32, cost: Cost) -> Request {
    let session = Arc::clone(session);
    let offset = tag.offset;
    let blocks = policy::around(offset, length.into(), session.shared.block);
    let rq = Request::read(blocks.start, (blocks.end - blocks.start) as usize).quiet();
    rq.on_complete(move |done| {
        session.left_whole(Work::Bytes, &done);
        let due = cost.due(Some(Op::Read), done.result.is_ok().then_some(length.into()));
        session.answer(tag, due, || {
            if let Err(error) = &done.result {
                session.tell_failure(&done, error);
            }
            let from = (offset - done.offset) as usize;
            match done.into_data() {
                Ok(bytes) => {
                    let mut message = session.form.read(tag, length, None);
                    message.extend_from_slice(&bytes[from..from + length as usize]);
                    Body::Message(message)
                }
                Err(error) => {
                    let asked = offset..offset + u64::from(length);
                    session.form.failed(tag, &within(error, &asked))
                }
            }
        });
    })
}

/// Returns the request for the extents of the blocks around a range.
pub(super) fn status_around(
    session: &Arc<Session>,
    tag: Tag,
    length: u64,
    most: u32,
    cost: Cost,
) -> Request {
    let session = Arc::clone(session);
    let blocks = policy::around(tag.offset, length, session.shared.block);
    // One extent may lie in front of the range.
    let rq = Request::extents_of(blocks.start, blocks.end - blocks.start, most + 1).quiet();
    rq.on_complete(move |mut done| {
        if done.result.is_err() {
            return session.completed(tag, cost, InDevice::without_change(Work::Question), done);
        }
        session.left_whole(Work::Question, &done);
        session.answer(tag, cost.due(Some(Op::Extents), Some(length)), || {
            let front = tag.offset - done.offset;
            let extents = match mem::take(&mut done.payload) {
                Payload::Extents(extents) => clip(extents.iter(), front, length),
                _ => clip([], front, length),
            };
            let few = &extents[..extents.len().min(most as usize)];
            session.form.status(tag, few.iter().copied())
        });
    })
}

/// Returns the parts of the extents in a range that begins `front` bytes after the first one: at
/// least one. Pure.
fn clip(extents: impl IntoIterator<Item = Extent>, front: u64, length: u64) -> Vec<Extent> {
    let end = front + length;
    let mut at = 0;
    let mut list: Vec<Extent> = Vec::new();
    for extent in extents {
        let (from, to) = (at.max(front), (at + extent.len).min(end));
        at += extent.len;
        if from < to {
            list.push(Extent { len: to - from, kind: extent.kind });
        }
    }
    if list.is_empty() {
        list.push(Extent { len: length, kind: ExtentKind::Data });
    }
    list
}

impl Session {
    /// Returns the place of a request that went to the device in one piece and has left it.
    pub(super) fn left_whole(&self, work: Work, done: &Completed) {
        if !self.goes_in_parts(work, done.op, done.offset, done.len) {
            self.left(work, done.len);
        }
    }

    /// Returns true if such a request goes to the device in several parts.
    pub(super) fn goes_in_parts(&self, work: Work, op: Op, offset: u64, len: u64) -> bool {
        len > work.piece() || op.is_change() && self.shared.is_unaligned(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_told_within_the_range_that_was_asked_for() {
        let (data, hole) = (ExtentKind::Data, ExtentKind::Hole);
        let list = [(512, data), (1024, hole), (512, data)].map(|(len, kind)| Extent { len, kind });
        let clipped = |front, length| -> Vec<_> {
            clip(list, front, length).iter().map(|extent| (extent.len, extent.kind)).collect()
        };
        assert_eq!(clipped(0, 2048), [(512, data), (1024, hole), (512, data)]);
        assert_eq!(clipped(511, 2), [(1, data), (1, hole)]);
        assert_eq!(clipped(600, 100), [(100, hole)]);
        assert_eq!(clipped(512, 1537), [(1024, hole), (512, data)]);
        assert_eq!(clip([], 3, 5).len(), 1, "an answer has one at least");
    }
}
