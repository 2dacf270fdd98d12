//! Partitions: the entries of a table, the reports about a damaged one, and that neighbours are
//! left alone.
#![cfg(not(loom))]

use std::io::Cursor;
use std::sync::Arc;

use crate::common::{Rig, Rng};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, IoErrorKind, Op, Queue};
use corewise_drivers::{Fault, Faulty, Memory, Partition, PartitionTable};
use gpt::disk::LogicalBlockSize;

const MIB: usize = 1 << 20;
const LB: usize = 512;

/// Makes a disk of 4 MiB with two partitions of 1 MiB, as bytes.
fn image(lb: LogicalBlockSize) -> Vec<u8> {
    let mut bytes = Cursor::new(vec![0u8; 4 * MIB]);
    let blocks = (4 * MIB / lb.as_usize() - 1) as u32;
    gpt::mbr::ProtectiveMBR::with_lb_size(blocks).overwrite_lba0(&mut bytes).unwrap();
    let config = gpt::GptConfig::new().writable(true).logical_block_size(lb);
    let mut disk = config.create_from_device(bytes, None).unwrap();
    for name in ["root", "data"] {
        disk.add_partition(name, MIB as u64, gpt::partition_types::LINUX_FS, 0, None).unwrap();
    }
    disk.write().unwrap().into_inner()
}

fn disk(rig: &Rig, image: &[u8]) -> Arc<Queue> {
    let disk = rig.queue(Memory::new(image.len() as u64).unwrap());
    disk.write_at(0, image.to_vec()).unwrap();
    disk
}

fn read(rig: &Rig, image: &[u8]) -> Result<PartitionTable, String> {
    PartitionTable::read(&disk(rig, image)).map_err(|error| error.to_string())
}

/// Returns the CRC-32 of zip and of GPT.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0xEDB8_8320 & (c & 1).wrapping_neg()))
    })
}

/// Changes the first header and makes its checksum right again.
fn forge(image: &mut [u8], at: usize, bytes: &[u8]) {
    let header = &mut image[LB..LB + 92];
    header[at..at + bytes.len()].copy_from_slice(bytes);
    header[16..20].fill(0);
    let sum = crc(header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_sound_table_is_read_without_a_complaint() {
    let rig = Rig::live();
    for lb in [LogicalBlockSize::Lb512, LogicalBlockSize::Lb4096] {
        let table = read(&rig, &image(lb)).unwrap();
        assert_eq!((&table.damage[..], table.from_backup), (&[][..], false));
        let [root, data] = &table.partitions[..] else { panic!("{table:?}") };
        assert_eq!((root.number, &root.name[..], root.size), (1, "root", MIB as u64));
        assert_eq!((data.number, &data.name[..], data.size), (2, "data", MIB as u64));
        assert!(root.start + root.size <= data.start);
        assert_eq!(table.find("2"), Some(data));
        assert_eq!(table.find("root"), Some(root));
        assert_eq!(table.find(&data.guid.to_uppercase()), Some(data));
        assert_eq!((table.find("3"), table.find("boot")), (None, None));
    }
}

#[test]
fn a_bad_first_copy_is_told_and_the_backup_is_used() {
    let rig = Rig::live();
    let sound = image(LogicalBlockSize::Lb512);
    let want = read(&rig, &sound).unwrap().partitions;
    // A byte of the header, one of the entries, and the whole beginning of the disk.
    for (range, why) in [
        (LB + 60..LB + 61, "checksum (CRC-32) of its header is wrong"),
        (2 * LB + 40..2 * LB + 41, "checksum (CRC-32) of its entries"),
        (LB..64 * LB, "no signature"),
    ] {
        let mut image = sound.clone();
        image[range].iter_mut().for_each(|byte| *byte = !*byte);
        let table = read(&rig, &image).unwrap();
        assert!(table.from_backup);
        assert_eq!(table.partitions, want);
        let [damage] = &table.damage[..] else { panic!("{table:?}") };
        assert!(damage.contains("first copy") && damage.contains(why), "{damage}");
    }
}

#[test]
fn a_bad_backup_is_told_and_changes_nothing() {
    let rig = Rig::live();
    let sound = image(LogicalBlockSize::Lb512);
    let want = read(&rig, &sound).unwrap().partitions;
    let mut image = sound;
    let last = image.len() - LB;
    image[last + 30] ^= 1;
    let table = read(&rig, &image).unwrap();
    assert_eq!((table.partitions, table.from_backup), (want, false));
    assert!(table.damage[0].contains("the backup in block 8191 is bad"), "{:?}", table.damage);
}

#[test]
fn where_both_copies_are_bad_both_reasons_are_told() {
    let rig = Rig::live();
    let mut image = image(LogicalBlockSize::Lb512);
    let last = image.len() - LB;
    image[LB + 30] ^= 1;
    image[last..].fill(0);
    let error = read(&rig, &image).unwrap_err();
    assert!(error.contains("CRC-32") && error.contains("signature"), "{error}");
    let error = read(&rig, &vec![0; MIB]).unwrap_err();
    assert!(error.starts_with("found no GUID partition table"), "{error}");
}

#[test]
fn a_disk_that_was_made_larger_keeps_its_backup_where_it_was() {
    let rig = Rig::live();
    let mut image = image(LogicalBlockSize::Lb512);
    image.resize(6 * MIB, 0);
    let table = read(&rig, &image).unwrap();
    assert_eq!(table.partitions.len(), 2);
    assert!(table.damage[0].contains("has grown"), "{:?}", table.damage);
}

#[test]
fn a_table_that_lies_with_a_good_checksum_makes_no_harm() {
    let rig = Rig::live();
    let sound = image(LogicalBlockSize::Lb512);
    for (at, bytes, why) in [
        (72, &u64::MAX.to_le_bytes()[..], "its entries would begin in block"),
        (72, &8190u64.to_le_bytes()[..], "its entries would begin in block 8190"),
        (80, &u32::MAX.to_le_bytes()[..], "4294967295 entries"),
        (84, &4096u32.to_le_bytes()[..], "entries of 4096 bytes"),
        (48, &u64::MAX.to_le_bytes()[..], "its usable blocks would be"),
        (24, &9u64.to_le_bytes()[..], "its header lies in block 1 but names block 9"),
    ] {
        let mut image = sound.clone();
        forge(&mut image, at, bytes);
        let table = read(&rig, &image).unwrap();
        assert!(table.from_backup && table.damage[0].contains(why), "{:?}", table.damage);
    }
}

#[test]
fn partitions_that_overlap_or_leave_the_disk_are_left_out_and_named() {
    let rig = Rig::live();
    let mut image = image(LogicalBlockSize::Lb512);
    let first = image[2 * LB + 32..2 * LB + 40].to_vec();
    // The second begins where the first does; a third begins beyond the end.
    image[2 * LB + 128 + 32..2 * LB + 128 + 40].copy_from_slice(&first);
    let copy = image[2 * LB..2 * LB + 128].to_vec();
    image[2 * LB + 256..2 * LB + 384].copy_from_slice(&copy);
    image[2 * LB + 256 + 32..2 * LB + 256 + 48].fill(0x7F);
    let sum = crc(&image[2 * LB..2 * LB + 128 * 128]);
    forge(&mut image, 88, &sum.to_le_bytes());
    let table = read(&rig, &image).unwrap();
    assert_eq!(table.partitions.len(), 1);
    assert!(table.damage.iter().any(|d| d.contains("partition 2 is left out: it overlaps")));
    assert!(table.damage.iter().any(|d| d.contains("partition 3 is left out: its blocks")));
}

#[test]
fn no_bytes_make_a_partition_reach_beyond_its_disk() {
    let rig = Rig::live();
    let sound = image(LogicalBlockSize::Lb512);
    let disk = disk(&rig, &sound);
    let mut rng = Rng::new(5);
    for _ in 0..300 {
        let mut head = sound[..2 * LB + 512].to_vec();
        for _ in 0..1 + rng.below(4) {
            let at = LB + rng.below((head.len() - LB) as u64) as usize;
            head[at] = rng.next() as u8;
        }
        // Checksums that are right get the damage past them.
        let mut image = head.clone();
        image.extend_from_slice(&sound[head.len()..2 * LB + 128 * 128]);
        let sum = crc(&image[2 * LB..]);
        if rng.below(2) == 0 {
            forge(&mut head, 88, &sum.to_le_bytes());
        }
        disk.write_at(0, head).unwrap();
        if let Ok(table) = PartitionTable::read(&disk) {
            for entry in &table.partitions {
                Partition::of_entry(disk.clone(), entry).unwrap();
            }
        }
    }
}

#[test]
fn writes_to_a_partition_touch_nothing_else() {
    let rig = Rig::live();
    let disk = rig.queue(Memory::new(MIB as u64).unwrap());
    disk.write_at(0, vec![9; MIB]).unwrap();
    let (start, size) = (8192, 65536);
    let part = rig.queue(Partition::new(disk.clone(), start, size).unwrap());
    assert_eq!(part.geometry().size, size);
    part.write_at(0, vec![1; 512]).unwrap();
    part.write_at(size - 512, vec![2; 512]).unwrap();
    part.write_zeroes(512, 1024).unwrap();
    part.flush().unwrap();
    assert_eq!(part.write_at(size, vec![3; 512]).unwrap_err().kind(), IoErrorKind::NoSpace);
    assert_eq!(part.read_at(size - 512, 1024).unwrap_err().kind(), IoErrorKind::OutOfRange);
    let mut want = vec![9; MIB];
    want[8192..8704].fill(1);
    want[8704..9728].fill(0);
    want[8192 + 65536 - 512..8192 + 65536].fill(2);
    assert!(disk.read_at(0, MIB).unwrap() == want[..]);
}

/// Plays a volume on another machine that reports a loss once, because its connection broke.
#[test]
fn a_loss_that_the_disk_tells_once_is_told_by_the_next_flush_of_each_partition() {
    let rig = Rig::live();
    let memory = rig.queue(Memory::new(MIB as u64).unwrap());
    let once = Fault::new().on(&[Op::Flush]).times(1);
    let refused = once.clone().errno(95);
    let disk = rig.queue(Faulty::new(memory, vec![once, refused], 0));
    let part = |n: u64| rig.queue(Partition::new(disk.clone(), n * 4096, 4096).unwrap());
    let (a, b) = (part(0), part(1));
    let ends = |part: &Queue| part.flush().map_err(|error| error.kind());
    let eio = Err(IoErrorKind::Io(5));
    assert_eq!(ends(&a), eio);
    assert_eq!(ends(&b), Err(IoErrorKind::NotSupported), "refused, it tells nothing");
    let late = part(2);
    assert_eq!([&a, &b, &late].map(|part| ends(part)), [Ok(()), eio, Ok(())]);
    assert_eq!([&a, &b, &late].map(|part| ends(part)), [Ok(()); 3]);
    assert_eq!([&disk, &a, &b, &late].map(|queue| queue.losses()), [1, 1, 1, 0]);
}

#[test]
fn partitions_that_cannot_be_are_refused_with_the_reason() {
    let rig = Rig::live();
    let disk: Arc<dyn BlockDevice> = rig.queue(Memory::new(MIB as u64).unwrap());
    let refused =
        |start, size| Partition::new(disk.clone(), start, size).err().unwrap().to_string();
    assert!(refused(0, 0).contains("at least one"));
    assert!(refused(100, 512).contains("whole blocks of 512"));
    assert!(refused(512, MIB as u64).contains("ends at byte 1048576"));
    assert!(refused(u64::MAX - 511, 512).contains("ends at byte"));
}

#[test]
fn a_request_of_a_partition_needs_no_tag_and_its_error_has_its_own_range() {
    let rig = Rig::live();
    let memory = rig.queue(Memory::new(4 * MIB as u64).unwrap());
    let start = MIB as u64;
    let fault = Fault::new().range(start + 1024..start + 1536);
    let below = rig.queue(Faulty::new(memory, vec![fault.on(&[Op::Read])], 1));
    let queue = rig.queue(Partition::new(below, start, start).unwrap());
    queue.write_at(0, vec![1; 1024]).unwrap();
    assert_eq!(queue.read_at(0, 1024).unwrap(), [1; 1024][..]);
    let error = queue.read_at(512, 1024).unwrap_err();
    assert_eq!(error.range(), Some(512..1536));
    let stats = queue.stats();
    assert_eq!(stats.iter().map(|hctx| (hctx.remapped, hctx.dispatched)).max(), Some((3, 0)));
}
