//! The things that this run created and must remove: sockets, a temporary folder, and the files of
//! volumes that did not come up.
//!
//! It is shared with the thread that handles a second signal, so every way out leaves nothing
//! behind, except `kill -9`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use corewise::sync::Mutex;

/// The things to remove.
#[derive(Debug, Default)]
pub struct Cleanup {
    /// L: is the lock, taken inside that of a part; guards the things to remove.
    held: Mutex<CleanupState>,
    /// Cleanup of the program, for the part of one server.
    whole: Option<Arc<Cleanup>>,
}

#[derive(Debug, Default)]
struct CleanupState {
    /// Folders and sockets, the oldest first.
    things: Vec<Removable>,
    /// New files by device.
    new_files: BTreeMap<String, Vec<CreatedFile>>,
    /// True once the files of volumes that are up belong to the user.
    keeps_files: bool,
    /// Devices whose files aren't the user's yet, though they may be up.
    together: BTreeSet<String>,
    /// Parts of the servers in this process.
    parts: Vec<Weak<Cleanup>>,
}

#[derive(Debug)]
enum Removable {
    /// A folder with everything in it.
    Folder(PathBuf),
    /// A folder that others use, too. The last one removes it.
    FolderIfEmpty(PathBuf),
    /// A socket, as long as its name still leads to it.
    Socket(PathBuf, Identity),
}

/// The new file of a device, as long as its name still leads to it.
#[derive(Debug)]
struct CreatedFile {
    file: NewFile,
    identity: Identity,
    /// True once the device is up.
    up: bool,
}

/// A file that was created for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewFile {
    pub(crate) device: String,
    pub(crate) path: PathBuf,
    /// Size in bytes.
    pub(crate) size: u64,
}

/// The identity of a file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl Cleanup {
    /// Creates the part of one server. It removes its own things when that server ends; those of
    /// other servers stay. The whole removes all of them.
    pub(crate) fn part_of(whole: &Arc<Cleanup>) -> Arc<Cleanup> {
        let part = Cleanup { whole: Some(Arc::clone(whole)), ..Cleanup::default() };
        let part = Arc::new(part);
        let mut held = whole.held.lock();
        held.parts.retain(|part| part.strong_count() > 0);
        held.parts.push(Arc::downgrade(&part));
        part
    }

    /// Registers a folder that only this run uses.
    pub fn folder(&self, path: &Path) {
        self.held.lock().things.push(Removable::Folder(path.to_path_buf()));
    }

    /// Registers a folder that others may use, too.
    pub(crate) fn folder_if_empty(&self, path: &Path) {
        // The folder comes before its content: the newest entries go first. Code that puts
        // something into it registers that later.
        self.held.lock().things.push(Removable::FolderIfEmpty(path.to_path_buf()));
    }

    /// Registers a socket that this run has bound, or a link to one.
    pub(crate) fn socket(&self, path: &Path) -> io::Result<()> {
        let identity = Identity::of(&path.symlink_metadata()?);
        self.held.lock().things.push(Removable::Socket(path.to_path_buf(), identity));
        Ok(())
    }

    /// Removes a socket that this run has bound, before the end.
    pub(crate) fn remove_socket(&self, path: &Path) -> io::Result<()> {
        let mut held = self.held.lock();
        let is_it = |thing: &Removable| matches!(thing, Removable::Socket(at, _) if at == path);
        let Some(at) = held.things.iter().rposition(is_it) else { return Ok(()) };
        match held.things.remove(at) {
            Removable::Socket(path, identity) => remove_if(&path, identity),
            _ => Ok(()),
        }
    }

    /// Returns true if the name of a socket that this run has bound leads to nothing by now, or to
    /// something else.
    pub(crate) fn has_lost(&self, path: &Path) -> bool {
        let held = self.held.lock();
        let identity = held.things.iter().rev().find_map(|thing| match thing {
            Removable::Socket(socket, identity) if socket == path => Some(*identity),
            _ => None,
        });
        drop(held);
        let found = || path.symlink_metadata().map(|found| Identity::of(&found)).ok();
        identity.is_some_and(|identity| found() != Some(identity))
    }

    /// Returns true if this run has bound the socket at this path, under whatever name.
    pub(crate) fn has_bound(&self, path: &Path) -> bool {
        let Ok(found) = path.symlink_metadata() else { return false };
        let found = Identity::of(&found);
        let is_it =
            |thing: &Removable| matches!(thing, Removable::Socket(_, other) if *other == found);
        self.held.lock().things.iter().any(is_it)
    }

    /// Registers a file that this run created for a device which isn't up yet.
    pub(crate) fn new_file(&self, file: NewFile) -> io::Result<()> {
        let identity = Identity::of(&file.path.symlink_metadata()?);
        let device = file.device.clone();
        let made = CreatedFile { file, identity, up: false };
        self.held.lock().new_files.entry(device).or_default().push(made);
        Ok(())
    }

    /// Records that `device` is up, perhaps after all callers stopped waiting for it. Returns the
    /// new files that are the user's from now on.
    #[must_use]
    pub(crate) fn came_up(&self, device: &str) -> Vec<NewFile> {
        let mut held = self.held.lock();
        for made in held.new_files.get_mut(device).into_iter().flatten() {
            made.up = true;
        }
        held.let_go_of(device, self.whole.as_deref())
    }

    /// Begins the bring-up of devices that come up together or not at all. Until the result is
    /// known, the files created for them have no owner.
    pub(crate) fn begin_together(&self, devices: impl IntoIterator<Item = String>) {
        self.held.lock().together = devices.into_iter().collect();
    }

    /// Ends that bring-up. The files of devices that weren't given up are the user's; it returns
    /// these.
    #[must_use]
    pub(crate) fn end_together(&self) -> Vec<NewFile> {
        let mut held = self.held.lock();
        held.together.clear();
        held.let_go(self.whole.as_deref())
    }

    /// Removes the file created for `device`, which isn't up and won't be.
    pub(crate) fn give_up(&self, device: &str) {
        // This is done under the lock, so that no other thread removes the file at the same time. A
        // file that can't be removed stays. The report of the device's own failure matters more.
        let mut held = self.held.lock();
        for CreatedFile { file, identity, .. } in
            held.new_files.remove(device).into_iter().flatten()
        {
            let _ = remove_if(&file.path, identity);
        }
    }

    /// Records that there are clients. From now on the data of each device that is up, or comes up
    /// later, is the user's, and its new file stays. Returns the files of the devices that are up.
    #[must_use]
    pub(crate) fn keep_files(&self) -> Vec<NewFile> {
        let mut held = self.held.lock();
        held.keeps_files = true;
        held.let_go(self.whole.as_deref())
    }

    /// Removes all things, the newest first. Returns those that can't be removed, with the reasons.
    pub fn run(&self) -> Vec<(PathBuf, io::Error)> {
        let mut held = self.held.lock();
        let (things, files) =
            (std::mem::take(&mut held.things), std::mem::take(&mut held.new_files));
        let parts = std::mem::take(&mut held.parts);
        drop(held);
        let parts = parts.iter().filter_map(Weak::upgrade);
        let mut failed: Vec<_> = parts.flat_map(|part| part.run()).collect();
        // Files go before the folders that they may be in.
        for CreatedFile { file, identity, .. } in files.into_values().flatten() {
            if let Err(error) = remove_if(&file.path, identity) {
                if error.kind() != io::ErrorKind::NotFound {
                    failed.push((file.path, error));
                }
            }
        }
        for thing in things.into_iter().rev() {
            let (path, result) = match &thing {
                Removable::Folder(path) => (path, std::fs::remove_dir_all(path)),
                // A folder that isn't empty has another process's things.
                Removable::FolderIfEmpty(path) => (path, std::fs::remove_dir(path).or(Ok(()))),
                Removable::Socket(path, identity) => (path, remove_if(path, *identity)),
            };
            if let Err(error) = result {
                if error.kind() != io::ErrorKind::NotFound {
                    failed.push((path.clone(), error));
                }
            }
        }
        failed
    }
}

impl CleanupState {
    /// Forgets the files that are the user's, and returns them. Files in a folder of this run
    /// aren't returned: they go with the folder.
    fn let_go(&mut self, whole: Option<&Cleanup>) -> Vec<NewFile> {
        let devices: Vec<String> = self.new_files.keys().cloned().collect();
        devices.iter().flat_map(|device| self.let_go_of(device, whole)).collect()
    }

    /// Does the same for one device.
    fn let_go_of(&mut self, device: &str, whole: Option<&Cleanup>) -> Vec<NewFile> {
        if !self.keeps_files || self.together.contains(device) {
            return Vec::new();
        }
        let all = self.new_files.remove(device).unwrap_or_default();
        let (kept, rest): (Vec<CreatedFile>, Vec<CreatedFile>) =
            all.into_iter().partition(|made| made.up);
        if !rest.is_empty() {
            self.new_files.insert(device.to_string(), rest);
        }
        let files = kept.into_iter().map(|made| made.file);
        let is_temporary = |path: &Path| {
            self.is_temporary(path) || whole.is_some_and(|it| it.held.lock().is_temporary(path))
        };
        files.filter(|file| !is_temporary(&file.path)).collect()
    }

    fn is_temporary(&self, path: &Path) -> bool {
        let is_in = |thing: &Removable| matches!(thing, Removable::Folder(folder) if path.starts_with(folder));
        self.things.iter().any(is_in)
    }
}

/// Removes the file unless its name leads to another one by now.
fn remove_if(path: &Path, identity: Identity) -> io::Result<()> {
    if Identity::of(&path.symlink_metadata()?) == identity {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_file(device: &str, path: &Path) -> NewFile {
        NewFile { device: device.to_string(), path: path.to_path_buf(), size: 1 }
    }

    #[test]
    fn new_files_are_removed_unless_there_were_clients_and_their_device_came_up() {
        for clients in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let cleanup = Cleanup::default();
            for device in ["fails", "early", "late"] {
                let path = folder.path().join(device);
                std::fs::write(&path, "x").unwrap();
                cleanup.new_file(new_file(device, &path)).unwrap();
            }
            let named = |kept: Vec<NewFile>| kept.into_iter().map(|file| file.device);
            let mut kept: Vec<String> = named(cleanup.came_up("early")).collect();
            assert!(kept.is_empty(), "it may go yet");
            if clients {
                kept.extend(named(cleanup.keep_files()));
            }
            kept.extend(named(cleanup.came_up("late")));
            assert_eq!(kept, if clients { vec!["early", "late"] } else { vec![] });
            assert!(cleanup.run().is_empty());
            let there = ["fails", "early", "late"].map(|name| folder.path().join(name).exists());
            assert_eq!(there, [false, clients, clients]);
        }
    }

    #[test]
    fn a_file_that_took_the_name_over_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        // Held open until the end, so that the two can't have the same inode number.
        let _ours = std::fs::File::create(&path).unwrap();
        let cleanup = Cleanup::default();
        cleanup.new_file(new_file("a", &path)).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(cleanup.run().is_empty());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn the_part_of_a_server_leaves_those_of_others_and_the_whole_removes_all() {
        let folder = tempfile::tempdir().unwrap();
        let whole = Arc::new(Cleanup::default());
        let scratch = folder.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        whole.folder(&scratch);
        let bound = |name: &str| {
            let (part, path) = (Cleanup::part_of(&whole), folder.path().join(name));
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            part.socket(&path).unwrap();
            (part, path)
        };
        let ((one, first), (other, second)) = (bound("one"), bound("other"));
        assert!(one.run().is_empty());
        assert!(!first.exists() && second.exists() && scratch.exists());
        let file = scratch.join("disk");
        std::fs::write(&file, "x").unwrap();
        other.new_file(new_file("disk", &file)).unwrap();
        assert!(other.came_up("disk").is_empty() && other.keep_files().is_empty(), "it goes");
        assert!(whole.run().is_empty());
        assert!(!second.exists() && !scratch.exists());
        assert!(other.run().is_empty());
    }

    #[test]
    fn a_missing_file_is_no_failure_and_a_second_cleanup_does_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("file"), "x").unwrap();
        let cleanup = Cleanup::default();
        cleanup.folder(&inner);
        cleanup.folder(&inner);
        assert!(cleanup.run().is_empty());
        assert!(!inner.exists());
        assert!(cleanup.run().is_empty());
    }
}
