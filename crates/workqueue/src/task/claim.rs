//! Taking a pending instance back: to cancel it, to run it on the spot, or to put it elsewhere. The
//! kernel's `try_to_grab_pending`.
//!
//! Read `state.md` beside this file first: it names the steps that the comments here use, and
//! argues why no other thread touches a claimed instance.

use std::mem;
use std::ptr::NonNull;

use corewise_sync::inbox::Node;
use corewise_sync::thread;

use crate::error::shielded;
use crate::task::header;
use crate::task::header::{Header, Job, Queued};
use crate::task::header::{ItemRef, LentItem};
use crate::task::running::Running;
use crate::task::state::{Seq, Snapshot};
use crate::task::ticket::Event;

/// The place of a pending instance. Changed only by its holder, or under the lock of the container
/// that it goes into or comes out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    /// The hands of its queuer, which is about to fill it in, or of its claimant, to whom its taker
    /// has left it.
    Nowhere,
    /// The way from one hand or container to another.
    Moving,
    /// The cell of the ring that its ticket names: the instance is there, is about to be, or was
    /// just taken.
    Ring(u32),
    /// The inbox of the overflow there; or the instance is about to be.
    Pushed,
    /// The list of the overflow there.
    Listed,
    /// Held back by its queue's limiter.
    Held,
    /// Its timer runs; [`LentItem::unshelve`] knows where.
    Timer,
}

impl Container {
    /// Number of bits of a container.
    pub(crate) const BITS: u32 = 36;
    /// Bits that name the kind of container; the others name a ring's cell.
    const KIND: u32 = 3;

    /// Returns the lowest bits of the place's word.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        match self {
            Container::Nowhere => 0,
            Container::Moving => 1,
            Container::Listed => 2,
            Container::Held => 3,
            Container::Timer => 4,
            Container::Pushed => 5,
            Container::Ring(cell) => 6 | u64::from(cell) << Self::KIND,
        }
    }

    /// Returns the container that the lowest bits of the place's word name.
    #[inline]
    pub(crate) fn from_bits(word: u64) -> Container {
        match word & ((1 << Self::KIND) - 1) {
            0 => Container::Nowhere,
            1 => Container::Moving,
            2 => Container::Listed,
            3 => Container::Held,
            4 => Container::Timer,
            5 => Container::Pushed,
            _ => Container::Ring((word >> Self::KIND) as u32),
        }
    }

    /// Returns true for a container in the lists of a pool.
    pub(crate) fn is_in_pool(self) -> bool {
        matches!(self, Container::Ring(_) | Container::Pushed | Container::Listed)
    }

    /// Returns true for a container in the lists of a pool, and for the instances that a limiter
    /// holds back.
    fn is_lasting(self) -> bool {
        self.is_in_pool() || self == Container::Held
    }
}

impl Header {
    /// Returns true if the pending instance lay in a pool, free to be taken, a moment ago.
    pub(crate) fn may_be_taken_back(&self) -> bool {
        let now = self.state.snapshot();
        now.pending() && !now.running() && !now.claimed() && self.place(now.seq()).is_in_pool()
    }

    /// Returns true if a thread or a timer had the pending instance a moment ago.
    pub(crate) fn is_on_its_way(&self) -> bool {
        let now = self.state.snapshot();
        let placed = self.place(now.seq()).is_lasting();
        now.pending() && !now.running() && (now.claimed() || !placed)
    }

    /// Returns true if the pending instance was held back a moment ago.
    pub(crate) fn is_held(&self) -> bool {
        let now = self.state.snapshot();
        now.pending() && self.place(now.seq()) == Container::Held
    }
}

impl LentItem<'_> {
    /// Claims the pending instance, whatever it lies in; returns `None` if nothing is pending.
    /// Yields while others take short steps with it. Takes short locks.
    pub(crate) fn claim(self) -> Option<Claimed> {
        loop {
            // Look.
            let now = self.state.snapshot();
            if !now.pending() {
                return None;
            }
            // Another thread is in the middle of a short step with it: a queuer between Pend and
            // Push, or another claimant. This is the kernel's `-EAGAIN`.
            let busy = now.claimed() || !now.again() && self.place(now.seq()) == Container::Nowhere;
            if busy {
                thread::yield_now();
            } else if self.state.claim(now) {
                // Claim.
                return Some(self.detach(now));
            }
        }
    }

    /// Shows the pending instance to `see`, if it lies in its pool or is held back. `see` may do
    /// this: see [`LentItem::claim_if`].
    pub(crate) fn look<R>(self, see: impl FnOnce(&Job) -> R) -> Option<R> {
        let placed = |seq| self.place(seq).is_lasting();
        let seq = self.peek(placed)?;
        // SAFETY: as in `claim_if`.
        let seen = placed(seq).then(|| see(unsafe { self.job() }));
        // LookAway.
        self.state.look_away();
        seen
    }

    /// Carries out Peek if the instance is pending, doesn't run, and its place is `placed`. Returns
    /// the instance's number: the caller has to check the place once more.
    fn peek(self, placed: impl Fn(Seq) -> bool) -> Option<Seq> {
        loop {
            let now = self.state.snapshot();
            if !now.pending() || now.running() || now.claimed() || !placed(now.seq()) {
                return None;
            }
            if self.state.peek(now) {
                return Some(now.seq());
            }
        }
    }

    /// Claims the pending instance if it lies in its pool and `wanted` returns true, for a waiter
    /// that would rather run it than wait. While `wanted` looks at it, the instance may start, but
    /// not end. `wanted` is brief, takes no lock and calls no code of the user's: the thread that
    /// ends the instance waits for it.
    pub(crate) fn claim_if(self, wanted: impl FnOnce(&Job) -> bool) -> Option<Claimed> {
        let in_pool = |seq| self.place(seq).is_in_pool();
        let seq = self.peek(in_pool)?;
        // The instance may have been put elsewhere before Peek, but not after. SAFETY: it was
        // placed, so the slot is filled, and no thread writes the slot during the look.
        let taken = in_pool(seq) && wanted(unsafe { self.job() });
        if !taken {
            // LookAway.
            self.state.look_away();
            return None;
        }
        // Claim, or LookAway.
        self.state.claim_looked_at().then(|| self.detach(self.state.snapshot()))
    }

    /// Takes the instance that the caller has just claimed out of the container that it lies in.
    fn detach(self, was: Snapshot) -> Claimed {
        let claimed = Claimed(self.pointer());
        // Handed over: its popper has taken it out, and it lies in the slot alone.
        while !was.again() {
            // Find. The place is read anew, and the thread that takes the item from there checks
            // it.
            let place = self.place(was.seq());
            let found = match place {
                Container::Nowhere => break,
                Container::Moving => None,
                Container::Ring(_) | Container::Pushed | Container::Listed | Container::Held => {
                    let ticket = claimed.job().ticket.as_ref();
                    ticket.and_then(|ticket| ticket.home().schedule.take_out(ticket, self, place))
                }
                Container::Timer => self.unshelve(),
            };
            match found {
                // The handle is given up: the claim stands for the instance.
                Some(queued) => {
                    queued.into_raw();
                    break;
                }
                None => thread::yield_now(),
            }
        }
        claimed
    }
}

/// A pending instance that is the caller's alone: it is in no container, and no other thread starts
/// or takes it. Dropping the handle cancels the instance: it is then over without having run.
pub(crate) struct Claimed(pub(crate) NonNull<Header>);

// SAFETY: it stands for an `ItemRef`, which is `Send`.
unsafe impl Send for Claimed {}

impl Claimed {
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the instance holds the item, and with it the header; the claimant alone gives
        // that up.
        unsafe { self.0.as_ref() }
    }

    /// Returns the hold of the instance, for the thread that ends it or takes it out of the slot.
    fn into_hold(self) -> ItemRef {
        let item = self.0;
        mem::forget(self);
        // SAFETY: the claim stands for the hold, and is given up; the pointer is one to the whole
        // item.
        unsafe { ItemRef::kept(item) }
    }

    /// Returns the data that the instance carries along.
    pub(crate) fn job(&self) -> &Job {
        // SAFETY: the slot is filled and the claimant's; it is written through `&mut self` only.
        unsafe { self.header().job() }
    }

    /// Calls `change` with the data that the instance carries along: its ticket changes if it goes
    /// to another queue.
    pub(crate) fn with_job<R>(&mut self, change: impl FnOnce(&mut Job) -> R) -> R {
        // SAFETY: as above; it lies in no container, so no other thread looks at it.
        unsafe { self.header().with_job(change) }
    }

    /// Ends the instance as if it had never been queued: its flushers wake, and the item itself
    /// isn't notified.
    pub(crate) fn refuse(self) {
        self.end(false);
    }

    /// Ends the instance without running it, and notifies its waiters.
    pub(crate) fn cancel(self) {
        drop(self);
    }

    /// Starts the instance, to be run on this thread. Returns `None` if another instance of the
    /// item runs: its worker runs this one too, right after.
    pub(crate) fn run(self) -> Option<Running> {
        // SAFETY: the slot is filled and ours; the copy is kept only where the slot then counts as
        // empty.
        let job = unsafe { self.header().copy_job() };
        let runs = self.header().state.run_claimed();
        let item = self.into_hold();
        // SAFETY: the instance runs, so no thread takes the job out of the slot again.
        runs.then(|| Running::new(item, unsafe { job.assume_init() }))
    }

    /// Starts the instance that `finish` left to its caller, which still runs the item.
    pub(crate) fn restart(self) -> Running {
        // SAFETY: the slot is filled and ours, and counts as empty from `restart` on.
        let job = unsafe { self.header().copy_job().assume_init() };
        self.header().state.restart();
        Running::new(self.into_hold(), job)
    }

    /// Gives the claim up: the caller is about to put the instance into a container. Until it lies
    /// there, other claimants wait.
    pub(crate) fn release(self) -> Queued {
        let header = self.0;
        mem::forget(self);
        // SAFETY: the item is pending and in no container: the handle is the only one.
        let queued = unsafe { Queued::from_raw(header) };
        // Before the claim ends: a claimant that comes after takes Nowhere for a queuer at work.
        queued.set_place(Container::Moving);
        queued.header().state.unclaim();
        queued
    }

    /// Ends the instance. If `told`, it counts as cancelled, else as never queued.
    fn end(self, told: bool) {
        // SAFETY: the slot is filled and ours; it counts as empty from the steps below on.
        let Job { ticket, .. } = unsafe { self.header().copy_job().assume_init() };
        let item = self.into_hold();
        if let Some(ticket) = ticket.as_ref() {
            ticket.note(if told { Event::Cancelled } else { Event::Withdrawn });
        }
        let tell = || shielded("cancelling a work item", || item.cancelled());
        let table = item.header().table;
        let (last, ended) = if table.once {
            // The instance counts as running while the item is notified: so the item stays, and no
            // thread waits for the claim.
            let alone = item.header().state.run_claimed();
            debug_assert!(alone, "it is queued once");
            if told {
                tell();
            }
            let (finished, ended) = item.finish(false);
            (finished.last, ended)
        } else {
            let (last, ended) = item.cancel();
            // An item that its state word kept may be gone; such items have no queue to notify.
            if told && table.is_counted() {
                tell();
            }
            (last, ended)
        };
        header::wake(ended);
        table.give_up(item, last);
        // Last: after a flush of the queue the instance is over in every respect.
        drop(ticket);
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        Claimed(self.0).end(true);
    }
}
