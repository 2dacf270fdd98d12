//! The client's side of the protocol: a driver of volumes that are another server's exports.
//!
//! Each volume has one thread, which owns its connections and the requests on their way.
//! `README.md` beside this file argues that no request is lost between that thread and the
//! submitters. It also has the requests that are sent again after a connection broke, and the
//! promise of a flush then.
//!
//! | file | job |
//! |---|---|
//! | `uri` | URIs of exports. Pure |
//! | `client_handshake` | the client's side of the handshake, over any bytes |
//! | `policy` | the device that an export makes; requests on the wire; errors; pauses. Pure |
//! | `table` | requests, and which may be sent; the changes that a flush covers or that were lost |
//! | `replies` | parses replies, and puts their data into the requests |
//! | `stream` | sockets, waiting; a connection up to the end of its handshake |
//! | `session` | such a connection, for a program that hands its socket on |
//! | `tls` | the same bytes in TLS |
//! | `volume_thread` | the thread |

pub mod client_handshake;
mod policy;
mod replies;
pub(crate) mod session;
mod stream;
mod table;
#[cfg(feature = "tls")]
mod tls;
mod uri;
mod volume_thread;

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

pub use replies::fuzzed;
#[cfg(feature = "tls")]
pub use tls::RemoteTls;
#[cfg(not(feature = "tls"))]
use tls::RemoteTls;
pub use uri::{Uri, UriError};

/// Options of a volume: its export, connections and timeouts.
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
    checkpoint: Option<String>,
    observer: Option<Arc<RemoteObserver>>,
}

/// The listener for events of a volume's connections.
pub type RemoteObserver = dyn Fn(&RemoteEvent) + Send + Sync;

impl RemoteOptions {
    /// Creates the default options: up to four connections, 5 s for each attempt to connect, 30 s
    /// for each request.
    pub fn new(uri: Uri) -> Self {
        Self {
            uri,
            connections: 4,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            read_only: false,
            tls: None,
            name: None,
            checkpoint: None,
            observer: None,
        }
    }

    /// Sets the largest number of connections, 1 to 16. If the server doesn't advertise that a
    /// flush on one connection covers all, the volume uses one.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.clamp(1, policy::MOST_CONNECTIONS);
        self
    }

    /// Sets the timeout of an attempt to connect, including the handshake.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// Sets the timeout of a request, all attempts together. Requests also wait this long while
    /// there is no connection. Then they fail as timed out, up to one attempt to connect later.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// Sets whether changes are refused, even if the server accepts them.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the TLS configuration that is used if the URI asks for TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: RemoteTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the device's name in the log, beside the URI. A name of more than 256 bytes loses its
    /// middle.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(text::bounded_name(name.into()));
        self
    }

    /// Sets a checkpoint of the export. The extents of the volume then tell what changed since:
    /// data may have changed, zeroes have not. The server has to offer the metadata context
    /// `qemu:dirty-bitmap:NAME`.
    pub fn changed_since(mut self, checkpoint: impl Into<String>) -> Self {
        self.checkpoint = Some(checkpoint.into());
        self
    }

    /// Sets a function that is called with each event, on the volume's thread. It must not wait for
    /// requests of the volume. A panic in it is caught.
    pub fn observer(mut self, observer: impl Fn(&RemoteEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl RemoteOptions {
    /// Returns an error if the URI asks for TLS and something for it is missing.
    fn verify(&self) -> Result<(), RemoteError> {
        let lacks = match (self.uri.tls(), &self.tls, self.uri.hostname()) {
            (true, None, _) => "TLS needs the certificates of an authority",
            (true, _, None) => "TLS needs the server's name: write tls-hostname=NAME after the '?'",
            _ => return Ok(()),
        };
        Err(RemoteError(format!("{}: {lacks}", self.uri)))
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
    /// The connections are lost.
    Lost {
        /// The reason.
        why: String,
        /// Requests that were on their way and will be sent again.
        requests: usize,
        /// True if changes were acknowledged and not flushed: the next flush fails.
        unflushed: bool,
    },
    /// The volume is connected again.
    Back {
        /// Time since the connections were lost.
        after: Duration,
        /// Number of connections.
        connections: usize,
    },
    /// The volume has had no connection for too long: waiting requests fail, and later ones fail at
    /// once.
    Down {
        /// Reason of the last attempt's failure.
        why: String,
    },
}

/// The state of a volume's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteState {
    /// The volume has this many connections.
    Connected(usize),
    /// The volume has no connection, and requests wait.
    Reconnecting,
    /// The volume has had no connection for too long, and requests fail at once.
    Down,
}

/// A volume's state and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteStatus {
    /// State of its connections.
    pub state: RemoteState,
    /// Number of times that its connections were lost.
    pub losses: u64,
    /// Number of requests that were sent again.
    pub repeated: u64,
    /// Number of flushes that failed because changes may have been lost with a connection.
    pub unflushed: u64,
    /// Reason of the last loss of its connections, or of the last failure to connect. Empty if
    /// there was none.
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
            write!(f, ", {} flushes failed because of that", self.unflushed)?;
        }
        Ok(())
    }
}

/// The reason why a volume can't be connected, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteError(String);

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RemoteError {}

/// A volume that is another server's export.
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
/// * A **change** that succeeded was done by the server. A request without a reply when a
///   connection breaks is sent again on the next one, up to five times within its timeout. No two
///   changes of one block are on their way together, so a change that is sent again undoes no later
///   one.
/// * A **flush** that succeeded covers all changes that succeeded before it. The protocol doesn't
///   say whether a new connection leads to the same server, or to one that restarted and lost its
///   cache. So if changes were acknowledged and not flushed when connections broke, the next flush
///   fails once with an I/O error. Until then reads of those blocks fail too, unless they were
///   written anew. A mirror then drops the leg and copies the blocks that it may lack.
///
/// # What it can't promise
///
/// * If a request timed out, or was sent before a connection broke, the server may still carry it
///   out later. No client can cancel it there.
/// * If the server offers no flush, a flush sends nothing: it says only that no connection was
///   lost. Only the server knows how durable its changes are.
/// * The export must have no other writer meanwhile; the volume doesn't check for one.
/// * The volume keeps its first size until it is [told to grow](Driver::grow) to the size with
///   which the export came back. An export that comes back smaller, or with fewer abilities, is
///   refused.
pub struct Remote {
    shared: Arc<VolumeShared>,
    thread: Option<thread::JoinHandle<()>>,
    geometry: Geometry,
    hw_queues: usize,
    knows_extents: bool,
}

/// State that the volume's thread shares with submitters and observers.
struct VolumeShared {
    options: RemoteOptions,
    /// Requests that the thread hasn't seen yet.
    fresh: Inbox<Box<NewRequest>>,
    /// An eventfd. A push into the empty inbox writes to it, and so does the end of the driver.
    wake: OwnedFd,
    /// A: the driver is gone. Relaxed: the flag carries no data, and the write to the eventfd
    /// follows it.
    stop: AtomicBool,
    /// A: the driver will soon be gone. Otherwise as `stop`.
    ending: AtomicBool,
    /// A: the number of connections, or one of the two values below. Set by the thread; Relaxed,
    /// for reports.
    state: AtomicU32,
    /// A: for reports, Relaxed. The thread counts these three.
    losses: AtomicU64,
    /// A: as `losses`.
    repeated: AtomicU64,
    /// A: as `losses`.
    unflushed: AtomicU64,
    /// L: is the lock; guards the sizes of device and export.
    sizes: Mutex<VolumeSizes>,
    /// L: is the lock; guards the reason why connections were lost or can't be made.
    why: Mutex<String>,
}

/// The sizes of device and export, in whole blocks of the device.
struct VolumeSizes {
    device: u64,
    /// Size that the present or last connections reported.
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
        // Fails only if the counter is full, and then the thread is being woken anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Remote {
    /// Connects, and reads the properties of the export. Blocks for up to
    /// [`RemoteOptions::connect_timeout`], and while a name is resolved.
    ///
    /// # Errors
    /// If the server can't be reached, has no such export, violates the protocol, or offers
    /// properties that no device can have. Also if the system can't start a thread.
    #[track_caller]
    pub fn connect(options: RemoteOptions) -> Result<Remote, RemoteError> {
        let failed = |why: String| RemoteError(format!("{}: {why}", options.uri));
        options.verify()?;
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
        let mut clock = stream::clock(&options);
        let begun = context::blocking("a connection to an export", || {
            volume_thread::begin(&shared, None, &mut clock)
        });
        let (connections, agreed) = begun.map_err(&failed)?;
        let geometry = policy::geometry(&agreed, options.read_only).map_err(&failed)?;
        *shared.sizes.lock() = VolumeSizes { device: geometry.size, export: geometry.size };
        let hw_queues = connections.len();
        let knows_extents = agreed.allocation.is_some();
        shared.state.store(hw_queues as u32, Ordering::Relaxed);
        let thread =
            volume_thread::start(Arc::clone(&shared), connections, agreed, geometry, clock);
        let no_thread =
            |error| failed(format!("no thread for it: {error}{}", text::thread_remedy(&error)));
        let thread = Some(thread.map_err(no_thread)?);
        Ok(Remote { shared, thread, geometry, hw_queues, knows_extents })
    }

    /// Returns the volume's state a moment ago. Any context that may take a lock for a moment.
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

    /// Announces that the volume is about to be closed.
    ///
    /// From then on, one request that isn't answered within [`RemoteOptions::timeout`] is enough.
    /// All others fail with it, later ones fail at once, and the volume stops connecting. The same
    /// happens if there is no connection and requests already fail at once. So a silent server
    /// delays the end by one timeout, however many flushes follow each other. If the server
    /// answers, nothing changes. Any context.
    pub fn ends_soon(&self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        self.shared.ring();
    }
}

impl Driver for Remote {
    fn info(&self) -> Info {
        Info {
            // One for each of the initial connections.
            hw_queues: self.hw_queues,
            depth: policy::DEPTH,
            knows_extents: self.knows_extents,
            ..Info::new("nbd", self.geometry)
        }
    }

    /// Grows to the size that the server reported at the last handshake: while a connection lasts,
    /// the server reports no size.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let mut sizes = self.shared.sizes.lock();
        let new = size.unwrap_or(sizes.device.max(sizes.export));
        if new < sizes.device || new % u64::from(self.geometry.block_size) != 0 {
            let why = format!(
                "the new size {new} is not a multiple of the block size {}, or is less than the \
                 present size {}",
                self.geometry.block_size, sizes.device
            );
            return Err(IoError::with(IoErrorKind::InvalidInput, why));
        }
        if new > sizes.export {
            let why = format!(
                "the export had {} bytes at the last handshake. Enlarge the export at its server, \
                 then restart that server: the next handshake reports the new size",
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
    /// Stops the thread. No request is on its way: each keeps its queue, and with it the driver,
    /// alive.
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
