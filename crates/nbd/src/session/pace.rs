//! How fast a client has to be: the time for a request that it began, and for its silences.
//!
//! The clock is read only where a request has come in part, and the socket is told of a time only then. A client whose
//! requests arrive whole costs neither.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corewise_sync::time;

use super::End;
use crate::connection::Connection;
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

/// What the next bytes are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expects {
    /// A new request.
    Request,
    /// The rest of one, whose payload has so many bytes in all.
    Rest(u64),
}

/// The watch over one client's sending.
pub(super) struct Pace {
    /// Where what is received comes from, if not from the socket as it is.
    incoming: Option<Incoming>,
    deadlines: Deadlines,
    /// What the socket was told.
    patience: Option<Duration>,
    /// Since when a request has been there in part.
    begun: Option<Instant>,
    /// How long nothing has come.
    quiet: Duration,
}

impl Pace {
    pub(super) fn new(deadlines: Deadlines, incoming: Option<Incoming>) -> Pace {
        // The socket takes no zero.
        let request = deadlines.request.max(Duration::from_millis(1));
        let deadlines = Deadlines { request, ..deadlines };
        Pace { incoming, deadlines, patience: None, begun: None, quiet: Duration::ZERO }
    }

    /// A request has come whole, or its client had to wait: then its time begins anew.
    pub(super) fn whole(&mut self) {
        self.begun = None;
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
            let patience = match expects {
                Expects::Request if !in_part => {
                    self.deadlines.idle.map(|idle| idle.saturating_sub(self.quiet))
                }
                _ => {
                    let bytes = if let Expects::Rest(bytes) = expects { bytes } else { 0 };
                    let begun = *self.begun.get_or_insert_with(time::now);
                    let waited = time::now().saturating_duration_since(begun);
                    if waited >= policy::time_for(self.deadlines.request, bytes) {
                        let timeout = self.deadlines.request;
                        let what = format!("a request was sent in part only, in {timeout:?}");
                        return Err(End::TooSlow(what));
                    }
                    Some(self.deadlines.request)
                }
            };
            // A time that was set for a part of a request may stay: it ends the wait for the next one once.
            if patience != self.patience && (patience.is_some() || self.quiet > Duration::ZERO) {
                self.patience = patience;
                connection.set_patience(patience);
            }
            let received = match (&mut self.incoming, len) {
                (None, None) => connection.receive(buffer).map(Some),
                (None, Some(len)) => connection.receive_all(buffer, len).map(Some),
                (Some(incoming), len) => {
                    incoming.receive(connection, buffer, len.unwrap_or(usize::MAX))
                }
            };
            match received {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(End::Violation(error.to_string()));
                }
                Err(error) => return Err(End::Failed(error.to_string())),
                Ok(None) => continue,
                Ok(Some(got)) => {
                    self.quiet = Duration::ZERO;
                    return Ok(got);
                }
            }
            if let Expects::Request = expects {
                self.quiet += self.patience.unwrap_or_default();
                let waits = connection.load.snapshot().requests > 0;
                match self.deadlines.idle {
                    Some(_) if waits => self.quiet = Duration::ZERO,
                    Some(idle) if self.quiet >= idle => {
                        return Err(End::TooSlow(format!("nothing was asked for {idle:?}")));
                    }
                    _ => {}
                }
            }
        }
    }
}
