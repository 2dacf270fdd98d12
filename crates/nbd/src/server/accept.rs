//! The accept loop: one thread for each listener, woken by its socket or by an eventfd, never by a
//! clock.
//!
//! The thread of a client is started before the client is accepted, so a client that no thread
//! could serve isn't accepted.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Completion, Mutex, Parker, Throttle, sys, thread};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::Inner;
use super::listen::Listener;
use crate::connection::Connection;
use crate::deadline::timespec;
use crate::error::Error;
use crate::policy;
use crate::session::STACK;

/// Shortages that are logged at once, and the time after which one more is.
const SHORTAGES: u32 = 4;
const SHORTAGES_EVERY: Duration = Duration::from_secs(60);

/// A listener's thread and the means to end it.
pub(super) struct Acceptor {
    /// A: the thread has to end. Relaxed: the write to the eventfd follows it, and a thread that
    /// waits for a place checks again and again.
    ends: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: thread::JoinHandle<()>,
}

impl Acceptor {
    pub(super) fn start(server: &Arc<Inner>, listener: Listener) -> Result<Acceptor, Error> {
        let resource = |what| move |source| Error::Resource { what, source };
        // Non-blocking, since another process that shares the listener may take the connection that
        // woke us.
        rustix::io::ioctl_fionbio(listener.as_fd(), true)
            .map_err(|e| resource("a non-blocking listener")(e.into()))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(
            eventfd(0, flags).map_err(|e| resource("an eventfd for a listener")(e.into()))?,
        );
        let (theirs, server) = (Arc::clone(&wake), Arc::clone(server));
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let thread = thread::Builder::new()
            .name("nbd-accept".to_owned())
            .spawn(move || run(&server, &listener, &theirs, &end))
            .map_err(resource("a thread for a listener"))?;
        Ok(Acceptor { ends, wake, thread })
    }

    /// Ends the thread and waits for it. Then its socket is closed, and its socket file removed.
    pub(super) fn stop(self) {
        self.ends.store(true, Ordering::Relaxed);
        // Fails only if the counter is full, and then the thread is being woken anyway.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        if self.thread.join().is_err() {
            tracing::error!("the thread of a listener panicked");
        }
    }
}

fn run(server: &Arc<Inner>, listener: &Listener, wake: &OwnedFd, ends: &AtomicBool) {
    let mut failures = 0;
    let mut spare = None;
    let shortages = Throttle::with_rate(SHORTAGES, SHORTAGES_EVERY);
    loop {
        // During a shortage a ready listener would make the poll return at once, so the thread
        // waits for the wake-up alone.
        let timeout = (failures > 0).then(|| timespec(policy::accept_backoff(failures)));
        let mut both = [
            PollFd::new(wake, PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        let fds = if failures > 0 { &mut both[..1] } else { &mut both[..] };
        match poll(fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, listener = %listener.endpoint(), "cannot wait for clients");
                break;
            }
        }
        if !both[0].revents().is_empty() {
            break;
        }
        failures = match accept(server, listener, ends, &mut spare) {
            Ok(()) => 0,
            Err(Shortage(what)) => {
                if failures == 0 {
                    let listener = listener.endpoint().clone();
                    shortages.tell(|| {
                        move |left_out: Option<u64>| {
                            tracing::warn!(%listener, left_out,
                            "clients wait, since the server lacks resources for another one: \
                             {what}");
                        }
                    });
                }
                failures + 1
            }
        };
    }
    shortages.take_left_out().tell(|times| {
        tracing::warn!(listener = %listener.endpoint(), times,
            "clients waited, since the server lacked resources for another one");
    });
}

/// A resource that the process or the machine lacks, in words.
struct Shortage(String);

/// Accepts waiting clients, though no more than [`policy::ACCEPTS`] at a time. Clients that come
/// faster than they are served mustn't keep the thread from seeing that it has to end.
///
/// A client is accepted once its thread exists. Until then it waits in the system's queue, whose
/// length is bounded. `spare` is the thread for the next client.
fn accept(
    server: &Arc<Inner>,
    listener: &Listener,
    ends: &AtomicBool,
    spare: &mut Option<ClientThread>,
) -> Result<(), Shortage> {
    let stop = || ends.load(Ordering::Relaxed);
    for _ in 0..policy::ACCEPTS {
        if stop() {
            break;
        }
        let thread = match spare.take() {
            Some(thread) => thread,
            None => server.client_thread().map_err(|error| Shortage(error.to_string()))?,
        };
        match listener.accept() {
            Ok(socket) => match server.serve(socket, thread, &stop) {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "a client was turned away"),
            },
            Err(error) => {
                *spare = Some(thread);
                match error {
                    Errno::AGAIN => return Ok(()),
                    // The client left before it was accepted, or a signal came.
                    Errno::INTR | Errno::CONNABORTED => {}
                    Errno::MFILE => {
                        let more = "raise LimitNOFILE, or `ulimit -Hn`";
                        return Err(Shortage(format!("cannot accept a client: {error}: {more}")));
                    }
                    error => return Err(Shortage(format!("cannot accept a client: {error}"))),
                }
            }
        }
    }
    Ok(())
}

/// A thread that waits for its client. Dropping this ends it.
pub(super) struct ClientThread {
    handover: Arc<Handover>,
}

/// The place where a client is handed over to its thread.
struct Handover {
    /// Completion: the client is there, or none will come.
    done: Completion,
    /// L: is the lock, held for a moment; guards the client until its thread takes it.
    client: Mutex<Option<(Arc<Connection>, Parker)>>,
}

impl fmt::Debug for ClientThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientThread").finish_non_exhaustive()
    }
}

impl ClientThread {
    /// Starts a thread that waits for its client.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(server: &Arc<Inner>) -> io::Result<ClientThread> {
        let handover = Arc::new(Handover { done: Completion::new(), client: Mutex::new(None) });
        let (theirs, server) = (Arc::clone(&handover), Arc::clone(server));
        let run = move || {
            theirs.done.wait();
            let client = theirs.client.lock().take();
            if let Some((connection, parker)) = client {
                drop(theirs);
                server.run(connection, &parker);
            }
        };
        sys::room_for_stack(STACK)?;
        thread::Builder::new().name("nbd-client".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(ClientThread { handover })
    }

    /// Serves this client.
    pub(super) fn serve(self, connection: Arc<Connection>, parker: Parker) {
        *self.handover.client.lock() = Some((connection, parker));
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        self.handover.done.complete();
    }
}
