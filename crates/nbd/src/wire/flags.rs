//! The four flag words of the protocol.

/// Defines a flag word: a transparent integer with named bits.
macro_rules! flag_word {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$bit_doc:meta])* $bit:ident = $value:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$bit_doc])* pub const $bit: $name = $name($value);)*
            const NAMES: &'static [(&'static str, $int)] = &[$((stringify!($bit), $value)),*];

            /// No flag at all.
            pub const fn empty() -> Self {
                $name(0)
            }

            /// True when each flag of `other` is set in `self`.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags of `self` that are not in `other`.
            pub const fn without(self, other: Self) -> Self {
                $name(self.0 & !other.0)
            }

            /// The flags of `self`, and those of `other` where `condition` holds.
            #[must_use]
            pub const fn with_if(self, condition: bool, other: Self) -> Self {
                if condition { $name(self.0 | other.0) } else { self }
            }

            /// True when no flag is set.
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
    /// What the server can do in the handshake.
    HandshakeFlags: u16 {
        /// The server answers unknown options with an error instead of hanging up.
        FIXED_NEWSTYLE = 1;
        /// The server can leave out the padding behind the answer to `EXPORT_NAME`.
        NO_ZEROES = 2;
    }
}

flag_word! {
    /// What the client chose of the handshake flags. Any other bit means that the connection has to be closed.
    ClientFlags: u32 {
        /// The client speaks fixed newstyle.
        FIXED_NEWSTYLE = 1;
        /// The client wants no padding behind the answer to `EXPORT_NAME`.
        NO_ZEROES = 2;
    }
}

flag_word! {
    /// What an export can do.
    TransmissionFlags: u16 {
        /// Always set: the word is valid.
        HAS_FLAGS = 1;
        /// Requests that change data are refused with `EPERM`.
        READ_ONLY = 1 << 1;
        /// `FLUSH` is understood.
        SEND_FLUSH = 1 << 2;
        /// The flag `FUA` is understood.
        SEND_FUA = 1 << 3;
        /// The medium rotates: the client should schedule accordingly.
        ROTATIONAL = 1 << 4;
        /// `TRIM` is understood.
        SEND_TRIM = 1 << 5;
        /// `WRITE_ZEROES` is understood, and the flag `NO_HOLE` with it.
        SEND_WRITE_ZEROES = 1 << 6;
        /// The flag `DF` is understood (structured replies only).
        SEND_DF = 1 << 7;
        /// A flush on one connection covers what was answered on every connection.
        CAN_MULTI_CONN = 1 << 8;
        /// `RESIZE` is understood (never set by this server).
        SEND_RESIZE = 1 << 9;
        /// `CACHE` is understood.
        SEND_CACHE = 1 << 10;
        /// The flag `FAST_ZERO` is understood.
        SEND_FAST_ZERO = 1 << 11;
        /// `BLOCK_STATUS` may name the contexts that it is about (extended headers only).
        BLOCK_STATUS_PAYLOAD = 1 << 12;
    }
}

flag_word! {
    /// Modifiers of one request.
    CommandFlags: u16 {
        /// Answer only when the data of this request is on stable storage.
        FUA = 1;
        /// `WRITE_ZEROES` must not deallocate.
        NO_HOLE = 1 << 1;
        /// Don't fragment a structured reply.
        DF = 1 << 2;
        /// One extent is enough (`BLOCK_STATUS`).
        REQ_ONE = 1 << 3;
        /// Fail rather than write zeroes slowly.
        FAST_ZERO = 1 << 4;
        /// The length is that of a payload behind the request (extended headers only).
        PAYLOAD_LEN = 1 << 5;
    }
}

flag_word! {
    /// Modifiers of one chunk of a structured reply.
    ReplyFlags: u16 {
        /// It is the last one of its reply.
        DONE = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
