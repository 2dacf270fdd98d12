//! The speed of an encrypted device over one that stores nothing: bytes a second of CPU time, which
//! other programs of the machine change little.
//!
//! `cargo run --release -p corewise-drivers --features crypt --example crypt_speed`
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;
use std::sync::{Arc, mpsc};

use bytes::{Bytes, BytesMut};
use corewise_blockmq::{BlockDevice, Buffer, Payload, Queue, Request};
use corewise_drivers::{Crypt, CryptHeader, CryptOptions, Null, Secret};
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};
use rustix::time::{ClockId, clock_gettime};

const SIZE: u64 = 1 << 30;
/// Requests in flight.
const DEPTH: usize = 8;
/// Bytes of each measurement.
const TOTAL: usize = 2 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("speed").build(&pools)?;
    let below = Queue::builder(&machine, Arc::new(Null::new(SIZE))).build(&wq);
    let key: Vec<u8> = (0..64).collect();
    let options = CryptOptions::new(CryptHeader::None);
    let crypt = Crypt::open(below, &Secret::read(&key[..])?, options, &wq)?;
    let disk = Queue::builder(&machine, Arc::new(crypt)).build(&wq);
    for len in [4 << 10, 64 << 10, 1 << 20] {
        for writes in [true, false] {
            let cpu = measure(&disk, len, writes)?;
            let rate = TOTAL as f64 / cpu / f64::from(1 << 30);
            let what = if writes { "written" } else { "read" };
            println!("{:>4} KiB a request: {rate:.2} GiB {what} a second of CPU", len >> 10);
        }
    }
    drop(disk);
    pools.shutdown();
    Ok(())
}

/// Returns the CPU time, in seconds, of requests of `len` bytes.
fn measure(disk: &Queue, len: usize, writes: bool) -> Result<f64, Box<dyn Error>> {
    let (tx, rx) = mpsc::channel();
    let bytes = Bytes::from(vec![7; len]);
    let mut free: Vec<BytesMut> = (0..DEPTH).map(|_| BytesMut::with_capacity(len)).collect();
    let before = cpu_time();
    let requests = TOTAL / len;
    for n in 0..requests + DEPTH {
        if n >= DEPTH {
            if let Payload::One(Buffer::BytesMut(mut buffer)) = rx.recv()? {
                buffer.clear();
                free.push(buffer);
            }
        }
        if n < requests {
            let offset = (n * len) as u64 % SIZE;
            let rq = match writes {
                true => Request::write(offset, bytes.clone()),
                false => Request::read_into(offset, len, free.pop().unwrap_or_default()),
            };
            let tx = tx.clone();
            disk.submit(rq.on_complete(move |done| {
                // The receiver lives until all requests have ended.
                let _ = tx.send(done.payload);
            }));
        }
    }
    Ok(cpu_time() - before)
}

fn cpu_time() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
