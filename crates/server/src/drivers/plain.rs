//! Volumes that need little code: in memory, over one other device (partitions, delays and errors),
//! and on another NBD server.

use std::ops::Range;
use std::sync::Arc;

use corewise::blockmq::{Dispatch, Driver, Geometry, Info, Started};
use corewise::device::ProbeError;
use corewise::drivers::{Delay, Delays, Faulty, Memory, Null, Partition, PartitionTable};
use corewise::nbd::{Remote, RemoteOptions};
use corewise::sync::Mutex;

use super::context::VolumeContext;
use super::volume::Volume;
use crate::manifest;

/// Creates a volume in memory.
pub(super) fn memory(size: u64, block_size: u32) -> Result<Arc<dyn Driver>, ProbeError> {
    let memory = Memory::new(size).map_err(|error| {
        ProbeError::failed(format!("cannot allocate {size} bytes of memory: {error}"))
    })?;
    Ok(Arc::new(Coarse { inner: memory, block_size }))
}

/// Creates a volume that stores nothing.
pub(super) fn null(size: u64, block_size: u32) -> Arc<dyn Driver> {
    Arc::new(Coarse { inner: Null::new(size), block_size })
}

/// A driver that shows larger blocks than it needs.
struct Coarse<D> {
    inner: D,
    /// Block size: a power of two, at least that of `inner`.
    block_size: u32,
}

impl<D: Driver> Driver for Coarse<D> {
    fn info(&self) -> Info {
        let inner = self.inner.info();
        let block_size = inner.geometry.block_size.max(self.block_size);
        let preferred = inner.geometry.preferred.max(block_size);
        Info { geometry: Geometry { block_size, preferred, ..inner.geometry }, ..inner }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        self.inner.queue_request(hctx, rq)
    }

    fn commit(&self, hctx: usize) {
        self.inner.commit(hctx);
    }
}

/// The partitions of a volume that devices have, so that no two share bytes.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// L: is the lock; guards each range and the device that has it.
    taken: Mutex<Vec<(Range<u64>, String)>>,
}

impl Claims {
    /// Gives `range` to `device`. If part of it belongs to another device, returns that one.
    fn claim(&self, range: Range<u64>, device: &str) -> Result<(), String> {
        let mut taken = self.taken.lock();
        // A device that is brought up again has its old claim.
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

/// Opens the partition `which` (a number, a name or a GUID) of the device `below`.
pub(super) fn partition(
    context: &VolumeContext,
    device: &str,
    below: &Volume,
    which: &str,
) -> Result<Arc<dyn Driver>, ProbeError> {
    let (over, disk) = (below.name(), below.device()?);
    let failed = |why: String| ProbeError::failed(format!("'{over}': {why}"));
    let table = PartitionTable::read(&*disk).map_err(|error| failed(error.to_string()))?;
    for damage in &table.damage {
        context.notes.add(format!("device '{device}': the partition table of '{over}': {damage}"));
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
        return Err(failed(match known.is_empty() {
            true => format!("there is no partition '{which}': the table has no partitions"),
            false => format!(
                "'{which}' names no partition, or several; the partitions are: {}",
                known.join(", ")
            ),
        }));
    };
    let range = entry.start..entry.start + entry.size;
    below.claims.claim(range, device).map_err(|owner| {
        failed(format!("device '{owner}' already has partition {}", entry.number))
    })?;
    Ok(Arc::new(Partition::of_entry(disk, entry).map_err(ProbeError::failed)?))
}

/// Creates a slow device.
pub(super) fn delay(
    context: &VolumeContext,
    below: &Volume,
    delays: Delays,
) -> Result<Arc<dyn Driver>, ProbeError> {
    Ok(Arc::new(Delay::new(below.device()?, delays, &context.workqueue)))
}

/// Creates a device with failing requests.
pub(super) fn error(
    below: &Volume,
    asked: &manifest::Failing,
) -> Result<Arc<dyn Driver>, ProbeError> {
    let device = below.device()?;
    let size = device.geometry().size;
    if let Some(from) = asked.from.as_ref().filter(|from| from.value >= size) {
        return Err(ProbeError::failed(behind_the_end(from.value, below.name(), size)));
    }
    Ok(Arc::new(Faulty::new(device, vec![asked.fault()], asked.seed.into())))
}

/// Returns the message that refuses a range of faults in which no request would fail.
pub(crate) fn behind_the_end(from: u64, over: &str, size: u64) -> String {
    format!("'from' must be less than {size}, the size of '{over}', not {from}")
}

/// Connects, for at most the time in the manifest.
pub(super) fn remote(
    context: &VolumeContext,
    device: &str,
    asked: &manifest::Remote,
) -> Result<Arc<Remote>, ProbeError> {
    let (report, name) = (context.report.clone(), device.to_owned());
    let options = RemoteOptions::new(asked.uri.value.clone())
        .read_only(asked.read_only)
        .connections(asked.connections)
        .connect_timeout(asked.connect_timeout)
        .timeout(asked.request_timeout)
        .name(device)
        .observer(move |event| report.remote(&name, event));
    #[cfg(feature = "tls")]
    let options = match &asked.tls_ca {
        Some(ca) => {
            let identity = asked.tls_certificate.as_ref().zip(asked.tls_key.as_ref());
            options.tls(tls::read(ca, identity)?)
        }
        None => options,
    };
    Remote::connect(options).map(Arc::new).map_err(ProbeError::failed)
}

#[cfg(feature = "tls")]
mod tls {
    use std::path::PathBuf;

    use corewise::device::ProbeError;
    use corewise::nbd::RemoteTls;

    use crate::manifest::Located;
    use crate::source::{self, LONGEST_PEM};

    pub(super) fn read(
        ca: &Located<PathBuf>,
        identity: Option<(&Located<PathBuf>, &Located<PathBuf>)>,
    ) -> Result<RemoteTls, ProbeError> {
        let read = |at: &Located<PathBuf>| {
            source::read_plain(&at.value, LONGEST_PEM).map_err(|why| {
                ProbeError::failed(format!("cannot read {}: {why}", at.value.display()))
            })
        };
        let ca = read(ca)?;
        let identity = match identity {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        let identity = identity.as_ref().map(|(c, k)| (c.as_slice(), k.as_slice()));
        RemoteTls::from_pem(&ca, identity).map_err(ProbeError::failed)
    }
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
