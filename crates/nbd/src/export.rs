//! An export: a block device under a name.

use std::fmt;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Request};
use corewise_sync::atomic::{AtomicBool, Ordering};

use crate::access::Access;
use crate::access::{Limiter, Rate};
use crate::edge::Edges;
use crate::handshake::ExportOffer;
use crate::losses::Losses;
use crate::policy;
use crate::turn::{PLACES, Turns};
use crate::wire::ExportSummary;

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
    /// What all its clients together may do in a second.
    pub(crate) limiter: Option<Arc<Limiter>>,
    /// What each of them may do.
    pub(crate) client_rate: Rate,
    /// How all clients of the device share it.
    pub(crate) shared: Arc<ExportShared>,
}

/// Whether an export became read-only after clients had been told that it isn't.
///
/// A: Relaxed: a change that is on its way meanwhile may go either way.
#[derive(Debug, Default)]
pub(crate) struct WriteRefusal(AtomicBool);

impl WriteRefusal {
    /// Whether their changes are refused.
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the exports of one device have in common.
pub(crate) struct ExportShared {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// Size of the device's blocks in bytes, a power of two.
    pub(crate) block: u64,
    pub(crate) turns: Arc<Turns>,
    /// A: a client has changed something, so that an end needs a flush. Relaxed: it is set before
    /// the request comes to the device, and asked when the client is off the books, which have a
    /// lock.
    changed: AtomicBool,
    pub(crate) edges: Arc<Edges<Request>>,
    pub(crate) losses: Losses,
}

impl ExportShared {
    fn new(device: Arc<dyn BlockDevice>) -> Arc<ExportShared> {
        let block = device.geometry().block_size.max(1).into();
        let turns = Arc::new(Turns::new(PLACES));
        let changed = AtomicBool::new(false);
        Arc::new(ExportShared {
            device,
            block,
            turns,
            changed,
            edges: Arc::default(),
            losses: Losses::default(),
        })
    }

    /// A client is about to change something.
    pub(crate) fn changes(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Whether clients have changed anything.
    pub(crate) fn was_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Whether such a range covers a block in part.
    pub(crate) fn is_odd(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (self.block - 1) != 0
    }
}

impl Export {
    /// An export of `device` under `name`. The device's own limits (size, read-only, abilities)
    /// apply.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Export {
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
            shared: ExportShared::new(device),
        }
    }

    /// Sets a description for people, shown by clients that list the server.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Export {
        self.description = description.into();
        self
    }

    /// Refuses changes, whatever the device allows.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Export {
        self.read_only = read_only;
        self
    }

    /// Lets in so many clients at a time; `None`: as many as the server.
    #[must_use]
    pub fn max_clients(mut self, most: Option<usize>) -> Export {
        self.most_clients = most;
        self
    }

    /// Lets in these users of this machine, by their numbers, on Unix sockets: with
    /// [`Export::allow_certificates`] any of either. Others don't see it in lists, and are told
    /// that it isn't for them. Without either it is for everybody.
    #[must_use]
    pub fn allow_uids(mut self, uids: impl IntoIterator<Item = u32>) -> Export {
        self.access.uids.get_or_insert_default().extend(uids);
        self
    }

    /// Lets in clients with one of these names in their certificate, as [`Export::allow_uids`] does
    /// users: a DNS name, a URI, or the common name, letter by letter.
    #[must_use]
    pub fn allow_certificates<S: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = S>,
    ) -> Export {
        self.access.names.get_or_insert_default().extend(names.into_iter().map(Into::into));
        self
    }

    /// Makes it the one that clients mean by the empty name; of one server only one can be. Without
    /// it they mean the only one that there is for them.
    #[must_use]
    pub fn default_export(mut self, is_default: bool) -> Export {
        self.is_default = is_default;
        self
    }

    pub(crate) fn is_default(&self) -> bool {
        self.is_default
    }

    /// Limits what all its clients together may do in a second. One that asks for more waits, and
    /// isn't read from meanwhile.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Export {
        self.limiter = Limiter::new(rate).map(Arc::new);
        self
    }

    /// Limits what each connection may do in a second, likewise.
    #[must_use]
    pub fn client_rate(mut self, rate: Rate) -> Export {
        self.client_rate = rate;
        self
    }

    /// Takes the place of one of the same name and device, whose clients hear of it.
    pub(crate) fn take_over(&mut self, former: &Export) {
        former.refusal.0.store(self.read_only, Ordering::Relaxed);
        self.refusal = Arc::clone(&former.refusal);
        self.shared = Arc::clone(&former.shared);
    }

    pub(crate) fn most_clients(&self) -> Option<usize> {
        self.most_clients
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description; empty where none was set.
    pub(crate) fn description_text(&self) -> &str {
        &self.description
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.shared.device
    }

    /// Whether a client can change anything: neither the export nor its device is read-only.
    pub(crate) fn is_writable(&self) -> bool {
        !self.read_only && !self.device().geometry().read_only
    }

    /// What a client is told. The size is asked of the device each time, so a device that grew
    /// shows it at the next connection.
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
        }
    }

    /// What tells its device from others for as long as there is something shared of it.
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
