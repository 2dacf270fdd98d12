//! Metadata contexts in the handshake. There is one, `base:allocation`.

use super::{Catalogue, find, refuse, reply};
use crate::wire::{
    BASE_ALLOCATION, Form, MetaRequest, OptionKind, OptionReplyKind, encode_meta_context,
};

/// The number that stands for `base:allocation` in block status.
pub const ALLOCATION_CONTEXT: u32 = 1;
/// In a list, this stands for everything in its namespace.
const BASE: &str = "base:";

/// Answers `LIST_META_CONTEXT` or `SET_META_CONTEXT`; the name of the export whose allocation was listed or chosen.
pub(super) fn answer(
    option: OptionKind,
    data: &[u8],
    catalogue: &dyn Catalogue,
    form: Form,
    out: &mut Vec<u8>,
) -> Option<String> {
    if !form.has_chunks() {
        let message = "STRUCTURED_REPLY has to come first";
        refuse(out, option, OptionReplyKind::ERR_INVALID, message);
        return None;
    }
    let meta = match MetaRequest::decode(data) {
        Ok(meta) => meta,
        Err(error) => {
            refuse(out, option, OptionReplyKind::ERR_INVALID, error.message());
            return None;
        }
    };
    let offer = find(option, meta.name, catalogue, out)?;
    let lists = option == OptionKind::LIST_META_CONTEXT;
    let is_meant = |query: &&str| *query == BASE_ALLOCATION || lists && *query == BASE;
    let meant = lists && meta.queries.is_empty() || meta.queries.iter().any(is_meant);
    if meant {
        let mut context = Vec::new();
        // The number is reserved in a list.
        let id = if lists { 0 } else { ALLOCATION_CONTEXT };
        encode_meta_context(&mut context, id, BASE_ALLOCATION);
        reply(out, option, OptionReplyKind::META_CONTEXT, &context);
    }
    reply(out, option, OptionReplyKind::ACK, &[]);
    meant.then_some(offer.name)
}
