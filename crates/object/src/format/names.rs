//! Names of objects (records, segments, whole maps, maps of snapshots), and of one opening of a
//! volume, for messages and for what an operator accepts.

use std::fmt;
use std::str::FromStr;

use crate::error::{OpenError, OpenErrorKind};

/// Returns the name of the record with this number.
pub(crate) fn record(seq: u64) -> String {
    format!("log/{seq:020}")
}

pub(crate) fn segment(seq: u64, epoch: u64) -> String {
    format!("seg/{seq:020}-{epoch:020}")
}

pub(crate) fn whole_map(seq: u64, epoch: u64) -> String {
    format!("map/{seq:020}-{epoch:020}")
}

pub(crate) fn snapshot(seq: u64, epoch: u64) -> String {
    format!("snap/{seq:020}-{epoch:020}")
}

/// The object that is deleted to make room for a small one.
pub(crate) const RESERVED: &str = "reserve";

/// Parses the numbers in the last part of a name.
pub(crate) fn numbers(name: &str) -> Option<(u64, u64)> {
    match name.split_once('-') {
        Some((seq, epoch)) => Some((seq.parse().ok()?, epoch.parse().ok()?)),
        None => Some((name.parse().ok()?, 0)),
    }
}

/// Returns true if a volume has an object of this name only after it has its first record.
pub(crate) fn is_behind_records(name: &str) -> bool {
    let of_a_volume = |(folder, name): (&str, &str)| {
        matches!(folder, "seg" | "map" | "snap") && numbers(name).is_some()
    };
    name == RESERVED || name.split_once('/').is_some_and(of_a_volume)
}

/// Id of one opening of a volume by a server, such as `17-3fa29c41`: the number of its first
/// record, and the first eight hexadecimal digits of the server's random number.
///
/// The digits tell it from an opening with the same record of another volume that was made at the
/// same location later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpeningId {
    record: u64,
    nonce: u32,
}

/// Bits of a nonce after its first eight digits.
const LEFT_OUT: u32 = u128::BITS - u32::BITS;

impl OpeningId {
    pub(crate) fn new(epoch: u64, nonce: u128) -> Self {
        Self { record: epoch, nonce: (nonce >> LEFT_OUT) as u32 }
    }
}

impl fmt::Display for OpeningId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:08x}", self.record, self.nonce)
    }
}

impl FromStr for OpeningId {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let read = || {
            let (record, nonce) = text.split_once('-')?;
            let is_decimal = record.bytes().all(|byte| byte.is_ascii_digit());
            let is_hex = nonce.len() == 8 && nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
            let nonce = u32::from_str_radix(nonce, 16).ok().filter(|_| is_decimal && is_hex)?;
            Some(Self { record: record.parse().ok()?, nonce })
        };
        read().ok_or_else(|| {
            OpenError::of(OpenErrorKind::InvalidInput, format!(
                "'{text}' names no opening of a volume: a number and eight hexadecimal digits do, such as 17-3fa29c41"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_read_as_what_it_was_and_no_other_text_is() {
        let id = OpeningId::new(17, 0x03fa_29c4 << 96 | 77);
        assert_eq!(id.to_string(), "17-03fa29c4");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("17-03FA29C4".parse(), Ok(id));
        for text in [
            "",
            "17",
            "17-",
            "-03fa29c4",
            "17-03fa29c",
            "17-03fa29c41",
            "17-+3fa29c4",
            "+1-03fa29c4",
        ] {
            assert!(
                text.parse::<OpeningId>().unwrap_err().to_string().contains("17-3fa29c41"),
                "{text}"
            );
        }
    }
}
