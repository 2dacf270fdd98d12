//! The two sides of a call to one CPU: the message, and the waiter.

use corewise_topology::CpuId;
use std::marker::PhantomData;
use std::mem;
use std::panic::Location;
use std::ptr::NonNull;

use super::cell::Cell;
use super::kinds::{Answer, Class, Ended, Forgotten, One, take_answer};
use super::pool::Pools;
use crate::running::Label;
use crate::stats::Queued;

/// What travels to a target: a call, or one CPU's share of one.
pub(crate) struct Message {
    cell: NonNull<Cell>,
}

// SAFETY: what is in the cell was required to be `Send`.
unsafe impl Send for Message {}

impl Message {
    /// # Safety
    /// The cell was filled, and this is its only message.
    pub(super) unsafe fn new(cell: NonNull<Cell>) -> Self {
        Message { cell }
    }

    /// Gives the message up without ending it.
    pub(crate) fn into_cell(self) -> NonNull<Cell> {
        let cell = self.cell;
        mem::forget(self);
        cell
    }

    /// # Safety
    /// The cell came from `into_cell`, and comes back once.
    pub(crate) unsafe fn from_cell(cell: NonNull<Cell>) -> Self {
        Message { cell }
    }

    pub(crate) fn cell(&self) -> &Cell {
        // SAFETY: the message keeps it.
        unsafe { self.cell.as_ref() }
    }

    pub(crate) fn class(&self) -> Class {
        // SAFETY: filled.
        unsafe { self.cell().kind() }.class
    }

    /// What it says of itself in reports.
    pub(crate) fn label(&self) -> Label {
        // SAFETY: filled.
        let kind = unsafe { self.cell().kind() };
        let (site, source) = self.cell().diagnosis.origin();
        // The cell of a call that nobody waits for is another's while it runs.
        let call = if kind.class == Class::Urgent { self.cell.as_ptr().addr() } else { 0 };
        Label { name: kind.name, site, source, call }
    }

    /// It is about to be pushed. `wakes`: onto a target that is seen to sleep.
    #[inline]
    pub(crate) fn stamp(&self, wakes: bool) {
        self.cell().diagnosis.stamp(wakes);
    }

    /// When that was.
    pub(crate) fn queued(&self) -> Queued {
        self.cell().diagnosis.queued()
    }

    /// Runs the call. See `Kind::run` for what may panic.
    pub(crate) fn run(self) -> Ended {
        let cell = self.into_cell();
        // SAFETY: filled, and the message is given up.
        unsafe { (cell.as_ref().kind().run)(cell) }
    }
}

impl Drop for Message {
    /// A message that is dropped without having run still ends its call: nobody waits for ever.
    fn drop(&mut self) {
        // SAFETY: filled, and the message is given up.
        unsafe { (self.cell().kind().fail)(self.cell) }
    }
}

/// The handle's side of a call to one CPU: its owner waits, or leaves by dropping it.
pub(crate) struct Waiting<R> {
    cell: NonNull<Cell>,
    of: PhantomData<R>,
}

// SAFETY: the handle takes a value out that was required to be `Send`; shared, it only looks whether the
// signal was completed.
unsafe impl<R: Send> Send for Waiting<R> {}
// SAFETY: as above.
unsafe impl<R: Send> Sync for Waiting<R> {}

/// A call that somebody may wait for: both its sides. A thread that drops the message without sending it
/// fails the call.
pub(crate) fn call<F, R>(
    pools: &Pools,
    source: CpuId,
    site: &'static Location<'static>,
    cpu: CpuId,
    f: F,
) -> (Message, Waiting<R>)
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    let cell = pools.get(source);
    // SAFETY: we have just had it, and its storage is empty; one message and one handle are made.
    unsafe {
        cell.as_ref().prepare(One::<F, R>::KIND, source, cpu, site);
        cell.as_ref().fill(f);
        (Message::new(cell), Waiting { cell, of: PhantomData })
    }
}

/// The function of a call that wasn't accepted.
///
/// # Safety
/// Both sides are of one call, which was made with this function.
pub(crate) unsafe fn take_back<F, R>(message: Message, waiting: Waiting<R>) -> F {
    mem::forget(waiting);
    // SAFETY: both sides are here, so the cell is ours, and the function in it.
    unsafe { take_function(message) }
}

/// A call that nobody waits for.
pub(crate) fn forgotten<F: FnOnce() + Send>(
    pools: &Pools,
    source: CpuId,
    site: &'static Location<'static>,
    cpu: CpuId,
    f: F,
) -> Message {
    let cell = pools.get(source);
    // SAFETY: we have just had it, and its storage is empty.
    unsafe {
        cell.as_ref().prepare(Forgotten::<F>::KIND, source, cpu, site);
        cell.as_ref().fill(f);
        Message::new(cell)
    }
}

/// The function of a call that wasn't accepted.
///
/// # Safety
/// It was made with this function, and has no other side.
pub(crate) unsafe fn take_function<F>(message: Message) -> F {
    let cell = message.into_cell();
    // SAFETY: the cell is ours alone, and the function in it.
    unsafe {
        let f = cell.as_ref().empty::<F>();
        Cell::put_back(cell);
        f
    }
}

impl<R> Waiting<R> {
    pub(crate) fn cell(&self) -> &Cell {
        // SAFETY: the handle keeps it.
        unsafe { self.cell.as_ref() }
    }

    /// The answer.
    ///
    /// # Safety
    /// The signal is complete.
    pub(crate) unsafe fn into_answer(self) -> Answer<R> {
        let cell = self.cell;
        mem::forget(self);
        // SAFETY: complete, and the handle is given up here: it comes last.
        unsafe { take_answer(cell) }
    }
}

impl<R> Drop for Waiting<R> {
    fn drop(&mut self) {
        self.cell().diagnosis.forsaken();
        // SAFETY: the one waiter, and it never comes back. Where it is the last, the answer is its own.
        unsafe {
            if self.cell().signal.detach() {
                drop(take_answer::<R>(self.cell));
            }
        }
    }
}
