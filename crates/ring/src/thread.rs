//! The thread of a ring: gives its users their turn, submits their entries, and passes completions
//! on to them.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use std::{fmt, io, mem};

use corewise_sync::atomic::Ordering;
use corewise_sync::context::AtomicSection;
use corewise_sync::panics::caught;
use corewise_sync::{Burst, Parker, time};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{
    CompletionQueue, IoUring, Probe, SubmissionQueue, Submitter, cqueue, opcode, squeue, types,
};

use crate::port::RingPort;

/// The number of the bell's completions.
const BELL: u64 = u64::MAX;
/// Bits of a number that are the user's own. The bits above are the user's place.
const NUMBER_BITS: u32 = 56;
/// Largest number of users of a ring.
const MOST_USERS: usize = 128;
/// Number of completions after which users settle, and callers get their turn, though there are
/// more.
const LONG_BURST: usize = 32;
/// Number of entries that the ring has room for before it has to submit some.
const ENTRIES: u32 = 512;
/// Number of completions that the ring has room for. The kernel keeps the rest, and takes longer
/// for it.
const COMPLETIONS: u32 = 4096;
/// Pause between two tries if the kernel accepts no entries.
const RING_FULL_PAUSE: Duration = Duration::from_millis(3);
/// `POLLIN`.
const READABLE: u32 = 1;
/// Number of completions that are taken, and urgent entries that are submitted, together while
/// there are more. A device that has completed all it had in one burst doesn't stay idle until the
/// last one has been passed on. And of more than two the kernel holds all back until it has the
/// last one (its plug). With 32 reads in flight, 2 gives about 0.95 of fio's rate, and 8 and all at
/// once 0.88 each (virtio disk, two busy CPUs, two or three runs each).
const BURST: usize = 2;

/// A user of a ring. The ring's thread calls it, in an atomic section: it never blocks.
///
/// A user that panics is called no further, and the others go on.
pub trait RingUser: Send {
    /// Pushes the entries of what other threads have left in the user's inbox.
    fn take_in(&mut self, _ring: &mut Entries<'_, '_>) {}

    /// Takes a completion of an entry that this user pushed with `number`.
    fn completed(&mut self, number: u64, result: i32, ring: &mut Entries<'_, '_>);

    /// Pushes the entries of what has gathered: some 30 completions were passed on, or all that the
    /// kernel had.
    fn settle(&mut self, _ring: &mut Entries<'_, '_>) {}

    /// Returns true if the user's inbox has something. The thread sleeps only if it hasn't (Look):
    /// a `SeqCst` load.
    fn has_work(&self) -> bool;

    /// Returns the time at which the user wants to [settle](RingUser::settle) again, whatever
    /// happens.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns true if the kernel may use memory of the user.
    fn is_in_use(&self) -> bool;

    /// Returns true if the thread may end though the user is in use. The user is then dropped
    /// after the thread has ended, or never.
    fn may_be_cut_off(&self) -> bool {
        false
    }

    /// Records that this user has panicked, and is called no further.
    fn panicked(&mut self) {}
}

/// The submission queue, as one user sees it.
pub struct Entries<'a, 'r> {
    submitter: &'a Submitter<'r>,
    sq: &'a mut SubmissionQueue<'r>,
    /// Entries that the ring had no room for.
    waiting: &'a mut Vec<squeue::Entry>,
    /// Number of entries that a device waits for.
    urgent: &'a mut usize,
    place: usize,
}

impl<'r> Entries<'_, 'r> {
    /// Returns the mark of this user's entry with `number`, as the kernel knows it.
    pub fn mark(&self, number: u64) -> u64 {
        (self.place as u64) << NUMBER_BITS | number
    }

    /// Pushes an entry, to be submitted with the next call. Returns false if there is no room.
    /// `number` has 56 bits.
    ///
    /// # Safety
    /// The memory and the files that the entry names stay where they are until it has completed,
    /// or the thread has ended.
    pub unsafe fn push(&mut self, entry: &squeue::Entry, number: u64) -> bool {
        let entry = entry.clone().user_data(self.mark(number));
        // SAFETY: as the caller says.
        if unsafe { self.sq.push(&entry) }.is_ok() {
            return true;
        }
        self.submit();
        // SAFETY: as above.
        unsafe { self.sq.push(&entry) }.is_ok()
    }

    /// Pushes an entry, now or once there is room.
    ///
    /// # Safety
    /// The caller promises the same as for [`push`](Entries::push).
    pub unsafe fn push_or_wait(&mut self, entry: &squeue::Entry, number: u64) {
        // SAFETY: as the caller says.
        if !self.waiting.is_empty() || !unsafe { self.push(entry, number) } {
            self.waiting.push(entry.clone().user_data(self.mark(number)));
        }
    }

    /// Says that a device waits for the entry that was pushed last. A few such entries are
    /// submitted at once, before further completions are passed on.
    pub fn hurry(&mut self) {
        *self.urgent += 1;
    }

    /// Returns the calls that register memory and files with the ring.
    pub fn submitter(&self) -> &Submitter<'r> {
        self.submitter
    }

    /// Returns true if the kernel holds back completions that the ring had no room for.
    pub fn has_overflow(&self) -> bool {
        self.sq.cq_overflow()
    }

    fn submit(&mut self) {
        self.sq.sync();
        // If it is refused, the thread's next call tells.
        let _ = self.submitter.submit();
        self.sq.sync();
        *self.urgent = 0;
    }

    fn push_waiting(&mut self) {
        for entry in mem::take(self.waiting) {
            // SAFETY: the caller of `push_or_wait` has promised this.
            let pushed = self.waiting.is_empty() && unsafe { self.sq.push(&entry) }.is_ok();
            if !pushed {
                self.waiting.push(entry);
            }
        }
    }
}

impl fmt::Debug for Entries<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

/// A ring whose bell is heard.
pub(crate) struct Ring {
    uring: IoUring,
}

impl Ring {
    /// Sets up the ring, for the calling thread.
    pub(crate) fn new(port: &RingPort, kernel_threads: u32) -> io::Result<Ring> {
        let mut uring = build()?;
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
        try_bell(port, &mut uring)?;
        Ok(Ring { uring })
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

/// Rings once and checks that it is heard: a kernel that doesn't poll again and again would leave
/// requests lying.
fn try_bell(port: &RingPort, uring: &mut IoUring) -> io::Result<()> {
    port.ring();
    let (submitter, mut sq, mut cq) = uring.split();
    listen(port, &mut sq);
    sq.sync();
    while let Err(error) = submitter.submit_and_wait(1) {
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
    cq.sync();
    match cq.next().map(|e| (e.user_data(), e.result(), e.flags())) {
        Some((BELL, heard, flags)) if heard >= 0 && cqueue::more(flags) => Ok(()),
        _ => Err(too_old()),
    }
}

/// Makes the kernel poll the bell's wire, again and again. Returns false if there is no room.
fn listen(port: &RingPort, sq: &mut SubmissionQueue<'_>) -> bool {
    let wire = types::Fd(port.wire.as_raw_fd());
    let poll = opcode::PollAdd::new(wire, READABLE).multi(true).build().user_data(BELL);
    // SAFETY: the entry names no memory, and the wire lives as long as the port.
    unsafe { sq.push(&poll) }.is_ok()
}

/// Serves a ring until its owner ends it, and returns the users, whose memory the kernel may use
/// until this thread has ended.
pub(crate) fn serve(port: &RingPort, ring: Ring) -> Vec<Box<dyn RingUser>> {
    port.serve_here();
    // Nothing drops the users on this thread, not even a panic.
    let mut thread = mem::ManuallyDrop::new(RingLoop {
        port,
        members: Vec::new(),
        waiting: Vec::new(),
        urgent: 0,
        deaf: false,
        batch: Vec::with_capacity(BURST),
    });
    let mut uring = ring.uring;
    let ended = caught(|| {
        let (mut submitter, mut sq, mut cq) = uring.split();
        // This saves the kernel a look-up in each call; it may not support it.
        let _ = submitter.register_ring_fd();
        thread.run(&submitter, &mut sq, &mut cq);
    });
    port.close();
    let RingLoop { members, .. } = mem::ManuallyDrop::into_inner(thread);
    let mut users: Vec<_> = members.into_iter().map(|member| member.user).collect();
    if ended.is_none() {
        tracing::error!("a ring's thread panicked; its users have no ring any more");
        users.iter_mut().for_each(|user| user.panicked());
    }
    // The ring goes first: it names the users' memory.
    drop(uring);
    if port.unjoined.load(Ordering::Relaxed) {
        let (in_use, done): (Vec<_>, Vec<_>) = users.into_iter().partition(|it| it.is_in_use());
        drop(done);
        mem::forget(in_use);
        return Vec::new();
    }
    users
}

struct Member {
    user: Box<dyn RingUser>,
    /// True if the user has panicked.
    broken: bool,
}

struct RingLoop<'p> {
    port: &'p RingPort,
    members: Vec<Member>,
    waiting: Vec<squeue::Entry>,
    urgent: usize,
    /// True if the kernel no longer polls the bell's wire.
    deaf: bool,
    batch: Vec<(u64, i32, u32)>,
}

impl RingLoop<'_> {
    fn run<'r>(
        &mut self,
        submitter: &Submitter<'r>,
        sq: &mut SubmissionQueue<'r>,
        cq: &mut CompletionQueue<'_>,
    ) {
        // The burst, while there are completions, and how many there were.
        let mut burst: Option<(Burst, usize)> = None;
        loop {
            self.adopt();
            self.each(submitter, sq, |user, ring| user.take_in(ring));
            if self.urgent >= BURST {
                self.entries(0, submitter, sq).submit();
            }
            let burst_now = burst.get_or_insert_with(|| (Burst::begin(), 0));
            let some = self.reap(submitter, sq, cq);
            burst_now.1 += some;
            if some != 0 && burst_now.1 < LONG_BURST {
                // The requests that the completions brought go along in the same call.
                continue;
            }
            burst = None;
            self.each(submitter, sq, |user, ring| user.settle(ring));
            if some != 0 {
                continue;
            }
            self.each(submitter, sq, |user, ring| user.take_in(ring));
            if self.port.end.load(Ordering::Acquire) && self.may_end() {
                return;
            }
            self.deaf = self.deaf && !listen(self.port, sq);
            self.entries(0, submitter, sq).push_waiting();
            self.port.bell.doze();
            // Only what the kernel has can wake the thread.
            let wait = !self.has_work() && self.waiting.is_empty() && !self.deaf;
            sq.sync();
            let result = match (wait, self.deadline()) {
                (true, Some(until)) => {
                    let left = until.saturating_duration_since(time::now());
                    let left = Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
                    submitter.submit_with_args(1, &SubmitArgs::new().timespec(&left))
                }
                (true, None) => submitter.submit_and_wait(1),
                (false, _) if sq.is_empty() => Ok(0),
                (false, _) => submitter.submit_and_wait(0),
            };
            self.port.bell.awake();
            sq.sync();
            self.urgent = 0;
            match result {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {
                    // The kernel is short of memory, or wants completions taken first. The pushed
                    // entries stay.
                    tracing::warn!(%error, "io_uring accepts no entries now; trying again");
                    Parker::new().park_timeout(RING_FULL_PAUSE);
                }
                _ => {}
            }
        }
    }

    /// Adopts the users that have come. A user for which there is no place is dropped.
    fn adopt(&mut self) {
        for user in self.port.new_users() {
            match self.members.len() < MOST_USERS {
                true => self.members.push(Member { user, broken: false }),
                false => tracing::error!("a ring has {MOST_USERS} users, and takes no other"),
            }
        }
    }

    fn entries<'a, 'r>(
        &'a mut self,
        place: usize,
        submitter: &'a Submitter<'r>,
        sq: &'a mut SubmissionQueue<'r>,
    ) -> Entries<'a, 'r> {
        Entries { submitter, sq, waiting: &mut self.waiting, urgent: &mut self.urgent, place }
    }

    /// Gives each user its turn.
    fn each<'r>(
        &mut self,
        submitter: &Submitter<'r>,
        sq: &mut SubmissionQueue<'r>,
        turn: impl Fn(&mut dyn RingUser, &mut Entries<'_, 'r>),
    ) {
        for place in 0..self.members.len() {
            self.call(place, submitter, sq, &turn);
        }
    }

    fn call<'r>(
        &mut self,
        place: usize,
        submitter: &Submitter<'r>,
        sq: &mut SubmissionQueue<'r>,
        turn: impl FnOnce(&mut dyn RingUser, &mut Entries<'_, 'r>),
    ) {
        let RingLoop { members, waiting, urgent, .. } = self;
        let Some(member) = members.get_mut(place).filter(|it| !it.broken) else { return };
        let mut entries = Entries { submitter, sq, waiting, urgent, place };
        let _section = AtomicSection::enter("a turn of a ring's user");
        if caught(|| turn(&mut *member.user, &mut entries)).is_none() {
            tracing::error!("a user of a ring panicked; the ring goes on without it");
            member.broken = true;
            let _ = caught(|| member.user.panicked());
        }
    }

    /// Passes the next few completions on, and returns their number.
    fn reap<'r>(
        &mut self,
        submitter: &Submitter<'r>,
        sq: &mut SubmissionQueue<'r>,
        cq: &mut CompletionQueue<'_>,
    ) -> usize {
        cq.sync();
        self.batch.extend(cq.by_ref().take(BURST).map(|e| (e.user_data(), e.result(), e.flags())));
        cq.sync();
        let mut batch = mem::take(&mut self.batch);
        let some = batch.len();
        for (mark, result, flags) in batch.drain(..) {
            if mark == BELL {
                self.deaf |= !cqueue::more(flags);
                continue;
            }
            let (place, number) = ((mark >> NUMBER_BITS) as usize, mark & !(!0 << NUMBER_BITS));
            self.call(place, submitter, sq, |user, ring| user.completed(number, result, ring));
        }
        self.batch = batch;
        some
    }

    fn working(&self) -> impl Iterator<Item = &dyn RingUser> {
        self.members.iter().filter(|it| !it.broken).map(|it| &*it.user)
    }

    fn may_end(&self) -> bool {
        self.working().all(|user| user.may_be_cut_off() || !user.is_in_use())
    }

    fn has_work(&self) -> bool {
        self.port.has_new_users() || self.working().any(|user| user.has_work())
    }

    fn deadline(&self) -> Option<Instant> {
        self.working().filter_map(|user| user.deadline()).min()
    }
}
