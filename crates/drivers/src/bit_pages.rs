//! Pages of a bitmap in a file: each sector carries a checksum of its bits, of its place and of the
//! volume that it belongs to. Pure.
//!
//! ```text
//! a page of 4 KiB = 8 sectors of 512 bytes, each:
//!   0    magic     "cwb1"
//!   4    checksum  CRC-32 of the volume's identity, the sector's number and the bits
//!   8    bits      63 words of 64, little endian
//! ```
//!
//! A disk writes a sector as a whole, so a torn page has old and new sectors, all of them good.
//! Anything else is damage, a sector of zeroes too: only pages that were written are read.

use std::ops::Range;

use corewise_sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Bits of a page.
pub(crate) const PAGE_BITS: usize = WORDS * 64;

const SECTOR: usize = 512;
const HEAD: usize = 8;
const MAGIC: &[u8; 4] = b"cwb1";
/// Words of a sector.
const SECTOR_WORDS: usize = (SECTOR - HEAD) / 8;
/// Words of a page.
const WORDS: usize = PAGE / SECTOR * SECTOR_WORDS;

/// A page of bits in memory. Any thread may read and set bits.
pub(crate) struct BitPage {
    /// A: bits. Release when they are set, Acquire when they are read: a reader of a bit sees what
    /// the setter did before.
    words: [AtomicU64; WORDS],
}

/// The damaged sector of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DamagedSector(pub(crate) usize);

impl BitPage {
    /// Creates a page of clear bits.
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self { words: std::array::from_fn(|_| AtomicU64::new(0)) })
    }

    /// Decodes page `index` of the bitmap of volume `id` from its [`PAGE`] bytes.
    ///
    /// # Errors
    /// The first sector that is damaged, or belongs to another volume or another place.
    pub(crate) fn decode(
        bytes: &[u8],
        id: &[u8; 16],
        index: u64,
    ) -> Result<Box<Self>, DamagedSector> {
        let page = Self::new();
        for sector in 0..PAGE / SECTOR {
            let found = bytes.get(sector * SECTOR..(sector + 1) * SECTOR);
            let found = found.ok_or(DamagedSector(sector))?;
            let (head, bits) = found.split_at(HEAD);
            let (magic, sum) = head.split_at(MAGIC.len());
            if magic != MAGIC || sum != checksum(id, index, sector, bits).to_le_bytes() {
                return Err(DamagedSector(sector));
            }
            let words = &page.words[sector * SECTOR_WORDS..];
            for (word, bytes) in words.iter().zip(bits.chunks_exact(8)) {
                let bytes = bytes.try_into().expect("a chunk of eight bytes");
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
        }
        Ok(page)
    }

    /// Encodes the present bits as page `index` of the bitmap of volume `id`.
    pub(crate) fn encode(&self, id: &[u8; 16], index: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PAGE);
        for (sector, words) in self.words.chunks_exact(SECTOR_WORDS).enumerate() {
            let start = bytes.len();
            bytes.extend(MAGIC);
            bytes.extend([0; 4]);
            // Acquire pairs with the Release of `set`.
            bytes.extend(words.iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()));
            let sum = checksum(id, index, sector, &bytes[start + HEAD..]);
            bytes[start + MAGIC.len()..start + HEAD].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// Returns bit `from`, and the number of bits from there on that are like it, up to `to`.
    pub(crate) fn run(&self, from: usize, to: usize) -> (bool, usize) {
        let word_at = |at: usize| self.words[at / 64].load(Ordering::Acquire);
        let kind = word_at(from) >> (from % 64) & 1 != 0;
        let mut at = from;
        while at < to {
            let differ = if kind { !word_at(at) } else { word_at(at) } >> (at % 64);
            if differ != 0 {
                return (kind, (at + differ.trailing_zeros() as usize).min(to) - from);
            }
            at = (at / 64 + 1) * 64;
        }
        (kind, to - from)
    }

    /// Returns a bit.
    pub(crate) fn is_set(&self, bit: usize) -> bool {
        self.run(bit, bit + 1).0
    }

    /// Sets these bits, and returns how many of them were clear.
    pub(crate) fn set(&self, bits: Range<usize>) -> usize {
        let (mut at, mut new) = (bits.start, 0);
        while at < bits.end {
            let next = ((at / 64 + 1) * 64).min(bits.end);
            let mask = (u64::MAX >> (64 - (next - at))) << (at % 64);
            let before = self.words[at / 64].fetch_or(mask, Ordering::Release);
            new += (mask & !before).count_ones() as usize;
            at = next;
        }
        new
    }

    /// Clears all bits.
    pub(crate) fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Returns how many bits are set.
    pub(crate) fn count(&self) -> usize {
        let ones = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones() as usize;
        self.words.iter().map(ones).sum()
    }
}

fn checksum(id: &[u8; 16], index: u64, sector: usize, bits: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id);
    hasher.update(&(index * (PAGE / SECTOR) as u64 + sector as u64).to_le_bytes());
    hasher.update(bits);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 16] = [7; 16];

    fn bits(page: &BitPage) -> Vec<bool> {
        (0..PAGE_BITS).map(|bit| page.is_set(bit)).collect()
    }

    #[test]
    fn set_bits_and_runs_agree_with_a_vector() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (page, mut model) = (BitPage::new(), vec![false; PAGE_BITS]);
        for _ in 0..300 {
            let from = rng.usize(..PAGE_BITS);
            let to = (from + rng.usize(..300)).min(PAGE_BITS);
            let new = model[from..to].iter().filter(|bit| !**bit).count();
            assert_eq!(page.set(from..to), new);
            model[from..to].fill(true);
            let at = rng.usize(..PAGE_BITS);
            let end = at + 1 + rng.usize(..PAGE_BITS - at);
            let same = model[at..end].iter().take_while(|bit| **bit == model[at]).count();
            assert_eq!(page.run(at, end), (model[at], same), "{at}..{end}");
        }
        assert_eq!(bits(&page), model);
        assert_eq!(page.count(), model.iter().filter(|bit| **bit).count());
    }

    #[test]
    fn a_page_is_read_as_it_was_written_and_zeroes_are_damage() {
        let page = BitPage::new();
        page.set(0..1);
        page.set(4031..4033);
        page.set(PAGE_BITS - 3..PAGE_BITS);
        let bytes = page.encode(&ID, 5);
        assert_eq!(bytes.len(), PAGE);
        assert_eq!(bits(&BitPage::decode(&bytes, &ID, 5).unwrap()), bits(&page));
        for sector in 0..PAGE / SECTOR {
            let mut zeroed = bytes.clone();
            zeroed[sector * SECTOR..(sector + 1) * SECTOR].fill(0);
            assert_eq!(BitPage::decode(&zeroed, &ID, 5).err(), Some(DamagedSector(sector)));
        }
    }

    #[test]
    fn a_torn_page_has_old_and_new_sectors() {
        let page = BitPage::new();
        page.set(0..1);
        let old = page.encode(&ID, 0);
        page.set(1..2);
        page.set(PAGE_BITS - 1..PAGE_BITS);
        let new = page.encode(&ID, 0);
        let torn = [&old[..SECTOR], &new[SECTOR..]].concat();
        let found = bits(&BitPage::decode(&torn, &ID, 0).unwrap());
        assert_eq!((found[0], found[1], found[PAGE_BITS - 1]), (true, false, true));
    }

    #[test]
    fn no_bit_of_a_page_can_flip_unnoticed_and_no_foreign_page_is_believed() {
        let page = BitPage::new();
        page.set(100..5000);
        let good = page.encode(&ID, 2);
        for bit in 0..PAGE * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let sector = bit / 8 / SECTOR;
            assert_eq!(BitPage::decode(&bad, &ID, 2).err(), Some(DamagedSector(sector)));
        }
        assert!(BitPage::decode(&good, &ID, 3).is_err(), "another place");
        assert!(BitPage::decode(&good, &[8; 16], 2).is_err(), "another volume");
        assert_eq!(BitPage::decode(&good[..PAGE - 1], &ID, 2).err(), Some(DamagedSector(7)));
    }
}
