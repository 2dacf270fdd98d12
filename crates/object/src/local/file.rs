//! The flush file: read when a volume is opened, and written on flushes.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use corewise_drivers::{FileFault, FileGuard};
use corewise_sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{FallocateFlags, FlockOperation};

use super::{
    ALIGN, ENTRY, EntryHead, FileHead, HEAD, MAGIC, MAGIC_ENTRY, RING, SAYS, encode_entry,
    entry_head, stored_entry,
};
use super::{FileContent, LocalChange, StoredChange};
use crate::format::{BLOCK, Chunk, Codec};

/// Storage of a flush file.
pub(crate) trait Medium: fmt::Debug + Send + Sync + 'static {
    /// Fills the buffer. Bytes behind the end read as zero.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()>;
    /// Makes earlier writes durable.
    fn sync(&self) -> io::Result<()>;
    /// Returns the size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Allocates `size` bytes, so that no later write lacks room, and makes the file's name
    /// durable.
    fn reserve(&self, size: u64) -> io::Result<()>;
    /// Returns the name for people.
    fn name(&self) -> String;
    /// Checks that the file has its size, and a name.
    fn verify_descriptor(&self) -> Result<(), FileFault>;
    /// Checks that, and that the file's path leads to it.
    fn verify(&self) -> Result<(), FileFault>;
}

/// A flush file that is open and locked.
#[derive(Debug)]
pub(crate) struct FlushFile {
    guard: FileGuard,
    path: PathBuf,
    /// A: whether this opening made the file, and nothing relies on it yet. Relaxed: one thread at
    /// a time opens a volume.
    is_new: AtomicBool,
}

impl FlushFile {
    /// Opens or creates the file, and locks it for as long as this lives. A new file is removed
    /// again unless room is reserved in it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut how = File::options();
        how.read(true).write(true);
        let (file, is_new) = match how.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = how.create_new(true).open(path);
                let made = made.map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => io::Error::other("the file's folder does not exist"),
                    _ => error,
                });
                (made?, true)
            }
            found => (found?, false),
        };
        if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(match error {
                rustix::io::Errno::WOULDBLOCK => io::Error::other("another server has the file"),
                error => error.into(),
            });
        }
        // A file that was replaced before it was locked is no longer the one at its path.
        let guard = FileGuard::new(file, path)?;
        Ok(Self { guard, path: path.to_owned(), is_new: AtomicBool::new(is_new) })
    }
}

impl Drop for FlushFile {
    fn drop(&mut self) {
        if self.is_new.load(Ordering::Relaxed) && self.guard.verify().is_ok() {
            // A failure leaves an empty file, which is as good as none.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Medium for FlushFile {
    fn read(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let n = match self.guard.file().read_at(into, at) {
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
        self.guard.file().write_all_at(data, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.guard.file().sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.guard.file().metadata()?.len())
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        self.is_new.store(false, Ordering::Relaxed);
        // If a file system can't allocate, a later write may lack room.
        match rustix::fs::fallocate(self.guard.file(), FallocateFlags::empty(), 0, size) {
            Err(rustix::io::Errno::OPNOTSUPP) if self.size()? < size => {
                self.guard.file().set_len(size)?
            }
            Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => {}
            Err(error) => {
                let why =
                    format!("no room for the {size} bytes of the file: {}", io::Error::from(error));
                return Err(io::Error::other(why));
            }
        }
        self.guard.grew(size);
        self.guard.file().sync_all()?;
        // The name is made durable, too.
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => File::open(".")?.sync_all(),
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn verify_descriptor(&self) -> Result<(), FileFault> {
        self.guard.verify_descriptor()
    }

    fn verify(&self) -> Result<(), FileFault> {
        self.guard.verify()
    }
}

/// Returns the bytes of a file with a ring of `ring` bytes.
pub(crate) fn size_with(ring: u64) -> u64 {
    RING + ring
}

/// The heads of a file.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    /// The newest head. `None`: no head is intact.
    pub(crate) newest: Option<FileHead>,
    /// Content of the file, in words.
    pub(crate) found: String,
}

/// Reads both heads. An error: it is another kind of file.
pub(crate) fn heads(medium: &dyn Medium) -> io::Result<Heads> {
    let mut blocks = [(); 2].map(|()| vec![0; HEAD as usize]);
    for (slot, block) in (0..).zip(&mut blocks) {
        medium.read(slot * HEAD, block)?;
    }
    let heads = blocks.iter().filter_map(|block| FileHead::decode(block));
    let newest = heads.filter(|head| head.ring > 0).max_by_key(|head| head.generation);
    let is_blank = |block: &Vec<u8>| block.iter().all(|byte| *byte == 0);
    let found = match newest {
        Some(FileHead { epoch: 0, .. }) => "has no server's flushes yet".to_owned(),
        Some(FileHead { epoch, .. }) => format!("has the flushes of the server of record {epoch}"),
        None if blocks.iter().all(is_blank) => "is new or empty".to_owned(),
        // A head may be torn, but not in its first sector.
        None if blocks.iter().all(|block| block.starts_with(MAGIC) || is_blank(block)) => {
            "has two damaged heads".to_owned()
        }
        None => return Err(io::Error::other("this is not a flush file; name another one")),
    };
    Ok(Heads { newest, found })
}

/// Reads the entries behind a head, up to the first one that is torn or another writer's. If that
/// one isn't the end, but was damaged after it was durable, reads those behind it, too.
pub(crate) fn entries(medium: &dyn Medium, head: FileHead) -> io::Result<FileContent> {
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
    let (size, has) = (size_with(head.ring), medium.size()?);
    let cut = (has < size).then_some((size, has));
    if behind.iter().any(|found| found.synced > at) {
        entries.extend(behind.into_iter().map(|found| found.entry));
    }
    Ok(FileContent { head, entries, cut })
}

/// An intact entry.
struct WholeEntry {
    entry: StoredChange,
    place: u64,
    synced: u64,
    /// Bytes of the entry, with its head.
    bytes: u64,
}

/// Reads the entry at a place, or at the same one of a later round. `None`: it is torn, of an older
/// round, or another writer's.
fn entry_at(medium: &dyn Medium, head: &FileHead, at: u64) -> io::Result<Option<WholeEntry>> {
    let mut all = vec![0; ENTRY];
    read(medium, head, at, &mut all)?;
    let Some(EntryHead { nonce, place, synced, stored, .. }) = entry_head(&all) else {
        return Ok(None);
    };
    let is_later = place.checked_sub(at).is_some_and(|by| by % head.ring == 0);
    let bytes = ENTRY as u64 + u64::from(stored);
    if nonce != head.nonce || !is_later || bytes > head.ring {
        return Ok(None);
    }
    all.resize(bytes as usize, 0);
    read(medium, head, at + ENTRY as u64, &mut all[ENTRY..])?;
    Ok(stored_entry(all).map(|entry| WholeEntry { entry, place, synced, bytes }))
}

/// Reads all entries at that place of the ring and behind it, also of later rounds, in order.
fn entries_behind(medium: &dyn Medium, head: &FileHead, from: u64) -> io::Result<Vec<WholeEntry>> {
    const PIECE: usize = 64 << 10;
    static ZEROES: [u8; PIECE] = [0; PIECE];
    let mut found = Vec::new();
    let mut bytes = vec![0; PIECE];
    let (mut next, end) = (from, head.start + head.ring);
    for at in (from..end).step_by(PIECE) {
        let bytes = &mut bytes[..PIECE.min((end - at) as usize)];
        read(medium, head, at, bytes)?;
        // Most of a file that was used little is zero.
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

/// Returns the pieces of the ring that `len` bytes from a place on occupy: offset in the file, and
/// length.
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

/// Writes a head in place of the older one, and syncs. Its generation must be the next one.
fn write_head(medium: &dyn Medium, head: &FileHead) -> io::Result<()> {
    medium.write(head.place(), &head.encode())?;
    medium.sync()
}

/// The two heads of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadPair {
    older: FileHead,
    pub(crate) newest: FileHead,
}

impl HeadPair {
    /// Writes another head in place of the older one, and syncs.
    fn replace(self, medium: &dyn Medium, head: FileHead) -> io::Result<Self> {
        let older = self.newest;
        let newest = FileHead { generation: older.generation + 1, ..head };
        write_head(medium, &newest)?;
        Ok(Self { older, newest })
    }
}

/// Writes a head into both places, one after the other, with generations behind its own. So damage
/// to one of them loses nothing.
pub(crate) fn write_heads(medium: &dyn Medium, head: FileHead) -> io::Result<HeadPair> {
    let before = HeadPair { older: head, newest: head };
    before.replace(medium, head)?.replace(medium, head)
}

/// The reason why a flush file isn't used, and the remedy.
#[derive(Clone, Debug)]
pub(crate) struct FileOut {
    /// The reason, in words.
    pub(crate) why: String,
    /// The remedy, as a sentence without its full stop.
    pub(crate) todo: &'static str,
    /// True if the file isn't used again before the volume is reopened.
    pub(crate) for_good: bool,
}

const BY_ITSELF: &str = "The server starts the file anew once the store has all changes";

impl FileOut {
    fn new(why: impl fmt::Display, todo: &'static str) -> Self {
        Self { why: why.to_string(), todo, for_good: false }
    }

    fn overwritten() -> Self {
        Self::new("its head was overwritten while in use", BY_ITSELF)
    }

    fn of_others() -> Self {
        let todo = "Restart the server with another flush_file";
        Self::new("another program's data is at the start of the file", todo)
    }

    pub(super) fn unrecorded() -> Self {
        let why = "the store refuses the record that the file is in use again";
        Self::new(why, BY_ITSELF)
    }

    /// Creates the reason for a failed sync. The system reports a failure once, so no later sync
    /// proves that earlier writes are durable.
    pub(super) fn failed(why: impl fmt::Display) -> Self {
        let todo = "Restart the server to use the file again, or name another flush_file";
        Self { for_good: true, ..Self::new(why, todo) }
    }
}

impl From<FileFault> for FileOut {
    fn from(fault: FileFault) -> Self {
        let todo = match fault {
            FileFault::Unlinked => "Restart the server, which makes a new one",
            FileFault::Truncated { .. } => BY_ITSELF,
            FileFault::NoAccess => {
                "Allow the server to open the file: the server then uses it again"
            }
            _ => "Put the file back in its place: the server then uses it again",
        };
        Self::new(fault, todo)
    }
}

/// Checks that the file is in its place, has its size, and has these heads.
pub(super) fn verify(medium: &dyn Medium, heads: &HeadPair) -> Result<(), FileOut> {
    medium.verify()?;
    for head in [&heads.older, &heads.newest] {
        let (mut found, written) = (vec![0; SAYS], head.encode());
        medium.read(head.place(), &mut found).map_err(FileOut::failed)?;
        if found != written[..SAYS] {
            // If the file was truncated between the two, that is the cause.
            medium.verify()?;
            let is_others = self::heads(medium).is_err();
            return Err(if is_others { FileOut::of_others() } else { FileOut::overwritten() });
        }
    }
    Ok(())
}

/// Entries to be appended.
#[derive(Debug)]
pub(super) struct Encoded {
    data: Vec<u8>,
    /// Number and place of each entry.
    pub(super) places: Vec<(u64, u64)>,
    /// An entry without blocks, and its place. It is written behind these once they are durable.
    mark: (u64, Vec<u8>),
}

impl Encoded {
    /// Encodes entries that begin at a place, up to which everything is durable.
    pub(super) fn new(
        entries: &VecDeque<LocalChange>,
        nonce: u128,
        at: u64,
        codec: &Codec,
    ) -> Self {
        let (mut data, mut places) = (Vec::new(), Vec::new());
        for entry in entries {
            let place = at + data.len() as u64;
            places.push((entry.index, place));
            data.extend_from_slice(&encode_entry(entry, nonce, (place, at), codec));
        }
        let behind = entries.back().map_or(0, |last| last.index + 1);
        let mark = LocalChange { index: behind, start: 0, len: 0, chunk: Chunk::Zero };
        let end = at + data.len() as u64;
        // The mark is in the next block, so that no damaged block takes the last entry and its
        // mark. The next entry is written there anyway.
        let place = end.next_multiple_of(BLOCK);
        let mark = (place, encode_entry(&mark, nonce, (place, end), codec));
        Self { data, places, mark }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.data.len() as u64
    }
}

/// Result of writing entries.
#[derive(Clone, Debug)]
pub(super) enum WriteOutcome {
    /// The entries are durable, in a file with these heads.
    There(HeadPair),
    /// The ring is full of entries that aren't in the store yet.
    Full,
    /// The file isn't what it was: nothing in it is relied on.
    Unfit(FileOut),
}

/// Writes entries, and syncs. `first` is the place of the first entry that isn't in the store.
pub(super) fn append(
    medium: &dyn Medium,
    mut heads: HeadPair,
    first: u64,
    at: u64,
    entries: &Encoded,
) -> io::Result<WriteOutcome> {
    // After a write, a truncated file would have its size again.
    if let Err(fault) = medium.verify_descriptor() {
        return Ok(WriteOutcome::Unfit(fault.into()));
    }
    let (end, head) = (at + entries.bytes(), heads.newest);
    if end - first > head.ring {
        return Ok(WriteOutcome::Full);
    }
    if end - head.start > head.ring {
        // They overwrite entries that a reader would begin with: from now on it begins behind them.
        heads = heads.replace(medium, FileHead { start: first, ..head })?;
    }
    write(medium, &head, at, &entries.data)?;
    medium.sync()?;
    // This comes after the sync: a flush is answered only if the next server finds the written
    // entries.
    if let Err(out) = verify(medium, &heads) {
        return Ok(WriteOutcome::Unfit(out));
    }
    // Mark: it becomes durable with the next sync, or when the system writes it.
    let (place, mark) = &entries.mark;
    if place + mark.len() as u64 - heads.newest.start <= head.ring {
        write(medium, &head, *place, mark)?;
    }
    Ok(WriteOutcome::There(heads))
}

/// Records in a head that the file durably has all changes up to `synced`, except those that the
/// store has.
pub(super) fn renew(medium: &dyn Medium, heads: HeadPair, synced: u64) -> io::Result<HeadPair> {
    heads.replace(medium, FileHead { synced, ..heads.newest })
}

/// Begins a file anew that wasn't what it was: all of its changes are in the store. Its entries
/// continue at `at`. `None`: it isn't in its place, or has foreign data in it.
pub(super) fn begin_again(
    medium: &dyn Medium,
    heads: &HeadPair,
    at: u64,
) -> io::Result<Option<HeadPair>> {
    let head = heads.newest;
    match medium.verify() {
        Err(FileFault::Truncated { .. }) => medium.reserve(size_with(head.ring))?,
        Err(_) => return Ok(None),
        Ok(()) => {}
    }
    let Ok(found) = self::heads(medium) else { return Ok(None) };
    let generation = found.newest.map_or(0, |newest| newest.generation).max(head.generation);
    let heads = write_heads(medium, FileHead { generation, start: at, ..head })?;
    Ok(verify(medium, &heads).is_ok().then_some(heads))
}

fn write(medium: &dyn Medium, head: &FileHead, place: u64, data: &[u8]) -> io::Result<()> {
    let mut rest = data;
    for (to, len) in pieces(head, place, data.len()) {
        let (now, later) = rest.split_at(len);
        if !now.is_empty() {
            medium.write(to, now)?;
        }
        rest = later;
    }
    Ok(())
}
