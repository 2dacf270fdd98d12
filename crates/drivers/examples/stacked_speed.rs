//! The cost of a device over another one: CPU time of a read of 4 KiB through a partition, or of an
//! overlay's own blocks, as a multiple of the same read without. Other programs of the machine
//! change CPU time little.
//!
//! `cargo run --release -p corewise-drivers --example stacked_speed -- FOLDER [null|memory|file]`,
//! with a folder for files of some MiB, such as one on a tmpfs.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use bytes::BytesMut;
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Buffer, Driver, Payload, Queue, Request};
use corewise_drivers::{FileDriver, FileOptions, Memory, Null, Overlay, OverlayOptions, Partition};
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of each device.
const SIZE: u64 = 16 << 20;
/// Bytes of a request.
const LEN: usize = 4096;
/// Requests of each measurement.
const REQUESTS: usize = 1 << 16;
/// Measurements of each device, taken in turns.
const ROUNDS: usize = 15;

/// The place where the devices are made.
struct Bench {
    machine: Machine,
    wq: Workqueue,
    folder: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder =
        std::env::args().nth(1).ok_or("name a folder for files, such as one on a tmpfs")?;
    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("speed").build(&pools)?;
    let bench = Bench { machine, wq, folder: Path::new(&folder).to_owned() };
    let only = std::env::args().nth(2);
    let is_asked = |below: &&str| only.as_deref().is_none_or(|only| only == *below);
    for below in ["null", "memory", "file"].into_iter().filter(is_asked) {
        let mut devices = vec![("plain", bench.bottom(below, "plain", SIZE)?)];
        let half = Partition::new(bench.bottom(below, "partition", 2 * SIZE)?, SIZE, SIZE)?;
        devices.push(("partition", bench.queue(half)));
        if below != "null" {
            devices.push(("overlay", bench.overlay(below)?));
        }
        for (_, device) in &devices {
            for at in (0..SIZE).step_by(LEN) {
                device.write_at(at, vec![7; LEN])?;
            }
        }
        for depth in [1, 32] {
            compare(below, depth, &devices)?;
        }
    }
    drop(bench);
    pools.shutdown();
    Ok(())
}

impl Bench {
    fn queue(&self, driver: impl Driver) -> Arc<Queue> {
        Queue::builder(&self.machine, Arc::new(driver)).build(&self.wq)
    }

    /// Makes a device of this kind that stands on no other one.
    fn bottom(&self, kind: &str, name: &str, size: u64) -> Result<Arc<Queue>, Box<dyn Error>> {
        Ok(match kind {
            "null" => self.queue(Null::new(size)),
            "memory" => self.queue(Memory::new(size)?),
            _ => {
                let path = self.folder.join(name);
                let _ = std::fs::remove_file(&path);
                let options = FileOptions::new(path).size(size);
                self.queue(FileDriver::open(options, &self.wq)?)
            }
        })
    }

    fn overlay(&self, kind: &str) -> Result<Arc<Queue>, Box<dyn Error>> {
        let options = OverlayOptions::new();
        let size = Overlay::file_size(SIZE, options.block_size).ok_or("too large")?;
        let file = self.bottom(kind, "overlay", size)?;
        let base = self.bottom("memory", "base", SIZE)?;
        Ok(self.queue(Overlay::open(file, Some(base), options, &self.wq)?))
    }
}

/// Measures devices in turns, and prints their medians.
fn compare(
    below: &str,
    depth: usize,
    devices: &[(&str, Arc<Queue>)],
) -> Result<(), Box<dyn Error>> {
    let mut times: Vec<Vec<f64>> = devices.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for ((_, device), times) in devices.iter().zip(&mut times) {
            times.push(measure(device, depth)?);
        }
    }
    let ratios: Vec<f64> = times.iter().map(|of| median(ratios(of, &times[0]))).collect();
    for (((name, _), times), ratio) in devices.iter().zip(times).zip(ratios) {
        let (least, most) =
            times.iter().fold((f64::MAX, 0.0), |(least, most): (f64, f64), time| {
                (least.min(*time), most.max(*time))
            });
        let median = median(times);
        println!(
            "{below:>6}, {depth:>2} at once, {name:<9}: {median:>6.0} ns [{least:.0}..{most:.0}], \
             {ratio:.3}"
        );
    }
    Ok(())
}

fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// Returns the CPU time of a request in nanoseconds.
fn measure(device: &Queue, depth: usize) -> Result<f64, Box<dyn Error>> {
    let (tx, rx) = mpsc::channel();
    let mut free: Vec<BytesMut> = (0..depth).map(|_| BytesMut::with_capacity(LEN)).collect();
    let before = cpu_time();
    let mut at = 0;
    for _ in 0..REQUESTS / depth {
        let mut batch = free.drain(..).map(|buffer| {
            at = (at + LEN as u64) % SIZE;
            let tx = tx.clone();
            // The receiver lives until all requests have ended.
            Request::read_into(at, LEN, buffer).on_complete(move |done| {
                let _ = tx.send(done.payload);
            })
        });
        match depth {
            1 => batch.by_ref().for_each(|rq| device.submit(rq)),
            _ => device.submit_batch(&mut batch),
        }
        drop(batch);
        for _ in 0..depth {
            if let Payload::One(Buffer::BytesMut(mut buffer)) = rx.recv()? {
                buffer.clear();
                free.push(buffer);
            }
        }
    }
    Ok((cpu_time() - before) * 1e9 / REQUESTS as f64)
}

fn cpu_time() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
