//! The target for records of checkpoints: a file beside a volume can't be trusted.

use std::sync::{Arc, OnceLock};

use corewise_blockmq::{BlockDevice, Geometry, Op, Request};
use corewise_drivers::{CheckpointDriver, CheckpointOptions};
use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::seeds::Seed;

const BLOCK: u64 = 4096;
/// Bytes of the volume: the last block isn't whole.
const SIZE: u64 = 100 * BLOCK - 512;
/// Bytes of its record: two heads, a page, and the tail.
const RECORD: usize = 4 * 4096;

/// A disk that holds these bytes.
struct Disk {
    size: u64,
    /// L: is the lock; guards the bytes. An empty one reads as zeroes.
    bytes: Mutex<Vec<u8>>,
}

impl Disk {
    fn new(size: u64, bytes: Vec<u8>) -> Arc<Disk> {
        Arc::new(Disk { size, bytes: Mutex::new(bytes) })
    }
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "disk"
    }

    fn geometry(&self) -> Geometry {
        Geometry::new(self.size)
    }

    fn submit(&self, mut rq: Request) {
        let range = rq.offset() as usize..(rq.offset() + rq.len()) as usize;
        let mut bytes = self.bytes.lock();
        match rq.op() {
            Op::Read => _ = rq.put(bytes.get(range).expect("a read inside the record")),
            Op::Write => _ = rq.copy_to(bytes.get_mut(range).expect("a write inside the record")),
            _ => {}
        }
        drop(bytes);
        rq.complete(Ok(()));
    }
}

fn workqueue() -> &'static Workqueue {
    static WORKERS: OnceLock<(WorkerPools, Workqueue)> = OnceLock::new();
    let (_, queue) = WORKERS.get_or_init(|| {
        let machine = Machine::synthetic("l3:1 core:1 pu:1").expect("a machine");
        let pools = WorkerPools::new(&machine);
        let queue = Workqueue::builder("fuzz").build(&pools).expect("a queue");
        (pools, queue)
    });
    queue
}

/// Opens these bytes as the record of a volume: unchanged, and with corrected checksums, so that
/// lies get past them.
///
/// # Panics
/// If a request leaves the record, checkpoints contradict each other, or the record says something
/// else the second time.
pub fn checkpoint_record(data: &[u8]) {
    let mut record = data.to_vec();
    record.resize(RECORD, 0);
    open(record.clone());
    for (piece, at) in [(0, 8), (4096, 8), (8192, 4), (12288, 4)] {
        seal(&mut record[piece..piece + 4096], at);
    }
    open(record);
}

fn open(bytes: Vec<u8>) {
    let record = Disk::new(RECORD as u64, bytes);
    let Some(first) = state(&record) else { return };
    let second = state(&record).expect("a record that was opened is good");
    assert_eq!(first.0, second.0, "another state the second time");
    assert!(second.1.is_empty(), "a fault is repaired: {:?}", second.1);
}

/// The checkpoints, oldest first, and which blocks changed since each.
type Changes = Vec<(String, Vec<bool>)>;

fn state(record: &Arc<Disk>) -> Option<(Changes, Vec<String>)> {
    let below = Disk::new(SIZE, Vec::new());
    let options = CheckpointOptions::new().block(BLOCK as u32);
    let opened = CheckpointDriver::open(below, Arc::clone(record) as _, options, workqueue());
    let (driver, faults) = opened.ok()?;
    let mut all: Changes = Vec::new();
    for name in driver.names() {
        let stretches = driver.changed(&name, 0, SIZE, usize::MAX).expect("it is there");
        assert_eq!(stretches.iter().map(|(len, _)| len).sum::<u64>(), SIZE);
        let blocks = |(len, changed): &(u64, bool)| vec![*changed; len.div_ceil(BLOCK) as usize];
        let changed: Vec<bool> = stretches.iter().flat_map(blocks).collect();
        if let Some((older, before)) = all.last() {
            let fewer = changed.iter().zip(before).all(|(now, before)| *before || !now);
            assert!(fewer, "more changed since '{name}' than since '{older}'");
        }
        assert!(all.iter().all(|(other, _)| *other != name), "two of the name '{name}'");
        all.push((name, changed));
    }
    Some((all, faults))
}

/// Corrects the checksum of a piece, which lies at `at`.
fn seal(piece: &mut [u8], at: usize) {
    piece[at..at + 4].fill(0);
    let crc = crate::partition_table::crc32(piece);
    piece[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns a record with these checkpoints, each by its name and epoch, and a page.
fn record(
    epoch: u16,
    checkpoints: &[(&str, u16)],
    open: u128,
    changes: &[(usize, u16)],
) -> Vec<u8> {
    let mut bytes = vec![0; RECORD];
    for head in [0, 4096] {
        let mut put = |at: usize, what: &[u8]| {
            bytes[head + at..head + at + what.len()].copy_from_slice(what);
        };
        put(0, b"cw-chkp1");
        put(12, &12_u32.to_le_bytes());
        put(16, &7_u64.to_le_bytes());
        put(32, &SIZE.to_le_bytes());
        put(40, &epoch.to_le_bytes());
        put(42, &(checkpoints.len() as u16).to_le_bytes());
        for (n, (name, epoch)) in checkpoints.iter().enumerate() {
            put(64 + n * 80, name.as_bytes());
            put(64 + n * 80 + 72, &epoch.to_le_bytes());
        }
        seal(&mut bytes[head..head + 4096], 8);
    }
    bytes[8208..8224].copy_from_slice(&open.to_le_bytes());
    for (block, epoch) in changes {
        bytes[8224 + 2 * block..][..2].copy_from_slice(&epoch.to_le_bytes());
    }
    for (piece, number) in [(8192, 0_u32), (12288, u32::MAX)] {
        let piece = &mut bytes[piece..piece + 4096];
        piece[..4].copy_from_slice(b"cwcp");
        piece[8..12].copy_from_slice(&number.to_le_bytes());
        piece[12..16].copy_from_slice(&7_u32.to_le_bytes());
        seal(piece, 4);
    }
    bytes
}

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let two = || record(3, &[("monday", 2), ("tuesday", 3)], 0b10, &[(0, 1), (1, 2), (40, 3)]);
    let with = |at: usize, bytes: &[u8]| {
        let mut record = two();
        record[at..at + bytes.len()].copy_from_slice(bytes);
        record
    };
    vec![
        ("two-checkpoints", two()),
        ("none", record(0, &[], 0, &[])),
        ("one-name-twice", record(3, &[("a", 2), ("a", 3)], 0, &[])),
        ("epochs-backwards", record(3, &[("a", 3), ("b", 2)], 0, &[])),
        ("a-later-epoch-than-the-head", record(3, &[("a", 2)], u128::MAX, &[(99, 60_000)])),
        ("the-last-epoch", record(u16::MAX, &[("a", u16::MAX)], 1, &[(5, u16::MAX)])),
        ("as-many-as-can-be", with(42, &[0xFF; 2])),
        ("one-head", with(0, &[0; 4096])),
        ("a-larger-volume", with(32, &[0xFF; 8])),
        ("larger-blocks", with(12, &[63])),
        ("another-page", with(8200, &[9])),
        ("no-page", with(8192, &[0; 4096])),
        ("cut-off", with(8192, &[0; 8192])),
        ("empty", Vec::new()),
    ]
}
