//! The record of a fork, in the frame of the thread that made it.
//!
//! `README.md` beside this file has the states and the argument why a thief finds the record alive.

use std::any::type_name;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::{self, NonNull};

use corewise_sync::atomic::{AtomicPtr, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::thread;
use tracing::Span;

use crate::fork;
use crate::fork::lane::Lane;
use crate::task::header::Header;
use crate::task::header::{ItemRef, Table};
use crate::task::running::{Running, Spawner};
use crate::task::ticket::Ticket;

/// The thieves' view of a fork.
pub(crate) struct Fork {
    /// I: the functions by which a thief calls it.
    kind: &'static Kind,
    /// I: the place that it was made at, for reports.
    pub(crate) site: &'static Location<'static>,
    /// I: the ticket of the item that makes it, which outlives it.
    ticket: NonNull<Ticket>,
    /// I: the key of that item's queue, as in [`ForksTo`](crate::task::running::ForksTo).
    pub(crate) queue: *const (),
    /// I: number of threads that wait for its owner's item, each for the next.
    pub(crate) chain: usize,
    /// I: the span that it was made in, if a subscriber wants it.
    spawner: Spawner,
    /// A: [`ForkHolder`].
    state: AtomicPtr<Lane>,
}

/// The functions of forks with the same closure.
struct Kind {
    /// The table for the thief's item.
    table: Table,
    /// Calls the closure, and stores its result.
    call: unsafe fn(NonNull<Fork>),
}

/// The closure wasn't stolen.
const OFFERED: *mut Lane = ptr::null_mut();
/// A bit beside the thief's lane: the owner sleeps until the end.
const AWAITED: usize = 1;
/// The thief has called the closure.
const OVER: *mut Lane = ptr::without_provenance_mut(2);
/// The thief gives the closure back without having called it.
const RETURNED: *mut Lane = ptr::without_provenance_mut(4);

/// The holder of a fork's closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForkHolder {
    /// Its owner, or a thief that is about to steal it.
    Offered,
    /// The thief with this lane.
    Stolen(*const Lane),
    /// The state without a holder: the closure was called.
    Over,
    /// Its owner, which has to call it.
    Returned,
}

impl Fork {
    /// Returns the holder of the closure. Acquire pairs with Finish: a thread that sees `Over` sees
    /// the closure's writes.
    pub(crate) fn state(&self) -> ForkHolder {
        match self.state.load(Ordering::Acquire) {
            OFFERED => ForkHolder::Offered,
            OVER => ForkHolder::Over,
            RETURNED => ForkHolder::Returned,
            lane => ForkHolder::Stolen(lane.map_addr(|lane| lane & !AWAITED).cast_const()),
        }
    }

    /// Returns true if the thief has finished it.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state(), ForkHolder::Over | ForkHolder::Returned)
    }

    /// Carries out Mark, by a thief, under the lock of the ring that the fork lies in.
    pub(crate) fn is_stolen_by(&self, thief: &Lane) {
        // Relaxed: the owner looks under the same lock, or has looked before.
        self.state.store(ptr::from_ref(thief).cast_mut(), Ordering::Relaxed);
    }

    /// Carries out Await, by the owner: the thief wakes it at the end. Returns false if that has
    /// come.
    pub(super) fn begin_sleep(&self) -> bool {
        let awaited = |lane: *mut Lane| match lane {
            OFFERED | OVER | RETURNED => None,
            lane => Some(lane.map_addr(|lane| lane | AWAITED)),
        };
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.state.fetch_update(success, failure, awaited).is_ok()
    }

    /// Returns the ticket of the item that makes the fork.
    pub(crate) fn ticket(&self) -> &Ticket {
        // SAFETY: the item joins the fork before it ends, and a caller has a fork that isn't
        // joined.
        unsafe { self.ticket.as_ref() }
    }
}

/// A fork with its closure, and later with the result.
#[repr(C)]
pub(crate) struct Forked<C, R> {
    fork: Fork,
    /// P: the thread that has the closure, by the state.
    closure: UnsafeCell<ManuallyDrop<C>>,
    /// P: the thread that calls the closure, then the owner.
    result: UnsafeCell<MaybeUninit<thread::Result<R>>>,
}

impl<R, C: FnOnce() -> R> Forked<C, R> {
    const KIND: Kind = Kind {
        table: Table::of_part(type_name::<C>, run, release, spawner).of_fork(),
        call: Self::call,
    };

    /// Creates a fork of the running item that has this ticket, and is of this queue.
    #[inline]
    pub(crate) fn new(
        closure: C,
        ticket: NonNull<Ticket>,
        queue: *const (),
        site: &'static Location<'static>,
    ) -> Self {
        Forked {
            fork: Fork {
                kind: &Self::KIND,
                site,
                ticket,
                queue,
                chain: fork::chain(),
                spawner: Spawner::current(),
                state: AtomicPtr::new(OFFERED),
            },
            closure: UnsafeCell::new(ManuallyDrop::new(closure)),
            result: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Returns the fork to offer.
    #[inline]
    pub(crate) fn fork(&self) -> &Fork {
        &self.fork
    }

    /// Returns a pointer to the fork, made from one to the whole record.
    #[inline]
    pub(crate) fn pointer(&self) -> NonNull<Fork> {
        NonNull::from(self).cast()
    }

    /// Takes the closure.
    ///
    /// # Safety
    /// The caller has the closure, and takes it once: the owner that has popped the fork, that
    /// never offered it, or to which it was returned; or its thief.
    #[inline]
    pub(crate) unsafe fn take(&self) -> C {
        // SAFETY: as the caller says.
        self.closure.with_mut(|closure| unsafe { ManuallyDrop::take(&mut *closure) })
    }

    /// Takes the closure's result.
    ///
    /// # Safety
    /// The owner has seen the fork `Over`, and calls this once.
    pub(crate) unsafe fn result(&self) -> thread::Result<R> {
        // SAFETY: the thief has written it before.
        self.result.with_mut(|result| unsafe { (*result).assume_init_read() })
    }

    /// Calls the closure and keeps its result.
    ///
    /// # Safety
    /// The fork is a `Forked<C, R>`, by a pointer to all of it, and the caller has stolen it.
    unsafe fn call(fork: NonNull<Fork>) {
        // SAFETY: it isn't settled, so its owner waits for it.
        let forked = unsafe { fork.cast::<Forked<C, R>>().as_ref() };
        // SAFETY: it is stolen, and called once.
        let closure = unsafe { forked.take() };
        let result = panic::catch_unwind(AssertUnwindSafe(closure));
        forked.result.with_mut(|place| {
            // SAFETY: the owner reads it once the fork is over.
            unsafe { (*place).write(result) };
        });
    }
}

/// The item as which a thief runs a stolen fork, in the thief's frame.
#[repr(C)]
pub(crate) struct Stolen<'a> {
    header: Header,
    fork: NonNull<Fork>,
    /// The lane that it was stolen from: that of its owner.
    victim: &'a Lane,
    /// Marker of the fork's borrows, which have no name here.
    not_send: PhantomData<*const ()>,
}

impl<'a> Stolen<'a> {
    /// Creates the item that runs a stolen fork.
    ///
    /// # Safety
    /// The caller has stolen the fork, and runs or releases the item.
    pub(crate) unsafe fn new(fork: NonNull<Fork>, victim: &'a Lane) -> Stolen<'a> {
        // SAFETY: it is stolen and not settled.
        let table = unsafe { &fork.as_ref().kind.table };
        Stolen { header: Header::new(table), fork, victim, not_send: PhantomData }
    }

    /// Returns the item's hold, by a pointer to all of it.
    pub(crate) fn item(&self) -> ItemRef {
        // SAFETY: the hold is the only one, and the table's functions don't free what they are
        // given.
        unsafe { ItemRef::kept(NonNull::from(self).cast()) }
    }

    /// Carries out Finish: the owner has the record again, which may be gone from here on.
    fn finish(&self, state: *mut Lane) {
        let victim = self.victim;
        // SAFETY: it isn't settled.
        let word = unsafe { &self.fork.as_ref().state };
        // Release pairs with the load of the state. Acquire: nothing of the owner's wait is missed.
        let was = word.swap(state, Ordering::AcqRel);
        if was.addr() & AWAITED != 0 {
            victim.wake();
        }
    }
}

/// Returns the fork that an instance is the run of, if it is a stolen one: to be compared.
pub(crate) fn of(running: &Running) -> Option<NonNull<Fork>> {
    // SAFETY: the header of such a run is that of a `Stolen`, which is there while it runs.
    running.stolen().map(|item| unsafe { item.cast::<Stolen<'_>>().as_ref() }.fork)
}

/// Runs a stolen fork.
///
/// # Safety
/// The header is that of a [`Stolen`], by a pointer to all of it, and it runs once.
unsafe fn run(item: NonNull<Header>) {
    // SAFETY: as the caller says.
    let stolen = unsafe { item.cast::<Stolen<'_>>().as_ref() };
    // SAFETY: it was stolen, and is of its kind.
    unsafe { (stolen.fork.as_ref().kind.call)(stolen.fork) };
    stolen.finish(OVER);
}

/// Returns the span of the owner.
///
/// # Safety
/// See [`run`]; the call comes before it.
unsafe fn spawner(item: NonNull<Header>) -> Option<NonNull<Span>> {
    // SAFETY: as the caller says; the fork isn't settled.
    unsafe { item.cast::<Stolen<'_>>().as_ref().fork.as_ref() }.spawner.span().map(NonNull::from)
}

/// Releases a stolen fork that isn't called, because code before the call has panicked.
///
/// # Safety
/// See [`run`].
unsafe fn release(item: NonNull<Header>) {
    // SAFETY: as the caller says.
    unsafe { item.cast::<Stolen<'_>>().as_ref() }.finish(RETURNED);
}
