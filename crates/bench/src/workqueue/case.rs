//! The cases: each workload with what is varied of it, and its name.

use std::fmt;
use std::str::FromStr;

use crate::words::NoSuchCase;

/// How items reach the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Items {
    /// Made once, queued again and again, without an allocation.
    Reused,
    /// A closure each.
    Boxed,
}

/// Where client and worker of a ping-pong are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Wherever the system puts them; as many workers as CPUs.
    Free,
    /// Both on one CPU; one worker.
    Same,
    /// On two CPUs; one worker.
    Cross,
}

/// A workload, and what is varied of it. Its text is the `case` of records and of the runs' lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Case {
    /// (a) The kernel's own test; with `inline` the client waits by taking its item back.
    KernelTest {
        /// Whether waiters may run their item themselves.
        inline: bool,
    },
    /// (b) Tiny items from outside.
    Storm {
        /// Reused or boxed.
        items: Items,
        /// Whether each producer's items count on a line of their own.
        striped: bool,
    },
    /// (c) Tiny items, all from one task.
    Inside,
    /// (c) One task makes 64, each of these 64, and somebody waits for all.
    Fan,
    /// (d) One item in flight, from outside.
    PingPong {
        /// Where the two are.
        placement: Placement,
        /// Microseconds that the client sleeps before each ping.
        gap_us: u32,
    },
    /// (e) One item in ten blocks for a millisecond; open loop.
    Mix {
        /// Percent of what the workers could do if nobody made more of them.
        load: u32,
        /// Whether the blocking items say so.
        hint: bool,
    },
    /// (f) As the storm, with four producers a CPU.
    Oversubscribed {
        /// Reused or boxed.
        items: Items,
    },
    /// (g) Nothing to do.
    Idle,
}

impl Case {
    /// Every case, in the order of the tables.
    pub fn all() -> Vec<Case> {
        let mut all: Vec<Case> = [false, true].map(|inline| Case::KernelTest { inline }).into();
        for striped in [false, true] {
            all.extend([Items::Reused, Items::Boxed].map(|items| Case::Storm { items, striped }));
        }
        all.extend([Case::Inside, Case::Fan]);
        for placement in [Placement::Free, Placement::Same, Placement::Cross] {
            all.extend([0, 100, 500].map(|gap_us| Case::PingPong { placement, gap_us }));
        }
        for load in [50, 80] {
            all.extend([false, true].map(|hint| Case::Mix { load, hint }));
        }
        all.extend([Items::Reused, Items::Boxed].map(|items| Case::Oversubscribed { items }));
        all.push(Case::Idle);
        all
    }

    /// The name of its workload: the case's text up to the first slash.
    pub fn workload(self) -> &'static str {
        match self {
            Case::KernelTest { .. } => "kernel_test",
            Case::Storm { .. } => "storm",
            Case::Inside => "inside",
            Case::Fan => "fan",
            Case::PingPong { .. } => "pingpong",
            Case::Mix { .. } => "mix",
            Case::Oversubscribed { .. } => "oversubscribed",
            Case::Idle => "idle",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.workload())?;
        let items = |items| match items {
            Items::Reused => "/reused",
            Items::Boxed => "/boxed",
        };
        match *self {
            Case::KernelTest { inline: true } => f.write_str("/inline"),
            Case::KernelTest { inline: false } | Case::Inside | Case::Fan | Case::Idle => Ok(()),
            Case::Storm { items: kind, striped } => {
                f.write_str(items(kind))?;
                f.write_str(if striped { "/striped" } else { "" })
            }
            Case::Oversubscribed { items: kind } => f.write_str(items(kind)),
            Case::PingPong { placement, gap_us } => {
                f.write_str(match placement {
                    Placement::Free => "/free",
                    Placement::Same => "/same",
                    Placement::Cross => "/cross",
                })?;
                match gap_us {
                    0 => f.write_str("/hot"),
                    gap => write!(f, "/{gap}us"),
                }
            }
            Case::Mix { load, hint } => {
                write!(f, "/{load}")?;
                f.write_str(if hint { "/hint" } else { "" })
            }
        }
    }
}

impl FromStr for Case {
    type Err = NoSuchCase;

    fn from_str(text: &str) -> Result<Case, NoSuchCase> {
        let found = Case::all().into_iter().find(|case| case.to_string() == text);
        found.ok_or_else(|| NoSuchCase(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_is_found_by_it() {
        for case in Case::all() {
            assert_eq!(case.to_string().parse(), Ok(case));
            assert!(case.to_string().starts_with(case.workload()));
        }
        assert_eq!(
            Case::PingPong { placement: Placement::Cross, gap_us: 0 }.to_string(),
            "pingpong/cross/hot"
        );
        assert_eq!(Case::Mix { load: 80, hint: true }.to_string(), "mix/80/hint");
        assert_eq!("storm".parse::<Case>(), Err(NoSuchCase("storm".to_owned())));
    }
}
