//! The bring-up in a change: new volumes and exports, and exports that replace others.

use std::sync::Arc;
use std::time::Duration;

use corewise::device::{BringUpOptions, Event, PendingState, ProbeOutcome};
use corewise::timeline::Timeline;

use super::Live;
use super::removal::USUAL;
use crate::control::Mode;
use crate::control::changes::{ChangeReport, StepFailure, StepKind};
use crate::drivers::Volume;
use crate::drivers::export::offer_of;
use crate::error::Error;
use crate::manifest::{self, Changes, Manifest, export_name};
use crate::observer::ShownExport;
use crate::plan::{self, Plan};

impl Live {
    /// Brings new volumes and exports up. If `all_or_none` is set and one fails, those that came up
    /// are removed again.
    pub(super) fn bring_up(
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
        self.front_ends.expect(&new.exports);
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
                fail(&device.name, plan::not_up_below(culprit));
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
                why: "the bring-up was cancelled".to_string(),
            });
        }
        let keep = |name: &str| is_up(name) && (complete || !all_or_none);
        // A device that such a probe brings up late is removed then.
        let probed = self.manager.pending();
        let hangs = |name: &str| {
            let probed = probed.iter().find(|one| one.device == name);
            probed.is_some_and(|one| matches!(one.state, PendingState::Probing { .. }))
        };
        for decl in plan.decls.iter().rev().filter(|decl| !keep(&decl.name)) {
            self.shown.lock().retain(|shown| export_name(&shown.name) != decl.name);
            // A device that isn't up holds no data, and clients have seen nothing of the others.
            match hangs(&decl.name) {
                true => drop(self.begin_removal(&decl.name)),
                false => drop(self.remove_one(&decl.name, USUAL, std::iter::empty)),
            }
            self.cleanup.give_up(&decl.name);
            // The device is gone: its addition failed, or it went down and didn't come up again.
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

    /// Refuses a change that ends disks in use, also in a dry run, unless the mode says otherwise.
    /// A disk has no last client: it is used until its users let it go.
    pub(super) fn refuse_ending_disks(&self, changes: &Changes, mode: Mode) -> Result<(), Error> {
        if matches!(mode, Mode::Soft | Mode::Hard) {
            return Ok(());
        }
        let ends = &self.front_ends;
        if let Some(path) = changes.remove_exports.iter().find_map(|name| ends.in_use(name)) {
            return Err(Error::refused(format!(
                "{} is in use: unmount it first; --mode soft takes the disk away from its users",
                path.display()
            )));
        }
        match changes.replace_exports.iter().find_map(|export| ends.ends_in_use(export)) {
            Some(path) => Err(Error::refused(format!(
                "{} is in use, and the change would end it: unmount it, or shut its virtual \
                 machine down; --mode soft takes the disk away from its users",
                path.display()
            ))),
            None => Ok(()),
        }
    }

    /// Replaces exports whose clients stay.
    pub(super) fn replace(
        &self,
        exports: &[&manifest::Export],
        time: Duration,
        has: &mut Manifest,
        changed: &mut ChangeReport,
    ) {
        for &export in exports {
            let volume = self.manager.bound::<Volume>(&export.device);
            let volume = volume.ok_or("its device is not up".to_string());
            let done = volume.and_then(|volume| {
                let shared = volume.shared().map_err(|error| error.to_string())?;
                let had = self.front_ends.paths(&export.name);
                // This comes first, since a machine may have no disks.
                changed.notes.extend(self.front_ends.replace(export, &volume, time)?);
                let done = offer_of(export, &volume).map_err(|error| error.to_string())?;
                let done = self.server.replace_export(done);
                done.map_err(|error| error.to_string())?;
                self.images.renew(export, &volume);
                let has_now = self.front_ends.paths(&export.name);
                let keeps = had.iter().zip(&has_now).any(|(had, now)| had.is_some() && had == now);
                let old = has.export(&export.name);
                if keeps && old.is_some_and(|old| differs(old, export)) {
                    changed.notes.push(format!(
                        "{}: the disk keeps its former limits and access until the export is removed \
                         and added again",
                        export_name(&export.name)
                    ));
                }
                let [disk, _] = has_now;
                Ok(ShownExport::new(export, &**shared.device(), disk))
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
                Err(why) => changed.fail(StepKind::Change, export_name(&export.name), why),
            }
        }
    }
}

/// Compares what disks got from their export when they were made.
fn differs(old: &manifest::Export, new: &manifest::Export) -> bool {
    let of = |export: &manifest::Export| (export.limit, export.client_limit, export.read_only);
    let has_guest = old.vhost_user.is_some() && new.vhost_user.is_some();
    of(old) != of(new) || has_guest && old.allow_uids != new.allow_uids
}
