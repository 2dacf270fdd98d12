//! A snapshot, as users see it, and what it may be called.

use std::time::{Duration, SystemTime};

use crate::format::Taken;

/// Most bytes of a name.
const LONGEST: usize = 64;

/// What a volume held at some moment, and keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectSnapshot {
    /// Its name, or its number in digits.
    pub name: String,
    /// The record of the volume's log by which it was taken: a later snapshot has a greater one.
    pub number: u64,
    /// When it was taken, by the clock of the server that took it; to a millisecond.
    pub taken: SystemTime,
    /// Bytes of the volume then.
    pub size: u64,
    /// The places in the store of the volumes that share its data, in which case it can't be deleted.
    pub clones: Vec<String>,
}

impl ObjectSnapshot {
    pub(crate) fn of(number: u64, taken: &Taken) -> Self {
        Self {
            name: taken.name.clone(),
            number,
            taken: SystemTime::UNIX_EPOCH + Duration::from_millis(taken.time),
            size: taken.size,
            clones: Vec::new(),
        }
    }
}

/// Whether a snapshot may be called so: by 1 to 64 letters, digits, dots, dashes and underscores, of which the first is a letter. (A snapshot without a
/// name goes by its number.)
///
/// # Errors
/// It may not; it says which may be.
pub fn check_snapshot_name(name: &str) -> Result<(), String> {
    let may = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.len() <= LONGEST
        && name.chars().all(may)
    {
        return Ok(());
    }
    Err(format!(
        // Debug: a name, quoted.
        "{name:?} is no name of a snapshot: it has up to {LONGEST} letters, digits, dots, dashes and underscores, and begins with a letter"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_begins_with_a_letter_and_has_nothing_strange() {
        for good in ["a", "Monday", "v1.2-rc_3", &"x".repeat(64)] {
            assert_eq!(check_snapshot_name(good), Ok(()));
        }
        for bad in ["", "7", "7up", ".a", "-a", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(check_snapshot_name(bad).unwrap_err().contains("letters"), "{bad}");
        }
    }
}
