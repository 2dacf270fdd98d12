//! What a handshake needs to know about the exports.

use crate::wire::{BlockSizes, ExportSummary, Form, TransmissionFlags};

/// What a client is told about an export, and what the transmission phase then keeps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOffer {
    /// The canonical name.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// Size and abilities.
    pub summary: ExportSummary,
    /// Sizes of requests.
    pub block_sizes: BlockSizes,
}

impl ExportOffer {
    /// What depends on the form of messages that this client has chosen, and on its metadata context.
    pub(super) fn adapt(&mut self, form: Form, allocation: bool) {
        let flags = self.summary.flags.with_if(form.has_chunks(), TransmissionFlags::SEND_DF);
        let filtered = allocation && form == Form::Extended;
        self.summary.flags = flags.with_if(filtered, TransmissionFlags::BLOCK_STATUS_PAYLOAD);
    }
}

/// What a server says of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// There is none.
    #[default]
    Off,
    /// Clients may have it.
    Allowed,
    /// Nothing else is answered before it.
    Required,
}

/// Why a client isn't offered an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOffered {
    /// There is none of this name.
    Unknown,
    /// It isn't for this client; why, in words for it.
    Forbidden(String),
}

/// The exports that a handshake may choose from.
pub trait Catalogue {
    /// The export of this name; the empty name asks for the default export.
    ///
    /// # Errors
    /// There is none, or it isn't for this client.
    fn find(&self, name: &str) -> Result<ExportOffer, NotOffered>;
    /// Gives the client a place at the export of this name, which was found: from here on nobody may take it away.
    ///
    /// # Errors
    /// Why there is none, in words for the client.
    fn attach(&self, name: &str) -> Result<(), String>;
    /// Calls `each` with the name and description of each export that is for this client.
    fn for_each(&self, each: &mut dyn FnMut(&str, &str));
    /// How many exports there are.
    fn len(&self) -> usize;
    /// True when there is no export.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// True when no new client is wanted: options are answered with `ERR_SHUTDOWN`.
    fn is_shutting_down(&self) -> bool;
}
