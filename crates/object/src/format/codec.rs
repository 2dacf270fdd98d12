//! Encoding of blocks as bytes in the store, and back: by frames, which are compressed if that
//! makes them smaller, and bound to their address. No length is trusted: a frame decodes to at most
//! the blocks that a frame can have, or to an error.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

use super::frame::{BlockSums, FRAME_BLOCKS, FrameAddress, FrameHead};
use super::objects::{BLOCK, Damaged, Head, Kind, Writer};
use super::seal::{self, Seal, WRAPPED};
use crate::error::{OpenError, OpenErrorKind};

/// The method by which the data of a volume is compressed before it goes to the store. The choice
/// applies to new data. Existing data is readable with any choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Data is stored uncompressed.
    #[default]
    None,
    /// LZ4: hundreds of megabytes a second and core; text shrinks to half.
    Lz4,
    /// Zstandard, level 3: slower, and smaller by another third. Needs the crate's feature `zstd`,
    /// which compiles C.
    Zstd,
}

impl Compression {
    const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Returns true if this program was built with it.
    pub(crate) fn is_here(self) -> bool {
        self != Self::Zstd || cfg!(feature = "zstd")
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = OpenError;

    /// Parses the name of a method.
    ///
    /// # Errors
    /// No method has this name. The message lists the names.
    fn from_str(name: &str) -> Result<Self, OpenError> {
        let found = Self::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| {
            let why = format!("'{name}' is no compression: 'none', 'lz4' or 'zstd'");
            OpenError::of(OpenErrorKind::InvalidInput, why)
        })
    }
}

/// Compression and encryption of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Codec {
    pub(crate) compression: Compression,
    /// `None`: nothing is encrypted.
    pub(crate) seal: Option<Arc<Seal>>,
}

impl Codec {
    /// Returns a random number that is never used twice.
    pub(crate) fn random(&self) -> u128 {
        u128::from_le_bytes(seal::random())
    }

    /// Returns true if encoding is so expensive that another thread does it.
    pub(crate) fn is_work(&self) -> bool {
        self.compression != Compression::None || self.seal.is_some()
    }

    /// Encodes a frame: appends its pieces to `out`, and returns their number of bytes.
    pub(crate) fn frame(
        &self,
        spot: &FrameAddress,
        data: &mut Vec<Bytes>,
        out: &mut Vec<Bytes>,
    ) -> u32 {
        let len = data.iter().map(Bytes::len).sum::<usize>();
        let mut head = FrameHead { how: 0, blocks: (len / BLOCK as usize) as u32 };
        if self.is_work() {
            let mut all = data.concat();
            if let Some(shorter) = compress(self.compression, &all) {
                head.how = self.compression as u32;
                all = shorter;
            }
            if let Some(seal) = &self.seal {
                seal.close_frame(spot.nonce(), &head.place(spot), &mut all);
            }
            *data = vec![all.into()];
        }
        let front: Bytes = match head.how == Compression::None as u32 && self.seal.is_none() {
            true => BlockSums::encode(spot, data).into(),
            false => Bytes::copy_from_slice(&head.encode(spot, data)),
        };
        let stored = front.len() + data.iter().map(Bytes::len).sum::<usize>();
        out.push(front);
        out.append(data);
        u32::try_from(stored).expect("a frame is small")
    }

    /// Decodes the blocks of a frame.
    pub(crate) fn data(&self, spot: &FrameAddress, frame: &Bytes) -> Result<Bytes, Damaged> {
        let (head, mut stored) = FrameHead::decode(spot, frame)?;
        if u64::from(head.blocks) > FRAME_BLOCKS {
            return Err(Damaged(
                "a frame's header claims more blocks than a frame can hold".into(),
            ));
        }
        if let Some(seal) = &self.seal {
            stored = seal.open_frame(spot.nonce(), &head.place(spot), &stored)?;
        }
        let len = head.blocks as usize * BLOCK as usize;
        let how = Compression::ALL.into_iter().find(|known| *known as u32 == head.how);
        match how {
            Some(Compression::None) if stored.len() == len => Ok(stored),
            Some(Compression::None) => {
                Err(Damaged("a frame's length differs from its header".into()))
            }
            Some(how) => decompress(how, &stored, len),
            None => {
                let why = format!("a frame is compressed by the unknown method {}", head.how);
                Err(Damaged(why))
            }
        }
    }

    /// Encodes an object that is read as a whole.
    pub(crate) fn object(&self, kind: Kind, named: (u64, Writer), body: &[u8]) -> (Head, Bytes) {
        let mut stored = Vec::new();
        if let Some(seal) = &self.seal {
            if kind == Kind::Open && named.0 == 1 {
                stored.extend_from_slice(&seal.wrapped);
            }
            let place = Head::new(kind, named, true, &[]).place();
            stored.extend_from_slice(&seal.closed(&place, body));
        } else {
            stored.extend_from_slice(body);
        }
        let head = Head::new(kind, named, self.seal.is_some(), &stored);
        (head, [&head.encode()[..], &stored].concat().into())
    }

    /// Returns the length in an object of a body of `body` bytes.
    pub(crate) fn stored(&self, body: usize) -> usize {
        body + if self.seal.is_some() { seal::ADDED } else { 0 }
    }

    /// Seals bytes for a file of this machine, bound to their place in it.
    pub(crate) fn closed(&self, place: &[u8], bytes: &Bytes) -> Bytes {
        match &self.seal {
            Some(seal) => seal.closed(place, bytes).into(),
            None => bytes.clone(),
        }
    }

    /// Opens sealed bytes. `None`: they weren't sealed, or for another place.
    pub(crate) fn opened(&self, place: &[u8], bytes: &Bytes) -> Option<Bytes> {
        match &self.seal {
            Some(seal) => seal.opened(place, bytes).ok().map(Bytes::from),
            None => Some(bytes.clone()),
        }
    }

    /// Splits an object into its head and its body.
    pub(crate) fn split(&self, bytes: &Bytes) -> Result<(Head, Bytes), Damaged> {
        let (head, mut body) = Head::split(bytes)?;
        let Some(seal) = &self.seal else {
            if head.sealed {
                return Err(Damaged("the object is encrypted, but the volume isn't".into()));
            }
            return Ok((head, body));
        };
        if !head.sealed {
            return Err(Damaged("the object isn't encrypted, but the volume is".into()));
        }
        if head.kind == Kind::Open && head.seq == 1 {
            body = body.slice(WRAPPED.min(body.len())..);
        }
        Ok((head, seal.opened(&head.place(), &body)?.into()))
    }
}

/// Compresses data. `None`: it would not be shorter.
fn compress(by: Compression, data: &[u8]) -> Option<Vec<u8>> {
    let found = match by {
        Compression::None => return None,
        Compression::Lz4 => lz4_flex::block::compress(data),
        Compression::Zstd => zstd_compress(data)?,
    };
    (found.len() < data.len()).then_some(found)
}

/// Decompresses to exactly `len` bytes.
fn decompress(by: Compression, stored: &[u8], len: usize) -> Result<Bytes, Damaged> {
    let mut out = vec![0; len];
    let found = match by {
        Compression::None => Err("it isn't".into()),
        Compression::Lz4 => {
            lz4_flex::block::decompress_into(stored, &mut out).map_err(|why| why.to_string())
        }
        Compression::Zstd => zstd_decompress(stored, &mut out),
    };
    match found {
        Ok(found) if found == len => Ok(out.into()),
        Ok(_) => Err(Damaged("a frame decompresses to fewer bytes than its header says".into())),
        Err(why) => Err(Damaged(format!("a frame can't be decompressed ({by}): {why}"))),
    }
}

#[cfg(feature = "zstd")]
fn zstd_compress(data: &[u8]) -> Option<Vec<u8>> {
    zstd::bulk::compress(data, 3).ok()
}

#[cfg(feature = "zstd")]
fn zstd_decompress(stored: &[u8], out: &mut [u8]) -> Result<usize, String> {
    zstd::bulk::decompress_to_buffer(stored, out).map_err(|why| why.to_string())
}

#[cfg(not(feature = "zstd"))]
fn zstd_compress(_data: &[u8]) -> Option<Vec<u8>> {
    None
}

#[cfg(not(feature = "zstd"))]
fn zstd_decompress(_stored: &[u8], _out: &mut [u8]) -> Result<usize, String> {
    Err("this program was built without zstd; build it with the feature 'zstd'".into())
}

#[cfg(test)]
mod tests {
    use super::seal::ObjectKey;
    use super::*;

    const SPOT: FrameAddress = FrameAddress { id: 1 << 99, at: 64, start: 700 };

    fn codec(compression: Compression) -> Codec {
        Codec { compression, seal: None }
    }

    fn sealing() -> Codec {
        let key = ObjectKey::from_hex(&"5".repeat(64)).unwrap();
        Codec { compression: Compression::Lz4, seal: Some(Arc::new(Seal::make(&key, 1))) }
    }

    /// Encodes a frame of these blocks.
    fn frame(codec: &Codec, data: &[u8]) -> Bytes {
        let mut out = Vec::new();
        let mut parts: Vec<Bytes> =
            data.chunks(5 * BLOCK as usize).map(Bytes::copy_from_slice).collect();
        let stored = codec.frame(&SPOT, &mut parts, &mut out);
        let all = out.concat();
        assert_eq!(all.len(), stored as usize);
        all.into()
    }

    fn text(blocks: u64, random: &mut fastrand::Rng) -> Vec<u8> {
        (0..blocks * BLOCK).map(|_| random.u8(b'a'..b'e')).collect()
    }

    fn here() -> impl Iterator<Item = Compression> {
        Compression::ALL.into_iter().filter(|by| by.is_here())
    }

    #[test]
    fn frames_give_back_what_they_were_made_of_and_shrink_or_stay_as_they_are() {
        let mut random = fastrand::Rng::with_seed(1);
        for by in here() {
            for blocks in [1, 3, FRAME_BLOCKS] {
                let data = text(blocks, &mut random);
                let found = frame(&codec(by), &data);
                let plain = BlockSums::front_of(blocks) + data.len();
                assert_eq!(found.len() < plain, by != Compression::None);
                // The choice of the reader doesn't matter.
                assert!(codec(Compression::None).data(&SPOT, &found).unwrap() == data, "{by}");

                let noise: Vec<u8> = (0..blocks * BLOCK).map(|_| random.u8(..)).collect();
                let found = frame(&codec(by), &noise);
                assert_eq!(found.len(), BlockSums::front_of(blocks) + noise.len(), "{by}");
                assert!(codec(by).data(&SPOT, &found).unwrap() == noise, "{by}");
            }
        }
    }

    #[test]
    fn a_frame_with_a_wrong_byte_or_in_a_wrong_place_is_refused() {
        let data = text(1, &mut fastrand::Rng::with_seed(2));
        for codec in here().map(codec).chain([sealing()]) {
            let by = codec.compression;
            let good = frame(&codec, &data);
            for n in 0..good.len() {
                let mut changed = good.to_vec();
                changed[n] ^= 1 << (n % 8);
                assert!(codec.data(&SPOT, &changed.into()).is_err(), "byte {n} ({by})");
            }
            for n in (0..good.len()).step_by(7) {
                assert!(codec.data(&SPOT, &good.slice(..n)).is_err(), "cut to {n} ({by})");
            }
            for wrong in [
                FrameAddress { id: 7, ..SPOT },
                FrameAddress { at: 4096, ..SPOT },
                FrameAddress { start: 701, ..SPOT },
            ] {
                assert!(codec.data(&wrong, &good).is_err(), "{by}");
            }
        }
    }

    /// Verifies frames with correct checksums. These are no seal: the owner of the store can
    /// compute them.
    #[test]
    fn bytes_of_any_kind_with_a_right_sum_become_as_many_blocks_as_they_say_or_an_error() {
        let mut random = fastrand::Rng::with_seed(3);
        let many = if std::env::var_os("COREWISE_LONG").is_some() { 200_000 } else { 3000 };
        let mut read = 0;
        for _ in 0..many {
            let by = Compression::ALL[random.usize(0..3)];
            let mut blocks = random.u64(1..4);
            let data = text(blocks, &mut random);
            let mut stored = compress(by, &data).unwrap_or(data);
            for _ in 0..random.usize(0..3) {
                let at = random.usize(0..stored.len());
                stored[at] = random.u8(..);
            }
            stored.truncate(random.usize(0..=stored.len() * 8).min(stored.len()));
            if random.u8(0..4) == 0 {
                blocks = u64::from(random.u32(..));
            }
            let head = FrameHead { how: random.u32(0..4), blocks: blocks as u32 };
            let stored = [Bytes::from(stored)];
            let frame = [&head.encode(&SPOT, &stored)[..], &stored[0]].concat();
            if let Ok(found) = codec(Compression::None).data(&SPOT, &frame.into()) {
                assert_eq!(found.len() as u64, blocks * BLOCK);
                read += 1;
            }
        }
        assert!(read > many / 100, "{read}");
    }

    /// Verifies sealed frames against a thief of the bucket: he can compute checksums, and has
    /// frames of other addresses.
    #[test]
    fn a_sealed_frame_with_right_sums_opens_in_its_own_place_and_as_it_was_made() {
        let codec = sealing();
        let data = text(2, &mut fastrand::Rng::with_seed(4));
        let good = frame(&codec, &data);
        let (head, stored) = FrameHead::decode(&SPOT, &good).unwrap();
        let summed = |spot: &FrameAddress, head: FrameHead, stored: &[u8]| -> Bytes {
            let stored = [Bytes::copy_from_slice(stored)];
            [&head.encode(spot, &stored)[..], &stored[0]].concat().into()
        };
        assert_eq!(codec.data(&SPOT, &summed(&SPOT, head, &stored)).unwrap(), data);
        for wrong in [
            FrameAddress { id: 7, ..SPOT },
            FrameAddress { at: 4096, ..SPOT },
            FrameAddress { start: 1, ..SPOT },
        ] {
            assert!(codec.data(&wrong, &summed(&wrong, head, &stored)).is_err());
        }
        for wrong in [FrameHead { how: 0, ..head }, FrameHead { blocks: 1, ..head }] {
            assert!(codec.data(&SPOT, &summed(&SPOT, wrong, &stored)).is_err());
        }
        for n in 0..stored.len() {
            let mut changed = stored.to_vec();
            changed[n] ^= 1 << (n % 8);
            assert!(codec.data(&SPOT, &summed(&SPOT, head, &changed)).is_err(), "byte {n}");
        }
        let plain = frame(&self::codec(Compression::Lz4), &data);
        assert!(codec.data(&SPOT, &plain).is_err(), "it isn't sealed");
        let with_table = frame(&self::codec(Compression::None), &data);
        assert!(codec.data(&SPOT, &with_table).is_err(), "it isn't sealed");
        assert!(sealing().data(&SPOT, &good).is_err(), "by another volume");
    }

    #[test]
    fn a_compression_has_its_name_and_others_are_refused_by_name() {
        for by in Compression::ALL {
            assert_eq!(by.to_string().parse(), Ok(by));
        }
        let why = "gzip".parse::<Compression>().unwrap_err().to_string();
        assert!(why.contains("'gzip'") && why.contains("'lz4'"), "{why}");
    }
}
