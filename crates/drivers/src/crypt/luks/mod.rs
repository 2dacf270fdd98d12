//! LUKS2 headers: finding and checking both copies.
//!
//! The format is that of cryptsetup's "LUKS2 On-Disk Format Specification". A header is a block of
//! numbers and a JSON text, under one checksum, and is there twice. The bytes may come from an
//! attacker: no number in them is used before it was compared with the device or a limit.

mod area;
mod create;
mod metadata;
mod slot;

use std::ops::Range;

use corewise_blockmq::{BlockDevice, BlockDeviceExt};
use sha2::{Digest, Sha256};

pub(super) use create::{Cost, create, overwritten};
use metadata::{Digests, Metadata, Slot};

use super::secret::{Secret, VolumeKey};
use super::xts::DataArea;

/// Bytes of the numbers in front of the JSON text.
const NUMBERS: usize = 4096;

/// Sizes of a copy that the format allows.
const SIZES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

const FIRST_MAGIC: &[u8] = b"LUKS\xba\xbe";
const SECOND_MAGIC: &[u8] = b"SKUL\xba\xbe";

/// Positions of the numbers.
const VERSION: Range<usize> = 6..8;
const SIZE: Range<usize> = 8..16;
const SEQUENCE: Range<usize> = 16..24;
const CHECKSUM_NAME: Range<usize> = 72..104;
const SALT: Range<usize> = 104..168;
const UUID: Range<usize> = 168..208;
const OFFSET: Range<usize> = 256..264;
const CHECKSUM: Range<usize> = 448..512;

/// A header, checked.
pub(crate) struct Luks {
    pub(super) area: DataArea,
    slots: Vec<Slot>,
    /// Number of key slots whose form isn't supported.
    unsupported: usize,
    digest: Digests,
    /// Damage of a copy, in words.
    pub(super) damage: Option<&'static str>,
}

/// One copy of a header whose checksum is right.
struct Copy {
    sequence: u64,
    uuid: [u8; 40],
    size: u64,
    text: Vec<u8>,
}

/// The state of the place of a copy.
enum CopyState {
    Good(Copy),
    /// Bytes that begin as a header, and the reason why they are none.
    Bad(String),
    Nothing,
}

impl Luks {
    /// Finds the header of a device; `None` if there is nothing like one. May block.
    ///
    /// # Errors
    /// The device can't be read, both copies are damaged, or the form isn't supported.
    pub(crate) fn find(device: &dyn BlockDevice) -> Result<Option<Self>, String> {
        let first = find_copy(device, 0)?;
        // A bad first copy doesn't tell where the second one is.
        let places: &[u64] = match &first {
            CopyState::Good(copy) => &[copy.size],
            _ => &SIZES,
        };
        let mut second = CopyState::Nothing;
        for &at in places {
            match find_copy(device, at)? {
                CopyState::Nothing => {}
                CopyState::Bad(_) if matches!(second, CopyState::Bad(_)) => {}
                found => {
                    let is_good = matches!(found, CopyState::Good(_));
                    second = found;
                    if is_good {
                        break;
                    }
                }
            }
        }
        let (copy, damage) = match (first, second) {
            (CopyState::Nothing, CopyState::Nothing) => return Ok(None),
            (CopyState::Bad(why), CopyState::Nothing | CopyState::Bad(_))
            | (CopyState::Nothing, CopyState::Bad(why)) => {
                return Err(format!(
                    "both copies of its LUKS header are damaged or gone: {why}. Restore the header \
                     from its backup (cryptsetup luksHeaderRestore)"
                ));
            }
            (CopyState::Good(first), CopyState::Good(second)) if first.uuid != second.uuid => {
                return Err(
                    "the two copies of its LUKS header belong to different volumes. Restore the \
                     header from its backup (cryptsetup luksHeaderRestore)"
                        .to_string(),
                );
            }
            (CopyState::Good(first), CopyState::Good(second)) => {
                let damage = (first.sequence != second.sequence)
                    .then_some("one copy of the LUKS header is older than the other");
                (if first.sequence >= second.sequence { first } else { second }, damage)
            }
            (CopyState::Good(first), _) => {
                (first, Some("the second copy of the LUKS header is damaged"))
            }
            (_, CopyState::Good(second)) => {
                (second, Some("the first copy of the LUKS header is damaged"))
            }
        };
        let geometry = device.geometry();
        let metadata = Metadata::parse(&copy.text)?;
        let area = metadata.area(geometry.size)?;
        let (slots, unsupported) = metadata.slots(copy.size, area.start);
        let digest = metadata.digest()?;
        Ok(Some(Self { area, slots, unsupported, digest, damage }))
    }

    /// Returns the volume key, which the passphrase of any key slot unwraps. Blocks.
    ///
    /// # Errors
    /// The passphrase opens no slot, or a slot can't be read.
    pub(super) fn unlock(
        &self,
        device: &dyn BlockDevice,
        passphrase: &Secret,
    ) -> Result<VolumeKey, String> {
        for slot in &self.slots {
            if let Some(key) = slot.unlock(device, passphrase, &self.digest)? {
                return Ok(key);
            }
        }
        Err(match (self.slots.len(), self.unsupported) {
            (0, 0) => "its LUKS header has no key slot, so nothing opens it".to_string(),
            (opened, 0) => format!("wrong key: it opens none of the {opened} key slots"),
            (opened, other) => format!(
                "wrong key: it opens none of {opened} key slots. {other} more have a form that \
                 isn't supported; cryptsetup luksConvertKey changes it"
            ),
        })
    }
}

/// Looks for a copy that begins at byte `at` of the device.
fn find_copy(device: &dyn BlockDevice, at: u64) -> Result<CopyState, String> {
    let size = device.geometry().size;
    let read = |len: u64| read(device, at..at + len);
    if at + NUMBERS as u64 > size {
        return Ok(CopyState::Nothing);
    }
    let numbers = read(NUMBERS as u64)?;
    let magic = if at == 0 { FIRST_MAGIC } else { SECOND_MAGIC };
    if !numbers.starts_with(magic) {
        return Ok(CopyState::Nothing);
    }
    let bad = |why: &str| Ok(CopyState::Bad(why.to_string()));
    match u16::from_be_bytes(numbers[VERSION].try_into().expect("2 bytes")) {
        2 => {}
        1 if at == 0 => {
            return Err(
                "it has a LUKS1 header. cryptsetup convert --type luks2 makes it LUKS2".to_string()
            );
        }
        other => return bad(&format!("its version is {other}")),
    }
    let number = |range: Range<usize>| u64::from_be_bytes(numbers[range].try_into().expect("8"));
    let len = number(SIZE);
    if !SIZES.contains(&len) || at + len > size {
        return bad("its size is none that a header has");
    }
    if number(OFFSET) != at || at != 0 && at != len {
        return bad("it belongs to another place");
    }
    if !numbers[CHECKSUM_NAME].starts_with(b"sha256\0") {
        return bad("its checksum has another form than sha256");
    }
    let mut all = read(len)?;
    if checksum(&mut all)[..] != numbers[CHECKSUM][..32] {
        return bad("its checksum is wrong");
    }
    let text = &all[NUMBERS..];
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(CopyState::Good(Copy {
        sequence: number(SEQUENCE),
        uuid: numbers[UUID].try_into().expect("40 bytes"),
        size: len,
        text: text[..end].to_vec(),
    }))
}

/// Returns the checksum of a copy, in which the place of the checksum becomes zero.
fn checksum(copy: &mut [u8]) -> [u8; 32] {
    copy[CHECKSUM].fill(0);
    Sha256::digest(copy).into()
}

/// Reads bytes of a device by reading the blocks that they lie in.
fn read(device: &dyn BlockDevice, range: Range<u64>) -> Result<Vec<u8>, String> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_size);
    let start = range.start / block * block;
    let len = range.end.next_multiple_of(block).min(geometry.size) - start;
    let data = device
        .read_at(start, len as usize)
        .map_err(|error| format!("cannot read the LUKS header: {error}"))?;
    let skip = (range.start - start) as usize;
    let wanted = data.get(skip..skip + (range.end - range.start) as usize);
    Ok(wanted.ok_or("the LUKS header reaches beyond the end of the device")?.to_vec())
}
