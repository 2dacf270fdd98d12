//! A disk: one block device on one Unix socket, for one frontend at a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use corewise_blockmq::{BlockDevice, IoError, Op, Request};
use corewise_export::{Identity, SocketAccess, Traffic};
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::{Completion, Mutex, context, time};

use crate::inflight::InflightRegion;
use crate::server::{ListenSocket, ServerShared};
use crate::session::{Session, left};
use crate::shared::DiskShared;

/// A block device on a Unix socket, as a virtio disk. One frontend at a time is served: another one
/// is turned away until the first has left.
///
/// Dropping it is [`Disk::stop`] without patience: what is in flight gets no answer.
pub struct Disk {
    pub(crate) inner: Arc<DiskInner>,
}

/// The state of a disk that its session's thread and the thread that accepts share.
pub(crate) struct DiskInner {
    pub(crate) shared: Arc<DiskShared>,
    pub(crate) socket: ListenSocket,
    pub(crate) server: Arc<ServerShared>,
    /// Number of the disk, which its listener's events have.
    pub(crate) id: u64,
    /// L: is the lock, never held while anything is waited for; guards the session.
    pub(crate) state: Mutex<DiskState>,
    /// A: frontends that were served. Relaxed: a number.
    pub(crate) sessions: AtomicU64,
}

/// The session of a disk, and its end.
#[derive(Default)]
pub(crate) struct DiskState {
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) stopped: bool,
}

/// The result of the end of a disk, for its requests and changes.
#[derive(Debug)]
#[non_exhaustive]
pub struct StopReport {
    /// True if every request that was taken has been answered.
    pub drained: bool,
    /// The end of the flush. `None` if there was nothing to flush; [`StopReport::flush_timed_out`]
    /// if the device didn't end it in time.
    pub flush: Option<Result<(), IoError>>,
    /// True if the flush took too long.
    pub flush_timed_out: bool,
}

impl StopReport {
    /// Returns true if all requests were answered, and all changes are durable.
    pub fn is_clean(&self) -> bool {
        self.drained && !self.flush_timed_out && !matches!(self.flush, Some(Err(_)))
    }
}

/// The state of a disk at one moment. The counters count since the disk was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiskStatus {
    /// True if a frontend is connected.
    pub connected: bool,
    /// The frontend, if one is connected: its user and its process.
    pub who: Option<Identity>,
    /// Frontends that have been served, with the present one.
    pub sessions: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Bytes of reads and writes in flight.
    pub memory: u64,
    /// Counters of its requests.
    pub traffic: Traffic,
    /// Requests that were answered with an error, also those that the device doesn't know.
    pub errors: u64,
    /// Interrupts that were sent to the guest.
    pub interrupts: u64,
}

impl Disk {
    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.inner.shared.device()
    }

    /// Returns the path of the socket, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.inner.socket.path()
    }

    /// Changes who may connect to the socket. A frontend that is connected stays. The file of a
    /// socket that the caller bound stays as it is.
    ///
    /// # Errors
    /// If the file isn't in its place any more, or the system refuses.
    pub fn set_access(&self, access: &SocketAccess) -> io::Result<()> {
        self.inner.socket.set_access(access)
    }

    /// Tells the frontend that the device's size has changed: it asks for the size, and its guest
    /// sees it. Returns false if no frontend is connected that takes such messages. One that
    /// connects later has the size anyway. Doesn't block.
    pub fn resized(&self) -> bool {
        self.session().is_some_and(|session| session.config_changed())
    }

    /// Ends the connection of the frontend. Its requests in flight get no answer, and a frontend
    /// that keeps a record of them sends them again. Returns false if none is connected. Doesn't
    /// block.
    pub fn disconnect(&self) -> bool {
        self.session().is_some_and(|session| {
            session.shut_down("an operator disconnected the client");
            true
        })
    }

    /// Returns the disk's state. Any context but an atomic section.
    pub fn status(&self) -> DiskStatus {
        let session = self.session();
        let shared = &self.inner.shared;
        let sum = |of: &dyn Fn(&crate::shared::RingCounters) -> u64| {
            shared.counters.iter().map(|counters| of(counters)).sum::<u64>()
        };
        let mut traffic = Traffic::default();
        shared.counters.iter().for_each(|counters| traffic.add(&counters.counts.read()));
        DiskStatus {
            connected: session.is_some(),
            who: session.map(|session| session.who.clone()),
            sessions: self.inner.sessions.load(Ordering::Relaxed),
            in_flight: sum(&|c| c.in_flight.load(Ordering::Relaxed)),
            memory: shared.memory.used(),
            errors: sum(&|c| c.faults.load(Ordering::Relaxed))
                + Op::ALL.iter().map(|op| traffic.of(*op).errors).sum::<u64>(),
            traffic,
            interrupts: sum(&|c| c.interrupts.load(Ordering::Relaxed)),
        }
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.inner.state.lock().session.clone()
    }

    /// Takes no more requests, waits until those in flight are answered, ends the connection and
    /// flushes the device, all `within` this time. The socket's file is removed first.
    ///
    /// May block.
    pub fn stop(self, within: Duration) -> StopReport {
        self.inner.stop(within)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let stopped = self.inner.state.lock().stopped;
        if !stopped {
            self.inner.end(Duration::ZERO);
        }
    }
}

impl DiskInner {
    /// Ends the session. Returns true if everything in flight was answered, and the frontend's
    /// record.
    fn end(&self, within: Duration) -> (bool, Option<InflightRegion>) {
        let until = time::now() + within;
        self.server.forget(self);
        let session = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.session.clone()
        };
        self.shared.close();
        let Some(session) = session else { return (true, None) };
        let region = session.region();
        let drained = session.drain(until);
        session.end(until);
        // The answers are in the guest's memory; what is left is the end of some threads.
        let _ = session.ended.wait_timeout(left(until));
        (drained, region)
    }

    fn stop(&self, within: Duration) -> StopReport {
        context::might_block("Disk::stop");
        let until = time::now() + within;
        let (drained, region) = self.end(within);
        let mut report = StopReport { drained, flush: None, flush_timed_out: false };
        if self.shared.export.was_changed() && self.shared.geometry().can_flush {
            let end = Arc::new((Completion::new(), Mutex::new(None)));
            let theirs = Arc::clone(&end);
            self.shared.device().submit(Request::flush().on_complete(move |done| {
                *theirs.1.lock() = Some(done.result);
                theirs.0.complete();
            }));
            match end.0.wait_timeout(left(until)) {
                true => report.flush = end.1.lock().take(),
                false => report.flush_timed_out = true,
            }
        }
        if let Some(region) = region.filter(|_| report.is_clean()) {
            region.mark_clean();
        }
        self.shared.log_left_out();
        report
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("device", &self.device().name())
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}
