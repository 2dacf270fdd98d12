//! Requests over several buffers and in parts: each byte arrives once, where it belongs.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::mirrors::unrecorded;
use crate::common::{Held, Rig, Rng, submit, watched};
use bytes::{Bytes, BytesMut};
use corewise_blockmq::{
    AlignedBuf, BlockDevice, BlockDeviceExt, Buffer, IoError, IoErrorKind, Payload, Request, Whole,
};
use corewise_drivers::{FileDriver, FileOptions, IoPath, Memory, Stripe};

const SIZE: u64 = 256 << 10;

/// Cuts `len` bytes into pieces of any length.
fn cut(rng: &mut Rng, len: usize) -> Vec<usize> {
    let mut left = len;
    let mut pieces = Vec::new();
    while left != 0 {
        let n = match rng.below(3) {
            0 => 1 + rng.below(9),
            1 => rng.below(1000),
            _ => 512 * (1 + rng.below(20)),
        };
        let n = left.min(n as usize);
        pieces.push(n);
        left -= n;
    }
    pieces
}

fn empty(rng: &mut Rng, len: usize) -> Buffer {
    match rng.below(3) {
        0 => BytesMut::new().into(),
        1 => BytesMut::with_capacity(len + 10).into(),
        _ => AlignedBuf::new(len, 64).into(),
    }
}

fn holding(rng: &mut Rng, data: &[u8]) -> Buffer {
    match rng.below(3) {
        0 => Bytes::copy_from_slice(data).into(),
        1 => BytesMut::from(data).into(),
        _ => {
            let mut buffer = AlignedBuf::new(data.len(), 512);
            buffer.extend_from_slice(data);
            buffer.into()
        }
    }
}

fn scatters_and_gathers(device: &dyn BlockDevice, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model = vec![0; SIZE as usize];
    device.write_zeroes(0, SIZE).unwrap();
    for _ in 0..200 {
        let first = rng.below(SIZE / 512);
        let blocks = rng.below(SIZE / 512 - first + 1).min(80);
        let range = first as usize * 512..(first + blocks) as usize * 512;
        let pieces = cut(&mut rng, range.len());
        if rng.below(2) == 0 {
            for byte in &mut model[range.clone()] {
                *byte = rng.next() as u8;
            }
            let mut rest = &model[range];
            let buffers = pieces.iter().map(|&n| {
                let (now, later) = rest.split_at(n);
                rest = later;
                holding(&mut rng, now)
            });
            let buffers = buffers.collect();
            device.execute(Request::write_vectored(first * 512, buffers)).result.unwrap();
        } else {
            let buffers: Vec<_> = pieces.iter().map(|&n| (empty(&mut rng, n), n)).collect();
            let done = device.execute(Request::read_vectored(first * 512, buffers));
            let lens: Vec<_> = done.payload.buffers().iter().map(Buffer::len).collect();
            assert_eq!(lens, pieces, "each buffer got its bytes, and no more");
            assert!(done.into_data().unwrap() == model[range]);
        }
    }
    assert!(device.read_at(0, SIZE as usize).unwrap() == model);
}

#[test]
fn each_byte_of_a_vectored_request_arrives_once_in_its_place() {
    let rig = Rig::live();
    let memory = || -> Arc<dyn BlockDevice> { rig.queue(Memory::new(SIZE).unwrap()) };
    scatters_and_gathers(&*memory(), 1);
    scatters_and_gathers(&*rig.queue(unrecorded(&rig, vec![memory(), memory()])), 2);
    let third = || -> Arc<dyn BlockDevice> { rig.queue(Memory::new(SIZE / 2).unwrap()) };
    let stripe = Stripe::new(vec![third(), third()], 1536).unwrap();
    // A stripe over stripes: parts of parts.
    let stripe: Arc<dyn BlockDevice> = rig.queue(stripe);
    scatters_and_gathers(&*rig.queue(Stripe::new(vec![stripe, memory()], 4096).unwrap()), 3);
    let dir = tempfile::tempdir().unwrap();
    for (io, seed) in [(IoPath::Auto, 4), (IoPath::Threads, 5)] {
        let options = FileOptions::new(dir.path().join(format!("{io:?}"))).size(SIZE).io(io);
        scatters_and_gathers(&*rig.queue(FileDriver::open(options, &rig.wq).unwrap()), seed);
    }
}

#[test]
fn the_callers_own_buffers_come_back_in_place() {
    let rig = Rig::live();
    let queue = rig.queue(Memory::new(SIZE).unwrap());
    queue.write_at(0, vec![7; 4096]).unwrap();
    let mut head = AlignedBuf::new(4096, 4096);
    head.extend_from_slice(&[1; 512]);
    let at = head.as_ptr();
    let done = queue.execute(Request::read_into(512, 1024, head));
    let Payload::One(Buffer::Aligned(back)) = done.payload else { panic!("{:?}", done.payload) };
    assert_eq!((back.as_ptr(), back.len()), (at, 1536));
    assert!(back[..512].iter().all(|&b| b == 1) && back[512..].iter().all(|&b| b == 7));
}

#[test]
fn a_read_into_a_buffer_without_room_is_invalid() {
    let rig = Rig::live();
    let queue = rig.queue(Memory::new(SIZE).unwrap());
    for buffer in [Buffer::from(AlignedBuf::new(511, 8)), Bytes::new().into()] {
        let done = queue.execute(Request::read_into(0, 512, buffer));
        assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::InvalidInput);
    }
}

#[test]
fn a_read_of_more_bytes_than_can_be_counted_is_refused_and_gets_no_memory() {
    let rig = Rig::live();
    let queue = rig.queue(Memory::new(SIZE).unwrap());
    let buffers = || [usize::MAX, 513].map(|len| (Buffer::from(BytesMut::new()), len));
    let done = queue.execute(Request::read_vectored(0, buffers()));
    assert_eq!(done.len, u64::MAX);
    assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::InvalidInput);
    // The same if no queue has looked at it.
    let (mut rq, done) = watched(Request::read_vectored(0, buffers()));
    assert_eq!(rq.put(&[1]), 0);
    Whole::new(rq).part(0, 512, 0).complete(Ok(()));
    assert_eq!(done.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::InvalidInput);
}

#[test]
fn a_whole_completes_with_its_last_part_and_tells_the_first_error_in_the_devices_terms() {
    let rig = Rig::live();
    let held = Held::default();
    let queue = rig.queue(held.clone());
    let (rq, done) = watched(Request::discard(8192, 4096));
    let whole = Whole::new(rq);
    for n in 0..4 {
        queue.submit(whole.part(n * 1024, 1024, 512 + n * 1024));
    }
    drop(whole);
    let fail = |n: usize, error| held.requests.lock().remove(n).unwrap().complete(Err(error));
    fail(3, IoError::new(IoErrorKind::Io(5)));
    // Of the part at 1536 (1024 of the whole), the second half.
    fail(1, IoError::new(IoErrorKind::NoSpace).at(2048..2560));
    held.finish_one(Ok(()));
    assert!(done.try_recv().is_err(), "a part is still in flight");
    held.finish_one(Ok(()));
    let error = done.recv().unwrap().result.unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::NoSpace);
    assert_eq!(error.range(), Some(8192 + 1536..8192 + 2048));
    queue.drain();
}

#[test]
fn an_error_without_a_range_means_the_whole_request() {
    let rig = Rig::live();
    let held = Held::default();
    let queue = rig.queue(held.clone());
    let done = submit(&*queue, Request::discard(512, 1024));
    held.finish_one(Err(IoError::new(IoErrorKind::Io(5))));
    assert_eq!(done.recv().unwrap().result.unwrap_err().range(), Some(512..1536));
    queue.drain();
}

#[test]
fn a_read_with_a_part_that_was_never_requested_fails_and_gives_out_no_unread_bytes() {
    let rig = Rig::live();
    let queue = rig.queue(Memory::new(SIZE).unwrap());
    let (rq, done) = watched(Request::read(0, 1024));
    let whole = Whole::new(rq);
    queue.submit(whole.part(0, 512, 0));
    drop(whole);
    let done = done.recv().unwrap();
    assert_eq!(done.result.as_ref().unwrap_err().kind(), IoErrorKind::Io(5));
    assert!(done.payload.buffers()[0].is_empty());
}

#[test]
#[should_panic(expected = "ascending")]
fn no_two_parts_of_a_read_have_the_same_memory() {
    let whole = Whole::new(Request::read(0, 1024));
    let _first = whole.part(0, 513, 0);
    let _second = whole.part(512, 512, 0);
}
