//! The health of a server in one word, with each reason and its remedy. It is computed from facts
//! alone.
//!
//! This is the only place that decides what counts as a reason. `corewise health`, the metrics,
//! `dump`, `top` and the status for a service manager show its findings and decide nothing. A new
//! fault is a variant of `Fault`, and a line in one of the functions below that finds it.
//! `docs/monitoring.md` defines the three words and lists the faults.

mod server;
#[cfg(test)]
mod tests;
mod volumes;

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::devices::Device;
use super::disks::Disk;
use super::served::Export;

pub(crate) use server::{Certificate, LifePhase, LostSocket, ServerFacts, SocketUse, WaitingDisk};
#[cfg(feature = "crypt")]
pub(crate) use volumes::REPAIR_HEADER;

/// The health of a server or the severity of a reason, in one word.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// All is well: no fault below is known.
    Ok,
    /// All data is there and can be reached, but less protects it than was asked for, or a part of
    /// the server doesn't work.
    Degraded,
    /// Data that clients were promised may be gone, or can't be reached through this server now.
    #[default]
    #[serde(other)]
    Lost,
}

impl HealthState {
    pub(crate) const ALL: [HealthState; 3] =
        [HealthState::Ok, HealthState::Degraded, HealthState::Lost];

    /// Returns its word.
    pub fn name(self) -> &'static str {
        match self {
            HealthState::Ok => "ok",
            HealthState::Degraded => "degraded",
            HealthState::Lost => "lost",
        }
    }
}

/// The time after which a request in flight counts as hanging, and so does a server whose volumes
/// have run no work item. Linux gives a disk the same time for a request, and so does the
/// workqueue's watchdog for work.
const HANGS: Duration = Duration::from_secs(30);

/// A kind of fault. Its name in JSON and in metrics is a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// A certificate of the server has expired, or soon will.
    CertificateExpires,
    /// A change of a device or an export by a reload failed.
    ChangeFailed,
    /// A change of a device takes too long.
    ChangeHangs,
    /// The last check of a mirror found bytes that differ or can't be read.
    CheckFound,
    /// The scheduled check of a mirror couldn't begin for a long time.
    CheckOverdue,
    /// A checkpoint can't be read, since its old content couldn't be kept.
    CheckpointLost,
    /// A device isn't up.
    DeviceDown,
    /// A disk of this machine waits for a server, and this one doesn't serve it.
    DiskWaits,
    /// A file or a folder that a volume uses isn't in its place, or was replaced.
    Displaced,
    /// A file was truncated or unlinked, or a flush of it failed.
    FileLost,
    /// A flush failed so that changes may be lost, and none has succeeded since.
    FlushFailed,
    /// A copy of the header of an encrypted volume is damaged.
    HeaderDamaged,
    /// A leg of a mirror is out.
    LegOut,
    /// A leg of a mirror is being resynced.
    LegResyncing,
    /// A device or an export of the manifest was left out.
    LeftOut,
    /// The log isn't read.
    LogUnread,
    /// Clients have left without knowing that a flush has failed.
    LossUntold,
    /// A volume in an object store is fenced, or its store has lost the last writes.
    NotServed,
    /// A volume elsewhere has no connection.
    RemoteDisconnected,
    /// A request is in flight for too long.
    RequestHangs,
    /// Requests have failed in the last minute.
    RequestsFail,
    /// A socket that clients, scrapers or commands connect to is gone.
    SocketGone,
    /// The volumes run no work item.
    Stalled,
    /// An object with data of a volume is missing or damaged.
    StoreDamaged,
    /// The store of a volume takes no writes.
    StoreUnwritable,
    /// Devices come up, and no client is let in yet.
    Starting,
    /// Devices go down, and no client is let in any more.
    Stopping,
    /// A fault of a later version.
    #[serde(other)]
    Unknown,
}

impl Fault {
    /// Returns the name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::CertificateExpires => "certificate_expires",
            Fault::ChangeFailed => "change_failed",
            Fault::ChangeHangs => "change_hangs",
            Fault::CheckFound => "check_found",
            Fault::CheckOverdue => "check_overdue",
            Fault::CheckpointLost => "checkpoint_lost",
            Fault::DeviceDown => "device_down",
            Fault::DiskWaits => "disk_waits",
            Fault::Displaced => "displaced",
            Fault::FileLost => "file_lost",
            Fault::FlushFailed => "flush_failed",
            Fault::HeaderDamaged => "header_damaged",
            Fault::LegOut => "leg_out",
            Fault::LegResyncing => "leg_resyncing",
            Fault::LeftOut => "left_out",
            Fault::LogUnread => "log_unread",
            Fault::LossUntold => "loss_untold",
            Fault::NotServed => "not_served",
            Fault::RemoteDisconnected => "remote_disconnected",
            Fault::RequestHangs => "request_hangs",
            Fault::RequestsFail => "requests_fail",
            Fault::SocketGone => "socket_gone",
            Fault::Stalled => "stalled",
            Fault::StoreDamaged => "store_damaged",
            Fault::StoreUnwritable => "store_unwritable",
            Fault::Starting => "starting",
            Fault::Stopping => "stopping",
            Fault::Unknown => "unknown",
        }
    }
}

/// A fault that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    #[serde(rename = "reason")]
    pub(crate) fault: Fault,
    /// Severity of this fault alone.
    pub state: HealthState,
    /// Name of the volume, device, export (`export:NAME`) or `server`.
    pub subject: String,
    /// Part of the subject: a leg of a mirror; a socket or a certificate of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part: Option<String>,
    /// Finding, in words.
    pub what: String,
    /// Remedy: a sentence, with the command if there is one.
    pub todo: String,
}

impl Reason {
    fn new(fault: Fault, state: HealthState, subject: &str, what: impl Into<String>) -> Reason {
        let (subject, what) = (subject.to_string(), what.into());
        Reason { fault, state, subject, part: None, what, todo: String::new() }
    }

    fn part(self, part: &str) -> Reason {
        Reason { part: Some(part.to_string()), ..self }
    }

    fn todo(self, todo: impl Into<String>) -> Reason {
        Reason { todo: todo.into(), ..self }
    }

    /// Returns one line with subject, finding and remedy.
    pub(crate) fn line(&self) -> String {
        let Reason { subject, what, todo, .. } = self;
        format!("{subject}: {what}. {todo}")
    }
}

/// The health of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Worst state of a reason.
    pub state: HealthState,
    /// Reasons, the worst first.
    #[serde(default)]
    pub reasons: Vec<Reason>,
}

/// The known facts about a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) devices: &'a [Device],
    pub(crate) disks: &'a [Disk],
    pub(crate) exports: &'a [Export],
    pub(crate) server: &'a ServerFacts,
}

impl Health {
    /// Derives the health from facts.
    pub(crate) fn of(facts: &Facts<'_>) -> Health {
        let mut reasons = server::reasons(facts);
        reasons.extend(volumes::reasons(facts));
        reasons.sort_by(|one, other| {
            let key = |reason: &Reason| (reason.subject.clone(), reason.fault, reason.part.clone());
            other.state.cmp(&one.state).then_with(|| key(one).cmp(&key(other)))
        });
        // One fault of one part is one reason, however it was found.
        reasons.dedup_by(|one, other| {
            (one.fault, &one.subject, &one.part) == (other.fault, &other.subject, &other.part)
        });
        let state = reasons.iter().map(|reason| reason.state).max().unwrap_or(HealthState::Ok);
        Health { state, reasons }
    }

    /// Returns the word, and a line for each reason.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.state.name());
        for reason in &self.reasons {
            // Writing to a String can't fail.
            let _ = writeln!(out, "  {}", reason.line());
        }
        out
    }

    /// Returns the same text as a section of a dump.
    pub(crate) fn section(&self) -> String {
        let lines: Vec<String> =
            self.text().lines().map(|line| format!("  {}", line.trim())).collect();
        format!("Health\n{}\n\n", lines.join("\n"))
    }

    /// Returns the word and its subjects, for a line with little room. Returns `None` if all is
    /// well.
    pub fn summary(&self) -> Option<String> {
        let mut subjects: Vec<&str> = Vec::new();
        for reason in self.reasons.iter().filter(|reason| reason.state == self.state) {
            if !subjects.contains(&reason.subject.as_str()) {
                subjects.push(&reason.subject);
            }
        }
        (!subjects.is_empty()).then(|| format!("{}: {}", self.state.name(), subjects.join(", ")))
    }
}
