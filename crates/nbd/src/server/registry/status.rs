//! What the books say of exports and connections, for the owner of the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{ConnectionRecord, ExportState, Registry};
use crate::access::{Identity, Peer};
use crate::connection::Connection;
use crate::export::Export;
use crate::handshake::CloseReason;
use crate::load::Traffic;
use crate::negotiate::NoAgreement;

/// One export, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportStatus {
    /// Name of the export.
    pub name: String,
    /// Clients in their transmission phase.
    pub clients: usize,
    /// Those of them whose new requests are refused, since they are being drained.
    pub draining: usize,
    /// Requests that were admitted and whose reply hasn't been sent.
    pub in_flight: u64,
    /// No client is admitted: it is hidden, or being removed.
    pub closing: bool,
    /// It is [hidden](super::super::Server::hide_export), and not being removed.
    pub hidden: bool,
    /// Newcomers are told that they can't change it: it is read-only, or its device is by now.
    pub read_only: bool,
    /// Clients that have left its device without knowing that a flush has failed, by which they may
    /// have lost data. The next one that comes from the same place, or with the same certificate,
    /// is told.
    pub untold: usize,
    /// What all its clients have been answered, those that left included.
    pub traffic: Traffic,
}

/// One connection, as the server's owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Its number, as in the log: never used again by this server.
    pub id: u64,
    /// Where it comes from.
    pub peer: Peer,
    /// The process that connected, of a client of this machine whose number can be known here. It
    /// may have passed the socket on, or have ended, since.
    pub pid: Option<u32>,
    /// The names in its certificate, where it has shown one that was vouched for.
    pub names: Vec<String>,
    /// Name of its export; `None` during its handshake.
    pub export: Option<String>,
    /// How long it has been connected.
    pub age: Duration,
    /// Requests that were admitted and whose reply hasn't been sent.
    pub in_flight: u32,
    /// Bytes of their payloads; those beyond the connection's own share are rounded up.
    pub in_flight_bytes: u64,
    /// How long ago the oldest of these requests came.
    pub oldest: Option<Duration>,
    /// How long the oldest reply has waited for the client to take earlier ones. `None`: all that
    /// was answered has gone into its socket.
    pub untaken: Option<Duration>,
    /// Bytes of the replies that wait so; some replies more or less.
    pub untaken_bytes: u64,
    /// How long the rest of a request has been waited for that came in part.
    pub partial: Option<Duration>,
    /// Its new requests are refused, since it is being drained or cut.
    pub draining: bool,
    /// What it has been answered.
    pub traffic: Traffic,
}

/// How handshakes have ended since the server was made. Each is counted once, when it is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// The client chose an export.
    pub attached: u64,
    /// The client was told that all places are taken.
    pub no_place: u64,
    /// The client had not chosen an export, and was closed for others that waited.
    pub evicted: u64,
    /// The client was closed at
    /// [`Options::handshake_timeout`](crate::Options::handshake_timeout).
    pub timed_out: u64,
    /// TLS failed.
    pub tls_failed: u64,
    /// The client broke the protocol, or by `EXPORT_NAME` chose an export that it can't have; or
    /// serving it panicked.
    pub failed: u64,
    /// The client left without an export, or was disconnected, or the server was shut down.
    pub left: u64,
}

impl HandshakeCounts {
    /// Counts one that ended without an export; `end`: as in [`Registry::leave`].
    pub(super) fn count(&mut self, refused: bool, evicted: bool, end: Option<&NoAgreement>) {
        let count = match end {
            _ if refused => &mut self.no_place,
            _ if evicted => &mut self.evicted,
            Some(NoAgreement::TooSlow) => &mut self.timed_out,
            Some(NoAgreement::Insecure(_)) => &mut self.tls_failed,
            Some(NoAgreement::Closed(CloseReason::Aborted)) => &mut self.left,
            Some(NoAgreement::Closed(_)) | None => &mut self.failed,
            Some(_) => &mut self.left,
        };
        *count += 1;
    }
}

impl Registry {
    pub(in crate::server) fn handshakes(&self) -> HandshakeCounts {
        self.books.lock().handshakes
    }

    pub(in crate::server) fn is_closing(&self) -> bool {
        self.books.lock().closing
    }

    pub(in crate::server) fn connections(&self) -> usize {
        self.books.lock().connections.len()
    }

    pub(in crate::server) fn exports(&self) -> Vec<ExportStatus> {
        let books = self.books.lock();
        let closing = books.closing;
        let mut clients: BTreeMap<&str, Vec<Arc<Connection>>> = BTreeMap::new();
        for entered in books.connections.values() {
            if let Some(name) = &entered.export {
                clients.entry(name).or_default().push(Arc::clone(&entered.connection));
            }
        }
        let exports: Vec<_> = books
            .exports
            .iter()
            .map(|(name, entry)| {
                let clients = clients.remove(name.as_str()).unwrap_or_default();
                // Its device is asked when the lock is free.
                let export = entry.export.clone();
                (name.clone(), entry.state, export, entry.past.clone(), clients)
            })
            .collect();
        drop(clients);
        drop(books);
        // Those that leave meanwhile were not counted among those that had left.
        let status = |(name, state, export, mut traffic, clients): (
            _,
            _,
            Export,
            Traffic,
            Vec<Arc<Connection>>,
        )| {
            let loads = || clients.iter().map(|client| client.load.snapshot());
            clients.iter().for_each(|client| traffic.add(&client.counts.read()));
            ExportStatus {
                name,
                clients: clients.len(),
                draining: loads().filter(|load| load.draining).count(),
                in_flight: loads().map(|load| u64::from(load.requests)).sum(),
                closing: state != ExportState::Open || closing,
                hidden: state == ExportState::Hidden,
                read_only: !export.is_writable(),
                untold: export.shared.losses.untold(export.device().losses()),
                traffic,
            }
        };
        exports.into_iter().map(status).collect()
    }

    pub(in crate::server) fn clients(&self) -> Vec<ClientStatus> {
        let books = self.books.lock();
        let known = |entered: &ConnectionRecord| {
            let ConnectionRecord { connection, export, who, .. } = entered;
            (Arc::clone(connection), export.clone(), who.clone())
        };
        let clients: Vec<_> = books.connections.values().map(known).collect();
        drop(books);
        let status = |(connection, export, who): (Arc<Connection>, _, Identity)| {
            let Identity { peer, pid, names } = who;
            let (load, untaken) = (connection.load.snapshot(), connection.untaken.read());
            let (oldest, now) = (connection.arrivals.oldest(), connection.clock());
            let ago = |moment: u64| Duration::from_nanos(now.saturating_sub(moment));
            ClientStatus {
                id: connection.id,
                peer,
                pid,
                names,
                export,
                age: connection.age(),
                in_flight: load.requests,
                in_flight_bytes: load.bytes,
                oldest: oldest.map(ago),
                untaken: untaken.map(|(since, _)| ago(since)),
                untaken_bytes: untaken.map_or(0, |(_, bytes)| bytes),
                partial: connection.partial.read().map(ago),
                draining: load.draining || load.cut,
                traffic: connection.counts.read(),
            }
        };
        clients.into_iter().map(status).collect()
    }
}
