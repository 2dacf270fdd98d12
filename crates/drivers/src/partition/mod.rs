//! `partition`: a range of another block device, given by numbers or by its GUID partition table.

use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Op, Remap,
    Request, Started, Whole,
};
use corewise_sync::atomic::{AtomicU64, Ordering};
use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, HeaderError};
use gpt::partition::Partition as GptEntry;

use crate::below::{StackError, pass_on};

/// A part of a device. Its first byte is byte `start` there. The queue in front of it refuses what
/// reaches beyond its end, so no request touches its neighbours.
///
/// A flush makes durable what the device below has, its neighbours' data too. If one fails there,
/// for any partition, changes of all may be lost: the next flush of each fails.
#[derive(Clone)]
pub struct Partition {
    below: Arc<dyn BlockDevice>,
    start: u64,
    geometry: Geometry,
    /// A: number of [losses](BlockDevice::losses) below that a flush here has reported. Relaxed:
    /// the ends of flushes alone compare it, one at a time.
    told: Arc<AtomicU64>,
}

impl Partition {
    /// Creates a partition of the `size` bytes of `below` from byte `start` on.
    ///
    /// # Errors
    /// If that is nothing, isn't in whole blocks of `below`, or reaches beyond its end.
    pub fn new(below: Arc<dyn BlockDevice>, start: u64, size: u64) -> Result<Self, StackError> {
        let whole = below.geometry();
        let block = u64::from(whole.block_size);
        let what = || format!("a partition of {size} bytes from byte {start} on");
        let fits = |bytes: u64| bytes.checked_rem(block) == Some(0);
        if size == 0 || !fits(start) || !fits(size) {
            return Err(StackError::new(format!(
                "{}: it must consist of whole blocks of {block} bytes, at least one",
                what()
            )));
        }
        if start.checked_add(size).is_none_or(|end| end > whole.size) {
            return Err(StackError::new(format!(
                "{}: '{}' ends at byte {}",
                what(),
                below.name(),
                whole.size
            )));
        }
        // If the boundaries below aren't ours, the queue below splits by itself.
        let chunk = if start % u64::from(whole.chunk.max(1)) == 0 { whole.chunk } else { 0 };
        let told = Arc::new(AtomicU64::new(below.losses()));
        Ok(Self { below, start, geometry: Geometry { size, chunk, ..whole }, told })
    }

    /// Creates the partition that `entry` of a table of `below` describes.
    ///
    /// # Errors
    /// See [`Partition::new`].
    pub fn of_entry(
        below: Arc<dyn BlockDevice>,
        entry: &PartitionEntry,
    ) -> Result<Self, StackError> {
        Self::new(below, entry.start, entry.size)
    }
}

impl Driver for Partition {
    fn info(&self) -> Info {
        let over = Info::over("partition", &*self.below);
        Info { geometry: self.geometry, knows_extents: true, remaps: true, ..over }
    }

    fn is_outdated(&self) -> bool {
        self.below.is_outdated()
    }

    fn remap(&self, rq: &Request) -> Option<Remap<'_>> {
        Some(Remap { device: &*self.below, offset: self.start + rq.offset() })
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if rq.op() == Op::Flush {
            self.flush(rq);
        } else {
            let offset = self.start + rq.offset();
            pass_on(&*self.below, rq, offset);
        }
        Dispatch::Started
    }
}

impl Partition {
    /// Flushes the device below, which reports a loss once, to the first flush. A flush that comes
    /// while that one is in flight there ends after it.
    fn flush(&self, rq: Started) {
        let (below, told) = (Arc::clone(&self.below), Arc::clone(&self.told));
        let whole = Whole::with(rq, move |rq, result| {
            if result.as_ref().is_err_and(|error| !error.kind().may_be_a_loss(Op::Flush)) {
                // It was refused, and has reported nothing.
                return rq.complete(result);
            }
            let losses = below.losses();
            let is_told = told.swap(losses, Ordering::Relaxed) == losses;
            rq.complete(result.and_then(|()| if is_told { Ok(()) } else { Err(untold(&*below)) }));
        });
        self.below.submit(whole.part(0, 0, 0));
    }
}

fn untold(below: &dyn BlockDevice) -> IoError {
    let what = format!(
        "a flush of '{}' failed, and another partition of that device got the error. Changes of \
         this partition since its last successful flush may be lost, too",
        below.name()
    );
    IoError::with(IoErrorKind::Io(libc::EIO), what)
}

// Reading a GUID partition table: both copies, both checksums, and a report of all that is wrong.
//
// The `gpt` crate decodes and checks sectors. The sectors to read, their number and the treatment
// of damage are decided here, as in the kernel's `block/partitions/efi.c`. The bytes may come from
// an attacker: no number in them is used before it has been compared with the device's size.

/// Bytes of an entry. The standard allows larger ones; no tool writes them, and the kernel refuses
/// them too.
const ENTRY: u32 = 128;
/// Largest number of entries that are read. Tools write 128; the largest table in use anywhere is
/// far smaller.
const MOST_ENTRIES: u32 = 1024;

/// A GUID partition table, with the faults in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionTable {
    /// The partitions that can be used, by number.
    pub partitions: Vec<PartitionEntry>,
    /// True if the copy at the end of the device was used, since the one at its beginning is bad.
    pub from_backup: bool,
    /// All faults, in words; empty for a sound table.
    pub damage: Vec<String>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionEntry {
    /// Its number, from 1.
    pub number: u32,
    /// Its name, perhaps empty.
    pub name: String,
    /// Its own GUID, as `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub guid: String,
    /// The GUID of its type.
    pub type_guid: String,
    /// Its first byte.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
}

impl PartitionTable {
    /// Reads the table of `device`. If one of its two copies is bad, the other one is used, and
    /// [`damage`](PartitionTable::damage) says so. Nothing is written. May block, as long as reads
    /// of the device do.
    ///
    /// # Errors
    /// If neither copy is good; the text says what is wrong with each.
    #[track_caller]
    pub fn read(device: &dyn BlockDevice) -> Result<Self, StackError> {
        let disk = Disk { size: device.geometry().size, read: &|range| whole(device, range) };
        read(&disk)
    }

    /// Returns the partition with this number, this GUID or this name. A GUID or a name must be
    /// that of one partition only.
    pub fn find(&self, which: &str) -> Option<&PartitionEntry> {
        if let Ok(number) = which.parse::<u32>() {
            return self.partitions.iter().find(|p| p.number == number);
        }
        let mut found = self
            .partitions
            .iter()
            .filter(|p| p.guid.eq_ignore_ascii_case(which) || p.name == which);
        found.next().filter(|_| found.next().is_none())
    }
}

/// Reads any range of a device by reading the blocks that it lies in.
fn whole(device: &dyn BlockDevice, range: Range<u64>) -> Result<Vec<u8>, String> {
    let block = u64::from(device.geometry().block_size);
    let start = range.start / block * block;
    let len = range.end.next_multiple_of(block) - start;
    let data = device.read_at(start, len as usize).map_err(|error| error.to_string())?;
    let skip = (range.start - start) as usize;
    Ok(data[skip..skip + (range.end - range.start) as usize].to_vec())
}

/// The device that the table is read from. `read` is called for ranges inside of `size` only.
struct Disk<'a> {
    size: u64,
    read: &'a dyn Fn(Range<u64>) -> Result<Vec<u8>, String>,
}

/// One copy of the table.
struct Copy {
    header: Header,
    entries: Vec<(u32, GptEntry)>,
    /// Bytes of a block, as the table counts them.
    lb: u64,
}

/// The fault of a copy that can't be used.
struct TableFault {
    why: String,
    /// True if there is no sign of a table.
    absent: bool,
}

impl TableFault {
    fn damaged(why: impl Into<String>) -> Self {
        Self { why: why.into(), absent: false }
    }
}

fn read(disk: &Disk<'_>) -> Result<PartitionTable, StackError> {
    let mut why = "found no GUID partition table; make one with a partition tool (gdisk), or use \
                   the whole device"
        .to_owned();
    for lb in [LogicalBlockSize::Lb512, LogicalBlockSize::Lb4096] {
        let last = (disk.size / lb.as_u64()).saturating_sub(1);
        let primary = copy(disk, lb, 1);
        // If the disk was made larger later, the backup is where the primary says.
        let place = primary.as_ref().map_or(last, |copy| copy.header.backup_lba);
        let backup = copy(disk, lb, place);
        match (primary, backup) {
            (Err(one), Err(two)) if one.absent && two.absent => {}
            (Err(one), Err(two)) => {
                why = format!(
                    "both copies of the GUID partition table are damaged; the first: {}; the \
                     backup: {}; repair one of them with a partition tool (gdisk)",
                    one.why, two.why
                );
            }
            (Ok(copy), backup) => return Ok(table(disk, [last, place], copy, backup, false)),
            (Err(bad), Ok(backup)) => {
                return Ok(table(disk, [last, place], backup, Err(bad), true));
            }
        }
    }
    Err(StackError::new(why))
}

/// Reads the copy whose header is in block `lba`.
fn copy(disk: &Disk<'_>, lb: LogicalBlockSize, lba: u64) -> Result<Copy, TableFault> {
    let block = lb.as_u64();
    let blocks = disk.size / block;
    if lba == 0 || lba >= blocks {
        return Err(TableFault { why: format!("the device has no block {lba}"), absent: true });
    }
    let at = lba * block;
    let sector = (disk.read)(at..at + block).map_err(TableFault::damaged)?;
    let header = header(sector, lb)?;
    if header.current_lba != lba {
        let says = format!("its header lies in block {lba} but names block {}", header.current_lba);
        return Err(TableFault::damaged(says));
    }
    if header.part_size != ENTRY || header.num_parts == 0 || header.num_parts > MOST_ENTRIES {
        return Err(TableFault::damaged(format!(
            "its header names {} entries of {} bytes; a table has 1 to {MOST_ENTRIES} entries of \
             {ENTRY} bytes",
            header.num_parts, header.part_size
        )));
    }
    let len = u64::from(header.num_parts) * u64::from(ENTRY);
    let start = header.part_start.checked_mul(block);
    let range = start.and_then(|start| Some(start..start.checked_add(len)?));
    let range = range.filter(|range| range.end <= disk.size).ok_or_else(|| {
        TableFault::damaged(format!(
            "its entries would begin in block {} and end beyond the device",
            header.part_start
        ))
    })?;
    let usable = header.first_usable..=header.last_usable;
    if usable.is_empty() || header.last_usable >= blocks {
        let (first, last) = (header.first_usable, header.last_usable);
        let says = format!(
            "its usable blocks would be {first} to {last}, but the device has {blocks} blocks"
        );
        return Err(TableFault::damaged(says));
    }
    let bytes = (disk.read)(range).map_err(TableFault::damaged)?;
    let entries = entries(bytes, &header, lb)?;
    Ok(Copy { header, entries, lb: block })
}

fn header(sector: Vec<u8>, lb: LogicalBlockSize) -> Result<Header, TableFault> {
    // The crate looks at block 1 of what it is given.
    let mut disk = vec![0; lb.as_usize()];
    disk.extend(sector);
    gpt::header::read_header_from_arbitrary_device(&mut Cursor::new(disk), lb).map_err(|error| {
        match error {
            HeaderError::InvalidGptSignature => {
                TableFault { why: "its header has no signature".to_owned(), absent: true }
            }
            HeaderError::InvalidCRC32Checksum => {
                TableFault::damaged("the checksum (CRC-32) of its header is wrong")
            }
            other => TableFault::damaged(other.to_string()),
        }
    })
}

fn entries(
    bytes: Vec<u8>,
    header: &Header,
    lb: LogicalBlockSize,
) -> Result<Vec<(u32, GptEntry)>, TableFault> {
    let header = Header { part_start: 0, ..header.clone() };
    gpt::partition::file_read_partitions(&mut Cursor::new(bytes), &header, lb)
        .map(|entries| entries.into_iter().collect())
        .map_err(|_| TableFault::damaged("the checksum (CRC-32) of its entries is wrong"))
}

/// Returns the content of a good copy, with the faults of the other one. The backup lies in block
/// `place`; it belongs into block `last`.
fn table(
    disk: &Disk<'_>,
    [last, place]: [u64; 2],
    copy: Copy,
    other: Result<Copy, TableFault>,
    from_backup: bool,
) -> PartitionTable {
    let mut damage = Vec::new();
    if !protected(disk) {
        damage.push(
            "block 0 has no protective MBR, so other tools may take the disk for empty".into(),
        );
    }
    match other {
        Ok(backup) => {
            if place != last {
                damage.push(format!(
                    "the backup lies in block {place}, but the device has grown and now ends with \
                     block {last}; move the backup there with a partition tool (sgdisk -e)"
                ));
            }
            if copy.entries != backup.entries || copy.header.disk_guid != backup.header.disk_guid {
                damage.push("the backup differs from the first copy, which is used".into());
            }
        }
        Err(bad) if from_backup => {
            damage.push(format!(
                "the first copy is bad: {}; the backup is used; rewrite the first copy with a \
                 partition tool (gdisk)",
                bad.why
            ));
        }
        Err(bad) => damage.push(format!(
            "the backup in block {place} is bad: {}; rewrite it with a partition tool (gdisk)",
            bad.why
        )),
    }
    let lb = copy.lb;
    let usable = copy.header.first_usable..=copy.header.last_usable;
    let mut partitions: Vec<PartitionEntry> = Vec::new();
    let mut taken: Vec<(u32, Range<u64>)> = Vec::new();
    for (number, entry) in &copy.entries {
        if entry.part_type_guid.guid == gpt::partition_types::UNUSED.guid {
            continue;
        }
        let (first, past) = (entry.first_lba, entry.last_lba.saturating_add(1));
        if first >= past || !usable.contains(&first) || !usable.contains(&entry.last_lba) {
            damage.push(format!(
                "partition {number} is left out: its blocks {first} to {} are not within the \
                 usable blocks {} to {}",
                entry.last_lba,
                usable.start(),
                usable.end()
            ));
            continue;
        }
        if let Some((other, _)) = taken.iter().find(|(_, r)| first < r.end && r.start < past) {
            damage.push(format!("partition {number} is left out: it overlaps partition {other}"));
            continue;
        }
        taken.push((*number, first..past));
        partitions.push(PartitionEntry {
            number: *number,
            name: entry.name.clone(),
            guid: entry.part_guid.to_string(),
            type_guid: entry.part_type_guid.guid.to_string(),
            start: first * lb,
            size: (past - first) * lb,
        });
    }
    PartitionTable { partitions, from_backup, damage }
}

/// Returns true if block 0 tells tools that know no GPT that the disk is full.
fn protected(disk: &Disk<'_>) -> bool {
    let Ok(mbr) = (disk.read)(0..512) else { return false };
    let types = [446 + 4, 462 + 4, 478 + 4, 494 + 4];
    mbr[510..] == [0x55, 0xAA] && types.iter().any(|&at| mbr[at] == 0xEE)
}
