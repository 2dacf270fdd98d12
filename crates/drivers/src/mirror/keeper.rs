//! The keeper of a mirror's record: one work item, which never runs twice at once. It alone changes
//! the record on disk, so no request needs a lock for that. The kernel's is the thread `md_raid1`
//! with the bitmap's daemon.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use corewise_blockmq::for_drivers::EndOfWorkers;
use corewise_blockmq::{HeldRequest, IoError, IoErrorKind, Started};
use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::panics::caught;
use corewise_sync::time::Stamp;
use corewise_sync::{Mutex, SpinLock};
use corewise_workqueue::{Work, Workqueue};

use crate::mirror::check::Check;
use crate::mirror::disk::Disk;
use crate::mirror::legs::{all, each};
use crate::mirror::record::Head;
use crate::mirror::regions::{RegionAge, RegionEntry, Regions};
use crate::mirror::resync::Cursor;
use crate::mirror::{MirrorEvent, MirrorOptions, MirrorState, disk, leg_states, list};

/// The requests to the keeper, a bit each.
pub(super) mod wish {
    /// Bit of a look at regions that may be clean.
    pub(crate) const CLEAN: u32 = 1;
    /// Bit: all regions may be cleaned at any time; there will be no later look.
    pub(crate) const SETTLE: u32 = 2;
    /// Bit: the resync has found no stale region.
    pub(crate) const SYNCED: u32 = 4;
    /// Bit: the timer of the next try has expired.
    pub(crate) const RETRIED: u32 = 8;
}

pub(super) struct Keeper {
    pub(super) disk: Disk,
    pub(super) regions: Regions,
    pub(super) options: MirrorOptions,
    /// Changes that may not go to the legs yet.
    pub(super) waiting: Inbox<Box<ParkedRequest<Started>>>,
    /// Changes that have ended and may not be acknowledged yet.
    pub(super) unrecorded: Inbox<Box<ParkedRequest<HeldRequest>>>,
    /// A: bits of `wish`; set with Release by the thread that then queues a round, taken with
    /// Acquire.
    wishes: AtomicU32,
    /// A: legs that are wanted back; as `wishes`, for the search.
    pub(super) asked: AtomicU32,
    /// A: of those, legs whose device has been looked for; as `wishes`.
    pub(super) wanted: AtomicU32,
    /// A: true once the mirror settles: the resync stops where it is. Relaxed: it looks between any
    /// two steps.
    pub(super) settling: AtomicBool,
    /// L: is the lock; guards the keeper's state, which only the work item touches, and its maker
    /// before that.
    pub(super) state: Mutex<KeeperState>,
    /// L: is the lock, held through a step of the resync. A thread that takes a leg back takes it
    /// too, so that no step is copying without that leg.
    pub(super) cursor: Mutex<Cursor>,
    /// L: is the lock, held for a moment; guards the check and its findings.
    pub(super) check: SpinLock<Check>,
    /// A: bytes that this resync has compared; Relaxed, for reports.
    pub(super) resynced: AtomicU64,
    /// L: is the lock, held for a push or a take; guards the events for the observer.
    events: SpinLock<Vec<MirrorEvent>>,
    pub(super) queue: Workqueue,
    work: Work,
    pub(super) resync: Work,
    clean: Work,
    pub(super) check_on: Work,
    /// The item that looks for devices, which may take long: nothing waits for it.
    pub(super) search: Work,
    retry: Work,
    /// The record of whether workers exist.
    pub(super) end: EndOfWorkers,
}

/// The keeper's own state.
pub(super) struct KeeperState {
    pub(super) head: Head,
    /// A bit for each region, as on disk: set before a write goes there.
    pub(super) bits: Vec<u8>,
    /// Changes that wait, oldest first.
    pub(super) line: VecDeque<Box<ParkedRequest<Started>>>,
    /// The time of the first of `rounds`, and the number of times that bits were set since.
    begun: Option<Stamp>,
    rounds: u32,
    /// True if a leg that is used has no head, or an older one.
    pub(super) unwritten: bool,
    /// True if bits were set since the heads were written: a leg may hold data that its head
    /// doesn't cover.
    changed: bool,
    /// True while the timer for cleaning runs; the next field is for retries.
    cleaning: bool,
    retrying: bool,
    /// The legs of a resync whose beginning was reported, and its end not; 0: those in sync.
    pub(super) resyncing: Option<u32>,
}

impl KeeperState {
    pub(super) fn new(head: Head, bits: Vec<u8>) -> Self {
        let line = VecDeque::new();
        Self {
            head,
            bits,
            line,
            begun: None,
            rounds: 0,
            unwritten: true,
            changed: false,
            cleaning: false,
            retrying: false,
            resyncing: None,
        }
    }

    /// Returns the head to write next, which is not known to be on disk.
    pub(super) fn next_head(&mut self, in_sync: u32) -> Head {
        // This number is never used again: a head that could not be written may be anywhere.
        self.head.events += 1;
        self.head.in_sync = in_sync;
        self.unwritten = true;
        self.head.clone()
    }

    /// Returns the regions whose bit is set.
    pub(super) fn dirty(&self) -> Vec<usize> {
        let bytes = self.bits.iter().enumerate().filter(|(_, byte)| **byte != 0);
        bytes
            .flat_map(|(at, byte)| {
                (0..8).filter(move |n| byte & 1 << n != 0).map(move |n| at * 8 + n)
            })
            .collect()
    }
}

/// A request that waits for the keeper.
pub(super) struct ParkedRequest<R> {
    link: Link,
    pub(super) rq: R,
}

// SAFETY: `link` returns the one field of `self`, which no other value returns.
unsafe impl<R> HasLink for ParkedRequest<R> {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// Work that a round leaves to be done without a lock held.
#[derive(Default)]
struct DeferredWork {
    send: Vec<(Started, std::ops::Range<usize>)>,
    refuse: Vec<(Started, IoError)>,
    answer: Vec<(HeldRequest, Result<(), IoError>)>,
}

impl Keeper {
    pub(super) fn new(
        disk: Disk,
        regions: Regions,
        options: MirrorOptions,
        state: KeeperState,
        wq: &Workqueue,
        inner: &Weak<MirrorState>,
    ) -> Self {
        // A mirror that is gone has nothing to keep: each request in it keeps it.
        let work = |run: fn(&Arc<MirrorState>, &Keeper)| {
            let inner = inner.clone();
            Work::new(move || {
                if let Some(inner) = inner.upgrade() {
                    run(&inner, &inner.keeper);
                }
            })
        };
        let check = SpinLock::new(Check::new(state.head.checked));
        Self {
            disk,
            regions,
            options,
            waiting: Inbox::new(),
            unrecorded: Inbox::new(),
            wishes: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            settling: AtomicBool::new(false),
            state: Mutex::new(state),
            cursor: Mutex::new(Cursor::default()),
            check,
            resynced: AtomicU64::new(0),
            events: SpinLock::new(Vec::new()),
            queue: wq.below(),
            work: work(|inner, keeper| inner.keep(keeper)),
            resync: work(|inner, keeper| inner.resync_step(keeper)),
            check_on: work(|_, keeper| MirrorState::check_on(keeper)),
            clean: work(|_, keeper| keeper.wish(wish::CLEAN)),
            search: work(|inner, keeper| inner.search(keeper)),
            retry: work(|inner, keeper| {
                let _ = inner.take_back(keeper, inner.legs.out());
                keeper.wish(wish::RETRIED);
            }),
            end: EndOfWorkers::new(),
        }
    }

    /// Queues a round of the keeper, which begins after this call. Never blocks; any context.
    pub(super) fn kick(&self) {
        // The item may be queued already, and takes requests that were pushed before this call. Or
        // there are no workers any more: a thread that has pushed one asks for that.
        let _ = self.queue.queue(&self.work);
    }

    /// Queues a step of the resync. Never blocks; any context.
    pub(super) fn kick_resync(&self) {
        // It may be queued already, or its timer runs: then it holds no region and is due by
        // itself.
        let _ = self.queue.queue(&self.resync);
    }

    /// Parks a change until its regions let it in. The caller holds no lock; any context.
    pub(super) fn park(&self, rq: Started) {
        self.waiting.push(Box::new(ParkedRequest { link: Link::new(), rq }));
        self.kick();
        self.unless_alone();
    }

    /// Holds a change that has succeeded until the record says which leg lacks it. The caller holds
    /// no lock; any context.
    pub(super) fn hold(&self, rq: HeldRequest) {
        self.unrecorded.push(Box::new(ParkedRequest { link: Link::new(), rq }));
        self.kick();
        self.unless_alone();
    }

    /// Returns true if there is a record.
    pub(super) fn has_record(&self) -> bool {
        self.disk.is_kept
    }

    /// Notes an event for the observer.
    pub(super) fn note(&self, event: MirrorEvent) {
        self.events.lock().push(event);
    }

    /// Notes that the resync has found no more stale region.
    pub(super) fn synced(&self) {
        self.wish(wish::SYNCED);
    }

    pub(super) fn wish(&self, wish: u32) {
        self.wishes.fetch_or(wish, Ordering::Release);
        self.kick();
    }

    #[track_caller]
    pub(super) fn settle(&self) {
        self.settling.store(true, Ordering::Relaxed);
        self.kick_resync();
        let _ = self.resync.flush_delayed();
        self.check_on.cancel();
        self.clean.cancel();
        self.retry.cancel();
        // From here on no leg comes back: the legs are about to close.
        self.search.disable_sync();
        self.wish(wish::SETTLE);
        self.work.flush();
    }

    /// Returns the bytes to be resynced, and the bytes that a crash now would have resynced.
    pub(super) fn amounts(&self) -> (u64, u64) {
        let dirty = (0..self.regions.len()).filter(|&n| self.regions.is_dirty(n)).count();
        let bytes = |n: usize| n as u64 * self.regions.size();
        (bytes(self.regions.stale()), bytes(dirty))
    }
}

impl MirrorState {
    /// Makes one round of the keeper.
    pub(super) fn keep(self: &Arc<Self>, keeper: &Keeper) {
        let mut todo = DeferredWork::default();
        let mut guard = keeper.state.lock();
        let state = &mut *guard;
        let wishes = keeper.wishes.swap(0, Ordering::Acquire);
        // Requests that come from here on are for the next round: the state that they wait for may
        // come later too.
        let ended: Vec<_> = keeper.unrecorded.take().collect();
        state.line.extend(keeper.waiting.take());
        self.take_legs_back(keeper, state);
        if let Some(checked) = keeper.check.lock().take_unrecorded() {
            (state.head.checked, state.unwritten) = (checked, true);
        }
        let recorded = self.record(keeper, state);
        let answer = |parked: Box<ParkedRequest<HeldRequest>>| (parked.rq, recorded.clone());
        todo.answer.extend(ended.into_iter().map(answer));
        self.admit(keeper, state, &mut todo);
        if wishes & wish::RETRIED != 0 {
            state.retrying = false;
        }
        if wishes & wish::SYNCED != 0 {
            self.finish_resync(keeper, state);
        }
        if wishes & (wish::CLEAN | wish::SETTLE) != 0 {
            state.cleaning = false;
            self.clean(keeper, state, wishes & wish::SETTLE != 0);
        }
        if wishes & wish::SETTLE != 0 && std::mem::take(&mut state.changed) {
            self.part_from_copies(keeper, state);
        }
        self.set_timers(keeper, state);
        drop(guard);
        // This comes after the lock: if this was the last round, no other thread takes the writes
        // that were left in the line.
        keeper.unless_alone();
        for (rq, result) in todo.answer {
            rq.complete(result);
        }
        for (rq, error) in todo.refuse {
            rq.complete(Err(error));
        }
        for (rq, regions) in todo.send {
            self.send(rq, regions);
        }
        self.tell(keeper);
    }

    /// Brings the heads on disk up to date, if they aren't.
    pub(super) fn record(&self, keeper: &Keeper, state: &mut KeeperState) -> Result<(), IoError> {
        loop {
            if !state.unwritten && self.legs.states.is_recorded() {
                return Ok(());
            }
            self.write_heads(keeper, state, 0)?;
        }
    }

    /// Writes a head to all legs that are used, and to those of `joining`, which are out; returns
    /// which of the latter have it.
    pub(super) fn write_heads(
        &self,
        keeper: &Keeper,
        state: &mut KeeperState,
        joining: u32,
    ) -> Result<u32, IoError> {
        let in_sync = self.legs.states.in_sync();
        let to = self.legs.states.active() | joining;
        let mut head = state.next_head(in_sync);
        let events = head.events;
        if to == self.legs.members() {
            head.whole = events;
        }
        let ended = keeper.disk.write_head(&self.legs, to, &head);
        let (good, bad) = disk::masks(&ended);
        let (theirs, ours): (disk::LegResults, disk::LegResults) =
            ended.into_iter().partition(|(n, _)| joining & 1 << n != 0);
        for (n, error) in errors(theirs) {
            self.tell_dropped(n, &error);
        }
        self.drop_failed(&ours);
        if good & in_sync == 0 {
            let error = errors(ours).next().map(|(_, error)| error);
            return Err(error.unwrap_or_else(|| IoError::new(IoErrorKind::Gone)));
        }
        self.legs.states.recorded(in_sync);
        state.unwritten = false;
        if bad & in_sync == 0 {
            state.head.common = events;
        }
        if good == to {
            state.head.whole = head.whole;
        }
        Ok(good & joining)
    }

    /// Makes each copy of a leg that was made meanwhile an old one, at the end (Part). It takes two
    /// heads, since a leg is believed if its head is as new as the last that all have: the second
    /// says that this is the first.
    fn part_from_copies(&self, keeper: &Keeper, state: &mut KeeperState) {
        for _ in 0..2 {
            // If this fails, the copy is as hard to distinguish from the leg as before.
            if self.write_heads(keeper, state, 0).is_err() {
                return;
            }
        }
    }

    /// Sends on the changes whose regions let them in, after setting the bits that they lack.
    fn admit(&self, keeper: &Keeper, state: &mut KeeperState, todo: &mut DeferredWork) {
        let refused = self.enter(keeper, state, todo);
        let mut lacking: Vec<usize> = refused
            .into_iter()
            .flatten()
            .filter(|&n| state.bits[n / 8] & 1 << (n % 8) == 0)
            .collect();
        if lacking.is_empty() {
            return;
        }
        let now = Stamp::precise();
        if state.begun.is_none_or(|begun| now.since(begun) > keeper.options.clean_after) {
            (state.begun, state.rounds) = (Some(now), 0);
        }
        let is_set = |n: usize| state.bits[n / 8] & 1 << (n % 8) != 0;
        let ahead: Vec<usize> = lacking
            .iter()
            .flat_map(|&n| {
                leg_states::with(n, n > 0 && is_set(n - 1), state.rounds, keeper.regions.len())
            })
            .filter(|&n| !is_set(n))
            .collect();
        lacking.extend(ahead);
        lacking.sort_unstable();
        lacking.dedup();
        state.rounds += 1;
        match self.set_bits(keeper, state, &lacking) {
            Ok(()) => {
                self.enter(keeper, state, todo);
            }
            Err(error) => {
                // Without the bits a crash could leave legs that differ silently.
                let refuse = |parked: Box<ParkedRequest<Started>>| (parked.rq, error.clone());
                todo.refuse.extend(state.line.drain(..).map(refuse));
            }
        }
    }

    /// Lets changes into their regions if possible; returns the regions that the others need.
    fn enter(
        &self,
        keeper: &Keeper,
        state: &mut KeeperState,
        todo: &mut DeferredWork,
    ) -> Vec<std::ops::Range<usize>> {
        let mut refused = Vec::new();
        for parked in std::mem::take(&mut state.line) {
            let regions = keeper.regions.of(parked.rq.offset(), parked.rq.len());
            match keeper.regions.enter(regions.clone()) {
                RegionEntry::In => todo.send.push((parked.rq, regions)),
                RegionEntry::Wait { wake } => {
                    if wake {
                        keeper.kick_resync();
                    }
                    refused.push(regions);
                    state.line.push_back(parked);
                }
            }
        }
        refused
    }

    /// Records durably that the legs may differ in these regions.
    pub(super) fn set_bits(
        &self,
        keeper: &Keeper,
        state: &mut KeeperState,
        regions: &[usize],
    ) -> Result<(), IoError> {
        let before = state.bits.clone();
        state.changed = true;
        regions.iter().for_each(|&n| state.bits[n / 8] |= 1 << (n % 8));
        loop {
            let states = &self.legs.states;
            let in_sync = states.in_sync();
            let ended = keeper.disk.write_bits(&self.legs, states.active(), &state.bits, regions);
            self.drop_failed(&ended);
            let (good, _) = disk::masks(&ended);
            if states.in_sync() & !good == 0 {
                regions.iter().for_each(|&n| keeper.regions.mark(n));
                return Ok(());
            }
            if in_sync & good == 0 {
                state.bits = before;
                let error = errors(ended).next().map(|(_, error)| error);
                return Err(error.unwrap_or_else(|| IoError::new(IoErrorKind::Gone)));
            }
            // A leg that has the bits was dropped meanwhile, and those that are left lack them.
        }
    }

    /// Reports that a resync begins, and starts it. `joined` has its legs, also if a step has
    /// dropped them already.
    pub(super) fn begin_resync(&self, keeper: &Keeper, state: &mut KeeperState, joined: u32) {
        let rebuilding = self.legs.states.rebuilding() | joined;
        let legs = list(rebuilding);
        let bytes = keeper.amounts().0;
        // Debug: the numbers of legs.
        tracing::info!(?legs, bytes, "a mirror resyncs");
        keeper.resynced.store(0, Ordering::Relaxed);
        keeper.note(MirrorEvent::ResyncBegan { legs, bytes });
        state.resyncing = state.resyncing.filter(|legs| *legs == 0).or(Some(rebuilding));
        keeper.kick_resync();
    }

    /// Ends the resync when nothing is stale any more: legs that were being resynced have
    /// everything.
    fn finish_resync(&self, keeper: &Keeper, state: &mut KeeperState) {
        if keeper.regions.stale() != 0 {
            return keeper.kick_resync();
        }
        let rebuilding = self.legs.states.rebuilding();
        // The copy has to be as durable as the record's word that it is there.
        let flushed = disk::flush(&self.legs, self.legs.states.active());
        self.drop_failed(&flushed);
        for (n, error) in errors(flushed).filter(|(n, _)| rebuilding & 1 << n != 0) {
            self.drop_leg(n, &error);
        }
        if let Err(error) = self.announce(keeper, state) {
            for n in each(self.legs.states.rebuilding()) {
                self.drop_leg(n, &error);
            }
        }
        let done = self.legs.states.promote(rebuilding);
        // If this fails, the next head says it: until then these legs are only not trusted.
        let _ = self.record(keeper, state);
        // If all legs that it was for are out, nothing has been made alike.
        let ended = |legs: u32| legs == 0 || done != 0;
        if state.resyncing.take().is_some_and(ended) {
            let (legs, bytes) = (list(done), keeper.resynced.load(Ordering::Relaxed));
            // Debug: the numbers of legs.
            tracing::info!(?legs, bytes, "a mirror is in sync again");
            keeper.note(MirrorEvent::ResyncEnded { legs, bytes });
        }
    }

    /// First makes the heads of the legs in sync call the resynced ones in sync, durably (Promote).
    /// From then on changes may count there, and the others may be dropped for failing them:
    /// otherwise a start would believe a leg alone that doesn't know of this.
    fn announce(&self, keeper: &Keeper, state: &mut KeeperState) -> Result<(), IoError> {
        // This comes before the head is sent: the head may be on disk from then on, also if it
        // fails.
        let new = self.legs.states.claim();
        if new == 0 {
            return Ok(());
        }
        let knew = self.legs.states.in_sync();
        let head = state.next_head(knew | new);
        let ended = keeper.disk.write_head(&self.legs, knew, &head);
        let good = disk::masks(&ended).0;
        self.drop_failed(&ended);
        if self.legs.states.in_sync() & !good == 0 {
            return Ok(());
        }
        let error = errors(ended).next().map(|(_, error)| error);
        Err(error.unwrap_or_else(|| IoError::new(IoErrorKind::Gone)))
    }

    /// Takes the bits away from regions without recent writes.
    fn clean(&self, keeper: &Keeper, state: &mut KeeperState, at_once: bool) {
        let dirty = state.dirty();
        let age = |n: usize| keeper.regions.age(n);
        if at_once {
            for &n in &dirty {
                let _ = age(n);
            }
        }
        let old: Vec<usize> = dirty.into_iter().filter(|&n| age(n) == RegionAge::Old).collect();
        // This comes after the look: if the look saw a write ended there, this sees the leg that
        // the write dropped. A write in flight needs the bits when it comes back. Also, each leg
        // needs a head that distinguishes it from its earlier state.
        let is_whole = state.head.whole == state.head.events;
        if old.is_empty() || self.legs.out() != 0 || !is_whole || !keeper.has_record() {
            return;
        }
        // Each write is durable on all legs, or its bit stays.
        let flushed = disk::flush(&self.legs, self.legs.states.active());
        self.drop_failed(&flushed);
        if disk::masks(&flushed).1 != 0 || self.legs.out() != 0 {
            return;
        }
        let clean: Vec<usize> = old.into_iter().filter(|&n| keeper.regions.clean(n)).collect();
        clean.iter().for_each(|&n| state.bits[n / 8] &= !(1 << (n % 8)));
        let active = self.legs.states.active();
        let ended = keeper.disk.write_bits(&self.legs, active, &state.bits, &clean);
        self.drop_failed(&ended);
    }

    fn set_timers(&self, keeper: &Keeper, state: &mut KeeperState) {
        if keeper.settling.load(Ordering::Relaxed) {
            return;
        }
        let cleans = keeper.has_record() && !state.cleaning;
        if cleans && state.bits.iter().any(|byte| *byte != 0) && self.legs.out() == 0 {
            state.cleaning = true;
            let _ = keeper.queue.queue_delayed(&keeper.clean, keeper.options.clean_after);
        }
        let out = self.legs.out() != 0;
        if let (true, false, Some(after)) = (out, state.retrying, keeper.options.retry) {
            state.retrying = true;
            let _ = keeper.queue.queue_delayed(&keeper.retry, after);
        }
    }

    fn tell(&self, keeper: &Keeper) {
        let events = std::mem::take(&mut *keeper.events.lock());
        let Some(observer) = &keeper.options.observer else { return };
        for event in events {
            if caught(|| observer(&event)).is_none() {
                tracing::error!("the observer of a mirror panicked");
            }
        }
    }
}

/// Returns the failed ones of a round of requests.
pub(super) fn errors(ended: disk::LegResults) -> impl Iterator<Item = (usize, IoError)> {
    ended.into_iter().filter_map(|(n, end)| Some((n, end.err()?)))
}

// A mirror without workers: its keeper's item never runs again, so the requests that wait for it
// end here. Recording takes a thread that may block, and no caller here is known to be one.
// `README.md` beside this file argues that no request is overlooked.

impl MirrorState {
    /// Ends the waiting requests, since the workers are gone for good. Never blocks: a round of the
    /// keeper may wait for a leg that this thread notifies after this mirror.
    pub(super) fn workers_are_gone(&self) {
        self.keeper.end.come();
        self.keeper.refuse_all();
        self.legs.answered(all(self.legs.len()));
    }
}

impl Keeper {
    /// Asks, after leaving a request for the keeper, whether the workers are gone (Ask). The caller
    /// holds no lock; any context.
    pub(super) fn unless_alone(&self) {
        if self.end.has_come() {
            self.refuse_all();
        }
    }

    /// Fails the requests that wait for the record, which can't be written any more (Look). Never
    /// blocks.
    #[cold]
    fn refuse_all(&self) {
        // If it is taken, its owner asks when it has left it.
        let line = self.state.try_lock().map(|mut state| std::mem::take(&mut state.line));
        let parked = line.into_iter().flatten().chain(self.waiting.take());
        parked.for_each(|parked| parked.rq.complete(Err(IoError::workers_gone())));
        // These have succeeded on the legs, but on which ones would be forgotten.
        let unrecorded = self.unrecorded.take();
        unrecorded.for_each(|parked| parked.rq.complete(Err(IoError::workers_gone())));
    }
}
