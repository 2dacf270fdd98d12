//! Files that all runs of a session share: one on tmpfs, one on a disk, and a thousand small ones.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::{env, process, thread};

use corewise_bench::bench::On;
use corewise_bench::blockmq::disk::fill;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::server::{SMALL, name};

/// The environment variable that gives the folders to the processes that measure.
const FOLDERS: &str = "BENCH_PEERS_NBD";
/// The largest number of exports.
const MANY: u32 = 1_000;

/// A function that makes the files that the runs of a session share.
pub(crate) type Make = fn(&On) -> Result<Files, String>;

/// A folder on tmpfs and one on a disk. Its maker removes them when it drops the value.
#[derive(Debug)]
pub(crate) struct Files {
    folders: Vec<PathBuf>,
    made: bool,
}

impl Files {
    /// Makes the files in `/dev/shm` and in the folder for temporary files. It blocks for a second
    /// or two.
    pub(crate) fn make(on: &On) -> Result<Files, String> {
        let files = Files::of(on.pick(512 << 20, 128 << 20))?;
        files.remove_at_signals().map_err(|error| format!("signals can't be had: {error}"))?;
        Ok(files)
    }

    /// Makes the files, the large ones of this number of bytes.
    pub(super) fn of(size: u64) -> Result<Files, String> {
        let (tmpfs, disk) = (PathBuf::from("/dev/shm"), env::temp_dir());
        let mut files = Files { folders: Vec::new(), made: true };
        for folder in [tmpfs, disk] {
            files.add(&folder, size).map_err(|error| {
                format!("{} can't have a file of {size} bytes: {error}", folder.display())
            })?;
        }
        Ok(files)
    }

    fn add(&mut self, folder: &Path, size: u64) -> io::Result<()> {
        let folder = tempfile::Builder::new().prefix("bench-peers-").tempdir_in(folder)?.keep();
        self.folders.push(folder.clone());
        fill(&folder.join("volume"), size)?;
        let small = folder.join("small");
        fs::create_dir(&small)?;
        (0..MANY).try_for_each(|number| File::create(small.join(name(number)))?.set_len(SMALL))
    }

    /// Returns the files that the environment names.
    pub(super) fn find() -> Result<Files, String> {
        let paths = env::var_os(FOLDERS).ok_or("a run of its own has no files")?;
        Ok(Files { folders: env::split_paths(&paths).collect(), made: false })
    }

    /// Returns the environment variable that [`Files::find`] reads, and its value.
    pub(crate) fn variable(&self) -> (OsString, OsString) {
        let paths = env::join_paths(&self.folders);
        (FOLDERS.into(), paths.expect("the names of temporary folders have no colon"))
    }

    /// Returns the large file on the disk, or else the one on tmpfs.
    pub(super) fn volume(&self, disk: bool) -> PathBuf {
        self.folders[usize::from(disk)].join("volume")
    }

    /// Returns a folder for other files of a run.
    pub(super) fn work(&self) -> &Path {
        &self.folders[1]
    }

    /// Returns the folder of the small files.
    pub(super) fn small(&self) -> PathBuf {
        self.folders[0].join("small")
    }

    /// Removes the folders at a signal, since an interrupted program drops nothing.
    fn remove_at_signals(&self) -> io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let folders = self.folders.clone();
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                remove(&folders);
                process::exit(128 + signal);
            }
        });
        Ok(())
    }
}

fn remove(folders: &[PathBuf]) {
    for folder in folders {
        // An error can't be reported here, and leaves only files behind.
        let _ = fs::remove_dir_all(folder);
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.made {
            remove(&self.folders);
        }
    }
}
