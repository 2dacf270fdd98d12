//! `file`: a device in a file or on a block device of the host.
//!
//! Requests go to the kernel through io_uring, one ring for each hardware queue ([`uring`]), or,
//! where io_uring is refused, through plain `pread` and `pwrite` on workers ([`threads`]). The
//! plain path also finishes what a ring left half done. [`open`] has the options and the errors.

mod open;
mod threads;
mod uring;

use std::fs::File;
use std::sync::Arc;

use corewise_workqueue::Workqueue;

pub use open::{FileOptions, IoPath, OpenError, OpenErrorKind, PathInUse};

use crate::device::Geometry;
use crate::driver::{Dispatch, Driver, Started};
use threads::Plain;
use uring::Rings;

/// A device in a file.
///
/// # What a flush promises
/// A flush is `fdatasync`, a write with `fua` carries `RWF_DSYNC`: when it has completed, the data
/// is as durable as the host's file system and disk make it, also if this process is killed. A file
/// that this driver created is itself durable before the driver is there. Writes that haven't been
/// flushed are in the host's page cache: they survive this process, not the machine.
///
/// A flush or a durable write that fails because the host could not write data back puts everything
/// before it in doubt, and the host doesn't say so twice: the next `fdatasync` would succeed. So every
/// flush from then on fails with the same error, until the file is opened again. (Of two flushes that
/// run at the same time when the disk fails, the host may tell only one.)
///
/// # Locking
/// The file is locked (`flock`, exclusively unless read-only) for as long as the driver lives, so
/// that no second server writes to it; see [`FileOptions::lock_wait`]. The lock is advisory:
/// programs that don't ask don't care.
///
/// # Signals
/// A ring finishes its requests in the name of the thread that submitted them, so that thread's
/// `poll` and `epoll_wait` may return `EINTR` without a signal. Callers repeat them anyway.
pub struct FileDriver {
    geometry: Geometry,
    created: bool,
    depth: u32,
    io: Io,
}

enum Io {
    Rings(Rings),
    Plain(Plain),
}

impl FileDriver {
    /// Opens or creates the file. Blocks: call it on a worker or a thread of your own.
    ///
    /// Workers of `wq` do the plain I/O. A file that was created is removed again where a later
    /// step fails.
    ///
    /// # Errors
    /// Name the path, what failed, and what to do about it.
    pub fn open(options: FileOptions, wq: &Workqueue) -> Result<Self, OpenError> {
        corewise_sync::context::blocking("FileDriver::open", || open::open(options, wq))
    }

    fn new(
        file: File,
        geometry: Geometry,
        created: bool,
        options: &FileOptions,
        wq: &Workqueue,
    ) -> Result<Self, std::io::Error> {
        let plain = Plain::new(Arc::new(file), wq.clone());
        let io = match options.io {
            IoPath::Threads => Io::Plain(plain),
            IoPath::Uring => Io::Rings(Rings::new(plain, options.queues, options.depth)?),
            IoPath::Auto => match Rings::new(plain.clone(), options.queues, options.depth) {
                Ok(rings) => Io::Rings(rings),
                Err(error) => {
                    tracing::info!(
                        path = %options.path.display(), %error,
                        "io_uring is refused here; using pread and pwrite on workers"
                    );
                    Io::Plain(plain)
                }
            },
        };
        let driver = Self { geometry, created, depth: options.depth, io };
        tracing::info!(
            path = %options.path.display(), io = %driver.io_path_in_use(), size = geometry.size,
            "opened a file device"
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

    /// Whether opening created the file, so that whoever gives up afterwards may remove it.
    pub fn created(&self) -> bool {
        self.created
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

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        match &self.io {
            Io::Rings(rings) => rings.queue(hctx, rq),
            Io::Plain(plain) => {
                plain.start(rq, 0);
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
}

#[cfg(test)]
mod tests {
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

    /// Makes the driver's descriptor name another file.
    fn swap(driver: &FileDriver, with: &impl std::os::fd::AsFd) {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        let file = match &driver.io {
            Io::Rings(rings) => rings.file(),
            Io::Plain(plain) => plain.file(),
        };
        // SAFETY: not dropped, so the descriptor stays the driver's.
        let theirs = unsafe { OwnedFd::from_raw_fd(file.as_raw_fd()) };
        let mut theirs = std::mem::ManuallyDrop::new(theirs);
        rustix::io::dup2(with, &mut theirs).unwrap();
    }

    #[test]
    fn after_a_failed_flush_no_flush_succeeds_although_the_kernel_forgets() {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("file-test").build(&pools).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for io in [IoPath::Auto, IoPath::Threads] {
            let path = dir.path().join(format!("{io:?}"));
            let options = FileOptions::new(&path).size(1 << 20).io(io);
            let driver = Arc::new(FileDriver::open(options, &wq).unwrap());
            let queue = Queue::builder(&machine, driver.clone()).build(&wq);
            queue.write_at(0, vec![7; 512]).unwrap();
            queue.flush().unwrap();
            // A pipe can't be synced: the one failure that can be had without a broken disk.
            let (pipe, _other_end) = std::io::pipe().unwrap();
            swap(&driver, &pipe);
            let first = queue.flush().unwrap_err();
            swap(&driver, &File::options().read(true).write(true).open(&path).unwrap());
            let second = queue.flush().unwrap_err();
            assert_eq!(second.kind(), first.kind(), "{io:?}");
            // Reads and writes go on: it is for the client to decide what to save where.
            queue.write_at(512, vec![8; 512]).unwrap();
            assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512]);
            queue.drain();
        }
        pools.shutdown();
    }
}
