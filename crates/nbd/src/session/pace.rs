//! How fast a client has to be: the time for a request that it began, and for its silences.
//!
//! If a request arrives in part, its time begins, and the socket gets a timeout. A client whose
//! requests arrive whole costs neither. The time of a request is a [`Deadline`], and
//! [`Connection::idle`] times a silence. So no client pays for a stop of this process.
//!
//! While the client is owed nothing, a [`Poller`] waits for its next request. It reads the clock
//! twice for a sleep, and once for a poll that finds the request at its first look.

use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::BytesMut;

use super::poller::Poller;
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::policy;
use crate::tls::Incoming;

/// The times that a client is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// For a request that it began to send, beside [what its length adds](policy::time_for).
    pub(crate) request: Duration,
    /// For a reply that it was sent, likewise.
    pub(crate) reply: Duration,
    /// For saying nothing while nothing is owed to it.
    pub(crate) idle: Option<Duration>,
}

/// Why the transmission phase ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client sent `DISC`.
    Disconnected,
    /// The client closed its side, or the server stopped reading because it drains.
    StreamEnded,
    /// The stream can't be followed any further; says why.
    Violation(String),
    /// The socket failed.
    Failed(String),
    /// The client took too long; says what for.
    TooSlow(String),
    /// The client asked for nothing for too long; says how long.
    Idle(String),
    /// The connection was given up by the server.
    Cut,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Disconnected => f.write_str("it said goodbye"),
            End::StreamEnded => f.write_str("its stream ended"),
            End::Violation(what) | End::TooSlow(what) | End::Idle(what) => f.write_str(what),
            End::Failed(why) => write!(f, "its socket failed: {why}"),
            End::Cut => f.write_str("it was disconnected"),
        }
    }
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expects {
    /// A new request.
    Request,
    /// The rest of a request's head.
    Head(Part),
    /// The rest of a request's payload.
    Payload(Part),
}

/// How much of something has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Bytes that came.
    pub(super) came: usize,
    /// Bytes in all.
    pub(super) of: usize,
}

/// The end of a client that did not finish its request in time.
fn too_slow(expects: Expects, waited: Duration, timeout: Duration) -> End {
    let came = |Part { came, of }, what| format!("{came} of the {of} bytes of its {what} came");
    let what = match expects {
        Expects::Request => "a TLS record came in part".to_owned(),
        Expects::Head(part) => came(part, "head"),
        Expects::Payload(part) => came(part, "payload"),
    };
    let waited = policy::rounded(waited);
    // Debug: lengths of time.
    End::TooSlow(format!(
        "it did not finish a request: {what} in {waited:?} (request_timeout: {timeout:?})"
    ))
}

/// The watch over one client's sending.
pub(super) struct Pace {
    /// Where what is received comes from, if not from the socket as it is.
    incoming: Option<Incoming>,
    deadlines: Deadlines,
    /// What the socket was told.
    patience: Option<Duration>,
    /// By when the rest has to come of a request that is there in part.
    rest: Option<Deadline>,
    /// The next wait for a request; `None`: as long as it takes.
    silence: Option<Duration>,
    /// A wait for a request has ended, and nothing had come.
    waited: bool,
    /// Waits for a request while the client is owed nothing.
    poller: Poller,
}

impl Pace {
    pub(super) fn new(
        connection: &Connection,
        deadlines: Deadlines,
        incoming: Option<Incoming>,
        poller: Poller,
    ) -> Pace {
        // The socket takes no zero.
        let request = deadlines.request.max(Duration::from_millis(1));
        let deadlines = Deadlines { request, ..deadlines };
        let silence = connection.idle_slice();
        Pace { incoming, deadlines, patience: None, rest: None, silence, waited: false, poller }
    }

    /// A request has come whole, or its client had to wait: then its time begins anew.
    pub(super) fn whole(&mut self, connection: &Connection) {
        if self.rest.take().is_some() {
            connection.partial.end();
        }
    }

    /// Receives what is there, or all of `len` bytes. 0 at the end of the stream. Blocks.
    pub(super) fn receive(
        &mut self,
        connection: &Connection,
        buffer: &mut BytesMut,
        len: Option<usize>,
        expects: Expects,
    ) -> Result<usize, End> {
        loop {
            let in_part = self.incoming.as_ref().is_some_and(Incoming::is_partial);
            let timeout = self.deadlines.request;
            // Once its time is over: what the socket has by then is still taken.
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
                    // The socket takes no zero.
                    Some(wait.max(Duration::from_millis(1)))
                }
            };
            // A time that was set for a part of a request may stay: it ends the wait for the next one once.
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
                    return Err(End::Violation(error.to_string()));
                }
                Err(error) => return Err(End::Failed(error.to_string())),
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

    /// No request has come for a while. An error if the client has been idle for too long.
    fn silence(&mut self, connection: &Connection) -> Result<(), End> {
        self.silence = connection.idle_slice();
        let (Some(limit), Some(idle)) = (self.deadlines.idle, connection.idle()) else {
            return Ok(());
        };
        // A request that came while this process was stopped lies in the socket.
        if idle >= limit && !connection.has_sent() {
            // Debug: a length of time.
            return Err(End::Idle(format!("it asked for nothing for {limit:?} (idle_timeout)")));
        }
        // The socket takes no zero.
        let left = limit.saturating_sub(idle).max(Duration::from_millis(1));
        self.silence = self.silence.map(|slice| slice.min(left));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::super::poller::{PollPermits, tests::proven};
    use super::*;
    use crate::load::Budget;
    use crate::memory::Pool;
    use crate::told::Voice;

    #[test]
    fn what_lies_in_the_socket_is_taken_though_the_time_of_the_request_is_over() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let (voice, pool) = (Voice::of_test(1), Arc::new(Pool::new(1 << 20)));
        let budget = Budget::default();
        let (connection, _) = Connection::new(voice, ours.into(), budget, 0, pool, None);
        let (request, reply) = (Duration::ZERO, Duration::ZERO);
        let poller = Poller::new(Arc::new(PollPermits::new(0)));
        let deadlines = Deadlines { request, reply, idle: None };
        let mut pace = Pace::new(&connection, deadlines, None, poller);
        let mut buffer = BytesMut::with_capacity(64);
        let mut receive = |pace: &mut Pace, came, len| {
            let head = Expects::Head(Part { came, of: 28 });
            pace.receive(&connection, &mut buffer, len, head)
        };
        for (came, len) in [(3, None), (5, Some(2))] {
            client.write_all(&[7; 2]).unwrap();
            assert_eq!(receive(&mut pace, came, len), Ok(2));
            while pace.rest.as_mut().is_some_and(|rest| !rest.wait().is_zero()) {}
        }
        let Err(End::TooSlow(why)) = receive(&mut pace, 7, None) else { panic!() };
        assert!(why.contains("7 of the 28 bytes of its head came in "), "{why}");
        assert!(why.contains("(request_timeout: 1ms)"), "{why}");
    }

    /// Returns what a session with this poller receives of requests, a silence, and the end.
    fn received(poller: Poller) -> Vec<Result<Vec<u8>, End>> {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let (voice, pool) = (Voice::of_test(1), Arc::new(Pool::new(1 << 20)));
        let (budget, idle) = (Budget::default(), Some(Duration::from_millis(1)));
        let (connection, _) = Connection::new(voice, ours.into(), budget, 0, pool, idle);
        let (request, reply) = (Duration::MAX, Duration::MAX);
        let mut pace = Pace::new(&connection, Deadlines { request, reply, idle }, None, poller);
        let mut receive = || {
            let mut buffer = BytesMut::with_capacity(64);
            let got = pace.receive(&connection, &mut buffer, None, Expects::Request)?;
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
        assert!(matches!(slept[3], Err(End::Idle(_))), "{slept:?}");
        assert_eq!(slept[4..], [Ok(vec![4]), Ok(vec![])]);
        assert_eq!(polled, slept);
    }
}
