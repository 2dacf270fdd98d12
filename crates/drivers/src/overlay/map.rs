//! The map of an overlay in memory: which blocks are own, and which pages of the map have to be
//! written. A page is loaded when the first request to its group needs it.

use std::ops::Range;
use std::sync::OnceLock;

use corewise_blockmq::{IoError, IoErrorKind, Started};
use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::header::Layout;
use crate::bit_pages::{BitPage, PAGE_BITS};

/// Slots of the first chunk, as a power of two; each later chunk has twice as many.
const FIRST_CHUNK: u32 = 3;
const CHUNKS: usize = 40;

/// Bit that tells numbers of the directory's pages from those of the map's.
const DIRECTORY: u64 = 1 << 60;

/// The map.
pub(super) struct Map {
    layout: Layout,
    id: [u8; 16],
    /// The slots of all groups, in chunks that grow, so that no slot ever moves.
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// L: is the lock, held for a push or a take; guards the groups whose page has to be written.
    marked: SpinLock<Vec<usize>>,
    /// A: number of own blocks in the counted groups. Relaxed: a count.
    own: AtomicU64,
    /// A: number of counted groups. Relaxed: a count.
    counted: AtomicUsize,
}

/// The state of a group's page in the file, as the directory has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageName {
    /// The page counts as one of clear bits, whatever lies there.
    Unnamed = 0,
    /// All of the page was written.
    Named = 1,
    /// The page of the directory is damaged.
    Unknown = 2,
}

/// A group's page, once that is in memory.
struct Slot {
    page: OnceLock<Box<BitPage>>,
    /// A: a [`PageName`]. Relaxed: it changes before requests come, while none is inside, or, by a
    /// commit, when the page is in memory and nobody reads it from the file.
    name: AtomicU8,
    /// A: true while the group is among the marked ones. Set with Release by `set`, which has set
    /// bits before; cleared with Acquire by `take_marked`, whose caller reads them after.
    marked: AtomicBool,
    /// A: true once the own blocks of the page on disk were counted. Relaxed: the first to set it
    /// adds them.
    counted: AtomicBool,
    /// L: is the lock, held for a push or a take; guards the requests that wait for the page.
    /// `None`: nobody loads it.
    waiting: SpinLock<Option<Vec<Started>>>,
}

impl Slot {
    fn new() -> Self {
        Self {
            page: OnceLock::new(),
            name: AtomicU8::new(PageName::Unnamed as u8),
            marked: AtomicBool::new(false),
            counted: AtomicBool::new(false),
            waiting: SpinLock::new(None),
        }
    }

    fn name(&self) -> PageName {
        let name = self.name.load(Ordering::Relaxed);
        let all = [PageName::Unnamed, PageName::Named];
        all.into_iter().find(|one| *one as u8 == name).unwrap_or(PageName::Unknown)
    }

    fn set_name(&self, name: PageName) {
        self.name.store(name as u8, Ordering::Relaxed);
    }
}

/// The reaction to a request for a page that isn't in memory.
pub(super) enum PageNeed {
    /// The page is in memory by now.
    Loaded(Started),
    /// The request waits for the page, which the caller has to load.
    Load,
    /// The request waits for the page, which another thread loads.
    Waits,
}

impl Map {
    pub(super) fn new(layout: Layout, id: [u8; 16], size: u64) -> Self {
        let map = Self {
            layout,
            id,
            chunks: [const { OnceLock::new() }; CHUNKS],
            marked: SpinLock::new(Vec::new()),
            own: AtomicU64::new(0),
            counted: AtomicUsize::new(0),
        };
        map.grow(size);
        map
    }

    /// Makes slots for a device of `size` bytes. Before that no request reaches its new groups.
    pub(super) fn grow(&self, size: u64) {
        let Some(last) = self.layout.groups(size).checked_sub(1) else { return };
        for chunk in 0..=chunk_of(last).0 {
            let slots = || (0..1 << (FIRST_CHUNK + chunk as u32)).map(|_| Slot::new());
            self.chunks[chunk].get_or_init(|| slots().collect());
        }
    }

    fn slot(&self, group: usize) -> &Slot {
        let (chunk, at) = chunk_of(group);
        &self.chunks[chunk].get().expect("a device's groups have slots")[at]
    }

    fn page(&self, group: usize) -> Option<&BitPage> {
        self.slot(group).page.get().map(|page| &**page)
    }

    /// Returns the first group of a range of bytes whose page isn't in memory.
    pub(super) fn missing(&self, bytes: Range<u64>) -> Option<usize> {
        let last = self.layout.group(bytes.end - 1);
        (self.layout.group(bytes.start)..=last).find(|&group| self.page(group).is_none())
    }

    /// Returns whether the block of `offset` is own, and the number of bytes before `end` and in
    /// the same group that are like it. `None` if the page isn't in memory.
    pub(super) fn run(&self, offset: u64, end: u64) -> Option<(bool, u64)> {
        let end = end.min(self.layout.group_end(offset));
        let (first, last) = (self.layout.bit(offset), self.layout.bit(end - 1));
        let (own, blocks) = self.page(self.layout.group(offset))?.run(first, last + 1);
        let to = (offset >> self.layout.shift()) + blocks as u64;
        Some((own, (to << self.layout.shift()).min(end) - offset))
    }

    /// Returns true if all blocks of a range of bytes are own, as far as their pages are in memory.
    pub(super) fn all_own(&self, bytes: Range<u64>) -> bool {
        let mut at = bytes.start;
        while at < bytes.end {
            match self.run(at, bytes.end) {
                Some((true, len)) => at += len,
                _ => return false,
            }
        }
        true
    }

    /// Makes the blocks of a range of bytes own (Set), and marks their pages (Mark). The pages are
    /// in memory.
    pub(super) fn set(&self, bytes: Range<u64>) {
        let mut at = bytes.start;
        while at < bytes.end {
            let (group, end) = (self.layout.group(at), bytes.end.min(self.layout.group_end(at)));
            let page = self.page(group).expect("a change loads its pages before it is sent");
            let new = page.set(self.layout.bit(at)..self.layout.bit(end - 1) + 1);
            if new != 0 {
                self.own.fetch_add(new as u64, Ordering::Relaxed);
                self.mark(group);
            }
            at = end;
        }
    }

    /// Marks a group's page: it has to be written.
    pub(super) fn mark(&self, group: usize) {
        // Release pairs with the Acquire of `take_marked`.
        if !self.slot(group).marked.swap(true, Ordering::AcqRel) {
            self.marked.lock().push(group);
        }
    }

    /// Takes the marks of up to `most` groups (Take), the oldest first. Bits that are set later
    /// mark them again.
    pub(super) fn take_marked(&self, most: usize) -> Vec<usize> {
        let taken = {
            let mut marked = self.marked.lock();
            let most = marked.len().min(most);
            marked.drain(..most).collect::<Vec<_>>()
        };
        for &group in &taken {
            // Acquire pairs with the Release of `mark`: the bits are seen for which it was marked.
            self.slot(group).marked.swap(false, Ordering::AcqRel);
        }
        taken
    }

    /// Returns true if the page of a group with one of these bytes has to be written.
    pub(super) fn is_marked(&self, bytes: Range<u64>) -> bool {
        let last = self.layout.group(bytes.end - 1);
        (self.layout.group(bytes.start)..=last)
            .any(|group| self.slot(group).marked.load(Ordering::Acquire))
    }

    /// Returns the number of groups whose pages have to be written.
    pub(super) fn marked(&self) -> usize {
        self.marked.lock().len()
    }

    /// Encodes a group's page, which is in memory, with its present bits.
    pub(super) fn encode(&self, group: usize) -> Vec<u8> {
        let page = self.page(group).expect("only a page in memory is marked");
        page.encode(&self.id, group as u64)
    }

    /// Makes a request wait for a group's page.
    pub(super) fn wait_for(&self, group: usize, rq: Started) -> PageNeed {
        let slot = self.slot(group);
        let mut waiting = slot.waiting.lock();
        // The page is put there before its waiters are taken.
        match (&mut *waiting, slot.page.get()) {
            (_, Some(_)) => PageNeed::Loaded(rq),
            (Some(waiting), None) => {
                waiting.push(rq);
                PageNeed::Waits
            }
            (none, None) => {
                *none = Some(vec![rq]);
                PageNeed::Load
            }
        }
    }

    /// Takes the result of reading a group's page, and returns the requests that waited for it.
    pub(super) fn came(
        &self,
        group: usize,
        read: Result<&[u8], IoError>,
    ) -> (Vec<Started>, Result<(), IoError>) {
        self.put(group, read.and_then(|bytes| self.decode(group, bytes)))
    }

    /// Does as [`Map::came`] for a page that need not be read, since the directory doesn't name it
    /// or is damaged. `None`: it has to be read.
    pub(super) fn came_unread(&self, group: usize) -> Option<(Vec<Started>, Result<(), IoError>)> {
        let page = match self.slot(group).name() {
            PageName::Named => return None,
            PageName::Unnamed => Ok(BitPage::new()),
            PageName::Unknown => Err(self.damage(
                group,
                "page of its directory",
                self.layout.directory(Layout::directory_of(group)),
            )),
        };
        Some(self.put(group, page))
    }

    fn put(
        &self,
        group: usize,
        decoded: Result<Box<BitPage>, IoError>,
    ) -> (Vec<Started>, Result<(), IoError>) {
        let slot = self.slot(group);
        // Two threads may load a page: the first one counts, and has what was on disk.
        let result = decoded.map(|page| {
            self.add(slot, &page);
            drop(slot.page.set(page));
        });
        (slot.waiting.lock().take().unwrap_or_default(), result)
    }

    /// Counts the own blocks of a group's page, as it was read.
    pub(super) fn count(&self, group: usize, bytes: &[u8]) {
        if let Ok(page) = self.decode(group, bytes) {
            self.add(self.slot(group), &page);
        }
    }

    /// Counts a group whose page the directory doesn't name, and returns true for such a one.
    pub(super) fn count_unnamed(&self, group: usize) -> bool {
        let is_unnamed = self.slot(group).name() == PageName::Unnamed;
        if is_unnamed {
            self.add(self.slot(group), &BitPage::new());
        }
        is_unnamed
    }

    /// Counts a page that was read, unless its group was counted before.
    fn add(&self, slot: &Slot, page: &BitPage) {
        if !slot.counted.swap(true, Ordering::Relaxed) {
            self.own.fetch_add(page.count() as u64, Ordering::Relaxed);
            self.counted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true if the directory names a group.
    pub(super) fn is_named(&self, group: usize) -> bool {
        self.slot(group).name() == PageName::Named
    }

    /// Notes that the directory names a group.
    pub(super) fn set_named(&self, group: usize) {
        self.slot(group).set_name(PageName::Named);
    }

    /// Takes the names of a page of the directory, as it was read. `groups`: those of the device.
    pub(super) fn load_names(&self, at: usize, bytes: &[u8], groups: usize) {
        let page = BitPage::decode(bytes, &self.id, DIRECTORY | at as u64);
        for group in named_by(at, groups) {
            let is_named = page.as_ref().map(|page| page.is_set(group % PAGE_BITS));
            self.slot(group).set_name(match is_named {
                Ok(true) => PageName::Named,
                Ok(false) => PageName::Unnamed,
                Err(_) => PageName::Unknown,
            });
        }
    }

    /// Encodes a page of the directory that names these groups, too.
    pub(super) fn encode_names(&self, at: usize, also: &[usize], groups: usize) -> Vec<u8> {
        let page = BitPage::new();
        let is_named = |group: &usize| self.is_named(*group) || also.contains(group);
        for bit in named_by(at, groups).filter(is_named).map(|group| group % PAGE_BITS) {
            page.set(bit..bit + 1);
        }
        page.encode(&self.id, DIRECTORY | at as u64)
    }

    /// Returns true if a group was counted.
    pub(super) fn is_counted(&self, group: usize) -> bool {
        self.slot(group).counted.load(Ordering::Relaxed)
    }

    /// Returns the number of own blocks of a device of `groups` groups; `None` unless all of them
    /// were counted.
    pub(super) fn own(&self, groups: usize) -> Option<u64> {
        let all = self.counted.load(Ordering::Relaxed) >= groups;
        all.then(|| self.own.load(Ordering::Relaxed))
    }

    /// Clears all bits, marks and names, when nothing is in flight.
    pub(super) fn clear(&self) {
        self.marked.lock().clear();
        for slot in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            slot.marked.store(false, Ordering::Relaxed);
            slot.set_name(PageName::Unnamed);
            if let Some(page) = slot.page.get() {
                page.clear();
            }
        }
        self.own.store(0, Ordering::Relaxed);
    }

    /// Decodes a group's page.
    fn decode(&self, group: usize, bytes: &[u8]) -> Result<Box<BitPage>, IoError> {
        BitPage::decode(bytes, &self.id, group as u64).map_err(|damaged| {
            self.damage(group, "sector", self.layout.page(group) + 512 * damaged.0 as u64)
        })
    }

    /// Returns the error of a group whose page isn't known, since `part` of the file is damaged.
    fn damage(&self, group: usize, part: &str, at: u64) -> IoError {
        let blocks = (group * PAGE_BITS) as u64 * self.layout.block();
        let why = format!(
            "the overlay's map is damaged: the {part} at byte {at} of its file fails its checksum, \
             so it isn't known which of {} MiB from byte {blocks} on are its own",
            self.layout.group_bytes() >> 20
        );
        IoError::with(IoErrorKind::Io(libc::EIO), why)
    }
}

/// Returns the groups that a page of the directory may name, of the first `groups`.
fn named_by(at: usize, groups: usize) -> Range<usize> {
    at * PAGE_BITS..((at + 1) * PAGE_BITS).min(groups)
}

/// Returns the chunk of a group's slot, and the slot's place there.
fn chunk_of(group: usize) -> (usize, usize) {
    let from_first = group + (1 << FIRST_CHUNK);
    let chunk = from_first.ilog2() - FIRST_CHUNK;
    (chunk as usize, from_first - (1 << (FIRST_CHUNK + chunk)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_a_slot_of_its_own() {
        let all: Vec<_> = (0..10_000).map(chunk_of).collect();
        assert_eq!(
            (all[0], all[7], all[8], all[23], all[24]),
            ((0, 0), (0, 7), (1, 0), (1, 15), (2, 0))
        );
        for (at, pair) in all.windows(2).enumerate() {
            let next = if pair[0].1 + 1 == 8 << pair[0].0 {
                (pair[0].0 + 1, 0)
            } else {
                (pair[0].0, pair[0].1 + 1)
            };
            assert_eq!(pair[1], next, "{at}");
        }
    }
}
