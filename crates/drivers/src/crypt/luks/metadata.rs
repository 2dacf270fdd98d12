//! The JSON text of a LUKS2 header: its parts that are used here, and their limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::area::Hash;
use crate::crypt::xts::{DataArea, KEY, MOST_SECTOR, UNIT};

/// The one cipher that is supported.
pub(super) const CIPHER: &str = "aes-xts-plain64";

/// Number of key slots that are tried, at most: those of the format.
const MOST_SLOTS: usize = 32;

/// Maximum bytes of a key slot's area.
pub(super) const MOST_AREA: u64 = 1 << 20;

/// Maximum memory of a derivation, in KiB: cryptsetup's own default limit.
const MOST_MEMORY: u32 = 1 << 20;

/// Maximum of memory in KiB times passes of a derivation: about a minute of one CPU.
const MOST_WORK: u64 = 64 << 20;

/// Maximum of rounds of a derivation by PBKDF2: about a minute of one CPU.
const MOST_ROUNDS: u32 = 1 << 27;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Metadata {
    pub(super) keyslots: BTreeMap<String, Value>,
    pub(super) tokens: BTreeMap<String, Value>,
    pub(super) segments: BTreeMap<String, Value>,
    pub(super) digests: BTreeMap<String, Digests>,
    pub(super) config: Config,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) json_size: String,
    pub(super) keyslots_size: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) requirements: Option<Requirements>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Requirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

/// The data of a volume.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Segment {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) offset: String,
    pub(super) size: String,
    pub(super) iv_tweak: String,
    pub(super) encryption: String,
    pub(super) sector_size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) integrity: Option<Value>,
}

/// The digest of a volume key, with the slots that wrap the key and the segments that it encrypts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Digests {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) keyslots: Vec<String>,
    pub(super) segments: Vec<String>,
    pub(super) hash: Hash,
    pub(super) iterations: u32,
    #[serde(with = "super::area::base64")]
    pub(super) salt: Vec<u8>,
    #[serde(with = "super::area::base64")]
    pub(super) digest: Vec<u8>,
}

/// A key slot: the volume key, wrapped by a passphrase.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Slot {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) key_size: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<u32>,
    pub(super) af: Stripes,
    pub(super) area: SlotArea,
    pub(super) kdf: Derivation,
}

/// The form in which a key is spread over many bytes, so that each of them is needed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stripes {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) stripes: u32,
    pub(super) hash: Hash,
}

/// The place of a slot's bytes on the device.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SlotArea {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) offset: String,
    pub(super) size: String,
    pub(super) encryption: String,
    pub(super) key_size: usize,
}

/// The derivation of a key from a passphrase, with its cost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Derivation {
    Pbkdf2 {
        hash: Hash,
        iterations: u32,
        #[serde(with = "super::area::base64")]
        salt: Vec<u8>,
    },
    Argon2i(Argon),
    Argon2id(Argon),
}

/// The cost of a derivation by Argon2: passes, KiB of memory, and threads.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Argon {
    pub(super) time: u32,
    pub(super) memory: u32,
    pub(super) cpus: u32,
    #[serde(with = "super::area::base64")]
    pub(super) salt: Vec<u8>,
}

impl Derivation {
    /// Returns true if the cost is within the limits.
    fn is_bounded(&self) -> bool {
        match self {
            Self::Pbkdf2 { iterations, .. } => (1..=MOST_ROUNDS).contains(iterations),
            Self::Argon2i(argon) | Self::Argon2id(argon) => {
                argon.memory <= MOST_MEMORY
                    && u64::from(argon.memory) * u64::from(argon.time) <= MOST_WORK
            }
        }
    }
}

impl Slot {
    /// Returns true if the slot has the form of those that are tried, and lies between the copies
    /// of the header and the data.
    fn is_supported(&self, header: u64, data: u64) -> bool {
        let needs = KEY as u64 * u64::from(self.af.stripes);
        let fits = self.place().is_some_and(|(start, size)| {
            start >= 2 * header
                && start.checked_add(size).is_some_and(|end| end <= data)
                && size <= MOST_AREA
                && needs <= size
        });
        fits && self.kind == "luks2"
            && self.key_size == KEY
            && self.af.kind == "luks1"
            && self.af.stripes != 0
            && self.area.kind == "raw"
            && self.area.encryption == CIPHER
            && self.area.key_size == KEY
            && self.kdf.is_bounded()
    }

    /// Returns the first byte and the size of the slot's area.
    pub(super) fn place(&self) -> Option<(u64, u64)> {
        Some((self.area.offset.parse().ok()?, self.area.size.parse().ok()?))
    }
}

impl Metadata {
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let metadata: Self = serde_json::from_slice(text)
            .map_err(|error| format!("its LUKS header isn't understood: {error}"))?;
        let needed = metadata.config.requirements.iter().flat_map(|all| &all.mandatory);
        match needed.map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(metadata),
            [first, ..] => Err(format!(
                "its LUKS header needs the feature '{first}', which isn't supported. If that is a \
                 re-encryption, complete it by cryptsetup reencrypt"
            )),
        }
    }

    /// Returns the name of the one segment.
    fn segment(&self) -> Result<(&str, Segment), String> {
        let mut all = self.segments.iter();
        let (Some((name, segment)), None) = (all.next(), all.next()) else {
            let many = self.segments.len();
            return Err(format!("its LUKS header has {many} segments of data; one is supported"));
        };
        let segment = Segment::deserialize(segment)
            .map_err(|error| format!("the segment of its LUKS header isn't understood: {error}"))?;
        Ok((name, segment))
    }

    /// Returns the part of the device that has the data.
    pub(super) fn area(&self, device: u64) -> Result<DataArea, String> {
        let (_, segment) = self.segment()?;
        if segment.kind != "crypt" || segment.integrity.is_some() {
            return Err("its LUKS header asks for integrity checks or another form of data, \
                        which isn't supported"
                .to_string());
        }
        if segment.encryption != CIPHER {
            return Err(format!(
                "its data has the cipher '{}'. Only {CIPHER} with a key of 512 bits is supported; \
                 cryptsetup reencrypt changes it",
                segment.encryption
            ));
        }
        let sector = segment.sector_size;
        let is_sector =
            |sector: usize| sector.is_power_of_two() && (UNIT..=MOST_SECTOR).contains(&sector);
        let number = |text: &str| text.parse::<u64>().ok();
        let size = match segment.size.as_str() {
            "dynamic" => Some(None),
            size => number(size).filter(|size| *size != 0).map(Some),
        };
        let parts = (number(&segment.offset), size, number(&segment.iv_tweak));
        let (Some(start), Some(size), Some(first), true) =
            (parts.0, parts.1, parts.2, is_sector(sector as usize))
        else {
            return Err("the segment of its LUKS header has impossible numbers".to_string());
        };
        let aligned = [Some(start), size].into_iter().flatten().all(|n| n % u64::from(sector) == 0);
        let end = start.checked_add(size.unwrap_or(u64::from(sector)));
        if !aligned || start == 0 || end.is_none_or(|end| end > device) {
            return Err(format!(
                "the data of its LUKS header begins at byte {start}, and doesn't fit on the \
                 device of {device} bytes"
            ));
        }
        Ok(DataArea { start, size, sector, first })
    }

    /// Returns the digest of the volume key.
    pub(super) fn digest(&self) -> Result<Digests, String> {
        let (name, _) = self.segment()?;
        let mut of_data =
            self.digests.values().filter(|one| one.segments.iter().any(|s| s == name));
        let digest = of_data.next().ok_or("its LUKS header has no digest of the volume key")?;
        let is_bounded = (1..=MOST_ROUNDS).contains(&digest.iterations);
        let len = digest.digest.len();
        if digest.kind != "pbkdf2" || !is_bounded || !(16..=64).contains(&len) {
            return Err("the digest of its LUKS header has a form that isn't supported".to_string());
        }
        Ok(digest.clone())
    }

    /// Returns the key slots of the volume key, and the number of those that aren't supported.
    /// `header` is the size of a copy, and `data` the begin of the data.
    pub(super) fn slots(&self, header: u64, data: u64) -> (Vec<Slot>, usize) {
        let (mut slots, mut unsupported) = (Vec::new(), 0);
        let Ok(digest) = self.digest() else { return (slots, unsupported) };
        for (name, slot) in self.keyslots.iter().take(MOST_SLOTS) {
            if !digest.keyslots.contains(name) {
                continue;
            }
            match Slot::deserialize(slot) {
                // cryptsetup doesn't try these either.
                Ok(slot) if slot.priority == Some(0) => {}
                Ok(slot) if slot.is_supported(header, data) => slots.push(slot),
                _ => unsupported += 1,
            }
        }
        // Preferred slots come first.
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.priority.unwrap_or(1)));
        (slots, unsupported)
    }
}
