//! The file that is read and written: full of bytes that nobody compresses.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::bench::Effort;
use crate::error::BenchError;
use crate::rng::Rng;

/// Names the file to the processes that measure; without it each makes its own, which takes long.
pub const DISK: &str = "COREWISE_BENCH_DISK";

/// Bytes that are written at once.
const PIECE: u64 = 1 << 20;

/// A file, removed when its maker drops it.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    made: bool,
}

impl Disk {
    /// The one that the environment names, or a new small one.
    ///
    /// # Errors
    /// It couldn't be made.
    pub fn find() -> Result<Disk, BenchError> {
        match std::env::var_os(DISK) {
            Some(path) => Ok(Disk { path: path.into(), made: false }),
            None => Disk::for_runs(Effort::Quick),
        }
    }

    /// A new one in the folder for temporary files: of 1 GiB, or 256 MiB for a quick call. Blocks, for seconds.
    ///
    /// # Errors
    /// It couldn't be made.
    pub fn for_runs(effort: Effort) -> Result<Disk, BenchError> {
        let size = if effort == Effort::Quick { 256 << 20 } else { 1 << 30 };
        Disk::make(&std::env::temp_dir(), size).map_err(|error| BenchError::unusable("file", error))
    }

    /// Makes one of so many whole MiB in this folder. Blocks.
    pub(super) fn make(folder: &Path, size: u64) -> io::Result<Disk> {
        let path = folder.join(format!("corewise-bench-{}.img", std::process::id()));
        // It is removed also where it isn't finished.
        let disk = Disk { path, made: true };
        fill(&disk.path, size)?;
        Ok(disk)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes so many whole MiB to a new file, and waits until the disk has them.
///
/// # Errors
/// The folder isn't there, or is full.
pub fn fill(path: &Path, size: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    // The same again and again, each time farther apart than any file system looks for what is the same.
    let mut rng = Rng::new(1);
    let piece: Vec<u8> = (0..PIECE / 8).flat_map(|_| rng.next().to_ne_bytes()).collect();
    for _ in 0..size / PIECE {
        file.write_all(&piece)?;
    }
    file.sync_all()
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.made {
            // There is nobody to tell, and nothing to be done.
            let _ = fs::remove_file(&self.path);
        }
    }
}
