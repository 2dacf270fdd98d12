//! The receiving end of a session: the client's deadlines, polling, and the buffer.
//!
//! [`SendTimer`] times a request that has begun, and silences. If a request arrives in part, its
//! time begins, and the socket gets a timeout. A client whose requests arrive whole costs neither.
//! The time of a request is a [`Deadline`], and [`Connection::idle`] times a silence. So no client
//! pays for a pause of this process.
//!
//! While the client is owed nothing, a [`Poller`] waits for its next request. It reads the clock
//! twice for a sleep, and once for a poll that finds the request at its first look.
//!
//! # Polling
//!
//! The reader sleeps in the socket. If a poll would have spared the last sleeps, since they were
//! short, the reader polls the socket first. The poll lasts for about as long as a wake-up costs.
//! Three bounds hold:
//!
//! * A poll takes at most [`MOST_POLL`], and one yield and one look more.
//! * A poll in vain ends the polling until [short sleeps](Proof) have proved themselves again. So a
//!   client that pauses is polled for once, and the reader of an idle session sleeps.
//! * At most half as many sessions of a server poll at once as there are CPUs ([`PollPermits`]).
//!
//! The reader yields its CPU between two looks. If a yield is slow, another thread wants the CPU,
//! and the poll ends.
//!
//! # The buffer
//!
//! [`Received`] holds received bytes that aren't parsed yet. Writes get slices of it, and a slice
//! keeps its whole buffer alive. So a client could make each of its requests keep one: a few bytes
//! of a write in a bufferful of other bytes. Here only one earlier buffer may be kept like that,
//! beside the present one. While it is, small payloads are copied. A large one may have a slice,
//! since it [is charged](charge) for all of the buffer.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::hint::IN_MODEL;
use corewise_sync::{Proof, sys, thread, time};

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::policy;
use crate::tls::Incoming;

/// The timeouts of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Timeout of a request that it began to send, beside [the part for its
    /// length](policy::time_for).
    pub(crate) request: Duration,
    /// Timeout of a reply that it was sent, with the same addition.
    pub(crate) reply: Duration,
    /// Longest silence while nothing is owed to the client.
    pub(crate) idle: Option<Duration>,
}

/// The reason why the transmission phase ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The client sent `DISC`.
    Disconnected,
    /// The client closed its side, or the server stopped reading because it drains.
    StreamEnded,
    /// The stream can't be followed any further, for this reason.
    Violation(String),
    /// The socket failed.
    Failed(String),
    /// The client took too long, for this purpose.
    TooSlow(String),
    /// The client asked for nothing for this long.
    Idle(String),
    /// The connection was given up by the server.
    Cut,
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionEnd::Disconnected => f.write_str("the client disconnected"),
            SessionEnd::StreamEnded => f.write_str("the client closed the connection"),
            SessionEnd::Violation(what) | SessionEnd::TooSlow(what) | SessionEnd::Idle(what) => {
                f.write_str(what)
            }
            SessionEnd::Failed(why) => write!(f, "the client's socket failed: {why}"),
            SessionEnd::Cut => f.write_str("the server closed the connection"),
        }
    }
}

/// The kind of the next bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expects {
    /// A new request.
    Request,
    /// The rest of a request's head.
    Head(Part),
    /// The rest of a request's payload.
    Payload(Part),
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Bytes that came.
    pub(super) came: usize,
    /// Bytes in all.
    pub(super) of: usize,
}

/// Returns the end for a client that did not finish its request in time.
fn too_slow(expects: Expects, waited: Duration, timeout: Duration) -> SessionEnd {
    let came = |Part { came, of }, what| format!("{came} of the {of} bytes of the {what} came");
    let what = match expects {
        Expects::Request => "a TLS record came in part".to_owned(),
        Expects::Head(part) => came(part, "head"),
        Expects::Payload(part) => came(part, "payload"),
    };
    let waited = policy::rounded(waited);
    // Debug: lengths of time.
    SessionEnd::TooSlow(format!(
        "the client did not finish a request: {what} in {waited:?} (request_timeout: {timeout:?})"
    ))
}

/// The timer of one client's sending.
pub(super) struct SendTimer {
    /// Source of the bytes, unless it is the plain socket.
    incoming: Option<Incoming>,
    deadlines: Deadlines,
    /// Timeout that the socket has.
    patience: Option<Duration>,
    /// Deadline for the rest of a request that came in part.
    rest: Option<Deadline>,
    /// Length of the next wait for a request; `None` means no limit.
    silence: Option<Duration>,
    /// True if a wait for a request has ended without one.
    waited: bool,
    /// Waiter for a request while the client is owed nothing.
    poller: Poller,
}

impl SendTimer {
    pub(super) fn new(
        connection: &Connection,
        deadlines: Deadlines,
        incoming: Option<Incoming>,
        poller: Poller,
    ) -> SendTimer {
        // The socket accepts no zero.
        let request = deadlines.request.max(Duration::from_millis(1));
        let deadlines = Deadlines { request, ..deadlines };
        let silence = connection.idle_slice();
        SendTimer {
            incoming,
            deadlines,
            patience: None,
            rest: None,
            silence,
            waited: false,
            poller,
        }
    }

    /// Restarts the time: a request has come whole, or its client had to wait.
    pub(super) fn whole(&mut self, connection: &Connection) {
        if self.rest.take().is_some() {
            connection.partial.end();
        }
    }

    /// Receives the bytes that are there, or all of `len` bytes. Returns 0 at the end of the
    /// stream. Blocks.
    pub(super) fn receive(
        &mut self,
        connection: &Connection,
        buffer: &mut BytesMut,
        len: Option<usize>,
        expects: Expects,
    ) -> Result<usize, SessionEnd> {
        loop {
            let in_part = self.incoming.as_ref().is_some_and(Incoming::is_partial);
            let timeout = self.deadlines.request;
            // After the deadline, bytes that are in the socket by then are still taken.
            let mut last = false;
            let patience = match expects {
                Expects::Request if !in_part => self.silence,
                _ => {
                    let bytes = if let Expects::Payload(part) = expects { part.of } else { 0 };
                    let rest = self.rest.get_or_insert_with(|| {
                        connection.partial.begin(connection.clock());
                        Deadline::after(timeout)
                    });
                    rest.extend_to(policy::time_for(timeout, bytes as u64));
                    let wait = rest.wait();
                    last = wait.is_zero();
                    // The socket accepts no zero.
                    Some(wait.max(Duration::from_millis(1)))
                }
            };
            // A timeout that was set for a part of a request may stay: it ends the wait for the
            // next request once.
            if !last && patience != self.patience && (patience.is_some() || self.waited) {
                self.patience = patience;
                connection.set_patience(patience);
            }
            let most = len.unwrap_or(usize::MAX);
            let mut receive = |now| match (&mut self.incoming, len) {
                (Some(incoming), _) => incoming.receive(connection, buffer, most, now),
                (None, _) if now => connection.receive_now(buffer, most).map(Some),
                (None, None) => connection.receive(buffer).map(Some),
                (None, Some(len)) => connection.receive_all(buffer, len).map(Some),
            };
            let owes_nothing = || connection.load.snapshot().requests == 0;
            let received = match expects {
                Expects::Request if !in_part && owes_nothing() => self.poller.wait(receive),
                _ => receive(last),
            };
            match received {
                Err(error) if last && error.kind() == ErrorKind::WouldBlock => {
                    let waited = self.rest.as_mut().map(Deadline::waited).unwrap_or_default();
                    return Err(too_slow(expects, waited, timeout));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(SessionEnd::Violation(error.to_string()));
                }
                Err(error) => return Err(SessionEnd::Failed(error.to_string())),
                Ok(None) => continue,
                Ok(Some(got)) => {
                    self.waited = false;
                    return Ok(got);
                }
            }
            if let (Expects::Request, false) = (expects, in_part) {
                self.waited = true;
                self.silence(connection)?;
            }
        }
    }

    /// Handles a wait without a request. Returns an error if the client has been idle for too long.
    fn silence(&mut self, connection: &Connection) -> Result<(), SessionEnd> {
        self.silence = connection.idle_slice();
        let (Some(limit), Some(idle)) = (self.deadlines.idle, connection.idle()) else {
            return Ok(());
        };
        // A request that came while this process was paused lies in the socket.
        if idle >= limit && !connection.has_sent() {
            // Debug: a length of time.
            return Err(SessionEnd::Idle(format!(
                "the client sent no request for {limit:?} (idle_timeout)"
            )));
        }
        // The socket accepts no zero.
        let left = limit.saturating_sub(idle).max(Duration::from_millis(1));
        self.silence = self.silence.map(|slice| slice.min(left));
        Ok(())
    }
}

/// The longest poll. A wake-up costs 2 to 5 us, and 30 us and more on a virtual machine.
const MOST_POLL: Duration = Duration::from_micros(50);
/// The longest sleep that counts as short: a poll spares its reader the wake-up.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// The longest yield that lets no other thread run.
const LONE_YIELD: Duration = Duration::from_micros(6);

/// Permits to poll, which the sessions of one server share.
#[derive(Debug)]
pub(crate) struct PollPermits {
    /// A: permits that are taken. Relaxed: the count guards no data.
    taken: AtomicUsize,
    most: usize,
}

impl PollPermits {
    /// Creates `most` permits.
    pub(super) fn new(most: usize) -> PollPermits {
        PollPermits { taken: AtomicUsize::new(0), most }
    }

    /// Creates a permit for every other CPU, and none in models, where each look is one more
    /// schedule.
    pub(crate) fn of_machine() -> PollPermits {
        PollPermits::new(if IN_MODEL { 0 } else { sys::cpus() / 2 })
    }

    /// Takes a permit; `None` if all are taken. Never blocks.
    fn take(&self) -> Option<PollPermit<'_>> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| PollPermit(self))
    }
}

/// A permit for one poll. A drop gives it back.
struct PollPermit<'a>(&'a PollPermits);

impl Drop for PollPermit<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The waits of one reader.
#[derive(Debug)]
pub(super) struct Poller {
    permits: Arc<PollPermits>,
    /// Record of the last waits.
    proof: Proof,
}

impl Poller {
    pub(super) fn new(permits: Arc<PollPermits>) -> Poller {
        Poller { permits, proof: Proof::NEW }
    }

    /// Waits until `receive` has a result: polls if that has paid lately, then sleeps.
    ///
    /// `receive(true)` never waits, and returns `WouldBlock` if nothing has come. `receive(false)`
    /// sleeps; its result is returned, whatever it is.
    pub(super) fn wait<T>(
        &mut self,
        mut receive: impl FnMut(bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let look = || match receive(true) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            received => Some(received),
        };
        if let Some(received) = self.poll(look) {
            return received;
        }
        let began = time::now();
        let received = receive(false);
        self.slept(time::now().saturating_duration_since(began));
        received
    }

    /// Polls until `look` finds something or the poll [is over](is_over). Returns `None` if it
    /// found nothing, or polling hasn't paid lately, or all permits are taken.
    fn poll<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.proof.is_given() {
            return None;
        }
        let _permit = self.permits.take()?;
        let began = time::now();
        let mut found = look();
        while found.is_none() {
            let looked = time::now();
            thread::yield_now();
            let now = time::now();
            found = look();
            let yielded = now.saturating_duration_since(looked);
            if is_over(now.saturating_duration_since(began), yielded) {
                break;
            }
        }
        self.proof.tried(found.is_some());
        found
    }

    /// Records a sleep.
    fn slept(&mut self, slept: Duration) {
        self.proof.slept(slept <= SHORT_SLEEP);
    }
}

/// Returns whether a poll ends that has taken `polled`, and whose last yield took `yielded`.
fn is_over(polled: Duration, yielded: Duration) -> bool {
    polled >= MOST_POLL || yielded > LONE_YIELD
}

/// Size of a buffer, in bytes: about the capacity of a Unix socket.
const RECEIVE: usize = 256 << 10;
/// Size of the first buffer, which the handshake has left. A client that never fills it needs no
/// other, and it stays in a core's cache.
const FIRST: usize = crate::negotiate::RECEIVE;
/// Least room in a buffer before it is renewed.
const RECEIVE_MIN: usize = 32 << 10;
/// Least room in the first buffer before it is renewed.
const FIRST_MIN: usize = 16 << 10;
/// Least payload in bytes that is charged for all of its buffer.
const LARGE: usize = 64 << 10;

/// Returns the bytes of memory that the payload of a write takes.
pub(super) fn charge(length: u64) -> u64 {
    if length >= LARGE as u64 { length.max(RECEIVE as u64) } else { length }
}

pub(super) struct Received {
    buffer: BytesMut,
    /// Size of the next buffer, and least room in this one.
    sizes: (usize, usize),
    /// True if small slices of it have been taken.
    sliced: bool,
    /// An earlier buffer of which small slices exist.
    kept: Option<Bytes>,
}

impl Received {
    pub(super) fn new(buffer: BytesMut) -> Received {
        Received { buffer, sizes: (FIRST, FIRST_MIN), sliced: false, kept: None }
    }

    /// Makes room to receive into.
    pub(super) fn make_room(&mut self) {
        let room = self.buffer.capacity() - self.buffer.len();
        if room == 0 {
            self.sizes = (RECEIVE, RECEIVE_MIN);
        }
        let (size, least) = self.sizes;
        if room >= least {
            return;
        }
        let sliced = std::mem::take(&mut self.sliced);
        if self.buffer.try_reclaim(size) {
            return;
        }
        let mut new = BytesMut::with_capacity(size);
        new.extend_from_slice(&self.buffer);
        let old = std::mem::replace(&mut self.buffer, new).freeze();
        // No buffer was kept when this one was sliced.
        if sliced {
            self.kept = Some(old);
        }
    }

    fn is_one_kept(&mut self) -> bool {
        self.kept.take_if(|kept| kept.is_unique());
        self.kept.is_some()
    }

    /// Returns the next `length` bytes, which have been received, for a request of its own.
    pub(super) fn take(&mut self, length: usize) -> Bytes {
        let slice = self.buffer.split_to(length);
        if length < LARGE {
            if self.is_one_kept() {
                return Bytes::copy_from_slice(&slice);
            }
            self.sliced = true;
        }
        slice.freeze()
    }
}

impl Deref for Received {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.buffer
    }
}

impl DerefMut for Received {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::client_log::ClientLog;
    use crate::load::Budget;
    use crate::memory::Pool;

    #[test]
    fn what_lies_in_the_socket_is_taken_though_the_time_of_the_request_is_over() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let (log, pool) = (ClientLog::of_test(1), Arc::new(Pool::new(1 << 20)));
        let budget = Budget::default();
        let (connection, _) = Connection::new(log, ours.into(), budget, 0, pool, None);
        let (request, reply) = (Duration::ZERO, Duration::ZERO);
        let poller = Poller::new(Arc::new(PollPermits::new(0)));
        let deadlines = Deadlines { request, reply, idle: None };
        let mut timer = SendTimer::new(&connection, deadlines, None, poller);
        let mut buffer = BytesMut::with_capacity(64);
        let mut receive = |timer: &mut SendTimer, came, len| {
            let head = Expects::Head(Part { came, of: 28 });
            timer.receive(&connection, &mut buffer, len, head)
        };
        for (came, len) in [(3, None), (5, Some(2))] {
            client.write_all(&[7; 2]).unwrap();
            assert_eq!(receive(&mut timer, came, len), Ok(2));
            while timer.rest.as_mut().is_some_and(|rest| !rest.wait().is_zero()) {}
        }
        let Err(SessionEnd::TooSlow(why)) = receive(&mut timer, 7, None) else { panic!() };
        assert!(why.contains("7 of the 28 bytes of the head came in "), "{why}");
        assert!(why.contains("(request_timeout: 1ms)"), "{why}");
    }

    /// Returns the results of a session with this poller for requests, a silence, and the end.
    fn received(poller: Poller) -> Vec<Result<Vec<u8>, SessionEnd>> {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let (log, pool) = (ClientLog::of_test(1), Arc::new(Pool::new(1 << 20)));
        let (budget, idle) = (Budget::default(), Some(Duration::from_millis(1)));
        let (connection, _) = Connection::new(log, ours.into(), budget, 0, pool, idle);
        let (request, reply) = (Duration::MAX, Duration::MAX);
        let mut timer =
            SendTimer::new(&connection, Deadlines { request, reply, idle }, None, poller);
        let mut receive = || {
            let mut buffer = BytesMut::with_capacity(64);
            let got = timer.receive(&connection, &mut buffer, None, Expects::Request)?;
            assert_eq!(got, buffer.len());
            Ok(buffer.to_vec())
        };
        let mut received = Vec::new();
        for request in [&[1; 28][..], &[2; 5], &[3; 64]] {
            client.write_all(request).unwrap();
            received.push(receive());
        }
        received.push(receive());
        client.write_all(&[4]).unwrap();
        drop(client);
        received.extend([receive(), receive()]);
        received
    }

    #[test]
    fn a_session_that_polls_receives_what_one_that_sleeps_does() {
        let slept = received(Poller::new(Arc::new(PollPermits::new(0))));
        let polled = received(proven(&Arc::new(PollPermits::new(1))));
        assert!(matches!(slept[3], Err(SessionEnd::Idle(_))), "{slept:?}");
        assert_eq!(slept[4..], [Ok(vec![4]), Ok(vec![])]);
        assert_eq!(polled, slept);
    }

    /// Returns a poller whose last waits were short.
    fn proven(permits: &Arc<PollPermits>) -> Poller {
        let mut poller = Poller::new(Arc::clone(permits));
        (0..2).for_each(|_| poller.slept(Duration::ZERO));
        poller
    }

    /// Returns the number of looks of a poll that finds something at look `at`, if it gets that
    /// far.
    fn looks(poller: &mut Poller, at: usize) -> usize {
        let mut looks = 0;
        poller.poll(|| {
            looks += 1;
            (looks == at).then_some(())
        });
        looks
    }

    #[test]
    fn a_session_polls_after_short_sleeps_alone() {
        let mut poller = Poller::new(Arc::new(PollPermits::new(1)));
        assert_eq!(looks(&mut poller, 1), 0, "it has not slept yet");
        poller.slept(SHORT_SLEEP);
        poller.slept(SHORT_SLEEP * 2);
        poller.slept(SHORT_SLEEP);
        assert_eq!(looks(&mut poller, 1), 0, "one short sleep may be chance");
        poller.slept(SHORT_SLEEP);
        assert_eq!(looks(&mut poller, 1), 1);
    }

    #[test]
    fn a_session_whose_poll_paid_polls_again() {
        let mut poller = proven(&Arc::new(PollPermits::new(1)));
        for _ in 0..9 {
            assert_eq!(looks(&mut poller, 1), 1);
        }
    }

    #[test]
    fn a_client_that_pauses_is_polled_for_once_until_short_sleeps_prove_themselves_again() {
        let mut poller = proven(&Arc::new(PollPermits::new(1)));
        assert!(looks(&mut poller, usize::MAX) > 1);
        for _ in 0..4 {
            assert_eq!(looks(&mut poller, 1), 0);
            poller.slept(Duration::ZERO);
        }
        assert_eq!(looks(&mut poller, 1), 1);
    }

    #[test]
    fn no_more_sessions_poll_at_once_than_there_are_permits() {
        let permits = Arc::new(PollPermits::new(2));
        let [mut first, mut second, mut third] = [(); 3].map(|()| proven(&permits));
        let counted = first.poll(|| second.poll(|| Some(looks(&mut third, 1))));
        assert_eq!(counted, Some(0), "two of them poll");
        let counted = first.poll(|| Some(looks(&mut third, 1)));
        assert_eq!(counted, Some(1), "a poll that is over has given its permit back");
        let mut refused = proven(&Arc::new(PollPermits::new(0)));
        assert_eq!(looks(&mut refused, 1), 0);
    }

    #[test]
    fn a_poll_ends_after_its_longest_time_or_a_yield_that_let_another_thread_run() {
        let short = Duration::from_micros(1);
        assert!(!is_over(short, short));
        assert!(is_over(MOST_POLL, short));
        assert!(is_over(short, LONE_YIELD + short));
    }

    #[test]
    fn a_wait_sleeps_once_where_a_poll_finds_nothing_and_not_where_it_finds_something() {
        for comes in [true, false] {
            let mut poller = proven(&Arc::new(PollPermits::new(1)));
            let mut slept = 0;
            let received = poller.wait(|now| {
                slept += u32::from(!now);
                if comes || !now { Ok(7) } else { Err(ErrorKind::WouldBlock.into()) }
            });
            assert_eq!((received.unwrap(), slept), (7, u32::from(!comes)));
        }
    }

    #[test]
    fn an_error_that_a_poll_finds_is_the_result_of_the_wait() {
        let mut poller = proven(&Arc::new(PollPermits::new(1)));
        let received = poller.wait(|now| -> io::Result<()> {
            assert!(now, "it doesn't sleep");
            Err(ErrorKind::InvalidData.into())
        });
        assert_eq!(received.unwrap_err().kind(), ErrorKind::InvalidData);
    }

    /// Fills the buffer, and takes a payload of `payload` bytes from each bufferful.
    fn fill(received: &mut Received, payload: usize) -> Bytes {
        let room = received.capacity() - received.len();
        let old = received.len() + room;
        received.resize(old, 7);
        let taken = received.take(payload);
        let rest = received.len();
        let _ = received.split_to(rest);
        received.make_room();
        taken
    }

    #[test]
    fn one_earlier_buffer_is_kept_by_small_payloads_and_no_more() {
        let mut received = Received::new(BytesMut::new());
        received.make_room();
        let first = fill(&mut received, 512);
        assert!(!first.is_unique(), "a slice of a buffer that is kept");
        let second = fill(&mut received, 512);
        assert!(second.is_unique(), "a copy");
        let large = fill(&mut received, LARGE);
        assert!(large.is_unique() && large.len() == LARGE, "its buffer is its own");
        drop(first);
        let third = fill(&mut received, 512);
        assert!(!third.is_unique(), "a slice again, since the first has gone");
        assert!([&second, &large, &third].iter().all(|bytes| bytes.iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn a_client_keeps_the_small_buffer_of_its_handshake_until_it_fills_it() {
        let mut received = Received::new(BytesMut::with_capacity(FIRST));
        let first = received.as_ptr().addr();
        for _ in 0..FIRST {
            received.make_room();
            received.extend_from_slice(&[7; 28]);
            let _ = received.split_to(28);
        }
        assert!((first..first + FIRST).contains(&received.as_ptr().addr()));
        let room = received.capacity() - received.len();
        received.resize(room, 7);
        received.make_room();
        assert!(received.capacity() >= RECEIVE);
        assert_eq!(received.len(), room);
    }

    #[test]
    fn a_payload_that_may_keep_a_buffer_alone_is_charged_for_it() {
        assert_eq!(charge(4096), 4096);
        assert_eq!(charge(LARGE as u64), RECEIVE as u64);
        assert_eq!(charge(1 << 20), 1 << 20);
    }
}
