//! Reads that are done in parts: for any fate of the parts, no caller gets a byte that was not
//! read.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::{Held, Rng, watched};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    AlignedBuf, Completed, Dispatch, IoError, IoErrorKind, Queue, Request, Started, Whole,
};
use corewise_sync::Mutex;
use corewise_topology::{CpuId, Machine};

const BLOCK: usize = 512;

/// Returns the bytes of a device from `offset` on.
fn content(offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(|at| (at % 251) as u8).collect()
}

/// Makes a buffer whose memory holds bytes that no device has.
fn poisoned(len: usize) -> AlignedBuf {
    let mut buffer = AlignedBuf::new(len, BLOCK);
    buffer.extend_from_slice(&vec![0xEE; len]);
    buffer.clear();
    buffer
}

/// Fills a part of a read: its device is the whole's own.
fn fill(mut part: Request) {
    let bytes = content(part.offset(), part.len());
    part.put(&bytes);
    part.complete(Ok(()));
}

fn fail(part: Request) {
    part.complete(Err(IoError::new(IoErrorKind::NotSupported)));
}

/// Reads `n` blocks from the first on, each by a request of its own, which `driver` gets as one.
fn merged(n: u64, driver: impl Fn(Started) + Send + Sync + 'static) -> Vec<Completed> {
    let held = Held { merges: true, ..Held::default() };
    held.instead(move |rq| {
        driver(rq);
        Dispatch::Started
    });
    let machine = Machine::synthetic("core:1 pu:1").unwrap();
    let queue = Queue::builder(&machine, Arc::new(held)).build_by_hand();
    let (tx, rx) = mpsc::channel();
    let quiesced = queue.quiesce_nowait();
    for n in 0..n {
        let tx = tx.clone();
        let rq = Request::read_into(n * BLOCK as u64, BLOCK, poisoned(BLOCK));
        queue.submit_on(CpuId::new(0), rq.on_complete(move |done| tx.send(done).unwrap()));
    }
    drop(quiesced);
    while queue.step(0).is_some() {}
    let mut all: Vec<_> = (0..n).map(|_| rx.try_recv().unwrap()).collect();
    all.sort_by_key(|done| done.offset);
    all
}

/// Checks that a successful request has the device's bytes; returns how many succeeded.
fn good(all: Vec<Completed>) -> usize {
    let mut good = 0;
    for done in all {
        let (offset, len) = (done.offset, done.len);
        match done.into_data() {
            Ok(data) => {
                assert!(data == content(offset, len), "bytes that nobody read, at {offset}");
                good += 1;
            }
            Err(error) => assert_eq!(error.kind(), IoErrorKind::Io(5)),
        }
    }
    good
}

#[test]
fn the_last_word_may_fill_what_a_part_did_not() {
    let all = merged(4, |rq| {
        let whole = Whole::with(rq, |mut held, result| {
            assert_eq!(result.unwrap_err().kind(), IoErrorKind::NotSupported);
            let (filled, len) = (held.filled(), held.len());
            assert_eq!(held.put(&content(filled, len - filled)) as u64, len - filled);
            held.complete(Ok(()));
        });
        fill(whole.part(0, 512, 0));
        fail(whole.part(512, 512, 512));
        fill(whole.part(1024, 1024, 1024));
    });
    assert_eq!(good(all), 4);
}

#[test]
fn a_part_that_was_refused_claims_nothing() {
    let (told, filled) = mpsc::channel();
    let whole = Whole::with(Request::read(0, 2048), move |held, _| {
        told.send(held.filled()).unwrap();
    });
    fill(whole.part(0, 512, 0));
    let refused =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| whole.part(256, 1024, 0)));
    assert!(refused.is_err(), "it begins before the end of the one before");
    fill(whole.part(1536, 512, 1536));
    drop(whole);
    assert_eq!(filled.recv().unwrap(), 512);
}

#[test]
fn the_bytes_of_a_write_are_there_when_its_parts_are_gone() {
    let (told, bytes) = mpsc::channel();
    let whole = Whole::with(Request::write(0, vec![7; 1024]), move |held, _| {
        told.send(held.chunks().map(<[u8]>::len).sum::<usize>()).unwrap();
    });
    whole.part(0, 1024, 0).complete(Ok(()));
    drop(whole);
    assert_eq!(bytes.recv().unwrap(), 1024);
}

#[test]
fn a_part_that_fails_fails_a_whole_that_reaches_beyond_all_offsets() {
    for with_range in [false, true] {
        let (rq, done) = watched(Request::discard(u64::MAX - 511, 1024));
        let whole = Whole::new(rq);
        let (first, last) = (whole.part(0, 512, 0), whole.part(512, 512, u64::MAX - 511));
        drop(whole);
        first.complete(Ok(()));
        let error = IoError::new(IoErrorKind::Io(5));
        let range = u64::MAX - 255..u64::MAX;
        last.complete(Err(if with_range { error.at(range) } else { error }));
        assert_eq!(done.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Io(5));
    }
}

/// Ends any parts of a merged read, in any order and in any way, against a plain model: one flag
/// for each byte.
#[test]
fn no_parts_in_any_order_make_bytes_that_nobody_read() {
    let rng = Arc::new(Mutex::new(Rng::new(17)));
    let (mut told, mut asked) = (0, 0);
    for _ in 0..if cfg!(miri) { 30 } else { 2000 } {
        let blocks = 1 + rng.lock().below(5);
        let theirs = Arc::clone(&rng);
        let all = merged(blocks, move |mut rq| {
            let mut rng = theirs.lock();
            let len = rq.len();
            let mut filled = vec![false; len as usize];
            let before = if rng.below(2) == 0 { 0 } else { rng.below(len) };
            rq.put(&content(0, before));
            filled[..before as usize].fill(true);
            let model = Arc::new(Mutex::new(filled));
            let seen = Arc::clone(&model);
            let whole = Whole::with(rq, move |held, _| {
                let most = seen.lock().iter().take_while(|&&filled| filled).count();
                assert_eq!(held.filled(), most as u64);
                held.complete(Ok(()));
            });
            let (mut at, mut parts) = (if rng.below(2) == 0 { before } else { 0 }, Vec::new());
            while at < len {
                let n = [1, 512, len][rng.below(3) as usize].min(len - at);
                match rng.below(12) {
                    0 => {} // no device is asked for these
                    1 => parts.push(whole.part(at, 0, at)),
                    _ => parts.push(whole.part(at, n, at)),
                }
                at += n;
            }
            drop(whole);
            while !parts.is_empty() {
                let part = parts.swap_remove(rng.below(parts.len() as u64) as usize);
                let range = part.offset() as usize..(part.offset() + part.len()) as usize;
                let ok = rng.below(8) != 0 || part.is_empty();
                model.lock()[range].fill(ok);
                if ok { fill(part) } else { fail(part) }
            }
        });
        asked += all.len();
        told += good(all);
    }
    assert!(told > asked / 10 && told < asked - asked / 10, "{told} of {asked} succeeded");
}

#[test]
fn a_filter_changes_the_bytes_of_a_read_where_they_are_and_none_behind_a_hole() {
    for hole in [None, Some(2)] {
        let all = merged(4, move |rq| {
            let whole = Whole::with(rq, |mut held, _| {
                held.filled_mut().flatten().for_each(|byte| *byte ^= 0x55);
                held.complete(Ok(()));
            });
            for n in 0..4 {
                let mut part = whole.part(n * 512, 512, n * 512);
                if hole == Some(n) {
                    fail(part);
                    continue;
                }
                part.put(&content(n * 512, 512));
                // Each byte that the device below has is changed twice.
                part.filled_mut().flatten().for_each(|byte| *byte ^= 0x55);
                part.complete(Ok(()));
            }
        });
        assert_eq!(good(all), if hole.is_some() { 2 } else { 4 });
    }
}

#[test]
fn filled_bytes_are_changed_in_the_pieces_of_the_buffers() {
    let buffers = [100, 300, 112].map(|len| (poisoned(len).into(), len));
    let (mut rq, done) = watched(Request::read_vectored(0, buffers));
    assert_eq!(rq.filled_mut().count(), 0, "nothing is filled yet");
    rq.put(&content(0, 250));
    assert_eq!(rq.filled_mut().map(|piece| piece.len()).collect::<Vec<_>>(), [100, 150]);
    rq.put(&content(250, 262));
    assert!(rq.filled_mut().flatten().map(|byte| *byte).eq(content(0, 512)));
    rq.complete(Ok(()));
    assert_eq!(done.recv().unwrap().into_data().unwrap(), content(0, 512)[..]);
    let mut write = Request::write(0, content(0, 512));
    assert_eq!(write.filled_mut().count(), 0, "a write's bytes are its caller's");
}
