//! One accepted connection: the socket, and the operations of other threads (drain, eviction, the
//! reply path) on it.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corewise_blockmq::Op;
use corewise_export::Counts;
use corewise_sync::atomic::{AtomicU8, AtomicU64, Ordering};
use corewise_sync::hint::IN_MODEL;
use corewise_sync::time::PausableClock;
use corewise_sync::{Mutex, Parker, panics, thread, time};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

use crate::client_log::ClientLog;
use crate::deadline::{Deadline, timespec};
use crate::load::{Arrivals, PartialRequest, Untaken};
use crate::load::{Budget, Charge, Load, Snapshot};
use crate::memory::Pool;

/// Receive flags under a model checker, which runs all threads on one: no call waits, other threads
/// run instead.
const WAITS_NOT_IN_MODELS: RecvFlags =
    if IN_MODEL { RecvFlags::DONTWAIT } else { RecvFlags::empty() };

/// State of a client that has a place, as far as is known.
const NOT_REFUSED: u8 = 0;
/// State of a client that has no place.
const REFUSED: u8 = 1;
/// State of a client that has no place and has got the refusal.
const TOLD: u8 = 2;

/// A connected stream socket, and its load. Shared by the reader thread, completions, the writer
/// thread and the server.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Number that is unique in its server, in the order of arrival.
    pub(crate) id: u64,
    /// Socket in blocking mode. A thread that must not block says so in each call.
    pub(crate) socket: OwnedFd,
    pub(crate) load: Load,
    pub(crate) pool: Arc<Pool>,
    /// Log of the client before it has an export.
    pub(crate) log: ClientLog,
    pub(crate) counts: Counts,
    pub(crate) arrivals: Arrivals,
    pub(crate) untaken: Untaken,
    pub(crate) partial: PartialRequest,
    made: Instant,
    /// L: is the lock, a leaf; guards the idle time. `None`: there is no idle limit.
    idle: Option<Mutex<IdleTime>>,
    /// A: the time at which its handshake first had to wait for the client, in nanoseconds since
    /// `made`, or 0. Relaxed: the registry checks again.
    waits: AtomicU64,
    /// A: [`REFUSED`] if there is no place for the client, [`TOLD`] once the refusal is sent.
    /// Relaxed: as `waits`.
    refused: AtomicU8,
    /// L: is the lock, a leaf; guards the reason why the server ends the connection, if it does.
    cause: Mutex<Option<String>>,
}

impl Connection {
    /// Creates a connection. `idle_limit` is the shortest limit of its idle time.
    pub(crate) fn new(
        log: ClientLog,
        socket: OwnedFd,
        budget: Budget,
        share: u64,
        pool: Arc<Pool>,
        idle_limit: Option<Duration>,
    ) -> (Connection, Parker) {
        let (load, parker) = Load::new(budget, share);
        let connection = Connection {
            id: log.client,
            socket,
            load,
            pool,
            log,
            counts: Counts::default(),
            arrivals: Arrivals::new(budget.requests),
            untaken: Untaken::default(),
            partial: PartialRequest::default(),
            made: time::now(),
            idle: idle_limit.map(|limit| Mutex::new(IdleTime::new(limit))),
            waits: AtomicU64::new(0),
            refused: AtomicU8::new(NOT_REFUSED),
            cause: Mutex::new(None),
        };
        (connection, parker)
    }

    /// Returns the age of the connection.
    pub(crate) fn age(&self) -> Duration {
        time::now().saturating_duration_since(self.made)
    }

    /// Returns its age in nanoseconds: the clock that times its requests.
    pub(crate) fn clock(&self) -> u64 {
        self.age().as_nanos() as u64
    }

    /// Returns the time since a moment of its clock.
    pub(crate) fn since(&self, moment: u64) -> Duration {
        Duration::from_nanos(self.clock().saturating_sub(moment))
    }

    /// Appends received bytes to `buffer`, at least one; returns 0 at the end of the stream.
    /// Blocks.
    pub(crate) fn receive(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        self.receive_with(buffer, usize::MAX, RecvFlags::empty())
    }

    /// Receives as [`Connection::receive`] until `len` bytes are there, the stream ends, or the
    /// time is over. The buffer has room.
    pub(crate) fn receive_all(&self, buffer: &mut BytesMut, len: usize) -> io::Result<usize> {
        self.receive_with(buffer, len, RecvFlags::WAITALL)
    }

    /// Receives as [`Connection::receive`], up to `len` bytes, without waiting: `WouldBlock`.
    pub(crate) fn receive_now(&self, buffer: &mut BytesMut, len: usize) -> io::Result<usize> {
        self.receive_with(buffer, len, RecvFlags::DONTWAIT)
    }

    /// Sets the time that a [`Connection::receive`] waits before it returns `WouldBlock`. `None`
    /// means no limit.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) {
        // Fails only if the kernel can't count that far. A limit that far away is never reached.
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
                    self.is_active();
                    return Ok(got);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if IN_MODEL && !flags.contains(RecvFlags::DONTWAIT) => {
                    thread::yield_now();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives as [`Connection::receive`] until the deadline: `TimedOut` after it.
    pub(crate) fn receive_until(
        &self,
        buffer: &mut BytesMut,
        deadline: &mut Deadline,
    ) -> io::Result<usize> {
        self.look_and_wait(PollFlags::IN, deadline)?;
        self.receive(buffer)
    }

    /// Sends everything, until the deadline: `TimedOut` after it.
    pub(crate) fn send_until(&self, mut bytes: &[u8], deadline: &mut Deadline) -> io::Result<()> {
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
    pub(crate) fn wait_for_space(&self, deadline: &mut Deadline) -> io::Result<()> {
        self.wait_until(PollFlags::OUT, deadline)
    }

    /// Waits for a handshake, and records if it really has to wait.
    fn look_and_wait(&self, what: PollFlags, deadline: &mut Deadline) -> io::Result<()> {
        if self.poll_until(what, deadline, Duration::ZERO)? {
            return Ok(());
        }
        self.note_wait();
        self.wait_until(what, deadline)
    }

    /// Records that the handshake waits for its client.
    pub(crate) fn note_wait(&self) {
        if self.waits.load(Ordering::Relaxed) == 0 {
            self.waits.store(self.clock().max(1), Ordering::Relaxed);
        }
        // The reply before this wait has been sent.
        if self.refused.load(Ordering::Relaxed) == REFUSED {
            self.refused.store(TOLD, Ordering::Relaxed);
        }
    }

    /// Records that there is no place for this client. The caller is about to refuse it.
    pub(crate) fn note_refusal(&self) {
        self.refused.store(REFUSED, Ordering::Relaxed);
    }

    /// Returns true if there was no place for this client.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) != 0
    }

    /// Returns true if the client knows that there is no place for it.
    pub(crate) fn was_told(&self) -> bool {
        self.refused.load(Ordering::Relaxed) == TOLD
    }

    /// Returns true if the handshake first had to wait for its client at least `patience` ago. If
    /// it never had to, its thread may not have begun.
    pub(crate) fn is_slow(&self, patience: Duration) -> bool {
        let waits = self.waits.load(Ordering::Relaxed);
        waits != 0 && self.since(waits) >= patience
    }

    fn wait_until(&self, what: PollFlags, deadline: &mut Deadline) -> io::Result<()> {
        while !self.poll_until(what, deadline, Duration::MAX)? {}
        Ok(())
    }

    /// Waits for `patience` at most, and returns whether the event has come. After the deadline it
    /// polls without waiting, and returns `TimedOut` only if nothing has come by then.
    fn poll_until(
        &self,
        what: PollFlags,
        deadline: &mut Deadline,
        patience: Duration,
    ) -> io::Result<bool> {
        let left = deadline.wait();
        let patience = if IN_MODEL { Duration::ZERO } else { left.min(patience) };
        match poll(&mut [PollFd::new(&self.socket, what)], Some(&timespec(patience))) {
            Ok(0) if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
            Ok(0) if IN_MODEL => {
                thread::yield_now();
                Ok(false)
            }
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(ready) => Ok(ready > 0),
        }
    }

    /// Records that the client sent something, or was sent a reply.
    fn is_active(&self) {
        if let Some(idle) = &self.idle {
            idle.lock().restart();
        }
    }

    /// Returns the time without traffic and without owed replies, not counting pauses of this
    /// process. `None` means that something is owed, or that there is no limit. While the reader
    /// waits for a request, it calls this once in each [slice](Connection::idle_slice).
    pub(crate) fn idle(&self) -> Option<Duration> {
        // Read before the time, which restarts before the load goes down.
        let load = self.load.snapshot();
        let idle = self.idle.as_ref()?.lock().so_far();
        let is_idle = load.requests == 0 && !load.draining && !load.cut;
        is_idle.then_some(idle)
    }

    /// Returns the longest wait between two calls of [`Connection::idle`], or `None` if none are
    /// needed.
    pub(crate) fn idle_slice(&self) -> Option<Duration> {
        self.idle.as_ref().map(|idle| idle.lock().slice())
    }

    /// Returns true if the client is there and has sent bytes that are still unread. Never blocks.
    pub(crate) fn has_sent(&self) -> bool {
        let mut socket = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::RDHUP)];
        poll(&mut socket, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready > 0)
            && socket[0].revents() == PollFlags::IN
    }

    /// Returns true if the client no longer waits for the end of a request. A client that has only
    /// closed its sending side may wait for data, though not for the end of zeroes. A drain may
    /// have closed that side itself. Never blocks.
    pub(crate) fn has_left(&self, op: Op) -> bool {
        let mut signs = PollFlags::HUP | PollFlags::ERR;
        if !op.has_bytes() && !self.load.snapshot().draining {
            signs |= PollFlags::RDHUP;
        }
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut socket, Some(&timespec(Duration::ZERO))).is_ok_and(|found| found > 0)
            && socket[0].revents().intersects(signs)
    }

    /// Refuses new requests from now on. The reader sees the end of the stream at once, or when the
    /// last reply has left. `why` is the reason, if no other is recorded.
    pub(crate) fn drain(&self, why: impl FnOnce() -> String) -> Snapshot {
        self.cause.lock().get_or_insert_with(why);
        let was = self.load.drain();
        if was.requests == 0 {
            self.stop_reading();
        }
        was
    }

    /// Gives the reader the bytes that have arrived, then the end of the stream. Never blocks.
    pub(crate) fn stop_reading(&self) {
        // Fails only if the peer is gone, and then the reader notices by itself.
        let _ = shutdown(&self.socket, Shutdown::Read);
    }

    /// Ends the connection now: wakes any thread that reads, sends, or waits for room. Returns the
    /// load at that moment. `why` is the reason, if it wasn't cut before.
    pub(crate) fn cut(&self, why: impl FnOnce() -> String) -> Snapshot {
        let mut cause = self.cause.lock();
        let was = self.load.snapshot();
        if !was.cut {
            *cause = Some(why());
        }
        // The reason is set first: a reader that sees the cut asks for it.
        let was = self.load.cut();
        drop(cause);
        self.close();
        was
    }

    /// Runs a function that sends replies. If the function panics, no thread sends any more, so
    /// this cuts the connection and returns `None`.
    pub(crate) fn guard<T>(&self, send: impl FnOnce() -> T) -> Option<T> {
        let sent = catch_unwind(AssertUnwindSafe(send));
        let panicked = |panic| {
            self.cut(|| "sending the client's replies panicked".to_owned());
            panics::discard(panic);
        };
        sent.map_err(panicked).ok()
    }

    /// Returns the reason why the server ended the connection, or lets it go; `None` if it does
    /// neither.
    pub(crate) fn cause(&self) -> Option<String> {
        self.cause.lock().clone()
    }

    /// Ends the stream in both directions; bytes that were sent still arrive.
    pub(crate) fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Takes memory of the pool for a request; blocks until there is some. Returns false if the
    /// connection is cut or drained first, and then takes nothing. Reader only.
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

    /// Settles replies that were sent or dropped for good. Any context; never blocks.
    pub(crate) fn settle(&self, requests: u32, charge: Charge) {
        if requests == 0 {
            return;
        }
        self.is_active();
        let over = self.load.settle(requests, charge);
        if charge.pool() > 0 {
            self.pool.give_back(charge.pool());
        }
        if over {
            self.stop_reading();
        }
    }
}

/// The time since a client last sent something, or was last sent a reply. Pauses of this process
/// don't count.
#[derive(Debug)]
struct IdleTime {
    clock: PausableClock,
    since: Instant,
}

impl IdleTime {
    /// Begins now. `limit` is the shortest time that it is compared with. If it is zero, any time
    /// is long enough, so a pause counts in full.
    fn new(limit: Duration) -> IdleTime {
        let limit = if limit.is_zero() { Duration::MAX } else { limit };
        let mut clock = PausableClock::for_timeout(limit);
        let since = clock.now();
        IdleTime { clock, since }
    }

    /// Restarts the time.
    fn restart(&mut self) {
        self.since = self.clock.now();
    }

    /// Returns the time so far. The thread that waits for the client calls this at least once in
    /// each [slice](IdleTime::slice).
    fn so_far(&mut self) -> Duration {
        self.clock.now().saturating_duration_since(self.since)
    }

    /// Returns the longest wait between two calls: the part of a pause that counts.
    fn slice(&self) -> Duration {
        self.clock.slice()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_client_is_idle_from_its_last_reply_on() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (log, pool) = (ClientLog::of_test(1), Arc::new(Pool::new(1 << 20)));
        let (budget, limit) = (Budget::default(), Some(Duration::ZERO));
        let (connection, _) = Connection::new(log, ours.into(), budget, 0, pool, limit);
        connection.load.admit(Charge::NONE);
        assert_eq!(connection.idle(), None, "it waits for its reply");
        let before = time::now();
        connection.settle(1, Charge::NONE);
        let idle = connection.idle().unwrap();
        assert!(idle <= time::now() - before, "{idle:?}");
    }

    #[test]
    fn a_panic_of_what_sends_replies_cuts_the_client_with_that_cause() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let pool = Arc::new(Pool::new(1 << 20));
        let (log, budget) = (ClientLog::of_test(1), Budget::default());
        let (connection, _) = Connection::new(log, ours.into(), budget, 0, pool, None);
        assert_eq!(connection.guard(|| 7), Some(7));
        assert!(!connection.load.snapshot().cut && connection.cause().is_none());
        assert_eq!(connection.guard(|| panic!("on purpose")), None::<()>);
        assert!(connection.load.snapshot().cut);
        assert_eq!(connection.cause().as_deref(), Some("sending the client's replies panicked"));
    }
}
