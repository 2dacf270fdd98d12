//! The way of a request into its queue, and to its hardware queue.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_sync::{Mutex, Throttle, context};
use corewise_topology::{CpuId, current_cpu};
use corewise_workqueue::Workqueue;

use crate::admission::end::EndOfWorkers;
use crate::admission::flusher::Flusher;
use crate::admission::gate::RunGate;
use crate::admission::usage::Usage;
use crate::percpu::cache::{BoxSource, Cache};
use crate::percpu::map::{Layout, SoftwareQueues};
use crate::request::error::{IoError, IoErrorKind};
use crate::request::geometry::Geometry;
use crate::request::limits::{self, Limits};
use crate::request::{Flags, Op};
use crate::sched::IoScheduler;
use crate::state::completer::Placement;
use crate::state::core::{Core, Hctx};
use crate::state::driver::{Driver, Info};
use crate::state::late::Timeouts;
use crate::state::pending::Pending;
use crate::state::request::Request;
use crate::stats::{Counters, HctxStats, IoStats, PerSlot};
use crate::tags::{TagSet, TagUser};
use crate::{nest, shape};

/// The parts from which a core is made.
pub(super) struct CoreParts {
    pub(super) name: Box<str>,
    pub(super) driver: Arc<dyn Driver>,
    /// The driver's description of itself.
    pub(super) info: Info,
    pub(super) layout: Layout,
    pub(super) depth: u32,
    /// True if requests may go to a device below without a tag.
    pub(super) may_remap: bool,
    pub(super) nr_requests: u32,
    pub(super) tags: Option<TagSet>,
    pub(super) scheduler: IoScheduler,
    pub(super) live: bool,
    pub(super) wq: Option<Workqueue>,
    pub(super) iostats: IoStats,
    pub(super) placement: Option<Placement>,
    pub(super) timeout: Option<Duration>,
}

/// Makes the hardware queues of a core.
fn hctxs(core: &Weak<Core>, parts: &CoreParts) -> Box<[Hctx]> {
    let (slots, n) = (parts.layout.map.slots(), parts.layout.hw_queues());
    let hctx = |index| {
        let tags = match &parts.tags {
            Some(set) => TagUser::of(set, {
                let core = Weak::clone(core);
                // The thread is unknown here: perhaps one in another queue's completion.
                move || {
                    if let Some(core) = Weak::upgrade(&core) {
                        core.hctx(index).run_async(&core);
                    }
                }
            }),
            None => TagUser::alone(parts.depth, slots.div_ceil(n)),
        };
        let (core, timeouts) = (Weak::clone(core), parts.timeout.is_some());
        Hctx::new(index, core, slots, tags, parts.scheduler, &parts.wq, timeouts)
    };
    (0..n).map(hctx).collect()
}

impl Core {
    pub(super) fn new(parts: CoreParts) -> Arc<Self> {
        // At most one hardware queue for each CPU.
        let slots = parts.layout.map.slots();
        let theirs = parts.info.geometry;
        let core = Arc::new_cyclic(|core| {
            let hctxs = hctxs(core, &parts);
            Self {
                name: parts.name,
                kind: parts.info.kind,
                may_block: parts.info.may_block,
                geometry: limits::outer(&theirs),
                size: AtomicU64::new(theirs.size),
                read_only: parts.info.read_only_latch,
                growing: Mutex::new(()),
                limits: Limits::new(&theirs),
                merges: parts.info.merges,
                knows_extents: parts.info.knows_extents,
                emulates_fua: shape::emulates_fua(&theirs),
                flusher: Flusher::new(),
                losses: AtomicU64::new(0),
                doubt: AtomicBool::new(false),
                may_remap: parts.may_remap,
                driver: parts.driver,
                gate: RunGate::new(),
                usage: Usage::new(slots, parts.nr_requests),
                layout: parts.layout,
                software: SoftwareQueues::new(slots),
                cache: Cache::new(slots),
                outside: Inbox::new(),
                hctxs,
                visitor_stats: PerSlot::new(slots),
                iostats: parts.iostats,
                disk: Counters::new(slots),
                placement: parts.placement,
                timeouts: parts
                    .timeout
                    .map(|after| Timeouts::new(after, Weak::clone(core), parts.wq.as_ref())),
                dead: AtomicBool::new(false),
                given_up: AtomicBool::new(false),
                errors: Throttle::new(),
                end: EndOfWorkers::new(),
                notice: OnceLock::new(),
                scheduler: parts.scheduler,
                live: parts.live,
                wq: parts.wq,
            }
        });
        if let Some(wq) = &core.wq {
            let told = Arc::downgrade(&core);
            let notice = wq.on_end(move || {
                if let Some(core) = Weak::upgrade(&told) {
                    core.workers_are_gone();
                }
            });
            core.notice.get_or_init(|| notice);
        }
        core
    }

    /// Records that a flush, or a durable change, has failed with this error, before that is
    /// reported.
    pub(crate) fn note_loss(&self, op: Op, error: &IoError) {
        if error.kind().may_be_a_loss(op) {
            self.losses.fetch_add(1, Ordering::Release);
            self.doubt.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a flush has succeeded.
    pub(crate) fn note_flush(&self) {
        if self.doubt.load(Ordering::Relaxed) {
            self.doubt.store(false, Ordering::Relaxed);
        }
    }

    /// Returns true if changes may be lost, by the results of flushes.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubt.load(Ordering::Relaxed)
    }

    /// Returns how often flushes failed so that changes may be lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Runs all hardware queues after the worker pools have ended: a request for a worker before
    /// may wait in vain.
    fn workers_are_gone(&self) {
        self.end.come();
        // Look: each is run, by this thread.
        self.hctxs().for_each(|hctx| hctx.run_async(self));
    }

    /// Completes as gone all requests that are pending or come later: no thread can run them.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Returns the error of requests that complete as gone.
    pub(crate) fn gone(&self) -> IoError {
        if self.is_dropped() {
            return IoError::new(IoErrorKind::Gone);
        }
        IoError::workers_gone()
    }

    /// Tells the driver which CPUs go to which hardware queue. This runs the driver's own code, so
    /// no lock is held.
    pub(super) fn tell_mapped(&self) {
        let told = if self.live { self.layout.hw_queues() } else { 0 };
        for hctx in 0..told {
            self.driver.mapped(hctx, self.layout.cpus_of(hctx));
        }
    }

    /// Returns hardware queue `index`.
    ///
    /// # Panics
    /// If there is no such queue.
    #[inline]
    #[track_caller]
    pub(crate) fn hctx(&self, index: usize) -> &Hctx {
        match self.hctxs.get(index) {
            Some(hctx) => hctx,
            None => self.has_no_hctx(index),
        }
    }

    #[cold]
    #[track_caller]
    fn has_no_hctx(&self, index: usize) -> ! {
        let (name, there) = (&self.name, self.hctxs.len());
        panic!("`{name}` has no hardware queue {index}: it has {there}, counted from 0")
    }

    /// Returns all hardware queues.
    pub(crate) fn hctxs(&self) -> impl Iterator<Item = &Hctx> {
        self.hctxs.iter()
    }

    /// Returns the slot of the CPU that the caller is on.
    #[inline]
    pub(crate) fn here(&self) -> usize {
        self.layout.map.slot(current_cpu().unwrap_or(CpuId::new(0)))
    }

    /// Waits, on a thread that may block, until there is room for a request through `slot`.
    #[inline]
    pub(crate) fn make_room(&self, slot: usize) {
        if !self.usage.has_room(slot) {
            self.wait_for_room(slot);
        }
    }

    /// Waits for room, unless only this thread could make it: a test steps the queue, or the thread
    /// has a pass to end first.
    #[cold]
    fn wait_for_room(&self, slot: usize) {
        if self.wq.is_some() && !context::in_atomic_section() && !self.is_in_a_pass() {
            context::blocking("a wait for room in a queue", || self.usage.wait_for_room(slot));
        }
    }

    /// Returns true if the thread is in a pass of one of the hardware queues. If the driver may
    /// block, a pass isn't an atomic section, and this is the only sign of it.
    fn is_in_a_pass(&self) -> bool {
        self.hctxs().any(nest::is_in_pass_of)
    }

    /// Returns the device's present geometry.
    pub(super) fn geometry(&self) -> Geometry {
        let read_only = self.geometry.read_only || self.read_only.is_set();
        Geometry { size: self.size.load(Ordering::Acquire), read_only, ..self.geometry }
    }

    /// Makes the driver grow, and returns the new size.
    pub(super) fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let _alone = self.growing.lock();
        let new = self.driver.grow(size)?;
        self.size.fetch_max(new, Ordering::Release);
        Ok(new)
    }

    /// Checks a request, takes it in, and runs its hardware queue.
    #[inline]
    pub(crate) fn submit(self: &Arc<Self>, slot: usize, rq: Request) {
        if let Some(pending) = self.accept(slot, rq).and_then(|pending| self.get_in(pending)) {
            self.send(pending);
        }
    }

    /// Checks a request and puts it into a box; `None` if it completed at once.
    pub(super) fn accept(self: &Arc<Self>, slot: usize, mut rq: Request) -> Option<Box<Pending>> {
        let size = self.size.load(Ordering::Acquire);
        match judge(&self.geometry, size, rq.op(), rq.offset(), rq.len(), rq.flags()) {
            Judgement::Queue if rq.op() != Op::Extents || self.knows_extents => {}
            Judgement::Queue | Judgement::Nothing => {
                rq.complete(Ok(()));
                return None;
            }
            Judgement::Refuse(error) => {
                rq.complete(Err(error));
                return None;
            }
        }
        if let Err(error) = rq.prepare(self.geometry.memory_alignment as usize) {
            rq.complete(Err(error));
            return None;
        }
        Some(self.pack(rq, slot))
    }

    /// Takes requests in, and runs each hardware queue that needs it once.
    pub(crate) fn submit_all(self: &Arc<Self>, batch: &mut dyn Iterator<Item = Request>) {
        let slot = self.here();
        let mut owed = PendingRun { core: self, slot, hctx: None };
        let mut next = batch.next();
        while let Some(rq) = next {
            if !self.usage.has_room(slot) {
                // Requests before this one make the room.
                owed.pay();
                self.wait_for_room(slot);
            }
            // Called before this request is inside, since the iterator is the caller's.
            next = batch.next();
            let inside = self.accept(slot, rq).and_then(|pending| self.get_in(pending));
            match inside.map(|pending| self.route(pending)) {
                Some(Route::Straight(pending)) if next.is_none() => {
                    if owed.hctx == Some(pending.hctx) {
                        owed.hctx = None; // run with this one
                    }
                    self.hctx(pending.hctx).issue(self, pending);
                }
                Some(Route::Straight(pending)) => owed.owe(self.enqueue(pending)),
                Some(Route::Around(Some(hctx))) => owed.owe(hctx),
                Some(Route::Around(None)) | None => {}
            }
        }
    }

    /// Returns a box for a request that comes through `slot`.
    pub(crate) fn pack(self: &Arc<Self>, rq: Request, slot: usize) -> Box<Pending> {
        match self.cache.take(slot) {
            BoxSource::Kept(mut pending) => {
                pending.refill(rq);
                pending
            }
            BoxSource::Make => Pending::new(self, rq, slot, true),
            BoxSource::MakeOnce => Pending::new(self, rq, slot, false),
        }
    }

    /// Counts a request in; `None` if it waits outside. Lock-free.
    pub(super) fn get_in(&self, pending: Box<Pending>) -> Option<Box<Pending>> {
        let mut pending = pending;
        loop {
            if let Some(generation) = self.usage.enter(pending.slot) {
                pending.generation = generation;
                return Some(pending);
            }
            // Park, ParkFence (see `usage.rs`): either we see the thaw, or the thaw sees us.
            self.usage.park();
            self.outside.push(pending);
            if self.usage.is_frozen_fenced() {
                return None;
            }
            // The queue was thawed meanwhile, and the thaw may have missed us: let in those
            // outside.
            let mut outside = self.take_outside();
            pending = outside.next()?;
            for other in outside {
                if let Some(hctx) = self.get_in(other).and_then(|other| self.push(other)) {
                    self.hctx(hctx).run_async(self);
                }
            }
        }
    }

    /// Sends a request that is inside on its way, to the driver if it may go there.
    #[inline]
    pub(super) fn send(&self, pending: Box<Pending>) {
        let slot = pending.slot;
        match self.route(pending) {
            Route::Straight(pending) => self.hctx(pending.hctx).issue(self, pending),
            Route::Around(Some(hctx)) => self.hctx(hctx).visit(self, slot, true),
            Route::Around(None) => {}
        }
    }

    /// Puts a request that is inside on its way, and returns the hardware queue that the caller
    /// then runs; `None` if the request waits for a flush in flight.
    pub(crate) fn push(&self, pending: Box<Pending>) -> Option<usize> {
        match self.route(pending) {
            Route::Straight(pending) => Some(self.enqueue(pending)),
            Route::Around(hctx) => hctx,
        }
    }

    /// Finds the way of a request that is inside. It is counted in, so the layout stays as it is.
    fn route(&self, mut pending: Box<Pending>) -> Route {
        let rq = pending.rq();
        let (op, len) = (rq.op(), rq.len());
        if op == Op::Flush && !pending.is_internal() {
            return Route::Around(shape::wait_for_flush(pending));
        }
        if self.emulates_fua && rq.flags().fua {
            shape::flush_behind(&mut pending);
        }
        if !self.limits.takes_at_once(op, len, pending.rq().entries())
            && pending.rq().first_within(&self.limits) != Some(len)
        {
            return Route::Around(shape::split(pending));
        }
        pending.hctx = self.layout.hctx_of(pending.slot);
        Route::Straight(pending)
    }

    /// Puts a request without further steps into its software queue, or into its runner's hand.
    /// Returns its hardware queue, which the caller then runs.
    pub(crate) fn enqueue(&self, pending: Box<Pending>) -> usize {
        let (slot, hctx) = (pending.slot, pending.hctx);
        let theirs = self.hctx(hctx);
        if let Some(pending) = theirs.keep(pending) {
            self.software.push(&theirs.ctxs, slot, pending);
        }
        hctx
    }

    fn take_outside(&self) -> impl Iterator<Item = Box<Pending>> {
        self.outside.take().inspect(|_| self.usage.unpark())
    }

    /// Lets in the requests that wait outside. The caller then runs all hardware queues.
    pub(super) fn let_in(&self) {
        for pending in self.take_outside() {
            self.get_in(pending).and_then(|pending| self.push(pending));
        }
    }

    /// Returns true if the queue is being dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Returns true if the queue is being dropped, or no thread can run it any more.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dropped() || self.given_up.load(Ordering::Acquire)
    }

    /// Ends the queue when its handle goes. Waiting requests complete as gone, those in the driver
    /// are finished, and boxes that come back are dropped, so that nothing keeps this alive.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
        self.cache.close();
        self.take_outside().for_each(drop);
        for hctx in self.hctxs() {
            hctx.run_to_the_end(self);
        }
        self.errors.take_left_out().tell(|left_out| {
            tracing::warn!(device = %self.name, left_out, "more requests failed");
        });
    }

    pub(super) fn stats(&self, index: usize) -> HctxStats {
        let mut stats = self.hctx(index).stats();
        for slot in self.layout.slots_of(index) {
            self.visitor_stats.add(slot, &mut stats);
        }
        stats
    }
}

/// The way of a request that is inside.
enum Route {
    /// The hardware queue of the unchanged request.
    Straight(Box<Pending>),
    /// Parts, or a flush before or after. The caller runs this hardware queue, if there is one.
    Around(Option<usize>),
}

/// The hardware queue to run for a batch. Its drop runs it, so that it is run if the iterator of a
/// batch panics.
struct PendingRun<'a> {
    core: &'a Core,
    slot: usize,
    hctx: Option<usize>,
}

impl PendingRun<'_> {
    /// Records that the hardware queue is to be run. It is another one than before only if the
    /// queue was frozen and its map changed meanwhile.
    fn owe(&mut self, hctx: usize) {
        if let Some(other) = self.hctx.replace(hctx) {
            if other != hctx {
                self.core.hctx(other).visit(self.core, self.slot, true);
            }
        }
    }

    /// Runs the hardware queue now.
    fn pay(&mut self) {
        if let Some(hctx) = self.hctx.take() {
            self.core.hctx(hctx).visit(self.core, self.slot, true);
        }
    }
}

impl Drop for PendingRun<'_> {
    fn drop(&mut self) {
        self.pay();
    }
}

/// The judgement about a request before it is queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The request is queued.
    Queue,
    /// The request needs no work, and completes at once, successfully.
    Nothing,
    /// The request completes at once with this error.
    Refuse(IoError),
}

/// Judges a request by the device's state and abilities. Overflow-safe for any numbers, since they
/// may come from a client. `size` is the device's present size.
pub(crate) fn judge(
    g: &Geometry,
    size: u64,
    op: Op,
    offset: u64,
    len: u64,
    flags: Flags,
) -> Judgement {
    use IoErrorKind::{InvalidInput, NoSpace, NotSupported, OutOfRange, ReadOnly};
    let refuse = |kind, why: String| Judgement::Refuse(IoError::with(kind, why));
    let asked = || format!("{op} of {len} bytes at {offset}");

    if op == Op::Flush {
        return if g.can_flush { Judgement::Queue } else { Judgement::Nothing };
    }
    if op.is_change() && g.read_only {
        return refuse(ReadOnly, asked());
    }
    let can = match op {
        Op::Discard => g.can_discard,
        Op::WriteZeroes => g.can_write_zeroes && (g.can_fast_zero || !flags.fast),
        Op::Prefetch => g.can_prefetch,
        Op::Read | Op::Write | Op::Flush | Op::Extents => true,
    };
    if !can {
        return refuse(NotSupported, asked());
    }
    // A device without a volatile cache is durable anyway: `fua` asks for nothing there.
    if flags.fua && op.is_change() && g.can_flush && !g.can_fua {
        return refuse(NotSupported, format!("{} with fua", asked()));
    }
    let block = u64::from(g.block_size);
    let fits = |bytes: u64| bytes.checked_rem(block) == Some(0);
    if !fits(offset) || !fits(len) {
        return refuse(
            InvalidInput,
            format!("{}: it must consist of whole blocks of {block} bytes", asked()),
        );
    }
    if matches!(op, Op::Read | Op::Write) && len > u64::from(g.max_transfer) {
        return refuse(
            InvalidInput,
            format!("{}: the device takes at most {} at once", asked(), g.max_transfer),
        );
    }
    if offset.checked_add(len).is_none_or(|end| end > size) {
        let kind = if matches!(op, Op::Write | Op::WriteZeroes) { NoSpace } else { OutOfRange };
        return refuse(kind, format!("{}: the device has {size} bytes", asked()));
    }
    if len == 0 { Judgement::Nothing } else { Judgement::Queue }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: Geometry = Geometry { max_transfer: 4096, ..Geometry::new(8192) };

    fn kind(g: &Geometry, op: Op, offset: u64, len: u64) -> Result<Judgement, IoErrorKind> {
        match judge(g, g.size, op, offset, len, Flags::default()) {
            Judgement::Refuse(error) => Err(error.kind()),
            taken => Ok(taken),
        }
    }

    #[test]
    fn the_last_block_is_in_range_and_one_beyond_is_not() {
        assert_eq!(kind(&G, Op::Read, 7680, 512), Ok(Judgement::Queue));
        assert_eq!(kind(&G, Op::Read, 7680, 1024), Err(IoErrorKind::OutOfRange));
        assert_eq!(kind(&G, Op::Discard, 8192, 512), Err(IoErrorKind::OutOfRange));
        assert_eq!(kind(&G, Op::Write, 8192, 512), Err(IoErrorKind::NoSpace));
        assert_eq!(kind(&G, Op::WriteZeroes, 0, 1 << 20), Err(IoErrorKind::NoSpace));
    }

    #[test]
    fn offsets_near_the_end_of_u64_do_not_wrap_around() {
        let last = u64::MAX - 511;
        assert_eq!(kind(&G, Op::Read, last, 512), Err(IoErrorKind::OutOfRange));
        assert_eq!(kind(&G, Op::Write, last, 1024), Err(IoErrorKind::NoSpace));
        assert_eq!(kind(&G, Op::Discard, last, last), Err(IoErrorKind::OutOfRange));
    }

    #[test]
    fn parts_of_blocks_are_refused() {
        assert_eq!(kind(&G, Op::Read, 1, 512), Err(IoErrorKind::InvalidInput));
        assert_eq!(kind(&G, Op::Write, 512, 511), Err(IoErrorKind::InvalidInput));
    }

    #[test]
    fn transfers_are_limited_and_discards_are_not() {
        assert_eq!(kind(&G, Op::Read, 0, 4096), Ok(Judgement::Queue));
        assert_eq!(kind(&G, Op::Write, 0, 4608), Err(IoErrorKind::InvalidInput));
        assert_eq!(kind(&G, Op::Discard, 0, 8192), Ok(Judgement::Queue));
    }

    #[test]
    fn a_read_only_device_reads_and_flushes() {
        let g = Geometry { read_only: true, ..G };
        assert_eq!(kind(&g, Op::Read, 0, 512), Ok(Judgement::Queue));
        assert_eq!(kind(&g, Op::Flush, 0, 0), Ok(Judgement::Queue));
        for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
            assert_eq!(kind(&g, op, 0, 512), Err(IoErrorKind::ReadOnly));
        }
    }

    #[test]
    fn an_empty_transfer_succeeds_where_a_full_one_would() {
        assert_eq!(kind(&G, Op::Read, 8192, 0), Ok(Judgement::Nothing));
        assert_eq!(kind(&G, Op::Read, 8704, 0), Err(IoErrorKind::OutOfRange));
    }

    #[test]
    fn unsupported_operations_are_refused() {
        let g = Geometry { can_discard: false, can_fua: false, ..G };
        assert_eq!(kind(&g, Op::Discard, 0, 512), Err(IoErrorKind::NotSupported));
        let fua = Flags { fua: true, ..Flags::default() };
        assert!(matches!(judge(&g, g.size, Op::Write, 0, 512, fua), Judgement::Refuse(_)));
        let durable = Geometry { can_flush: false, ..g };
        assert_eq!(judge(&durable, durable.size, Op::Write, 0, 512, fua), Judgement::Queue);
        assert_eq!(judge(&durable, durable.size, Op::Flush, 0, 0, fua), Judgement::Nothing);
        assert_eq!(
            judge(&g, g.size, Op::Read, 0, 512, fua),
            Judgement::Queue,
            "fua means nothing to a read"
        );
    }
}
