//! The keys of a device that encrypts another one.

#[cfg(feature = "crypt")]
use std::path::Path;
use std::path::PathBuf;

#[cfg(feature = "crypt")]
use super::drivers::Driver;
use super::drivers::part;
use super::keys::{CheckKeys, flag, keys, number, path, text, word};
#[cfg(feature = "crypt")]
use super::model::Manifest;
use super::problem::Located;
use super::reader::Fields;

/// Headers; `true` is LUKS2.
const HEADERS: &[(&str, bool)] = &[("luks2", true), ("none", false)];

keys! {
    /// An encrypted device.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Crypt {
        /// The part.
        over: String = part(), Required("over = [\"a\"]");
        /// Header of the part. `"luks2"`: a LUKS2 header, as of cryptsetup; the key is a
        /// passphrase. `"none"`: no header; the key is the volume key, 64 bytes.
        header: bool = word(HEADERS), Usual("\"luks2\"");
        /// `true` makes a new volume if the part has no header and is
        /// [empty](encryption.md#a-new-volume), and reports it.
        create: bool = flag(), Usual("false"), Ignores;
        /// File with the key: all of its bytes, as for cryptsetup's `--key-file`. Without this key,
        /// `key_env` and `key_fd`, `corewise up` asks on its terminal.
        key_file: Option<Located<PathBuf>> = path(), Unset("none"), Ignores;
        /// Name of the environment variable with the key.
        key_env: Option<Located<String>> = text(), Unset("none"), Ignores;
        /// Number of the file descriptor from which `corewise up` reads the key at its start, such
        /// as the end of a pipe.
        key_fd: Option<Located<u32>> = number().within("at least 3", "", |fd| *fd > 2),
            Unset("none"), Ignores;
        /// `true` passes discards on. They [show](encryption.md#what-it-does-not-hide) which blocks
        /// are in use.
        discard: bool = flag(), Usual("false");
    }
}

/// The source of the key of an encrypted device.
#[cfg(feature = "crypt")]
#[derive(Debug, PartialEq)]
pub(crate) enum CryptKey<'a> {
    File(&'a Path),
    /// An environment variable.
    Env(&'a str),
    /// A file descriptor of the program.
    Descriptor(u32),
    /// The user at the program's terminal.
    Prompt,
}

#[cfg(feature = "crypt")]
impl Crypt {
    /// Returns the source of the key.
    pub(crate) fn key(&self) -> CryptKey<'_> {
        match (&self.key_file, &self.key_env, &self.key_fd) {
            (Some(path), ..) => CryptKey::File(&path.value),
            (_, Some(name), _) => CryptKey::Env(&name.value),
            (.., Some(fd)) => CryptKey::Descriptor(fd.value),
            _ => CryptKey::Prompt,
        }
    }
}

/// The source of a key that the program gives the server.
#[cfg(feature = "crypt")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file descriptor of the program.
    Descriptor(u32),
    /// The user at the program's terminal.
    Prompt {
        /// True if the key may be that of a new volume.
        may_be_new: bool,
    },
}

#[cfg(feature = "crypt")]
impl Manifest {
    /// Returns the encrypted devices whose keys the program gives the server, and the sources of
    /// these keys. They go into [`Options::secrets`](crate::Options::secrets).
    pub fn secrets(&self) -> impl Iterator<Item = (&str, SecretSource)> {
        self.devices.iter().filter_map(|device| {
            let Driver::Crypt(asked) = &device.driver else { return None };
            let source = match asked.key() {
                CryptKey::Descriptor(fd) => SecretSource::Descriptor(fd),
                CryptKey::Prompt => SecretSource::Prompt { may_be_new: asked.create },
                CryptKey::File(_) | CryptKey::Env(_) => return None,
            };
            Some((device.name.as_str(), source))
        })
    }
}

impl CheckKeys for Crypt {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        if !cfg!(feature = "crypt") {
            let message = "this program was built without encryption";
            let help =
                "build it with encryption: cargo build --release -p corewise-cli --features crypt";
            return fields.refuse("driver", message, help);
        }
        let sources = ["key_file", "key_env", "key_fd"];
        let mut given = sources.into_iter().filter(|key| fields.has(key));
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            let message = format!("'{first}' and '{second}' exclude each other");
            fields.refuse(second, message, "the key comes from one place");
        }
        if self.create && !self.header {
            let message = "'create' makes a LUKS2 header, and header = \"none\" has none";
            fields.refuse("create", message, "leave out 'create' or 'header'");
        }
    }
}

#[cfg(all(test, feature = "crypt"))]
mod tests {
    use std::path::Path;

    use super::super::{Driver, read};
    use super::CryptKey;

    fn text(keys: &str) -> String {
        format!(
            "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"32M\"\n\
             [[device]]\nname = \"c\"\ndriver = \"crypt\"\nover = [\"a\"]\n{keys}\n\
             [[export]]\ndevice = \"c\"\n"
        )
    }

    #[test]
    fn the_key_comes_from_one_place() {
        for (keys, from) in [
            ("", CryptKey::Prompt),
            ("key_file = \"k\"", CryptKey::File(Path::new("/base/k"))),
            ("key_env = \"K\"", CryptKey::Env("K")),
            ("key_fd = 3", CryptKey::Descriptor(3)),
        ] {
            let found = read(&text(keys), Path::new("/base"));
            assert_eq!(found.problems, []);
            let Driver::Crypt(crypt) = &found.manifest.devices[1].driver else {
                panic!("no crypt")
            };
            assert_eq!(crypt.key(), from);
        }
    }

    #[test]
    fn what_is_wrong_is_told_and_a_key_in_the_manifest_is_refused() {
        for (keys, says) in [
            ("key_file = \"k\"\nkey_fd = 3", "exclude each other"),
            ("key_fd = 0", "at least 3"),
            ("header = \"luks1\"", "luks2"),
            ("header = \"none\"\ncreate = true", "makes a LUKS2 header"),
            ("key = \"secret\"", "unknown key 'key'"),
            ("passphrase = \"secret\"", "unknown key 'passphrase'"),
        ] {
            let found = read(&text(keys), Path::new("/base")).problems;
            let told: Vec<_> = found.iter().map(|p| p.display("m").to_string()).collect();
            assert!(told.iter().any(|told| told.contains(says)), "{says}: {told:?}");
            assert!(told.iter().all(|told| !told.contains("secret")), "{told:?}");
        }
    }
}
