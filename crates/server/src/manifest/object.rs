//! The keys of a volume in an object store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use corewise::topology;

use super::keys::{CheckKeys, ValueKind, duration, keys, new_path, path, size, text, word};
use super::problem::Located;
use super::reader::Fields;

/// Places where a flush ends; `true` is a file of this machine.
const FLUSHES: &[(&str, bool)] = &[("store", false), ("local", true)];
const COMPRESSIONS: &[(&str, &str)] = &[("none", "none"), ("lz4", "lz4"), ("zstd", "zstd")];

/// Block size of volumes in an object store.
const BLOCK: u32 = 4096;

/// The default of `read_cache`, on a machine of any size.
const USUAL_CACHE: u64 = 64 << 20;

/// Reads the size of a cache: half of the memory at most, so that others have the rest.
fn cached() -> ValueKind<u64> {
    size().within("at most half of the machine's memory", "", |bytes| {
        topology::memory().is_none_or(|memory| *bytes <= (memory / 2).max(USUAL_CACHE))
    })
}

keys! {
    /// A volume in an object store.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Object {
        /// Location of the volume: `"s3://BUCKET/FOLDER"`, `"gs://BUCKET/FOLDER"` (Google),
        /// `"az://CONTAINER/FOLDER"` (Azure), `"file:///FOLDER"`, or `"memory:"`, which goes when
        /// the device goes down. A volume's folder may not lie in another volume's.
        location: Located<String> = text().seen("a path"),
            Required("location = \"s3://bucket/folder\", or \"file:///folder\"");
        /// Size, a multiple of 4096. A missing volume gets this size. An existing, smaller one
        /// grows to it.
        size: Option<Located<u64>> = size(), Unset("the volume's own; required for a new one"), Grows;
        /// Location of a volume. The server makes a missing volume as a clone of it; see
        /// [object.md](object.md#clones).
        clone_of: Option<Located<String>> = text(), Unset("none"), Ignores;
        /// Name of the snapshot of that volume to clone. A clone needs no `size`.
        snapshot: Option<Located<String>> = text(), Unset("required with `clone_of`"), Ignores;
        /// Time for which a check for another server stays valid. If this server is killed, the
        /// next one waits this long before its first write.
        lease: Duration = duration().within(
            "at least \"100ms\"",
            "a server that reads asks the store this often for another server",
            |time| time.as_millis() >= 100,
        ), Usual("\"5s\"");
        /// Target of a flush. `"store"`: the object store. `"local"`: `flush_file` on this machine,
        /// which is much faster and promises less; see
        /// [object.md](object.md#flushes-in-a-local-file).
        flush: bool = word(FLUSHES), Usual("\"store\"");
        /// Path of the file, about 130 MiB. The server makes a missing file.
        flush_file: Option<PathBuf> = new_path(), Unset("required with `flush = \"local\"`");
        /// An opening of the volume, such as `"17-3fa29c41"`, whose flush file is lost. A start
        /// with it gives up the flushes that only the file had. The error of the failed start names
        /// the opening; see [object.md](object.md#a-flush-file-that-is-damaged-or-missing).
        accept_lost_flushes: Option<String> = text().within(
            "an opening, such as \"17-3fa29c41\"",
            "write what the error of the start that was refused names",
            |text| is_opening(text),
        ), Unset("none"), Ignores;
        /// Timeout of a request to the store, retries included. After that the request fails.
        request_timeout: Duration = duration().positive("such as \"60s\""), Usual("\"60s\"");
        /// URL of the server of a bucket.
        endpoint: Option<String> = text(), Unset("`AWS_ENDPOINT`, `GOOGLE_BASE_URL` or `AZURE_STORAGE_ENDPOINT` of the environment");
        /// Region of `s3://`.
        region: Option<String> = text(), Unset("`AWS_REGION` of the environment");
        /// Compression of data written from now on: `"none"`, `"lz4"`, or `"zstd"` (with the
        /// feature `zstd`); see [object.md](object.md#compression).
        compression: &'static str = word(COMPRESSIONS), Usual("\"none\"");
        /// File with the key that encrypts the volume: 64 hexadecimal digits
        /// (`openssl rand -hex 32`); see [object.md](object.md#encryption).
        key_file: Option<Located<PathBuf>> = path(), Unset("not encrypted");
        /// Environment variable with that key, in place of the file.
        key_env: Option<Located<String>> = text(), Unset("not encrypted");
        /// Memory for blocks that clients have read. 0 keeps no blocks and disables read-ahead.
        read_cache: u64 = cached(), Usual("\"64M\"");
    }
}

/// A snapshot of another volume, to be cloned.
#[derive(Debug)]
pub(crate) struct Parent<'a> {
    pub(crate) location: &'a Located<String>,
    pub(crate) snapshot: &'a Located<String>,
}

/// The source of the key of an encrypted volume.
#[cfg(feature = "object")]
#[derive(Debug, PartialEq)]
pub(crate) enum KeyFrom<'a> {
    File(&'a Path),
    /// An environment variable.
    Env(&'a str),
}

impl Object {
    /// Returns the snapshot of which a missing volume is created as a clone.
    pub(crate) fn parent(&self) -> Option<Parent<'_>> {
        let (location, snapshot) = (self.clone_of.as_ref()?, self.snapshot.as_ref()?);
        Some(Parent { location, snapshot })
    }

    /// Returns the source of the key that encrypts the volume.
    #[cfg(feature = "object")]
    pub(crate) fn key(&self) -> Option<Located<KeyFrom<'_>>> {
        let file =
            self.key_file.as_ref().map(|at| Located::new(KeyFrom::File(&at.value), at.place));
        file.or_else(|| {
            self.key_env.as_ref().map(|at| Located::new(KeyFrom::Env(&at.value), at.place))
        })
    }
}

impl CheckKeys for Object {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        if !cfg!(feature = "object") {
            let message = "this program was built without volumes in object stores";
            let help = "build it with them: cargo build --release -p corewise-cli --features object (cloud for buckets, too)";
            return fields.refuse("driver", message, help);
        }
        self.check_location(fields);
        match (self.flush, &self.flush_file) {
            (true, None) => {
                let help = "such as flush_file = \"disk.flushes\"";
                fields.refuse("flush", "flush = \"local\" needs a 'flush_file'", help);
            }
            (false, Some(_)) => {
                let help =
                    "write flush = \"local\" too, and read what it doesn't promise: docs/object.md";
                fields.refuse("flush_file", "'flush_file' is for flush = \"local\"", help);
            }
            _ => {}
        }
        if self.compression == "zstd" && !cfg!(feature = "zstd") {
            let help = "take lz4, or build it: cargo build --release -p corewise-cli --features object,zstd";
            fields.refuse("compression", "this corewise was built without zstd", help);
        }
        match (&self.clone_of, &self.snapshot) {
            (Some(at), Some(_)) => {
                if let Some(why) = not_beside(&at.value, &self.location.value) {
                    let help = "a clone lies in its parent's bucket, or its file system: clone_of = \"file:///FOLDER\" for location = \"file:///OTHER\"";
                    fields.refuse("clone_of", format!("'clone_of' {why}"), help);
                }
            }
            (Some(_), None) => {
                let help =
                    "such as snapshot = \"monday\"; `corewise snapshot NAME --list` lists them";
                fields.refuse("clone_of", "'clone_of' needs a 'snapshot'", help);
            }
            (None, Some(_)) => {
                let help =
                    "write where the snapshot's volume is, such as clone_of = \"s3://bucket/disk\"";
                fields.refuse("snapshot", "'snapshot' needs 'clone_of'", help);
            }
            (None, None) => {}
        }
        if self.key_file.is_some() && self.key_env.is_some() {
            let message = "'key_file' and 'key_env' exclude each other";
            fields.refuse("key_env", message, "leave out 'key_file' or 'key_env'");
        }
        if let Some(size) = &self.size {
            fields.check_size(size.value, BLOCK);
        }
    }
}

impl Object {
    fn check_location(&self, fields: &mut Fields<'_, '_>) {
        let location = self.location.value.as_str();
        let is_bucket = bucket(location).is_some();
        if is_bucket && !cfg!(feature = "cloud") {
            let help =
                "build it with buckets: cargo build --release -p corewise-cli --features cloud";
            fields.refuse("location", "this corewise was built without buckets", help);
        } else if !is_bucket && !location.starts_with("file:///") && location != "memory:" {
            let help = "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER, file:///FOLDER (a path from the root on), or memory:, which is gone at the end";
            fields.refuse("location", format!("'{location}' is no location"), help);
        }
        let folder = location.strip_prefix("file://").map(Path::new);
        if folder.is_some_and(|folder| folder.is_absolute() && folder.parent().is_none()) {
            let help = "name a folder that has nothing else: file:///FOLDER";
            fields.refuse("location", "the location is the root of this machine's files", help);
        }
        if location == "memory:" && !fields.has("size") {
            fields.refuse(
                "location",
                "'memory:' always makes a new volume, which needs a size",
                "give a 'size'",
            );
        }
        if !is_bucket && fields.has("endpoint") {
            fields.refuse("endpoint", "'endpoint' is for a bucket", "leave it out");
        }
        if !location.starts_with("s3://") && fields.has("region") {
            fields.refuse("region", "'region' is for a location s3://", "leave it out");
        }
    }
}

/// Returns true if the text has the form of an opening's name, as in `corewise_object::OpeningId`.
fn is_opening(text: &str) -> bool {
    text.split_once('-').is_some_and(|(record, nonce)| {
        let is_hex = nonce.len() == 8 && nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex && record.bytes().all(|byte| byte.is_ascii_digit()) && record.parse::<u64>().is_ok()
    })
}

/// Returns the scheme and the bucket of a location, such as `s3://bucket`.
fn bucket(location: &str) -> Option<&str> {
    let of = |scheme: &&str| location.starts_with(scheme);
    let scheme = ["s3://", "gs://", "az://"].into_iter().find(of)?;
    let end = location[scheme.len()..].find('/').map_or(location.len(), |at| scheme.len() + at);
    Some(&location[..end])
}

/// Returns the reason why a clone at `place` can't have `parent`, or `None`.
fn not_beside(parent: &str, place: &str) -> Option<&'static str> {
    let same = |at: &str| at.trim_end_matches('/').to_owned();
    let folders = parent.starts_with("file:///") && place.starts_with("file:///");
    if same(parent) == same(place) {
        Some("is the location itself")
    } else if folders || bucket(parent).is_some() && bucket(parent) == bucket(place) {
        None
    } else {
        Some("is in another store")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ResolvedManifest, read};
    use super::Path;
    #[cfg(feature = "object")]
    use super::{super::Driver, Duration, KeyFrom};

    fn resolved(keys: &str) -> ResolvedManifest {
        let text = format!(
            "[[device]]\nname = \"a\"\ndriver = \"object\"\n{keys}\n[[export]]\ndevice = \"a\"\n"
        );
        read(&text, Path::new("/base"))
    }

    fn told(keys: &str, says: &str) {
        let found = resolved(keys).problems;
        let told: Vec<_> = found.iter().map(|p| p.display("m").to_string()).collect();
        assert!(told.iter().any(|told| told.contains(says)), "{says}: {told:?}");
    }

    #[cfg(not(feature = "object"))]
    #[test]
    fn a_program_without_object_stores_says_how_to_build_one_that_has_them() {
        told("location = \"memory:\"", "--features object");
    }

    #[cfg(feature = "object")]
    #[test]
    fn each_key_is_read() {
        let found = resolved(
            "location = \"file:///x\"\nsize = \"1G\"\nlease = \"1s\"\nrequest_timeout = \"2s\"\n\
             compression = \"lz4\"\nkey_file = \"k\"\nread_cache = \"1M\"\n\
             flush = \"local\"\nflush_file = \"f\"\naccept_lost_flushes = \"17-3fa29c41\"",
        );
        assert_eq!(found.problems, []);
        let Driver::Object(object) = &found.manifest.devices[0].driver else { panic!("no object") };
        assert_eq!(object.location.value, "file:///x");
        assert_eq!(object.size.as_ref().map(|at| at.value), Some(1 << 30));
        assert_eq!(object.flush_file.as_deref(), Some(Path::new("/base/f")));
        assert_eq!(object.accept_lost_flushes.as_deref(), Some("17-3fa29c41"));
        assert_eq!(object.lease, Duration::from_secs(1));
        assert_eq!(object.request_timeout, Duration::from_secs(2));
        assert_eq!(object.compression, "lz4");
        let key = object.key().map(|at| at.value);
        assert_eq!(key, Some(KeyFrom::File(Path::new("/base/k"))));
        assert_eq!(object.read_cache, 1 << 20);
    }

    #[cfg(feature = "object")]
    #[test]
    fn what_is_wrong_is_told_with_what_to_write() {
        for (keys, says) in [
            ("", "needs 'location'"),
            ("location = \"/x\"", "'/x' is no location"),
            ("location = \"file://x\"", "a path from the root on"),
            ("location = \"file:///\"", "name a folder that has nothing else"),
            ("location = \"memory:\"\nsize = 512", "multiple of its block size 4096"),
            ("location = \"memory:\"", "give a 'size'"),
            ("location = \"memory:\"\nread_cache = \"100T\"", "half of the machine's memory"),
            ("location = \"memory:\"\nlease = \"1ms\"", "at least \"100ms\""),
            ("location = \"memory:\"\nrequest_timeout = \"0s\"", "greater than 0"),
            ("location = \"memory:\"\nflush = \"disk\"", "one of: store, local"),
            ("location = \"memory:\"\nflush = \"local\"", "needs a 'flush_file'"),
            ("location = \"memory:\"\nflush_file = \"f\"", "write flush = \"local\" too"),
            ("location = \"memory:\"\nregion = \"r\"", "for a location s3://"),
            ("location = \"memory:\"\naccept_lost_flushes = \"17\"", "such as \"17-3fa29c41\""),
            ("location = \"memory:\"\naccept_lost_flushes = 17", "must be a string"),
            ("location = \"memory:\"\ncompression = \"gzip\"", "one of: none, lz4, zstd"),
            #[cfg(not(feature = "zstd"))]
            ("location = \"memory:\"\ncompression = \"zstd\"", "--features object,zstd"),
            ("location = \"memory:\"\nkey_file = \"k\"\nkey_env = \"K\"", "exclude each other"),
            ("location = \"file:///a\"\nclone_of = \"file:///b\"", "needs a 'snapshot'"),
            ("location = \"file:///a\"\nsnapshot = \"s\"", "needs 'clone_of'"),
            (
                "location = \"file:///a\"\nclone_of = \"file:///a/\"\nsnapshot = \"s\"",
                "is the location itself",
            ),
            (
                "location = \"file:///a\"\nclone_of = \"s3://b/c\"\nsnapshot = \"s\"",
                "in another store",
            ),
            ("location = \"memory:\"\npath = \"p\"", "takes no 'path'"),
            ("location = \"gs://b/f\"\nregion = \"r\"", "for a location s3://"),
            ("location = \"memory:\"\nendpoint = \"e\"", "'endpoint' is for a bucket"),
            (
                "location = \"gs://b/a\"\nclone_of = \"s3://b/c\"\nsnapshot = \"s\"",
                "in another store",
            ),
            #[cfg(not(feature = "cloud"))]
            ("location = \"az://b/f\"", "--features cloud"),
        ] {
            told(keys, says);
        }
    }

    #[cfg(feature = "object")]
    #[test]
    fn two_devices_cannot_share_a_location() {
        let found = |first: &str, second: &str| {
            let text = [("a", first), ("b", second)].map(|(name, location)| {
                format!("[[device]]\nname = \"{name}\"\ndriver = \"object\"\nlocation = \"{location}\"\n")
            });
            read(&text.concat(), Path::new("/base")).problems
        };
        let told = found("file:///x/y", "file:///x//y/");
        let told: Vec<_> = told.iter().map(|p| p.display("m").to_string()).collect();
        assert_eq!(told, ["m:8:12: device 'b': device 'a' has the same location"]);
        let root = tempfile::tempdir().unwrap();
        let root = root.path().display();
        std::fs::create_dir_all(format!("{root}/real/there")).unwrap();
        std::os::unix::fs::symlink("real", format!("{root}/link")).unwrap();
        for volume in ["there", "new", "new/deeper"] {
            let real = format!("file://{root}/real/{volume}");
            let linked = format!("file://{root}/link/{volume}");
            let told = found(&real, &linked);
            let told: Vec<_> = told.iter().map(|p| p.display("m").to_string()).collect();
            let words = "m:8:12: device 'b': device 'a' has the same location, under the path";
            assert_eq!(told, [format!("{words} {real}")]);
            assert_eq!(found(&linked, &format!("{real}/inner")).len(), 1);
            assert_eq!(found(&real, &format!("{linked}2")), []);
        }
        assert_eq!(found("file:///x/y", "file:///x/z"), []);
        for (outer, inner) in [("s3://b", "s3://b/x"), ("file:///x/", "file:///x/log/y")] {
            if cfg!(feature = "cloud") || !outer.starts_with("s3") {
                assert_eq!(found(outer, inner).len(), 1);
                assert_eq!(found(inner, outer).len(), 1);
            }
        }
        assert_eq!(found("file:///x", "file:///xy"), []);
    }
}
