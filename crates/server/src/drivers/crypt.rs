//! Encrypted devices, and the sources of their keys.

#[cfg(feature = "crypt")]
pub(crate) use with::{check_key, find_key, open};
#[cfg(not(feature = "crypt"))]
pub(crate) use without::{check_key, open};

#[cfg(feature = "crypt")]
mod with {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::sync::Arc;

    use corewise::blockmq::Driver;
    use corewise::device::ProbeError;
    use corewise::drivers::{Crypt, CryptHeader, CryptOptions, Secret};
    use rustix::fs::{Mode, OFlags};
    use zeroize::Zeroizing;

    use crate::control::health::REPAIR_HEADER;
    use crate::drivers::context::VolumeContext;
    use crate::drivers::secrets::Secrets;
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
        if let CryptKey::File(path) = asked.key() {
            if let Some(mode) = readable_by_all(path) {
                context.notes.add(format!(
                    "device '{device}': everybody on this machine may read the key file {} (mode \
                     {mode:04o}): chmod 600",
                    path.display()
                ));
            }
        }
        let secret = find_key(secrets, device, asked).map_err(ProbeError::failed)?;
        let opened = Crypt::open(part, &secret, options, &context.workqueue);
        let opened = opened.map_err(ProbeError::failed)?;
        if let Some(damage) = opened.condition() {
            context.notes.add(format!("device '{device}': {damage}. {REPAIR_HEADER}"));
            context.report.header_damaged(device, &damage);
        }
        Ok(opened)
    }

    /// Returns the key of a device.
    pub(crate) fn find_key(
        secrets: &Secrets,
        device: &str,
        asked: &manifest::Crypt,
    ) -> Result<Arc<Secret>, String> {
        let missing = match asked.key() {
            CryptKey::File(path) => return of_file(path).map(Arc::new),
            CryptKey::Env(name) => return of_environment(name).map(Arc::new),
            CryptKey::Descriptor(fd) => format!(
                "its key comes from file descriptor {fd}, which is read at the start of the server \
                 alone. Restart the server, or give the device a 'key_file'"
            ),
            CryptKey::Prompt => "its key is asked for at the start of the server alone. Restart \
                                 the server, or give the device a 'key_file'"
                .to_string(),
        };
        secrets.get(device).ok_or(missing)
    }

    /// Checks that there is a key, if it comes from a file or the environment.
    pub(crate) fn check_key(asked: &manifest::Crypt) -> Result<(), String> {
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

    pub(crate) fn check_key(_: &manifest::Crypt) -> Result<(), String> {
        Ok(())
    }
}
