//! The thread of a ring: takes requests in, passes them to the kernel, and completes them.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use corewise_blockmq::for_drivers::{Burst, Queued};
use corewise_blockmq::{IoError, IoErrorKind, Op, RequestMut, Started};
use corewise_sync::atomic::Ordering;
use corewise_sync::{CachePadded, Parker};
use io_uring::{
    CompletionQueue, IoUring, Probe, SubmissionQueue, Submitter, cqueue, opcode, squeue, types,
};

use super::super::store::{PUNCH, ZERO};
use super::super::volume;
use super::super::volume::Volume;
use super::memory::{Bounce, EntryTarget, Memory};
use super::{CancelRequest, RingPort};

/// The number of the bell's completions. Slots have 32 bits.
const BELL: u64 = u64::MAX;
/// The number that is added to a slot's for the cancellation of its request.
const OFF: u64 = 1 << 32;
/// Number of completions after which their callers get their turn, though there are more.
const LONG_BURST: usize = 32;
/// Number of entries that the ring has room for before it has to submit some.
const ENTRIES: u32 = 256;
/// Number of completions that the ring has room for. The kernel keeps the rest, and takes longer
/// for it.
const COMPLETIONS: u32 = 2048;
/// Pause between two tries if the kernel accepts no requests.
const RING_FULL_PAUSE: Duration = Duration::from_millis(3);
/// `POLLIN`.
const READABLE: u32 = 1;
/// Number of completions that are taken, and entries that are submitted, together while there are
/// more. A device that has completed all it had in one burst doesn't stay idle until the last one
/// has been looked at. And of more than two the kernel holds all back until it has the last one
/// (its plug). With 32 reads in flight, 2 gives about 0.95 of fio's rate, and 8 and all at once
/// 0.88 each (virtio disk, two busy CPUs, two or three runs each).
const BURST: usize = 2;

/// A ring and the state of its thread.
pub(super) struct Reactor {
    uring: IoUring,
    inner: ReactorState,
}

struct ReactorState {
    port: Arc<CachePadded<RingPort>>,
    slots: Vec<RingSlot>,
    /// The numbers of the slots without a request.
    free: Vec<u32>,
    bounce: Bounce,
    /// Number of requests that the kernel has.
    in_flight: usize,
    /// True if the kernel no longer polls the bell's wire.
    deaf: bool,
    batch: Vec<(u64, i32, u32)>,
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

impl Reactor {
    /// Sets up the ring, for the calling thread.
    pub(super) fn new(port: Arc<CachePadded<RingPort>>, kernel_threads: u32) -> io::Result<Self> {
        let uring = build()?;
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
        // Since Linux 5.15; an older one takes as many as it likes.
        let _ = submitter.register_iowq_max_workers(&mut [kernel_threads; 2]);
        let inner = ReactorState {
            port,
            slots: Vec::new(),
            free: Vec::new(),
            bounce: Bounce::default(),
            in_flight: 0,
            deaf: true,
            batch: Vec::with_capacity(BURST),
        };
        let mut this = Self { uring, inner };
        this.try_bell()?;
        Ok(this)
    }

    /// Rings once and checks that it is heard: a kernel that doesn't poll again and again would
    /// leave requests lying.
    fn try_bell(&mut self) -> io::Result<()> {
        let Self { uring, inner } = self;
        inner.port.ring();
        let (submitter, mut sq, mut cq) = uring.split();
        inner.listen(&mut sq);
        sq.sync();
        while let Err(error) = submitter.submit_and_wait(1) {
            if error.raw_os_error() != Some(libc::EINTR) {
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

    /// Serves the ring until the rings are dropped.
    pub(super) fn run(self) {
        let mut inner = LeakedOnPanic(mem::ManuallyDrop::new(self.inner));
        // Made last, so dropped first: it names the slots' memory.
        let mut uring = self.uring;
        let (mut submitter, mut sq, mut cq) = uring.split();
        // This saves the kernel a look-up in each call; it may not support it.
        let _ = submitter.register_ring_fd();
        inner.0.serve(&submitter, &mut sq, &mut cq);
    }
}

fn build() -> io::Result<IoUring> {
    let mut ours = IoUring::builder();
    ours.dontfork().setup_submit_all().setup_single_issuer().setup_defer_taskrun();
    match ours.setup_cqsize(COMPLETIONS).build(ENTRIES) {
        // Before Linux 6.1: completions interrupt the thread; nothing else differs.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().setup_cqsize(COMPLETIONS).build(ENTRIES)
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

/// A guard that never frees the memory of requests that a panic (an error of this module) leaves
/// with the kernel.
struct LeakedOnPanic(mem::ManuallyDrop<ReactorState>);

impl Drop for LeakedOnPanic {
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

impl ReactorState {
    fn serve(
        &mut self,
        submitter: &Submitter<'_>,
        sq: &mut SubmissionQueue<'_>,
        cq: &mut CompletionQueue<'_>,
    ) {
        let port = Arc::clone(&self.port);
        // The burst, while there are completions, and how many there were.
        let mut burst: Option<(Burst, usize)> = None;
        loop {
            for Queued(rq) in port.inbox.take() {
                self.start(rq, submitter, sq);
            }
            if !port.asks.is_empty() {
                for ask in port.asks.take() {
                    self.call_off(ask, submitter, sq);
                }
            }
            if sq.len() >= BURST {
                sq.sync();
                // If it is refused, the call below tells.
                let _ = submitter.submit();
                sq.sync();
            }
            let burst_now = burst.get_or_insert_with(|| (Burst::begin(), 0));
            let some = self.reap(cq);
            burst_now.1 += some;
            if some == 0 || burst_now.1 >= LONG_BURST {
                burst = None;
            }
            if some != 0 {
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
                    if error.raw_os_error() != Some(libc::EINTR) {
                        // The kernel is short of memory, or wants completions taken first. The
                        // queued ones stay there.
                        tracing::warn!(%error, "io_uring accepts no requests now; trying again");
                        Parker::new().park_timeout(RING_FULL_PAUSE);
                    }
                }
            }
            port.bell.awake();
        }
    }

    /// Makes the kernel poll the bell's wire, again and again.
    fn listen(&mut self, sq: &mut SubmissionQueue<'_>) {
        let wire = types::Fd(self.port.wire.as_raw_fd());
        let poll = opcode::PollAdd::new(wire, READABLE).multi(true).build().user_data(BELL);
        // SAFETY: the entry names no memory, and the wire lives as long as the port.
        self.deaf = unsafe { sq.push(&poll) }.is_err();
    }

    /// Makes an entry of a request, to be submitted with the next call.
    fn start(&mut self, mut rq: Started, submitter: &Submitter<'_>, sq: &mut SubmissionQueue<'_>) {
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
            ring: submitter,
        };
        let entry = entry(&rq, &mut slot.memory, &mut place);
        // SAFETY: the memory that the entry names belongs to the request or to the slot, and the
        // file to the volume. The slot keeps all of them until the completion is taken.
        let pushed = entry.is_some_and(|entry| unsafe {
            push(&entry.user_data(u64::from(number)), submitter, sq)
        });
        if pushed {
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
    fn call_off(
        &mut self,
        ask: Box<CancelRequest>,
        submitter: &Submitter<'_>,
        sq: &mut SubmissionQueue<'_>,
    ) {
        let late = |slot: &RingSlot| slot.rq.as_ref().is_some_and(|rq| rq.is(&ask.late));
        // If the kernel doesn't have it, the ask is dropped: the asker learns that.
        let Some(number) = self.slots.iter().position(late) else { return };
        let slot = &mut self.slots[number];
        let number = number as u64;
        let entry = opcode::AsyncCancel::new(number).build().user_data(OFF | number);
        // SAFETY: the entry names no memory.
        if slot.ask.is_none() && unsafe { push(&entry, submitter, sq) } {
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

    /// Takes the present completions, and returns their number.
    fn reap(&mut self, cq: &mut CompletionQueue<'_>) -> usize {
        self.take(cq);
        let mut batch = mem::take(&mut self.batch);
        let some = batch.len();
        for (number, result, flags) in batch.drain(..) {
            if number == BELL {
                self.deaf |= !cqueue::more(flags);
                continue;
            }
            if number & OFF != 0 {
                self.in_flight -= 1;
                let slot = self.slots.get_mut((number & !OFF) as usize);
                if let Some(ask) = slot.and_then(|slot| slot.ask.take()) {
                    ask.answered(result);
                }
                continue;
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
        self.batch = batch;
        some
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

/// Puts an entry into the ring, to be submitted with the next call; false if there is no room.
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
    // The kernel didn't take these entries at the last call. It may now.
    sq.sync();
    let _ = submitter.submit();
    sq.sync();
    // SAFETY: as above.
    unsafe { sq.push(entry) }.is_ok()
}

/// Makes the entry for a request; `None` if a worker has to do it.
fn entry(rq: &Started, memory: &mut Memory, place: &mut EntryTarget<'_>) -> Option<squeue::Entry> {
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
