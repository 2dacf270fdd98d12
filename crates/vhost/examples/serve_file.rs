//! Serves a file as the disk of a virtual machine: `serve_file SOCKET FILE`.
//!
//! ```text
//! qemu-system-x86_64 -m 1G -machine q35,memory-backend=ram \
//!     -object memory-backend-memfd,id=ram,size=1G,share=on \
//!     -chardev socket,id=disk,path=SOCKET,reconnect=1 \
//!     -device vhost-user-blk-pci,chardev=disk ...
//! ```
//!
//! The end of standard input ends it.

#![allow(clippy::print_stdout, reason = "an example is a program")]

use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::Queue;
use corewise_drivers::{FileDriver, FileOptions};
use corewise_export::SharedDevice;
use corewise_topology::Machine;
use corewise_vhost::{Options, Server};
use corewise_workqueue::{WorkerPools, Workqueue};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(file)) = (args.next(), args.next()) else {
        return Err("serve_file SOCKET FILE".into());
    };

    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("block").build(&pools)?;
    let driver = FileDriver::open(FileOptions::new(&file), &wq)?;
    let volume = Queue::builder(&machine, Arc::new(driver)).name("file").build(&wq);

    let server = Server::new()?;
    let disk = server.listen(&path, SharedDevice::new(volume.clone()), Options::default())?;
    println!("{file} is served on {path}");
    std::io::stdin().read_to_end(&mut Vec::new())?;

    println!("{:#?}", disk.status());
    let report = disk.stop(Duration::from_secs(10));
    println!("{report:?}");
    volume.drain();
    drop((server, volume));
    pools.shutdown();
    Ok(())
}
