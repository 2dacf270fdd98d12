//! The checksums of a file, a block at a time, on all cores; and which blocks of it have changed.
//!
//! `cargo run --release -p corewise --example checksums -- [FILE]`
//!
//! `Workqueue::map` calls a function with each block, in parallel, and returns the results in the
//! order of the blocks. Meanwhile `Workqueue::every` prints the progress. `Workqueue::reduce` makes
//! one value of all results.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use corewise::prelude::*;

/// Bytes. A block takes a worker about 100 µs.
const BLOCK: usize = 128 << 10;

fn checksum(block: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(block);
    hasher.finish()
}

/// Returns the checksum of each block, in order.
fn checksums(queue: &Workqueue, data: &[u8]) -> Result<Vec<u64>, Box<dyn Error>> {
    let (all, done) = (data.chunks(BLOCK).len(), Arc::new(AtomicUsize::new(0)));
    let so_far = Arc::clone(&done);
    let progress = queue.every(Duration::from_millis(100), move || {
        println!("{} of {all} blocks", so_far.load(Relaxed));
    })?;
    let sums = queue.map(data.chunks(BLOCK), |block| {
        let sum = checksum(block);
        done.fetch_add(1, Relaxed);
        sum
    });
    progress.stop();
    Ok(sums)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut data = match std::env::args_os().nth(1) {
        Some(file) => std::fs::read(file)?,
        None => (0..64_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect(),
    };
    let pools = WorkerPools::new(&Machine::live()?);
    // The queue gives way to all other work of the machine.
    let queue = Workqueue::builder("checksums").nice(10).build(&pools)?;

    let begun = Instant::now();
    let before = checksums(&queue, &data)?;
    let parallel = begun.elapsed();
    let begun = Instant::now();
    assert!(
        data.chunks(BLOCK).map(checksum).eq(before.iter().copied()),
        "one by one they are the same"
    );
    println!("{} blocks in {parallel:.1?}; one by one in {:.1?}", before.len(), begun.elapsed());
    let all = queue.reduce(data.chunks(BLOCK), checksum, |one, other| one ^ other);
    assert_eq!(all, before.iter().copied().reduce(|one, other| one ^ other), "in any order");

    if let Some(byte) = data.get_mut(5 * BLOCK) {
        *byte ^= 1;
    }
    let after = checksums(&queue, &data)?;
    let changed =
        before.iter().zip(&after).enumerate().filter(|(_, (before, after))| before != after);
    println!("changed: blocks {:?}", changed.map(|(block, _)| block).collect::<Vec<_>>());
    pools.shutdown();
    Ok(())
}
