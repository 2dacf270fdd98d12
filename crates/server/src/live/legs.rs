//! Changes of the legs of mirrors while clients go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::request::known;
use super::{ChangeRequest, ENDS, Live, as_json};
use crate::control::Question;
use crate::control::changes::{ChangeReport, Step, StepFailure, StepKind};
use crate::drivers::Volume;
use crate::error::{Error, ErrorKind};
use crate::manifest::{Changes, Device, Driver, LegChange, Manifest, against_record};

/// Returns the change that a question about a leg asks for.
pub(super) fn request(question: &Question) -> Result<ChangeRequest, String> {
    let (leg, with) = (question.leg.clone(), question.with.clone());
    let change = match (question.ask.as_str(), leg, with) {
        ("replace", Some(leg), Some(with)) => LegChange::Replace { leg, with },
        ("add_leg", None, Some(with)) => LegChange::Add { with },
        ("remove_leg", Some(leg), None) => LegChange::Remove { leg },
        ("replace", ..) => {
            return Err("'replace' needs a 'disk', a 'leg' and 'with', a device".to_string());
        }
        ("add_leg", ..) => {
            return Err("'add_leg' needs a 'disk' and 'with', a device".to_string());
        }
        _ => return Err("'remove_leg' needs a 'disk' and a 'leg'".to_string()),
    };
    let disk = question.disk.clone();
    let disk = disk.ok_or_else(|| format!("'{}' needs a 'disk'", question.ask))?;
    Ok(ChangeRequest::Legs(disk, change))
}

impl LegChange {
    pub(super) fn step(&self, mirror: &str) -> Step {
        let (what, leg, with) = match self {
            LegChange::Replace { leg, with } => (StepKind::Replace, leg, Some(with.clone())),
            LegChange::Add { with } => (StepKind::Add, with, None),
            LegChange::Remove { leg } => (StepKind::Remove, leg, None),
        };
        let (name, leg) = (mirror.to_string(), Some(leg.clone()));
        Step { what, name, leg, with, ..Step::default() }
    }
}

/// The reason why a leg is out although it was added, if it is; or the reason why the mirror
/// changed nothing.
type LegResult = Result<Option<String>, String>;

/// The manifest's `over` of each mirror whose legs were changed since.
#[derive(Debug, Default)]
pub(crate) struct WrittenLegs(BTreeMap<String, Vec<String>>);

impl WrittenLegs {
    /// Refuses a manifest that wasn't updated and would undo changes made by hand.
    pub(super) fn refuse_old(&mut self, has: &Manifest, new: &Manifest) -> Result<(), Error> {
        for (mirror, written) in &self.0 {
            let now = over(has, mirror).unwrap_or_default();
            if over(new, mirror).is_some_and(|new| new == written && new != now) {
                let (now, written) = (list(now), list(written));
                return Err(Error::refused(format!(
                    "`corewise mirror` changed the legs of '{mirror}' to {now}, but the manifest \
                     still says {written}. Write over = {now}, and a [[device]] for each leg, \
                     into the manifest"
                )));
            }
        }
        self.0.retain(|mirror, _| over(new, mirror) != over(has, mirror));
        Ok(())
    }
}

/// Returns the legs of a mirror in a manifest.
fn over<'a>(manifest: &'a Manifest, mirror: &str) -> Option<&'a [String]> {
    match &manifest.device(mirror)?.driver {
        Driver::Mirror(mirror) => Some(&mirror.over),
        _ => None,
    }
}

fn list(names: &[String]) -> String {
    // Debug: a list of names, as a manifest has it.
    format!("{names:?}")
}

impl Live {
    /// Refuses to take down a mirror or an overlay that couldn't come up again.
    pub(super) fn refuse_restart(
        &self,
        changes: &Changes,
        old: &Manifest,
        new: &Manifest,
    ) -> Result<(), Error> {
        for device in changes.add_devices.iter().filter(|new| changes.restarted.contains(&new.name))
        {
            let (Driver::Overlay(new), Some(Driver::Overlay(had))) =
                (&device.driver, old.device(&device.name).map(|old| &old.driver))
            else {
                continue;
            };
            let volume = self.manager.bound::<Volume>(&device.name);
            let (has, asked) = (volume.and_then(|one| one.overlay_block_size()), new.block_size);
            if new.path.value != had.path.value || has.is_none() {
                continue;
            }
            if let (Some(has), Some(asked)) = (has, asked.filter(|asked| Some(*asked) != has)) {
                return Err(Error::refused(format!(
                    "'{}' would not come up again: the manifest says block_size = {asked}, and \
                     the overlay was made with {has}, which can't change. Write block_size = {has}, \
                     or leave it out",
                    device.name
                )));
            }
        }
        for mirror in &changes.restarted {
            let Some(why) = against_record(mirror, old, new) else { continue };
            if self.manager.bound::<Volume>(mirror).is_some_and(|mirror| mirror.has_record()) {
                return Err(Error::refused(format!("'{mirror}' would not come up again: {why}")));
            }
        }
        Ok(())
    }

    /// Changes the legs of a mirror, unseen by its clients.
    pub(super) fn change_legs(
        self: &Arc<Self>,
        mirror: &str,
        change: &LegChange,
        has: &mut Manifest,
        dry_run: bool,
    ) -> Result<ChangeReport, Error> {
        let legs = over(has, mirror).ok_or_else(|| match has.device(mirror) {
            Some(_) => format!("'{mirror}' is not a mirror"),
            None => format!("there is no device '{mirror}'{}", known(has)),
        })?;
        let legs = legs.to_vec();
        if let Some(leg) = change.leaves().filter(|leg| !legs.iter().any(|name| name == leg)) {
            let legs = legs.join(", ");
            let why = format!("'{leg}' is not a leg of '{mirror}'; the legs are: {legs}");
            return Err(Error::refused(why));
        }
        self.refuse_stuck(change.touches(mirror))?;
        if let Some(with) = change.comes() {
            is_free(with, mirror, has)?;
        }
        let mut changed = ChangeReport { dry_run, ..ChangeReport::default() };
        changed.steps.push(change.step(mirror));
        if dry_run {
            return Ok(changed);
        }
        let now = self.change_leg(mirror, change, has, &mut changed)?;
        self.is_done(mirror, change, legs, &now, &mut changed);
        Ok(changed)
    }

    /// Reports that the legs have changed. `legs` are the old ones.
    fn is_done(
        &self,
        mirror: &str,
        change: &LegChange,
        legs: Vec<String>,
        now: &[String],
        changed: &mut ChangeReport,
    ) {
        self.written.lock().0.entry(mirror.to_string()).or_insert(legs);
        if self.source.is_some() {
            let table = change.comes().map(|with| format!(", and a [[device]] '{with}',"));
            changed.notes.push(format!(
                "write over = {} for '{mirror}'{} into the manifest: the next start reads that",
                list(now),
                table.unwrap_or_default()
            ));
        }
        if let Some(leg) = change.leaves() {
            changed.notes.push(format!(
                "'{leg}' is not a leg any more; `corewise remove {leg}` closes the device"
            ));
        }
        self.report.changed(changed);
    }

    /// Applies the leg changes of a manifest, and removes the devices of former legs. If one change
    /// fails, the later changes of that mirror aren't tried.
    pub(super) fn follow_legs(
        self: &Arc<Self>,
        changes: &Changes,
        has: &mut Manifest,
        changed: &mut ChangeReport,
    ) {
        for (mirror, legs) in &changes.legs {
            let mut legs = legs.iter();
            let refused = legs.by_ref().find_map(|change| {
                let free = change.comes().map_or(Ok(()), |with| is_free(with, mirror, has));
                let done = free.and_then(|()| self.change_leg(mirror, change, has, changed));
                done.err().map(|error| (change, error.to_string()))
            });
            let Some((change, why)) = refused else {
                self.written.lock().0.remove(mirror);
                continue;
            };
            changed.failed.push(StepFailure { name: mirror.clone(), why });
            for undone in std::iter::once(change).chain(legs) {
                let undone = undone.step(mirror);
                changed.steps.retain(|step| *step != undone);
            }
        }
    }

    /// Applies the keys of a manifest that devices follow while clients go on.
    pub(super) fn follow_keys(&self, changes: &Changes, has: &mut Manifest) {
        for (name, driver) in &changes.follows {
            if let Some(volume) = self.manager.bound::<Volume>(name) {
                volume.follow(driver);
            }
            for device in has.devices.iter_mut().filter(|device| device.name == *name) {
                device.driver.follow(driver);
            }
        }
    }

    /// Closes devices that were legs, or below one, and aren't in the manifest any more. A device
    /// still in use stays.
    pub(super) fn remove_legs(
        &self,
        names: &[String],
        has: &mut Manifest,
        changed: &mut ChangeReport,
    ) -> Result<(), Error> {
        for name in names {
            let needs = |device: &&Device| device.suppliers.contains(name);
            if let Some(above) = has.devices.iter().find(needs) {
                changed.steps.retain(|step| (step.what, &step.name) != (StepKind::Remove, name));
                let why = format!("'{}' still needs this device", above.name);
                changed.failed.push(StepFailure { name: name.clone(), why });
                continue;
            }
            let gone = std::slice::from_ref(name);
            let drain = self.settings.now().drain;
            let down = self
                .remove(&[], gone, has, drain, changed)
                .ok_or_else(|| Error::of(ErrorKind::NotUp, ENDS))?;
            changed.timelines.push(as_json(&down.timeline));
            has.retain(|other| other != name || down.left.contains(name));
        }
        Ok(())
    }

    /// Changes one leg. Returns the legs after that.
    fn change_leg(
        self: &Arc<Self>,
        mirror: &str,
        change: &LegChange,
        has: &mut Manifest,
        changed: &mut ChangeReport,
    ) -> Result<Vec<String>, Error> {
        let bound =
            |name: &str| self.manager.bound::<Volume>(name).ok_or(format!("'{name}' is not up"));
        let volume = bound(mirror)?;
        let newcomer = change.comes().map(bound).transpose()?;
        if let Some(with) = change.comes() {
            // From now on the new leg goes down after the mirror.
            let linked = self.manager.link(mirror, with);
            linked.map_err(|error| error.to_string())?;
        }
        let asked = change.clone();
        let work = move || match (&asked, &newcomer) {
            (LegChange::Replace { leg, .. }, Some(with)) => volume.replace_leg(leg, with),
            (LegChange::Add { .. }, Some(with)) => volume.add_leg(with),
            _ => asked.leaves().map_or(Ok(None), |leg| volume.remove_leg(leg).map(|()| None)),
        };
        let (of, asked) = (mirror.to_string(), change.clone());
        let late = move |live: &Live, has: &mut Manifest, done: LegResult| {
            live.leg_changed_late(&of, &asked, has, done);
        };
        let all = change.touches(mirror).map(str::to_string).collect();
        let done = self.bounded(all, has, work, late)?;
        self.leg_changed(mirror, change, has, changed, done)
    }

    /// Finishes, like [`Live::leg_changed`], a change without a waiting client.
    fn leg_changed_late(
        &self,
        mirror: &str,
        change: &LegChange,
        has: &mut Manifest,
        done: LegResult,
    ) {
        let legs = over(has, mirror).unwrap_or_default().to_vec();
        let mut changed =
            ChangeReport { steps: vec![change.step(mirror)], ..ChangeReport::default() };
        match self.leg_changed(mirror, change, has, &mut changed, done) {
            Ok(now) => self.is_done(mirror, change, legs, &now, &mut changed),
            Err(error) => {
                let what = format!("the late change of '{mirror}'");
                self.report.refused(&what, &error.to_string());
            }
        }
    }

    /// Records the result of a leg change. Returns the legs after that.
    fn leg_changed(
        &self,
        mirror: &str,
        change: &LegChange,
        has: &mut Manifest,
        changed: &mut ChangeReport,
        done: LegResult,
    ) -> Result<Vec<String>, Error> {
        // An error of `unlink` means that the server ends, which takes devices down in the old
        // order.
        let gone = if done.is_ok() { change.leaves() } else { change.comes() };
        if let Some(gone) = gone {
            let _ = self.manager.unlink(mirror, gone);
        }
        let still_out = done?;
        let volume = self.manager.bound::<Volume>(mirror);
        let volume = volume.ok_or_else(|| format!("'{mirror}' is not up"))?;
        let now = volume.legs()?;
        for device in has.devices.iter_mut().filter(|device| device.name == mirror) {
            let before = device.driver.over().to_vec();
            device.suppliers.retain(|name| !before.contains(name) && !now.contains(name));
            device.suppliers.splice(0..0, now.clone());
            if let Driver::Mirror(mirror) = &mut device.driver {
                mirror.over.clone_from(&now);
            }
        }
        if let (Some(why), Some(with)) = (still_out, change.comes()) {
            changed.failed.push(StepFailure {
                name: with.to_string(),
                why: format!("the device is a leg of '{mirror}' now, but is out: {why}"),
            });
        }
        Ok(now)
    }
}

/// Checks that a device can become a leg: no other program writes to it.
fn is_free(name: &str, mirror: &str, has: &Manifest) -> Result<(), Error> {
    if has.device(name).is_none() {
        return Err(Error::refused(format!(
            "there is no device '{name}': bring the device up first, with `corewise add`{}",
            known(has)
        )));
    }
    if let Some(above) = has.built_over(name).next() {
        let above = &above.name;
        return Err(Error::refused(match above == mirror {
            true => format!("'{name}' is a leg of '{mirror}' already"),
            false => format!("'{name}' is in use: '{above}' is built over it"),
        }));
    }
    if let Some(export) = has.exports.iter().find(|export| export.device == name) {
        let why =
            format!("'{name}' is in use: the export '{}' gives clients access to it", export.name);
        return Err(Error::refused(why));
    }
    let (mut below, mut todo) = (Vec::new(), vec![name]);
    while let Some(name) = todo.pop() {
        let device = has.device(name);
        let needs = device.iter().flat_map(|device| &device.suppliers).map(String::as_str);
        todo.extend(needs.clone().filter(|name| !below.contains(name)));
        below.extend(needs);
    }
    match name == mirror || below.contains(&mirror) {
        true => Err(Error::refused(format!(
            "'{name}' can't be a leg of '{mirror}', since '{name}' needs '{mirror}'"
        ))),
        false => Ok(()),
    }
}
