//! `mirror`: RAID-1 over other block devices. Writes go to every leg, a read to one of them.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use corewise_sync::{CachePadded, SpinLock};

use super::stripe::combine;
use super::{StackError, below};
use crate::device::{BlockDevice, Geometry};
use crate::driver::{Dispatch, Driver, Started};
use crate::error::{IoError, IoErrorKind};
use crate::request::{Op, PartDone, Whole};

/// A mirror. It has the size of its smallest leg.
///
/// - A change or a flush goes to all healthy legs. It succeeds when it has succeeded on at least
///   one leg that is still healthy, and a leg on which it failed is dropped for good: it is asked
///   nothing more.
/// - A read goes to the healthy leg with the fewest reads in flight. Where it fails, the other legs
///   are asked in turn; a leg that failed where another one succeeded is dropped.
/// - The last healthy leg is never dropped: its errors are told to the client.
///
/// Dropping a leg is logged as an error, and [`Mirror::leg_is_healthy`] tells.
///
/// # What it doesn't do
/// It keeps no record on the legs. After a leg was dropped, or after a crash with writes in flight,
/// the legs may differ: whoever starts the mirror again must leave a dropped leg out, or copy it
/// first.
pub struct Mirror {
    inner: Arc<Inner>,
}

struct Inner {
    legs: Vec<Leg>,
    /// A: bit n is set while leg n is healthy; only ever cleared, never the last one. All changes
    /// are read-modify-writes, so two failing writes can't each drop the leg that the other one
    /// relies on.
    healthy: AtomicU64,
    geometry: Geometry,
}

struct Leg {
    device: Arc<dyn BlockDevice>,
    /// A: reads in flight, to choose by; Relaxed, a stale number costs balance only.
    reads: CachePadded<AtomicUsize>,
}

impl Mirror {
    /// Mirrors over `legs`, all of them healthy and with the same content.
    ///
    /// # Errors
    /// Where there are no legs, or more than 64.
    pub fn new(legs: Vec<Arc<dyn BlockDevice>>) -> Result<Self, StackError> {
        let Some(all) = combine(&legs) else {
            return Err(StackError::new("a mirror needs at least one leg"));
        };
        if legs.len() > 64 {
            return Err(StackError::new(format!("a mirror of {} legs: at most 64", legs.len())));
        }
        let block = u64::from(all.block_size);
        let geometry = Geometry { size: all.size / block * block, ..all };
        let healthy = AtomicU64::new(u64::MAX >> (64 - legs.len()));
        let legs = legs
            .into_iter()
            .map(|device| Leg { device, reads: CachePadded::new(AtomicUsize::new(0)) })
            .collect();
        Ok(Self { inner: Arc::new(Inner { legs, healthy, geometry }) })
    }

    /// How many legs there are, healthy or not.
    pub fn legs(&self) -> usize {
        self.inner.legs.len()
    }

    /// Whether leg `n` is still in use; false where there is no such leg.
    pub fn leg_is_healthy(&self, n: usize) -> bool {
        n < self.inner.legs.len() && self.inner.is_healthy(n)
    }
}

impl Inner {
    fn is_healthy(&self, n: usize) -> bool {
        // Acquire: pairs with the drop, so that who sees a leg dropped sees why in the log's order.
        self.healthy.load(Ordering::Acquire) & (1 << n) != 0
    }

    /// Drops leg `n`, unless it is the last healthy one.
    fn drop_leg(&self, n: usize, error: &IoError) {
        let dropped = self.healthy.fetch_update(Ordering::AcqRel, Ordering::Acquire, |healthy| {
            let left = healthy & !(1 << n);
            (left != 0 && left != healthy).then_some(left)
        });
        if let Ok(before) = dropped {
            tracing::error!(
                leg = n, device = self.legs[n].device.name(), %error,
                healthy_legs = before.count_ones() - 1,
                "a leg of a mirror failed and is dropped"
            );
        }
    }

    /// The healthy leg, not in `tried`, with the fewest reads in flight.
    fn choose(&self, tried: u64) -> Option<usize> {
        let healthy = self.healthy.load(Ordering::Acquire) & !tried;
        (0..self.legs.len())
            .filter(|n| healthy & (1 << n) != 0)
            .min_by_key(|&n| self.legs[n].reads.load(Ordering::Relaxed))
    }

    /// Sends a read to one leg; its completion tries the next one where it fails.
    fn read(self: &Arc<Self>, whole: &Whole) {
        let (offset, len) = (whole.request().offset(), whole.request().len());
        let Some(n) = self.choose(0) else { return };
        let asked = self.asked(n, Vec::new());
        self.legs[n].device.submit(whole.part_with(0, len, offset, asked));
    }

    /// What becomes of a read that leg `n` is asked after `failed`.
    fn asked(
        self: &Arc<Self>,
        n: usize,
        failed: Vec<(usize, IoError)>,
    ) -> impl FnOnce(PartDone) + Send + use<> {
        self.legs[n].reads.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::clone(self);
        move |done| {
            inner.legs[n].reads.fetch_sub(1, Ordering::Relaxed);
            let error = match done.result() {
                Err(error) => error.clone(),
                Ok(()) => return failed.iter().for_each(|(n, error)| inner.drop_leg(*n, error)),
            };
            let mut failed = failed;
            failed.push((n, error));
            let tried = failed.iter().fold(0, |tried, (n, _)| tried | 1 << n);
            let Some(next) = inner.choose(tried) else {
                // All that are left have failed; the first one's error is the one to tell.
                return done.fail(failed.swap_remove(0).1);
            };
            let offset = done.whole().request().offset();
            let asked = inner.asked(next, failed);
            inner.legs[next].device.submit(done.again_with(offset, asked));
        }
    }

    /// Sends a change or a flush to all healthy legs.
    fn change(self: &Arc<Self>, rq: Started) {
        let healthy = self.healthy.load(Ordering::Acquire);
        let (op, offset, len) = (rq.op(), rq.offset(), rq.len());
        let ends =
            Arc::new(Ends { succeeded: AtomicU64::new(0), failed: SpinLock::new(Vec::new()) });
        let (inner, theirs) = (Arc::clone(self), Arc::clone(&ends));
        let whole = Whole::with(rq, move |rq, _| rq.complete(inner.judge(op, &theirs)));
        for (n, leg) in self.legs.iter().enumerate().filter(|(n, _)| healthy & (1 << n) != 0) {
            let ends = Arc::clone(&ends);
            leg.device.submit(whole.part_with(0, len, offset, move |done| match done.result() {
                Ok(()) => {
                    ends.succeeded.fetch_or(1 << n, Ordering::Relaxed);
                }
                Err(error) => ends.failed.lock().push((n, error.clone())),
            }));
        }
    }

    /// How a change that ended like this on the legs is to be answered.
    fn judge(&self, op: Op, ends: &Ends) -> Result<(), IoError> {
        let succeeded = ends.succeeded.load(Ordering::Relaxed);
        let mut failed = std::mem::take(&mut *ends.failed.lock());
        failed.sort_by_key(|(n, _)| *n);
        // A discard that failed leaves the leg as good as it was.
        if succeeded != 0 && op != Op::Discard {
            for (n, error) in &failed {
                self.drop_leg(*n, error);
            }
        }
        // Asked after the drops: a leg that took this write counts only while it is healthy, else
        // the write would be acknowledged with no copy that anybody will ever read.
        if succeeded & self.healthy.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let error = failed.into_iter().next().map(|(_, error)| error);
        Err(error.unwrap_or_else(|| IoError::new(IoErrorKind::Gone)))
    }
}

/// How the copies of one request ended so far.
struct Ends {
    /// A: bit n is set where leg n succeeded. Relaxed: read when the last copy is gone, which the count of
    /// the whole orders.
    succeeded: AtomicU64,
    /// L: is the lock, taken by failed copies only; guards the legs that failed, and why.
    failed: SpinLock<Vec<(usize, IoError)>>,
}

impl Driver for Mirror {
    fn kind(&self) -> &'static str {
        "mirror"
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    fn hw_queues(&self) -> usize {
        usize::MAX
    }

    fn merges(&self) -> bool {
        false
    }

    fn poll(&self, _hctx: usize) -> Option<usize> {
        below::poll(self.inner.legs.iter().map(|leg| &leg.device))
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        match rq.op() {
            Op::Read => self.inner.read(&Whole::new(rq)),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => self.inner.change(rq),
        }
        Dispatch::Started
    }
}
