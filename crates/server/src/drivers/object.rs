//! Volumes in object stores.

use std::sync::Arc;
#[cfg(feature = "object")]
use std::time::UNIX_EPOCH;

use corewise::device::ProbeError;

use super::context::VolumeContext;
use crate::control::stores::{Snapshot, SnapshotAction, StoreReport};
use crate::manifest;
#[cfg(feature = "object")]
use crate::store_check::{is_there, key};

#[cfg(feature = "object")]
pub(super) use corewise_object::ObjectDriver;
#[cfg(not(feature = "object"))]
pub(super) use without::ObjectDriver;

/// Opens or creates the volume, and fences the server that has it.
#[cfg(feature = "object")]
pub(super) fn open(
    context: &VolumeContext,
    device: &str,
    asked: &manifest::Object,
) -> Result<Arc<ObjectDriver>, ProbeError> {
    let (report, name) = (context.report.clone(), device.to_owned());
    let mut options = corewise_object::ObjectOptions::new(&asked.location.value)
        .name(device)
        .lease(asked.lease)
        .patience(asked.request_timeout)
        .observer(move |event| report.object(&name, event));
    if let Some(why) =
        context.missing.why_not_made(device).filter(|_| is_there(asked) == Some(false))
    {
        return Err(ProbeError::failed(format!("{}: {why}", asked.location.value)));
    }
    if let Some(size) = &asked.size {
        options = options.size(size.value);
    }
    if let Some(file) = &asked.flush_file {
        options = options.flush_file(file);
    }
    if let Some(opening) = &asked.accept_lost_flushes {
        options = options.accept_lost_flushes(opening.parse().map_err(ProbeError::failed)?);
    }
    options = options
        .compression(asked.compression.parse().map_err(ProbeError::failed)?)
        .read_cache(asked.read_cache);
    if let Some(parent) = asked.parent() {
        options = options.from_snapshot(&parent.location.value, &parent.snapshot.value);
    }
    if let Some(at) = asked.key() {
        options = options.key(key(&at.value).map_err(ProbeError::failed)?);
    }
    for (key, value) in [("endpoint", &asked.endpoint), ("region", &asked.region)] {
        if let Some(value) = value {
            options = options.setting(key, value);
        }
    }
    ObjectDriver::open(options).map(Arc::new).map_err(ProbeError::failed)
}

/// Returns true if the volume was created: nothing was at its location.
#[cfg(feature = "object")]
pub(super) fn created(driver: &ObjectDriver) -> bool {
    driver.created()
}

#[cfg(not(feature = "object"))]
pub(super) fn created(driver: &ObjectDriver) -> bool {
    match *driver {}
}

/// Returns the costs of the volume so far.
#[cfg(feature = "object")]
pub(super) fn cost(driver: &ObjectDriver) -> StoreReport {
    use crate::control::stores::{Cache, Space, StoreRefusal};
    let (used, space, cache) = (driver.usage(), driver.space(), driver.cache());
    StoreReport {
        served: driver.is_served(),
        fenced: driver.is_fenced(),
        damaged: driver.damage().is_some(),
        not_stored: driver.not_stored(),
        refuses: driver.store_refusal().map(|refusal| StoreRefusal {
            why: refusal.why,
            since: refusal.since.as_secs(),
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
    _: &VolumeContext,
    _: &str,
    _: &manifest::Object,
) -> Result<Arc<ObjectDriver>, ProbeError> {
    Err(ProbeError::failed("this program was built without volumes in object stores"))
}

/// Checks that the volume opens as a clone of this snapshot. Returns the reason if not.
#[cfg(feature = "object")]
pub(super) fn is_clone_of(
    driver: &ObjectDriver,
    parent: &str,
    snapshot: &str,
) -> Result<(), String> {
    driver.is_clone_of(parent, snapshot).map_err(|error| error.to_string())
}

#[cfg(not(feature = "object"))]
pub(super) fn is_clone_of(driver: &ObjectDriver, _: &str, _: &str) -> Result<(), String> {
    match *driver {}
}

/// Does the action. Returns the snapshot taken, or the snapshots listed.
#[cfg(feature = "object")]
pub(super) fn snapshots(
    driver: &ObjectDriver,
    action: &SnapshotAction,
) -> Result<Vec<Snapshot>, String> {
    let done = match action {
        SnapshotAction::Take(name) => driver.snapshot(name.as_deref()).map(|taken| vec![taken]),
        SnapshotAction::List => driver.snapshots(),
        SnapshotAction::Delete(name) => driver.delete_snapshot(name).map(|deleted| vec![deleted]),
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
pub(super) fn snapshots(
    driver: &ObjectDriver,
    _: &SnapshotAction,
) -> Result<Vec<Snapshot>, String> {
    match *driver {}
}

#[cfg(not(feature = "object"))]
pub(super) fn cost(driver: &ObjectDriver) -> StoreReport {
    match *driver {}
}

/// The substitute for builds without object stores.
#[cfg(not(feature = "object"))]
mod without {
    use corewise::blockmq::{Dispatch, Driver, Info, IoError, Started};

    #[derive(Debug)]
    pub(crate) enum ObjectDriver {}

    impl ObjectDriver {
        pub(crate) fn close(&self) -> Result<(), IoError> {
            match *self {}
        }
    }

    impl Driver for ObjectDriver {
        fn info(&self) -> Info {
            match *self {}
        }

        fn queue_request(&self, _: usize, _: Started) -> Dispatch {
            match *self {}
        }
    }
}
