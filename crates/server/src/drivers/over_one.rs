//! Devices that stand on one other: partitions, and the injectors of delays and errors.

use std::ops::Range;
use std::sync::Arc;

use corewise::blockmq::Driver;
use corewise::device::ProbeError;
use corewise::drivers::{Delay, Delays, Fault, Faulty, Partition, PartitionTable};
use corewise::sync::Mutex;

use super::context::House;
use super::volume::Volume;

/// The partitions of a volume that devices have, so that no two have the same bytes.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// L: is the lock; guards each range and the device that has it.
    taken: Mutex<Vec<(Range<u64>, String)>>,
}

impl Claims {
    /// Gives `range` to `device`, unless some of it is another's: then that one.
    fn claim(&self, range: Range<u64>, device: &str) -> Result<(), String> {
        let mut taken = self.taken.lock();
        // A device that is brought up once more has what it had.
        taken.retain(|(_, owner)| owner != device);
        let overlaps =
            |(other, _): &&(Range<u64>, String)| range.start < other.end && other.start < range.end;
        if let Some((_, owner)) = taken.iter().find(overlaps) {
            return Err(owner.clone());
        }
        taken.push((range, device.to_string()));
        Ok(())
    }
}

/// The partition `which` (a number, a name or a GUID) of the device `over`.
pub(super) fn partition(
    house: &House,
    device: &str,
    below: &Volume,
    which: &str,
) -> Result<Arc<dyn Driver>, ProbeError> {
    let (over, disk) = (below.name(), below.device()?);
    let failed = |why: String| ProbeError::failed(format!("'{over}': {why}"));
    let table = PartitionTable::read(&*disk).map_err(|error| failed(error.to_string()))?;
    for damage in &table.damage {
        house.notes.add(format!("device '{device}': the partition table of '{over}': {damage}"));
    }
    let Some(entry) = table.find(which) else {
        let known: Vec<String> = table
            .partitions
            .iter()
            .map(|p| match p.name.as_str() {
                "" => p.number.to_string(),
                name => format!("{} ('{name}')", p.number),
            })
            .collect();
        let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
        return Err(failed(format!(
            "'{which}' names no partition, or several; the partitions are: {known}"
        )));
    };
    let range = entry.start..entry.start + entry.size;
    below.claims.claim(range, device).map_err(|owner| {
        failed(format!("device '{owner}' already has partition {}", entry.number))
    })?;
    Ok(Arc::new(Partition::of_entry(disk, entry).map_err(ProbeError::failed)?))
}

/// A slow device.
pub(super) fn delay(
    house: &House,
    below: &Volume,
    delays: Delays,
) -> Result<Arc<dyn Driver>, ProbeError> {
    Ok(Arc::new(Delay::new(below.device()?, delays, &house.workqueue)))
}

/// A device that fails as it is told.
pub(super) fn error(
    below: &Volume,
    fault: &Fault,
    seed: u64,
) -> Result<Arc<dyn Driver>, ProbeError> {
    Ok(Arc::new(Faulty::new(below.device()?, vec![fault.clone()], seed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_devices_have_the_same_bytes() {
        let claims = Claims::default();
        assert_eq!(claims.claim(0..10, "a"), Ok(()));
        assert_eq!(claims.claim(10..20, "b"), Ok(()));
        assert_eq!(claims.claim(9..12, "c"), Err("a".to_string()));
        assert_eq!(claims.claim(0..10, "a"), Ok(()), "the same device once more");
    }
}
