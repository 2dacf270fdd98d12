//! An export: a block device under a name.

use std::fmt;
use std::sync::Arc;

use corewise_blockmq::BlockDevice;
use corewise_export::{Access, Limiter, Rate, SharedDevice};
use corewise_sync::atomic::{AtomicBool, Ordering};

use crate::handshake::ExportOffer;
use crate::policy;
use crate::wire::ExportSummary;

/// The checkpoints of a device: clients of its exports may ask what changed since.
pub trait Checkpoints: Send + Sync {
    /// Returns the names of the checkpoints. Any context.
    fn names(&self) -> Vec<String>;

    /// Returns which bytes from `offset` on may have changed since a checkpoint. It has one stretch
    /// at least and `most` at most, each with its length, and true for changed ones. They end at
    /// `offset + len` or before it. `None` if there is no such checkpoint. Any context.
    fn changed(&self, name: &str, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, bool)>>;
}

/// The layers of a device: clients of its exports may ask which one has the bytes.
pub trait AllocationDepth: Send + Sync {
    /// Returns where bytes from `offset` on are: 1 in the device itself, 2 in what is below it, 0
    /// nowhere. It has one stretch at least and `most` at most, each with its length. They end at
    /// `offset + len` or before it. `None` if that isn't known. It is called when the device has
    /// answered a request for extents from `offset` on. Any context.
    fn depths(&self, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, u32)>>;
}

/// A block device under a name, as clients see it.
#[derive(Clone)]
pub struct Export {
    name: String,
    description: String,
    read_only: bool,
    pub(crate) refusal: Arc<WriteRefusal>,
    most_clients: Option<usize>,
    pub(crate) access: Access,
    is_default: bool,
    /// Limit for all its clients together.
    pub(crate) limiter: Option<Arc<Limiter>>,
    /// Limit for each connection.
    pub(crate) client_rate: Rate,
    /// Device, with the state that all its clients share.
    pub(crate) shared: Arc<SharedDevice>,
    pub(crate) checkpoints: Option<Arc<dyn Checkpoints>>,
    pub(crate) depth: Option<Arc<dyn AllocationDepth>>,
}

/// A flag that is set if an export became read-only after clients had seen it as writable.
///
/// A: Relaxed: a change that is on its way meanwhile may go either way.
#[derive(Debug, Default)]
pub(crate) struct WriteRefusal(AtomicBool);

impl WriteRefusal {
    /// Returns true if changes are refused.
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Export {
    /// Creates an export of `device` under `name`. The device's own limits (size, read-only,
    /// abilities) apply.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Export {
        Export::of(name, SharedDevice::new(device))
    }

    /// Creates an export of a device that has clients elsewhere, such as those of another front
    /// end.
    pub fn of(name: impl Into<String>, shared: Arc<SharedDevice>) -> Export {
        Export {
            name: name.into(),
            description: String::new(),
            read_only: false,
            refusal: Arc::default(),
            most_clients: None,
            limiter: None,
            client_rate: Rate::default(),
            access: Access::default(),
            is_default: false,
            shared,
            checkpoints: None,
            depth: None,
        }
    }

    /// Sets a description for people, shown by clients that list the server.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Export {
        self.description = description.into();
        self
    }

    /// Offers the checkpoints of the device. Each is a metadata context, `qemu:dirty-bitmap:NAME`.
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: Arc<dyn Checkpoints>) -> Export {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// Offers the layers of the device, as the metadata context `qemu:allocation-depth`.
    #[must_use]
    pub fn allocation_depth(mut self, depth: Arc<dyn AllocationDepth>) -> Export {
        self.depth = Some(depth);
        self
    }

    /// Refuses changes, whatever the device allows.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Export {
        self.read_only = read_only;
        self
    }

    /// Sets the largest number of clients at a time. `None` sets the server's limit.
    #[must_use]
    pub fn max_clients(mut self, most: Option<usize>) -> Export {
        self.most_clients = most;
        self
    }

    /// Lets in these users of this machine, by their numbers, on Unix sockets. Together with
    /// [`Export::allow_certificates`], a client needs to match one of the two. Other clients don't
    /// see the export in lists and can't attach to it. Without either rule the export is for
    /// everybody.
    #[must_use]
    pub fn allow_uids(mut self, uids: impl IntoIterator<Item = u32>) -> Export {
        self.access.uids.get_or_insert_default().extend(uids);
        self
    }

    /// Lets in clients whose certificate has one of these names, as [`Export::allow_uids`] lets in
    /// users. A name is a DNS name, a URI, or the common name, compared letter by letter.
    #[must_use]
    pub fn allow_certificates<S: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = S>,
    ) -> Export {
        self.access.names.get_or_insert_default().extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets whether clients get this export for the empty name. A server has at most one such
    /// export. Without one, a client gets the only export that it may attach to, if there is just
    /// one.
    #[must_use]
    pub fn default_export(mut self, is_default: bool) -> Export {
        self.is_default = is_default;
        self
    }

    pub(crate) fn is_default(&self) -> bool {
        self.is_default
    }

    /// Limits requests and bytes a second for all its clients together. A client that asks for more
    /// waits, and its connection isn't read meanwhile.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Export {
        self.limiter = Limiter::new(rate).map(Arc::new);
        self
    }

    /// Limits requests and bytes a second for each connection.
    #[must_use]
    pub fn client_rate(mut self, rate: Rate) -> Export {
        self.client_rate = rate;
        self
    }

    /// Replaces an export of the same name and device. Its clients learn whether changes are
    /// refused.
    pub(crate) fn take_over(&mut self, former: &Export) {
        former.refusal.0.store(self.read_only, Ordering::Relaxed);
        self.refusal = Arc::clone(&former.refusal);
        self.shared = Arc::clone(&former.shared);
    }

    pub(crate) fn most_clients(&self) -> Option<usize> {
        self.most_clients
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description, which is empty if none was set.
    pub(crate) fn description_text(&self) -> &str {
        &self.description
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.shared.device()
    }

    /// Returns true if a client can change anything: neither the export nor its device is
    /// read-only.
    pub(crate) fn is_writable(&self) -> bool {
        !self.read_only && !self.device().geometry().read_only
    }

    /// Returns the properties that the handshake reports to a client. It asks the device for its
    /// size each time, so a device that grew shows its new size to the next connection.
    pub(crate) fn offer(&self) -> ExportOffer {
        let geometry = self.device().geometry();
        ExportOffer {
            name: self.name.clone(),
            description: self.description.clone(),
            summary: ExportSummary {
                size: geometry.size,
                flags: policy::transmission_flags(&geometry, self.read_only),
            },
            block_sizes: policy::block_sizes(&geometry),
            checkpoints: self.checkpoints.as_ref().map(|all| all.names()).unwrap_or_default(),
            depth: self.depth.is_some(),
        }
    }

    /// Returns an address that identifies the device while shared state of it exists.
    pub(crate) fn device_address(&self) -> usize {
        Arc::as_ptr(self.device()).addr()
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("name", &self.name)
            .field("device", &self.device().name())
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}
