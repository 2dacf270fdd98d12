//! The file: read when a volume is opened, and written when it is flushed.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation};

use super::format::{self, ALIGN, ENTRY, EntryHead, FileHead, HEAD, MAGIC, MAGIC_ENTRY, RING};
use super::{Entry, Found, Stored};
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
    let head = head(&file)?;
    let found = file.metadata()?.len();
    if let Some(has) = head.map(|head| RING + head.ring).filter(|has| found < *has) {
        return Err(io::Error::other(format!(
            "it had {has} bytes and has {found}: it was cut off, with what was flushed there; to give that up, delete the file"
        )));
    }
    // So that it doesn't lack room later. Where a file system can't say so, it may.
    let size = RING + ring;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
        Err(rustix::io::Errno::OPNOTSUPP) if file.metadata()?.len() < size => file.set_len(size)?,
        Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => {}
        Err(error) => {
            let why = format!("no room for its {size} bytes: {}", io::Error::from(error));
            return Err(io::Error::other(why));
        }
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

/// The entries behind a head, up to the first one that is torn, or somebody else's; and those behind it, where that one isn't the end, but
/// was damaged when it had been there for good.
pub(crate) fn entries(medium: &dyn Medium, head: FileHead) -> io::Result<Found> {
    let mut entries = Vec::new();
    let mut at = head.start;
    let room = |at| head.start + head.ring - at;
    while let Some(found) = entry_at(medium, &head, at)?.filter(|it| it.place == at) {
        if found.bytes > room(at) {
            break;
        }
        at += found.bytes;
        entries.push(found.entry);
    }
    let behind = entries_behind(medium, &head, at)?;
    if behind.iter().any(|found| found.synced > at) {
        entries.extend(behind.into_iter().map(|found| found.entry));
    }
    Ok(Found { head, entries })
}

/// An entry that is whole.
struct Whole {
    entry: Stored,
    place: u64,
    synced: u64,
    /// With its head.
    bytes: u64,
}

/// The entry at a place, or at the same one of a later round. `None`: it is torn, or of an older round, or somebody else's.
fn entry_at(medium: &dyn Medium, head: &FileHead, at: u64) -> io::Result<Option<Whole>> {
    let mut all = vec![0; ENTRY];
    read(medium, head, at, &mut all)?;
    let Some(EntryHead { nonce, place, synced, stored, .. }) = format::entry_head(&all) else {
        return Ok(None);
    };
    let is_later = place.checked_sub(at).is_some_and(|by| by % head.ring == 0);
    let bytes = ENTRY as u64 + u64::from(stored);
    if nonce != head.nonce || !is_later || bytes > head.ring {
        return Ok(None);
    }
    all.resize(bytes as usize, 0);
    read(medium, head, at + ENTRY as u64, &mut all[ENTRY..])?;
    Ok(format::stored(all).map(|entry| Whole { entry, place, synced, bytes }))
}

/// All entries at that place of the ring and behind it, also of later rounds, in order.
fn entries_behind(medium: &dyn Medium, head: &FileHead, from: u64) -> io::Result<Vec<Whole>> {
    const PIECE: usize = 64 << 10;
    static ZEROES: [u8; PIECE] = [0; PIECE];
    let mut found = Vec::new();
    let mut bytes = vec![0; PIECE];
    let (mut next, end) = (from, head.start + head.ring);
    for at in (from..end).step_by(PIECE) {
        let bytes = &mut bytes[..PIECE.min((end - at) as usize)];
        read(medium, head, at, bytes)?;
        // As most of a file that was used little.
        if *bytes == ZEROES[..bytes.len()] {
            continue;
        }
        for (n, word) in bytes.chunks_exact(ALIGN).enumerate() {
            let at = at + (n * ALIGN) as u64;
            if at >= next && word.starts_with(&MAGIC_ENTRY) {
                if let Some(entry) = entry_at(medium, head, at)? {
                    next = at + entry.bytes;
                    found.push(entry);
                }
            }
        }
    }
    found.sort_by_key(|entry| entry.place);
    Ok(found)
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

/// The bytes of entries that begin at a place, up to which all is there for good, and where each one begins.
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
        data.extend_from_slice(&format::encode(entry, nonce, (place, at), codec));
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
