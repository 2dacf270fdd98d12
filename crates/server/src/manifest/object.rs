//! The keys of a volume in an object store.

use std::path::Path;
use std::time::Duration;

use corewise::topology;

use super::drivers::Asked;
use super::model::{KeyFrom, Object, Parent};
use super::problem::{At, Problem};
use crate::units;

const COMPRESSIONS: [&str; 3] = ["none", "lz4", "zstd"];

/// What such volumes are read and written in.
const BLOCK: u32 = 4096;
/// A shorter one would have the store asked all the time.
const LEAST_LEASE: Duration = Duration::from_millis(100);

/// What its keys say; `None` where that can't be said.
pub(super) fn object(asked: &mut Asked<'_>, base: &Path) -> Option<Object> {
    let raw = asked.raw;
    if !cfg!(feature = "object") {
        let place = raw.driver.as_ref().map_or(raw.place, |at| at.place);
        let message = "this corewise was built without volumes in object stores";
        let help = "build it with them: cargo build --release -p corewise-cli --features object (s3 for s3:// too)";
        asked.complain(|s| Problem::new(place, s, message).help(help));
        return None;
    }
    let Some(location) = raw.location.clone() else {
        asked.missing("location", "location = \"s3://bucket/folder\", or \"file:///folder\"");
        return None;
    };
    let mut ok = true;
    let mut told = |place, message: String, help: &str| {
        ok = false;
        asked.complain(|s| Problem::new(place, s, message).help(help));
    };
    let is_s3 = location.value.starts_with("s3://");
    if is_s3 && !cfg!(feature = "s3") {
        let help = "build it with S3: cargo build --release -p corewise-cli --features s3";
        told(location.place, "this corewise was built without S3".to_owned(), help);
    } else if !is_s3 && !location.value.starts_with("file:///") && location.value != "memory:" {
        let help = "s3://BUCKET/FOLDER, file:///FOLDER (a path from the root on), or memory:, which is gone at the end";
        told(location.place, format!("'{}' is no location", location.value), help);
    }
    let folder = location.value.strip_prefix("file://").map(Path::new);
    if folder.is_some_and(|folder| folder.is_absolute() && folder.parent().is_none()) {
        let message = "it is the root of this machine's files".to_owned();
        told(location.place, message, "name a folder that has nothing else: file:///FOLDER");
    }
    if location.value == "memory:" && raw.size.is_none() {
        let message = "'memory:' has no volume before it is made".to_owned();
        told(location.place, message, "give a 'size'");
    }
    if let Some(at) = raw.read_cache.as_ref() {
        // There are others that need memory, too.
        let most = topology::memory().map_or(u64::MAX, |bytes| bytes / 2);
        if at.value > most {
            let message = format!("'read_cache' is {}", units::about(at.value));
            let help = format!("at most {}: half of the memory that there is", units::about(most));
            told(at.place, message, &help);
        }
    }
    if let Some(at) = raw.lease.as_ref().filter(|at| at.value < LEAST_LEASE) {
        let help = "so often, a server that reads asks the store whether there is another one";
        told(at.place, "'lease' must be at least \"100ms\"".to_owned(), help);
    }
    if let Some(at) = raw.request_timeout.as_ref().filter(|at| at.value.is_zero()) {
        let message = "'request_timeout' must be more than nothing".to_owned();
        told(at.place, message, "such as \"60s\"");
    }
    let is_local = match raw.flush.as_ref().map(|at| (at, at.value.as_str())) {
        Some((_, "local")) => true,
        None | Some((_, "store")) => false,
        Some((at, other)) => {
            told(at.place, format!("unknown flush '{other}'"), "one of: store, local");
            true
        }
    };
    match (is_local, &raw.flush, &raw.flush_file) {
        (true, Some(at), None) => {
            let help = "such as flush_file = \"disk.flushes\"";
            told(at.place, "flush = \"local\" needs a 'flush_file'".to_owned(), help);
        }
        (false, _, Some(at)) => {
            let help =
                "write flush = \"local\" too, and read what it doesn't promise: docs/object.md";
            told(at.place, "'flush_file' is for flush = \"local\"".to_owned(), help);
        }
        _ => {}
    }
    if let Some(at) = raw.accept_lost_flushes.as_ref().filter(|at| !is_opening(&at.value)) {
        let message = format!("'accept_lost_flushes' can't be '{}'", at.value);
        let help =
            "write what the error of the start that was refused names, such as \"17-3fa29c41\"";
        told(at.place, message, help);
    }
    for (key, at) in [("endpoint", &raw.endpoint), ("region", &raw.region)] {
        if let Some(at) = at.as_ref().filter(|_| !is_s3) {
            told(at.place, format!("'{key}' is for a location s3://"), "leave it out");
        }
    }
    if let Some(at) = &raw.compression {
        if !COMPRESSIONS.contains(&at.value.as_str()) {
            told(at.place, format!("unknown compression '{}'", at.value), "none, lz4 or zstd");
        } else if at.value == "zstd" && !cfg!(feature = "zstd") {
            let help = "take lz4, or build it: cargo build --release -p corewise-cli --features object,zstd";
            told(at.place, "this corewise was built without zstd".to_owned(), help);
        }
    }
    match (&raw.clone_of, &raw.snapshot) {
        (Some(at), Some(_)) => {
            if let Some(why) = not_beside(&at.value, &location.value) {
                let help = "a clone lies in its parent's bucket, or its file system: clone_of = \"file:///FOLDER\" for location = \"file:///OTHER\"";
                told(at.place, format!("'clone_of' {why}"), help);
            }
        }
        (Some(at), None) => {
            let help = "such as snapshot = \"monday\"; `corewise snapshot NAME --list` lists them";
            told(at.place, "'clone_of' needs a 'snapshot'".to_owned(), help);
        }
        (None, Some(at)) => {
            let help =
                "write where the snapshot's volume is, such as clone_of = \"s3://bucket/disk\"";
            told(at.place, "'snapshot' needs 'clone_of'".to_owned(), help);
        }
        (None, None) => {}
    }
    let key = match (&raw.key_file, &raw.key_env) {
        (Some(_), Some(at)) => {
            let message = "a key is in a file or in the environment, and not in both".to_owned();
            told(at.place, message, "leave out 'key_file' or 'key_env'");
            None
        }
        (Some(at), None) => Some(At::new(KeyFrom::File(base.join(&at.value)), at.place)),
        (None, Some(at)) => Some(At::new(KeyFrom::Env(at.value.clone()), at.place)),
        (None, None) => None,
    };
    if let Some(size) = &raw.size {
        asked.check_size(size, BLOCK);
    }
    ok.then(|| Object {
        location,
        size: raw.size.clone(),
        parent: raw
            .clone_of
            .clone()
            .zip(raw.snapshot.clone())
            .map(|(location, snapshot)| Parent { location, snapshot }),
        lease: raw.lease.as_ref().map(|at| at.value),
        flush_file: raw.flush_file.as_ref().map(|at| base.join(&at.value)),
        accept_lost_flushes: raw.accept_lost_flushes.as_ref().map(|at| at.value.clone()),
        request_timeout: raw.request_timeout.as_ref().map(|at| at.value),
        endpoint: raw.endpoint.as_ref().map(|at| at.value.clone()),
        region: raw.region.as_ref().map(|at| at.value.clone()),
        compression: raw.compression.as_ref().map(|at| at.value.clone()),
        key,
        read_cache: raw.read_cache.as_ref().map(|at| at.value),
    })
}

/// Whether it may name the opening of a server, as `corewise_object::OpeningId` does.
fn is_opening(text: &str) -> bool {
    text.split_once('-').is_some_and(|(record, nonce)| {
        let is_hex = nonce.len() == 8 && nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex && record.bytes().all(|byte| byte.is_ascii_digit()) && record.parse::<u64>().is_ok()
    })
}

/// Why a clone at `place` can't have `parent`.
fn not_beside(parent: &str, place: &str) -> Option<&'static str> {
    let bucket = |at: &str| Some(at.strip_prefix("s3://")?.split('/').next()?.to_owned());
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
    use super::super::{Resolved, read};
    use super::Path;
    #[cfg(feature = "object")]
    use super::{super::Driver, Duration, KeyFrom};

    fn resolved(keys: &str) -> Resolved {
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
        assert_eq!(object.lease, Some(Duration::from_secs(1)));
        assert_eq!(object.request_timeout, Some(Duration::from_secs(2)));
        assert_eq!(object.compression.as_deref(), Some("lz4"));
        let key = object.key.as_ref().map(|at| &at.value);
        assert_eq!(key, Some(&KeyFrom::File("/base/k".into())));
        assert_eq!(object.read_cache, Some(1 << 20));
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
            ("location = \"memory:\"\nread_cache = \"100T\"", "half of the memory that there is"),
            ("location = \"memory:\"\nlease = \"1ms\"", "at least \"100ms\""),
            ("location = \"memory:\"\nrequest_timeout = \"0s\"", "more than nothing"),
            ("location = \"memory:\"\nflush = \"disk\"", "one of: store, local"),
            ("location = \"memory:\"\nflush = \"local\"", "needs a 'flush_file'"),
            ("location = \"memory:\"\nflush_file = \"f\"", "write flush = \"local\" too"),
            ("location = \"memory:\"\nregion = \"r\"", "for a location s3://"),
            ("location = \"memory:\"\naccept_lost_flushes = \"17\"", "such as \"17-3fa29c41\""),
            ("location = \"memory:\"\naccept_lost_flushes = 17", "must be a string"),
            ("location = \"memory:\"\ncompression = \"gzip\"", "none, lz4 or zstd"),
            #[cfg(not(feature = "zstd"))]
            ("location = \"memory:\"\ncompression = \"zstd\"", "--features object,zstd"),
            ("location = \"memory:\"\nkey_file = \"k\"\nkey_env = \"K\"", "not in both"),
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
            #[cfg(not(feature = "s3"))]
            ("location = \"s3://b/f\"", "--features s3"),
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
            let words = "m:8:12: device 'b': device 'a' has the same location, by the path";
            assert_eq!(told, [format!("{words} {real}")]);
            assert_eq!(found(&linked, &format!("{real}/inner")).len(), 1);
            assert_eq!(found(&real, &format!("{linked}2")), []);
        }
        assert_eq!(found("file:///x/y", "file:///x/z"), []);
        for (outer, inner) in [("s3://b", "s3://b/x"), ("file:///x/", "file:///x/log/y")] {
            if cfg!(feature = "s3") || !outer.starts_with("s3") {
                assert_eq!(found(outer, inner).len(), 1);
                assert_eq!(found(inner, outer).len(), 1);
            }
        }
        assert_eq!(found("file:///x", "file:///xy"), []);
    }
}
