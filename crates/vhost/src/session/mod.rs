//! A session: one frontend, from its connection to its end.
//!
//! The session's thread reads the frontend's messages, one after the other, by the crate `vhost`.
//! Each ring has a thread of its own, from the first message about it on.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use corewise_export::Identity;
use corewise_sync::panics::caught;
use corewise_sync::{Completion, Mutex, time};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use vhost::vhost_user::message::{BackendReq, FrontendReq};
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::faults::MemoryLoss;
use crate::inflight::InflightRegion;
use crate::memory::GuestRam;
use crate::ring::handle::{IdleSignal, RingHandle, RingStart};
use crate::shared::DiskShared;
use arrival::Arrivals;

mod arrival;
mod handler;

/// Bytes of a message's header: request, flags, size.
const HEADER: usize = 12;
/// Version of the protocol, in the flags.
const VERSION: u32 = 1;
/// Time that a ring has for the end of its pass.
const MOMENT: Duration = Duration::from_secs(1);
/// The reason why a session ends whose frontend took memory away.
const LOST: &str = "memory of its guest is gone: the file was truncated, or its file system has no \
                    page left. Requests in flight were not answered. Restart the virtual machine";
/// Flag of a message whose sender waits for an answer.
const NEED_REPLY: u32 = 1 << 3;

/// The reason of a session's end.
pub(crate) enum SessionEnd {
    /// The frontend closed its end.
    Left,
    /// The server ended it.
    Server(&'static str),
    /// The frontend broke a rule, or was late.
    Fault(String),
}

impl SessionEnd {
    /// Returns the reason in words.
    pub(crate) fn words(&self) -> &str {
        match self {
            SessionEnd::Left => "the client closed the connection",
            SessionEnd::Server(cause) => cause,
            SessionEnd::Fault(why) => why,
        }
    }
}

/// One frontend.
pub(crate) struct Session {
    pub(crate) disk: Arc<DiskShared>,
    pub(crate) who: Identity,
    /// A second descriptor of the connection, to shut it down.
    socket: Arc<OwnedFd>,
    /// The reason for which the server ended the session, if it did.
    cause: OnceLock<&'static str>,
    /// The record of whether the frontend's memory is lost.
    loss: Arc<MemoryLoss>,
    /// Signalled once the session has ended: nothing of it is in flight.
    pub(crate) ended: Completion,
    /// L: is the lock, never held while a ring is waited for; guards what new rings begin with, and
    /// the rings.
    state: Mutex<SessionState>,
}

#[derive(Default)]
struct SessionState {
    /// True once the frontend has taken the disk, which ends the handshake. A frontend shares its
    /// memory only when the guest's driver starts, which may be at any time.
    owned: bool,
    ram: Arc<GuestRam>,
    features: u64,
    rings_enabled: bool,
    region: Option<InflightRegion>,
    rings: Vec<Option<Arc<RingHandle>>>,
    /// The channel on which the frontend takes messages of the server.
    channel: Option<OwnedFd>,
}

impl Session {
    /// Creates the session of a connection.
    pub(crate) fn new(
        disk: &Arc<DiskShared>,
        socket: &UnixStream,
    ) -> std::io::Result<Arc<Session>> {
        let socket = Arc::new(OwnedFd::from(socket.try_clone()?));
        let who = Identity::of(&socket);
        let loss = Arc::default();
        let state = SessionState { ram: Arc::new(GuestRam::new(&loss)), ..SessionState::default() };
        Ok(Arc::new(Session {
            disk: Arc::clone(disk),
            who,
            socket,
            cause: OnceLock::new(),
            loss,
            ended: Completion::new(),
            state: Mutex::new(state),
        }))
    }

    /// Returns the frontend's record of requests in flight, if it keeps one.
    pub(crate) fn region(&self) -> Option<InflightRegion> {
        self.state.lock().region.clone()
    }

    /// Serves the frontend until it leaves or breaks the protocol, then waits until the device has
    /// ended its requests.
    pub(crate) fn run(self: &Arc<Self>, socket: UnixStream) -> SessionEnd {
        let served = caught(|| self.serve(socket));
        let why = match served {
            Some(why) => why,
            None => Some("its thread panicked".to_owned()),
        };
        let end = match (self.cause.get(), why) {
            (Some(cause), _) => SessionEnd::Server(cause),
            _ if self.loss.has_happened() => SessionEnd::Fault(LOST.to_owned()),
            (None, Some(why)) => SessionEnd::Fault(why),
            (None, None) => SessionEnd::Left,
        };
        self.close();
        let rings = std::mem::take(&mut self.state.lock().rings);
        let rings: Vec<_> = rings.into_iter().flatten().collect();
        rings.iter().for_each(|ring| drop(ring.abandon()));
        rings.iter().for_each(|ring| ring.ended().wait());
        self.state.lock().channel = None;
        end
    }

    fn serve(self: &Arc<Self>, socket: UnixStream) -> Option<String> {
        let mut messages = BackendReqHandler::from_stream(socket, Arc::clone(self));
        let mut arrivals = Arrivals::new(&self.socket, arrival::TIMEOUT);
        loop {
            if let Err(why) = arrivals.wait() {
                return Some(why);
            }
            let answered = self.peek().is_some_and(|flags| flags & NEED_REPLY != 0);
            match messages.handle_request() {
                Ok(()) | Err(Error::SocketRetry(_)) => {}
                Err(Error::Disconnected | Error::SocketBroken(_)) => return None,
                // The frontend has been told, and may go on.
                Err(Error::ReqHandlerError(error)) if answered => {
                    self.disk.fault(
                        "a message of the frontend is refused",
                        None,
                        &error.to_string(),
                    );
                }
                Err(error) => return Some(error.to_string()),
            }
            if self.state.lock().owned {
                arrivals.handshake_done();
            }
        }
    }

    /// Waits for a message, and returns the flags of its header.
    ///
    /// The crate `vhost` takes the channel to the frontend for itself, and has no message that says
    /// that the configuration has changed. So a second descriptor of the channel is taken while the
    /// message is still in the socket.
    fn peek(&self) -> Option<u32> {
        let mut header = [0; HEADER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut header)];
        let read = recvmsg(&*self.socket, into, &mut control, flags).ok()?;
        let mut files: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if read.bytes < HEADER {
            return None;
        }
        let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        if word(0) == u32::from(FrontendReq::SET_BACKEND_REQ_FD) && files.len() == 1 {
            self.state.lock().channel = files.pop();
        }
        tracing::trace!(disk = self.disk.name(), request = word(0), "a message has come");
        Some(word(4))
    }

    /// Tells the frontend that the configuration has changed. Returns false if it doesn't take such
    /// messages.
    pub(crate) fn config_changed(&self) -> bool {
        let state = self.state.lock();
        let Some(channel) = &state.channel else { return false };
        let words = [u32::from(BackendReq::CONFIG_CHANGE_MSG), VERSION, 0];
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(channel, &message, flags).is_ok_and(|sent| sent == message.len())
    }

    /// Has the rings leave guest memory alone, and then ends the connection. Waits for the rings
    /// until `until`, and for a moment at least.
    pub(crate) fn end(&self, until: Instant) {
        let done: Vec<_> = self.rings().iter().map(|ring| ring.abandon()).collect();
        let moment = time::now() + MOMENT;
        // A ring is late only if its thread waits for a page of the guest.
        let _ = done.iter().all(|done| done.wait_timeout(left(until.max(moment))));
        self.shut_down("the server was shut down");
    }

    /// Ends the connection for this reason: the session's thread notices.
    pub(crate) fn shut_down(&self, cause: &'static str) {
        let _ = self.cause.set(cause);
        self.close();
    }

    fn close(&self) {
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }

    /// Returns true if the frontend has closed its end.
    pub(crate) fn has_left(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Returns the ring of this index; the first call makes it.
    fn ring(&self, index: u32) -> Result<Arc<RingHandle>, String> {
        let most = usize::from(self.disk.options.queues);
        let index = index as usize;
        if index >= most {
            return Err(format!("ring {index} of a disk with {most} at most"));
        }
        let mut state = self.state.lock();
        let start = RingStart {
            who: self.who.clone(),
            connection: Arc::clone(&self.socket),
            ram: Arc::clone(&state.ram),
            loss: Arc::clone(&self.loss),
            features: state.features,
            region: state.region.clone(),
            enabled: state.rings_enabled,
        };
        if state.rings.len() <= index {
            state.rings.resize_with(index + 1, || None);
        }
        if let Some(ring) = &state.rings[index] {
            return Ok(Arc::clone(ring));
        }
        let ring = RingHandle::start(&self.disk, index, start).map_err(|e| e.to_string())?;
        let ring = Arc::new(ring);
        state.rings[index] = Some(Arc::clone(&ring));
        Ok(ring)
    }

    /// Returns the rings that exist.
    pub(crate) fn rings(&self) -> Vec<Arc<RingHandle>> {
        self.state.lock().rings.iter().flatten().cloned().collect()
    }

    /// Waits until nothing is in flight, at most until `until`. Returns false if something is.
    pub(crate) fn drain(&self, until: Instant) -> bool {
        let idle: Vec<_> = self
            .rings()
            .iter()
            .map(|ring| {
                let (signal, idle) = IdleSignal::new();
                ring.post(move |ring| ring.when_idle(signal));
                idle
            })
            .collect();
        idle.iter().all(|idle| idle.wait_timeout(left(until)))
    }
}

/// Returns the time until `until`.
pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(time::now())
}
