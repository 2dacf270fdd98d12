//! Drivers, and which of them may have a device.

use super::policy::probes_async;
use crate::decl::{DeviceDecl, ProbeType};
use crate::driver::Driver;
use crate::error::caught;
use corewise_sync::{Mutex, text};
use std::fmt;
use std::sync::Arc;

/// A driver, and what it said about itself when it was registered.
pub(crate) struct Registered {
    /// L: is the lock; guards the driver, which is there until a shutdown lets go of it.
    driver: Mutex<Option<Arc<dyn Driver>>>,
    /// Shared with the reports of bring-ups.
    pub name: Arc<str>,
    pub probe_type: ProbeType,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.name).finish()
    }
}

/// A driver that may have a device, and how it would probe it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub driver: Arc<Registered>,
    pub asynchronous: bool,
    /// It was asked in this round, or is not to be.
    pub asked: bool,
}

/// The registered drivers. A copy is cheap, and says by its version whether it is still true.
#[derive(Clone, Default)]
pub(crate) struct Drivers {
    pub list: Arc<Vec<Arc<Registered>>>,
    pub version: u64,
}

impl Drivers {
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Registered>> {
        self.list.iter().find(|d| *d.name == *name)
    }

    /// Adds one.
    pub(crate) fn add(&mut self, driver: Arc<Registered>) {
        let mut list = (*self.list).clone();
        list.push(driver);
        *self = Drivers { list: Arc::new(list), version: self.version + 1 };
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<Registered>> {
        let mut list = (*self.list).clone();
        let place = list.iter().position(|d| *d.name == *name)?;
        let driver = list.remove(place);
        *self = Drivers { list: Arc::new(list), version: self.version + 1 };
        Some(driver)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.list.iter().map(|d| d.name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// The drivers that may have the device: synchronous ones first, each kind in registration order. Asks the
    /// drivers, so not under a lock.
    pub(crate) fn candidates(&self, decl: &DeviceDecl, asked: bool) -> Vec<Candidate> {
        let may = self.list.iter().filter(|driver| driver.matches(decl));
        let mut candidates: Vec<Candidate> = may.map(|d| d.candidate(decl, asked)).collect();
        candidates.sort_by_key(|c| c.asynchronous);
        candidates
    }
}

impl Registered {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Registered {
        let (name, probe_type) = (Arc::from(driver.name()), driver.probe_type());
        Registered { driver: Mutex::new(Some(driver)), name, probe_type }
    }

    /// The driver; `None` once it was let go.
    pub(crate) fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.driver.lock().clone()
    }

    /// Lets go of the driver, which the caller is to drop without a lock: the last of a shutdown,
    /// which needs it no more.
    pub(crate) fn let_go(&self) -> Option<Arc<dyn Driver>> {
        self.driver.lock().take()
    }

    /// Whether it may have the device. A driver that panics when asked may not, nor one that was
    /// let go.
    pub(crate) fn matches(&self, decl: &DeviceDecl) -> bool {
        let Some(driver) = self.driver() else { return false };
        caught(move || driver.matches(decl)).unwrap_or_else(|message| {
            tracing::error!(driver = %text::name(&self.name), message, "a driver's match function panicked");
            false
        })
    }

    pub(crate) fn candidate(self: &Arc<Self>, decl: &DeviceDecl, asked: bool) -> Candidate {
        let asynchronous = probes_async(self.probe_type, decl.probe_type, asked);
        Candidate { driver: self.clone(), asynchronous, asked: false }
    }
}
