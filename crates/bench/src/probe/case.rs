//! The cases: a workload with what is varied of it.

use std::fmt;
use std::str::FromStr;

use crate::words::NoSuchCase;

/// A workload with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// So many devices that burn and wait.
    Devices(usize),
    /// So many whose probes do nothing.
    Overhead(usize),
    /// Three synchronous ones.
    Sync,
    /// Three without a node.
    NoNode,
}

/// The devices of [`Case::Devices`].
const DEVICES: [usize; 8] = [3, 10, 30, 100, 300, 1_000, 3_000, 10_000];
/// The devices of [`Case::Overhead`].
const OVERHEAD: [usize; 3] = [100, 1_000, 10_000];

impl Case {
    /// Every case.
    pub fn all() -> Vec<Case> {
        let mut all: Vec<Case> = DEVICES.map(Case::Devices).into();
        all.extend(OVERHEAD.map(Case::Overhead));
        all.extend([Case::Sync, Case::NoNode]);
        all
    }

    /// How many devices it has.
    pub fn devices(self) -> usize {
        match self {
            Case::Devices(count) | Case::Overhead(count) => count,
            Case::Sync | Case::NoNode => 3,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Devices(count) => write!(f, "devices/{count}"),
            Case::Overhead(count) => write!(f, "overhead/{count}"),
            Case::Sync => f.write_str("sync/3"),
            Case::NoNode => f.write_str("no_node/3"),
        }
    }
}

impl FromStr for Case {
    type Err = NoSuchCase;

    fn from_str(text: &str) -> Result<Case, NoSuchCase> {
        let none = || NoSuchCase(text.to_owned());
        let (workload, count) = text.split_once('/').ok_or_else(none)?;
        let count = count.parse().ok().filter(|count| *count > 0).ok_or_else(none)?;
        match (workload, count) {
            ("devices", _) => Ok(Case::Devices(count)),
            ("overhead", _) => Ok(Case::Overhead(count)),
            ("sync", 3) => Ok(Case::Sync),
            ("no_node", 3) => Ok(Case::NoNode),
            _ => Err(none()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_is_found_by_it() {
        for case in Case::all() {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert_eq!("devices/7".parse(), Ok(Case::Devices(7)), "a run may have any number");
        for wrong in ["", "devices", "devices/0", "devices/x", "sync/4", "no_node", "disks/3"] {
            assert_eq!(wrong.parse::<Case>(), Err(NoSuchCase(wrong.to_owned())));
        }
    }
}
