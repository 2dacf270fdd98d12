//! Queries of parts of the device's blocks: a read fetches whole blocks, and block status is that
//! of the whole ones, cut to the range.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{Extent, ExtentKind, IoError, Op, Payload, Request};
use corewise_export::InDevice;
use corewise_export::blocks::around;
use corewise_export::turn::Work;

use super::Session;
use super::sink::Body;
use crate::load::Cost;
use crate::wire::Tag;

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
    let blocks = around(offset, length.into(), session.shared().block());
    let rq = Request::read(blocks.start, (blocks.end - blocks.start) as usize).quiet();
    rq.on_complete(move |done| {
        session.client.left_whole(Work::Bytes, &done);
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
    let blocks = around(tag.offset, length, session.shared().block());
    // One extent may lie in front of the range.
    let rq = Request::extents_of(blocks.start, blocks.end - blocks.start, most + 1).quiet();
    rq.on_complete(move |mut done| {
        if done.result.is_err() {
            return session.completed(
                tag,
                cost,
                InDevice::without_change(Work::Question),
                false,
                done,
            );
        }
        session.client.left_whole(Work::Question, &done);
        session.answer(tag, cost.due(Some(Op::Extents), Some(length)), || {
            let front = tag.offset - done.offset;
            let extents = match mem::take(&mut done.payload) {
                Payload::Extents(extents) => clip(extents.iter(), front, length),
                _ => clip([], front, length),
            };
            let few = &extents[..extents.len().min(most as usize)];
            session.status(tag, length, most, few.iter().copied())
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
