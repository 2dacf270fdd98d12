//! The NBD protocol on the wire: constants, messages, and how they become bytes. Pure: no sockets,
//! no clocks, no policy.
//!
//! All integers travel in network byte order. Both directions are here (a server decodes requests
//! and encodes replies, a client the reverse), since the tests and the fuzz targets speak the
//! client's side with the same code.
//!
//! Source of the facts: `doc/proto.md` of the NetworkBlockDevice project, fixed newstyle
//! negotiation, simple and structured replies, metadata contexts; and of its branch `extension-ext-header`, extended headers.

mod error;
mod flags;
mod form;
mod handshake;
mod kinds;
mod meta;
mod structured;
mod transmission;

pub use error::ReplyError;
pub use flags::{ClientFlags, CommandFlags, HandshakeFlags, ReplyFlags, TransmissionFlags};
pub use form::Form;
pub use handshake::{
    BlockSizes, ExportSummary, GREETING_LEN, GoRequest, Greeting, MalformedGo, OPTION_HEADER_LEN,
    OPTION_REPLY_HEADER_LEN, OptionHeader, OptionReplyHeader, decode_client_flags,
    decode_export_name, encode_info_block_size, encode_info_export, encode_info_text,
    encode_server_entry,
};
pub use kinds::{Command, InfoKind, OptionKind, OptionReplyKind, ReplyKind};
pub use meta::{MalformedMeta, MetaRequest, encode_meta_context};
pub use structured::{
    CHUNK_LEN, Chunk, ChunkError, EXTENDED_CHUNK_LEN, StatusExtent, Tag, decode_block_status,
    decode_error, encode_block_status, encode_data, encode_done, encode_error, encode_hole,
};
pub use transmission::{
    EXTENDED_REQUEST_LEN, REQUEST_LEN, Request, SIMPLE_REPLY_LEN, STATUS_QUERY_LEN, SimpleReply,
    StatusQuery,
};

/// First word of the server's greeting: `NBDMAGIC`.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the server's greeting, and the first word of each option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of each request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of each request with an extended head.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First word of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// First word of each chunk with an extended head.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;
/// The one metadata context that the protocol defines: which parts of an export are allocated.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Of `base:allocation`: no space is allocated there.
pub const STATE_HOLE: u32 = 1;
/// Of `base:allocation`: it reads as zeroes.
pub const STATE_ZERO: u32 = 2;
/// Longest string (export name, description, message) that the protocol allows, in bytes.
pub const MAX_STRING: usize = 4096;
/// Zeroes at the end of the answer to `EXPORT_NAME` when the client didn't ask for `NO_ZEROES`, in
/// bytes.
pub const EXPORT_NAME_PADDING: usize = 124;
/// The payload size that each client may assume without asking, and the largest one this server
/// advertises, in bytes.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// The TCP port that is registered for NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// A message began with the wrong magic number: the two sides no longer agree where messages begin,
/// so the connection can't be used any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMagic {
    /// The number that was found.
    pub found: u64,
    /// The number that belongs there.
    pub expected: u64,
}

impl std::fmt::Display for BadMagic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "magic number is {:#x}, expected {:#x}", self.found, self.expected)?;
        match (self.found as u32, self.expected as u32) {
            (REQUEST_MAGIC, EXTENDED_REQUEST_MAGIC) => {
                f.write_str(": a compact request, though the client has chosen extended headers")
            }
            (EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC) => {
                f.write_str(": an extended request, though extended headers weren't agreed on")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BadMagic {}

/// Big-endian integers taken out of fixed places of an array that is known to be long enough.
pub(crate) mod be {
    pub(crate) fn u16(bytes: &[u8], at: usize) -> u16 {
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    }
    pub(crate) fn u32(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }
    pub(crate) fn u64(bytes: &[u8], at: usize) -> u64 {
        u64::from(u32(bytes, at)) << 32 | u64::from(u32(bytes, at + 4))
    }
}
