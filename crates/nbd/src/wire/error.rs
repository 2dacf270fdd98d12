//! The error numbers that a reply may carry.

/// The error of a reply. The protocol fixes this set and its numbers, whatever `errno` means on
/// either machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ReplyError {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The server is out of memory.
    NoMem = 12,
    /// The request makes no sense.
    Inval = 22,
    /// No room: the device is full, or the write is beyond its end.
    NoSpc = 28,
    /// The value is too large.
    Overflow = 75,
    /// The device can't do that at all.
    NotSup = 95,
    /// The server, or this export of it, is shutting down.
    Shutdown = 108,
}

impl ReplyError {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// What a client is told in words where the server has nothing better to say.
    pub const fn message(self) -> &'static str {
        match self {
            ReplyError::Perm => "the export is read-only",
            ReplyError::Io => "the device failed",
            ReplyError::NoMem => "the server is out of memory",
            ReplyError::Inval => {
                "the command, a flag or the range isn't one that was offered, or not in whole blocks"
            }
            ReplyError::NoSpc => {
                "there is no room: the device is full, or ends before the range does"
            }
            ReplyError::Overflow => "more than the largest payload that was offered",
            ReplyError::NotSup => "not faster than a write",
            ReplyError::Shutdown => "the server, or this export of it, is shutting down",
        }
    }

    /// The error with this number; `None` for 0 (success) and for numbers outside the set.
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

    /// The error that stands for a Linux `errno`. Numbers outside the set become the nearest
    /// member, and `Io` where nothing is near: a client must never see a number that it may
    /// take for something else.
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
}
