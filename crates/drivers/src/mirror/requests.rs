//! The way of a request through a mirror: a read to one leg after the other, a change to all.

use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{HeldRequest, IoError, IoErrorKind, Op, PartDone, Request, Started, Whole};
use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicU64, Ordering};

use super::MirrorState;
use super::legs::{LegPresence, Legs, each};
use crate::mirror::regions::RegionEntry;

impl MirrorState {
    /// Sends a read to one leg; if it fails, its completion tries the next one. The queue of a leg
    /// that fails reports it: clients may never see the failure.
    pub(super) fn read(self: &Arc<Self>, whole: &Whole) {
        let (offset, len) = (whole.request().offset(), whole.request().len());
        let Some((n, there)) = self.choose(offset, len, 0) else { return };
        let asked = self.asked((n, there.era), offset + len, Vec::new());
        there.device.submit(whole.part_with(0, len, offset, asked).with_quiet(false));
    }

    /// Chooses the leg for a read that failed on the legs `tried`.
    fn choose(&self, offset: u64, len: u64, tried: u32) -> Option<(usize, Arc<LegPresence>)> {
        let regions = &self.keeper.regions;
        let differ = regions.is_stale(regions.of(offset, len));
        loop {
            let n = self.legs.choose(offset, tried, differ)?;
            // It may be another device than a moment before, one without content yet, or none. Then
            // this sees that the leg was dropped for it.
            let there = self.legs.there(n);
            if let (Some(there), true) = (there, self.legs.states.in_sync() & 1 << n != 0) {
                return Some((n, there));
            }
        }
    }

    /// Handles the end of a read up to `end` on the device of that era of leg `n`, which comes
    /// after `failed`.
    fn asked(
        self: &Arc<Self>,
        (n, era): (usize, u64),
        end: u64,
        failed: Vec<FailedLeg>,
    ) -> impl FnOnce(PartDone) + Send + use<> {
        self.legs.begin_read(n, end);
        let inner = Arc::clone(self);
        move |done| {
            inner.legs.end(n);
            let error = match done.result() {
                Err(error) => error.clone(),
                Ok(()) if failed.is_empty() || done.whole().request().op() != Op::Read => return,
                Ok(()) => return inner.read_elsewhere(done.whole().request(), &failed),
            };
            let mut failed = failed;
            failed.push(FailedLeg { n, era, error });
            let tried = mask(&failed);
            let whole = done.whole();
            let (offset, len) = (whole.request().offset(), whole.request().len());
            let Some((next, there)) = inner.choose(offset, len, tried) else {
                // All legs that are left have failed; the first one's error is reported.
                return done.fail(failed.swap_remove(0).error);
            };
            let asked = inner.asked((next, there.era), end, failed);
            there.device.submit(done.again_with(offset, asked).with_quiet(false));
        }
    }

    /// Writes legs anew at a place that they could not read and another one could, or drops them.
    fn read_elsewhere(&self, rq: &Request, failed: &[FailedLeg]) {
        let keeper = &self.keeper;
        let regions = keeper.regions.of(rq.offset(), rq.len());
        if keeper.regions.is_stale(regions.clone()) {
            // The resync is about to come there, and finds it.
            return;
        }
        for FailedLeg { n, error, .. } in failed.iter().filter(|failed| failed.counts(&self.legs)) {
            if !self.legs.forgive(*n) {
                self.drop_leg(*n, error);
                continue;
            }
            tracing::warn!(
                leg = &*self.legs.name(*n),
                offset = rq.offset(),
                errno = error.errno(),
                "a leg of a mirror could not be read; the mirror rewrites the block"
            );
            regions.clone().for_each(|n| keeper.regions.mark_stale(n));
        }
        keeper.kick_resync();
    }

    /// Starts a change or a flush: it goes to the legs once its regions let it in.
    pub(super) fn change(self: &Arc<Self>, rq: Started) {
        let keeper = &self.keeper;
        if rq.op() == Op::Flush {
            return self.send(rq, 0..0);
        }
        let regions = keeper.regions.of(rq.offset(), rq.len());
        match keeper.regions.enter(regions.clone()) {
            RegionEntry::In => self.send(rq, regions),
            RegionEntry::Wait { wake } => {
                if wake {
                    keeper.kick_resync();
                }
                keeper.park(rq);
            }
        }
    }

    /// Sends a change, which has entered `regions`, to all legs.
    pub(super) fn send(self: &Arc<Self>, rq: Started, regions: Range<usize>) {
        // This comes after the entry: a leg that is taken back from here on gets this region by the
        // resync, which waits until the change has left it.
        let active = self.legs.states.active();
        let (op, offset, len) = (rq.op(), rq.offset(), rq.len());
        let bytes = offset..offset + len;
        // One leg alone differs from none. A leg that comes back gets this region by the resync.
        let may_overlap = op != Op::Flush && active.count_ones() > 1;
        let shared = may_overlap.then(|| self.overlaps.begin(regions.clone(), &bytes)).flatten();
        let overlaps = shared.is_some();
        if let Some(shared) = shared {
            // This comes before it is sent: from now on all reads go to one leg there.
            let keeper = &self.keeper;
            let theirs = keeper.regions.of(shared.start, shared.end - shared.start);
            theirs.for_each(|n| keeper.regions.mark_stale(n));
        }
        let ends = Arc::new(CopyResults {
            succeeded: AtomicU64::new(0),
            failed: SpinLock::new(Vec::new()),
        });
        let (inner, theirs) = (Arc::clone(self), Arc::clone(&ends));
        let whole = Whole::with(rq, move |rq, _| {
            let failed = std::mem::take(&mut *theirs.failed.lock());
            let succeeded = theirs.succeeded.load(Ordering::Relaxed) as u32;
            let result = inner.judge(op, succeeded, &failed);
            if may_overlap {
                inner.overlaps.end(regions.clone(), &bytes);
            }
            inner.answer(rq, result, regions, mask(&failed), overlaps);
        });
        // A leg that is out by now may have another device already. That device gets everything
        // anew once this has left its regions, also the bytes that it gets here.
        for (n, there) in each(active).filter_map(|n| Some((n, self.legs.there(n)?))) {
            self.legs.begin(n);
            let (ends, inner, era) = (Arc::clone(&ends), Arc::clone(self), there.era);
            let part = whole.part_with(0, len, offset, move |done| {
                inner.legs.end(n);
                match done.result() {
                    Ok(()) => {
                        ends.succeeded.fetch_or(1 << n, Ordering::Relaxed);
                    }
                    Err(error) => {
                        ends.failed.lock().push(FailedLeg { n, era, error: error.clone() })
                    }
                }
            });
            // The report of a dropped leg has the error, and so has the answer if all failed; a
            // discard drops none.
            there.device.submit(part.with_quiet(op != Op::Discard));
        }
    }

    /// Decides how to answer a change that ended like this on the legs.
    fn judge(&self, op: Op, succeeded: u32, failed: &[FailedLeg]) -> Result<(), IoError> {
        let bad = failed.iter().filter(|failed| failed.counts(&self.legs));
        // A discard that failed leaves the leg as good as it was.
        let settled =
            self.legs.states.settle(succeeded, if op == Op::Discard { 0 } else { mask(bad) });
        let Some(dropped) = settled else {
            let first = failed.iter().min_by_key(|failed| failed.n);
            return Err(
                first.map_or_else(|| IoError::new(IoErrorKind::Gone), |one| one.error.clone())
            );
        };
        for FailedLeg { n, error, .. } in
            failed.iter().filter(|failed| dropped & 1 << failed.n != 0)
        {
            self.tell_dropped(*n, error);
        }
        Ok(())
    }

    /// Answers a change that has ended on all legs, at once or when the record lets it. `overlaps`:
    /// its regions were marked stale, since another one changed the same bytes.
    fn answer(
        &self,
        rq: HeldRequest,
        result: Result<(), IoError>,
        regions: Range<usize>,
        failed: u32,
        overlaps: bool,
    ) {
        let keeper = &self.keeper;
        let active = self.legs.states.active();
        // Legs that failed and are still used may have some of it; one alone differs from none.
        let differ = failed & active != 0 && active.count_ones() > 1;
        if differ && rq.op() == Op::Flush {
            // It is unknown which earlier writes are still to come, and where.
            let dirty = (0..keeper.regions.len()).filter(|&n| keeper.regions.is_dirty(n));
            dirty.for_each(|n| keeper.regions.mark_stale(n));
        } else if differ {
            regions.clone().for_each(|n| keeper.regions.mark_stale(n));
        }
        if keeper.regions.exit(regions) || differ || overlaps {
            keeper.kick_resync();
        }
        // A leg that lacks this write must not look good to a reader of the record after a crash.
        if result.is_ok() && self.legs.states.is_behind() {
            keeper.hold(rq);
        } else {
            rq.complete(result);
        }
    }
}

/// The results so far of the copies of one request.
struct CopyResults {
    /// A: bit n is set if leg n succeeded. Relaxed: read when the last copy is gone, which the
    /// count of the whole orders.
    succeeded: AtomicU64,
    /// L: is the lock, taken by failed copies only; guards the legs that failed, and the reasons.
    failed: SpinLock<Vec<FailedLeg>>,
}

/// A device that failed a request.
struct FailedLeg {
    n: usize,
    era: u64,
    error: IoError,
}

impl FailedLeg {
    /// Returns true if the leg still has that device.
    fn counts(&self, legs: &Legs) -> bool {
        legs.is_of(self.n, self.era)
    }
}

fn mask<'a>(failed: impl IntoIterator<Item = &'a FailedLeg>) -> u32 {
    failed.into_iter().fold(0, |failed, one| failed | 1 << one.n)
}
