//! The checks of a volume in an object store that need no request to the store. They are of its
//! folder on this machine, and of the file of its key.

#[cfg(feature = "object")]
use std::path::Path;

#[cfg(feature = "object")]
use rustix::fs::{Access, access};

use crate::manifest::{self, Position};

/// Reads the key of a volume.
#[cfg(feature = "object")]
pub(crate) fn key(from: &manifest::KeyFrom<'_>) -> Result<corewise_object::ObjectKey, String> {
    let key = match from {
        manifest::KeyFrom::File(path) => corewise_object::ObjectKey::from_file(path),
        manifest::KeyFrom::Env(name) => corewise_object::ObjectKey::from_env(name),
    };
    key.map_err(|error| error.to_string())
}

/// Returns the problems that this machine can find without asking a store.
#[cfg(feature = "object")]
pub(crate) fn problems(asked: &manifest::Object) -> Vec<(Position, String)> {
    let mut wrong = Vec::new();
    if let Some(folder) = asked.location.value.strip_prefix("file://").map(Path::new) {
        let is_new = !volume_in(folder);
        let parent = asked.parent().filter(|_| is_new).map(|parent| parent.location);
        let of = |at: &manifest::Located<String>| {
            at.value.strip_prefix("file://").map(Path::new).map(volume_in)
        };
        if let Some(parent) = parent.filter(|at| of(at) == Some(false)) {
            let why = format!("{}: there is no volume to clone", parent.value);
            wrong.push((parent.place, why));
        }
        let left = folder_left_behind(folder).filter(|_| is_new);
        let lacks_size = is_new && asked.size.is_none() && asked.clone_of.is_none();
        let around = folder.ancestors().skip(1).find(|around| is_new && volume_in(around));
        let found = may_be_made(folder).and_then(|()| match (around, lacks_size) {
            _ if left.is_some() => Err(format!(
                "the first record of the log is missing, but {} is there: restore the log, or \
                 delete what is left",
                left.unwrap_or_default()
            )),
            (Some(around), _) => Err(format!(
                "another volume lies around this location, at {}: take a location beside the \
                 other volume",
                around.display()
            )),
            (None, true) => Err("there is no volume; give a size to make one".to_owned()),
            (None, false) => Ok(()),
        });
        let why = found.map_err(|why| format!("{}: {why}", asked.location.value));
        wrong.extend(why.err().map(|why| (asked.location.place, why)));
    }
    if let Some(at) = asked.key() {
        wrong.extend(key(&at.value).err().map(|why| (at.place, why)));
    }
    wrong
}

/// Returns true if there is a volume in that folder: its first record is never deleted.
#[cfg(feature = "object")]
fn volume_in(folder: &Path) -> bool {
    folder.join("log/00000000000000000001").exists()
}

/// Returns whether the volume exists, or `None` if this machine alone can't tell, or the volume
/// wouldn't be created.
#[cfg(feature = "object")]
pub(crate) fn is_there(asked: &manifest::Object) -> Option<bool> {
    let folder = asked.location.value.strip_prefix("file://").map(Path::new)?;
    let is_there = volume_in(folder);
    (is_there || asked.size.is_some()).then_some(is_there)
}

#[cfg(not(feature = "object"))]
pub(crate) fn is_there(_: &manifest::Object) -> Option<bool> {
    None
}

/// Returns a folder of a volume's objects, other than its log, that isn't empty.
#[cfg(feature = "object")]
fn folder_left_behind(volume: &Path) -> Option<&'static str> {
    let has_some = |name: &&str| {
        volume.join(name).read_dir().is_ok_and(|mut entries| entries.next().is_some())
    };
    ["seg", "map", "snap"].into_iter().find(has_some)
}

/// Checks that the folder may be written to, or may be created.
#[cfg(feature = "object")]
fn may_be_made(folder: &Path) -> Result<(), String> {
    use std::io::{Error, ErrorKind};
    for folder in folder.ancestors() {
        match folder.metadata() {
            Ok(meta) if !meta.is_dir() => {
                return Err(format!("{} is no folder", folder.display()));
            }
            Ok(_) => {
                let how = Access::WRITE_OK | Access::EXEC_OK;
                let may = access(folder, how).map_err(Error::from);
                return may.map_err(|error| format!("{}: {error}", folder.display()));
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(format!("{}: {error}", folder.display())),
        }
    }
    Ok(())
}

#[cfg(not(feature = "object"))]
pub(crate) fn problems(_: &manifest::Object) -> Vec<(Position, String)> {
    Vec::new()
}
