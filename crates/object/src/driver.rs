//! The driver: the submitting CPU answers from memory; everything else goes to a thread with
//! tokio's runtime.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corewise_blockmq::{
    Dispatch, Displaced, Driver, Extent, ExtentKind, Geometry, Info, IoError, IoErrorKind, Op,
    Started,
};
use corewise_sync::time::BootStamp;
use corewise_sync::{context, text, thread};
use tokio::runtime::{self, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::error::{OpenError, OpenErrorKind};
use crate::format::StoreSpace;
use crate::format::{BLOCK, Chunk};
use crate::local::FlushFile;
use crate::log::CloneSource;
use crate::log::{NotOpen, OpenRequest};
use crate::options::{self, ObjectOptions};
use crate::store::{Store, StoreUse};
use crate::volume::{CacheUse, StoreRefusal, opening};
use crate::volume::{Fault, ObjectSnapshot, Part, Volume, check_snapshot_name};

/// Number of requests in flight: each read waits for the store.
const DEPTH: u32 = 256;
/// Maximum bytes of a request.
const MOST: u32 = 4 << 20;

/// A volume in an object store.
///
/// # What a flush promises
/// When it has completed, everything written before it is in the store. Later writes are sent some
/// seconds later. Of those, a crash leaves an atomic prefix: each surviving request comes with all
/// that completed before it was submitted, and none survives in part. If the store fails, a flush
/// is retried for the volume's [patience](ObjectOptions::patience), and then fails. Nothing is lost
/// by that, and a later flush may succeed.
///
/// # One writer
/// A server that opens a volume fences the one that had it: from then on, the latter's requests
/// fail as [gone](IoErrorKind::Gone), for good. A read is answered only if a check for another
/// server was made within the [lease](ObjectOptions::lease). If its predecessor didn't
/// [close](ObjectDriver::close) the volume, a server waits that long before its first change. So no
/// client reads data that another server has changed since, unless clocks differ in their speed.
#[derive(Debug)]
pub struct ObjectDriver {
    geometry: Geometry,
    volume: Arc<Volume>,
    requests: mpsc::UnboundedSender<Message>,
}

/// A message to the volume's thread.
enum Message {
    Request(Started),
    Close(oneshot::Sender<Result<(), Fault>>),
    /// Growth to this size in bytes.
    Grow(u64, oneshot::Sender<Result<(), Fault>>),
    Snapshot(Option<String>, oneshot::Sender<Result<ObjectSnapshot, Fault>>),
    Snapshots(oneshot::Sender<Result<Vec<ObjectSnapshot>, Fault>>),
    DeleteSnapshot(String, oneshot::Sender<Result<ObjectSnapshot, Fault>>),
}

impl ObjectDriver {
    /// Opens a volume, or makes it, and fences the server that has it. Blocks: call it on a worker
    /// or a thread of your own.
    ///
    /// # Errors
    /// Name the location, what was found, and what to do about it.
    pub fn open(options: ObjectOptions) -> Result<Self, OpenError> {
        context::might_block("ObjectDriver::open");
        options.check()?;
        let absent = options.absent_folders();
        let opened = Self::open_here(&options);
        if opened.is_err() {
            // Only empty folders are removed: a volume may have been made.
            for folder in &absent {
                let _ = std::fs::remove_dir(folder);
            }
        }
        opened
    }

    fn open_here(options: &ObjectOptions) -> Result<Self, OpenError> {
        let (store, from) = options.there()?;
        let store = Arc::new(store.patience(options.patience));
        let (told, opened) = oneshot::channel();
        let (requests, receiver) = mpsc::unbounded_channel();
        let theirs = options.clone();
        let started = thread::Builder::new()
            .name("cw-object".into())
            .spawn(move || run(&theirs, store, from, told, receiver));
        let failed = |why: String| options.error(OpenErrorKind::Store, why);
        started.map_err(|error| failed(no_thread(&error)))?;
        let opened =
            context::blocking("the opening of an object volume", || opened.blocking_recv());
        let volume = opened.map_err(|_| failed("the volume's thread has ended".into()))??;
        let mut geometry = Geometry::new(volume.opening.size);
        geometry.block_size = BLOCK as u32;
        geometry.physical_block = BLOCK as u32;
        geometry.max_transfer = MOST;
        geometry.can_fast_zero = true;
        tracing::info!(device = volume.device(), at = %volume.store, size = geometry.size, "object volume opened");
        Ok(Self { geometry, volume, requests })
    }

    /// Flushes, and records in the store that this server has ended, so that the next one needn't
    /// wait for the lease. Verifies that this server's last write is still there, and that the
    /// volume's folder is still at its location. All later requests to the driver fail. Blocks.
    ///
    /// # Errors
    /// The flush failed, another server has opened the volume, or the store lost what was written.
    /// The message says whether recent writes may be lost, or the flush file has them. Other errors
    /// lose nothing. The store has all but the record of the end, so the next server waits for the
    /// lease. Or all is written, in a folder that isn't at its location any more (`ENOENT`).
    pub fn close(&self) -> Result<(), IoError> {
        context::might_block("ObjectDriver::close");
        self.ask(Message::Close)
    }

    /// Returns true if flushes are kept in a [file](ObjectOptions::flush_file), even if that file
    /// is out of use. Any context.
    pub fn has_flush_file(&self) -> bool {
        self.volume.state.read().local.is_some()
    }

    /// Returns true if this driver made the volume, as nothing was at its location.
    pub fn created(&self) -> bool {
        self.volume.is_new()
    }

    /// Returns true if it still serves the volume: no other server has opened it, nothing was lost,
    /// and it wasn't closed. Any context.
    pub fn is_served(&self) -> bool {
        !self.volume.has_ended()
    }

    /// Returns true if another server has opened the volume, so that this one no longer serves it.
    /// Any context.
    pub fn is_fenced(&self) -> bool {
        self.volume.is_fenced()
    }

    /// Returns what of the volume is missing from the store, or damaged there, as far as a request
    /// has found: its last record, its folder, or an object with data. The first such fault stays
    /// for the life of the driver: it doesn't check whether the fault was repaired. Any context.
    pub fn damage(&self) -> Option<String> {
        self.volume.damage()
    }

    /// Takes a snapshot of everything written before this call, flushed or not, also if flushes are
    /// kept in a [file](ObjectOptions::flush_file). Writes continue meanwhile. `name` has letters,
    /// digits, `.`, `_` and `-`, 64 at most. Without a name, the snapshot's number is its name.
    /// Blocks.
    ///
    /// # Errors
    /// The name is invalid, or another snapshot has it (invalid input). Otherwise as a flush; the
    /// snapshot may exist later then.
    pub fn snapshot(&self, name: Option<&str>) -> Result<ObjectSnapshot, IoError> {
        if let Some(name) = name {
            check_snapshot_name(name)
                .map_err(|why| IoError::with(IoErrorKind::InvalidInput, why))?;
        }
        context::might_block("ObjectDriver::snapshot");
        self.ask(|told| Message::Snapshot(name.map(str::to_owned), told))
    }

    /// Returns the snapshots, in order of their numbers, with their clones. Blocks, for one request
    /// and two for each clone.
    ///
    /// # Errors
    /// As of a read.
    pub fn snapshots(&self) -> Result<Vec<ObjectSnapshot>, IoError> {
        context::might_block("ObjectDriver::snapshots");
        self.ask(Message::Snapshots)
    }

    /// Deletes the snapshot of this name or number, with the data that only it needs, and returns
    /// it. Blocks.
    ///
    /// # Errors
    /// There is no such snapshot, or it has [clones](ObjectOptions::from_snapshot), which are named
    /// (invalid input). Otherwise as a flush; the snapshot may be deleted later then.
    pub fn delete_snapshot(&self, name: &str) -> Result<ObjectSnapshot, IoError> {
        context::might_block("ObjectDriver::delete_snapshot");
        self.ask(|told| Message::DeleteSnapshot(name.to_owned(), told))
    }

    /// Checks that it is a clone of the snapshot of this name or number of the volume at `parent`,
    /// a location as of [`ObjectOptions::from_snapshot`]: then it opens with that, too.
    ///
    /// # Errors
    /// It isn't such a clone, or there is no such location. The message says what it is.
    pub fn is_clone_of(&self, parent: &str, snapshot: &str) -> Result<(), OpenError> {
        let invalid = |why| OpenError::of(OpenErrorKind::InvalidInput, why);
        let parent = options::prefix(parent).map_err(invalid)?.to_string();
        let from = CloneSource { parent, snapshot: snapshot.to_owned() };
        let is = from.check(self.volume.opening.origin.as_ref());
        is.map_err(|why| match why {
            NotOpen::Origin(why) => invalid(why),
            other => invalid(other.to_string()),
        })
    }

    fn ask<T>(
        &self,
        what: impl FnOnce(oneshot::Sender<Result<T, Fault>>) -> Message,
    ) -> Result<T, IoError> {
        let (told, answered) = oneshot::channel();
        let gone = || IoError::with(IoErrorKind::Gone, "the volume's thread has ended");
        self.requests.send(what(told)).map_err(|_| gone())?;
        let answered = context::blocking("an object volume", || answered.blocking_recv());
        answered.map_err(|_| gone())?.map_err(error)
    }

    /// Returns why the store takes no writes, and since when: it refuses them, is full, or doesn't
    /// answer. This is known some seconds after the first write that failed. Any context.
    pub fn store_refusal(&self) -> Option<StoreRefusal> {
        self.volume.refusal()
    }

    /// Returns the bytes of changes that the store doesn't have yet. With a [flush
    /// file](ObjectOptions::flush_file), those that were flushed are in that file. Any context.
    pub fn not_stored(&self) -> u64 {
        self.volume.not_stored()
    }

    /// Returns the counts of requests to the store so far, including those of compaction.
    pub fn usage(&self) -> StoreUse {
        self.volume.store.usage().and(self.volume.moves.usage())
    }

    /// Returns the space that the volume's data takes in the store now.
    pub fn space(&self) -> StoreSpace {
        self.volume.state.read().map.segments.space()
    }

    /// Returns the statistics of the read cache so far.
    pub fn cache(&self) -> CacheUse {
        self.volume.cache.usage()
    }
}

fn error(fault: Fault) -> IoError {
    let kind = match fault {
        Fault::Fenced(_) | Fault::Closed => IoErrorKind::Gone,
        Fault::Store(_) => IoErrorKind::TimedOut,
        Fault::Full(_) => IoErrorKind::NoSpace,
        // EIO
        Fault::Damaged(_) => IoErrorKind::Io(5),
        // ENOENT
        Fault::Moved(_) => IoErrorKind::Io(2),
        Fault::Refused(_) => IoErrorKind::InvalidInput,
    };
    IoError::with(kind, fault.to_string())
}

fn no_thread(error: &io::Error) -> String {
    format!("no thread for it: {error}{}", text::thread_remedy(error))
}

/// Creates the volume's runtime, with the first of its threads for blocking work: files of a
/// folder, look-ups of names, compression.
///
/// These threads stay. If the last one has ended and the system refuses another, tokio panics. An
/// idle volume would then not survive a shortage of threads.
fn runtime() -> io::Result<Runtime> {
    let mut builder = runtime::Builder::new_current_thread();
    builder.enable_all().thread_name("cw-object-file").max_blocking_threads(8);
    let runtime = builder.thread_keep_alive(Duration::MAX).build()?;
    // Here a shortage is an error; in the next line it is a panic.
    let _ = thread::Builder::new().spawn(|| ())?.join();
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Runs the volume's thread.
fn run(
    options: &ObjectOptions,
    store: Arc<Store>,
    from: Option<CloneSource>,
    told: oneshot::Sender<Result<Arc<Volume>, OpenError>>,
    mut receiver: mpsc::UnboundedReceiver<Message>,
) {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(why) => {
            let _ = told.send(Err(options.error(OpenErrorKind::Store, no_thread(&why))));
            return;
        }
    };
    runtime.block_on(async {
        let mut nonce = [0; 16];
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let random = rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty());
        let volume = match random {
            Ok(16) => {
                let request = OpenRequest {
                    device: options.name.clone(),
                    size: options.size,
                    lease: options.lease,
                    host,
                    nonce: u128::from_le_bytes(nonce),
                    flushes: None,
                    accept_lost: options.accept_lost,
                    patience: Some(options.patience),
                    compression: options.compression,
                    key: options.key.clone(),
                    from,
                    clock: BootStamp::now,
                };
                let tuning = options.tuning();
                let opened = match &options.flush_file {
                    None => Volume::open(store, request, tuning).await,
                    Some(path) => match FlushFile::open(path) {
                        Ok(file) => opening::open(Arc::new(file), store, request, tuning).await,
                        Err(error) => Err(NotOpen::Local(error.to_string())),
                    },
                };
                opened.map_err(|why| options.not_open(why))
            }
            _ => {
                let why = "the system gives no random number".into();
                Err(options.error(OpenErrorKind::Store, why))
            }
        };
        let serve = volume.as_ref().ok().cloned();
        // An error: the opener no longer waits.
        if told.send(volume).is_err() {
            return;
        }
        let Some(volume) = serve else { return };
        volume.observe(options.observer.clone());
        while let Some(message) = receiver.recv().await {
            let volume = Arc::clone(&volume);
            match message {
                Message::Request(rq) => drop(tokio::spawn(answer(volume, rq))),
                Message::Grow(size, told) => drop(tokio::spawn(async move {
                    let _ = told.send(volume.grow(size).await);
                })),
                Message::Snapshot(name, told) => drop(tokio::spawn(async move {
                    let _ = told.send(volume.snapshot(name).await);
                })),
                Message::Snapshots(told) => drop(tokio::spawn(async move {
                    let _ = told.send(volume.snapshots().await);
                })),
                Message::DeleteSnapshot(name, told) => drop(tokio::spawn(async move {
                    let _ = told.send(volume.delete_snapshot(name).await);
                })),
                Message::Close(closed) => {
                    // Time for the flush, and then for the record.
                    let ended = timeout(2 * options.patience, volume.close()).await;
                    let slow = "the volume didn't close in time; recent writes may be lost, and \
                                the next server waits for the lease";
                    let ended = ended.unwrap_or_else(|_| Err(Fault::Store(slow.into())));
                    let _ = closed.send(ended);
                }
            }
        }
    });
    // Requests to a file system that are in flight aren't waited for.
    runtime.shutdown_background();
}

async fn answer(volume: Arc<Volume>, mut rq: Started) {
    let result = perform(&volume, &mut rq).await.map_err(error);
    rq.complete(result);
}

fn put(rq: &mut Started, parts: Vec<Part>) {
    for part in parts {
        match part {
            Part::Data(data) => rq.put(&data) as u64,
            Part::Zero(blocks) => rq.put_zeroes(blocks * BLOCK),
        };
    }
}

fn written(rq: &Started) -> Chunk {
    let mut data = vec![0; rq.len() as usize];
    rq.copy_to(&mut data);
    Chunk::Data(Bytes::from(data))
}

/// Performs a request that needn't wait. False: nothing was done.
fn perform_at_once(volume: &Arc<Volume>, rq: &mut Started) -> bool {
    let (start, len) = (rq.offset() / BLOCK, rq.len() / BLOCK);
    match rq.op() {
        Op::Read => match volume.read_at_once(start, len) {
            Some(parts) => {
                put(rq, parts);
                true
            }
            None => false,
        },
        _ if rq.flags().fua => false,
        Op::Write => volume.change_at_once(start, len, || written(rq)),
        Op::Discard | Op::WriteZeroes => volume.change_at_once(start, len, || Chunk::Zero),
        _ => false,
    }
}

async fn perform(volume: &Arc<Volume>, rq: &mut Started) -> Result<(), Fault> {
    let (start, len) = (rq.offset() / BLOCK, rq.len() / BLOCK);
    match rq.op() {
        Op::Read => put(rq, volume.read(start, len).await?),
        Op::Write => volume.change(start, len, written(rq)).await?,
        Op::Discard | Op::WriteZeroes => volume.change(start, len, Chunk::Zero).await?,
        Op::Flush => volume.flush().await?,
        Op::Extents => {
            for (blocks, data) in volume.extents(start, len).await? {
                let kind = if data { ExtentKind::Data } else { ExtentKind::Hole };
                if !rq.put_extent(Extent { len: blocks * BLOCK, kind }) {
                    break;
                }
            }
        }
        // Prefetch, which the geometry doesn't allow, and future operations.
        _ => {}
    }
    if rq.flags().fua {
        volume.flush().await?;
    }
    Ok(())
}

impl Driver for ObjectDriver {
    fn info(&self) -> Info {
        Info {
            hw_queues: usize::MAX,
            depth: DEPTH,
            knows_extents: true,
            ..Info::new("object", self.geometry)
        }
    }

    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let Some(size) = size else {
            let why = "an object store reports no size: give the new size";
            return Err(IoError::with(IoErrorKind::NotSupported, why));
        };
        let has = self.geometry.size;
        if size < has || size % BLOCK != 0 {
            let why = format!(
                "the new size {size} is less than the present {has}, or not a multiple of {BLOCK}"
            );
            return Err(IoError::with(IoErrorKind::InvalidInput, why));
        }
        self.ask(|told| Message::Grow(size, told))?;
        Ok(size)
    }

    fn condition(&self) -> Option<String> {
        self.volume.condition()
    }

    fn displaced(&self) -> Option<Displaced> {
        self.volume.displaced().map(|todo| Displaced { todo, blocks_changes: false })
    }

    fn is_outdated(&self) -> bool {
        self.volume.opening.outdated.is_some()
    }

    fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
        // One thread that serves all CPUs would be the bottleneck if it only copied.
        if perform_at_once(&self.volume, &mut rq) {
            rq.complete(Ok(()));
            return Dispatch::Started;
        }
        if let Err(mpsc::error::SendError(Message::Request(rq))) =
            self.requests.send(Message::Request(rq))
        {
            rq.complete(Err(IoError::with(IoErrorKind::Gone, "the volume's thread has ended")));
        }
        Dispatch::Started
    }
}
