//! The cases: a workload with what is varied of it.

use std::fmt;
use std::str::FromStr;

/// How fast calls follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Back to back.
    Hot,
    /// After a pause in which everybody goes to sleep.
    Cold,
    /// As cold, and the called CPU has ordinary work.
    Busy,
}

impl Pace {
    /// All of them.
    pub const ALL: [Pace; 3] = [Pace::Hot, Pace::Cold, Pace::Busy];

    fn name(self) -> &'static str {
        match self {
            Pace::Hot => "hot",
            Pace::Cold => "cold",
            Pace::Busy => "busy",
        }
    }
}

/// A workload with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// One call and its answer.
    RoundTrip(Pace),
    /// One call to so many CPUs.
    Broadcast {
        /// How many.
        cpus: usize,
    },
}

impl Case {
    /// Every case on a machine with so many CPUs.
    pub fn all(cpus: usize) -> Vec<Case> {
        let mut all: Vec<Case> = Pace::ALL.map(Case::RoundTrip).into();
        all.extend(powers(cpus).map(|cpus| Case::Broadcast { cpus }));
        all
    }

    /// The workload, without parameters.
    pub fn workload(self) -> &'static str {
        match self {
            Case::RoundTrip(_) => "roundtrip",
            Case::Broadcast { .. } => "broadcast",
        }
    }
}

/// 1, 2, 4 and so on below `most`, and `most`.
fn powers(most: usize) -> impl Iterator<Item = usize> {
    (0..).map(|n| 1 << n).take_while(move |n| *n < most).chain([most])
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.workload())?;
        match self {
            Case::RoundTrip(pace) => write!(f, "/{}", pace.name()),
            Case::Broadcast { cpus } => write!(f, "/{cpus}"),
        }
    }
}

/// There is no such case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSuchCase(pub String);

impl fmt::Display for NoSuchCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no case '{}'", self.0)
    }
}

impl std::error::Error for NoSuchCase {}

impl FromStr for Case {
    type Err = NoSuchCase;

    fn from_str(text: &str) -> Result<Case, NoSuchCase> {
        let none = || NoSuchCase(text.to_owned());
        let (workload, rest) = text.split_once('/').unwrap_or((text, ""));
        let found = match workload {
            "roundtrip" => {
                Pace::ALL.into_iter().find(|pace| pace.name() == rest).map(Case::RoundTrip)
            }
            "broadcast" => {
                let cpus = rest.parse().ok().filter(|cpus| *cpus > 0);
                cpus.map(|cpus| Case::Broadcast { cpus })
            }
            _ => None,
        };
        found.ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_is_found_by_it() {
        for case in Case::all(12) {
            assert_eq!(case.to_string().parse(), Ok(case));
            assert!(case.to_string().starts_with(case.workload()));
        }
        for wrong in ["", "roundtrip", "roundtrip/warm", "broadcast/0", "broadcast/x", "fan"] {
            assert_eq!(wrong.parse::<Case>(), Err(NoSuchCase(wrong.to_owned())));
        }
    }

    #[test]
    fn broadcasts_double_until_all_are_called() {
        let sizes = |most| powers(most).collect::<Vec<_>>();
        assert_eq!(sizes(12), [1, 2, 4, 8, 12]);
        assert_eq!(sizes(2), [1, 2]);
        assert_eq!(sizes(1), [1]);
    }
}
