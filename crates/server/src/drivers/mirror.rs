//! Mirrors: with a record where their legs outlive the server, and a word about what happens to them.

use std::sync::{Arc, Weak};

use corewise::blockmq::BlockDevice;
use corewise::device::ProbeError;
use corewise::drivers::{Mirror, MirrorEvent, MirrorLeg, MirrorOptions};
use corewise::sync::Mutex;

use super::context::House;
use super::mirror_lines::Lines;
use super::volume::Volume;
use super::volume::{Origin, Parts};
use crate::control::mirrors::names;
use crate::manifest;

/// Puts the legs together.
pub(super) fn open(
    house: &House,
    name: &str,
    asked: &manifest::Mirror,
    parts: &Parts,
) -> Result<Arc<Mirror>, ProbeError> {
    let legs = parts.lock().clone();
    let devices: Vec<_> = legs.iter().map(|leg| leg.device()).collect();
    let here: Vec<_> = devices.iter().filter_map(|device| device.as_ref().ok()).cloned().collect();
    // Where nothing can be written nothing can be written down either.
    let read_only = here.iter().any(|device| device.geometry().read_only);
    let lasts = here.iter().any(|device| device.geometry().can_flush);
    let record = asked.bitmap.unwrap_or(lasts && !read_only);
    if let (false, Some(missing)) =
        (record, devices.iter().find_map(|device| device.as_ref().err()))
    {
        return Err(missing.clone());
    }
    let usual = MirrorOptions::default();
    let lines = Lines::new(house.report.clone(), name);
    let theirs = Arc::clone(parts);
    // L: is the lock, held until the mirror is there: what happens before waits. Guards the mirror, which knows its legs.
    let itself: Arc<Mutex<Weak<Mirror>>> = Arc::default();
    let known = |itself: &Arc<Mutex<Weak<Mirror>>>| {
        let itself = Arc::clone(itself);
        move || {
            let mirror = itself.lock().upgrade();
            mirror.map(|mirror| names(&mirror)).unwrap_or_default()
        }
    };
    let (named, found) = (known(&itself), known(&itself));
    let mut opening = itself.lock();
    let (least, most) = (usual.resync_least, usual.resync_most);
    let options = usual
        .record(record)
        .retry(asked.retry)
        .degraded(asked.degraded)
        .resync_least(asked.resync_least.unwrap_or(least))
        .resync_most(asked.resync_most.unwrap_or(most))
        .observer(move |event: &MirrorEvent| lines.tell(&named(), event))
        .find(move |n| {
            let name = found().into_iter().nth(n).ok_or("there is no such leg")?;
            let leg = theirs.lock().iter().find(|leg| leg.name() == name).cloned();
            let leg = leg.ok_or("it is no device any more")?;
            leg.appear()
        });
    let side = |(leg, device): (&Arc<Volume>, Result<_, ProbeError>)| match device {
        Ok(device) if leg.origin() != Origin::Before => MirrorLeg::New(device),
        Ok(device) => MirrorLeg::Here(device),
        Err(_) => MirrorLeg::Missing { name: leg.name().to_owned(), why: leg.why.lock().clone() },
    };
    let sides: Vec<_> = legs.iter().zip(devices).map(side).collect();
    let mirror = Mirror::open(sides, options, &house.workqueue).map_err(ProbeError::failed)?;
    let mirror = Arc::new(mirror);
    *opening = Arc::downgrade(&mirror);
    drop(opening);
    Ok(mirror)
}
