//! The file driver on a ring's thread: takes requests in, passes them to the kernel, and completes
//! them.

use std::mem;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use corewise_blockmq::for_drivers::Queued;
use corewise_blockmq::{IoError, IoErrorKind, Op, RequestMut, Started};
use corewise_ring::{Entries, RingUser};
use corewise_sync::CachePadded;
use io_uring::{opcode, squeue, types};

use super::super::store::{PUNCH, ZERO};
use super::super::volume;
use super::super::volume::Volume;
use super::memory::{Bounce, EntryTarget, Memory};
use super::{CancelRequest, Inboxes};

/// The number that is added to a slot's for the cancellation of its request. Slots have 32 bits.
const OFF: u64 = 1 << 32;

/// The file driver's part of a ring's thread.
pub(super) struct Reactor {
    inboxes: Arc<CachePadded<Inboxes>>,
    slots: Vec<RingSlot>,
    /// The numbers of the slots without a request.
    free: Vec<u32>,
    bounce: Bounce,
    /// Number of requests that the kernel has.
    in_flight: usize,
}

/// A request, while the kernel has it.
#[derive(Default)]
struct RingSlot {
    rq: Option<Started>,
    /// The request's file.
    volume: Option<Arc<Volume>>,
    memory: Memory,
    /// True if it is late, and the kernel was asked to stop it.
    off: bool,
    /// The threads that asked for that, until the kernel has answered.
    ask: Option<Box<CancelRequest>>,
}

impl RingUser for Reactor {
    fn take_in(&mut self, ring: &mut Entries<'_, '_>) {
        let inboxes = Arc::clone(&self.inboxes);
        for Queued(rq) in inboxes.requests.take() {
            self.start(rq, ring);
        }
        if !inboxes.asks.is_empty() {
            for ask in inboxes.asks.take() {
                self.call_off(ask, ring);
            }
        }
    }

    fn completed(&mut self, number: u64, result: i32, _ring: &mut Entries<'_, '_>) {
        if number & OFF != 0 {
            self.in_flight -= 1;
            let slot = self.slots.get_mut((number & !OFF) as usize);
            if let Some(ask) = slot.and_then(|slot| slot.ask.take()) {
                ask.answered(result);
            }
            return;
        }
        let slot = self.slots.get_mut(number as usize);
        match slot.and_then(|slot| slot.rq.take().zip(slot.volume.take())) {
            Some((rq, volume)) => {
                self.in_flight -= 1;
                self.finish(rq, volume, number as usize, result);
            }
            None => tracing::error!(number, result, "io_uring completed an unknown request"),
        }
    }

    fn has_work(&self) -> bool {
        !self.inboxes.requests.is_empty() || !self.inboxes.asks.is_empty()
    }

    fn is_in_use(&self) -> bool {
        self.in_flight != 0
    }
}

impl Drop for Reactor {
    /// Never frees the memory of requests that a panic (an error of this module) leaves with the
    /// kernel.
    fn drop(&mut self) {
        if self.in_flight != 0 {
            tracing::error!(
                n = self.in_flight,
                "a ring's thread ended while the kernel still had requests"
            );
            mem::forget((mem::take(&mut self.slots), mem::take(&mut self.bounce)));
        }
    }
}

impl Reactor {
    pub(super) fn new(inboxes: Arc<CachePadded<Inboxes>>) -> Self {
        let (slots, free, bounce) = (Vec::new(), Vec::new(), Bounce::default());
        Self { inboxes, slots, free, bounce, in_flight: 0 }
    }

    /// Makes an entry of a request, to be submitted with the next call.
    fn start(&mut self, mut rq: Started, ring: &mut Entries<'_, '_>) {
        let Some(volume) = volume::of(&mut rq) else { return rq.complete(Err(volume::lost())) };
        if let Err(error) = volume.store().admits(&rq) {
            drop(volume);
            return rq.complete(Err(error));
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RingSlot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[number as usize];
        let mut place = EntryTarget {
            slot: number as usize,
            fd: types::Fd(volume.store().file().as_raw_fd()),
            align: volume.store().align(),
            bounce: &mut self.bounce,
            ring: ring.submitter(),
        };
        let is_direct = place.align.is_some();
        let entry = entry(&rq, &mut slot.memory, &mut place);
        // SAFETY: the memory that the entry names belongs to the request or to the slot, and the
        // file to the volume. The slot keeps all of them until the completion is taken.
        let pushed = entry.is_some_and(|entry| unsafe { ring.push(&entry, u64::from(number)) });
        if pushed {
            if is_direct {
                ring.hurry();
            }
            (slot.rq, slot.volume) = (Some(rq), Some(volume));
            slot.off = false;
            self.in_flight += 1;
        } else {
            slot.memory.end();
            self.free.push(number);
            volume.work(rq);
        }
    }

    /// Makes the kernel stop a request. Its tag is held until the ask is answered: so it is the one
    /// that was meant, or it has completed.
    fn call_off(&mut self, ask: Box<CancelRequest>, ring: &mut Entries<'_, '_>) {
        let late = |slot: &RingSlot| slot.rq.as_ref().is_some_and(|rq| rq.is(&ask.late));
        // If the kernel doesn't have it, the ask is dropped: the asker learns that.
        let Some(number) = self.slots.iter().position(late) else { return };
        let slot = &mut self.slots[number];
        let number = number as u64;
        let entry = opcode::AsyncCancel::new(ring.mark(number)).build();
        // SAFETY: the entry names no memory.
        if slot.ask.is_none() && unsafe { ring.push(&entry, OFF | number) } {
            slot.off = true;
            slot.ask = Some(ask);
            self.in_flight += 1;
        }
    }

    /// Completes a request that the kernel is done with, or makes a worker carry it on.
    fn finish(&mut self, mut rq: Started, volume: Arc<Volume>, number: usize, result: i32) {
        let RingSlot { memory, off, .. } = &mut self.slots[number];
        if let (Op::Read, Ok(done)) = (rq.op(), usize::try_from(result)) {
            // SAFETY: the kernel says so.
            unsafe { memory.read(&mut RequestMut::from(&mut rq), done) };
        }
        memory.end();
        let off = mem::take(off);
        self.free.push(number as u32);
        let result = match u64::try_from(result) {
            Ok(done) => match rq.op() {
                Op::Read if rq.filled() < rq.len() => return volume.work(rq),
                Op::Write if done < rq.len() => return volume.carry_on(rq, done),
                Op::Flush => volume.store().synced(Ok(())),
                // Behind the sync, as a flush.
                Op::Write if rq.flags().fua => volume.store().is_whole(),
                // The kernel was never asked.
                Op::Extents | Op::Prefetch => return volume.work(rq),
                Op::Discard | Op::WriteZeroes => {
                    volume.store().found().freed();
                    Ok(())
                }
                _ => Ok(()),
            },
            Err(_) => {
                // An interrupted sync may have received an error that the kernel reports only once.
                let syncs = rq.op() == Op::Flush || rq.flags().fua;
                match (rq.op(), -result) {
                    (_, libc::ECANCELED) if off => Err(called_off()),
                    (_, libc::EINTR) if off && !syncs => Err(called_off()),
                    // Interrupted, or cancelled: nothing was done that can't be done again.
                    (_, libc::EINTR | libc::EAGAIN | libc::ECANCELED | libc::EFAULT) => {
                        return volume.work(rq);
                    }
                    // A request that was to become durable isn't retried: the kernel reports a
                    // failed write-back once, and says yes the next time.
                    (Op::Flush, error) => volume.store().synced(Err(IoError::from_errno(error))),
                    (Op::Write, error) if rq.flags().fua => {
                        return volume.failed_fua(rq, IoError::from_errno(error));
                    }
                    // The kernel can't do it this way.
                    (_, libc::EINVAL | libc::EOPNOTSUPP | libc::ENODEV) => {
                        return volume.work(rq);
                    }
                    (_, other) => Err(IoError::from_errno(other)),
                }
            }
        };
        // The file goes before the request, which may be the last to keep the device.
        drop(volume);
        rq.complete(result);
    }
}

fn called_off() -> IoError {
    IoError::with(IoErrorKind::TimedOut, "it was cancelled")
}

/// Makes the entry for a request; `None` if a worker has to do it.
fn entry(
    rq: &Started,
    memory: &mut Memory,
    place: &mut EntryTarget<'_, '_>,
) -> Option<squeue::Entry> {
    let (flags, fd) = (rq.flags(), place.fd);
    Some(match rq.op() {
        Op::Read | Op::Write => return memory.entry(rq, place),
        Op::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        // Two steps: for a worker.
        Op::Discard | Op::WriteZeroes if flags.fua => return None,
        Op::Discard => fallocate(rq, fd, PUNCH.bits()),
        Op::WriteZeroes if flags.no_unmap => fallocate(rq, fd, ZERO.bits()),
        Op::WriteZeroes => fallocate(rq, fd, PUNCH.bits()),
        // No call of a ring does this: a worker does.
        _ => return None,
    })
}

fn fallocate(rq: &Started, fd: types::Fd, mode: u32) -> squeue::Entry {
    opcode::Fallocate::new(fd, rq.len()).offset(rq.offset()).mode(mode as i32).build()
}
