//! The cases: a workload with what is varied of it.

use std::fmt;
use std::str::FromStr;

use crate::calls::priority::{self, RunDelay};
use crate::words::NoSuchCase;

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

/// How calls come faster than they are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// From one caller who doesn't wait.
    Burst,
    /// From several callers at the same time who wait, each for its own.
    Waiters,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 2] = [Load::Burst, Load::Waiters];

    fn name(self) -> &'static str {
        match self {
            Load::Burst => "burst",
            Load::Waiters => "waiters",
        }
    }
}

/// How a core is held by a caller that waits, and wanted by a task that is urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By real-time priorities: as in the kernel, nearly.
    Priority,
    /// As a lock, which stands for the core: where no priority may be had.
    Lock,
}

impl Way {
    /// All of them, the better one first.
    pub const ALL: [Way; 2] = [Way::Priority, Way::Lock];

    /// The best one that this process may use.
    pub fn best() -> Way {
        let counted = RunDelay::of_this_thread().is_ok();
        if counted && priority::may_be_real_time() { Way::Priority } else { Way::Lock }
    }

    fn name(self) -> &'static str {
        match self {
            Way::Priority => "priority",
            Way::Lock => "lock",
        }
    }
}

/// A workload with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// How long urgent tasks wait for their core while others wait for calls.
    HeldSpan(Way),
    /// One call and its answer.
    RoundTrip(Pace),
    /// One call to so many CPUs.
    Broadcast {
        /// How many.
        cpus: usize,
        /// Of a synthetic machine: threads that aren't pinned, more of them than there are CPUs.
        synthetic: bool,
    },
    /// How often a called CPU is woken.
    Load(Load),
    /// A value that is read all the time and replaced now and then.
    Reads,
}

impl Case {
    /// Every case on a machine with so many CPUs, where the core is held in that way.
    pub fn all(cpus: usize, way: Way) -> Vec<Case> {
        let mut all = vec![Case::HeldSpan(way)];
        all.extend(Pace::ALL.map(Case::RoundTrip));
        let broadcast = |synthetic| move |cpus| Case::Broadcast { cpus, synthetic };
        all.extend(powers(cpus).map(broadcast(false)));
        all.extend([2, 4, 8, 16, 32, 64].map(broadcast(true)));
        all.extend(Load::ALL.map(Case::Load));
        all.push(Case::Reads);
        all
    }

    /// The workload, without parameters.
    pub fn workload(self) -> &'static str {
        match self {
            Case::HeldSpan(_) => "held_span",
            Case::RoundTrip(_) => "roundtrip",
            Case::Broadcast { .. } => "broadcast",
            Case::Load(_) => "load",
            Case::Reads => "reads",
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
            Case::HeldSpan(way) => write!(f, "/{}", way.name()),
            Case::RoundTrip(pace) => write!(f, "/{}", pace.name()),
            Case::Broadcast { cpus, synthetic: false } => write!(f, "/{cpus}"),
            Case::Broadcast { cpus, synthetic: true } => write!(f, "/synthetic/{cpus}"),
            Case::Load(load) => write!(f, "/{}", load.name()),
            Case::Reads => Ok(()),
        }
    }
}

impl FromStr for Case {
    type Err = NoSuchCase;

    fn from_str(text: &str) -> Result<Case, NoSuchCase> {
        let none = || NoSuchCase(text.to_owned());
        let (workload, rest) = text.split_once('/').unwrap_or((text, ""));
        let found = match workload {
            "held_span" => Way::ALL.into_iter().find(|way| way.name() == rest).map(Case::HeldSpan),
            "roundtrip" => {
                Pace::ALL.into_iter().find(|pace| pace.name() == rest).map(Case::RoundTrip)
            }
            "broadcast" => {
                let synthetic = rest.strip_prefix("synthetic/");
                let cpus = synthetic.unwrap_or(rest).parse().ok().filter(|cpus| *cpus > 0);
                cpus.map(|cpus| Case::Broadcast { cpus, synthetic: synthetic.is_some() })
            }
            "load" => Load::ALL.into_iter().find(|load| load.name() == rest).map(Case::Load),
            "reads" => (text == workload).then_some(Case::Reads),
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
        for case in Way::ALL.into_iter().flat_map(|way| Case::all(12, way)) {
            assert_eq!(case.to_string().parse(), Ok(case));
            assert!(case.to_string().starts_with(case.workload()));
        }
        for wrong in [
            "",
            "roundtrip",
            "roundtrip/warm",
            "broadcast/0",
            "broadcast/x",
            "load/",
            "reads/",
            "fan",
        ] {
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
