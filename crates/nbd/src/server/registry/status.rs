//! Status of exports and connections, for the owner of the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{ConnectionRecord, ExportState, Registry};
use crate::connection::Connection;
use crate::export::Export;
use crate::handshake::CloseReason;
use crate::negotiate::NoAgreement;
use corewise_export::{Identity, Peer, Traffic};

/// One export, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportStatus {
    /// Name of the export.
    pub name: String,
    /// Clients in their transmission phase.
    pub clients: usize,
    /// Number of clients that are being drained, so that their new requests are refused.
    pub draining: usize,
    /// Requests that were admitted and whose reply hasn't been sent.
    pub in_flight: u64,
    /// True if no client is admitted: the export is hidden, or being removed.
    pub closing: bool,
    /// True if the export is [hidden](super::super::Server::hide_export), and not being removed.
    pub hidden: bool,
    /// True if newcomers can't change it: the export or its device is read-only.
    pub read_only: bool,
    /// Number of clients that left its device without knowing of a failed flush, so that they may
    /// have lost data. The next client from the same place, or with the same certificate, learns of
    /// it.
    pub untold: usize,
    /// Traffic of all its clients, those that left included.
    pub traffic: Traffic,
}

/// One connection, as the server's owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Number of the client, as in the log. This server never uses it again.
    pub id: u64,
    /// Origin of the client.
    pub peer: Peer,
    /// Process that connected, if the client is on this machine and the number can be known here.
    /// Since then it may have passed the socket on, or ended.
    pub pid: Option<u32>,
    /// Names in its certificate, if it showed one that was vouched for.
    pub names: Vec<String>,
    /// Name of its export; `None` during its handshake.
    pub export: Option<String>,
    /// Time since it connected.
    pub age: Duration,
    /// Requests that were admitted and whose reply hasn't been sent.
    pub in_flight: u32,
    /// Bytes of their payloads. Bytes beyond the connection's own share are rounded up.
    pub in_flight_bytes: u64,
    /// Age of the oldest of these requests.
    pub oldest: Option<Duration>,
    /// Time that the oldest reply has waited for the client to take earlier ones. `None` if all
    /// replies have gone into its socket.
    pub untaken: Option<Duration>,
    /// Bytes of the replies that wait so; it may be off by some replies.
    pub untaken_bytes: u64,
    /// Time that the rest of an incomplete request has been waited for.
    pub partial: Option<Duration>,
    /// True if its new requests are refused, since it is being drained or cut.
    pub draining: bool,
    /// Traffic of the client.
    pub traffic: Traffic,
}

/// The number of handshakes by outcome, since the server was made. Each is counted once, when it is
/// over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Handshakes in which the client chose an export.
    pub attached: u64,
    /// Handshakes in which the server refused the client because all places are taken.
    pub no_place: u64,
    /// Handshakes without the choice of an export that were closed for waiting clients.
    pub evicted: u64,
    /// Handshakes that ended at [`Options::handshake_timeout`](crate::Options::handshake_timeout).
    pub timed_out: u64,
    /// Handshakes in which TLS failed.
    pub tls_failed: u64,
    /// Handshakes in which the client broke the protocol, or by `EXPORT_NAME` chose an export that
    /// it can't have; or in which serving it panicked.
    pub failed: u64,
    /// Handshakes in which the client left without an export, was disconnected, or the server was
    /// shut down.
    pub left: u64,
}

impl HandshakeCounts {
    /// Counts a handshake that ended without an export. `end` is as in [`Registry::leave`].
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
        // A client that leaves meanwhile was not counted among those that had left.
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
                untold: export.shared.untold(),
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
