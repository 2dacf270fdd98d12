//! Snapshots of volumes in object stores, taken, listed and deleted while clients go on. The
//! server's devices stay the same, so another change may be made meanwhile.

use std::sync::Arc;

use corewise::sync::MutexGuard;
use corewise::sync::atomic::Ordering;

use super::Live;
use crate::control::Question;
use crate::control::stores::{Snapshot, SnapshotAction};
use crate::drivers::Volume;
use crate::error::{Error, ErrorKind};
use crate::manifest::{Changes, Driver, Manifest};

/// Returns the volume and the action that a question about snapshots asks for, or `None` for
/// another question.
pub(crate) fn request(question: &Question) -> Option<Result<(String, SnapshotAction), String>> {
    let ask = question.ask.as_str();
    let action = match (ask, question.snapshot.clone()) {
        ("snapshot", name) => SnapshotAction::Take(name),
        ("snapshots", _) => SnapshotAction::List,
        ("delete_snapshot", Some(name)) => SnapshotAction::Delete(name),
        ("delete_snapshot", None) => {
            return Some(Err(format!("'{ask}' needs a 'snapshot', its name")));
        }
        _ => return None,
    };
    let volume = question.disk.clone().ok_or_else(|| format!("'{ask}' needs a 'disk'"));
    Some(volume.map(|volume| (volume, action)))
}

/// Returns the location and the snapshot of which a volume is a clone.
fn parent(driver: &Driver) -> Option<(&str, &str)> {
    match driver {
        Driver::Object(object) => {
            let parent = object.parent()?;
            Some((&parent.location.value, &parent.snapshot.value))
        }
        _ => None,
    }
}

impl Live {
    /// Refuses changes after which a volume that stays isn't a clone of the snapshot in its
    /// manifest, as such a volume would not come up the next time.
    pub(super) fn refuse_parents(
        &self,
        changes: &Changes,
        old: &Manifest,
        new: &Manifest,
    ) -> Result<(), Error> {
        for device in &new.devices {
            let name = &device.name;
            let was = old.device(name).and_then(|device| parent(&device.driver));
            let is = parent(&device.driver).filter(|is| was != Some(*is));
            let Some((location, snapshot)) = is else { continue };
            if changes.restarted.contains(name) {
                continue;
            }
            if let Some(volume) = self.manager.bound::<Volume>(name) {
                let is = volume.is_clone_of(location, snapshot);
                is.map_err(|why| format!("'{name}' would not come up again: {why}"))?;
            }
        }
        Ok(())
    }

    /// Returns a volume that is up, and the right to take, list or delete its snapshots or
    /// checkpoints, which one caller has at a time.
    ///
    /// # Errors
    /// `busy`, if somebody else has that right.
    pub(super) fn volume_alone(
        &self,
        name: &str,
        busy: &str,
    ) -> Result<(MutexGuard<'_, ()>, Arc<Volume>), Error> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(Error::of(ErrorKind::NotUp, "the server ends"));
        }
        let alone = self.snapshots.try_lock();
        let alone = alone.ok_or_else(|| Error::of(ErrorKind::Busy, busy))?;
        let volume = self.manager.bound::<Volume>(name);
        let volume = volume.ok_or_else(|| format!("there is no device '{name}' that is up"))?;
        Ok((alone, volume))
    }

    /// Does the action and reports it. Returns the snapshot that was taken or deleted, or all of
    /// them. Blocks as long as the store takes.
    pub(crate) fn snapshots(
        &self,
        name: &str,
        action: &SnapshotAction,
    ) -> Result<Vec<Snapshot>, Error> {
        let busy =
            "another snapshot is being taken, looked for or deleted; try again when that is done";
        let (_alone, volume) = self.volume_alone(name, busy)?;
        let all = volume.snapshots(action)?;
        let what = match action {
            SnapshotAction::Take(_) => "snapshot",
            SnapshotAction::Delete(_) => "snapshot_deleted",
            SnapshotAction::List => return Ok(all),
        };
        for one in &all {
            self.report.snapshot(name, what, &one.name);
        }
        Ok(all)
    }
}
