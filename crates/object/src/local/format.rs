//! The bytes of the file: two heads, of which the newer one counts, and a ring of entries.

use bytes::{BufMut, Bytes};

use super::{Entry, Stored};
use crate::format::{BLOCK, Chunk, Codec, OpeningId};

/// Bytes of the file that a head has for itself; a write of them may be torn, so there are two.
pub(super) const HEAD: u64 = 4096;
/// Where the ring begins.
pub(super) const RING: u64 = 2 * HEAD;
/// Bytes of an entry in front of its data.
pub(super) const ENTRY: usize = 80;
/// Bytes of which each entry is a multiple.
pub(super) const ALIGN: usize = 8;

pub(super) const MAGIC: &[u8; 8] = b"CWlocal2";
/// The first bytes of an entry.
pub(super) const MAGIC_ENTRY: [u8; 4] = *b"2lWC";
/// Bytes of a head that say something.
pub(super) const SAYS: usize = 88;

/// Whose changes the file has, and where they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileHead {
    /// The greater one counts.
    pub(crate) generation: u64,
    /// Bytes of the ring.
    pub(crate) ring: u64,
    /// The place of the first entry. Places count on and on; the ring has them modulo its size.
    pub(crate) start: u64,
    /// The writer whose changes these are; epoch 0: nobody's.
    pub(crate) epoch: u64,
    pub(crate) nonce: u128,
    /// The nonce by which a server opens the volume that puts these changes into the store. So the
    /// file knows its record until it has the heads of that server itself. 0: no server has tried.
    pub(crate) next: u128,
    /// The last change that was in the file for good when the head was written. 0: none was.
    pub(crate) synced: u64,
}

impl FileHead {
    /// The opening of the writer whose changes these are.
    pub(crate) fn id(&self) -> OpeningId {
        OpeningId::new(self.epoch, self.nonce)
    }

    /// Where it lies in the file.
    pub(super) fn place(&self) -> u64 {
        self.generation % 2 * HEAD
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD as usize);
        out.extend_from_slice(MAGIC);
        for word in [self.generation, self.ring, self.start, self.epoch] {
            out.put_u64_le(word);
        }
        out.put_u128_le(self.nonce);
        out.put_u128_le(self.next);
        out.put_u64_le(self.synced);
        out.put_u64_le(0);
        let sum = crc32fast::hash(&out[..SAYS - 8]);
        out[SAYS - 8..SAYS - 4].copy_from_slice(&sum.to_le_bytes());
        out.resize(HEAD as usize, 0);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let says = bytes.get(..SAYS)?;
        let word = |at: usize| Some(u64::from_le_bytes(says.get(at..at + 8)?.try_into().ok()?));
        let long = |at: usize| Some(u128::from_le_bytes(says.get(at..at + 16)?.try_into().ok()?));
        let sum = u32::from_le_bytes(says[SAYS - 8..SAYS - 4].try_into().ok()?);
        if says[..8] != *MAGIC || crc32fast::hash(&says[..SAYS - 8]) != sum {
            return None;
        }
        Some(Self {
            generation: word(8)?,
            ring: word(16)?,
            start: word(24)?,
            epoch: word(32)?,
            nonce: long(40)?,
            next: long(56)?,
            synced: word(72)?,
        })
    }
}

/// What stands in front of an entry's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryHead {
    sum: u32,
    pub(super) nonce: u128,
    pub(super) place: u64,
    /// Up to this place all was there for good before this one was written.
    pub(super) synced: u64,
    pub(super) index: u64,
    start: u64,
    len: u64,
    zero: bool,
    /// Bytes of data behind it.
    pub(super) stored: u32,
}

/// The entry as it goes to that place.
pub(super) fn encode(
    entry: &Entry,
    nonce: u128,
    (place, synced): (u64, u64),
    codec: &Codec,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(ENTRY + (entry.len * BLOCK) as usize);
    out.extend_from_slice(&MAGIC_ENTRY);
    out.put_u32_le(0);
    out.put_u128_le(nonce);
    for word in [place, synced, entry.index, entry.start, entry.len] {
        out.put_u64_le(word);
    }
    let (zero, data) = match &entry.chunk {
        Chunk::Zero => (1, Bytes::new()),
        Chunk::Data(data) => (0, codec.closed(&out[8..ENTRY - 16], data)),
    };
    out.put_u64_le(zero);
    out.put_u64_le(data.len() as u64);
    out.extend_from_slice(&data);
    debug_assert_eq!(out.len() % ALIGN, 0, "blocks, and what seals them");
    let sum = crc32fast::hash(&out[8..]);
    out[4..8].copy_from_slice(&sum.to_le_bytes());
    out
}

/// The head of an entry; `None`: it is none.
pub(super) fn entry_head(bytes: &[u8]) -> Option<EntryHead> {
    let bytes: &[u8; ENTRY] = bytes.try_into().ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if bytes[..4] != MAGIC_ENTRY {
        return None;
    }
    Some(EntryHead {
        sum: u32::from_le_bytes(bytes[4..8].try_into().ok()?),
        nonce: u128::from_le_bytes(bytes[8..24].try_into().ok()?),
        place: word(24)?,
        synced: word(32)?,
        index: word(40)?,
        start: word(48)?,
        len: word(56)?,
        zero: word(64)? == 1,
        stored: u32::try_from(word(72)?).ok()?,
    })
}

/// The entry whose head and data are these; `None`: it is torn.
pub(super) fn stored(bytes: Vec<u8>) -> Option<Stored> {
    let head = entry_head(bytes.get(..ENTRY)?)?;
    let is_whole = crc32fast::hash(&bytes[8..]) == head.sum;
    is_whole.then(|| Stored { index: head.index, len: head.len, bytes: bytes.into() })
}

/// What an entry says; `None`: it can't be read.
pub(super) fn decode(stored: &Stored, codec: &Codec) -> Option<Entry> {
    let bytes = &stored.bytes;
    let head = entry_head(bytes.get(..ENTRY)?)?;
    let chunk = match head.zero {
        true => Chunk::Zero,
        false => {
            let data = codec.opened(&bytes[8..ENTRY - 16], &bytes.slice(ENTRY..))?;
            if data.len() as u64 != head.len.checked_mul(BLOCK)? {
                return None;
            }
            Chunk::Data(data)
        }
    };
    Some(Entry { index: head.index, start: head.start, len: head.len, chunk })
}
