//! Faults of volumes.

use std::collections::BTreeSet;

use super::{Facts, Fault, HANGS, HealthState, Reason};
use crate::control::checkpoints::LostCheckpoint;
use crate::control::disks::Disk;
use crate::control::mirrors::{
    self, CheckFindings, Leg, LegStatus, MirrorReport, Schedule, take_back_todo,
};
use crate::control::served::{self, Export};
use crate::units;

pub(super) fn reasons(facts: &Facts<'_>) -> Vec<Reason> {
    let lost: BTreeSet<&str> = facts
        .disks
        .iter()
        .filter(|disk| loss(disk).is_some() || disk.blocks_changes)
        .map(|d| d.name.as_str())
        .collect();
    let stack = Stack::new(facts, lost);
    let mut reasons = Vec::new();
    for disk in facts.disks {
        if let Some(Loss { fault, what, todo }) = loss(disk) {
            let state = stack.severity(&disk.name);
            reasons.push(Reason::new(fault, state, &disk.name, what).todo(todo));
        } else if disk.displaced {
            reasons.push(displaced(disk, &stack));
        }
        reasons.extend(unwritable(disk));
        reasons.extend(header_damaged(disk));
        reasons.extend(lost_checkpoint(disk));
        reasons.extend(request_reasons(disk, facts));
        if let Some(mirror) = &disk.mirror {
            reasons.extend(mirror_reasons(&disk.name, mirror, facts, &stack));
        }
    }
    reasons.extend(facts.exports.iter().filter(|export| export.untold != 0).map(untold));
    reasons
}

/// Returns the reason for a broken promise to a client that doesn't know of it. All exports of one
/// device report the same.
fn untold(export: &Export) -> Reason {
    let device = export.device.as_deref().unwrap_or(&export.name);
    let who = units::count(export.untold as u64, "client");
    let what = format!(
        "a flush failed after {who} had disconnected, so their data may be lost without notice"
    );
    let todo = "Check the data of these clients. The first flush of the next client from the same \
                place, or with the same certificate, reports the error";
    Reason::new(Fault::LossUntold, HealthState::Lost, device, what).todo(todo)
}

/// Returns the reason for a store that takes no writes: the clients' later writes are on this
/// machine alone.
fn unwritable(disk: &Disk) -> Option<Reason> {
    let store = disk.store.as_ref()?;
    let refuses = store.refuses.as_ref()?;
    let (since, why) = (units::moment(refuses.since as f64), &refuses.why);
    let mut what = format!("the store has taken no writes since {since}: {why}");
    let mut todo =
        "Repair the store (is it read-only or full? may this user write there? does it answer?)"
            .to_string();
    if store.not_stored != 0 {
        let bytes = units::count(store.not_stored, "byte");
        let (only, keep) = match refuses.has_flush_file {
            true => ("the flushed ones are only in the flush file", "and keep that file"),
            false => ("flushes fail until they are sent", "and don't stop this server"),
        };
        what += &format!("; {bytes} wait to be sent, and {only}");
        todo += &format!(", {keep}: the server then sends the waiting bytes by itself");
    }
    let (fault, state) = (Fault::StoreUnwritable, HealthState::Degraded);
    Some(Reason::new(fault, state, &disk.name, what).todo(todo))
}

/// The remedy for a damaged copy of the header of an encrypted volume.
pub(crate) const REPAIR_HEADER: &str = "Stop the server, run cryptsetup repair on the file or \
                                        disk below, and start the server again";

/// Returns the reason for a damaged copy of the header of an encrypted volume, which is the only
/// condition that its driver has. The other copy opened it.
fn header_damaged(disk: &Disk) -> Option<Reason> {
    let damage = disk.condition.as_ref().filter(|_| disk.driver == "crypt")?;
    let (fault, state) = (Fault::HeaderDamaged, HealthState::Degraded);
    Some(Reason::new(fault, state, &disk.name, damage).todo(REPAIR_HEADER))
}

/// Returns the reason for a checkpoint that can't be read any more: a backup of it fails.
fn lost_checkpoint(disk: &Disk) -> Option<Reason> {
    let LostCheckpoint { checkpoint, why } = disk.checkpoints.as_ref()?.lost.as_ref()?;
    let what = format!("checkpoint '{checkpoint}' can't be read any more: {why}");
    let name = &disk.name;
    let todo = format!(
        "Take another checkpoint, or delete this one: corewise checkpoint {name} --delete {checkpoint}"
    );
    Some(Reason::new(Fault::CheckpointLost, HealthState::Degraded, name, what).todo(todo))
}

/// Returns the reason for a file that isn't in its place. Nothing is lost, but the next server may
/// not find it, or no process can change it.
fn displaced(disk: &Disk, stack: &Stack<'_>) -> Reason {
    let state = match disk.blocks_changes {
        true => stack.severity(&disk.name),
        false => HealthState::Degraded,
    };
    let what = disk.condition.clone().unwrap_or_default();
    let todo = disk.displaced_todo.clone().unwrap_or_default();
    Reason::new(Fault::Displaced, state, &disk.name, what).todo(todo)
}

/// A loss of data, or of access to it. It matters less if a mirror has the data elsewhere.
struct Loss {
    fault: Fault,
    what: String,
    todo: String,
}

fn loss(disk: &Disk) -> Option<Loss> {
    let condition = || disk.condition.clone().unwrap_or_default();
    if disk.lost {
        let condition = condition();
        let why = condition.strip_prefix("lost: ").unwrap_or(&condition);
        return Some(Loss {
            fault: Fault::FileLost,
            what: format!("the file has lost data: {why}"),
            todo: "Repair the file, then restart the server: flushes fail until the server \
                   reopens the file. Don't restart before the repair: with 'create', a start \
                   makes an empty file if the file is missing"
                .to_string(),
        });
    }
    match &disk.store {
        Some(store) if !store.served => {
            let todo = match (store.fenced, store.damaged) {
                (true, _) => {
                    "Restart this server only if no other server should have the volume: the \
                     restart fences the other one"
                }
                (false, true) => {
                    "Stop this server, and restore the folder or the objects from a copy or older \
                     versions. Only then start the server, without 'size': with 'size', a start \
                     makes a new, empty volume if nothing is left"
                }
                (false, false) => "See the log, and restart this server",
            };
            return Some(Loss {
                fault: Fault::NotServed,
                what: format!("this server no longer serves the volume: {}", condition()),
                todo: todo.to_string(),
            });
        }
        Some(store) if store.damaged => {
            return Some(Loss {
                fault: Fault::StoreDamaged,
                what: condition(),
                todo:
                    "Reads of that data fail. Restore the object from a copy or an older version, \
                     then restart the server to clear this reason"
                        .to_string(),
            });
        }
        _ => {}
    }
    if disk.in_doubt {
        return Some(Loss {
            fault: Fault::FlushFailed,
            what: "the last flush failed, and changes before it may be lost".to_string(),
            todo: "See the error in the log and repair the device: the next successful flush \
                   clears this reason"
                .to_string(),
        });
    }
    let remote = disk.remote.as_ref().filter(|remote| remote.connections == 0)?;
    let waits = if remote.down { "requests fail" } else { "requests wait" };
    Some(Loss {
        fault: Fault::RemoteDisconnected,
        what: format!("no connection to the remote server, and {waits}: {}", remote.why),
        todo:
            "Start the remote server, or repair the network: the volume then reconnects by itself"
                .to_string(),
    })
}

/// Returns the reasons about requests. A volume is reported only if no volume below has the same
/// fault.
fn request_reasons(disk: &Disk, facts: &Facts<'_>) -> Vec<Reason> {
    let below = || facts.disks.iter().filter(|other| disk.stands_on(&other.name));
    let reason = |fault, what: String, todo: &str| {
        Reason::new(fault, HealthState::Degraded, &disk.name, what).todo(todo)
    };
    let mut reasons = Vec::new();
    if let Some(age) = hangs(disk).filter(|_| !below().any(|other| hangs(other).is_some())) {
        let what = format!("the oldest request has been in flight for {}", served::seconds(age));
        reasons.push(reason(
            Fault::RequestHangs,
            what,
            "See what the device waits for: corewise dump",
        ));
    }
    let failed = failed(disk);
    if !failed.is_empty() && !below().any(|other| !self::failed(other).is_empty()) {
        let each: Vec<String> =
            failed.iter().map(|(op, errors)| format!("{op} {errors}")).collect();
        let what = format!("requests have failed in the last minute: {}", each.join(", "));
        reasons.push(reason(Fault::RequestsFail, what, "See the errors in the log"));
    }
    reasons
}

/// Returns the age of the oldest request in flight, in seconds, if that is too long.
fn hangs(disk: &Disk) -> Option<f64> {
    disk.oldest_seconds.filter(|age| *age >= HANGS.as_secs_f64())
}

/// Returns the requests that failed in the last minute. Clients try requests that a device may
/// refuse (fast zeroes, discards), so such failures are no fault.
fn failed(disk: &Disk) -> Vec<(&'static str, u64)> {
    let ops =
        disk.ops.all().into_iter().filter(|(op, _)| matches!(*op, "read" | "write" | "flush"));
    let errors = ops.filter_map(|(op, of)| Some((op, of.last_minute.as_ref()?.errors)));
    errors.filter(|(_, errors)| *errors != 0).collect()
}

fn mirror_reasons(
    name: &str,
    mirror: &MirrorReport,
    facts: &Facts<'_>,
    stack: &Stack<'_>,
) -> Vec<Reason> {
    let mut reasons: Vec<Reason> =
        mirror.legs.iter().filter_map(|leg| leg_reason(name, leg)).collect();
    if let Some(found) = mirror.found().filter(|found| found.wrong() != 0) {
        reasons.push(check_reason(name, found, stack));
    }
    let runs = mirror.check.as_ref().is_some_and(|check| check.running);
    if let Some(Schedule { every_seconds, since, .. }) = mirror.schedule.as_ref().filter(|_| !runs)
    {
        if mirrors::is_overdue(*since, *every_seconds, facts.server.now) {
            let since = units::moment(*since);
            let every = served::seconds(*every_seconds);
            let last = match &mirror.checked {
                Some(_) => format!("the last check ended at {since}"),
                None => format!("no check has completed since {since}"),
            };
            let what = format!("{last}, but one is due each {every}");
            let todo = format!(
                "Bring all legs in sync, then start a check: corewise mirror {name} --check"
            );
            let reason = Reason::new(Fault::CheckOverdue, HealthState::Degraded, name, what);
            reasons.push(reason.todo(todo));
        }
    }
    reasons
}

fn leg_reason(mirror: &str, leg: &Leg) -> Option<Reason> {
    let why = leg.why.as_deref().unwrap_or("the leg failed");
    let (fault, what, todo) = match leg.state {
        LegStatus::InSync => return None,
        LegStatus::Resyncing => (
            Fault::LegResyncing,
            format!("leg '{}' is being resynced", leg.name),
            format!("Wait for the resync: corewise mirror {mirror} --wait"),
        ),
        LegStatus::Returning => (
            Fault::LegOut,
            format!("leg '{}' is out, and the server retries it: {why}", leg.name),
            format!("Wait for the resync: corewise mirror {mirror} --wait"),
        ),
        LegStatus::Out => (
            Fault::LegOut,
            format!("leg '{}' is out: {why}", leg.name),
            format!("Once the leg's disk works: {}", take_back_todo(mirror, &leg.name)),
        ),
    };
    Some(Reason::new(fault, HealthState::Degraded, mirror, what).part(&leg.name).todo(todo))
}

/// Returns the reason for the findings of a check. If legs differ, it is unknown which one has the
/// clients' data, and reads go to either. A place that one leg can't read is read from another one.
fn check_reason(mirror: &str, found: CheckFindings, stack: &Stack<'_>) -> Reason {
    let CheckFindings { differ, unreadable, lost, repaired } = found;
    let state = match differ != 0 || lost != 0 {
        true => stack.severity(mirror),
        false => HealthState::Degraded,
    };
    let mut what = Vec::new();
    for (bytes, how) in [(differ, "differ"), (unreadable, "can't be read")] {
        if bytes != 0 {
            what.push(format!("{} {how}", units::count(bytes, "byte")));
        }
    }
    let mut what = format!("the last check found that {}", what.join(" and "));
    if lost != 0 {
        what += &format!(", {} on no leg", units::count(lost, "byte"));
    }
    if repaired != 0 {
        what += &format!(", and repaired {}", units::count(repaired, "byte"));
    }
    let todo = format!(
        "See where: corewise mirror {mirror}. To overwrite these places from the first leg in \
         sync: corewise mirror {mirror} --check --repair"
    );
    Reason::new(Fault::CheckFound, state, mirror, what).todo(todo)
}

/// The stack of volumes, and those that have lost data.
pub(super) struct Stack<'a> {
    facts: Facts<'a>,
    /// Names of volumes that have lost data, or can't reach it.
    lost: BTreeSet<&'a str>,
}

impl<'a> Stack<'a> {
    pub(super) fn new(facts: &Facts<'a>, lost: BTreeSet<&'a str>) -> Stack<'a> {
        Stack { facts: *facts, lost }
    }

    /// Returns the severity of this volume's loss of data, or of access to it.
    pub(super) fn severity(&self, volume: &str) -> HealthState {
        match self.reaches_clients(volume, self.facts.disks.len()) {
            true => HealthState::Lost,
            false => HealthState::Degraded,
        }
    }

    /// Returns true if the loss reaches clients. `depth` limits the height of the stack, since a
    /// snapshot of a server that is being changed may show a cycle.
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

    /// Returns true if `disk` is a mirror that has everything on another leg.
    fn does_without(&self, disk: &Disk, leg: &str) -> bool {
        let legs = disk.mirror.iter().flat_map(|mirror| &mirror.legs);
        legs.filter(|other| other.name != leg && other.state == LegStatus::InSync)
            .any(|other| !self.lost.contains(other.name.as_str()))
    }
}
