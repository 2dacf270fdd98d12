//! A store that crashes after so many requests, and one that fails by chance, that lies, and that is slow.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use corewise_sync::Mutex;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use super::passes;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// It fails, and nothing is done.
    Refused,
    /// It is done, and the answer is that it failed.
    Unsaid,
    /// Nothing is done, and the answer is that it was: only of puts.
    Forgotten,
    /// A part of it is done, and the answer is that all was: only of puts.
    Cut,
    /// It never ends.
    Hangs,
}

/// What decides the fate of the next request, and how long it takes.
pub(super) type Judge = Box<dyn FnMut() -> (Fate, Duration) + Send>;

/// All that was to be put, with its name.
pub(super) type Puts = Arc<Mutex<Vec<(String, Bytes)>>>;

/// How a store creates an object that may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Creation {
    /// One of many does.
    Once,
    /// It looks, and writes later.
    Racing,
    /// Each does.
    Always,
}

pub(super) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    /// L: is the lock, and guards the judge.
    judge: Mutex<Judge>,
    /// I: how it creates what may be there.
    pub(super) creation: Creation,
    /// I: remembers what is put.
    pub(super) puts: Option<Puts>,
    /// I: what is read comes in four parts, and before each so much time passes.
    pub(super) drip: Duration,
}

impl Faulty {
    pub(super) fn new(inner: &Arc<dyn ObjectStore>, judge: Judge) -> Self {
        let creation = Creation::Once;
        Self {
            inner: Arc::clone(inner),
            judge: Mutex::new(judge),
            creation,
            puts: None,
            drip: Duration::ZERO,
        }
    }

    async fn fate(&self) -> Fate {
        let (fate, takes) = (self.judge.lock())();
        if !takes.is_zero() {
            passes(takes).await;
        }
        if fate == Fate::Hangs {
            std::future::pending::<()>().await;
        }
        fate
    }

    async fn through<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fate().await {
            Fate::Done | Fate::Forgotten | Fate::Cut => asked.await,
            Fate::Unsaid => {
                let _ = asked.await;
                Err(failed())
            }
            _ => Err(failed()),
        }
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
        match self.fate().await {
            Fate::Done => self.inner.put_opts(location, payload, opts).await,
            Fate::Unsaid => {
                let _ = self.inner.put_opts(location, payload, opts).await;
                Err(failed())
            }
            Fate::Cut => {
                let bytes = Bytes::from(payload);
                let part = bytes.slice(..bytes.len() - bytes.len() / 4);
                self.inner.put_opts(location, part.into(), opts).await
            }
            Fate::Forgotten => {
                Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
            }
            _ => Err(failed()),
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut found = self.through(self.inner.get_opts(location, options)).await?;
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
        let (fate, _) = (self.judge.lock())();
        match fate {
            Fate::Done => self.inner.delete_stream(locations),
            _ => futures_util::stream::once(async { Err(failed()) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (fate, _) = (self.judge.lock())();
        match fate {
            Fate::Done | Fate::Forgotten => self.inner.list(prefix),
            _ => futures_util::stream::once(async { Err(failed()) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
