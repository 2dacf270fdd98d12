//! `file`: a device in a file or on a block device of the host.
//!
//! Requests go to the kernel through io_uring, one ring for each hardware queue ([`ring`]), or,
//! where io_uring is refused, through plain `pread` and `pwrite` on workers ([`threads`]). The
//! plain path also finishes what a ring left half done. Where the file system can, both go past the
//! host's page cache ([`direct`]). [`options`] has the options and the errors.

mod cached;
mod direct;
mod length;
mod open;
mod options;
mod ring;
mod store;
mod threads;

use corewise_workqueue::Workqueue;

pub use direct::Alignment;
pub use options::{Direct, FileOptions, IoPath, OpenError, OpenErrorKind, PathInUse};

use crate::driver::{Dispatch, Driver, Started};
use crate::geometry::Geometry;
use crate::timeout::{TimedOut, TimerReturn};
use ring::Rings;
use store::Store;
use threads::Plain;

/// A device in a file.
///
/// # What a flush promises
/// A flush is `fdatasync`, a write with `fua` carries `RWF_DSYNC`: when it has completed, the data
/// is as durable as the host's file system and disk make it, also if this process is killed. A file
/// that this driver created is itself durable before the driver is there. Writes that haven't been
/// flushed survive this process, not the machine: they are in the host's page cache, or, where the device
/// goes past that, in the disk's own.
///
/// A flush or a durable write that fails because the host could not write data back puts everything
/// before it in doubt, and the host doesn't say so twice: the next `fdatasync` would succeed. So every
/// flush from then on fails with the same error, until the file is opened again. (Of two flushes that
/// run at the same time when the disk fails, the host may tell only one.)
///
/// # A file that somebody makes shorter
/// The driver never makes a file longer. Once it was truncated by somebody else, reads and changes of what is gone fail,
/// each with an error that says so, and so does every flush until the file is opened again, also where it has its length
/// back. Only a change that is under way at that very moment may still make it longer: then the next flush fails, unless
/// the change ended where the device ends. (A block device has its size by itself.)
///
/// # Locking
/// The file is locked (`flock`, exclusively unless read-only) for as long as the driver lives, so
/// that no second server writes to it; see [`FileOptions::lock_wait`]. The lock is advisory:
/// programs that don't ask don't care.
pub struct FileDriver {
    geometry: Geometry,
    created: bool,
    depth: u32,
    align: Option<Alignment>,
    io: Io,
}

enum Io {
    Rings(Rings),
    Plain(Plain),
}

impl FileDriver {
    /// Opens or creates the file. Blocks: call it on a worker or a thread of your own.
    ///
    /// Workers of the queue [below](Workqueue::below) `wq` do the plain I/O. A file that was created is removed again where a later
    /// step fails.
    ///
    /// # Errors
    /// Name the path, what failed, and what to do about it.
    pub fn open(options: FileOptions, wq: &Workqueue) -> Result<Self, OpenError> {
        corewise_sync::context::blocking("FileDriver::open", || open::open(options, wq))
    }

    fn new(
        store: Store,
        geometry: Geometry,
        created: bool,
        options: &FileOptions,
        wq: &Workqueue,
    ) -> Result<Self, std::io::Error> {
        let align = store.align();
        let memory_alignment = align.map_or(1, |align| align.memory);
        let geometry = Geometry { memory_alignment, ..geometry };
        let plain = Plain::new(store, wq);
        let io = match options.io {
            IoPath::Threads => Io::Plain(plain),
            IoPath::Uring => Io::Rings(Rings::new(&plain, options)?),
            IoPath::Auto => match Rings::new(&plain, options) {
                Ok(rings) => Io::Rings(rings),
                Err(error) => {
                    tracing::info!(
                        path = %options.path.display(), %error,
                        "the system refuses io_uring; the device uses pread and pwrite on workers"
                    );
                    Io::Plain(plain)
                }
            },
        };
        let driver = Self { geometry, created, depth: options.depth, align, io };
        tracing::info!(
            path = %options.path.display(), io = %driver.io_path_in_use(), size = geometry.size,
            direct = align.is_some(), "file device opened"
        );
        Ok(driver)
    }

    /// Which way the requests go.
    pub fn io_path_in_use(&self) -> PathInUse {
        match self.io {
            Io::Rings(_) => PathInUse::Uring,
            Io::Plain(_) => PathInUse::Threads,
        }
    }

    /// Where the device goes past the host's page cache: what its file system asks for. Requests in other
    /// memory are copied once.
    pub fn direct(&self) -> Option<Alignment> {
        self.align
    }

    /// Whether opening created the file, so that a caller that gives up afterwards may remove it.
    pub fn created(&self) -> bool {
        self.created
    }
}

#[cfg(test)]
impl FileDriver {
    fn store(&self) -> &Store {
        match &self.io {
            Io::Rings(rings) => rings.store(),
            Io::Plain(plain) => plain.store(),
        }
    }
}

impl Driver for FileDriver {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn hw_queues(&self) -> usize {
        match &self.io {
            Io::Rings(rings) => rings.len(),
            Io::Plain(_) => usize::MAX,
        }
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn mapped(&self, hctx: usize, cpus: &[u32]) {
        if let Io::Rings(rings) = &self.io {
            rings.mapped(hctx, cpus);
        }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        match &self.io {
            Io::Rings(rings) => rings.queue(hctx, rq),
            Io::Plain(plain) => {
                plain.queue(rq);
                Dispatch::Started
            }
        }
    }

    fn commit(&self, hctx: usize) {
        match &self.io {
            Io::Rings(rings) => rings.commit(hctx),
            Io::Plain(_) => {}
        }
    }

    /// A ring's request is called off where the kernel can still do that: not where a disk has it.
    fn timeout(&self, late: &TimedOut<'_>) -> TimerReturn {
        match &self.io {
            Io::Rings(rings) => rings.call_off(late),
            Io::Plain(_) => {
                tracing::warn!("{late}; a worker waits for the kernel");
                TimerReturn::ResetTimer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use corewise_topology::Machine;
    use corewise_workqueue::WorkerPools;

    use super::*;
    use crate::{BlockDeviceExt, Queue};

    #[test]
    fn where_the_kernel_refuses_a_ring_workers_take_over_or_the_error_says_so() {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("file-test").build(&pools).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        // More entries than any kernel gives: refused like a forbidden ring, on every machine.
        let options = FileOptions { depth: 1 << 20, ..FileOptions::new(&path).size(1 << 20) };
        let error = FileDriver::open(options.clone().io(IoPath::Uring), &wq).err().unwrap();
        assert!(error.to_string().contains("io_uring"), "{error}");
        assert!(!path.exists(), "the file that was created for nothing is removed");
        let driver = FileDriver::open(options, &wq).unwrap();
        assert_eq!(driver.io_path_in_use(), PathInUse::Threads);
        let queue = Queue::builder(&machine, Arc::new(driver)).depth(8).build(&wq);
        queue.write_at(512, vec![7; 512]).unwrap();
        queue.flush().unwrap();
        assert_eq!(queue.read_at(512, 512).unwrap(), vec![7; 512]);
        queue.drain();
        drop(queue);
        pools.shutdown();
    }

    #[test]
    fn after_a_failed_flush_no_flush_succeeds_although_the_kernel_forgets() {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("file-test").build(&pools).unwrap();
        for io in [IoPath::Auto, IoPath::Threads] {
            let options = FileOptions::new("a test").io(io);
            let open = |file: std::fs::File| {
                let store = Store::new(file, "a test", None);
                FileDriver::new(store, Geometry::new(1 << 20), false, &options, &wq).unwrap()
            };
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            // A pipe can't be synced: the one failure that can be had without a broken disk.
            let (_other_end, pipe) = std::io::pipe().unwrap();
            let driver = Arc::new(open(std::os::fd::OwnedFd::from(pipe).into()));
            let queue = Queue::builder(&machine, driver.clone()).build(&wq);
            let first = queue.flush().unwrap_err();
            let told = driver.store().synced(Ok(())).unwrap_err();
            assert_eq!(told.kind(), first.kind(), "{io:?}: it is remembered");
            queue.drain();

            let driver = Arc::new(open(file));
            let queue = Queue::builder(&machine, driver.clone()).build(&wq);
            queue.write_at(0, vec![7; 512]).unwrap();
            queue.flush().unwrap();
            driver.store().synced(Err(first.clone())).unwrap_err();
            assert_eq!(queue.flush().unwrap_err().kind(), first.kind(), "{io:?}: and told again");
            // Reads and writes go on: it is for the client to decide what to save where.
            queue.write_at(512, vec![8; 512]).unwrap();
            assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512]);
            queue.drain();
        }
        pools.shutdown();
    }
}
