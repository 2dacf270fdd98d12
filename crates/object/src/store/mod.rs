//! The object store: few operations, each counted, with a time limit, and with errors that say
//! whether a retry makes sense.

mod cloud;
mod folder;
mod open_files;

pub(crate) use cloud::Cloud;
pub(crate) use folder::{Folder, Presence, volume_around};
pub(crate) use open_files::OpenFile;

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use corewise_sync::Mutex;
use corewise_sync::atomic::aside::AtomicU64;
use corewise_sync::atomic::{AtomicBool, Ordering};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::format::names;
use crate::format::seal::random;

/// Time limit of one try, and of a silence of the store during it.
const TRY: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_secs(15);
/// Microseconds that a byte of a record may take: a segment gets about as long.
const SLOW: u64 = 8;
/// The first and the longest pause between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(3));

/// The reason why a request to the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The object doesn't exist.
    Missing,
    /// The object exists already.
    Exists,
    /// Any other failure, which may pass.
    Other(String),
}

/// A volume that has some of its objects among those of a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// The location of the volume in which the other one lies.
    Around(String),
    /// The location, relative to the other one's, of the volume that lies in it.
    Inside(String),
    /// An object of a volume at the same location that has lost its records.
    Remains(String),
}

/// Bytes of the object that is deleted to make room for a small one: some hundred records.
const RESERVE: u64 = 1 << 20;

/// Number of names that are searched for a volume inside a new one. At a new location there are
/// few, usually none.
const INSIDE: usize = 10_000;

/// Counts of requests to the store so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreUse {
    /// Requests that write an object.
    pub puts: u64,
    /// Requests that read an object, a part of one, or check that it exists.
    pub gets: u64,
    /// Requests that list objects.
    pub lists: u64,
    /// Requests that delete an object.
    pub deletes: u64,
    /// Bytes that were sent to it.
    pub sent: u64,
    /// Bytes that came from it.
    pub received: u64,
    /// Requests that failed, except those whose object doesn't exist, or exists already.
    pub failures: u64,
}

impl StoreUse {
    /// Returns the sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            puts: self.puts + other.puts,
            gets: self.gets + other.gets,
            lists: self.lists + other.lists,
            deletes: self.deletes + other.deletes,
            sent: self.sent + other.sent,
            received: self.received + other.received,
            failures: self.failures + other.failures,
        }
    }
}

/// The counts of [`StoreUse`].
#[derive(Debug, Default)]
struct Counts {
    /// A: Relaxed, all of them: nothing depends on them.
    puts: AtomicU64,
    /// A: as `puts`.
    gets: AtomicU64,
    /// A: as `puts`.
    lists: AtomicU64,
    /// A: as `puts`.
    deletes: AtomicU64,
    /// A: as `puts`.
    sent: AtomicU64,
    /// A: as `puts`.
    received: AtomicU64,
    /// A: as `puts`.
    failures: AtomicU64,
}

fn count(of: &AtomicU64, n: u64) {
    of.fetch_add(n, Ordering::Relaxed);
}

/// The objects below a prefix of a store.
#[derive(Debug)]
pub(crate) struct Store {
    inner: Arc<dyn ObjectStore>,
    /// Name of the volume among those of the store.
    prefix: Path,
    /// Prefix of its objects in `inner`.
    at: Path,
    /// The folder, held open, if the store is one.
    folder: Option<Arc<Folder>>,
    /// Notified by each request.
    asked: Arc<Notify>,
    /// Time limit of a silence.
    silence: Duration,
    counts: Arc<Counts>,
    /// Measures the store's room, if that is possible. Blocks.
    measure: Option<Arc<dyn Measure>>,
    /// A: whether the reserve is known to exist. Relaxed: it orders nothing.
    has_reserve: Arc<AtomicBool>,
    /// The reason of the last failed request, unless an object was written since.
    trouble: Mutex<Option<StoreFailure>>,
}

/// Room of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreRoom {
    /// Total bytes, including those in use.
    pub(crate) total: u64,
    /// Bytes that may still be taken.
    pub(crate) free: u64,
}

/// Measures the store's room. `None`: it isn't known. Blocks.
pub(crate) trait Measure: fmt::Debug + Send + Sync + 'static {
    fn room(&self) -> Option<StoreRoom>;
}

#[derive(Debug)]
struct StoreFailure {
    why: String,
    /// True if there was no room for the object.
    is_full: bool,
}

impl Store {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self {
            inner,
            at: prefix.clone(),
            prefix,
            folder: None,
            asked: Arc::default(),
            measure: None,
            has_reserve: Arc::default(),
            silence: SILENCE,
            counts: Arc::default(),
            trouble: Mutex::default(),
        }
    }

    /// Opens the objects of the volume of this prefix, in a folder that is held open.
    pub(crate) fn in_folder(folder: Folder, prefix: Path) -> Self {
        // An answered write is durable.
        let files = LocalFileSystem::new().with_fsync(true);
        let (at, folder) = (folder.at(&prefix), Arc::new(folder));
        let store = Self::new(Arc::new(files), prefix).measured(Arc::clone(&folder) as _);
        Self { at, folder: Some(folder), ..store }
    }

    /// Adds a measure of the store's room.
    pub(crate) fn measured(mut self, by: Arc<dyn Measure>) -> Self {
        self.measure = Some(by);
        self
    }

    /// Sets the time limit so that a request whose connection hangs is retried while the volume's
    /// clients wait.
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.silence = (patience / 3).min(SILENCE);
        self
    }

    /// Returns the same objects, with separate counts.
    pub(crate) fn apart(&self) -> Self {
        self.elsewhere(self.prefix.clone())
    }

    /// Returns the objects of another volume, with separate counts.
    fn elsewhere(&self, prefix: Path) -> Self {
        let (folder, asked) = (self.folder.clone(), Arc::clone(&self.asked));
        let at = folder.as_ref().map_or_else(|| prefix.clone(), |folder| folder.at(&prefix));
        let (measure, has_reserve) = (self.measure.clone(), Arc::clone(&self.has_reserve));
        let inner = Arc::clone(&self.inner);
        let silence = self.silence;
        Self { at, folder, asked, measure, has_reserve, silence, ..Self::new(inner, prefix) }
    }

    /// Returns the objects below another prefix, with the same counts.
    pub(crate) fn beside(&self, prefix: &str) -> Self {
        // The prefix is as a store has it already.
        let prefix = Path::parse(prefix).unwrap_or_else(|_| Path::from(prefix));
        Self { counts: Arc::clone(&self.counts), ..self.elsewhere(prefix) }
    }

    /// Returns the prefix, as `beside` takes it.
    pub(crate) fn place(&self) -> &str {
        self.prefix.as_ref()
    }

    pub(crate) fn usage(&self) -> StoreUse {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { puts, gets, lists, deletes, sent, received, failures } = &*self.counts;
        StoreUse {
            puts: of(puts),
            gets: of(gets),
            lists: of(lists),
            deletes: of(deletes),
            sent: of(sent),
            received: of(received),
            failures: of(failures),
        }
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.at))
    }

    /// Returns the folder of the volume, if the store is one.
    pub(crate) fn folder(&self) -> Option<&Arc<Folder>> {
        self.folder.as_ref()
    }

    /// Waits until this volume sends a request to the store.
    pub(crate) async fn is_asked(&self) {
        self.asked.notified().await;
    }

    /// Counts a failure, and classifies it.
    fn failed(&self, error: &object_store::Error) -> Failure {
        use object_store::Error;
        match error {
            Error::NotFound { .. } => Failure::Missing,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Failure::Exists,
            // The library's name of the store is useless to people.
            Error::Generic { source, .. } => {
                self.trouble_by(self.named(&source.to_string()), lacks_room(&**source))
            }
            other => self.trouble_by(self.named(&other.to_string()), lacks_room(other)),
        }
    }

    fn named(&self, message: &str) -> String {
        self.folder.as_ref().map_or_else(|| message.to_owned(), |folder| folder.named(message))
    }

    fn trouble_by(&self, why: String, is_full: bool) -> Failure {
        count(&self.counts.failures, 1);
        *self.trouble.lock() = Some(StoreFailure { why: why.clone(), is_full });
        Failure::Other(why)
    }

    async fn within<T>(
        &self,
        limit: Duration,
        asked: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        self.asked.notify_one();
        match timeout(limit, asked).await {
            Ok(result) => result.map_err(|error| self.failed(&error)),
            // Debug: a length of time.
            Err(_) => Err(self.trouble_by(format!("no answer in {limit:?}"), false)),
        }
    }

    /// Writes an object; with `create`, only if it doesn't exist. If there is no other room, a
    /// small object gets the room of the reserve.
    pub(crate) async fn put(
        &self,
        name: &str,
        data: &[Bytes],
        create: bool,
    ) -> Result<(), Failure> {
        let payload: PutPayload = data.iter().cloned().collect();
        let bytes = payload.content_length() as u64;
        if bytes <= RESERVE {
            let put = self.put_once(name, payload.clone(), create).await;
            let is_full = matches!(put, Err(Failure::Other(_))) && self.is_full();
            if !is_full || !self.release_reserve().await {
                return put;
            }
        } else if let Some(room) = self.room().await.filter(|room| room.free < bytes) {
            // A try would take the room from small ones for a while.
            return Err(self.trouble_by(
                format!("{} bytes are free, for an object of {bytes}", room.free),
                true,
            ));
        }
        self.put_once(name, payload, create).await
    }

    async fn put_once(&self, name: &str, payload: PutPayload, create: bool) -> Result<(), Failure> {
        count(&self.counts.puts, 1);
        count(&self.counts.sent, payload.content_length() as u64);
        let mode = if create { PutMode::Create } else { PutMode::Overwrite };
        let path = self.path(name);
        // A segment or a map takes its time, and so does the data of a record.
        let data = Duration::from_micros(SLOW * payload.content_length() as u64);
        let limit = if create { (self.silence + data).min(TRY) } else { TRY };
        let put = self.within(limit, self.inner.put_opts(&path, payload, mode.into())).await;
        if !matches!(put, Err(Failure::Other(_))) {
            *self.trouble.lock() = None;
        }
        put.map(drop)
    }

    /// Returns the reason of the last failed request, as the end of a sentence.
    pub(crate) fn trouble(&self) -> String {
        let trouble = self.trouble.lock();
        trouble.as_ref().map_or_else(String::new, |trouble| format!(": {}", trouble.why))
    }

    /// Returns true if the last request failed for lack of room.
    pub(crate) fn is_full(&self) -> bool {
        self.trouble.lock().as_ref().is_some_and(|trouble| trouble.is_full)
    }

    /// Returns the room. `None`: it isn't known.
    pub(crate) async fn room(&self) -> Option<StoreRoom> {
        let measure = self.measure.clone()?;
        let measured = spawn_blocking(move || measure.room());
        timeout(self.silence, measured).await.ok()?.ok()?
    }

    /// Returns true if the room can be measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.measure.is_some()
    }

    /// Creates the reserve, unless it exists. The requests aren't counted, as no client caused
    /// them.
    pub(crate) async fn keep_reserve(&self) {
        if !self.is_measured() || self.has_reserve.load(Ordering::Relaxed) {
            return;
        }
        let path = self.path(names::RESERVED);
        let there = timeout(self.silence, self.inner.head(&path)).await;
        let is_there = there.is_ok_and(|found| found.is_ok_and(|found| found.size == RESERVE));
        // A file system may compress other bytes.
        let bytes: Vec<u8> = (0..RESERVE / 64).flat_map(|_| random::<64>()).collect();
        let is_put = || timeout(TRY, self.inner.put(&path, bytes.into()));
        if is_there || is_put().await.is_ok_and(|put| put.is_ok()) {
            self.has_reserve.store(true, Ordering::Relaxed);
        }
    }

    /// Deletes the reserve to free its room. False: it didn't exist.
    async fn release_reserve(&self) -> bool {
        if !self.is_measured() {
            return false;
        }
        self.has_reserve.store(false, Ordering::Relaxed);
        let path = self.path(names::RESERVED);
        timeout(self.silence, self.inner.delete(&path)).await.is_ok_and(|deleted| deleted.is_ok())
    }

    /// Reads an object, or a range of its bytes.
    pub(crate) async fn get(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, Failure> {
        self.look(name, range).await.map(|(_, bytes)| bytes)
    }

    /// Reads an object or a range, and returns the size of the whole object, too.
    pub(crate) async fn look(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> Result<(u64, Bytes), Failure> {
        count(&self.counts.gets, 1);
        let path = self.path(name);
        let options = GetOptions { range: range.map(Into::into), ..GetOptions::default() };
        let silence = self.silence;
        let asked = async {
            let mut found = speaks(silence, self.inner.get_opts(&path, options)).await?;
            found.payload = match found.payload {
                // Many requests that share a slow line all take long, and none hangs.
                GetResultPayload::Stream(parts) => {
                    let next = move |mut parts: BoxStream<'static, _>| async move {
                        let part = speaks(silence, parts.try_next()).await?;
                        Ok(part.map(|part| (part, parts)))
                    };
                    GetResultPayload::Stream(stream::try_unfold(parts, next).boxed())
                }
                file => file,
            };
            let size = found.meta.size;
            found.bytes().await.map(|bytes| (size, bytes))
        };
        let (size, bytes) = self.within(TRY, asked).await?;
        count(&self.counts.received, bytes.len() as u64);
        Ok((size, bytes))
    }

    /// Returns the open file of a segment that is this object of a folder. `None`: the store is no
    /// folder, the file can't be opened without waiting, or it was deleted. Never blocks.
    pub(crate) fn open_file(
        &self,
        id: u128,
        name: impl FnOnce() -> String,
    ) -> Option<Arc<OpenFile>> {
        let folder = self.folder.as_ref()?;
        folder.files.get(id, || folder.open_cached(&self.prefix, &name()))
    }

    /// Counts a read of an [open file](Self::open_file), as a request of that many bytes.
    pub(crate) fn count_read(&self, bytes: u64) {
        self.asked.notify_one();
        count(&self.counts.gets, 1);
        count(&self.counts.received, bytes);
    }

    /// Returns the bytes of an object.
    pub(crate) async fn size(&self, name: &str) -> Result<u64, Failure> {
        count(&self.counts.gets, 1);
        let path = self.path(name);
        self.within(self.silence, self.inner.head(&path)).await.map(|meta| meta.size)
    }

    /// Returns the names in a folder, without the folder, in order. Deeper names aren't this
    /// volume's, and are left out.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<String>, Failure> {
        count(&self.counts.lists, 1);
        let path = self.path(folder);
        let mut all = self.inner.list(Some(&path));
        let mut names = Vec::new();
        // A million names take long, and none hangs.
        while let Some(meta) = self.within(self.silence, all.try_next()).await? {
            let mut below = meta.location.prefix_match(&path).into_iter().flatten();
            if let (Some(name), None) = (below.next(), below.next()) {
                names.push(name.as_ref().to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Finds a volume around this one's location, in it, or the remains of one there. For a folder,
    /// the folder above is checked; inside, the first names are.
    pub(crate) async fn overlap(&self) -> Result<Option<Overlap>, Failure> {
        let parts: Vec<_> = match self.folder {
            Some(_) => Vec::new(),
            None => self.prefix.parts().collect(),
        };
        for n in 0..parts.len() {
            let around = Path::from_iter(parts[..n].iter().cloned());
            match self.beside(around.as_ref()).size(&names::record(1)).await {
                Ok(_) => return Ok(Some(Overlap::Around(around.to_string()))),
                Err(Failure::Missing) => {}
                Err(other) => return Err(other),
            }
        }
        count(&self.counts.lists, 1);
        let mut all = self.inner.list(Some(&self.at)).take(INSIDE);
        let first = Path::from(names::record(1));
        let mut remains = None;
        while let Some(meta) = self.within(self.silence, all.try_next()).await? {
            let below = meta.location.prefix_match(&self.at).into_iter().flatten();
            let below: Vec<_> = below.collect();
            let place = below.len().saturating_sub(first.parts_count());
            if place > 0 && Path::from_iter(below[place..].iter().cloned()) == first {
                let inside = Path::from_iter(below[..place].iter().cloned());
                return Ok(Some(Overlap::Inside(inside.to_string())));
            }
            let name = Path::from_iter(below);
            if names::is_behind_records(name.as_ref()) {
                remains.get_or_insert(name);
            }
        }
        // Another server may just have made the volume.
        match remains {
            Some(name) if self.size(&names::record(1)).await == Err(Failure::Missing) => {
                Ok(Some(Overlap::Remains(name.to_string())))
            }
            _ => Ok(None),
        }
    }

    /// Deletes an object. A missing one counts as deleted.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), Failure> {
        count(&self.counts.deletes, 1);
        let path = self.path(name);
        match self.within(self.silence, self.inner.delete(&path)).await {
            Err(Failure::Missing) => Ok(()),
            other => other,
        }
    }
}

/// Returns true if a request failed for lack of room, or beyond a quota.
fn lacks_room(error: &(dyn std::error::Error + 'static)) -> bool {
    let lacks = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    };
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| error.downcast_ref().is_some_and(lacks))
}

/// Waits for a reply within a time limit.
async fn speaks<T>(
    limit: Duration,
    asked: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    timeout(limit, asked).await.unwrap_or_else(|_| {
        // Debug: a length of time.
        let source = format!("no answer in {limit:?}").into();
        Err(object_store::Error::Generic { store: "object", source })
    })
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.folder {
            Some(folder) => write!(f, "{}", folder.name().display()),
            None => write!(f, "{} in {}", self.prefix, self.inner),
        }
    }
}

/// Retries of an operation, with growing pauses.
#[derive(Debug)]
pub(crate) struct Retries {
    time: Option<RetryBudget>,
    pause: Duration,
}

impl Retries {
    /// Creates the retries of an operation; `None`: without a limit.
    pub(crate) fn new(patience: Option<Duration>) -> Self {
        Self { time: patience.map(RetryBudget::new), pause: PAUSES.0 }
    }

    /// Waits before the next try. False: there is no time for one.
    pub(crate) async fn again(&mut self, what: &str, why: &str) -> bool {
        if self.time.as_mut().is_some_and(|time| self.pause > time.left()) {
            return false;
        }
        tracing::debug!(what, why, "the object store failed; the server retries the request");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
        true
    }
}

/// Slices of a timeout: a pause of any length counts as one of them.
const SLICES: u32 = 8;

/// Time for the retries of an operation. A pause of any length counts as at most half of it, so at
/// least one more try follows.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    left: Duration,
    most: Duration,
    last: Instant,
}

/// The error of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// Waits for a future for at most `time`. A future that was ready during a pause is in time.
pub(crate) async fn within<T>(
    time: Duration,
    future: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let slice = (time / SLICES).max(Duration::from_millis(1));
    let (mut left, mut future) = (time, pin!(future));
    loop {
        let wait = left.min(slice);
        // The future is polled after each wait, however long that was.
        match timeout(wait, future.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(_) if wait == left => return Err(Elapsed),
            Err(_) => left -= wait,
        }
    }
}

impl RetryBudget {
    pub(crate) fn new(time: Duration) -> RetryBudget {
        RetryBudget { left: time, most: time / 2, last: Instant::now() }
    }

    /// Returns the time that is left.
    pub(crate) fn left(&mut self) -> Duration {
        let now = Instant::now();
        let lap = now.saturating_duration_since(self.last).min(self.most);
        self.last = now;
        self.left = self.left.saturating_sub(lap);
        self.left
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;
    use tokio::time::advance;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_is_late_after_its_time() {
        let begun = Instant::now();
        assert_eq!(within(MINUTE, pending::<()>()).await, Err(Elapsed));
        let took = begun.elapsed();
        assert!(took >= MINUTE && took < MINUTE + Duration::from_secs(1), "{took:?}");
        assert_eq!(within(Duration::ZERO, ready(7)).await, Ok(7));
        assert_eq!(within(Duration::ZERO, pending::<()>()).await, Err(Elapsed));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_after_a_pause_is_in_time() {
        let (answer, comes) = oneshot::channel();
        let asked = tokio::spawn(within(MINUTE, comes));
        tokio::task::yield_now().await;
        // The process is paused meanwhile.
        advance(60 * MINUTE).await;
        for _ in 0..4 {
            advance(MINUTE / 8).await;
            tokio::task::yield_now().await;
        }
        answer.send(7).unwrap();
        assert_eq!(asked.await.unwrap(), Ok(Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_leaves_half_of_the_time_of_tries() {
        let mut budget = RetryBudget::new(MINUTE);
        advance(MINUTE / 4).await;
        assert_eq!(budget.left(), MINUTE * 3 / 4);
        advance(60 * MINUTE).await;
        assert_eq!(budget.left(), MINUTE / 4);
        advance(MINUTE / 2).await;
        assert_eq!(budget.left(), Duration::ZERO);
    }
}
