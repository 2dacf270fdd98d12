//! What a server tells the program that runs it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use corewise::blockmq::BlockDevice;
use corewise::device::Event;
use corewise::nbd::{Endpoint, Options};
use corewise::sync::panics::caught;
use corewise::timeline::Timeline;

use crate::control::changes::ChangeReport;
use crate::handle::Handle;
use crate::manifest::{self, LeftOut, Tls};
use crate::room::Cut;

/// How grave a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something failed.
    Error,
    /// Something is not as it should be, and the server goes on.
    Warning,
    /// Nothing is wrong.
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

/// Says which device a phase waits for, if it waits for one. It may be called from any thread.
pub type Blocker = Box<dyn Fn() -> Option<String> + Send>;

/// What clients may have, and how they come in.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits<'a> {
    /// The limits of their number, memory and time.
    pub options: &'a Options,
    /// The certificate and key of the server; `None`: clients have no TLS.
    pub tls: Option<Tls<'a>>,
    /// The reason for which there are fewer than were asked for.
    pub(crate) cut: Option<Cut>,
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

/// A server that lets clients in.
#[derive(Clone, Copy, Debug)]
pub struct Ready<'a> {
    /// The sockets on which it listens.
    pub endpoints: &'a [Endpoint],
    /// The exports that are up, in the manifest's order.
    pub exports: &'a [Shown],
    /// The limits of clients.
    pub clients: ClientLimits<'a>,
    /// The path of the control socket.
    pub control: Option<&'a Path>,
    /// The address of metrics.
    pub metrics: Option<&'a str>,
}

/// Something that happened, for people.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// These are not brought up, though the rest is.
    LeftOut(&'a [LeftOut]),
    /// Devices came up, or didn't.
    BringUp(&'a Timeline),
    /// Devices went down.
    Shutdown(&'a Timeline),
    /// Clients are let in.
    Ready(Ready<'a>),
    /// The end begins.
    Stopping {
        /// The reason that was given for it.
        why: &'a str,
    },
    /// Volumes and exports came, went or changed while others were served.
    Changed(&'a ChangeReport),
    /// Something happened to a mirror.
    Mirror {
        /// The mirror's name.
        device: &'a str,
        /// The event's name: `resync`, `resynced` or `checked`.
        what: &'a str,
        /// The legs concerned, by name; none: all of them.
        legs: &'a [&'a str],
        /// The bytes to copy, copied or compared.
        bytes: u64,
        /// The number of earlier times that were left out.
        before: Option<u64>,
    },
    /// Nothing was there, so a new and empty volume was made.
    Made {
        /// The volume's name.
        device: &'a str,
        /// Its size in bytes.
        size: u64,
        /// Its place, such as the path of a file.
        at: &'a str,
    },
    /// All is over.
    Done {
        /// Whether all of the manifest came up and went down in order.
        complete: bool,
        /// The result in words.
        what: &'a str,
    },
}

/// The program that runs a server. The server calls it from any thread, waits for each call, and
/// makes none from inside another one. A panic in a call is caught, and logged as an error: the
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

    /// Takes what happened, for people.
    fn notice(&self, _: &Notice<'_>) {}

    /// Returns whether [`event`](Observer::event) is to be called.
    fn wants_events(&self) -> bool {
        false
    }

    /// Takes what happened, for programs: a line of JSON, as listeners on the control socket get
    /// it, but for the time.
    fn event(&self, _line: &str) {}

    /// A phase begins in which so many devices change.
    fn phase_begins(&self, _: Phase, _devices: usize, _: Blocker) {}

    /// Something happened to a device in a phase.
    fn device(&self, _: &Event<'_>) {}

    /// The phase has ended.
    fn phase_ends(&self) {}

    /// The server is about to come up: from now on the handle works.
    fn begins(&self, _: &Handle) {}

    /// Returns what has interrupted the bring-up.
    fn interruption(&self) -> Option<&'static str> {
        None
    }

    /// Keeps the timelines of the server so far. Returns whether that could be done.
    fn keep_timelines(&self, _: &[&Timeline]) -> bool {
        true
    }

    /// Returns the output streams that have a reader which doesn't read, each with how many lines
    /// it lacks. Never waits.
    fn unread(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The observer of a program that reads its log.
impl Observer for () {}

/// An observer whose panics end nothing.
#[derive(Debug)]
pub(crate) struct Caught(pub(crate) Arc<dyn Observer>);

impl Caught {
    fn or<R>(&self, usual: R, call: impl FnOnce(&dyn Observer) -> R) -> R {
        caught(|| call(&*self.0)).unwrap_or_else(|| {
            tracing::error!("the observer of the server panicked; the server goes on");
            usual
        })
    }
}

impl Observer for Caught {
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
pub struct Shown {
    /// Its name, which may be empty.
    pub name: String,
    /// The device that it shows.
    pub device: String,
    /// Its size in bytes.
    pub size: u64,
    /// Whether clients may only read.
    pub read_only: bool,
    /// The manifest's words about it; empty where there are none.
    pub description: String,
}

impl Shown {
    pub(crate) fn new(export: &manifest::Export, volume: &dyn BlockDevice) -> Shown {
        let geometry = volume.geometry();
        Shown {
            name: export.name.clone(),
            device: export.device.clone(),
            size: geometry.size,
            read_only: export.read_only || geometry.read_only,
            description: export.description.clone().unwrap_or_default(),
        }
    }
}
