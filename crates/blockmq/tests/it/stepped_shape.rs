//! The shape of requests on their way to the driver: split, merged, flushed; step by step.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::{Held, Rig, block, submit};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    BlockDevice, Completed, Deadline, Flags, Geometry, IoError, IoErrorKind, IoScheduler, Op,
    Queue, Request,
};

const G: Geometry = Geometry::new(1 << 30);

struct Stepped {
    _rig: Rig,
    held: Held,
    queue: Arc<Queue>,
}

impl Stepped {
    fn new(held: Held) -> Self {
        let rig = Rig::synthetic("core:1 pu:1");
        let queue = Queue::builder(&rig.machine, Arc::new(held.clone())).build_by_hand();
        Self { _rig: rig, held, queue }
    }

    fn of(geometry: Geometry) -> Self {
        Self::new(Held { geometry: Some(geometry), ..Held::default() })
    }

    fn merging() -> Self {
        Self::new(Held { merges: true, ..Held::default() })
    }

    fn submit(&self, rq: Request) -> mpsc::Receiver<Completed> {
        submit(&*self.queue, rq)
    }

    /// Steps until no run is pending any more.
    fn settle(&self) {
        while self.queue.step(0).is_some() {}
    }

    /// Returns the driver's requests: operation, offset and length in blocks.
    fn seen(&self) -> Vec<(Op, u64, u64)> {
        self.held
            .requests
            .lock()
            .iter()
            .map(|r| (r.op(), r.offset() / 512, r.len() / 512))
            .collect()
    }

    fn finish_one(&self, result: Result<(), IoError>) {
        self.held.finish_one(result);
        self.settle();
    }
}

fn ok(done: &mpsc::Receiver<Completed>) -> bool {
    done.try_recv().is_ok_and(|done| done.result.is_ok())
}

#[test]
fn stepped_a_request_over_the_limits_goes_to_the_driver_in_parts_and_completes_once() {
    let s = Stepped::of(Geometry { max_transfer: 4096, ..G });
    let done = s.submit(Request::write(512, vec![7; 9 * 1024]));
    s.settle();
    assert_eq!(s.seen(), [(Op::Write, 1, 8), (Op::Write, 9, 8), (Op::Write, 17, 2)]);
    s.finish_one(Ok(()));
    s.finish_one(Ok(()));
    assert!(done.try_recv().is_err());
    s.finish_one(Ok(()));
    assert!(ok(&done));
    assert_eq!(s.queue.inside(), 0);
}

#[test]
fn stepped_a_discard_of_millions_of_parts_has_few_under_way() {
    let s = Stepped::of(Geometry { max_discard: 512, ..G });
    let done = s.submit(Request::discard(0, 100 * 512));
    s.settle();
    assert_eq!(s.held.held(), 32);
    for n in 1..=100 {
        assert!(done.try_recv().is_err());
        s.finish_one(Ok(()));
        assert_eq!(s.held.held(), 32.min(100 - n));
    }
    assert!(ok(&done));
    assert!(s.held.order().into_iter().eq(0..100));
}

#[test]
fn stepped_a_freeze_waits_for_every_part_though_only_the_whole_is_counted() {
    let s = Stepped::of(Geometry { max_discard: 512, ..G });
    let done = s.submit(Request::discard(0, 40 * 512));
    s.settle();
    assert_eq!(s.queue.inside(), 1);
    let frozen = s.queue.start_freeze();
    let outside = s.submit(block(99));
    while s.held.held() != 0 {
        assert!(s.queue.inside() == 1 && done.try_recv().is_err());
        s.finish_one(Ok(()));
    }
    assert!(ok(&done), "parts that were to be sent yet got in though the queue is frozen");
    assert_eq!(s.queue.inside(), 0);
    assert!(outside.try_recv().is_err());
    drop(frozen);
    s.settle();
    s.finish_one(Ok(()));
    assert!(ok(&outside));
}

#[test]
fn stepped_of_several_failed_parts_the_first_is_told_with_its_range() {
    let s = Stepped::of(Geometry { max_transfer: 1024, ..G });
    let done = s.submit(Request::write(4096, vec![7; 4096]));
    s.settle();
    let fail = |n: usize, error| s.held.requests.lock().remove(n).unwrap().complete(Err(error));
    fail(3, IoError::new(IoErrorKind::NoSpace));
    fail(1, IoError::new(IoErrorKind::Io(5)).at(5632..6144));
    s.held.finish_all();
    s.settle();
    let error = done.try_recv().unwrap().result.unwrap_err();
    assert_eq!((error.kind(), error.range()), (IoErrorKind::Io(5), Some(5632..6144)));
}

#[test]
fn stepped_a_block_in_too_many_pieces_of_memory_is_an_error_behind_what_could_be_done() {
    let s = Stepped::of(Geometry { max_segments: 2, ..G });
    let pieces = [512, 100, 100, 312].map(|n| vec![7; n].into());
    let done = s.submit(Request::write_vectored(0, pieces.into()));
    s.settle();
    assert_eq!(s.seen(), [(Op::Write, 0, 1)]);
    s.finish_one(Ok(()));
    let error = done.try_recv().unwrap().result.unwrap_err();
    assert_eq!((error.kind(), error.range()), (IoErrorKind::InvalidInput, Some(512..1024)));
}

#[test]
fn stepped_a_queue_that_is_dropped_ends_a_request_of_which_parts_are_in_the_driver() {
    let s = Stepped::of(Geometry { max_discard: 512, ..G });
    let done = s.submit(Request::discard(0, 100 * 512));
    s.settle();
    drop(s.queue);
    s.held.finish_all();
    let error = done.try_recv().unwrap().result.unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::Gone);
    assert_eq!(error.range(), Some(32 * 512..100 * 512));
}

#[test]
fn stepped_requests_that_touch_become_one_and_each_is_told_its_own_end() {
    let s = Stepped::merging();
    let done: Vec<_> = [5, 6, 4, 9, 7].into_iter().map(|n| s.submit(block(n))).collect();
    s.settle();
    assert_eq!(s.seen(), [(Op::Discard, 4, 4), (Op::Discard, 9, 1)]);
    s.finish_one(Ok(()));
    assert!([0, 1, 2, 4].iter().all(|&n| ok(&done[n])) && done[3].try_recv().is_err());
    s.finish_one(Ok(()));
    assert!(ok(&done[3]));
    assert_eq!(s.queue.inside(), 0);
}

#[test]
fn stepped_behind_the_deadline_scheduler_requests_merge_at_both_ends_and_over_a_gap_that_closes() {
    let rig = Rig::synthetic("core:1 pu:1");
    let held = Held { merges: true, ..Held::default() };
    let queue = Queue::builder(&rig.machine, Arc::new(held.clone()))
        .scheduler(IoScheduler::Deadline(Deadline::default()))
        .build_by_hand();
    let s = Stepped { _rig: rig, held, queue };
    let done: Vec<_> = [5, 9, 6, 8, 30, 7].into_iter().map(|n| s.submit(block(n))).collect();
    s.settle();
    assert_eq!(s.seen(), [(Op::Discard, 5, 5), (Op::Discard, 30, 1)]);
    s.finish_one(Err(IoError::new(IoErrorKind::Io(5))));
    assert_eq!(s.held.held(), 6, "each of the five alone, and the other one");
    while s.held.held() != 0 {
        s.finish_one(Ok(()));
    }
    assert!(done.iter().all(ok));
}

#[test]
fn stepped_a_merged_read_fills_the_buffer_of_each() {
    let s = Stepped::merging();
    // A head in front stays there; a request that comes later and lies in front is the first of the
    // device.
    let head = bytes::BytesMut::from(&b"head"[..]);
    let second = s.submit(Request::read_into(1024, 512, head));
    let third = s.submit(Request::read(1536, 1024));
    let first = s.submit(Request::read(512, 512));
    s.settle();
    assert_eq!(s.seen(), [(Op::Read, 1, 4)]);
    let mut rq = s.held.requests.lock().pop_front().unwrap();
    let bytes: Vec<u8> = (0..2048).map(|n| (n / 100) as u8).collect();
    assert_eq!(rq.segments().count(), 3);
    assert_eq!(rq.put(&bytes[..700]) + rq.put(&bytes[700..]), 2048);
    rq.complete(Ok(()));
    let data = |done: mpsc::Receiver<Completed>| done.try_recv().unwrap().into_data().unwrap();
    assert_eq!(data(first), bytes[..512]);
    assert_eq!(data(second), [b"head", &bytes[512..1024]].concat());
    assert_eq!(data(third), bytes[1024..]);
}

#[test]
fn stepped_a_merged_write_carries_the_bytes_of_all_in_their_order() {
    let s = Stepped::merging();
    for n in [2, 3, 1] {
        let _done = s.submit(Request::write(n * 512, vec![n as u8; 512]));
    }
    s.settle();
    let mut bytes = vec![0; 2000];
    assert_eq!(s.held.requests.lock()[0].copy_to(&mut bytes), 1536);
    assert!(bytes[..1536].chunks(512).map(|c| c[0]).eq([1, 2, 3]));
    s.held.finish_all();
}

#[test]
fn stepped_where_a_merged_request_fails_each_is_tried_alone_and_only_the_guilty_fail() {
    let s = Stepped::merging();
    let done: Vec<_> = (0..3).map(|n| s.submit(Request::write(n * 512, vec![1; 512]))).collect();
    s.settle();
    assert_eq!(s.seen(), [(Op::Write, 0, 3)]);
    s.finish_one(Err(IoError::new(IoErrorKind::NoSpace)));
    assert_eq!(s.seen(), [(Op::Write, 0, 1), (Op::Write, 1, 1), (Op::Write, 2, 1)]);
    s.finish_one(Ok(()));
    s.finish_one(Err(IoError::new(IoErrorKind::NoSpace)));
    s.finish_one(Ok(()));
    let error = done[1].try_recv().unwrap().result.unwrap_err();
    assert_eq!(error.range(), Some(512..1024));
    assert!(ok(&done[0]) && ok(&done[2]));
    assert_eq!(s.queue.inside(), 0);
}

#[test]
fn stepped_neither_a_durable_write_nor_a_flush_is_merged() {
    let s = Stepped::merging();
    let _plain = s.submit(Request::write(0, vec![1; 512]));
    let _flush = s.submit(Request::flush());
    let _fua = s.submit(Request::write(512, vec![1; 512]).fua());
    let _plain_too = s.submit(Request::write(1024, vec![1; 512]));
    s.settle();
    let seen = [(Op::Write, 0, 1), (Op::Flush, 0, 0), (Op::Write, 1, 1), (Op::Write, 2, 1)];
    assert_eq!(s.seen(), seen);
    s.held.finish_all();
}

#[test]
fn stepped_merged_requests_of_a_dropped_queue_are_all_told() {
    let s = Stepped::merging();
    // Tags run out, so that a request waits.
    s.held.instead(corewise_blockmq::Dispatch::Busy);
    let done: Vec<_> = (0..3).map(|n| s.submit(block(n))).collect();
    s.queue.step(0);
    drop(s.queue);
    for done in done {
        assert_eq!(done.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    }
}

#[test]
fn stepped_one_flush_serves_all_requests_for_a_flush_made_during_another() {
    let s = Stepped::of(G);
    let first = s.submit(Request::flush());
    s.settle();
    let others: Vec<_> = (0..5).map(|_| s.submit(Request::flush())).collect();
    s.settle();
    assert_eq!(s.seen(), [(Op::Flush, 0, 0)]);
    s.finish_one(Ok(()));
    assert!(ok(&first));
    assert!(others.iter().all(|done| done.try_recv().is_err()), "it began before they asked");
    assert_eq!(s.seen(), [(Op::Flush, 0, 0)]);
    s.finish_one(Err(IoError::new(IoErrorKind::Io(5))));
    for done in others {
        assert_eq!(done.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Io(5));
    }
    assert_eq!((s.held.held(), s.queue.inside()), (0, 0));
}

#[test]
fn stepped_a_waiter_for_a_flush_is_told_when_the_queue_is_dropped() {
    let s = Stepped::of(Geometry { can_fua: false, ..G });
    let first = s.submit(Request::flush());
    let write = s.submit(Request::write(0, vec![1; 512]).fua());
    s.settle();
    let second = s.submit(Request::flush());
    assert_eq!(s.held.held(), 2);
    drop(s.queue);
    // The driver finishes its requests: the write, for which no flush will come, and then the first
    // flush.
    let write_in_driver = s.held.requests.lock().remove(1).unwrap();
    write_in_driver.complete(Ok(()));
    s.held.finish_one(Ok(()));
    assert!(ok(&first));
    for done in [write, second] {
        assert_eq!(done.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    }
}

#[test]
fn stepped_a_durable_change_is_made_and_then_flushed_where_the_device_cannot() {
    let s = Stepped::of(Geometry { can_fua: false, max_transfer: 1024, ..G });
    assert!(s.queue.geometry().can_fua);
    let write = s.submit(Request::write(0, vec![1; 2048]).fua());
    s.settle();
    assert_eq!(s.seen(), [(Op::Write, 0, 2), (Op::Write, 2, 2)]);
    assert!(s.held.requests.lock().iter().all(|rq| rq.flags() == Flags::default()));
    s.finish_one(Ok(()));
    assert_eq!(s.held.held(), 1, "no flush before all parts are written");
    let zeroes = s.submit(Request::write_zeroes(8192, 512).fua());
    s.finish_one(Ok(()));
    assert_eq!(s.seen(), [(Op::WriteZeroes, 16, 1), (Op::Flush, 0, 0)]);
    s.finish_one(Ok(()));
    assert_eq!(s.held.held(), 1, "the flush under way began before the zeroes were written");
    s.finish_one(Ok(()));
    assert!(ok(&write) && zeroes.try_recv().is_err());
    s.finish_one(Ok(()));
    assert!(ok(&zeroes));
    assert_eq!(s.queue.inside(), 0);
}

#[test]
fn stepped_a_durable_write_that_failed_is_not_flushed() {
    let s = Stepped::of(Geometry { can_fua: false, ..G });
    let write = s.submit(Request::write(0, vec![1; 512]).fua());
    s.settle();
    s.finish_one(Err(IoError::new(IoErrorKind::NoSpace)));
    assert_eq!(write.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::NoSpace);
    assert_eq!((s.held.held(), s.queue.inside()), (0, 0));
}

#[test]
fn stepped_a_durable_change_goes_as_it_is_where_the_device_can() {
    let s = Stepped::of(G);
    let _write = s.submit(Request::write(0, vec![1; 512]).fua());
    s.settle();
    assert!(s.held.requests.lock()[0].flags().fua);
    s.held.finish_all();
}
