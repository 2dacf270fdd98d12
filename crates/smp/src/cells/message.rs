//! A call to one CPU: its two sides, the message and the waiter. A target's list of messages, first
//! in, first out, linked through their cells. The kinds of cells: how each runs, fails, and is
//! taken apart.
//!
//! The functions are the two sides of a cell's life (see `cell.rs`), by the function's and the
//! value's type; a `Kind` is their table, which the target uses.

use std::any::{Any, type_name};
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr::{self, NonNull};

use corewise_sync::panics::{self, PanicPayload};
use corewise_sync::{Signal, text};
use corewise_topology::CpuId;

use crate::cells::cell::Cell;
use crate::cells::pool::Pools;
use crate::error::CallFailed;
use crate::stats::Label;
use crate::stats::Queued;

/// The message to a target: a call, or one CPU's share of one.
pub(crate) struct Message {
    cell: NonNull<Cell>,
}

// SAFETY: the content of the cell was required to be `Send`.
unsafe impl Send for Message {}

impl Message {
    /// Creates the message of a cell.
    ///
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

    /// Takes a message up again.
    ///
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

    /// Returns its description for reports.
    pub(crate) fn label(&self) -> Label {
        // SAFETY: filled.
        let kind = unsafe { self.cell().kind() };
        let (site, source) = self.cell().diagnosis.origin();
        // The cell of an unawaited call belongs to another call while the function runs.
        let call = if kind.class == Class::Urgent { self.cell.as_ptr().addr() } else { 0 };
        Label { name: kind.name, site, source, call }
    }

    /// Records that it is about to be pushed. `wakes`: onto a target that is seen to sleep.
    #[inline]
    pub(crate) fn stamp(&self, wakes: bool) {
        self.cell().diagnosis.stamp(wakes);
    }

    /// Returns the time when it was queued.
    pub(crate) fn queued(&self) -> Queued {
        self.cell().diagnosis.queued()
    }

    /// Runs the call. `Kind::run` says what may panic.
    pub(crate) fn run(self) -> RunOutcome {
        let cell = self.into_cell();
        // SAFETY: filled, and the message is given up.
        unsafe { (cell.as_ref().kind().run)(cell) }
    }
}

impl Drop for Message {
    /// Ends the call of a message that is dropped without having run: no thread waits for ever.
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

// SAFETY: the handle takes a value out that was required to be `Send`; shared, it only reads
// whether the signal was completed.
unsafe impl<R: Send> Send for Waiting<R> {}
// SAFETY: as above.
unsafe impl<R: Send> Sync for Waiting<R> {}

/// Creates a call that a thread may wait for: both its sides. A thread that drops the message
/// without sending it fails the call.
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
    // SAFETY: we have just taken it, and its storage is empty; one message and one handle are made.
    unsafe {
        cell.as_ref().prepare(One::<F, R>::KIND, source, cpu, site);
        cell.as_ref().fill(f);
        (Message::new(cell), Waiting { cell, of: PhantomData })
    }
}

/// Takes back the function of a call that wasn't accepted.
///
/// # Safety
/// Both sides are of one call, which was made with this function.
pub(crate) unsafe fn take_back<F, R>(message: Message, waiting: Waiting<R>) -> F {
    mem::forget(waiting);
    // SAFETY: both sides are here, so the cell is ours, and the function in it.
    unsafe { take_function(message) }
}

/// Creates an unawaited call.
pub(crate) fn detached<F: FnOnce() + Send>(
    pools: &Pools,
    source: CpuId,
    site: &'static Location<'static>,
    cpu: CpuId,
    f: F,
) -> Message {
    let cell = pools.get(source);
    // SAFETY: we have just taken it, and its storage is empty.
    unsafe {
        cell.as_ref().prepare(DetachedCall::<F>::KIND, source, cpu, site);
        cell.as_ref().fill(f);
        Message::new(cell)
    }
}

/// Takes back the function of a call that wasn't accepted.
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

    /// Takes the answer.
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
        // SAFETY: the one waiter, and it never comes back. If it is the last, the answer is its
        // own.
        unsafe {
            if self.cell().signal.detach() {
                drop(take_answer::<R>(self.cell));
            }
        }
    }
}

/// A list of messages. It belongs to one thread at a time. Dropping it fails its messages.
pub(crate) struct Queue {
    first: *mut Cell,
    last: *mut Cell,
}

// SAFETY: it owns its messages, which may be sent.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) const EMPTY: Queue = Queue { first: ptr::null_mut(), last: ptr::null_mut() };

    /// Creates a list from a chain whose messages were pushed one in front of the other; oldest
    /// first.
    ///
    /// # Safety
    /// Each cell of the chain is a message that was given up, and the chain is taken once.
    pub(crate) unsafe fn from_newest(newest: *mut Cell) -> Queue {
        let (mut first, mut rest) = (ptr::null_mut(), newest);
        // SAFETY: the chain is ours.
        unsafe {
            while let Some(cell) = rest.as_ref() {
                let older = cell.next();
                cell.set_next(first);
                first = rest;
                rest = older;
            }
        }
        Queue { first, last: newest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Returns the first one.
    pub(crate) fn first(&self) -> Option<&Cell> {
        // SAFETY: it is a message that was given up to us.
        unsafe { self.first.as_ref() }
    }

    /// Returns true if there are two or more.
    pub(crate) fn is_more_than_one(&self) -> bool {
        self.first != self.last
    }

    pub(crate) fn push_back(&mut self, message: Message) {
        let cell = message.into_cell();
        // SAFETY: the cells in the list are messages that were given up to us.
        unsafe {
            cell.as_ref().set_next(ptr::null_mut());
            match self.last.as_ref() {
                Some(last) => last.set_next(cell.as_ptr()),
                None => self.first = cell.as_ptr(),
            }
        }
        self.last = cell.as_ptr();
    }

    pub(crate) fn pop_front(&mut self) -> Option<Message> {
        let cell = ptr::NonNull::new(self.first)?;
        // SAFETY: as in `push_back`, and it leaves the list.
        unsafe {
            self.first = cell.as_ref().next();
            if self.first.is_null() {
                self.last = ptr::null_mut();
            }
            Some(Message::from_cell(cell))
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        while let Some(message) = self.pop_front() {
            drop(message);
        }
    }
}

/// The class of a call: awaited or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A thread may wait: these run first.
    Urgent,
    /// The caller continues.
    Plain,
}

/// The way in which a function ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    Returned,
    Panicked,
}

/// A kind of cell: how its message is run, failed and dropped.
pub(crate) struct Kind {
    pub(super) class: Class,
    pub(super) role: Role,
    pub(crate) name: fn() -> &'static str,
    /// Runs the function, keeps its answer, and notifies the handle; or puts the cell back if there
    /// is none. Never unwinds out of the function; it may unwind out of the drop of an unwanted
    /// answer.
    ///
    /// # Safety
    /// The cell was filled as this kind; the caller gives its message up.
    pub(super) run: unsafe fn(NonNull<Cell>) -> RunOutcome,
    /// Ends the call without running the function. The rest is as for `run`.
    ///
    /// # Safety
    /// The same as for `run`.
    pub(super) fail: unsafe fn(NonNull<Cell>),
}

/// The role of a cell in its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The whole of it, or one share of it.
    Message,
    /// The part that the shares have in common.
    Head,
}

impl Kind {
    pub(super) fn is_head(&self) -> bool {
        self.role == Role::Head
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.class == Class::Urgent
    }
}

/// The answer of a call, or of a share.
pub(super) type Answer<R> = Result<R, CallFailed>;

/// Runs a function that panics into an answer.
pub(super) fn answer_of<R>(
    cell: &Cell,
    kind: &Kind,
    f: impl FnOnce() -> R,
) -> (Answer<R>, RunOutcome) {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => (Ok(value), RunOutcome::Returned),
        Err(payload) => {
            (Err(panicked(cell.cpu(), kind.class, (kind.name)(), payload)), RunOutcome::Panicked)
        }
    }
}

/// A call to one CPU that a thread may wait for.
pub(crate) struct One<F, R>(PhantomData<(F, R)>);

impl<F: FnOnce() -> R + Send, R: Send> One<F, R> {
    pub(super) const KIND: &'static Kind = &Kind {
        class: Class::Urgent,
        role: Role::Message,
        name: type_name::<F>,
        run: Self::run,
        fail: Self::fail,
    };

    /// Runs the function, and keeps its answer.
    ///
    /// # Safety
    /// The same as for [`Kind::run`].
    unsafe fn run(this: NonNull<Cell>) -> RunOutcome {
        // SAFETY: the message is ours until `end`.
        let cell = unsafe { this.as_ref() };
        // SAFETY: filled with the function, which is taken once.
        let f = unsafe { cell.empty::<F>() };
        let (answer, ended) = answer_of(cell, Self::KIND, f);
        // SAFETY: we give the message up.
        unsafe { Self::end(this, answer) };
        ended
    }

    /// Ends the call without running the function.
    ///
    /// # Safety
    /// The same as for [`Kind::fail`].
    unsafe fn fail(this: NonNull<Cell>) {
        // SAFETY: as in `run`.
        let (cell, f) = unsafe { (this.as_ref(), this.as_ref().empty::<F>()) };
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(f)));
        // SAFETY: prepared; and we give the message up.
        unsafe { Self::end(this, Err(CallFailed::NotOnline { cpu: cell.cpu() })) };
        if let Err(payload) = dropped {
            std::panic::resume_unwind(payload);
        }
    }

    /// Keeps the answer and completes.
    ///
    /// # Safety
    /// The message is the caller's, and given up.
    unsafe fn end(this: NonNull<Cell>, answer: Answer<R>) {
        // SAFETY: the message is ours until it is complete; the function has left the storage.
        unsafe {
            let cell = this.as_ref();
            cell.fill::<Answer<R>>(answer);
            if !Signal::complete(&raw const cell.signal) {
                drop(take_answer::<R>(this));
            }
        }
    }
}

/// Takes the answer out of a call or share, and puts the cell back.
///
/// # Safety
/// It is complete, and the caller has come last.
pub(super) unsafe fn take_answer<R>(this: NonNull<Cell>) -> Answer<R> {
    // SAFETY: both are the caller's.
    unsafe {
        let answer = this.as_ref().empty::<Answer<R>>();
        Cell::put_back(this);
        answer
    }
}

/// An unawaited call to one CPU.
pub(crate) struct DetachedCall<F>(PhantomData<F>);

impl<F: FnOnce() + Send> DetachedCall<F> {
    pub(super) const KIND: &'static Kind = &Kind {
        class: Class::Plain,
        role: Role::Message,
        name: type_name::<F>,
        run: Self::run,
        fail: Self::fail,
    };

    /// Puts the cell back before the function runs, so that the function may use it for a call of
    /// its own.
    ///
    /// # Safety
    /// The same as for [`Kind::run`].
    unsafe fn run(this: NonNull<Cell>) -> RunOutcome {
        // SAFETY: the message is ours, and there is no handle.
        let (cpu, f) = unsafe { Self::take(this) };
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(()) => RunOutcome::Returned,
            Err(payload) => {
                let failed = panicked(cpu, Class::Plain, type_name::<F>(), payload);
                drop_quietly(failed);
                RunOutcome::Panicked
            }
        }
    }

    /// Ends the call without running the function.
    ///
    /// # Safety
    /// The same as for [`Kind::fail`].
    unsafe fn fail(this: NonNull<Cell>) {
        // SAFETY: as in `run`.
        let (cpu, f) = unsafe { Self::take(this) };
        dropped(cpu, type_name::<F>());
        drop(f);
    }

    /// Takes the function out, and puts the cell back.
    ///
    /// # Safety
    /// The message is the caller's, and given up, and there is no handle.
    unsafe fn take(this: NonNull<Cell>) -> (CpuId, F) {
        // SAFETY: filled with the function, which is taken once; the cell is ours alone.
        unsafe {
            let taken = (this.as_ref().cpu(), this.as_ref().empty::<F>());
            Cell::put_back(this);
            taken
        }
    }
}

/// Returns the failure for a caught panic. If no thread waits, the panic is logged, so that it
/// isn't silent.
pub(super) fn panicked(
    cpu: CpuId,
    class: Class,
    name: &'static str,
    payload: Box<dyn Any + Send>,
) -> CallFailed {
    let panic = PanicPayload::new(payload);
    if class == Class::Plain {
        quietly(|| {
            tracing::error!(
                cpu = cpu.number(),
                function = %text::name(name),
                panic = %text::message(panic.message()),
                "a called function panicked"
            );
        });
    }
    CallFailed::Panicked { cpu, panic }
}

/// Drops a failure, whose payload may panic once more.
pub(super) fn drop_quietly(failed: CallFailed) {
    if let CallFailed::Panicked { panic, .. } = failed {
        panics::discard(panic.into_inner());
    }
}

/// Logs that an unawaited call was dropped without having run, so that it isn't silent.
pub(super) fn dropped(cpu: CpuId, name: &'static str) {
    quietly(|| {
        tracing::warn!(
            cpu = cpu.number(),
            function = %text::name(name),
            "a call was dropped: this CPU's target is no longer stepped"
        );
    });
}

/// Calls `say`, which logs something. The subscriber is user code: its panics end here.
pub(crate) fn quietly(say: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(say)).unwrap_or_else(panics::discard);
}
