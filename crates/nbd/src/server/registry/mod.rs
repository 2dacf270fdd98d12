//! The server's registry: exports, connections, and which connection uses which export. It has one
//! lock, held for a few instructions and never taken on the path of a request.

mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_export::{Identity, SharedDevice, Traffic};
use corewise_sync::{Condvar, Mutex};

use super::options::Options;
use crate::client_log::{ClientFacts, ClientLog, LineKind};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::export::Export;
use crate::handshake::{ExportOffer, NotAttached, NotOffered};
use crate::negotiate::NoAgreement;
use crate::policy;
use crate::wire::MAX_STRING;

pub use status::{ClientStatus, ExportStatus, HandshakeCounts};

/// The registry. Its lock is a leaf: no other lock is taken, and no device is called, while it is
/// held.
pub(super) struct Registry {
    /// L: is the lock; guards everything in `RegistryState`.
    books: Mutex<RegistryState>,
    /// L: waited on with `books`; notified when the thread of a connection ends, and when the
    /// server closes.
    left: Condvar,
}

#[derive(Default)]
struct RegistryState {
    closing: bool,
    exports: BTreeMap<String, ExportRecord>,
    /// Shared state by the address of its device, which that state keeps alive: thousands of
    /// exports mustn't search each other.
    shared: BTreeMap<usize, Weak<SharedDevice>>,
    connections: BTreeMap<u64, ConnectionRecord>,
    half_open: BTreeSet<u64>,
    /// Number of connections whose thread has not ended: those above, and those that were removed
    /// for a newcomer.
    threads: usize,
    /// Number of connections that are being let go for a newcomer, each with its descriptor.
    leaving: usize,
    /// Number of handshakes cut for a newcomer, minus those that led to the choice of an export.
    cut: usize,
    handshakes: HandshakeCounts,
    last_id: u64,
}

struct ExportRecord {
    export: Export,
    state: ExportState,
    /// Traffic of its clients that have left.
    past: Traffic,
}

/// The availability of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExportState {
    Open,
    /// Present clients may use the export; no client is admitted.
    Hidden,
    /// The export is being removed: soon no client uses it.
    Closing,
}

struct ConnectionRecord {
    connection: Arc<Connection>,
    /// Name of its export; `None` during the handshake.
    export: Option<String>,
    /// Known identity of the client.
    who: Identity,
    /// True if its place was given to another client, and it is being let go.
    leaving: bool,
    /// True if the observer knows that it has left.
    told: bool,
}

/// Refuses texts that the protocol can't carry.
fn check(export: &Export) -> Result<(), Error> {
    for (what, text) in [("name", export.name()), ("description", export.description_text())] {
        if text.len() > MAX_STRING || text.contains('\0') {
            return Err(Error::BadText { what, text: text.to_owned() });
        }
    }
    Ok(())
}

/// A filter of the connections that a limit counts.
type ConnectionFilter<'a> = &'a dyn Fn(&ConnectionRecord) -> bool;

impl Registry {
    pub(super) fn new() -> Registry {
        Registry { books: Mutex::new(RegistryState::default()), left: Condvar::new() }
    }

    pub(super) fn add_export(&self, mut export: Export) -> Result<(), Error> {
        check(&export)?;
        let mut books = self.books.lock();
        if books.closing {
            return Err(Error::ShuttingDown);
        }
        if books.exports.contains_key(export.name()) {
            return Err(Error::NameTaken(Box::new(export)));
        }
        if export.is_default() && books.exports.values().any(|entry| entry.export.is_default()) {
            return Err(Error::DefaultTaken(Box::new(export)));
        }
        let shared = books.shared.entry(export.device_address()).or_default();
        match shared.upgrade() {
            Some(shared) => export.shared = shared,
            None => *shared = Arc::downgrade(&export.shared),
        }
        books.exports.insert(
            export.name().to_owned(),
            ExportRecord { export, state: ExportState::Open, past: Traffic::default() },
        );
        Ok(())
    }

    /// Replaces an export that isn't being removed by one of the same name and device.
    pub(super) fn replace_export(&self, mut export: Export) -> Result<(), Error> {
        check(&export)?;
        let mut books = self.books.lock();
        let is_default = |entry: &ExportRecord| entry.export.is_default();
        let mut others =
            books.exports.values().filter(|entry| entry.export.name() != export.name());
        if export.is_default() && others.any(is_default) {
            return Err(Error::DefaultTaken(Box::new(export)));
        }
        let entry = books.exports.get_mut(export.name());
        let same = |entry: &&mut ExportRecord| {
            entry.state != ExportState::Closing
                && entry.export.device_address() == export.device_address()
        };
        let Some(entry) = entry.filter(same) else {
            return Err(Error::NotReplaced(Box::new(export)));
        };
        export.take_over(&entry.export);
        let former = std::mem::replace(&mut entry.export, export);
        drop(books);
        drop(former);
        Ok(())
    }

    /// Hides an export from new clients, or shows it to them again. Returns the number of its
    /// clients, or `None` if there is no such export, or it is being removed.
    pub(super) fn hide_export(&self, name: &str, hide: bool) -> Option<usize> {
        let mut books = self.books.lock();
        let entry =
            books.exports.get_mut(name).filter(|entry| entry.state != ExportState::Closing)?;
        entry.state = if hide { ExportState::Hidden } else { ExportState::Open };
        let clients = books.connections_of(Some(name)).len();
        drop(books);
        self.left.notify_all();
        Some(clients)
    }

    /// Waits until a hidden export has no client. Returns false if it isn't hidden any more.
    /// Blocks.
    pub(super) fn wait_until_unused(&self, name: &str) -> bool {
        let mut books = self.books.lock();
        loop {
            let hidden = |entry: &ExportRecord| entry.state == ExportState::Hidden;
            if books.closing || !books.exports.get(name).is_some_and(hidden) {
                return false;
            }
            if books.connections_of(Some(name)).is_empty() {
                return true;
            }
            books = self.left.wait(books);
        }
    }

    /// Closes an export to all clients and returns it with its connections. Returns `None` if there
    /// is none, or another thread is removing it.
    pub(super) fn close_export(&self, name: &str) -> Option<(Export, Vec<Arc<Connection>>)> {
        let mut books = self.books.lock();
        let entry =
            books.exports.get_mut(name).filter(|entry| entry.state != ExportState::Closing)?;
        entry.state = ExportState::Closing;
        let export = entry.export.clone();
        let connections = books.connections_of(Some(name));
        drop(books);
        self.left.notify_all();
        Some((export, connections))
    }

    pub(super) fn forget_export(&self, name: &str) {
        let mut books = self.books.lock();
        let gone = books.exports.remove(name);
        if let Some(ExportRecord { export, .. }) = &gone {
            if Arc::strong_count(&export.shared) == 1 {
                books.shared.remove(&export.device_address());
            }
        }
        drop(books);
        self.left.notify_all();
        drop(gone);
    }

    /// Waits until no export of that name is being removed, or the deadline passes. Blocks.
    pub(super) fn wait_until_removed(&self, name: &str, deadline: &mut Deadline) {
        let mut books = self.books.lock();
        let closing = |entry: &ExportRecord| entry.state == ExportState::Closing;
        while books.exports.get(name).is_some_and(closing) {
            let wait = deadline.wait();
            if wait.is_zero() {
                return;
            }
            (books, _) = self.left.wait_timeout(books, wait);
        }
    }

    /// Closes the server to new clients. Returns its exports and all connections.
    pub(super) fn close(&self) -> (Vec<Export>, Vec<Arc<Connection>>) {
        let mut books = self.books.lock();
        books.closing = true;
        let exports = books.exports.values().map(|entry| entry.export.clone()).collect();
        let connections = books.connections_of(None);
        drop(books);
        self.left.notify_all();
        (exports, connections)
    }

    /// Registers a new connection, made by `make` from its id, and returns both results of `make`.
    ///
    /// Handshakes may have the unused places of clients, and `max_half_open` more. If all are
    /// taken, this removes one handshake and passes it to `evict` (inside the lock) to be cut. It
    /// prefers a client that was refused for lack of a place. The next choice is the oldest one
    /// that has waited for its client for too long ([`policy::handshake_patience`]). If there is
    /// neither, the handshakes are live clients that came together. Then this waits, and newcomers
    /// wait in the system's queue. It also waits while as many cut connections have not ended yet,
    /// so a flood of newcomers makes no threads. `stop` tells whether to give up, since no more
    /// clients are wanted.
    pub(super) fn admit<T>(
        &self,
        who: Identity,
        options: &Options,
        stop: &dyn Fn() -> bool,
        make: impl FnOnce(u64) -> (Arc<Connection>, T),
        evict: impl Fn(&Connection),
    ) -> Result<(Arc<Connection>, T), Error> {
        let half_open_limit = options.max_half_open.max(1);
        let places = half_open_limit.saturating_add(options.max_connections);
        let mut books = self.books.lock();
        loop {
            if books.closing || stop() {
                books.handshakes.left += 1;
                return Err(Error::ShuttingDown);
            }
            let patience = policy::handshake_patience(books.cut, places);
            let ending = books.threads - books.connections.len();
            if ending < half_open_limit {
                let here = books.connections.len() - books.leaving;
                // The removal is here, so that the place is free whatever the connection's thread
                // does.
                if here < places || books.let_slow_go(patience, places, &evict) {
                    break;
                }
            }
            (books, _) = self.left.wait_timeout(books, policy::handshakes_look(patience));
        }
        let id = books.next_id();
        let (connection, rest) = make(id);
        books.half_open.insert(id);
        let entered = ConnectionRecord {
            connection: Arc::clone(&connection),
            export: None,
            who,
            leaving: false,
            told: false,
        };
        books.connections.insert(id, entered);
        books.threads += 1;
        Ok((connection, rest))
    }

    /// Begins the transmission phase of a connection. Returns the export, or the reason why there
    /// is none. If all places are taken, the client that has been idle for longest may be let go.
    pub(super) fn attach(
        &self,
        id: u64,
        name: &str,
        who: &Identity,
        options: &Options,
    ) -> Result<Export, NotAttached> {
        let mut books = self.books.lock();
        // The name was canonical, but may belong to another export by now.
        let export = books.named(name, who).filter(|export| export.access.admits(who)).cloned();
        let Some(export) = export else {
            return Err(NotAttached::Gone(name.to_owned()));
        };
        let name = export.name().to_owned();
        if books.closing {
            return Err(NotAttached::ShuttingDown);
        }
        let Some(entered) = books.connections.get(&id) else {
            return Err(NotAttached::Evicted);
        };
        let peer = entered.who.peer;
        let every = |_: &ConnectionRecord| true;
        let its_peer = |other: &ConnectionRecord| other.who.peer == peer;
        let its_export = |other: &ConnectionRecord| other.export.as_deref() == Some(&*name);
        let limits: [(Option<usize>, ConnectionFilter<'_>, &'static str); 3] = [
            (Some(options.max_connections), &every, "of this server"),
            (options.max_per_peer, &its_peer, "for clients of this address or user"),
            (export.most_clients(), &its_export, "of this export"),
        ];
        // Thousands of clients that come together mustn't each search all others.
        let most = books.connections.len() - books.half_open.len();
        for (limit, belongs, what) in limits {
            let Some(limit) = limit.filter(|limit| most >= *limit) else { continue };
            let taken = books.attached(belongs).count();
            if taken >= limit && !books.let_idle_go(belongs, options) {
                if let Some(entered) = books.connections.get(&id) {
                    entered.connection.note_refusal();
                }
                books.has_chosen();
                return Err(NotAttached::Full { places: limit, of: what });
            }
        }
        if let Some(entered) = books.connections.get_mut(&id) {
            entered.export = Some(name);
            entered.who.names.clone_from(&who.names);
        }
        books.half_open.remove(&id);
        books.handshakes.attached += 1;
        books.has_chosen();
        Ok(export)
    }

    /// Removes a connection whose thread ends. Returns the export that it had, and the client's
    /// identity. `end` says how the handshake ended, if it came to no agreement.
    pub(super) fn leave(
        &self,
        connection: &Connection,
        end: Option<&NoAgreement>,
    ) -> Option<(String, Identity)> {
        let mut books = self.books.lock();
        books.threads -= 1;
        books.half_open.remove(&connection.id);
        let gone = books.connections.remove(&connection.id);
        if gone.as_ref().is_none_or(|gone| gone.export.is_none()) {
            books.handshakes.count(connection.was_refused(), gone.is_none(), end);
        }
        if gone.as_ref().is_some_and(|gone| gone.leaving) {
            books.leaving -= 1;
        }
        if books.half_open.is_empty() {
            books.cut = 0;
        }
        let its_export = gone.as_ref().and_then(|gone| gone.export.as_ref());
        if let (Some(name), Some(gone)) = (its_export, &gone) {
            if let Some(entry) = books.exports.get_mut(name) {
                entry.past.add(&gone.connection.counts.read());
            }
        }
        drop(books);
        self.left.notify_all();
        gone.filter(|gone| !gone.told).and_then(|gone| Some((gone.export?, gone.who)))
    }

    /// Reports a client that isn't waited for any more as gone: its thread goes on. Returns the
    /// same as [`Registry::leave`], and `None` if the client has left.
    pub(super) fn leave_behind(&self, connection: &Connection) -> Option<(String, Identity)> {
        let mut books = self.books.lock();
        let entered = books.connections.get_mut(&connection.id).filter(|one| !one.told)?;
        entered.told = true;
        Some((entered.export.clone()?, entered.who.clone()))
    }

    /// Waits until none of the connections is registered, or `wait` returns zero: the length of the
    /// next wait. Returns the connections that are left. Blocks.
    pub(super) fn wait_until_gone(
        &self,
        mut connections: Vec<Arc<Connection>>,
        mut wait: impl FnMut() -> Duration,
    ) -> Vec<Arc<Connection>> {
        let mut books = self.books.lock();
        loop {
            connections.retain(|connection| books.connections.contains_key(&connection.id));
            let wait = wait();
            if connections.is_empty() || wait.is_zero() {
                return connections;
            }
            (books, _) = self.left.wait_timeout(books, wait);
        }
    }

    /// Takes the next number of a client.
    pub(super) fn next_id(&self) -> u64 {
        self.books.lock().next_id()
    }

    /// Ends a connection now. Returns false if there is none of that number.
    pub(super) fn disconnect(&self, id: u64) -> bool {
        let connection =
            self.books.lock().connections.get(&id).map(|one| Arc::clone(&one.connection));
        connection.is_some_and(|connection| {
            connection.cut(|| "an operator disconnected the client".to_owned());
            true
        })
    }
}

impl RegistryState {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns the open export that this client means by this name, even if the client may not
    /// attach to it.
    fn named(&self, name: &str, who: &Identity) -> Option<&Export> {
        if let Some(entry) = self.exports.get(name) {
            return Some(&entry.export).filter(|_| entry.state == ExportState::Open);
        }
        if !name.is_empty() {
            return None;
        }
        let the_default = self.open().find(|export| export.is_default());
        // If there is only one, the name is clear.
        let mut of_it = self.open().filter(|export| export.access.admits(who));
        let its_only = || of_it.next().filter(|_| of_it.next().is_none());
        let mut all = self.open();
        let the_only = || all.next().filter(|_| all.next().is_none());
        the_default.or_else(its_only).or_else(the_only)
    }

    fn open(&self) -> impl Iterator<Item = &Export> {
        let open = |entry: &&ExportRecord| entry.state == ExportState::Open;
        self.exports.values().filter(open).map(|entry| &entry.export)
    }

    /// Returns the selected clients that have a place.
    fn attached<'a>(
        &'a self,
        belongs: ConnectionFilter<'a>,
    ) -> impl Iterator<Item = &'a ConnectionRecord> {
        let attached =
            |one: &&ConnectionRecord| one.export.is_some() && !one.leaving && belongs(one);
        self.connections.values().filter(attached)
    }

    /// Counts a handshake that led to the choice of an export.
    fn has_chosen(&mut self) {
        self.cut = self.cut.saturating_sub(1);
    }

    /// Lets a handshake go whose client was refused for lack of a place. If there is none, lets the
    /// oldest one go that has waited for its client for `patience`.
    fn let_slow_go(
        &mut self,
        patience: Duration,
        places: usize,
        evict: impl Fn(&Connection),
    ) -> bool {
        let connection = |id: &u64| self.connections.get(id).map(|entered| &entered.connection);
        let find = |may: &dyn Fn(&Connection) -> bool| {
            let may = |id: &&u64| connection(id).is_none_or(|one| may(one));
            let mut some = self.half_open.iter().filter(may).take(policy::HANDSHAKES_ASKED);
            some.find(|id| connection(id).is_none_or(|one| !one.has_sent())).copied()
        };
        let told = find(&|one| one.was_told());
        let Some(id) = told.or_else(|| find(&|one| one.is_slow(patience))) else { return false };
        if told.is_none() {
            self.cut = (self.cut + 1).min(policy::most_cut(places));
        }
        self.half_open.remove(&id);
        if let Some(entered) = self.connections.remove(&id) {
            evict(&entered.connection);
        }
        true
    }

    /// Lets the client go that has been idle for longest, if that is long enough. It leaves as in a
    /// drain: its answered changes are flushed.
    fn let_idle_go(&mut self, belongs: ConnectionFilter<'_>, options: &Options) -> bool {
        let Some(enough) = options.evict_idle else { return false };
        // Each such client has its descriptor until its device has flushed its changes.
        if self.leaving >= options.max_half_open.max(1) {
            return false;
        }
        let idle = self.attached(belongs).filter_map(|one| {
            let idle = one.connection.idle()?;
            (idle >= enough).then_some((idle, one.connection.id))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable_by(|one, other| other.cmp(one));
        // A request that came while this process was paused lies in the socket.
        let silent = |id: &u64| {
            self.connections.get(id).is_some_and(|entered| !entered.connection.has_sent())
        };
        let Some((idle, id)) = idle.into_iter().find(|(_, id)| silent(id)) else { return false };
        let Some(entered) = self.connections.get_mut(&id) else { return false };
        entered.leaving = true;
        self.leaving += 1;
        let ConnectionRecord { connection, who, export, .. } = entered;
        let (peer, export, idle) = (who.clone(), export.clone(), policy::rounded(idle));
        connection.log.tell(LineKind::Evicted, |_| {
            move |left_out: Option<u64>| {
                // Debug: a length of time.
                tracing::info!(client = id, %peer, export, ?idle, left_out, "closed: a new client needs the place of this idle one");
            }
        });
        connection.drain(|| {
            // Debug: a length of time.
            format!(
                "the client sent no request for {idle:?}, and a new client needed its place \
                 (evict_idle)"
            )
        });
        true
    }

    /// Returns the connections of an export, or all.
    fn connections_of(&self, export: Option<&str>) -> Vec<Arc<Connection>> {
        self.connections
            .values()
            .filter(|entered| export.is_none() || entered.export.as_deref() == export)
            .map(|entered| Arc::clone(&entered.connection))
            .collect()
    }
}

/// The exports as clients see them: exports that are closing don't exist for them.
impl Registry {
    pub(super) fn find(
        &self,
        name: &str,
        log: &ClientLog,
        who: &Identity,
    ) -> Result<ExportOffer, NotOffered> {
        let export = self.books.lock().named(name, who).cloned().ok_or(NotOffered::Unknown)?;
        if export.access.admits(who) {
            return Ok(export.offer());
        }
        log.tell(LineKind::Forbidden, |ClientFacts { client, .. }| {
            let (peer, export) = (who.clone(), export.name().to_owned());
            move |left_out: Option<u64>| {
                tracing::warn!(client, %peer, export, left_out, "the server refused a client that may not use this export");
            }
        });
        let name = export.name().escape_debug();
        // The process makes no difference.
        let who = Identity { pid: None, ..who.clone() };
        let without = if who.names.is_empty() { " without a certificate" } else { "" };
        Err(NotOffered::Forbidden(format!("{who}{without} may not use the export '{name}'")))
    }

    pub(super) fn for_each(&self, who: &Identity, each: &mut dyn FnMut(&str, &str)) {
        let offers: Vec<(String, String)> = {
            let books = self.books.lock();
            let theirs = books.open().filter(|export| export.access.admits(who));
            theirs.map(|e| (e.name().to_owned(), e.description_text().to_owned())).collect()
        };
        for (name, description) in &offers {
            each(name, description);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.books.lock().exports.len()
    }
}
