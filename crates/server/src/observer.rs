//! The reports of a server to the program that runs it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewise::blockmq::BlockDevice;
use corewise::device::Event;
use corewise::nbd::{Endpoint, Options};
use corewise::sync::panics::caught;
use corewise::timeline::Timeline;

use crate::control::changes::ChangeReport;
use crate::handle::Handle;
use crate::manifest::{self, LeftOut, Tls};
use crate::process_limits::ClientShortfall;

/// The severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A failure.
    Error,
    /// A fault despite which the server goes on.
    Warning,
    /// An event that is no fault.
    Note,
}

/// A part of a server's life in which devices change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Devices come up.
    BringUp,
    /// Devices go down.
    Shutdown,
}

/// A function that returns the device for which a phase waits, if any. Any thread may call it.
pub type Blocker = Box<dyn Fn() -> Option<String> + Send>;

/// The limits of clients, and their TLS.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits<'a> {
    /// Limits of their number, memory and time.
    pub options: &'a Options,
    /// Certificate and key of the server. `None` if clients have no TLS.
    pub tls: Option<Tls<'a>>,
    /// Reason why there are fewer than were asked for.
    pub(crate) shortfall: Option<ClientShortfall>,
}

impl ClientLimits<'_> {
    /// Returns the most memory that they can take, in bytes.
    pub fn memory(self) -> u64 {
        self.options.worst_case(self.tls.is_some())
    }

    /// Returns a URI by which a client reaches that export.
    pub fn uri(self, endpoint: &Endpoint, export: &str) -> String {
        match self.tls {
            Some(tls) if tls.required => endpoint.tls_uri(export),
            _ => endpoint.uri(export),
        }
    }
}

/// A server that accepts clients.
#[derive(Clone, Copy, Debug)]
pub struct Ready<'a> {
    /// Sockets on which it listens.
    pub endpoints: &'a [Endpoint],
    /// Exports that are up, in the manifest's order.
    pub exports: &'a [ShownExport],
    /// Limits of clients.
    pub clients: ClientLimits<'a>,
    /// Path of the control socket.
    pub control: Option<&'a Path>,
    /// Address of metrics.
    pub metrics: Option<&'a str>,
}

/// An event, for people.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// Devices and exports that aren't brought up, though the rest is.
    LeftOut(&'a [LeftOut]),
    /// Devices came up, or didn't.
    BringUp(&'a Timeline),
    /// Devices went down.
    Shutdown(&'a Timeline),
    /// Clients are accepted.
    Ready(Ready<'a>),
    /// The shutdown begins.
    Stopping {
        /// Reason for the shutdown.
        why: &'a str,
    },
    /// Volumes and exports came, went or changed while others were served.
    Changed(&'a ChangeReport),
    /// An event of a mirror.
    Mirror {
        /// Name of the mirror.
        device: &'a str,
        /// Name of the event: `resync`, `resynced` or `checked`.
        what: &'a str,
        /// Names of the legs concerned; empty for all of them.
        legs: &'a [&'a str],
        /// Bytes to copy, copied or compared.
        bytes: u64,
        /// Number of earlier events that were left out.
        before: Option<u64>,
    },
    /// A new and empty volume was created, since nothing was there.
    Made {
        /// Name of the volume.
        device: &'a str,
        /// Size in bytes.
        size: u64,
        /// Place, such as the path of a file.
        at: &'a str,
    },
    /// The end of the server.
    Done {
        /// True if all of the manifest came up and went down in order.
        complete: bool,
        /// Result in words.
        what: &'a str,
    },
}

/// The program that runs a server. The server calls it from any thread, waits for each call, and
/// makes none from inside another one. A panic in a call is caught and logged as an error, and the
/// server goes on.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Takes a message for people.
    fn message(&self, severity: Severity, message: fmt::Arguments<'_>) {
        match severity {
            Severity::Error => tracing::error!("{message}"),
            Severity::Warning => tracing::warn!("{message}"),
            Severity::Note => tracing::info!("{message}"),
        }
    }

    /// Takes an event, for people.
    fn notice(&self, _: &Notice<'_>) {}

    /// Returns true if [`event`](Observer::event) is to be called.
    fn wants_events(&self) -> bool {
        false
    }

    /// Takes an event, for programs: a line of JSON, as listeners on the control socket get it,
    /// without the time.
    fn event(&self, _line: &str) {}

    /// Takes the begin of a phase, with the number of devices that change.
    fn phase_begins(&self, _: Phase, _devices: usize, _: Blocker) {}

    /// Takes an event of a device in a phase.
    fn device(&self, _: &Event<'_>) {}

    /// Takes the end of the phase.
    fn phase_ends(&self) {}

    /// Takes the handle of a server that is about to come up. The handle works from now on.
    fn begins(&self, _: &Handle) {}

    /// Returns the reason for which the bring-up was interrupted.
    fn interruption(&self) -> Option<&'static str> {
        None
    }

    /// Keeps the timelines of the server so far. Returns true on success.
    fn keep_timelines(&self, _: &[&Timeline]) -> bool {
        true
    }

    /// Returns the output streams whose reader doesn't read, each with the number of lines dropped.
    /// Never waits.
    fn unread(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The observer of a program that reads its log.
impl Observer for () {}

/// An observer whose panics are caught.
#[derive(Debug)]
pub(crate) struct PanicCatcher(pub(crate) Arc<dyn Observer>);

impl PanicCatcher {
    fn or<R>(&self, usual: R, call: impl FnOnce(&dyn Observer) -> R) -> R {
        caught(|| call(&*self.0)).unwrap_or_else(|| {
            tracing::error!("the observer of the server panicked; the server goes on");
            usual
        })
    }
}

impl Observer for PanicCatcher {
    fn message(&self, severity: Severity, message: fmt::Arguments<'_>) {
        self.or((), |observer| observer.message(severity, message));
    }

    fn notice(&self, notice: &Notice<'_>) {
        self.or((), |observer| observer.notice(notice));
    }

    fn wants_events(&self) -> bool {
        self.or(false, |observer| observer.wants_events())
    }

    fn event(&self, line: &str) {
        self.or((), |observer| observer.event(line));
    }

    fn phase_begins(&self, phase: Phase, devices: usize, blocker: Blocker) {
        self.or((), |observer| observer.phase_begins(phase, devices, blocker));
    }

    fn device(&self, event: &Event<'_>) {
        self.or((), |observer| observer.device(event));
    }

    fn phase_ends(&self) {
        self.or((), |observer| observer.phase_ends());
    }

    fn begins(&self, handle: &Handle) {
        self.or((), |observer| observer.begins(handle));
    }

    fn interruption(&self) -> Option<&'static str> {
        self.or(None, |observer| observer.interruption())
    }

    fn keep_timelines(&self, timelines: &[&Timeline]) -> bool {
        self.or(false, |observer| observer.keep_timelines(timelines))
    }

    fn unread(&self) -> Vec<(&'static str, u64)> {
        self.or(Vec::new(), |observer| observer.unread())
    }
}

/// An export as clients see it.
#[derive(Clone, Debug)]
pub struct ShownExport {
    /// Name, which may be empty.
    pub name: String,
    /// Device that it shows.
    pub device: String,
    /// Size in bytes.
    pub size: u64,
    /// True if clients may only read.
    pub read_only: bool,
    /// Description in the manifest; empty if there is none.
    pub description: String,
    /// Path of the disk of this machine that it is, too.
    pub disk: Option<PathBuf>,
    /// Socket on which virtual machines have it as a disk.
    pub guests: Option<PathBuf>,
}

impl ShownExport {
    pub(crate) fn new(
        export: &manifest::Export,
        volume: &dyn BlockDevice,
        disk: Option<PathBuf>,
    ) -> ShownExport {
        let geometry = volume.geometry();
        ShownExport {
            name: export.name.clone(),
            device: export.device.clone(),
            size: geometry.size,
            read_only: export.read_only || geometry.read_only,
            description: export.description.clone().unwrap_or_default(),
            disk,
            guests: export.vhost_user.as_ref().map(|at| at.value.path.clone()),
        }
    }
}
