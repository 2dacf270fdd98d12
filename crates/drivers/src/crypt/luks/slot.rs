//! Key slots: the volume key, wrapped by a key that is derived from a passphrase.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use corewise_blockmq::BlockDevice;
use zeroize::{Zeroize, Zeroizing};

use super::metadata::{Argon, Derivation, Digests, Slot};
use super::read;
use crate::crypt::secret::{Locked, Secret, VolumeKey, no_memory};
use crate::crypt::xts::{Direction, KEY, Xts};

/// Bytes of a sector of a slot's area.
const SECTOR: usize = 512;

impl Slot {
    /// Returns the volume key, or `None` if the passphrase isn't that of this slot. Blocks.
    pub(super) fn unlock(
        &self,
        device: &dyn BlockDevice,
        passphrase: &Secret,
        digest: &Digests,
    ) -> Result<Option<VolumeKey>, String> {
        let (start, _) = self.place().expect("the slot is supported");
        let len = (KEY * self.af.stripes as usize).next_multiple_of(SECTOR) as u64;
        let mut stripes = Zeroizing::new(read(device, start..start + len)?);
        let outer = self.kdf.derive(passphrase)?;
        Xts::new(&outer, SECTOR, 0).crypt(Direction::Decrypt, 0, &mut stripes);
        let mut key = Locked::new([0; KEY]).map_err(no_memory)?;
        self.af.hash.merge(&stripes[..KEY * self.af.stripes as usize], &mut key);
        Ok(digest.is_of(&key).then_some(key))
    }

    /// Returns the bytes of the slot's area, which wrap the volume key. `stripes` are random bytes.
    pub(super) fn wrap(
        &self,
        key: &VolumeKey,
        passphrase: &Secret,
        mut stripes: Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        self.af.hash.split(key, &mut stripes);
        let outer = self.kdf.derive(passphrase)?;
        Xts::new(&outer, SECTOR, 0).crypt(Direction::Encrypt, 0, &mut stripes);
        Ok(stripes)
    }
}

impl Digests {
    /// Returns the digest of a key.
    pub(super) fn of(&self, key: &VolumeKey) -> Vec<u8> {
        let mut found = vec![0; self.digest.len()];
        self.hash.derive(&key[..], &self.salt, self.iterations, &mut found);
        found
    }

    fn is_of(&self, key: &VolumeKey) -> bool {
        self.of(key) == self.digest
    }
}

impl Derivation {
    /// Derives a key from a passphrase.
    fn derive(&self, passphrase: &[u8]) -> Result<VolumeKey, String> {
        let mut key = Locked::new([0; KEY]).map_err(no_memory)?;
        match self {
            Self::Pbkdf2 { hash, iterations, salt } => {
                hash.derive(passphrase, salt, *iterations, &mut key[..]);
            }
            Self::Argon2i(argon) => argon.derive(Algorithm::Argon2i, passphrase, &mut key)?,
            Self::Argon2id(argon) => argon.derive(Algorithm::Argon2id, passphrase, &mut key)?,
        }
        Ok(key)
    }
}

impl Argon {
    fn derive(
        &self,
        algorithm: Algorithm,
        passphrase: &[u8],
        key: &mut VolumeKey,
    ) -> Result<(), String> {
        let failed = |why: String| format!("the key slot's Argon2 fails: {why}");
        let params = Params::new(self.memory, self.time, self.cpus, Some(KEY));
        let params = params.map_err(|error| failed(error.to_string()))?;
        let mut memory: Vec<Block> = Vec::new();
        let blocks = params.block_count();
        memory.try_reserve_exact(blocks).map_err(|_| {
            failed(format!("it needs {} KiB of memory, and the system has none", self.memory))
        })?;
        memory.resize(blocks, Block::default());
        let argon = Argon2::new(algorithm, Version::V0x13, params);
        let done =
            argon.hash_password_into_with_memory(passphrase, &self.salt, &mut key[..], &mut memory);
        memory.zeroize();
        done.map_err(|error| failed(error.to_string()))
    }
}
