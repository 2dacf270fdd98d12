//! An export as a device. It needs its volume, so at shutdown it drains before its volume closes.

use std::sync::Arc;

use corewise::device::{Bound, Driver, ProbeContext, ProbeError, ShutdownError};
use corewise::export::SharedDevice;
use corewise::nbd::{DrainReport, Export, FlushOutcome, Rate, Server};
use corewise::sync::Mutex;

use super::context::Warnings;
use super::front_ends::FrontEnds;
use super::volume::Volume;
use crate::manifest;
use crate::observer::ShownExport;
use crate::settings::Settings;
use crate::units::count;

/// The name of this driver among devices.
pub(crate) const EXPORT: &str = "export";

/// Creates the export that clients see.
pub(crate) fn offer(export: &manifest::Export, shared: Arc<SharedDevice>) -> Export {
    let mut offer = Export::of(export.name.as_str(), shared)
        .description(export.description.clone().unwrap_or_default())
        .max_clients(export.clients)
        .default_export(export.default)
        .read_only(export.read_only);
    for (limit, set) in [
        (export.limit, Export::rate as fn(Export, Rate) -> Export),
        (export.client_limit, Export::client_rate),
    ] {
        if let Some(limit) = limit {
            offer = set(offer, limit.into());
        }
    }
    if let Some(uids) = &export.allow_uids {
        offer = offer.allow_uids(uids.iter().copied());
    }
    if let Some(names) = &export.allow_certificates {
        offer = offer.allow_certificates(names.iter().cloned());
    }
    offer
}

/// The driver that brings exports up.
pub(crate) struct ExportDriver {
    server: Arc<Server>,
    /// Settings, which have the time to drain at shutdown.
    settings: Arc<Settings>,
    /// L: is the lock; guards the exports that are up, in the order in which they came.
    shown: Arc<Mutex<Vec<ShownExport>>>,
    notes: Arc<Warnings>,
    front_ends: Arc<FrontEnds>,
}

impl ExportDriver {
    pub(crate) fn new(
        server: Arc<Server>,
        settings: Arc<Settings>,
        notes: Arc<Warnings>,
        front_ends: Arc<FrontEnds>,
    ) -> ExportDriver {
        ExportDriver { server, settings, shown: Arc::default(), notes, front_ends }
    }

    /// Returns the exports that are up. The list grows while devices come up.
    pub(crate) fn shown(&self) -> Arc<Mutex<Vec<ShownExport>>> {
        Arc::clone(&self.shown)
    }
}

impl Driver for ExportDriver {
    fn name(&self) -> &str {
        EXPORT
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let export = cx.config::<manifest::Export>()?;
        let volume = cx.supplier::<Volume>(&export.device)?;
        let shared = volume.shared()?;
        self.front_ends.open(export, &volume).map_err(ProbeError::failed)?;
        self.shown.lock().push(ShownExport::new(
            export,
            &**shared.device(),
            self.front_ends.path(&export.name),
        ));
        self.server.add_export(offer(export, shared)).map_err(|error| {
            let _ = self.front_ends.close(&export.name, self.settings.now().drain);
            ProbeError::failed(error)
        })?;
        Ok(Arc::new(BoundExport {
            front_ends: Arc::clone(&self.front_ends),
            server: Arc::clone(&self.server),
            name: export.name.clone(),
            settings: Arc::clone(&self.settings),
            notes: Arc::clone(&self.notes),
        }))
    }
}

/// Returns a message about the clients that a drain disconnected unanswered, if there are any.
pub(crate) fn disconnected(report: &DrainReport) -> Option<String> {
    (report.cut > 0).then(|| {
        format!(
            "disconnected {} after {}, with {} unanswered",
            count(report.cut as u64, "client"),
            corewise::timeline::duration(report.took),
            count(report.requests_cut, "request"),
        )
    })
}

struct BoundExport {
    server: Arc<Server>,
    front_ends: Arc<FrontEnds>,
    name: String,
    settings: Arc<Settings>,
    notes: Arc<Warnings>,
}

impl BoundExport {
    fn note(&self, note: Option<String>) {
        if let Some(note) = note {
            self.notes.add(format!("export '{}': {note}", self.name));
        }
    }
}

impl Bound for BoundExport {
    /// Answers the requests in flight, closes the connections, flushes.
    fn shutdown(&self) -> Result<(), ShutdownError> {
        let drain = self.settings.now().drain;
        let closed = self.front_ends.close(&self.name, drain).map_err(ShutdownError::new);
        let closed = closed.map(|note| self.note(note));
        let Some(report) = self.server.remove_export(&self.name, drain) else { return closed };
        // This is no failure: nothing acknowledged is lost, and the user set the deadline.
        self.note(disconnected(&report));
        flushed(&report).and(closed)
    }
}

/// Returns an error unless all answered changes are durable.
fn flushed(report: &DrainReport) -> Result<(), ShutdownError> {
    for flush in &report.flushes {
        match &flush.outcome {
            FlushOutcome::Done => {}
            FlushOutcome::Failed(why) => {
                return Err(ShutdownError::new(format!("flush failed: {why}")));
            }
            FlushOutcome::Unfinished => {
                return Err(ShutdownError::new("the flush did not finish in time"));
            }
        }
    }
    Ok(())
}
