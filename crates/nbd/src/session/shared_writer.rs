//! The thread that sends replies for clients whose own writer thread could not be started.
//!
//! A server starts it with its first client, so a shortage of threads cuts no attached client. It
//! never waits for one client: it polls the sockets of all clients that were handed to it, and
//! sends what they take. Once all replies of a client have left, the next hand-over of that client
//! tries to start its own writer again.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, thread};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::Session;
use super::writer::STACK;
use crate::deadline::timespec;
use crate::reply::{Patience, Ran};

/// Rounds of sends for one client before the next client has its turn.
const ROUNDS: u32 = 16;

/// The thread's mailbox. Dropping the last handle of the server ends the thread, once it has
/// nothing to send.
#[derive(Debug)]
pub(crate) struct SharedWriter(Arc<Mailbox>);

struct Mailbox {
    /// L: is the lock, held for a moment; guards the sessions whose flush right was given up for
    /// this thread.
    fresh: Mutex<Vec<Arc<Session>>>,
    /// A: nobody hands anything over any more. Relaxed: the eventfd is rung behind it.
    over: AtomicBool,
    /// An eventfd.
    wake: OwnedFd,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl Mailbox {
    fn ring(&self) {
        // Fails only where the counter is full, and then the thread is being woken anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl SharedWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread or eventfd to give.
    pub(crate) fn start() -> io::Result<SharedWriter> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (fresh, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let mailbox = Arc::new(Mailbox { fresh, over, wake });
        let theirs = Arc::clone(&mailbox);
        let builder = thread::Builder::new().name("nbd-write".to_owned()).stack_size(STACK);
        builder.spawn(move || run(&theirs))?;
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

fn run(mailbox: &Mailbox) {
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
                // Nothing that a caller could do; it must not become a busy loop.
                Err(error) => {
                    tracing::error!(%error, "the writer thread that clients share cannot poll their sockets");
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            }
            if !all[0].revents().is_empty() {
                // Fails only where nobody rang.
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
            // One client's panic isn't that of the others.
            session.connection.guard(|| send(session, !ready)).unwrap_or(false)
        });
    }
}

/// How long the client may take for its oldest reply.
fn time_left(session: &Session) -> Duration {
    // SAFETY: its right was given up for this thread, which alone has the session in its list; the
    // mailbox's lock orders the two.
    let mut right = unsafe { session.path.take_over() };
    let left = right.with_sink(|sink| sink.time_left());
    right.give_up();
    left
}

/// Sends what the socket takes, and cuts a client that is late. Returns whether replies are left.
fn send(session: &Session, late: bool) -> bool {
    // SAFETY: as in `time_left`.
    let mut right = unsafe { session.path.take_over() };
    if late {
        right.with_sink(|sink| sink.too_late());
    }
    match right.run(Patience::None, ROUNDS) {
        Ran::Released => false,
        Ran::HandOver(right) => {
            right.give_up();
            true
        }
    }
}
