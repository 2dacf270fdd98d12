//! Changes of a running server: volumes and exports come, go and change while others are served.
//!
//! One change at a time. Exports go first, all at once, then the volumes under them, each after those that stand on it; then
//! new ones come up side by side, as at the start. All else notices nothing of a change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::device::{self, BringUpOptions, Cancel, DeviceManager, ProbeOutcome};
use corewise::nbd::{self, FlushOutcome};
use corewise::sync::Mutex;
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::timeline::{Outcome, Span, SpanKind, Timeline, json};
use corewise::topology::Machine;

use super::calls::Calls;
use super::cleanup::Cleanup;
use super::drivers::export::{cut, flushed, offer};
use super::drivers::{Missing, Notes, Shown, Volume};
use super::plan::Plan;
use super::report::Report;
use super::source::Source;
use crate::control::changes::{Changed, Failed, Step, What};
use crate::control::{Mode, Question};
use crate::exit::Failure;
use crate::manifest::{self, Changes, Driver, FileDriver, Manifest, Resolved, export_name};
use crate::units::{self, count};

/// What a running server is changed by.
pub(crate) struct Live {
    pub(super) manager: Arc<DeviceManager>,
    pub(super) server: Arc<nbd::Server>,
    pub(super) machine: Machine,
    pub(super) calls: Arc<Calls>,
    pub(super) missing: Arc<Missing>,
    pub(super) shown: Arc<Mutex<Vec<Shown>>>,
    pub(super) cleanup: Arc<Cleanup>,
    pub(super) notes: Arc<Notes>,
    pub(super) report: Report,
    /// How long clients may go on.
    pub(super) drain: Duration,
    /// The manifest's file, where it can be read again.
    pub(super) source: Option<PathBuf>,
    /// Thrown when the server is to end.
    pub(super) cancel: Cancel,
    /// L: is the lock, held as long as a change takes; guards what the server has. `None` until it is up.
    pub(super) has: Mutex<Option<Manifest>>,
    /// L: is the lock; guards what goes when its last client leaves.
    pub(super) hiding: Mutex<BTreeSet<String>>,
    /// L: is the lock; guards whether a SIGHUP came before the server was up. Taken alone.
    pub(super) missed: Mutex<bool>,
    /// A: whether the server ends. Relaxed: a change that comes at the same time is refused by the device manager.
    pub(super) ended: AtomicBool,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("source", &self.source).finish_non_exhaustive()
    }
}

/// What is wanted.
pub(crate) enum Wish {
    Add(PathBuf),
    Remove(String),
    Grow(String, Option<u64>),
    Reload,
}

impl Wish {
    /// What a question wants; `None` where it isn't about a change.
    pub(crate) fn of(question: &Question) -> Option<Result<Wish, String>> {
        Some(match question.ask.as_str() {
            "add" => match &question.file {
                Some(file) if file.is_absolute() => Ok(Wish::Add(file.clone())),
                _ => Err("'add' needs a 'file', an absolute path".to_string()),
            },
            "remove" => match &question.name {
                Some(name) => Ok(Wish::Remove(name.clone())),
                None => Err("'remove' needs a 'name'".to_string()),
            },
            "grow" => match &question.name {
                Some(name) => Ok(Wish::Grow(name.clone(), question.size)),
                None => Err("'grow' needs a 'name'".to_string()),
            },
            "reload" => Ok(Wish::Reload),
            _ => return None,
        })
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

    /// The server ends: no more changes. One that is in progress is not waited for; the shutdown does.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// SIGHUP: follows the manifest, on a thread of its own.
    pub(crate) fn hang_up(self: &Arc<Self>) {
        if self.ended.load(Ordering::Relaxed) {
            return;
        }
        let theirs = Arc::clone(self);
        let reload = move || {
            if !theirs.is_up() {
                *theirs.missed.lock() = true;
                // It may have come up meanwhile, and not have seen that.
                if !(theirs.is_up() && std::mem::take(&mut *theirs.missed.lock())) {
                    return;
                }
            }
            if let Err(why) = theirs.change(Wish::Reload, Mode::Safe, false) {
                theirs.report.refused("SIGHUP", &why);
            }
        };
        let started = std::thread::Builder::new().name("change".to_string()).spawn(reload);
        if let Err(error) = started {
            self.report.refused("SIGHUP", &format!("no thread for it: {error}"));
        }
    }

    fn is_up(&self) -> bool {
        // Locked: a change is in progress, so it is.
        self.has.try_lock().is_none_or(|has| has.is_some())
    }

    /// Makes a change, or says why nothing was changed. Tells it on stdout, too. Blocks as long as it takes.
    pub(crate) fn change(
        self: &Arc<Self>,
        wish: Wish,
        mode: Mode,
        dry_run: bool,
    ) -> Result<Changed, String> {
        let Some(mut has) = self.has.try_lock() else {
            return Err("another change is being made; try again when it is done".to_string());
        };
        self.made(&mut has, wish, mode, dry_run)
    }

    fn made(
        self: &Arc<Self>,
        has: &mut Option<Manifest>,
        wish: Wish,
        mode: Mode,
        dry_run: bool,
    ) -> Result<Changed, String> {
        if (mode, matches!(wish, Wish::Remove(_))) == (Mode::Hide, false) {
            return Err("mode 'hide' is for 'remove'".to_string());
        }
        let ending = self.ended.load(Ordering::Relaxed);
        let Some(old) = has.as_mut().filter(|_| !ending) else {
            let what = if ending { "ends" } else { "is not up yet" };
            return Err(format!("the server {what}"));
        };
        if let Wish::Grow(name, size) = &wish {
            return self.grow_alone(name, *size, old, dry_run);
        }
        let (new, rolls_back) = match &wish {
            Wish::Grow(..) | Wish::Reload => (self.again(old)?, false),
            Wish::Add(file) => (added(file, old)?, true),
            Wish::Remove(name) => (without(name, old)?, false),
        };
        let changes = Changes::between(old, &new);
        let nodes = changes
            .add_devices
            .iter()
            .filter_map(|device| Some((device, device.node.as_ref()?.value)));
        let is_there = |node: u32| self.machine.topology().node(node).is_some();
        if let Some((device, node)) = nodes.clone().find(|(_, node)| !is_there(*node)) {
            return Err(format!("device '{}': this machine has no NUMA node {node}", device.name));
        }
        let mut changed = self.steps(&changes);
        changed.dry_run = dry_run;
        if changes.server {
            changed.notes.push("[server] follows at the next start".to_string());
        }
        if !dry_run && changes.is_empty() {
            self.report.changed(&changed);
        }
        if dry_run || changes.is_empty() {
            return Ok(changed);
        }
        let kept = self.hide(&changes.remove_exports, mode)?;
        if let (Mode::Hide, Wish::Remove(name), false) = (mode, &wish, kept.is_empty()) {
            for step in &mut changed.steps {
                step.what = What::Hide;
            }
            self.remove_when_unused(name, kept)?;
            self.report.changed(&changed);
            return Ok(changed);
        }
        let deadline = if mode == Mode::Hard { Duration::ZERO } else { self.drain };
        let down = self.remove(&changes, deadline, &mut changed);
        let gone = |name: &str| {
            changes.remove_devices.iter().any(|gone| gone == name)
                || changes.remove_exports.iter().any(|gone| export_name(gone) == name)
        };
        old.retain(|name| !gone(name));
        if !down.is_empty() {
            changed.timelines.push(as_json(&down));
        }
        for (name, size) in &changes.grow {
            if let Err(why) = self.grow(name, Some(*size), old) {
                changed.failed.push(Failed { name: name.clone(), why });
            }
        }
        let (last, first): (Vec<_>, Vec<_>) =
            changes.replace_exports.iter().partition(|export| export.default);
        self.replace(&first, old, &mut changed);
        let up = self.bring_up(&changes, &new, rolls_back, old, &mut changed);
        self.replace(&last, old, &mut changed);
        if let Some(up) = up.filter(|up| !up.is_empty()) {
            changed.timelines.push(as_json(&up));
        }
        changed.notes.extend(self.notes.take());
        if rolls_back && !changed.failed.is_empty() {
            let each =
                changed.failed.iter().map(|failed| format!("{}: {}", failed.name, failed.why));
            return Err(format!("nothing was added: {}", each.collect::<Vec<_>>().join("; ")));
        }
        self.report.changed(&changed);
        Ok(changed)
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
                "device '{name}' has {} by now, and the manifest says {}: a volume doesn't become shorter",
                units::size(had),
                units::size(asked)
            ));
        }
        match manifest.devices.is_empty() {
            true => Err(format!("{}: it declares no device", file.display())),
            false => Ok(manifest),
        }
    }

    /// What there is to do, in its order.
    fn steps(&self, changes: &Changes) -> Changed {
        let clients: BTreeMap<String, usize> =
            self.server.exports().into_iter().map(|export| (export.name, export.clients)).collect();
        let mut steps = Vec::new();
        let mut step = |what, name: String, clients| {
            let again = changes.restarted.contains(&name);
            let what = match (what, again) {
                (What::Add, true) => return,
                (_, true) => What::Restart,
                (what, false) => what,
            };
            steps.push(Step { what, name, clients, size: None });
        };
        for name in &changes.remove_exports {
            step(What::Remove, export_name(name), clients.get(name).copied().unwrap_or(0));
        }
        for name in &changes.remove_devices {
            step(What::Remove, name.clone(), 0);
        }
        for device in &changes.add_devices {
            step(What::Add, device.name.clone(), 0);
        }
        for export in &changes.add_exports {
            step(What::Add, export_name(&export.name), 0);
        }
        for export in &changes.replace_exports {
            step(What::Change, export_name(&export.name), 0);
        }
        for (name, size) in &changes.grow {
            let (name, size) = (name.clone(), Some(*size));
            steps.push(Step { what: What::Grow, name, clients: 0, size });
        }
        Changed { steps, ..Changed::default() }
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
            theirs.hiding.lock().retain(|export| !exports.contains(export));
            // Else somebody removed it in another way meanwhile.
            if unused {
                theirs.remove_unused(&wanted);
            }
        };
        let started = std::thread::Builder::new().name("hidden".to_string()).spawn(wait);
        started.map(drop).map_err(|error| {
            for export in &hidden {
                self.server.show_export(export);
                self.hiding.lock().remove(export);
            }
            format!("no thread for it: {error}")
        })
    }

    fn remove_unused(self: &Arc<Self>, name: &str) {
        // A change that is in progress is over some time.
        let mut has = self.has.lock();
        if let Err(why) = self.made(&mut has, Wish::Remove(name.to_string()), Mode::Soft, false) {
            self.report
                .refused(&format!("removal of '{name}', which has no client any more"), &why);
        }
    }

    /// Exports drain, all at once; then volumes flush and close, each after those that stand on it.
    fn remove(&self, changes: &Changes, deadline: Duration, changed: &mut Changed) -> Timeline {
        let mut timeline = Timeline::new("removal");
        let begin = Instant::now();
        let exports: Vec<&str> = changes.remove_exports.iter().map(String::as_str).collect();
        if let Some(mut report) = self.server.remove_exports(&exports, deadline) {
            if deadline.is_zero() {
                // Nobody gave it time. It goes on, and the volume's own end waits for it.
                report.flushes.retain(|(_, flush)| *flush != FlushOutcome::Unfinished);
            }
            changed.notes.extend(cut(&report));
            if let Err(error) = flushed(&report) {
                changed.failed.push(Failed { name: "flush".to_string(), why: error.to_string() });
            }
        }
        let drained = begin.elapsed();
        self.shown.lock().retain(|shown| !exports.contains(&shown.name.as_str()));
        let exports = changes.remove_exports.iter().map(|name| (export_name(name), true));
        let devices = changes.remove_devices.iter().map(|name| (name.clone(), false));
        for (name, is_export) in exports.chain(devices) {
            let start = if is_export { Duration::ZERO } else { begin.elapsed() };
            let result = self.manager.remove(&name);
            let end = if is_export { drained } else { begin.elapsed() };
            let why = match result {
                // It was never up.
                Err(device::Error::NoSuchDevice(_)) => None,
                Err(error) => Some(error.to_string()),
                Ok(errors) => errors.into_iter().map(|(_, error)| error.to_string()).next(),
            };
            let mut span = Span::new(name.clone(), SpanKind::Shutdown, start, end);
            if let Some(why) = why {
                span.outcome = Outcome::Failed(why.clone());
                changed.failed.push(Failed { name, why });
            }
            timeline.push(span);
        }
        timeline
    }

    /// One device grows, and nothing else changes.
    fn grow_alone(
        &self,
        name: &str,
        size: Option<u64>,
        has: &mut Manifest,
        dry_run: bool,
    ) -> Result<Changed, String> {
        let device = has.device(name);
        let device = device.ok_or_else(|| format!("there is no device '{name}'{}", known(has)))?;
        if let Some(above) = has.built_over(&device.name).next() {
            return Err(format!("'{}' is built over '{name}', and knows its size", above.name));
        }
        let size = match dry_run {
            true => size,
            false => Some(self.grow(name, size, has)?),
        };
        let step = Step { what: What::Grow, name: name.to_string(), clients: 0, size };
        let changed = Changed { dry_run, steps: vec![step], ..Changed::default() };
        if !dry_run {
            self.report.changed(&changed);
        }
        Ok(changed)
    }

    /// Makes a volume longer; clients that come from now on see that. The size that it has then.
    fn grow(&self, name: &str, size: Option<u64>, has: &mut Manifest) -> Result<u64, String> {
        let volume = self.manager.bound::<Volume>(name).ok_or("it is not up")?;
        let size = volume.grow(size)?;
        for device in has.devices.iter_mut().filter(|device| device.name == name) {
            if let Driver::File(FileDriver { size: Some(at), .. }) = &mut device.driver {
                at.value = size;
            }
        }
        for shown in self.shown.lock().iter_mut().filter(|shown| shown.device == name) {
            shown.size = size;
        }
        Ok(size)
    }

    /// New volumes and exports come up. Where one fails and all are wanted, or none, what came up goes again.
    fn bring_up(
        &self,
        changes: &Changes,
        new: &Manifest,
        all_or_none: bool,
        has: &mut Manifest,
        changed: &mut Changed,
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
            changed.failed.push(Failed { name: name.to_string(), why });
        };
        if let Err(error) = self.calls.start_for(&adds, &self.machine) {
            fail("rq_affinity", format!("cannot start call targets: {error}"));
            return None;
        }
        self.missing.expect(&adds);
        let plan = Plan::new(&adds);
        let options = BringUpOptions::new()
            .keep_going(!all_or_none)
            .on_hang(new.server.on_hang)
            .cancel(self.cancel.clone());
        if all_or_none {
            let names = adds.devices.iter().map(|device| device.name.clone());
            self.cleanup.begin_together(names);
        }
        let up = match self.manager.bring_up(plan.decls.clone(), &options) {
            Ok(up) => up,
            Err(error) => {
                self.cleanup.end_together();
                fail("bring-up", error.to_string());
                return None;
            }
        };
        let lacking = self.missing.lacking(&adds, &up);
        for (name, why) in plan.failures(&up, &lacking) {
            fail(&name, why);
        }
        let is_up = |name: &str| {
            let bound = up.device(name).is_some_and(|one| one.outcome == ProbeOutcome::Bound);
            bound && !lacking.contains_key(name)
        };
        let complete = up.is_complete() && lacking.is_empty();
        if !complete && changed.failed.is_empty() {
            changed
                .failed
                .push(Failed { name: "bring-up".to_string(), why: "it was cancelled".to_string() });
        }
        let keep = |name: &str| is_up(name) && (complete || !all_or_none);
        for decl in plan.decls.iter().rev().filter(|decl| !keep(&decl.name)) {
            self.shown.lock().retain(|shown| export_name(&shown.name) != decl.name);
            // One that is not up has nothing to say; of the others clients have seen nothing.
            let _ = self.manager.remove(&decl.name);
            self.cleanup.give_up(&decl.name);
        }
        self.cleanup.end_together();
        has.devices.extend(adds.devices.into_iter().filter(|device| keep(&device.name)));
        has.exports.extend(adds.exports.into_iter().filter(|one| keep(&export_name(&one.name))));
        Some(up.timeline())
    }

    /// Exports whose clients stay.
    fn replace(&self, exports: &[&manifest::Export], has: &mut Manifest, changed: &mut Changed) {
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
                Err(why) => changed.failed.push(Failed { name: export_name(&export.name), why }),
            }
        }
    }
}

/// The files that a server has and that are to be shorter: their devices, and both sizes.
fn shrunk<'a>(
    old: &'a Manifest,
    new: &'a Manifest,
) -> impl Iterator<Item = (&'a str, u64, u64)> + 'a {
    let size = |device: &manifest::Device| match &device.driver {
        Driver::File(file) => Some((file.path.value.clone(), file.size.as_ref()?.value)),
        _ => None,
    };
    old.devices.iter().filter_map(move |device| {
        let ((path, had), (same, asked)) = (size(device)?, size(new.device(&device.name)?)?);
        (path == same && asked < had).then_some((&*device.name, had, asked))
    })
}

fn as_json(timeline: &Timeline) -> serde_json::Value {
    serde_json::from_str(&json::render(timeline)).unwrap_or_default()
}

/// A manifest without a problem.
fn checked(file: &Path, read: impl FnOnce(&str, &Path) -> Resolved) -> Result<Manifest, String> {
    let source = Source::read(file).map_err(|failure| match failure {
        Failure::Message { message, .. } => message,
        _ => format!("cannot read {}", file.display()),
    })?;
    let base = source.base.unwrap_or_default();
    let Resolved { manifest, problems, .. } = read(&source.text, &base);
    match problems.is_empty() {
        true => Ok(manifest),
        false => {
            let each = problems.iter().map(|problem| problem.display(&source.label).to_string());
            Err(each.collect::<Vec<_>>().join("\n"))
        }
    }
}

/// What a server has, with what the file adds.
fn added(file: &Path, old: &Manifest) -> Result<Manifest, String> {
    let more = checked(file, |text, base| manifest::read_beside(text, base, old))?;
    let mut new = old.clone();
    new.devices.extend(more.devices);
    new.exports.extend(more.exports);
    Ok(new)
}

/// What a server has, without a device and its exports, or without an export.
fn without(name: &str, old: &Manifest) -> Result<Manifest, String> {
    let mut new = old.clone();
    if let Some(export) = name.strip_prefix("export:") {
        new.exports.retain(|one| one.name != export);
        return match new.exports.len() < old.exports.len() {
            true => Ok(new),
            false => Err(format!("there is no export '{export}'{}", known(old))),
        };
    }
    if old.device(name).is_none() {
        // No device has its name, so it is the export that is meant.
        return match old.export(name) {
            Some(_) => without(&export_name(name), old),
            None => Err(format!("there is no device and no export '{name}'{}", known(old))),
        };
    }
    let needs = |device: &&manifest::Device| device.suppliers.iter().any(|one| one == name);
    if let Some(above) = old.devices.iter().find(needs) {
        return Err(format!("'{}' needs '{name}': remove it first", above.name));
    }
    new.exports.retain(|export| export.device != name);
    new.devices.retain(|device| device.name != name);
    Ok(new)
}

fn known(manifest: &Manifest) -> String {
    let devices = manifest.devices.iter().map(|device| device.name.clone());
    let all: Vec<String> =
        devices.chain(manifest.exports.iter().map(|export| export_name(&export.name))).collect();
    format!("; there are {}", all.join(", "))
}
