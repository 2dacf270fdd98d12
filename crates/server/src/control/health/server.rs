//! Faults of the server as a whole, and of its devices and exports.

use std::time::Duration;

use super::{Facts, Fault, HANGS, HealthState, Reason};
use crate::control::devices::Device;
use crate::control::served;
use crate::manifest::export_name;
use crate::units;

/// The subject of faults that aren't about a device.
const SERVER: &str = "server";

/// The phase of a server's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LifePhase {
    /// Devices come up.
    Starting,
    /// Clients are let in.
    #[default]
    Serving,
    /// Devices go down.
    Stopping,
}

/// The facts about a server beside its devices, volumes and exports.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerFacts {
    pub(crate) phase: LifePhase,
    /// Devices and exports (`export:NAME`) of the manifest that the server does without, and the
    /// reasons.
    pub(crate) left_out: Vec<(String, String)>,
    /// Devices and exports that stay as they were, since a change by the last reload failed, and
    /// the reasons.
    pub(crate) unchanged: Vec<(String, String)>,
    /// Devices of which a change takes too long.
    pub(crate) hanging: Vec<String>,
    pub(crate) lost_sockets: Vec<LostSocket>,
    /// Disks of the manifest that wait without a server.
    pub(crate) waiting: Vec<WaitingDisk>,
    /// Certificate that expires first, if there are any.
    pub(crate) certificate: Option<Certificate>,
    /// Time since a work item of the volumes has last run. One is due each second.
    pub(crate) silent: Duration,
    /// Outputs whose readers don't read, each with the number of lines dropped.
    pub(crate) unread: Vec<(&'static str, u64)>,
    /// Time, in seconds since 1970.
    pub(crate) now: f64,
}

/// A disk of this machine that a former server of the manifest left, and that this one hasn't taken
/// over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingDisk {
    /// Path of the disk.
    pub(crate) disk: String,
    /// Export that it was.
    pub(crate) export: String,
}

/// A socket that no client can connect to any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostSocket {
    pub(crate) path: String,
    pub(crate) used: SocketUse,
    /// True if clients have no other socket.
    pub(crate) only: bool,
}

/// The use of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketUse {
    Clients,
    Control,
    Metrics,
}

/// The validity of a certificate that the server shows, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Certificate {
    /// Time left. Below 0, it has expired.
    pub(crate) left: f64,
    /// Time from its begin to its end.
    pub(crate) lifetime: f64,
    /// True if clients can't use the server without it.
    pub(crate) required: bool,
}

impl Certificate {
    /// Renewal programs renew when a third of the lifetime is left. If half of that has passed too,
    /// renewal has failed for a while. Two weeks are enough to renew a certificate of months by
    /// hand.
    const MOST_LEFT: f64 = 14.0 * 86_400.0;

    fn is_due(&self) -> bool {
        self.left < (self.lifetime / 6.0).min(Self::MOST_LEFT)
    }
}

pub(super) fn reasons(facts: &Facts<'_>) -> Vec<Reason> {
    let server = facts.server;
    let mut reasons = Vec::new();
    reasons.extend(phase_reason(facts));
    if server.phase == LifePhase::Serving {
        reasons.extend(facts.devices.iter().filter_map(device_reason));
    }
    for (name, why) in &server.left_out {
        if !is_there(facts, name) {
            let what = format!("declared in the manifest, but left out: {why}");
            reasons.push(Reason::new(Fault::LeftOut, HealthState::Lost, name, what).todo(MEND));
        }
    }
    for (name, why) in &server.unchanged {
        let what = format!("not as the manifest says, since the change failed: {why}");
        let reason = Reason::new(Fault::ChangeFailed, HealthState::Degraded, name, what);
        reasons.push(reason.todo(MEND));
    }
    for name in &server.hanging {
        let what = "a change of this device takes too long";
        let todo = "See what the server waits for: corewise dump";
        reasons.push(Reason::new(Fault::ChangeHangs, HealthState::Degraded, name, what).todo(todo));
    }
    reasons.extend(server.unread.iter().map(|(stream, lines)| {
        let lines = units::count(*lines, "line");
        let what = format!("no process reads the server's {stream}, so {lines} were dropped");
        let todo = "Let the reader continue: a pipe is full, or a terminal is stopped (Ctrl-Q \
                    resumes it)";
        Reason::new(Fault::LogUnread, HealthState::Degraded, SERVER, what).part(stream).todo(todo)
    }));
    if server.silent >= HANGS {
        let time = served::seconds(server.silent.as_secs_f64());
        let what = format!("no work item of the volumes has run for {time}");
        let todo = "See which items run: corewise dump";
        reasons.push(Reason::new(Fault::Stalled, HealthState::Degraded, SERVER, what).todo(todo));
    }
    reasons.extend(server.lost_sockets.iter().map(socket_reason));
    reasons.extend(server.waiting.iter().map(waiting_reason));
    reasons.extend(server.certificate.as_ref().filter(|one| one.is_due()).map(certificate_reason));
    reasons
}

/// Returns true if the part that was left out has come up since, or if its device itself reports
/// why it isn't up.
fn is_there(facts: &Facts<'_>, name: &str) -> bool {
    let device = facts.devices.iter().find(|device| device.name == name);
    device.is_some_and(|device| {
        let is_up = match name.starts_with("export:") {
            true => device.state == "bound",
            // A volume that is missing has a device, and no disk.
            false => facts.disks.iter().any(|disk| disk.name == name),
        };
        is_up || device_reason(device).is_some()
    })
}

const MEND: &str = "Fix this cause, then: corewise reload";

fn phase_reason(facts: &Facts<'_>) -> Option<Reason> {
    let bound = facts.devices.iter().filter(|device| device.state == "bound").count();
    let all = facts.devices.len();
    let (fault, what) = match facts.server.phase {
        LifePhase::Serving => return None,
        LifePhase::Starting => {
            (Fault::Starting, format!("the server is starting: {bound} of {all} devices are up"))
        }
        LifePhase::Stopping => (
            Fault::Stopping,
            format!("the server is stopping: {bound} of {all} devices are still up"),
        ),
    };
    let waits = facts
        .devices
        .iter()
        .find_map(|device| Some(format!("; {}: {}", device.name, device.waits.as_ref()?)));
    let what = what + &waits.unwrap_or_default();
    let todo = "See what the server waits for: corewise dump";
    Some(Reason::new(fault, HealthState::Degraded, SERVER, what).todo(todo))
}

/// Returns the fault of a device that isn't up. A device on its way up or down is none, since a
/// change is being made; one that takes too long is reported separately.
fn device_reason(device: &Device) -> Option<Reason> {
    if !matches!(device.state.as_str(), "failed" | "no_driver" | "deferred" | "cancelled") {
        return None;
    }
    let why = device.waits.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let what = format!("the device isn't up ({}){why}", device.state);
    Some(Reason::new(Fault::DeviceDown, HealthState::Lost, &device.name, what).todo(MEND))
}

fn socket_reason(socket: &LostSocket) -> Reason {
    let (state, who) = match (socket.used, socket.only) {
        (SocketUse::Clients, true) => (HealthState::Lost, "new clients"),
        (SocketUse::Clients, false) => (HealthState::Degraded, "new clients"),
        (SocketUse::Control, _) => (HealthState::Degraded, "commands"),
        (SocketUse::Metrics, _) => (HealthState::Degraded, "scrapers"),
    };
    let path = &socket.path;
    let what = format!("the socket {path} was removed or replaced, so {who} can't connect there");
    let todo = "Restart the server: connected clients continue until then";
    Reason::new(Fault::SocketGone, state, SERVER, what).part(path).todo(todo)
}

fn waiting_reason(WaitingDisk { disk, export }: &WaitingDisk) -> Reason {
    let what = format!("{disk} waits for a server, and this one doesn't serve it: its I/O hangs");
    let todo = format!(
        "Give the manifest the export and its device as they were, then: corewise reload. Or end \
         the disk, with I/O errors for its users: corewise detach --force {disk}"
    );
    let subject = export_name(export);
    Reason::new(Fault::DiskWaits, HealthState::Lost, &subject, what).part(disk).todo(todo)
}

fn certificate_reason(certificate: &Certificate) -> Reason {
    let time = served::seconds(certificate.left.abs());
    let (state, what) = match (certificate.left < 0.0, certificate.required) {
        (true, true) => (
            HealthState::Lost,
            format!("the server's certificate expired {time} ago, and clients refuse it"),
        ),
        (true, false) => (
            HealthState::Degraded,
            format!("the server's certificate expired {time} ago, and clients with TLS refuse it"),
        ),
        (false, _) => {
            (HealthState::Degraded, format!("the server's certificate expires in {time}"))
        }
    };
    let todo = "Renew the files of tls_certificate and tls_key, then: corewise reload";
    Reason::new(Fault::CertificateExpires, state, SERVER, what).todo(todo)
}
