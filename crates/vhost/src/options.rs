//! Options of a disk.

use std::fmt;
use std::sync::Arc;

use corewise_export::{Access, Identity, MemoryPool, Rate, SharedDevice, SocketAccess};
use corewise_sync::panics::caught;

use crate::config::MOST_BLOCK;
use crate::error::Error;

/// Options of a disk.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) queues: u16,
    pub(crate) read_only: bool,
    pub(crate) may_lose: bool,
    pub(crate) serial: Option<String>,
    pub(crate) memory: u64,
    pub(crate) rate: Rate,
    pub(crate) access: Access,
    pub(crate) socket: SocketAccess,
    pub(crate) pool: Option<Arc<dyn MemoryPool>>,
    pub(crate) observer: Option<Observer>,
}

/// An event of a frontend.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum FrontendEvent<'a> {
    /// The frontend has connected, and has the disk.
    Attached {
        /// Its user and its process.
        who: &'a Identity,
    },
    /// The frontend has left, or was let go, and has no requests in the device any more.
    Left {
        /// Its user and its process.
        who: &'a Identity,
        /// Reason, in words.
        why: &'a str,
    },
}

/// A function that is called with each event of a frontend.
#[derive(Clone)]
pub(crate) struct Observer(Arc<dyn Fn(&FrontendEvent<'_>) + Send + Sync>);

impl Observer {
    pub(crate) fn tell(&self, event: &FrontendEvent<'_>) {
        if caught(|| (self.0)(event)).is_none() {
            tracing::error!("the observer of a vhost-user frontend panicked");
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Default for Options {
    /// Up to 64 queues, writable if the device is, 32 MiB of memory, no limit, for everybody who
    /// may connect to the socket: the process's user, and root.
    fn default() -> Self {
        Self {
            queues: 64,
            read_only: false,
            may_lose: false,
            serial: None,
            memory: 32 << 20,
            rate: Rate::default(),
            access: Access::default(),
            socket: SocketAccess { owner: None, group: None, mode: 0o600 },
            pool: None,
            observer: None,
        }
    }
}

/// Most queues of a disk.
const MOST_QUEUES: u16 = 256;

impl Options {
    /// Sets the largest number of queues that a frontend may ask for, from 1 to 256. A queue has a
    /// thread once a frontend uses it.
    #[must_use]
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = queues;
        self
    }

    /// Refuses changes, whatever the device allows.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether a server that died may have lost changes that it had answered. Then the first
    /// flush of each queue fails if the guest had that server.
    #[must_use]
    pub fn may_lose(mut self, may_lose: bool) -> Self {
        self.may_lose = may_lose;
        self
    }

    /// Sets the serial number that the guest sees: its first 20 bytes. Without it, the device's
    /// name.
    #[must_use]
    pub fn serial(mut self, serial: impl Into<String>) -> Self {
        self.serial = Some(serial.into());
        self
    }

    /// Sets how many bytes of reads and writes may be in flight at a time. Each queue may have
    /// 512 KiB beyond.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Limits the guest's requests and bytes a second, over all queues.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = rate;
        self
    }

    /// Sets which users' frontends are served. Others are turned away.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the owner, group and mode of the socket that [`Server::listen`](crate::Server::listen)
    /// makes. By default the process's user may connect, and root.
    #[must_use]
    pub fn socket(mut self, access: SocketAccess) -> Self {
        self.socket = access;
        self
    }

    /// Has reads and writes in flight take their memory from this pool, too. Each queue may have
    /// 512 KiB beyond, as with [`Options::memory`].
    #[must_use]
    pub fn memory_pool(mut self, pool: Arc<dyn MemoryPool>) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Sets a function that is called with each event of a frontend, on that frontend's thread. A
    /// panic in it is logged.
    #[must_use]
    pub fn observer(mut self, tell: impl Fn(&FrontendEvent<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(tell)));
        self
    }

    /// Verifies the options and the device.
    pub(crate) fn check(&self, device: &SharedDevice) -> Result<(), Error> {
        let device = device.device();
        let (name, geometry) = (device.name(), device.geometry());
        if !(1..=MOST_QUEUES).contains(&self.queues) {
            return Err(Error::Unfit(format!(
                "{name}: {} queues, and not 1 to {MOST_QUEUES}",
                self.queues
            )));
        }
        if let Some(why) = geometry.cannot_be() {
            return Err(Error::Unfit(format!("{name}: {why}")));
        }
        if geometry.block_size > MOST_BLOCK {
            return Err(Error::Unfit(format!(
                "{name}: a guest's disk has blocks of at most {MOST_BLOCK} bytes, and this device \
                 has blocks of {}. Serve it by NBD",
                geometry.block_size
            )));
        }
        Ok(())
    }
}
