//! Format of objects in the store: a head of 64 bytes, and a body whose checksum is in the head.
//! Pure functions over bytes; README.md lists the objects.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, TryGetError};

use super::frame::{FRAME_BLOCKS, FRAME_HEAD, FRAME_MOST};
use super::map::Segment;

/// Bytes of a block: the smallest unit of a request, and of the map.
pub(crate) const BLOCK: u64 = 4096;
/// Bytes of a head.
pub(crate) const HEAD: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"cwobject");
/// Flag beside the kind of a sealed object.
const SEALED: u32 = 1 << 31;
/// Format of the objects that this program writes.
const VERSION: u32 = 6;
/// Oldest format that it reads. Format 5 has no [checksums of blocks](super::frame).
const OLDEST: u32 = 5;

/// The reason why bytes are invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damaged(pub(crate) String);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Beginning of a writer: the first record of its epoch.
    Open = 1,
    /// Changes.
    Commit = 2,
    /// End of a writer, which serves nothing any more.
    Close = 3,
    /// The whole map, as it is behind a record.
    Map = 4,
    /// Data.
    Segment = 5,
    /// The whole map, as a snapshot has it.
    Snapshot = 6,
    /// A mark: its existence is its meaning.
    Mark = 7,
}

/// Identity of a writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    pub(crate) epoch: u64,
    pub(crate) nonce: u128,
}

/// The writer and the kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// The number of the record. A segment has that of the record that points to it, a map that of
    /// its last record.
    pub(crate) seq: u64,
    /// The number of the writer's first record.
    pub(crate) epoch: u64,
    /// Random number that tells one writer from all others.
    pub(crate) writer: u128,
    /// True if the body is sealed, or the frames of a segment are.
    pub(crate) sealed: bool,
    body: u64,
    sum: u32,
}

impl From<TryGetError> for Damaged {
    fn from(_: TryGetError) -> Self {
        Damaged("the object is too short".into())
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.put_u64_le(text.len() as u64);
    out.put_slice(text.as_bytes());
}

fn take_text(from: &mut &[u8]) -> Result<String, Damaged> {
    let len = take_count(from, 1)?;
    let (text, rest) = from.split_at(len);
    *from = rest;
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Reads a number of items, each of which takes `bytes` bytes.
fn take_count(from: &mut &[u8], bytes: usize) -> Result<usize, Damaged> {
    let count = usize::try_from(from.try_get_u64_le()?).ok();
    let fits = count.filter(|n| n.checked_mul(bytes).is_some_and(|all| all <= from.len()));
    fits.ok_or_else(|| Damaged("the object is shorter than its header says".into()))
}

impl Head {
    /// Creates the head of an object with this body.
    pub(crate) fn new(kind: Kind, (seq, by): (u64, Writer), sealed: bool, body: &[u8]) -> Self {
        let (epoch, writer) = (by.epoch, by.nonce);
        let sum = crc32fast::hash(body);
        Self { kind, seq, epoch, writer, sealed, body: body.len() as u64, sum }
    }

    /// Returns the identity of the object, to which a sealed body is bound.
    pub(crate) fn place(&self) -> Vec<u8> {
        let mut out = b"corewise body 1.".to_vec();
        out.put_u32_le(self.kind as u32);
        out.put_u64_le(self.seq);
        out.put_u64_le(self.epoch);
        out.put_u128_le(self.writer);
        out
    }

    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut out = Vec::new();
        out.put_u64_le(MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(self.kind as u32 | if self.sealed { SEALED } else { 0 });
        out.put_u64_le(self.seq);
        out.put_u64_le(self.epoch);
        out.put_u128_le(self.writer);
        out.put_u64_le(self.body);
        out.put_u32_le(self.sum);
        out.put_u32_le(crc32fast::hash(&out));
        out.try_into().expect("so many bytes are these")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let head: &[u8; HEAD] = bytes
            .first_chunk()
            .ok_or_else(|| Damaged(format!("the object has only {} bytes", bytes.len())))?;
        let mut from = &head[..];
        if from.try_get_u64_le()? != MAGIC {
            return Err(Damaged("the object is not one of corewise".into()));
        }
        let version = from.try_get_u32_le()?;
        let of = from.try_get_u32_le()?;
        let (seq, epoch, writer) =
            (from.try_get_u64_le()?, from.try_get_u64_le()?, from.try_get_u128_le()?);
        let (body, sum) = (from.try_get_u64_le()?, from.try_get_u32_le()?);
        if from.try_get_u32_le()? != crc32fast::hash(&head[..HEAD - 4]) {
            return Err(Damaged("the checksum of the header is wrong".into()));
        }
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(Damaged(format!(
                "the object has format {version}; this program knows {OLDEST} to {VERSION}"
            )));
        }
        let kinds = [Kind::Open, Kind::Commit, Kind::Close, Kind::Map, Kind::Segment];
        let mut kinds = kinds.into_iter().chain([Kind::Snapshot, Kind::Mark]);
        let kind = kinds.find(|known| *known as u32 == of & !SEALED);
        let kind = kind.ok_or_else(|| Damaged("the object is of an unknown kind".into()))?;
        Ok(Self { kind, seq, epoch, writer, sealed: of & SEALED != 0, body, sum })
    }

    /// Returns the position of the first byte behind the body.
    pub(crate) fn end(&self) -> u64 {
        self.body.saturating_add(HEAD as u64)
    }

    /// Splits an object into the head and the body, whose checksum the head has. Behind the body of
    /// a commit its data may lie.
    pub(crate) fn split(bytes: &Bytes) -> Result<(Self, Bytes), Damaged> {
        let head = Self::decode(bytes)?;
        let mut body = bytes.slice(HEAD..);
        if head.kind == Kind::Commit {
            body.truncate(usize::try_from(head.body).unwrap_or(usize::MAX));
        }
        if body.len() as u64 != head.body || crc32fast::hash(&body) != head.sum {
            return Err(Damaged("the checksum of the body is wrong".into()));
        }
        Ok((head, body))
    }
}

/// The content of a writer's first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// New size of the volume in bytes.
    pub(crate) size: u64,
    /// Lease in milliseconds: the time after a check for which the writer believes that it is the
    /// only one.
    pub(crate) lease: u64,
    /// Changes of the volume's whole history that it found in the store.
    pub(crate) through: u64,
    /// True if flushes may be only in a file of its machine.
    pub(crate) local: bool,
    /// The number of changes of a volume that was opened without some flushed changes, as long as
    /// it has no more.
    pub(crate) outdated: Option<u64>,
    /// Name of its machine, for people.
    pub(crate) host: String,
    /// Snapshot that a clone was made of.
    pub(crate) origin: Option<Origin>,
}

/// The snapshot that a volume is a clone of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The prefixes at which shared data may lie: its parent's, and those of the parent's own
    /// ancestors.
    pub(crate) homes: Vec<String>,
    /// The snapshot's number, the epoch of its writer, and its name.
    pub(crate) snapshot: u64,
    pub(crate) epoch: u64,
    pub(crate) name: String,
    /// Nonce of the writer that made the clone: the parent has a mark of this name.
    pub(crate) nonce: u128,
}

impl Origin {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.snapshot);
        out.put_u64_le(self.epoch);
        out.put_u128_le(self.nonce);
        put_text(out, &self.name);
        out.put_u64_le(self.homes.len() as u64);
        self.homes.iter().for_each(|home| put_text(out, home));
    }

    fn decode(from: &mut &[u8]) -> Result<Self, Damaged> {
        let (snapshot, epoch, nonce) =
            (from.try_get_u64_le()?, from.try_get_u64_le()?, from.try_get_u128_le()?);
        let name = take_text(from)?;
        let homes = (0..take_count(from, 8)?).map(|_| take_text(from)).collect::<Result<_, _>>()?;
        Ok(Self { homes, snapshot, epoch, name, nonce })
    }
}

impl Opening {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.size);
        out.put_u64_le(self.lease);
        out.put_u64_le(self.through);
        out.put_u64_le(
            u64::from(self.local) | self.outdated.map_or(0, |through| (through + 1) << 1),
        );
        put_text(&mut out, &self.host);
        out.put_u64_le(self.origin.iter().len() as u64);
        self.origin.iter().for_each(|origin| origin.encode(&mut out));
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Damaged> {
        let mut from = body;
        Self::take(&mut from)
    }

    fn take(from: &mut &[u8]) -> Result<Self, Damaged> {
        let (size, lease) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
        let (through, flags) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
        let (local, outdated) = (flags & 1 != 0, (flags >> 1).checked_sub(1));
        let host = take_text(from)?;
        let origin = match from.try_get_u64_le()? {
            0 => None,
            _ => Some(Origin::decode(from)?),
        };
        Ok(Self { size, lease, through, local, outdated, host, origin })
    }
}

/// Address of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// The record that published the segment. It names the segment.
    pub(crate) segment: u64,
    /// The first byte of the frame, in the segment's object.
    pub(crate) at: u32,
    /// Bytes of the frame.
    pub(crate) stored: u32,
    /// Blocks of the frame in front of these.
    pub(crate) skip: u32,
}

/// A range of blocks, and its new address. `None`: the blocks are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapEntry {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) place: Option<BlockPlace>,
}

const ENTRY: usize = 8 + 8 + 8 + 4 + 4 + 4;

impl MapEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.start);
        out.put_u64_le(self.len);
        let place = self.place.unwrap_or(BlockPlace { segment: 0, at: 0, stored: 0, skip: 0 });
        out.put_u64_le(place.segment);
        out.put_u32_le(place.at);
        out.put_u32_le(place.stored);
        out.put_u32_le(place.skip);
    }

    fn decode(from: &mut &[u8]) -> Result<Self, Damaged> {
        let (start, len, segment) =
            (from.try_get_u64_le()?, from.try_get_u64_le()?, from.try_get_u64_le()?);
        let (at, stored, skip) =
            (from.try_get_u32_le()?, from.try_get_u32_le()?, from.try_get_u32_le()?);
        if start.checked_add(len).is_none_or(|end| end > u64::MAX / BLOCK) {
            return Err(Damaged("the object has an invalid range".into()));
        }
        // The first record is no commit, so no segment has the number 0.
        let place = (segment != 0).then_some(BlockPlace { segment, at, stored, skip });
        // For the source of a move, only the address is recorded.
        let can_be = |place: &BlockPlace| {
            (FRAME_HEAD as u32..=FRAME_MOST).contains(&stored)
                && place.at.checked_add(stored).is_some()
                && u64::from(skip).checked_add(len).is_some_and(|end| end <= FRAME_BLOCKS)
                && (len == 0 || start >= u64::from(skip))
        };
        if !place.as_ref().is_none_or(can_be) {
            return Err(Damaged("the object has an invalid frame".into()));
        }
        Ok(Self { start, len, place })
    }
}

/// A segment in a whole map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRecord {
    pub(crate) number: u64,
    /// The segment, without the number of blocks in use, which the entries tell.
    pub(crate) segment: Segment,
    /// The record since which only snapshots need it. 0: the map points to it.
    pub(crate) died: u64,
}

const LISTED: usize = 8 + 4 + 8 + 8 + 8 + 16 + 4 + 8 + 8 + 8;

impl SegmentRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        let Segment { home, number, epoch, born, id, in_record, bytes, blocks, live: _ } =
            self.segment;
        out.put_u64_le(self.number);
        out.put_u32_le(home);
        out.put_u64_le(number);
        out.put_u64_le(epoch);
        out.put_u64_le(born);
        out.put_u128_le(id);
        out.put_u32_le(in_record.into());
        out.put_u64_le(bytes);
        out.put_u64_le(blocks);
        out.put_u64_le(self.died);
    }

    fn decode(from: &mut &[u8]) -> Result<Self, Damaged> {
        let (key, home, number) =
            (from.try_get_u64_le()?, from.try_get_u32_le()?, from.try_get_u64_le()?);
        let (epoch, born, id) =
            (from.try_get_u64_le()?, from.try_get_u64_le()?, from.try_get_u128_le()?);
        let (in_record, bytes, blocks) =
            (from.try_get_u32_le()? != 0, from.try_get_u64_le()?, from.try_get_u64_le()?);
        let segment = Segment { home, number, epoch, born, id, in_record, bytes, blocks, live: 0 };
        Ok(Self { number: key, segment, died: from.try_get_u64_le()? })
    }
}

/// Data of a snapshot. Its number is that of the record by which it was taken; it has all changes
/// before that record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    /// The epoch of its writer, which is in the name of its map.
    pub(crate) epoch: u64,
    pub(crate) name: String,
    /// Time in milliseconds since 1970, by the clock of the writer's machine.
    pub(crate) time: u64,
    /// Size of the volume then, in bytes.
    pub(crate) size: u64,
}

/// Bytes of a snapshot in a list, without its name.
const TAKEN: usize = 5 * 8;

impl SnapshotRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.epoch);
        out.put_u64_le(self.time);
        out.put_u64_le(self.size);
        put_text(out, &self.name);
    }

    fn decode(from: &mut &[u8]) -> Result<Self, Damaged> {
        let (epoch, time, size) =
            (from.try_get_u64_le()?, from.try_get_u64_le()?, from.try_get_u64_le()?);
        Ok(Self { epoch, time, size, name: take_text(from)? })
    }
}

/// Content of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Changes of the volume's whole history that are in the store with this record, if it has any.
    pub(crate) through: u64,
    /// New size of the volume in bytes. 0: unchanged.
    pub(crate) size: u64,
    /// True if flushes may be only in a flush file from now on. None: unchanged.
    pub(crate) local: Option<bool>,
    /// The segment that this record publishes. 0: none.
    pub(crate) segment: u64,
    /// True if the segment lies [behind this record](Segment::in_record).
    pub(crate) in_record: bool,
    /// Bytes of the segment's object.
    pub(crate) bytes: u64,
    /// The segment's [id](Segment::id).
    pub(crate) id: u128,
    /// The snapshot that is taken by this record.
    pub(crate) taken: Option<SnapshotRecord>,
    /// The number of the snapshot that is deleted by this record. 0: none.
    pub(crate) dropped: u64,
    /// Previous addresses, if this record only moves data. An entry counts where the map still has
    /// its previous address. Otherwise empty.
    pub(crate) moved: Vec<MapEntry>,
    pub(crate) entries: Vec<MapEntry>,
}

impl Changes {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.through);
        out.put_u64_le(self.size);
        out.put_u32_le(self.local.map_or(0, |local| 1 + u32::from(local)));
        out.put_u64_le(self.segment);
        out.put_u32_le(self.in_record.into());
        out.put_u64_le(self.bytes);
        out.put_u128_le(self.id);
        out.put_u64_le(self.dropped);
        out.put_u64_le(self.taken.iter().len() as u64);
        self.taken.iter().for_each(|taken| taken.encode(&mut out));
        out.put_u64_le(self.moved.len() as u64);
        out.put_u64_le(self.entries.len() as u64);
        self.moved.iter().chain(&self.entries).for_each(|entry| entry.encode(&mut out));
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Damaged> {
        let mut from = body;
        let (through, size) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
        let local = match from.try_get_u32_le()? {
            0 => None,
            said => Some(said == 2),
        };
        let (segment, in_record) = (from.try_get_u64_le()?, from.try_get_u32_le()? != 0);
        let (bytes, id) = (from.try_get_u64_le()?, from.try_get_u128_le()?);
        let dropped = from.try_get_u64_le()?;
        let taken = match from.try_get_u64_le()? {
            0 => None,
            _ => Some(SnapshotRecord::decode(&mut from)?),
        };
        let moved = take_count(&mut from, ENTRY)?;
        let entries = take_count(&mut from, ENTRY)?;
        let mut take =
            |n: usize| (0..n).map(|_| MapEntry::decode(&mut from)).collect::<Result<Vec<_>, _>>();
        let (moved, entries) = (take(moved)?, take(entries)?);
        Ok(Self {
            through,
            size,
            local,
            segment,
            in_record,
            bytes,
            id,
            taken,
            dropped,
            moved,
            entries,
        })
    }
}

/// The whole map, as it is behind a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WholeMap {
    /// The opening of its writer, with the size and the changes of this map.
    pub(crate) opening: Opening,
    /// The first records of writers, up to this one. They are kept.
    pub(crate) epochs: Vec<u64>,
    pub(crate) segments: Vec<SegmentRecord>,
    /// Snapshots by their numbers.
    pub(crate) snapshots: Vec<(u64, SnapshotRecord)>,
    pub(crate) entries: Vec<MapEntry>,
}

impl WholeMap {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.opening.encode();
        out.put_u64_le(self.epochs.len() as u64);
        self.epochs.iter().for_each(|epoch| out.put_u64_le(*epoch));
        out.put_u64_le(self.segments.len() as u64);
        self.segments.iter().for_each(|listed| listed.encode(&mut out));
        out.put_u64_le(self.snapshots.len() as u64);
        for (number, taken) in &self.snapshots {
            out.put_u64_le(*number);
            taken.encode(&mut out);
        }
        out.put_u64_le(self.entries.len() as u64);
        for entry in &self.entries {
            entry.encode(&mut out);
        }
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Damaged> {
        let mut from = body;
        let opening = Opening::take(&mut from)?;
        let epochs = (0..take_count(&mut from, 8)?).map(|_| from.try_get_u64_le());
        let epochs = epochs.collect::<Result<_, _>>()?;
        let segments =
            (0..take_count(&mut from, LISTED)?).map(|_| SegmentRecord::decode(&mut from));
        let segments = segments.collect::<Result<_, _>>()?;
        let snapshots = (0..take_count(&mut from, TAKEN)?)
            .map(|_| Ok((from.try_get_u64_le()?, SnapshotRecord::decode(&mut from)?)));
        let snapshots = snapshots.collect::<Result<_, Damaged>>()?;
        let entries = (0..take_count(&mut from, ENTRY)?).map(|_| MapEntry::decode(&mut from));
        let entries = entries.collect::<Result<_, _>>()?;
        Ok(Self { opening, epochs, segments, snapshots, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64) -> BlockPlace {
        BlockPlace { segment, at: 64, stored: 4112, skip: 3 }
    }

    #[test]
    fn what_is_written_is_read_again_and_no_cut_or_changed_byte_passes() {
        let entry = |start, place| MapEntry { start, len: 2, place };
        let taken = SnapshotRecord { epoch: 1, name: "ø".into(), time: 1 << 42, size: 7 };
        let changes = Changes {
            through: 1 << 40,
            size: 1 << 41,
            local: Some(false),
            segment: 5,
            in_record: true,
            bytes: 9,
            id: 1 << 77,
            taken: Some(taken.clone()),
            dropped: 4,
            moved: vec![entry(3, Some(place(3)))],
            entries: vec![entry(3, Some(place(5))), entry(7, None)],
        };
        for local in [None, Some(true), Some(false)] {
            let changes = Changes { local, ..changes.clone() };
            assert_eq!(Changes::decode(&changes.encode()), Ok(changes));
        }
        let host = "ø".into();
        let homes = vec!["a".into(), "b/c".into()];
        let origin = Origin { homes, snapshot: 7, epoch: 6, name: "n".into(), nonce: 1 << 99 };
        let origin = Some(origin);
        let (size, lease, through, local) = (1 << 30, 5000, 7, true);
        let opening = Opening { size, lease, through, local, outdated: None, host, origin };
        for (local, outdated) in [(false, Some(0)), (true, Some(7)), (false, None), (true, None)] {
            let opening = Opening { local, outdated, ..opening.clone() };
            assert_eq!(Opening::decode(&opening.encode()), Ok(opening));
        }
        let (home, number, born) = (1, 5, 3);
        let segment = Segment {
            home,
            number,
            epoch: 1,
            born,
            id: 8,
            in_record: true,
            bytes: 9,
            blocks: 4,
            live: 0,
        };
        let whole = WholeMap {
            opening,
            epochs: vec![1, 4],
            segments: vec![SegmentRecord { number: 5, segment, died: 6 }],
            snapshots: vec![(5, taken)],
            entries: changes.entries.clone(),
        };
        assert_eq!(WholeMap::decode(&whole.encode()), Ok(whole.clone()));

        let body = whole.encode();
        let by = Writer { epoch: 1, nonce: 77 };
        let head = Head::new(Kind::Map, (5, by), true, &body);
        let all: Bytes = [&head.encode()[..], &body[..]].concat().into();
        assert_eq!(Head::split(&all), Ok((head, body.into())));
        for n in 0..all.len() {
            assert!(Head::split(&all.slice(..n)).is_err(), "cut to {n}");
            let mut changed = all.to_vec();
            changed[n] ^= 4;
            assert!(Head::split(&changed.into()).is_err(), "byte {n} changed");
        }
        for n in 0..changes.encode().len() {
            assert!(Changes::decode(&changes.encode()[..n]).is_err(), "cut to {n}");
        }
    }

    #[test]
    fn objects_of_format_5_are_read_and_older_or_newer_ones_are_not() {
        let head = Head::new(Kind::Open, (1, Writer { epoch: 1, nonce: 77 }), false, b"body");
        for version in OLDEST - 1..=VERSION + 1 {
            let mut bytes = head.encode();
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let sum = crc32fast::hash(&bytes[..HEAD - 4]);
            bytes[HEAD - 4..].copy_from_slice(&sum.to_le_bytes());
            match Head::decode(&bytes) {
                Ok(found) => assert!(found == head && (5..=6).contains(&version)),
                Err(why) => assert!(why.0.contains("this program knows 5 to 6"), "{why}"),
            }
        }
    }
}
