//! The driver of the pure [`Handshake`] over a socket, within a deadline.

use std::io;
use std::mem;

use bytes::{Buf, BytesMut};

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::handshake::{
    Agreement, Catalogue, CloseReason, ExportOffer, Handshake, MAX_OPTION_DATA, Outcome, TlsPolicy,
};
use crate::tls::{Incoming, Tls};
use crate::wire::OPTION_HEADER_LEN;

/// Room for the longest option, and for the first requests behind it.
pub(crate) const RECEIVE: usize = 32 << 10;
const _: () = assert!(RECEIVE > OPTION_HEADER_LEN + MAX_OPTION_DATA as usize);

/// A reason why no transmission phase follows.
#[derive(Debug)]
pub(crate) enum NoAgreement {
    /// The handshake's state machine ended it.
    Closed(CloseReason),
    /// The export that was chosen is closing, or the server needed the place for another client.
    Withdrawn(ExportOffer),
    /// The client left, or the server stopped reading.
    EndOfStream,
    /// The deadline passed.
    TooSlow,
    /// TLS failed: the client broke it, or isn't vouched for.
    Insecure(io::Error),
    /// The socket failed.
    Failed(io::Error),
}

impl From<io::Error> for NoAgreement {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => NoAgreement::TooSlow,
            io::ErrorKind::UnexpectedEof => NoAgreement::EndOfStream,
            io::ErrorKind::InvalidData => NoAgreement::Insecure(error),
            _ => NoAgreement::Failed(error),
        }
    }
}

/// A connection whose transmission phase may begin.
pub(crate) struct Negotiated<T> {
    pub(crate) agreed: Agreement,
    /// Result of attaching to the chosen export.
    pub(crate) attached: T,
    /// Bytes that the client sent after its choice.
    pub(crate) received: BytesMut,
    /// TLS stream with all further bytes, if TLS was agreed on.
    pub(crate) incoming: Option<Incoming>,
}

/// Greets the client and answers its options. Blocks until the deadline at most.
///
/// `extended` says whether the client may have extended headers. Calls `attach` before it grants
/// the client's choice: from then on no other client may take the place away. Calls `certified`
/// with the names in the client's certificate, before it answers anything in TLS.
pub(crate) fn negotiate<T>(
    connection: &Connection,
    catalogue: &dyn Catalogue,
    tls: Option<&Tls>,
    extended: bool,
    certified: impl Fn(Vec<String>),
    attach: impl Fn(&ExportOffer) -> Option<T>,
    deadline: &mut Deadline,
) -> Result<Negotiated<T>, NoAgreement> {
    let mut handshake = Handshake::with_tls(match tls {
        None => TlsPolicy::Off,
        Some(tls) if tls.is_required() => TlsPolicy::Required,
        Some(_) => TlsPolicy::Allowed,
    })
    .extended_headers(extended);
    let mut received = BytesMut::with_capacity(RECEIVE);
    let mut replies = Vec::new();
    let mut incoming: Option<Incoming> = None;
    connection.send_until(&Handshake::greeting(), deadline)?;
    loop {
        let progress = handshake.advance(&received, catalogue, &mut replies);
        received.advance(progress.consumed);
        let begins = match progress.outcome {
            Outcome::Begin(agreed) => match attach(&agreed.offer) {
                Some(attached) => Ok((agreed, attached)),
                None => return Err(NoAgreement::Withdrawn(agreed.offer)),
            },
            other => Err(other),
        };
        match &incoming {
            None => connection.send_until(&replies, deadline)?,
            Some(incoming) => incoming.channel().send_until(connection, &replies, deadline)?,
        }
        replies.clear();
        let outcome = match begins {
            Ok((agreed, attached)) => {
                return Ok(Negotiated { agreed, attached, received, incoming });
            }
            Err(outcome) => outcome,
        };
        match outcome {
            Outcome::Begin(_) | Outcome::SendFirst => {}
            Outcome::Close(reason) => {
                if let Some(incoming) = &incoming {
                    incoming.channel().close(connection);
                }
                return Err(NoAgreement::Closed(reason));
            }
            Outcome::StartTls => {
                // By the state machine's contract nothing is left over. Bytes from before TLS would
                // not be trusted, so they are dropped.
                drop(mem::replace(&mut received, BytesMut::with_capacity(RECEIVE)));
                let Some(tls) = tls else { return Err(NoAgreement::EndOfStream) };
                let (stream, names) = tls.accept(connection, deadline)?;
                certified(names);
                incoming = Some(stream);
            }
            Outcome::NeedMore => {
                received.reserve(RECEIVE);
                let got = match &mut incoming {
                    None => connection.receive_until(&mut received, deadline)?,
                    Some(incoming) => {
                        incoming.receive_until(connection, &mut received, deadline)?
                    }
                };
                if got == 0 {
                    return Err(NoAgreement::EndOfStream);
                }
            }
        }
    }
}
