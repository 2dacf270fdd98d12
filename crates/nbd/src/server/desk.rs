//! The exports as one client in its handshake sees them: with a place for it at the one that it chooses.

use corewise_sync::Mutex;

use super::Inner;
use crate::access::Identity;
use crate::export::Export;
use crate::handshake::{Catalogue, ExportOffer, NotOffered};
use crate::told::Voice;

pub(super) struct Desk<'a> {
    server: &'a Inner,
    voice: &'a Voice,
    /// L: is the lock; guards what is known of the client, which is more after TLS. Taken before the registry's.
    who: Mutex<Identity>,
    /// L: is the lock; guards the export at which the client has its place.
    chosen: Mutex<Option<Export>>,
}

impl<'a> Desk<'a> {
    pub(super) fn new(server: &'a Inner, voice: &'a Voice) -> Desk<'a> {
        Desk { server, voice, who: Mutex::new(voice.who.clone()), chosen: Mutex::new(None) }
    }

    /// The client has shown a certificate with these names, and was vouched for.
    pub(super) fn certified(&self, names: Vec<String>) {
        self.who.lock().names = names;
    }

    /// What is known of the client by now.
    pub(super) fn who(&self) -> Identity {
        self.who.lock().clone()
    }

    /// The export at which the client has its place.
    pub(super) fn chosen(&self) -> Option<Export> {
        self.chosen.lock().take()
    }
}

impl Catalogue for Desk<'_> {
    fn find(&self, name: &str) -> Result<ExportOffer, NotOffered> {
        self.server.registry.find(name, self.voice, &self.who.lock())
    }

    fn attach(&self, name: &str) -> Result<(), String> {
        let Desk { server, voice, who, .. } = self;
        let export = server.registry.attach(voice.client, name, &who.lock(), &server.options())?;
        *self.chosen.lock() = Some(export);
        Ok(())
    }

    fn for_each(&self, each: &mut dyn FnMut(&str, &str)) {
        self.server.registry.for_each(&self.who.lock(), each);
    }

    fn len(&self) -> usize {
        self.server.registry.len()
    }

    fn is_shutting_down(&self) -> bool {
        self.server.registry.is_closing()
    }
}
