//! The record of checkpoints as bytes: heads and pages. Pure; `README.md` beside this file has the
//! layout.

use std::time::Duration;

/// Bytes of a head, and of a page.
pub(super) const PIECE: usize = 4096;
/// Number of blocks that have their epochs in one page.
pub(super) const PAGE_BLOCKS: usize = GROUPS * GROUP;
/// Number of blocks that are opened together.
pub(super) const GROUP: usize = 16;
/// Number of groups of a page.
pub(super) const GROUPS: usize = 127;
/// Largest number of checkpoints that a record has room for.
pub(super) const MOST_CHECKPOINTS: usize = 48;
/// Largest number of bytes of a checkpoint's name.
pub(super) const LONGEST_NAME: usize = 64;

const HEAD_MAGIC: &[u8; 8] = b"cw-chkp1";
const PAGE_MAGIC: &[u8; 4] = b"cwcp";
/// Offset of the checkpoints in a head.
const LISTED: usize = 64;
/// Bytes of a checkpoint in a head.
const ENTRY: usize = LONGEST_NAME + 16;
const _: () = assert!(LISTED + MOST_CHECKPOINTS * ENTRY <= PIECE);
/// Offset of the epochs in a page.
const EPOCHS: usize = 32;
const _: () = assert!(EPOCHS + 2 * PAGE_BLOCKS == PIECE);

/// A checkpoint in a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Number of the epoch that it began.
    pub(super) epoch: u16,
    /// Time when it was taken, since 1970, in whole seconds.
    pub(super) taken: Duration,
}

/// The first words of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Identity of the record.
    pub(super) id: u64,
    /// Number that grows with each written head.
    pub(super) number: u64,
    /// Bytes of the device.
    pub(super) size: u64,
    /// Bytes of a block, as a power of two.
    pub(super) shift: u32,
    /// Newest epoch, also of a checkpoint that was deleted since.
    pub(super) epoch: u16,
    /// Checkpoints, the oldest first.
    pub(super) checkpoints: Vec<Entry>,
}

/// The content of a piece that has room for a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundHead {
    /// Zeroes: no head was ever written.
    Blank,
    Good(Head),
    /// Other bytes.
    Damaged,
}

/// The content of a piece that has room for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundPage {
    /// Zeroes: no page was ever written.
    Blank,
    /// The open groups, a bit each, and the epochs of the blocks.
    Good(u128, Vec<u16>),
    /// Other bytes, or a page that belongs elsewhere.
    Damaged,
}

/// Returns the reason why a checkpoint can't have this name.
pub(super) fn bad_name(name: &str) -> Option<String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_good) {
        return Some(format!(
            "'{}' can't be the name of a checkpoint. Use 1 to {LONGEST_NAME} letters, digits, \
             dots, dashes and underscores",
            name.escape_debug()
        ));
    }
    None
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Puts the checksum of the whole piece into its bytes from `at` on.
fn seal(bytes: &mut [u8], at: usize) {
    let checksum = crc32fast::hash(bytes);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

fn is_sealed(bytes: &[u8], at: usize) -> bool {
    let mut unsealed = bytes.to_vec();
    unsealed[at..at + 4].fill(0);
    crc32fast::hash(&unsealed) == word(bytes, at)
}

impl Head {
    /// Encodes the head in a piece.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; PIECE];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(0, HEAD_MAGIC);
        put(12, &self.shift.to_le_bytes());
        put(16, &self.id.to_le_bytes());
        put(24, &self.number.to_le_bytes());
        put(32, &self.size.to_le_bytes());
        put(40, &self.epoch.to_le_bytes());
        put(42, &(self.checkpoints.len() as u16).to_le_bytes());
        for (n, one) in self.checkpoints.iter().enumerate() {
            let at = LISTED + n * ENTRY;
            put(at, one.name.as_bytes());
            put(at + LONGEST_NAME, &one.taken.as_secs().to_le_bytes());
            put(at + LONGEST_NAME + 8, &one.epoch.to_le_bytes());
        }
        seal(&mut bytes, 8);
        bytes
    }

    /// Decodes a piece.
    pub(super) fn decode(bytes: &[u8]) -> FoundHead {
        if bytes.iter().all(|byte| *byte == 0) {
            return FoundHead::Blank;
        }
        match Self::decode_good(bytes) {
            Some(head) => FoundHead::Good(head),
            None => FoundHead::Damaged,
        }
    }

    fn decode_good(bytes: &[u8]) -> Option<Head> {
        if bytes.len() != PIECE || !bytes.starts_with(HEAD_MAGIC) || !is_sealed(bytes, 8) {
            return None;
        }
        let count = usize::from(half(bytes, 42));
        let mut head = Head {
            id: long(bytes, 16),
            number: long(bytes, 24),
            size: long(bytes, 32),
            shift: word(bytes, 12),
            epoch: half(bytes, 40),
            checkpoints: Vec::new(),
        };
        if count > MOST_CHECKPOINTS || !(9..=30).contains(&head.shift) {
            return None;
        }
        for n in 0..count {
            let at = LISTED + n * ENTRY;
            let name = &bytes[at..at + LONGEST_NAME];
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(LONGEST_NAME);
            let name = std::str::from_utf8(&name[..end]).ok()?.to_string();
            let epoch = half(bytes, at + LONGEST_NAME + 8);
            let last = head.checkpoints.last().map_or(0, |one| one.epoch);
            // A checksum proves nothing about the writer.
            let is_known = head.checkpoints.iter().any(|one| one.name == name);
            if bad_name(&name).is_some() || is_known || epoch <= last || epoch > head.epoch {
                return None;
            }
            let taken = Duration::from_secs(long(bytes, at + LONGEST_NAME));
            head.checkpoints.push(Entry { name, epoch, taken });
        }
        Some(head)
    }
}

/// Encodes page `n` of the record `id`: its open groups, and the epochs of its blocks.
pub(super) fn encode_page(id: u64, n: usize, open: u128, epochs: &[u16]) -> Vec<u8> {
    let mut bytes = vec![0; PIECE];
    bytes[..4].copy_from_slice(PAGE_MAGIC);
    bytes[8..12].copy_from_slice(&(n as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&(id as u32).to_le_bytes());
    bytes[16..32].copy_from_slice(&open.to_le_bytes());
    for (to, epoch) in bytes[EPOCHS..].chunks_exact_mut(2).zip(epochs) {
        to.copy_from_slice(&epoch.to_le_bytes());
    }
    seal(&mut bytes, 4);
    bytes
}

/// Decodes a piece that has room for page `n` of the record `id`.
pub(super) fn decode_page(id: u64, n: usize, bytes: &[u8]) -> FoundPage {
    if bytes.iter().all(|byte| *byte == 0) {
        return FoundPage::Blank;
    }
    let is_good = bytes.len() == PIECE
        && bytes.starts_with(PAGE_MAGIC)
        && is_sealed(bytes, 4)
        && word(bytes, 8) == n as u32
        && word(bytes, 12) == id as u32;
    if !is_good {
        return FoundPage::Damaged;
    }
    let open = u128::from(long(bytes, 16)) | u128::from(long(bytes, 24)) << 64;
    let epochs = bytes[EPOCHS..].chunks_exact(2).map(|pair| half(pair, 0)).collect();
    FoundPage::Good(open, epochs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let entry = |name: &str, epoch| Entry {
            name: name.to_string(),
            epoch,
            taken: Duration::from_secs(1 << 33),
        };
        let checkpoints = vec![entry("monday", 3), entry(&"n".repeat(LONGEST_NAME), 9)];
        Head { id: 77, number: 1 << 40, size: 3 << 41, shift: 16, epoch: 9, checkpoints }
    }

    #[test]
    fn a_head_survives_its_bytes_and_any_damage_shows() {
        let bytes = head().encode();
        assert_eq!(Head::decode(&bytes), FoundHead::Good(head()));
        for at in 0..PIECE {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            assert_eq!(Head::decode(&bytes), FoundHead::Damaged, "byte {at}");
        }
        assert_eq!(Head::decode(&bytes[..512]), FoundHead::Damaged);
        assert_eq!(Head::decode(&[0; PIECE]), FoundHead::Blank);
    }

    #[test]
    fn a_new_head_lies_in_one_sector_so_no_half_of_it_is_ever_found() {
        let head = Head { checkpoints: Vec::new(), ..head() };
        assert!(head.encode()[512..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_head_that_contradicts_itself_is_refused_though_its_checksum_is_good() {
        let with = |change: fn(&mut Head)| {
            let mut head = head();
            change(&mut head);
            Head::decode(&head.encode())
        };
        assert_eq!(with(|head| head.epoch = 8), FoundHead::Damaged);
        assert_eq!(with(|head| head.shift = 63), FoundHead::Damaged);
        assert_eq!(with(|head| head.checkpoints.swap(0, 1)), FoundHead::Damaged);
        assert_eq!(with(|head| head.checkpoints[0].name = "a/b".into()), FoundHead::Damaged);
        assert_eq!(with(|head| head.checkpoints[0].name.clear()), FoundHead::Damaged);
        let twice = with(|head| head.checkpoints[0].name = head.checkpoints[1].name.clone());
        assert_eq!(twice, FoundHead::Damaged);
        let mut bytes = head().encode();
        bytes[42] = 200;
        bytes[8..12].fill(0);
        seal(&mut bytes, 8);
        assert_eq!(Head::decode(&bytes), FoundHead::Damaged);
    }

    #[test]
    fn a_page_survives_its_bytes_and_any_damage_or_another_place_shows() {
        let epochs: Vec<u16> = (0..PAGE_BLOCKS as u16).collect();
        let bytes = encode_page(7, 3, 1 << 126 | 5, &epochs);
        assert_eq!(decode_page(7, 3, &bytes), FoundPage::Good(1 << 126 | 5, epochs));
        for at in 0..PIECE {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            assert_eq!(decode_page(7, 3, &bytes), FoundPage::Damaged, "byte {at}");
        }
        assert_eq!(decode_page(7, 4, &bytes), FoundPage::Damaged);
        assert_eq!(decode_page(8, 3, &bytes), FoundPage::Damaged);
        assert_eq!(decode_page(7, 3, &[0; PIECE]), FoundPage::Blank);
    }
}
