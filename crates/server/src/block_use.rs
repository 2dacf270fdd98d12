//! The users of a block device of this machine, such as `nbd0` or `ublkb0`.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns true if a file system, swap, another device or another process uses the device of this
/// name, or a partition of it. Nothing is opened: that would wait for the device's server where the
/// kernel hasn't read the partitions yet.
pub fn is_in_use(name: &str) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    // A file system may have been mounted by another path of the device, such as a link.
    let block = Path::new("/sys/block").join(name);
    let numbers = numbers(&block);
    let is_named = |text: &str| {
        let mut words = text.split_whitespace();
        words.any(|word| is_of(word, name) || numbers.iter().any(|number| number == word))
    };
    let is_open = |process: fs::DirEntry| {
        let own = process.file_name().to_str() == Some(&*std::process::id().to_string());
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let mut targets = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        !own && targets.any(|target| target.to_str().is_some_and(|path| is_of(path, name)))
    };
    let processes = || fs::read_dir("/proc").into_iter().flatten().flatten();
    is_named(&read("/proc/self/mountinfo"))
        || is_named(&read("/proc/swaps"))
        || has_holders(&block)
        || processes().any(is_open)
}

/// Returns true if a path is that of the device, or of a partition of it.
fn is_of(word: &str, name: &str) -> bool {
    let rest = word.strip_prefix("/dev/").and_then(|word| word.strip_prefix(name));
    let Some(rest) = rest else { return false };
    let part = rest.strip_prefix('p');
    rest.is_empty() || part.is_some_and(|part| part.parse::<u32>().is_ok())
}

/// Returns the numbers of the device and its partitions, as `8:1`.
fn numbers(folder: &Path) -> Vec<String> {
    let parts = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let number = |folder: PathBuf| Some(fs::read_to_string(folder.join("dev")).ok()?.trim().into());
    std::iter::once(folder.to_path_buf()).chain(parts).filter_map(number).collect()
}

/// Returns true if another block device stands on this one, or on a partition of it.
fn has_holders(folder: &Path) -> bool {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let has = |folder: PathBuf| entries(&folder).next().is_some();
    has(folder.join("holders")) || entries(folder).any(|entry| has(entry.path().join("holders")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_of_a_device_or_of_its_partitions_alone() {
        for (path, is) in [
            ("/dev/nbd1", true),
            ("/dev/nbd1p12", true),
            ("/dev/nbd12", false),
            ("/dev/nbd1p", false),
            ("/dev/nbd1/x", false),
            ("/mnt/dev/nbd1", false),
        ] {
            assert_eq!(is_of(path, "nbd1"), is, "{path}");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("nbd1p1/holders")).unwrap();
        assert!(!has_holders(folder.path()));
        fs::create_dir(folder.path().join("nbd1p1/holders/dm-0")).unwrap();
        assert!(has_holders(folder.path()));
        fs::write(folder.path().join("dev"), "43:0\n").unwrap();
        fs::write(folder.path().join("nbd1p1/dev"), "43:1\n").unwrap();
        assert_eq!(numbers(folder.path()), ["43:0", "43:1"]);
    }
}
