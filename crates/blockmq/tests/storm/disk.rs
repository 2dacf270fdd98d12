//! The storm's disk. It has few tags and narrow limits, is busy and out of resources now and then,
//! and loses paths. It forgets requests until a timeout reminds it, and completes on threads of its
//! own. It has a bad block for each lane, and notices requests that no disk may get.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use corewise_blockmq::{
    Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Op, Started, TimedOut, TimerReturn,
};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::Rng;
use crate::tally::Tally;

pub const CPUS: u64 = 8;
pub const LANES: u64 = 48;
pub const BLOCK: usize = 512;
/// Number of blocks of each lane: more than the disk takes at once.
pub const BLOCKS: u64 = 8;
/// The block of each lane that can be neither read nor changed.
pub const BAD: u64 = 5;
/// Number of tags of each hardware queue, or of all.
pub const DEPTH: u32 = 3;
/// Number of blocks that one read or write may have.
const AT_ONCE: u64 = 3;
/// Number of blocks that one discard or write-zeroes may have.
const AT_ONCE_EMPTY: u64 = 2;
/// Number of pieces of memory that one read or write may have, and so the most buffers of a
/// request: each of its blocks may lie in all of them.
pub const PIECES: u32 = 3;
/// Distance, in blocks, of the boundaries that no read or write crosses.
const CHUNK: u64 = 4;

/// The fault of the disk, to show that the storm notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Loses one request.
    Lose,
    /// Does one write twice.
    Double,
}

/// The parameters of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// True if it forgets requests, of which a timeout reminds it.
    pub forgets: bool,
    /// True if its dispatch may block.
    pub may_block: bool,
    pub fault: Fault,
}

/// The content of a block: one number that fills it.
struct Block {
    /// A: the number that a read returns. Relaxed, as all here: a caller that retries knows the
    /// end.
    now: AtomicU64,
    /// A: the number at the last flush.
    durable: AtomicU64,
    /// A: the largest number that was ever written. Numbers grow, so a write with a smaller one
    /// comes twice.
    newest: AtomicU64,
}

struct Inner {
    blocks: Vec<Block>,
    /// The disk's requests by hardware queue and tag. An entry is emptied before its request ends.
    table: Vec<Mutex<Option<Started>>>,
    /// A: dispatches so far, from which random choices derive.
    calls: AtomicU64,
    /// A: true while the fault is still to be made.
    faultless: AtomicBool,
    tally: Arc<Tally>,
    build: Build,
}

/// The driver.
pub struct Disk {
    inner: Arc<Inner>,
    to: [Mutex<mpsc::Sender<(usize, u32)>>; 2],
    /// A: threads inside `queue_request`, by hardware queue: never more than one.
    inside: [AtomicU64; CPUS as usize],
}

/// The disk's content, which tests look at while the queue has the driver.
pub struct Platter(Arc<Inner>);

impl Platter {
    /// Returns how many requests the disk has, without those that it is just completing.
    pub fn had(&self) -> usize {
        self.0.table.iter().filter(|entry| entry.lock().is_some()).count()
    }

    /// Returns the content of a block after a crash.
    pub fn durable(&self, block: u64) -> u64 {
        self.0.blocks[block as usize].durable.load(Ordering::Relaxed)
    }
}

impl Disk {
    /// Creates a disk, its content, and its threads, which end when the driver is dropped.
    pub fn new(build: Build, tally: &Arc<Tally>) -> (Self, Platter, Vec<JoinHandle<()>>) {
        let zero = || AtomicU64::new(0);
        let block = || Block { now: zero(), durable: zero(), newest: zero() };
        let inner = Arc::new(Inner {
            blocks: (0..LANES * BLOCKS).map(|_| block()).collect(),
            table: (0..CPUS as u32 * DEPTH).map(|_| Mutex::new(None)).collect(),
            calls: zero(),
            faultless: AtomicBool::new(true),
            tally: Arc::clone(tally),
            build,
        });
        let mut threads = Vec::new();
        let to = std::array::from_fn(|_| {
            let (tx, rx) = mpsc::channel();
            let inner = Arc::clone(&inner);
            threads.push(std::thread::spawn(move || inner.complete_all(&rx)));
            Mutex::new(tx)
        });
        let inside = std::array::from_fn(|_| zero());
        (Self { inner: Arc::clone(&inner), to, inside }, Platter(inner), threads)
    }
}

impl Inner {
    fn entry(&self, hctx: usize, tag: u32) -> &Mutex<Option<Started>> {
        &self.table[hctx * DEPTH as usize + tag as usize]
    }

    /// Returns true once, when the disk is warm and has this fault.
    fn is_time_for(&self, fault: Fault) -> bool {
        self.build.fault == fault
            && self.calls.load(Ordering::Relaxed) > 5000
            && self.faultless.swap(false, Ordering::Relaxed)
    }

    fn put(&self, rq: Started) -> (usize, u32) {
        let at = (rq.hctx(), rq.tag());
        let before = self.entry(at.0, at.1).lock().replace(rq);
        if let Some(before) = before {
            self.tally.bad(format!("two requests have tag {at:?}; one is {before:?}"));
        }
        at
    }

    /// Runs one of the disk's threads. The request that it finds need not be the one it was sent
    /// for: a timeout may have taken that one, and another request have its tag.
    fn complete_all(&self, sent: &mpsc::Receiver<(usize, u32)>) {
        for (n, (hctx, tag)) in sent.iter().enumerate() {
            let Some(rq) = self.entry(hctx, tag).lock().take() else { continue };
            // Now and then a path to the device is lost.
            if n % 701 == 700 { rq.requeue() } else { self.serve(rq) }
        }
    }

    /// Serves a request.
    fn serve(&self, mut rq: Started) {
        let first = rq.offset() / BLOCK as u64;
        let n = rq.len() / BLOCK as u64;
        let most = match rq.op() {
            Op::Read | Op::Write => AT_ONCE,
            _ => AT_ONCE_EMPTY,
        };
        let crosses = rq.op().has_bytes() && first / CHUNK != (first + n - 1) / CHUNK;
        let pieces = rq.segments().count();
        if n > most || crosses || pieces > PIECES as usize || rq.flags().fua {
            self.tally.bad(format!("over the limits, in {pieces} pieces: {rq:?}"));
        }
        if (first..first + n).any(|block| block % BLOCKS == BAD) {
            return rq.complete(Err(IoError::new(IoErrorKind::Io(5))));
        }
        let blocks = &self.blocks[first as usize..(first + n) as usize];
        match rq.op() {
            Op::Write => {
                let bytes: Vec<u8> = rq.chunks().flatten().copied().collect();
                self.write(blocks, &bytes);
                if self.is_time_for(Fault::Double) {
                    self.write(blocks, &bytes);
                }
            }
            Op::Read => {
                for block in blocks {
                    rq.put(&block.now.load(Ordering::Relaxed).to_le_bytes().repeat(BLOCK / 8));
                }
            }
            Op::WriteZeroes => {
                blocks.iter().for_each(|block| block.now.store(0, Ordering::Relaxed))
            }
            Op::Flush => {
                for block in &self.blocks {
                    block.durable.store(block.now.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
            _ => {}
        }
        rq.complete(Ok(()));
    }

    fn write(&self, blocks: &[Block], bytes: &[u8]) {
        for (block, data) in blocks.iter().zip(bytes.chunks(BLOCK)) {
            let Some(number) = number_in(data) else {
                self.tally.bad("a block was written in pieces that don't go together".into());
                continue;
            };
            if block.newest.fetch_max(number, Ordering::Relaxed) >= number {
                self.tally.bad(format!("write {number} came twice, or late"));
            }
            block.now.store(number, Ordering::Relaxed);
        }
    }
}

/// Returns the number that a block is full of.
pub fn number_in(block: &[u8]) -> Option<u64> {
    let words = block.chunks_exact(8);
    let first = words.clone().next().filter(|_| words.remainder().is_empty())?;
    let first: [u8; 8] = first.try_into().ok()?;
    words.into_iter().all(|word| word == first).then(|| u64::from_le_bytes(first))
}

impl Driver for Disk {
    fn info(&self) -> Info {
        Info {
            hw_queues: CPUS as usize,
            depth: DEPTH,
            may_block: self.inner.build.may_block,
            ..Info::new(
                "shaky",
                Geometry {
                    max_transfer: AT_ONCE as u32 * BLOCK as u32,
                    max_segments: PIECES,
                    chunk: CHUNK as u32 * BLOCK as u32,
                    max_discard: AT_ONCE_EMPTY * BLOCK as u64,
                    max_write_zeroes: AT_ONCE_EMPTY * BLOCK as u64,
                    can_fua: false,
                    ..Geometry::new(LANES * BLOCKS * BLOCK as u64)
                },
            )
        }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        let inner = &self.inner;
        if self.inside[hctx].fetch_add(1, Ordering::SeqCst) != 0 {
            inner.tally.bad(format!("two runners at once in hardware queue {hctx}"));
        }
        let call = inner.calls.fetch_add(1, Ordering::Relaxed);
        let dispatched = match Rng::new(call).below(4000) {
            _ if inner.is_time_for(Fault::Lose) => {
                std::mem::forget(rq);
                Dispatch::Started
            }
            // The disk is out of resources, also where nothing is in flight.
            0..4 => Dispatch::Busy(rq),
            4..8 => Dispatch::NoResource(rq),
            8..12 => {
                rq.requeue();
                Dispatch::Started
            }
            12 if inner.build.forgets => {
                let _nobody_is_sent = inner.put(rq);
                Dispatch::Started
            }
            13..800 => {
                inner.serve(rq);
                Dispatch::Started
            }
            _ => {
                let at = inner.put(rq);
                assert!(self.to[call as usize % 2].lock().send(at).is_ok());
                Dispatch::Started
            }
        };
        self.inside[hctx].fetch_sub(1, Ordering::SeqCst);
        dispatched
    }

    fn timeout(&self, late: &TimedOut<'_>) -> TimerReturn {
        let inner = &self.inner;
        let call = inner.calls.fetch_add(1, Ordering::Relaxed);
        if call % 4 == 0 {
            return TimerReturn::ResetTimer;
        }
        let Some(rq) = inner.entry(late.hctx(), late.tag()).lock().take() else {
            // A thread of the disk has it, and completes it.
            return TimerReturn::Done;
        };
        if (rq.op(), rq.offset(), rq.len()) != (late.op(), late.offset(), late.len()) {
            inner.tally.bad(format!("{late} was another request: {rq:?}"));
        }
        // It completes, or goes back to its queue, while the timeout's handler holds it.
        if call % 3 == 0 {
            rq.requeue()
        } else {
            inner.serve(rq)
        }
        TimerReturn::Done
    }
}
