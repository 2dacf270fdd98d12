//! Changes of a running server: volumes and exports come, go and change while others are served.
//!
//! One change at a time. Exports go first, all at once, then the volumes under them, each after those that stand on it; then
//! new ones come up side by side, as at the start. All else notices nothing of a change.

mod bounded;
mod grow;
mod legs;
mod removal;
mod request;
mod server;
pub(crate) mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise::device::{
    BringUpOptions, Cancel, DeviceManager, DeviceState, Event, PendingState, ProbeOutcome,
};
use corewise::nbd;
use corewise::sync::Mutex;
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::timeline::{Timeline, json};
use corewise::topology::Machine;

use crate::cleanup::Cleanup;
use crate::control::Mode;
use crate::control::changes::{ChangeReport, Step, StepFailure, StepKind};
use crate::drivers::export::offer;
use crate::drivers::{CallTargets, MissingParts, Volume, Warnings};
use crate::handle::Reachable;
use crate::manifest::{self, Changes, Manifest, export_name};
use crate::metrics::{Metrics, MetricsText};
use crate::observer::Shown;
use crate::plan::{self, Plan};
use crate::report::Report;
use crate::room::Room;
use crate::service;
use crate::settings::Settings;
use crate::status::ServerStatus;
use crate::threads::no_thread;
use crate::tls::{self, RenewedTls, ShownFiles};
use crate::units::{self, count};
use legs::WrittenLegs;
use removal::USUAL;
pub(crate) use request::ChangeRequest;
use request::{added, checked, shrunk, without};

/// What a running server is changed by.
pub(crate) struct Live {
    pub(crate) manager: Arc<DeviceManager>,
    pub(crate) server: Arc<nbd::Server>,
    pub(crate) machine: Machine,
    pub(crate) calls: Arc<CallTargets>,
    pub(crate) missing: Arc<MissingParts>,
    pub(crate) shown: Arc<Mutex<Vec<Shown>>>,
    pub(crate) cleanup: Arc<Cleanup>,
    pub(crate) notes: Arc<Warnings>,
    pub(crate) report: Report,
    /// How long clients may go on, and what is done about devices that hang.
    pub(crate) settings: Arc<Settings>,
    /// What is noted for `corewise health`.
    pub(crate) status: ServerStatus,
    /// So many clients there is room for, and their exports have a Unix socket to come by.
    pub(crate) most_clients: usize,
    /// What the process may have. Clients share what the devices leave.
    pub(crate) room: Room,
    /// Bytes for clients if the manifest says nothing.
    pub(crate) usual_memory: u64,
    pub(crate) has_unix: bool,
    /// L: is the lock, taken inside that of `has`; guards where metrics are answered.
    pub(crate) metrics: Mutex<Option<Metrics>>,
    /// I: set once, before anybody asks: makes the text of metrics.
    pub(crate) metrics_text: OnceLock<MetricsText>,
    /// The manifest's file, where it can be read again.
    pub(crate) source: Option<PathBuf>,
    /// Thrown when the server is to end.
    pub(crate) cancel: Cancel,
    /// L: is the lock, taken inside that of `has`; guards what newcomers are shown. `None`: no TLS.
    pub(crate) seen: Mutex<Option<ShownFiles>>,
    /// L: is the lock, held as long as a change takes; guards what the server has. `None` until it is up.
    pub(crate) has: Mutex<Option<Manifest>>,
    /// L: is the lock; guards what goes when its last client leaves.
    pub(crate) hiding: Mutex<BTreeSet<String>>,
    /// L: is the lock, taken inside that of `has`; guards what the manifest said of mirrors whose legs were changed since.
    pub(crate) written: Mutex<WrittenLegs>,
    /// L: is the lock, held for a moment; guards the devices that are in a change which hangs, and that nobody waits for any more.
    pub(crate) stuck: Mutex<Vec<String>>,
    /// A: whether a thread waits to follow the manifest, and hasn't begun. AcqRel: one that comes before it is read counts.
    pub(crate) follows: AtomicBool,
    /// L: is the lock, taken inside that of `has`; guards whether a SIGHUP came before the server was up.
    pub(crate) missed: Mutex<bool>,
    /// L: is the lock, held while a snapshot is taken, looked for or deleted.
    pub(crate) snapshots: Mutex<()>,
    /// A: whether a flush failed in a change that the server's end overtook. Relaxed: read when that change is over.
    pub(crate) unclean: AtomicBool,
    /// A: whether the server ends. Relaxed: a change that comes at the same time is refused by the device manager.
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
    /// The server is up, and has this.
    pub(crate) fn begin(self: &Arc<Self>, has: Manifest) {
        *self.has.lock() = Some(has);
        if std::mem::take(&mut *self.missed.lock()) {
            self.hang_up();
        }
    }

    /// Whether a change that the end overtook has lost what clients were answered.
    pub(crate) fn is_unclean(&self) -> bool {
        self.unclean.load(Ordering::Relaxed)
    }

    /// The server ends: no more changes. One that is in progress is not waited for; the shutdown does.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// SIGHUP: follows the manifest, on a thread of its own.
    pub(crate) fn hang_up(self: &Arc<Self>) {
        // One that waits for a change to end reads the manifest after that, and so for all that came meanwhile.
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
            if let Err(why) = theirs.made(&mut has, ChangeRequest::Reload, Mode::Safe, false) {
                theirs.report.refused("SIGHUP", &why);
            }
        };
        let started = std::thread::Builder::new().name("change".to_string()).spawn(reload);
        if let Err(error) = started {
            self.follows.store(false, Ordering::Release);
            self.report.refused("SIGHUP", &no_thread(&error));
        }
    }

    /// Makes a change, or says why nothing was changed. Tells the observer, too. Blocks as long as
    /// it takes.
    pub(crate) fn change(
        self: &Arc<Self>,
        request: ChangeRequest,
        mode: Mode,
        dry_run: bool,
    ) -> Result<ChangeReport, String> {
        let Some(mut has) = self.has.try_lock() else {
            return Err("another change is being made; try again when it is done".to_string());
        };
        self.made(&mut has, request, mode, dry_run)
    }

    fn made(
        self: &Arc<Self>,
        has: &mut Option<Manifest>,
        request: ChangeRequest,
        mode: Mode,
        dry_run: bool,
    ) -> Result<ChangeReport, String> {
        let changed = self.make(has, request, mode, dry_run);
        if let Some(has) = has.as_ref().filter(|_| !dry_run) {
            // Also where it failed.
            self.give_room(has);
        }
        changed
    }

    fn make(
        self: &Arc<Self>,
        has: &mut Option<Manifest>,
        request: ChangeRequest,
        mode: Mode,
        dry_run: bool,
    ) -> Result<ChangeReport, String> {
        if (mode, matches!(request, ChangeRequest::Remove(_))) == (Mode::Hide, false) {
            return Err("mode 'hide' is for 'remove'".to_string());
        }
        let _changing = self.status.changing();
        let ending = self.has_ended();
        let Some(old) = has.as_mut().filter(|_| !ending) else {
            let what = if ending { "ends" } else { "is not up yet" };
            return Err(format!("the server {what}"));
        };
        let is_told = self.settings.tells_service_manager();
        let reloads = matches!(request, ChangeRequest::Reload) && !dry_run;
        let _told = service::Reloading::told(reloads && is_told);
        let (new, rolls_back) = match &request {
            ChangeRequest::Grow(name, size) => return self.grow_alone(name, *size, old, dry_run),
            ChangeRequest::Legs(mirror, change) => {
                return self.change_legs(mirror, change, old, dry_run);
            }
            ChangeRequest::Reload => (self.again(old)?, false),
            ChangeRequest::Add(file) => (added(file, old)?, true),
            ChangeRequest::Remove(name) => (without(name, old)?, false),
        };
        let changes = Changes::between(old, &new);
        self.refuse_restart(&changes, old, &new)?;
        self.refuse_parents(&changes, old, &new)?;
        self.refuse_stuck(changes.touched())?;
        let nodes = changes
            .add_devices
            .iter()
            .filter_map(|device| Some((device, device.tuning.node.as_ref()?.value)));
        let is_there = |node: u32| self.machine.topology().node(node).is_some();
        if let Some((device, node)) = nodes.clone().find(|(_, node)| !is_there(*node)) {
            return Err(format!("device '{}': this machine has no NUMA node {node}", device.name));
        }
        let mut changed = self.steps(&changes);
        changed.dry_run = dry_run;
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
                return Err(format!("{}: {why}; {help}", export_name(&export.name)));
            }
        }
        let server = match request {
            ChangeRequest::Reload => self.of_server(&old.server, &new.server, &mut changed),
            _ => None,
        };
        self.make_room(&changes, old, &mut changed)?;
        if dry_run {
            return Ok(changed);
        }
        let server = server.map(|server| self.prepare(&old.server, server)).transpose()?;
        match request {
            // It follows a manifest that may not have them any more.
            ChangeRequest::Reload => self.forget_failed(old, |_| true),
            _ => self.forget_failed(old, |name| changes.adds(name)),
        }
        let kept = self.hide(&changes.remove_exports, mode)?;
        // Not before nothing is in the way any more: a refusal changes nothing.
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
        if changes.is_empty() {
            self.note_left_out(&request, &changed);
            self.report.changed(&changed);
            return Ok(changed);
        }
        if let (Mode::Hide, ChangeRequest::Remove(name), false) = (mode, &request, kept.is_empty())
        {
            for step in &mut changed.steps {
                step.what = StepKind::Hide;
            }
            // Those without a client, too: a reload may show them again.
            self.remove_when_unused(name, changes.remove_exports.clone())?;
            self.report.changed(&changed);
            return Ok(changed);
        }
        let deadline = if mode == Mode::Hard { Duration::ZERO } else { self.settings.now().drain };
        let (exports, devices) = (&changes.remove_exports, &changes.remove_devices);
        let Some(down) = self.remove(exports, devices, old, deadline, &mut changed) else {
            // Writes that were answered may not be durable: the end has to say so.
            self.unclean.fetch_or(!changed.failed.is_empty(), Ordering::Relaxed);
            return Err(ENDS.to_string());
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
            changed
                .notes
                .push("the rest was not done; try again when that device is down".to_string());
            self.report.changed(&changed);
            return Ok(changed);
        }
        for (name, size) in &changes.grow {
            if let Err(why) = self.grow(name, Some(*size), old) {
                changed.failed.push(StepFailure { name: name.clone(), why });
            }
        }
        let (last, first): (Vec<_>, Vec<_>) =
            changes.replace_exports.iter().partition(|export| export.default);
        self.replace(&first, old, &mut changed);
        let up = self.bring_up(&changes, &new, rolls_back, old, &mut changed);
        self.replace(&last, old, &mut changed);
        self.follow_checks(&changes, old);
        self.follow_legs(&changes, old, &mut changed);
        self.remove_legs(&changes.remove_legs, old, &mut changed)?;
        if let Some(up) = up.filter(|up| !up.is_empty()) {
            changed.timelines.push(as_json(&up));
        }
        changed.notes.extend(self.notes.take());
        if rolls_back && !changed.failed.is_empty() {
            let each =
                changed.failed.iter().map(|failed| format!("{}: {}", failed.name, failed.why));
            return Err(format!("nothing was added: {}", each.collect::<Vec<_>>().join("; ")));
        }
        self.note_left_out(&request, &changed);
        self.report.changed(&changed);
        Ok(changed)
    }

    /// A manifest was followed as far as it could be.
    fn note_left_out(&self, request: &ChangeRequest, changed: &ChangeReport) {
        if let ChangeRequest::Reload = request {
            let failed = changed.failed.iter().map(|one| (one.name.clone(), one.why.clone()));
            self.status.followed(failed.collect());
        }
    }

    /// Removes devices of these names that the server doesn't have, since they failed to come up:
    /// others may take their names.
    fn forget_failed(&self, has: &Manifest, of: impl Fn(&str) -> bool) {
        let is_down = |name: &str, state: &DeviceState| match state {
            DeviceState::Failed(_)
            | DeviceState::NoDriver
            | DeviceState::Cancelled
            | DeviceState::Deferred { .. }
            | DeviceState::Waiting => true,
            // One that is missing.
            DeviceState::Bound => {
                self.manager.bound::<Volume>(name).is_some_and(|volume| volume.device().is_err())
            }
            _ => false,
        };
        let has = |name: &str| {
            has.device(name).is_some() || has.exports.iter().any(|e| export_name(&e.name) == name)
        };
        // Those that stand on others come behind these.
        for device in self.manager.devices().into_iter().rev() {
            let name = &device.name;
            if of(name) && !has(name) && is_down(name, &device.state) {
                // An error: the server ends, and says what of it.
                let _ = self.manager.remove(name);
            }
        }
    }

    /// The manifest as it is now.
    fn again(&self, old: &Manifest) -> Result<Manifest, String> {
        let file = self.source.as_ref().ok_or(
            "the server has no manifest that could be read again: it is built in, or came through a pipe",
        )?;
        let read = |text: &str, base: &Path| manifest::read(text, base);
        let manifest = checked(file, read)?;
        if let Some((name, had, asked)) = shrunk(old, &manifest).next() {
            return Err(format!(
                "device '{name}' has {} by now, and the manifest says {}: a volume doesn't become shorter; write size = \"{had}\" into the manifest",
                units::size(had),
                units::size(asked)
            ));
        }
        self.written.lock().refuse_old(old, &manifest)?;
        match manifest.devices.is_empty() {
            true => Err(format!("{}: it declares no device", file.display())),
            false => Ok(manifest),
        }
    }

    /// What newcomers are to be shown, where it isn't what they are shown now.
    fn renewed(&self, new: &Manifest) -> Result<Option<RenewedTls>, String> {
        let seen = self.seen.lock();
        match (new.server.tls(), &*seen) {
            (Some(tls), Some(seen)) => tls::renewed(tls, seen)
                .map_err(|problem| problem.display("the manifest").to_string()),
            _ => Ok(None),
        }
    }

    /// What there is to do, in its order.
    fn steps(&self, changes: &Changes) -> ChangeReport {
        let clients: BTreeMap<String, usize> =
            self.server.exports().into_iter().map(|export| (export.name, export.clients)).collect();
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
        for (mirror, _) in &changes.checks {
            steps.push(Step { what: StepKind::Change, name: mirror.clone(), ..Step::default() });
        }
        for (mirror, legs) in &changes.legs {
            steps.extend(legs.iter().map(|change| change.step(mirror)));
        }
        for name in &changes.remove_legs {
            steps.push(Step { what: StepKind::Remove, name: name.clone(), ..Step::default() });
        }
        ChangeReport { steps, ..ChangeReport::default() }
    }

    /// The exports that were to go with their last client, and that the manifest has all the same.
    fn hidden_and_wanted(&self, new: &Manifest, changes: &Changes) -> Vec<String> {
        let stays =
            |name: &&String| new.export(name).is_some() && !changes.remove_exports.contains(name);
        self.hiding.lock().iter().filter(stays).cloned().collect()
    }

    /// Hides these exports from newcomers, and gives out those that have clients. Where these are not to be lost all
    /// are shown again.
    fn hide(&self, exports: &[String], mode: Mode) -> Result<Vec<String>, String> {
        let hiding = self.hiding.lock().clone();
        if let Some(name) =
            exports.iter().find(|name| hiding.contains(*name)).filter(|_| mode == Mode::Hide)
        {
            return Err(format!(
                "the export '{name}' is hidden already, and goes with its last client"
            ));
        }
        let mut used = Vec::new();
        for name in exports {
            match self.server.hide_export(name) {
                None | Some(0) => {}
                Some(clients) => used.push((name.clone(), clients)),
            }
        }
        if mode == Mode::Safe && !used.is_empty() {
            for name in exports.iter().filter(|name| !hiding.contains(*name)) {
                self.server.show_export(name);
            }
            let used = used.iter().map(|(name, clients)| {
                format!("export '{name}' has {}", count(*clients as u64, "client"))
            });
            let used = used.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "{used}; --mode soft answers what they have asked for and disconnects them, --mode hard \
                 disconnects them at once"
            ));
        }
        Ok(used.into_iter().map(|(name, _)| name).collect())
    }

    /// Removes it when its exports have no client any more. Starts a thread.
    fn remove_when_unused(
        self: &Arc<Self>,
        name: &str,
        exports: Vec<String>,
    ) -> Result<(), String> {
        self.hiding.lock().extend(exports.iter().cloned());
        let (theirs, wanted, hidden) = (Arc::clone(self), name.to_string(), exports.clone());
        let wait = move || {
            let unused = exports.iter().all(|export| theirs.server.wait_until_unused(export));
            // A change that is in progress is over some time.
            let mut has = theirs.has.lock();
            let mut hiding = theirs.hiding.lock();
            let still = exports.iter().all(|export| hiding.contains(export));
            hiding.retain(|export| !exports.contains(export));
            drop(hiding);
            // Else it was removed in another way meanwhile, or is shown again.
            if unused && still {
                theirs.remove_unused(&mut has, &wanted);
            }
        };
        let started = std::thread::Builder::new().name("hidden".to_string()).spawn(wait);
        started.map(drop).map_err(|error| {
            for export in &hidden {
                self.server.show_export(export);
                self.hiding.lock().remove(export);
            }
            no_thread(&error)
        })
    }

    fn remove_unused(self: &Arc<Self>, has: &mut Option<Manifest>, name: &str) {
        if let Err(why) = self.made(has, ChangeRequest::Remove(name.to_string()), Mode::Soft, false)
        {
            self.report
                .refused(&format!("removal of '{name}', which has no client any more"), &why);
        }
    }

    /// New volumes and exports come up. Where one fails and all are wanted, or none, what came up goes again.
    fn bring_up(
        self: &Arc<Self>,
        changes: &Changes,
        new: &Manifest,
        all_or_none: bool,
        has: &mut Manifest,
        changed: &mut ChangeReport,
    ) -> Option<Timeline> {
        if changes.add_devices.is_empty() && changes.add_exports.is_empty() {
            return None;
        }
        let adds = Manifest {
            server: new.server.clone(),
            devices: changes.add_devices.clone(),
            exports: changes.add_exports.clone(),
        };
        let mut fail = |name: &str, why: String| {
            changed.failed.push(StepFailure { name: name.to_string(), why });
        };
        if let Err(error) = self.calls.start_for(&adds, &self.machine) {
            fail("rq_affinity", format!("cannot start call targets: {error}"));
            return None;
        }
        self.missing.expect(&adds, new);
        let plan = Plan::new(&adds);
        let (theirs, decls) = (Arc::downgrade(self), plan.decls.clone());
        let observer = move |event: &Event<'_>| {
            if let (Event::Overdue { device, after, .. }, Some(live)) = (event, theirs.upgrade()) {
                live.overdue("bring-up", device, *after, &plan::needing(device, &decls));
            }
        };
        let options = BringUpOptions::new()
            .keep_going(!all_or_none)
            .on_hang(self.settings.now().on_hang)
            .observer(Arc::new(observer))
            .cancel(self.cancel.clone());
        if all_or_none {
            let names = adds.devices.iter().map(|device| device.name.clone());
            self.cleanup.begin_together(names);
        }
        let up = match self.manager.bring_up(plan.decls.clone(), &options) {
            Ok(up) => up,
            Err(error) => {
                self.report.made(self.cleanup.end_together());
                fail("bring-up", error.to_string());
                return None;
            }
        };
        let lacking = self.missing.lacking(&adds, &up);
        for (name, why) in plan.failures(&up, &lacking) {
            fail(&name, why);
        }
        for device in up.devices() {
            if let ProbeOutcome::Skipped { culprit } = &device.outcome {
                fail(&device.name, format!("it needs '{culprit}'"));
            }
        }
        let is_up = |name: &str| {
            let bound = up.device(name).is_some_and(|one| one.outcome == ProbeOutcome::Bound);
            bound && !lacking.contains_key(name)
        };
        let complete = up.is_complete() && lacking.is_empty();
        if !complete && changed.failed.is_empty() {
            changed.failed.push(StepFailure {
                name: "bring-up".to_string(),
                why: "it was cancelled".to_string(),
            });
        }
        let keep = |name: &str| is_up(name) && (complete || !all_or_none);
        // A device that such a probe brings up late goes then.
        let probed = self.manager.pending();
        let hangs = |name: &str| {
            let probed = probed.iter().find(|one| one.device == name);
            probed.is_some_and(|one| matches!(one.state, PendingState::Probing { .. }))
        };
        for decl in plan.decls.iter().rev().filter(|decl| !keep(&decl.name)) {
            self.shown.lock().retain(|shown| export_name(&shown.name) != decl.name);
            // One that is not up has nothing to say; of the others clients have seen nothing.
            match hangs(&decl.name) {
                true => drop(self.begin_removal(&decl.name)),
                false => drop(self.remove_one(&decl.name, USUAL, std::iter::empty)),
            }
            self.cleanup.give_up(&decl.name);
            // It isn't there: it was added in vain, or went and didn't come again.
            changed.steps.retain(|step| (step.what, &step.name) != (StepKind::Add, &decl.name));
            for step in changed.steps.iter_mut().filter(|step| step.name == decl.name) {
                step.what = StepKind::Remove;
            }
        }
        self.report.made(self.cleanup.end_together());
        has.devices.extend(adds.devices.into_iter().filter(|device| keep(&device.name)));
        has.exports.extend(adds.exports.into_iter().filter(|one| keep(&export_name(&one.name))));
        Some(up.timeline())
    }

    /// Exports whose clients stay.
    fn replace(
        &self,
        exports: &[&manifest::Export],
        has: &mut Manifest,
        changed: &mut ChangeReport,
    ) {
        for &export in exports {
            let volume = self.manager.bound::<Volume>(&export.device);
            let volume = volume.ok_or("its device is not up".to_string());
            let volume = volume.and_then(|volume| volume.device().map_err(|e| e.to_string()));
            let done = volume.and_then(|volume| {
                let shown = Shown::new(export, &*volume);
                let done = self.server.replace_export(offer(export, volume));
                done.map(|()| shown).map_err(|error| error.to_string())
            });
            match done {
                Ok(new) => {
                    let mut shown = self.shown.lock();
                    for old in shown.iter_mut().filter(|old| old.name == new.name) {
                        *old = new.clone();
                    }
                    for old in has.exports.iter_mut().filter(|old| old.name == export.name) {
                        *old = export.clone();
                    }
                }
                Err(why) => {
                    changed.failed.push(StepFailure { name: export_name(&export.name), why })
                }
            }
        }
    }
}

const ENDS: &str = "the server ends meanwhile, and shuts all of it down";

fn as_json(timeline: &Timeline) -> serde_json::Value {
    serde_json::from_str(&json::render(timeline)).unwrap_or_default()
}
