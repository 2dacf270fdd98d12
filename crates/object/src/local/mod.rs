//! Flushes in a file of this machine: changes are in the file when a flush is answered, and in the
//! store a while later.
//!
//! README.md in this folder has the protocol: what the file promises, when it is put into the store
//! after a crash, and when it is refused.
//!
//! The file consists of two heads, of which the newer one counts, and a ring of entries.

pub(crate) mod file;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use corewise_sync::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::format::{BLOCK, Chunk, Codec, OpeningId};
use file::{Encoded, HeadPair};
pub(crate) use file::{FileOut, FlushFile, Medium};

/// A change, with its number in the volume's whole history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalChange {
    pub(crate) index: u64,
    /// First block.
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) chunk: Chunk,
}

/// An entry as it is in the file: intact, and possibly encrypted.
#[derive(Clone, Debug)]
pub(crate) struct StoredChange {
    pub(crate) index: u64,
    pub(crate) len: u64,
    bytes: Bytes,
}

impl StoredChange {
    /// Returns true if it is a mark, which only says that all entries in front of it are durable.
    fn is_mark(&self) -> bool {
        self.len == 0
    }

    /// Decodes the change.
    pub(crate) fn entry(&self, codec: &Codec) -> Result<LocalChange, String> {
        decode_entry(self, codec).ok_or_else(|| format!("change {} is damaged", self.index))
    }
}

/// Content of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileContent {
    pub(crate) head: FileHead,
    /// Entries in order. Unless the file is damaged, the only gaps are changes that the store has.
    pub(crate) entries: Vec<StoredChange>,
    /// Former and present size in bytes, if the file was cut off.
    pub(crate) cut: Option<(u64, u64)>,
}

impl FileContent {
    /// Returns the number of changes, in words.
    pub(crate) fn changes(&self) -> String {
        match self.entries.iter().filter(|entry| !entry.is_mark()).count() {
            1 => "1 change".to_owned(),
            count => format!("{count} changes"),
        }
    }
}

/// Data of the store about the writer whose changes a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriterHistory {
    /// True if the volume has a writer of the head's epoch and nonce.
    pub(crate) known: bool,
    /// The next server that opened the volume, apart from those that replayed its file: its host,
    /// and the number of changes that it found in the store.
    pub(crate) followed: Option<(String, u64)>,
    /// Number of changes that are in the store now.
    pub(crate) through: u64,
}

/// Message about a leg whose flushes are given up.
pub(crate) const A_LEG: &str =
    "if the volume is a leg, its mirror copies it in full from a leg in sync";

/// Returns the message that says how to open a volume without the flushes of this opening.
pub(crate) fn accept_lost(of: OpeningId) -> String {
    format!(
        "Restore the file; to open the volume without the lost flushes, set accept_lost_flushes = \
         \"{of}\" ({A_LEG})"
    )
}

/// Changes of a file that have to be put into the store.
#[derive(Debug)]
pub(crate) struct ReplayPlan {
    /// Changes in order, without a gap.
    pub(crate) lacking: Vec<StoredChange>,
    /// The first lost change, if the operator gave up what is lost.
    pub(crate) given_up_from: Option<u64>,
}

/// Returns the changes that have to be put into the store, or why they can't be. `gives_up`: the
/// operator accepts that some are lost.
pub(crate) fn plan_replay(
    found: FileContent,
    says: &WriterHistory,
    gives_up: bool,
) -> Result<ReplayPlan, String> {
    if !says.known && !found.entries.is_empty() {
        return Err(format!(
            "the file has {} of another volume, flushed by its server {}, perhaps the only copy. \
             Keep the file for that volume, and name another one for this volume",
            found.changes(),
            found.head.id()
        ));
    }
    let through = says.followed.as_ref().map_or(says.through, |(_, through)| *through);
    let head = found.head;
    let mut lacking: Vec<StoredChange> =
        found.entries.into_iter().filter(|entry| entry.index > through).collect();
    let (mut next, mut gap) = (through + 1, None);
    let goes_on = |entry: &&StoredChange| {
        // A mark proves that all changes before its number had been there.
        let follows = if entry.is_mark() { entry.index <= next } else { entry.index == next };
        match follows {
            true => next += u64::from(!entry.is_mark()),
            false => gap = Some((next, entry.index - 1)),
        }
        follows
    };
    let whole = lacking.iter().take_while(goes_on).count();
    // The head may cover changes that no entry has.
    let is_last = says.known && says.followed.is_none();
    if gap.is_none() && is_last && next <= head.synced {
        gap = Some((next, head.synced));
    }
    let changes = lacking.iter().filter(|entry| !entry.is_mark());
    let bytes: u64 = changes.clone().map(|entry| entry.len * crate::format::BLOCK).sum();
    match (&says.followed, changes.count(), gap) {
        (Some((host, _)), changes @ 1.., _) => Err(format!(
            "the file has {changes} changes ({bytes} bytes) that were flushed and aren't in the \
             store. Since then {host} has opened the volume, so they can't overwrite what {host} \
             wrote. To give them up, delete the file"
        )),
        (_, _, Some((from, to))) if !gives_up => Err(format!(
            "the file is damaged: the changes from {from} to {to} are missing. {}",
            accept_lost(head.id())
        )),
        _ => {
            // Changes up to the lost one remain.
            lacking.truncate(whole);
            lacking.retain(|entry| !entry.is_mark());
            Ok(ReplayPlan { lacking, given_up_from: gap.map(|(from, _)| from) })
        }
    }
}

/// Pause between two checks of a file: while it has changes that the store lacks or isn't in use,
/// and otherwise.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);

/// The file while its volume is served.
#[derive(Debug)]
pub(crate) struct Local {
    medium: Arc<dyn Medium>,
    codec: Codec,
    /// L: is the lock; guards the changes that aren't in the file yet. Taken under the volume's
    /// lock.
    state: Mutex<LocalState>,
    /// Held while the file is written.
    writing: tokio::sync::Mutex<WriteState>,
    /// Wakes the task that watches the file.
    watch: Notify,
}

/// The use of the file for flushes. README.md says who may change it.
#[derive(Debug)]
enum FileUse {
    InUse,
    /// The file is out: flushes wait for the store.
    Out(FileOut),
    /// The file was begun anew, and gets all changes after some one. Flushes still wait for the
    /// store.
    Returning,
}

#[derive(Debug)]
struct LocalState {
    /// Changes that are neither in the file nor in the store, in order.
    waiting: VecDeque<LocalChange>,
    /// The last change that is durable in the file, and the last one in the store.
    synced: u64,
    stored: u64,
    file: FileUse,
}

#[derive(Debug)]
struct WriteState {
    heads: HeadPair,
    /// The place of the next entry.
    at: u64,
    /// Number and place of each entry in the file.
    there: VecDeque<(u64, u64)>,
}

impl Local {
    /// Begins a file anew with this head, with generations behind its own. Its changes must be in
    /// the store. Blocks.
    pub(crate) fn begin(
        medium: Arc<dyn Medium>,
        head: FileHead,
        codec: Codec,
    ) -> std::io::Result<Self> {
        let heads = file::write_heads(&*medium, head)?;
        file::verify(&*medium, &heads).map_err(|out| std::io::Error::other(out.why))?;
        let state =
            LocalState { waiting: VecDeque::new(), synced: 0, stored: 0, file: FileUse::InUse };
        let writing = WriteState { heads, at: 0, there: VecDeque::new() };
        Ok(Self {
            medium,
            codec,
            state: Mutex::new(state),
            writing: tokio::sync::Mutex::new(writing),
            watch: Notify::new(),
        })
    }

    /// Adds a change. Called in the order of changes, under the volume's lock.
    pub(crate) fn note(&self, entry: LocalChange) {
        let mut state = self.state.lock();
        if !matches!(state.file, FileUse::Out(_)) {
            state.waiting.push_back(entry);
        }
    }

    /// Records that the store has all changes up to `through`.
    pub(crate) fn stored(&self, through: u64) {
        let mut state = self.state.lock();
        state.stored = through.max(state.stored);
        while state.waiting.front().is_some_and(|entry| entry.index <= through) {
            state.waiting.pop_front();
        }
    }

    /// Waits until the file or the store has all changes up to that one. False: the file can't have
    /// them, so the store has to.
    pub(crate) async fn sync(self: &Arc<Self>, index: u64) -> bool {
        let itself = Arc::clone(self);
        // It completes even if the caller has given up: an entry is in the file, or still waits.
        tokio::spawn(async move { itself.write_until(index).await }).await.unwrap_or(false)
    }

    async fn write_until(&self, index: u64) -> bool {
        let mut writing = self.writing.lock().await;
        let (entries, stored) = {
            let mut state = self.state.lock();
            if !matches!(state.file, FileUse::InUse) {
                return state.stored >= index;
            }
            if state.stored.max(state.synced) >= index {
                return true;
            }
            // Changes that came meanwhile go with them.
            (std::mem::take(&mut state.waiting), state.stored)
        };
        let (medium, codec, heads, at) =
            (Arc::clone(&self.medium), self.codec.clone(), writing.heads, writing.at);
        while writing.there.front().is_some_and(|(index, _)| *index <= stored) {
            writing.there.pop_front();
        }
        let first = writing.there.front().map_or(at, |(_, place)| *place);
        let last = entries.back().map_or(index, |entry| entry.index);
        let write = move || {
            let encoded = Encoded::new(&entries, heads.newest.nonce, at, &codec);
            let written = file::append(&*medium, heads, first, at, &encoded);
            (entries, encoded, written)
        };
        let Ok((entries, encoded, written)) = tokio::task::spawn_blocking(write).await else {
            self.go_out(FileOut::failed("the file could not be written: the thread panicked"));
            return false;
        };
        match written {
            Ok(file::WriteOutcome::Full) => {
                // They precede those that came since.
                let mut state = self.state.lock();
                let stored = state.stored;
                for entry in entries.into_iter().rev().filter(|entry| entry.index > stored) {
                    state.waiting.push_front(entry);
                }
                false
            }
            Ok(file::WriteOutcome::There(heads)) => {
                (writing.heads, writing.at) = (heads, at + encoded.bytes());
                writing.there.extend(encoded.places);
                let mut state = self.state.lock();
                if state.synced <= state.stored {
                    self.watch.notify_one();
                }
                state.synced = last;
                true
            }
            Ok(file::WriteOutcome::Unfit(out)) => {
                self.go_out(out);
                false
            }
            Err(error) => {
                self.go_out(FileOut::failed(error));
                false
            }
        }
    }

    /// Takes the file out of use, as it is. Later flushes wait for the store.
    fn go_out(&self, out: FileOut) {
        let mut state = self.state.lock();
        // An entry in a displaced file isn't durable.
        state.synced = 0;
        state.waiting.clear();
        state.file = FileUse::Out(out);
        drop(state);
        self.watch.notify_one();
    }

    /// Returns why flushes wait for the store.
    pub(crate) fn fault(&self) -> Option<FileOut> {
        match &self.state.lock().file {
            FileUse::Out(out) => Some(out.clone()),
            FileUse::InUse | FileUse::Returning => None,
        }
    }

    /// Returns the file's name for people.
    pub(crate) fn name(&self) -> String {
        self.medium.name()
    }

    /// Waits until a check of the file is due. True: the pause has passed, and nothing else has
    /// happened.
    pub(crate) async fn is_due(&self) -> bool {
        let pause = {
            let state = self.state.lock();
            let is_idle = matches!(state.file, FileUse::InUse) && state.synced <= state.stored;
            if is_idle { IDLE } else { BUSY }
        };
        timeout(pause, self.watch.notified()).await.is_err()
    }

    /// Checks that the file is what it was, while it is in use. Flushes don't go to a changed file.
    /// `renews`: if the file has changes that the store lacks, its head gets the number up to which
    /// it has all.
    pub(crate) async fn look(&self, renews: bool) {
        let mut writing = self.writing.lock().await;
        let (synced, stored) = {
            let state = self.state.lock();
            if !matches!(state.file, FileUse::InUse) {
                return;
            }
            (state.synced, state.stored)
        };
        let (medium, heads) = (Arc::clone(&self.medium), writing.heads);
        let renews = renews && synced > stored.max(heads.newest.synced);
        let look = move || {
            file::verify(&*medium, &heads)?;
            match renews {
                true => file::renew(&*medium, heads, synced).map_err(FileOut::failed),
                false => Ok(heads),
            }
        };
        match tokio::task::spawn_blocking(look).await {
            Ok(Ok(heads)) => writing.heads = heads,
            Ok(Err(out)) => self.go_out(out),
            // The check panicked, and proves nothing.
            Err(_) => {}
        }
    }

    /// Begins a file anew that is out, if it is in its place and no other program writes to it. The
    /// store must have all flushed changes. False: it isn't, or not yet.
    pub(crate) async fn begin_again(&self) -> bool {
        let mut writing = self.writing.lock().await;
        let (medium, heads, at) = (Arc::clone(&self.medium), writing.heads, writing.at);
        let begin = move || file::begin_again(&*medium, &heads, at);
        match tokio::task::spawn_blocking(begin).await {
            Ok(Ok(Some(heads))) => {
                writing.heads = heads;
                writing.there.clear();
                true
            }
            Ok(Ok(None)) => false,
            Ok(Err(error)) => {
                self.go_out(FileOut::failed(error));
                false
            }
            Err(_) => false,
        }
    }

    /// Returns a file that was begun anew to a state in which it gets all later changes. Called
    /// under the volume's lock.
    pub(crate) fn resume(&self) {
        self.state.lock().file = FileUse::Returning;
    }

    /// Puts the file back into use: the store has all changes that it lacks, and a record that it
    /// may have others.
    pub(crate) fn returned(&self) {
        let mut state = self.state.lock();
        if matches!(state.file, FileUse::Returning) {
            state.file = FileUse::InUse;
        }
    }

    /// Keeps the file that was begun anew out, as the store doesn't take the record about it.
    pub(crate) fn stays_out(&self) {
        self.go_out(FileOut::unrecorded());
    }
}

/// Bytes of the file for each head. A write of a head may be torn, so there are two.
const HEAD: u64 = 4096;
/// Offset of the ring.
const RING: u64 = 2 * HEAD;
/// Bytes of an entry in front of its data.
const ENTRY: usize = 80;
/// Bytes of which each entry is a multiple.
const ALIGN: usize = 8;

const MAGIC: &[u8; 8] = b"CWlocal2";
/// The first bytes of an entry.
const MAGIC_ENTRY: [u8; 4] = *b"2lWC";
/// Used bytes of a head.
const SAYS: usize = 88;

/// The head of a file: the writer of its changes, and their beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileHead {
    /// Generation of the head. The greater one counts.
    pub(crate) generation: u64,
    /// Bytes of the ring.
    pub(crate) ring: u64,
    /// Place of the first entry. Places only grow; the ring has them modulo its size.
    pub(crate) start: u64,
    /// The writer of these changes. Epoch 0: no writer.
    pub(crate) epoch: u64,
    pub(crate) nonce: u128,
    /// Nonce by which a server opens the volume to put these changes into the store. By this, the
    /// file recognizes the server's record until it has heads of that server. 0: no server has
    /// tried.
    pub(crate) next: u128,
    /// The last durable change in the file when the head was written. 0: none.
    pub(crate) synced: u64,
}

impl FileHead {
    /// Returns the opening of the writer of these changes.
    pub(crate) fn id(&self) -> OpeningId {
        OpeningId::new(self.epoch, self.nonce)
    }

    /// Returns its offset in the file.
    fn place(&self) -> u64 {
        self.generation % 2 * HEAD
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD as usize);
        out.extend_from_slice(MAGIC);
        for word in [self.generation, self.ring, self.start, self.epoch] {
            out.put_u64_le(word);
        }
        out.put_u128_le(self.nonce);
        out.put_u128_le(self.next);
        out.put_u64_le(self.synced);
        out.put_u64_le(0);
        let sum = crc32fast::hash(&out[..SAYS - 8]);
        out[SAYS - 8..SAYS - 4].copy_from_slice(&sum.to_le_bytes());
        out.resize(HEAD as usize, 0);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let says = bytes.get(..SAYS)?;
        let word = |at: usize| Some(u64::from_le_bytes(says.get(at..at + 8)?.try_into().ok()?));
        let long = |at: usize| Some(u128::from_le_bytes(says.get(at..at + 16)?.try_into().ok()?));
        let sum = u32::from_le_bytes(says[SAYS - 8..SAYS - 4].try_into().ok()?);
        if says[..8] != *MAGIC || crc32fast::hash(&says[..SAYS - 8]) != sum {
            return None;
        }
        Some(Self {
            generation: word(8)?,
            ring: word(16)?,
            start: word(24)?,
            epoch: word(32)?,
            nonce: long(40)?,
            next: long(56)?,
            synced: word(72)?,
        })
    }
}

/// The head of an entry.
#[derive(Clone, Copy, Debug)]
struct EntryHead {
    sum: u32,
    nonce: u128,
    place: u64,
    /// Place up to which all was durable before this one was written.
    synced: u64,
    index: u64,
    start: u64,
    len: u64,
    zero: bool,
    /// Bytes of data behind it.
    stored: u32,
}

/// Encodes the entry for that place.
fn encode_entry(
    entry: &LocalChange,
    nonce: u128,
    (place, synced): (u64, u64),
    codec: &Codec,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(ENTRY + (entry.len * BLOCK) as usize);
    out.extend_from_slice(&MAGIC_ENTRY);
    out.put_u32_le(0);
    out.put_u128_le(nonce);
    for word in [place, synced, entry.index, entry.start, entry.len] {
        out.put_u64_le(word);
    }
    let (zero, data) = match &entry.chunk {
        Chunk::Zero => (1, Bytes::new()),
        Chunk::Data(data) => (0, codec.closed(&out[8..ENTRY - 16], data)),
    };
    out.put_u64_le(zero);
    out.put_u64_le(data.len() as u64);
    out.extend_from_slice(&data);
    debug_assert_eq!(out.len() % ALIGN, 0, "blocks, and what seals them");
    let sum = crc32fast::hash(&out[8..]);
    out[4..8].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Decodes the head of an entry. `None`: it is none.
fn entry_head(bytes: &[u8]) -> Option<EntryHead> {
    let bytes: &[u8; ENTRY] = bytes.try_into().ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if bytes[..4] != MAGIC_ENTRY {
        return None;
    }
    Some(EntryHead {
        sum: u32::from_le_bytes(bytes[4..8].try_into().ok()?),
        nonce: u128::from_le_bytes(bytes[8..24].try_into().ok()?),
        place: word(24)?,
        synced: word(32)?,
        index: word(40)?,
        start: word(48)?,
        len: word(56)?,
        zero: word(64)? == 1,
        stored: u32::try_from(word(72)?).ok()?,
    })
}

/// Decodes the entry of this head and data. `None`: it is torn.
fn stored_entry(bytes: Vec<u8>) -> Option<StoredChange> {
    let head = entry_head(bytes.get(..ENTRY)?)?;
    let is_whole = crc32fast::hash(&bytes[8..]) == head.sum;
    is_whole.then(|| StoredChange { index: head.index, len: head.len, bytes: bytes.into() })
}

/// Decodes the change of an entry. `None`: it can't be read.
fn decode_entry(stored: &StoredChange, codec: &Codec) -> Option<LocalChange> {
    let bytes = &stored.bytes;
    let head = entry_head(bytes.get(..ENTRY)?)?;
    let chunk = match head.zero {
        true => Chunk::Zero,
        false => {
            let data = codec.opened(&bytes[8..ENTRY - 16], &bytes.slice(ENTRY..))?;
            if data.len() as u64 != head.len.checked_mul(BLOCK)? {
                return None;
            }
            Chunk::Data(data)
        }
    };
    Some(LocalChange { index: head.index, start: head.start, len: head.len, chunk })
}
