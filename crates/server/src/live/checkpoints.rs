//! Checkpoints of devices, taken, listed and deleted while clients go on. The server's devices stay
//! the same, so another change may be made meanwhile.

use super::Live;
use crate::control::Question;
use crate::control::checkpoints::{CheckpointAction, CheckpointReport};
use crate::error::Error;
use crate::manifest;

/// Returns the device and the action that a question about checkpoints asks for, or `None` for
/// another question.
pub(crate) fn request(question: &Question) -> Option<Result<(String, CheckpointAction), String>> {
    let ask = question.ask.as_str();
    let action = match (ask, question.checkpoint.clone()) {
        ("checkpoint", name) => CheckpointAction::Take(name),
        ("checkpoints", _) => CheckpointAction::List,
        ("delete_checkpoint", Some(name)) => CheckpointAction::Delete(name),
        ("delete_checkpoint", None) => {
            return Some(Err(format!("'{ask}' needs a 'checkpoint', its name")));
        }
        _ => return None,
    };
    let disk = question.disk.clone().ok_or_else(|| format!("'{ask}' needs a 'disk'"));
    Some(disk.map(|disk| (disk, action)))
}

impl Live {
    /// Does the action and reports it. Returns the checkpoint that was taken or deleted, or all of
    /// them. Blocks as long as a flush of the device takes.
    pub(crate) fn checkpoints(
        &self,
        name: &str,
        action: &CheckpointAction,
    ) -> Result<Vec<CheckpointReport>, Error> {
        let busy = "another checkpoint or snapshot is being taken, looked for or deleted; try again when that is done";
        let (_alone, volume) = self.volume_alone(name, busy)?;
        let mut all = volume.checkpoints(action)?;
        let exports = self.exports_of(name)?;
        let what = match action {
            CheckpointAction::Take(_) => "taken",
            CheckpointAction::Delete(_) => "deleted",
            CheckpointAction::List => "",
        };
        if *action != CheckpointAction::List {
            exports.iter().for_each(|export| self.images.renew(export, &volume));
            for one in &all {
                self.report.checkpoint(name, what, &one.name, None);
            }
        }
        for one in all.iter_mut().filter(|one| one.readable) {
            one.uris = exports.iter().filter_map(|export| self.image_uri(&export.name)).collect();
        }
        Ok(all)
    }

    /// Returns the exports of a device. A change in progress is waited for.
    fn exports_of(&self, device: &str) -> Result<Vec<manifest::Export>, Error> {
        let has = self.has.lock();
        let has = has.as_ref().ok_or("the server is not up yet")?;
        Ok(has.exports.iter().filter(|export| export.device == device).cloned().collect())
    }

    /// Returns the URI of the newest checkpoint of an export.
    fn image_uri(&self, export: &str) -> Option<String> {
        self.status.uri(&self.images.of(export)?)
    }
}
