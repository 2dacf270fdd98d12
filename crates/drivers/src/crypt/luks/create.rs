//! New volumes: a header with one key slot, and encrypted zeroes in the places where readers look
//! for other data.

use std::collections::BTreeMap;
use std::ops::Range;

use corewise_blockmq::{BlockDevice, BlockDeviceExt};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;

use super::area::Hash;
use super::metadata::{
    Argon, CIPHER, Config, Derivation, Digests, Metadata, Segment, Slot, SlotArea, Stripes,
};
use super::{
    CHECKSUM, CHECKSUM_NAME, FIRST_MAGIC, NUMBERS, OFFSET, SALT, SECOND_MAGIC, SEQUENCE, SIZE,
    UUID, VERSION, checksum,
};
use crate::crypt::secret::{Locked, Secret, VolumeKey, no_memory};
use crate::crypt::xts::{DataArea, Direction, KEY, MOST_SECTOR, Xts};

/// Bytes of a copy of the header.
const COPY: usize = 16 << 10;

/// First byte of the data, as cryptsetup has it: there is room for 32 key slots.
const DATA: u64 = 16 << 20;

/// Number of stripes of a key slot, as cryptsetup has it.
const STRIPES: usize = 4000;

/// Rounds for the digest of the volume key. The key is random, so the least is enough.
const ROUNDS: u32 = 1000;

/// Bytes that a new volume has as zeroes, at its begin and at its end. Elsewhere it has noise.
const ZEROED: u64 = 4 << 20;
const ZEROED_END: u64 = 1 << 20;

/// The cost of a new slot's derivation: passes, and KiB of memory.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    time: u32,
    memory: u32,
}

impl Cost {
    /// About a second of one CPU, in memory that small machines have.
    pub(crate) const USUAL: Cost = Cost { time: 4, memory: 256 << 10 };

    /// The least that cryptsetup takes, for tests.
    pub(crate) const LEAST: Cost = Cost { time: 4, memory: 32 };
}

/// Returns the bytes that a new volume overwrites on a device of `size` bytes.
pub(crate) fn overwritten(size: u64) -> [Range<u64>; 2] {
    // The end of the data lies up to a block before that of the device.
    [0..size.min(DATA + ZEROED), size.saturating_sub(2 * ZEROED_END)..size]
}

/// Makes a volume on an empty device, and returns its key and its place. May block.
///
/// The header comes last, and is durable when this returns. A crash before that leaves a device
/// with other data, and no volume.
pub(crate) fn create(
    device: &dyn BlockDevice,
    passphrase: &Secret,
    cost: Cost,
) -> Result<(VolumeKey, DataArea), String> {
    let geometry = device.geometry();
    let sector = geometry.block_size.clamp(512, MOST_SECTOR as u32);
    let area = DataArea { start: DATA, size: None, sector, first: 0 };
    let block = geometry.block_size.max(sector);
    let size = area.size_on(geometry.size, block).ok_or_else(|| {
        format!(
            "it has {} bytes. An encrypted volume needs 16 MiB for its header, and room for data",
            geometry.size
        )
    })?;
    let mut key = Locked::new([0; KEY]).map_err(no_memory)?;
    random(&mut key[..])?;
    let slot = new_slot(cost)?;
    let stripes = slot.wrap(&key, passphrase, new_bytes(KEY * STRIPES)?)?;
    let copies = copies(&key, &area, &slot)?;
    // No write is smaller than a block, and the first blocks hold header and key slot.
    let mut head = vec![0; (2 * COPY + stripes.len()).next_multiple_of(block as usize)];
    head[2 * COPY..][..stripes.len()].copy_from_slice(&stripes);
    let failed = |error| format!("cannot write a new LUKS header: {error}");
    device.write_at(0, head.clone()).map_err(failed)?;
    let xts = Xts::new(&key, sector as usize, 0);
    let end = size.saturating_sub(ZEROED_END) / u64::from(block) * u64::from(block);
    for (from, to) in [(0, ZEROED.min(size)), (end, size)] {
        let mut zeroes = vec![0; (to - from) as usize];
        xts.crypt(Direction::Encrypt, from, &mut zeroes);
        device.write_at(DATA + from, zeroes).map_err(failed)?;
    }
    device.flush().map_err(failed)?;
    head[..2 * COPY].copy_from_slice(&copies);
    head.truncate((2 * COPY).next_multiple_of(block as usize));
    device.write_at(0, head).map_err(failed)?;
    device.flush().map_err(failed)?;
    Ok((key, area))
}

fn new_slot(cost: Cost) -> Result<Slot, String> {
    let argon = Argon { time: cost.time, memory: cost.memory, cpus: 1, salt: new_bytes(32)? };
    Ok(Slot {
        kind: "luks2".to_string(),
        key_size: KEY,
        priority: None,
        af: Stripes { kind: "luks1".to_string(), stripes: STRIPES as u32, hash: Hash::Sha256 },
        area: SlotArea {
            kind: "raw".to_string(),
            offset: (2 * COPY).to_string(),
            size: (KEY * STRIPES).next_multiple_of(4096).to_string(),
            encryption: CIPHER.to_string(),
            key_size: KEY,
        },
        kdf: Derivation::Argon2id(argon),
    })
}

/// Returns both copies of the header, one behind the other.
fn copies(key: &VolumeKey, area: &DataArea, slot: &Slot) -> Result<Vec<u8>, String> {
    let zero = || "0".to_string();
    let mut digest = Digests {
        kind: "pbkdf2".to_string(),
        keyslots: vec![zero()],
        segments: vec![zero()],
        hash: Hash::Sha256,
        iterations: ROUNDS,
        salt: new_bytes(32)?,
        digest: vec![0; 32],
    };
    digest.digest = digest.of(key);
    let segment = Segment {
        kind: "crypt".to_string(),
        offset: area.start.to_string(),
        size: "dynamic".to_string(),
        iv_tweak: area.first.to_string(),
        encryption: CIPHER.to_string(),
        sector_size: area.sector,
        integrity: None,
    };
    let one = |value: serde_json::Result<Value>| {
        value.map(|value| BTreeMap::from([(zero(), value)])).map_err(|error| error.to_string())
    };
    let metadata = Metadata {
        keyslots: one(serde_json::to_value(slot))?,
        tokens: BTreeMap::new(),
        segments: one(serde_json::to_value(segment))?,
        digests: BTreeMap::from([(zero(), digest)]),
        config: Config {
            json_size: (COPY - NUMBERS).to_string(),
            keyslots_size: (area.start - 2 * COPY as u64).to_string(),
            requirements: None,
        },
    };
    let text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    let uuid = new_uuid()?;
    let mut both = Vec::with_capacity(2 * COPY);
    for (magic, at) in [(FIRST_MAGIC, 0), (SECOND_MAGIC, COPY as u64)] {
        let mut copy = vec![0; COPY];
        copy[..magic.len()].copy_from_slice(magic);
        copy[VERSION].copy_from_slice(&2_u16.to_be_bytes());
        copy[SIZE].copy_from_slice(&(COPY as u64).to_be_bytes());
        copy[SEQUENCE].copy_from_slice(&1_u64.to_be_bytes());
        copy[CHECKSUM_NAME][..6].copy_from_slice(b"sha256");
        random(&mut copy[SALT])?;
        copy[UUID][..uuid.len()].copy_from_slice(uuid.as_bytes());
        copy[OFFSET].copy_from_slice(&at.to_be_bytes());
        copy[NUMBERS..][..text.len()].copy_from_slice(&text);
        let sum = checksum(&mut copy);
        copy[CHECKSUM][..sum.len()].copy_from_slice(&sum);
        both.extend(copy);
    }
    Ok(both)
}

/// Returns a new UUID of random bits.
fn new_uuid() -> Result<String, String> {
    let mut bytes = new_bytes(16)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let groups = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]];
    let hex = |group: &[u8]| group.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok(groups.map(hex).join("-"))
}

fn new_bytes(len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len];
    random(&mut bytes)?;
    Ok(bytes)
}

/// Fills memory with random bytes.
fn random(bytes: &mut [u8]) -> Result<(), String> {
    // Up to 256 bytes come at once.
    for piece in bytes.chunks_mut(256) {
        let found = getrandom(&mut *piece, GetRandomFlags::empty());
        if found != Ok(piece.len()) {
            return Err("the system gives no random bytes".to_string());
        }
    }
    Ok(())
}
