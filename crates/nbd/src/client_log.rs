//! Rate limits for the log lines that clients cause. Each kind of trouble is logged once, then by
//! rate, and all lines about one peer together are limited. Suppressed lines are counted, and
//! reported with the next line of their kind, or when a connection of the peer ends.
//!
//! A peer is a user of this machine, an address, or a network of the smallest size that IPv6 hands
//! out. A client that reconnects gets no new allowance. The memory for this is bounded. If more
//! peers than [`PEERS`] cause trouble together, the later ones share one account.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::{LeftOut, Mutex, Throttle, panics};

use crate::wire::ReplyError;
use corewise_export::{Identity, Peer};

/// Number of lines that a peer may cause at once.
const LINES: u32 = 24;
/// Time after which a peer may cause one more line.
const LINES_EVERY: Duration = Duration::from_secs(1);
/// Largest number of peers with an account.
const PEERS: usize = 256;
/// Largest number of exports at which a peer has an account of its own.
const EXPORTS: usize = 8;

/// Logs a line. The subscriber is user code: a panic in it delays no client's reply.
pub(crate) fn tell(say: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(say)).unwrap_or_else(panics::discard);
}

/// The kinds of lines about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// The device failed a request of the client.
    Failed(ReplyError),
    /// A request of the client was refused.
    Refused(ReplyError),
    /// The client was cut because of a message that it sent.
    Cut,
    /// The client was cut because it was too slow.
    Slow,
    /// The client was cut at the deadline of a drain.
    Late,
    /// The client was let go because it asked for nothing.
    Idle,
    /// The client's handshake failed.
    Handshake,
    /// TLS failed.
    Tls,
    /// An export isn't for the client.
    Forbidden,
    /// The client's place was given to another client.
    Evicted,
    /// The server failed, at the cost of the client.
    Ours,
}

/// All errors of a reply.
const ERRORS: [ReplyError; 8] = [
    ReplyError::Perm,
    ReplyError::Io,
    ReplyError::NoMem,
    ReplyError::Inval,
    ReplyError::NoSpc,
    ReplyError::Overflow,
    ReplyError::NotSup,
    ReplyError::Shutdown,
];
/// The kinds that are not the error of a reply.
const OTHERS: [LineKind; 9] = [
    LineKind::Cut,
    LineKind::Slow,
    LineKind::Late,
    LineKind::Idle,
    LineKind::Handshake,
    LineKind::Tls,
    LineKind::Forbidden,
    LineKind::Evicted,
    LineKind::Ours,
];
const KINDS: usize = 2 * ERRORS.len() + OTHERS.len();

impl LineKind {
    /// Returns the number of the kind, below [`KINDS`].
    fn index(self) -> usize {
        let of = |error| ERRORS.iter().position(|other| *other == error).unwrap_or_default();
        match self {
            LineKind::Failed(error) => of(error),
            LineKind::Refused(error) => ERRORS.len() + of(error),
            other => {
                let at = OTHERS.iter().position(|one| *one == other);
                2 * ERRORS.len() + at.unwrap_or_default()
            }
        }
    }

    fn all() -> impl Iterator<Item = LineKind> {
        let failed = ERRORS.into_iter().map(LineKind::Failed);
        failed.chain(ERRORS.into_iter().map(LineKind::Refused)).chain(OTHERS)
    }

    /// Returns true if the kind is trouble. Other kinds are news, logged at a level that is usually
    /// off.
    fn is_trouble(self) -> bool {
        !matches!(self, LineKind::Idle | LineKind::Handshake | LineKind::Evicted)
    }

    /// Returns the words for several lines.
    fn words(self) -> &'static str {
        match self {
            LineKind::Failed(_) => "requests that the device failed",
            LineKind::Refused(_) => "requests that were refused",
            LineKind::Cut => "connections that were cut for invalid data",
            LineKind::Slow => "connections that were too slow",
            LineKind::Late => "connections that were cut at the deadline of a drain",
            LineKind::Idle => "connections without a request",
            LineKind::Handshake => "handshakes that failed",
            LineKind::Tls => "failures of TLS",
            LineKind::Forbidden => "choices of an export that the client may not use",
            LineKind::Evicted => "connections that made way for others",
            LineKind::Ours => "faults of this server",
        }
    }

    fn error(self) -> Option<ReplyError> {
        match self {
            LineKind::Failed(error) | LineKind::Refused(error) => Some(error),
            _ => None,
        }
    }
}

/// The accounts of one peer at one export, or before it has chosen one.
#[derive(Debug)]
struct Throttles([Throttle; KINDS]);

impl Throttles {
    fn new() -> Arc<Throttles> {
        Arc::new(Throttles(std::array::from_fn(|_| Throttle::new())))
    }

    fn of(&self, what: LineKind) -> &Throttle {
        &self.0[what.index()]
    }

    fn is_rested(&self) -> bool {
        self.0.iter().all(Throttle::is_rested)
    }

    /// Takes the suppressed lines of each kind. They count as reported now.
    fn take_left_out(&self) -> Vec<(LineKind, LeftOut)> {
        let left_out = LineKind::all().map(|what| (what, self.of(what).take_left_out()));
        left_out.filter(|(_, left_out)| left_out.messages() != 0).collect()
    }
}

/// Reports the suppressed lines of a peer.
fn tell_left_out(peer: &dyn fmt::Display, export: Option<&str>, kinds: Vec<(LineKind, LeftOut)>) {
    let (mut all, mut words) = (LeftOut::default(), String::new());
    for (what, left_out) in kinds {
        let comma = if words.is_empty() { "" } else { ", " };
        let _ = write!(words, "{comma}{}", what.words());
        if let Some(error) = what.error() {
            let _ = write!(words, " ({})", error.message());
        }
        let _ = write!(words, ": {}", left_out.messages());
        all.add(left_out);
    }
    tell(|| {
        all.tell(|all| {
            tracing::warn!(%peer, export, left_out = all, "further lines about a client were suppressed: {words}");
        });
    });
}

/// The account of one peer.
#[derive(Debug)]
pub(crate) struct PeerAccount {
    /// The peer; `None` if several share the account.
    peer: Option<Peer>,
    /// Limit of all its lines.
    lines: Throttle,
    /// Accounts of lines that belong to no export.
    none: Arc<Throttles>,
    /// L: is the lock, taken when a client chooses an export; guards the accounts at the exports.
    exports: Mutex<Vec<(String, Arc<Throttles>)>>,
}

impl PeerAccount {
    fn new(peer: Option<Peer>) -> Arc<PeerAccount> {
        let lines = Throttle::with_rate(LINES, LINES_EVERY);
        Arc::new(PeerAccount { peer, lines, none: Throttles::new(), exports: Mutex::default() })
    }

    /// Returns the account at an export. If the peer has been at too many, an unused account with
    /// nothing to report makes way. If there is none, the account of no export stands in.
    fn at(&self, export: &str) -> Arc<Throttles> {
        let mut exports = self.exports.lock();
        if let Some((_, kinds)) = exports.iter().find(|(name, _)| name == export) {
            return Arc::clone(kinds);
        }
        if exports.len() >= EXPORTS {
            let done = |(_, kinds): &(_, Arc<Throttles>)| {
                Arc::strong_count(kinds) == 1 && kinds.is_rested()
            };
            match exports.iter().position(done) {
                Some(at) => drop(exports.swap_remove(at)),
                None => return Arc::clone(&self.none),
            }
        }
        let kinds = Throttles::new();
        exports.push((export.to_owned(), Arc::clone(&kinds)));
        kinds
    }

    fn is_rested(&self) -> bool {
        let all_rested = || self.exports.lock().iter().all(|(_, kinds)| kinds.is_rested());
        self.lines.is_rested() && self.none.is_rested() && all_rested()
    }
}

/// The accounts of all peers.
#[derive(Debug)]
pub(crate) struct PeerAccounts {
    /// L: is the lock, taken when a client comes; guards the accounts.
    accounts: Mutex<BTreeMap<(u8, u128), Arc<PeerAccount>>>,
    /// Account of the peers that have none of their own.
    rest: Arc<PeerAccount>,
}

/// Returns the key by which a peer is recognised.
fn key(peer: Peer) -> (u8, u128) {
    match peer {
        Peer::User(uid) => (1, uid.into()),
        Peer::Address(IpAddr::V4(address)) => (2, u32::from(address).into()),
        Peer::Address(IpAddr::V6(address)) => (3, u128::from(address) >> 64),
        _ => (0, 0),
    }
}

impl PeerAccounts {
    pub(crate) fn new() -> PeerAccounts {
        PeerAccounts { accounts: Mutex::default(), rest: PeerAccount::new(None) }
    }

    /// Returns the account of a peer.
    pub(crate) fn of(&self, peer: Peer) -> Arc<PeerAccount> {
        let key = key(peer);
        let mut accounts = self.accounts.lock();
        if let Some(account) = accounts.get(&key) {
            return Arc::clone(account);
        }
        if accounts.len() >= PEERS {
            accounts.retain(|_, account| Arc::strong_count(account) > 1 || !account.is_rested());
        }
        if accounts.len() >= PEERS {
            return Arc::clone(&self.rest);
        }
        Arc::clone(accounts.entry(key).or_insert_with(|| PeerAccount::new(Some(peer))))
    }

    /// Reports all suppressed lines, one line for each peer and export. Called at the end.
    pub(crate) fn tell_rest(&self) {
        let mut all: Vec<_> = self.accounts.lock().values().map(Arc::clone).collect();
        all.push(Arc::clone(&self.rest));
        for account in all {
            let exports = account.exports.lock().clone();
            let named = exports.iter().map(|(name, kinds)| (Some(&**name), kinds));
            for (export, kinds) in named.chain([(None, &account.none)]) {
                let left_out = kinds.take_left_out();
                match account.peer {
                    _ if left_out.is_empty() => {}
                    Some(peer) => tell_left_out(&peer, export, left_out),
                    None => tell_left_out(&"several", export, left_out),
                }
            }
        }
    }
}

/// A log for the lines about one client.
#[derive(Clone, Debug)]
pub(crate) struct ClientLog {
    pub(crate) client: u64,
    pub(crate) who: Identity,
    /// Name of the export; empty before there is one.
    pub(crate) export: String,
    account: Arc<PeerAccount>,
    kinds: Arc<Throttles>,
}

/// The facts of a client that a line about it names.
pub(crate) struct ClientFacts {
    pub(crate) client: u64,
    pub(crate) peer: Identity,
    /// Name of the export; empty before there is one.
    pub(crate) export: String,
}

impl ClientLog {
    /// Creates the log of a connection without an export.
    pub(crate) fn new(account: Arc<PeerAccount>, client: u64, who: Identity) -> ClientLog {
        let kinds = Arc::clone(&account.none);
        ClientLog { client, who, export: String::new(), account, kinds }
    }

    /// Returns the log of the same client at an export.
    pub(crate) fn at(&self, who: Identity, export: &str) -> ClientLog {
        let (account, kinds) = (Arc::clone(&self.account), self.account.at(export));
        ClientLog { client: self.client, who, export: export.to_owned(), account, kinds }
    }

    /// Logs a line if the limits allow it: `make` makes a function that gets the number of
    /// suppressed lines. That function owns its data, since it may be held back for a while. Any
    /// context, if both functions may run there.
    pub(crate) fn tell<L: FnOnce(Option<u64>) + Send + 'static>(
        &self,
        what: LineKind,
        make: impl FnOnce(ClientFacts) -> L,
    ) {
        // Lines that no subscriber takes aren't counted.
        if !what.is_trouble() && !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let known = || ClientFacts {
            client: self.client,
            peer: self.who.clone(),
            export: self.export.clone(),
        };
        let line = || {
            let line = make(known());
            move |left_out| tell(|| line(left_out))
        };
        tell(|| self.kinds.of(what).tell_within(&self.account.lines, line));
    }

    /// Reports the suppressed lines of a connection that is over. If its peer has used up its
    /// lines, they stay counted.
    pub(crate) fn over(&self) {
        let left_out = self.kinds.take_left_out();
        if left_out.is_empty() {
            return;
        }
        if !self.account.lines.admit() {
            let back = |(what, left_out)| self.kinds.of(what).put_back(left_out);
            return left_out.into_iter().for_each(back);
        }
        let export = (!self.export.is_empty()).then_some(&*self.export);
        tell_left_out(&self.who, export, left_out);
    }

    #[cfg(test)]
    pub(crate) fn of_test(client: u64) -> ClientLog {
        let who = Identity { peer: Peer::Unknown, pid: None, names: Vec::new() };
        ClientLog::new(PeerAccount::new(None), client, who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Identity {
        Identity { peer: Peer::User(uid), pid: None, names: Vec::new() }
    }

    /// Logs `times` lines. Returns the number of written lines, and of suppressed ones that they
    /// reported.
    fn told(log: &ClientLog, what: LineKind, times: usize) -> (u32, u64) {
        let (told, heard) = std::sync::mpsc::channel();
        for _ in 0..times {
            let told = told.clone();
            log.tell(what, |_| {
                move |left_out: Option<u64>| {
                    let _ = told.send(left_out);
                }
            });
        }
        heard.try_iter().fold((0, 0), |(lines, before), left_out| {
            (lines + 1, before + left_out.unwrap_or_default())
        })
    }

    #[test]
    fn each_kind_has_an_account_of_its_own() {
        let mut all: Vec<_> = LineKind::all().map(LineKind::index).collect();
        all.sort_unstable();
        assert_eq!(all, (0..KINDS).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_has_so_many_lines_however_often_it_comes_and_whatever_it_tries_and_none_is_lost() {
        let accounts = PeerAccounts::new();
        let (mut lines, mut before, mut asked) = (0, 0, 0);
        for client in 0..100 {
            let log = ClientLog::new(accounts.of(Peer::User(7)), client, user(7));
            let log = log.at(user(7), &format!("export {}", client % 20));
            for what in LineKind::all().filter(|what| what.is_trouble()) {
                let told = told(&log, what, 10);
                (lines, before, asked) = (lines + told.0, before + told.1, asked + 10);
            }
        }
        // There are some more if the machine is so slow that seconds have gone by.
        assert!((LINES..2 * LINES).contains(&lines), "{lines} lines");
        let account = accounts.of(Peer::User(7));
        let exports = account.exports.lock().clone();
        assert_eq!(exports.len(), EXPORTS);
        let kinds = exports.iter().map(|(_, kinds)| kinds).chain([&account.none]);
        let left_out: u64 =
            kinds.flat_map(|kinds| kinds.take_left_out()).map(|(_, n)| n.messages()).sum();
        assert_eq!(u64::from(lines) + before + left_out, asked);
        let other = ClientLog::new(accounts.of(Peer::User(8)), 200, user(8));
        assert_ne!(told(&other, LineKind::Cut, 1000).0, 0, "another peer has its own");
    }

    #[test]
    fn so_many_peers_have_accounts_a_quiet_one_makes_way_and_the_others_share_one() {
        let accounts = PeerAccounts::new();
        for uid in 0..2 * PEERS as u32 {
            accounts.of(Peer::User(uid));
            assert!(accounts.accounts.lock().len() <= PEERS);
        }
        let accounts = PeerAccounts::new();
        for uid in 0..=PEERS as u32 {
            let log = ClientLog::new(accounts.of(Peer::User(uid)), 1, user(uid));
            assert_eq!(told(&log, LineKind::Cut, 1), (1, 0));
        }
        let late = |uid| Arc::ptr_eq(&accounts.of(Peer::User(uid)), &accounts.rest);
        assert!(!late(0) && late(PEERS as u32) && late(u32::MAX));
        let place = |address: [u16; 8]| key(Peer::Address(IpAddr::from(address)));
        assert_eq!(place([1, 2, 3, 4, 5, 6, 7, 8]), place([1, 2, 3, 4, 9, 9, 9, 9]), "one network");
        assert_ne!(place([1, 2, 3, 4, 5, 6, 7, 8]), place([1, 2, 3, 5, 5, 6, 7, 8]));
    }
}
