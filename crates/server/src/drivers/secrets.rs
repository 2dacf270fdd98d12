//! Keys of encrypted devices that the program has given the server.

use std::collections::BTreeMap;
use std::sync::Arc;

use corewise::drivers::Secret;
use corewise::sync::{Mutex, MutexGuard};

/// The keys from the user and from file descriptors, which can't be read a second time. Each is
/// kept as long as the manifest has its device.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// L: is the lock, held for a moment; guards the key of each device.
    given: Mutex<BTreeMap<String, Arc<Secret>>>,
    /// L: is the lock, held while a key is derived, so that one derivation at a time has its
    /// memory.
    opening: Mutex<()>,
}

impl Secrets {
    pub(crate) fn new(given: BTreeMap<String, Secret>) -> Secrets {
        let given = given.into_iter().map(|(device, secret)| (device, Arc::new(secret))).collect();
        Secrets { given: Mutex::new(given), opening: Mutex::default() }
    }

    /// Waits until no other device opens. May block for minutes.
    pub(super) fn opens(&self) -> MutexGuard<'_, ()> {
        self.opening.lock()
    }

    /// Returns the key of a device.
    pub(super) fn get(&self, device: &str) -> Option<Arc<Secret>> {
        self.given.lock().get(device).cloned()
    }

    /// Wipes the keys of all devices but these.
    pub(crate) fn retain(&self, keeps: impl Fn(&str) -> bool) {
        self.given.lock().retain(|device, _| keeps(device));
    }
}
