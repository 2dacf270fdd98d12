//! Keys of encrypted devices that the program has given the server.

use std::collections::BTreeMap;

use corewise::drivers::Secret;
use corewise::sync::{Mutex, MutexGuard};

/// The keys from the user and from file descriptors, each until its device has opened.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// L: is the lock, held for a moment; guards the key of each device.
    given: Mutex<BTreeMap<String, Secret>>,
    /// L: is the lock, held while a key is derived, so that one derivation at a time has its
    /// memory.
    opening: Mutex<()>,
}

impl Secrets {
    pub(crate) fn new(given: BTreeMap<String, Secret>) -> Secrets {
        Secrets { given: Mutex::new(given), opening: Mutex::default() }
    }

    /// Waits until no other device opens. May block for minutes.
    pub(super) fn opens(&self) -> MutexGuard<'_, ()> {
        self.opening.lock()
    }

    /// Takes the key of a device.
    pub(super) fn take(&self, device: &str) -> Option<Secret> {
        self.given.lock().remove(device)
    }

    /// Keeps the key of a device for another try.
    pub(super) fn keep(&self, device: &str, secret: Secret) {
        self.given.lock().insert(device.to_owned(), secret);
    }
}
