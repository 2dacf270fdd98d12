//! What a mirror writes down at the end of each leg: who belongs to it, which legs are in sync, and in
//! which regions they may differ. Only bytes here; `disk.rs` reads and writes them. Pure.
//!
//! ```text
//! 0                       data, as large as the smallest leg allows
//! leg_size / R * R - R    head, for even events    (one piece)
//!                  + P    head, for odd events     (one piece)
//!                  + 2 P  bits: one for each region
//! ```
//!
//! P is 4 KiB, or the leg's block size where that is larger; R is 64 KiB, or as much as that takes. A
//! head is 128 bytes with a checksum, and the two are written in turn, so one of them is whole
//! whatever a crash did to the other. Bits need no checksum: a bit is set before the write that it is
//! about is sent, so what a torn piece says too little was never written.

use crate::drivers::StackError;

const MAGIC: &[u8; 8] = b"cw-mirr1";
const HEAD: usize = 128;

/// The first words of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Which mirror this is.
    pub(super) mirror: [u8; 16],
    /// Grows with each change of what is written here.
    pub(super) events: u64,
    /// Bytes of the mirror.
    pub(super) size: u64,
    pub(super) region_shift: u32,
    pub(super) legs: u32,
    /// Which one of them this is.
    pub(super) leg: u32,
    /// A bit for each leg that has everything that was acknowledged.
    pub(super) in_sync: u32,
}

impl Head {
    /// As bytes, in a piece of `piece` bytes.
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
        bytes.resize(piece, 0);
        let sum = crc32(&bytes[..HEAD]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// From a piece; `None` where that holds no whole head.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let mut unsummed = head.to_vec();
        unsummed[8..12].fill(0);
        if &head[..8] != MAGIC || crc32(&unsummed) != word(8) {
            return None;
        }
        let mut mirror = [0; 16];
        mirror.copy_from_slice(&head[12..28]);
        Some(Self {
            mirror,
            events: long(28),
            size: long(36),
            region_shift: word(44),
            legs: word(48),
            leg: word(52),
            in_sync: word(56),
        })
    }
}

/// Where things lie on a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the record begins: what is in front of it is for data.
    pub(super) start: u64,
    /// Bytes of a piece, which is written as a whole.
    pub(super) piece: u64,
}

impl Place {
    /// On a leg of this size and block size; `None` where it has no room.
    pub(super) fn on(size: u64, block_size: u32) -> Option<Self> {
        let piece = u64::from(block_size).max(4096);
        let reserve = (4 * piece).max(64 << 10);
        let start = (size / reserve).checked_sub(1)? * reserve;
        Some(Self { start, piece }).filter(|place| place.start > 0)
    }

    /// Where a head with so many events is written.
    pub(super) fn head(&self, events: u64) -> u64 {
        self.start + events % 2 * self.piece
    }

    /// Where piece `n` of the bits is.
    pub(super) fn bits(&self, n: usize) -> u64 {
        self.start + (2 + n as u64) * self.piece
    }

    /// How many pieces so many regions take.
    pub(super) fn pieces(&self, regions: usize) -> usize {
        regions.div_ceil(8).div_ceil(self.piece as usize)
    }
}

/// What the records of all legs say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assembled {
    /// The newest head; `None` where no leg has one: a new mirror.
    pub(super) newest: Option<Head>,
    /// Legs that have everything.
    pub(super) in_sync: u32,
    /// Legs with a record of this mirror that lack what the bits say.
    pub(super) behind: u32,
    /// Legs without a record: they lack everything.
    pub(super) blank: u32,
}

/// Puts together what was found on each leg: a head, none, or (outer `None`) nothing could be read.
pub(super) fn assemble(
    found: &[Option<Option<Head>>],
    name: impl Fn(usize) -> String,
) -> Result<Assembled, StackError> {
    let bits = |which: &dyn Fn(&Option<Option<Head>>) -> bool| {
        found.iter().enumerate().filter(|(_, f)| which(f)).fold(0u32, |bits, (n, _)| bits | 1 << n)
    };
    let unread = bits(&|f| f.is_none());
    let blank = bits(&|f| matches!(f, Some(None)));
    let heads = || found.iter().enumerate().filter_map(|(n, f)| Some((n, f.as_ref()?.as_ref()?)));
    let Some((_, newest)) = heads().max_by_key(|(_, head)| head.events) else {
        if unread != 0 {
            return Err(StackError::new(format!(
                "no leg has a record of this mirror, and '{}' can't be read: is it the one that has?",
                name(unread.trailing_zeros() as usize)
            )));
        }
        return Ok(Assembled { newest: None, in_sync: blank, behind: 0, blank: 0 });
    };
    for (n, head) in heads() {
        let same = |h: &Head| (h.mirror, h.size, h.region_shift, h.legs);
        if same(head) != same(newest) {
            return Err(StackError::new(format!("'{}' belongs to another mirror", name(n))));
        }
        if head.leg as usize != n || head.legs as usize != found.len() {
            return Err(StackError::new(format!(
                "'{}' is part {} of {} of this mirror, and is given as part {} of {}",
                name(n),
                head.leg + 1,
                head.legs,
                n + 1,
                found.len()
            )));
        }
    }
    let recorded = heads().fold(0u32, |bits, (n, _)| bits | 1 << n);
    let in_sync = newest.in_sync & recorded;
    if in_sync == 0 {
        let lost = (0..found.len()).find(|n| newest.in_sync & 1 << n != 0).map(name);
        let lost = lost.unwrap_or_else(|| "none".to_owned());
        return Err(StackError::new(format!(
            "only '{lost}' has everything, and it has no record that can be read"
        )));
    }
    let newest = Some(newest.clone());
    Ok(Assembled { newest, in_sync, behind: recorded & !in_sync, blank })
}

/// CRC-32 as of Ethernet and zip; a head is short and rare, so bit by bit will do.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0xEDB8_8320 & (c & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(leg: u32, events: u64, in_sync: u32) -> Head {
        let mirror = [7; 16];
        Head { mirror, events, size: 1 << 30, region_shift: 20, legs: 2, leg, in_sync }
    }

    fn put_together(found: &[Option<Option<Head>>]) -> Result<Assembled, String> {
        assemble(found, |n| format!("leg{n}")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_head_survives_its_bytes_and_any_damage_shows() {
        let head = Head { size: u64::MAX - 5, ..head(1, 1 << 40, 3) };
        let bytes = head.encode(4096);
        assert_eq!((bytes.len(), Head::decode(&bytes)), (4096, Some(head)));
        for at in 0..HEAD {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            assert_eq!(Head::decode(&bytes), None, "byte {at}");
        }
        assert_eq!((Head::decode(&[]), Head::decode(&[0; 4096])), (None, None));
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn the_record_lies_behind_the_data_and_fits_in_what_is_left() {
        for (size, block) in [(1 << 20, 512), ((1 << 20) + 5 * 512, 512), (1 << 30, 65_536)] {
            let place = Place::on(size, block).unwrap();
            let end = place.bits(place.pieces(65_536));
            assert!(place.start > 0 && end <= size, "{place:?}");
            assert_eq!(place.start % u64::from(block), 0);
            assert_ne!(place.head(4), place.head(5));
        }
        assert_eq!((Place::on(64 << 10, 512), Place::on(0, 512)), (None, None));
    }

    #[test]
    fn the_newest_head_says_who_is_in_sync() {
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
        assert_eq!((fresh.newest, fresh.in_sync), (None, 0b11));
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let other = Head { mirror: [8; 16], ..head(1, 9, 3) };
        let error = put_together(&[Some(Some(head(0, 5, 3))), Some(Some(other))]).unwrap_err();
        assert!(error.contains("belongs to another mirror"), "{error}");
        let error =
            put_together(&[Some(Some(head(1, 5, 3))), Some(Some(head(0, 5, 3)))]).unwrap_err();
        assert!(error.contains("is part 2 of 2"), "{error}");
        let error = put_together(&[Some(Some(head(0, 5, 0b10))), None]).unwrap_err();
        assert!(error.contains("only 'leg1' has everything"), "{error}");
        let error = put_together(&[Some(None), None]).unwrap_err();
        assert!(error.contains("can't be read"), "{error}");
    }
}
