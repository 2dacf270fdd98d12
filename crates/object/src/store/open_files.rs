//! Objects of a folder that are held open, so that the thread of a request reads what the host's
//! cache has of them.
//!
//! Objects never change, and the key of a file is the random id of its segment. So an open file is
//! never stale. It may have been deleted, and then it isn't used: see [`OpenFile::is_linked`].

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_drivers::lies_in_memory;
use rustix::fs::fstat;
use rustix::io::{ReadWriteFlags, preadv2};

/// Maximum number of files that a store holds open.
const FILES: usize = 64;

/// A file of an object with data.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: OwnedFd,
    /// The flags that ask the kernel not to wait. A file in memory needs none, and tmpfs doesn't
    /// support them.
    flags: ReadWriteFlags,
}

impl OpenFile {
    fn new(file: OwnedFd) -> Self {
        let in_memory = lies_in_memory(&file);
        let flags = if in_memory { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
        Self { file, flags }
    }

    /// Fills `room` with the bytes from `at` on, if the host's cache has them all. Never blocks,
    /// except for memory.
    pub(crate) fn read(&self, room: &mut [u8], at: u64) -> bool {
        let len = room.len();
        let read = preadv2(&self.file, &mut [IoSliceMut::new(room)], at, self.flags);
        read.is_ok_and(|read| read == len)
    }

    /// Returns true if the file has a name: nobody has deleted it.
    fn is_linked(&self) -> bool {
        fstat(&self.file).is_ok_and(|found| found.st_nlink != 0)
    }
}

/// The files, by the ids of their segments.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: quick_cache::sync::Cache<u128, Arc<OpenFile>>,
}

impl OpenFiles {
    pub(super) fn new() -> Self {
        Self { files: quick_cache::sync::Cache::new(FILES) }
    }

    /// Returns the file of a segment, which `open` opens if it isn't open yet. `None`: it can't be
    /// opened without waiting, or was deleted.
    pub(super) fn get(
        &self,
        id: u128,
        open: impl FnOnce() -> Option<OwnedFd>,
    ) -> Option<Arc<OpenFile>> {
        if let Some(file) = self.files.get(&id) {
            if file.is_linked() {
                return Some(file);
            }
            self.files.remove(&id);
            return None;
        }
        let file = Arc::new(OpenFile::new(open()?));
        self.files.insert(id, Arc::clone(&file));
        Some(file)
    }

    /// Closes the files that were deleted: until then they take room.
    pub(crate) fn close_deleted(&self) {
        self.files.retain(|_, file| file.is_linked());
    }

    /// Closes all files.
    pub(crate) fn close(&self) {
        self.files.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_file_is_opened_once_and_one_that_was_deleted_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one");
        fs::write(&path, "some text").unwrap();
        let files = OpenFiles::new();
        let open = || Some(File::open(&path).unwrap().into());
        let file = files.get(7, open).unwrap();
        let again = files.get(7, || panic!("it is open")).unwrap();
        assert!(Arc::ptr_eq(&file, &again));
        let mut room = [0; 4];
        // Some file systems can't be asked not to wait.
        if file.read(&mut room, 5) {
            assert_eq!(&room, b"text");
        }
        assert!(!file.read(&mut room, 6), "the file is shorter");
        assert!(files.get(8, || None).is_none());
        fs::remove_file(&path).unwrap();
        assert!(files.get(7, || panic!("it is open")).is_none());
        assert_eq!(files.files.len(), 0);
    }

    #[test]
    fn files_that_were_deleted_are_closed_and_there_are_no_more_than_the_most() {
        let folder = tempfile::tempdir().unwrap();
        let files = OpenFiles::new();
        for id in 0..300 {
            let path = folder.path().join(id.to_string());
            fs::write(&path, "text").unwrap();
            files.get(id, || Some(File::open(&path).unwrap().into())).unwrap();
        }
        let held = files.files.len();
        assert!((1..=FILES).contains(&held), "{held}");
        files.close_deleted();
        assert_eq!(files.files.len(), held);
        folder.close().unwrap();
        files.close_deleted();
        assert_eq!(files.files.len(), 0);
    }
}
