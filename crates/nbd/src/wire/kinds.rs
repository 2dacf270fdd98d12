//! The numbers that name options, option replies, pieces of information and commands.

/// Defines a number with names: any value is representable, since the other side may send anything.
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

        /// The name that the specification gives it, or the number.
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
    /// What a client asks for during the handshake.
    OptionKind: u32 {
        /// Choose an export and begin, without any way to report an error.
        EXPORT_NAME = 1;
        /// Give up politely.
        ABORT = 2;
        /// Name the exports.
        LIST = 3;
        /// Withdrawn.
        PEEK_EXPORT = 4;
        /// Begin TLS.
        STARTTLS = 5;
        /// Describe an export.
        INFO = 6;
        /// Describe an export and begin.
        GO = 7;
        /// Use structured replies.
        STRUCTURED_REPLY = 8;
        /// List metadata contexts.
        LIST_META_CONTEXT = 9;
        /// Choose metadata contexts.
        SET_META_CONTEXT = 10;
        /// Use 64-bit headers.
        EXTENDED_HEADERS = 11;
    }
}

named_number! {
    /// What the server answers to an option. Errors have bit 31 set, and their data is a message for people.
    OptionReplyKind: u32 {
        /// Done.
        ACK = 1;
        /// One export of a list.
        SERVER = 2;
        /// One piece of information.
        INFO = 3;
        /// One metadata context.
        META_CONTEXT = 4;
        /// The option is unknown here.
        ERR_UNSUP = 0x8000_0001;
        /// The option is known, and this server doesn't allow it.
        ERR_POLICY = 0x8000_0002;
        /// The data of the option is malformed.
        ERR_INVALID = 0x8000_0003;
        /// Not possible on this platform.
        ERR_PLATFORM = 0x8000_0004;
        /// TLS has to come first.
        ERR_TLS_REQD = 0x8000_0005;
        /// There is no such export.
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
    /// True for the replies that refuse an option.
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
        /// A description for people.
        DESCRIPTION = 2;
        /// Minimum, preferred and maximum size of a request.
        BLOCK_SIZE = 3;
    }
}

named_number! {
    /// What a chunk of a structured reply holds. Errors have bit 15 set.
    ReplyKind: u16 {
        /// Nothing: the reply ends.
        NONE = 0;
        /// An offset, and data that lies there.
        OFFSET_DATA = 1;
        /// An offset, and how many zeroes lie there.
        OFFSET_HOLE = 2;
        /// A metadata context, and what it says of one extent after the other.
        BLOCK_STATUS = 5;
        /// The same with 64-bit lengths (extended headers).
        BLOCK_STATUS_EXT = 6;
        /// An error.
        ERROR = 0x8001;
        /// An error, and where it happened.
        ERROR_OFFSET = 0x8002;
    }
}

impl ReplyKind {
    /// True for the chunks that say that something failed.
    pub const fn is_error(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

named_number! {
    /// What a request of the transmission phase asks for.
    Command: u16 {
        /// Read `length` bytes at `offset`.
        READ = 0;
        /// Write `length` bytes at `offset`; the bytes follow the request.
        WRITE = 1;
        /// Answer what is outstanding, then hang up.
        DISC = 2;
        /// Make everything that was answered durable.
        FLUSH = 3;
        /// The range is no longer needed.
        TRIM = 4;
        /// Read ahead into a cache.
        CACHE = 5;
        /// Make the range read as zeroes.
        WRITE_ZEROES = 6;
        /// Report allocation.
        BLOCK_STATUS = 7;
        /// Change the size of the export.
        RESIZE = 8;
    }
}
