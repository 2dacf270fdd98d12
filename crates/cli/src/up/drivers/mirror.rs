//! Mirrors: with a record where their parts outlive the server, and a word about what happens to them.

use std::sync::Arc;

use corewise::blockmq::BlockDevice;
use corewise::blockmq::drivers::{Mirror, MirrorEvent, MirrorLeg, MirrorOptions};
use corewise::device::ProbeError;

use super::{House, Volume};
use crate::manifest;

/// Puts the parts together.
pub(super) fn open(
    house: &House,
    name: &str,
    asked: &manifest::Mirror,
    parts: &[Arc<Volume>],
) -> Result<Arc<Mirror>, ProbeError> {
    let legs: Vec<_> = parts.iter().map(|part| part.device()).collect();
    let here: Vec<_> = legs.iter().filter_map(|leg| leg.as_ref().ok()).cloned().collect();
    same_size(&here)?;
    // Where nothing can be written nothing can be written down either.
    let read_only = here.iter().any(|part| part.geometry().read_only);
    let lasts = here.iter().any(|part| part.geometry().can_flush);
    let record = asked.bitmap.unwrap_or(lasts && !read_only);
    if let (false, Some(missing)) = (record, legs.iter().find_map(|leg| leg.as_ref().err())) {
        return Err(missing.clone());
    }
    let usual = MirrorOptions::default();
    let (report, device, over) = (house.report, name.to_owned(), asked.over.clone());
    let (theirs, size) = (parts.to_vec(), here.first().map(|part| part.geometry().size));
    let options = MirrorOptions {
        record,
        retry: asked.retry,
        degraded: asked.degraded,
        resync_least: asked.resync_least.unwrap_or(usual.resync_least),
        resync_most: asked.resync_most.unwrap_or(usual.resync_most),
        observer: Some(Arc::new(move |event: &MirrorEvent| report.mirror(&device, &over, event))),
        find: Some(Arc::new(move |leg| {
            let part = theirs.get(leg).ok_or("there is no such part")?;
            let found = part.appear()?;
            match Some(found.geometry().size) == size {
                true => Ok(found),
                false => Err(format!("'{}' differs in size from the other parts", part.name())),
            }
        })),
        ..usual
    };
    let leg = |(part, leg): (&Arc<Volume>, Result<_, ProbeError>)| match leg {
        Ok(device) => MirrorLeg::Here(device),
        Err(_) => MirrorLeg::Missing { name: part.name().to_owned(), why: part.why.lock().clone() },
    };
    let legs: Vec<_> = parts.iter().zip(legs).map(leg).collect();
    Ok(Arc::new(Mirror::open(legs, options, &house.workqueue).map_err(ProbeError::failed)?))
}

/// A mirror is as large as its smallest part. Where the others are larger somebody was mistaken.
fn same_size(parts: &[Arc<dyn BlockDevice>]) -> Result<(), ProbeError> {
    let sizes = || parts.iter().map(|part| part.geometry().size);
    if sizes().all(|size| Some(size) == sizes().next()) {
        return Ok(());
    }
    let list: Vec<String> = parts
        .iter()
        .zip(sizes())
        .map(|(part, size)| format!("'{}' has {size}", part.name()))
        .collect();
    Err(ProbeError::failed(format!(
        "the parts of a mirror must have the same size in bytes, but {}",
        list.join(", ")
    )))
}
