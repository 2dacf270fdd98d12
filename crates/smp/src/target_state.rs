//! The state word of one call target: may calls come in, and how many callers are just now pushing.
//!
//! Everything that decides between "accepted" and "refused" is in one word, and each side changes
//! it with a read-modify-write. So the two sides meet in the word's modification order, and there
//! is no publish-then-check pair that would need a fence: see `README.md` beside this file.
//!
//! | bits | name | meaning | set by | cleared by |
//! |---|---|---|---|---|
//! | 0 | `ONLINE` | calls are accepted | `go_online` | `begin_close`, `abandon` |
//! | 1 | `CLOSING` | no more calls are accepted; the target still runs what it has | `begin_close` | `finish_close`, `abandon` |
//! | 2 | `STOPPED` | never online again: the handle is shutting down | `begin_close` | nobody |
//! | 3 | `ABANDONED` | nobody will step this target any more | `abandon` | nobody |
//! | 4.. | producers | callers between `enter` and `leave` | `enter` | `leave` |
//!
//! Neither `ONLINE` nor `CLOSING`: the target is offline.

use std::fmt;

use corewise_sync::atomic::{AtomicUsize, Ordering};

use crate::error::SkipReason;

const ONLINE: usize = 1 << 0;
const CLOSING: usize = 1 << 1;
const STOPPED: usize = 1 << 2;
const ABANDONED: usize = 1 << 3;
const ONE_PRODUCER: usize = 1 << 4;

/// The word. See the module's table.
pub(crate) struct TargetState {
    /// A: flags and the number of producers. RMWs only, but for the two hints that are named so.
    word: AtomicUsize,
}

/// The decoded word, as it was at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot(usize);

/// What `enter` found.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The caller is in: it may push, and has to `leave`.
    Accepted,
    /// The caller is out, and has to carry out the duty.
    Refused(SkipReason, Duty),
}

/// What whoever left has to do.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Nothing.
    Nothing,
    /// The target waits for the last producer to leave, and that was this one: wake it.
    WakeTarget,
    /// Nobody steps the target any more, and this was the last producer: fail what is in the inbox.
    Discard,
}

/// What `go_online` found.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It is online now.
    Now,
    /// It was online already.
    Already,
    /// It is still closing: wait until it has left.
    StillClosing,
    /// Never again: the handle is shut down.
    Stopped,
    /// Never again: nobody steps it.
    Abandoned,
}

/// What `begin_close` found.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CloseBegun {
    /// It was online and is closing now: wake it.
    Closing,
    /// Somebody closes it already.
    AlreadyClosing,
    /// It was offline: there is nothing to wait for, but where it was told to stop, wake it.
    Offline,
}

impl TargetState {
    /// Offline, nobody in.
    pub(crate) fn new() -> Self {
        TargetState { word: AtomicUsize::new(0) }
    }

    /// The word now. Acquire: where it shows that a producer has left, its push is visible too.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Whether a call would be refused now. A hint: saves the caller an allocation. Relaxed, since
    /// nothing is decided by it but an early "no".
    pub(crate) fn hint_refusal(&self) -> Option<SkipReason> {
        let now = Snapshot(self.word.load(Ordering::Relaxed));
        (!now.is_online()).then(|| now.refusal())
    }

    /// Enter: counts the caller in if the target is online. Wait-free: one load, one or two RMWs.
    pub(crate) fn enter(&self) -> Entry {
        // The look before the count keeps latecomers out of the count, so that a closing target
        // waits only for those who saw it online, each at most once, and can't be starved.
        if let Some(reason) = self.hint_refusal() {
            return Entry::Refused(reason, Duty::Nothing);
        }
        // Acquire pairs with the Release of `go_online`: the target's set-up is visible.
        let before = Snapshot(self.word.fetch_add(ONE_PRODUCER, Ordering::Acquire));
        if before.is_online() {
            return Entry::Accepted;
        }
        Entry::Refused(before.refusal(), self.leave())
    }

    /// Leave: counts the caller out.
    pub(crate) fn leave(&self) -> Duty {
        // Release: the push comes before, for whoever then sees the count at zero. Acquire: where
        // the duty is to discard, the pushes of those who left before are visible.
        let before = Snapshot(self.word.fetch_sub(ONE_PRODUCER, Ordering::AcqRel));
        debug_assert!(before.producers() > 0, "left without having entered");
        let after = Snapshot(before.0 - ONE_PRODUCER);
        match after.producers() {
            0 if after.is_abandoned() => Duty::Discard,
            0 if after.is_closing() => Duty::WakeTarget,
            _ => Duty::Nothing,
        }
    }

    /// Open: from now on calls are accepted. The caller holds the control lock.
    pub(crate) fn go_online(&self) -> Opened {
        let mut now = self.snapshot();
        loop {
            if now.is_abandoned() {
                return Opened::Abandoned;
            }
            if now.is_stopped() {
                return Opened::Stopped;
            }
            if now.is_online() {
                return Opened::Already;
            }
            if now.is_closing() {
                return Opened::StillClosing;
            }
            // Release pairs with the Acquire of `enter`.
            match self.word.compare_exchange(
                now.0,
                now.0 | ONLINE,
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return Opened::Now,
                Err(found) => now = Snapshot(found),
            }
        }
    }

    /// Close: no call is accepted any more; `stop` makes that final.
    pub(crate) fn begin_close(&self, stop: bool) -> CloseBegun {
        let mut now = self.snapshot();
        loop {
            let mut next = now.0;
            if now.is_online() {
                next = (next & !ONLINE) | CLOSING;
            }
            if stop {
                next |= STOPPED;
            }
            match self.word.compare_exchange(now.0, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if now.is_online() => return CloseBegun::Closing,
                Ok(_) if now.is_closing() => return CloseBegun::AlreadyClosing,
                Ok(_) => return CloseBegun::Offline,
                Err(found) => now = Snapshot(found),
            }
        }
    }

    /// Declare dead: the target is offline. Only for the target's owner, after it saw the word
    /// quiet and has run everything that a take after that found.
    pub(crate) fn finish_close(&self) {
        // Release: what the handlers did comes before the CPU is seen offline.
        let before = Snapshot(self.word.fetch_and(!CLOSING, Ordering::Release));
        debug_assert!(before.is_closing(), "declared dead without having been closed");
    }

    /// Abandon: the owner of the target is gone. Whoever leaves last from now on discards.
    pub(crate) fn abandon(&self) {
        let mut now = self.snapshot();
        loop {
            let next = (now.0 & !(ONLINE | CLOSING)) | ABANDONED;
            match self.word.compare_exchange(now.0, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(found) => now = Snapshot(found),
            }
        }
    }
}

impl Snapshot {
    /// Calls are accepted.
    pub(crate) fn is_online(self) -> bool {
        self.0 & ONLINE != 0
    }

    /// No call is accepted, and the target isn't dead yet.
    pub(crate) fn is_closing(self) -> bool {
        self.0 & CLOSING != 0
    }

    /// Dead: neither online nor closing.
    pub(crate) fn is_offline(self) -> bool {
        self.0 & (ONLINE | CLOSING) == 0
    }

    /// Never online again.
    pub(crate) fn is_stopped(self) -> bool {
        self.0 & STOPPED != 0
    }

    /// Nobody steps it.
    pub(crate) fn is_abandoned(self) -> bool {
        self.0 & ABANDONED != 0
    }

    /// Callers between `enter` and `leave`, among them those who are about to be refused.
    pub(crate) fn producers(self) -> usize {
        self.0 / ONE_PRODUCER
    }

    /// Closing, and every accepted push has been made: what a take finds now is all there will be.
    pub(crate) fn is_quiet(self) -> bool {
        self.is_closing() && self.producers() == 0
    }

    fn refusal(self) -> SkipReason {
        if self.is_stopped() { SkipReason::ShuttingDown } else { SkipReason::NotOnline }
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
        if self.is_stopped() {
            f.write_str(" stopped")?;
        }
        if self.is_abandoned() {
            f.write_str(" abandoned")?;
        }
        write!(f, " producers={}", self.producers())
    }
}

impl fmt::Debug for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_an_online_target_accepts() {
        let state = TargetState::new();
        assert_eq!(state.enter(), Entry::Refused(SkipReason::NotOnline, Duty::Nothing));
        assert_eq!(state.go_online(), Opened::Now);
        assert_eq!(state.enter(), Entry::Accepted);
        assert_eq!(state.leave(), Duty::Nothing);
        assert_eq!(state.begin_close(false), CloseBegun::Closing);
        assert_eq!(state.enter(), Entry::Refused(SkipReason::NotOnline, Duty::Nothing));
        assert_eq!(state.go_online(), Opened::StillClosing);
        state.finish_close();
        assert_eq!(state.go_online(), Opened::Now, "it may come back");
        assert_eq!(state.go_online(), Opened::Already);
    }

    #[test]
    fn a_closing_target_is_quiet_when_the_last_producer_has_left_who_wakes_it() {
        let state = TargetState::new();
        assert_eq!(state.go_online(), Opened::Now);
        assert_eq!(state.enter(), Entry::Accepted);
        assert_eq!(state.enter(), Entry::Accepted);
        assert_eq!(state.begin_close(false), CloseBegun::Closing);
        assert!(!state.snapshot().is_quiet());
        assert_eq!(state.leave(), Duty::Nothing);
        assert!(!state.snapshot().is_quiet());
        assert_eq!(state.leave(), Duty::WakeTarget);
        assert!(state.snapshot().is_quiet());
    }

    #[test]
    fn a_stopped_target_says_so_and_never_comes_back() {
        let state = TargetState::new();
        assert_eq!(state.begin_close(true), CloseBegun::Offline);
        assert_eq!(state.enter(), Entry::Refused(SkipReason::ShuttingDown, Duty::Nothing));
        assert_eq!(state.go_online(), Opened::Stopped);
    }

    #[test]
    fn closing_twice_is_told_apart() {
        let state = TargetState::new();
        assert_eq!(state.go_online(), Opened::Now);
        assert_eq!(state.begin_close(false), CloseBegun::Closing);
        assert_eq!(state.begin_close(true), CloseBegun::AlreadyClosing);
        state.finish_close();
        assert_eq!(state.go_online(), Opened::Stopped, "the second one made it final");
    }

    #[test]
    fn after_the_owner_is_gone_the_last_producer_discards() {
        let state = TargetState::new();
        assert_eq!(state.go_online(), Opened::Now);
        assert_eq!(state.enter(), Entry::Accepted);
        state.abandon();
        assert_eq!(state.enter(), Entry::Refused(SkipReason::NotOnline, Duty::Nothing));
        assert_eq!(state.leave(), Duty::Discard);
        assert_eq!(state.go_online(), Opened::Abandoned);
    }

    #[test]
    fn the_word_prints_decoded() {
        let state = TargetState::new();
        assert_eq!(state.go_online(), Opened::Now);
        assert_eq!(state.enter(), Entry::Accepted);
        assert_eq!(format!("{state:?}"), "online producers=1");
        assert_eq!(state.begin_close(true), CloseBegun::Closing);
        assert_eq!(format!("{state:?}"), "closing stopped producers=1");
    }
}
