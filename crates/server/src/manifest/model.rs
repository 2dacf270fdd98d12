//! What a manifest asks for.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corewise::blockmq::{HwQueues, IoScheduler, IoStats, RqAffinity};
use corewise::device::HangPolicy;
use corewise::drivers::{Degraded, Delays, Fault, OnLoss};
use corewise::nbd::Uri;

use super::problem::{At, Place, Problem, Subject};
use crate::error::Error;

/// How long exports may go on answering what is in flight at shutdown, unless `drain` says else.
pub(crate) const DEFAULT_DRAIN: Duration = Duration::from_secs(5);

impl Driver {
    /// Its name in manifests.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Driver::Memory { .. } => "memory",
            Driver::Null { .. } => "null",
            Driver::File(_) => "file",
            Driver::Remote(_) => "nbd",
            Driver::Object(_) => "object",
            Driver::Stripe { .. } => "stripe",
            Driver::Mirror(_) => "mirror",
            Driver::Partition { .. } => "partition",
            Driver::Delay { .. } => "delay",
            Driver::Error { .. } => "error",
        }
    }

    /// The devices that it is built over, in order.
    pub(crate) fn over(&self) -> &[String] {
        match self {
            Driver::Memory { .. }
            | Driver::Null { .. }
            | Driver::File(_)
            | Driver::Remote(_)
            | Driver::Object(_) => &[],
            Driver::Stripe { over, .. } => over,
            Driver::Mirror(mirror) => &mirror.over,
            Driver::Partition { over, .. }
            | Driver::Delay { over, .. }
            | Driver::Error { over, .. } => std::slice::from_ref(over),
        }
    }
}

impl Manifest {
    pub(crate) fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    pub(crate) fn export(&self, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.name == name)
    }

    /// Keeps what `keep` says of the names of devices, which those of exports begin with `export:` among.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.devices.retain(|device| keep(&device.name));
        self.exports.retain(|export| keep(&export_name(&export.name)));
    }

    /// The devices that are built over that one.
    pub(crate) fn built_over<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a Device> {
        self.devices
            .iter()
            .filter(move |device| device.driver.over().iter().any(|over| over == part))
    }

    /// Its devices by their names.
    pub(crate) fn by_name(&self) -> HashMap<&str, &Device> {
        self.devices.iter().map(|device| (device.name.as_str(), device)).collect()
    }

    /// The devices that need each one, directly.
    pub(crate) fn consumers(&self) -> HashMap<&str, Vec<&Device>> {
        let mut consumers: HashMap<&str, Vec<&Device>> = HashMap::new();
        for device in &self.devices {
            for supplier in &device.suppliers {
                consumers.entry(supplier).or_default().push(device);
            }
        }
        consumers
    }

    /// The devices that the others come up without: a mirror that may begin without all of its legs
    /// is built over each of them, in however many steps.
    pub(crate) fn may_be_missing(&self) -> BTreeSet<String> {
        let by_name = self.by_name();
        let degraded = |device: &&Device| matches!(&device.driver, Driver::Mirror(mirror) if mirror.begins_degraded());
        let mut todo: Vec<&str> = Vec::new();
        for mirror in self.devices.iter().filter(degraded) {
            todo.extend(mirror.driver.over().iter().map(String::as_str));
        }
        let mut found = BTreeSet::new();
        while let Some(name) = todo.pop() {
            if let Some(device) = by_name.get(name).filter(|_| !found.contains(name)) {
                found.insert(name.to_string());
                todo.extend(device.driver.over().iter().map(String::as_str));
            }
        }
        found
    }
}

/// What an export is called among devices; no device of a manifest has a colon in its name.
pub(crate) fn export_name(export: &str) -> String {
    format!("export:{export}")
}

/// What a manifest asks for, checked as far as that is possible without touching anything.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The `[server]` table.
    pub server: Server,
    /// In the order of the file.
    pub devices: Vec<Device>,
    /// In the order of the file, which is also the order in which clients see them.
    pub exports: Vec<Export>,
}

/// Where to listen, and how long to drain.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// The Unix socket for clients.
    pub unix: Option<At<PathBuf>>,
    /// `HOST:PORT`.
    pub tcp: Option<At<String>>,
    pub(crate) drain: Duration,
    /// Where the control socket is to be, unless in the usual place.
    pub control: Option<At<PathBuf>>,
    /// Where Prometheus may ask.
    pub(crate) metrics: Option<At<MetricsAt>>,
    /// The folder that records how long devices take to go down.
    pub state: Option<PathBuf>,
    /// How long the whole shutdown may take.
    pub(crate) shutdown_timeout: Option<Duration>,
    /// What is done about a device whose shutdown hangs.
    pub on_hang: HangPolicy,
    pub(crate) clients: Clients,
    pub(crate) tls: Option<Tls>,
}

/// Where metrics are to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAt {
    /// `HOST:PORT`.
    Tcp(String),
    Unix(PathBuf),
}

/// What clients may have. `None`: as is usual.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Clients {
    /// Bytes of memory for all of them.
    pub(crate) memory: Option<u64>,
    /// How many at the same time.
    pub(crate) most: Option<usize>,
    /// How many of one address or user.
    pub(crate) per_peer: Option<usize>,
    /// How long one has to be idle to make room for another.
    pub(crate) evict_idle: Option<Duration>,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) reply_timeout: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
    /// Whether they may have extended headers.
    pub(crate) extended_headers: bool,
}

/// A volume, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    pub(crate) name: String,
    /// Where its table begins.
    pub(crate) place: Place,
    pub(crate) driver: Driver,
    pub(crate) tuning: Tuning,
    /// Devices that must be up before this one and are shut down after it: the parts it is built
    /// over, then those named in `suppliers`. Each once.
    pub(crate) suppliers: Vec<String>,
    /// The NUMA node that it is near to.
    pub(crate) node: Option<At<u32>>,
    /// How long bringing it up may take before it is named.
    pub(crate) probe_timeout: Option<Duration>,
    /// How long shutting it down may take before it is named.
    pub(crate) shutdown_timeout: Option<Duration>,
}

/// What a device is made of. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Driver {
    Memory {
        size: u64,
        block_size: u32,
    },
    Null {
        size: u64,
        block_size: u32,
    },
    File(FileDriver),
    Remote(Remote),
    Object(Object),
    Stripe {
        over: Vec<String>,
        chunk: u32,
    },
    Mirror(Mirror),
    /// `which`: number, name or GUID in the table.
    Partition {
        over: String,
        which: At<String>,
    },
    Delay {
        over: String,
        delays: Delays,
    },
    Error {
        over: String,
        fault: Fault,
        seed: u64,
    },
}

/// Parts with the same data.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mirror {
    pub(crate) over: Vec<String>,
    /// Whether it keeps a record on its legs; `None`: where that outlives the server.
    pub(crate) bitmap: Option<bool>,
    /// How long after it failed a leg is tried again.
    pub(crate) retry: Option<Duration>,
    /// Which legs may be missing when it comes up.
    pub(crate) degraded: Degraded,
    /// Bytes a second of a resync.
    pub(crate) resync_least: Option<u64>,
    pub(crate) resync_most: Option<u64>,
    /// How long after the end of a check the next one begins, at the latest.
    pub(crate) check_every: Option<Duration>,
}

impl Mirror {
    /// Whether it may come up without one of its legs.
    fn begins_degraded(&self) -> bool {
        self.bitmap != Some(false) && self.degraded != Degraded::Never
    }
}

/// A file, or a disk of this machine, as a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileDriver {
    pub(crate) path: At<PathBuf>,
    /// Make the file if it isn't there. Needs `size`.
    pub(crate) create: bool,
    /// The size that the file has to have, or gets when it is made.
    pub(crate) size: Option<At<u64>>,
    pub(crate) block_size: u32,
    pub(crate) io: Io,
    /// Whether to go past the page cache.
    pub(crate) direct: bool,
    /// Where its changes are logged.
    pub(crate) write_log: Option<PathBuf>,
    /// For when somebody else truncates or unlinks it.
    pub(crate) on_lost: OnLoss,
    pub(crate) read_only: bool,
}

/// How a file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// io_uring where the kernel lets us, threads where it doesn't.
    Auto,
    /// io_uring, or the device fails.
    Uring,
    /// pread and pwrite on worker threads.
    Threads,
}

/// A device that clients can see.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// Its name, which may be empty.
    pub name: String,
    pub(crate) place: Place,
    /// The device that clients see.
    pub device: String,
    /// Whether clients may only read.
    pub read_only: bool,
    pub(crate) description: Option<String>,
    /// How many clients at the same time.
    pub clients: Option<usize>,
    /// The users of this machine that it is for; `None`: all.
    pub(crate) allow_uids: Option<Vec<u32>>,
    /// The names in certificates that it is for, beside these.
    pub(crate) allow_certificates: Option<Vec<String>>,
    /// What all its clients together may do in a second, and each of them.
    pub(crate) limit: Option<Limit>,
    pub(crate) client_limit: Option<Limit>,
    /// Whether the empty name means it.
    pub(crate) default: bool,
    /// As a device's.
    pub(crate) shutdown_timeout: Option<Duration>,
}

/// How much may go through in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) iops: Option<u64>,
    pub(crate) bytes: Option<u64>,
}

/// Something that can't be brought up, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// What it is.
    pub subject: Subject,
    /// The reason in words.
    pub why: String,
}

/// The part of a manifest that can run, and what is wrong with the rest.
#[derive(Debug)]
pub struct Resolved {
    /// Only what has no problem and depends on nothing that has one.
    pub manifest: Manifest,
    /// In the order of the file.
    pub problems: Vec<Problem>,
    /// What is missing from `manifest`: those with a problem, and those that need them.
    pub left_out: Vec<LeftOut>,
    /// The problems concern the manifest or its `[server]` table, so that nothing can run.
    pub fatal: bool,
}

impl Resolved {
    /// Returns a manifest without a problem; `label` is how messages call it.
    ///
    /// # Errors
    /// The problems, a line each.
    pub fn into_manifest(self, label: &str) -> Result<Manifest, Error> {
        if self.problems.is_empty() {
            return Ok(self.manifest);
        }
        let each = self.problems.iter().map(|problem| problem.display(label).to_string());
        Err(Error::new(each.collect::<Vec<_>>().join("\n")))
    }
}

/// A volume in an object store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) location: At<String>,
    /// A volume that isn't there is made with it.
    pub(crate) size: Option<At<u64>>,
    /// A volume that isn't there is made as a clone of it.
    pub(crate) parent: Option<Parent>,
    pub(crate) lease: Option<Duration>,
    /// Where flushes are kept, unless in the store.
    pub(crate) flush_file: Option<PathBuf>,
    /// The opening of a server whose flushes are given up.
    pub(crate) accept_lost_flushes: Option<String>,
    pub(crate) request_timeout: Option<Duration>,
    /// Where a server is that speaks S3, and in which region; else the environment says.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    /// Its name.
    pub(crate) compression: Option<String>,
    pub(crate) key: Option<At<KeyFrom>>,
    pub(crate) read_cache: Option<u64>,
}

/// A snapshot of another volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parent {
    pub(crate) location: At<String>,
    pub(crate) snapshot: At<String>,
}

/// Where the key of an encrypted volume is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyFrom {
    File(PathBuf),
    /// A variable of the environment.
    Env(String),
}

/// Somebody else's export as a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Remote {
    pub(crate) uri: At<Uri>,
    /// How many connections, at most.
    pub(crate) connections: Option<usize>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) read_only: bool,
    pub(crate) tls: Option<RemoteTls>,
}

/// By what it is known in TLS.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RemoteTls {
    /// Its authorities.
    pub(crate) ca: At<PathBuf>,
    /// What we show it, and the key of that.
    pub(crate) identity: Option<(At<PathBuf>, At<PathBuf>)>,
}

/// How clients come in by TLS.
#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    /// Others are refused.
    pub required: bool,
    pub(crate) certificate: At<PathBuf>,
    pub(crate) key: At<PathBuf>,
    /// The authorities of clients; `None`: they need no certificate.
    pub client_ca: Option<At<PathBuf>>,
}

/// How the queue of a volume is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tuning {
    /// `None`: as many as the driver likes.
    pub(crate) hw_queues: Option<HwQueues>,
    pub(crate) scheduler: IoScheduler,
    /// How long a request may be in the driver; `None`: as long as it takes.
    pub(crate) timeout: Option<Duration>,
    pub(crate) rq_affinity: RqAffinity,
    pub(crate) iostats: IoStats,
}

/// What a socket address has room for, less the closing zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// Why a socket can't have this path.
pub fn too_long(path: &Path) -> Option<String> {
    let len = path.as_os_str().len();
    (len > LONGEST_SOCKET_PATH).then(|| {
        format!(
            "a socket's path must have at most {LONGEST_SOCKET_PATH} bytes, but this one has {len}: {}",
            path.display()
        )
    })
}
