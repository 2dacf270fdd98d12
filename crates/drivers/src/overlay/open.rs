//! Opening an overlay: a new one is made, another one has to belong to its base. All of it blocks.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};

use bytes::BytesMut;
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Completed, Geometry, IoError, IoErrorKind, Queue, Request,
};
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::{Countdown, Mutex, SpinLock};
use corewise_workqueue::{Work, Workqueue};

use super::block_locks::BlockLocks;
use super::commit::Commits;
use super::fetch::Fetcher;
use super::header::{BaseIdentity, HEADERS, Header, Layout, WholeChange};
use super::header_writes::HeaderWrites;
use super::map::Map;
use super::{Overlay, OverlayOptions, OverlayState, OverlayStatus};
use crate::below::{StackError, holds_data};
use crate::bit_pages::PAGE;

/// Bytes at the beginning of a base that identify it: partition tables and file systems are there.
const FIRST: u64 = 64 << 10;
/// Number of samples all over it, and the bytes of one.
const SAMPLES: u64 = 32;
const SAMPLE: u64 = 4096;

/// Bytes of a block of a new overlay, unless its options say otherwise.
const BLOCK_SIZE: u32 = 4096;

/// Most bytes of a discard or write-zeroes, so that it needs few pages of the map.
const LONGEST: u64 = 1 << 30;

impl Overlay {
    /// Returns the size of the file of a new overlay of `size` bytes; `None` if `block_size` (see
    /// [`OverlayOptions`]) or the size isn't possible.
    pub fn file_size(size: u64, block_size: Option<u32>) -> Option<u64> {
        let layout = Layout::new(block_size.unwrap_or(BLOCK_SIZE))?;
        (size != 0 && Layout::takes(size)).then(|| layout.file_size(size))
    }

    /// Opens the overlay in `file` over `base`. A file that holds nothing but zeroes becomes a new
    /// overlay, durably. An overlay that has every block needs no base.
    ///
    /// Workers of the queue [below](Workqueue::below) `wq` fetch. Nobody may change the base as
    /// long as it has overlays. Blocks: call it on a worker or a thread of your own.
    ///
    /// # Errors
    /// If the file holds anything but an overlay, is too short, or is damaged; if the base isn't
    /// the one that the overlay was made over; if a request fails.
    pub fn open(
        file: Arc<Queue>,
        base: Option<Arc<dyn BlockDevice>>,
        options: OverlayOptions,
        wq: &Workqueue,
    ) -> Result<Self, StackError> {
        if file.geometry().read_only {
            let name = file.name();
            let why = format!("'{name}' is read-only: an overlay keeps its changes there");
            return Err(StackError::new(why));
        }
        let (found, is_whole) = read_header(&*file)?;
        let is_new = found.is_none();
        let header = match found {
            Some(header) => existing(header, &*file, base.as_deref(), &options)?,
            None => new_header(&*file, base.as_deref(), &options)?,
        };
        // An overlay that has every block leaves its base alone.
        let base = base.filter(|_| header.base.is_some());
        let geometry = geometry(&*file, base.as_ref(), &header)?;
        let (layout, flatten) = (header.layout(), header.flatten);
        let OverlayOptions { size, fetch, fetch_rate, base_in_use, observer, .. } = options;
        let state = Arc::new_cyclic(|weak: &Weak<OverlayState>| {
            let item = |step: fn(&Arc<OverlayState>)| {
                let weak = weak.clone();
                // An overlay that is gone has nothing to do.
                Work::new(move || {
                    if let Some(state) = weak.upgrade() {
                        step(&state);
                    }
                })
            };
            let (step, count) = (item(OverlayState::fetch_step), item(|state| state.count_own()));
            OverlayState {
                map: Map::new(layout, header.id, header.size),
                base_size: header.base.map_or(0, |base| base.size),
                base: SpinLock::new(base),
                layout,
                geometry,
                size: AtomicU64::new(header.size),
                locks: BlockLocks::default(),
                commits: Commits::new(),
                header: HeaderWrites::new(header),
                fetch: Fetcher::new(fetch, fetch_rate, wq, step, count),
                observer,
                file,
            }
        });
        state.load_directory()?;
        if is_new {
            state.write_first_header()?;
        } else if !is_whole {
            state.write_header(|_| {})?;
        }
        state.complete_change(base_in_use)?;
        if size.is_some_and(|size| size != state.size()) {
            let _ = state.grow(size)?;
        }
        if state.base.lock().is_some() {
            state.fetch.set(fetch, fetch_rate, flatten);
        }
        Ok(Self { inner: state })
    }

    /// Returns the bytes of a block.
    pub fn block_size(&self) -> u32 {
        1 << self.inner.layout.shift()
    }

    /// Returns where bytes from `offset` on are: 1 in own blocks, 2 in the base, 0 behind its end.
    /// It has one stretch at least and `most` at most, each with its length, up to `offset + len`
    /// or to where the map isn't in memory. `None` if that is at `offset`: a request for extents
    /// loads it. Any context.
    pub fn depths(&self, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, u32)>> {
        let state = &self.inner;
        let (mut at, end) = (offset, offset.saturating_add(len).min(state.size()));
        let mut found: Vec<(u64, u32)> = Vec::new();
        while at < end {
            let Some((own, run)) = state.map.run(at, end) else { break };
            let (depth, run) = match state.base_size.saturating_sub(at) {
                _ if own => (1, run),
                0 => (0, run),
                left => (2, run.min(left)),
            };
            let is_full = found.len() == most;
            match found.last_mut() {
                // The end of a group is no end of a stretch.
                Some(last) if last.1 == depth => last.0 += run,
                _ if is_full => break,
                _ => found.push((run, depth)),
            }
            at += run;
        }
        (!found.is_empty()).then_some(found)
    }

    /// Returns the state of the overlay a moment ago. Any context. The first call makes a worker
    /// count the own blocks.
    pub fn status(&self) -> OverlayStatus {
        let state = &self.inner;
        let (size, block) = (state.size(), state.layout.block());
        let own = state.map.own(state.layout.groups(size));
        if own.is_none() {
            state.fetch.kick_count();
        }
        let has_base = state.base.lock().is_some();
        let fetching = has_base && state.fetch.all.load(Ordering::Relaxed);
        OverlayStatus { own: own.map(|own| (own * block).min(size)), size, has_base, fetching }
    }
}

impl OverlayState {
    /// Writes both copies of the header of a new overlay, durably: otherwise data could reach the
    /// disk without them after a power failure, and the file would seem to hold something else.
    fn write_first_header(&self) -> Result<(), IoError> {
        let header = self.header.newest();
        let piece = self.file.geometry().block_size as usize;
        for copy in [0, 1] {
            self.file.write_at(Header::copy_at(copy), header.encode(piece))?;
        }
        self.file.flush()
    }

    /// Reads the directory, as far as there is one. Blocks.
    fn load_directory(&self) -> Result<(), IoError> {
        let groups = self.layout.groups(self.size());
        for at in 0..self.header.newest().directory {
            let bytes = self.file.read_at(self.layout.directory(at), PAGE)?;
            self.map.load_names(at, &bytes, groups);
        }
        Ok(())
    }

    /// Grows the overlay: the file first, then the header.
    pub(super) fn grow(self: &Arc<Self>, size: Option<u64>) -> Result<u64, IoError> {
        let invalid = |why: String| IoError::with(IoErrorKind::InvalidInput, why);
        let (has, block) = (self.size(), u64::from(self.geometry.block_size));
        let Some(size) = size else {
            return Err(invalid("an overlay has no medium of its own: give the new size".into()));
        };
        if size < has {
            return Err(invalid(format!("the overlay has {has} bytes and can't shrink to {size}")));
        }
        if size % block != 0 || !Layout::takes(size) {
            return Err(invalid(format!(
                "the new size {size} is too large, or not a multiple of the block size {block}"
            )));
        }
        let needed = self.layout.file_size(size);
        if needed > self.file.geometry().size {
            let _ = self.file.grow(Some(needed))?;
        }
        self.write_header(move |header| header.size = size)?;
        self.map.grow(size);
        self.size.store(size, Ordering::Release);
        Ok(size)
    }
}

/// Reads the newest header; `None` if there is none. Returns true if both copies are the same.
fn read_header(file: &dyn BlockDevice) -> Result<(Option<Header>, bool), StackError> {
    let (name, size) = (file.name().to_owned(), file.geometry().size);
    if size < HEADERS {
        let why = format!("'{name}' has {size} bytes, too few for an overlay's header");
        return Err(StackError::new(why));
    }
    let piece = file.geometry().block_size as usize;
    let read = |copy| file.read_at(Header::copy_at(copy), piece.max(512));
    let copies = [read(0)?, read(1)?];
    let found = [&copies[0], &copies[1]].map(|copy| Header::decode(copy));
    let is_whole = found[0].is_some() && found[0] == found[1];
    if let Some(newest) = found.into_iter().flatten().max_by_key(|header| header.events) {
        return Ok((Some(newest), is_whole));
    }
    if copies.iter().any(|copy| Header::has_other_format(copy)) {
        return Err(StackError::new(format!(
            "'{name}' is an overlay in a format of another version of Corewise. Copy its content \
             with that version, or remove the file to begin with the base's content"
        )));
    }
    if copies.iter().any(|copy| Header::has_magic(copy)) {
        return Err(StackError::new(format!(
            "both copies of the header of the overlay '{name}' are damaged. Restore the file from \
             a backup, or remove it to begin with the base's content"
        )));
    }
    if copies.iter().any(|copy| copy.iter().any(|byte| *byte != 0))
        || holds_data(file) == Some(true)
    {
        return Err(StackError::new(format!(
            "'{name}' holds other data than an overlay. Name another path, or remove it"
        )));
    }
    Ok((None, false))
}

/// Checks that a header fits its file and its base.
fn existing(
    header: Header,
    file: &dyn BlockDevice,
    base: Option<&dyn BlockDevice>,
    options: &OverlayOptions,
) -> Result<Header, StackError> {
    let name = file.name();
    let has = header.layout().block();
    if let Some(asked) = options.block_size.filter(|asked| u64::from(*asked) != has) {
        return Err(StackError::new(format!(
            "a block size of {asked} is asked for, and the overlay in '{name}' was made with \
             {has}, which can't change. Ask for {has}, or for none"
        )));
    }
    let (has, needs) = (file.geometry().size, header.layout().file_size(header.size));
    if has < needs {
        return Err(StackError::new(format!(
            "'{name}' has {has} bytes, and its overlay needs {needs}: it was truncated. Restore it \
             from a backup"
        )));
    }
    let Some(known) = header.base else { return Ok(header) };
    let half_committed = header.change == WholeChange::Commit;
    let refuse = |why: String| match half_committed {
        true => interrupted_commit(file, &why),
        false => StackError::new(why),
    };
    let Some(base) = base else {
        return Err(refuse(format!(
            "the overlay in '{name}' needs its base, of {} bytes, and has none. Name the base that \
             the overlay was made over",
            known.size
        )));
    };
    let size = base.geometry().size;
    if size != known.size || !half_committed && identity(base)? != known {
        let differs = match size == known.size {
            true => "other content".to_string(),
            false => format!("{size} bytes, not {}", known.size),
        };
        return Err(refuse(format!(
            "'{}' is not the base of the overlay in '{name}': it has {differs}. Name the base that \
             the overlay was made over; to give the overlay's data up, remove its file",
            base.name()
        )));
    }
    Ok(header)
}

/// Returns the refusal of an overlay whose commit can't be completed.
pub(super) fn interrupted_commit(file: &dyn BlockDevice, why: &dyn fmt::Display) -> StackError {
    let name = file.name();
    StackError::new(format!(
        "a commit of the overlay in '{name}' into its base was interrupted, and the start of the \
         overlay has to complete it: {why}"
    ))
}

/// Makes the header of a new overlay.
fn new_header(
    file: &dyn BlockDevice,
    base: Option<&dyn BlockDevice>,
    options: &OverlayOptions,
) -> Result<Header, StackError> {
    let name = file.name();
    let Some(base) = base else {
        return Err(StackError::new(format!("'{name}' is empty: a new overlay needs a base")));
    };
    let block_size = options.block_size.unwrap_or(BLOCK_SIZE);
    let Some(layout) = Layout::new(block_size) else {
        return Err(StackError::new(format!(
            "the block size of an overlay is a power of two from 4 KiB to 1 MiB, not {block_size}"
        )));
    };
    let identity = identity(base)?;
    let size = options.size.unwrap_or(identity.size);
    if size < identity.size {
        return Err(StackError::new(format!(
            "an overlay of {size} bytes is smaller than its base '{}', which has {}",
            base.name(),
            identity.size
        )));
    }
    if size == 0 || !Layout::takes(size) || layout.file_size(size) > file.geometry().size {
        return Err(StackError::new(format!(
            "'{name}' has {} bytes, too few for an overlay of {size} bytes",
            file.geometry().size
        )));
    }
    let mut id = [0; 16];
    for half in id.chunks_exact_mut(8) {
        // The standard library's randomness tells two overlays apart.
        half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    let (block_shift, change) = (layout.shift(), WholeChange::None);
    let (base, flatten, directory) = (Some(identity), false, 0);
    Ok(Header { id, events: 0, size, block_shift, change, base, flatten, directory })
}

/// Returns the abilities of an overlay.
fn geometry(
    file: &dyn BlockDevice,
    base: Option<&Arc<dyn BlockDevice>>,
    header: &Header,
) -> Result<Geometry, StackError> {
    let own = file.geometry();
    let can_zero = own.can_write_zeroes;
    let own = Geometry {
        size: header.size,
        // The queue of the file cuts at its own.
        chunk: 0,
        // The map has to be written, also to a file that has nothing to flush.
        can_flush: true,
        can_fua: own.can_fua || !own.can_flush,
        can_discard: own.can_discard && can_zero,
        max_discard: own.max_discard.min(LONGEST),
        max_write_zeroes: own.max_write_zeroes.min(LONGEST),
        ..own
    };
    let both = base.map_or(own, |base| {
        let base = base.geometry();
        Geometry {
            block_size: own.block_size.max(base.block_size),
            preferred: own.preferred.max(base.preferred),
            physical_block: own.physical_block.max(base.physical_block),
            memory_alignment: own.memory_alignment.max(base.memory_alignment),
            can_prefetch: own.can_prefetch && base.can_prefetch,
            rotational: own.rotational || base.rotational,
            ..own
        }
    });
    let block = header.layout().block();
    if u64::from(both.block_size) > block || header.size % u64::from(both.block_size) != 0 {
        return Err(StackError::new(format!(
            "the overlay in '{}' has {} bytes in blocks of {block}, which don't fit requests in \
             blocks of {}",
            file.name(),
            header.size,
            both.block_size
        )));
    }
    Ok(both)
}

/// Computes the identity of a base.
pub(super) fn identity(base: &dyn BlockDevice) -> Result<BaseIdentity, IoError> {
    let geometry = base.geometry();
    let (size, block) = (geometry.size, u64::from(geometry.block_size));
    let first = (0, FIRST.min(size));
    let sample = |n: u64| {
        let at = (size / SAMPLES).saturating_mul(n) / block.max(SAMPLE) * block.max(SAMPLE);
        (at, block.max(SAMPLE).min(size - at))
    };
    let ranges = std::iter::once(first).chain((0..SAMPLES).map(sample));
    let read = read_all(base, ranges.filter(|(_, len)| *len != 0).collect())?;
    let mut parts = read.iter();
    let first = parts.next().map_or(0, |data| crc32fast::hash(data));
    let mut samples = crc32fast::Hasher::new();
    parts.for_each(|data| samples.update(data));
    Ok(BaseIdentity { size, first, samples: samples.finalize() })
}

/// Reads ranges of a device, all at once, and returns their bytes in the given order.
fn read_all(device: &dyn BlockDevice, ranges: Vec<(u64, u64)>) -> Result<Vec<BytesMut>, IoError> {
    let ended = Arc::new((Countdown::new(ranges.len()), Mutex::new(Vec::new())));
    for (n, (offset, len)) in ranges.into_iter().enumerate() {
        let theirs = Arc::clone(&ended);
        let read = Request::read(offset, len as usize);
        device.submit(read.on_complete(move |done: Completed| {
            theirs.1.lock().push((n, done.into_data()));
            theirs.0.done();
        }));
    }
    ended.0.wait();
    let mut ended = std::mem::take(&mut *ended.1.lock());
    ended.sort_by_key(|(n, _)| *n);
    ended.into_iter().map(|(_, data)| data).collect()
}
