//! The file: read when a volume is opened, and written when it is flushed.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation};

use super::format::{self, ENTRY, FileHead, HEAD, MAGIC, RING};
use super::{Entry, Found};
use crate::codec::Codec;

/// What the file is kept in.
pub(crate) trait Medium: fmt::Debug + Send + Sync + 'static {
    /// Fills the buffer; zeroes stand for what is behind the end.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()>;
    /// What was written before is there for good.
    fn sync(&self) -> io::Result<()>;
}

impl Medium for File {
    fn read(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let n = match self.read_at(into, at) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if n == 0 {
                into.fill(0);
                return Ok(());
            }
            at += n as u64;
            into = &mut into[n..];
        }
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Opens the file, or makes it, with room for a ring of so many bytes, and locks it as long as it lives.
pub(crate) fn open(path: &Path, ring: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        return Err(match error {
            rustix::io::Errno::WOULDBLOCK => io::Error::other("another server has it"),
            error => error.into(),
        });
    }
    // Before anything of it is changed: it may be another's.
    head(&file)?;
    // So that it doesn't lack room later. Where a file system can't say so, it may.
    let size = RING + ring;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
        Err(rustix::io::Errno::OPNOTSUPP) if file.metadata()?.len() < size => file.set_len(size)?,
        Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    file.sync_all()?;
    // Its name, too.
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        File::open(folder)?.sync_all()?;
    }
    Ok(file)
}

/// What the file has; `None`: it was never begun. An error: it is another file.
pub(crate) fn head(medium: &dyn Medium) -> io::Result<Option<FileHead>> {
    let mut newest: Option<FileHead> = None;
    for slot in 0..2 {
        let mut bytes = vec![0; HEAD as usize];
        medium.read(slot * HEAD, &mut bytes)?;
        // The first one may be torn, but not in its first sector.
        if !bytes.starts_with(MAGIC) && !bytes.starts_with(&[0; 8]) {
            return Err(io::Error::other("it is no file of flushes; name another one"));
        }
        let found = FileHead::decode(&bytes).filter(|head| head.ring > 0);
        let is_newer =
            |found: &FileHead| newest.is_none_or(|newest| found.generation > newest.generation);
        newest = found.filter(is_newer).or(newest);
    }
    Ok(newest)
}

/// The entries behind a head, up to the first one that is torn, or somebody else's.
pub(crate) fn entries(medium: &dyn Medium, head: FileHead) -> io::Result<Found> {
    let mut entries = Vec::new();
    let mut at = head.start;
    loop {
        let mut bytes = vec![0; ENTRY];
        read(medium, &head, at, &mut bytes)?;
        let Some(found) = format::entry_head(&bytes) else { break };
        let end = at + ENTRY as u64 + u64::from(found.stored);
        if found.nonce != head.nonce || found.place != at || end - head.start > head.ring {
            break;
        }
        bytes.resize(ENTRY + found.stored as usize, 0);
        read(medium, &head, at + ENTRY as u64, &mut bytes[ENTRY..])?;
        let Some(entry) = format::stored(bytes) else { break };
        entries.push(entry);
        at = end;
    }
    Ok(Found { head, entries })
}

/// The pieces of the ring that so many bytes from a place on are: offset in the file, and length.
fn pieces(head: &FileHead, place: u64, len: usize) -> [(u64, usize); 2] {
    let from = place % head.ring;
    let first = len.min((head.ring - from) as usize);
    [(RING + from, first), (RING, len - first)]
}

fn read(medium: &dyn Medium, head: &FileHead, place: u64, into: &mut [u8]) -> io::Result<()> {
    let mut rest = into;
    for (at, len) in pieces(head, place, rest.len()) {
        let (now, later) = rest.split_at_mut(len);
        medium.read(at, now)?;
        rest = later;
    }
    Ok(())
}

/// Writes a head in the place of the older one.
pub(super) fn write_head(medium: &dyn Medium, head: &FileHead) -> io::Result<()> {
    medium.write(head.generation % 2 * HEAD, &head.encode())
}

/// The bytes of entries that begin at a place, and where each one begins.
pub(super) fn encode(
    entries: &VecDeque<Entry>,
    nonce: u128,
    at: u64,
    codec: &Codec,
) -> (Vec<u8>, Vec<(u64, u64)>) {
    let (mut data, mut places) = (Vec::new(), Vec::new());
    for entry in entries {
        let place = at + data.len() as u64;
        places.push((entry.index, place));
        data.extend_from_slice(&format::encode(entry, nonce, place, codec));
    }
    (data, places)
}

/// What became of entries.
#[derive(Clone, Copy, Debug)]
pub(super) enum Appended {
    /// They are there for good, behind this head.
    There(FileHead),
    /// There is no room among those that aren't in the store yet.
    Full,
}

/// Writes entries, and syncs. `first` is the place of the first one that isn't in the store.
pub(super) fn append(
    medium: &dyn Medium,
    mut head: FileHead,
    first: u64,
    at: u64,
    data: &[u8],
) -> io::Result<Appended> {
    let end = at + data.len() as u64;
    if end - first > head.ring {
        return Ok(Appended::Full);
    }
    if end - head.start > head.ring {
        // They go over entries that a reader would begin with: it begins behind them from now on.
        head = FileHead { generation: head.generation + 1, start: first, ..head };
        write_head(medium, &head)?;
        medium.sync()?;
    }
    let mut rest = data;
    for (to, len) in pieces(&head, at, data.len()) {
        let (now, later) = rest.split_at(len);
        if !now.is_empty() {
            medium.write(to, now)?;
        }
        rest = later;
    }
    medium.sync()?;
    Ok(Appended::There(head))
}
