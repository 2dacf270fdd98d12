//! Volumes in object stores.

#[cfg(feature = "object")]
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "object")]
use std::time::UNIX_EPOCH;

use corewise::device::ProbeError;
#[cfg(feature = "object")]
use rustix::fs::{Access, access};

use super::House;
use crate::control::stores::{Snapshot, StoreOf};
use crate::live::snapshots::Wish;
use crate::manifest::{self, Place};

#[cfg(feature = "object")]
pub(super) use corewise_object::ObjectDriver;
#[cfg(not(feature = "object"))]
pub(super) use without::ObjectDriver;

/// Opens it, or makes it, and fences the server that has it.
#[cfg(feature = "object")]
pub(super) fn open(
    house: &House,
    device: &str,
    asked: &manifest::Object,
) -> Result<Arc<ObjectDriver>, ProbeError> {
    let (report, name) = (house.report.clone(), device.to_owned());
    let mut options = corewise_object::ObjectOptions::new(&asked.location.value)
        .name(device)
        .observer(move |event| report.object(&name, event));
    if let Some(why) = house.missing.why_not_made(device).filter(|_| is_there(asked) == Some(false))
    {
        return Err(ProbeError::failed(format!("{}: {why}", asked.location.value)));
    }
    if let Some(size) = &asked.size {
        options = options.size(size.value);
    }
    if let Some(lease) = asked.lease {
        options = options.lease(lease);
    }
    if let Some(file) = &asked.flush_file {
        options = options.flush_file(file);
    }
    if let Some(opening) = &asked.accept_lost_flushes {
        options = options.accept_lost_flushes(opening.parse().map_err(ProbeError::failed)?);
    }
    if let Some(time) = asked.request_timeout {
        options = options.patience(time);
    }
    if let Some(by) = &asked.compression {
        options = options.compression(by.parse().map_err(ProbeError::failed)?);
    }
    if let Some(parent) = &asked.parent {
        options = options.from_snapshot(&parent.location.value, &parent.snapshot.value);
    }
    if let Some(at) = &asked.key {
        options = options.key(key(&at.value).map_err(ProbeError::failed)?);
    }
    if let Some(bytes) = asked.read_cache {
        options = options.read_cache(bytes);
    }
    for (key, value) in [("endpoint", &asked.endpoint), ("region", &asked.region)] {
        if let Some(value) = value {
            options = options.setting(key, value);
        }
    }
    ObjectDriver::open(options).map(Arc::new).map_err(ProbeError::failed)
}

/// Whether it was made: nothing was at its location.
#[cfg(feature = "object")]
pub(super) fn created(driver: &ObjectDriver) -> bool {
    driver.created()
}

#[cfg(not(feature = "object"))]
pub(super) fn created(driver: &ObjectDriver) -> bool {
    match *driver {}
}

#[cfg(feature = "object")]
fn key(from: &manifest::KeyFrom) -> Result<corewise_object::ObjectKey, String> {
    match from {
        manifest::KeyFrom::File(path) => corewise_object::ObjectKey::from_file(path),
        manifest::KeyFrom::Env(name) => corewise_object::ObjectKey::from_env(name),
    }
}

/// What is wrong with it as far as this machine tells: nobody asks a store.
#[cfg(feature = "object")]
pub(crate) fn look(asked: &manifest::Object) -> Vec<(Place, String)> {
    let mut wrong = Vec::new();
    if let Some(folder) = asked.location.value.strip_prefix("file://").map(Path::new) {
        let is_new = !volume_in(folder);
        let parent = asked.parent.as_ref().filter(|_| is_new).map(|parent| &parent.location);
        let of = |at: &manifest::At<String>| {
            at.value.strip_prefix("file://").map(Path::new).map(volume_in)
        };
        if let Some(parent) = parent.filter(|at| of(at) == Some(false)) {
            let why = format!("{}: there is no volume to clone", parent.value);
            wrong.push((parent.place, why));
        }
        let left = folder_left_behind(folder).filter(|_| is_new);
        let lacks_size = is_new && asked.size.is_none() && asked.parent.is_none();
        let around = folder.ancestors().skip(1).find(|around| is_new && volume_in(around));
        let found = may_be_made(folder).and_then(|()| match (around, lacks_size) {
            _ if left.is_some() => Err(format!(
                "the first record of its log is missing, and {} is there: put the log back, or delete what is left",
                left.unwrap_or_default()
            )),
            (Some(around), _) => Err(format!(
                "a volume lies around it, at {}: take a location beside that one",
                around.display()
            )),
            (None, true) => Err("there is no volume; give a size, and one is made".to_owned()),
            (None, false) => Ok(()),
        });
        let why = found.map_err(|why| format!("{}: {why}", asked.location.value));
        wrong.extend(why.err().map(|why| (asked.location.place, why)));
    }
    if let Some(at) = &asked.key {
        wrong.extend(key(&at.value).err().map(|why| (at.place, why)));
    }
    wrong
}

/// Whether there is a volume in that folder: its first record is never deleted.
#[cfg(feature = "object")]
fn volume_in(folder: &Path) -> bool {
    folder.join("log/00000000000000000001").exists()
}

/// Whether the volume is there, where this machine alone can tell, and it would be made.
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

/// A folder of a volume's objects, other than its log, that has some.
#[cfg(feature = "object")]
fn folder_left_behind(volume: &Path) -> Option<&'static str> {
    let has_some = |name: &&str| {
        volume.join(name).read_dir().is_ok_and(|mut entries| entries.next().is_some())
    };
    ["seg", "map", "snap"].into_iter().find(has_some)
}

/// Whether there is such a folder that may be written to, or it may be made.
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

/// What it costs, by now.
#[cfg(feature = "object")]
pub(super) fn cost(driver: &ObjectDriver) -> StoreOf {
    use crate::control::stores::{Cache, Refuses, Space};
    let (used, space, cache) = (driver.usage(), driver.space(), driver.cache());
    StoreOf {
        served: driver.is_served(),
        fenced: driver.is_fenced(),
        damaged: driver.damage().is_some(),
        not_stored: driver.not_stored(),
        refuses: driver.store_refusal().map(|(why, since)| Refuses {
            why,
            since: since.as_secs(),
            has_flush_file: driver.has_flush_file(),
        }),
        puts: used.puts,
        gets: used.gets,
        lists: used.lists,
        deletes: used.deletes,
        failures: used.failures,
        sent: used.sent,
        received: used.received,
        space: Space {
            segments: space.segments,
            stored: space.stored,
            used: space.used,
            snapshots: space.snapshots,
            garbage: space.garbage,
            shared: space.shared,
        },
        cache: Cache { hits: cache.hits, misses: cache.misses, bytes: cache.bytes },
    }
}

#[cfg(not(feature = "object"))]
pub(super) fn open(
    _: &House,
    _: &str,
    _: &manifest::Object,
) -> Result<Arc<ObjectDriver>, ProbeError> {
    Err(ProbeError::failed("this corewise was built without volumes in object stores"))
}

#[cfg(not(feature = "object"))]
pub(crate) fn look(_: &manifest::Object) -> Vec<(Place, String)> {
    Vec::new()
}

/// Whether it opens as a clone of this; else the reason.
#[cfg(feature = "object")]
pub(super) fn is_clone_of(
    driver: &ObjectDriver,
    parent: &str,
    snapshot: &str,
) -> Result<(), String> {
    driver.is_clone_of(parent, snapshot)
}

#[cfg(not(feature = "object"))]
pub(super) fn is_clone_of(driver: &ObjectDriver, _: &str, _: &str) -> Result<(), String> {
    match *driver {}
}

/// Does it, and says which snapshot was taken, or which there are.
#[cfg(feature = "object")]
pub(super) fn snapshots(driver: &ObjectDriver, wish: &Wish) -> Result<Vec<Snapshot>, String> {
    let done = match wish {
        Wish::Take(name) => driver.snapshot(name.as_deref()).map(|taken| vec![taken]),
        Wish::List => driver.snapshots(),
        Wish::Delete(name) => driver.delete_snapshot(name).map(|deleted| vec![deleted]),
    };
    let of = |one: corewise_object::ObjectSnapshot| Snapshot {
        name: one.name,
        number: one.number,
        taken: one.taken.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        size: one.size,
        clones: one.clones,
    };
    let done = done.map(|all| all.into_iter().map(of).collect());
    done.map_err(|error| error.to_string())
}

#[cfg(not(feature = "object"))]
pub(super) fn snapshots(driver: &ObjectDriver, _: &Wish) -> Result<Vec<Snapshot>, String> {
    match *driver {}
}

#[cfg(not(feature = "object"))]
pub(super) fn cost(driver: &ObjectDriver) -> StoreOf {
    match *driver {}
}

/// There is none.
#[cfg(not(feature = "object"))]
mod without {
    use corewise::blockmq::{Dispatch, Driver, Geometry, IoError, Started};

    #[derive(Debug)]
    pub(crate) enum ObjectDriver {}

    impl ObjectDriver {
        pub(crate) fn close(&self) -> Result<(), IoError> {
            match *self {}
        }
    }

    impl Driver for ObjectDriver {
        fn kind(&self) -> &'static str {
            match *self {}
        }

        fn geometry(&self) -> Geometry {
            match *self {}
        }

        fn queue_request(&self, _: usize, _: Started) -> Dispatch {
            match *self {}
        }
    }
}
