//! A disk of this machine in memory, until the standard input ends: `ram_disk 64` has 64 MiB.
//!
//! With a second argument, a file, the disk lies there, outlives this program, and is taken over by
//! the next one.
#![allow(clippy::print_stdout)]

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{Driver, Queue};
use corewise_drivers::{FileDriver, FileOptions, Memory};
use corewise_export::SharedDevice;
use corewise_ring::RingSet;
use corewise_topology::Machine;
use corewise_ublk::{DiskOptions, Disks, Mark};
use corewise_workqueue::{WorkerPools, Workqueue};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let size = args.next().map_or(Ok(64), |size| size.parse::<u64>())? << 20;
    let file = args.next();
    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("block").build(&pools)?;
    let driver: Arc<dyn Driver> = match &file {
        Some(path) => Arc::new(FileDriver::open(FileOptions::new(path).size(size), &wq)?),
        None => Arc::new(Memory::new(size)?),
    };
    let queue = Queue::builder(&machine, driver).name("disk").build(&wq);

    let disks = Disks::new(&RingSet::new(&machine));
    // The same file is the same disk.
    let outlives = file.is_some();
    let mark = Mark::of(file.as_deref().unwrap_or("memory"), "ram_disk");
    let disk = disks.add(
        &SharedDevice::new(queue.clone()),
        DiskOptions { mark, outlives, ..DiskOptions::default() },
    )?;
    let how = if disk.was_taken_over() { "taken over" } else { "made" };
    println!("{} was {how}; the end of the input ends it", disk.path().display());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{} requests wait", disk.status().in_flight);
    match outlives {
        false => disk.remove(Duration::from_secs(10))?,
        true => println!("left: {}", disk.leave(Duration::from_secs(10))),
    }
    drop(disks);
    queue.drain();
    drop(queue);
    pools.shutdown();
    Ok(())
}
