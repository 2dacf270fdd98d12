//! An export as a device. It needs its volume, so at shutdown it drains before its volume closes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corewise::device::{Bound, Driver, ProbeContext, ProbeError, ShutdownError};
use corewise::export::SharedDevice;
use corewise::nbd::{Checkpoints, DrainReport, Export, FlushOutcome, Rate, Server};
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
fn offer(
    export: &manifest::Export,
    shared: Arc<SharedDevice>,
    checkpoints: Option<Arc<dyn Checkpoints>>,
) -> Export {
    let mut offer = Export::of(export.name.as_str(), shared)
        .description(export.description.clone().unwrap_or_default())
        .max_clients(export.clients)
        .default_export(export.default)
        .read_only(export.read_only);
    if let Some(checkpoints) = checkpoints {
        offer = offer.checkpoints(checkpoints);
    }
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

/// Returns the export of a volume, with its checkpoints or its layers.
pub(crate) fn offer_of(export: &manifest::Export, volume: &Volume) -> Result<Export, ProbeError> {
    let offer = offer(export, volume.shared()?, volume.checkpoint_contexts());
    Ok(match volume.overlay_layers() {
        Some(layers) => offer.allocation_depth(layers),
        None => offer,
    })
}

/// The exports of devices as they were at their newest checkpoints.
pub(crate) struct ImageExports {
    server: Arc<Server>,
    notes: Arc<Warnings>,
    /// L: is the lock, held while exports come and go; guards the names of these exports, by those
    /// of the exports of the present content.
    offered: Mutex<BTreeMap<String, String>>,
}

impl ImageExports {
    pub(crate) fn new(server: Arc<Server>, notes: Arc<Warnings>) -> ImageExports {
        ImageExports { server, notes, offered: Mutex::default() }
    }

    /// Offers the newest checkpoint of a volume under `EXPORT@CHECKPOINT`, to the clients of
    /// `export`. Clients of an older one are disconnected: it can't be read any more.
    pub(crate) fn renew(&self, export: &manifest::Export, volume: &Volume) {
        let mut offered = self.offered.lock();
        self.withdraw(&mut offered, &export.name);
        let Some((checkpoint, shared)) = volume.image() else { return };
        let name = format!("{}@{checkpoint}", export.name);
        let image = manifest::Export {
            name: name.clone(),
            default: false,
            read_only: true,
            description: Some(format!("'{}' at checkpoint '{checkpoint}'", export.name)),
            ..export.clone()
        };
        // The changes since an older checkpoint up to now: more than up to this one, never less.
        let contexts = volume.checkpoint_contexts();
        match self.server.add_export(offer(&image, shared, contexts)) {
            Ok(()) => drop(offered.insert(export.name.clone(), name)),
            Err(error) => self.notes.add(format!("export '{name}': {error}")),
        }
    }

    /// Withdraws the checkpoint of an export; its clients are disconnected.
    pub(crate) fn remove(&self, export: &str) {
        self.withdraw(&mut self.offered.lock(), export);
    }

    fn withdraw(&self, offered: &mut BTreeMap<String, String>, export: &str) {
        if let Some(name) = offered.remove(export) {
            // Its clients read nothing any more, and have nothing to flush.
            let _ = self.server.remove_export(&name, Duration::ZERO);
        }
    }

    /// Returns the name under which the newest checkpoint of an export is read.
    pub(crate) fn of(&self, export: &str) -> Option<String> {
        self.offered.lock().get(export).cloned()
    }
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
    images: Arc<ImageExports>,
}

impl ExportDriver {
    pub(crate) fn new(
        server: Arc<Server>,
        settings: Arc<Settings>,
        notes: Arc<Warnings>,
        front_ends: Arc<FrontEnds>,
        images: Arc<ImageExports>,
    ) -> ExportDriver {
        ExportDriver { server, settings, shown: Arc::default(), notes, front_ends, images }
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
        let [disk, _] = self.front_ends.paths(&export.name);
        self.shown.lock().push(ShownExport::new(export, &**shared.device(), disk));
        self.server.add_export(offer_of(export, &volume)?).map_err(|error| {
            let _ = self.front_ends.close(&export.name, self.settings.now().drain);
            ProbeError::failed(error)
        })?;
        self.images.renew(export, &volume);
        Ok(Arc::new(BoundExport {
            front_ends: Arc::clone(&self.front_ends),
            images: Arc::clone(&self.images),
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
    images: Arc<ImageExports>,
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
        self.images.remove(&self.name);
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
