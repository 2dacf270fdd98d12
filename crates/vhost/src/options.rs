//! Options of a disk.

use corewise_export::{Access, Rate, SharedDevice, SocketAccess};

use crate::config::MOST_BLOCK;
use crate::error::Error;

/// Options of a disk.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) queues: u16,
    pub(crate) read_only: bool,
    pub(crate) serial: Option<String>,
    pub(crate) memory: u64,
    pub(crate) rate: Rate,
    pub(crate) access: Access,
    pub(crate) socket: SocketAccess,
}

impl Default for Options {
    /// Up to 64 queues, writable if the device is, 32 MiB of memory, no limit, for everybody who
    /// may connect to the socket: the process's user, and root.
    fn default() -> Self {
        Self {
            queues: 64,
            read_only: false,
            serial: None,
            memory: 32 << 20,
            rate: Rate::default(),
            access: Access::default(),
            socket: SocketAccess { owner: None, group: None, mode: 0o600 },
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
