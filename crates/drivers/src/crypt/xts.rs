//! AES-256 in XTS mode, as IEEE 1619 has it and dm-crypt's `aes-xts-plain64` uses it: the tweak of
//! a sector is its number, in units of 512 bytes, little-endian.
//!
//! The crate `aes` brings the cipher; the mode is here, since only many blocks at once keep the
//! processor's AES units busy. The crate `xts-mode` passes one block at a time, which is a fifth as
//! fast.

use aes::Aes256;
use aes::cipher::{Array, Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use zeroize::Zeroizing;

/// Bytes of a key: half for the data, half for the tweaks.
pub(super) const KEY: usize = 64;

/// Unit of the sectors' numbers, in bytes.
pub(super) const UNIT: usize = 512;

/// Maximum bytes of a sector.
pub(super) const MOST_SECTOR: usize = 4096;

/// Number of blocks that go to the cipher at once: those of a small sector.
const AT_ONCE: usize = 32;

/// Bytes of a block.
const BLOCK: usize = 16;

/// The part of a device that holds a volume's data, and the form of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataArea {
    /// First byte.
    pub(super) start: u64,
    /// Size in bytes. `None`: up to the end of the device.
    pub(super) size: Option<u64>,
    /// Bytes of a sector.
    pub(super) sector: u32,
    /// Number of the first sector, in units of 512 bytes.
    pub(super) first: u64,
}

impl DataArea {
    /// Returns the bytes of data on a device of `whole` bytes, in blocks of `block`; `None` if the
    /// device is too small.
    pub(super) fn size_on(&self, whole: u64, block: u32) -> Option<u64> {
        let room = whole.checked_sub(self.start)?;
        let size = match self.size {
            Some(size) if size > room => return None,
            Some(size) => size,
            None => room,
        };
        Some(size - size % u64::from(block)).filter(|size| *size != 0)
    }
}

/// A cipher for the sectors of a device.
pub(super) struct Xts {
    data: Aes256,
    tweak: Aes256,
    /// Bytes of a sector: 512, 1024, 2048 or 4096.
    sector: usize,
    /// Number of the first sector.
    first: u64,
}

/// The direction of a cipher.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    Encrypt,
    Decrypt,
}

impl Xts {
    /// Creates a cipher for sectors of `sector` bytes, the first of which has the number `first`.
    pub(super) fn new(key: &[u8; KEY], sector: usize, first: u64) -> Self {
        let (data, tweak) = key.split_at(KEY / 2);
        let half = |half: &[u8]| Aes256::new_from_slice(half).expect("half a key has 32 bytes");
        Self { data: half(data), tweak: half(tweak), sector, first }
    }

    /// Encrypts or decrypts whole sectors in place. The first one begins at byte `offset` of the
    /// device.
    pub(super) fn crypt(&self, direction: Direction, offset: u64, bytes: &mut [u8]) {
        let step = (self.sector / UNIT) as u64;
        let mut number = self.first.wrapping_add(offset / UNIT as u64);
        for group in bytes.chunks_mut(AT_ONCE * self.sector) {
            let mut tweaks = [Block::<Aes256>::default(); AT_ONCE];
            let tweaks = &mut tweaks[..group.len().div_ceil(self.sector)];
            for tweak in &mut *tweaks {
                tweak[..8].copy_from_slice(&number.to_le_bytes());
                number = number.wrapping_add(step);
            }
            self.tweak.encrypt_blocks(tweaks);
            for (sector, tweak) in group.chunks_mut(self.sector).zip(tweaks) {
                self.sector(direction, sector, u128::from_le_bytes((*tweak).into()));
            }
        }
    }

    #[inline]
    fn sector(&self, direction: Direction, sector: &mut [u8], mut tweak: u128) {
        for bytes in sector.chunks_mut(AT_ONCE * BLOCK) {
            let mut tweaks = [0; AT_ONCE];
            for each in &mut tweaks {
                *each = tweak;
                tweak = doubled(tweak);
            }
            let (blocks, _) = Array::slice_as_chunks_mut(bytes);
            mask(blocks, &tweaks);
            match direction {
                Direction::Encrypt => self.data.encrypt_blocks(blocks),
                Direction::Decrypt => self.data.decrypt_blocks(blocks),
            }
            mask(blocks, &tweaks);
        }
    }

    /// Decrypts bytes that begin at byte `offset` of the device and lie in several pieces of
    /// memory, which together are whole sectors.
    pub(super) fn decrypt_pieces<'a>(
        &self,
        mut offset: u64,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    ) {
        // The pieces of a sector that lies in several.
        let mut split: Vec<&mut [u8]> = Vec::new();
        let mut missing = 0;
        for mut piece in pieces {
            if missing != 0 {
                let (head, rest) = piece.split_at_mut(missing.min(piece.len()));
                missing -= head.len();
                split.push(head);
                piece = rest;
                if missing == 0 {
                    self.decrypt_split(offset, &mut split);
                    split.clear();
                    offset += self.sector as u64;
                }
            }
            let whole = piece.len() - piece.len() % self.sector;
            let (bytes, rest) = piece.split_at_mut(whole);
            self.crypt(Direction::Decrypt, offset, bytes);
            offset += whole as u64;
            if !rest.is_empty() {
                missing = self.sector - rest.len();
                split.push(rest);
            }
        }
    }

    /// Decrypts a sector that lies in several pieces of memory.
    fn decrypt_split(&self, offset: u64, pieces: &mut [&mut [u8]]) {
        let mut sector = Zeroizing::new([0; MOST_SECTOR]);
        let mut at = 0;
        for piece in &*pieces {
            sector[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.crypt(Direction::Decrypt, offset, &mut sector[..at]);
        let mut at = 0;
        for piece in pieces {
            piece.copy_from_slice(&sector[at..at + piece.len()]);
            at += piece.len();
        }
    }
}

/// Returns the tweak of the next block: the product with x in the field of 2^128 elements.
#[inline]
fn doubled(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

#[inline]
fn mask(blocks: &mut [Block<Aes256>], tweaks: &[u128; AT_ONCE]) {
    for (block, tweak) in blocks.iter_mut().zip(tweaks) {
        *block = (u128::from_le_bytes((*block).into()) ^ tweak).to_le_bytes().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    /// Keys of the vectors 10 to 14 of IEEE 1619-2007, for AES-256.
    fn key() -> [u8; KEY] {
        let text = "2718281828459045235360287471352662497757247093699959574966967627
                    3141592653589793238462643383279502884197169399375105820974944592";
        bytes(text).try_into().unwrap()
    }

    /// Number of the sector, its first 32 and its last 32 bytes in IEEE 1619-2007. The plain text
    /// is 0, 1, ... 255, twice.
    const VECTORS: [(u64, &str, &str); 5] = [
        (
            0xff,
            "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
            "773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
        ),
        (
            0xffff,
            "77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11",
            "54fbff89eeaeea791f4a7ab1f9868294a4f9e27b42af8100cb9d59cef9645803",
        ),
        (
            0xff_ffff,
            "e387aaa58ba483afa7e8eb469778317ecf4cf573aa9d4eac23f2cdf914e4e200",
            "ed242c8900dd1fa965bc950dfce09b132263a1eef52dd6888c309f5a7d712826",
        ),
        (
            0xffff_ffff,
            "bf53d2dade78e822a4d949a9bc6766b01b06a8ef70d26748c6a7fc36d80ae4c5",
            "f6516139420fcff3b7361d86322c4bd84c82f335abb152c4a93411373aaa8220",
        ),
        (
            0xff_ffff_ffff,
            "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23",
            "6975be5e0b4efce51cd3e70c25a1fbbbd609d273ad5b0d59631c531f6a0a57b9",
        ),
    ];

    #[test]
    fn sectors_are_those_of_ieee_1619() {
        for (number, head, tail) in VECTORS {
            let plain: Vec<u8> = (0..512).map(|n| n as u8).collect();
            let mut sector = plain.clone();
            let xts = Xts::new(&key(), 512, 0);
            xts.crypt(Direction::Encrypt, number * 512, &mut sector);
            assert_eq!(sector[..32], bytes(head), "sector {number:x}");
            assert_eq!(sector[480..], bytes(tail), "sector {number:x}");
            xts.crypt(Direction::Decrypt, number * 512, &mut sector);
            assert_eq!(sector, plain);
        }
    }

    #[test]
    fn each_sector_has_its_number_in_units_of_512_bytes_whatever_comes_at_once() {
        for sector in [512, 1024, 2048, 4096] {
            let xts = Xts::new(&key(), sector, 7);
            let plain: Vec<u8> = (0..sector * 70).map(|n| (n / 3) as u8).collect();
            let mut at_once = plain.clone();
            xts.crypt(Direction::Encrypt, 1 << 40, &mut at_once);
            let mut one_by_one = plain.clone();
            for (n, bytes) in one_by_one.chunks_mut(sector).enumerate() {
                let number = 7 + (1 << 31) + (n * sector / 512) as u64;
                Xts::new(&key(), sector, number).crypt(Direction::Encrypt, 0, bytes);
            }
            assert!(at_once == one_by_one, "sectors of {sector}");
            xts.crypt(Direction::Decrypt, 1 << 40, &mut at_once);
            assert!(at_once == plain, "sectors of {sector}");
        }
    }

    #[test]
    fn the_pieces_of_a_read_are_decrypted_wherever_they_are_cut() {
        let mut rng = fastrand::Rng::with_seed(3);
        for sector in [512, 4096] {
            let xts = Xts::new(&key(), sector, 0);
            let plain: Vec<u8> = (0..sector * 9).map(|_| rng.u8(..)).collect();
            for _ in 0..50 {
                let mut bytes = plain.clone();
                xts.crypt(Direction::Encrypt, 8192, &mut bytes);
                let (mut rest, mut pieces) = (&mut bytes[..], Vec::new());
                while !rest.is_empty() {
                    let most = [1, 100, sector, 3 * sector][rng.usize(..4)];
                    let (piece, more) = rest.split_at_mut(rng.usize(1..=most).min(rest.len()));
                    pieces.push(piece);
                    rest = more;
                }
                xts.decrypt_pieces(8192, pieces.into_iter());
                assert!(bytes == plain);
            }
        }
    }
}
