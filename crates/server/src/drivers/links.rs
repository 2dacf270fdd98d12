//! The folder `/dev/corewise`: links to the disks of this machine, and a record of each disk. The
//! folder is empty after a start of the machine, as the kernel's list of disks is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use corewise::ublk::Mark;
use serde::{Deserialize, Serialize};

/// Folder of the links to disks.
pub(crate) const LINKS: &str = "/dev/corewise";

/// The record of a disk: another process may find the disk without its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Word that the kernel keeps for the disk. A disk with another word got the number later.
    mark: u64,
    /// Export that the disk is.
    pub export: String,
    /// Manifest of the server that has made it, or has taken it over.
    pub manifest: String,
    /// Name of its link.
    link: Option<String>,
}

impl DiskRecord {
    /// Returns the record of the disk with this number and mark.
    pub fn of(number: u32, mark: Mark) -> Option<DiskRecord> {
        DiskRecord::read(Path::new(LINKS), number).filter(|record| record.mark == mark.word())
    }

    fn read(folder: &Path, number: u32) -> Option<DiskRecord> {
        serde_json::from_slice(&fs::read(place(folder, number)).ok()?).ok()
    }

    /// Creates the record of a disk of this server.
    pub(super) fn new(mark: Mark, export: &str, manifest: &str, link: Option<&str>) -> DiskRecord {
        let (export, manifest) = (export.to_string(), manifest.to_string());
        DiskRecord { mark: mark.word(), export, manifest, link: link.map(str::to_string) }
    }

    /// Writes the record of the disk with this number, and makes its link. A link to another disk
    /// that is there stays.
    pub(super) fn make(&self, number: u32) -> io::Result<()> {
        self.make_in(Path::new(LINKS), number)
    }

    fn make_in(&self, folder: &Path, number: u32) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        // A former disk had that number.
        remove_in(folder, number);
        // The record comes first: it leads to the link of a disk that goes.
        fs::write(place(folder, number), serde_json::to_vec(self)?)?;
        let Some(link) = self.link.as_ref().map(|link| folder.join(link)) else { return Ok(()) };
        match fs::read_link(&link) {
            Ok(other) if other.exists() => {
                let why = format!("the link leads to another disk, {}", other.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            Ok(_) => fs::remove_file(&link)?,
            // A plain file in its place stays, and fails the next step.
            Err(_) => {}
        }
        std::os::unix::fs::symlink(path(number), link)
    }
}

/// Removes the record and the link of the disk with this number and mark.
pub(super) fn remove(number: u32, mark: Mark) {
    if DiskRecord::of(number, mark).is_some() {
        remove_links(number);
    }
}

/// Returns the path of the disk with this number.
pub(super) fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

fn place(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!(".ublkb{number}"))
}

/// Removes the record and the link of the disk with this number.
pub fn remove_links(number: u32) {
    remove_in(Path::new(LINKS), number);
}

fn remove_in(folder: &Path, number: u32) {
    let link = DiskRecord::read(folder, number).and_then(|record| record.link);
    if let Some(link) = link.map(|link| folder.join(link)) {
        // Another disk may have got the link meanwhile.
        if fs::read_link(&link).is_ok_and(|target| target == path(number)) {
            let _ = fs::remove_file(link);
        }
    }
    let _ = fs::remove_file(place(folder, number));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_one_link_which_goes_with_its_record_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let target = |link: &str| fs::read_link(folder.join(link)).ok();
        let (mark, other) = (Mark::of("a file", "data"), Mark::of("a file", "other"));
        let record = |mark, name| DiskRecord::new(mark, name, "/m.toml", Some(name));
        record(mark, "data").make_in(folder, 7).unwrap();
        assert_eq!(target("data"), Some(path(7)));
        assert_eq!(DiskRecord::read(folder, 7), Some(record(mark, "data")));
        // Another disk gets the number.
        record(other, "other").make_in(folder, 7).unwrap();
        assert_eq!((target("data"), target("other")), (None, Some(path(7))));
        // Another disk gets the link, since the first one is gone.
        record(mark, "other").make_in(folder, 8).unwrap();
        remove_in(folder, 7);
        assert_eq!(target("other"), Some(path(8)));
        remove_in(folder, 8);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn a_file_or_another_disk_in_the_place_of_a_link_stays() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("data"), "precious").unwrap();
        let record = DiskRecord::new(Mark::of("a", "b"), "data", "/m.toml", Some("data"));
        assert!(record.make_in(folder, 7).is_err());
        remove_in(folder, 7);
        assert_eq!(fs::read(folder.join("data")).unwrap(), b"precious");
        fs::remove_file(folder.join("data")).unwrap();
        std::os::unix::fs::symlink("/dev/null", folder.join("data")).unwrap();
        let why = record.make_in(folder, 7).unwrap_err().to_string();
        assert!(why.contains("/dev/null"), "{why}");
    }
}
