//! A driver of volumes that are somebody else's exports: the client's side of the protocol.
//!
//! One thread for each volume has its connections and all that is on its way there: `README.md`
//! beside this file argues how nothing is lost between it and those that submit, what is sent again
//! after a connection broke, and what a flush promises then.
//!
//! | file | job |
//! |---|---|
//! | `uri` | where an export is. Pure |
//! | `shake` | the client's side of the handshake, over any bytes |
//! | `policy` | what an export is as a device; what a request is on the wire; errors; pauses. Pure |
//! | `table` | the requests, and which may be sent; which changes a flush covers, and which were lost |
//! | `answers` | what arrives, into the requests that it answers |
//! | `stream` | sockets, waiting |
//! | `tls` | the same bytes in TLS |
//! | `line` | the thread |

mod answers;
mod line;
mod policy;
pub mod shake;
mod stream;
mod table;
#[cfg(feature = "tls")]
mod tls;
mod uri;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Started};
use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::{Mutex, context, text, thread};
use rustix::event::{EventfdFlags, eventfd};

#[cfg(not(feature = "tls"))]
use crate::tls::client as tls;

pub use answers::fuzzed;
#[cfg(feature = "tls")]
pub use tls::RemoteTls;
#[cfg(not(feature = "tls"))]
use tls::RemoteTls;
pub use uri::{Uri, UriError};

/// Which export a volume is, and how it is reached.
#[derive(Clone)]
#[must_use]
pub struct RemoteOptions {
    uri: Uri,
    connections: usize,
    connect_timeout: Duration,
    timeout: Duration,
    read_only: bool,
    tls: Option<RemoteTls>,
    name: Option<String>,
    observer: Option<Arc<RemoteObserver>>,
}

/// The listener to what happens to a volume's connections.
pub type RemoteObserver = dyn Fn(&RemoteEvent) + Send + Sync;

impl RemoteOptions {
    /// The defaults: up to four connections, 5 s for each attempt to connect, 30 s for each
    /// request.
    pub fn new(uri: Uri) -> Self {
        Self {
            uri,
            connections: 4,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            read_only: false,
            tls: None,
            name: None,
            observer: None,
        }
    }

    /// How many connections there are at most, 1 to 16; one where the other side doesn't say that a
    /// flush on one covers all.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.clamp(1, policy::MOST_CONNECTIONS);
        self
    }

    /// How long an attempt to connect may take, with the handshake.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// How long a request may take, all attempts together, and how long requests wait while there
    /// is no connection: then it fails as timed out, up to one attempt to connect later.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// Whether changes are refused, also where the other side takes them.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// By what TLS is spoken, where the URI asks for it.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: RemoteTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// What the log is to call the device, beside the URI. Of a name of more than 256 bytes the
    /// middle is left out.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(text::bounded_name(name.into()));
        self
    }

    /// Is told what happens, on the volume's thread: it must not wait for requests of the volume. A
    /// panic in it is caught.
    pub fn observer(mut self, observer: impl Fn(&RemoteEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteOptions")
            .field("uri", &self.uri)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

/// Something that happened to a volume's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteEvent {
    /// They are gone.
    Lost {
        /// Why.
        why: String,
        /// Requests that were on their way, and will be sent again.
        requests: usize,
        /// Changes were acknowledged and not flushed: the next flush fails.
        unflushed: bool,
    },
    /// They are back.
    Back {
        /// After how long.
        after: Duration,
        /// How many there are.
        connections: usize,
    },
    /// There is no connection, and requests have stopped waiting for one: they fail at once.
    Down {
        /// Why the last attempt came to nothing.
        why: String,
    },
}

/// Where a volume stands with its other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteState {
    /// There are so many connections.
    Connected(usize),
    /// There is none; requests wait.
    Reconnecting,
    /// There has been none for too long; requests fail at once.
    Down,
}

/// What a volume is at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteStatus {
    /// Where it stands.
    pub state: RemoteState,
    /// How often it has lost its connections.
    pub losses: u64,
    /// How many requests were sent again.
    pub repeated: u64,
    /// How many flushes failed since changes may have been lost with a connection.
    pub unflushed: u64,
    /// Why it lost its connections the last time, or why there is none; empty where it never did.
    pub why: String,
}

impl fmt::Display for RemoteStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            RemoteState::Connected(1) => f.write_str("connected")?,
            RemoteState::Connected(n) => write!(f, "{n} connections")?,
            RemoteState::Reconnecting => write!(f, "connecting again ({})", self.why)?,
            RemoteState::Down => write!(f, "no connection ({})", self.why)?,
        }
        if self.losses > 0 {
            write!(f, ", lost {} times, {} requests sent again", self.losses, self.repeated)?;
        }
        if self.unflushed > 0 {
            write!(f, ", {} flushes failed for it", self.unflushed)?;
        }
        Ok(())
    }
}

/// Why a volume can't be had, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteError(String);

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RemoteError {}

/// A volume that is somebody else's export.
///
/// ```
/// use std::sync::Arc;
/// use corewise_blockmq::{BlockDeviceExt, Queue};
/// use corewise_drivers::Memory;
/// use corewise_nbd::{Export, Options, Remote, RemoteOptions, Server};
/// # use corewise_topology::Machine;
/// # use corewise_workqueue::{WorkerPools, Workqueue};
/// # let machine = Machine::live()?;
/// # let pools = WorkerPools::new(&machine);
/// # let wq = Workqueue::builder("block").build(&pools)?;
///
/// let ram = Queue::builder(&machine, Arc::new(Memory::new(1 << 20)?)).build(&wq);
/// let server = Server::new(Options::default());
/// server.add_export(Export::new("ram", ram))?;
/// let uri = server.listen_tcp("127.0.0.1:0")?.uri("ram");
///
/// // Perhaps on another machine:
/// let remote = Remote::connect(RemoteOptions::new(uri.parse()?))?;
/// let disk = Queue::builder(&machine, Arc::new(remote)).name("remote").build(&wq);
/// disk.write_at(4096, vec![7; 512])?;
/// disk.flush()?;
/// assert_eq!(disk.read_at(4096, 512)?, [7; 512][..]);
/// # drop(disk);
/// # server.drain(std::time::Duration::from_secs(10));
/// # drop(server);
/// # pools.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What it promises
///
/// * A **change** that succeeded was done by the other side. Nothing is made up of requests that
///   were cut off: one that wasn't answered when a connection broke is sent again on the next, up
///   to five times, until its time is over. No two changes of one block are on their way together,
///   so what is sent again undoes nothing that came later.
/// * A **flush** that succeeded covers all changes that succeeded before it. The protocol doesn't
///   say whether a new connection leads to the same server or to one that started anew and lost
///   what its cache held: so where changes were acknowledged and not flushed when connections
///   broke, the next flush fails, once, with an I/O error, and until then reads of those blocks do,
///   unless they were written anew. A mirror then drops the leg and copies what it may lack.
///
/// # What it can't promise
///
/// * A request that timed out, or was sent before a connection broke, may still be done by the
///   other side, later: nobody can take it back there.
/// * Where the other side has no flush, a flush sends nothing: it says only that no connection was
///   lost. How durable changes are is known to the other side alone.
/// * The export has no other writer meanwhile; nobody looks for one.
/// * It has the size that it had first, until it is [told to grow](Driver::grow) to one with which
///   it came back. One that comes back smaller, or can do less than before, is refused.
pub struct Remote {
    shared: Arc<VolumeShared>,
    thread: Option<thread::JoinHandle<()>>,
    geometry: Geometry,
    hw_queues: usize,
    knows_extents: bool,
}

/// What the thread shares with those that submit and look.
struct VolumeShared {
    options: RemoteOptions,
    /// Requests that the thread hasn't seen yet.
    fresh: Inbox<Box<NewRequest>>,
    /// An eventfd: rung by the push that finds the inbox empty, and to end.
    wake: OwnedFd,
    /// A: the driver is gone. Relaxed: it carries nothing, and the eventfd is rung behind it.
    stop: AtomicBool,
    /// A: the driver will soon be gone. As `stop`.
    ending: AtomicBool,
    /// A: how many connections there are, or one of the two below. Set by the thread; Relaxed, for
    /// reports.
    state: AtomicU32,
    /// A: for reports, Relaxed. All are counted by the thread.
    losses: AtomicU64,
    /// A: as above.
    repeated: AtomicU64,
    /// A: as above.
    unflushed: AtomicU64,
    /// L: is the lock; guards how long the device is, and the export.
    sizes: Mutex<VolumeSizes>,
    /// L: is the lock; guards why connections were lost, or why there is none.
    why: Mutex<String>,
}

/// How long the two sides are, in whole blocks of the device.
struct VolumeSizes {
    device: u64,
    /// As the connections that are there, or were last, said.
    export: u64,
}

/// Values of the state word that are no numbers of connections.
const RECONNECTING: u32 = u32::MAX;
const DOWN: u32 = u32::MAX - 1;

struct NewRequest {
    link: Link,
    rq: Started,
}

// SAFETY: `link` returns the one field of `self`, which no other value returns.
unsafe impl HasLink for NewRequest {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl VolumeShared {
    fn ring(&self) {
        // Fails only where the counter is full, and then the thread is being woken anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Remote {
    /// Connects, and finds out what the export is. Blocks, for as long as
    /// [`RemoteOptions::connect_timeout`] says, and while a name is looked up.
    ///
    /// # Errors
    /// Where the other side isn't there, has no such export, doesn't keep to the protocol, or
    /// offers what no device can be; where the system gives no thread.
    #[track_caller]
    pub fn connect(options: RemoteOptions) -> Result<Remote, RemoteError> {
        let failed = |why: String| RemoteError(format!("{}: {why}", options.uri));
        if options.uri.tls() && options.tls.is_none() {
            return Err(failed("TLS needs the certificates of an authority".to_owned()));
        }
        if options.uri.tls() && options.uri.hostname().is_none() {
            return Err(failed(
                "TLS needs a name: write tls-hostname=NAME behind the '?'".to_owned(),
            ));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|error| failed(format!("no eventfd: {error}")))?;
        let shared = Arc::new(VolumeShared {
            options: options.clone(),
            fresh: Inbox::new(),
            wake,
            stop: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            state: AtomicU32::new(RECONNECTING),
            losses: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            unflushed: AtomicU64::new(0),
            sizes: Mutex::new(VolumeSizes { device: 0, export: 0 }),
            why: Mutex::default(),
        });
        let mut clock = line::clock(&options);
        let begun = context::blocking("a connection to an export", || {
            line::begin(&shared, None, &mut clock)
        });
        let (connections, agreed) = begun.map_err(&failed)?;
        let geometry = policy::geometry(&agreed, options.read_only).map_err(&failed)?;
        *shared.sizes.lock() = VolumeSizes { device: geometry.size, export: geometry.size };
        let hw_queues = connections.len();
        let knows_extents = agreed.allocation.is_some();
        shared.state.store(hw_queues as u32, Ordering::Relaxed);
        let thread = line::start(Arc::clone(&shared), connections, agreed, geometry, clock);
        let no_thread =
            |error| failed(format!("no thread for it: {error}{}", text::thread_remedy(&error)));
        let thread = Some(thread.map_err(no_thread)?);
        Ok(Remote { shared, thread, geometry, hw_queues, knows_extents })
    }

    /// What it is at, a moment ago. Any context that may take a lock for a moment.
    pub fn status(&self) -> RemoteStatus {
        let shared = &self.shared;
        let state = match shared.state.load(Ordering::Relaxed) {
            RECONNECTING => RemoteState::Reconnecting,
            DOWN => RemoteState::Down,
            n => RemoteState::Connected(n as usize),
        };
        RemoteStatus {
            state,
            losses: shared.losses.load(Ordering::Relaxed),
            repeated: shared.repeated.load(Ordering::Relaxed),
            unflushed: shared.unflushed.load(Ordering::Relaxed),
            why: shared.why.lock().clone(),
        }
    }

    /// To be called where the volume is about to be closed. From then on one request that isn't
    /// answered within [`RemoteOptions::timeout`] is enough: all others fail with it, later ones
    /// fail at once, and no connection is sought any more. So are they while there is no connection
    /// and requests fail at once anyway. A server that is silent holds up an end by one timeout
    /// then, however many flushes come one after the other. Where the other side answers, nothing
    /// changes. Any context.
    pub fn ends_soon(&self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        self.shared.ring();
    }
}

impl Driver for Remote {
    fn info(&self) -> Info {
        Info {
            // One for each connection that it began with.
            hw_queues: self.hw_queues,
            depth: policy::DEPTH,
            knows_extents: self.knows_extents,
            ..Info::new("nbd", self.geometry)
        }
    }

    /// To what the other side said when it was connected the last time: nothing tells of a size
    /// while a connection lasts.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let mut sizes = self.shared.sizes.lock();
        let new = size.unwrap_or(sizes.device.max(sizes.export));
        if new < sizes.device || new % u64::from(self.geometry.block_size) != 0 {
            let why = format!(
                "{new} bytes are no whole blocks of {}, or less than the {} that it has",
                self.geometry.block_size, sizes.device
            );
            return Err(IoError::with(IoErrorKind::InvalidInput, why));
        }
        if new > sizes.export {
            let why = format!(
                "the other side had {} bytes when it was connected the last time: make it longer there, and let the connections \
                 end, as a restart of that server does",
                sizes.export
            );
            return Err(IoError::with(IoErrorKind::NoSpace, why));
        }
        sizes.device = new;
        Ok(new)
    }

    fn condition(&self) -> Option<String> {
        Some(self.status().to_string())
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if self.shared.fresh.push(Box::new(NewRequest { link: Link::new(), rq })) {
            self.shared.ring();
        }
        Dispatch::Started
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("options", &self.shared.options)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl Drop for Remote {
    /// Nothing is on its way: each request keeps its queue, and with it the driver, alive.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            // The last request's completion may drop the driver on the thread itself.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("the thread of a remote volume panicked");
            }
        }
    }
}
