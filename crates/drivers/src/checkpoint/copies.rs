//! The old content of blocks that changed since the newest checkpoint, as long as there is room.

use std::collections::HashMap;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, IoError, IoErrorKind, Request};
use corewise_sync::Mutex;

use super::record::together;

/// Number of blocks that are copied at once.
const AT_ONCE: usize = 16;

/// A device for the old content of blocks.
pub(super) struct Copies {
    device: Arc<dyn BlockDevice>,
    /// Bytes of a slot, as a power of two: those of a block.
    shift: u32,
    /// L: is the lock, held for a look at a block; guards the slots.
    index: Mutex<CopyIndex>,
}

/// The image whose content is kept.
#[derive(Default)]
struct CopyIndex {
    /// Name and epoch of the checkpoint, while its image can be read.
    of: Option<(String, u16)>,
    /// The slot of each block that was copied.
    slots: HashMap<usize, u64>,
    /// Epoch of the newest image, and the reason why it ended or the ones before it did.
    newest: u16,
    ended: String,
    older: String,
    /// Checkpoint whose image was lost, and why, until it is deleted or a newer one is taken.
    lost: Option<(String, String)>,
}

impl Copies {
    pub(super) fn new(device: Arc<dyn BlockDevice>, shift: u32) -> Self {
        let ended = "the copies of changed blocks ended with the server that made them. Take \
                     another checkpoint"
            .to_string();
        let index = CopyIndex { ended, ..CopyIndex::default() };
        Self { device, shift, index: Mutex::new(index) }
    }

    /// Returns the bytes in use, and the most.
    pub(super) fn used(&self) -> (u64, u64) {
        ((self.index.lock().slots.len() as u64) << self.shift, self.room() << self.shift)
    }

    /// Returns the number of slots.
    fn room(&self) -> u64 {
        self.device.geometry().size >> self.shift
    }

    /// Returns the checkpoint whose image can be read, with its epoch.
    pub(super) fn of(&self) -> Option<(String, u16)> {
        self.index.lock().of.clone()
    }

    /// Begins the image of a checkpoint; the former one ends.
    pub(super) fn begin(&self, name: &str, epoch: u16) {
        let mut index = self.index.lock();
        index.slots.clear();
        index.of = Some((name.to_string(), epoch));
        index.newest = epoch;
        index.older = format!("'{name}' is newer, and only the newest checkpoint can be read");
        index.lost = None;
    }

    /// Ends the image, if there is one. Returns the name of its checkpoint.
    pub(super) fn end(&self, why: impl Into<String>) -> Option<String> {
        self.index.lock().end(why)
    }

    /// Ends the image because its content can't be kept. Returns the name of its checkpoint.
    pub(super) fn lose(&self, why: &str) -> Option<String> {
        let mut index = self.index.lock();
        let name = index.end(why)?;
        index.lost = Some((name.clone(), why.to_string()));
        Some(name)
    }

    /// Returns the newest checkpoint if its image was lost, and why.
    pub(super) fn lost(&self) -> Option<(String, String)> {
        self.index.lock().lost.clone()
    }

    /// Forgets a checkpoint that was deleted.
    pub(super) fn forget(&self, name: &str) {
        let mut index = self.index.lock();
        index.lost.take_if(|(lost, _)| lost == name);
    }

    /// Copies blocks of `below`: their numbers and bytes. Returns the reason if that fails. The
    /// keeper alone calls it. May block.
    pub(super) fn copy(
        &self,
        below: &dyn BlockDevice,
        blocks: &[(usize, std::ops::Range<u64>)],
    ) -> Result<(), String> {
        for some in blocks.chunks(AT_ONCE) {
            let used = self.index.lock().slots.len() as u64;
            if used + some.len() as u64 > self.room() {
                let size = self.room() << self.shift;
                return Err(format!(
                    "{size} bytes of copies were used up. Give the copies more room, or read the \
                     checkpoint sooner"
                ));
            }
            let reads = some
                .iter()
                .map(|(_, bytes)| Request::read(bytes.start, (bytes.end - bytes.start) as usize));
            let mut writes = Vec::new();
            for (n, done) in together(below, reads).into_iter().enumerate() {
                let data = done.into_data().map_err(|e| format!("a block can't be read: {e}"))?;
                writes.push(Request::write((used + n as u64) << self.shift, data));
            }
            for done in together(&*self.device, writes.into_iter()) {
                done.result.map_err(|e| format!("a copy can't be written: {e}"))?;
            }
            let mut index = self.index.lock();
            let slots = some.iter().zip(used..).map(|((block, _), slot)| (*block, slot));
            index.slots.extend(slots);
        }
        Ok(())
    }

    /// Returns the device and the place of a copied block, for the image of this epoch.
    pub(super) fn place(
        &self,
        epoch: u16,
        block: usize,
    ) -> Result<(&Arc<dyn BlockDevice>, u64), IoError> {
        let index = self.index.lock();
        match (&index.of, index.slots.get(&block)) {
            (Some((_, of)), Some(slot)) if *of == epoch => Ok((&self.device, slot << self.shift)),
            _ => Err(index.ended(epoch)),
        }
    }

    /// Checks that the image of this epoch hasn't ended.
    pub(super) fn check(&self, epoch: u16) -> Result<(), IoError> {
        let index = self.index.lock();
        match &index.of {
            Some((_, of)) if *of == epoch => Ok(()),
            _ => Err(index.ended(epoch)),
        }
    }
}

impl CopyIndex {
    fn end(&mut self, why: impl Into<String>) -> Option<String> {
        let (name, _) = self.of.take()?;
        self.slots = HashMap::new();
        self.ended = why.into();
        Some(name)
    }

    /// Returns the error of a read of the image of this epoch, which has ended. The device itself
    /// is there, so this isn't `Gone`: clients would wait for it.
    fn ended(&self, epoch: u16) -> IoError {
        let why = if epoch < self.newest { &self.older } else { &self.ended };
        let why = format!("the checkpoint can't be read any more: {why}");
        IoError::with(IoErrorKind::Io(libc::EIO), why)
    }
}
