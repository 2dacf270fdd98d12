//! The reply path of a connection: any thread posts a reply without waiting, and one of them at a
//! time sends.
//!
//! Completions arrive on any thread, inside an atomic section, and must not wait for each other or
//! for the socket. So a reply goes into an [`Inbox`], and the holder of the **flush right** takes
//! everything out and sends it in one go. The right is one word ([`FlushRight`]); a thread that
//! doesn't get it leaves a note that the holder acts on before it lets go. Nobody ever waits for
//! the right, so no small reply is stuck behind a lock that is held across a send.
//!
//! The protocol, its race and its proof are in `README.md` beside this file; `tests/loom/reply.rs`
//! checks this very code.
//!
//! Guard letters are those of [`corewise_sync`].

use std::fmt;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::hint::IN_MODEL;
use corewise_sync::inbox::{Batch, Inbox, Node};

/// Where replies go: owned by the holder of the flush right.
pub trait Sink: Send {
    /// A reply, as the inbox carries it.
    type Reply: Node + Send;

    /// Sends the batch behind whatever an earlier call couldn't send. With [`Patience::None`] it
    /// must not block, and keeps what it couldn't send for the next call; with
    /// [`Patience::Unlimited`] it may block, and never answers `Full`.
    ///
    /// Runs on the thread of the holder: with `Patience::None` perhaps inside an atomic section.
    fn send(&mut self, batch: Batch<Self::Reply>, patience: Patience) -> SendOutcome;
}

/// How long a sink may wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until there is room.
    Unlimited,
}

/// What became of the replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// Nothing is left in the sink.
    All,
    /// Something is left, and there is no room for it now.
    Full,
}

/// The flush right of a path, as a value: who has it may touch the sink, and owes a [`Right::run`].
/// There is one at a time for each path, and it is for no other path.
#[must_use = "replies are stuck until the right is run"]
pub struct Right<'a, S: Sink> {
    path: &'a ReplyPath<S>,
}

impl<S: Sink> fmt::Debug for Right<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Right").field(&self.path).finish()
    }
}

impl<'a, S: Sink> Right<'a, S> {
    /// Sends what is in the inbox until nothing is left, then releases the right. After `rounds`
    /// takes it hands the right over instead, so that a completion thread doesn't become the
    /// sender of a busy connection for ever.
    ///
    /// Blocks only with [`Patience::Unlimited`].
    pub fn run(mut self, patience: Patience, rounds: u32) -> RunOutcome<'a, S> {
        let path = self.path;
        for _ in 0..rounds {
            // BeginRound, then Take.
            path.right.begin_round();
            let batch = path.inbox.take();
            if self.with_sink(|sink| sink.send(batch, patience)) == SendOutcome::Full {
                return RunOutcome::HandOver(self);
            }
            // Release.
            if path.right.release() {
                return RunOutcome::Released;
            }
        }
        RunOutcome::HandOver(self)
    }

    /// Lets the holder at the sink, to set it up.
    pub fn with_sink<T>(&mut self, f: impl FnOnce(&mut S) -> T) -> T {
        // SAFETY: `self` is the one right of this path, and borrowed exclusively: it was made by a
        // claim of the path's own word, or taken over from the holder that gave it up. So no other
        // thread touches the sink until it is released or given up, and both consume it.
        self.path.sink.with_mut(|sink| f(unsafe { &mut *sink }))
    }

    /// Gives the value up so that another thread can make it anew with [`ReplyPath::take_over`].
    /// The word of the path stays held meanwhile.
    pub fn give_up(self) {}
}

/// What [`ReplyPath::post`] did.
#[must_use = "the caller that gets the right has to run it"]
#[derive(Debug)]
pub enum PostOutcome<'a, S: Sink> {
    /// Somebody else sends it.
    Left,
    /// The caller got the right, and sends it: now, or at the end of its batch.
    YouSend(Right<'a, S>),
}

/// How [`Right::run`] ended.
#[must_use = "a right that comes back has to be run by somebody who may block"]
#[derive(Debug)]
pub enum RunOutcome<'a, S: Sink> {
    /// Everything was sent and the right was released.
    Released,
    /// The sink is full, or the caller has done its share: somebody who may block has to go on.
    HandOver(Right<'a, S>),
}

/// The inbox, the flush right and the sink of one connection.
pub struct ReplyPath<S: Sink> {
    inbox: Inbox<S::Reply>,
    right: FlushRight,
    /// P: touched by the holder of `right` only.
    sink: UnsafeCell<S>,
}

// SAFETY: the sink moves between the threads that hold the right in turn, and `Sink: Send`; the
// inbox carries nodes that are `Send` and is itself shareable.
unsafe impl<S: Sink> Send for ReplyPath<S> {}
// SAFETY: as above: a shared reference reaches the sink only with the flush right, of which there
// is one, and releasing the right synchronizes with the next claim.
unsafe impl<S: Sink> Sync for ReplyPath<S> {}

impl<S: Sink> fmt::Debug for ReplyPath<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyPath").field("right", &self.right).finish_non_exhaustive()
    }
}

impl<S: Sink> ReplyPath<S> {
    /// A path into this sink; nobody holds the right.
    pub fn new(sink: S) -> Self {
        ReplyPath { inbox: Inbox::new(), right: FlushRight::new(), sink: UnsafeCell::new(sink) }
    }

    /// A path whose holder lets go of the right without a look for notes: for a model that has to
    /// fail.
    pub fn that_releases_blindly(sink: S) -> Self {
        let mut path = ReplyPath::new(sink);
        path.right.releases_blindly = true;
        path
    }

    /// Posts a reply. Never blocks; any context.
    pub fn post(&self, reply: S::Reply) -> PostOutcome<'_, S> {
        // Push. Only the thread that finds the inbox empty has to see to the sending: between its
        // push and its Claim nobody can have taken the replies that were pushed behind it without
        // taking its own first.
        if self.inbox.push(reply) && self.right.claim() {
            PostOutcome::YouSend(Right { path: self })
        } else {
            PostOutcome::Left
        }
    }

    /// Takes the right without having posted, where it is free: replies that are posted from now on
    /// wait for [`Right::run`], and leave together. The caller must not wait for anything
    /// before it calls that.
    pub fn cork(&self) -> Option<Right<'_, S>> {
        self.right.try_claim().then_some(Right { path: self })
    }

    /// The right, on the thread that it was handed over to.
    ///
    /// # Safety
    /// Another thread gave up the right of this path for this one ([`Right::give_up`]), once,
    /// and that happens-before this call.
    pub unsafe fn take_over(&self) -> Right<'_, S> {
        Right { path: self }
    }
}

/// Nobody sends.
const FREE: u32 = 0;
/// Somebody sends, and has taken everything that was posted before its last BeginRound.
const HELD: u32 = 1;
/// Somebody sends (or is about to begin), and something was posted since: it has to take once more.
/// Set by Claim, cleared by BeginRound.
const AGAIN: u32 = 2;

/// The flush right of one connection. See `README.md` beside this file for the steps named here.
pub struct FlushRight {
    /// A: `FREE`, `HELD` or `AGAIN`. Changed by read-modify-writes only, so all steps stand in one
    /// order.
    word: AtomicU32,
    /// The release doesn't look for notes: for a model that has to fail.
    releases_blindly: bool,
}

impl FlushRight {
    /// A free right.
    pub fn new() -> Self {
        FlushRight { word: AtomicU32::new(FREE), releases_blindly: false }
    }

    /// Claim, after a push: true where the caller now holds the right; otherwise the holder has
    /// been told to take once more.
    #[must_use]
    pub fn claim(&self) -> bool {
        // Release: the push before is seen by the holder whose BeginRound reads this. Acquire:
        // where the word was FREE, what the last holder did to the sink is seen.
        self.word.swap(AGAIN, Ordering::AcqRel) == FREE
    }

    /// Takes the right where it is free, without leaving a note otherwise.
    #[must_use]
    pub fn try_claim(&self) -> bool {
        // Acquire pairs with the Release of the last holder: its use of the sink is seen.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// BeginRound, by the holder, right before it takes from the inbox.
    fn begin_round(&self) {
        // Acquire pairs with the Release of the Claim whose note this clears: the take that follows
        // sees that push. A plain store would clear the note without seeing the push, and
        // strand it.
        let was = self.word.swap(HELD, Ordering::Acquire);
        debug_assert_ne!(was, FREE, "a round begins with the right held");
    }

    /// Release, by the holder, after everything taken was sent: false where a note arrived, and the
    /// holder has to go on.
    #[must_use]
    fn release(&self) -> bool {
        if IN_MODEL && self.releases_blindly {
            self.word.swap(FREE, Ordering::Release);
            return true;
        }
        // Release: the next holder sees the sink as this one left it.
        self.word.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

impl Default for FlushRight {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FlushRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.word.load(Ordering::Relaxed) {
            FREE => "free",
            HELD => "held",
            _ => "held, more arrived",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_left_while_the_right_is_held_makes_the_release_fail_once() {
        let right = FlushRight::new();
        assert!(right.claim(), "free: the first claim gets it");
        right.begin_round();
        assert!(!right.claim(), "held: the second leaves a note");
        assert!(!right.release(), "the note keeps the holder");
        right.begin_round();
        assert!(right.release());
        assert!(right.try_claim());
        assert!(!right.try_claim(), "trying leaves no note");
        right.begin_round();
        assert!(right.release());
    }
}
