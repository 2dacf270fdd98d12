//! The server: exports, listeners, connections, and how they end.

mod accept;
mod drain;
mod listen;
mod options;
mod registry;

use std::fmt;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise_sync::hint::IN_MODEL;
use corewise_sync::{Mutex, Parker, context, panics, text};

use crate::client_log::{ClientFacts, ClientLog, LineKind, PeerAccounts, tell};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::export::Export;
use crate::handshake::{Catalogue, CloseReason, ExportOffer, NotAttached, NotOffered};
use crate::memory::{MemoryUse, Pool, Split};
use crate::negotiate::{Negotiated, NoAgreement, negotiate};
use crate::policy::Limits;
use crate::session::{Deadlines, PollPermits, Session, SessionEnd, SharedWriter};
use crate::tls::Tls;
use corewise_export::{Identity, MemoryPool, Peer};

use accept::Acceptor;
use accept::ClientThread;
use registry::Registry;

pub use drain::{DrainReport, ExportFlush, FlushOutcome};
pub use listen::{Endpoint, Listener};
pub use options::Options;
pub use registry::{ClientStatus, ExportStatus, HandshakeCounts};

/// Reason for a client's end if all clients were drained.
const SHUT_DOWN: &str = "the server was shut down";
/// An event of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientEvent<'a> {
    /// The client has chosen an export.
    Attached {
        /// The client's [number](ClientStatus::id).
        id: u64,
        /// Origin of the client.
        peer: Peer,
        /// Process that connected, as in [`ClientStatus::pid`].
        pid: Option<u32>,
        /// Names in its certificate.
        names: &'a [String],
        /// Name of the export.
        export: &'a str,
    },
    /// The client has left, or was let go, and has no requests in a device any more. If it was cut
    /// at the deadline of a drain, its device may still have some.
    Left {
        /// The client's number.
        id: u64,
        /// Origin of the client.
        peer: Peer,
        /// Process that connected.
        pid: Option<u32>,
        /// Names in its certificate.
        names: &'a [String],
        /// Name of the export.
        export: &'a str,
        /// Reason, in words.
        why: &'a str,
    },
}

type Observer = dyn Fn(&ClientEvent<'_>) + Send + Sync;

/// An NBD server: exports block devices to the clients of its listeners.
///
/// Exports, listeners and clients may come and go while it runs. Dropping the server stops the
/// listeners and cuts every connection; [`Server::drain`] first is the polite way. The [front
/// page](crate) has an example.
pub struct Server {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    /// L: is the lock, held for a moment; guards the options for new clients.
    options: Mutex<Options>,
    /// Options that the memory was divided by.
    made: Options,
    /// L: is the lock; guards the TLS configuration of the next handshake. `None`: the server was
    /// made without TLS.
    tls: Option<Mutex<Tls>>,
    /// Accounts that limit the log lines about each client.
    peers: PeerAccounts,
    /// Memory share of each connection in bytes.
    share: u64,
    pool: Arc<Pool>,
    /// Permits to poll, for all sessions.
    poll_permits: Arc<PollPermits>,
    registry: Registry,
    /// L: is the lock, held while the thread is started; guards the thread that sends for clients
    /// without a writer of their own. `None` until the first client, and in models.
    shared_writer: Mutex<Option<Arc<SharedWriter>>>,
    observer: OnceLock<Box<Observer>>,
    /// L: is the lock; guards the listeners' threads. Taken before the registry's lock, never
    /// inside it.
    acceptors: Mutex<Vec<(Endpoint, Acceptor)>>,
}

impl Server {
    /// Creates a server without exports and listeners. Starts no thread.
    ///
    /// If the allocator is glibc's, the server sets two of its thresholds, so that memory that
    /// clients took returns to the system when they leave. If the address space is limited
    /// (`RLIMIT_AS`), it also limits the number of arenas.
    pub fn new(options: Options) -> Server {
        Server::make(options, None)
    }

    /// Creates a server as [`Server::new`] does, with TLS for all of its clients.
    #[cfg(feature = "tls")]
    pub fn with_tls(options: Options, tls: Tls) -> Server {
        Server::make(options, Some(tls))
    }

    fn make(options: Options, tls: Option<Tls>) -> Server {
        let Split { pool, share, .. } = options.split(tls.is_some());
        let (registry, acceptors) = (Registry::new(), Mutex::new(Vec::new()));
        let (pool, peers) = (Arc::new(Pool::new(pool)), PeerAccounts::new());
        let (tls, observer) = (tls.map(Mutex::new), OnceLock::new());
        let (made, options) = (options, Mutex::new(options));
        let shared_writer = Mutex::new(None);
        let inner = Inner {
            options,
            made,
            tls,
            peers,
            share,
            pool,
            poll_permits: Arc::new(PollPermits::of_machine()),
            registry,
            shared_writer,
            observer,
            acceptors,
        };
        Server { inner: Arc::new(inner) }
    }

    /// Replaces the TLS configuration for new clients: a renewed certificate, other authorities.
    /// Present clients, those in their handshakes too, keep theirs. Never blocks for long. Returns
    /// false, and does nothing, if the server was made without TLS ([`Server::new`]): its memory
    /// was divided without it.
    #[cfg(feature = "tls")]
    #[must_use = "false: the server was made without TLS"]
    pub fn renew_tls(&self, tls: Tls) -> bool {
        let Some(now) = &self.inner.tls else { return false };
        *now.lock() = tls;
        true
    }

    /// Replaces the limits and timeouts for new clients; present clients keep theirs. The options
    /// about memory stay as they were made: `memory`, `budget`, and the largest number of
    /// connections. The memory was divided among that many by [`Server::new`]. Never blocks for
    /// long.
    pub fn set_limits(&self, options: Options) {
        let made = self.inner.made;
        let max_connections = options.max_connections.min(made.max_connections);
        let max_half_open = options.max_half_open.min(made.max_half_open);
        let Options { memory, budget, .. } = made;
        *self.inner.options.lock() =
            Options { max_connections, max_half_open, memory, budget, ..options };
    }

    /// Offers an export to clients from now on.
    ///
    /// # Errors
    /// `NameTaken`, `DefaultTaken` and `BadDevice` (they give the export back), `BadText`,
    /// `ShuttingDown`.
    pub fn add_export(&self, export: Export) -> Result<(), Error> {
        if let Some(why) = export.device().geometry().cannot_be() {
            return Err(Error::BadDevice { export: Box::new(export), why });
        }
        self.inner.registry.add_export(export)
    }

    /// Withdraws an export: new clients don't find it, present ones are drained until `deadline`,
    /// and its device is flushed. Returns when no client uses the device, or after the deadline.
    /// Returns `None` if there is no such export. If another thread withdraws it, returns `None`
    /// when that is done, or after the deadline. Blocks.
    #[must_use = "None: there is no such export; else the report says how it ended"]
    pub fn remove_export(&self, name: &str, deadline: Duration) -> Option<DrainReport> {
        self.remove_exports(&[name], deadline)
    }

    /// Withdraws several exports at the same time, as [`Server::remove_export`] does. Unknown names
    /// are ignored. Returns `None` if no export has one of the names.
    #[must_use = "None: there is no such export; else the report says how it ended"]
    pub fn remove_exports(&self, names: &[&str], deadline: Duration) -> Option<DrainReport> {
        let mut until = Deadline::after(deadline);
        let registry = &self.inner.registry;
        let (mut exports, mut connections) = (Vec::new(), Vec::new());
        for (export, its_own) in names.iter().filter_map(|name| registry.close_export(name)) {
            exports.push(export);
            connections.extend(its_own);
        }
        let others = |name: &&&str| !exports.iter().any(|export: &Export| export.name() == **name);
        let report = context::blocking("Server::remove_exports", || {
            let why =
                if registry.is_closing() { SHUT_DOWN } else { "the client's export was removed" };
            let report = (!exports.is_empty())
                .then(|| drain::drain(&self.inner, &exports, connections, &mut until, why));
            for name in names.iter().filter(others) {
                registry.wait_until_removed(name, &mut until);
            }
            report
        });
        for export in &exports {
            registry.forget_export(export.name());
        }
        report
    }

    /// Replaces the export of the same name and device: new clients get this one. Present clients
    /// keep the properties of their handshake, and their rates. But if the new one is read-only,
    /// their changes are refused with `EPERM`, until one that isn't takes its place.
    ///
    /// # Errors
    /// `NotReplaced` if there is no such export, it has another device, or it is being removed;
    /// `DefaultTaken`. They give the export back. `BadText`.
    pub fn replace_export(&self, export: Export) -> Result<(), Error> {
        self.inner.registry.replace_export(export)
    }

    /// Hides an export: new clients don't find it, present ones continue. Returns their number, or
    /// `None` if there is no such export, or it is being removed. [`Server::remove_export`] removes
    /// it.
    #[must_use]
    pub fn hide_export(&self, name: &str) -> Option<usize> {
        self.inner.registry.hide_export(name, true)
    }

    /// Shows a hidden export to new clients again. Returns false if there is no such export, or it
    /// is being removed.
    pub fn show_export(&self, name: &str) -> bool {
        self.inner.registry.hide_export(name, false).is_some()
    }

    /// Waits until a hidden export has no client. Returns false if it is shown again or removed
    /// meanwhile, or the server drains. Blocks.
    #[must_use]
    pub fn wait_until_unused(&self, name: &str) -> bool {
        context::blocking("Server::wait_until_unused", || {
            self.inner.registry.wait_until_unused(name)
        })
    }

    /// Returns the exports and their load, by name.
    pub fn exports(&self) -> Vec<ExportStatus> {
        self.inner.registry.exports()
    }

    /// Returns the connections, handshakes included, in the order in which they came. The cost
    /// grows with their number, but delays none of their requests.
    pub fn clients(&self) -> Vec<ClientStatus> {
        self.inner.registry.clients()
    }

    /// Sets a function that is called with each later event of a client, on the client's thread:
    /// meanwhile no request of that client is served. A drain calls it on its own thread for the
    /// clients that it cuts. A panic in it is discarded. Returns false if there is such a function
    /// already, which stays.
    pub fn observe(&self, tell: impl Fn(&ClientEvent<'_>) + Send + Sync + 'static) -> bool {
        self.inner.observer.set(Box::new(tell)).is_ok()
    }

    /// Ends a connection now, without waiting for its requests: those in the device continue, and
    /// their replies are dropped. Returns false if there is no connection of that
    /// [number](ClientStatus::id), or it has left. It doesn't keep the client from reconnecting.
    #[must_use = "false: there is no such client"]
    pub fn disconnect(&self, id: u64) -> bool {
        self.inner.registry.disconnect(id)
    }

    /// Returns the number of ended handshakes, by outcome.
    pub fn handshakes(&self) -> HandshakeCounts {
        self.inner.registry.handshakes()
    }

    /// Returns the number of connections, handshakes included.
    pub fn connections(&self) -> usize {
        self.inner.registry.connections()
    }

    /// Takes the next number of a client, for a client of another front end: no other client gets
    /// it.
    pub fn next_client_id(&self) -> u64 {
        self.inner.registry.next_id()
    }

    /// Returns the memory that clients share, beyond the share of each, for clients of other front
    /// ends.
    pub fn memory_pool(&self) -> Arc<dyn MemoryPool> {
        Arc::clone(&self.inner.pool) as Arc<dyn MemoryPool>
    }

    /// Returns the use of the memory that clients share.
    pub fn memory(&self) -> MemoryUse {
        self.inner.pool.usage()
    }

    /// Listens on a Unix socket, as [`Listener::unix`] says. Starts a thread.
    ///
    /// # Errors
    /// Those of [`Listener::unix`] and [`Server::listen`].
    pub fn listen_unix(&self, path: impl AsRef<Path>) -> Result<Endpoint, Error> {
        self.listen(Listener::unix(path)?)
    }

    /// Listens on a TCP address, as [`Listener::tcp`] says. Starts a thread. Without TLS
    /// (`Server::with_tls`) any client that can reach the address can read and write the exports,
    /// so listen on loopback unless the network is trusted.
    ///
    /// # Errors
    /// Those of [`Listener::tcp`] and [`Server::listen`].
    pub fn listen_tcp(&self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Endpoint, Error> {
        self.listen(Listener::tcp(address)?)
    }

    /// Accepts clients from this listener. Starts a thread, which sleeps until a client or
    /// [`Server::close`] comes. It accepts a client once there is a thread for it. If none can be
    /// started, clients wait in the system's queue, and the log says so.
    ///
    /// # Errors
    /// `ShuttingDown`; `Resource` if no thread or eventfd can be made.
    pub fn listen(&self, listener: Listener) -> Result<Endpoint, Error> {
        let endpoint = listener.endpoint().clone();
        let mut acceptors = self.inner.acceptors.lock();
        if self.inner.registry.is_closing() {
            return Err(Error::ShuttingDown);
        }
        acceptors.push((endpoint.clone(), Acceptor::start(&self.inner, listener)?));
        Ok(endpoint)
    }

    /// Serves one connected stream socket (of a socket pair, or accepted elsewhere), and puts it
    /// into blocking mode, as do all descriptors that share it. Starts a thread (the first time
    /// two) and returns. If many connections that made way for new ones have not ended, or all
    /// handshakes have just begun, it waits for one of them.
    ///
    /// # Errors
    /// `ShuttingDown`, `Resource`: the socket is closed then.
    pub fn serve(&self, socket: impl Into<OwnedFd>) -> Result<(), Error> {
        let socket = socket.into();
        // Its threads wait in their calls; a call that doesn't wait looks like a dead client.
        rustix::io::ioctl_fionbio(&socket, false)
            .map_err(|e| Error::Resource { what: "a socket in blocking mode", source: e.into() })?;
        self.inner.serve(socket, self.inner.client_thread()?, &|| false)
    }

    /// Closes the server to new clients, as [`Server::drain`] does first. It is for an owner that
    /// then [removes](Server::remove_export) the exports one by one. The reason that their clients
    /// get is the server's shutdown. Waits for the listeners' threads, which end at once.
    pub fn close(&self) {
        let _ = self.inner.registry.close();
        self.stop_accepting();
    }

    /// Ends everything in order, by `deadline` from now at the latest. It closes the listeners,
    /// refuses new requests with `ESHUTDOWN`, and closes idle clients at once. Requests in flight
    /// finish and are answered. Then it flushes the devices, and cuts the clients that are left at
    /// the deadline. Afterwards the server accepts nothing; calling this again is harmless. Blocks.
    pub fn drain(&self, deadline: Duration) -> DrainReport {
        let mut until = Deadline::after(deadline);
        let (exports, connections) = self.inner.registry.close();
        self.stop_accepting();
        context::blocking("Server::drain", || {
            let report = drain::drain(&self.inner, &exports, connections, &mut until, SHUT_DOWN);
            self.inner.peers.tell_rest();
            report
        })
    }

    /// Closes the listeners. Waits for their threads, which end at once.
    fn stop_accepting(&self) {
        let acceptors = std::mem::take(&mut *self.inner.acceptors.lock());
        for (_, acceptor) in acceptors {
            acceptor.stop();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let (_, connections) = self.inner.registry.close();
        self.stop_accepting();
        for connection in connections {
            connection.cut(|| "the server has ended".to_owned());
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<Endpoint> =
            self.inner.acceptors.lock().iter().map(|(endpoint, _)| endpoint.clone()).collect();
        f.debug_struct("Server")
            .field("endpoints", &endpoints)
            .field("exports", &self.exports())
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(super) fn options(&self) -> Options {
        *self.options.lock()
    }

    fn client_thread(self: &Arc<Self>) -> Result<ClientThread, Error> {
        let failed = |source| Error::Resource { what: "a thread for a client", source };
        let mut shared_writer = self.shared_writer.lock();
        // Models always get a thread, and none may wait in a call.
        if shared_writer.is_none() && !IN_MODEL {
            *shared_writer = Some(Arc::new(SharedWriter::start().map_err(failed)?));
        }
        drop(shared_writer);
        ClientThread::start(self).map_err(failed)
    }

    /// Serves a client on this thread. If many connections that made way for new ones have not
    /// ended, it waits for one of them. `stop` tells whether to give up.
    fn serve(
        &self,
        socket: OwnedFd,
        thread: ClientThread,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let options = self.options();
        let Options { budget, evict_idle, idle_timeout, .. } = options;
        let idle_limit = evict_idle.into_iter().chain(idle_timeout).min();
        let who = Identity::of(&socket);
        let account = self.peers.of(who.peer);
        let make = |id| {
            let pool = Arc::clone(&self.pool);
            let log = ClientLog::new(account, id, who.clone());
            let (connection, parker) =
                Connection::new(log, socket, budget, self.share, pool, idle_limit);
            (Arc::new(connection), parker)
        };
        let evict = |oldest: &Connection| {
            let log = &oldest.log;
            log.tell(LineKind::Evicted, |ClientFacts { client, peer, .. }| {
                move |left_out: Option<u64>| {
                    tracing::info!(client, %peer, left_out,
                        "closed: other clients wait, and this one has not chosen an export");
                }
            });
            oldest.cut(|| {
                "other clients waited, and this client had not chosen an export".to_owned()
            });
        };
        let (connection, parker) = self.registry.admit(who.clone(), &options, stop, make, evict)?;
        thread.serve(connection, parker);
        Ok(())
    }

    /// Runs the thread of a connection. A failure or panic in it stays in it.
    fn run(&self, connection: Arc<Connection>, parker: &Parker) {
        let mut why = String::new();
        let served =
            catch_unwind(AssertUnwindSafe(|| self.converse(&connection, parker, &mut why)));
        let end = served.unwrap_or_else(|panic| {
            let log = &connection.log;
            log.tell(LineKind::Ours, |ClientFacts { client, peer, .. }| {
                let panic = text::message(panics::message(&*panic)).to_string();
                move |left_out: Option<u64>| {
                    tracing::error!(client, %peer, left_out, panic,
                        "serving a client panicked: its connection is closed");
                }
            });
            why = "serving the client panicked".to_string();
            connection.cut(|| why.clone());
            panics::discard(panic);
            None
        });
        connection.close();
        let left = self.registry.leave(&connection, end.as_ref());
        if let Some((export, Identity { peer, pid, names })) = left {
            let (id, names, export) = (connection.id, &*names, &*export);
            self.tell(&ClientEvent::Left { id, peer, pid, names, export, why: &why });
        }
        drop(connection);
        self.pool.client_left(self.share);
    }

    fn tell(&self, event: &ClientEvent<'_>) {
        if let Some(observer) = self.observer.get() {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer(event))) {
                panics::discard(panic);
            }
        }
    }

    /// Serves a connection, and returns how the handshake ended if it came to no agreement. `why`
    /// receives the reason of the end if the client had chosen an export.
    fn converse(
        &self,
        connection: &Arc<Connection>,
        parker: &Parker,
        why: &mut String,
    ) -> Option<NoAgreement> {
        let mut deadline = Deadline::after(self.options().handshake_timeout);
        let deadline = &mut deadline;
        let log = &connection.log;
        let catalogue = ClientCatalogue::new(self, log);
        let attach = |_: &ExportOffer| catalogue.chosen();
        let certified = |names| catalogue.certified(names);
        let tls = self.tls.as_ref().map(|tls| tls.lock().clone());
        let (tls, extended) = (tls.as_ref(), self.options().extended_headers);
        let begun =
            match negotiate(connection, &catalogue, tls, extended, certified, attach, deadline) {
                Ok(begun) => begun,
                Err(end) => {
                    tell_end(&end, log.client, &catalogue.who(), log);
                    return Some(end);
                }
            };
        let Negotiated { agreed, attached: export, received, incoming } = begun;
        let limits = (Limits::new(&agreed), agreed.contexts);
        let log = Arc::new(log.at(catalogue.who(), export.name()));
        let ClientLog { client, who, export: name, .. } = &*log;
        tell(|| tracing::debug!(client, peer = %who, export = name, "client attached"));
        let Options { request_timeout, reply_timeout, idle_timeout, .. } = self.options();
        let deadlines =
            Deadlines { request: request_timeout, reply: reply_timeout, idle: idle_timeout };
        let shared_writer = self.shared_writer.lock().clone();
        let poll_permits = Arc::clone(&self.poll_permits);
        let theirs = (Arc::clone(connection), Arc::clone(&log), shared_writer, poll_permits);
        let Identity { peer, pid, names } = who;
        self.tell(&ClientEvent::Attached {
            id: *client,
            peer: *peer,
            pid: *pid,
            names,
            export: name,
        });
        let end = Session::run(theirs, parker, &export, limits, deadlines, received, incoming);
        *why = match &end {
            // The server has ended the stream itself.
            SessionEnd::StreamEnded | SessionEnd::Cut => {
                connection.cause().unwrap_or_else(|| end.to_string())
            }
            end => end.to_string(),
        };
        match end {
            SessionEnd::Idle(what) => {
                log.tell(LineKind::Idle, |ClientFacts { client, peer, export }| {
                    move |left_out: Option<u64>| {
                        tracing::info!(client, %peer, export, left_out, "closed: {what}");
                    }
                })
            }
            SessionEnd::TooSlow(what) => {
                log.tell(LineKind::Slow, |ClientFacts { client, peer, export }| {
                    move |left_out: Option<u64>| {
                        tracing::warn!(client, %peer, export, left_out, "closed: {what}");
                    }
                })
            }
            SessionEnd::Violation(what) => {
                log.tell(LineKind::Cut, |ClientFacts { client, peer, export }| {
                    move |left_out: Option<u64>| {
                        tracing::warn!(client, %peer, export, what, left_out, "closed");
                    }
                })
            }
            end => tell(|| {
                tracing::debug!(client, peer = %who, export = name, %end, "client left");
            }),
        }
        log.over();
        None
    }
}

/// Logs why there is no transmission phase.
fn tell_end(end: &NoAgreement, client: u64, who: &Identity, log: &ClientLog) {
    match end {
        NoAgreement::EndOfStream | NoAgreement::Closed(CloseReason::Aborted) => {}
        NoAgreement::Closed(reason) => log.tell(LineKind::Handshake, |_| {
            let (peer, reason) = (who.clone(), reason.to_string());
            move |left_out: Option<u64>| {
                tracing::info!(client, %peer, reason, left_out, "closed: the handshake failed");
            }
        }),
        NoAgreement::Withdrawn(offer) => tell(|| {
            tracing::debug!(client, peer = %who, export = offer.name,
                "closed: the export is being removed, or another client needed the place");
        }),
        NoAgreement::TooSlow => log.tell(LineKind::Handshake, |_| {
            let peer = who.clone();
            move |left_out: Option<u64>| {
                tracing::info!(client, %peer, left_out, "closed: the handshake took too long");
            }
        }),
        NoAgreement::Insecure(error) => log.tell(LineKind::Tls, |_| {
            let (peer, error) = (who.clone(), error.to_string());
            move |left_out: Option<u64>| {
                tracing::warn!(client, %peer, error, left_out, "closed: TLS failed");
            }
        }),
        NoAgreement::Failed(error) => tell(|| {
            tracing::debug!(client, peer = %who, %error, "the handshake failed");
        }),
    }
    log.over();
}

/// The exports as one client in its handshake sees them. It gives the client a place at the export
/// that it chooses.
struct ClientCatalogue<'a> {
    server: &'a Inner,
    log: &'a ClientLog,
    /// L: is the lock; guards the identity of the client, which TLS completes. Taken before the
    /// registry's.
    who: Mutex<Identity>,
    /// L: is the lock; guards the export at which the client has its place.
    chosen: Mutex<Option<Export>>,
}

impl<'a> ClientCatalogue<'a> {
    fn new(server: &'a Inner, log: &'a ClientLog) -> ClientCatalogue<'a> {
        ClientCatalogue { server, log, who: Mutex::new(log.who.clone()), chosen: Mutex::new(None) }
    }

    /// Records the names of a certificate that was vouched for.
    fn certified(&self, names: Vec<String>) {
        self.who.lock().names = names;
    }

    /// Returns the client's identity as it is known so far.
    fn who(&self) -> Identity {
        self.who.lock().clone()
    }

    /// Takes the export at which the client has its place.
    fn chosen(&self) -> Option<Export> {
        self.chosen.lock().take()
    }
}

impl Catalogue for ClientCatalogue<'_> {
    fn find(&self, name: &str) -> Result<ExportOffer, NotOffered> {
        self.server.registry.find(name, self.log, &self.who.lock())
    }

    fn attach(&self, name: &str) -> Result<(), NotAttached> {
        let ClientCatalogue { server, log, who, .. } = self;
        let export = server.registry.attach(log.client, name, &who.lock(), &server.options())?;
        *self.chosen.lock() = Some(export);
        Ok(())
    }

    fn for_each(&self, each: &mut dyn FnMut(&str, &str)) {
        self.server.registry.for_each(&self.who.lock(), each);
    }

    fn len(&self) -> usize {
        self.server.registry.len()
    }

    fn is_shutting_down(&self) -> bool {
        self.server.registry.is_closing()
    }
}
