//! Declarations of devices, and the choice which probes run asynchronously.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The declaration of one device: its name, its driver, and what it needs.
///
/// Built with [`DeviceDecl::new`] and the chained setters; pure data until it is handed to
/// [`Graph::build`](crate::Graph::build) or
/// [`DeviceManager::bring_up`](crate::DeviceManager::bring_up).
///
/// ```
/// use corewise_device::DeviceDecl;
///
/// let disk = DeviceDecl::new("disk0", "file").node(Some(1));
/// let volume = DeviceDecl::new("vol", "stripe").supplier("disk0").supplier("disk1");
/// assert_eq!(volume.suppliers, ["disk0", "disk1"]);
/// # let _ = disk;
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct DeviceDecl {
    /// Unique among all devices of a manager; not empty.
    pub name: String,
    /// The name of the driver. If it is empty, any driver that [matches](crate::Driver::matches)
    /// may take the device.
    pub driver: String,
    /// The device inside which this one lives. The parent is bound before this one and shut down
    /// after it.
    pub parent: Option<String>,
    /// Devices whose service this one uses (managed links). They are bound before it and shut down
    /// after it.
    pub suppliers: Vec<String>,
    /// Suppliers that this device can do without. Until the [deferral
    /// timeout](crate::DeviceManager::set_deferral_timeout) they are waited for like the others.
    /// After it, the device is probed without them, and asking for a missing one is an error.
    pub optional_suppliers: Vec<String>,
    /// The NUMA node near which to probe. `None` takes the parent's, as in Linux.
    pub node: Option<u32>,
    /// True (the default) if the shutdown callback may run on another thread, beside those of
    /// devices that neither need this one nor are needed by it. False: in the caller's thread, one
    /// by one with all others that say so, in reverse order of registration.
    pub async_shutdown: bool,
    /// Deadline of its shutdown, after which it is named as overdue. `None`: the shutdown's options
    /// decide.
    pub shutdown_timeout: Option<Duration>,
    /// Overrides the driver's [`ProbeType`], except that `ForceSynchronous` always wins.
    pub probe_type: Option<ProbeType>,
    /// Deadline of a probe, after which the device is named as overdue. It overrides the options of
    /// the bring-up.
    pub probe_timeout: Option<Duration>,
    /// Data for the driver about this device (a path, a size), read with
    /// [`ProbeContext::config`](crate::ProbeContext::config).
    pub(crate) config: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceDecl {
    /// Creates a device with no parent, no supplier, no preferred node, and a shutdown that may run
    /// beside others.
    pub fn new(name: impl Into<String>, driver: impl Into<String>) -> DeviceDecl {
        DeviceDecl {
            name: name.into(),
            driver: driver.into(),
            parent: None,
            suppliers: Vec::new(),
            optional_suppliers: Vec::new(),
            node: None,
            async_shutdown: true,
            shutdown_timeout: None,
            probe_type: None,
            probe_timeout: None,
            config: None,
        }
    }

    /// Adds a supplier that the device can do without.
    #[must_use]
    pub fn optional_supplier(mut self, name: impl Into<String>) -> DeviceDecl {
        self.optional_suppliers.push(name.into());
        self
    }

    /// Sets the deadline of a probe, after which the device is named as overdue.
    #[must_use]
    pub fn probe_timeout(mut self, timeout: Duration) -> DeviceDecl {
        self.probe_timeout = Some(timeout);
        self
    }

    /// Returns the names of all that the device needs: its parent first, then all suppliers. Names
    /// may repeat.
    pub(crate) fn needs(&self) -> impl Iterator<Item = &String> {
        self.parent.iter().chain(self.all_suppliers().map(|(name, _)| name))
    }

    /// Returns the suppliers, the required ones first; true marks an optional one.
    pub(crate) fn all_suppliers(&self) -> impl Iterator<Item = (&String, bool)> {
        let optional = self.optional_suppliers.iter().map(|s| (s, true));
        self.suppliers.iter().map(|s| (s, false)).chain(optional)
    }

    /// Sets the parent.
    #[must_use]
    pub fn parent(mut self, name: impl Into<String>) -> DeviceDecl {
        self.parent = Some(name.into());
        self
    }

    /// Adds a supplier (managed link). Naming one twice is harmless.
    #[must_use]
    pub fn supplier(mut self, name: impl Into<String>) -> DeviceDecl {
        self.suppliers.push(name.into());
        self
    }

    /// Sets the NUMA node near which to probe.
    #[must_use]
    pub fn node(mut self, node: Option<u32>) -> DeviceDecl {
        self.node = node;
        self
    }

    /// Sets whether its shutdown may run beside others. False is for callbacks that must run in the
    /// thread that shuts down, or one by one.
    #[must_use]
    pub fn async_shutdown(mut self, yes: bool) -> DeviceDecl {
        self.async_shutdown = yes;
        self
    }

    /// Sets the deadline of its shutdown, after which it is named as overdue.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> DeviceDecl {
        self.shutdown_timeout = Some(timeout);
        self
    }

    /// Overrides the driver's probe type.
    #[must_use]
    pub fn probe_type(mut self, probe_type: ProbeType) -> DeviceDecl {
        self.probe_type = Some(probe_type);
        self
    }

    /// Sets the data for the driver about this device.
    #[must_use]
    pub fn config<T: Send + Sync + 'static>(mut self, config: T) -> DeviceDecl {
        self.config = Some(Arc::new(config));
        self
    }
}

impl fmt::Debug for DeviceDecl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceDecl")
            .field("name", &self.name)
            .field("driver", &self.driver)
            .field("parent", &self.parent)
            .field("suppliers", &self.suppliers)
            .field("optional_suppliers", &self.optional_suppliers)
            .field("node", &self.node)
            .field("async_shutdown", &self.async_shutdown)
            .field("shutdown_timeout", &self.shutdown_timeout)
            .field("probe_type", &self.probe_type)
            .finish_non_exhaustive()
    }
}

/// A driver's choice whether its probes may run beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProbeType {
    /// The caller decides. In a [bring-up](crate::BringUpOptions#structfield.asynchronous) the
    /// probe is asynchronous by default. For devices that are [added](crate::DeviceManager::add)
    /// one by one it is synchronous, so that the caller learns what became of the device.
    #[default]
    Default,
    /// Asynchronous: the probe is queued near its node as soon as what the device needs is bound.
    PreferAsynchronous,
    /// Synchronous, and nothing overrides it.
    ForceSynchronous,
}
