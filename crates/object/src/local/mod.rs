//! Flushes in a file of this machine: what was written is in the file when a flush is answered, and in the store a while later.
//!
//! README.md in this folder has the protocol: what the file promises, when it is put into the store after a crash, and when it is
//! refused.

mod file;
mod format;
mod opening;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use corewise_sync::Mutex;

use crate::batch::Chunk;
use crate::codec::Codec;

use file::Encoded;
pub(crate) use file::{FlushFile, Medium};
pub(crate) use format::FileHead;
pub(crate) use opening::open;
#[cfg(test)]
pub(crate) use opening::ring;

/// A change, with its number in the volume's whole history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u64,
    /// In blocks.
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) chunk: Chunk,
}

/// An entry as it lies in the file: whole, and perhaps encrypted.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) index: u64,
    pub(crate) len: u64,
    bytes: Bytes,
}

impl Stored {
    /// Whether it only says that all entries in front of it are there for good.
    fn is_mark(&self) -> bool {
        self.len == 0
    }

    /// What it says.
    pub(crate) fn entry(&self, codec: &Codec) -> Result<Entry, String> {
        format::decode(self, codec)
            .ok_or_else(|| format!("its change {} can't be read: it is damaged", self.index))
    }
}

/// What a file has.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) head: FileHead,
    /// In order, without a gap but for changes that the store has, unless the file is damaged.
    pub(crate) entries: Vec<Stored>,
    /// Bytes that the file had, and has, where it is shorter than it was.
    pub(crate) cut: Option<(u64, u64)>,
}

/// What the store says of the writer whose changes a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Says {
    /// The volume has a writer of the head's epoch and nonce.
    pub(crate) known: bool,
    /// The server that opened the volume after it and those that put its file into the store: its host, and how many changes it
    /// found in the store.
    pub(crate) followed: Option<(String, u64)>,
    /// Changes that are in the store now.
    pub(crate) through: u64,
}

/// How an operator opens a volume without the flushes of this epoch, for messages.
fn accept_lost(epoch: u64) -> String {
    format!(
        "Put back what the file was; to open the volume without what is lost, set accept_lost_flushes = {epoch}"
    )
}

/// The changes that have to be put into the store, or why they can't be. `gives_up`: the operator accepts that some are lost.
pub(crate) fn judge(found: Found, says: &Says, gives_up: bool) -> Result<Vec<Stored>, String> {
    if !says.known && !found.entries.is_empty() {
        return Err(format!(
            "it has {} changes of another volume; name another file, or delete it if they aren't needed",
            found.entries.len()
        ));
    }
    let through = says.followed.as_ref().map_or(says.through, |(_, through)| *through);
    let mut lacking: Vec<Stored> =
        found.entries.into_iter().filter(|entry| entry.index > through).collect();
    let (mut next, mut gap) = (through + 1, None);
    let goes_on = |entry: &&Stored| {
        // A mark says that all in front of its number had been there.
        let follows = if entry.is_mark() { entry.index <= next } else { entry.index == next };
        match follows {
            true => next += u64::from(!entry.is_mark()),
            false => gap = Some((next, entry.index - 1)),
        }
        follows
    };
    let whole = lacking.iter().take_while(goes_on).count();
    let changes = lacking.iter().filter(|entry| !entry.is_mark());
    let bytes: u64 = changes.clone().map(|entry| entry.len * crate::format::BLOCK).sum();
    match (&says.followed, changes.count(), gap) {
        (Some((host, _)), changes @ 1.., _) => Err(format!(
            "it has {changes} changes ({bytes} bytes) that were flushed and aren't in the store, and since then {host} has opened the volume: they \
             can't be put over what that one wrote. To give them up, delete the file"
        )),
        (_, _, Some((from, to))) if !gives_up => Err(format!(
            "it is damaged: it lacks the changes from {from} to {to}. {}",
            accept_lost(found.head.epoch)
        )),
        _ => {
            // Up to what is lost.
            lacking.truncate(whole);
            lacking.retain(|entry| !entry.is_mark());
            Ok(lacking)
        }
    }
}

/// The file while its volume is served.
#[derive(Debug)]
pub(crate) struct Local {
    medium: Arc<dyn Medium>,
    codec: Codec,
    /// L: is the lock; guards what isn't in the file yet. Taken under the volume's.
    state: Mutex<State>,
    /// Held while the file is written.
    writing: tokio::sync::Mutex<Writing>,
}

#[derive(Debug, Default)]
struct State {
    /// Changes that are neither in the file nor in the store, in order.
    waiting: VecDeque<Entry>,
    /// The last change that is in the file for good, and the last one in the store.
    synced: u64,
    stored: u64,
    /// The file failed: it isn't used any more.
    broken: bool,
}

#[derive(Debug)]
struct Writing {
    head: FileHead,
    /// The place of the next entry.
    at: u64,
    /// Each entry that is there: its number and place.
    there: VecDeque<(u64, u64)>,
}

impl Local {
    /// Begins a file anew with this head, behind those of its generation. Its changes must be in the store. Blocks.
    pub(crate) fn begin(
        medium: Arc<dyn Medium>,
        head: FileHead,
        codec: Codec,
    ) -> std::io::Result<Self> {
        let head = file::write_heads(&*medium, head)?;
        Ok(Self {
            medium,
            codec,
            state: Mutex::new(State::default()),
            writing: tokio::sync::Mutex::new(Writing { head, at: 0, there: VecDeque::new() }),
        })
    }

    /// A change was made. In their order: called under the volume's lock.
    pub(crate) fn note(&self, entry: Entry) {
        let mut state = self.state.lock();
        if !state.broken {
            state.waiting.push_back(entry);
        }
    }

    /// The store has all changes up to that one.
    pub(crate) fn stored(&self, through: u64) {
        let mut state = self.state.lock();
        state.stored = through.max(state.stored);
        while state.waiting.front().is_some_and(|entry| entry.index <= through) {
            state.waiting.pop_front();
        }
    }

    /// Waits until the file or the store has all changes up to that one. False: the file can't have them, and the store has to.
    pub(crate) async fn sync(self: &Arc<Self>, index: u64) -> bool {
        let itself = Arc::clone(self);
        // It goes on if nobody waits any more: an entry is in the file, or still waits.
        tokio::spawn(async move { itself.write_until(index).await }).await.unwrap_or(false)
    }

    async fn write_until(&self, index: u64) -> bool {
        let mut writing = self.writing.lock().await;
        let (entries, stored) = {
            let mut state = self.state.lock();
            if state.stored.max(state.synced) >= index {
                return true;
            }
            if state.broken {
                return false;
            }
            // Those that came meanwhile go with them.
            (std::mem::take(&mut state.waiting), state.stored)
        };
        let (medium, codec, head, at) =
            (Arc::clone(&self.medium), self.codec.clone(), writing.head, writing.at);
        while writing.there.front().is_some_and(|(index, _)| *index <= stored) {
            writing.there.pop_front();
        }
        let first = writing.there.front().map_or(at, |(_, place)| *place);
        let last = entries.back().map_or(index, |entry| entry.index);
        let write = move || {
            let encoded = Encoded::new(&entries, head.nonce, at, &codec);
            let written = file::append(&*medium, head, first, at, &encoded);
            (entries, encoded, written)
        };
        let Ok((entries, encoded, written)) = tokio::task::spawn_blocking(write).await else {
            self.give_up("it panicked");
            return false;
        };
        match written {
            Ok(file::Appended::Full) => {
                // In front of those that came since.
                let mut state = self.state.lock();
                let stored = state.stored;
                for entry in entries.into_iter().rev().filter(|entry| entry.index > stored) {
                    state.waiting.push_front(entry);
                }
                false
            }
            Ok(file::Appended::There(head)) => {
                (writing.head, writing.at) = (head, at + encoded.bytes());
                writing.there.extend(encoded.places);
                self.state.lock().synced = last;
                true
            }
            Err(error) => {
                self.give_up(&error.to_string());
                false
            }
        }
    }

    /// The file is left as it is: what it has is right, and what comes goes to the store.
    fn give_up(&self, why: &str) {
        let mut state = self.state.lock();
        state.broken = true;
        state.waiting.clear();
        tracing::error!(why, "the file of flushes failed: flushes wait for the store from now on");
    }
}
