//! The record of a mirror at the end of each leg: the legs that belong to it, those that are in
//! sync, and the regions where they may differ. This module has only the bytes; `disk.rs` reads and
//! writes them. Pure.
//!
//! ```text
//! 0                       data, as large as the first leg allowed when the mirror was made
//! leg_size / R * R - R    a head                   (one piece)
//!                  + P    another head             (one piece)
//!                  + 2 P  bits: one for each region
//! ```
//!
//! P is 4 KiB, or the leg's block size if that is larger; R is 64 KiB, or as much as that takes. A
//! head is 2 KiB with a checksum. No head overwrites the newest one of its leg, so one head is
//! whole in any state of the other. Bits need no checksum: a bit is set before its write is sent,
//! so a region whose bit a torn piece lacks was never written.

use super::legs::{MOST_LEGS, all, each};
use crate::below::StackError;

const MAGIC: &[u8; 8] = b"cw-mirr3";
const HEAD: usize = 2048;

/// The first words of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Identity of the mirror.
    pub(super) mirror: [u8; 16],
    /// Number that grows with each written head, also with one that failed.
    pub(super) events: u64,
    /// Events of the last head before this one that all legs in sync have. A leg in sync has that
    /// one at least: an older one is a disk that was replaced since, or a copy of one.
    pub(super) common: u64,
    /// Events of the last head that went to all legs of the mirror. Bits are taken away only after
    /// it, and not while a leg is out. So a leg that has this head or a later one lacks at most the
    /// regions with bits.
    pub(super) whole: u64,
    /// Bytes of the mirror.
    pub(super) size: u64,
    pub(super) region_shift: u32,
    /// Count of the numbers that legs have, or had.
    pub(super) legs: u32,
    /// Bits of the legs that were removed.
    pub(super) removed: u32,
    /// Number of the leg that this head is on.
    pub(super) leg: u32,
    /// Bits of the legs that have everything that was acknowledged. A leg without a bit lacks the
    /// regions with bits, or everything, and is never read from.
    pub(super) in_sync: u32,
    /// The times that the mirror began anew, the last one first; at most `FORKS`.
    pub(super) forks: Vec<MirrorBegin>,
    /// The last check.
    pub(super) checked: LastCheck,
}

/// The last check that came to its end. All zeroes in a record that is older than this field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastCheck {
    /// Time of its end, in seconds since 1970; if there was none, the time when the record began.
    pub(super) since: u64,
    /// Its duration in milliseconds, at least 1; 0 if there was none.
    pub(super) took: u32,
    /// Counts of bytes, as in [`MirrorCheck`](super::MirrorCheck).
    pub(super) differ: u64,
    pub(super) unreadable: u64,
    pub(super) lost: u64,
    pub(super) repaired: u64,
}

/// A start of the mirror, with the legs of that time: a copy of it, or legs that were left out,
/// might start too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MirrorBegin {
    /// Identity of the mirror's history since then; 0 stands for a mirror that never began anew.
    pub(super) history: u64,
    /// Number of events until then, which the histories have in common.
    pub(super) events: u64,
}

/// Number of forks that a head has room for: a leg that was away for more starts isn't recognized
/// any more.
const FORKS: usize = 120;
/// Offset of the forks in a head.
const FORKED: usize = 60;
/// Offset of the rest in a head.
const REST: usize = FORKED + 16 * FORKS;
/// Offset of the last check in a head.
const CHECKED: usize = REST + 20;
const _: () = assert!(CHECKED + 44 <= HEAD);

impl Head {
    /// Encodes the head in a piece of `piece` bytes.
    pub(super) fn encode(&self, piece: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(piece);
        bytes.extend(MAGIC);
        bytes.extend([0; 4]);
        bytes.extend(self.mirror);
        bytes.extend(self.events.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        for word in [self.region_shift, self.legs, self.leg, self.in_sync] {
            bytes.extend(word.to_le_bytes());
        }
        for fork in &self.forks {
            bytes.extend(fork.history.to_le_bytes());
            bytes.extend(fork.events.to_le_bytes());
        }
        bytes.resize(REST, 0);
        bytes.extend(self.common.to_le_bytes());
        bytes.extend(self.whole.to_le_bytes());
        bytes.extend(self.removed.to_le_bytes());
        let LastCheck { since, took, differ, unreadable, lost, repaired } = self.checked;
        bytes.extend(took.to_le_bytes());
        for word in [since, differ, unreadable, lost, repaired] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.resize(piece, 0);
        let sum = crc32fast::hash(&bytes[..HEAD]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns the beginning of every head, in a block of `len` bytes.
    pub(super) fn beginning(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes
    }

    /// Returns true if a piece holds a head that was not written to its end.
    pub(super) fn is_half_written(piece: &[u8]) -> bool {
        piece.starts_with(MAGIC) && Self::decode(piece).is_none()
    }

    /// Returns the relation between the head of a leg that is out and the mirror with head
    /// `newest`.
    ///
    /// The mirror has all data of the leg if both have one history, or if the mirror left the leg's
    /// history after this head's last event.
    pub(super) fn relation_to(&self, newest: &Head) -> HeadRelation {
        match (self.is_seen_by(newest), self.is_in_sync()) {
            (true, _) if self.events >= newest.whole => HeadRelation::Behind,
            (true, _) | (false, false) => HeadRelation::Unknown,
            (false, true) => HeadRelation::Diverged,
        }
    }

    /// Returns the leg's bit.
    pub(super) fn bit(&self) -> u32 {
        1u32.checked_shl(self.leg).unwrap_or(0)
    }

    /// Returns true if the leg has everything by its own head.
    fn is_in_sync(&self) -> bool {
        self.in_sync & self.bit() != 0
    }

    /// Returns the numbers of the mirror's legs.
    fn members(&self) -> u32 {
        all((self.legs as usize).min(MOST_LEGS)) & !self.removed
    }

    /// Returns true if the mirror with head `newest` has passed this head.
    fn is_seen_by(&self, newest: &Head) -> bool {
        let forks = &newest.forks;
        if self.history() == newest.history() {
            return self.events <= newest.events;
        }
        let first = (forks.len() < FORKS).then_some(0);
        let left = |n: usize| forks.get(n + 1).map(|former| former.history).or(first);
        forks
            .iter()
            .enumerate()
            .any(|(n, fork)| left(n) == Some(self.history()) && self.events <= fork.events)
    }

    fn history(&self) -> u64 {
        self.forks.first().map_or(0, |fork| fork.history)
    }

    /// Returns true if a leg with this head is the one that `newest` calls in sync.
    fn is_up_to(&self, newest: &Head) -> bool {
        self.is_seen_by(newest) && self.events >= newest.common
    }

    /// Begins the mirror anew. `chance` differs from any other's.
    pub(super) fn fork(&mut self, chance: u64) {
        self.forks.truncate(FORKS - 1);
        self.forks.insert(0, MirrorBegin { history: chance.max(1), events: self.events });
    }

    /// Decodes a piece; `None` if it holds no whole head.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let mut unsummed = head.to_vec();
        unsummed[8..12].fill(0);
        if &head[..8] != MAGIC || crc32fast::hash(&unsummed) != word(8) {
            return None;
        }
        let mut mirror = [0; 16];
        mirror.copy_from_slice(&head[12..28]);
        let at = |n: usize| FORKED + 16 * n;
        let fork = |n: usize| MirrorBegin { history: long(at(n)), events: long(at(n) + 8) };
        Some(Self {
            mirror,
            events: long(28),
            size: long(36),
            region_shift: word(44),
            legs: word(48),
            leg: word(52),
            in_sync: word(56),
            forks: (0..FORKS).map(fork).take_while(|fork| fork.history != 0).collect(),
            common: long(REST),
            whole: long(REST + 8),
            removed: word(REST + 16),
            checked: LastCheck {
                took: word(CHECKED),
                since: long(CHECKED + 4),
                differ: long(CHECKED + 12),
                unreadable: long(CHECKED + 20),
                lost: long(CHECKED + 28),
                repaired: long(CHECKED + 36),
            },
        })
    }
}

/// The places of the record on a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordLayout {
    /// Offset of the record: the bytes in front of it are for data.
    pub(super) start: u64,
    /// Bytes of a piece, which is written as a whole.
    pub(super) piece: u64,
}

impl RecordLayout {
    /// Returns the layout for a leg of this size and block size; `None` if it has no room.
    pub(super) fn on(size: u64, block_size: u32) -> Option<Self> {
        let piece = u64::from(block_size).max(4096);
        let reserve = (4 * piece).max(64 << 10);
        let start = (size / reserve).checked_sub(1)? * reserve;
        Some(Self { start, piece }).filter(|place| place.start > 0)
    }

    /// Returns the offset of the head in slot 0 or 1.
    pub(super) fn head(&self, slot: usize) -> u64 {
        self.start + slot as u64 * self.piece
    }

    /// Returns the offset of piece `n` of the bits.
    pub(super) fn bits(&self, n: usize) -> u64 {
        self.start + (2 + n as u64) * self.piece
    }

    /// Returns the number of pieces for the bits of `regions` regions.
    pub(super) fn pieces(&self, regions: usize) -> usize {
        regions.div_ceil(8).div_ceil(self.piece as usize)
    }
}

/// The result of all legs' records together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assembled {
    /// The newest head; `None` if no leg has one: a new mirror.
    pub(super) newest: Option<Head>,
    /// Largest number of events of any head: a leg that has to be copied may have more than the
    /// newest head.
    pub(super) events: u64,
    /// Legs that have everything.
    pub(super) in_sync: u32,
    /// Legs with a record of this mirror that lack the regions with bits.
    pub(super) behind: u32,
    /// Legs without a record, or with one that doesn't show their missing data: they lack
    /// everything.
    pub(super) blank: u32,
    /// The blank legs that have no record.
    pub(super) unwritten: u32,
    /// Legs that had everything, and were opened without changes that were flushed. They lack
    /// everything, or, if no other leg is in sync, one of them is the source.
    pub(super) outdated: u32,
    /// Legs that could not be read.
    pub(super) missing: u32,
    /// The number of each leg, in the order in which they were given.
    pub(super) numbers: Vec<usize>,
}

impl Assembled {
    /// Returns the legs that had everything when the mirror was last up, and are not known to have
    /// it now.
    pub(super) fn lost(&self) -> u32 {
        self.newest.as_ref().map_or(0, |head| head.in_sync) & !self.in_sync & !self.outdated
    }

    /// Returns true if the mirror begins with a leg that lacks changes that were flushed.
    pub(super) fn is_outdated(&self) -> bool {
        self.in_sync & self.outdated != 0
    }

    /// Checks that the mirror may start without the legs that are missing, and those that were
    /// replaced.
    pub(super) fn may_start(
        &self,
        policy: Degraded,
        name: impl Fn(usize) -> String,
    ) -> Result<(), StackError> {
        let (needed, why) = match policy {
            Degraded::Never if self.missing != 0 => {
                (self.missing, "but the mirror needs all its legs")
            }
            Degraded::Never | Degraded::Known => (
                self.lost(),
                "but was in sync when the mirror was last up. If another device has taken its \
                 place since, name that one. degraded = \"always\" starts the mirror without this \
                 leg",
            ),
            Degraded::Always => return Ok(()),
        };
        let Some(n) = each(needed).next() else { return Ok(()) };
        Err(StackError::new(format!("'{}' {}, {why}", name(n), self.fate(n))))
    }

    /// Returns in words why leg `n` isn't in sync.
    fn fate(&self, n: usize) -> &'static str {
        if self.missing & 1 << n != 0 {
            "is missing"
        } else if self.unwritten & 1 << n != 0 {
            "has no record"
        } else {
            "is an older copy of this leg"
        }
    }
}

/// The legs that may be missing when a mirror starts. In any case a leg that has everything has to
/// be there, and a new mirror is made of all its legs. A leg that had everything, and is another
/// disk now, or an older copy of itself, counts as missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Degraded {
    /// All legs have to be there.
    Never,
    /// The legs may be missing that were out when the mirror was last up: the others have all
    /// acknowledged writes. (`mdadm --assemble`.)
    #[default]
    Known,
    /// Any leg may be missing. If it has the newest writes, they are missing too, and it is refused
    /// when it comes back. (`mdadm --assemble --run`.)
    Always,
}

/// Combines the heads of all legs: a head, none, or (outer `None`) an unreadable leg. The legs are
/// given in the order of their numbers, which has a gap if one was removed. New legs follow them.
/// `outdated` has a bit for each place whose leg was opened without changes that were flushed.
pub(super) fn assemble(
    found: &[Option<Option<Head>>],
    outdated: u32,
    name: impl Fn(usize) -> String,
) -> Result<Assembled, StackError> {
    let heads = || found.iter().enumerate().filter_map(|(at, f)| Some((at, f.as_ref()?.as_ref()?)));
    // The newest head continues the history; but a leg in sync that continued wins over one that
    // was being resynced.
    let goes_on =
        |newest: &Head| heads().all(|(_, head)| head.is_seen_by(newest) || !head.is_in_sync());
    let newest = |fits: &dyn Fn(&Head) -> bool| {
        heads().map(|(_, head)| head).filter(|head| fits(head)).max_by_key(|head| head.events)
    };
    let Some(newest) = newest(&goes_on).or_else(|| newest(&|_| true)) else {
        if let Some(unread) = found.iter().position(Option::is_none) {
            return Err(StackError::new(format!(
                "no readable leg has a record of this mirror, and '{}', which may have one, can't \
                 be read. Repair or replace its disk",
                name(unread)
            )));
        }
        // A new mirror has the data of its first leg; the others' content is unknown.
        let (in_sync, blank) = (SOURCE, all(found.len()) & !SOURCE);
        let (unwritten, numbers) = (blank, (0..found.len()).collect());
        return Ok(Assembled { in_sync, blank, unwritten, numbers, ..Assembled::default() });
    };
    are_of_one_mirror(heads(), &name)?;
    let numbers = numbers(found, newest, &name)?;
    let mut all = Assembled {
        newest: Some(newest.clone()),
        events: heads().map(|(_, head)| head.events).max().unwrap_or(0),
        ..Assembled::default()
    };
    for ((at, found), &n) in found.iter().enumerate().zip(&numbers) {
        let (bit, is_outdated) = (1 << n, outdated & 1 << at != 0);
        match found {
            None => all.missing |= bit,
            Some(None) => (all.blank, all.unwritten) = (all.blank | bit, all.unwritten | bit),
            // The changes that it lacks may include heads.
            Some(Some(head))
                if is_outdated && newest.in_sync & bit != 0 && head.is_seen_by(newest) =>
            {
                all.outdated |= bit;
            }
            Some(Some(head)) if newest.in_sync & bit != 0 && head.is_up_to(newest) => {
                all.in_sync |= bit;
            }
            // A leg that is added has no data, whatever its former record says.
            Some(Some(head)) => match head.relation_to(newest) {
                HeadRelation::Diverged => return Err(diverged(&name(at))),
                HeadRelation::Behind if newest.members() & bit != 0 && !is_outdated => {
                    all.behind |= bit
                }
                _ => all.blank |= bit,
            },
        }
    }
    all.numbers = numbers;
    if all.in_sync == 0 {
        all.in_sync = all.outdated & all.outdated.wrapping_neg();
        if all.in_sync != 0 {
            // The source may lack bits about the others' missing data.
            all.blank |= std::mem::take(&mut all.behind);
        }
    }
    all.blank |= all.outdated & !all.in_sync;
    if all.in_sync == 0 {
        let at = |n: usize| all.numbers.iter().position(|number| *number == n);
        let lost: Vec<_> = each(all.lost())
            .filter_map(|n| Some(format!("'{}' {}", name(at(n)?), all.fate(n))))
            .collect();
        return Err(StackError::new(format!(
            "no leg that is in sync is present: {}. A mirror never serves another leg, so bring \
             back one that was in sync",
            lost.join(", ")
        )));
    }
    Ok(all)
}

/// Checks that all heads are of one mirror.
fn are_of_one_mirror<'a>(
    heads: impl Iterator<Item = (usize, &'a Head)>,
    name: impl Fn(usize) -> String,
) -> Result<(), StackError> {
    let mut mirrors: Vec<(&Head, Vec<String>)> = Vec::new();
    for (at, head) in heads {
        let same = |h: &Head| (h.mirror, h.size, h.region_shift);
        let leg = format!("'{}'", name(at));
        match mirrors.iter_mut().find(|(first, _)| same(first) == same(head)) {
            Some((_, legs)) => legs.push(leg),
            None => mirrors.push((head, vec![leg])),
        }
    }
    if mirrors.len() < 2 {
        return Ok(());
    }
    let legs: Vec<String> = mirrors.iter().map(|(_, legs)| legs.join(", ")).collect();
    Err(StackError::new(format!(
        "the legs belong to {} mirrors: {}",
        mirrors.len(),
        legs.join(" to one, ") + " to another"
    )))
}

/// Returns the number of each given leg: those that the newest head knows, in order, and then new
/// ones.
fn numbers(
    found: &[Option<Option<Head>>],
    newest: &Head,
    name: impl Fn(usize) -> String,
) -> Result<Vec<usize>, StackError> {
    let members: Vec<usize> = each(newest.members()).collect();
    let has = match members.len() {
        1 => "1 leg".to_owned(),
        count => format!("{count} legs"),
    };
    let heads = || found.iter().enumerate().filter_map(|(at, f)| Some((at, f.as_ref()?.as_ref()?)));
    if let Some((at, _)) = heads().find(|(_, head)| newest.removed & head.bit() != 0) {
        return Err(StackError::new(format!(
            "'{0}' was removed from this mirror, which has {has}. Leave '{0}' out. To add it \
             again as a new leg, which is copied in full, overwrite the last 256 KiB of '{0}' \
             with zeroes",
            name(at)
        )));
    }
    let given = found.len();
    if given < members.len() {
        return Err(StackError::new(format!(
            "the record of this mirror has {has}, but only {given} of them were given. Name all \
             of them in their order, with the one that was added last. A lost leg may be missing: \
             remove it when the mirror is up"
        )));
    }
    for (at, head) in heads() {
        let leg = members.iter().position(|n| *n == head.leg as usize);
        if leg != Some(at).filter(|at| *at < members.len()) {
            let is = leg.map_or("no leg".to_owned(), |leg| format!("leg {}", leg + 1));
            return Err(StackError::new(format!(
                "'{}' is {is} of {} of this mirror, but was given as leg {} of {given}",
                name(at),
                members.len(),
                at + 1,
            )));
        }
    }
    let is_new_and_missing = |at: &usize| found[*at].is_none();
    if let Some(at) = (members.len()..given).find(is_new_and_missing) {
        return Err(StackError::new(format!(
            "the record of this mirror has {has}, and '{}' is none of them and is missing. Leave \
             this device out, or bring it back",
            name(at)
        )));
    }
    let new = newest.legs as usize..MOST_LEGS;
    let numbers: Vec<usize> = members.into_iter().chain(new).take(given).collect();
    if numbers.len() < given {
        return Err(StackError::new(format!(
            "this mirror has {has}, and no leg number is left for '{}'. Add this device when the \
             mirror is up: the mirror then reuses the numbers of removed legs",
            name(numbers.len())
        )));
    }
    Ok(numbers)
}

/// The bit of the leg that all others are copied from if nothing else is known: the first one.
pub(super) const SOURCE: u32 = 1;

/// Makes the error that the legs of a mirror were used without each other.
pub(super) fn diverged(name: &str) -> StackError {
    StackError::new(format!(
        "'{name}' and the other legs were written without each other, so the mirror can't tell \
         which side is right. To replace the content of '{name}' by that of the others, overwrite \
         the last 256 KiB of '{name}' with zeroes"
    ))
}

/// The relation between the mirror's head and that of a leg that isn't in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadRelation {
    /// The leg lacks at most the regions with the mirror's bits.
    Behind,
    /// The leg was not in sync when the mirror left the legs that it followed: it may lack
    /// anything.
    Unknown,
    /// The leg took writes that the mirror's legs don't have.
    Diverged,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(leg: u32, events: u64, in_sync: u32) -> Head {
        let mirror = [7; 16];
        let (size, common) = (1 << 30, events.saturating_sub(1));
        let head = Head { mirror, events, size, common, ..Head::default() };
        Head { region_shift: 20, legs: 2, leg, in_sync, ..head }
    }

    /// Returns `head` as that of a mirror that continued alone after this many events.
    fn forked(at: u64, history: u64, mut head: Head) -> Head {
        let events = std::mem::replace(&mut head.events, at);
        head.fork(history);
        Head { events, ..head }
    }

    fn put_together(found: &[Option<Option<Head>>]) -> Result<Assembled, String> {
        assemble(found, 0, |n| format!("leg{n}")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_head_survives_its_bytes_and_any_damage_shows() {
        let checked = LastCheck {
            since: 1 << 31,
            took: 7,
            differ: 1 << 33,
            unreadable: 1 << 34,
            lost: 1 << 35,
            repaired: u64::MAX,
        };
        let head = Head {
            size: u64::MAX - 5,
            whole: 1 << 41,
            checked,
            ..forked(5, 7, head(1, 1 << 40, 3))
        };
        let bytes = head.encode(4096);
        assert_eq!((bytes.len(), Head::decode(&bytes)), (4096, Some(head)));
        for at in 0..HEAD {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            assert_eq!(Head::decode(&bytes), None, "byte {at}");
        }
        assert_eq!((Head::decode(&[]), Head::decode(&[0; 4096])), (None, None));
        assert_eq!(crc32fast::hash(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn the_record_lies_behind_the_data_and_fits_in_what_is_left() {
        for (size, block) in [(1 << 20, 512), ((1 << 20) + 5 * 512, 512), (1 << 30, 65_536)] {
            let place = RecordLayout::on(size, block).unwrap();
            let end = place.bits(place.pieces(65_536));
            assert!(place.start > 0 && end <= size, "{place:?}");
            assert_eq!(place.start % u64::from(block), 0);
            assert_ne!(place.head(0), place.head(1));
        }
        assert_eq!((RecordLayout::on(64 << 10, 512), RecordLayout::on(0, 512)), (None, None));
    }

    #[test]
    fn the_newest_head_says_which_legs_are_in_sync() {
        let one =
            put_together(&[Some(Some(head(0, 5, 0b01))), Some(Some(head(1, 4, 0b11)))]).unwrap();
        assert_eq!((one.in_sync, one.behind, one.blank), (0b01, 0b10, 0));
        // A crash between the two writes of one change: the other leg was right all the same.
        let both =
            put_together(&[Some(Some(head(0, 4, 0b01))), Some(Some(head(1, 5, 0b11)))]).unwrap();
        assert_eq!((both.in_sync, both.behind), (0b11, 0));
        let new = put_together(&[Some(Some(head(0, 4, 0b11))), Some(None)]).unwrap();
        assert_eq!((new.in_sync, new.behind, new.blank), (0b01, 0, 0b10));
        let dead = put_together(&[None, Some(Some(head(1, 4, 0b11)))]).unwrap();
        assert_eq!((dead.in_sync, dead.behind, dead.blank), (0b10, 0, 0));
        let fresh = put_together(&[Some(None), Some(None)]).unwrap();
        assert_eq!((fresh.newest, fresh.in_sync, fresh.blank), (None, 0b01, 0b10));
    }

    #[test]
    fn a_leg_that_was_being_resynced_has_no_word_against_one_that_went_on_in_sync() {
        // Leg 0 failed the head that leg 1 got, and began anew without it.
        for events in [6, 9] {
            let found = [forked(5, 7, head(0, 7, 0b01)), head(1, events, 0b01)];
            let all = put_together(&found.map(|head| Some(Some(head)))).unwrap();
            assert_eq!((all.in_sync, all.blank, all.events), (0b01, 0b10, events.max(7)));
            assert_eq!(all.newest.unwrap().events, 7);
        }
    }

    #[test]
    fn records_that_do_not_belong_together_are_refused() {
        let three = |n| Head { legs: 3, ..head(n, 5, 7) };
        let other = Head { mirror: [8; 16], ..head(2, 9, 3) };
        let found = [Some(Some(three(0))), Some(Some(three(1))), Some(Some(other))];
        let error = put_together(&found).unwrap_err();
        let want = "the legs belong to 2 mirrors: 'leg0', 'leg1' to one, 'leg2' to another";
        assert_eq!(error, want);
        let error =
            put_together(&[Some(Some(head(1, 5, 3))), Some(Some(head(0, 5, 3)))]).unwrap_err();
        assert!(error.contains("is leg 2 of 2"), "{error}");
        let error = put_together(&[Some(Some(head(0, 5, 0b10))), None]).unwrap_err();
        assert!(error.contains("no leg that is in sync is present: 'leg1' is missing"), "{error}");
        let error = put_together(&[Some(Some(head(0, 5, 0b10))), Some(None)]).unwrap_err();
        assert!(error.contains("'leg1' has no record"), "{error}");
        let error = put_together(&[Some(None), None]).unwrap_err();
        assert!(error.contains("can't be read"), "{error}");
    }

    #[test]
    fn legs_that_were_used_without_each_other_are_not_put_together() {
        let alone = |leg: u32, events| forked(5, 70 + u64::from(leg), head(leg, events, 1 << leg));
        let error = put_together(&[Some(Some(alone(0, 9))), Some(Some(alone(1, 6)))]).unwrap_err();
        assert!(error.contains("'leg1' and the other legs were written without"), "{error}");
        // Leg 1 failed at the end; it continued alone later.
        let failed = head(0, 8, 0b01);
        let error = put_together(&[Some(Some(failed)), Some(Some(alone(1, 6)))]).unwrap_err();
        assert!(error.contains("'leg1' and the other legs were written without"), "{error}");
    }

    #[test]
    fn a_leg_follows_where_the_mirror_went_on_after_what_it_has_seen() {
        let newest = forked(5, 7, head(0, 9, 0b01));
        assert_eq!(head(1, 5, 0b11).relation_to(&newest), HeadRelation::Behind);
        assert_eq!(head(1, 6, 0b11).relation_to(&newest), HeadRelation::Diverged);
        assert_eq!(
            head(1, 6, 0b01).relation_to(&newest),
            HeadRelation::Unknown,
            "it was being resynced"
        );
        assert_eq!(forked(5, 7, head(1, 8, 0b11)).relation_to(&newest), HeadRelation::Behind);
        assert_eq!(forked(5, 8, head(1, 5, 0b10)).relation_to(&newest), HeadRelation::Diverged);
        // Each history is known as far as there is room for forks, and a forgotten one doesn't
        // count.
        let mut often = newest;
        for fork in 1..FORKS as u64 {
            often.fork(100 + fork);
        }
        assert_eq!(forked(5, 7, head(1, 9, 0b11)).relation_to(&often), HeadRelation::Behind);
        assert_eq!(head(1, 5, 0b11).relation_to(&often), HeadRelation::Diverged);
        assert_eq!(Head::decode(&often.encode(4096)), Some(often));
    }

    #[test]
    fn a_leg_is_what_its_own_head_says_and_not_what_the_others_say_of_its_place() {
        // The leg was replaced, and the new one is in sync by now.
        let newest = Head { whole: 7, ..head(0, 9, 0b11) };
        let old =
            put_together(&[Some(Some(newest.clone())), Some(Some(head(1, 5, 0b11)))]).unwrap();
        assert_eq!((old.in_sync, old.behind, old.blank, old.lost()), (0b01, 0, 0b10, 0b10));
        // The new one has failed since.
        let newest = Head { in_sync: 0b01, ..newest };
        assert_eq!(
            head(1, 6, 0b11).relation_to(&newest),
            HeadRelation::Unknown,
            "bits were taken away since"
        );
        assert_eq!(head(1, 7, 0b11).relation_to(&newest), HeadRelation::Behind);
        // Rounds that could be written nowhere leave a leg in sync behind by their number.
        let newest = Head { common: 5, ..head(0, 9, 0b11) };
        let late = put_together(&[Some(Some(newest)), Some(Some(head(1, 5, 0b11)))]).unwrap();
        assert_eq!((late.in_sync, late.lost()), (0b11, 0));
        assert_eq!(
            head(1, 10, 0b11).relation_to(&head(0, 9, 0b01)),
            HeadRelation::Diverged,
            "it went on alone"
        );
    }

    #[test]
    fn the_policy_decides_which_legs_may_be_missing() {
        let may = |found: &[Option<Option<Head>>], policy| {
            let assembled = put_together(found).unwrap();
            assembled.may_start(policy, |n| format!("leg{n}")).map_err(|error| error.to_string())
        };
        let known = [Some(Some(head(0, 5, 0b01))), None];
        let news = [Some(Some(head(0, 5, 0b11))), None];
        let whole = [Some(Some(head(0, 5, 0b11))), Some(Some(head(1, 5, 0b11)))];
        let new = [Some(Some(head(0, 5, 0b11))), Some(None)];
        let old = [Some(Some(head(0, 5, 0b11))), Some(Some(head(1, 3, 0b11)))];
        let gone = [false, false, true];
        let ways = [(&known, [false, true, true]), (&news, gone), (&new, gone), (&old, gone)];
        for (found, ways) in ways {
            let policies = [Degraded::Never, Degraded::Known, Degraded::Always];
            assert_eq!(policies.map(|policy| may(found, policy).is_ok()), ways);
        }
        assert!(may(&whole, Degraded::Never).is_ok());
        let error = may(&news, Degraded::default()).unwrap_err();
        assert!(error.starts_with("'leg1' is missing, but was in sync"), "{error}");
        let error = may(&old, Degraded::default()).unwrap_err();
        assert!(error.starts_with("'leg1' is an older copy of this leg, but was"), "{error}");
    }
}
