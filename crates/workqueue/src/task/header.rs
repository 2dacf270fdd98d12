//! What a pool carries: the header inside each item, and the handles that move it along.
//!
//! An item goes through several hands, each of which is a type: [`Queued`] (in a container: it owns
//! the item, through the job slot of the item's own header), [`Running`] (taken by a worker), and
//! [`Claimed`] (taken back out of its container). `state.md` says which of them is made from which.

use std::mem::{self, MaybeUninit};
use std::panic::Location;
use std::ptr::NonNull;

use crate::task::claim::{Claimed, Place};
use crate::task::publication::Label;
use crate::task::running::Running;
use crate::task::state::{Seq, WorkState};
use crate::task::ticket::{Event, MaybeTicket, Ticket};
use crate::task::vtable::{ItemRef, Table};
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Link as Hook, Node};

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
        self.ticket.as_ref().map_or("", |ticket| ticket.home().schedule.queue_name(ticket))
    }

    /// What is shown of the instance, of an item with this table.
    #[inline]
    pub(crate) fn label(&self, table: &Table) -> Label {
        Label {
            name: table.name,
            site: self.site,
            queue: self.ticket.as_ref().map_or(0, |ticket| ticket.home().queue),
        }
    }
}

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
// lock while nobody has claimed it, by the claimant, and by a look. The bits' transitions are acquire/release and the containers have
// locks, so the accesses are ordered (`state.md`). A `Job` may move between threads: items are
// `Send + Sync`, tickets are too.
unsafe impl Sync for Header {}

impl Header {
    /// The header of an item that is what the table says: where that is queued once it is pending from the
    /// beginning.
    #[inline]
    pub(crate) fn new(table: &'static Table) -> Self {
        let state = match table {
            Table { alone: true, .. } => WorkState::alone(),
            Table { once: true, .. } => WorkState::pending(),
            _ => WorkState::new(),
        };
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
        if word >> Place::BITS == seq { Place::from_bits(word) } else { Place::Nowhere }
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
        self.place.store(seq << Place::BITS | place.bits(), Ordering::Release);
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
        let header = item.pointer();
        // Fill. SAFETY: the header lives inside the item, which this handle now keeps alive.
        let slot = &unsafe { header.as_ref() }.job;
        // SAFETY: the caller holds `PENDING`: until the place says something nobody else touches the slot.
        slot.with_mut(|slot| unsafe {
            (*slot).write(job);
        });
        Queued(header)
    }

    /// What counts it; `None` in models of the pool alone.
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        self.job().ticket.as_ref()
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
            ticket.note(Event::Withdrawn);
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
        // SAFETY: the slot is filled; the claimant of the item doesn't touch it before the holder of
        // this handle lets go of it, and nobody else may.
        unsafe { self.header().job() }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the instance holds the item, and with it the header. That is given up by the
        // consuming methods, by `drop`, and by a claimant, which first waits until the holder of
        // this handle lets go of it, under the lock of the container, or says `Nowhere`.
        unsafe { self.0.as_ref() }
    }

    /// What it holds, for the owner of the instance, started or not, alone.
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

    /// Under the lock of the container that it was just popped from: claims it, for a thread that pops it to
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
