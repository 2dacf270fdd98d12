//! The NBD protocol on the wire: constants, messages, and their encoding. Pure: no sockets, no
//! clocks, no policy.
//!
//! All integers travel in network byte order. Both directions are here: a server decodes requests
//! and encodes replies, a client the reverse.
//!
//! Source of the facts: `doc/proto.md` of the NetworkBlockDevice project, fixed newstyle
//! negotiation, simple and structured replies, metadata contexts; and of its branch
//! `extension-ext-header`, extended headers.

mod handshake;
mod transmission;

pub use handshake::{
    BlockSizes, ExportSummary, GREETING_LEN, GoRequest, Greeting, MalformedGo, OPTION_HEADER_LEN,
    OPTION_REPLY_HEADER_LEN, OptionHeader, OptionReplyHeader, decode_client_flags,
    decode_export_name, encode_info_block_size, encode_info_export, encode_info_text,
    encode_server_entry,
};
pub use handshake::{MalformedMeta, MetaRequest, encode_meta_context};
pub use transmission::{
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
/// Name of the one metadata context that the protocol defines: the allocation of an export.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Flag of `base:allocation`: no space is allocated for the extent.
pub const STATE_HOLE: u32 = 1;
/// Flag of `base:allocation`: the extent reads as zeroes.
pub const STATE_ZERO: u32 = 2;
/// Name of QEMU's metadata context for layers. The flags of an extent are 0 if no layer has it, 1
/// for the device itself, 2 for a layer below.
pub const ALLOCATION_DEPTH: &str = "qemu:allocation-depth";
/// Beginning of the names of QEMU's metadata contexts for checkpoints: which bytes changed since.
pub const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";
/// Flag of such a context: the extent may have changed.
pub const STATE_DIRTY: u32 = 1;
/// Longest string (export name, description, message) that the protocol allows, in bytes.
pub const MAX_STRING: usize = 4096;
/// Number of zero bytes at the end of the answer to `EXPORT_NAME` if the client didn't ask for
/// `NO_ZEROES`.
pub const EXPORT_NAME_PADDING: usize = 124;
/// Largest payload that each client may assume without asking, and that this server advertises, in
/// bytes.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// The TCP port that is registered for NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// A message began with the wrong magic number: the two sides no longer agree where messages begin,
/// so the connection can't be used any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMagic {
    /// Number that was found.
    pub found: u64,
    /// Number that belongs there.
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

/// Decoders of big-endian integers at fixed offsets of an array that is known to be long enough.
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

/// The error of a reply. The protocol fixes this set and its numbers, whatever `errno` means on
/// either machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ReplyError {
    /// The operation isn't permitted: the export is read-only.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The server is out of memory.
    NoMem = 12,
    /// The request makes no sense.
    Inval = 22,
    /// The device is full, or the write is beyond its end.
    NoSpc = 28,
    /// The value is too large.
    Overflow = 75,
    /// The device doesn't support the operation.
    NotSup = 95,
    /// The server, or this export of it, is shutting down.
    Shutdown = 108,
}

impl ReplyError {
    /// Returns the number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns the default message for a client.
    pub const fn message(self) -> &'static str {
        match self {
            ReplyError::Perm => "the export is read-only",
            ReplyError::Io => "the device failed",
            ReplyError::NoMem => "the server is out of memory",
            ReplyError::Inval => {
                "the server didn't offer this command, flag or range, or the range isn't in whole \
                 blocks"
            }
            ReplyError::NoSpc => "no room: the device is full, or ends before the range does",
            ReplyError::Overflow => "more than the largest payload that the server offered",
            ReplyError::NotSup => "the device can't do this faster than by a write",
            ReplyError::Shutdown => "the server, or this export of it, is shutting down",
        }
    }

    /// Returns the error with this number, or `None` for 0 (success) and for numbers outside the
    /// set.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => ReplyError::Perm,
            5 => ReplyError::Io,
            12 => ReplyError::NoMem,
            22 => ReplyError::Inval,
            28 => ReplyError::NoSpc,
            75 => ReplyError::Overflow,
            95 => ReplyError::NotSup,
            108 => ReplyError::Shutdown,
            _ => return None,
        })
    }

    /// Converts a Linux `errno`. Numbers outside the set become the nearest member, and `Io` if
    /// nothing is near. A client must never see a number that it may take for something else.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            1 | 13 | 30 => ReplyError::Perm,    // EPERM, EACCES, EROFS
            12 => ReplyError::NoMem,            // ENOMEM
            22 => ReplyError::Inval,            // EINVAL
            27 | 28 | 122 => ReplyError::NoSpc, // EFBIG, ENOSPC, EDQUOT
            75 => ReplyError::Overflow,         // EOVERFLOW
            95 => ReplyError::NotSup,           // EOPNOTSUPP
            // ENODEV, ESHUTDOWN, ECANCELED: the device is going away.
            19 | 108 | 125 => ReplyError::Shutdown,
            _ => ReplyError::Io,
        }
    }
}

/// Defines a number with names: any value is representable, since the peer may send anything.
macro_rules! named_number {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$item_doc:meta])* $item:ident = $value:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$item_doc])* pub const $item: $name = $name($value);)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.0 {
                    $($value => f.write_str(stringify!($item)),)*
                    other => write!(f, concat!(stringify!($name), "({:#x})"), other),
                }
            }
        }

        /// Writes the name that the specification gives it, or the number.
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.0 {
                    $($value => f.write_str(stringify!($item)),)*
                    other => write!(f, "the unknown {other:#x}"),
                }
            }
        }
    };
}

named_number! {
    /// The kind of an option in the handshake.
    OptionKind: u32 {
        /// Chooses an export and begins, without any way to report an error.
        EXPORT_NAME = 1;
        /// Ends the handshake politely.
        ABORT = 2;
        /// Lists the exports.
        LIST = 3;
        /// Withdrawn from the protocol.
        PEEK_EXPORT = 4;
        /// Begins TLS.
        STARTTLS = 5;
        /// Describes an export.
        INFO = 6;
        /// Describes an export and begins.
        GO = 7;
        /// Chooses structured replies.
        STRUCTURED_REPLY = 8;
        /// Lists metadata contexts.
        LIST_META_CONTEXT = 9;
        /// Chooses metadata contexts.
        SET_META_CONTEXT = 10;
        /// Chooses 64-bit headers.
        EXTENDED_HEADERS = 11;
    }
}

named_number! {
    /// The kind of a reply to an option. Errors have bit 31 set, and their data is a message for
    /// people.
    OptionReplyKind: u32 {
        /// The option succeeded.
        ACK = 1;
        /// One export of a list follows.
        SERVER = 2;
        /// One piece of information follows.
        INFO = 3;
        /// One metadata context follows.
        META_CONTEXT = 4;
        /// The option is unknown here.
        ERR_UNSUP = 0x8000_0001;
        /// The server's policy forbids the option.
        ERR_POLICY = 0x8000_0002;
        /// The data of the option is malformed.
        ERR_INVALID = 0x8000_0003;
        /// The platform doesn't support the option.
        ERR_PLATFORM = 0x8000_0004;
        /// TLS has to come first.
        ERR_TLS_REQD = 0x8000_0005;
        /// The server has no such export.
        ERR_UNKNOWN = 0x8000_0006;
        /// The server is shutting down.
        ERR_SHUTDOWN = 0x8000_0007;
        /// The client has to ask for block sizes.
        ERR_BLOCK_SIZE_REQD = 0x8000_0008;
        /// The option is too long.
        ERR_TOO_BIG = 0x8000_0009;
        /// Extended headers have to come first.
        ERR_EXT_HEADER_REQD = 0x8000_000a;
    }
}

impl OptionReplyKind {
    /// Returns true for replies that refuse an option.
    pub const fn is_error(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

named_number! {
    /// A piece of information about an export.
    InfoKind: u16 {
        /// Size and transmission flags.
        EXPORT = 0;
        /// The canonical name.
        NAME = 1;
        /// Description for people.
        DESCRIPTION = 2;
        /// Minimum, preferred and maximum size of a request.
        BLOCK_SIZE = 3;
    }
}

named_number! {
    /// The kind of a chunk of a structured reply. Errors have bit 15 set.
    ReplyKind: u16 {
        /// An empty chunk that ends the reply.
        NONE = 0;
        /// An offset, and the data there.
        OFFSET_DATA = 1;
        /// An offset, and the number of zeroes there.
        OFFSET_HOLE = 2;
        /// A metadata context, and its status of one extent after the other.
        BLOCK_STATUS = 5;
        /// A block status with 64-bit lengths (extended headers).
        BLOCK_STATUS_EXT = 6;
        /// An error.
        ERROR = 0x8001;
        /// An error, and its offset.
        ERROR_OFFSET = 0x8002;
    }
}

impl ReplyKind {
    /// Returns true for chunks that report a failure.
    pub const fn is_error(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

named_number! {
    /// The command of a request in the transmission phase.
    Command: u16 {
        /// Reads `length` bytes at `offset`.
        READ = 0;
        /// Writes `length` bytes at `offset`; the bytes follow the request.
        WRITE = 1;
        /// Ends the connection once outstanding requests are answered.
        DISC = 2;
        /// Makes all answered writes durable.
        FLUSH = 3;
        /// Declares that the range is no longer needed.
        TRIM = 4;
        /// Reads ahead into a cache.
        CACHE = 5;
        /// Makes the range read as zeroes.
        WRITE_ZEROES = 6;
        /// Reports allocation.
        BLOCK_STATUS = 7;
        /// Changes the size of the export.
        RESIZE = 8;
    }
}

/// Defines a flag word: a transparent integer with named bits.
macro_rules! flag_word {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$bit_doc:meta])* $bit:ident = $value:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$bit_doc])* pub const $bit: $name = $name($value);)*
            const NAMES: &'static [(&'static str, $int)] = &[$((stringify!($bit), $value)),*];

            /// Returns the word without flags.
            pub const fn empty() -> Self {
                $name(0)
            }

            /// Returns true if each flag of `other` is set in `self`.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the flags of `self` that are not in `other`.
            pub const fn without(self, other: Self) -> Self {
                $name(self.0 & !other.0)
            }

            /// Returns the flags of `self`, plus those of `other` if `condition` holds.
            #[must_use]
            pub const fn with_if(self, condition: bool, other: Self) -> Self {
                if condition { $name(self.0 | other.0) } else { self }
            }

            /// Returns true if no flag is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                $name(self.0 | other.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut rest = self.0;
                f.write_str(concat!(stringify!($name), "("))?;
                let mut first = true;
                for (name, bit) in Self::NAMES {
                    if rest & bit != 0 {
                        rest &= !bit;
                        if !first {
                            f.write_str(" | ")?;
                        }
                        f.write_str(name)?;
                        first = false;
                    }
                }
                if rest != 0 || first {
                    write!(f, "{}{rest:#x}", if first { "" } else { " | " })?;
                }
                f.write_str(")")
            }
        }
    };
}

flag_word! {
    /// The abilities of the server in the handshake.
    HandshakeFlags: u16 {
        /// The server answers unknown options with an error instead of closing the connection.
        FIXED_NEWSTYLE = 1;
        /// The server can leave out the padding after the answer to `EXPORT_NAME`.
        NO_ZEROES = 2;
    }
}

flag_word! {
    /// The handshake flags that the client chose. Any other bit closes the connection.
    ClientFlags: u32 {
        /// The client speaks fixed newstyle.
        FIXED_NEWSTYLE = 1;
        /// The client wants no padding after the answer to `EXPORT_NAME`.
        NO_ZEROES = 2;
    }
}

flag_word! {
    /// The abilities of an export.
    TransmissionFlags: u16 {
        /// The word is valid: always set.
        HAS_FLAGS = 1;
        /// Requests that change data are refused with `EPERM`.
        READ_ONLY = 1 << 1;
        /// The server understands `FLUSH`.
        SEND_FLUSH = 1 << 2;
        /// The server understands the flag `FUA`.
        SEND_FUA = 1 << 3;
        /// The medium rotates: the client should schedule accordingly.
        ROTATIONAL = 1 << 4;
        /// The server understands `TRIM`.
        SEND_TRIM = 1 << 5;
        /// The server understands `WRITE_ZEROES`, and with it the flag `NO_HOLE`.
        SEND_WRITE_ZEROES = 1 << 6;
        /// The server understands the flag `DF` (structured replies only).
        SEND_DF = 1 << 7;
        /// A flush on one connection covers the answered writes of every connection.
        CAN_MULTI_CONN = 1 << 8;
        /// The server understands `RESIZE` (never set by this server).
        SEND_RESIZE = 1 << 9;
        /// The server understands `CACHE`.
        SEND_CACHE = 1 << 10;
        /// The server understands the flag `FAST_ZERO`.
        SEND_FAST_ZERO = 1 << 11;
        /// The client may name the contexts of a `BLOCK_STATUS` (extended headers only).
        BLOCK_STATUS_PAYLOAD = 1 << 12;
    }
}

flag_word! {
    /// Modifiers of one request.
    CommandFlags: u16 {
        /// The reply waits until the data of this request is on stable storage.
        FUA = 1;
        /// The device must not deallocate (`WRITE_ZEROES`).
        NO_HOLE = 1 << 1;
        /// The server must not fragment a structured reply.
        DF = 1 << 2;
        /// One extent is enough (`BLOCK_STATUS`).
        REQ_ONE = 1 << 3;
        /// The request fails if zeroing would be slow.
        FAST_ZERO = 1 << 4;
        /// The length is that of a payload after the request (extended headers only).
        PAYLOAD_LEN = 1 << 5;
    }
}

flag_word! {
    /// Modifiers of one chunk of a structured reply.
    ReplyFlags: u16 {
        /// The chunk is the last one of its reply.
        DONE = 1;
    }
}

/// The form of messages in the transmission phase, as the handshake has settled it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Requests are compact and replies simple. This is the default.
    #[default]
    Simple,
    /// Requests are compact; reads and block status are answered in chunks.
    Structured,
    /// Requests are extended, with 64-bit lengths. Every reply comes in chunks, with extended
    /// heads.
    Extended,
}

impl Form {
    /// Returns the length of a request without its payload, in bytes.
    pub const fn request_len(self) -> usize {
        match self {
            Form::Simple | Form::Structured => REQUEST_LEN,
            Form::Extended => EXTENDED_REQUEST_LEN,
        }
    }

    /// Checks the first word of a request.
    ///
    /// # Errors
    /// `BadMagic` if the word isn't that of a request: the stream is out of step for good.
    pub(crate) const fn check_request(self, word: [u8; 4]) -> Result<(), BadMagic> {
        let found = u32::from_be_bytes(word);
        let expected = match self {
            Form::Simple | Form::Structured => REQUEST_MAGIC,
            Form::Extended => EXTENDED_REQUEST_MAGIC,
        };
        if found == expected {
            return Ok(());
        }
        Err(BadMagic { found: found as u64, expected: expected as u64 })
    }

    /// Returns the length of the head of a chunk in bytes.
    pub const fn chunk_len(self) -> usize {
        match self {
            Form::Simple | Form::Structured => CHUNK_LEN,
            Form::Extended => EXTENDED_CHUNK_LEN,
        }
    }

    /// Returns the number of bytes in front of data in a chunk: its head, and an offset.
    pub(crate) const fn data_chunk_len(self) -> usize {
        self.chunk_len() + 8
    }

    /// Returns true if replies have chunks.
    pub const fn has_chunks(self) -> bool {
        !matches!(self, Form::Simple)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_maps_to_a_member_of_the_set() {
        for errno in -5..=200 {
            let error = ReplyError::from_errno(errno);
            assert_eq!(ReplyError::from_code(error.code()), Some(error));
        }
        assert_eq!(ReplyError::from_errno(30), ReplyError::Perm);
        assert_eq!(ReplyError::from_errno(122), ReplyError::NoSpc);
        assert_eq!(ReplyError::from_errno(5), ReplyError::Io);
        assert_eq!(ReplyError::from_code(0), None);
    }

    #[test]
    fn debug_names_each_known_bit_and_shows_the_rest_as_a_number() {
        let flags = CommandFlags::FUA | CommandFlags(0x8000);
        assert_eq!(format!("{flags:?}"), "CommandFlags(FUA | 0x8000)");
        assert_eq!(format!("{:?}", CommandFlags::empty()), "CommandFlags(0x0)");
    }

    #[test]
    fn contains_needs_every_bit_of_the_other_word() {
        let both = TransmissionFlags::HAS_FLAGS | TransmissionFlags::READ_ONLY;
        assert!(both.contains(TransmissionFlags::READ_ONLY));
        assert!(!TransmissionFlags::HAS_FLAGS.contains(both));
        assert_eq!(both.without(TransmissionFlags::HAS_FLAGS), TransmissionFlags::READ_ONLY);
        assert_eq!(TransmissionFlags::HAS_FLAGS.with_if(false, both), TransmissionFlags::HAS_FLAGS);
    }
}
