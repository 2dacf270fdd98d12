//! `file`: a device in a file or on a block device of the host.
//!
//! The thread that dispatches reads and writes on the spot what the host's cache has, or takes
//! without waiting ([`volume`]). The rest goes to the kernel through io_uring, by rings that many
//! devices share ([`ring`]), or, if io_uring is refused, to a bounded number of workers ([`lane`]).
//! Those also finish what a ring left half done. On request, all goes past the host's page cache
//! ([`host_cache`]). [`options`] has the options, [`error`] the errors, `README.md` the protocol of
//! rings, lanes and their ends.

mod error;
mod extents;
mod fault_reporter;
mod host_cache;
pub(crate) mod lane;
mod loss;
mod open;
mod options;
mod qemu_locks;
pub(crate) mod ring;
mod store;
mod volume;
mod write_log;

use std::sync::Arc;

use corewise_blockmq::{
    Dispatch, Displaced, Driver, Geometry, Info, IoError, Op, Started, TimedOut, TimerReturn,
};
use corewise_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use corewise_topology::CpuId;
use corewise_workqueue::Workqueue;

use fault_reporter::FileDisplacement;

pub use error::{OpenError, OpenErrorKind};
pub use fault_reporter::FileEvent;
pub use host_cache::Alignment;
pub use loss::OnLoss;
pub use options::{FileOptions, IoPath, PathInUse};
pub use ring::FileRings;
pub use store::lies_in_memory;

use ring::Rings;
use store::Store;
use volume::Volume;

/// A device in a file.
///
/// # What a flush promises
/// A flush is `fdatasync`, a write with `fua` carries `RWF_DSYNC`. When it has completed, the data
/// is as durable as the host's file system and disk make it, also if this process is killed. A file
/// that this driver created is itself durable before the driver is there. Writes that haven't been
/// flushed survive this process, not the machine: they are in the host's page cache, or, if the
/// device goes past that, in the disk's own.
///
/// A flush or a durable write that fails because the host could not write data back puts everything
/// before it in doubt. The host reports that once: the next `fdatasync` would succeed. So every
/// flush from then on fails with the same error, until the file is opened again. (Of two flushes
/// that run at the same time when the disk fails, the host may report the failure to only one.)
///
/// # A file that another program truncates or unlinks
/// The driver never makes a file longer. If another program truncates it, reads and changes of what
/// is gone fail, each with an error that says so. Every flush fails too until the file is opened
/// again, even if it has its length back. Only a change in flight at that very moment may still
/// make it longer: then the next flush fails, unless the change ended where the device ends. (A
/// block device has its size by itself.) A file that was unlinked serves on, but its flushes fail:
/// it is gone with the process. A change with `fua` promises as much, and fails likewise. With
/// [`OnLoss::ReadOnly`] nothing is written any more in either case. Each change and each flush
/// checks for this, and so does [`FileDriver::look`]; [`FileOptions::observer`] is notified.
///
/// A file that was renamed or replaced, so that its path leads elsewhere, keeps all promises.
/// [`FileDriver::look`] finds it, and the observer is notified.
///
/// # Locking The file is locked (`flock`, exclusively unless read-only, and the byte-range locks of
/// QEMU) for as long as the driver lives. So no second server, and no program of QEMU, writes to
/// it. [`FileDriver::open`] waits up to 2 seconds for a lock that another process has. A killed
/// server may keep its lock for a moment, until its requests in flight in the kernel have ended.
/// The lock is advisory: programs that don't ask for it ignore it. A writable block device is
/// claimed as well (`O_EXCL`), as a mount does. So one server at a time has it, under any name, and
/// none that is mounted is opened.
pub struct FileDriver {
    /// The device's geometry. Its size is that at the beginning.
    geometry: Geometry,
    /// A: the size in bytes; it only grows. Release and Acquire.
    size: AtomicU64,
    created: bool,
    began_empty: bool,
    depth: u32,
    align: Option<Alignment>,
    queues: usize,
    volume: Arc<Volume>,
    rings: Option<Route>,
}

/// The ring of each hardware queue.
struct Route {
    rings: Arc<Rings>,
    /// A: by hardware queue; set when the queue says which CPUs it has. Relaxed: any ring will do
    /// for a request.
    of: Box<[AtomicUsize]>,
}

impl Route {
    fn new(rings: Arc<Rings>, cpus: usize) -> Self {
        let of = (0..cpus.max(rings.len())).map(|hctx| AtomicUsize::new(hctx % rings.len()));
        let of = of.collect();
        Self { rings, of }
    }

    fn of(&self, hctx: usize) -> usize {
        // There are no more, unless the device serves another machine than the rings do.
        self.of.get(hctx).map_or(0, |ring| ring.load(Ordering::Relaxed))
    }
}

impl FileDriver {
    /// Opens or creates the file. Blocks: call it on a worker or a thread of your own.
    ///
    /// Workers of the queue [below](Workqueue::below) `wq` do the plain I/O. If a later step fails,
    /// a file that was created is removed again.
    ///
    /// # Errors
    /// Name the path, what failed, and what to do about it.
    pub fn open(options: FileOptions, wq: &Workqueue) -> Result<Self, OpenError> {
        corewise_sync::context::might_block("FileDriver::open");
        open::open(options, wq)
    }

    /// Checks whether the file, and its write log, have been truncated or unlinked, and whether
    /// their paths lead to them. The first fault goes to the log and to the observer. Only this
    /// finds a file that was renamed, replaced under another name, or hidden by a mount: call it
    /// once a second or so. A block device is never checked. It looks paths up, so it may block.
    ///
    /// # Errors
    /// The fault that was found.
    pub fn look(&self) -> Result<(), IoError> {
        self.volume.store().look()
    }

    /// Returns the first loss that was found: its file was truncated or unlinked, or a flush
    /// failed. Every flush has failed since then, until the file is opened again. Asks neither file
    /// nor system; any context.
    pub fn lost(&self) -> Option<IoError> {
        self.volume.store().reporter().loss()
    }

    /// Returns how the file was displaced, or its write log was wrong, at the last
    /// [look](Self::look). Nothing is lost, but the next server won't find the file, or no change
    /// is made without the log. Asks neither file nor system; any context.
    pub fn moved(&self) -> Option<String> {
        self.displacement().map(|displacement| displacement.why().to_owned())
    }

    fn displacement(&self) -> Option<FileDisplacement> {
        self.volume.store().reporter().displacement()
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
        let crew = options.rings.as_ref().map(|rings| Arc::clone(rings.crew()));
        let volume = Volume::new(store, wq, &crew.unwrap_or_default());
        let rings = || match &options.rings {
            Some(rings) => rings.get(),
            None => Rings::own(options.queues.unwrap_or(1)),
        };
        let rings = match options.io {
            IoPath::Threads => None,
            IoPath::Uring => Some(rings()?),
            IoPath::Auto => rings().map(Some).unwrap_or_else(|error| {
                tracing::info!(
                    path = %options.path.display(), %error,
                    "the system refuses io_uring; the device uses pread and pwrite on workers"
                );
                None
            }),
        };
        let own = rings.is_some() && options.rings.is_none();
        let queues = options.queues.unwrap_or(if own { 1 } else { usize::MAX });
        let rings =
            rings.map(|rings| Route::new(rings, options.rings.as_ref().map_or(1, FileRings::cpus)));
        let size = AtomicU64::new(geometry.size);
        let driver = Self {
            geometry,
            size,
            created,
            began_empty: false,
            depth: options.depth,
            align,
            queues,
            volume,
            rings,
        };
        tracing::info!(
            path = %options.path.display(), io = %driver.io_path_in_use(), size = geometry.size,
            direct = align.is_some(), "file device opened"
        );
        Ok(driver)
    }

    /// Returns the path that requests take.
    pub fn io_path_in_use(&self) -> PathInUse {
        if self.rings.is_some() { PathInUse::Uring } else { PathInUse::Threads }
    }

    /// Returns the alignment that the file system needs, if the device goes past the host's page
    /// cache. Requests in other memory are copied once.
    pub fn direct(&self) -> Option<Alignment> {
        self.align
    }

    /// Returns true if QEMU's programs notice that the file is in use. Some file systems don't have
    /// the locks that they ask for: then only programs that ask for `flock` notice.
    pub fn is_locked_for_qemu(&self) -> bool {
        self.volume.store().is_locked_for_qemu()
    }

    /// Returns true if opening created the file, so that a caller that gives up afterwards may
    /// remove it.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Returns true if the device has no data yet: opening created the file, or found it empty and
    /// made it as long as it was asked for.
    pub fn began_empty(&self) -> bool {
        self.began_empty
    }
}

#[cfg(test)]
impl FileDriver {
    fn store(&self) -> &Store {
        self.volume.store()
    }
}

impl Driver for FileDriver {
    fn info(&self) -> Info {
        Info {
            hw_queues: self.queues,
            depth: self.depth,
            knows_extents: true,
            read_only_latch: self.volume.store().read_only_latch(),
            ..Info::new(
                "file",
                Geometry { size: self.size.load(Ordering::Acquire), ..self.geometry },
            )
        }
    }

    /// Grows the device. A regular file that may be written is made longer (the new part reads as
    /// zeroes, and takes no room); of any other file, its present size can be used.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let least = self.size.load(Ordering::Acquire);
        let new = self.volume.store().grow(size, least, &self.geometry)?;
        self.size.store(new, Ordering::Release);
        Ok(new)
    }

    fn condition(&self) -> Option<String> {
        let how =
            if self.volume.store().read_only_latch().is_set() { "lost, only read" } else { "lost" };
        let Some(why) = self.lost() else {
            let in_words = |displacement: FileDisplacement| {
                let is_stuck = displacement.displaced().blocks_changes;
                let how = if is_stuck { "the device refuses changes" } else { "moved" };
                format!("{how}: {}", displacement.why())
            };
            return self.displacement().map(in_words);
        };
        Some(match why.words() {
            Some(words) => format!("{how}: {words}"),
            None => format!("{how}: {why}"),
        })
    }

    fn has_lost_data(&self) -> bool {
        self.lost().is_some()
    }

    fn displaced(&self) -> Option<Displaced> {
        self.displacement().map(|displacement| displacement.displaced())
    }

    fn mapped(&self, hctx: usize, cpus: &[CpuId]) {
        if let (Some(route), Some(&cpu)) = (&self.rings, cpus.first()) {
            if let (Some(place), Some(ring)) = (route.of.get(hctx), route.rings.of_cpu(cpu)) {
                place.store(ring, Ordering::Relaxed);
            }
        }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        // A ring's thread passes all that it has to the kernel in one call, which reads what the
        // host's cache has on the spot.
        let is_read_here = |rq: &Started, route: &Route| {
            rq.op() == Op::Read
                && route.rings.is_here(route.of(hctx))
                && self.volume.store().is_read_by_rings()
        };
        let rq = match &self.rings {
            Some(route) if is_read_here(&rq, route) => Some(rq),
            _ => self.volume.now(rq).and_then(|rq| self.volume.put_off(rq)),
        };
        if let Some(rq) = rq {
            match &self.rings {
                Some(route) if !self.volume.is_for_workers(&rq) => {
                    route.rings.queue(route.of(hctx), &self.volume, rq);
                }
                _ => self.volume.work(rq),
            }
        }
        Dispatch::Started
    }

    fn commit(&self, hctx: usize) {
        if let Some(route) = &self.rings {
            route.rings.commit(route.of(hctx));
        }
    }

    /// Cancels a ring's request if the kernel can still do that: not if a disk has it.
    fn timeout(&self, late: &TimedOut<'_>) -> TimerReturn {
        match &self.rings {
            Some(route) => route.rings.call_off(route.of(late.hctx()), late),
            None => {
                tracing::warn!("{late}; a worker waits for the kernel");
                TimerReturn::ResetTimer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise_topology::Machine;
    use corewise_workqueue::WorkerPools;

    use super::fault_reporter::FaultReporter;
    use super::*;
    use corewise_blockmq::{BlockDeviceExt, Queue};

    #[test]
    fn where_the_kernel_refuses_a_ring_workers_take_over_or_the_error_says_so() {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("file-test").build(&pools).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let rings = FileRings::on(&corewise_ring::RingSet::refused());
        let options = FileOptions::new(&path).size(1 << 20).rings(&rings);
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
                let store = Store::new(
                    crate::file_guard::FileGuard::without_path(file),
                    FaultReporter::of_test("a test"),
                    None,
                );
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
            // Reads and writes go on: the client decides what to save, and where.
            queue.write_at(512, vec![8; 512]).unwrap();
            assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512]);
            queue.drain();
        }
        pools.shutdown();
    }
}
