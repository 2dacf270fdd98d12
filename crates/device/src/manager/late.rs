//! Devices that come and go one by one: add, remove, unbind, bind, link, unlink.

use super::DeviceManager;
use crate::decl::DeviceDecl;
use crate::error::{CallbackFailure, Error};
use crate::info::DeviceState;
use crate::registry::{LinkOutcome, ProbesInside, UnlinkOutcome, Walk};
use corewise_sync::context;

impl DeviceManager {
    /// Adds one device, and probes it if it can be probed. This call calls a synchronous driver,
    /// near the device's node. It queues an asynchronous one, and returns at once. If both kinds
    /// match, the synchronous ones are asked first, and the rest in one queued scan (rule 1.2.4). A
    /// device that can't be probed yet is probed later. That is when all that it needs is up,
    /// whether or not that exists now, or when a driver that matches is registered.
    ///
    /// Returns the device's state at the end of the call. A device that fails is no error.
    ///
    /// May be called from a probe ([`ProbeContext::add`](crate::ProbeContext::add)). A child that
    /// the probe registers is probed in place, on the probe's thread (rule 1.2.12), before its
    /// parent is bound: hand the child what it needs in its [`config`](DeviceDecl::config). If its
    /// driver is asynchronous, the child waits for its parent. Either way it goes when its parent
    /// is unbound, or fails. Probes in place take stack, each inside the one before: for devices
    /// that are more than some dozen deep, use an asynchronous driver.
    ///
    /// Costs what the device's own links cost, however many devices there are. May block if a
    /// driver is called.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`] for a name that is empty or taken, and for a device that needs itself,
    /// in however many steps. [`Error::ShuttingDown`] from the beginning of a shutdown on.
    /// [`Error::NoSuchDevice`] if another thread has removed it, or its parent, meanwhile.
    pub fn add(&self, decl: DeviceDecl) -> Result<DeviceState, Error> {
        self.registry.add(decl)
    }

    /// Removes a device with its children. All that need any of them are unbound first, in the
    /// order of a shutdown, and wait for a device of that name from then on. Blocks until that is
    /// done; a probe in progress is waited for. Returns the callbacks that failed.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`], [`Error::ShuttingDown`]; [`Error::InsideProbe`] from a driver,
    /// callback or observer of this manager.
    #[track_caller]
    pub fn remove(&self, name: &str) -> Result<Vec<CallbackFailure>, Error> {
        let _walk = self.begin_walk("DeviceManager::remove")?;
        let device = self.find(name)?;
        let failed = self.registry.leave(device, true);
        // If a shutdown has begun meanwhile, it does the rest.
        match self.registry.state.lock().devices.state(device.key) {
            Some(_) => Err(Error::ShuttingDown),
            None => Ok(failed),
        }
    }

    /// Unbinds a device from its driver. The devices that need it are unbound first, in the order
    /// of a shutdown, and are probed again when it is [bound](DeviceManager::bind) again. It stays
    /// unbound until then. Blocks until that is done; a probe in progress is waited for. Returns
    /// the callbacks that failed.
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceManager::remove`].
    #[track_caller]
    pub fn unbind(&self, name: &str) -> Result<Vec<CallbackFailure>, Error> {
        let _walk = self.begin_walk("DeviceManager::unbind")?;
        Ok(self.registry.leave(self.find(name)?, false))
    }

    /// Probes a device that is not up, whatever the reason, then those that wait for it. A device
    /// that is up is left as it is. This call calls synchronous drivers and queues asynchronous
    /// ones. Returns the device's state at the end of the call.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`], [`Error::ShuttingDown`].
    pub fn bind(&self, name: &str) -> Result<DeviceState, Error> {
        let (key, fx) = self.registry.locked(|state, now, fx| {
            if state.devices.is_closed() {
                return Err(Error::ShuttingDown);
            }
            let key = state.devices.find(name);
            let key = key.ok_or_else(|| Error::NoSuchDevice(name.to_string()))?;
            state.devices.rebind(key, now, fx);
            Ok(key)
        });
        self.registry.apply(fx);
        self.registry.state_after(key?, name)
    }

    /// Links a consumer to a supplier, from now on: the supplier is shut down and unbound after it,
    /// and a consumer that is not up waits for it. A link that exists already stays as it is.
    ///
    /// If the consumer is up, its links may close a circle. Such a link holds up no probe, and a
    /// shutdown breaks the circle by the order of registration
    /// ([`ShutdownReport::cycles`](crate::ShutdownReport)).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`] for either. [`Error::NotUp`] if the consumer is up and the supplier
    /// is not. [`Error::Rejected`] if the consumer is not up, and would wait for itself.
    /// [`Error::ShuttingDown`].
    pub fn link(&self, consumer: &str, supplier: &str) -> Result<(), Error> {
        let state = &mut *self.registry.state.lock();
        if state.devices.is_closed() {
            return Err(Error::ShuttingDown);
        }
        let find = |name: &str| {
            let key = state.devices.find(name);
            key.ok_or_else(|| Error::NoSuchDevice(name.to_string()))
        };
        let (from, to) = (find(consumer)?, find(supplier)?);
        match state.devices.link(from, to) {
            LinkOutcome::Done => Ok(()),
            LinkOutcome::Circle(fault) => Err(Error::Rejected(vec![fault])),
            LinkOutcome::SupplierNotUp => Err(Error::NotUp(supplier.to_string())),
        }
    }

    /// Takes a link away, whether it was declared or made by [`DeviceManager::link`]. From now on
    /// the consumer waits for that supplier no more, and neither goes before nor after it. If the
    /// consumer waited for nothing else, another thread probes it: this call waits for no probe.
    /// Its driver keeps what it has got from the supplier. Returns true if there was a link, so a
    /// second call does no harm. The supplier need not exist (any more).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`] for the consumer, [`Error::LinkToParent`], [`Error::ShuttingDown`].
    pub fn unlink(&self, consumer: &str, supplier: &str) -> Result<bool, Error> {
        self.registry.step(|state, now, fx| {
            if state.devices.is_closed() {
                return Err(Error::ShuttingDown);
            }
            let key = state.devices.find(consumer);
            let key = key.ok_or_else(|| Error::NoSuchDevice(consumer.to_string()))?;
            match state.devices.unlink(key, supplier, now, fx) {
                UnlinkOutcome::Done => Ok(true),
                UnlinkOutcome::None => Ok(false),
                UnlinkOutcome::Parent => {
                    let (device, parent) = (consumer.to_string(), supplier.to_string());
                    Err(Error::LinkToParent { device, parent })
                }
            }
        })
    }

    /// Begins a walk, which unbinds devices.
    #[track_caller]
    pub(super) fn begin_walk(&self, what: &'static str) -> Result<Walk<'_>, Error> {
        context::might_block(what);
        if ProbesInside::is_in(&self.registry) {
            return Err(Error::InsideProbe);
        }
        let mut state = self.registry.state.lock();
        if state.devices.is_closed() {
            return Err(Error::ShuttingDown);
        }
        Ok(Walk::begin(&self.registry, &mut state))
    }
}
