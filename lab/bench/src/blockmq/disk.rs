//! The file that is read and written, full of bytes that can't be compressed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use tempfile::{NamedTempFile, TempPath};

use crate::bench::Effort;
use crate::error::BenchError;

/// The environment variable with the file for the processes that measure. Without it each process
/// makes its own file, which takes long.
pub const DISK: &str = "COREWISE_BENCH_DISK";

/// Bytes that are written at once.
const PIECE: u64 = 1 << 20;

/// A file, removed when its maker drops it.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    _made: Option<TempPath>,
}

impl Disk {
    /// Returns the file that the environment names, or a new small one.
    ///
    /// # Errors
    /// The file couldn't be made.
    pub fn find() -> Result<Disk, BenchError> {
        match std::env::var_os(DISK) {
            Some(path) => Ok(Disk { path: path.into(), _made: None }),
            None => Disk::for_runs(Effort::Quick),
        }
    }

    /// Makes a file in the folder for temporary files, of 1 GiB, or 256 MiB for a quick call. This
    /// blocks for seconds.
    ///
    /// # Errors
    /// The file couldn't be made.
    pub fn for_runs(effort: Effort) -> Result<Disk, BenchError> {
        let size = if effort == Effort::Quick { 256 << 20 } else { 1 << 30 };
        Disk::make(&std::env::temp_dir(), size)
    }

    /// Makes a file of this size, in whole MiB, in this folder. This blocks.
    pub(super) fn make(folder: &Path, size: u64) -> Result<Disk, BenchError> {
        let file = tempfile::Builder::new().prefix("corewise-bench-").tempfile_in(folder);
        let made = file.map(NamedTempFile::into_temp_path).and_then(|file| {
            fill(&file, size)?;
            Ok(Disk { path: file.to_path_buf(), _made: Some(file) })
        });
        made.map_err(|source| BenchError::Unusable { what: "file", source })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes this number of bytes, in whole MiB, to a new file, and waits until the disk has them.
///
/// # Errors
/// The folder doesn't exist, or is full.
pub fn fill(path: &Path, size: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    // The same bytes repeat, farther apart than any file system looks for duplicates.
    let mut piece = vec![0; PIECE as usize];
    Rng::with_seed(1).fill(&mut piece);
    for _ in 0..size / PIECE {
        file.write_all(&piece)?;
    }
    file.sync_all()
}
