//! The thread of a ring: takes requests in, hands them to the kernel, and completes them.

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::hint::spin_loop;
use corewise_sync::time::Stamp;
use corewise_sync::{CachePadded, Parker};
use io_uring::{
    CompletionQueue, IoUring, Probe, SubmissionQueue, Submitter, cqueue, opcode, squeue, types,
};

use super::super::options::FileOptions;
use super::super::store::{PUNCH, ZERO};
use super::super::threads::Plain;
use super::Port;
use super::cancel::Ask;
use super::memory::{Buffers, Memory};
use crate::driver::{Queued, Started};
use crate::error::{IoError, IoErrorKind, errno};
use crate::policy::BUSY_PAUSE;
use crate::request::Op;

/// What the bell's completions are known by. Tags are 32 bits wide.
const BELL: u64 = u64::MAX;
/// What is added to a tag where its request is called off.
const OFF: u64 = 1 << 32;
/// `POLLIN`.
const READABLE: u32 = 1;
/// Completions that are taken, and entries that are submitted, together while there are more. A device that has
/// completed all it had in one burst isn't left idle until the last one has been looked at; and of more than
/// two the kernel holds all back until it has the last one (its plug). With 32 reads in flight 2 does better than
/// 8, and 8 as all at once: about 0.95, 0.88 and 0.88 of what fio reads (virtio disk, two busy
/// CPUs, two or three runs each).
const BURST: usize = 2;
/// The device's file, in the ring's table.
const FILE: types::Fixed = types::Fixed(0);

/// A ring and what its thread knows.
pub(super) struct Reactor {
    uring: IoUring,
    inner: Inner,
}

struct Inner {
    port: Arc<CachePadded<Port>>,
    plain: Plain,
    /// By tag.
    slots: Vec<Slot>,
    buffers: Buffers,
    /// Requests that the kernel has.
    in_flight: usize,
    /// The kernel no longer polls the bell's wire.
    deaf: bool,
    /// For how long it looks for completions before it sleeps.
    busy_poll: Duration,
    batch: Vec<(u64, i32, u32)>,
}

/// The request that has a tag, while the kernel has it.
#[derive(Default)]
struct Slot {
    rq: Option<Started>,
    memory: Memory,
    /// It is late, and the kernel was told to stop it.
    off: bool,
    /// The askers for that, until the kernel has answered.
    ask: Option<Box<Ask>>,
}

impl Reactor {
    /// Sets up the ring, for the calling thread.
    pub(super) fn new(
        port: Arc<CachePadded<Port>>,
        plain: Plain,
        options: &FileOptions,
    ) -> io::Result<Self> {
        let (depth, busy_poll) = (options.depth, options.busy_poll);
        let uring = build(depth, !busy_poll.is_zero())?;
        let submitter = uring.submitter();
        let mut probe = Probe::new();
        submitter.register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::ReadFixed::CODE,
            opcode::WriteFixed::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::PollAdd::CODE,
        ];
        if !needed.iter().all(|&code| probe.is_supported(code))
            || !uring.params().is_feature_nodrop()
        {
            return Err(too_old());
        }
        submitter.register_files(&[plain.store().file().as_raw_fd()])?;
        let mut buffers = Buffers::new(plain.store().align(), depth, &options.buffers);
        buffers.register(&submitter);
        let slots = (0..depth).map(|_| Slot::default()).collect();
        let batch = Vec::with_capacity(depth as usize + 1);
        let inner =
            Inner { port, plain, slots, buffers, in_flight: 0, deaf: true, busy_poll, batch };
        let mut this = Self { uring, inner };
        this.try_bell()?;
        Ok(this)
    }

    /// Rings once and looks whether that is heard: a kernel that doesn't poll again and again would leave
    /// requests lying.
    fn try_bell(&mut self) -> io::Result<()> {
        let Self { uring, inner } = self;
        inner.port.ring();
        let (submitter, mut sq, mut cq) = uring.split();
        inner.listen(&mut sq);
        sq.sync();
        while let Err(error) = submitter.submit_and_wait(1) {
            if error.raw_os_error() != Some(errno::EINTR) {
                return Err(error);
            }
        }
        cq.sync();
        inner.take(&mut cq);
        match inner.batch.drain(..).next() {
            Some((BELL, heard, flags)) if heard >= 0 && cqueue::more(flags) => Ok(()),
            _ => Err(too_old()),
        }
    }

    /// Serves the ring until the device is dropped.
    pub(super) fn run(self) {
        let mut inner = Leaky(mem::ManuallyDrop::new(self.inner));
        // Made last, so dropped first: it names the slots' memory.
        let mut uring = self.uring;
        let (mut submitter, mut sq, mut cq) = uring.split();
        // Saves the kernel a look-up in each call; it may have no such thing.
        let _ = submitter.register_ring_fd();
        inner.0.serve(&submitter, &mut sq, &mut cq);
        // The kernel closes a ring some time after its descriptor: till then it would keep the file, and with
        // that the lock on it. Where this fails, it does.
        let _ = submitter.unregister_files();
    }
}

/// `flagged`: the ring's flags are to say when the kernel has completions to hand over.
fn build(depth: u32, flagged: bool) -> io::Result<IoUring> {
    // One more than there are tags, for the bell.
    let entries = (depth + 1).next_power_of_two();
    let mut ours = IoUring::builder();
    ours.dontfork().setup_submit_all().setup_single_issuer().setup_defer_taskrun();
    if flagged {
        ours.setup_taskrun_flag();
    }
    match ours.build(entries) {
        // Before Linux 6.1: completions interrupt the thread, and all else is the same.
        Err(error) if error.raw_os_error() == Some(errno::EINVAL) => {
            IoUring::builder().dontfork().build(entries)
        }
        other => other,
    }
}

fn too_old() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the kernel's io_uring is too old: it lacks read, write, fsync, fallocate or poll",
    )
}

/// Where a panic, which would be an error of this module, leaves requests with the kernel, their memory is
/// never freed.
struct Leaky(mem::ManuallyDrop<Inner>);

impl Drop for Leaky {
    fn drop(&mut self) {
        if self.0.in_flight == 0 {
            // SAFETY: it isn't used again.
            unsafe { mem::ManuallyDrop::drop(&mut self.0) };
        } else {
            tracing::error!(
                n = self.0.in_flight,
                "a ring's thread ended while the kernel still had requests"
            );
        }
    }
}

impl Inner {
    fn serve(
        &mut self,
        submitter: &Submitter<'_>,
        sq: &mut SubmissionQueue<'_>,
        cq: &mut CompletionQueue<'_>,
    ) {
        let port = Arc::clone(&self.port);
        loop {
            for Queued(rq) in port.inbox.take() {
                self.start(rq, submitter, sq);
            }
            if !port.asks.is_empty() {
                for ask in port.asks.take() {
                    self.call_off(ask, submitter, sq);
                }
            }
            // A thread that looks before it sleeps has the kernel begin with all of them.
            if sq.len() >= if self.busy_poll.is_zero() { BURST } else { 1 } {
                sq.sync();
                // Where it is refused the call below tells.
                let _ = submitter.submit();
                sq.sync();
            }
            if self.reap(cq) || self.look(submitter, sq, cq) {
                // The requests that the completions brought go along in the same call.
                continue;
            }
            if port.end.load(Ordering::Acquire) && self.in_flight == 0 {
                return;
            }
            if self.deaf {
                self.listen(sq);
            }
            port.bell.doze();
            let want = usize::from(port.is_empty());
            sq.sync();
            if want != 0 || !sq.is_empty() {
                if let Err(error) = submitter.submit_and_wait(want) {
                    if error.raw_os_error() != Some(errno::EINTR) {
                        // The kernel is short of memory, or wants completions taken first. The queued ones stay
                        // there.
                        tracing::warn!(%error, "io_uring accepts no requests now; trying again");
                        Parker::new().park_timeout(BUSY_PAUSE);
                    }
                }
            }
            port.bell.awake();
        }
    }

    /// Looks for completions and requests for a while, where that was asked for; true where there are some.
    fn look(
        &self,
        submitter: &Submitter<'_>,
        sq: &SubmissionQueue<'_>,
        cq: &mut CompletionQueue<'_>,
    ) -> bool {
        if self.busy_poll.is_zero() || self.in_flight == 0 {
            return false;
        }
        let end = Stamp::precise().plus(self.busy_poll);
        loop {
            if sq.taskrun() {
                // Has the kernel hand them over. Where it refuses, the thread that goes to sleep tells.
                return submitter.submit().is_ok();
            }
            cq.sync();
            if !CompletionQueue::is_empty(cq) || !self.port.is_empty() {
                return true;
            }
            if Stamp::precise() >= end {
                return false;
            }
            spin_loop();
        }
    }

    /// Has the kernel poll the bell's wire, again and again.
    fn listen(&mut self, sq: &mut SubmissionQueue<'_>) {
        let wire = types::Fd(self.port.wire.as_raw_fd());
        let poll = opcode::PollAdd::new(wire, READABLE).multi(true).build().user_data(BELL);
        // SAFETY: the entry names no memory, and the wire lives as long as the port.
        self.deaf = unsafe { sq.push(&poll) }.is_err();
    }

    /// Makes an entry of a request, to be submitted with the next call.
    fn start(&mut self, rq: Started, submitter: &Submitter<'_>, sq: &mut SubmissionQueue<'_>) {
        let tag = rq.tag();
        // A queue never gives a tag out twice; but two queues may have the same driver.
        let free = self.slots.get_mut(tag as usize).filter(|slot| slot.rq.is_none());
        let Some(slot) = free else { return self.plain.start(rq, 0) };
        if let Err(error) = self.plain.store().admits(&rq) {
            return rq.complete(Err(error));
        }
        let Some(entry) = entry(&rq, &mut slot.memory, &self.buffers) else {
            return self.plain.start(rq, 0);
        };
        let entry = entry.user_data(u64::from(tag));
        // SAFETY: the memory that the entry names belongs to the request or to the slot, which keep it until
        // the completion is taken; the file belongs to `plain`.
        if unsafe { push(&entry, submitter, sq) } {
            slot.rq = Some(rq);
            slot.off = false;
            self.in_flight += 1;
        } else {
            slot.memory.end();
            self.plain.start(rq, 0);
        }
    }

    /// Has the kernel stop the request of a tag. Its tag is held until the ask is answered: so it is the one that
    /// was meant, or it has completed.
    fn call_off(&mut self, ask: Box<Ask>, submitter: &Submitter<'_>, sq: &mut SubmissionQueue<'_>) {
        let tag = u64::from(ask.tag);
        // Where the kernel doesn't have it, the ask is dropped: the asker learns that.
        let Some(slot) = self.slots.get_mut(ask.tag as usize) else { return };
        let entry = opcode::AsyncCancel::new(tag).build().user_data(OFF | tag);
        // SAFETY: the entry names no memory.
        if slot.rq.is_some() && unsafe { push(&entry, submitter, sq) } {
            slot.off = true;
            slot.ask = Some(ask);
            self.in_flight += 1;
        }
    }

    /// Takes what has completed out of the ring.
    fn take(&mut self, cq: &mut CompletionQueue<'_>) {
        cq.sync();
        self.batch.extend(cq.by_ref().take(BURST).map(|e| (e.user_data(), e.result(), e.flags())));
        cq.sync();
    }

    /// Completes what is there; false where there was nothing.
    fn reap(&mut self, cq: &mut CompletionQueue<'_>) -> bool {
        self.take(cq);
        let mut batch = mem::take(&mut self.batch);
        let some = !batch.is_empty();
        for (tag, result, flags) in batch.drain(..) {
            if tag == BELL {
                self.deaf |= !cqueue::more(flags);
                continue;
            }
            if tag & OFF != 0 {
                self.in_flight -= 1;
                let slot = self.slots.get_mut((tag & !OFF) as usize);
                if let Some(ask) = slot.and_then(|slot| slot.ask.take()) {
                    ask.answered(result);
                }
                continue;
            }
            match self.slots.get_mut(tag as usize).and_then(|slot| slot.rq.take()) {
                Some(rq) => {
                    self.in_flight -= 1;
                    self.finish(rq, tag as usize, result);
                }
                None => tracing::error!(tag, result, "io_uring completed an unknown request"),
            }
        }
        self.batch = batch;
        some
    }

    /// Completes a request that the kernel is done with, or has a worker carry it on.
    fn finish(&mut self, mut rq: Started, tag: usize, result: i32) {
        let Slot { memory, off, .. } = &mut self.slots[tag];
        if let (Op::Read, Ok(done)) = (rq.op(), usize::try_from(result)) {
            // SAFETY: the kernel says so.
            unsafe { memory.read(rq.rq_mut(), done) };
        }
        memory.end();
        let off = mem::take(off);
        let store = self.plain.store();
        let Ok(done) = u64::try_from(result) else {
            // A sync that was interrupted may have been told of an error that nobody is told of again.
            let syncs = rq.op() == Op::Flush || rq.flags().fua;
            return match (rq.op(), -result) {
                (_, errno::ECANCELED) if off => rq.complete(Err(called_off())),
                (_, errno::EINTR) if off && !syncs => rq.complete(Err(called_off())),
                // Interrupted, or called off: nothing was done that can't be done again.
                (_, errno::EINTR | errno::EAGAIN | errno::ECANCELED | errno::EFAULT) => {
                    self.plain.start(rq, 0);
                }
                // Nothing else is asked again where it was to be made durable: the kernel tells
                // of a failed write-back once, and says yes the next time.
                (Op::Flush, error) => rq.complete(store.synced(Err(IoError::from_errno(error)))),
                (Op::Write, error) if rq.flags().fua => {
                    self.plain.failed_fua(rq, IoError::from_errno(error));
                }
                // Not this way.
                (_, errno::EINVAL | errno::EOPNOTSUPP | errno::ENODEV) => self.plain.start(rq, 0),
                (_, other) => rq.complete(Err(IoError::from_errno(other))),
            };
        };
        match rq.op() {
            Op::Read if rq.filled() < rq.len() => self.plain.start(rq, 0),
            Op::Write if done < rq.len() => self.plain.start(rq, done),
            Op::Flush => rq.complete(store.synced(Ok(()))),
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => rq.complete(Ok(())),
        }
    }
}

fn called_off() -> IoError {
    IoError::with(IoErrorKind::TimedOut, "it was cancelled")
}

/// Puts an entry into the ring, to be submitted with the next call; false where there is no room.
///
/// # Safety
/// The memory and the files that it names stay where they are until it has completed.
unsafe fn push(
    entry: &squeue::Entry,
    submitter: &Submitter<'_>,
    sq: &mut SubmissionQueue<'_>,
) -> bool {
    // SAFETY: as the caller says.
    if unsafe { sq.push(entry) }.is_ok() {
        return true;
    }
    // Entries that the kernel didn't take when it was asked. Perhaps now.
    sq.sync();
    let _ = submitter.submit();
    sq.sync();
    // SAFETY: as above.
    unsafe { sq.push(entry) }.is_ok()
}

/// The entry for a request, or `None` where plain I/O has to do it.
fn entry(rq: &Started, memory: &mut Memory, buffers: &Buffers) -> Option<squeue::Entry> {
    let flags = rq.flags();
    Some(match rq.op() {
        Op::Read | Op::Write => return memory.entry(rq, rq.tag() as usize, buffers, FILE),
        Op::Flush => opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
        // Two steps: for a worker.
        Op::Discard | Op::WriteZeroes if flags.fua => return None,
        Op::Discard => fallocate(rq, PUNCH.bits()),
        Op::WriteZeroes if flags.no_unmap => fallocate(rq, ZERO.bits()),
        Op::WriteZeroes => fallocate(rq, PUNCH.bits()),
    })
}

fn fallocate(rq: &Started, mode: u32) -> squeue::Entry {
    opcode::Fallocate::new(FILE, rq.len()).offset(rq.offset()).mode(mode as i32).build()
}
