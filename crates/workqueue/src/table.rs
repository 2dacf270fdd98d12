//! What the pool knows of an item: a thin pointer to its header, which names a table of functions.
//!
//! An item is a struct whose first field is its [`Header`]. Whoever has a pointer to the one has a
//! pointer to the other, and the table says what the other is.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use tracing::Span;

use crate::item::{Header, Queued};

/// Something that a worker can run.
///
/// # Safety
/// It is `repr(C)`, and its first field is its [`Header`], made with the [`Table`] of this very type.
pub(crate) unsafe trait Item: Send + Sync {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the header is the first field of a `repr(C)` struct.
        unsafe { &*std::ptr::from_ref(self).cast::<Header>() }
    }
    /// Runs the user's function; may panic.
    fn run(&self);
    /// It won't be run: tell those who wait.
    fn cancelled(&self) {}
    /// `run` panicked.
    fn panicked(&self, payload: Box<dyn Any + Send>);
    /// The span that it was spawned in, where that is known.
    fn spawner(&self) -> Option<&Span> {
        None
    }
    /// Takes the item off its timer, under the lock of whatever holds it there; `None` where it has
    /// left already. Called by its claimant where its place is [`Place::Timer`](crate::claim::Place).
    fn unshelve(&self) -> Option<Queued> {
        None
    }
}

/// The functions of one type of items. Each gets the header of a live item of that type.
pub(crate) struct Table {
    /// The name of the user's function, for reports.
    pub(crate) name: fn() -> &'static str,
    run: unsafe fn(NonNull<Header>),
    cancelled: unsafe fn(NonNull<Header>),
    panicked: unsafe fn(NonNull<Header>, Box<dyn Any + Send>),
    spawner: unsafe fn(NonNull<Header>) -> Option<NonNull<Span>>,
    unshelve: unsafe fn(NonNull<Header>) -> Option<Queued>,
    /// Gives up one hold on the item, which came from [`ItemRef::counted`] or [`ItemRef::unique`].
    release: unsafe fn(NonNull<Header>),
}

impl Table {
    /// Of items that live in an `Arc`, whose function is a `C`.
    pub(crate) fn counted<I: Item, C>() -> &'static Table {
        &Table {
            name: std::any::type_name::<C>,
            run: run::<I>,
            cancelled: cancelled::<I>,
            panicked: panicked::<I>,
            spawner: spawner::<I>,
            unshelve: unshelve::<I>,
            release: release_counted::<I>,
        }
    }

    /// Of items that live in a `Box`, whose function is a `C`.
    pub(crate) fn unique<I: Item, C>() -> &'static Table {
        &Table {
            name: std::any::type_name::<C>,
            run: run::<I>,
            cancelled: cancelled::<I>,
            panicked: panicked::<I>,
            spawner: spawner::<I>,
            unshelve: unshelve::<I>,
            release: release_unique::<I>,
        }
    }
}

/// The item of a header.
///
/// # Safety
/// The header is the one of a live `I`, and the pointer was made from one to the whole item.
unsafe fn item<'a, I: Item>(header: NonNull<Header>) -> &'a I {
    // SAFETY: as the caller says; the header is the item's first field.
    unsafe { header.cast::<I>().as_ref() }
}

unsafe fn run<I: Item>(header: NonNull<Header>) {
    // SAFETY: as the table demands.
    unsafe { item::<I>(header) }.run();
}

unsafe fn cancelled<I: Item>(header: NonNull<Header>) {
    // SAFETY: as the table demands.
    unsafe { item::<I>(header) }.cancelled();
}

unsafe fn panicked<I: Item>(header: NonNull<Header>, payload: Box<dyn Any + Send>) {
    // SAFETY: as the table demands.
    unsafe { item::<I>(header) }.panicked(payload);
}

unsafe fn spawner<I: Item>(header: NonNull<Header>) -> Option<NonNull<Span>> {
    // SAFETY: as the table demands.
    unsafe { item::<I>(header) }.spawner().map(NonNull::from)
}

unsafe fn unshelve<I: Item>(header: NonNull<Header>) -> Option<Queued> {
    // SAFETY: as the table demands.
    unsafe { item::<I>(header) }.unshelve()
}

unsafe fn release_counted<I: Item>(header: NonNull<Header>) {
    // SAFETY: the hold is a count of the `Arc` that `ItemRef::counted` was given.
    drop(unsafe { Arc::from_raw(header.cast::<I>().as_ptr()) });
}

unsafe fn release_unique<I: Item>(header: NonNull<Header>) {
    // SAFETY: the hold is the `Box` that `ItemRef::unique` was given.
    drop(unsafe { Box::from_raw(header.cast::<I>().as_ptr()) });
}

/// A hold on an item, of whatever type: it keeps itself alive by it while it is queued or runs.
pub(crate) struct ItemRef(NonNull<Header>);

// SAFETY: it stands for an `Arc` or a `Box` of an item, and items are `Send + Sync`.
unsafe impl Send for ItemRef {}
// SAFETY: as above.
unsafe impl Sync for ItemRef {}

impl ItemRef {
    /// An item whose header has the table of [`Table::counted`].
    #[inline]
    pub(crate) fn counted<I: Item + 'static>(item: Arc<I>) -> ItemRef {
        // SAFETY: it may be kept for ever.
        unsafe { ItemRef::counted_for_a_while(item) }
    }

    /// As `counted`, for an item that may name what doesn't live for ever.
    ///
    /// # Safety
    /// Whoever gets the hold, runs the item, or drops it, at whatever time, touches nothing then whose
    /// life has ended.
    #[inline]
    pub(crate) unsafe fn counted_for_a_while<I: Item>(item: Arc<I>) -> ItemRef {
        // SAFETY: `Arc::into_raw` never returns null.
        ItemRef(unsafe { NonNull::new_unchecked(Arc::into_raw(item).cast_mut()) }.cast())
    }

    /// An item whose header has the table of [`Table::unique`].
    #[inline]
    pub(crate) fn unique<I: Item + 'static>(item: Box<I>) -> ItemRef {
        ItemRef(NonNull::from(Box::leak(item)).cast())
    }

    /// Takes the box back.
    ///
    /// # Safety
    /// The item came as a `Box<I>`.
    pub(crate) unsafe fn into_box<I: Item + 'static>(self) -> Box<I> {
        let header = self.0;
        std::mem::forget(self);
        // SAFETY: it is what `unique` leaked, as the caller says.
        unsafe { Box::from_raw(header.cast::<I>().as_ptr()) }
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
    #[inline]
    pub(crate) fn run(&self) {
        // SAFETY: the item is alive, and of its table's type; the pointer is one to all of it.
        unsafe { (self.table().run)(self.0) }
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

    pub(crate) fn unshelve(&self) -> Option<Queued> {
        // SAFETY: as in `run`.
        unsafe { (self.table().unshelve)(self.0) }
    }
}

impl Drop for ItemRef {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `run`; this hold is given up.
        unsafe { (self.table().release)(self.0) }
    }
}
