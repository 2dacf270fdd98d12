//! Changes of whole overlays: reset, commit into the base, flatten.

use std::sync::Arc;

use super::Live;
use super::request::known;
use crate::control::Mode;
use crate::control::changes::{ChangeReport, Step, StepKind};
use crate::control::stores::OverlayChange;
use crate::drivers::Volume;
use crate::error::Error;
use crate::manifest::{Changes, Device, Driver, Export, Manifest};
use crate::units::count;

impl OverlayChange {
    fn step(self, name: &str) -> Step {
        let what = match self {
            OverlayChange::Reset => StepKind::Reset,
            OverlayChange::Commit => StepKind::Commit,
            OverlayChange::Flatten => StepKind::Flatten,
        };
        Step { what, name: name.to_string(), ..Step::default() }
    }
}

impl Live {
    /// Changes a whole overlay, as the whole change. Its content changes by a reset, and that of
    /// its base by a commit: so nobody may use them meanwhile.
    pub(super) fn change_overlay(
        self: &Arc<Self>,
        name: &str,
        change: OverlayChange,
        has: &mut Manifest,
        dry_run: bool,
    ) -> Result<ChangeReport, Error> {
        let device = has.device(name);
        let device = device.ok_or_else(|| format!("there is no device '{name}'{}", known(has)))?;
        let Driver::Overlay(overlay) = &device.driver else {
            let driver = device.driver.name();
            let why = format!("'{name}' has the driver '{driver}', and is not an overlay");
            return Err(Error::refused(why));
        };
        let base = overlay.over.as_deref();
        self.refuse_stuck(std::iter::once(name).chain(base))?;
        let volume = self.manager.bound::<Volume>(name).ok_or("the device is not up")?;
        let exports = match change {
            OverlayChange::Flatten => Vec::new(),
            OverlayChange::Reset => exports_of(has, name),
            OverlayChange::Commit => {
                let base = base.ok_or_else(|| format!("'{name}' has no base in the manifest"))?;
                if let Some(why) = has.base_in_use(name, base) {
                    return Err(Error::refused(why));
                }
                exports_of(has, name)
            }
        };
        if let Some(above) = has.built_over(name).next().filter(|_| change == OverlayChange::Reset)
        {
            let above = &above.name;
            let why = format!("'{above}' is built over '{name}', whose data would change");
            return Err(Error::refused(format!("{why}: remove '{above}' first")));
        }
        if let Some(path) = exports.iter().find_map(|export| self.front_ends.in_use(export)) {
            let path = path.display();
            return Err(Error::refused(format!("{path} is in use: unmount it first")));
        }
        let steps = vec![change.step(name)];
        if dry_run {
            return Ok(ChangeReport { dry_run, steps, ..ChangeReport::default() });
        }
        // A commit keeps the overlay's content, but the requests of its clients would wait long.
        self.hide_unused(&exports)?;
        let shown = exports.clone();
        let late = move |live: &Live, _: &mut Manifest, done: Result<(), String>| {
            live.show(&shown);
            match done {
                Ok(()) => live.report.changed(&ChangeReport { steps, ..ChangeReport::default() }),
                Err(why) => live.report.refused("a change of an overlay that took long", &why),
            }
        };
        let of = std::iter::once(name).chain(base).map(str::to_owned).collect();
        let done = self.bounded(of, has, move || volume.change_overlay(change), late)?;
        self.show(&exports);
        done?;
        let steps = vec![change.step(name)];
        let changed = ChangeReport { steps, ..ChangeReport::default() };
        self.report.changed(&changed);
        Ok(changed)
    }

    /// Returns the overlays that have every block and that have no base in the new manifest, with
    /// the base that they had.
    pub(super) fn drops_bases(&self, old: &Manifest, new: &Manifest) -> Vec<(String, String)> {
        let drops = |had: &Device| {
            let Driver::Overlay(overlay) = &had.driver else { return None };
            let base = overlay.over.clone()?;
            let Driver::Overlay(wanted) = &new.device(&had.name)?.driver else { return None };
            let needs_no_base =
                || self.manager.bound::<Volume>(&had.name).is_some_and(|one| one.needs_no_base());
            (wanted.over.is_none() && needs_no_base()).then(|| (had.name.clone(), base))
        };
        old.devices.iter().filter_map(drops).collect()
    }

    /// Drops the bases of overlays that have every block, before a base goes down.
    pub(super) fn drop_bases(&self, changes: &Changes, has: &mut Manifest) {
        for (overlay, base) in &changes.drop_bases {
            if let Some(volume) = self.manager.bound::<Volume>(overlay) {
                volume.drop_base();
            }
            // An error means that the server ends, which takes devices down in the old order.
            let _ = self.manager.unlink(overlay, base);
            without_base(has, overlay, base);
        }
    }

    /// Hides exports that no client uses from new clients. If one is used, nothing is hidden.
    fn hide_unused(&self, exports: &[String]) -> Result<(), Error> {
        let used = self.hide(exports, Mode::Hide)?;
        if used.is_empty() {
            return Ok(());
        }
        self.show(exports);
        let clients = |name: &String| {
            let found = self.exports().into_iter().find(|export| export.name == *name);
            format!(
                "export '{name}' has {}",
                count(found.map_or(1, |one| one.clients as u64), "client")
            )
        };
        let used = used.iter().map(clients).collect::<Vec<_>>().join(", ");
        Err(Error::refused(format!(
            "{used}, whose data would change while it is used. Let the clients detach, or \
             `corewise disconnect` them, and try again"
        )))
    }

    fn show(&self, exports: &[String]) {
        for export in exports {
            self.server.show_export(export);
        }
    }
}

/// Returns the names of the exports of a device.
fn exports_of(has: &Manifest, device: &str) -> Vec<String> {
    let of = |export: &&Export| export.device == device;
    has.exports.iter().filter(of).map(|export| export.name.clone()).collect()
}

/// Removes the base of an overlay from a manifest.
pub(super) fn without_base(manifest: &mut Manifest, overlay: &str, base: &str) {
    for device in manifest.devices.iter_mut().filter(|device| device.name == overlay) {
        device.suppliers.retain(|supplier| supplier != base);
        if let Driver::Overlay(overlay) = &mut device.driver {
            overlay.over = None;
        }
    }
}
