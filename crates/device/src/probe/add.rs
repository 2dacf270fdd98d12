//! A device that is added: by the manager, or by a probe.

use super::run::Registry;
use crate::registry::{DeviceState, Key};
use crate::{DeviceDecl, Error};
use corewise_sync::thread::current;
use std::sync::Arc;

impl Registry {
    /// Adds a device, and probes it if it can be probed: see
    /// [`DeviceManager::add`](crate::DeviceManager::add).
    pub(crate) fn add(self: &Arc<Self>, decl: DeviceDecl) -> Result<DeviceState, Error> {
        let decl = Arc::new(decl);
        let me = current().id();
        // Drivers are asked without the lock; should one come or go meanwhile, once more.
        let (key, fx) = loop {
            let (drivers, asked) = {
                let state = self.state.lock();
                (state.drivers.clone(), state.asked)
            };
            let candidates = drivers.candidates(&decl, asked);
            let (added, fx) = self.locked(|state, now, fx| {
                if state.devices.is_closed() {
                    return Err(Error::ShuttingDown);
                }
                if state.drivers.version != drivers.version {
                    return Ok(None);
                }
                let faults = state.devices.refuse(&decl);
                if !faults.is_empty() {
                    return Err(Error::Rejected(faults));
                }
                if !state.devices.has_batch() {
                    state.begin_deferral(now, fx);
                }
                Ok(Some(state.devices.add(decl.clone(), candidates, me, now, fx)))
            });
            if let Some(key) = added? {
                break (key, fx);
            }
        };
        self.apply(fx);
        self.state_after(key, &decl.name)
    }

    /// What a device is at, now that what its own call has begun is over or goes on elsewhere.
    pub(crate) fn state_after(&self, key: Key, name: &str) -> Result<DeviceState, Error> {
        let state = self.state.lock().devices.state(key);
        state.ok_or_else(|| Error::NoSuchDevice(name.to_string()))
    }
}
