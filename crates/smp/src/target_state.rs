//! The one word of a call target: whether calls may come in, which have come in, and whether the
//! owner sleeps.
//!
//! Everything that decides between "accepted" and "refused" is in the word that a call is pushed
//! onto, and each side changes it with a compare-exchange. So the check and the push are one step.
//! There is nothing between them that could go wrong, and no publish-then-check pair that would
//! need a fence: see `README.md` beside this file.
//!
//! The word is the address of the cell pushed last (or null), and flags in the bits that its
//! alignment leaves free:
//!
//! | bit | name | meaning | set by | cleared by |
//! |---|---|---|---|---|
//! | 0 | `ONLINE` | calls are accepted | `go_online` | `begin_close`, `abandon` |
//! | 1 | `CLOSING` | accepts none, runs the rest | `begin_close` | `finish_close`, `abandon` |
//! | 2 | `STOPPED` | never online again: the handle is shutting down | `begin_close` | nobody |
//! | 3 | `ABANDONED` | nobody will step this target any more | `abandon` | nobody |
//! | 4 | `PARKED` | asleep, or about to be | `announce_park` | `push`, `begin_close`, `abandon` |
//!
//! A thread that clears `PARKED` leaves the owner's token.
//!
//! A target with neither `ONLINE` nor `CLOSING` is offline. Cells are added only while it is
//! `ONLINE`.

use std::fmt;
use std::ptr;

use corewise_sync::atomic::{AtomicPtr, Ordering};

use crate::cells::{Cell, Message, Queue};
use crate::error::SkipReason;

const ONLINE: usize = 1 << 0;
const CLOSING: usize = 1 << 1;
const STOPPED: usize = 1 << 2;
const ABANDONED: usize = 1 << 3;
pub(crate) const PARKED: usize = 1 << 4;
const FLAGS: usize = 31;

const _: () = assert!(std::mem::align_of::<Cell>() > FLAGS);

/// The word. See the module's table.
pub(crate) struct TargetState {
    /// A: flags, and the cells pushed and not yet taken. RMWs only, except the plain loads that
    /// their names or comments call a look.
    word: AtomicPtr<Cell>,
}

/// The word, as it was at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot(*mut Cell);

// SAFETY: the address isn't used.
unsafe impl Send for Snapshot {}
// SAFETY: as above.
unsafe impl Sync for Snapshot {}

/// The need for a wake-up: whether the owner sleeps, so that the caller has to leave a token.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    Nobody,
    Owner,
}

/// Result of `go_online`.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpenResult {
    /// The target is online now.
    Now,
    /// The target was online already.
    Already,
    /// The target is still closing: wait until it has left.
    StillClosing,
    /// The target never opens again: the handle is shut down.
    Stopped,
    /// The target never opens again: no thread steps it.
    Abandoned,
}

/// Result of `begin_close`.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CloseResult {
    /// The target was online and is closing now.
    Closing,
    /// Another thread closes the target already.
    AlreadyClosing,
    /// The target was offline: there is nothing to wait for.
    Offline,
}

impl TargetState {
    /// Creates the word of an offline target, with nothing in it.
    pub(crate) fn new() -> Self {
        TargetState { word: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the word now. A look.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Returns the reason for which a call would be refused now. A look: saves the caller a cell.
    /// Relaxed, since it decides nothing but an early "no".
    pub(crate) fn hint_refusal(&self) -> Option<SkipReason> {
        let now = Snapshot(self.word.load(Ordering::Relaxed));
        (!now.is_online()).then(|| now.refusal())
    }

    /// Adds a message if the target is online (step Push). A pusher that clears `PARKED` with it
    /// has to wake. Lock-free.
    ///
    /// # Errors
    /// The reason why the target isn't online, and the message.
    #[inline]
    pub(crate) fn push(&self, message: Message) -> Result<Wake, (SkipReason, Message)> {
        message.stamp(false);
        let cell = message.into_cell();
        // A guess, so that a target's line that another core has is asked for once, to be written.
        let mut now = Snapshot(ptr::without_provenance_mut(ONLINE));
        loop {
            if !now.is_online() {
                // SAFETY: it was given up above, and is in no list.
                return Err((now.refusal(), unsafe { Message::from_cell(cell) }));
            }
            // SAFETY: no other thread has it before the exchange below.
            unsafe { cell.as_ref().set_next(now.newest()) };
            let next = cell.as_ptr().map_addr(|cell| cell | now.flags() & !PARKED);
            // Release pairs with the Acquire of `take`: what the caller wrote is seen by the
            // function. Each push is a read-modify-write, so the take acquires them all.
            match self.exchange(now, next, Ordering::Release, Ordering::Relaxed) {
                Ok(()) if now.is_parked() => return Ok(Wake::Owner),
                Ok(()) => return Ok(Wake::Nobody),
                Err(found) => now = found,
            }
            if now.is_parked() {
                // It is about to wake, beside which a precise clock is nothing.
                // SAFETY: as above.
                unsafe { cell.as_ref() }.diagnosis.stamp(true);
            }
        }
    }

    /// Takes everything that is in, oldest first, and the word of the same moment, without it (step
    /// Take).
    #[inline]
    pub(crate) fn take(&self) -> (Queue, Snapshot) {
        let mut now = self.snapshot();
        loop {
            if now.newest().is_null() {
                return (Queue::EMPTY, now);
            }
            let next = ptr::without_provenance_mut(now.flags());
            match self.exchange(now, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(()) => {
                    // SAFETY: the exchange made the chain ours; each cell in it was given up by a
                    // push.
                    let taken = unsafe { Queue::from_newest(now.newest()) };
                    return (taken, Snapshot(next));
                }
                Err(found) => now = found,
            }
        }
    }

    /// Returns true if the word is another than that one. For a spinning thread: a look, and
    /// relaxed, for a take follows.
    #[inline]
    pub(crate) fn differs_from(&self, seen: Snapshot) -> bool {
        self.word.load(Ordering::Relaxed) != seen.0
    }

    /// Announces that the owner will sleep until there is a token (step Announce). Returns false if
    /// the word isn't any more what the owner saw last, with nothing in it.
    pub(crate) fn announce_park(&self, seen: Snapshot) -> bool {
        debug_assert!(seen.newest().is_null(), "sleeps although there are calls");
        let next = seen.0.map_addr(|word| word | PARKED);
        // Relaxed: it says nothing but itself; the thread that clears it leaves a token, which
        // orders.
        self.exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Opens the target: from now on calls are accepted (step Open). The caller holds the control
    /// lock. A sleeper goes on sleeping until the first call.
    pub(crate) fn go_online(&self) -> OpenResult {
        let mut now = self.snapshot();
        loop {
            if now.is_abandoned() {
                return OpenResult::Abandoned;
            }
            if now.is_stopped() {
                return OpenResult::Stopped;
            }
            if now.is_online() {
                return OpenResult::Already;
            }
            if now.is_closing() {
                return OpenResult::StillClosing;
            }
            let next = now.0.map_addr(|word| word | ONLINE);
            // Release: the target's set-up comes before; the pushes are in its release sequence.
            match self.exchange(now, next, Ordering::Release, Ordering::Acquire) {
                Ok(()) => return OpenResult::Now,
                Err(found) => now = found,
            }
        }
    }

    /// Closes the target: no call is accepted any more; `stop` makes that final (step Close).
    pub(crate) fn begin_close(&self, stop: bool) -> (CloseResult, Wake) {
        let mut now = self.snapshot();
        loop {
            let mut flags = now.flags() & !PARKED;
            if now.is_online() {
                flags = (flags & !ONLINE) | CLOSING;
            }
            if stop {
                flags |= STOPPED;
            }
            let next = now.newest().map_addr(|newest| newest | flags);
            if flags == now.flags() & !PARKED && !now.is_parked() {
                // It says all that already.
                return (now.close_begun(), Wake::Nobody);
            }
            match self.exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(()) => {
                    let wake = if now.is_parked() { Wake::Owner } else { Wake::Nobody };
                    return (now.close_begun(), wake);
                }
                Err(found) => now = found,
            }
        }
    }

    /// Declares the target dead: it is offline. Only for the target's owner, after it took while
    /// the word was closing, and has run all that it took.
    pub(crate) fn finish_close(&self) {
        let mut now = self.snapshot();
        loop {
            debug_assert!(now.is_closing(), "declared dead without having been closed");
            debug_assert!(now.newest().is_null(), "a call came in while it was closing");
            let next = now.0.map_addr(|word| word & !CLOSING);
            // Release: what the handlers did comes before the CPU is seen offline.
            match self.exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(()) => return,
                Err(found) => now = found,
            }
        }
    }

    /// Abandons the target: its owner is gone (step Abandon). The messages inside are given back.
    pub(crate) fn abandon(&self) -> Queue {
        let mut now = self.snapshot();
        loop {
            let flags = (now.flags() & STOPPED) | ABANDONED;
            let next = ptr::without_provenance_mut(flags);
            match self.exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as in `take`.
                Ok(()) => return unsafe { Queue::from_newest(now.newest()) },
                Err(found) => now = found,
            }
        }
    }

    #[inline]
    pub(crate) fn exchange(
        &self,
        now: Snapshot,
        next: *mut Cell,
        success: Ordering,
        failure: Ordering,
    ) -> Result<(), Snapshot> {
        match self.word.compare_exchange(now.0, next, success, failure) {
            Ok(_) => Ok(()),
            Err(found) => Err(Snapshot(found)),
        }
    }
}

impl Drop for TargetState {
    /// Drops what is in the word. The owner side was dropped before, and took that; but a target
    /// may never have had one to lose.
    fn drop(&mut self) {
        drop(self.abandon());
    }
}

impl Snapshot {
    pub(crate) fn flags(self) -> usize {
        self.0.addr() & FLAGS
    }

    pub(crate) fn newest(self) -> *mut Cell {
        self.0.map_addr(|word| word & !FLAGS)
    }

    /// Returns true if calls are accepted.
    pub(crate) fn is_online(self) -> bool {
        self.0.addr() & ONLINE != 0
    }

    /// Returns true if no call is accepted, and the target isn't dead yet: what a take finds now is
    /// all there will be.
    pub(crate) fn is_closing(self) -> bool {
        self.0.addr() & CLOSING != 0
    }

    /// Returns true if the target is dead: neither online nor closing.
    pub(crate) fn is_offline(self) -> bool {
        self.0.addr() & (ONLINE | CLOSING) == 0
    }

    /// Returns true if the target will never be online again.
    pub(crate) fn is_stopped(self) -> bool {
        self.0.addr() & STOPPED != 0
    }

    /// Returns true if no thread steps the target.
    pub(crate) fn is_abandoned(self) -> bool {
        self.0.addr() & ABANDONED != 0
    }

    /// Returns true if the owner sleeps, or is about to.
    pub(crate) fn is_parked(self) -> bool {
        self.0.addr() & PARKED != 0
    }

    fn close_begun(self) -> CloseResult {
        if self.is_online() {
            CloseResult::Closing
        } else if self.is_closing() {
            CloseResult::AlreadyClosing
        } else {
            CloseResult::Offline
        }
    }

    fn refusal(self) -> SkipReason {
        if self.is_stopped() { SkipReason::ShuttingDown } else { SkipReason::NotOnline }
    }
}

/// State of a CPU: whether it takes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuState {
    /// The CPU takes calls.
    Online,
    /// The CPU takes no more calls, and still runs those that it has.
    Leaving,
    /// The CPU takes no calls; it may come back.
    Offline,
    /// The CPU takes no calls, for good: the handle is shut down.
    Stopped,
    /// The CPU takes no calls, for good: its call target was dropped.
    Abandoned,
}

impl CpuState {
    pub(crate) fn of(state: Snapshot) -> CpuState {
        if state.is_abandoned() {
            CpuState::Abandoned
        } else if state.is_closing() {
            CpuState::Leaving
        } else if state.is_online() {
            CpuState::Online
        } else if state.is_stopped() {
            CpuState::Stopped
        } else {
            CpuState::Offline
        }
    }
}

impl fmt::Display for CpuState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CpuState::Online => "online",
            CpuState::Leaving => "leaving",
            CpuState::Offline => "offline",
            CpuState::Stopped => "stopped",
            CpuState::Abandoned => "abandoned",
        })
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = if self.is_online() {
            "online"
        } else if self.is_closing() {
            "closing"
        } else {
            "offline"
        };
        f.write_str(phase)?;
        for (is, name) in [
            (self.is_stopped(), " stopped"),
            (self.is_abandoned(), " abandoned"),
            (self.is_parked(), " parked"),
            (!self.newest().is_null(), " calls"),
        ] {
            f.write_str(if is { name } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use corewise_topology::CpuId;

    use super::*;
    use crate::cells::{Pools, detached};

    fn message(pools: &Pools) -> Message {
        let cpu = CpuId::new(0);
        detached(pools, cpu, Location::caller(), cpu, || ())
    }

    fn refused(state: &TargetState, pools: &Pools) -> Option<SkipReason> {
        state.push(message(pools)).err().map(|(reason, _)| reason)
    }

    #[test]
    fn only_an_online_target_accepts() {
        let (state, pools) = (TargetState::new(), Pools::new(1));
        assert_eq!(refused(&state, &pools), Some(SkipReason::NotOnline));
        assert_eq!(state.go_online(), OpenResult::Now);
        assert_eq!(refused(&state, &pools), None);
        assert_eq!(state.begin_close(false), (CloseResult::Closing, Wake::Nobody));
        assert_eq!(refused(&state, &pools), Some(SkipReason::NotOnline));
        assert_eq!(state.go_online(), OpenResult::StillClosing);
        let (taken, seen) = state.take();
        assert!(!taken.is_empty() && seen.is_closing());
        state.finish_close();
        assert_eq!(state.go_online(), OpenResult::Now, "it may come back");
        assert_eq!(state.go_online(), OpenResult::Already);
    }

    #[test]
    fn only_the_push_that_finds_the_owner_asleep_wakes_it() {
        let (state, pools) = (TargetState::new(), Pools::new(1));
        assert_eq!(state.go_online(), OpenResult::Now);
        assert!(matches!(state.push(message(&pools)), Ok(Wake::Nobody)), "it is awake");
        let (_, seen) = state.take();
        assert!(state.announce_park(seen));
        assert!(matches!(state.push(message(&pools)), Ok(Wake::Owner)));
        assert!(matches!(state.push(message(&pools)), Ok(Wake::Nobody)), "it is woken already");
        assert!(!state.announce_park(seen), "there is something to do");
    }

    #[test]
    fn closing_or_stopping_wakes_a_sleeper_once() {
        let state = TargetState::new();
        assert!(state.announce_park(state.snapshot()));
        assert_eq!(state.go_online(), OpenResult::Now);
        assert_eq!(state.begin_close(false), (CloseResult::Closing, Wake::Owner));
        assert_eq!(state.begin_close(true), (CloseResult::AlreadyClosing, Wake::Nobody));
        state.finish_close();
        assert_eq!(state.go_online(), OpenResult::Stopped, "the second one made it final");
    }

    #[test]
    fn a_stopped_target_says_so_and_never_comes_back() {
        let (state, pools) = (TargetState::new(), Pools::new(1));
        assert_eq!(state.begin_close(true), (CloseResult::Offline, Wake::Nobody));
        assert_eq!(refused(&state, &pools), Some(SkipReason::ShuttingDown));
        assert_eq!(state.go_online(), OpenResult::Stopped);
    }

    #[test]
    fn after_the_owner_is_gone_what_was_in_is_given_back_and_no_more_comes_in() {
        let (state, pools) = (TargetState::new(), Pools::new(1));
        assert_eq!(state.go_online(), OpenResult::Now);
        assert_eq!(refused(&state, &pools), None);
        assert!(!state.abandon().is_empty());
        assert_eq!(refused(&state, &pools), Some(SkipReason::NotOnline));
        assert_eq!(state.go_online(), OpenResult::Abandoned);
    }

    #[test]
    fn the_word_prints_decoded() {
        let (state, pools) = (TargetState::new(), Pools::new(1));
        assert_eq!(state.go_online(), OpenResult::Now);
        assert_eq!(refused(&state, &pools), None);
        assert_eq!(format!("{state:?}"), "online calls");
        assert_eq!(state.begin_close(true), (CloseResult::Closing, Wake::Nobody));
        assert_eq!(format!("{state:?}"), "closing stopped calls");
    }
}
