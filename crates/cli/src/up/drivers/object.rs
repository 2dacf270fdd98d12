//! Volumes in object stores.

use std::sync::Arc;

use corewise::device::ProbeError;

use super::House;
use crate::control::stores::StoreOf;
use crate::manifest;

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
        .observer(move |event| report.object(&name, event));
    if let Some(size) = &asked.size {
        options = options.size(size.value);
    }
    if let Some(lease) = asked.lease {
        options = options.lease(lease);
    }
    if let Some(file) = &asked.flush_file {
        options = options.flush_file(file);
    }
    if let Some(time) = asked.request_timeout {
        options = options.patience(time);
    }
    if let Some(by) = &asked.compression {
        options = options.compression(by.parse().map_err(ProbeError::failed)?);
    }
    let key = asked.key.as_ref().map(|key| match key {
        manifest::KeyFrom::File(path) => corewise_object::ObjectKey::from_file(path),
        manifest::KeyFrom::Env(name) => corewise_object::ObjectKey::from_env(name),
    });
    if let Some(key) = key.transpose().map_err(ProbeError::failed)? {
        options = options.key(key);
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

/// What it costs, by now.
#[cfg(feature = "object")]
pub(super) fn cost(driver: &ObjectDriver) -> StoreOf {
    use crate::control::stores::{Cache, Space};
    use corewise::blockmq::Driver;
    let (used, space, cache) = (driver.usage(), driver.space(), driver.cache());
    StoreOf {
        served: driver.condition().is_none(),
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
            garbage: space.garbage,
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
pub(super) fn cost(driver: &ObjectDriver) -> StoreOf {
    match *driver {}
}

/// There is none.
#[cfg(not(feature = "object"))]
mod without {
    use corewise::blockmq::{Dispatch, Driver, Geometry, IoError, Started};

    #[derive(Debug)]
    pub(in super::super) enum ObjectDriver {}

    impl ObjectDriver {
        pub(in super::super) fn close(&self) -> Result<(), IoError> {
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
