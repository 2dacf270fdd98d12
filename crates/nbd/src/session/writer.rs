//! The threads that send if a socket is full: a writer for each connection, and one that
//! connections share.
//!
//! The writer of a connection takes over the flush right and blocks in its holder's place. It is
//! started at the first hand-over, since most connections never need it, and parks when idle.
//!
//! The [`SharedWriter`] sends for clients whose own writer could not be started. A server starts it
//! with its first client, so a shortage of threads cuts no attached client. It never waits for one
//! client: it polls the sockets of all clients that were handed to it, and sends as much as they
//! take. Once all replies of a client have left, the next hand-over of that client tries to start
//! its own writer again.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, Parker, Unparker, sys, thread};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::Session;
use super::sink::SocketSink;
use crate::client_log::{ClientFacts, LineKind};
use crate::deadline::timespec;
use crate::reply::{Patience, Right, RunOutcome};

/// Size of the stack of a connection's threads in bytes: they call the device and little else.
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

    /// Ends the thread, if there is one, once it has nothing to send.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.unparker.unpark();
    }
}

/// Gives the flush right to the writer thread, and starts that if it doesn't exist. If it can't be
/// started, the [shared writer](super::shared_writer::SharedWriter) gets the right. Never blocks.
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
    // A thread that isn't started leaves it there.
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
    // Acquire: as the writer would. No other thread swaps it, as there is no writer.
    session.writer.handed.swap(false, Ordering::Acquire);
    // SAFETY: the right was given up above, and no writer thread exists that could have taken it.
    let mut right = unsafe { session.path.take_over() };
    right.with_sink(|sink| sink.writer_parker = place.lock().take());
    let log = &session.log;
    if let Some(shared_writer) = &session.shared_writer {
        log.tell(LineKind::Ours, |ClientFacts { client, peer, export }| {
            move |left_out: Option<u64>| {
                tracing::warn!(client, %peer, export, %error, left_out,
                    "no thread for the replies of a slow client: the thread that slow clients \
                     share sends them");
            }
        });
        right.give_up();
        return shared_writer.take(Arc::clone(session));
    }
    let why = format!("the server could start no thread for the client's replies: {error}");
    log.tell(LineKind::Ours, |ClientFacts { client, peer, export }| {
        move |left_out: Option<u64>| {
            tracing::error!(client, %peer, export, %error, left_out,
                "cannot start a thread for the replies of a slow client: the connection is closed");
        }
    });
    right.with_sink(|sink| {
        sink.give_up(|| why);
    });
    // A sink that gave up drops everything and is never full, so the rounds end with the replies.
    while let RunOutcome::HandOver(again) = right.run(Patience::None, u32::MAX) {
        right = again;
    }
}

/// Runs the thread: blocks in sends and, without the right, in the parker.
fn run(session: &Session, parker: &Parker) {
    loop {
        // Acquire pairs with the Release of the hand-over.
        if session.writer.handed.swap(false, Ordering::Acquire) {
            // SAFETY: the holder gave the right up before it set the flag, and the swap took the
            // flag from every other thread.
            let mut right = unsafe { session.path.take_over() };
            session.connection.guard(|| {
                while let RunOutcome::HandOver(again) = right.run(Patience::Unlimited, u32::MAX) {
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

/// Rounds of sends for one client before the next client has its turn.
const ROUNDS: u32 = 16;

/// The mailbox of the shared writer thread. Dropping the server's last handle ends the thread, once
/// it has nothing to send.
#[derive(Debug)]
pub(crate) struct SharedWriter(Arc<Mailbox>);

struct Mailbox {
    /// L: is the lock, held for a moment; guards the sessions whose flush right was given up for
    /// this thread.
    fresh: Mutex<Vec<Arc<Session>>>,
    /// A: nothing more is handed over. Relaxed: the write to the eventfd follows it.
    over: AtomicBool,
    /// Eventfd that wakes the thread.
    wake: OwnedFd,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl Mailbox {
    fn ring(&self) {
        // Fails only if the counter is full, and then the thread is being woken anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl SharedWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread or eventfd to give.
    pub(crate) fn start() -> io::Result<SharedWriter> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (fresh, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let mailbox = Arc::new(Mailbox { fresh, over, wake });
        let theirs = Arc::clone(&mailbox);
        let builder = thread::Builder::new().name("nbd-write".to_owned()).stack_size(STACK);
        builder.spawn(move || run_shared(&theirs))?;
        Ok(SharedWriter(mailbox))
    }

    /// Sends the replies of this session until all have left. The caller gave up its flush right
    /// for this call. Never blocks.
    pub(super) fn take(&self, session: Arc<Session>) {
        self.0.fresh.lock().push(session);
        self.0.ring();
    }
}

impl Drop for SharedWriter {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.ring();
    }
}

fn run_shared(mailbox: &Mailbox) {
    let mut sessions: Vec<Arc<Session>> = Vec::new();
    loop {
        sessions.append(&mut mailbox.fresh.lock());
        if sessions.is_empty() && mailbox.over.load(Ordering::Relaxed) {
            return;
        }
        let left = sessions.iter().map(|session| time_left(session)).min();
        let ready = {
            let mut all = vec![PollFd::new(&mailbox.wake, PollFlags::IN)];
            let sockets = sessions.iter().map(|session| &session.connection.socket);
            all.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)));
            match poll(&mut all, left.map(timespec).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // A caller could do nothing about the error. The pause keeps this from becoming a
                // busy loop.
                Err(error) => {
                    tracing::error!(%error, "the writer thread that clients share cannot poll their sockets");
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            }
            if !all[0].revents().is_empty() {
                // Fails only if it was clear.
                let _ = rustix::io::read(&mailbox.wake, &mut [0; 8]);
            }
            all[1..].iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>()
        };
        let mut ready = ready.into_iter();
        sessions.retain(|session| {
            let ready = ready.next().unwrap_or(false);
            if !ready && !time_left(session).is_zero() {
                return true;
            }
            // One client's panic doesn't affect the others.
            session.connection.guard(|| send(session, !ready)).unwrap_or(false)
        });
    }
}

/// Returns the time that the client has left for its oldest reply.
fn time_left(session: &Session) -> Duration {
    // SAFETY: the session's right was given up for this thread, which alone has the session in its
    // list; the mailbox's lock orders the two.
    let mut right = unsafe { session.path.take_over() };
    let left = right.with_sink(|sink| sink.time_left());
    right.give_up();
    left
}

/// Sends as much as the socket takes, and cuts a late client. Returns whether replies are left.
fn send(session: &Session, late: bool) -> bool {
    // SAFETY: as in `time_left`.
    let mut right = unsafe { session.path.take_over() };
    if late {
        right.with_sink(|sink| sink.too_late());
    }
    match right.run(Patience::None, ROUNDS) {
        RunOutcome::Released => false,
        RunOutcome::HandOver(right) => {
            right.give_up();
            true
        }
    }
}
