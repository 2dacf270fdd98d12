//! The area of a key slot: keys spread over many bytes ("anti-forensic stripes"), hashes by name,
//! and bytes as base64.

use pbkdf2::pbkdf2_hmac;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256, Sha512};
use zeroize::Zeroizing;

use crate::crypt::secret::VolumeKey;
use crate::crypt::xts::KEY;

/// A hash function of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Hash {
    Sha256,
    Sha512,
}

impl Hash {
    /// Derives bytes by PBKDF2.
    pub(super) fn derive(self, password: &[u8], salt: &[u8], rounds: u32, bytes: &mut [u8]) {
        match self {
            Hash::Sha256 => pbkdf2_hmac::<Sha256>(password, salt, rounds, bytes),
            Hash::Sha512 => pbkdf2_hmac::<Sha512>(password, salt, rounds, bytes),
        }
    }

    /// Replaces each piece of a key, as long as a hash, by the hash of its number and itself.
    fn diffuse(self, key: &mut [u8; KEY]) {
        match self {
            Hash::Sha256 => diffuse::<Sha256>(key),
            Hash::Sha512 => diffuse::<Sha512>(key),
        }
    }

    /// Joins the stripes of a key.
    pub(super) fn merge(self, stripes: &[u8], key: &mut VolumeKey) {
        key.fill(0);
        let mut stripes = stripes.chunks_exact(KEY).peekable();
        while let Some(stripe) = stripes.next() {
            xor(key, stripe);
            if stripes.peek().is_some() {
                self.diffuse(key);
            }
        }
    }

    /// Completes stripes, all but the last of which are random bytes, so that they are `key`.
    pub(super) fn split(self, key: &VolumeKey, stripes: &mut [u8]) {
        let last = stripes.len() - KEY;
        let mut sum = Zeroizing::new([0; KEY]);
        for stripe in stripes[..last].chunks_exact(KEY) {
            xor(&mut sum, stripe);
            self.diffuse(&mut sum);
        }
        xor(&mut sum, &key[..]);
        stripes[last..].copy_from_slice(&sum[..]);
    }
}

fn xor(key: &mut [u8; KEY], with: &[u8]) {
    key.iter_mut().zip(with).for_each(|(byte, with)| *byte ^= with);
}

fn diffuse<H: Digest>(key: &mut [u8; KEY]) {
    for (n, piece) in (0_u32..).zip(key.chunks_mut(<H as Digest>::output_size())) {
        let hash = H::new().chain_update(n.to_be_bytes()).chain_update(&*piece).finalize();
        piece.copy_from_slice(&hash[..piece.len()]);
    }
}

/// Bytes as base64 in JSON.
pub(super) mod base64 {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(|_| de::Error::custom("bytes that aren't base64"))
    }
}
