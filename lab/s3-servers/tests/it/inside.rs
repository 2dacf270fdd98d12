//! s3s-fs in this process: a server that speaks S3 over a folder, written by others.

use std::net::SocketAddr;

use corewise_sync::thread;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue, IF_NONE_MATCH};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, GetObjectInput,
    GetObjectOutput, HeadObjectInput, HeadObjectOutput, ListObjectsV2Input, ListObjectsV2Output,
    PutObjectInput, PutObjectOutput,
};
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Request, S3Response, S3Result};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};

use crate::disk::{BUCKET, KEY, SECRET};

/// The way in which the server creates an object that may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Creation {
    /// One creation at a time, as in S3.
    Atomic,
    /// A check, then the transfer of the bytes, then the move into place, as in s3s-fs.
    Racing,
    /// A creation that ignores `If-None-Match`.
    Deaf,
    /// One creation at a time, with the condition of Google Cloud Storage, whose requests are
    /// otherwise those of S3: an object that has generation 0 doesn't exist.
    Google,
}

/// The header of Google Cloud Storage with the generation that an object has to have.
const GENERATION: &str = "x-goog-if-generation-match";

/// The server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Inside {
    address: SocketAddr,
    _folder: TempDir,
    _end: oneshot::Sender<()>,
}

impl Inside {
    /// Starts a server on a free port, with a bucket in a new folder.
    ///
    /// # Panics
    /// There is no folder, port or thread for it.
    pub(crate) fn new(creation: Creation) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("a bucket");
        let files = FileSystem::new(folder.path()).expect("s3s-fs takes the folder");
        let mut builder =
            S3ServiceBuilder::new(Layer { files, creation, creating: Mutex::new(()) });
        if creation != Creation::Google {
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let service = builder.build();
        let (end, mut ended) = oneshot::channel();
        let (told, here) = std::sync::mpsc::channel();
        let serve = async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            told.send(listener.local_addr().expect("a port")).expect("it is waited for");
            loop {
                let socket = tokio::select! {
                    accepted = listener.accept() => accepted.expect("a connection").0,
                    _ = &mut ended => break,
                };
                socket.set_nodelay(true).expect("a socket");
                let service = service.clone();
                let service = service_fn(move |mut req: hyper::Request<Incoming>| {
                    if creation == Creation::Google {
                        let headers = req.headers_mut();
                        // A token, which nobody here checks.
                        headers.remove(AUTHORIZATION);
                        if headers.get(GENERATION).is_some_and(|asked| asked == "0") {
                            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
                        }
                    }
                    let service = service.clone();
                    async move { service.call(req.map(s3s::Body::from)).await }
                });
                tokio::spawn(async move {
                    let server = Builder::new(TokioExecutor::new());
                    // An error means that the connection was cut.
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        };
        let run = move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
            runtime.block_on(serve);
            runtime.shutdown_background();
        };
        thread::Builder::new().name("s3s-fs".into()).spawn(run).expect("a thread");
        let address = here.recv().expect("it listens");
        Self { address, _folder: folder, _end: end }
    }

    /// Returns the server's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// s3s-fs, with the chosen way of creation.
struct Layer {
    files: FileSystem,
    creation: Creation,
    creating: Mutex<()>,
}

#[async_trait::async_trait]
impl S3 for Layer {
    async fn put_object(
        &self,
        mut req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let _alone = match self.creation {
            Creation::Atomic | Creation::Google => Some(self.creating.lock().await),
            Creation::Racing => None,
            Creation::Deaf => {
                req.input.if_none_match = None;
                None
            }
        };
        self.files.put_object(req).await
    }

    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        self.files.get_object(req).await
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.files.head_object(req).await
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.files.list_objects_v2(req).await
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.files.delete_object(req).await
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.files.delete_objects(req).await
    }
}
