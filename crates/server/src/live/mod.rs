//! Changes of a running server: volumes and exports come, go and change while others are served.
//!
//! There is one change at a time. Exports go first, all at once, then the volumes below, each after
//! its consumers. New devices then come up in parallel, as at the start. The rest of the server
//! notices nothing of a change.

mod bounded;
mod bring_up;
pub(crate) mod checkpoints;
mod grow;
#[cfg(feature = "crypt")]
mod keys;
mod legs;
mod overlays;
mod removal;
mod request;
mod server;
pub(crate) mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise::device::{Cancel, DeviceManager, DeviceState};
use corewise::nbd;
use corewise::sync::Mutex;
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::timeline::{Timeline, json};
use corewise::topology::Machine;

use crate::check::impossible;
use crate::cleanup::Cleanup;
use crate::control::Mode;
use crate::control::changes::{ChangeReport, Step, StepKind};
#[cfg(feature = "crypt")]
use crate::drivers::Secrets;
use crate::drivers::{CallTargets, FrontEnds, ImageExports, MissingParts, Volume, Warnings};
use crate::error::{Error, ErrorKind};
use crate::handle::Reachable;
use crate::manifest::{self, Changes, Driver, Manifest, export_name};
use crate::metrics_http::{MetricsListener, MetricsText};
use crate::observer::ShownExport;
use crate::process_limits::ProcessLimits;
use crate::report::Report;
use crate::service;
use crate::settings::Settings;
use crate::status::ServerStatus;
use crate::threads::no_thread;
use crate::tls::{self, RenewedTls, ShownFiles};
use crate::units::{self, count};
use legs::WrittenLegs;
use overlays::without_base;
pub(crate) use request::{Change, ChangeRequest};
use request::{InProgress, added, checked, shrunk, without};

/// The parts of a running server that a change works on.
pub(crate) struct Live {
    pub(crate) manager: Arc<DeviceManager>,
    pub(crate) server: Arc<nbd::Server>,
    pub(crate) front_ends: Arc<FrontEnds>,
    pub(crate) machine: Machine,
    pub(crate) calls: Arc<CallTargets>,
    pub(crate) missing: Arc<MissingParts>,
    pub(crate) shown: Arc<Mutex<Vec<ShownExport>>>,
    pub(crate) cleanup: Arc<Cleanup>,
    pub(crate) notes: Arc<Warnings>,
    pub(crate) report: Report,
    /// Settings that follow the manifest: the time to drain, and the policy for devices that hang.
    pub(crate) settings: Arc<Settings>,
    /// Status for `corewise health`.
    pub(crate) status: ServerStatus,
    /// Most clients that memory was reserved for. `has_unix` is true if there is a Unix socket for
    /// clients.
    pub(crate) most_clients: usize,
    /// Limits of the process. Clients share the part that the devices leave.
    pub(crate) limits: ProcessLimits,
    /// Memory for clients by default, in bytes.
    pub(crate) usual_memory: u64,
    pub(crate) has_unix: bool,
    /// L: is the lock, taken inside that of `has`; guards the listener for metrics.
    pub(crate) metrics: Mutex<Option<MetricsListener>>,
    /// I: the maker of the metrics text; set once, before the first request.
    pub(crate) metrics_text: OnceLock<MetricsText>,
    /// File of the manifest, if it can be read again.
    pub(crate) source: Option<PathBuf>,
    /// Cancels bring-ups when the server is to end.
    pub(crate) cancel: Cancel,
    /// L: is the lock, taken inside that of `has`; guards the TLS files shown to new clients.
    /// `None`: no TLS.
    pub(crate) seen: Mutex<Option<ShownFiles>>,
    /// L: is the lock, held as long as a change takes; guards the manifest of the devices and
    /// exports that are up. `None` until the server is up.
    pub(crate) has: Mutex<Option<Manifest>>,
    /// L: is the lock, held for a moment, a leaf; guards the description of the change in progress.
    pub(crate) doing: Mutex<InProgress>,
    /// L: is the lock; guards the exports that are removed when their last client leaves, each with
    /// the token of that removal.
    pub(crate) hiding: Mutex<BTreeMap<String, Arc<()>>>,
    /// L: is the lock, taken inside that of `has`; guards the manifest's legs of mirrors whose legs
    /// were changed since.
    pub(crate) written: Mutex<WrittenLegs>,
    /// L: is the lock, held for a moment; guards the devices of changes that hang and were
    /// abandoned.
    pub(crate) stuck: Mutex<Vec<String>>,
    /// A: true while a thread waits to follow the manifest, and hasn't begun. AcqRel: a signal that
    /// comes before the manifest is read counts.
    pub(crate) follows: AtomicBool,
    /// L: is the lock, taken inside that of `has`; guards whether a SIGHUP came before the server
    /// was up.
    pub(crate) missed: Mutex<bool>,
    pub(crate) images: Arc<ImageExports>,
    /// Keys of encrypted devices.
    #[cfg(feature = "crypt")]
    pub(crate) secrets: Arc<Secrets>,
    /// L: is the lock, held while a snapshot or checkpoint is taken, listed or deleted.
    pub(crate) snapshots: Mutex<()>,
    /// A: true if a flush failed in a change that the server's end overtook. Relaxed: read when
    /// that change is over.
    pub(crate) unclean: AtomicBool,
    /// A: true once the server ends. Relaxed: the device manager refuses a change that comes at the
    /// same time.
    pub(crate) ended: AtomicBool,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Reachable for Live {
    fn reload(self: Arc<Self>) {
        self.hang_up();
    }

    fn logged(&self, line: &tracing::Event<'_>) {
        self.report.logged(line);
    }
}

impl Live {
    /// Records that the server is up, with the manifest of the devices and exports that came up.
    pub(crate) fn begin(self: &Arc<Self>, has: Manifest) {
        *self.has.lock() = Some(has);
        if std::mem::take(&mut *self.missed.lock()) {
            self.hang_up();
        }
    }

    /// Returns true if a change that the end overtook has lost data that clients were promised.
    pub(crate) fn is_unclean(&self) -> bool {
        self.unclean.load(Ordering::Relaxed)
    }

    /// Refuses changes from now on, since the server ends. A change in progress isn't waited for
    /// here; the shutdown waits for it.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Follows the manifest after a SIGHUP, on a thread of its own.
    pub(crate) fn hang_up(self: &Arc<Self>) {
        // A thread that waits for a change to end reads the manifest after that, so it covers all
        // later signals.
        if self.ended.load(Ordering::Relaxed) || self.follows.swap(true, Ordering::AcqRel) {
            return;
        }
        let theirs = Arc::clone(self);
        let reload = move || {
            let mut has = theirs.has.lock();
            theirs.follows.store(false, Ordering::Release);
            if has.is_none() {
                *theirs.missed.lock() = true;
                return;
            }
            let request = ChangeRequest::Reload;
            let change = Change { request, mode: Mode::Safe, dry_run: false };
            if let Err(error) = theirs.make_and_share(&mut has, &change) {
                theirs.report.refused("SIGHUP", &error.to_string());
            }
        };
        let started = std::thread::Builder::new().name("change".to_string()).spawn(reload);
        if let Err(error) = started {
            self.follows.store(false, Ordering::Release);
            self.report.refused("SIGHUP", &no_thread(&error));
        }
    }

    /// Makes a change, or returns the reason why nothing was changed. Reports it to the observer,
    /// too. Blocks as long as it takes.
    pub(crate) fn change(self: &Arc<Self>, change: &Change) -> Result<ChangeReport, Error> {
        let mut has = match self.has.try_lock() {
            Some(has) => has,
            None => {
                let InProgress { words, unused_removals } = self.doing.lock().clone();
                if unused_removals == 0 {
                    let doing = words.unwrap_or_else(|| "making another change".to_string());
                    let why = format!(
                        "the server is still {doing}; try again when that is done (`corewise \
                         events` reports the end)"
                    );
                    return Err(Error::of(ErrorKind::Busy, why));
                }
                // No client asked for that removal just now, so none expects a refusal for it.
                self.has.lock()
            }
        };
        self.make_and_share(&mut has, change)
    }

    fn make_and_share(
        self: &Arc<Self>,
        has: &mut Option<Manifest>,
        change: &Change,
    ) -> Result<ChangeReport, Error> {
        self.doing.lock().words = Some(change.request.to_string());
        let changed = self.make(has, change);
        self.doing.lock().words = None;
        if let Some(has) = has.as_ref().filter(|_| !change.dry_run) {
            // Clients get the room back even if the change failed.
            self.give_room(has);
        }
        changed
    }

    fn make(
        self: &Arc<Self>,
        has: &mut Option<Manifest>,
        change: &Change,
    ) -> Result<ChangeReport, Error> {
        let &Change { ref request, mode, dry_run } = change;
        if (mode, matches!(request, ChangeRequest::Remove(_))) == (Mode::Hide, false) {
            return Err(Error::refused("mode 'hide' is for 'remove'"));
        }
        let _changing = self.status.changing();
        let ending = self.has_ended();
        let Some(old) = has.as_mut().filter(|_| !ending) else {
            let what = if ending { "ends" } else { "is not up yet" };
            return Err(Error::of(ErrorKind::NotUp, format!("the server {what}")));
        };
        let is_told = self.settings.tells_service_manager();
        let reloads = matches!(request, ChangeRequest::Reload) && !dry_run;
        let _told = service::ReloadGuard::told(reloads && is_told);
        let (new, rolls_back) = match request {
            ChangeRequest::Grow(name, size) => {
                return self.grow_alone(name, *size, old, dry_run);
            }
            ChangeRequest::Legs(mirror, change) => {
                return self.change_legs(mirror, change, old, dry_run);
            }
            ChangeRequest::Overlay(name, change) => {
                return self.change_overlay(name, *change, old, dry_run);
            }
            ChangeRequest::Reload => (self.read_again(old)?, false),
            ChangeRequest::Add(file) => (added(file, old)?, true),
            ChangeRequest::Remove(name) => (without(name, old)?, false),
        };
        let changes = self.changes(old, &new);
        self.refuse_restart(&changes, old, &new)?;
        self.refuse_parents(&changes, old, &new)?;
        #[cfg(feature = "crypt")]
        self.refuse_without_keys(&changes)?;
        self.refuse_stuck(changes.touched())?;
        let topology = Some(self.machine.topology());
        if let Some(problem) = impossible(&changes.add_devices, &new.by_name(), topology).first() {
            let file = match request {
                ChangeRequest::Add(file) => Some(file),
                _ => self.source.as_ref(),
            };
            let file = file.map_or("the manifest".into(), |file| file.to_string_lossy());
            return Err(Error::refused(problem.display(&file).to_string()));
        }
        let mut changed = self.steps(&changes);
        changed.dry_run = dry_run;
        self.warn_of_loss(&changes, old, change, &mut changed)?;
        let shown_again = match request {
            ChangeRequest::Reload => self.hidden_and_wanted(&new, &changes),
            _ => Vec::new(),
        };
        for name in &shown_again {
            let (what, name) = (StepKind::Show, export_name(name));
            changed.steps.push(Step { what, name, ..Step::default() });
        }
        let renewed = match request {
            ChangeRequest::Reload => self.renewed(&new)?,
            _ => None,
        };
        if renewed.is_some() {
            changed.steps.push(Step { what: StepKind::Renew, ..Step::default() });
        }
        let new_exports = changes.add_exports.iter().chain(&changes.replace_exports);
        for export in new_exports.filter(|_| !self.has_unix) {
            if let Some((why, help)) = manifest::why_not(export) {
                let why = format!("{}: {why}; {help}", export_name(&export.name));
                return Err(Error::refused(why));
            }
        }
        let server = match request {
            ChangeRequest::Reload => self.followed_keys(&old.server, &new.server, &mut changed),
            _ => None,
        };
        self.refuse_ending_disks(&changes, mode)?;
        self.make_room(&changes, old, &mut changed)?;
        if dry_run {
            return Ok(changed);
        }
        let server = server.map(|server| self.prepare(&old.server, server)).transpose()?;
        match request {
            // A reload follows a manifest that may lack the failed devices.
            ChangeRequest::Reload => self.forget_failed(old, |_| true),
            _ => self.forget_failed(old, |name| changes.adds(name)),
        }
        let kept = self.hide(&changes.remove_exports, mode)?;
        // This follows the last refusal, since a refusal changes nothing.
        for name in &shown_again {
            self.hiding.lock().remove(name);
            self.server.show_export(name);
        }
        if let Some(renewed) = renewed {
            let seen = renewed.apply(&self.server);
            self.status.shows(seen.as_ref().and_then(ShownFiles::validity));
            *self.seen.lock() = seen;
        }
        if let Some(server) = server {
            old.server = self.follow(server);
        }
        #[cfg(feature = "crypt")]
        self.wipe_keys(change, old, &new);
        if changes.is_empty() {
            self.note_left_out(request, &changed, old);
            self.report.changed(&changed);
            return Ok(changed);
        }
        if let (Mode::Hide, ChangeRequest::Remove(name), false) = (mode, request, kept.is_empty()) {
            for step in &mut changed.steps {
                step.what = StepKind::Hide;
            }
            // Exports without a client are removed later, too: a reload may show them again.
            self.remove_when_unused(name, changes.remove_exports.clone())?;
            self.report.changed(&changed);
            return Ok(changed);
        }
        self.drop_bases(&changes, old);
        let deadline = if mode == Mode::Hard { Duration::ZERO } else { self.settings.now().drain };
        let (exports, devices) = (&changes.remove_exports, &changes.remove_devices);
        let Some(down) = self.remove(exports, devices, old, deadline, &mut changed) else {
            // Writes that were answered may not be durable, which the end of the server has to
            // report.
            self.unclean.fetch_or(!changed.failed.is_empty(), Ordering::Relaxed);
            return Err(Error::of(ErrorKind::NotUp, ENDS));
        };
        let exports = changes.remove_exports.iter().map(|export| export_name(export));
        let all: BTreeSet<String> = changes.remove_devices.iter().cloned().chain(exports).collect();
        let gone = |name: &str| all.contains(name);
        old.retain(|name| !gone(name) || down.left.iter().any(|left| left == name));
        if !down.timeline.is_empty() {
            changed.timelines.push(as_json(&down.timeline));
        }
        if !down.left.is_empty() {
            changed.steps.retain_mut(|step| {
                let is_gone = gone(&step.name) && !down.left.contains(&step.name);
                if is_gone {
                    step.what = StepKind::Remove;
                }
                is_gone
            });
            changed.notes.push(
                "the server left out the rest of the change; try again when that device is \
                       down"
                    .to_string(),
            );
            self.report.changed(&changed);
            return Ok(changed);
        }
        for (name, size) in &changes.grow {
            if let Err(error) = self.grow(name, Some(*size), old) {
                changed.fail(StepKind::Grow, name.clone(), error.to_string());
            }
        }
        let (last, first): (Vec<_>, Vec<_>) =
            changes.replace_exports.iter().partition(|export| export.default);
        self.replace(&first, deadline, old, &mut changed);
        let up = self.bring_up(&changes, &new, rolls_back, old, &mut changed);
        self.replace(&last, deadline, old, &mut changed);
        self.follow_keys(&changes, old);
        self.follow_legs(&changes, old, &mut changed);
        self.remove_legs(&changes.remove_legs, old, &mut changed)?;
        if let Some(up) = up.filter(|up| !up.is_empty()) {
            changed.timelines.push(as_json(&up));
        }
        changed.notes.extend(self.notes.take());
        if rolls_back && !changed.failed.is_empty() {
            let each =
                changed.failed.iter().map(|failed| format!("{}: {}", failed.name, failed.why));
            let each = each.collect::<Vec<_>>().join("; ");
            return Err(Error::refused(format!("the server added nothing: {each}")));
        }
        self.note_left_out(request, &changed, old);
        self.report.changed(&changed);
        Ok(changed)
    }

    /// Returns the changes from `old` to `new`. A mirror stays as it is if its manifest names the
    /// `bitmap` that it has anyway, or stops naming it; an overlay with its `block_size`, too.
    fn changes(&self, old: &Manifest, new: &Manifest) -> Changes {
        let had = old.by_name();
        let mut alike = new.clone();
        for device in &mut alike.devices {
            let volume = self.manager.bound::<Volume>(&device.name);
            match (&mut device.driver, had.get(&*device.name).map(|device| &device.driver)) {
                (Driver::Mirror(mirror), Some(Driver::Mirror(had))) => {
                    let has = volume.filter(|mirror| mirror.is_mirror());
                    let has = has.map(|mirror| mirror.has_record());
                    if has.is_some_and(|has| mirror.bitmap.unwrap_or(has) == has) {
                        mirror.bitmap = had.bitmap;
                    }
                }
                (Driver::Overlay(overlay), Some(Driver::Overlay(had))) => {
                    let has = volume.and_then(|overlay| overlay.overlay_block_size());
                    if has.is_some_and(|has| overlay.block_size.unwrap_or(has) == has) {
                        overlay.block_size = had.block_size;
                    }
                }
                _ => {}
            }
        }
        let drop_bases = self.drops_bases(old, new);
        let mut changes = match drop_bases.is_empty() {
            true => Changes::between(old, &alike),
            false => {
                let mut old = old.clone();
                drop_bases.iter().for_each(|(overlay, base)| without_base(&mut old, overlay, base));
                Changes::between(&old, &alike)
            }
        };
        changes.drop_bases = drop_bases;
        let written = new.by_name();
        for device in &mut changes.add_devices {
            if let Some(&written) = written.get(&*device.name) {
                device.clone_from(written);
            }
        }
        changes
    }

    /// Warns of devices in memory, whose data a restart loses. A change in mode `safe` is refused
    /// for that. Any other, and a dry run, names the devices.
    fn warn_of_loss(
        &self,
        changes: &Changes,
        old: &Manifest,
        change: &Change,
        changed: &mut ChangeReport,
    ) -> Result<(), Error> {
        let had = old.by_name();
        let restarted = changes.restarted.iter().filter_map(|name| had.get(name.as_str()));
        for device in restarted.filter(|device| device.driver.is_in_memory()) {
            let name = &device.name;
            let why = format!("device '{name}' is in memory, so a restart loses its data");
            let way_out = "undo the change of this device and of what it needs, or use --mode soft";
            match (change.mode, change.dry_run) {
                (Mode::Safe, false) => return Err(Error::refused(format!("{why}: {way_out}"))),
                (Mode::Safe, true) => {
                    changed
                        .notes
                        .push(format!("{why}; mode 'safe' refuses such a restart: {way_out}"));
                }
                _ => changed.notes.push(why),
            }
        }
        Ok(())
    }

    /// Records what a reload couldn't follow: new parts that aren't up, and changes of others,
    /// which the server `has` as they were.
    fn note_left_out(&self, request: &ChangeRequest, changed: &ChangeReport, has: &Manifest) {
        if let ChangeRequest::Reload = request {
            let failed = changed.failed.iter().map(|one| (one.name.clone(), one.why.clone()));
            let (unchanged, left_out) = failed.partition(|(name, _)| has.declares(name));
            self.status.followed(left_out, unchanged);
        }
    }

    /// Removes failed devices with these names, which the server doesn't have, so that others can
    /// take the names.
    fn forget_failed(&self, has: &Manifest, of: impl Fn(&str) -> bool) {
        let is_down = |name: &str, state: &DeviceState| match state {
            DeviceState::Failed(_)
            | DeviceState::NoDriver
            | DeviceState::Cancelled
            | DeviceState::Deferred { .. }
            | DeviceState::Waiting => true,
            // A volume that is missing.
            DeviceState::Bound => {
                self.manager.bound::<Volume>(name).is_some_and(|volume| volume.device().is_err())
            }
            _ => false,
        };
        // The order is reversed, since devices come after those below.
        for device in self.manager.devices().into_iter().rev() {
            let name = &device.name;
            if is_down(name, &device.state) && of(name) && !has.declares(name) {
                // An error means that the server ends, which reports the device itself.
                let _ = self.manager.remove(name);
            }
        }
    }

    /// Reads the manifest again.
    fn read_again(&self, old: &Manifest) -> Result<Manifest, Error> {
        let file = self.source.as_ref().ok_or(
            "the server can't read its manifest again, since that is built in or came through a \
             pipe",
        )?;
        let read = |text: &str, base: &Path| manifest::read(text, base);
        let manifest = checked(file, read)?;
        if let Some((name, had, asked)) = shrunk(old, &manifest).next() {
            return Err(Error::refused(format!(
                "device '{name}' has grown to {}, but the manifest says {}. A volume can't \
                 shrink: write size = \"{had}\" into the manifest",
                units::size(had),
                units::size(asked)
            )));
        }
        self.written.lock().refuse_old(old, &manifest)?;
        match manifest.devices.is_empty() {
            true => {
                Err(Error::refused(format!("{}: the manifest declares no device", file.display())))
            }
            false => Ok(manifest),
        }
    }

    /// Returns the TLS files for new clients, if they differ from those shown now.
    fn renewed(&self, new: &Manifest) -> Result<Option<RenewedTls>, Error> {
        let seen = self.seen.lock();
        match (new.server.tls(), &*seen) {
            (Some(tls), Some(seen)) => tls::renewed(tls, seen)
                .map_err(|problem| Error::refused(problem.display("the manifest").to_string())),
            _ => Ok(None),
        }
    }

    /// Returns the steps of the changes, in order.
    fn steps(&self, changes: &Changes) -> ChangeReport {
        let clients: BTreeMap<String, usize> =
            self.exports().into_iter().map(|export| (export.name, export.clients)).collect();
        let mut steps = Vec::new();
        let mut step = |what, name: String, clients| {
            let again = changes.restarted.contains(&name);
            let what = match (what, again) {
                (StepKind::Add, true) => return,
                (_, true) => StepKind::Restart,
                (what, false) => what,
            };
            steps.push(Step { what, name, clients, ..Step::default() });
        };
        for name in &changes.remove_exports {
            step(StepKind::Remove, export_name(name), clients.get(name).copied().unwrap_or(0));
        }
        for name in &changes.remove_devices {
            step(StepKind::Remove, name.clone(), 0);
        }
        for device in &changes.add_devices {
            step(StepKind::Add, device.name.clone(), 0);
        }
        for export in &changes.add_exports {
            step(StepKind::Add, export_name(&export.name), 0);
        }
        for export in &changes.replace_exports {
            step(StepKind::Change, export_name(&export.name), 0);
        }
        for (name, size) in &changes.grow {
            let (name, size) = (name.clone(), Some(*size));
            steps.push(Step { what: StepKind::Grow, name, size, ..Step::default() });
        }
        let names = changes.follows.iter().map(|(name, _)| name);
        let names = names.chain(changes.drop_bases.iter().map(|(overlay, _)| overlay));
        for name in names.collect::<BTreeSet<_>>() {
            steps.push(Step { what: StepKind::Change, name: name.clone(), ..Step::default() });
        }
        for (mirror, legs) in &changes.legs {
            steps.extend(legs.iter().map(|change| change.step(mirror)));
        }
        for name in &changes.remove_legs {
            steps.push(Step { what: StepKind::Remove, name: name.clone(), ..Step::default() });
        }
        ChangeReport { steps, ..ChangeReport::default() }
    }

    /// Returns the exports that were to go with their last client, but that the manifest has.
    fn hidden_and_wanted(&self, new: &Manifest, changes: &Changes) -> Vec<String> {
        let stays =
            |name: &&String| new.export(name).is_some() && !changes.remove_exports.contains(name);
        self.hiding.lock().keys().filter(stays).cloned().collect()
    }

    /// Returns the exports, with the clients of all front ends.
    pub(crate) fn exports(&self) -> Vec<nbd::ExportStatus> {
        self.front_ends.exports(&self.server)
    }

    /// Hides these exports from new clients and returns those that have clients. If clients must
    /// not be lost, all are shown again.
    fn hide(&self, exports: &[String], mode: Mode) -> Result<Vec<String>, Error> {
        let hiding = self.hiding.lock().clone();
        if let Some(name) =
            exports.iter().find(|name| hiding.contains_key(*name)).filter(|_| mode == Mode::Hide)
        {
            return Err(Error::refused(format!(
                "the export '{name}' is hidden already; the server removes it with its last client"
            )));
        }
        let mut used = Vec::new();
        for name in exports {
            let guests = usize::from(self.front_ends.has_guest(name));
            // Its checkpoint is offered again with the next one.
            self.images.remove(name);
            match self.server.hide_export(name).unwrap_or(0) + guests {
                0 => {}
                clients => used.push((name.clone(), clients)),
            }
        }
        if mode == Mode::Safe && !used.is_empty() {
            for name in exports.iter().filter(|name| !hiding.contains_key(*name)) {
                self.server.show_export(name);
            }
            let used = used.iter().map(|(name, clients)| {
                format!("export '{name}' has {}", count(*clients as u64, "client"))
            });
            let used = used.collect::<Vec<_>>().join(", ");
            return Err(Error::refused(format!(
                "{used}; --mode soft answers their requests, then disconnects them, --mode hard \
                 disconnects them at once"
            )));
        }
        Ok(used.into_iter().map(|(name, _)| name).collect())
    }

    /// Removes a device or export when its exports have no client any more. Starts a thread.
    fn remove_when_unused(self: &Arc<Self>, name: &str, exports: Vec<String>) -> Result<(), Error> {
        let token = Arc::new(());
        let hiding = exports.iter().map(|export| (export.clone(), Arc::clone(&token)));
        self.hiding.lock().extend(hiding);
        let (theirs, wanted, hidden) = (Arc::clone(self), name.to_string(), exports.clone());
        let wait = move || {
            let unused = exports.iter().all(|export| theirs.server.wait_until_unused(export));
            theirs.doing.lock().unused_removals += 1;
            // A change in progress ends some time.
            let mut has = theirs.has.lock();
            let mut hiding = theirs.hiding.lock();
            // Another removal may have hidden an export again that was shown meanwhile.
            let is_ours = |of: &Arc<()>| Arc::ptr_eq(of, &token);
            let still = exports.iter().all(|export| hiding.get(export).is_some_and(is_ours));
            hiding.retain(|_, of| !is_ours(of));
            drop(hiding);
            // Otherwise it was removed in another way meanwhile, or is shown again.
            if unused && still {
                theirs.remove_unused(&mut has, &wanted);
            }
            theirs.doing.lock().unused_removals -= 1;
        };
        let started = std::thread::Builder::new().name("hidden".to_string()).spawn(wait);
        started.map(drop).map_err(|error| {
            for export in &hidden {
                self.server.show_export(export);
                self.hiding.lock().remove(export);
            }
            Error::refused(no_thread(&error))
        })
    }

    fn remove_unused(self: &Arc<Self>, has: &mut Option<Manifest>, name: &str) {
        let request = ChangeRequest::Remove(name.to_string());
        let change = Change { request, mode: Mode::Soft, dry_run: false };
        if let Err(error) = self.make_and_share(has, &change) {
            self.report
                .refused(&format!("removal of '{name}' after its last client"), &error.to_string());
        }
    }
}

const ENDS: &str = "the server is ending, and shuts everything down";

fn as_json(timeline: &Timeline) -> serde_json::Value {
    serde_json::from_str(&json::render(timeline)).unwrap_or_default()
}
