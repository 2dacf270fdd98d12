//! Which faults of a volume reach clients: a mirror keeps those of a leg from them as long as
//! another leg has everything.

use std::collections::BTreeSet;

use super::{Facts, HealthState};
use crate::control::disks::Disk;
use crate::control::mirrors::State;

/// What stands on what, and which volumes have lost something.
pub(super) struct Stack<'a> {
    facts: Facts<'a>,
    /// Volumes that have lost data, or can't reach it.
    lost: BTreeSet<&'a str>,
}

impl<'a> Stack<'a> {
    pub(super) fn new(facts: &Facts<'a>, lost: BTreeSet<&'a str>) -> Stack<'a> {
        Stack { facts: *facts, lost }
    }

    /// How much it matters that this volume has lost data, or can't reach it.
    pub(super) fn severity(&self, volume: &str) -> HealthState {
        match self.reaches_clients(volume, self.facts.disks.len()) {
            true => HealthState::Lost,
            false => HealthState::Degraded,
        }
    }

    /// `depth`: how many volumes may stand on one another. A snapshot of a server that is being
    /// changed may show a cycle.
    fn reaches_clients(&self, volume: &str, depth: usize) -> bool {
        let is_shown = self.facts.exports.iter().any(|e| e.device.as_deref() == Some(volume));
        let mut above = self.facts.disks.iter().filter(|disk| disk.stands_on(volume)).peekable();
        if is_shown || above.peek().is_none() || depth == 0 {
            return true;
        }
        above.any(|disk| {
            !self.does_without(disk, volume) && self.reaches_clients(&disk.name, depth - 1)
        })
    }

    /// Whether `disk` is a mirror that has everything on another leg.
    fn does_without(&self, disk: &Disk, leg: &str) -> bool {
        let legs = disk.mirror.iter().flat_map(|mirror| &mirror.legs);
        legs.filter(|other| other.name != leg && other.state == State::InSync)
            .any(|other| !self.lost.contains(other.name.as_str()))
    }
}
