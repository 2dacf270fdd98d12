//! Legs of mirrors change while clients go on.

use std::collections::BTreeMap;

use corewise::device::LinkKind;

use super::{Live, Wish, known};
use crate::control::Question;
use crate::control::changes::{Changed, Failed, Step, What};
use crate::manifest::{Driver, Manifest};
use crate::up::drivers::Volume;

/// What is to become of the legs of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LegChange {
    Replace { leg: String, with: String },
}

impl LegChange {
    pub(super) fn of(question: &Question) -> Result<Wish, String> {
        match (&question.disk, &question.leg, &question.with) {
            (Some(disk), Some(leg), Some(with)) => {
                let change = LegChange::Replace { leg: leg.clone(), with: with.clone() };
                Ok(Wish::Legs(disk.clone(), change))
            }
            _ => Err("'replace' needs a 'disk', a 'leg' and 'with', a device".to_string()),
        }
    }

    fn step(&self, mirror: &str) -> Step {
        let LegChange::Replace { leg, with } = self;
        let (leg, with) = (Some(leg.clone()), Some(with.clone()));
        Step { what: What::Replace, name: mirror.to_string(), leg, with, ..Step::default() }
    }
}

/// What the manifest's `over` was of each mirror whose legs are others by now.
#[derive(Debug, Default)]
pub(crate) struct Written(BTreeMap<String, Vec<String>>);

impl Written {
    /// A manifest that nobody has brought up to date must not undo what was done by hand.
    pub(super) fn refuse_old(&mut self, has: &Manifest, new: &Manifest) -> Result<(), String> {
        for (mirror, written) in &self.0 {
            let now = over(has, mirror).unwrap_or_default();
            if over(new, mirror).is_some_and(|new| new == written && new != now) {
                let (now, written) = (list(now), list(written));
                return Err(format!(
                    "the legs of '{mirror}' are {now} since they were changed by `corewise mirror`, and the \
                     manifest still says {written}: write over = {now}, and a [[device]] for each, into the manifest"
                ));
            }
        }
        self.0.retain(|mirror, _| over(new, mirror) != over(has, mirror));
        Ok(())
    }
}

/// The legs of a mirror, as a manifest has them.
fn over<'a>(manifest: &'a Manifest, mirror: &str) -> Option<&'a [String]> {
    match &manifest.device(mirror)?.driver {
        Driver::Mirror(mirror) => Some(&mirror.over),
        _ => None,
    }
}

fn list(names: &[String]) -> String {
    format!("{names:?}")
}

impl Live {
    /// Changes the legs of a mirror; its clients notice nothing.
    pub(super) fn change_legs(
        &self,
        mirror: &str,
        change: &LegChange,
        has: &mut Manifest,
        dry_run: bool,
    ) -> Result<Changed, String> {
        let LegChange::Replace { leg, with } = change;
        let legs = over(has, mirror).ok_or_else(|| match has.device(mirror) {
            Some(_) => format!("'{mirror}' is not a mirror"),
            None => format!("there is no device '{mirror}'{}", known(has)),
        })?;
        let (legs, place) = (legs.to_vec(), legs.iter().position(|name| name == leg));
        let place = place.ok_or_else(|| {
            format!("'{leg}' is not a leg of '{mirror}'; the legs are: {}", legs.join(", "))
        })?;
        is_free(with, mirror, has)?;
        let mut changed = Changed { dry_run, ..Changed::default() };
        changed.steps.push(change.step(mirror));
        if dry_run {
            return Ok(changed);
        }
        let bound =
            |name: &str| self.manager.bound::<Volume>(name).ok_or(format!("'{name}' is not up"));
        let (volume, newcomer) = (bound(mirror)?, bound(with)?);
        // It goes down after the mirror from now on.
        self.manager.link(mirror, with, LinkKind::Managed).map_err(|error| error.to_string())?;
        let still_out = volume.replace_leg(leg, &newcomer).inspect_err(|_| {
            let _ = self.manager.unlink(mirror, with);
        })?;
        // An error: the server ends, and does all in the order of before.
        let _ = self.manager.unlink(mirror, leg);
        let mut now = legs.clone();
        now[place].clone_from(with);
        self.written.lock().0.entry(mirror.to_string()).or_insert(legs);
        for device in has.devices.iter_mut().filter(|device| device.name == mirror) {
            for supplier in device.suppliers.iter_mut().filter(|name| *name == leg) {
                supplier.clone_from(with);
            }
            if let Driver::Mirror(mirror) = &mut device.driver {
                mirror.over.clone_from(&now);
            }
        }
        if let Some(why) = still_out {
            changed.failed.push(Failed {
                name: with.clone(),
                why: format!("it is a leg of '{mirror}', and is out: {why}"),
            });
        }
        if self.source.is_some() {
            changed.notes.push(format!(
                "write over = {} for '{mirror}', and a [[device]] '{with}', into the manifest: the next start \
                 goes by that",
                list(&now)
            ));
        }
        changed
            .notes
            .push(format!("'{leg}' is no leg any more; `corewise remove {leg}` closes it"));
        self.report.changed(&changed);
        Ok(changed)
    }
}

/// Whether a device can become a leg: nobody else writes to it.
fn is_free(name: &str, mirror: &str, has: &Manifest) -> Result<(), String> {
    if has.device(name).is_none() {
        return Err(format!(
            "there is no device '{name}'; `corewise add` brings one up that a manifest declares{}",
            known(has)
        ));
    }
    if let Some(above) = has.built_over(name).next() {
        let above = &above.name;
        return Err(match above == mirror {
            true => format!("'{name}' is a leg of '{mirror}' already"),
            false => format!("'{name}' is in use: '{above}' is built over it"),
        });
    }
    if let Some(export) = has.exports.iter().find(|export| export.device == name) {
        return Err(format!("'{name}' is in use: the export '{}' shows it", export.name));
    }
    let (mut below, mut todo) = (Vec::new(), vec![name]);
    while let Some(name) = todo.pop() {
        let device = has.device(name);
        let needs = device.iter().flat_map(|device| &device.suppliers).map(String::as_str);
        todo.extend(needs.clone().filter(|name| !below.contains(name)));
        below.extend(needs);
    }
    match name == mirror || below.contains(&mirror) {
        true => Err(format!(
            "'{name}' can't be a leg of '{mirror}': it is built over that, or needs it"
        )),
        false => Ok(()),
    }
}
