//! The header inside each item, its table of functions, and the handles that move it through a
//! pool.
//!
//! An item is a struct whose first field is its [`Header`]. A pointer to the one is a pointer to
//! the other, and the header names a table that says what the other is.
//!
//! An item goes through several hands, and each is a type. It is [`Queued`] in a container,
//! [`Running`] once a worker has taken it, and [`Claimed`] once it was taken back out of its
//! container. A [`Queued`] owns the item, through the job slot of the item's own header. `state.md`
//! says which of them is made from which; the comments here use its names for the steps.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::ops::Deref;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Link as Hook, Node};
use corewise_sync::{Completion, Mutex, panics, text};
use tracing::Span;

use crate::error::shielded;
use crate::task::claim::{Claimed, Container};
use crate::task::running::Label;
use crate::task::running::Running;
use crate::task::state::{Seq, Snapshot, WorkState};
use crate::task::ticket::{Event, MaybeTicket, Ticket};

/// The data that an instance carries along, beside its hold on the item.
pub(crate) struct Job {
    /// Counts the instance in the queue it was queued on, until dropped. `None` in models of the
    /// pool alone.
    pub(crate) ticket: MaybeTicket,
    /// The source line that queued it.
    pub(crate) site: &'static Location<'static>,
}

impl Job {
    /// Returns the queue's name, for reports.
    pub(crate) fn queue_name(&self) -> &str {
        self.ticket.as_ref().map_or("", |ticket| ticket.home().schedule.queue_name(ticket))
    }

    /// Returns the description of the instance, for an item with this table.
    #[inline]
    pub(crate) fn label(&self, table: &Table) -> Label {
        Label {
            name: table.name,
            site: self.site,
            queue: self.ticket.as_ref().map_or(0, |ticket| ticket.home().queue),
        }
    }
}

/// The part of an item that the pool knows. The fields that each instance touches lie together.
#[repr(C)]
pub(crate) struct Header {
    /// I: the functions of the item's type.
    pub(crate) table: &'static Table,
    pub(crate) state: WorkState,
    /// A: the place of the pending instance: its number, and in the lowest bits a [`Container`].
    place: AtomicU64,
    /// P: owned by the inbox or the list that the item is in.
    hook: Hook,
    /// P: owned by the holder of `PENDING`, and filled from Fill until the bit is cleared. While it
    /// is filled, a popper may copy its bits, under the lock of the container that the item lies
    /// in; so may a waiter that looks at it. The claimant may write it once the item lies in no
    /// container and no thread looks.
    pub(crate) job: UnsafeCell<MaybeUninit<Job>>,
}

// SAFETY: a queuer writes `job` between its `pend` and the push. A claimant that has the item out
// of its container writes it too. Both do so once no thread looks. A popper reads `job` under the
// container's lock while the item is unclaimed. The claimant reads it, and so does a look. The
// bits' transitions are acquire/release and the containers have locks, so the accesses are ordered
// (`state.md`). A `Job` may move between threads: items are `Send + Sync`, tickets are too.
unsafe impl Sync for Header {}

impl Header {
    /// Creates the header of an item with this table. If the table says so, the item is pending
    /// from the beginning.
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

    /// Returns the name of the user's function, for reports.
    pub(crate) fn name(&self) -> &'static str {
        (self.table.name)()
    }

    /// Returns where pending instance `seq` lies; also `Nowhere` if its queuer hasn't said so yet.
    /// Acquire: a thread that sees it placed sees the job slot filled.
    #[inline]
    pub(crate) fn place(&self, seq: Seq) -> Container {
        let word = self.place.load(Ordering::Acquire);
        if word >> Container::BITS == seq { Container::from_bits(word) } else { Container::Nowhere }
    }

    /// Sets the container that the pending instance goes into, or comes out of. Called under that
    /// container's lock, or before the push.
    #[inline]
    pub(crate) fn set_place(&self, place: Container) {
        let now = self.state.snapshot();
        if now.alone() {
            // No thread looks for it.
            return;
        }
        let seq = now.seq();
        self.place.store(seq << Container::BITS | place.bits(), Ordering::Release);
    }

    /// Copies the bits of the job slot. They are the job's only if the slot counts as empty from
    /// then on; else the caller has to forget them.
    ///
    /// # Safety
    /// The slot is filled, and no thread writes it meanwhile.
    pub(crate) unsafe fn copy_job(&self) -> MaybeUninit<Job> {
        // SAFETY: no thread writes the slot.
        self.job.with(|slot| unsafe { slot.read() })
    }

    /// Returns the job in the slot.
    ///
    /// # Safety
    /// The slot is filled, and no thread writes or empties it while the reference lives.
    pub(crate) unsafe fn job(&self) -> &Job {
        // SAFETY: as the caller says.
        self.job.with(|slot| unsafe { (*slot).assume_init_ref() })
    }

    /// Changes the job in the slot.
    ///
    /// # Safety
    /// The slot is filled, and no other thread touches it meanwhile.
    pub(crate) unsafe fn with_job<R>(&self, change: impl FnOnce(&mut Job) -> R) -> R {
        self.state.outwait_lookers();
        // SAFETY: as the caller says.
        self.job.with_mut(|slot| change(unsafe { (*slot).assume_init_mut() }))
    }
}

/// A queued item, by a pointer to the whole item: the hold of the instance on it. Dropping it
/// cancels the instance, unless the instance is claimed: it is then over without having run.
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
        // SAFETY: the caller holds `PENDING`: until the place is set, no other thread touches the
        // slot.
        slot.with_mut(|slot| unsafe {
            (*slot).write(job);
        });
        Queued(header)
    }

    /// Returns the ticket that counts it; `None` in models of the pool alone.
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        self.job().ticket.as_ref()
    }

    /// Records its place in its pwq's slot of the limiter, which the end of the instance gives
    /// back.
    pub(crate) fn count(&self) {
        if let Some(ticket) = self.ticket() {
            ticket.count();
        }
    }

    /// Takes an item back that no other thread knows yet and that lies nowhere.
    pub(crate) fn take_new(self) -> ItemRef {
        // SAFETY: the slot is filled, and counts as empty from here on.
        let job = unsafe { self.header().copy_job().assume_init() };
        let item = self.into_hold();
        if let Some(ticket) = job.ticket.as_ref() {
            ticket.note(Event::Withdrawn);
        }
        item
    }

    /// Gives the instance up as if it had never been queued: its waiters wake, and the item itself
    /// isn't notified. Returns false if the instance is claimed: then it was queued, and is the
    /// claimant's.
    #[must_use]
    pub(crate) fn refuse(self) -> bool {
        self.claim().map(Claimed::refuse).is_some()
    }

    /// Returns the data that the instance carries along.
    fn job(&self) -> &Job {
        // SAFETY: the slot is filled; the claimant of the item doesn't touch it before the holder
        // of this handle lets go of it, and no other thread may.
        unsafe { self.header().job() }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the instance holds the item, and with it the header. The hold is given up by the
        // consuming methods, by `drop`, and by a claimant. The claimant first waits until the
        // holder of this handle lets go of it, under the lock of the container, or sets `Nowhere`.
        unsafe { self.0.as_ref() }
    }

    /// Returns its hold, for the sole owner of the instance, started or not.
    #[inline]
    fn into_hold(self) -> ItemRef {
        // SAFETY: the handle stands for the hold, and is given up.
        unsafe { ItemRef::kept(self.into_raw()) }
    }

    /// Puts the instance into a container: under that one's lock, or before the push.
    #[inline]
    pub(crate) fn set_place(&self, place: Container) {
        self.header().set_place(place);
    }

    /// Starts the instance, under the lock of the container that it was just popped from. Returns
    /// `None` if the instance is another thread's: a claimant's, or that of the worker that runs
    /// the item now and runs this instance right after. (An item never runs on two workers.)
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
                self.set_place(Container::Nowhere);
                break;
            }
            if now.running() {
                if header.state.hand_over(now) {
                    break;
                }
                continue;
            }
            // SAFETY: the slot is filled, and the item is unclaimed: a later claimant needs the
            // lock that we hold before it may write.
            let job = unsafe { header.copy_job() };
            if header.state.start(now) {
                // SAFETY: the instance has started: the slot counts as empty.
                return Some(Running::new(self.into_hold(), unsafe { job.assume_init() }));
            }
        }
        mem::forget(self);
        None
    }

    /// Claims the instance, for a thread that pops it to end it, under the lock of the container
    /// that it was just popped from. Returns `None` if another thread has claimed it.
    pub(crate) fn claim(self) -> Option<Claimed> {
        let header = self.0;
        let claimed = loop {
            let now = self.header().state.snapshot();
            if now.claimed() {
                // LetGo, as in `start`.
                self.set_place(Container::Nowhere);
                break None;
            }
            if self.header().state.claim(now) {
                break Some(Claimed(header));
            }
        };
        mem::forget(self);
        claimed
    }

    /// Lets go of the instance if it is claimed, under the lock of the container that it was just
    /// popped from. Else the instance is on its way to another container.
    pub(crate) fn unless_claimed(self) -> Option<Queued> {
        if self.header().state.snapshot().claimed() {
            self.set_place(Container::Nowhere);
            mem::forget(self);
            return None;
        }
        self.set_place(Container::Moving);
        Some(self)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // The claim comes first, so that no other thread claims it meanwhile.
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

/// An item that a pool carries.
///
/// # Safety
/// It is `repr(C)`, and its first field is its [`Header`], made with a [`Table`] of this very type.
pub(crate) unsafe trait Item: Send + Sync {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the header is the first field of a `repr(C)` struct.
        unsafe { &*std::ptr::from_ref(self).cast::<Header>() }
    }
    /// Notifies the waiters that the item won't be run.
    fn cancelled(&self) {}
    /// Handles a panic of its run. Not called for a [`OneShotItem`].
    fn panicked(&self, payload: Box<dyn Any + Send>) {
        log_panic(self.header().name(), payload);
    }
    /// Returns the span that it was spawned in, if that is known.
    fn spawner(&self) -> Option<&Span> {
        None
    }
}

/// An item that outlives its runs.
pub(crate) trait Runs: Item {
    /// Runs the user's function; may panic.
    fn run(&self);
}

/// An item that can be queued again and again, flushed, and set on a timer.
///
/// # Safety
/// An [`HandleData`] is that many bytes from its beginning.
pub(crate) unsafe trait Reusable: Runs {
    /// Offset of the part that its instances don't touch.
    const ASIDE: usize;
    /// Takes the item off its timer, under the lock of its holder there; returns `None` if it has
    /// left already. Called by its claimant if its place is
    /// [`Container::Timer`](crate::task::claim::Container).
    fn unshelve(&self) -> Option<Queued>;
    /// Returns the time until its timer fires, if one runs (a moment ago).
    fn fires_in(&self) -> Option<Duration>;
}

/// The part of an item that an instance doesn't touch: data of its handles and of its waiters.
pub(crate) struct HandleData {
    /// A: the number of handles. While the item is queued or runs, its state word keeps it, and
    /// counts as no handle.
    pub(crate) handles: AtomicUsize,
    /// Its waiters.
    pub(crate) flushers: Flushers,
}

/// An item that only the pool ever has, and that is used up by its run.
pub(crate) trait OneShotItem: Item {
    /// Runs the user's function; may panic.
    fn run(self: Box<Self>);
}

/// Logs that a run panicked, if the item has no handle that yields the panic.
pub(crate) fn log_panic(item: &str, payload: Box<dyn Any + Send>) {
    let (item, message) = (text::name(item), text::message(panics::message(&*payload)));
    tracing::error!(%item, %message, "a work item panicked");
}

/// The functions of one type of items. Each gets the header of a live item of that type, by a
/// pointer to the whole item.
pub(crate) struct Table {
    /// The name of the user's function, for reports.
    pub(crate) name: fn() -> &'static str,
    run: unsafe fn(NonNull<Header>),
    cancelled: unsafe fn(NonNull<Header>),
    panicked: unsafe fn(NonNull<Header>, Box<dyn Any + Send>),
    spawner: unsafe fn(NonNull<Header>) -> Option<NonNull<Span>>,
    /// Gives up one hold on the item: a count of its `Arc`, or all of it.
    pub(crate) release: unsafe fn(NonNull<Header>),
    /// True if the item's state word keeps it: the thread that ends the last instance frees the
    /// item, if no handle is left.
    kept: bool,
    /// The value of [`Reusable::ASIDE`]; 0 if there is none.
    aside: usize,
    unshelve: unsafe fn(NonNull<Header>) -> Option<Queued>,
    fires_in: unsafe fn(NonNull<Header>) -> Option<Duration>,
    /// True if the item is queued once, when it is made.
    pub(crate) once: bool,
    /// True if its run uses it up.
    pub(crate) alone: bool,
    /// True if the item is the run of a stolen fork.
    pub(crate) stolen: bool,
    /// True if the item stands for several closures, and isn't run itself.
    pub(crate) block: bool,
}

/// The tables of items that are an `I`, and whose function or future is a `C`.
pub(crate) struct TableOf<I, C>(PhantomData<(I, C)>);

impl<I: Item, C> TableOf<I, C> {
    /// Returns the table of items that live in a `Box`, and are kept by their state word.
    const fn kept(run: unsafe fn(NonNull<Header>)) -> Table {
        Table {
            name: std::any::type_name::<C>,
            run,
            // SAFETY: as of the table's functions.
            cancelled: |item| unsafe { of::<I>(item) }.cancelled(),
            // SAFETY: as above.
            panicked: |item, payload| unsafe { of::<I>(item) }.panicked(payload),
            // SAFETY: as above.
            spawner: |item| unsafe { of::<I>(item) }.spawner().map(NonNull::from),
            release: free::<I>,
            kept: true,
            aside: 0,
            unshelve: |_| None,
            fires_in: |_| None,
            once: false,
            alone: false,
            stolen: false,
            block: false,
        }
    }
}

impl<I: Runs, C> TableOf<I, C> {
    // SAFETY: as of the table's functions.
    const KEPT: Table = Self::kept(|item| unsafe { of::<I>(item) }.run());
    /// The table of items that live in a `Box`, are kept by their state word, and are queued once,
    /// by a thread that makes them.
    pub(crate) const ONCE: Table = Table { once: true, ..Self::KEPT };
    /// The table of items that live in an `Arc`.
    pub(crate) const COUNTED: Table =
        Table { release: release_count::<I>, kept: false, ..Self::KEPT };
}

impl<I: Reusable, C> TableOf<I, C> {
    /// The table of items that live in a `Box`, are kept by their state word, and can be queued
    /// again and again.
    pub(crate) const REUSABLE: Table = Table {
        aside: I::ASIDE,
        // SAFETY: as of the table's functions.
        unshelve: |item| unsafe { of::<I>(item) }.unshelve(),
        // SAFETY: as above.
        fires_in: |item| unsafe { of::<I>(item) }.fires_in(),
        ..Self::KEPT
    };
}

impl<I: OneShotItem, C> TableOf<I, C> {
    // SAFETY: the item was leaked from a `Box`, and is the caller's, which gives it up.
    const USE_UP: unsafe fn(NonNull<Header>) =
        |item| unsafe { Box::from_raw(item.cast::<I>().as_ptr()) }.run();
    /// The table of items that live in a `Box`, are queued once, by a thread that makes them, and
    /// are used up by that run.
    pub(crate) const ALONE: Table = Table { alone: true, ..Self::kept(Self::USE_UP) };
}

impl Table {
    /// Returns the functions of an item that is a part of another one. It lives in the frame of the
    /// thread that runs it, once; `release` is called if it isn't run.
    pub(crate) const fn of_part(
        name: fn() -> &'static str,
        run: unsafe fn(NonNull<Header>),
        release: unsafe fn(NonNull<Header>),
        spawner: unsafe fn(NonNull<Header>) -> Option<NonNull<Span>>,
    ) -> Table {
        Table {
            name,
            run,
            cancelled: |_| {},
            panicked: |_, payload| panics::discard(payload),
            spawner,
            release,
            kept: true,
            aside: 0,
            unshelve: |_| None,
            fires_in: |_| None,
            once: true,
            alone: true,
            stolen: false,
            block: false,
        }
    }

    /// Returns the same table for a stolen fork.
    pub(crate) const fn of_fork(self) -> Table {
        Table { stolen: true, ..self }
    }

    /// Returns the same table for an item that stands for several closures.
    pub(crate) const fn of_block(self) -> Table {
        Table { block: true, ..self }
    }

    /// Returns true if its items live in an `Arc`.
    pub(crate) fn is_counted(&self) -> bool {
        !self.kept
    }

    /// Gives up the rest of an item whose instance is over; does nothing if it isn't the `last`
    /// one, or if there is a handle. The user's destructors may run then.
    #[inline]
    pub(crate) fn give_up(&self, item: ItemRef, last: bool) {
        if last || !self.kept {
            self.let_go(item);
        }
    }

    /// Drops the hold. A panic in there doesn't reach the caller. Few runs call this: an item that
    /// is used up needs no such call, and most reusable ones outlast their runs.
    #[inline(never)]
    fn let_go(&self, item: ItemRef) {
        // SAFETY: the item is of this table, still held, and given up once.
        shielded("dropping a work item's function", || unsafe { (self.release)(item.0) });
    }
}

/// Returns the item of a header.
///
/// # Safety
/// The header is the one of a live `I`, and the pointer was made from one to the whole item.
unsafe fn of<'a, I: Item>(header: NonNull<Header>) -> &'a I {
    // SAFETY: as the caller says; the header is the item's first field.
    unsafe { header.cast::<I>().as_ref() }
}

/// Gives up a count of the `Arc` that the item lives in.
///
/// # Safety
/// See [`of`]. The `I` lives in an `Arc`; the caller has a count of it, and gives it up.
unsafe fn release_count<I>(header: NonNull<Header>) {
    // SAFETY: the hold is a count of the `Arc` that `ItemRef::counted` was given.
    drop(unsafe { Arc::from_raw(header.cast::<I>().as_ptr()) });
}

/// Frees an item that lives in a `Box`.
///
/// # Safety
/// See [`of`]. The `I` was leaked from a `Box`, and no other thread has it.
unsafe fn free<I>(header: NonNull<Header>) {
    // SAFETY: the item was leaked from a `Box`, and no thread has it any more, or ever will.
    drop(unsafe { Box::from_raw(header.cast::<I>().as_ptr()) });
}

/// A held item: its header, by a pointer to all of the item.
#[derive(Clone, Copy)]
pub(crate) struct LentItem<'a> {
    item: NonNull<Header>,
    hold: PhantomData<&'a Header>,
}

impl<'a> LentItem<'a> {
    /// Lends the item for as long as a hold of it exists.
    ///
    /// # Safety
    /// It is the header of an item, by a pointer to the whole item, as its hold was made of. A hold
    /// of the item exists for as long as this lives.
    #[inline]
    pub(crate) unsafe fn new(item: NonNull<Header>) -> LentItem<'a> {
        LentItem { item, hold: PhantomData }
    }

    /// Returns the pointer to the whole item.
    #[inline]
    pub(crate) fn pointer(self) -> NonNull<Header> {
        self.item
    }

    /// Returns the part that its instances don't touch, if it is [`Reusable`].
    #[inline]
    pub(crate) fn aside(self) -> Option<&'a HandleData> {
        // SAFETY: the hold keeps it.
        self.beside().map(|aside| unsafe { aside.as_ref() })
    }

    /// Returns the same part, by a pointer to all of the item.
    #[inline]
    pub(crate) fn beside(self) -> Option<NonNull<HandleData>> {
        let offset = self.table.aside;
        // SAFETY: the item is of its table's type, which says where that part lies; the pointer is
        // one to all of the item, which the hold keeps.
        (offset != 0).then(|| unsafe { self.item.byte_add(offset).cast() })
    }
}

impl LentItem<'_> {
    /// Calls [`Reusable::unshelve`].
    pub(crate) fn unshelve(self) -> Option<Queued> {
        // SAFETY: the item is of its table's type, and the hold keeps it.
        unsafe { (self.table.unshelve)(self.item) }
    }

    /// Calls [`Reusable::fires_in`].
    pub(crate) fn fires_in(self) -> Option<Duration> {
        // SAFETY: as above.
        unsafe { (self.table.fires_in)(self.item) }
    }
}

impl Deref for LentItem<'_> {
    type Target = Header;

    #[inline]
    fn deref(&self) -> &Header {
        // SAFETY: the hold keeps the item in place.
        unsafe { self.item.as_ref() }
    }
}

/// The pool's pointer to an item, of any type: the hold of one instance on it, which is given up by
/// [`Table::give_up`] only: forgetting it leaks.
pub(crate) struct ItemRef(NonNull<Header>);

// SAFETY: it stands for an `Arc` or a `Box` of an item, and items are `Send + Sync`.
unsafe impl Send for ItemRef {}
// SAFETY: as above.
unsafe impl Sync for ItemRef {}

impl ItemRef {
    /// Creates a hold on an item whose header has the table of [`TableOf::COUNTED`].
    #[inline]
    pub(crate) fn counted<I: Item + 'static>(item: Arc<I>) -> ItemRef {
        // SAFETY: it may be kept for ever.
        unsafe { ItemRef::counted_for_a_while(item) }
    }

    /// Creates a hold as `counted` does, on an item that may name objects that don't live for ever.
    ///
    /// # Safety
    /// A thread may get the hold, run the item, or drop it at any time. It then touches no object
    /// whose life has ended.
    #[inline]
    pub(crate) unsafe fn counted_for_a_while<I: Item + ?Sized>(item: Arc<I>) -> ItemRef {
        // SAFETY: `Arc::into_raw` never returns null.
        ItemRef(unsafe { NonNull::new_unchecked(Arc::into_raw(item).cast_mut()) }.cast())
    }

    /// Returns the hold of an instance that was given up by its [pointer](ItemRef::pointer), or
    /// that its state word keeps.
    ///
    /// # Safety
    /// The caller has made the item pending, or owns the hold that was given up, and hands it over.
    /// The pointer is one to the whole item.
    #[inline]
    pub(crate) unsafe fn kept(item: NonNull<Header>) -> ItemRef {
        ItemRef(item)
    }

    /// Returns the header, by a pointer to the whole item.
    #[inline]
    pub(crate) fn pointer(&self) -> NonNull<Header> {
        self.0
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the hold keeps the item in place.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn table(&self) -> &'static Table {
        self.header().table
    }

    /// Runs the user's function; may panic.
    ///
    /// # Safety
    /// It is the run of an instance that the caller has started. An item that is [`OneShotItem`] is
    /// gone after it, and was there until now.
    #[inline]
    pub(crate) unsafe fn run(&self, table: &Table) {
        // SAFETY: the item is alive, and of its table's type; the pointer is one to all of it, as
        // it was leaked. The runner of one that is alone gives it up.
        unsafe { (table.run)(self.0) }
    }

    pub(crate) fn cancelled(&self) {
        // SAFETY: as in `run`.
        unsafe { (self.table().cancelled)(self.0) }
    }

    pub(crate) fn panicked(&self, payload: Box<dyn Any + Send>) {
        // SAFETY: as in `run`.
        unsafe { (self.table().panicked)(self.0, payload) }
    }

    pub(crate) fn spawner(&self) -> Option<&Span> {
        // SAFETY: as in `run`; the span is a part of the item, which this hold keeps.
        unsafe { (self.table().spawner)(self.0).map(|span| span.as_ref()) }
    }

    /// Lends the item, for as long as it is held.
    pub(crate) fn lent(&self) -> LentItem<'_> {
        // SAFETY: the hold keeps the item; the pointer is one to all of it.
        unsafe { LentItem::new(self.0) }
    }
}

/// The waiters of one item.
#[derive(Default)]
pub(crate) struct Flushers {
    /// L: is the lock; guards the waiters, each for the instance of its number. A thread that has
    /// given up its hold of the item never takes it. It is boxed to keep items small, since most
    /// have no waiters.
    waiting: Mutex<Option<Box<InstanceWaiters>>>,
}

/// Another thread is in the middle of a short step with the pending instance: the instance to wait
/// for isn't known yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsettled;

/// The waiters, each for the instance of its number.
#[derive(Default)]
struct InstanceWaiters(Vec<(Seq, Arc<Completion>)>);

impl Flushers {
    /// Returns the end of the instance that was queued last, or of the one that runs if the last
    /// one's timer still runs. Returns `None` if there is none to wait for. `on_timer` tells
    /// whether the pending instance lies in a timer; if it returns `None`, that isn't settled yet,
    /// and this returns an error.
    pub(crate) fn join(
        &self,
        state: &WorkState,
        on_timer: impl Fn(Snapshot) -> Option<bool>,
    ) -> Result<Option<Arc<Completion>>, Unsettled> {
        let mut lock = self.waiting.lock();
        let waiting = &mut lock.get_or_insert_default().0;
        // Announce. Under the lock: an instance whose end comes after the announcement sees it, and
        // takes this lock before it ends.
        let now = state.announce_flusher();
        let on_timer = if now.pending() { on_timer(now) } else { Some(false) };
        let target = on_timer.map(|on_timer| match on_timer {
            // A number that no pending instance has when the running one ends.
            true => (now.running(), now.seq().wrapping_sub(1)),
            // If nothing is pending, the running instance is the target: no instance that is
            // pending at its end has its number.
            false => (now.pending() || now.running(), now.seq()),
        });
        let joined = match target {
            None => Err(Unsettled),
            Some((false, _)) => Ok(None),
            Some((true, target)) => {
                let event = Arc::new(Completion::new());
                waiting.push((target, Arc::clone(&event)));
                Ok(Some(event))
            }
        };
        if waiting.is_empty() {
            state.clear_flushers();
        }
        joined
    }

    /// Carries out Collect, for a caller that is about to end an instance. Takes out the waiters
    /// that have nothing left to wait for then: all but those for an instance that is pending, and
    /// `outlasts` this. Returns the word to end the instance by. If the word has moved since,
    /// others may have come.
    pub(crate) fn collect(
        &self,
        state: &WorkState,
        outlasts: bool,
        ended: &mut Vec<Arc<Completion>>,
    ) -> Snapshot {
        let mut lock = self.waiting.lock();
        let waiting = &mut lock.get_or_insert_default().0;
        let now = state.flushers_seen();
        waiting.retain(|(target, event)| {
            let stays = outlasts && now.pending() && *target == now.seq();
            if !stays {
                ended.push(Arc::clone(event));
            }
            stays
        });
        if waiting.is_empty() { state.clear_flushers() } else { now }
    }

    /// Returns the number of waiters.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().as_ref().map_or(0, |waiting| waiting.0.len())
    }
}

/// Wakes the waiters.
pub(crate) fn wake(ended: Vec<Arc<Completion>>) {
    for event in ended {
        event.complete();
    }
}
