//! Fetching: blocks of the base become own, as they are read or in the background, until the
//! overlay needs its base no more. `README.md` beside this file argues the race with changes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corewise_blockmq::{BlockDevice, BlockDeviceExt, HeldRequest, IoError, Request};
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::time::Stamp;
use corewise_sync::{Completion, Mutex, SpinLock};
use corewise_workqueue::{Work, Workqueue};

use super::{OverlayEvent, OverlayState};
use crate::bit_pages::PAGE;

/// The blocks that an overlay fetches from its base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchPolicy {
    /// No block: only changes make blocks own.
    #[default]
    Never,
    /// The whole blocks that clients read.
    OnRead,
    /// The blocks that clients read, and all others in the background.
    Background,
}

/// Most bytes that the background fetches at once.
const PIECE: u64 = 1 << 20;

/// Most bytes of reads that are being kept at a time. Others are kept when they are read again.
const MOST_KEPT: u64 = 8 << 20;

/// Time until the background looks again for blocks that it could not fetch.
const AGAIN: Duration = Duration::from_millis(500);

/// The state of fetching.
pub(super) struct Fetcher {
    /// A: true if blocks that are read are kept. Relaxed: each read looks.
    on_read: AtomicBool,
    /// A: most bytes a second that the background fetches. Relaxed: each step looks.
    rate: AtomicU64,
    /// A: true while all blocks are being fetched. Relaxed: each step looks.
    pub(super) all: AtomicBool,
    /// A: true once the overlay settles: the background stops where it is. Relaxed: each step
    /// looks.
    settling: AtomicBool,
    /// L: is the lock, held through a step, and through a change of the whole overlay. Guards the
    /// place of the background.
    pub(super) cursor: Mutex<Cursor>,
    /// L: is the lock, held for a moment; guards what is being kept.
    kept: SpinLock<KeptReads>,
    /// A: bytes that the background has fetched since the overlay was opened. Relaxed: a count.
    pub(super) fetched: AtomicU64,
    queue: Workqueue,
    work: Work,
    count: Work,
}

/// The blocks that were read and are being kept.
#[derive(Default)]
struct KeptReads {
    /// Number of reads, and of writes to the file.
    running: u64,
    /// Bytes of those writes.
    bytes: u64,
    /// Waiters for the last of them.
    waiters: Vec<Arc<Completion>>,
}

/// The place of the background.
#[derive(Default)]
pub(super) struct Cursor {
    at: u64,
    /// True if blocks in front of it could not be fetched, since they were being changed.
    skipped: bool,
    /// True once a failure was reported, until a step succeeds.
    failed: bool,
}

impl Fetcher {
    pub(super) fn new(
        fetch: FetchPolicy,
        rate: u64,
        wq: &Workqueue,
        work: Work,
        count: Work,
    ) -> Self {
        Self {
            on_read: AtomicBool::new(fetch != FetchPolicy::Never),
            rate: AtomicU64::new(rate.max(1)),
            all: AtomicBool::new(fetch == FetchPolicy::Background),
            settling: AtomicBool::new(false),
            cursor: Mutex::new(Cursor::default()),
            kept: SpinLock::new(KeptReads::default()),
            fetched: AtomicU64::new(0),
            queue: wq.below(),
            work,
            count,
        }
    }

    /// Makes a worker take the next step at once. Without workers, nothing is fetched.
    pub(super) fn kick(&self) {
        let _ = self.queue.mod_delayed(&self.work, Duration::ZERO);
    }

    /// Returns true if blocks that are read are kept.
    pub(super) fn keeps_reads(&self) -> bool {
        self.on_read.load(Ordering::Relaxed)
    }

    /// Sets which blocks are fetched, and how fast. `flatten`: all of them, whatever the policy.
    pub(super) fn set(&self, fetch: FetchPolicy, rate: u64, flatten: bool) {
        self.on_read.store(fetch != FetchPolicy::Never, Ordering::Relaxed);
        self.rate.store(rate.max(1), Ordering::Relaxed);
        let all = fetch == FetchPolicy::Background || flatten;
        self.all.store(all, Ordering::Relaxed);
        if all {
            self.kick();
        }
    }

    /// Makes a worker count the own blocks.
    pub(super) fn kick_count(&self) {
        let _ = self.queue.queue(&self.count);
    }

    /// Stops the background, and waits until nothing is being fetched. May block.
    pub(super) fn settle(&self) {
        self.settling.store(true, Ordering::Relaxed);
        // A step that runs ends first.
        drop(self.cursor.lock());
        self.wait_for_kept();
    }

    /// Waits until no read is being kept. The caller sees to it that no read begins. May block.
    pub(super) fn wait_for_kept(&self) {
        let idle = Arc::new(Completion::new());
        {
            let mut kept = self.kept.lock();
            if kept.running == 0 {
                return;
            }
            kept.waiters.push(Arc::clone(&idle));
        }
        idle.wait();
    }

    /// Counts in a read, or a write of `bytes`. False: too many bytes are being written.
    fn begin_keeping(&self, bytes: u64) -> bool {
        let mut kept = self.kept.lock();
        let fits = kept.bytes == 0 || kept.bytes + bytes <= MOST_KEPT;
        if fits {
            kept.running += 1;
            kept.bytes += bytes;
        }
        fits
    }

    fn end_keeping(&self, bytes: u64) {
        let waiters = {
            let mut kept = self.kept.lock();
            kept.running -= 1;
            kept.bytes -= bytes;
            if kept.running == 0 { std::mem::take(&mut kept.waiters) } else { Vec::new() }
        };
        waiters.iter().for_each(|waiter| waiter.complete());
    }
}

impl OverlayState {
    /// Ends a read of the base, and keeps the whole blocks that it has read.
    pub(super) fn read_and_keep(
        self: &Arc<Self>,
        mut rq: HeldRequest,
        result: Result<(), IoError>,
    ) {
        let (offset, block) = (rq.offset(), self.layout.block());
        let end = offset + rq.len();
        let first = offset.next_multiple_of(block);
        let last = if end == self.size() { end } else { end / block * block };
        let fits = result.is_ok() && rq.filled() == rq.len() && first < last;
        if !fits || !self.fetch.begin_keeping(0) {
            return rq.complete(result);
        }
        let data: Vec<u8> = rq.filled_mut().flat_map(|bytes| bytes.iter().copied()).collect();
        rq.complete(result);
        let data = Bytes::from(data);
        let mut at = first;
        while let Some((own, len)) = self.map.run(at, last) {
            let bytes = at..at + len;
            at = bytes.end;
            // Blocks that aren't own now weren't own when they were read, so this is the base's.
            if !own {
                let from = (bytes.start - offset) as usize;
                self.keep(data.slice(from..from + len as usize), bytes);
            }
            if at == last {
                break;
            }
        }
        self.fetch.end_keeping(0);
    }

    /// Writes blocks of the base to their places, unless they are being changed, and makes them
    /// own.
    fn keep(self: &Arc<Self>, data: Bytes, bytes: Range<u64>) {
        let len = bytes.end - bytes.start;
        if !self.fetch.begin_keeping(len) {
            return;
        }
        if !self.locks.try_lock(&bytes) {
            return self.fetch.end_keeping(len);
        }
        // Look once more: a change may have made a part of them own.
        if self.map.run(bytes.start, bytes.end) != Some((false, len)) {
            self.unlock(&bytes);
            return self.fetch.end_keeping(len);
        }
        let state = Arc::clone(self);
        let place = self.layout.place(bytes.start);
        let write = match is_zero(&data) {
            true => Request::write_zeroes(place, len),
            false => Request::write(place, data),
        };
        // If it fails, the blocks are the base's as before.
        self.file.submit(write.quiet().on_complete(move |done| {
            if done.result.is_ok() {
                state.map.set(bytes.clone());
            }
            state.unlock(&bytes);
            state.fetch.end_keeping(len);
        }));
    }

    /// Takes a step of the background: fetches one piece, and lets a timer run the next step.
    pub(super) fn fetch_step(self: &Arc<Self>) {
        let fetch = &self.fetch;
        let mut cursor = fetch.cursor.lock();
        let wanted = fetch.all.load(Ordering::Relaxed) && self.base.lock().is_some();
        if !wanted || fetch.settling.load(Ordering::Relaxed) {
            return;
        }
        let since = Stamp::precise();
        let pause = match self.fetch_next(&mut cursor) {
            Ok(Some(bytes)) => {
                cursor.failed = false;
                let nanos = u128::from(bytes) * 1_000_000_000
                    / u128::from(fetch.rate.load(Ordering::Relaxed));
                let at_least = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                at_least.saturating_sub(Stamp::precise().since(since))
            }
            Ok(None) if std::mem::take(&mut cursor.skipped) => {
                cursor.at = 0;
                AGAIN
            }
            Ok(None) => match self.let_base_go() {
                Ok(true) => return,
                Ok(false) => {
                    cursor.at = 0;
                    AGAIN
                }
                Err(error) => self.fetch_failed(&mut cursor, error),
            },
            Err(error) => self.fetch_failed(&mut cursor, error),
        };
        let _ = fetch.queue.queue_delayed(&fetch.work, pause);
    }

    /// Reports a failure, once, and returns the pause until the next try.
    fn fetch_failed(&self, cursor: &mut Cursor, error: IoError) -> Duration {
        if !std::mem::replace(&mut cursor.failed, true) {
            tracing::error!(%error, "an overlay cannot fetch a block of its base; it tries again");
            self.tell(&OverlayEvent::FetchFailed { error });
        }
        AGAIN
    }

    /// Fetches the next piece that isn't own. Returns the bytes that it read of the base; `None` if
    /// there is no such piece.
    fn fetch_next(self: &Arc<Self>, cursor: &mut Cursor) -> Result<Option<u64>, IoError> {
        let end = self.base_size.min(self.size());
        while cursor.at < end {
            self.load_now(self.layout.group(cursor.at))?;
            let Some((own, len)) = self.map.run(cursor.at, end) else { continue };
            if own {
                cursor.at += len;
                continue;
            }
            let mut last = cursor.at + len.min(PIECE);
            if last == end {
                // The last block of the base may reach beyond it.
                last = end.next_multiple_of(self.layout.block()).min(self.size());
            }
            let locked = cursor.at..last;
            if !self.locks.try_lock(&locked) {
                (cursor.at, cursor.skipped) = (last, true);
                continue;
            }
            // Look once more: a change may have made a part of them own.
            let fetched = match self.map.run(cursor.at, last) {
                Some((false, len)) => Some(self.fetch_piece(cursor.at..cursor.at + len)),
                _ => None,
            };
            self.unlock(&locked);
            if let Some(bytes) = fetched.transpose()? {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Copies blocks of the base, which are locked, to their places, and makes them own. Returns
    /// the bytes that were read.
    fn fetch_piece(&self, bytes: Range<u64>) -> Result<u64, IoError> {
        let (len, base) = (bytes.end - bytes.start, self.base()?);
        let in_base = len.min(self.base_size - bytes.start);
        let place = self.layout.place(bytes.start);
        let extents = base.extents_of(bytes.start, in_base, 1)?;
        let hole = extents.iter().next().filter(|first| first.kind.is_zero());
        let mut read = 0;
        if hole.is_some_and(|hole| hole.len >= in_base) {
            self.file.write_zeroes(place, len)?;
        } else {
            let mut data = base.read_at(bytes.start, in_base as usize)?;
            data.resize(len as usize, 0);
            read = in_base;
            match is_zero(&data) {
                true => self.file.write_zeroes(place, len)?,
                false => self.file.write_at(place, data)?,
            }
        }
        self.fetch.fetched.fetch_add(len, Ordering::Relaxed);
        self.map.set(bytes);
        Ok(read)
    }

    /// Reads a group's page unless it is in memory. Blocks.
    pub(super) fn load_now(self: &Arc<Self>, group: usize) -> Result<(), IoError> {
        let start = group as u64 * self.layout.group_bytes();
        if self.map.missing(start..start + 1).is_none() {
            return Ok(());
        }
        if let Some((waited, result)) = self.map.came_unread(group) {
            self.begin_again(waited, &result);
            return result;
        }
        let read = self.file.read_at(self.layout.page(group), PAGE);
        let (waited, result) =
            self.map.came(group, read.as_ref().map(|data| &data[..]).map_err(Clone::clone));
        self.begin_again(waited, &result);
        result
    }

    /// Makes the blocks that were fetched durable, and ends the need for a base. Returns false if
    /// one is missing.
    fn let_base_go(self: &Arc<Self>) -> Result<bool, IoError> {
        if !self.map.all_own(0..self.base_size.min(self.size())) {
            return Ok(false);
        }
        self.sync()?;
        self.write_header(|header| (header.base, header.flatten) = (None, false))?;
        self.fetch.all.store(false, Ordering::Relaxed);
        let base = self.base.lock().take();
        drop(base);
        self.tell(&OverlayEvent::Fetched);
        Ok(true)
    }

    /// Commits, and waits for the end.
    pub(super) fn sync(self: &Arc<Self>) -> Result<(), IoError> {
        let done = Arc::new((Completion::new(), SpinLock::new(Ok(()))));
        let theirs = Arc::clone(&done);
        let flush = Request::flush().on_complete(move |done| {
            *theirs.1.lock() = done.result;
            theirs.0.complete();
        });
        self.commit(HeldRequest::from(flush));
        done.0.wait();
        done.1.lock().clone()
    }

    /// Counts the own blocks of all groups whose pages aren't in memory. Blocks.
    pub(super) fn count_own(&self) {
        for group in 0..self.layout.groups(self.size()) {
            if self.map.is_counted(group) || self.map.count_unnamed(group) {
                continue;
            }
            // A page that can't be read stays uncounted, and fails requests to its group.
            if let Ok(bytes) = self.file.read_at(self.layout.page(group), PAGE) {
                self.map.count(group, &bytes);
            }
        }
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
