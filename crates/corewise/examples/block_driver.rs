//! A block driver of one's own, and a filter above it.
//!
//! `Disk` is the driver at the bottom: a thread that has the bytes, and takes requests. They
//! complete there, a moment later and in whatever order it likes. `Scramble` is a filter, a driver
//! above any block device, whose bytes it scrambles. It changes the bytes of a read where they are,
//! and gives a write a buffer of its own.
//!
//! `cargo run --release -p corewise --example block_driver`
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use corewise::blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, Geometry, Info, Op, Queue, Request, Started,
    Whole,
};
use corewise::prelude::*;

const BLOCK: usize = 512;

/// A disk whose thread keeps the blocks that were written.
struct Disk {
    size: u64,
    requests: Option<Sender<Started>>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    fn new(size: u64) -> std::io::Result<Disk> {
        let (requests, theirs) = channel();
        let thread = thread::Builder::new().name("disk".into()).spawn(move || serve(&theirs))?;
        Ok(Disk { size, requests: Some(requests), thread: Some(thread) })
    }
}

/// Runs the disk's own thread. It ends when the driver is dropped, and with it the queue that had
/// requests for it.
fn serve(requests: &Receiver<Started>) {
    let mut blocks: HashMap<u64, Box<[u8]>> = HashMap::new();
    for mut rq in requests {
        // The queue has checked the range, which is whole blocks.
        let numbers = rq.offset() / BLOCK as u64..(rq.offset() + rq.len()) / BLOCK as u64;
        match rq.op() {
            Op::Read => {
                for number in numbers {
                    rq.put(blocks.get(&number).map_or(&[0; BLOCK], |block| block));
                }
            }
            Op::Write => {
                let mut bytes = vec![0; rq.len() as usize];
                rq.copy_to(&mut bytes);
                blocks.extend(numbers.zip(bytes.chunks_exact(BLOCK).map(Box::from)));
            }
            Op::Discard | Op::WriteZeroes => blocks.retain(|number, _| !numbers.contains(number)),
            // A flush needs nothing, since no data survives the disk. Extents aren't reported, and
            // there is no cache to prefetch into.
            _ => {}
        }
        rq.complete(Ok(()));
    }
}

impl Driver for Disk {
    fn info(&self) -> Info {
        Info {
            // Number of requests that the thread has at once. The others wait in the queue, where
            // neighbours are merged and the scheduler orders them.
            depth: 32,
            ..Info::new("disk", Geometry { can_flush: false, ..Geometry::new(self.size) })
        }
    }

    /// Hands a request over without waiting. It is called inside an atomic section, by one thread
    /// at a time for each hardware queue.
    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if let Some(requests) = &self.requests {
            // If the thread has died, the request comes back as an error. When it is dropped, it
            // completes as gone.
            drop(requests.send(rq));
        }
        Dispatch::Started
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // A panic has reached the client of the request.
            drop(thread.join());
        }
    }
}

/// A filter that scrambles the bytes of another device. (A toy: it keeps nothing secret.)
struct Scramble {
    below: Arc<dyn BlockDevice>,
    key: Key,
}

#[derive(Clone, Copy)]
struct Key(u64);

impl Key {
    /// Scrambles or unscrambles bytes that lie at `offset`.
    fn turn(self, offset: u64, bytes: &mut [u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            *byte ^= (self.0.wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        }
    }
}

impl Driver for Scramble {
    /// Returns one hardware queue for each CPU, since the filter has no queue of its own to keep
    /// short.
    fn info(&self) -> Info {
        let over = Info::over("scramble", &*self.below);
        // Zeroes below aren't zeroes here, so clients have to write them.
        Info { geometry: Geometry { can_write_zeroes: false, ..over.geometry }, ..over }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        let (key, offset, len) = (self.key, rq.offset(), rq.len());
        match rq.op() {
            Op::Read => {
                // The device below fills the caller's own memory. Then each piece is unscrambled
                // there.
                let whole = Whole::with(rq, move |mut rq, result| {
                    let mut at = offset;
                    for bytes in rq.filled_mut() {
                        key.turn(at, bytes);
                        at += bytes.len() as u64;
                    }
                    rq.complete(result);
                });
                self.below.submit(whole.part(0, len, offset));
            }
            Op::Write => {
                // The caller's bytes must not change.
                let mut bytes = vec![0; len as usize];
                rq.copy_to(&mut bytes);
                key.turn(offset, &mut bytes);
                let write = Request::write(offset, bytes).with_flags(rq.flags());
                self.below.submit(write.on_complete(move |done| rq.complete(done.result)));
            }
            // All else goes down as it is, without bytes.
            _ => self.below.submit(Whole::new(rq).part(0, len, offset)),
        }
        Dispatch::Started
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("block").build(&pools)?;

    let disk = Queue::builder(&machine, Arc::new(Disk::new(64 << 20)?)).build(&queue);
    let filter = Scramble { below: Arc::clone(&disk) as _, key: Key(42) };
    // A thread that submits faster than the disk takes waits while this many of its requests are
    // inside: their bytes take memory.
    let volume =
        Queue::builder(&machine, Arc::new(filter)).name("volume").nr_requests(256).build(&queue);

    let text = b"What is read is what was written. ".repeat(256);
    let length = text.len() / BLOCK * BLOCK;
    volume.write_at(4096, text[..length].to_vec())?;
    assert_eq!(volume.read_at(4096, length)?, text[..length]);
    assert_ne!(disk.read_at(4096, length)?, text[..length]);
    println!("{length} bytes were read back, and lie scrambled below");

    // Many neighbours at once, so the disk gets few requests.
    for n in 0..1000 {
        let at = (1 << 20) + n * BLOCK as u64;
        volume.submit(Request::write(at, vec![n as u8; BLOCK]).on_complete(|done| {
            done.result.expect("the disk takes everything");
        }));
    }
    volume.drain();
    for n in [0, 1, 500, 999] {
        let block = volume.read_at((1 << 20) + n * BLOCK as u64, BLOCK)?;
        assert_eq!(block, [n as u8; BLOCK][..]);
    }
    let done: u64 = disk.stats().iter().map(|hctx| hctx.dispatched).sum();
    println!("the disk got {done} requests for 1005");

    drop(volume);
    drop(disk);
    pools.shutdown();
    Ok(())
}
