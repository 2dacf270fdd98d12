//! The target for LUKS2 headers: the contents of a disk can't be trusted.
//!
//! The first byte of an input is a set of flags. The rest is the JSON text of a header whose
//! numbers and checksums are right, or the begin of a disk.

use std::ops::Range;

use corewise_blockmq::{BlockDevice, Geometry, Op, Request};
use corewise_drivers::model::header_data;
use sha2::{Digest, Sha256};

use crate::seeds::Seed;

/// Bytes of a disk.
const SIZE: usize = 64 << 20;
const BLOCK: u64 = 512;
/// Bytes of the numbers in front of the text.
const NUMBERS: usize = 4096;

/// Flags of an input: the rest is the begin of a disk.
const RAW: u8 = 1;
/// There is no first copy, or no second one.
const NO_FIRST: u8 = 2;
const NO_SECOND: u8 = 4;
/// The checksum of the first copy is wrong.
const BAD_FIRST: u8 = 8;
/// The second copy is newer.
const NEWER_SECOND: u8 = 16;
/// The second copy belongs to another volume.
const OTHER_SECOND: u8 = 32;
/// The copies are larger.
const LARGER: u8 = 64;

/// A disk that begins with these bytes, has zeroes behind them, and is only read.
struct Disk(Vec<u8>);

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "disk"
    }

    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..Geometry::new(SIZE as u64) }
    }

    fn submit(&self, mut rq: Request) {
        assert_eq!(rq.op(), Op::Read, "a header is only read");
        assert!(rq.offset() % BLOCK == 0 && rq.len() % BLOCK == 0 && rq.len() <= 8 << 20);
        let range = rq.offset() as usize..(rq.offset() + rq.len()) as usize;
        assert!(range.end <= SIZE, "a read inside the disk");
        let end = range.end.min(self.0.len());
        let bytes = self.0.get(range.start..end).unwrap_or_default();
        rq.put(bytes);
        rq.put_zeroes(rq.len() - bytes.len() as u64);
        rq.complete(Ok(()));
    }
}

/// Reads these bytes as the header of a disk.
///
/// # Panics
/// If a read leaves the disk or is too large, the data does, a damaged copy isn't reported, or the
/// same bytes give another result.
pub fn luks(data: &[u8]) {
    let (&flags, rest) = data.split_first().unwrap_or((&0, &[]));
    let is = |flag: u8| flags & flag != 0;
    let disk = match is(RAW) {
        true => Disk(rest.to_vec()),
        false => Disk(disk(flags, rest)),
    };
    let found = header_data(&disk);
    assert_eq!(header_data(&disk), found, "another header the second time");
    let Ok(Some((data, damaged))) = found else { return };
    let Range { start, end } = data;
    assert!(start != 0 && start <= end && end <= SIZE as u64, "{start}..{end}");
    if !is(RAW) {
        assert!(!is(NO_FIRST) || !is(NO_SECOND), "there is no header");
        assert!(!is(OTHER_SECOND) || is(NO_FIRST | NO_SECOND | BAD_FIRST), "two volumes");
        assert_eq!(damaged, is(NO_FIRST | NO_SECOND | BAD_FIRST | NEWER_SECOND), "damage is told");
    }
}

/// Returns the begin of a disk with two copies of a header that have this text.
fn disk(flags: u8, text: &[u8]) -> Vec<u8> {
    let is = |flag: u8| flags & flag != 0;
    let size = if is(LARGER) { 64 << 10 } else { 16 << 10 };
    let mut disk = vec![0; 2 * size];
    for (n, copy) in disk.chunks_mut(size).enumerate() {
        if n == 0 && is(NO_FIRST) || n == 1 && is(NO_SECOND) {
            continue;
        }
        let sequence = if n == 1 && is(NEWER_SECOND) { 2_u64 } else { 1 };
        let uuid: &[u8] = if n == 1 && is(OTHER_SECOND) { b"other" } else { b"one" };
        let len = text.len().min(size - NUMBERS);
        copy[..6].copy_from_slice(if n == 0 { b"LUKS\xba\xbe" } else { b"SKUL\xba\xbe" });
        copy[7] = 2;
        copy[8..16].copy_from_slice(&(size as u64).to_be_bytes());
        copy[16..24].copy_from_slice(&sequence.to_be_bytes());
        copy[72..78].copy_from_slice(b"sha256");
        copy[168..168 + uuid.len()].copy_from_slice(uuid);
        copy[256..264].copy_from_slice(&((n * size) as u64).to_be_bytes());
        copy[NUMBERS..NUMBERS + len].copy_from_slice(&text[..len]);
        let sum = Sha256::digest(&*copy);
        copy[448..480].copy_from_slice(&sum);
        copy[448] ^= u8::from(n == 0 && is(BAD_FIRST));
    }
    disk
}

/// The text of a header that cryptsetup 2.6.1 made.
const TEXT: &str = r#"{"keyslots":{"0":{"type":"luks2","key_size":64,"af":{"type":"luks1","stripes":4000,"hash":"sha256"},"area":{"type":"raw","offset":"32768","size":"258048","encryption":"aes-xts-plain64","key_size":64},"kdf":{"type":"argon2id","time":4,"memory":32,"cpus":2,"salt":"nzaTM3v49rL4kXC29gwYBOUzsSe6eTLN5L5kCbrySy4="}}},"tokens":{},"segments":{"0":{"type":"crypt","offset":"16777216","size":"dynamic","iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":4096}},"digests":{"0":{"type":"pbkdf2","keyslots":["0"],"segments":["0"],"hash":"sha256","iterations":1000,"salt":"PWJnPiVC+wmOw6kmzSfkRuXNTQMP0mDlIeggH4fkG/g=","digest":"VXmn8vdPI452b99Xukv55qo6iDptAp3Pj9UqswsUAuk="}},"config":{"json_size":"12288","keyslots_size":"16744448"}}"#;

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let with = |flags: u8, text: &str| [&[flags], text.as_bytes()].concat();
    let changed = |from: &str, to: &str| with(0, &TEXT.replace(from, to));
    vec![
        ("of-cryptsetup", with(0, TEXT)),
        ("no-first-copy", with(NO_FIRST, TEXT)),
        ("no-second-copy", with(NO_SECOND, TEXT)),
        ("bad-first-copy", with(BAD_FIRST | LARGER, TEXT)),
        ("newer-second-copy", with(NEWER_SECOND, TEXT)),
        ("copies-of-two-volumes", with(OTHER_SECOND, TEXT)),
        ("data-far-away", changed("\"16777216\"", "\"18446744073709551104\"")),
        ("data-of-a-fixed-size", changed("\"dynamic\"", "\"1048576\"")),
        ("data-too-large", changed("\"dynamic\"", "\"18446744073709551104\"")),
        ("two-segments", changed("\"segments\":{", "\"segments\":{\"1\":{},")),
        ("many-slots", changed("\"keyslots\":{", "\"keyslots\":{\"1\":{},\"2\":[],\"3\":1,")),
        ("costly-slot", changed("\"memory\":32", "\"memory\":4294967295")),
        (
            "features",
            changed("\"config\":{", "\"config\":{\"requirements\":{\"mandatory\":[\"x\"]},"),
        ),
        ("deep", with(0, &"[".repeat(8000))),
        ("version-1", [&[RAW], &b"LUKS\xba\xbe\x00\x01"[..]].concat()),
        ("numbers-alone", [&[RAW], &disk(0, b"")[..512]].concat()),
        ("empty", Vec::new()),
    ]
}
