//! Growth of volumes while they are used.

use std::sync::Arc;

use corewise::blockmq::BlockDevice;

use super::Live;
use super::request::known;
use crate::control::changes::{ChangeReport, Step, StepKind};
use crate::drivers::Volume;
use crate::error::Error;
use crate::manifest::{Device, Driver, FileDriver, Manifest, Overlay};

fn step(name: &str, size: Option<u64>) -> Step {
    Step { what: StepKind::Grow, name: name.to_string(), size, ..Step::default() }
}

/// Returns the device whose size an encrypted device has, in any number of steps. Any other device
/// has its own.
fn bottom<'m>(device: &'m Device, has: &'m Manifest) -> &'m Device {
    match &device.driver {
        Driver::Crypt(asked) => has.device(&asked.over).map_or(device, |below| bottom(below, has)),
        _ => device,
    }
}

impl Live {
    /// Grows one device, as the whole change.
    pub(super) fn grow_alone(
        self: &Arc<Self>,
        name: &str,
        size: Option<u64>,
        has: &mut Manifest,
        dry_run: bool,
    ) -> Result<ChangeReport, Error> {
        let device = has.device(name);
        let device = device.ok_or_else(|| format!("there is no device '{name}'{}", known(has)))?;
        if let Some(above) = has.built_over(&device.name).next() {
            let why =
                format!("'{}' is built over '{name}', and can't follow a new size", above.name);
            return Err(Error::refused(why));
        }
        self.refuse_stuck(std::iter::once(name))?;
        self.manager.bound::<Volume>(name).ok_or("the device is not up")?.may_grow(size)?;
        let bottom = bottom(device, has);
        let written = matches!(
            &bottom.driver,
            Driver::File(FileDriver { size: Some(_), .. })
                | Driver::Overlay(Overlay { size: Some(_), .. })
        );
        let bottom = bottom.name.clone();
        if dry_run {
            return Ok(ChangeReport {
                dry_run,
                steps: vec![step(name, size)],
                ..ChangeReport::default()
            });
        }
        let (had, size) = self.grow(name, size, has)?;
        let mut changed = ChangeReport::default();
        if size > had {
            changed.steps.push(step(name, Some(size)));
        }
        if written && size > had && self.source.is_some() {
            let size = self.size_of(&bottom).unwrap_or(size);
            changed
                .notes
                .push(format!("write size = \"{size}\" for '{bottom}' into the manifest, too"));
        }
        self.report.changed(&changed);
        Ok(changed)
    }

    /// Grows a volume. Clients that attach from now on see the new size. Returns the old and the
    /// new size.
    pub(super) fn grow(
        self: &Arc<Self>,
        name: &str,
        size: Option<u64>,
        has: &mut Manifest,
    ) -> Result<(u64, u64), Error> {
        let volume = self.manager.bound::<Volume>(name).ok_or("the device is not up")?;
        let had = volume.device().map_err(|error| error.to_string())?.geometry().size;
        let of = name.to_string();
        let late = move |live: &Live, has: &mut Manifest, done: Result<u64, String>| match done {
            Ok(size) => {
                live.grown(&of, size, has);
                let steps = vec![step(&of, Some(size))];
                live.report.changed(&ChangeReport { steps, ..ChangeReport::default() });
            }
            Err(why) => live.report.refused(&format!("the late growth of '{of}'"), &why),
        };
        let work = move || volume.grow(size);
        let size = self.bounded(vec![name.to_string()], has, work, late)??;
        self.grown(name, size, has);
        Ok((had, size))
    }

    /// Returns the size of a volume that is up.
    fn size_of(&self, name: &str) -> Option<u64> {
        Some(self.manager.bound::<Volume>(name)?.device().ok()?.geometry().size)
    }

    /// Records the new size in the manifest.
    fn grown(&self, name: &str, size: u64, has: &mut Manifest) {
        for disk in self.front_ends.grown(name) {
            let disk = disk.display();
            self.report.warning(format_args!(
                "{disk} keeps its size until it is made again: this kernel can't grow a disk that \
                 is in use (Linux 6.16 can)"
            ));
        }
        let bottom = has.device(name).map(|device| bottom(device, has).name.clone());
        let of_bottom = bottom.as_deref().and_then(|bottom| self.size_of(bottom));
        for device in has.devices.iter_mut().filter(|device| Some(&device.name) == bottom.as_ref())
        {
            if let Driver::File(FileDriver { size: Some(at), .. })
            | Driver::Overlay(Overlay { size: Some(at), .. }) = &mut device.driver
            {
                at.value = of_bottom.unwrap_or(size);
            }
        }
        for shown in self.shown.lock().iter_mut().filter(|shown| shown.device == name) {
            shown.size = size;
        }
    }
}
