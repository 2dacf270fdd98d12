//! How a volume is opened, and why it isn't.

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
#[cfg(feature = "s3")]
use crate::store::TRY;
use crate::store::{Folder, Overlap, Store, volume_around};
use crate::volume::Tuning;
use crate::volume::policy::{self, Compaction};
use crate::volume::{ObjectEvent, Observer};

/// Bytes of a batch: of a segment, as a rule.
const BATCH: u64 = 8 << 20;
/// Most bytes of data that lie in their record: so many take less time to send than another request
/// does.
const INLINE: u64 = 256 << 10;
/// Bytes that may wait for the store.
const DIRTY: u64 = 64 << 20;
/// Bytes that compaction moves in a second, as a rule.
const RATE: u64 = 16 << 20;

/// Bytes that were read and are kept, where nothing is said.
const CACHE: u64 = 64 << 20;

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    pub(crate) location: String,
    /// What log lines call the device.
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
    /// The volume at `location`: `s3://bucket/prefix` (with the crate's feature `s3`; keys, region
    /// and endpoint come from the environment, as `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_REGION` and `AWS_ENDPOINT`, unless a [setting](Self::setting) says otherwise),
    /// `file:///folder`, or `memory:`, which is gone with the driver.
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

    /// What lines of the log call the device; nothing where nothing is said: the location is in
    /// them.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Bytes, in multiples of 4096. A volume that isn't there is made with this size; one that is
    /// there becomes so long, and never shorter. Without it the volume has to be there.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// For how long this server believes, after it has looked, that nobody else has opened the
    /// volume; 5 seconds where nothing is said. So often, a read waits for a small request more;
    /// and so long, the next server waits with its first change, if this one was killed.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a request waits for the store before it fails; 60 seconds where nothing is said.
    /// Writes that were taken go on being sent.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The method by which data is compressed before it goes to the store; none where nothing is
    /// said. Blocks that don't become shorter are stored as they are. Data that lies there is read
    /// whichever is chosen.
    #[must_use]
    pub fn compression(mut self, by: Compression) -> Self {
        self.compression = by;
        self
    }

    /// How the server behind `s3://` is reached, instead of the environment: `endpoint`, `region`,
    /// `access_key_id` and others, named as the environment's variables are without their `AWS_`.
    /// An endpoint that begins with `http://` needs no `allow_http`. Other locations have none.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Keeps flushes in this file: a flush is answered once what was written is there for good, and
    /// the store gets it some seconds later. The file is made where it isn't there, of some 130
    /// MiB, and locked. After a crash of the program or the system, what only the file has is put
    /// into the store when the volume is opened with it. The file is refused if another server has
    /// opened the volume meanwhile. **A change that isn't in the store is lost with the machine, or
    /// its disk**, and another machine doesn't see it.
    ///
    /// A volume whose last server kept flushes in a file and didn't
    /// [close](crate::ObjectDriver::close) it opens with that file only, also where the next one
    /// has no flush file: see [`accept_lost_flushes`](Self::accept_lost_flushes).
    #[must_use]
    pub fn flush_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.flush_file = Some(path.into());
        self
    }

    /// Opens the volume also where flushes are lost that the server of this opening kept in its
    /// [flush file](Self::flush_file). The error of an opening that is refused for this names that
    /// server's opening. It stands for that server alone: one that stays in a configuration gives
    /// up nothing later, not even of another volume that is made at this location.
    #[must_use]
    pub fn accept_lost_flushes(mut self, of: OpeningId) -> Self {
        self.accept_lost = Some(of);
        self
    }

    /// Calls this for each event, on the volume's thread: it mustn't block. It is dropped there,
    /// too.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&ObjectEvent) + Send + Sync + 'static) -> Self {
        self.observer = Observer::new(observer);
        self
    }

    /// The key by which the volume is encrypted, of which it has nothing in the store. A volume
    /// that isn't there is made with it; one that is there opens by the key that it was made with,
    /// and by no other. Without a key nothing is encrypted. The documentation of the driver says
    /// what is still visible (`docs/object.md`).
    #[must_use]
    pub fn key(mut self, key: ObjectKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Bytes of memory that keep blocks that were read, 64 MiB where nothing is said; 0: none are
    /// kept, and nothing is fetched ahead. Each of up to eight readers in a row has a sixteenth of
    /// it fetched ahead, and 16 MiB at most.
    #[must_use]
    pub fn read_cache(mut self, bytes: u64) -> Self {
        self.read_cache = bytes;
        self
    }

    /// Makes the volume, if it isn't there, as a clone of a snapshot of another one: it begins with
    /// what that has, and shares the data that neither of the two overwrites. `parent` is the other
    /// one's location, in the same bucket, or in a folder beside this one's; `snapshot` is the
    /// snapshot's name or number. The parent may be served meanwhile, and is not asked. A clone of
    /// an encrypted volume opens by the same [key](Self::key). Without a [size](Self::size) it has
    /// the snapshot's. A volume that is there has to be that clone.
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
                let why = format!("size {size} is no multiple of {BLOCK}: round it");
                Err(self.error(OpenErrorKind::InvalidInput, why))
            }
            _ => Ok(()),
        }
    }

    /// The folder that the location names, and those around it, that don't exist: the innermost
    /// first.
    pub(crate) fn absent_folders(&self) -> Vec<PathBuf> {
        let folder = self.location.strip_prefix("file://").map(FilePath::new);
        let around = folder.filter(|folder| folder.is_absolute()).into_iter();
        let absent = |folder: &&FilePath| folder.try_exists().is_ok_and(|exists| !exists);
        around.flat_map(FilePath::ancestors).take_while(absent).map(FilePath::to_owned).collect()
    }

    /// The store that the location names, and of what in it the volume is to be a clone.
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
            // The only moment at which it is made.
            if self.size.is_some() || self.from.is_some() {
                std::fs::create_dir_all(folder)
                    .map_err(|error| bad(format!("the folder can't be made: {error}")))?;
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
            Root::Bucket(bucket) => s3(bucket, &self.settings).map_err(bad)?,
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
                format!("the store can't keep two servers apart: {why}; take another store"),
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
                    None => "it is opened without a flush file".to_owned(),
                };
                let why = format!(
                    "the last server of the volume ({id}, on {host}) kept flushes in a flush file and wasn't stopped in order; {here}. Open \
                     the volume with the file of that server. If it is lost, accept_lost_flushes = \"{id}\" opens the volume without what only the file had ({A_LEG})"
                );
                self.error(OpenErrorKind::FlushFile, why)
            }
            NotOpen::NoVolumeOfFile { of, changes } => {
                let file = self.flush_file.as_deref().unwrap_or(FilePath::new("")).display();
                let why = format!(
                    "there is no volume here (is its store mounted?). The flush file {file} has {changes} that the \
                     server {of} of a volume flushed, and they may be nowhere else: keep it, and start again when \
                     the volume is there. To make another volume here, name another flush file"
                );
                self.error(OpenErrorKind::FlushFile, why)
            }
            NotOpen::NoVolume => self.error(
                OpenErrorKind::NoVolume,
                "there is no volume; give a size, and one is made".into(),
            ),
            NotOpen::Size { has } => {
                let asked = self.size.unwrap_or_default();
                let why = format!(
                    "the volume has {has} bytes, and {asked} were asked for: it can't be made shorter"
                );
                self.error(OpenErrorKind::InvalidInput, why)
            }
            NotOpen::Origin(why) => self.error(OpenErrorKind::InvalidInput, why),
            NotOpen::Overlap(overlap) => {
                let found = match overlap {
                    Overlap::Around(place) if place.is_empty() => {
                        "a volume lies at the root of the bucket, around it".to_owned()
                    }
                    Overlap::Around(place) => format!("a volume lies around it, at {place}"),
                    Overlap::Inside(place) => format!("a volume lies in it, at {place}"),
                    Overlap::Remains(name) => {
                        let why = format!(
                            "the first record of its log is missing ({}), and {name} is there. Put the log back from a copy or an older version; for a \
                             new volume, delete what is left, or take another location",
                            names::record(1)
                        );
                        return self.error(OpenErrorKind::Damaged, why);
                    }
                };
                let why = format!("{found}: take a location beside that one");
                self.error(OpenErrorKind::InvalidInput, why)
            }
            NotOpen::Key(why) => self.error(OpenErrorKind::Key, why),
            NotOpen::Damaged(why) => {
                self.error(OpenErrorKind::Damaged, format!("the volume is damaged: {why}"))
            }
        }
    }
}

/// What may have several volumes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Root {
    Memory,
    Folder(PathBuf),
    Bucket(String),
}

const NO_ROOT: &str = "a folder is named from the root on: file:///folder";
const BESIDE: &str = "a clone and its parent are two volumes of one store: in the same bucket, or in two folders of the same folder";

/// The prefix that a location names in its store.
pub(crate) fn prefix(location: &str) -> Result<Path, String> {
    place(location).map(|(_, prefix)| prefix)
}

/// What a location names, and the prefix in it. The folder of a folder has to be there.
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
        // A store writes some names in another way.
        let name = name.filter(|name| Path::from(*name).as_ref() == *name);
        return Ok(match (folder.parent(), name) {
            (Some(parent), Some(name)) => (Root::Folder(parent.into()), Path::from(name)),
            _ => (Root::Folder(folder), Path::default()),
        });
    }
    if let Some(there) = location.strip_prefix("s3://") {
        let (bucket, prefix) = there.split_once('/').unwrap_or((there, ""));
        if bucket.is_empty() {
            return Err("it names no bucket: s3://bucket/prefix".into());
        }
        return Ok((Root::Bucket(bucket.into()), Path::from(prefix)));
    }
    Err("a location is s3://bucket/prefix, file:///folder or memory:".into())
}

/// Also of a folder that isn't there: a clone that needs nothing of its parent any more may still
/// say whose it was.
fn canonical(folder: &FilePath) -> std::io::Result<PathBuf> {
    match (folder.canonicalize(), folder.parent(), folder.file_name()) {
        (Err(_), Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        (found, ..) => found,
    }
}

#[cfg(feature = "s3")]
fn s3(bucket: &str, settings: &[(String, String)]) -> Result<Arc<dyn ObjectStore>, String> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    use object_store::{ClientConfigKey, RetryConfig};
    // An error: there is one already, which does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    // A request that fails is ours to repeat, and one that lasts too long ours to end: else a
    // client would wait for both, one inside the other.
    let retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let limit = format!("{}s", 2 * TRY.as_secs());
    let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
    let mut builder = builder.with_retry(retries).with_config(timeout, limit);
    for (key, value) in settings {
        let known = key.parse::<AmazonS3ConfigKey>();
        let known = known.map_err(|_| format!("there is no setting '{key}' for S3"))?;
        builder = builder.with_config(known, value);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    Ok(Arc::new(builder.build().map_err(|error| error.to_string())?))
}

#[cfg(not(feature = "s3"))]
fn s3(_bucket: &str, _settings: &[(String, String)]) -> Result<Arc<dyn ObjectStore>, String> {
    Err("this program was built without S3; build it with the feature 's3'".into())
}
