//! Options for opening a volume, and errors about them.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;

use crate::error::{OpenError, OpenErrorKind};
use crate::format::{BLOCK, Compression, ObjectKey, OpeningId, names};
use crate::local::A_LEG;
use crate::log::{CloneSource, FlushesMissing, NotOpen};
use crate::store::{Cloud, Folder, Overlap, Store, volume_around};
use crate::volume::Tuning;
use crate::volume::policy::{self, Compaction};
use crate::volume::{ObjectEvent, Observer};

/// Bytes of a batch, and usually of a segment.
const BATCH: u64 = 8 << 20;
/// Maximum bytes of data that lie in their record. Sending that many takes less time than another
/// request.
const INLINE: u64 = 256 << 10;
/// Bytes that may wait for the store.
const DIRTY: u64 = 64 << 20;
/// Bytes that compaction usually moves in a second.
const RATE: u64 = 16 << 20;

/// Default size of the read cache, in bytes.
const CACHE: u64 = 64 << 20;

/// Options for opening a volume.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    pub(crate) location: String,
    /// Name of the device in log lines.
    pub(crate) name: Option<String>,
    settings: Vec<(String, String)>,
    pub(crate) observer: Observer,
    pub(crate) size: Option<u64>,
    pub(crate) lease: Duration,
    pub(crate) patience: Duration,
    pub(crate) age: Duration,
    pub(crate) flush_file: Option<PathBuf>,
    pub(crate) accept_lost: Option<OpeningId>,
    pub(crate) compression: Compression,
    pub(crate) key: Option<ObjectKey>,
    pub(crate) read_cache: u64,
    /// A parent's location, and one of its snapshots.
    from: Option<(String, String)>,
}

impl ObjectOptions {
    /// Creates options for the volume at `location`: `s3://bucket/prefix`, `gs://bucket/prefix`
    /// (Google Cloud Storage), `az://container/prefix` (Azure), `file:///folder`, or `memory:`,
    /// which is gone with the driver. Buckets need the crate's feature `cloud`. Keys, region and
    /// endpoint come from the environment, as the clients of these stores have them
    /// (`AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and others),
    /// unless a [setting](Self::setting) says otherwise.
    pub fn new(location: &str) -> Self {
        Self {
            location: location.to_owned(),
            name: None,
            settings: Vec::new(),
            observer: Observer::default(),
            size: None,
            lease: Duration::from_secs(5),
            patience: Duration::from_secs(60),
            age: Duration::from_secs(5),
            flush_file: None,
            accept_lost: None,
            compression: Compression::None,
            key: None,
            read_cache: CACHE,
            from: None,
        }
    }

    /// Sets the name of the device in log lines. Default: none, as the location is in them.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the size in bytes, a multiple of 4096. A new volume is made with this size; an existing
    /// one grows to it, and never shrinks. Without a size the volume must exist.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Sets how long one check for another server stays valid; 5 seconds by default. When it
    /// expires, a read waits for one more small request. If this server is killed, the next one
    /// waits this long before its first change.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long a request waits for the store before it fails; 60 seconds by default. Accepted
    /// writes are still sent after that.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the method by which data is compressed before it goes to the store; none by default.
    /// Blocks that don't shrink are stored as they are. Existing data is readable with any method.
    #[must_use]
    pub fn compression(mut self, by: Compression) -> Self {
        self.compression = by;
        self
    }

    /// Sets how the server of a bucket is reached, instead of by the environment: `endpoint`, and
    /// others by the names of the environment's variables without their `AWS_`, `GOOGLE_` or
    /// `AZURE_` (`region`, `access_key_id`). An endpoint that begins with `http://` needs no
    /// `allow_http`. Other locations have no settings.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Keeps flushes in this file: a flush is answered once the writes are durable in the file, and
    /// the store gets them some seconds later. If the file doesn't exist, it is made, of some 130
    /// MiB. It is locked. After a crash of the program or the system, opening the volume with the
    /// file puts into the store what only the file has. The file is refused if another server has
    /// opened the volume meanwhile. **A change that isn't in the store is lost with the machine, or
    /// its disk**, and another machine doesn't see it.
    ///
    /// A volume whose last server kept flushes in a file and didn't
    /// [close](crate::ObjectDriver::close) it opens with that file only, even if the next server
    /// has no flush file: see [`accept_lost_flushes`](Self::accept_lost_flushes).
    #[must_use]
    pub fn flush_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.flush_file = Some(path.into());
        self
    }

    /// Opens the volume even if flushes are lost that the server of this opening kept in its [flush
    /// file](Self::flush_file). The error of a refused opening names that server's opening. The
    /// acceptance is for that server alone: left in a configuration, it gives up nothing later, not
    /// even of another volume that is made at this location.
    #[must_use]
    pub fn accept_lost_flushes(mut self, of: OpeningId) -> Self {
        self.accept_lost = Some(of);
        self
    }

    /// Calls `observer` for each event, on the volume's thread: it mustn't block. It is dropped
    /// there, too.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&ObjectEvent) + Send + Sync + 'static) -> Self {
        self.observer = Observer::new(observer);
        self
    }

    /// Sets the key by which the volume is encrypted. The key isn't kept in the store. A new volume
    /// is made with it; an existing one opens only by the key that it was made with. Without a key
    /// nothing is encrypted. The documentation of the driver says what is still visible
    /// (`docs/object.md`).
    #[must_use]
    pub fn key(mut self, key: ObjectKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the bytes of memory for the read cache; 64 MiB by default. 0 turns cache and read-ahead
    /// off. Each of up to eight sequential readers has a sixteenth of it fetched ahead, and 16 MiB
    /// at most.
    #[must_use]
    pub fn read_cache(mut self, bytes: u64) -> Self {
        self.read_cache = bytes;
        self
    }

    /// Makes the volume, if it doesn't exist, as a clone of a snapshot of another one. The clone
    /// begins with the snapshot's content, and shares the data that neither of the two overwrites.
    /// `parent` is the other volume's location, in the same bucket, or in a folder beside this
    /// one's; `snapshot` is the snapshot's name or number. The parent may be in use meanwhile, and
    /// takes no part. A clone of an encrypted volume opens by the same [key](Self::key). Without a
    /// [size](Self::size) it has the snapshot's. An existing volume has to be that clone.
    #[must_use]
    pub fn from_snapshot(mut self, parent: &str, snapshot: &str) -> Self {
        self.from = Some((parent.to_owned(), snapshot.to_owned()));
        self
    }

    pub(crate) fn tuning(&self) -> Tuning {
        Tuning {
            batch: (BATCH / BLOCK) as usize,
            inline: INLINE / BLOCK,
            dirty: (DIRTY / BLOCK) as usize,
            age: self.age,
            patience: self.patience,
            cache: self.read_cache,
            few: policy::FEW,
            compaction: Compaction { slack: BATCH, few: 64, segment: BATCH / BLOCK, rate: RATE },
        }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        if !self.compression.is_here() {
            let why = "compression 'zstd': this program was built without it; take 'lz4', or build it with the feature 'zstd'";
            return Err(self.error(OpenErrorKind::InvalidInput, why.into()));
        }
        match self.size {
            Some(size) if size == 0 || size % BLOCK != 0 => {
                let why = format!("size {size} is not a multiple of {BLOCK}: round the size");
                Err(self.error(OpenErrorKind::InvalidInput, why))
            }
            _ => Ok(()),
        }
    }

    /// Returns the missing folders of the location's path, the innermost first.
    pub(crate) fn absent_folders(&self) -> Vec<PathBuf> {
        let folder = self.location.strip_prefix("file://").map(FilePath::new);
        let around = folder.filter(|folder| folder.is_absolute()).into_iter();
        let absent = |folder: &&FilePath| folder.try_exists().is_ok_and(|exists| !exists);
        around.flat_map(FilePath::ancestors).take_while(absent).map(FilePath::to_owned).collect()
    }

    /// Returns the store that the location names, and the snapshot to clone, if there is one.
    pub(crate) fn there(&self) -> Result<(Store, Option<CloneSource>), OpenError> {
        let bad = |why: String| self.error(OpenErrorKind::InvalidInput, why);
        let folder = self.location.strip_prefix("file://").map(FilePath::new);
        if let Some(folder) = folder {
            if !folder.is_absolute() {
                return Err(bad(NO_ROOT.into()));
            }
            let first = names::record(1);
            if !folder.join(&first).exists() {
                if let Some(around) = volume_around(folder, &first) {
                    let around = Overlap::Around(around.display().to_string());
                    return Err(self.not_open(NotOpen::Overlap(around)));
                }
            }
            // The only moment at which the folder is made.
            if self.size.is_some() || self.from.is_some() {
                std::fs::create_dir_all(folder)
                    .map_err(|error| bad(format!("the server can't make the folder: {error}")))?;
            } else if !folder.try_exists().map_err(|error| bad(error.to_string()))? {
                return Err(self.not_open(NotOpen::NoVolume));
            }
        }
        let (root, prefix) = place(&self.location).map_err(bad)?;
        let from = self.from.as_ref().map(|(parent, snapshot)| {
            let named = |why: String| bad(format!("a clone of {parent}: {why}"));
            let (of, there) = place(parent).map_err(named)?;
            if of != root || root == Root::Memory || there == prefix {
                return Err(named(BESIDE.into()));
            }
            Ok(CloneSource { parent: there.to_string(), snapshot: snapshot.clone() })
        });
        let inner: Arc<dyn ObjectStore> = match &root {
            Root::Memory => Arc::new(InMemory::new()),
            Root::Bucket(cloud, bucket) => cloud.client(bucket, &self.settings).map_err(bad)?,
            Root::Folder(above) => {
                let held = Folder::open(folder.unwrap_or(above), above, &prefix);
                let held = held.map_err(|error| bad(format!("the folder: {error}")))?;
                held.sweep();
                return Ok((Store::in_folder(held, prefix), from.transpose()?));
            }
        };
        Ok((Store::new(inner, prefix), from.transpose()?))
    }

    pub(crate) fn error(&self, kind: OpenErrorKind, why: String) -> OpenError {
        OpenError::at(&self.location, kind, why)
    }

    pub(crate) fn not_open(&self, why: NotOpen) -> OpenError {
        match why {
            NotOpen::Store(why) => {
                self.error(OpenErrorKind::Store, format!("the store fails: {why}"))
            }
            NotOpen::Unfit(why) => self.error(
                OpenErrorKind::Unfit,
                format!("the store can't keep two servers apart: {why}. Use another store"),
            ),
            NotOpen::Local(why) => {
                let file = self.flush_file.as_deref().unwrap_or(FilePath::new("")).display();
                self.error(OpenErrorKind::FlushFile, format!("the flush file {file}: {why}"))
            }
            NotOpen::FlushesMissing(before) => {
                let (id, FlushesMissing { host, found, .. }) = (before.id(), before);
                let file = self.flush_file.as_deref().unwrap_or(FilePath::new("")).display();
                let here = match found {
                    Some(found) => format!("the flush file {file} {found}"),
                    None => "no flush file was given".to_owned(),
                };
                let why = format!(
                    "the last server of the volume ({id}, on {host}) kept flushes in a flush file \
                     and didn't stop in order; {here}. Open the volume with the file of that \
                     server. If the file is lost, accept_lost_flushes = \"{id}\" opens the volume \
                     without the flushes that only the file had ({A_LEG})"
                );
                self.error(OpenErrorKind::FlushFile, why)
            }
            NotOpen::NoVolumeOfFile { of, changes } => {
                let file = self.flush_file.as_deref().unwrap_or(FilePath::new("")).display();
                let why = format!(
                    "there is no volume here (is its store mounted?). The flush file {file} has \
                     {changes} that the server {of} of a volume flushed, perhaps the only copy. \
                     Keep the file, and start again when the volume is there. To make another \
                     volume here, name another flush file"
                );
                self.error(OpenErrorKind::FlushFile, why)
            }
            NotOpen::NoVolume => self.error(
                OpenErrorKind::NoVolume,
                "there is no volume; give a size to make one".into(),
            ),
            NotOpen::Size { has } => {
                let asked = self.size.unwrap_or_default();
                let why = format!("the volume has {has} bytes and can't shrink to {asked}");
                self.error(OpenErrorKind::InvalidInput, why)
            }
            NotOpen::Origin(why) => self.error(OpenErrorKind::InvalidInput, why),
            NotOpen::Overlap(overlap) => {
                let found = match overlap {
                    Overlap::Around(place) if place.is_empty() => {
                        "another volume lies at the root of the bucket, around this location"
                            .to_owned()
                    }
                    Overlap::Around(place) => {
                        format!("another volume lies around this location, at {place}")
                    }
                    Overlap::Inside(place) => {
                        format!("another volume lies in this location, at {place}")
                    }
                    Overlap::Remains(name) => {
                        let why = format!(
                            "the first record of the log is missing ({}), but {name} is there. \
                             Restore the log from a copy or an older version. For a new volume, \
                             delete what is left, or take another location",
                            names::record(1)
                        );
                        return self.error(OpenErrorKind::Damaged, why);
                    }
                };
                let why = format!("{found}: take a location beside the other volume");
                self.error(OpenErrorKind::InvalidInput, why)
            }
            NotOpen::Key(why) => self.error(OpenErrorKind::Key, why),
            NotOpen::Damaged(why) => {
                self.error(OpenErrorKind::Damaged, format!("the volume is damaged: {why}"))
            }
        }
    }
}

/// A store that may have several volumes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Root {
    Memory,
    Folder(PathBuf),
    Bucket(Cloud, String),
}

const NO_ROOT: &str = "a folder is named from the root on: file:///folder";
const BESIDE: &str = "a clone and its parent are two volumes of one store: in the same bucket, or in two folders of the same folder";

/// Returns the prefix that a location names in its store.
pub(crate) fn prefix(location: &str) -> Result<Path, String> {
    place(location).map(|(_, prefix)| prefix)
}

/// Returns the root that a location names, and the prefix in it. The parent of a folder has to
/// exist.
fn place(location: &str) -> Result<(Root, Path), String> {
    if location == "memory:" {
        return Ok((Root::Memory, Path::from("volume")));
    }
    if let Some(folder) = location.strip_prefix("file://") {
        if !FilePath::new(folder).is_absolute() {
            return Err(NO_ROOT.into());
        }
        let folder = canonical(FilePath::new(folder));
        let folder = folder.map_err(|error| format!("the folder can't be found: {error}"))?;
        let name = folder.file_name().and_then(|name| name.to_str());
        // A store writes some names differently.
        let name = name.filter(|name| Path::from(*name).as_ref() == *name);
        return Ok(match (folder.parent(), name) {
            (Some(parent), Some(name)) => (Root::Folder(parent.into()), Path::from(name)),
            _ => (Root::Folder(folder), Path::default()),
        });
    }
    if let Some((cloud, there)) = Cloud::of(location) {
        let (bucket, prefix) = there.split_once('/').unwrap_or((there, ""));
        if bucket.is_empty() {
            return Err(format!("it names no bucket: {}bucket/prefix", cloud.scheme()));
        }
        return Ok((Root::Bucket(cloud, bucket.into()), Path::from(prefix)));
    }
    Err("a location is s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, \
         file:///folder or memory:"
        .into())
}

/// Returns the canonical path of a folder that need not exist: a clone that needs nothing of its
/// parent any more may still name it.
fn canonical(folder: &FilePath) -> std::io::Result<PathBuf> {
    match (folder.canonicalize(), folder.parent(), folder.file_name()) {
        (Err(_), Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        (found, ..) => found,
    }
}
