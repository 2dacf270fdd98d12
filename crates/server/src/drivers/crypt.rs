//! Encrypted devices, and the sources of their keys.

#[cfg(feature = "crypt")]
pub(crate) use with::{find_key, open};
#[cfg(not(feature = "crypt"))]
pub(crate) use without::{find_key, open};

#[cfg(feature = "crypt")]
mod with {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use corewise::blockmq::Driver;
    use corewise::device::ProbeError;
    use corewise::drivers::{Crypt, CryptHeader, CryptOptions, Secret};
    use rustix::fs::{Mode, OFlags};
    use zeroize::Zeroizing;

    use crate::drivers::context::VolumeContext;
    use crate::drivers::volume::Volume;
    use crate::manifest::{self, CryptKey};

    /// Opens or makes the volume on the part. May block.
    pub(crate) fn open(
        context: &VolumeContext,
        device: &str,
        below: &Volume,
        asked: &manifest::Crypt,
    ) -> Result<Crypt, ProbeError> {
        let header = if asked.header { CryptHeader::Luks2 } else { CryptHeader::None };
        let options = CryptOptions::new(header).create(asked.create).discard(asked.discard);
        let part = below.device()?;
        let secrets = &context.secrets;
        let _alone = secrets.opens();
        let given = secrets.take(device);
        let secret = match (given, asked.key()) {
            (Some(secret), _) => Ok(secret),
            (None, CryptKey::File(path)) => {
                if let Some(mode) = readable_by_all(path) {
                    context.notes.add(format!(
                        "device '{device}': everybody on this machine may read the key file {} \
                         (mode {mode:04o}): chmod 600",
                        path.display()
                    ));
                }
                of_file(path)
            }
            (None, CryptKey::Env(name)) => of_environment(name),
            (None, CryptKey::Descriptor(fd)) => Err(format!(
                "its key was read from file descriptor {fd} at the start, and is no longer there. \
                 Restart the server, or give it a 'key_file'"
            )),
            (None, CryptKey::Prompt) => Err("it has no 'key_file', 'key_env' or 'key_fd', and \
                                             nobody to ask for its key"
                .to_string()),
        };
        let secret = secret.map_err(ProbeError::failed)?;
        let opened = Crypt::open(part, &secret, options, &context.workqueue);
        if opened.is_err() && matches!(asked.key(), CryptKey::Descriptor(_) | CryptKey::Prompt) {
            // Another try may find the part in order.
            secrets.keep(device, secret);
        }
        let opened = opened.map_err(ProbeError::failed)?;
        if let Some(damage) = opened.condition() {
            context.notes.add(format!("device '{device}': {damage}"));
        }
        Ok(opened)
    }

    /// Checks that there is a key, if it comes from a file or the environment.
    pub(crate) fn find_key(asked: &manifest::Crypt) -> Result<(), String> {
        match asked.key() {
            CryptKey::File(path) => of_file(path).map(drop),
            CryptKey::Env(name) => of_environment(name).map(drop),
            CryptKey::Descriptor(_) | CryptKey::Prompt => Ok(()),
        }
    }

    fn of_file(path: &Path) -> Result<Secret, String> {
        // A FIFO without a writer would block the bring-up.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let named = |why: &dyn std::fmt::Display| format!("key file {}: {why}", path.display());
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|why| named(&why))?;
        let file = File::from(file);
        match file.metadata() {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => return Err(named(&"this is not a plain file; 'key_fd' reads a pipe")),
            Err(error) => return Err(named(&error)),
        }
        read(file).map_err(|why| named(&why))
    }

    fn of_environment(name: &str) -> Result<Secret, String> {
        let found = std::env::var_os(name).ok_or_else(|| {
            format!(
                "the environment has no {name} with the key: set the variable where the program is \
                 started"
            )
        })?;
        // The environment itself keeps it.
        let bytes = Zeroizing::new(found.into_vec());
        read(&bytes[..]).map_err(|why| format!("key in the environment's {name}: {why}"))
    }

    fn read(source: impl Read) -> Result<Secret, String> {
        Secret::read(source).map_err(|error| error.to_string())
    }

    /// Returns the mode of a file that everybody may read.
    fn readable_by_all(path: &Path) -> Option<u32> {
        let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
        (mode & 0o007 != 0).then_some(mode)
    }
}

/// Substitutes for builds without encryption, whose manifests have no such device.
#[cfg(not(feature = "crypt"))]
mod without {
    use corewise::blockmq::{Dispatch, Driver, Info, Started};
    use corewise::device::ProbeError;

    use crate::drivers::context::VolumeContext;
    use crate::drivers::volume::Volume;
    use crate::manifest;

    pub(crate) enum Crypt {}

    impl Crypt {
        pub(crate) fn created(&self) -> bool {
            match *self {}
        }

        pub(crate) fn data_start(&self) -> u64 {
            match *self {}
        }
    }

    impl Driver for Crypt {
        fn info(&self) -> Info {
            match *self {}
        }

        fn queue_request(&self, _: usize, _: Started) -> Dispatch {
            match *self {}
        }
    }

    pub(crate) fn open(
        _: &VolumeContext,
        _: &str,
        _: &Volume,
        _: &manifest::Crypt,
    ) -> Result<Crypt, ProbeError> {
        Err(ProbeError::failed("this program was built without encryption"))
    }

    pub(crate) fn find_key(_: &manifest::Crypt) -> Result<(), String> {
        Ok(())
    }
}
