//! What a pool carries: the header inside each item, and the handles that move it along.
//!
//! An item goes through several hands, each of which is a type: [`Queued`] (in a container: it owns
//! the item, through the job slot of the item's own header), [`Running`] (taken by a worker), and
//! [`Claimed`] (taken back out of its container). See `state.md` for who may take it from whom.

use std::any::Any;
use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::shielded;
use crate::pool::group::Group;
use crate::pool::publication::{Label, Publication};
use crate::pwq::Pwq;
use crate::pwq::deferred::DeferredEnds;
use crate::pwq::ticket::{MaybeTicket, Ticket};
use crate::task::claim::{Claimed, Place};
use crate::task::flushers;
use crate::task::run;
use crate::task::state::{Finished, Seq, Snapshot, WorkState};
use crate::task::vtable::{ItemRef, Reference, Table, log_panic};
use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Link as Hook, Node};
use corewise_sync::{hint, thread, time};
use tracing::Span;

/// What an instance carries along, beside its hold on the item.
pub(crate) struct Job {
    /// Counts the instance in the queue it was queued on, until dropped. `None` in models of the
    /// pool alone.
    pub(crate) ticket: MaybeTicket,
    /// The source line that queued it.
    pub(crate) site: &'static Location<'static>,
}

impl Job {
    /// The queue's name, for reports.
    pub(crate) fn queue_name(&self) -> &str {
        self.ticket.as_ref().map_or("", |ticket| &ticket.pwq.shared.name)
    }

    /// What is shown of the instance, of an item with this table.
    #[inline]
    pub(crate) fn label(&self, table: &Table) -> Label {
        Label {
            name: table.name,
            site: self.site,
            queue: self.ticket.as_ref().map_or(0, |ticket| ticket.pwq.shared.id),
        }
    }
}

/// How many bits of the place's word are a [`Place`].
const PLACE_BITS: u32 = 3;

/// The part of an item that the pool knows. In this order: what each instance touches lies together.
#[repr(C)]
pub(crate) struct Header {
    /// I: what the item is.
    pub(crate) table: &'static Table,
    pub(crate) state: WorkState,
    /// A: where the pending instance lies: its number, and in the lowest bits a [`Place`].
    place: AtomicU64,
    /// P: owned by the inbox or the list that the item is in.
    hook: Hook,
    /// P: owned by the holder of `PENDING`, and filled from Fill until the bit is cleared. While it
    /// is filled a popper may copy its bits, under the lock of the container that the item lies in,
    /// and a waiter that looks at it; and the claimant may write it once the item lies in none and
    /// nobody looks.
    pub(crate) job: UnsafeCell<MaybeUninit<Job>>,
}

// SAFETY: `job` is written by a queuer between its `pend` and the push, and by a claimant that has
// the item out of its container, both once nobody looks; it is read by a popper under the container's
// lock while nobody has claimed it, by the claimant, and by who looks. The bits' transitions are acquire/release and the containers have
// locks, so the accesses are ordered (`state.md`). A `Job` may move between threads: items are
// `Send + Sync`, tickets are too.
unsafe impl Sync for Header {}

impl Header {
    /// The header of an item that is what the table says.
    #[inline]
    pub(crate) fn new(table: &'static Table) -> Self {
        Header::with(table, WorkState::new())
    }

    /// The header of an item that is queued once, by who makes it: nobody else ever has it. It is
    /// pending from the beginning.
    #[inline]
    pub(crate) fn alone(table: &'static Table) -> Self {
        Header::with(table, WorkState::alone())
    }

    /// The header of an item that is queued once, by who makes it. It is pending from the beginning.
    #[inline]
    pub(crate) fn pending(table: &'static Table) -> Self {
        Header::with(table, WorkState::pending())
    }

    #[inline]
    fn with(table: &'static Table, state: WorkState) -> Self {
        Header {
            table,
            state,
            place: AtomicU64::new(0),
            hook: Hook::new(),
            job: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The name of the user's function, for reports.
    pub(crate) fn name(&self) -> &'static str {
        (self.table.name)()
    }

    /// Where pending instance `seq` lies: `Nowhere` also where its queuer hasn't said it yet. Acquire:
    /// who sees it placed sees the job slot filled.
    #[inline]
    pub(crate) fn place(&self, seq: Seq) -> Place {
        let word = self.place.load(Ordering::Acquire);
        if word >> PLACE_BITS == seq { Place::from_bits(word) } else { Place::Nowhere }
    }

    /// The pending instance goes into a container, or comes out of it: under its lock, or before
    /// the push.
    #[inline]
    pub(crate) fn set_place(&self, place: Place) {
        let now = self.state.snapshot();
        if now.alone() {
            // Nobody looks for it.
            return;
        }
        let seq = now.seq();
        self.place.store(seq << PLACE_BITS | place as u64, Ordering::Release);
    }

    /// The bits of the job slot. They are the job's only where the slot counts as empty from then
    /// on; else they have to be forgotten.
    ///
    /// # Safety
    /// The slot is filled, and nobody writes it meanwhile.
    pub(crate) unsafe fn copy_job(&self) -> MaybeUninit<Job> {
        // SAFETY: nobody writes the slot.
        self.job.with(|slot| unsafe { slot.read() })
    }

    /// The job in the slot.
    ///
    /// # Safety
    /// The slot is filled, and nobody writes or empties it while the reference lives.
    pub(crate) unsafe fn job(&self) -> &Job {
        // SAFETY: as the caller says.
        self.job.with(|slot| unsafe { (*slot).assume_init_ref() })
    }

    /// Changes the job in the slot.
    ///
    /// # Safety
    /// The slot is filled, and nobody else touches it meanwhile.
    pub(crate) unsafe fn with_job<R>(&self, change: impl FnOnce(&mut Job) -> R) -> R {
        self.state.outwait_lookers();
        // SAFETY: as the caller says.
        self.job.with_mut(|slot| change(unsafe { (*slot).assume_init_mut() }))
    }

    /// Fills the job slot.
    ///
    /// # Safety
    /// The caller holds `PENDING`, and has told nobody yet.
    #[inline]
    unsafe fn put_job(&self, job: Job) {
        // SAFETY: until the place says something the queuer is the only one who touches the slot.
        self.job.with_mut(|slot| unsafe {
            (*slot).write(job);
        });
    }
}

/// A queued item, by a pointer to the whole item: the hold of the instance on it. Dropping it cancels
/// the instance, unless somebody has claimed it: it is then over without having run.
pub(crate) struct Queued(NonNull<Header>);

// SAFETY: it stands for an `ItemRef`, which is `Send`.
unsafe impl Send for Queued {}

impl Queued {
    /// Fills the slot of an item that the caller just made pending.
    ///
    /// # Safety
    /// The caller holds `PENDING` of the item through a successful `pend`, or has made the item as
    /// one that is pending, and gives it up here.
    #[inline]
    pub(crate) unsafe fn new(item: ItemRef, job: Job) -> Queued {
        let header = item.into_pointer();
        // Fill. SAFETY: the caller holds `PENDING`; the header lives inside the item, which this
        // handle now keeps alive.
        unsafe { header.as_ref().put_job(job) };
        Queued(header)
    }

    /// What counts it; `None` in models of the pool alone.
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        self.job().ticket.as_ref()
    }

    /// The pool that it was queued on, and the stripe there; `None` in models of the pool alone.
    pub(crate) fn home(&self) -> Option<(Arc<Group>, usize, u32)> {
        self.ticket().map(Ticket::home)
    }

    /// It has a place in its pwq's slot of the limiter, which the end of the instance gives back.
    pub(crate) fn count(&self) {
        if let Some(ticket) = self.ticket() {
            ticket.count();
        }
    }

    /// Takes an item back that nobody else knows of yet and that lies nowhere.
    pub(crate) fn take_new(self) -> ItemRef {
        // SAFETY: the slot is filled, and counts as empty from here on.
        let job = unsafe { self.header().copy_job().assume_init() };
        let item = self.into_hold();
        if let Some(ticket) = job.ticket.as_ref() {
            ticket.withdraw();
        }
        item
    }

    /// Gives the instance up as if it had never been queued: who waits for it goes on, the item
    /// itself isn't told. False where somebody has claimed it: then it was queued, and is his.
    #[must_use]
    pub(crate) fn refuse(self) -> bool {
        self.claim().map(Claimed::refuse).is_some()
    }

    /// What the instance carries along.
    fn job(&self) -> &Job {
        // SAFETY: the slot is filled; who has claimed the item doesn't touch it before the holder of
        // this handle lets go of it, and nobody else may.
        unsafe { self.header().job() }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the instance holds the item, and with it the header. That is given up by the
        // consuming methods, by `drop`, and by a claimant, which first waits until the holder of
        // this handle lets go of it, under the lock of the container, or says `Nowhere`.
        unsafe { self.0.as_ref() }
    }

    /// What it holds, for who has the instance, started or not, alone.
    #[inline]
    fn into_hold(self) -> ItemRef {
        // SAFETY: the handle stands for the hold, and is given up.
        unsafe { ItemRef::kept(self.into_raw()) }
    }

    /// The instance goes into a container: under that one's lock, or before the push.
    #[inline]
    pub(crate) fn set_place(&self, place: Place) {
        self.header().set_place(place);
    }

    /// Under the lock of the container that it was just popped from: starts the instance. `None`
    /// where it is somebody else's: a claimant's, or that of the worker that runs the item now and
    /// runs this instance too, right after (an item never runs on two workers).
    #[inline]
    pub(crate) fn start(self) -> Option<Running> {
        let header = self.header();
        loop {
            let now = header.state.snapshot();
            if now.alone() {
                // SAFETY: the slot is filled, and the holder of this handle has the item alone. It
                // counts as empty from here on.
                let job = unsafe { header.copy_job().assume_init() };
                return Some(Running::new(self.into_hold(), job));
            }
            if now.claimed() {
                // LetGo: the last access, since the claimant may free the item from here on.
                self.set_place(Place::Nowhere);
                break;
            }
            if now.running() {
                if header.state.hand_over(now) {
                    break;
                }
                continue;
            }
            // SAFETY: the slot is filled, and nobody has claimed it: who does so later needs the lock
            // that we hold before it may write.
            let job = unsafe { header.copy_job() };
            if header.state.start(now) {
                // SAFETY: the instance has started: the slot counts as empty.
                return Some(Running::new(self.into_hold(), unsafe { job.assume_init() }));
            }
        }
        mem::forget(self);
        None
    }

    /// Under the lock of the container that it was just popped from: claims it, for who pops it to
    /// end it. `None` where somebody else has.
    pub(crate) fn claim(self) -> Option<Claimed> {
        let header = self.0;
        let claimed = loop {
            let now = self.header().state.snapshot();
            if now.claimed() {
                // LetGo, as in `start`.
                self.set_place(Place::Nowhere);
                break None;
            }
            if self.header().state.claim(now) {
                break Some(Claimed(header));
            }
        };
        mem::forget(self);
        claimed
    }

    /// Under the lock of the container that it was just popped from: lets go of it where somebody
    /// has claimed it. Else it is on its way to another container.
    pub(crate) fn unless_claimed(self) -> Option<Queued> {
        if self.header().state.snapshot().claimed() {
            self.set_place(Place::Nowhere);
            mem::forget(self);
            return None;
        }
        self.set_place(Place::Moving);
        Some(self)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // Claimed first, so that nobody else does meanwhile.
        drop(Queued(self.0).claim());
    }
}

// SAFETY: a `Queued` is unique per pending instance (`pend` succeeds once), so its header is in one
// inbox or list at most; its hold keeps it in place.
unsafe impl Node for Queued {
    type Target = Header;

    fn into_raw(self) -> NonNull<Header> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    unsafe fn from_raw(raw: NonNull<Header>) -> Self {
        Queued(raw)
    }

    unsafe fn link<'a>(raw: NonNull<Header>) -> &'a Hook
    where
        Self: 'a,
    {
        // SAFETY: the item is queued while it is in an inbox, so its header is alive.
        unsafe { &(*raw.as_ptr()).hook }
    }
}

/// An instance that has been started.
pub(crate) struct Running {
    item: ItemRef,
    /// That of the item.
    pub(crate) table: &'static Table,
    pub(crate) job: Job,
    /// The instance that waits for this one, further up the same stack; see [`current`](crate::task::current).
    pub(crate) outer: Cell<*const Running>,
}

impl Running {
    #[inline]
    pub(crate) fn new(item: ItemRef, job: Job) -> Running {
        hint::reads(&item.header().table);
        Running { table: item.header().table, item, job, outer: Cell::new(ptr::null()) }
    }

    /// Whether it is this item that runs. One that is alone is nobody's to ask for, and its memory may be
    /// another's by now.
    pub(crate) fn is(&self, item: &Header) -> bool {
        !self.table.alone && ptr::eq(self.item.pointer().as_ptr(), item)
    }

    /// Its header, where somebody may wait for it.
    pub(crate) fn known(&self) -> Option<NonNull<Header>> {
        (!self.table.alone).then(|| self.item.pointer())
    }

    /// The call of the user's function, which is to come. Once.
    #[inline]
    pub(crate) fn uncalled(&self) -> Uncalled<'_> {
        Uncalled(self)
    }

    /// What counts it in the queue it was queued on.
    #[inline]
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        self.job.ticket.as_ref()
    }

    /// What is shown of it while it runs.
    #[inline]
    pub(crate) fn label(&self) -> Label {
        self.job.label(self.table)
    }

    /// The name of the user's function, for reports.
    pub(crate) fn name(&self) -> &'static str {
        (self.table.name)()
    }

    /// Whether its queue says that its items compute for long.
    pub(crate) fn is_cpu_intensive(&self) -> bool {
        self.ticket().is_some_and(|ticket| ticket.pwq.shared.cpu_intensive)
    }

    /// The instance runs away from its home pod; counted.
    pub(crate) fn overflowed(&self) {
        if let Some(ticket) = self.job.ticket.as_ref() {
            ticket.overflowed();
        }
    }

    /// Runs the instance, and each one that is handed over meanwhile, showing each. Never unwinds.
    /// Returns how many instances ran. `carry`: that of the worker, which is empty or of the same pair.
    /// Where a worker's loop calls it, and by reference, so that nothing is copied; what is left is to be
    /// dropped.
    #[inline(always)]
    pub(crate) fn run(&mut self, shown: &Publication, carry: Option<&DeferredEnds<Pwq>>) -> u64 {
        self.run_only(shown);
        let mut hold = None;
        if !self.table.alone {
            // Finish, as it nearly always is: nobody waits or looks, and nothing was handed over.
            let Some(last) = self.item.header().state.finish_quickly() else {
                // What was handed over may be of another queue.
                carry.inspect(|carry| carry.stops());
                return self.finish_slowly(shown);
            };
            // SAFETY: the instance is over, and doesn't touch the item again.
            hold = self.table.hold(unsafe { self.take_hold() }, last);
        }
        shown.ends();
        if let Some(hold) = hold {
            hold.release();
        }
        // Last: after a flush of the queue the instance is over in every respect.
        self.job.ticket.take().end(carry);
        1
    }

    /// # Safety
    /// The item isn't touched by way of this any more.
    #[inline]
    unsafe fn take_hold(&mut self) -> ItemRef {
        // SAFETY: the hold is the instance's, and given up here once.
        unsafe { ItemRef::kept(self.item.pointer()) }
    }

    /// The rest of `run`, once the instance has run.
    #[cold]
    fn finish_slowly(&mut self, shown: &Publication) -> u64 {
        let job = Job { ticket: self.job.ticket.take(), site: self.job.site };
        // SAFETY: what is left is dropped.
        let item = unsafe { self.take_hold() };
        let (mut running, mut ran) = (Running::new(item, job), 1);
        loop {
            let (next, over) = running.finish(true, shown);
            // Before the end of this one, which may let others through: meanwhile nobody is to wait
            // for the claim.
            let next = next.map(Claimed::restart);
            over.end();
            let Some(next) = next else { return ran };
            running = next;
            running.run_only(shown);
            ran += 1;
        }
    }

    /// Runs the instance on the stack of a waiter. Never unwinds. One that was handed over meanwhile is
    /// the caller's, which puts it back. And it [ends](Over::end) the one that has run.
    pub(crate) fn run_once(mut self, shown: &Publication) -> (Option<Claimed>, Over) {
        if self.table.alone {
            // Its run uses it up, and ends it.
            self.run(shown, None);
            return (None, Over { hold: None, ticket: self.job.ticket });
        }
        self.run_only(shown);
        self.finish(false, shown)
    }

    /// Runs the instance, and doesn't end it.
    #[inline(always)]
    fn run_only(&self, shown: &Publication) {
        shown.starts(self.label());
        let timed = self.ticket().is_some_and(|ticket| ticket.pwq.shared.timed);
        let ran = if timed { self.run_timed() } else { run::run(self) };
        if let Err(payload) = ran {
            self.panicked(payload);
        }
    }

    /// Counts how long that takes.
    #[cold]
    fn run_timed(&self) -> thread::Result<()> {
        let began = time::now();
        let ran = run::run(self);
        if let Some(ticket) = self.ticket() {
            ticket.took(time::now().duration_since(began));
        }
        ran
    }

    #[cold]
    fn panicked(&self, payload: Box<dyn Any + Send>) {
        shielded("dropping what a work item panicked with", || {
            if self.table.alone {
                log_panic(self.name(), payload);
            } else {
                self.item.panicked(payload);
            }
        });
    }

    fn finish(self, stays: bool, shown: &Publication) -> (Option<Claimed>, Over) {
        let Running { item, table, job, .. } = self;
        let (Finished { again, last }, ended) = item.finish(stays);
        // From here on the item may be gone, unless the next instance is the caller's.
        flushers::wake(ended);
        if !(again && stays) {
            shown.ends();
        }
        let next = again.then(|| Claimed(item.pointer()));
        (next, Over { hold: table.hold(item, last), ticket: job.ticket })
    }
}

/// An instance that runs, and whose function wasn't called yet. Dropped where a panic comes before the
/// call.
pub(crate) struct Uncalled<'a>(&'a Running);

impl Uncalled<'_> {
    /// The span that the item was spawned in, where that is known.
    pub(crate) fn spawner(&self) -> Option<&Span> {
        self.0.item.spawner()
    }

    /// Calls the user's function; may panic.
    #[inline]
    pub(crate) fn call(self) {
        let Running { item, table, .. } = self.0;
        mem::forget(self);
        // SAFETY: the instance has been started, and this is its run. Where the item is alone it is
        // there until now, and nobody touches it after.
        unsafe { item.run(table) }
    }
}

impl Drop for Uncalled<'_> {
    #[cold]
    fn drop(&mut self) {
        let Running { item, table, .. } = self.0;
        if table.alone {
            // SAFETY: it wasn't used up, and isn't touched any more.
            let item = unsafe { ItemRef::kept(item.pointer()) };
            table.hold(item, true).into_iter().for_each(Reference::release);
        }
    }
}

/// An instance that has run.
#[must_use]
pub(crate) struct Over {
    hold: Option<Reference>,
    ticket: MaybeTicket,
}

impl Over {
    /// Gives up what it held.
    pub(crate) fn end(self) {
        if let Some(hold) = self.hold {
            hold.release();
        }
        // Last: after a flush of the queue the instance is over in every respect.
        drop(self.ticket);
    }
}

impl ItemRef {
    /// Finish: the running instance is over. Also who is to be told of that.
    pub(crate) fn finish(&self, stays: bool) -> (Finished, Vec<Arc<Completion>>) {
        let state = &self.header().state;
        let mut ended = Vec::new();
        loop {
            state.outwait_lookers();
            let mut now = state.snapshot();
            if now.has_flushers() {
                now = self.collect(true, &mut ended);
            }
            if let Some(finished) = state.finish(now, stays) {
                return (finished, ended);
            }
        }
    }

    /// Collect, where the word says that somebody waits.
    fn collect(&self, outlasts: bool, ended: &mut Vec<Arc<Completion>>) -> Snapshot {
        let aside = self.lent().aside().expect("who waits has found it");
        aside.flushers.collect(&self.header().state, outlasts, ended)
    }

    /// Cancel: the claimed instance is over. Whether nobody has the item any more, and who is to be
    /// told. Where an earlier instance runs it is that one's end which tells.
    pub(crate) fn cancel(&self) -> (bool, Vec<Arc<Completion>>) {
        let state = &self.header().state;
        let mut ended = Vec::new();
        loop {
            state.outwait_lookers();
            let mut now = state.snapshot();
            if now.has_flushers() && !now.running() {
                now = self.collect(false, &mut ended);
            }
            if let Some(last) = state.cancel(now) {
                return (last, ended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::work::Work;

    fn pend(work: &Work) -> Queued {
        assert!(work.header().state.pend());
        let item = work.hold();
        // SAFETY: `pend` succeeded just now.
        unsafe { Queued::new(item, Job { ticket: MaybeTicket::none(), site: Location::caller() }) }
    }

    #[test]
    fn a_cancelled_instance_ends_no_flush_that_waits_for_the_running_one() {
        let work = Work::new(|| ());
        let mut first = pend(&work).start().expect("nobody runs it");
        std::thread::scope(|scope| {
            let waiting = |n| {
                while work.aside().flushers.len() != n {
                    std::thread::yield_now();
                }
            };
            let mut flushes = vec![scope.spawn(|| work.flush())];
            waiting(1);
            let second = pend(&work);
            flushes.push(scope.spawn(|| work.flush()));
            waiting(2);
            drop(second);
            assert_eq!(work.aside().flushers.len(), 2, "the first instance still runs");
            first.run(&Publication::new(), None);
            assert!(flushes.into_iter().all(|flush| flush.join().unwrap()));
        });
        assert!(!work.flush(), "nothing is left to wait for");
    }
}
