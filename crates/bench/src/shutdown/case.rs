//! The cases: a web of devices with what is varied of it.

use std::fmt;
use std::str::FromStr;

use crate::words::NoSuchCase;

/// How devices depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Not at all.
    Flat,
    /// In four chains.
    Deep,
    /// All on one.
    Wide,
    /// In five layers.
    Stacked,
    /// In five layers, and registered the wrong way round.
    Inverted,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 5] =
        [Shape::Flat, Shape::Deep, Shape::Wide, Shape::Stacked, Shape::Inverted];

    fn name(self) -> &'static str {
        match self {
            Shape::Flat => "flat",
            Shape::Deep => "deep",
            Shape::Wide => "wide",
            Shape::Stacked => "stacked",
            Shape::Inverted => "inverted",
        }
    }
}

/// A published log of a shutdown of one virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// One by one.
    Serial,
    /// With the old asynchronous design.
    Async,
}

impl Log {
    /// Both.
    pub const ALL: [Log; 2] = [Log::Serial, Log::Async];

    fn name(self) -> &'static str {
        match self {
            Log::Serial => "serial",
            Log::Async => "async",
        }
    }
}

/// A web of devices with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// A made-up one.
    Graph {
        /// The needs of devices.
        shape: Shape,
        /// How many there are.
        devices: usize,
        /// How many of them are slow.
        slow: usize,
    },
    /// Replayed from a log.
    Azure(Log),
}

/// How many devices there are.
const DEVICES: [usize; 3] = [500, 5_000, 50_000];
/// How many of them are slow.
const SLOW: [usize; 3] = [0, 2, 24];

impl Case {
    /// Every case: those without slow devices first, the replays next.
    pub fn all() -> Vec<Case> {
        let with = |slow| {
            let of = move |shape| DEVICES.map(|devices| Case::Graph { shape, devices, slow });
            Shape::ALL.into_iter().flat_map(of)
        };
        let slow = SLOW.into_iter().filter(|slow| *slow > 0).flat_map(with);
        with(0).chain(Log::ALL.map(Case::Azure)).chain(slow).collect()
    }

    /// How many devices are slow, of a made-up web.
    pub fn slow(self) -> Option<usize> {
        match self {
            Case::Graph { slow, .. } => Some(slow),
            Case::Azure(_) => None,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Graph { shape, devices, slow } => {
                write!(f, "{}/{devices}/{slow}", shape.name())
            }
            Case::Azure(log) => write!(f, "azure/{}", log.name()),
        }
    }
}

impl FromStr for Case {
    type Err = NoSuchCase;

    fn from_str(text: &str) -> Result<Case, NoSuchCase> {
        let find = || {
            let (first, rest) = text.split_once('/')?;
            if first == "azure" {
                return Log::ALL.into_iter().find(|log| log.name() == rest).map(Case::Azure);
            }
            let shape = Shape::ALL.into_iter().find(|shape| shape.name() == first)?;
            let (devices, slow) = rest.split_once('/')?;
            let (devices, slow) = (devices.parse().ok()?, slow.parse().ok()?);
            (devices > 0 && slow <= devices).then_some(Case::Graph { shape, devices, slow })
        };
        find().ok_or_else(|| NoSuchCase(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_is_found_by_it() {
        let all = Case::all();
        assert_eq!(all.len(), Shape::ALL.len() * DEVICES.len() * SLOW.len() + 2);
        for (n, case) in all.iter().enumerate() {
            assert_eq!(case.to_string().parse(), Ok(*case));
            assert!(!all[..n].contains(case));
        }
        for wrong in
            ["", "flat", "flat/500", "flat/0/0", "flat/2/3", "azure", "azure/x", "round/5/0"]
        {
            assert_eq!(wrong.parse::<Case>(), Err(NoSuchCase(wrong.to_owned())));
        }
    }
}
