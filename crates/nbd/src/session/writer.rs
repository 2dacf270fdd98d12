//! The writer thread of a connection: takes the flush right over where the socket is full, and
//! blocks in its holder's place.
//!
//! Started at the first hand-over, since most connections never need it; parked when idle.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, Parker, Unparker, sys, thread};

use super::Session;
use super::sink::SocketSink;
use crate::reply::{Patience, Ran, Right};
use crate::told::{Known, What};

/// Stack of a connection's threads in bytes: they call the device and little else.
pub(crate) const STACK: usize = 512 << 10;

/// The mailbox of the writer thread, whether that exists yet or not.
pub(super) struct Writer {
    /// A: the flush right waits here. Swapped in (Release) by the holder that gives it up, swapped
    /// out (Acquire) by the writer.
    handed: AtomicBool,
    /// A: the session is over. Set (Release) once.
    over: AtomicBool,
    unparker: Unparker,
}

impl Writer {
    pub(super) fn new() -> (Writer, Parker) {
        let parker = Parker::new();
        let unparker = parker.unparker();
        let (handed, over) = (AtomicBool::new(false), AtomicBool::new(false));
        (Writer { handed, over, unparker }, parker)
    }

    /// Ends the thread, where there is one, once it has nothing to send.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.unparker.unpark();
    }
}

/// Gives the flush right to the writer thread, and starts that where it doesn't exist; where it
/// can't be started, to the [shared writer](super::shared_writer::SharedWriter). Never blocks.
pub(super) fn hand_over(session: &Arc<Session>, mut right: Right<'_, SocketSink>) {
    let parker = right.with_sink(|sink| sink.writer_parker.take());
    right.give_up();
    // Release: the writer sees the sink as we leave it.
    session.writer.handed.swap(true, Ordering::Release);
    let Some(parker) = parker else {
        session.writer.unparker.unpark();
        return;
    };
    let theirs = Arc::clone(session);
    let name = format!("nbd-write-{}", session.connection.id);
    // A thread that isn't started leaves it.
    let place = Arc::new(Mutex::new(Some(parker)));
    let taken = Arc::clone(&place);
    let spawned = sys::room_for_stack(STACK).and_then(|()| {
        thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
            let parker = taken.lock().take();
            if let Some(parker) = parker {
                run(&theirs, &parker);
            }
        })
    });
    let Err(error) = spawned else { return };
    // Acquire: as the writer would. Nobody else swaps it, as there is none.
    session.writer.handed.swap(false, Ordering::Acquire);
    // SAFETY: given up above, and no writer thread exists that could have taken it.
    let mut right = unsafe { session.path.take_over() };
    right.with_sink(|sink| sink.writer_parker = place.lock().take());
    let voice = &session.voice;
    if let Some(shared_writer) = &session.shared_writer {
        voice.tell(What::Ours, |Known { client, peer, export }| {
            move |left_out: Option<u64>| {
                tracing::warn!(client, %peer, export, %error, left_out,
                    "no thread for the replies of a slow client: one that all such clients share sends them");
            }
        });
        right.give_up();
        return shared_writer.take(Arc::clone(session));
    }
    let why = format!("no thread could be started for its replies: {error}");
    voice.tell(What::Ours, |Known { client, peer, export }| {
        move |left_out: Option<u64>| {
            tracing::error!(client, %peer, export, %error, left_out,
                "cannot start a thread for the replies of a slow client: the connection is closed");
        }
    });
    right.with_sink(|sink| {
        sink.give_up(|| why);
    });
    // A sink that gave up drops everything and is never full, so the rounds end with the
    // replies.
    while let Ran::HandOver(again) = right.run(Patience::None, u32::MAX) {
        right = again;
    }
}

/// The thread: blocks in sends and, without a right, in the parker.
fn run(session: &Session, parker: &Parker) {
    loop {
        // Acquire pairs with the Release of the hand-over.
        if session.writer.handed.swap(false, Ordering::Acquire) {
            // SAFETY: the holder gave the right up before it set the flag, and the swap took the
            // flag from everybody else.
            let mut right = unsafe { session.path.take_over() };
            session.connection.guard(|| {
                while let Ran::HandOver(again) = right.run(Patience::Unlimited, u32::MAX) {
                    right = again;
                }
            });
        } else if session.writer.over.load(Ordering::Acquire) {
            return;
        } else {
            parker.park();
        }
    }
}
