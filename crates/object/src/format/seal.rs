//! Encryption: the key of a user, the key of a volume, and how bytes are sealed by it. README.md
//! argues why no nonce comes twice.

use std::env::VarError;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, Tag, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::objects::Damaged;
use crate::error::{OpenError, OpenErrorKind};

/// Bytes of a key.
const KEY: usize = 32;
/// Maximum bytes of a file with a key, with room for white space around it.
const LONGEST_FILE: usize = 4096;
/// Random bytes in front of sealed bytes.
const NONCE: usize = 24;
/// Bytes behind sealed bytes, by which a change is detected.
pub(crate) const TAG: usize = 16;
/// Overhead of a sealed body, in bytes.
pub(crate) const ADDED: usize = NONCE + TAG;
/// Bytes of a volume's key, sealed by the user's.
pub(crate) const WRAPPED: usize = NONCE + KEY + TAG;

/// The key by which a volume is encrypted: 256 random bits. It is overwritten in memory when it is
/// dropped, and appears in no log and no error.
#[derive(Clone)]
pub struct ObjectKey(Zeroizing<[u8; KEY]>);

impl ObjectKey {
    /// Parses a key of 64 hexadecimal digits. White space around them is ignored.
    ///
    /// # Errors
    /// They aren't 64 hexadecimal digits. The message has their number, and says how to make a key.
    pub(crate) fn from_hex(digits: &str) -> Result<Self, String> {
        let digits = digits.trim().as_bytes();
        let bad = |found: String| {
            format!(
                "a key has {} hexadecimal digits, and {found}: make one by 'openssl rand -hex {KEY}'",
                2 * KEY
            )
        };
        if digits.len() != 2 * KEY {
            return Err(bad(format!("this has {} bytes", digits.len())));
        }
        let mut key = Zeroizing::new([0; KEY]);
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                return Err(bad("this has other characters".into()));
            };
            *byte = (high << 4 | low) as u8;
        }
        Ok(Self(key))
    }

    /// Reads the key in a file, of 64 hexadecimal digits. Blocks. If everybody on the machine may
    /// read the file, a warning is logged.
    ///
    /// # Errors
    /// The file can't be read, or has no key. Both errors name the file.
    pub fn from_file(path: &Path) -> Result<Self, OpenError> {
        let named = |why: String| {
            OpenError::of(OpenErrorKind::Key, format!("key file {}: {why}", path.display()))
        };
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST_FILE));
        let file = File::open(path).map_err(|error| named(error.to_string()))?;
        let read = file.take(LONGEST_FILE as u64 + 1).read_to_end(&mut text);
        read.map_err(|error| named(error.to_string()))?;
        if text.len() > LONGEST_FILE {
            return Err(named(format!(
                "a key is {} hexadecimal digits, but the file has more",
                2 * KEY
            )));
        }
        let mode = std::fs::metadata(path).map_or(0, |meta| meta.mode() & 0o777);
        if mode & 0o007 != 0 {
            let (file, mode) = (path.display(), format!("{mode:04o}"));
            tracing::warn!(%file, mode, "everybody on this machine may read the key file: chmod 600");
        }
        let digits =
            std::str::from_utf8(&text).map_err(|_| named("the key is not UTF-8 text".into()));
        Self::from_hex(digits?).map_err(named)
    }

    /// Reads the key in an environment variable, of 64 hexadecimal digits.
    ///
    /// # Errors
    /// There is no such variable, or it has no key. Both errors name the variable.
    pub fn from_env(name: &str) -> Result<Self, OpenError> {
        let named = |why: String| {
            OpenError::of(OpenErrorKind::Key, format!("key in the environment's {name}: {why}"))
        };
        let digits = std::env::var(name).map_err(|error| match error {
            VarError::NotPresent => {
                let why = format!(
                    "the environment has no {name} with the key: set the variable \
                                   where the program is started"
                );
                OpenError::of(OpenErrorKind::Key, why)
            }
            VarError::NotUnicode(_) => named("the key is not UTF-8 text".into()),
        })?;
        Self::from_hex(&Zeroizing::new(digits)).map_err(named)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectKey")
    }
}

/// Returns new random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let found = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    // Up to 256 bytes come at once, and never fail if the volume could be opened, which takes a
    // random number, too.
    assert_eq!(found, Ok(N), "the system gives no random bytes any more");
    bytes
}

/// Seals bytes by the key of a volume.
pub(crate) struct Seal {
    cipher: XChaCha20Poly1305,
    key: Zeroizing<[u8; KEY]>,
    /// The key, sealed by the user's. It is in the volume's first record.
    pub(crate) wrapped: [u8; WRAPPED],
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// Creates a new key for the volume of which `first` wrote the first record.
    pub(crate) fn make(user: &ObjectKey, first: u128) -> Self {
        Self::wrap(Zeroizing::new(random()), user, first)
    }

    fn wrap(key: Zeroizing<[u8; KEY]>, user: &ObjectKey, first: u128) -> Self {
        let outer = XChaCha20Poly1305::new((&*user.0).into());
        let closed = closed(&outer, &wrap_for(first), &*key);
        let wrapped = closed.try_into().expect("a key has so many bytes");
        Self { cipher: XChaCha20Poly1305::new((&*key).into()), key, wrapped }
    }

    /// Unwraps a volume's key. `None`: it was wrapped by another key.
    pub(crate) fn unwrap(user: &ObjectKey, first: u128, wrapped: [u8; WRAPPED]) -> Option<Self> {
        let outer = XChaCha20Poly1305::new((&*user.0).into());
        let found = Zeroizing::new(opened(&outer, &wrap_for(first), &wrapped)?);
        let key = Zeroizing::new(<[u8; KEY]>::try_from(&found[..]).ok()?);
        Some(Self { cipher: XChaCha20Poly1305::new((&*key).into()), key, wrapped })
    }

    /// Wraps the key for another volume that reads what this one has written.
    pub(crate) fn adopt(&self, user: &ObjectKey, first: u128) -> Self {
        Self::wrap(self.key.clone(), user, first)
    }

    /// Seals bytes. Returns random bytes, the sealed bytes, and their tag. They can be opened for
    /// the same `place` only.
    pub(crate) fn closed(&self, place: &[u8], bytes: &[u8]) -> Vec<u8> {
        closed(&self.cipher, place, bytes)
    }

    pub(crate) fn opened(&self, place: &[u8], bytes: &[u8]) -> Result<Vec<u8>, Damaged> {
        opened(&self.cipher, place, bytes).ok_or_else(not_ours)
    }

    /// Seals a frame. `nonce` is never repeated: it is a segment's random id, and the address in
    /// it.
    pub(crate) fn close_frame(&self, nonce: [u8; NONCE], place: &[u8], frame: &mut Vec<u8>) {
        let tag = encrypt(&self.cipher, &nonce, place, frame);
        frame.extend_from_slice(&tag);
    }

    pub(crate) fn open_frame(
        &self,
        nonce: [u8; NONCE],
        place: &[u8],
        frame: &[u8],
    ) -> Result<Bytes, Damaged> {
        let (bytes, tag) = frame.split_last_chunk::<TAG>().ok_or_else(not_ours)?;
        let mut bytes = bytes.to_vec();
        decrypt(&self.cipher, &nonce, place, &mut bytes, tag).ok_or_else(not_ours)?;
        Ok(bytes.into())
    }
}

fn not_ours() -> Damaged {
    Damaged("the data wasn't sealed by this volume's key for this place".into())
}

fn wrap_for(first: u128) -> [u8; 32] {
    let mut place = *b"corewise-key 1..................";
    place[16..].copy_from_slice(&first.to_le_bytes());
    place
}

fn closed(cipher: &XChaCha20Poly1305, place: &[u8], bytes: &[u8]) -> Vec<u8> {
    let nonce: [u8; NONCE] = random();
    let mut all = Vec::with_capacity(NONCE + bytes.len() + TAG);
    all.extend_from_slice(&nonce);
    all.extend_from_slice(bytes);
    let tag = encrypt(cipher, &nonce, place, &mut all[NONCE..]);
    all.extend_from_slice(&tag);
    all
}

fn opened(cipher: &XChaCha20Poly1305, place: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    let (nonce, rest) = bytes.split_first_chunk::<NONCE>()?;
    let (bytes, tag) = rest.split_last_chunk::<TAG>()?;
    let mut bytes = bytes.to_vec();
    decrypt(cipher, nonce, place, &mut bytes, tag)?;
    Some(bytes)
}

fn encrypt(
    cipher: &XChaCha20Poly1305,
    nonce: &[u8; NONCE],
    place: &[u8],
    bytes: &mut [u8],
) -> [u8; TAG] {
    let tag = cipher.encrypt_inout_detached(&XNonce::from(*nonce), place, bytes.into());
    tag.expect("an object has far less than 256 GiB").into()
}

fn decrypt(
    cipher: &XChaCha20Poly1305,
    nonce: &[u8; NONCE],
    place: &[u8],
    bytes: &mut [u8],
    tag: &[u8; TAG],
) -> Option<()> {
    let (nonce, tag) = (XNonce::from(*nonce), Tag::from(*tag));
    cipher.decrypt_inout_detached(&nonce, place, bytes.into(), &tag).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(digit: &str) -> ObjectKey {
        ObjectKey::from_hex(&digit.repeat(64)).unwrap()
    }

    #[test]
    fn a_key_is_64_digits_and_neither_debug_nor_an_error_has_it() {
        let text = "00ff".repeat(16);
        let key = ObjectKey::from_hex(&format!(" {text}\n")).unwrap();
        assert_eq!(key.0[..4], [0, 255, 0, 255]);
        let seal = Seal::make(&key, 1);
        let said =
            format!("{key:?} {seal:?} {:?}", crate::ObjectOptions::new("memory:").key(key.clone()));
        assert!(!said.contains("255") && !said.contains("ff"), "{said}");
        let secret = "0123456789abcdeg".repeat(4);
        for wrong in [&secret, &secret[..63], ""] {
            let why = ObjectKey::from_hex(wrong).unwrap_err();
            assert!(why.contains("64") && why.contains("openssl"), "{why}");
            assert!(!why.contains("abcde"), "{why}");
        }
        let why = ObjectKey::from_file(Path::new("/no/such")).unwrap_err();
        assert!(why.to_string().contains("/no/such"), "{why}");
        let why = ObjectKey::from_env("COREWISE_NO_SUCH_KEY").unwrap_err();
        assert!(why.to_string().contains("COREWISE_NO_SUCH_KEY"), "{why}");
    }

    #[test]
    fn a_volumes_key_comes_back_by_the_users_key_in_its_own_record_only() {
        let seal = Seal::make(&key("1"), 7);
        let sealed = seal.closed(b"here", b"text");
        let again = Seal::unwrap(&key("1"), 7, seal.wrapped).unwrap();
        assert_eq!(again.opened(b"here", &sealed).unwrap(), b"text");
        assert!(again.opened(b"there", &sealed).is_err());
        assert!(Seal::unwrap(&key("2"), 7, seal.wrapped).is_none());
        assert!(Seal::unwrap(&key("1"), 8, seal.wrapped).is_none());
        assert_ne!(Seal::make(&key("1"), 7).key, seal.key, "each volume has its own");
        let clone = seal.adopt(&key("3"), 9);
        assert!(clone.wrapped != seal.wrapped);
        let clone = Seal::unwrap(&key("3"), 9, clone.wrapped).unwrap();
        assert_eq!(clone.opened(b"here", &sealed).unwrap(), b"text");
    }

    #[test]
    fn each_changed_byte_is_found_and_nothing_sealed_is_alike() {
        let seal = Seal::make(&key("1"), 7);
        let sealed = seal.closed(b"here", &[0; 50]);
        assert_ne!(sealed, seal.closed(b"here", &[0; 50]));
        for n in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[n] ^= 1 << (n % 8);
            assert!(seal.opened(b"here", &changed).is_err(), "byte {n}");
            assert!(seal.opened(b"here", &sealed[..n]).is_err(), "cut to {n}");
        }
    }
}
