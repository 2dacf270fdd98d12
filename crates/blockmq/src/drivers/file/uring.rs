//! File I/O through io_uring: one ring for each hardware queue.
//!
//! Two parties share a ring, each with its own half:
//!
//! | | the runner of the hardware queue | the ring's reaper thread |
//! |---|---|---|
//! | owns | the submission queue | the completion queue |
//! | does | puts the request into its tag's slot (Fill), pushes an entry, submits at the end of the pass | sleeps in `io_uring_enter`, takes the request out of its slot (Take), completes it |
//!
//! The reaper pushes nothing of its own: whatever isn't plainly done goes to [`Plain`]. (It may
//! become the runner when a completion brings a new request; then it acts as one.) It sleeps in the
//! kernel, so a ring at rest costs nothing.
//!
//! A request's memory stays where it is from Fill to Take: the slot owns the request, which owns
//! the buffer, and the ring isn't freed before its reaper has ended.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::thread::{Builder, JoinHandle, current};
use corewise_sync::{CachePadded, Parker};
use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::threads::{PUNCH, Plain, ZERO};
use crate::driver::{Dispatch, Started};
use crate::error::{IoError, errno};
use crate::policy::BUSY_PAUSE;
use crate::request::Op;

/// The entry that tells the reaper to end. Tags are 32 bits wide.
const END: u64 = u64::MAX;
/// Per-write flag of the kernel: durable on completion (`RWF_DSYNC`).
const RWF_DSYNC: u32 = 2;
/// `io_uring_enter`: wait for completions.
const ENTER_GETEVENTS: u32 = 1;

/// The rings of a file device.
pub(super) struct Rings {
    rings: Vec<Owned>,
}

struct Owned {
    ring: Arc<Ring>,
    reaper: Option<JoinHandle<()>>,
}

impl Rings {
    /// Sets up `n` rings and their threads.
    ///
    /// # Errors
    /// Where the kernel refuses: it is too old, or a policy forbids io_uring.
    pub(super) fn new(plain: Plain, n: usize, depth: u32) -> io::Result<Self> {
        let mut rings = Vec::with_capacity(n);
        for i in 0..n {
            let ring = Arc::new(Ring::new(plain.clone(), depth)?);
            let theirs = Arc::clone(&ring);
            let reaper =
                Builder::new().name(format!("cw-ring/{i}")).spawn(move || Ring::reap(&theirs))?;
            rings.push(Owned { ring, reaper: Some(reaper) });
        }
        Ok(Self { rings })
    }

    pub(super) fn len(&self) -> usize {
        self.rings.len()
    }

    #[cfg(test)]
    pub(super) fn file(&self) -> &std::fs::File {
        self.rings[0].ring.plain.file()
    }

    pub(super) fn queue(&self, hctx: usize, rq: Started) -> Dispatch {
        self.rings[hctx].ring.queue(rq)
    }

    pub(super) fn commit(&self, hctx: usize) {
        Ring::commit(&self.rings[hctx].ring);
    }
}

impl Drop for Owned {
    /// Ends the reaper. Nothing is in flight: each request in a slot keeps its queue, and with it
    /// the driver, alive; so there is no runner either, and this thread has the submission queue.
    fn drop(&mut self) {
        let end = opcode::Nop::new().build().user_data(END);
        if self.ring.push(&end).is_err() {
            // Only where the kernel has consumed nothing for long; the thread is left to the
            // process.
            tracing::error!("a ring is stuck: its thread can't be told to end");
            return;
        }
        Ring::commit(&self.ring);
        if let Some(reaper) = self.reaper.take()
            // The last request's completion may drop the driver on the reaper itself.
            && reaper.thread().id() != current().id()
            && reaper.join().is_err()
        {
            tracing::error!("a ring's thread died of a panic");
        }
    }
}

/// Between two tries where the kernel refuses: what it is short of doesn't come back by asking fast.
fn pause() {
    Parker::new().park_timeout(BUSY_PAUSE);
}

struct Ring {
    uring: IoUring,
    plain: Plain,
    /// By tag.
    slots: Box<[CachePadded<Slot>]>,
    /// The reaper, once it runs.
    reaper: OnceLock<ThreadId>,
    /// O: the reaper's: something was pushed while it worked through a batch. (Atomic so that it
    /// can be shared; Relaxed, since one thread uses it.)
    deferred: AtomicBool,
}

/// The request that has a tag, while the kernel has it.
struct Slot {
    /// A: set by Fill (Release), cleared by Take (Acquire). The kernel orders the two anyway; this
    /// says so in terms of the memory model.
    full: AtomicBool,
    /// P: owned by the runner while `full` is false, by the reaper while it is true.
    rq: UnsafeCell<Option<Started>>,
    /// P: owned by the runner; the kernel reads it until the request's completion. The list of a request's
    /// pieces of memory, where there are several.
    pieces: UnsafeCell<Vec<Piece>>,
}

/// What the kernel calls an `iovec`.
#[repr(C)]
struct Piece {
    base: *mut u8,
    len: usize,
}

/// Pieces that the kernel takes in one call (`IOV_MAX`).
const MAX_PIECES: usize = 1024;

// SAFETY: `rq` is touched by one side at a time, handed over by `full`: the runner fills only a
// slot whose tag it has just been given, and a tag is freed only after Take.
unsafe impl Sync for Slot {}
// SAFETY: the addresses in `pieces` belong to no thread; the request is Send.
unsafe impl Send for Slot {}

// SAFETY: IoUring is Send and Sync but for its queues, which `Ring` hands to one side each, see
// `push` and `reap`; the slots are Sync, and Plain is.
unsafe impl Sync for Ring {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Ring {}

impl Ring {
    fn new(plain: Plain, depth: u32) -> io::Result<Self> {
        // One more than there are tags, for END.
        let uring = IoUring::builder().dontfork().build((depth + 1).next_power_of_two())?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        if !needed.iter().all(|&code| probe.is_supported(code))
            || !uring.params().is_feature_nodrop()
        {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring is too old: it lacks read, write or fsync",
            ));
        }
        let slots = (0..depth)
            .map(|_| {
                CachePadded::new(Slot {
                    full: AtomicBool::new(false),
                    rq: UnsafeCell::new(None),
                    pieces: UnsafeCell::new(Vec::new()),
                })
            })
            .collect();
        let (reaper, deferred) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { uring, plain, slots, reaper, deferred })
    }

    /// Hands a request to the kernel at the next commit. Called by the runner.
    fn queue(&self, rq: Started) -> Dispatch {
        let tag = rq.tag();
        let slot = &self.slots[tag as usize];
        // SAFETY: the tag is this request's alone and `full` is false, so the slot is the runner's.
        let entry = slot.pieces.with_mut(|pieces| self.entry(&rq, unsafe { &mut *pieces }));
        let Some(entry) = entry else {
            self.plain.start(rq, 0);
            return Dispatch::Started;
        };
        // SAFETY: the tag is this request's alone and `full` is false, so the slot is the runner's.
        slot.rq.with_mut(|place| unsafe { *place = Some(rq) });
        slot.full.store(true, Ordering::Release); // Fill
        if self.push(&entry.user_data(u64::from(tag))).is_err() {
            // No entry names the slot, so it is still ours: take the request back.
            return match self.take(tag) {
                Some(rq) => Dispatch::Busy(rq),
                None => Dispatch::Started,
            };
        }
        Dispatch::Started
    }

    /// The entry for a request, or `None` where plain I/O has to do it. `pieces` stays as it is until the
    /// request completes.
    fn entry(&self, rq: &Started, pieces: &mut Vec<Piece>) -> Option<squeue::Entry> {
        let fd = types::Fd(self.plain.file().as_raw_fd());
        let (offset, len, flags) = (rq.offset(), rq.len(), rq.flags());
        pieces.clear();
        pieces.extend(rq.segments().map(|s| Piece { base: s.as_ptr(), len: s.len() }));
        let (first, n) = (pieces.first(), pieces.len().min(MAX_PIECES) as u32);
        let dsync = if flags.fua { RWF_DSYNC as _ } else { 0 };
        Some(match rq.op() {
            Op::Read if n > 1 => {
                opcode::Readv::new(fd, pieces.as_ptr().cast(), n).offset(offset).build()
            }
            Op::Read => {
                let Piece { base, len } = first?;
                opcode::Read::new(fd, *base, u32::try_from(*len).ok()?).offset(offset).build()
            }
            Op::Write if n > 1 => opcode::Writev::new(fd, pieces.as_ptr().cast(), n)
                .offset(offset)
                .rw_flags(dsync)
                .build(),
            Op::Write => {
                let Piece { base, len } = first?;
                opcode::Write::new(fd, *base, u32::try_from(*len).ok()?)
                    .offset(offset)
                    .rw_flags(dsync)
                    .build()
            }
            Op::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            // Two steps: for a worker.
            Op::Discard | Op::WriteZeroes if flags.fua => return None,
            Op::Discard => self.fallocate(fd, PUNCH.bits(), offset, len),
            Op::WriteZeroes => {
                let mode = if flags.no_unmap { ZERO } else { PUNCH };
                self.fallocate(fd, mode.bits(), offset, len)
            }
        })
    }

    fn fallocate(&self, fd: types::Fd, mode: u32, offset: u64, len: u64) -> squeue::Entry {
        opcode::Fallocate::new(fd, len).offset(offset).mode(mode.cast_signed()).build()
    }

    /// Pushes an entry. Called by the runner, or by the last owner when there is no runner.
    fn push(&self, entry: &squeue::Entry) -> Result<(), squeue::PushError> {
        // SAFETY: there is one submission side at a time: the holder of RUNNING, or the last owner.
        let mut sq = unsafe { self.uring.submission_shared() };
        // SAFETY: the entry's memory and the list of it are owned by the slot until its completion is
        // reaped, and the file by this ring.
        unsafe { sq.push(entry) }
    }

    /// Submits what was pushed. Doesn't block; the kernel may do the I/O at once if it doesn't
    /// have to wait for it.
    ///
    /// Completions often bring new requests, which the reaper then dispatches itself. Those wait
    /// for the end of its batch, so that one system call submits them all.
    fn commit(this: &Arc<Self>) {
        if this.reaper.get() == Some(&current().id()) {
            this.deferred.store(true, Ordering::Relaxed);
        } else {
            Self::submit_now(this);
        }
    }

    fn submit_now(this: &Arc<Self>) {
        if let Err(error) = this.submit() {
            // The kernel is short of memory, or wants completions reaped first. The entries stay in
            // the queue, and somebody has to submit them: with nothing in flight, nobody would
            // come. Two threads may submit at once; they share what there is.
            tracing::warn!(%error, "io_uring takes nothing now; a worker tries again");
            let ring = Arc::clone(this);
            this.plain.on_worker(move || {
                while ring.submit().is_err() {
                    pause();
                }
            });
        }
    }

    fn submit(&self) -> io::Result<()> {
        loop {
            match self.uring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Take: the request of a tag, out of its slot.
    fn take(&self, tag: u32) -> Option<Started> {
        let slot = self.slots.get(tag as usize)?;
        if !slot.full.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `full` says that the slot is on our side: the kernel is done with the request, or
        // never got it.
        let rq = slot.rq.with_mut(|place| unsafe { (*place).take() });
        slot.full.store(false, Ordering::Release);
        rq
    }

    /// The reaper: waits for completions until it is told to end.
    fn reap(this: &Arc<Self>) {
        // Set once, by the one thread that runs this.
        let _ = this.reaper.set(current().id());
        let mut batch = Vec::with_capacity(64);
        loop {
            // SAFETY: the reaper alone touches the completion queue.
            let cq = unsafe { this.uring.completion_shared() };
            batch.extend(cq.take(64).map(|entry| (entry.user_data(), entry.result())));
            if batch.is_empty() {
                this.wait();
                continue;
            }
            for (tag, result) in batch.drain(..) {
                if tag == END {
                    return;
                }
                match this.take(tag as u32) {
                    Some(rq) => this.finish(rq, result),
                    None => tracing::error!(tag, result, "io_uring completed what nobody asked"),
                }
            }
            if this.deferred.swap(false, Ordering::Relaxed) {
                Self::submit_now(this);
            }
        }
    }

    fn wait(&self) {
        // SAFETY: no argument is passed. Nothing is submitted: that is the runner's.
        let waited = unsafe { self.uring.submitter().enter::<()>(0, 1, ENTER_GETEVENTS, None) };
        if let Err(error) = waited
            && error.raw_os_error() != Some(errno::EINTR)
        {
            tracing::warn!(%error, "waiting for io_uring failed; trying again");
            pause();
        }
    }

    /// Completes a request that the kernel is done with, or has a worker carry it on.
    fn finish(&self, mut rq: Started, result: i32) {
        let done = match u32::try_from(result) {
            Ok(done) => u64::from(done),
            Err(_) => {
                return match (rq.op(), -result) {
                    // Interrupted, or the submitting thread ended (CANCELED, FAULT): nothing was
                    // done that can't be done again.
                    (_, errno::EINTR | errno::EAGAIN | errno::ECANCELED | errno::EFAULT) => {
                        self.plain.start(rq, 0);
                    }
                    // Nothing else is asked again where it was to be made durable: the kernel tells
                    // of a failed write-back once, and says yes the next time.
                    (Op::Flush, error) => self.plain.synced(rq, Err(IoError::from_errno(error))),
                    (Op::Write, error) if rq.flags().fua => {
                        self.plain.failed_fua(rq, IoError::from_errno(error));
                    }
                    // Not this way.
                    (_, errno::EINVAL | errno::EOPNOTSUPP | errno::ENODEV) => {
                        self.plain.start(rq, 0);
                    }
                    (_, other) => rq.complete(Err(IoError::from_errno(other))),
                };
            }
        };
        match rq.op() {
            Op::Read => {
                // SAFETY: the kernel has filled `done` bytes of the memory that the entry named.
                unsafe { rq.advance(done) };
                if rq.filled() == rq.len() {
                    rq.complete(Ok(()));
                } else {
                    self.plain.start(rq, 0);
                }
            }
            Op::Write if done < rq.len() => self.plain.start(rq, done),
            Op::Flush => self.plain.synced(rq, Ok(())),
            Op::Write | Op::Discard | Op::WriteZeroes => rq.complete(Ok(())),
        }
    }
}
