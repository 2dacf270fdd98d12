//! The folder of a volume, held open: writes reach that folder, and no other that its name leads to
//! later.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path as FilePath, PathBuf};

use object_store::path::Path;
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat, fstat, fstatvfs, open, openat2, stat};

use super::open_files::OpenFiles;
use super::{Measure, StoreRoom};

/// The folders that a volume has.
const FOLDERS: [&str; 7] = ["log", "seg", "map", "snap", "clones", "gone", "try"];

/// A folder that is held open.
///
/// Files in it are reached by [`at`](Self::at), a path through the descriptor. The kernel resolves
/// that to the folder that was opened, even if its file system was unmounted since (a plain
/// `umount` finds it busy), or if it was renamed. If it was deleted, nothing can be made in it any
/// more, and no parent can be made for it: it has none.
#[derive(Debug)]
struct HeldFolder {
    folder: OwnedFd,
    /// The name by which it was opened.
    name: PathBuf,
}

impl HeldFolder {
    fn open(name: &FilePath) -> io::Result<Self> {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(name, how, Mode::empty())?;
        let held = Self { folder, name: name.to_owned() };
        // If nothing is mounted at /proc, nothing can be reached by the descriptor.
        let there = stat(format!("/{}", held.at()));
        if !there.is_ok_and(|there| fstat(&held.folder).is_ok_and(|here| is_same(&here, &there))) {
            let why = "the folder can't be reached by /proc/self/fd; mount /proc";
            return Err(io::Error::other(why));
        }
        Ok(held)
    }

    /// Returns the path by which it is reached, from the root on, without a leading slash.
    fn at(&self) -> String {
        format!("proc/self/fd/{}", self.folder.as_raw_fd())
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Returns the nearest folder around this one that has a volume: a file of this name, its first
/// record. `folder` itself need not exist. Blocks.
pub(crate) fn volume_around(folder: &FilePath, first: &str) -> Option<PathBuf> {
    let has_volume = |around: &&FilePath| around.join(first).exists();
    let around = folder.ancestors().skip(1).find(|around| around.exists())?.canonicalize().ok()?;
    around.ancestors().find(has_volume).map(FilePath::to_owned)
}

/// Present location of a folder that is held open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its name leads to it.
    Here,
    /// The folder exists, and its name leads to another folder, or nowhere.
    Moved(String),
    /// The folder was deleted.
    Deleted(String),
}

/// The folder of a volume, and the one in which it lies beside its clones.
#[derive(Debug)]
pub(crate) struct Folder {
    own: HeldFolder,
    /// The parent folder, and the volume's prefix in it. `None`: there is no parent, so the prefix
    /// is empty.
    above: Option<(HeldFolder, Path)>,
    /// Objects with data that are held open.
    pub(crate) files: OpenFiles,
}

impl Folder {
    /// Holds the existing folder `name` of a volume open; the same folder is `prefix` in `above`.
    /// Blocks.
    pub(crate) fn open(name: &FilePath, above: &FilePath, prefix: &Path) -> io::Result<Self> {
        let own = HeldFolder::open(name)?;
        let above = match prefix.as_ref() {
            "" => None,
            _ => Some((HeldFolder::open(above)?, prefix.clone())),
        };
        Ok(Self { own, above, files: OpenFiles::new() })
    }

    /// Returns the open folder that has a prefix of the store, and the rest of its path in there.
    fn lies_in<'a>(&'a self, prefix: &'a Path) -> (&'a HeldFolder, &'a str) {
        match &self.above {
            None => (&self.own, prefix.as_ref()),
            Some((_, own)) if own == prefix => (&self.own, ""),
            Some((above, _)) => (above, prefix.as_ref()),
        }
    }

    /// Returns the path, from the root on, of what lies below a prefix of the store.
    pub(crate) fn at(&self, prefix: &Path) -> Path {
        let at = match self.lies_in(prefix) {
            (held, "") => held.at(),
            (held, rest) => format!("{}/{rest}", held.at()),
        };
        Path::parse(&at).unwrap_or_else(|_| Path::from(at))
    }

    /// Opens an object below a prefix for reading, if the kernel can do that without waiting
    /// (`RESOLVE_CACHED`, since Linux 5.12). Never blocks.
    pub(super) fn open_cached(&self, prefix: &Path, name: &str) -> Option<OwnedFd> {
        let (held, rest) = self.lies_in(prefix);
        let path = if rest.is_empty() { name.to_owned() } else { format!("{rest}/{name}") };
        let how = OFlags::RDONLY | OFlags::CLOEXEC;
        openat2(&held.folder, path, how, Mode::empty(), ResolveFlags::CACHED).ok()
    }

    /// Returns the name of the volume's folder.
    pub(crate) fn name(&self) -> &FilePath {
        &self.own.name
    }

    /// Deletes half-written objects of servers that were killed: files that end in `#` and a
    /// number, which appear in no list. Blocks.
    ///
    /// A server that is writing one just now fails, and retries.
    pub(crate) fn sweep(&self) {
        let is_half = |name: &str| {
            name.rsplit_once('#').is_some_and(|(object, n)| {
                !object.is_empty() && !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit())
            })
        };
        for folder in FOLDERS {
            let Ok(files) = fs::read_dir(format!("/{}/{folder}", self.own.at())) else { continue };
            for file in files.flatten() {
                if file.file_name().to_str().is_some_and(is_half) {
                    // A file that stays only takes room.
                    let _ = fs::remove_file(file.path());
                }
            }
        }
        let _ = fs::remove_file(format!("/{}/reserve#1", self.own.at()));
    }

    /// Replaces paths through descriptors by the folders' names in a message.
    pub(crate) fn named(&self, message: &str) -> String {
        let mut message = message.to_owned();
        for held in std::iter::once(&self.own).chain(self.above.as_ref().map(|(held, _)| held)) {
            let (at, name) = (format!("/{}/", held.at()), held.name.display());
            message = message.replace(&at, &format!("{}/", name.to_string().trim_end_matches('/')));
        }
        message
    }

    /// Returns the present location of the volume's folder. Blocks.
    pub(crate) fn presence(&self) -> Presence {
        let name = self.own.name.display();
        let held = match fstat(&self.own.folder) {
            Ok(held) => held,
            // A network share may be away for a while: requests to it report that.
            Err(_) => return Presence::Here,
        };
        if held.st_nlink == 0 {
            return Presence::Deleted(format!("the folder {name} was deleted"));
        }
        let found = match stat(&self.own.name) {
            Ok(found) if is_same(&held, &found) => return Presence::Here,
            Ok(_) => "another folder is there now".to_owned(),
            Err(rustix::io::Errno::NOENT) => "the folder is gone".to_owned(),
            Err(error) => io::Error::from(error).to_string(),
        };
        Presence::Moved(format!(
            "{name}: {found}: the folder was renamed, or its file system unmounted, while it was \
             served; writes still reach the folder that was opened"
        ))
    }
}

impl Measure for Folder {
    fn room(&self) -> Option<StoreRoom> {
        let found = fstatvfs(&self.own.folder).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(StoreRoom { total: bytes(found.f_blocks), free: bytes(found.f_bavail) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_disk(root: &FilePath) -> Folder {
        Folder::open(&root.join("disk"), root, &Path::from("disk")).unwrap()
    }

    /// Writes a file by a path of `Folder::at`.
    fn write(folder: &Folder, prefix: &str, name: &str) -> io::Result<()> {
        fs::write(format!("/{}/{name}", folder.at(&Path::from(prefix))), "text")
    }

    #[test]
    fn what_is_written_reaches_the_folder_that_was_opened_wherever_its_name_leads() {
        let root = tempfile::tempdir().unwrap();
        let [own, old] = ["disk", "old"].map(|name| root.path().join(name));
        fs::create_dir(&own).unwrap();
        let folder = open_disk(root.path());
        assert_eq!(folder.presence(), Presence::Here);
        fs::rename(&own, &old).unwrap();
        assert!(
            matches!(folder.presence(), Presence::Moved(why) if why.contains("the folder is gone"))
        );
        fs::create_dir(&own).unwrap();
        assert!(matches!(folder.presence(), Presence::Moved(why) if why.contains("another")));
        write(&folder, "disk", "one").unwrap();
        assert!(old.join("one").exists() && !own.join("one").exists());
        fs::remove_dir(&own).unwrap();
        fs::rename(&old, &own).unwrap();
        assert_eq!(folder.presence(), Presence::Here);
        // A neighbour is found by its name.
        fs::create_dir(root.path().join("clone")).unwrap();
        write(&folder, "clone", "two").unwrap();
        assert!(root.path().join("clone/two").exists());
    }

    #[test]
    fn a_folder_that_was_deleted_is_not_made_again_by_what_is_written_to_it() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("disk");
        fs::create_dir(&own).unwrap();
        let folder = open_disk(root.path());
        fs::remove_dir(&own).unwrap();
        assert!(matches!(folder.presence(), Presence::Deleted(_)));
        let below = format!("/{}/log", folder.at(&Path::from("disk")));
        assert_eq!(fs::create_dir_all(below).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!own.exists());
    }

    #[test]
    fn messages_have_the_names_of_the_folders() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("disk")).unwrap();
        let folder = open_disk(root.path());
        let at = |prefix: &str| format!("cannot open /{}/log/1", folder.at(&Path::from(prefix)));
        let name = root.path().display();
        assert_eq!(folder.named(&at("disk")), format!("cannot open {name}/disk/log/1"));
        assert_eq!(folder.named(&at("clone")), format!("cannot open {name}/clone/log/1"));
    }

    #[test]
    fn what_a_killed_server_left_half_is_deleted_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("disk");
        let kept = ["log/1", "log/#1", "seg/a#b", "seg/a#", "other/a#1", "log#1"];
        let halves = ["log/1#1", "seg/3-1#12", "try/0f#2", "reserve#1"];
        for folder in ["log", "seg", "try", "other"] {
            fs::create_dir_all(own.join(folder)).unwrap();
        }
        let make = |name: &&str| fs::write(own.join(name), "").unwrap();
        kept.iter().chain(&halves).for_each(make);
        open_disk(root.path()).sweep();
        assert!(kept.iter().all(|name| own.join(name).exists()));
        assert!(!halves.iter().any(|name| own.join(name).exists()));
    }
}
