//! The exports as one client in its handshake sees them: with a place for it at the one that it chooses.

use corewise_sync::Mutex;

use super::Inner;
use crate::export::Export;
use crate::handshake::{Catalogue, ExportOffer};

pub(super) struct Desk<'a> {
    server: &'a Inner,
    client: u64,
    /// L: is the lock; guards the export at which the client has its place.
    chosen: Mutex<Option<Export>>,
}

impl<'a> Desk<'a> {
    pub(super) fn new(server: &'a Inner, client: u64) -> Desk<'a> {
        Desk { server, client, chosen: Mutex::new(None) }
    }

    /// The export at which the client has its place.
    pub(super) fn chosen(&self) -> Option<Export> {
        self.chosen.lock().take()
    }
}

impl Catalogue for Desk<'_> {
    fn find(&self, name: &str) -> Option<ExportOffer> {
        self.server.registry.find(name)
    }

    fn attach(&self, name: &str) -> Result<(), String> {
        let export = self.server.registry.attach(self.client, name, &self.server.options)?;
        *self.chosen.lock() = Some(export);
        Ok(())
    }

    fn for_each(&self, each: &mut dyn FnMut(&str, &str)) {
        self.server.registry.for_each(each);
    }

    fn len(&self) -> usize {
        self.server.registry.len()
    }

    fn is_shutting_down(&self) -> bool {
        self.server.registry.is_closing()
    }
}
