//! The reply path of a connection: any thread posts a reply without waiting, and one of them at a
//! time sends.
//!
//! Completions arrive on any thread, inside an atomic section, and must not wait for each other or
//! for the socket. So a reply goes into an [`Inbox`], and the holder of the **flush right** takes
//! everything out and sends it in one go. The right is one word ([`FlushRight`]); a thread that doesn't get
//! it leaves a note that the holder acts on before it lets go. Nobody ever waits for the right, so
//! no small reply is stuck behind a lock that is held across a send.
//!
//! The protocol, its race and its proof are in `README.md` beside this file; `tests/loom/reply.rs`
//! checks this very code.
//!
//! Guard letters are those of [`corewise_sync`].

pub(crate) mod right_state;

use std::fmt;
use std::marker::PhantomData;

use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Batch, Inbox, Node};

pub use right_state::{FlushRight, ReleaseChecked, ReleasePolicy};

/// Where replies go: owned by the holder of the flush right.
pub trait Sink: Send {
    /// A reply, as the inbox carries it.
    type Reply: Node + Send;

    /// Sends the batch behind whatever an earlier call couldn't send. With [`Patience::None`] it
    /// must not block, and keeps what it couldn't send for the next call; with
    /// [`Patience::Unlimited`] it may block, and never answers `Full`.
    ///
    /// Runs on the thread of the holder: with `Patience::None` perhaps inside an atomic section.
    fn send(&mut self, batch: Batch<Self::Reply>, patience: Patience) -> Sent;
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
pub enum Sent {
    /// Nothing is left in the sink.
    All,
    /// Something is left, and there is no room for it now.
    Full,
}

/// The flush right of a path, as a value: who has it may touch the sink, and owes a [`Right::run`]. There is one
/// at a time for each path, and it is for no other path.
#[must_use = "replies are stuck until the right is run"]
pub struct Right<'a, S: Sink, R: ReleasePolicy = ReleaseChecked> {
    path: &'a ReplyPath<S, R>,
}

impl<S: Sink, R: ReleasePolicy> fmt::Debug for Right<'_, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Right").field(&self.path).finish()
    }
}

impl<'a, S: Sink, R: ReleasePolicy> Right<'a, S, R> {
    /// Sends what is in the inbox until nothing is left, then releases the right. After `rounds`
    /// takes it hands the right over instead, so that a completion thread doesn't become the
    /// sender of a busy connection for ever.
    ///
    /// Blocks only with [`Patience::Unlimited`].
    pub fn run(mut self, patience: Patience, rounds: u32) -> Ran<'a, S, R> {
        let path = self.path;
        for _ in 0..rounds {
            // BeginRound, then Take.
            path.right.begin_round();
            let batch = path.inbox.take();
            if self.with_sink(|sink| sink.send(batch, patience)) == Sent::Full {
                return Ran::HandOver(self);
            }
            // Release.
            if R::release(&path.right) {
                return Ran::Released;
            }
        }
        Ran::HandOver(self)
    }

    /// Lets the holder at the sink, to set it up.
    pub fn with_sink<T>(&mut self, f: impl FnOnce(&mut S) -> T) -> T {
        // SAFETY: `self` is the one right of this path, and borrowed exclusively: it was made by a claim of
        // the path's own word, or taken over from the holder that gave it up. So no other thread touches the
        // sink until it is released or given up, and both consume it.
        self.path.sink.with_mut(|sink| f(unsafe { &mut *sink }))
    }

    /// Gives the value up so that another thread can make it anew with [`ReplyPath::take_over`]. The
    /// word of the path stays held meanwhile.
    pub fn give_up(self) {}
}

/// What [`ReplyPath::post`] did.
#[must_use = "the caller that gets the right has to run it"]
#[derive(Debug)]
pub enum Posted<'a, S: Sink, R: ReleasePolicy = ReleaseChecked> {
    /// Somebody else sends it.
    Left,
    /// The caller got the right, and sends it: now, or at the end of its batch.
    YouSend(Right<'a, S, R>),
}

/// How [`Right::run`] ended.
#[must_use = "a right that comes back has to be run by somebody who may block"]
#[derive(Debug)]
pub enum Ran<'a, S: Sink, R: ReleasePolicy = ReleaseChecked> {
    /// Everything was sent and the right was released.
    Released,
    /// The sink is full, or the caller has done its share: somebody who may block has to go on.
    HandOver(Right<'a, S, R>),
}

/// The inbox, the flush right and the sink of one connection.
pub struct ReplyPath<S: Sink, R: ReleasePolicy = ReleaseChecked> {
    inbox: Inbox<S::Reply>,
    right: FlushRight,
    /// P: touched by the holder of `right` only.
    sink: UnsafeCell<S>,
    policy: PhantomData<R>,
}

// SAFETY: the sink moves between the threads that hold the right in turn, and `Sink: Send`; the
// inbox carries nodes that are `Send` and is itself shareable.
unsafe impl<S: Sink, R: ReleasePolicy> Send for ReplyPath<S, R> {}
// SAFETY: as above: a shared reference reaches the sink only with the flush right, of which there
// is one, and releasing the right synchronizes with the next claim.
unsafe impl<S: Sink, R: ReleasePolicy> Sync for ReplyPath<S, R> {}

impl<S: Sink, R: ReleasePolicy> fmt::Debug for ReplyPath<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyPath").field("right", &self.right).finish_non_exhaustive()
    }
}

impl<S: Sink, R: ReleasePolicy> ReplyPath<S, R> {
    /// A path into this sink; nobody holds the right.
    pub fn new(sink: S) -> Self {
        ReplyPath {
            inbox: Inbox::new(),
            right: FlushRight::new(),
            sink: UnsafeCell::new(sink),
            policy: PhantomData,
        }
    }

    /// Posts a reply. Never blocks; any context.
    pub fn post(&self, reply: S::Reply) -> Posted<'_, S, R> {
        // Push. Only the thread that finds the inbox empty has to see to the sending: between its push and its
        // Claim nobody can have taken the replies that were pushed behind it without taking
        // its own first.
        if self.inbox.push(reply) && self.right.claim() {
            Posted::YouSend(Right { path: self })
        } else {
            Posted::Left
        }
    }

    /// Takes the right without having posted, where it is free: replies that are posted from now on
    /// wait for [`Right::run`], and leave together. The caller must not wait for anything
    /// before it calls that.
    pub fn cork(&self) -> Option<Right<'_, S, R>> {
        self.right.try_claim().then_some(Right { path: self })
    }

    /// The right, on the thread that it was handed over to.
    ///
    /// # Safety
    /// Another thread gave up the right of this path for this one ([`Right::give_up`]), once,
    /// and that happens-before this call.
    pub unsafe fn take_over(&self) -> Right<'_, S, R> {
        Right { path: self }
    }
}
