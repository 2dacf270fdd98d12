//! Running hardware queues without workers, once their pools are shut down: on the thread that would have asked
//! for one.
//!
//! A run may end requests, whose completion functions have other queues run, and so on: that would be as deep as
//! there are queues. And some ask under a lock of the queue. So what is asked for while the thread runs one, or
//! [holds back](hold), waits its turn.

use std::cell::{Cell, RefCell};
use std::sync::Weak;

use corewise_sync::per_thread;

use crate::admission::runner::{BUDGET_WORKER, Ran};
use crate::state::core::Core;
use crate::state::core::Hctx;

per_thread! {
    static HELD: Cell<bool> = Cell::new(false);
    // Weak: who drops a queue waits until nobody else holds its core.
    static ASKED: RefCell<Vec<(Weak<Core>, usize)>> = RefCell::new(Vec::new());
}

/// Runs a hardware queue on this thread, now or when the thread is done with what it is at.
#[cold]
pub(super) fn run(core: &Weak<Core>, index: usize) {
    let ask = |all: &RefCell<Vec<(Weak<Core>, usize)>>| {
        let mut all = all.borrow_mut();
        if !all.iter().any(|(other, i)| Weak::ptr_eq(other, core) && *i == index) {
            all.push((Weak::clone(core), index));
        }
    };
    match ASKED.try_with(ask) {
        Ok(()) => drop(hold()),
        // A thread that is about to end keeps no account.
        Err(_) => run_now(core, index),
    }
}

fn run_now(core: &Weak<Core>, index: usize) {
    // A core that is being dropped has nothing inside.
    if let Some(core) = core.upgrade() {
        core.hctx(index).run_alone(&core);
    }
}

/// Holds back the runs that this thread is asked for, until the guard is dropped: for a thread that has a lock, which is
/// released before that.
pub(crate) fn hold() -> HoldBack {
    HoldBack { outermost: HELD.try_with(|held| !held.replace(true)).unwrap_or(false) }
}

/// What the thread is asked for meanwhile waits.
pub(crate) struct HoldBack {
    outermost: bool,
}

impl Drop for HoldBack {
    fn drop(&mut self) {
        if !self.outermost {
            return;
        }
        let next = || ASKED.try_with(|all| all.borrow_mut().pop()).ok().flatten();
        // Still held: what these ask for comes to the same list.
        while let Some((core, index)) = next() {
            run_now(&core, index);
        }
        let _ = HELD.try_with(|held| held.set(false));
    }
}

impl Hctx {
    /// Runs it until nothing is left that can go.
    fn run_alone(&self, core: &Core) {
        if core.may_block {
            // This thread may be one that mustn't.
            core.give_up();
        }
        loop {
            match self.run(core, false, BUDGET_WORKER) {
                Ran::HandOver { .. } => {}
                // Nobody will tell, and there is no timer to ask again.
                Ran::Busy { .. } => core.give_up(),
                Ran::Refused | Ran::Joined | Ran::Done { .. } => return,
            }
        }
    }
}
