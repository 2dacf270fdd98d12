//! Drives the pure [`Handshake`] over a socket, within a deadline.

use std::io;
use std::time::Instant;

use bytes::{Buf, BytesMut};

use crate::connection::Connection;
use crate::handshake::{
    Agreement, Catalogue, CloseReason, ExportOffer, Handshake, MAX_OPTION_DATA, Outcome,
};
use crate::wire::OPTION_HEADER_LEN;

/// Room for the longest option, and for the first requests behind it.
const RECEIVE: usize = 32 << 10;
const _: () = assert!(RECEIVE > OPTION_HEADER_LEN + MAX_OPTION_DATA as usize);

/// Why there is no transmission phase.
#[derive(Debug)]
pub(crate) enum NoAgreement {
    /// The machine ended the handshake.
    Closed(CloseReason),
    /// The export that was chosen is closing, or the server needed the place for somebody else.
    Withdrawn(ExportOffer),
    /// The client left, or the server stopped reading.
    EndOfStream,
    /// The deadline passed.
    TooSlow,
    /// The socket failed.
    Failed(io::Error),
}

impl From<io::Error> for NoAgreement {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => NoAgreement::TooSlow,
            _ => NoAgreement::Failed(error),
        }
    }
}

/// Greets the client and answers its options; blocks until the deadline at most. Returns the export
/// that was chosen, and what the client sent behind its choice.
///
/// `attach` is called before the client is told that its choice is granted: from then on nobody may
/// take its place away.
pub(crate) fn negotiate<T>(
    connection: &Connection,
    catalogue: &dyn Catalogue,
    attach: impl FnOnce(&ExportOffer) -> Option<T>,
    deadline: Instant,
) -> Result<(Agreement, T, BytesMut), NoAgreement> {
    let mut handshake = Handshake::new();
    let mut received = BytesMut::with_capacity(RECEIVE);
    let mut replies = Vec::new();
    connection.send_until(&Handshake::greeting(), deadline)?;
    loop {
        let progress = handshake.advance(&received, catalogue, &mut replies);
        received.advance(progress.consumed);
        if let Outcome::Begin(agreed) = progress.outcome {
            let Some(attached) = attach(&agreed.offer) else {
                return Err(NoAgreement::Withdrawn(agreed.offer));
            };
            connection.send_until(&replies, deadline)?;
            return Ok((agreed, attached, received));
        }
        connection.send_until(&replies, deadline)?;
        replies.clear();
        match progress.outcome {
            Outcome::Begin(_) | Outcome::SendFirst => {}
            Outcome::Close(reason) => return Err(NoAgreement::Closed(reason)),
            Outcome::NeedMore => {
                received.reserve(RECEIVE);
                if connection.receive_until(&mut received, deadline)? == 0 {
                    return Err(NoAgreement::EndOfStream);
                }
            }
        }
    }
}
