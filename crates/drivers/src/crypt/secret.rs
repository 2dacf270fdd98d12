//! Memory for secrets: locked, left out of core dumps, and wiped before it is freed.

use std::fmt;
use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::{Zeroize, Zeroizing};

use super::xts::KEY;

/// A value in pages of its own, which are locked, left out of core dumps, and wiped at the end.
pub(super) struct Locked<T> {
    base: NonNull<T>,
    /// Error of the system, if it refused to lock the pages.
    refused: Option<rustix::io::Errno>,
}

// SAFETY: it owns its value, as a box does.
unsafe impl<T: Send> Send for Locked<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Moves a value into pages of its own.
    ///
    /// # Errors
    /// The system has no memory.
    pub(super) fn new(value: T) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() != 0) };
        let len = size_of::<T>();
        // SAFETY: a new mapping, at an address that the system chooses.
        let pages = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let base = NonNull::new(pages.cast::<T>()).expect("the system maps nothing at address 0");
        // SAFETY: the pages were mapped above, and neither call changes a byte of them.
        let locked =
            unsafe { madvise(pages, len, Advice::LinuxDontDump).and_then(|()| mlock(pages, len)) };
        // SAFETY: the pages are mapped, as long as the value, and aligned to a page.
        unsafe { base.write(value) };
        Ok(Self { base, refused: locked.err() })
    }

    /// Logs a warning if the system has refused to lock the memory.
    pub(super) fn warn_if_refused(&self, device: &str) {
        if let Some(error) = self.refused {
            tracing::warn!(
                device, %error,
                "the system refuses to lock the memory of the key, which may be swapped out; raise \
                 the limit of locked memory (ulimit -l, LimitMEMLOCK)"
            );
        }
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value lives until the drop.
        unsafe { self.base.as_ref() }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { self.base.as_mut() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        let len = size_of::<T>();
        // SAFETY: the value is dropped once, and nobody reaches it afterwards. Its bytes are mapped
        // and ours until `munmap`, which is called once, with the length of the mapping.
        unsafe {
            self.base.drop_in_place();
            std::slice::from_raw_parts_mut(self.base.as_ptr().cast::<u8>(), len).zeroize();
            let _ = munmap(self.base.as_ptr().cast(), len);
        }
    }
}

/// The key of a volume, or one that wraps it.
pub(super) type VolumeKey = Locked<[u8; KEY]>;

/// Returns the message for a key that has no place.
pub(super) fn no_memory(error: io::Error) -> String {
    format!("the system has no memory for the key: {error}")
}

/// A passphrase or a key. Its memory is locked, left out of core dumps, and wiped when it is
/// dropped. It appears in no log and no error.
pub struct Secret {
    bytes: Locked<[u8; Secret::MOST]>,
    len: usize,
}

impl Secret {
    /// Maximum number of bytes of a secret.
    pub const MOST: usize = 8 << 10;

    /// Reads a secret to the end of `source`. Blocks as long as the source does.
    ///
    /// # Errors
    /// The source can't be read, or it has no byte or more than [`Secret::MOST`].
    pub fn read(mut source: impl Read) -> io::Result<Self> {
        let mut secret = Self { bytes: Locked::new([0; Self::MOST])?, len: 0 };
        loop {
            let room = &mut secret.bytes[secret.len..];
            // Without room, one more byte shows whether the source ends here.
            let mut more = Zeroizing::new([0]);
            let room = if room.is_empty() { &mut more[..] } else { room };
            match source.read(room) {
                Ok(0) if secret.len == 0 => return Err(refused("it is empty".to_string())),
                Ok(0) => return Ok(secret),
                Ok(_) if secret.len == Self::MOST => {
                    return Err(refused(format!("it has more than {} bytes", Self::MOST)));
                }
                Ok(n) => secret.len += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_all_bytes_of_its_source_and_neither_debug_nor_an_error_has_them() {
        let secret = Secret::read(&b"pass\nword"[..]).unwrap();
        assert_eq!((&secret[..], format!("{secret:?}").as_str()), (&b"pass\nword"[..], "Secret"));
        let most = vec![7; Secret::MOST];
        assert_eq!(Secret::read(&most[..]).unwrap()[..], most);
        let more = Secret::read(&[&most[..], b"x"].concat()[..]).unwrap_err().to_string();
        assert_eq!(more, "it has more than 8192 bytes");
        assert_eq!(Secret::read(&b""[..]).unwrap_err().to_string(), "it is empty");
    }

    #[test]
    fn a_locked_value_is_left_out_of_core_dumps_and_its_bytes_are_wiped() {
        let value = Locked::new([7_u8; 4096]).unwrap();
        let address = value.as_ptr().addr();
        let flags = |address: usize| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut is_here = false;
            maps.lines().find_map(|line| {
                let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
                let ends = range.and_then(|(from, to)| {
                    let hex = |text| usize::from_str_radix(text, 16).ok();
                    Some(hex(from)?..hex(to)?)
                });
                if let Some(ends) = ends {
                    is_here = ends.contains(&address);
                }
                line.strip_prefix("VmFlags:").filter(|_| is_here).map(str::to_owned)
            })
        };
        let found = flags(address).unwrap();
        assert!(found.contains(" dd"), "{found}");
        assert!(found.contains(" lo") || value.refused.is_some(), "{found}");
        drop(value);
        let after = flags(address);
        assert!(after.is_none_or(|flags| !flags.contains(" dd")), "the pages are gone");
    }
}
