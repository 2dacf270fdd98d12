//! The status of a server for `corewise health`, beside that of its devices and volumes.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use corewise::nbd::{Endpoint, ExportStatus, HandshakeCounts};
use corewise::sync::Mutex;
use corewise::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise::sync::time::{now, wall};

use crate::cleanup::Cleanup;
use crate::control::devices::Device;
use crate::control::disks::Disks;
use crate::control::health::{Certificate, LifePhase, LostSocket, ServerFacts, SocketUse};
use crate::control::served::RecentExports;

/// The least time between two lines about handshakes.
const HANDSHAKES_EVERY: Duration = Duration::from_secs(60);

/// The recorded facts about a running server. Any thread may use it; each lock is held for a
/// moment.
#[derive(Debug, Default)]
pub(crate) struct ServerStatus {
    /// A: true once clients were accepted. Relaxed: for reports, as all here.
    serves: AtomicBool,
    /// A: number of changes in progress.
    changes: AtomicUsize,
    /// L: is the lock; guards the parts of the manifest that the server does without, and the
    /// reasons.
    left_out: Mutex<Vec<(String, String)>>,
    /// L: is the lock; guards the parts that stay as they were, since the change of the manifest
    /// failed, and the reasons.
    unchanged: Mutex<Vec<(String, String)>>,
    /// L: is the lock; guards the devices of which a change has taken too long.
    overdue: Mutex<Vec<String>>,
    /// L: is the lock; guards the sockets and their uses.
    sockets: Mutex<Vec<(SocketUse, PathBuf)>>,
    /// I: addresses that clients may use; set once they may.
    endpoints: OnceLock<Vec<Endpoint>>,
    /// L: is the lock; guards the validity of the certificate shown to new clients.
    validity: Mutex<Option<Validity>>,
    /// L: is the lock; guards earlier states of the counters of exports.
    pub(crate) recent_exports: Mutex<RecentExports>,
    /// L: is the lock; guards the counts of handshakes already logged.
    handshakes: Mutex<LoggedHandshakes>,
    /// L: is the lock; guards the time at which a work item of the volumes last ran.
    beat: Mutex<Option<Instant>>,
}

/// The validity of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) valid: Range<SystemTime>,
    /// True if clients can't use the server without it.
    pub(crate) required: bool,
}

impl Validity {
    fn at(&self, now: SystemTime) -> Certificate {
        let seconds = |from: SystemTime, to: SystemTime| match to.duration_since(from) {
            Ok(time) => time.as_secs_f64(),
            Err(error) => -error.duration().as_secs_f64(),
        };
        let Range { start, end } = self.valid;
        let (left, lifetime) = (seconds(now, end), seconds(start, end));
        Certificate { left, lifetime, required: self.required }
    }
}

/// A change in progress, as long as this lives.
#[derive(Debug)]
pub(crate) struct ChangeInProgress<'a>(&'a ServerStatus);

impl Drop for ChangeInProgress<'_> {
    fn drop(&mut self) {
        self.0.changes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServerStatus {
    /// Returns the facts that the server knows now, beside those of these devices and its volumes.
    /// `ended` is true while the server is taken down; `stuck` are devices in a change that hangs.
    pub(crate) fn facts(
        &self,
        ended: bool,
        stuck: &[String],
        devices: &[Device],
        cleanup: &Cleanup,
        metrics: Option<&Path>,
        unread: Vec<(&'static str, u64)>,
    ) -> ServerFacts {
        let phase = match (ended, self.serves.load(Ordering::Relaxed)) {
            (true, _) => LifePhase::Stopping,
            (false, true) => LifePhase::Serving,
            (false, false) => LifePhase::Starting,
        };
        let mut hanging = self.still_overdue(devices);
        for name in stuck {
            if !hanging.contains(name) {
                hanging.push(name.clone());
            }
        }
        let mut lost_sockets = self.lost_sockets(cleanup);
        if let Some(path) = metrics.filter(|path| cleanup.has_lost(path)) {
            let (path, used) = (path.display().to_string(), SocketUse::Metrics);
            lost_sockets.push(LostSocket { path, used, only: false });
        }
        let certificate = self.validity.lock().as_ref().map(|one| one.at(SystemTime::now()));
        let (left_out, unchanged) = (self.left_out.lock().clone(), self.unchanged.lock().clone());
        let beat = *self.beat.lock();
        let silent = beat.map(|beat| now().saturating_duration_since(beat)).unwrap_or_default();
        let now = wall().as_secs_f64();
        ServerFacts {
            phase,
            left_out,
            unchanged,
            hanging,
            lost_sockets,
            waiting: Vec::new(),
            certificate,
            silent,
            unread,
            now,
        }
    }

    /// Returns true once clients were accepted.
    pub(crate) fn has_begun(&self) -> bool {
        self.serves.load(Ordering::Relaxed)
    }

    /// Records that clients are accepted on these endpoints.
    pub(crate) fn serves(&self, endpoints: &[Endpoint]) {
        let _ = self.endpoints.set(endpoints.to_vec());
        for endpoint in endpoints {
            if let Endpoint::Unix(Some(path)) = endpoint {
                self.socket(SocketUse::Clients, path.clone());
            }
        }
        self.serves.store(true, Ordering::Relaxed);
    }

    /// Returns a URI at which clients of this machine reach an export. It is that of a Unix socket,
    /// if there is one.
    pub(crate) fn uri(&self, export: &str) -> Option<String> {
        let endpoints = self.endpoints.get()?;
        let is_unix = |one: &&Endpoint| matches!(one, Endpoint::Unix(Some(_)));
        let one = endpoints.iter().find(is_unix).or(endpoints.first())?;
        Some(one.uri(export))
    }

    /// Records that a work item of the volumes runs, which is once a second, and updates disks and
    /// exports.
    pub(crate) fn tick(
        &self,
        disks: &Disks,
        exports: &[ExportStatus],
        handshakes: HandshakeCounts,
    ) {
        *self.beat.lock() = Some(now());
        disks.tick();
        self.recent_exports.lock().note(exports);
        let logged = self.handshakes.lock().at;
        if logged.is_none_or(|at| now().saturating_duration_since(at) >= HANDSHAKES_EVERY) {
            self.log_handshakes(handshakes);
        }
    }

    /// Logs how many clients got no export since the last line, if any. Clients whose TLS failed
    /// have lines of their own.
    pub(crate) fn log_handshakes(&self, counts: HandshakeCounts) {
        let mut logged = self.handshakes.lock();
        let words = refusals(&logged.counts, &counts);
        if !words.is_empty() {
            tracing::warn!("clients got no export: {words}");
            *logged = LoggedHandshakes { counts, at: Some(now()) };
        }
    }

    /// Records the certificate shown to new clients.
    pub(crate) fn shows(&self, validity: Option<Validity>) {
        *self.validity.lock() = validity;
    }

    /// Records a bound socket.
    pub(crate) fn socket(&self, used: SocketUse, path: PathBuf) {
        self.sockets.lock().push((used, path));
    }

    /// Records that the manifest was followed, except for these devices and exports
    /// (`export:NAME`): those that aren't up, and those that are `unchanged`.
    pub(crate) fn followed(
        &self,
        left_out: Vec<(String, String)>,
        unchanged: Vec<(String, String)>,
    ) {
        (*self.left_out.lock(), *self.unchanged.lock()) = (left_out, unchanged);
    }

    pub(crate) fn changing(&self) -> ChangeInProgress<'_> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        ChangeInProgress(self)
    }

    /// Records that a change of this device takes too long.
    pub(crate) fn overdue(&self, device: &str) {
        let mut overdue = self.overdue.lock();
        if !overdue.iter().any(|name| name == device) {
            overdue.push(device.to_string());
        }
    }

    /// Returns the devices of which a change is still in progress.
    fn still_overdue(&self, devices: &[Device]) -> Vec<String> {
        let mut overdue = self.overdue.lock();
        if self.changes.load(Ordering::Relaxed) == 0 {
            // A change may have ended without waiting for a device any longer.
            let goes_on = |device: &Device| matches!(device.state.as_str(), "leaving" | "probing");
            overdue.retain(|name| devices.iter().any(|one| one.name == *name && goes_on(one)));
        }
        overdue.clone()
    }

    fn lost_sockets(&self, cleanup: &Cleanup) -> Vec<LostSocket> {
        let sockets = self.sockets.lock().clone();
        let only = self.endpoints.get().is_some_and(|all| all.len() == 1);
        let lost = sockets.into_iter().filter(|(_, path)| cleanup.has_lost(path));
        lost.map(|(used, path)| LostSocket { path: path.display().to_string(), used, only })
            .collect()
    }
}

/// The counts of handshakes already logged, and the time.
#[derive(Debug, Default)]
struct LoggedHandshakes {
    counts: HandshakeCounts,
    at: Option<Instant>,
}

/// Returns how many clients the server refused or closed between two counts, by cause.
fn refusals(before: &HandshakeCounts, now: &HandshakeCounts) -> String {
    let causes = [
        (now.no_place - before.no_place, "were refused, since all places are taken"),
        (
            now.evicted - before.evicted,
            "were closed in their handshake, since other clients waited",
        ),
        (now.timed_out - before.timed_out, "took too long for their handshake"),
        (
            now.failed - before.failed,
            "failed their handshake (at the level info the log names each)",
        ),
    ];
    let some = causes.iter().filter(|(count, _)| *count > 0);
    some.map(|(count, cause)| format!("{count} {cause}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_handshakes_has_those_since_the_last_one_by_cause() {
        let counts = |no_place, evicted, left| {
            let mut counts = HandshakeCounts::default();
            (counts.no_place, counts.evicted, counts.left) = (no_place, evicted, left);
            counts
        };
        assert_eq!(refusals(&counts(1, 0, 0), &counts(1, 0, 9)), "", "they left by themselves");
        assert_eq!(
            refusals(&counts(1, 0, 0), &counts(3, 700, 0)),
            "2 were refused, since all places are taken, 700 were closed in their handshake, since \
             other clients waited"
        );
    }
}
