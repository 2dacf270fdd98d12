//! `checkpoint`: records which blocks of a device changed since named points in time, and can show
//! the device as it was then. `README.md` in this folder has the protocol.

mod copies;
mod format;
mod image;
mod keeper;
pub(crate) mod map;
mod record;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, FreezeGuard, Geometry, Info, IoError,
    IoErrorKind, Started,
};
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::panics::caught;
use corewise_sync::time::wall;
use corewise_sync::{SpinLock, context};
use corewise_workqueue::{EndNotice, Workqueue};

use crate::below::{StackError, pass_on};
use copies::Copies;
use format::{Entry, FoundPage, GROUP, GROUPS, Head, MOST_CHECKPOINTS, PAGE_BLOCKS};
pub use image::CheckpointImage;
use keeper::Keeper;
use map::ChangeMap;
use record::Record;

/// Flag of the driver's word: the old content of blocks is copied.
const COPYING: u32 = 1 << 16;

/// Largest epoch.
const LAST_EPOCH: u16 = u16::MAX - 1;

/// Most bytes of one discard or write-zeroes: it marks each of its blocks in one step.
const MOST_AT_ONCE: u64 = 1 << 30;

/// Most blocks that one question about changes looks at.
const MOST_BLOCKS: usize = 1 << 20;

/// The options of a [`CheckpointDriver`].
#[derive(Clone)]
#[non_exhaustive]
pub struct CheckpointOptions {
    block: u32,
    copies: Option<Arc<dyn BlockDevice>>,
    observer: Option<CheckpointObserver>,
}

/// A function that gets the events of a driver, on a worker; it may block.
type CheckpointObserver = Arc<dyn Fn(&CheckpointEvent) + Send + Sync>;

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl CheckpointOptions {
    /// Returns the defaults: blocks of 64 KiB, and no copies.
    pub fn new() -> Self {
        Self { block: 64 << 10, copies: None, observer: None }
    }

    /// Sets the bytes of a block: a power of two from 4 KiB to 16 MiB.
    #[must_use]
    pub fn block(mut self, block: u32) -> Self {
        self.block = block;
        self
    }

    /// Sets the device for the old content of changed blocks, whose size is the limit. Its content
    /// is of no use later.
    #[must_use]
    pub fn copies(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.copies = Some(device);
        self
    }

    /// Sets a function that gets the events, on a worker. It may block.
    #[must_use]
    pub fn observer(mut self, f: impl Fn(&CheckpointEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(f));
        self
    }
}

/// An event of a [`CheckpointDriver`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointEvent {
    /// The image of a checkpoint can't be read any more, though the checkpoint is the newest.
    ImageEnded {
        /// Name of the checkpoint.
        checkpoint: String,
        /// The reason, in words.
        why: String,
    },
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Its name.
    pub name: String,
    /// Time when it was taken, since 1970, in whole seconds.
    pub taken: Duration,
    /// Bytes of the blocks that may have changed since.
    pub changed: u64,
    /// True if the device can be read as it was then.
    pub has_image: bool,
}

/// The state of a [`CheckpointDriver`], without its checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointStatus {
    /// Number of checkpoints.
    pub checkpoints: usize,
    /// Bytes that would count as changed after a crash now, whether they are or not.
    pub open: u64,
    /// Bytes of copies in use.
    pub copied: u64,
    /// Most bytes of copies; 0 without any.
    pub room: u64,
    /// Newest checkpoint, if its image was [lost](CheckpointEvent::ImageEnded), and why.
    pub lost: Option<(String, String)>,
}

/// A device that knows which of its blocks changed since its checkpoints.
///
/// It passes all requests on. A record on a device of its own survives crashes: it may name too
/// many blocks then, never too few. While there is no checkpoint, a request costs one load more.
pub struct CheckpointDriver {
    state: Arc<CheckpointState>,
    /// The notice of the end of the workers, for the keeper.
    _notice: EndNotice,
}

struct CheckpointState {
    below: Arc<dyn BlockDevice>,
    geometry: Geometry,
    map: ChangeMap,
    record: Record,
    copies: Option<Copies>,
    /// A: the epoch in which changes are recorded, 0 for none, and COPYING. It changes while no
    /// change is in flight, except to 0 and to fewer flags. Acquire and Release: the map's words
    /// order the rest.
    word: AtomicU32,
    /// L: is the lock, held for a moment; guards the checkpoints, for readers that can't wait for
    /// the keeper.
    entries: SpinLock<Vec<Entry>>,
    keeper: Keeper,
}

impl CheckpointDriver {
    /// Returns the size of the device that a record needs, for a device of `size` bytes in blocks
    /// of `block` bytes.
    pub fn record_size(size: u64, block: u32) -> u64 {
        record::needed(size, block.trailing_zeros())
    }

    /// Opens the driver over `below`, with its record on the device `record`. A record of zeroes is
    /// a new one. Workers of the queue [below](Workqueue::below) `wq` keep it. Returns the faults
    /// of the record too, in words: what they concern counts as changed. May block for as long as
    /// reading the record does.
    ///
    /// # Errors
    /// If the block size of the options is out of range or below that of the device. If the record
    /// is too small, read-only, damaged in both heads, holds other data, has other blocks, or
    /// belongs to a larger device. If it can't be read or written.
    pub fn open(
        below: Arc<dyn BlockDevice>,
        record: Arc<dyn BlockDevice>,
        options: CheckpointOptions,
        wq: &Workqueue,
    ) -> Result<(Self, Vec<String>), StackError> {
        let (state, faults) = CheckpointState::open(below, record, options, wq)?;
        let told = Arc::downgrade(&state);
        let notice = state.keeper.queue.on_end(move || {
            if let Some(state) = told.upgrade() {
                state.keeper.workers_are_gone();
            }
        });
        Ok((Self { state, _notice: notice }, faults))
    }

    /// Takes a checkpoint: a point in time, which is durable once this returns. Without a name, its
    /// number becomes its name. Changes until now are before it. `frozen` is of the queue over this
    /// driver, and no request is in flight there. If there is room for copies, the device can be
    /// read as it is now, until the next checkpoint. May block.
    ///
    /// # Errors
    /// `InvalidInput` if the name is no name, or taken; `NoSpace` if there are 48 checkpoints, or
    /// there were too many in the life of the record. If the device below can't be flushed, or the
    /// record can't be written. Then there is no such checkpoint, at least until a crash.
    pub fn take(&self, name: Option<&str>, frozen: &FreezeGuard) -> Result<Checkpoint, IoError> {
        let _ = frozen;
        context::might_block("CheckpointDriver::take");
        self.state.take(name)
    }

    /// Deletes a checkpoint. With the last one, recording ends. May block.
    ///
    /// # Errors
    /// `InvalidInput` if there is none of that name. If the record can't be written.
    pub fn delete(&self, name: &str) -> Result<(), IoError> {
        context::might_block("CheckpointDriver::delete");
        self.state.delete(name)
    }

    /// Returns the checkpoints, the oldest first. It looks at each block.
    pub fn list(&self) -> Vec<Checkpoint> {
        self.state.list()
    }

    /// Returns the names of the checkpoints, the oldest first. Any context.
    pub fn names(&self) -> Vec<String> {
        self.state.entries.lock().iter().map(|one| one.name.clone()).collect()
    }

    /// Returns which bytes from `offset` on may have changed since a checkpoint: at most `most`
    /// stretches, each with its length, and true for changed ones. They end at `offset + len`, or
    /// before it: one call looks at a million blocks at most. `None` if there is no such
    /// checkpoint. Any context.
    ///
    /// # Panics
    /// If the range reaches beyond the device.
    pub fn changed(
        &self,
        name: &str,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Option<Vec<(u64, bool)>> {
        let epoch = self.state.epoch_of(name)?;
        Some(self.state.changed(epoch, offset, len, most))
    }

    /// Returns the device as it was at a checkpoint, for a queue of its own. `wq` and the record
    /// must outlive it. Any context.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such checkpoint; `Io` with the reason if it can't be read.
    pub fn image(&self, name: &str) -> Result<CheckpointImage, IoError> {
        let state = &self.state;
        let epoch = state.epoch_of(name).ok_or_else(|| unknown(name))?;
        state.copies()?.check(epoch)?;
        Ok(CheckpointImage::new(Arc::clone(state), epoch))
    }

    /// Returns the state. May block for a moment.
    pub fn status(&self) -> CheckpointStatus {
        let state = &self.state;
        let guard = state.keeper.state.lock();
        let (copied, room) = state.copies.as_ref().map_or((0, 0), Copies::used);
        CheckpointStatus {
            checkpoints: guard.head.checkpoints.len(),
            open: guard.open_groups() * GROUP as u64 * u64::from(state.keeper.options.block),
            copied,
            room,
            lost: state.copies.as_ref().and_then(Copies::lost),
        }
    }

    /// Makes the record exact, so that a kill costs nothing. Call it when the queue over this
    /// driver has been drained, before the record's device closes, and before the worker pools are
    /// shut down. May block.
    #[track_caller]
    pub fn settle(&self) {
        self.state.keeper.settle();
    }
}

fn unknown(name: &str) -> IoError {
    IoError::with(IoErrorKind::InvalidInput, format!("there is no checkpoint '{name}'"))
}

impl CheckpointState {
    fn open(
        below: Arc<dyn BlockDevice>,
        device: Arc<dyn BlockDevice>,
        options: CheckpointOptions,
        wq: &Workqueue,
    ) -> Result<(Arc<Self>, Vec<String>), StackError> {
        let geometry = below.geometry();
        let block = options.block;
        if !block.is_power_of_two()
            || !(4 << 10..=16 << 20).contains(&block)
            || block < geometry.block_size
        {
            return Err(StackError::new(format!(
                "blocks of {block} bytes: the size must be a power of two from 4 KiB to 16 MiB, \
                 and not below the {} bytes of a block of '{}'",
                geometry.block_size,
                below.name()
            )));
        }
        let (size, shift) = (geometry.size, block.trailing_zeros());
        let record = Record::new(Arc::clone(&device))?;
        let need = record::needed(size, shift);
        if record.size() < need {
            return Err(StackError::new(format!(
                "the record '{}' has {} bytes, and {need} are needed",
                device.name(),
                record.size()
            )));
        }
        let mut faults = Vec::new();
        let (found, damaged) = record.read_head()?;
        if damaged {
            faults.push(
                "one of the two heads of the record is damaged; the other one is used".into(),
            );
        }
        let had = found.as_ref().map_or(size, |head| head.size);
        let mut head = found.unwrap_or_else(|| Head {
            id: RandomState::new().build_hasher().finish(),
            shift,
            ..Head::default()
        });
        if head.shift != shift {
            return Err(StackError::new(format!(
                "the record '{}' has blocks of {} bytes, not {block}",
                device.name(),
                1u64 << head.shift
            )));
        }
        if had > size {
            return Err(StackError::new(format!(
                "the record '{}' is that of a device of {had} bytes, and '{}' has {size}. Use the \
                 record that belongs to this device, or remove it and begin with a full backup",
                device.name(),
                below.name()
            )));
        }
        let map = ChangeMap::new(size, shift);
        // Without a checkpoint, the tail may be missing: the first start was cut off before it.
        let is_whole =
            head.checkpoints.is_empty() || record.has_tail(head.id, record::pages(had, shift))?;
        if !is_whole {
            faults.push(
                "the end of the record is missing: all blocks that it lacks count as changed"
                    .into(),
            );
        }
        let mut repaired = read_map(&map, &record, &head, is_whole, &mut faults)?;
        let was_outdated = below.is_outdated();
        if had < size || was_outdated {
            let from = if was_outdated { 0 } else { map.of(had, size - had).start };
            map.mark(from..map.blocks(), head.epoch);
            repaired.extend(from / PAGE_BLOCKS..map.pages());
            repaired.sort_unstable();
            repaired.dedup();
        }
        // A head that was lost may have begun a later epoch: its number is used up.
        head.epoch = head.epoch.max(map.newest());
        (head.size, head.number) = (size, head.number + 1);
        let recording = if head.checkpoints.is_empty() { 0 } else { u32::from(head.epoch) };
        let copies = options.copies.clone().map(|device| Copies::new(device, shift));
        let geometry = Geometry {
            max_discard: geometry.max_discard.min(MOST_AT_ONCE),
            max_write_zeroes: geometry.max_write_zeroes.min(MOST_AT_ONCE),
            ..geometry
        };
        let state = Arc::new_cyclic(|weak: &Weak<Self>| Self {
            below,
            geometry,
            map,
            record,
            copies,
            word: AtomicU32::new(recording),
            entries: SpinLock::new(head.checkpoints.clone()),
            keeper: Keeper::new(head, options, wq, weak),
        });
        let begun = state.begin(&repaired);
        begun.map_err(|error| {
            let why = format!("the record '{}' can't be written: {error}", device.name());
            StackError::new(why)
        })?;
        Ok((state, faults))
    }

    /// Writes the record as it was found, with these pages repaired.
    fn begin(&self, repaired: &[usize]) -> Result<(), IoError> {
        let head = self.keeper.state.lock().head.clone();
        // Without a checkpoint, the head comes first: a record of another byte and no head is
        // refused. Else pages come first: the head says that they are those of the larger device.
        let is_first = head.checkpoints.is_empty();
        if is_first {
            self.record.write_head(&head)?;
        }
        self.write_closed(repaired)?;
        self.record.write_tail(head.id, self.map.pages())?;
        if is_first { Ok(()) } else { self.record.write_head(&head) }
    }

    fn size(&self) -> u64 {
        self.geometry.size
    }

    /// Returns the epoch in which changes are recorded, 0 for none, and whether blocks are copied
    /// first.
    fn mode(&self) -> (u16, bool) {
        let word = self.word.load(Ordering::Acquire);
        (word as u16, word & COPYING != 0)
    }

    fn stop_copying(&self) {
        self.word.fetch_and(!COPYING, Ordering::Release);
    }

    fn epoch_of(&self, name: &str) -> Option<u16> {
        self.entries.lock().iter().find(|one| one.name == name).map(|one| one.epoch)
    }

    fn copies(&self) -> Result<&Copies, IoError> {
        self.copies.as_ref().ok_or_else(|| {
            let why = "the old content of blocks isn't kept: the driver has no room for copies";
            IoError::with(IoErrorKind::Io(libc::EIO), why)
        })
    }

    fn change(&self, rq: Started) {
        let (epoch, copying) = self.mode();
        let blocks = self.map.of(rq.offset(), rq.len());
        if epoch == 0 || self.map.enter(blocks, epoch, copying) {
            let offset = rq.offset();
            pass_on(&*self.below, rq, offset);
        } else {
            self.keeper.park(rq);
        }
    }

    fn take(&self, name: Option<&str>) -> Result<Checkpoint, IoError> {
        let refuse = |kind, why: String| Err(IoError::with(kind, why));
        let mut guard = self.keeper.state.lock();
        let head = &mut guard.head;
        let number = (u32::from(head.epoch) + 1).to_string();
        let name = name.unwrap_or(&number);
        if let Some(why) = format::bad_name(name) {
            return refuse(IoErrorKind::InvalidInput, why);
        }
        if head.checkpoints.iter().any(|one| one.name == name) {
            let why =
                format!("there is a checkpoint '{name}' already: delete it, or use another name");
            return refuse(IoErrorKind::InvalidInput, why);
        }
        if head.checkpoints.len() >= MOST_CHECKPOINTS {
            let why = format!("there are {MOST_CHECKPOINTS} checkpoints, the most: delete one");
            return refuse(IoErrorKind::NoSpace, why);
        }
        if head.epoch >= LAST_EPOCH {
            let why = format!(
                "the record has counted {LAST_EPOCH} checkpoints, the most in its life: remove the \
                 record, and begin with a full backup"
            );
            return refuse(IoErrorKind::NoSpace, why);
        }
        if self.geometry.can_flush {
            self.below.flush()?;
        }
        // A head that fails may be on disk all the same: the epoch and the number are used up.
        head.epoch += 1;
        head.number += 1;
        let (epoch, taken) = (head.epoch, Duration::from_secs(wall().as_secs()));
        head.checkpoints.push(Entry { name: name.to_string(), epoch, taken });
        let written = self.record.write_head(head);
        if written.is_err() {
            let _ = head.checkpoints.pop();
        }
        let copying = match (&written, &self.copies) {
            (Ok(()), Some(copies)) => {
                copies.begin(name, epoch);
                COPYING
            }
            (Err(_), Some(copies)) => {
                copies.end("taking a later checkpoint failed");
                0
            }
            _ => 0,
        };
        self.word.store(u32::from(epoch) | copying, Ordering::Release);
        written?;
        self.entries.lock().clone_from(&guard.head.checkpoints);
        Ok(Checkpoint { name: name.to_string(), taken, changed: 0, has_image: copying != 0 })
    }

    fn delete(&self, name: &str) -> Result<(), IoError> {
        let mut guard = self.keeper.state.lock();
        let head = &mut guard.head;
        let Some(at) = head.checkpoints.iter().position(|one| one.name == name) else {
            return Err(unknown(name));
        };
        if let Some(copies) = self.copies.as_ref() {
            if copies.of().is_some_and(|(of, _)| of == name) {
                self.stop_copying();
                copies.end(format!("the checkpoint '{name}' was deleted"));
            }
        }
        let removed = head.checkpoints.remove(at);
        head.number += 1;
        if let Err(error) = self.record.write_head(head) {
            // It may be there or not: what it needs is recorded further on.
            head.checkpoints.insert(at, removed);
            return Err(error);
        }
        if head.checkpoints.is_empty() {
            self.word.store(0, Ordering::Release);
        }
        if let Some(copies) = &self.copies {
            copies.forget(name);
        }
        self.entries.lock().retain(|one| one.name != name);
        Ok(())
    }

    fn list(&self) -> Vec<Checkpoint> {
        let entries = self.entries.lock().clone();
        let of = self.copies.as_ref().and_then(|copies| copies.of());
        let one = |entry: Entry| {
            let changed = (0..self.map.blocks())
                .filter(|&n| self.map.has_changed(n, entry.epoch))
                .map(|n| self.map.bytes(n..n + 1, self.size()))
                .map(|bytes| bytes.end - bytes.start)
                .sum();
            let has_image = of.as_ref().is_some_and(|(_, epoch)| *epoch == entry.epoch);
            Checkpoint { name: entry.name, taken: entry.taken, changed, has_image }
        };
        entries.into_iter().map(one).collect()
    }

    fn changed(&self, epoch: u16, offset: u64, len: u64, most: usize) -> Vec<(u64, bool)> {
        let mut blocks = self.map.of(offset, len);
        assert!(blocks.end <= self.map.blocks(), "the range ends within the device");
        blocks.end = blocks.end.min(blocks.start + MOST_BLOCKS);
        let (mut found, mut at, mut block) = (Vec::new(), offset, blocks.start);
        while block < blocks.end && found.len() < most {
            let (end, changed) = self.map.stretch(block, blocks.end, epoch);
            let until = self.map.bytes(0..end, self.size()).end.min(offset + len);
            found.push((until - at, changed));
            (at, block) = (until, end);
        }
        found
    }

    fn tell(&self, event: &CheckpointEvent) {
        let CheckpointEvent::ImageEnded { checkpoint, why } = event;
        tracing::warn!(%checkpoint, %why, "a checkpoint can't be read any more");
        let Some(observer) = &self.keeper.options.observer else { return };
        if caught(|| observer(event)).is_none() {
            tracing::error!("the observer of checkpoints panicked");
        }
    }
}

/// Reads the map. Returns the pages that have to be written anew, since they were open or damaged.
/// If the record isn't whole, a page that was never written counts as damaged.
fn read_map(
    map: &ChangeMap,
    record: &Record,
    head: &Head,
    is_whole: bool,
    faults: &mut Vec<String>,
) -> Result<Vec<usize>, StackError> {
    let (mut rewritten, mut damaged) = (Vec::new(), 0u64);
    record.read_pages(head.id, map.pages(), |page, found| {
        let first = page * PAGE_BLOCKS;
        let blocks = first..map.blocks().min(first + PAGE_BLOCKS);
        match found {
            FoundPage::Blank if is_whole => {}
            FoundPage::Good(open, epochs) => {
                for (n, epoch) in blocks.clone().zip(epochs) {
                    map.mark(n..n + 1, epoch);
                }
                for n in (0..GROUPS).filter(|n| open & 1 << n != 0) {
                    let start = (first + n * GROUP).min(blocks.end);
                    map.mark(start..blocks.end.min(start + GROUP), head.epoch);
                }
                if open != 0 {
                    rewritten.push(page);
                }
            }
            FoundPage::Blank | FoundPage::Damaged => {
                damaged += 1;
                map.mark(blocks, head.epoch);
                rewritten.push(page);
            }
        }
    })?;
    if damaged != 0 {
        faults.push(format!(
            "{damaged} of {} pages of the record are damaged: their blocks count as changed",
            map.pages()
        ));
    }
    Ok(rewritten)
}

impl Driver for CheckpointDriver {
    fn info(&self) -> Info {
        let over = Info::over("checkpoint", &*self.state.below);
        Info { geometry: self.state.geometry, knows_extents: true, ..over }
    }

    fn condition(&self) -> Option<String> {
        let checkpoints = self.state.entries.lock().len();
        let kept = self.state.copies.as_ref().and_then(|copies| {
            let (name, _) = copies.of()?;
            let (used, room) = copies.used();
            let share = used.saturating_mul(100) / room.max(1);
            Some(format!(", '{name}' readable with {share} % of the copies in use"))
        });
        let s = if checkpoints == 1 { "" } else { "s" };
        Some(format!("{checkpoints} checkpoint{s}{}", kept.unwrap_or_default()))
    }

    fn is_outdated(&self) -> bool {
        self.state.below.is_outdated()
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if rq.op().is_change() {
            self.state.change(rq);
        } else {
            let offset = rq.offset();
            pass_on(&*self.state.below, rq, offset);
        }
        Dispatch::Started
    }
}
