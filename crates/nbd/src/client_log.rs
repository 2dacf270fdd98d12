//! The lines that clients cause in the log: each kind of trouble once, then by rate, and no more
//! than so many lines for one peer, however it tries. All others are counted, and told with the
//! next line of their kind, or when a connection of the peer ends.
//!
//! A peer is a user of this machine, an address, or a network of the smallest size that IPv6 hands
//! out: a client that comes again has no new allowance. The memory for this is bounded; where more
//! peers than [`PEERS`] make trouble together, the later ones share one place.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::{LeftOut, Mutex, Throttle, panics};

use crate::access::{Identity, Peer};
use crate::wire::ReplyError;

/// The lines that a peer may cause at once,
const LINES: u32 = 24;
/// and the time after which it may cause one more.
const LINES_EVERY: Duration = Duration::from_secs(1);
/// Of how many peers accounts are kept.
const PEERS: usize = 256;
/// For how many exports each has an account of its own.
const EXPORTS: usize = 8;

/// Tells the log. The subscriber is user code: a panic in there keeps no client from its reply.
pub(crate) fn tell(say: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(say)).unwrap_or_else(panics::discard);
}

/// The kinds of lines about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// The device failed its request.
    Failed(ReplyError),
    /// Its request was refused.
    Refused(ReplyError),
    /// It was cut for what it sent.
    Cut,
    /// It was cut since it took too long.
    Slow,
    /// It was cut at the deadline of a drain.
    Late,
    /// It was let go since it asked for nothing.
    Idle,
    /// Its handshake came to nothing.
    Handshake,
    /// TLS failed.
    Tls,
    /// An export isn't for it.
    Forbidden,
    /// Its place was given to somebody else.
    Evicted,
    /// Something in here broke, and it had the damage.
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
    /// Each has a number of its own, below [`KINDS`].
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

    /// Whether it is trouble; else news, which only somebody hears who asked for them.
    fn is_trouble(self) -> bool {
        !matches!(self, LineKind::Idle | LineKind::Handshake | LineKind::Evicted)
    }

    /// The words for several lines.
    fn words(self) -> &'static str {
        match self {
            LineKind::Failed(_) => "requests that the device failed",
            LineKind::Refused(_) => "requests that were refused",
            LineKind::Cut => "connections that were cut for what they sent",
            LineKind::Slow => "connections that were too slow",
            LineKind::Late => "connections that were cut at the deadline of a drain",
            LineKind::Idle => "connections that asked for nothing",
            LineKind::Handshake => "handshakes that failed",
            LineKind::Tls => "failures of TLS",
            LineKind::Forbidden => "choices of an export that isn't for it",
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

/// The accounts of one peer at one export, or at none yet.
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

    /// Takes what was left out of each kind. It counts as told now.
    fn take_left_out(&self) -> Vec<(LineKind, LeftOut)> {
        let left_out = LineKind::all().map(|what| (what, self.of(what).take_left_out()));
        left_out.filter(|(_, left_out)| left_out.messages() != 0).collect()
    }
}

/// Tells what was left out of a peer.
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
            tracing::warn!(%peer, export, left_out = all, "more of a client was not told: {words}");
        });
    });
}

/// The account of one peer.
#[derive(Debug)]
pub(crate) struct PeerAccount {
    /// `None`: several.
    peer: Option<Peer>,
    /// All its lines.
    lines: Throttle,
    /// Those that belong to no export.
    none: Arc<Throttles>,
    /// L: is the lock, taken when a client chooses an export; guards the accounts at the exports.
    exports: Mutex<Vec<(String, Arc<Throttles>)>>,
}

impl PeerAccount {
    fn new(peer: Option<Peer>) -> Arc<PeerAccount> {
        let lines = Throttle::with_rate(LINES, LINES_EVERY);
        Arc::new(PeerAccount { peer, lines, none: Throttles::new(), exports: Mutex::default() })
    }

    /// The account at an export. Where the peer has been at too many, one that nobody uses and that
    /// has nothing to tell makes way; where there is none, that of no export does for it.
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
    hosts: Mutex<BTreeMap<(u8, u128), Arc<PeerAccount>>>,
    /// For those that have no place.
    rest: Arc<PeerAccount>,
}

/// By what a peer is known when it comes again.
fn key(peer: Peer) -> (u8, u128) {
    match peer {
        Peer::Unknown => (0, 0),
        Peer::User(uid) => (1, uid.into()),
        Peer::Address(IpAddr::V4(address)) => (2, u32::from(address).into()),
        Peer::Address(IpAddr::V6(address)) => (3, u128::from(address) >> 64),
    }
}

impl PeerAccounts {
    pub(crate) fn new() -> PeerAccounts {
        PeerAccounts { hosts: Mutex::default(), rest: PeerAccount::new(None) }
    }

    /// The account of a peer that has come.
    pub(crate) fn of(&self, peer: Peer) -> Arc<PeerAccount> {
        let key = key(peer);
        let mut hosts = self.hosts.lock();
        if let Some(host) = hosts.get(&key) {
            return Arc::clone(host);
        }
        if hosts.len() >= PEERS {
            hosts.retain(|_, host| Arc::strong_count(host) > 1 || !host.is_rested());
        }
        if hosts.len() >= PEERS {
            return Arc::clone(&self.rest);
        }
        Arc::clone(hosts.entry(key).or_insert_with(|| PeerAccount::new(Some(peer))))
    }

    /// At the end: tells all that was left out, a line a peer and export.
    pub(crate) fn tell_rest(&self) {
        let mut all: Vec<_> = self.hosts.lock().values().map(Arc::clone).collect();
        all.push(Arc::clone(&self.rest));
        for host in all {
            let exports = host.exports.lock().clone();
            let named = exports.iter().map(|(name, kinds)| (Some(&**name), kinds));
            for (export, kinds) in named.chain([(None, &host.none)]) {
                let left_out = kinds.take_left_out();
                match host.peer {
                    _ if left_out.is_empty() => {}
                    Some(peer) => tell_left_out(&peer, export, left_out),
                    None => tell_left_out(&"several", export, left_out),
                }
            }
        }
    }
}

/// By what a connection is told of.
#[derive(Clone, Debug)]
pub(crate) struct ClientLog {
    pub(crate) client: u64,
    pub(crate) who: Identity,
    /// The export's name; empty before there is one.
    pub(crate) export: String,
    host: Arc<PeerAccount>,
    kinds: Arc<Throttles>,
}

/// The facts of a client that a line about it names.
pub(crate) struct ClientFacts {
    pub(crate) client: u64,
    pub(crate) peer: Identity,
    /// The export's name; empty before there is one.
    pub(crate) export: String,
}

impl ClientLog {
    /// Of a connection that has no export yet.
    pub(crate) fn new(host: Arc<PeerAccount>, client: u64, who: Identity) -> ClientLog {
        let kinds = Arc::clone(&host.none);
        ClientLog { client, who, export: String::new(), host, kinds }
    }

    /// The same client at an export.
    pub(crate) fn at(&self, who: Identity, export: &str) -> ClientLog {
        let (host, kinds) = (Arc::clone(&self.host), self.host.at(export));
        ClientLog { client: self.client, who, export: export.to_owned(), host, kinds }
    }

    /// Has what `make` makes tell the log, if it is time for it: with how many like it were left
    /// out before. It owns what it tells, since it may be held back for a while. Any context, if
    /// both may be.
    pub(crate) fn tell<L: FnOnce(Option<u64>) + Send + 'static>(
        &self,
        what: LineKind,
        make: impl FnOnce(ClientFacts) -> L,
    ) {
        // Nobody counts what nobody would hear.
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
        tell(|| self.kinds.of(what).tell_within(&self.host.lines, line));
    }

    /// The connection is over: tells what was left out of its peer. Where that has had its lines it
    /// stays counted.
    pub(crate) fn over(&self) {
        let left_out = self.kinds.take_left_out();
        if left_out.is_empty() {
            return;
        }
        if !self.host.lines.admit() {
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

    /// How many lines it took to tell so many, and how many others these lines told of.
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
        let hosts = PeerAccounts::new();
        let (mut lines, mut before, mut asked) = (0, 0, 0);
        for client in 0..100 {
            let log = ClientLog::new(hosts.of(Peer::User(7)), client, user(7));
            let log = log.at(user(7), &format!("export {}", client % 20));
            for what in LineKind::all().filter(|what| what.is_trouble()) {
                let told = told(&log, what, 10);
                (lines, before, asked) = (lines + told.0, before + told.1, asked + 10);
            }
        }
        // Some more where the machine is so slow that seconds have gone by.
        assert!((LINES..2 * LINES).contains(&lines), "{lines} lines");
        let host = hosts.of(Peer::User(7));
        let exports = host.exports.lock().clone();
        assert_eq!(exports.len(), EXPORTS);
        let kinds = exports.iter().map(|(_, kinds)| kinds).chain([&host.none]);
        let left_out: u64 =
            kinds.flat_map(|kinds| kinds.take_left_out()).map(|(_, n)| n.messages()).sum();
        assert_eq!(u64::from(lines) + before + left_out, asked);
        let other = ClientLog::new(hosts.of(Peer::User(8)), 200, user(8));
        assert_ne!(told(&other, LineKind::Cut, 1000).0, 0, "another peer has its own");
    }

    #[test]
    fn so_many_peers_have_accounts_a_quiet_one_makes_way_and_the_others_share_one() {
        let hosts = PeerAccounts::new();
        for uid in 0..2 * PEERS as u32 {
            hosts.of(Peer::User(uid));
            assert!(hosts.hosts.lock().len() <= PEERS);
        }
        let hosts = PeerAccounts::new();
        for uid in 0..=PEERS as u32 {
            let log = ClientLog::new(hosts.of(Peer::User(uid)), 1, user(uid));
            assert_eq!(told(&log, LineKind::Cut, 1), (1, 0));
        }
        let late = |uid| Arc::ptr_eq(&hosts.of(Peer::User(uid)), &hosts.rest);
        assert!(!late(0) && late(PEERS as u32) && late(u32::MAX));
        let place = |address: [u16; 8]| key(Peer::Address(IpAddr::from(address)));
        assert_eq!(place([1, 2, 3, 4, 5, 6, 7, 8]), place([1, 2, 3, 4, 9, 9, 9, 9]), "one network");
        assert_ne!(place([1, 2, 3, 4, 5, 6, 7, 8]), place([1, 2, 3, 5, 5, 6, 7, 8]));
    }
}
