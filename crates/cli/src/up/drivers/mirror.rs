//! Mirrors: with a record where their parts outlive the server, and a word about what happens to them.

use std::sync::Arc;

use corewise::blockmq::BlockDevice;
use corewise::blockmq::drivers::{Mirror, MirrorEvent, MirrorOptions};
use corewise::device::ProbeError;

use super::House;
use crate::manifest;

/// Puts the parts together.
pub(super) fn open(
    house: &House,
    device: &manifest::Device,
    asked: &manifest::Mirror,
    parts: Vec<Arc<dyn BlockDevice>>,
) -> Result<Arc<Mirror>, ProbeError> {
    same_size(&asked.over, &parts)?;
    // What is only read can't differ, and can't be written down either.
    let read_only = parts.iter().any(|part| part.geometry().read_only);
    let lasts = parts.iter().any(|part| part.geometry().can_flush);
    if !asked.bitmap.unwrap_or(lasts && !read_only) {
        return Ok(Arc::new(Mirror::new(parts).map_err(ProbeError::failed)?));
    }
    let usual = MirrorOptions::default();
    let (report, name, over) = (house.report, device.name.clone(), asked.over.clone());
    let options = MirrorOptions {
        retry: asked.retry,
        resync_least: asked.resync_least.unwrap_or(usual.resync_least),
        resync_most: asked.resync_most.unwrap_or(usual.resync_most),
        observer: Some(Arc::new(move |event: &MirrorEvent| report.mirror(&name, &over, event))),
        ..usual
    };
    Ok(Arc::new(Mirror::open(parts, options, &house.workqueue).map_err(ProbeError::failed)?))
}

/// A mirror is as large as its smallest part. Where the others are larger somebody was mistaken.
fn same_size(over: &[String], parts: &[Arc<dyn BlockDevice>]) -> Result<(), ProbeError> {
    let sizes = || parts.iter().map(|part| part.geometry().size);
    if sizes().all(|size| Some(size) == sizes().next()) {
        return Ok(());
    }
    let list: Vec<String> =
        over.iter().zip(sizes()).map(|(name, size)| format!("'{name}' has {size}")).collect();
    Err(ProbeError::failed(format!(
        "the parts of a mirror have one size in bytes, but {}",
        list.join(", ")
    )))
}
