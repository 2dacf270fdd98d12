//! What a cell can be, and how each kind runs, fails, and is taken apart.
//!
//! The functions here are the two sides of a cell's life (see `cell.rs`), by the function's and the value's type;
//! a `Kind` is their table, which the target goes by.

use corewise_topology::CpuId;
use std::any::{Any, type_name};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use corewise_sync::Signal;
use corewise_sync::panics::{self, PanicPayload};
use corewise_sync::text;

use super::cell::Cell;
use crate::error::CallFailed;

/// Whether somebody waits for the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Somebody may wait: these run first.
    Urgent,
    /// Nobody waits.
    Plain,
}

/// How a function ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Returned,
    Panicked,
}

/// How a cell's message is run and failed, and what is left in it when it is dropped.
pub(crate) struct Kind {
    pub(super) class: Class,
    pub(super) role: Role,
    pub(crate) name: fn() -> &'static str,
    /// Runs the function, keeps its answer, and tells the handle; or puts the cell back where there is none. Never
    /// unwinds out of the function; it may out of the drop of an answer that nobody wants.
    ///
    /// # Safety
    /// The cell was filled as this kind; the caller gives its message up.
    pub(super) run: unsafe fn(NonNull<Cell>) -> Ended,
    /// The function won't run. Otherwise as `run`.
    ///
    /// # Safety
    /// As `run`.
    pub(super) fail: unsafe fn(NonNull<Cell>),
}

/// What a cell is in its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The whole of it, or one share of it.
    Message,
    /// What the shares have in common.
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
pub(super) fn answer_of<R>(cell: &Cell, kind: &Kind, f: impl FnOnce() -> R) -> (Answer<R>, Ended) {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => (Ok(value), Ended::Returned),
        Err(payload) => {
            (Err(panicked(cell.cpu(), kind.class, (kind.name)(), payload)), Ended::Panicked)
        }
    }
}

/// A call to one CPU that somebody may wait for.
pub(crate) struct One<F, R>(PhantomData<(F, R)>);

impl<F: FnOnce() -> R + Send, R: Send> One<F, R> {
    pub(super) const KIND: &'static Kind = &Kind {
        class: Class::Urgent,
        role: Role::Message,
        name: type_name::<F>,
        run: Self::run,
        fail: Self::fail,
    };

    /// # Safety
    /// As [`Kind::run`].
    unsafe fn run(this: NonNull<Cell>) -> Ended {
        // SAFETY: the message is ours until `end`.
        let cell = unsafe { this.as_ref() };
        // SAFETY: filled with the function, which is taken once.
        let f = unsafe { cell.empty::<F>() };
        let (answer, ended) = answer_of(cell, Self::KIND, f);
        // SAFETY: we give the message up.
        unsafe { Self::end(this, answer) };
        ended
    }

    /// # Safety
    /// As [`Kind::fail`].
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

/// A call to one CPU that nobody waits for.
pub(crate) struct Forgotten<F>(PhantomData<F>);

impl<F: FnOnce() + Send> Forgotten<F> {
    pub(super) const KIND: &'static Kind = &Kind {
        class: Class::Plain,
        role: Role::Message,
        name: type_name::<F>,
        run: Self::run,
        fail: Self::fail,
    };

    /// The cell goes back before the function runs: so that function may use it for a call of its own.
    ///
    /// # Safety
    /// As [`Kind::run`].
    unsafe fn run(this: NonNull<Cell>) -> Ended {
        // SAFETY: the message is ours, and there is no handle.
        let (cpu, f) = unsafe { Self::take(this) };
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(()) => Ended::Returned,
            Err(payload) => {
                let failed = panicked(cpu, Class::Plain, type_name::<F>(), payload);
                drop_quietly(failed);
                Ended::Panicked
            }
        }
    }

    /// # Safety
    /// As [`Kind::fail`].
    unsafe fn fail(this: NonNull<Cell>) {
        // SAFETY: as in `run`.
        let (cpu, f) = unsafe { Self::take(this) };
        dropped(cpu, type_name::<F>());
        drop(f);
    }

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

/// What a caught panic means for the caller. Where nobody waits it is logged, so that it isn't silent.
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

/// A payload's drop may panic once more.
pub(super) fn drop_quietly(failed: CallFailed) {
    if let CallFailed::Panicked { panic, .. } = failed {
        panics::discard(panic.into_inner());
    }
}

/// A call that nobody waits for is dropped without having run: that isn't silent either.
pub(super) fn dropped(cpu: CpuId, name: &'static str) {
    quietly(|| {
        tracing::warn!(
            cpu = cpu.number(),
            function = %text::name(name),
            "a call was dropped: this CPU's target is no longer stepped"
        );
    });
}

/// Says something. The subscriber is user code: its panics end here.
pub(crate) fn quietly(say: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(say)).unwrap_or_else(panics::discard);
}
