//! The target for GUID partition tables: the contents of a disk can't be trusted.

use std::ops::Range;

use corewise_blockmq::{BlockDevice, Geometry, Op, Request};
use corewise_drivers::PartitionTable;

use crate::seeds::Seed;

const BLOCK: usize = 512;

/// A disk that holds these bytes and is only read.
struct Disk(Vec<u8>);

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "disk"
    }

    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..Geometry::new(self.0.len() as u64) }
    }

    fn submit(&self, mut rq: Request) {
        assert_eq!(rq.op(), Op::Read, "a table is only read");
        let range = rq.offset() as usize..(rq.offset() + rq.len()) as usize;
        assert!(range.start % BLOCK == 0 && range.end % BLOCK == 0);
        rq.put(self.0.get(range).expect("a read inside the disk"));
        rq.complete(Ok(()));
    }
}

/// Reads these bytes as a disk: unchanged, and with corrected checksums, so that lies get past
/// them.
///
/// # Panics
/// If a read leaves the disk, a partition does, two of them overlap, or the same bytes give another
/// table.
pub fn partition_table(data: &[u8]) {
    let mut disk = data.to_vec();
    disk.resize(data.len().next_multiple_of(BLOCK), 0);
    read(disk.clone());
    if disk.len() >= 3 * BLOCK {
        let last = disk.len() - BLOCK;
        for header in [BLOCK, last] {
            sum(&mut disk, header);
        }
        read(disk);
    }
}

fn read(bytes: Vec<u8>) {
    let disk = Disk(bytes);
    let Ok(table) = PartitionTable::read(&disk) else { return };
    let size = disk.0.len() as u64;
    let mut taken: Vec<Range<u64>> = Vec::new();
    for partition in &table.partitions {
        let end = partition.start.checked_add(partition.size).expect("an end");
        assert!(partition.start < end && end <= size, "{partition:?} on a disk of {size} bytes");
        assert!(taken.iter().all(|other| end <= other.start || other.end <= partition.start));
        taken.push(partition.start..end);
        let number = partition.number.to_string();
        assert_eq!(table.find(&number), Some(partition));
    }
    assert!(!table.from_backup || !table.damage.is_empty(), "a bad copy is told");
    assert_eq!(PartitionTable::read(&disk).ok(), Some(table), "another table the second time");
}

/// Corrects the checksums of the header in this block, and of the entries that it names.
fn sum(disk: &mut [u8], header: usize) {
    let long = |disk: &[u8], at: usize| {
        let bytes = disk[header + at..header + at + 8].try_into().expect("8 bytes");
        u64::from_le_bytes(bytes)
    };
    let first = long(disk, 72).saturating_mul(BLOCK as u64);
    let len = (long(disk, 80) as u32 as u64).saturating_mul(128);
    let end = first.saturating_add(len);
    if let Some(entries) = disk.get(first as usize..end as usize) {
        let crc = crc32(entries);
        disk[header + 88..header + 92].copy_from_slice(&crc.to_le_bytes());
    }
    disk[header + 16..header + 20].fill(0);
    let crc = crc32(&disk[header..header + 92]);
    disk[header + 16..header + 20].copy_from_slice(&crc.to_le_bytes());
}

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0xEDB8_8320 & (c & 1).wrapping_neg()))
    })
}

/// Returns a disk of `blocks` blocks with these partitions, each by its first and last block. The
/// table is as small as possible: four entries in each copy.
fn disk(blocks: u64, partitions: &[(u64, u64)]) -> Vec<u8> {
    let mut disk = vec![0; blocks as usize * BLOCK];
    disk[450] = 0xEE;
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    let last = blocks - 1;
    for (at, other, entries) in [(1, last, 2), (last, 1, last - 1)] {
        let mut header = b"EFI PART\0\0\x01\0\x5C\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        for long in [at, other, 3, last - 2] {
            header.extend(long.to_le_bytes());
        }
        header.extend([7; 16]);
        header.extend(entries.to_le_bytes());
        for word in [4u32, 128, 0] {
            header.extend(word.to_le_bytes());
        }
        let at = at as usize * BLOCK;
        disk[at..at + header.len()].copy_from_slice(&header);
        for (n, (first, last)) in partitions.iter().enumerate() {
            let mut entry = vec![n as u8 + 1; 32];
            for long in [*first, *last, 0] {
                entry.extend(long.to_le_bytes());
            }
            entry.extend("data".encode_utf16().flat_map(u16::to_le_bytes));
            let at = entries as usize * BLOCK + n * 128;
            disk[at..at + entry.len()].copy_from_slice(&entry);
        }
        sum(&mut disk, at);
    }
    disk
}

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let with = |at: usize, bytes: &[u8]| {
        let mut disk = disk(12, &[(3, 5), (6, 8)]);
        disk[at..at + bytes.len()].copy_from_slice(bytes);
        disk
    };
    vec![
        ("two-partitions", disk(12, &[(3, 5), (6, 8)])),
        ("none", disk(8, &[])),
        ("overlapping", disk(12, &[(3, 7), (6, 8), (3, 3)])),
        ("beyond-the-end", disk(12, &[(3, u64::MAX), (9, 2)])),
        ("no-primary", with(512, &[0; 512])),
        ("no-backup", with(11 * 512, &[0; 512])),
        ("as-many-entries-as-can-be", with(512 + 80, &[0xFF; 4])),
        ("entries-of-another-size", with(512 + 84, &[0, 1, 0, 0])),
        ("entries-far-away", with(512 + 72, &[0xFF; 8])),
        ("made-larger", [disk(12, &[(3, 5)]), vec![0; 4096]].concat()),
        ("empty", Vec::new()),
    ]
}
