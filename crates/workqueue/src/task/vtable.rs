//! What the pool knows of an item: a thin pointer to its header, which names a table of functions.
//!
//! An item is a struct whose first field is its [`Header`]. A pointer to the one is a
//! pointer to the other, and the table says what the other is.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::AtomicUsize;
use corewise_sync::{panics, text};

use tracing::Span;

use crate::error::shielded;
use crate::task::flushers::Flushers;
use crate::task::header::{Header, Queued};

/// Something that a pool carries.
///
/// # Safety
/// It is `repr(C)`, and its first field is its [`Header`], made with a [`Table`] of this very type.
pub(crate) unsafe trait Item: Send + Sync {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the header is the first field of a `repr(C)` struct.
        unsafe { &*std::ptr::from_ref(self).cast::<Header>() }
    }
    /// It won't be run: tell those who wait.
    fn cancelled(&self) {}
    /// Its run panicked. Not called of one that is [`Alone`].
    fn panicked(&self, payload: Box<dyn Any + Send>) {
        log_panic(self.header().name(), payload);
    }
    /// The span that it was spawned in, where that is known.
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
/// An [`Aside`] is that many bytes from its beginning.
pub(crate) unsafe trait Reusable: Runs {
    /// Where the part is that its instances don't touch.
    const ASIDE: usize;
    /// Takes the item off its timer, under the lock of whatever holds it there; `None` where it has left
    /// already. Called by its claimant where its place is [`Place::Timer`](crate::task::claim::Place).
    fn unshelve(&self) -> Option<Queued>;
    /// The time until its timer fires, where one runs (a moment ago).
    fn fires_in(&self) -> Option<Duration>;
}

/// What an instance doesn't touch: of its handles, and of those who wait for it.
pub(crate) struct Aside {
    /// A: how many handles there are. While it is queued or runs the item is kept by its state word, and
    /// no handle is counted for that.
    pub(crate) handles: AtomicUsize,
    /// Its waiters.
    pub(crate) flushers: Flushers,
}

/// An item that nobody but the pool ever has, and that is used up by its run.
pub(crate) trait Alone: Item {
    /// Runs the user's function; may panic.
    fn run(self: Box<Self>);
}

/// Says that a run panicked, where there is nobody else to tell.
pub(crate) fn log_panic(item: &str, payload: Box<dyn Any + Send>) {
    let (item, message) = (text::name(item), text::message(panics::message(&*payload)));
    tracing::error!(%item, %message, "a work item panicked");
}

/// The functions of one type of items. Each gets the header of a live item of that type, by a pointer
/// to the whole item.
pub(crate) struct Table {
    /// The name of the user's function, for reports.
    pub(crate) name: fn() -> &'static str,
    run: unsafe fn(NonNull<Header>),
    cancelled: unsafe fn(NonNull<Header>),
    panicked: unsafe fn(NonNull<Header>, Box<dyn Any + Send>),
    spawner: unsafe fn(NonNull<Header>) -> Option<NonNull<Span>>,
    /// Gives up one hold on the item: a count of its `Arc`, or all of it.
    pub(crate) release: unsafe fn(NonNull<Header>),
    /// Its state word keeps it: who ends the last instance frees it, if nobody has it any more.
    kept: bool,
    /// See [`Reusable::ASIDE`]; 0 where there is none.
    aside: usize,
    unshelve: unsafe fn(NonNull<Header>) -> Option<Queued>,
    fires_in: unsafe fn(NonNull<Header>) -> Option<Duration>,
    /// It is queued once, when it is made.
    pub(crate) once: bool,
    /// Its run uses it up.
    pub(crate) alone: bool,
    /// It is the run of a stolen fork.
    pub(crate) stolen: bool,
    /// It stands for several closures, and isn't run itself.
    pub(crate) block: bool,
}

/// The tables of items that are an `I`, and whose function or future is a `C`.
pub(crate) struct TableOf<I, C>(PhantomData<(I, C)>);

impl<I: Item, C> TableOf<I, C> {
    /// Of items that live in a `Box`, and are kept by their state word.
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
    /// Of items that live in a `Box`, are kept by their state word, and are queued once, by a thread that makes
    /// them.
    pub(crate) const ONCE: Table = Table { once: true, ..Self::KEPT };
    /// Of items that live in an `Arc`.
    pub(crate) const COUNTED: Table =
        Table { release: release_count::<I>, kept: false, ..Self::KEPT };
}

impl<I: Reusable, C> TableOf<I, C> {
    /// Of items that live in a `Box`, are kept by their state word, and can be queued again and again.
    pub(crate) const REUSABLE: Table = Table {
        aside: I::ASIDE,
        // SAFETY: as of the table's functions.
        unshelve: |item| unsafe { of::<I>(item) }.unshelve(),
        // SAFETY: as above.
        fires_in: |item| unsafe { of::<I>(item) }.fires_in(),
        ..Self::KEPT
    };
}

impl<I: Alone, C> TableOf<I, C> {
    // SAFETY: the item was leaked from a `Box`, and is the caller's, which gives it up.
    const USE_UP: unsafe fn(NonNull<Header>) =
        |item| unsafe { Box::from_raw(item.cast::<I>().as_ptr()) }.run();
    /// Of items that live in a `Box`, are queued once, by a thread that makes them, and are used up by that run.
    pub(crate) const ALONE: Table = Table { alone: true, ..Self::kept(Self::USE_UP) };
}

impl Table {
    /// The functions of an item that is a part of another one. It lives in the frame of the thread
    /// that runs it, once; `release` is called where it isn't run.
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

    /// The same, of a stolen fork.
    pub(crate) const fn of_fork(self) -> Table {
        Table { stolen: true, ..self }
    }

    /// The same, of an item that stands for several closures.
    pub(crate) const fn of_block(self) -> Table {
        Table { block: true, ..self }
    }

    /// Its items live in an `Arc`.
    pub(crate) fn is_counted(&self) -> bool {
        !self.kept
    }

    /// Gives up what is left of an item whose instance is over: nothing, where it isn't the `last` one, or
    /// somebody has the item. The user's destructors may run then.
    #[inline]
    pub(crate) fn give_up(&self, item: ItemRef, last: bool) {
        if last || !self.kept {
            self.let_go(item);
        }
    }

    /// A panic in there is no business of the caller's. Called by few runs: an item that is used up needs it
    /// not, and most reusable ones outlast theirs.
    #[inline(never)]
    fn let_go(&self, item: ItemRef) {
        // SAFETY: the item is of this table, still held, and given up once.
        shielded("dropping a work item's function", || unsafe { (self.release)(item.0) });
    }
}

/// The item of a header.
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
/// As [`of`], of an `I` that lives in an `Arc`; the caller has a count of it, and gives it up.
unsafe fn release_count<I>(header: NonNull<Header>) {
    // SAFETY: the hold is a count of the `Arc` that `ItemRef::counted` was given.
    drop(unsafe { Arc::from_raw(header.cast::<I>().as_ptr()) });
}

/// Frees an item that lives in a `Box`.
///
/// # Safety
/// As [`of`], of an `I` that was leaked from a `Box`; nobody else has it.
unsafe fn free<I>(header: NonNull<Header>) {
    // SAFETY: the item was leaked from a `Box`, and nobody has it any more, or ever will.
    drop(unsafe { Box::from_raw(header.cast::<I>().as_ptr()) });
}

/// An item that somebody has a hold on: its header, by a pointer to all of it.
#[derive(Clone, Copy)]
pub(crate) struct Lent<'a> {
    item: NonNull<Header>,
    hold: PhantomData<&'a Header>,
}

impl<'a> Lent<'a> {
    /// # Safety
    /// It is the header of an item, by a pointer to the whole item, as its hold was made of. Somebody
    /// has a hold for as long as this lives.
    #[inline]
    pub(crate) unsafe fn new(item: NonNull<Header>) -> Lent<'a> {
        Lent { item, hold: PhantomData }
    }

    /// The pointer to the whole item.
    #[inline]
    pub(crate) fn pointer(self) -> NonNull<Header> {
        self.item
    }

    /// What its instances don't touch, of one that is [`Reusable`].
    #[inline]
    pub(crate) fn aside(self) -> Option<&'a Aside> {
        // SAFETY: the hold keeps it.
        self.beside().map(|aside| unsafe { aside.as_ref() })
    }

    /// The same, by a pointer to all of the item.
    #[inline]
    pub(crate) fn beside(self) -> Option<NonNull<Aside>> {
        let offset = self.table.aside;
        // SAFETY: the item is of its table's type, which says where that part lies; the pointer is one
        // to all of the item, which the hold keeps.
        (offset != 0).then(|| unsafe { self.item.byte_add(offset).cast() })
    }
}

impl Lent<'_> {
    /// See [`Reusable::unshelve`].
    pub(crate) fn unshelve(self) -> Option<Queued> {
        // SAFETY: the item is of its table's type, and the hold keeps it.
        unsafe { (self.table.unshelve)(self.item) }
    }

    /// See [`Reusable::fires_in`].
    pub(crate) fn fires_in(self) -> Option<Duration> {
        // SAFETY: as above.
        unsafe { (self.table.fires_in)(self.item) }
    }
}

impl Deref for Lent<'_> {
    type Target = Header;

    #[inline]
    fn deref(&self) -> &Header {
        // SAFETY: the hold keeps the item in place.
        unsafe { self.item.as_ref() }
    }
}

/// The pool's pointer to an item, of whatever type: the hold of one instance on it, which is given up
/// by [`Table::give_up`] only: forgetting it leaks.
pub(crate) struct ItemRef(NonNull<Header>);

// SAFETY: it stands for an `Arc` or a `Box` of an item, and items are `Send + Sync`.
unsafe impl Send for ItemRef {}
// SAFETY: as above.
unsafe impl Sync for ItemRef {}

impl ItemRef {
    /// An item whose header has the table of [`TableOf::COUNTED`].
    #[inline]
    pub(crate) fn counted<I: Item + 'static>(item: Arc<I>) -> ItemRef {
        // SAFETY: it may be kept for ever.
        unsafe { ItemRef::counted_for_a_while(item) }
    }

    /// As `counted`, for an item that may name what doesn't live for ever.
    ///
    /// # Safety
    /// A thread that gets the hold, runs the item, or drops it, at whatever time, touches nothing then whose
    /// life has ended.
    #[inline]
    pub(crate) unsafe fn counted_for_a_while<I: Item + ?Sized>(item: Arc<I>) -> ItemRef {
        // SAFETY: `Arc::into_raw` never returns null.
        ItemRef(unsafe { NonNull::new_unchecked(Arc::into_raw(item).cast_mut()) }.cast())
    }

    /// The item of an instance that was given up by its [pointer](ItemRef::pointer), or that its state word
    /// keeps.
    ///
    /// # Safety
    /// The caller has made the item pending, or been given what was given up, and hands that over. The
    /// pointer is one to the whole item.
    #[inline]
    pub(crate) unsafe fn kept(item: NonNull<Header>) -> ItemRef {
        ItemRef(item)
    }

    /// The header, by a pointer to the whole item.
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
    /// It is the run of an instance that the caller has started. An item that is [`Alone`] is gone after
    /// it, and was there until now.
    #[inline]
    pub(crate) unsafe fn run(&self, table: &Table) {
        // SAFETY: the item is alive, and of its table's type; the pointer is one to all of it, as it was
        // leaked. The runner of one that is alone gives it up.
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

    /// The item, for as long as it is held.
    pub(crate) fn lent(&self) -> Lent<'_> {
        // SAFETY: the hold keeps the item; the pointer is one to all of it.
        unsafe { Lent::new(self.0) }
    }
}
