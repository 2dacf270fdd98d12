//! The devices that are waited for, and through which link.

use super::{Devices, Link, Phase, Target};
use corewise_sync::text;
use corewise_timeline::EdgeKind;
use std::fmt;
use std::time::Duration;

/// A device that is not up and may come up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Its name.
    pub device: String,
    /// Why it is not up.
    pub state: PendingState,
}

/// Why a device is not up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PendingState {
    /// It is being probed, for that long by now.
    Probing {
        /// How long.
        elapsed: Duration,
        /// Its deadline has passed.
        overdue: bool,
        /// The name of the driver.
        driver: String,
    },
    /// Nothing holds it up: it waits for a worker, or for its turn.
    Queued,
    /// Its driver asked to be called again when another device is up.
    Deferred {
        /// Why.
        reason: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// These are not up.
    Waiting {
        /// What it waits for.
        on: Vec<Awaited>,
    },
}

/// What a device waits for, and through which link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Awaited {
    /// Its name.
    pub device: String,
    /// The link.
    pub edge: EdgeKind,
    /// There is no device of that name.
    pub missing: bool,
    /// The waiting device can do without it, and will, after the deferral timeout.
    pub optional: bool,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", text::name(&self.device), self.state)
    }
}

impl fmt::Display for PendingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PendingState::Probing { elapsed, overdue, driver } => {
                let driver = text::name(driver);
                write!(f, "being probed by {driver} for {elapsed:.3?}")?;
                f.write_str(if *overdue { ", past its deadline" } else { "" })
            }
            PendingState::Queued => f.write_str("about to be probed"),
            PendingState::Deferred { reason, attempts } => {
                let times = if *attempts == 1 { "time" } else { "times" };
                let reason = text::message(reason);
                write!(f, "deferred by its driver ({reason}), tried {attempts} {times}")
            }
            PendingState::Waiting { on } => {
                let on: Vec<String> = on.iter().map(ToString::to_string).collect();
                write!(f, "waits for {}", text::message(&on.join(", ")))
            }
        }
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional = if self.optional { "optional " } else { "" };
        write!(f, "its {optional}{} \"{}\"", self.edge.as_str(), text::name(&self.device))?;
        f.write_str(if self.missing { ", which does not exist" } else { "" })
    }
}

impl Devices {
    /// Everything that is not up and may come up yet, in registration order.
    pub(crate) fn pending(&self, now: Duration) -> Vec<Pending> {
        let of = |index| {
            let slot = self.slot(index);
            let state = match &slot.phase {
                Phase::Probing(probing) => PendingState::Probing {
                    elapsed: now.saturating_sub(probing.since),
                    overdue: probing.overdue,
                    driver: slot.driver.as_ref().map(|d| d.name.to_string()).unwrap_or_default(),
                },
                Phase::Ready => PendingState::Queued,
                Phase::Deferred(reason) => {
                    let (reason, attempts) = (reason.clone(), slot.cost.attempts);
                    PendingState::Deferred { reason, attempts }
                }
                Phase::Waiting => PendingState::Waiting { on: self.awaited(index) },
                _ => return None,
            };
            Some(Pending { device: slot.name().to_string(), state })
        };
        self.in_registration_order().into_iter().filter_map(of).collect()
    }

    fn awaited(&self, index: u32) -> Vec<Awaited> {
        let unmet = |link: &&Link| !link.waived && !link.device().is_some_and(|to| self.is_up(to));
        let awaited = |link: &Link| Awaited {
            device: self.target_name(&link.to).to_string(),
            edge: link.kind,
            missing: matches!(link.to, Target::Missing(_)),
            optional: link.optional,
        };
        self.slot(index).needs.iter().filter(unmet).map(awaited).collect()
    }
}
