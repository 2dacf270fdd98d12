//! The errors of opening a file device.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::host_cache::Alignment;

/// An error of opening a file device: the path, and the [`OpenErrorKind`].
#[derive(Debug)]
pub struct OpenError {
    pub(super) path: PathBuf,
    pub(super) kind: OpenErrorKind,
}

/// The reason of an [`OpenError`].
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// The file doesn't exist, and no size was given to create it with (or it is read-only).
    NotFound,
    /// The path leads to neither a regular file nor a block device.
    NotAFile,
    /// Another server, or another device of this one, has it locked, and kept it for longer than 2
    /// seconds.
    InUse,
    /// A program of QEMU, or another one that takes QEMU's locks, has it open, and kept it for
    /// longer than 2 seconds.
    InUseByQemu {
        /// True if it has the file open for writing. Else it allows no other program to write.
        writes: bool,
    },
    /// The block device is mounted, or a driver of the kernel or another program has claimed it
    /// (`O_EXCL`), for longer than 2 seconds.
    Claimed,
    /// The file has another size than requested; nothing was changed.
    SizeDiffers {
        /// Its size in bytes.
        found: u64,
        /// The requested size.
        asked: u64,
    },
    /// The size, asked for or found, is zero or no multiple of the block size.
    BadSize {
        /// The size in bytes.
        size: u64,
        /// The block size in bytes.
        block_size: u32,
    },
    /// The block size is no power of two, or less than 512.
    BadBlockSize(u32),
    /// The options ask to go past the host's cache, and that can't be done with blocks of this
    /// size.
    NotDirect {
        /// Alignment that the file system needs; `None` if it doesn't do it at all, or doesn't
        /// report it.
        needs: Option<Alignment>,
        /// The block size in bytes.
        block_size: u32,
    },
    /// A step failed.
    Io {
        /// The step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// Returns the path that was to be opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the reason.
    pub fn kind(&self) -> &OpenErrorKind {
        &self.kind
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.kind {
            OpenErrorKind::NotFound => {
                f.write_str("the file does not exist; give a size to create it")
            }
            OpenErrorKind::NotAFile => f.write_str("neither a regular file nor a block device"),
            OpenErrorKind::InUse => {
                f.write_str("in use: another process, or another device of this one, has it locked")
            }
            OpenErrorKind::InUseByQemu { writes: true } => f.write_str(
                "in use: a program of QEMU has it open for writing (qemu-system, qemu-nbd, qemu-io, qemu-img)",
            ),
            OpenErrorKind::InUseByQemu { writes: false } => f.write_str(
                "in use: a program of QEMU has it open, and allows nobody to write; open it read-only",
            ),
            OpenErrorKind::Claimed => f.write_str(
                "in use: the disk, or a partition of it, is mounted, or another program or a driver of the kernel has claimed it",
            ),
            OpenErrorKind::SizeDiffers { found, asked } => write!(
                f,
                "the file has {found} bytes, not {asked}. Leave out the size to take the file as \
                 it is, or resize the file yourself"
            ),
            OpenErrorKind::BadSize { size, block_size } => write!(
                f,
                "the size is {size} bytes; it must be a positive multiple of the block size, \
                 {block_size}"
            ),
            OpenErrorKind::BadBlockSize(size) => {
                write!(f, "the block size is {size} bytes; it must be a power of two, at least 512")
            }
            OpenErrorKind::NotDirect { needs: None, .. } => {
                f.write_str("the file system doesn't report that it can bypass the page cache")
            }
            OpenErrorKind::NotDirect { needs: Some(needs), block_size } => write!(
                f,
                "the file system bypasses the page cache only in blocks of {} bytes, but the \
                 device's block size is {block_size}",
                needs.offset
            ),
            OpenErrorKind::Io { step, source } => write!(f, "{step}: {source}"),
        }
    }
}

/// The text has the cause's, so there is no source: a report of both would have it twice.
impl std::error::Error for OpenError {}
