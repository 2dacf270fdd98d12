//! The reply path of a connection: any thread posts a reply without waiting, and one thread at a
//! time sends.
//!
//! Completions arrive on any thread, inside an atomic section, and must not wait for each other or
//! for the socket. So a reply goes into an [`Inbox`], and the holder of the **flush right** takes
//! everything out and sends it at once. The right is one word ([`FlushRight`]). A thread that
//! doesn't get it leaves a note, which the holder acts on before it releases the right. No thread
//! ever waits for the right, so no small reply is stuck behind a lock that is held across a send.
//!
//! The protocol, its race and its proof are in `README.md` beside this file; `tests/loom/reply.rs`
//! checks this very code.
//!
//! Guard letters are those of [`corewise_sync`].

use std::fmt;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Batch, Inbox, Node};

/// The destination of replies, owned by the holder of the flush right.
pub trait Sink: Send {
    /// A reply, as the inbox carries it.
    type Reply: Node + Send;

    /// Sends the batch after the replies that earlier calls couldn't send. With [`Patience::None`]
    /// it must not block, and keeps unsent replies for the next call. With [`Patience::Unlimited`]
    /// it may block, and never returns `Full`.
    ///
    /// Runs on the thread of the holder; with `Patience::None` perhaps inside an atomic section.
    fn send(&mut self, batch: Batch<Self::Reply>, patience: Patience) -> SendOutcome;
}

/// The time that a sink may wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The sink may not wait.
    None,
    /// The sink may wait until there is room.
    Unlimited,
}

/// The outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The sink has sent everything.
    All,
    /// The sink has unsent replies, and there is no room for them now.
    Full,
}

/// The flush right of a path, as a value. Its holder may touch the sink, and owes a [`Right::run`].
/// Each path has one at a time, which is for no other path.
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
    /// Sends the replies in the inbox until none is left, then releases the right. After `rounds`
    /// takes it hands the right over instead, so that a completion thread doesn't become the sender
    /// of a busy connection forever.
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

    /// Gives the holder access to the sink.
    pub fn with_sink<T>(&mut self, f: impl FnOnce(&mut S) -> T) -> T {
        // SAFETY: `self` is the one right of this path, and borrowed exclusively. It was made by a
        // claim of the path's own word, or taken over from the holder that gave it up. So no other
        // thread touches the sink until it is released or given up, and both consume it.
        self.path.sink.with_mut(|sink| f(unsafe { &mut *sink }))
    }

    /// Gives the value up so that another thread can make it anew with [`ReplyPath::take_over`].
    /// Meanwhile the word of the path stays held.
    pub fn give_up(self) {}
}

/// The result of [`ReplyPath::post`].
#[must_use = "the caller that gets the right has to run it"]
#[derive(Debug)]
pub enum PostOutcome<'a, S: Sink> {
    /// Another thread sends the reply.
    Left,
    /// The caller got the right, and sends it: now, or at the end of its batch.
    YouSend(Right<'a, S>),
}

/// The result of [`Right::run`].
#[must_use = "a right that comes back has to be run by somebody who may block"]
#[derive(Debug)]
pub enum RunOutcome<'a, S: Sink> {
    /// Everything was sent and the right was released.
    Released,
    /// The sink is full, or the caller has done its share: a thread that may block has to continue.
    HandOver(Right<'a, S>),
}

/// The inbox, the flush right and the sink of one connection.
pub struct ReplyPath<S: Sink> {
    inbox: Inbox<S::Reply>,
    right: FlushRight,
    /// P: touched by the holder of `right` only.
    sink: UnsafeCell<S>,
}

// SAFETY: the sink moves between the threads that hold the right in turn, and `Sink: Send`. The
// inbox carries nodes that are `Send` and is itself shareable.
unsafe impl<S: Sink> Send for ReplyPath<S> {}
// SAFETY: as above. A shared reference reaches the sink only with the flush right, of which there
// is one. Releasing the right synchronizes with the next claim.
unsafe impl<S: Sink> Sync for ReplyPath<S> {}

impl<S: Sink> fmt::Debug for ReplyPath<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyPath").field("right", &self.right).finish_non_exhaustive()
    }
}

impl<S: Sink> ReplyPath<S> {
    /// Creates a path into this sink, whose right is free.
    pub fn new(sink: S) -> Self {
        ReplyPath { inbox: Inbox::new(), right: FlushRight::new(), sink: UnsafeCell::new(sink) }
    }

    /// Posts a reply. Never blocks; any context.
    pub fn post(&self, reply: S::Reply) -> PostOutcome<'_, S> {
        // Push. Only the thread that finds the inbox empty has to arrange the sending. Between its
        // push and its Claim, no thread can take replies that were pushed after it without taking
        // its own first.
        if self.inbox.push(reply) && self.right.claim() {
            PostOutcome::YouSend(Right { path: self })
        } else {
            PostOutcome::Left
        }
    }

    /// Takes the right without a post, if it is free. Replies that are posted from now on wait for
    /// [`Right::run`], and leave together. The caller must not wait for anything before it calls
    /// that.
    pub fn cork(&self) -> Option<Right<'_, S>> {
        self.right.try_claim().then_some(Right { path: self })
    }

    /// Returns the right on the thread that it was handed over to.
    ///
    /// # Safety
    /// Another thread gave up the right of this path for this one ([`Right::give_up`]), once,
    /// and that happens-before this call.
    pub unsafe fn take_over(&self) -> Right<'_, S> {
        Right { path: self }
    }
}

/// State without a holder.
const FREE: u32 = 0;
/// State with a holder that has taken everything posted before its last BeginRound.
const HELD: u32 = 1;
/// State with a holder, or a thread about to become one, and a later post: it has to take once
/// more. Set by Claim, cleared by BeginRound.
const AGAIN: u32 = 2;

/// The flush right of one connection. See `README.md` beside this file for the steps named here.
pub struct FlushRight {
    /// A: `FREE`, `HELD` or `AGAIN`. Changed by read-modify-writes only, so all steps stand in one
    /// order.
    word: AtomicU32,
}

impl FlushRight {
    /// Creates a free right.
    pub fn new() -> Self {
        FlushRight { word: AtomicU32::new(FREE) }
    }

    /// Claims the right after a push (Claim). Returns true if the caller now holds it; otherwise
    /// the holder takes once more, because of the note.
    #[must_use]
    pub fn claim(&self) -> bool {
        // Release: the push before is seen by the holder whose BeginRound reads this. Acquire: if
        // the word was FREE, the last holder's use of the sink is seen.
        self.word.swap(AGAIN, Ordering::AcqRel) == FREE
    }

    /// Takes the right if it is free, and leaves no note otherwise.
    #[must_use]
    pub fn try_claim(&self) -> bool {
        // Acquire pairs with the Release of the last holder: its use of the sink is seen.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Begins a round (BeginRound). The holder calls this right before it takes from the inbox.
    fn begin_round(&self) {
        // Acquire pairs with the Release of the Claim whose note this clears: the take that follows
        // sees that push. A plain store would clear the note without seeing the push, and strand
        // it.
        let was = self.word.swap(HELD, Ordering::Acquire);
        debug_assert_ne!(was, FREE, "a round begins with the right held");
    }

    /// Releases the right (Release). The holder calls this after everything taken was sent. Returns
    /// false if a note arrived, and the holder has to continue.
    #[must_use]
    fn release(&self) -> bool {
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
