//! Snapshots of volumes in object stores: taken, listed and deleted while clients go on. The server keeps the devices that it has, so a change of
//! those may be made meanwhile.

use corewise::sync::atomic::Ordering;

use super::Live;
use crate::control::Question;
use crate::control::stores::Snapshot;
use crate::up::drivers::Volume;

/// What is wanted of a volume's snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// One with this name, or with its number for one.
    Take(Option<String>),
    List,
    Delete(String),
}

impl Wish {
    /// What a question wants, and of which volume; `None` where it isn't about snapshots.
    pub(crate) fn of(question: &Question) -> Option<Result<(String, Wish), String>> {
        let ask = question.ask.as_str();
        let wish = match (ask, question.snapshot.clone()) {
            ("snapshot", name) => Wish::Take(name),
            ("snapshots", _) => Wish::List,
            ("delete_snapshot", Some(name)) => Wish::Delete(name),
            ("delete_snapshot", None) => {
                return Some(Err(format!("'{ask}' needs a 'snapshot', its name")));
            }
            _ => return None,
        };
        let volume = question.disk.clone().ok_or_else(|| format!("'{ask}' needs a 'disk'"));
        Some(volume.map(|volume| (volume, wish)))
    }
}

impl Live {
    /// Does it, and tells of it. The snapshot that was taken, or all that there are. Blocks as long as the store takes.
    pub(crate) fn snapshots(&self, name: &str, wish: &Wish) -> Result<Vec<Snapshot>, String> {
        if self.ended.load(Ordering::Relaxed) {
            return Err("the server ends".to_string());
        }
        let Some(_alone) = self.snapshots.try_lock() else {
            let why = "another snapshot is being taken, looked for or deleted; try again when that is done";
            return Err(why.to_string());
        };
        let volume = self.manager.bound::<Volume>(name);
        let volume = volume.ok_or_else(|| format!("there is no device '{name}' that is up"))?;
        let all = volume.snapshots(wish)?;
        let (what, snapshot) = match (wish, all.first()) {
            (Wish::Take(_), Some(taken)) => ("snapshot", &taken.name),
            (Wish::Delete(snapshot), _) => ("snapshot_deleted", snapshot),
            _ => return Ok(all),
        };
        self.report.snapshot(name, what, snapshot);
        Ok(all)
    }
}
