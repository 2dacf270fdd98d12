//! Stores that crash after some requests, fail by chance, lie, and are slow.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use corewise_sync::Mutex;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use super::passes;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultOutcome {
    Done,
    /// Failure: nothing is done.
    Refused,
    /// The request is performed, and reported as failed.
    Unsaid,
    /// Success is reported, and nothing is done. Only for puts.
    Forgotten,
    /// Success is reported, and a part of it is done. Only for puts.
    Cut,
    /// The request fails at once, and is performed later.
    Late,
    /// The request never ends.
    Hangs,
}

/// The function that decides the outcome of a request, such as `put a/volume/map/1-1`, and its
/// duration.
pub(super) type Judge = Box<dyn FnMut(&str) -> (FaultOutcome, Duration) + Send>;

/// Names and content of all puts.
pub(super) type Puts = Arc<Mutex<Vec<(String, Bytes)>>>;

/// The way in which a store creates an object that may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Creation {
    /// One of many attempts succeeds.
    Once,
    /// The store checks first, and writes later.
    Racing,
    /// Each attempt succeeds.
    Always,
}

pub(super) type Fits = Arc<dyn Fn(u64) -> bool + Send + Sync>;

pub(super) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    /// L: is the lock, and guards the judge.
    judge: Arc<Mutex<Judge>>,
    /// I: how the store creates an object that may exist.
    pub(super) creation: Creation,
    /// I: records the puts.
    pub(super) puts: Option<Puts>,
    /// I: pause before each of the four parts in which a read is answered.
    pub(super) drip: Duration,
    /// I: whether an object of this length fits, as in a folder, where a missing one can't be
    /// deleted.
    pub(super) fits: Option<Fits>,
}

impl Faulty {
    pub(super) fn new(inner: &Arc<dyn ObjectStore>, judge: Judge) -> Self {
        let creation = Creation::Once;
        Self {
            inner: Arc::clone(inner),
            judge: Arc::new(Mutex::new(judge)),
            creation,
            puts: None,
            drip: Duration::ZERO,
            fits: None,
        }
    }
}

pub(super) fn judged(
    inner: &Arc<dyn ObjectStore>,
    judge: impl FnMut(&str) -> (FaultOutcome, Duration) + Send + 'static,
) -> Arc<dyn ObjectStore> {
    Arc::new(Faulty::new(inner, Box::new(judge)))
}

/// Outcome and duration of all requests from now on.
pub(super) type SharedOutcome = Arc<Mutex<(FaultOutcome, Duration)>>;

pub(super) fn adjustable(inner: &Arc<dyn ObjectStore>) -> (Arc<dyn ObjectStore>, SharedOutcome) {
    let fate = Arc::new(Mutex::new((FaultOutcome::Done, Duration::ZERO)));
    let theirs = Arc::clone(&fate);
    (judged(inner, move |_: &str| *theirs.lock()), fate)
}

/// Outcomes of a store that fails now and then.
pub(super) const FAILS: &[FaultOutcome] = &[
    FaultOutcome::Done,
    FaultOutcome::Done,
    FaultOutcome::Done,
    FaultOutcome::Unsaid,
    FaultOutcome::Refused,
];

/// Returns a judge that draws one of `fates`, and a duration below `most` milliseconds.
pub(super) fn by_chance(
    mut random: fastrand::Rng,
    fates: &'static [FaultOutcome],
    most: u64,
) -> impl FnMut(&str) -> (FaultOutcome, Duration) + Send + 'static {
    move |_: &str| {
        let fate = fates[random.usize(0..fates.len())];
        (fate, Duration::from_millis(random.u64(0..most.max(1))))
    }
}

/// Returns a store without faults, except for requests that begin with this text.
pub(super) fn but_for(
    inner: &Arc<dyn ObjectStore>,
    request: &'static str,
    mut fate: impl FnMut() -> (FaultOutcome, Duration) + Send + 'static,
) -> Arc<dyn ObjectStore> {
    judged(inner, move |asked: &str| match asked.starts_with(request) {
        true => fate(),
        false => (FaultOutcome::Done, Duration::ZERO),
    })
}

/// Decides and answers a request. A put may be forgotten, or done in part.
async fn ask<T>(
    judge: &Mutex<Judge>,
    request: (&str, Option<&Path>),
    asked: impl Future<Output = Result<T>> + Send + 'static,
    of_put: Option<(T, BoxFuture<'static, Result<T>>)>,
) -> Result<T> {
    let (what, of) = request;
    let (fate, takes) = (judge.lock())(&format!("{what} {}", of.map_or("", Path::as_ref)));
    if fate == FaultOutcome::Late {
        tokio::spawn(async move {
            passes(takes).await;
            drop(asked.await);
        });
        return Err(failed());
    }
    if !takes.is_zero() {
        passes(takes).await;
    }
    match (fate, of_put) {
        (FaultOutcome::Forgotten, Some((answer, _))) => Ok(answer),
        (FaultOutcome::Cut, Some((_, part))) => part.await,
        (FaultOutcome::Done | FaultOutcome::Forgotten | FaultOutcome::Cut, _) => asked.await,
        (FaultOutcome::Unsaid, _) => {
            let _ = asked.await;
            Err(failed())
        }
        (FaultOutcome::Hangs, _) => std::future::pending().await,
        (FaultOutcome::Refused | FaultOutcome::Late, _) => Err(failed()),
    }
}

fn failed() -> Error {
    Error::Generic { store: "faulty", source: "on purpose".into() }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        if self.fits.as_ref().is_some_and(|fits| !fits(payload.content_length() as u64)) {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(Error::Generic { store: "disk", source: source.into() });
        }
        if let Some(puts) = &self.puts {
            puts.lock().push((location.to_string(), payload.clone().into()));
        }
        if self.creation != Creation::Once && opts.mode == PutMode::Create {
            if self.creation == Creation::Racing && self.inner.head(location).await.is_ok() {
                let path = location.to_string();
                return Err(Error::AlreadyExists { path, source: "it looked".into() });
            }
            opts.mode = PutMode::Overwrite;
        }
        let (inner, path) = (Arc::clone(&self.inner), location.clone());
        let (whole, mode) = (payload.clone(), opts.clone());
        let part = async move {
            let bytes = Bytes::from(whole);
            let part = bytes.slice(..bytes.len() - bytes.len() / 4);
            inner.put_opts(&path, part.into(), mode).await
        };
        let (inner, path) = (Arc::clone(&self.inner), location.clone());
        let put = async move { inner.put_opts(&path, payload, opts).await };
        let none = PutResult { e_tag: None, version: None, extensions: Default::default() };
        ask(&self.judge, ("put", Some(location)), put, Some((none, part.boxed()))).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (inner, path) = (Arc::clone(&self.inner), location.clone());
        let get = async move { inner.get_opts(&path, options).await };
        let mut found = ask(&self.judge, ("get", Some(location)), get, None).await?;
        let drip = self.drip;
        if !drip.is_zero() {
            let (meta, range) = (found.meta.clone(), found.range.clone());
            let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
            let bytes = found.bytes().await?;
            let parts: Vec<Bytes> = bytes
                .chunks(bytes.len().div_ceil(4).max(1))
                .map(|part| bytes.slice_ref(part))
                .collect();
            let parts = futures_util::stream::iter(parts).then(move |part| async move {
                passes(drip).await;
                Ok(part)
            });
            let payload = GetResultPayload::Stream(parts.boxed());
            found = GetResult { payload, meta, range, attributes, extensions };
        }
        Ok(found)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inner, judge) = (Arc::clone(&self.inner), Arc::clone(&self.judge));
        let is_folder = self.fits.is_some();
        let delete = move |path: Path| {
            let (inner, judge, of) = (Arc::clone(&inner), Arc::clone(&judge), path.clone());
            let delete = async move {
                if is_folder {
                    inner.head(&path).await?;
                }
                inner.delete(&path).await.map(|()| path)
            };
            async move { ask(&judge, ("delete", Some(&of)), delete, None).await }
        };
        locations.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (inner, judge, of) =
            (Arc::clone(&self.inner), Arc::clone(&self.judge), prefix.cloned());
        let prefix = of.clone();
        let list = async move { Ok(inner.list(prefix.as_ref())) };
        let list = async move { ask(&judge, ("list", of.as_ref()), list, None).await };
        futures_util::stream::once(list).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
