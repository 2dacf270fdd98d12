//! One accepted connection: the socket, and the handles by which others (drain, eviction, the reply
//! path) act on it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corewise_blockmq::Op;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::hint::IN_MODEL;
use corewise_sync::{Parker, thread, time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, getpeername, recv, send, shutdown, sockopt};

use crate::counts::Counts;
use crate::load::{Budget, Charge, Load, Snapshot};
use crate::memory::Pool;
use crate::told::Voice;

/// Where a checker runs all threads on one, no call waits: the others go on instead.
const WAITS_NOT_IN_MODELS: RecvFlags =
    if IN_MODEL { RecvFlags::DONTWAIT } else { RecvFlags::empty() };

/// A connected stream socket and what is owed on it. Shared by the reader thread, completions, the
/// writer thread and the server.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Unique in its server, in the order of arrival.
    pub(crate) id: u64,
    /// In blocking mode; a thread that must not block says so with each call.
    pub(crate) socket: OwnedFd,
    pub(crate) load: Load,
    pub(crate) pool: Arc<Pool>,
    /// By which it is told of before it has an export.
    pub(crate) voice: Voice,
    pub(crate) counts: Counts,
    made: Instant,
    /// A: when something last came, in nanoseconds since `made`; kept only where somebody asks. Relaxed: a time.
    active: Option<AtomicU64>,
    /// A: its handshake has had to wait for the client. Relaxed: the books ask again.
    waited: AtomicBool,
}

/// Where a client comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A user of this machine, by its number.
    User(u32),
    /// An address.
    Address(IpAddr),
    /// The system doesn't say.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::User(uid) => write!(f, "user {uid}"),
            Peer::Address(address) => address.fmt(f),
            Peer::Unknown => f.write_str("a client of unknown origin"),
        }
    }
}

impl Peer {
    pub(crate) fn of(socket: &OwnedFd) -> Peer {
        let name = getpeername(socket).ok().flatten();
        match name.and_then(|name| SocketAddr::try_from(name).ok()) {
            Some(address) => Peer::Address(address.ip().to_canonical()),
            None => match sockopt::socket_peercred(socket) {
                Ok(credentials) => Peer::User(credentials.uid.as_raw()),
                Err(_) => Peer::Unknown,
            },
        }
    }
}

impl Connection {
    pub(crate) fn new(
        voice: Voice,
        socket: OwnedFd,
        budget: Budget,
        share: u64,
        pool: Arc<Pool>,
        watched: bool,
    ) -> (Connection, Parker) {
        let (load, parker) = Load::new(budget, share);
        let active = watched.then(|| AtomicU64::new(0));
        let (made, waited) = (time::now(), AtomicBool::new(false));
        let (id, counts) = (voice.client, Counts::default());
        (Connection { id, socket, load, pool, counts, voice, made, active, waited }, parker)
    }

    /// How long it has been there.
    pub(crate) fn age(&self) -> Duration {
        time::now().saturating_duration_since(self.made)
    }

    /// The same in nanoseconds, by which its requests are timed.
    pub(crate) fn clock(&self) -> u64 {
        self.age().as_nanos() as u64
    }

    /// Receives what is there, at least one byte, behind what `buffer` holds; 0 at the end of the
    /// stream. Blocks.
    pub(crate) fn receive(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        self.receive_with(buffer, usize::MAX, RecvFlags::empty())
    }

    /// As [`Connection::receive`], until `len` bytes are there, the stream ends, or the time is over. The buffer has
    /// room.
    pub(crate) fn receive_all(&self, buffer: &mut BytesMut, len: usize) -> io::Result<usize> {
        self.receive_with(buffer, len, RecvFlags::WAITALL)
    }

    /// How long a [`Connection::receive`] waits before it answers `WouldBlock`; `None`: as long as it takes.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) {
        // Fails only where the time is beyond what the kernel counts, and then nobody waits for its end.
        let _ = sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, patience);
    }

    fn receive_with(
        &self,
        buffer: &mut BytesMut,
        limit: usize,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let spare = buffer.spare_capacity_mut();
        let room = spare.len().min(limit);
        loop {
            match recv(&self.socket, &mut spare[..room], flags | WAITS_NOT_IN_MODELS) {
                Ok(((filled, _), _)) => {
                    let got = filled.len();
                    let len = buffer.len() + got;
                    // SAFETY: the call initialized the first `got` bytes of the spare capacity.
                    unsafe { buffer.set_len(len) };
                    if let Some(active) = &self.active {
                        active.store(self.clock(), Ordering::Relaxed);
                    }
                    return Ok(got);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if IN_MODEL => thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`Connection::receive`], until the deadline: `TimedOut` after it.
    pub(crate) fn receive_until(
        &self,
        buffer: &mut BytesMut,
        deadline: Instant,
    ) -> io::Result<usize> {
        self.look_and_wait(PollFlags::IN, deadline)?;
        self.receive(buffer)
    }

    /// Sends everything, until the deadline: `TimedOut` after it.
    pub(crate) fn send_until(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.look_and_wait(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until there is room for more to send: `TimedOut` after the deadline. Blocks.
    pub(crate) fn wait_for_space(&self, deadline: Instant) -> io::Result<()> {
        self.wait_until(PollFlags::OUT, deadline)
    }

    /// For a handshake: notes where it really has to wait.
    fn look_and_wait(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        if self.poll_until(what, deadline, Duration::ZERO)? {
            return Ok(());
        }
        self.note_wait();
        self.wait_until(what, deadline)
    }

    /// The handshake waits for its client.
    pub(crate) fn note_wait(&self) {
        self.waited.store(true, Ordering::Relaxed);
    }

    /// Whether the handshake has had to wait for its client: if not, its thread may not have begun.
    pub(crate) fn has_waited(&self) -> bool {
        self.waited.load(Ordering::Relaxed)
    }

    fn wait_until(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        while !self.poll_until(what, deadline, Duration::MAX)? {}
        Ok(())
    }

    /// Waits for so long, at most: whether it has come.
    fn poll_until(
        &self,
        what: PollFlags,
        deadline: Instant,
        patience: Duration,
    ) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(time::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let patience = if IN_MODEL { Duration::ZERO } else { left.min(patience) };
        match poll(&mut [PollFd::new(&self.socket, what)], Some(&timespec(patience))) {
            Ok(0) if IN_MODEL => {
                thread::yield_now();
                Ok(false)
            }
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(ready) => Ok(ready > 0),
        }
    }

    /// How long nothing has come while nothing is owed; `None` where something is, or nobody asks.
    pub(crate) fn idle(&self) -> Option<Duration> {
        let active = Duration::from_nanos(self.active.as_ref()?.load(Ordering::Relaxed));
        let load = self.load.snapshot();
        let is_idle = load.requests == 0 && !load.draining && !load.cut;
        is_idle.then(|| self.age().saturating_sub(active))
    }

    /// Whether nobody waits for the end of a request any more. A client that has only closed its sending side may wait for
    /// data, though not for the end of zeroes. In a drain we may have closed that side. Never blocks.
    pub(crate) fn has_left(&self, op: Op) -> bool {
        let mut signs = PollFlags::HUP | PollFlags::ERR;
        if !op.has_bytes() && !self.load.snapshot().draining {
            signs |= PollFlags::RDHUP;
        }
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut socket, Some(&timespec(Duration::ZERO))).is_ok_and(|found| found > 0)
            && socket[0].revents().intersects(signs)
    }

    /// New requests are refused from now on; at once, or when the last reply has left, the reader
    /// sees the end of the stream.
    pub(crate) fn drain(&self) -> Snapshot {
        let was = self.load.drain();
        if was.requests == 0 {
            self.stop_reading();
        }
        was
    }

    /// The reader gets what has arrived already, then the end of the stream. Never blocks.
    pub(crate) fn stop_reading(&self) {
        // Fails only where the peer is gone, and then the reader sees that by itself.
        let _ = shutdown(&self.socket, Shutdown::Read);
    }

    /// Ends the connection now: wakes any thread that reads, sends, or waits for room. Replies owed at
    /// that moment.
    pub(crate) fn cut(&self) -> Snapshot {
        let was = self.load.cut();
        self.close();
        was
    }

    /// Ends the stream in both directions; what was sent still arrives.
    pub(crate) fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Takes memory of the pool for a request; blocks until it is there. False where the connection is cut or drained
    /// before that, and nothing was taken. Reader only.
    pub(crate) fn take_memory(&self, parker: &Parker, bytes: u64) -> bool {
        self.pool.queue(bytes, self.id, self.load.unparker());
        loop {
            if self.pool.has(self.id) {
                return true;
            }
            parker.park();
            let load = self.load.snapshot();
            if load.cut || load.draining {
                self.pool.give_up(bytes, self.id);
                return false;
            }
        }
    }

    /// Replies were sent or dropped for good. Any context; never blocks.
    pub(crate) fn settle(&self, requests: u32, charge: Charge) {
        if requests == 0 {
            return;
        }
        let over = self.load.settle(requests, charge);
        if charge.pool() > 0 {
            self.pool.give_back(charge.pool());
        }
        if over {
            self.stop_reading();
        }
    }
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
