//! A volume in a server, as a disk, and random work on it, compared with a model.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{BlockDeviceExt as _, Driver, IoError, Queue};
use corewise_object::{ObjectDriver, ObjectOptions, OpenError};
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};
use fastrand::Rng;
use object_store::aws::{AmazonS3, AmazonS3Builder};

/// The bucket that each server of this crate has.
pub(crate) const BUCKET: &str = "bucket";
/// The key that each server knows.
pub(crate) const KEY: &str = "key";
/// The secret of the key.
pub(crate) const SECRET: &str = "a secret of the tests";
/// The account that each Azurite has, with its key: both are documented, and secure nothing.
pub(crate) const AZURE_ACCOUNT: &str = "devstoreaccount1";
pub(crate) const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// A protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    S3,
    /// The protocol of Google Cloud Storage.
    Gcs,
    /// The protocol of Azure's blobs.
    Azure,
}

/// The place of a volume, and the options with which it is opened.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    protocol: Protocol,
    server: SocketAddr,
    prefix: String,
    /// Time for which a server believes that it is the only one.
    pub(crate) lease: Duration,
    /// Time that a request waits for the store.
    pub(crate) patience: Duration,
}

impl Place {
    /// Creates the place of the volume `prefix` in the server.
    pub(crate) fn new(server: SocketAddr, prefix: &str) -> Self {
        Self {
            protocol: Protocol::S3,
            server,
            prefix: prefix.to_owned(),
            lease: Duration::from_millis(100),
            patience: Duration::from_secs(60),
        }
    }

    /// Returns the volume's name in the bucket.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the server's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server
    }

    /// Returns the same volume, reached by another address.
    pub(crate) fn by(&self, server: SocketAddr) -> Self {
        Self { server, ..self.clone() }
    }

    /// Returns the same place in a server of another protocol.
    pub(crate) fn of(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// Returns the volume's location, and how the server is reached.
    fn location(&self) -> (String, Vec<(&'static str, String)>) {
        let endpoint = format!("http://{}", self.server);
        let (scheme, settings) = match self.protocol {
            Protocol::S3 => (
                "s3",
                vec![
                    ("endpoint", endpoint),
                    ("access_key_id", KEY.into()),
                    ("secret_access_key", SECRET.into()),
                ],
            ),
            Protocol::Gcs => ("gs", vec![("endpoint", endpoint), ("bearer_token", KEY.into())]),
            Protocol::Azure => (
                "az",
                vec![
                    ("endpoint", format!("{endpoint}/{AZURE_ACCOUNT}")),
                    ("account_name", AZURE_ACCOUNT.into()),
                    ("access_key", AZURE_KEY.into()),
                ],
            ),
        };
        (format!("{scheme}://{BUCKET}/{}", self.prefix), settings)
    }

    /// Opens the volume, or makes it.
    ///
    /// # Errors
    /// [`ObjectDriver::open`] fails.
    pub(crate) fn open(&self, blocks: usize) -> Result<Disk, OpenError> {
        let (location, settings) = self.location();
        let options = ObjectOptions::new(&location)
            .lease(self.lease)
            .patience(self.patience)
            .size((blocks * BLOCK) as u64);
        let set =
            |options: ObjectOptions, (key, value): (&str, String)| options.setting(key, &value);
        let options = settings.into_iter().fold(options, set);
        let driver = Arc::new(ObjectDriver::open(options)?);
        let mut disk = Disk::over(Arc::clone(&driver) as _);
        disk.volume = Some(driver);
        Ok(disk)
    }

    /// Creates a client of the server that knows nothing of volumes.
    ///
    /// # Panics
    /// The client can't be built.
    pub(crate) fn client(&self) -> AmazonS3 {
        let _ = rustls::crypto::ring::default_provider().install_default();
        AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.server))
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region("us-east-1")
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET)
            .build()
            .expect("a client")
    }
}

/// A volume with its queue and its threads.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The queue of requests.
    pub(crate) queue: Arc<Queue>,
    volume: Option<Arc<ObjectDriver>>,
    pools: Option<WorkerPools>,
}

impl Disk {
    /// Creates a disk over any driver.
    ///
    /// # Panics
    /// Its threads can't be started.
    pub(crate) fn over(driver: Arc<dyn Driver>) -> Self {
        let machine = Machine::live().expect("a machine");
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("s3").build(&pools).expect("a workqueue");
        let queue = Queue::builder(&machine, driver).build(&wq);
        Self { queue, volume: None, pools: Some(pools) }
    }

    /// Writes blocks of which each byte is `what`.
    ///
    /// # Errors
    /// The device's error.
    pub(crate) fn write(&self, start: usize, len: usize, what: u8) -> Result<(), IoError> {
        self.queue.write_at((start * BLOCK) as u64, vec![what; len * BLOCK])
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// The device's error.
    pub(crate) fn flush(&self) -> Result<(), IoError> {
        self.queue.flush()
    }

    /// Reads blocks, and returns the byte of each.
    ///
    /// # Errors
    /// The device's error.
    ///
    /// # Panics
    /// A block has two different bytes.
    pub(crate) fn read(&self, start: usize, len: usize) -> Result<Vec<u8>, IoError> {
        let bytes = self.queue.read_at((start * BLOCK) as u64, len * BLOCK)?;
        let blocks = bytes.chunks(BLOCK).map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block was never written so");
            block[0]
        });
        Ok(blocks.collect())
    }

    /// Returns the number of requests to the store.
    ///
    /// # Panics
    /// The volume isn't in a store.
    pub(crate) fn requests(&self) -> u64 {
        let usage = self.volume.as_ref().expect("a volume in a store").usage();
        usage.puts + usage.gets + usage.lists + usage.deletes
    }

    /// Records in the store that this server has ended.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn close(&self) -> Result<(), IoError> {
        self.queue.drain();
        self.volume.as_ref().map_or(Ok(()), |volume| volume.close())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.queue.drain();
        if let Some(pools) = self.pools.take() {
            pools.shutdown();
        }
    }
}

/// Does random work on a volume by `way`, in `lives` lives, and compares it with a model. Then it
/// compares the volume by `place`, without the faults of the way.
///
/// # Panics
/// The volume and the model differ.
pub(crate) fn agrees(place: &Place, way: &Place, seed: u64, lives: usize, steps: u8) {
    const BLOCKS: usize = 64;
    let mut random = Rng::with_seed(seed);
    let mut model = vec![0; BLOCKS];
    for life in 0..lives {
        let disk = way.open(BLOCKS).expect("it opens");
        for what in 1..=steps {
            let start = random.usize(0..BLOCKS);
            let len = random.usize(1..=(BLOCKS - start).min(9));
            match random.u8(0..8) {
                0 => {
                    disk.queue
                        .write_zeroes((start * BLOCK) as u64, (len * BLOCK) as u64)
                        .expect("zeroes");
                    model[start..start + len].fill(0);
                }
                1 => disk.flush().expect("a flush"),
                2 | 3 => {
                    let found = disk.read(start, len).expect("a read");
                    assert_eq!(found, model[start..start + len], "seed {seed}, step {what}");
                }
                _ => {
                    disk.write(start, len, what).expect("a write");
                    model[start..start + len].fill(what);
                }
            }
        }
        disk.flush().expect("a last flush");
        if life % 2 == 0 {
            disk.close().expect("it closes");
        }
    }
    let disk = place.open(BLOCKS).expect("it opens without faults");
    assert_eq!(disk.read(0, BLOCKS).expect("a last read"), model, "seed {seed}");
}
