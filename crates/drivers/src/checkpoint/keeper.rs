//! The keeper of a record: one work item, which never runs twice at once. It alone changes the
//! record's pages, and opens and closes groups. `README.md` beside this file names its steps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use corewise_blockmq::for_drivers::{EndOfWorkers, Queued};
use corewise_blockmq::{IoError, Started};
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_sync::{Mutex, context};
use corewise_workqueue::{Work, Workqueue};

use super::format::{GROUP, GROUPS, Head};
use super::{CheckpointEvent, CheckpointOptions, CheckpointState};
use crate::below::pass_on;

/// Number of open groups of a page with which the keeper opens all of them.
const OPENS_ALL: u32 = 4;

/// Time between two looks at groups that may be closed.
const CLOSE_AFTER: Duration = Duration::from_secs(5);

/// Bits of the keeper's orders.
mod order {
    /// Bit of a look at groups that may be closed.
    pub(super) const CLOSE: u32 = 1;
    /// Bit: all groups are closed now; there will be no later look.
    pub(super) const SETTLE: u32 = 2;
}

pub(super) struct Keeper {
    /// Changes that may not begin yet.
    waiting: Inbox<Queued>,
    /// A: bits of `order`; set with Release by a thread that then queues a round, taken with
    /// Acquire.
    orders: AtomicU32,
    /// L: is the lock; guards the keeper's state.
    pub(super) state: Mutex<KeeperState>,
    pub(super) queue: Workqueue,
    work: Work,
    close: Work,
    /// The record of whether workers exist.
    end: EndOfWorkers,
    pub(super) options: CheckpointOptions,
}

/// The keeper's own state.
#[derive(Default)]
pub(super) struct KeeperState {
    /// Head that was written last, or may have been.
    pub(super) head: Head,
    /// Changes that wait, oldest first.
    line: VecDeque<Started>,
    /// Open groups of each page on disk; a page without one isn't listed.
    open: BTreeMap<usize, u128>,
    /// Pages whose last write failed: any of their states may be on disk.
    doubtful: BTreeSet<usize>,
    /// True while the timer for closing runs.
    closing: bool,
    /// True once the driver has settled.
    settled: bool,
}

impl KeeperState {
    /// Returns the number of groups that are open on disk.
    pub(super) fn open_groups(&self) -> u64 {
        self.open.values().map(|groups| u64::from(groups.count_ones())).sum()
    }
}

/// The ends of parked changes, for which no lock is held.
#[derive(Default)]
struct DeferredWork {
    send: Vec<Started>,
    refuse: Vec<(Started, IoError)>,
    events: Vec<CheckpointEvent>,
}

impl Keeper {
    pub(super) fn new(
        head: Head,
        options: CheckpointOptions,
        wq: &Workqueue,
        of: &Weak<CheckpointState>,
    ) -> Self {
        // A driver that is gone has nothing to keep: each request in it keeps it.
        let work = |run: fn(&CheckpointState)| {
            let of = of.clone();
            Work::new(move || {
                if let Some(state) = of.upgrade() {
                    run(&state);
                }
            })
        };
        Self {
            waiting: Inbox::new(),
            orders: AtomicU32::new(0),
            state: Mutex::new(KeeperState { head, ..KeeperState::default() }),
            queue: wq.below(),
            work: work(CheckpointState::keep),
            close: work(|state| state.keeper.order(order::CLOSE)),
            end: EndOfWorkers::new(),
            options,
        }
    }

    /// Parks a change until its blocks let it in. The caller holds no lock; any context.
    pub(super) fn park(&self, rq: Started) {
        self.waiting.push(Queued(rq));
        // The item may be queued already, and takes what was pushed before this call.
        let _ = self.queue.queue(&self.work);
        self.unless_alone();
    }

    fn order(&self, order: u32) {
        self.orders.fetch_or(order, Ordering::Release);
        let _ = self.queue.queue(&self.work);
    }

    #[track_caller]
    pub(super) fn settle(&self) {
        self.close.cancel();
        self.order(order::SETTLE);
        self.work.flush();
    }

    /// Ends the parked changes, since the workers are gone for good. The same protocol as that of a
    /// mirror's keeper: see `../mirror/README.md`.
    pub(super) fn workers_are_gone(&self) {
        self.end.come();
        self.refuse_all();
    }

    fn unless_alone(&self) {
        if self.end.has_come() {
            self.refuse_all();
        }
    }

    /// Fails the parked changes, whose blocks can't be recorded any more. Never blocks.
    #[cold]
    fn refuse_all(&self) {
        // If it is taken, its owner asks when it has left it.
        let line = self.state.try_lock().map(|mut state| mem::take(&mut state.line));
        let parked = line.into_iter().flatten().chain(self.waiting.take().map(|parked| parked.0));
        parked.for_each(|rq| rq.complete(Err(IoError::workers_gone())));
    }
}

impl CheckpointState {
    /// Makes one round of the keeper.
    pub(super) fn keep(&self) {
        let keeper = &self.keeper;
        let mut todo = DeferredWork::default();
        let mut guard = keeper.state.lock();
        let orders = keeper.orders.swap(0, Ordering::Acquire);
        guard.line.extend(keeper.waiting.take().map(|parked| parked.0));
        self.admit(&mut guard, &mut todo);
        if orders != 0 {
            guard.closing = false;
            guard.settled |= orders & order::SETTLE != 0;
            self.close(&mut guard, orders & order::SETTLE != 0);
        }
        if !guard.closing && !guard.settled && guard.open_groups() != 0 {
            guard.closing = true;
            let _ = keeper.queue.queue_delayed(&keeper.close, CLOSE_AFTER);
        }
        drop(guard);
        // This comes after the lock: if this was the last round, no other thread takes the line.
        keeper.unless_alone();
        for (rq, error) in todo.refuse {
            rq.complete(Err(error));
        }
        for rq in todo.send {
            let offset = rq.offset();
            pass_on(&*self.below, rq, offset);
        }
        todo.events.into_iter().for_each(|event| self.tell(&event));
    }

    /// Sends on the changes that wait, after recording their blocks.
    fn admit(&self, state: &mut KeeperState, todo: &mut DeferredWork) {
        let (epoch, copying) = self.mode();
        let mut parked: Vec<(Started, Range<usize>)> = Vec::new();
        for rq in mem::take(&mut state.line) {
            let blocks = self.map.of(rq.offset(), rq.len());
            if epoch == 0 || self.map.enter(blocks.clone(), epoch, copying) {
                todo.send.push(rq);
            } else {
                parked.push((rq, blocks));
            }
        }
        if parked.is_empty() {
            return;
        }
        if copying {
            self.copy(&parked, epoch, todo);
        }
        match self.open_groups_of(state, &parked) {
            Ok(()) => {
                for (rq, blocks) in parked {
                    // Only the keeper closes groups, so they are open.
                    self.map.mark(blocks, epoch);
                    todo.send.push(rq);
                }
            }
            Err(error) => {
                let why = "the record of checkpoints can't be written, and without it a changed \
                           block would count as unchanged";
                let error = IoError::with(error.kind(), format!("{why}: {error}"));
                todo.refuse.extend(parked.into_iter().map(|(rq, _)| (rq, error.clone())));
            }
        }
    }

    /// Copies the old content of blocks that change for the first time since the checkpoint. If
    /// that fails, the image ends.
    fn copy(&self, parked: &[(Started, Range<usize>)], epoch: u16, todo: &mut DeferredWork) {
        let Ok(copies) = self.copies() else { return };
        let all: BTreeSet<usize> = parked.iter().flat_map(|(_, blocks)| blocks.clone()).collect();
        let is_old = |n: &usize| {
            // A block that an earlier, failed round has copied has its slot.
            !self.map.has_changed(*n, epoch) && copies.place(epoch, *n).is_err()
        };
        let size = self.size();
        let old: Vec<_> =
            all.into_iter().filter(is_old).map(|n| (n, self.map.bytes(n..n + 1, size))).collect();
        let copied = context::blocking("copies of blocks", || copies.copy(&*self.below, &old));
        if let Err(why) = copied {
            self.stop_copying();
            if let Some(checkpoint) = copies.lose(&why) {
                todo.events.push(CheckpointEvent::ImageEnded { checkpoint, why });
            }
        }
    }

    /// Opens the groups of these changes, on disk and then in memory.
    fn open_groups_of(
        &self,
        state: &mut KeeperState,
        parked: &[(Started, Range<usize>)],
    ) -> Result<(), IoError> {
        let mut wanted: BTreeMap<usize, u128> = BTreeMap::new();
        for (_, blocks) in parked {
            for group in blocks.start / GROUP..blocks.end.div_ceil(GROUP) {
                *wanted.entry(group / GROUPS).or_default() |= 1 << (group % GROUPS);
            }
        }
        let mut changed = Vec::new();
        for (&page, groups) in &mut wanted {
            let had = state.open.get(&page).copied().unwrap_or(0);
            *groups |= had;
            if *groups == had && !state.doubtful.contains(&page) {
                continue;
            }
            if groups.count_ones() >= OPENS_ALL {
                *groups = all_groups(self.map.groups(page).len());
            }
            changed.push((page, *groups));
        }
        self.write_pages(state, &changed)?;
        for (page, groups) in wanted {
            let first = page * GROUPS;
            let opened = (0..GROUPS).filter(|n| groups & 1 << n != 0).map(|n| first + n);
            opened.filter(|&n| !self.map.is_open(n)).for_each(|n| self.map.open(n));
        }
        Ok(())
    }

    /// Closes groups without recent marks, or all of them.
    fn close(&self, state: &mut KeeperState, all: bool) {
        let mut changed = Vec::new();
        for (&page, &groups) in &state.open {
            let mut left = groups;
            for n in (0..GROUPS).filter(|n| groups & 1 << n != 0) {
                let group = page * GROUPS + n;
                // The first call only takes RECENT away.
                let closed = !self.map.is_open(group)
                    || self.map.close(group)
                    || (all && self.map.close(group));
                if closed {
                    left &= !(1 << n);
                }
            }
            if left != groups || state.doubtful.contains(&page) {
                changed.push((page, left));
            }
        }
        // If it fails, the groups stay open on disk, and are closed later.
        if let Err(error) = self.write_pages(state, &changed) {
            tracing::warn!(%error, "the record of checkpoints can't be written: after a crash more blocks count as changed");
        }
    }

    /// Writes pages with these open groups, and the present epochs.
    fn write_pages(&self, state: &mut KeeperState, pages: &[(usize, u128)]) -> Result<(), IoError> {
        if pages.is_empty() {
            return Ok(());
        }
        let written = context::blocking("the record of checkpoints", || {
            let content = pages.iter().map(|&(n, open)| (n, open, self.map.page(n)));
            self.record.write_pages(state.head.id, content)
        });
        for &(page, groups) in pages {
            match (&written, groups) {
                (Ok(()), 0) => {
                    state.open.remove(&page);
                    state.doubtful.remove(&page);
                }
                (Ok(()), _) => {
                    state.open.insert(page, groups);
                    state.doubtful.remove(&page);
                }
                (Err(_), _) => {
                    // Closed or not: the next round writes it again before it relies on it.
                    state.open.entry(page).or_default();
                    state.doubtful.insert(page);
                }
            }
        }
        written
    }

    /// Writes pages of the record with no open group, before the driver is in use.
    pub(super) fn write_closed(&self, pages: &[usize]) -> Result<(), IoError> {
        let mut guard = self.keeper.state.lock();
        let pages: Vec<_> = pages.iter().map(|&n| (n, 0)).collect();
        self.write_pages(&mut guard, &pages)
    }
}

/// Returns the bits of the first `n` groups of a page.
fn all_groups(n: usize) -> u128 {
    if n >= 128 { u128::MAX } else { (1 << n) - 1 }
}
