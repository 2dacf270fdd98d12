//! `mirror`: RAID-1 over other block devices. Writes go to every leg, a read to one of them.

use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use corewise_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use corewise_sync::{CachePadded, Mutex};

use super::StackError;
use super::stripe::combine;
use crate::device::{BlockDevice, Geometry};
use crate::driver::{Dispatch, Driver, Started};
use crate::error::{IoError, IoErrorKind};
use crate::request::{Op, Payload, Request};

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
    fn read(self: &Arc<Self>, mut rq: Started, buffer: BytesMut, failed: Vec<(usize, IoError)>) {
        let tried = failed.iter().fold(0, |tried, (n, _)| tried | 1 << n);
        let Some(n) = self.choose(tried) else {
            rq.set_payload(Payload::Read(buffer));
            // All that are left have failed; the first one's error is the one to tell.
            let error = failed.into_iter().next().map(|(_, error)| error);
            return rq.complete(Err(error.unwrap_or_else(|| IoError::new(IoErrorKind::Gone))));
        };
        let leg = &self.legs[n];
        leg.reads.fetch_add(1, Ordering::Relaxed);
        let (offset, len) = (rq.offset(), rq.len() as usize);
        let inner = Arc::clone(self);
        leg.device.submit(Request::read_into(offset, len, buffer).on_complete(move |done| {
            inner.legs[n].reads.fetch_sub(1, Ordering::Relaxed);
            let buffer = match done.payload {
                Payload::Read(buffer) => buffer,
                Payload::None | Payload::Write(_) => BytesMut::new(),
            };
            match done.result {
                Ok(()) => {
                    for (n, error) in &failed {
                        inner.drop_leg(*n, error);
                    }
                    let mut rq = rq;
                    rq.set_payload(Payload::Read(buffer));
                    rq.complete(Ok(()));
                }
                Err(error) => {
                    let mut failed = failed;
                    failed.push((n, error));
                    inner.read(rq, buffer, failed);
                }
            }
        }));
    }

    /// Sends a change or a flush to all healthy legs.
    fn change(self: &Arc<Self>, rq: Started) {
        let healthy = self.healthy.load(Ordering::Acquire);
        let legs: Vec<usize> = (0..self.legs.len()).filter(|n| healthy & (1 << n) != 0).collect();
        let make = |rq: &Request| match rq.op() {
            Op::Read | Op::Flush => Request::flush(),
            Op::Write => match rq.payload() {
                Payload::Write(data) => Request::write(rq.offset(), data.clone()),
                Payload::None | Payload::Read(_) => Request::write(rq.offset(), Default::default()),
            },
            Op::Discard => Request::discard(rq.offset(), rq.len()),
            Op::WriteZeroes => Request::write_zeroes(rq.offset(), rq.len()),
        };
        let copies: Vec<Request> = legs.iter().map(|_| make(&rq).with_flags(rq.flags())).collect();
        let join = Arc::new(Join {
            inner: Arc::clone(self),
            rq: Mutex::new(rq),
            done: legs.iter().map(|_| OnceLock::new()).collect(),
            legs,
        });
        for (i, copy) in copies.into_iter().enumerate() {
            let part = Arc::clone(&join);
            self.legs[join.legs[i]].device.submit(copy.on_complete(move |done| {
                // Never set before: each copy completes once.
                let _ = part.done[i].set(done.result);
                Join::last(part);
            }));
        }
        Join::last(join);
    }
}

/// The copies of one request that are still on their way. Whoever drops the last `Arc` owns
/// everything and completes the request.
struct Join {
    inner: Arc<Inner>,
    /// L: is the lock; never taken. It makes the request shareable until the last owner takes it
    /// out.
    rq: Mutex<Started>,
    legs: Vec<usize>,
    done: Box<[OnceLock<Result<(), IoError>>]>,
}

impl Join {
    fn last(join: Arc<Self>) {
        let Some(Join { inner, rq, legs, done }) = Arc::into_inner(join) else { return };
        let (mut succeeded, mut first_error) = (0u64, None);
        let mut failed = Vec::new();
        for (n, result) in legs.into_iter().zip(done) {
            match result.into_inner() {
                Some(Ok(())) => succeeded |= 1 << n,
                Some(Err(error)) => {
                    first_error.get_or_insert_with(|| error.clone());
                    failed.push((n, error));
                }
                None => unreachable!("a copy drops its Arc after it has set its result"),
            }
        }
        let rq = rq.into_inner();
        // A discard that failed leaves the leg as good as it was.
        if succeeded != 0 && rq.op() != Op::Discard {
            for (n, error) in &failed {
                inner.drop_leg(*n, error);
            }
        }
        // Asked after the drops: a leg that took this write counts only while it is healthy, else
        // the write would be acknowledged with no copy that anybody will ever read.
        let kept = succeeded & inner.healthy.load(Ordering::Acquire) != 0;
        let error = || first_error.unwrap_or_else(|| IoError::new(IoErrorKind::Gone));
        rq.complete(if kept { Ok(()) } else { Err(error()) });
    }
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

    fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
        match rq.op() {
            Op::Read => {
                let buffer = match rq.take_payload() {
                    Payload::Read(buffer) => buffer,
                    Payload::None | Payload::Write(_) => BytesMut::new(),
                };
                self.inner.read(rq, buffer, Vec::new());
            }
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => self.inner.change(rq),
        }
        Dispatch::Started
    }
}
