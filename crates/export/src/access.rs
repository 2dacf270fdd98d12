//! Access rules: the exports that a client may attach to, and its requests and bytes a second
//! there.
//!
//! The right to attach is decided from the client's identity, which is established before.
//!
//! A limit is a token bucket that holds a second's worth. It is stored as the time at which the
//! bucket will be full again. A request takes its full cost, even if the bucket holds less. Then
//! the next one waits for longer. So a request of any size passes. Clients that share a limit wait
//! in the order in which they came, and one word changes instead of a refill.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::time;
use rustix::net::getpeername;

/// The origin of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A user of this machine, by number.
    User(u32),
    /// An IP address.
    Address(IpAddr),
    /// The kernel of this machine, which has the device as a disk.
    Kernel,
    /// An origin that the system doesn't report.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::User(uid) => write!(f, "user {uid}"),
            Peer::Address(address) => address.fmt(f),
            Peer::Kernel => f.write_str("the kernel of this machine"),
            Peer::Unknown => f.write_str("a client of unknown origin"),
        }
    }
}

/// The known facts about a client.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Origin.
    pub peer: Peer,
    /// Process that connected, if the client is on this machine. It may have passed the socket on
    /// since.
    pub pid: Option<u32>,
    /// Names in its certificate, if it showed one that was vouched for.
    pub names: Vec<String>,
}

impl Identity {
    /// Returns true if the two may be connections of one client: by certificate, or, without one,
    /// by origin.
    pub(crate) fn may_be(&self, other: &Identity) -> bool {
        match self.names.is_empty() && other.names.is_empty() {
            true => self.peer == other.peer,
            false => self.names == other.names,
        }
    }
}

impl Identity {
    /// Asks the system for the peer of a socket: an address, or a user and a process.
    pub fn of(socket: &OwnedFd) -> Identity {
        let name = getpeername(socket).ok().flatten();
        let (peer, pid) = match name.and_then(|name| SocketAddr::try_from(name).ok()) {
            Some(address) => (Peer::Address(address.ip().to_canonical()), None),
            None => match credentials(socket) {
                // The system reports 0 for a process outside this PID namespace.
                Some(ucred) => (Peer::User(ucred.uid), (ucred.pid > 0).then_some(ucred.pid as u32)),
                None => (Peer::Unknown, None),
            },
        };
        Identity { peer, pid, names: Vec::new() }
    }
}

impl From<Peer> for Identity {
    /// Returns the identity of a client of which nothing but the origin is known.
    fn from(peer: Peer) -> Identity {
        Identity { peer, pid: None, names: Vec::new() }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)?;
        if let Some(pid) = self.pid {
            write!(f, ", process {pid}")?;
        }
        for (n, name) in self.names.iter().enumerate() {
            let before = if n == 0 { " with the certificate of " } else { ", " };
            write!(f, "{before}'{}'", name.escape_debug())?;
        }
        Ok(())
    }
}

/// Returns the user and the process that connected a Unix socket. `rustix` has the same, with a
/// process number that can't be 0.
fn credentials(socket: &OwnedFd) -> Option<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `socket` is open, and `found` has room for the `len` bytes that the call writes; any
    // bytes are a `ucred`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    (done == 0 && len as usize == size_of::<libc::ucred>()).then_some(found)
}

/// The clients that may attach to an export: all clients if neither field is set.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Users of this machine, by number.
    pub uids: Option<Vec<u32>>,
    /// Names in certificates.
    pub names: Option<Vec<String>>,
}

impl Access {
    /// Returns true if a rule lets this client in.
    pub fn admits(&self, who: &Identity) -> bool {
        let Access { uids, names } = self;
        if uids.is_none() && names.is_none() {
            return true;
        }
        let has_uid = |uid: &u32| who.peer == Peer::User(*uid);
        let has_name = |name: &String| who.names.contains(name);
        uids.iter().flatten().any(has_uid) || names.iter().flatten().any(has_name)
    }
}

/// Capacity of a bucket, in nanoseconds of filling.
const BURST: u64 = 1_000_000_000;

/// The largest number of requests and bytes a second; `None` means no limit. A second's worth that
/// has been saved up passes at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Requests of any kind: at least 1.
    pub requests: Option<u64>,
    /// Bytes that are read or written: at least 1.
    pub bytes: Option<u64>,
}

impl Rate {
    /// Returns true if nothing is limited.
    pub(crate) fn is_unlimited(self) -> bool {
        self == Rate::default()
    }
}

/// Takes `cost` from a bucket that fills by `per_second` a second and would have been full at
/// `full`. Returns when it is full again, and when the request may pass, all in nanoseconds. Pure.
fn take(full: u64, now: u64, cost: u64, per_second: u64) -> (u64, u64) {
    let full = full.max(now);
    let takes = u128::from(cost) * u128::from(BURST) / u128::from(per_second.max(1));
    let takes = u64::try_from(takes).unwrap_or(u64::MAX);
    (full.saturating_add(takes), full.saturating_sub(BURST))
}

/// A limit, and the part of it that has been taken.
#[derive(Debug)]
pub struct Limiter {
    rate: Rate,
    made: Instant,
    /// A: the time at which there will be a second's worth of requests again, in nanoseconds since
    /// `made`. Relaxed: a number.
    requests: AtomicU64,
    /// A: the same for bytes.
    bytes: AtomicU64,
}

impl Limiter {
    /// Creates a limiter, or returns `None` if nothing is limited.
    pub fn new(rate: Rate) -> Option<Limiter> {
        let (requests, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        (!rate.is_unlimited()).then(|| Limiter { rate, made: time::now(), requests, bytes })
    }

    /// Takes the cost of a request. Returns how long after `now` it may pass.
    pub fn take(&self, now: Instant, bytes: u64) -> Duration {
        let since = now.saturating_duration_since(self.made).as_nanos();
        let now = u64::try_from(since).unwrap_or(u64::MAX);
        let of = |bucket: &AtomicU64, cost, per_second: Option<u64>| {
            let Some(per_second) = per_second.filter(|_| cost > 0) else { return 0 };
            let after = |full| Some(take(full, now, cost, per_second).0);
            let full = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
            take(full.unwrap_or_else(|full| full), now, cost, per_second).1
        };
        let begin =
            of(&self.requests, 1, self.rate.requests).max(of(&self.bytes, bytes, self.rate.bytes));
        Duration::from_nanos(begin.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(peer: Peer, names: &[&str]) -> Identity {
        let names = names.iter().map(ToString::to_string).collect();
        Identity { peer, pid: None, names }
    }

    #[test]
    fn a_client_comes_in_by_one_of_the_rules_and_anybody_where_there_is_none() {
        let local = Peer::Address([127, 0, 0, 1].into());
        let everybody = Access::default();
        assert!(everybody.admits(&who(Peer::Unknown, &[])));
        let rules =
            Access { uids: Some(vec![7, 8]), names: Some(vec!["a".to_string(), "b".to_string()]) };
        assert!(rules.admits(&who(Peer::User(8), &[])));
        assert!(rules.admits(&who(local, &["x", "b"])));
        assert!(!rules.admits(&who(local, &["ab", "A"])));
        assert!(!rules.admits(&who(Peer::User(0), &[])), "root is a user like others");
        let nobody = Access { uids: Some(Vec::new()), names: None };
        assert!(!nobody.admits(&who(Peer::User(8), &["a"])), "an empty list is for nobody");
    }

    #[test]
    fn a_client_is_named_by_what_is_known_of_it() {
        assert_eq!(who(Peer::User(8), &[]).to_string(), "user 8");
        let known = Identity { pid: Some(77), ..who(Peer::User(8), &["a"]) };
        assert_eq!(known.to_string(), "user 8, process 77 with the certificate of 'a'");
        let peer = Peer::Address([10, 0, 0, 1].into());
        assert_eq!(
            who(peer, &["a", "b\n"]).to_string(),
            "10.0.0.1 with the certificate of 'a', 'b\\n'"
        );
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn limiter(requests: Option<u64>, bytes: Option<u64>) -> Limiter {
        Limiter::new(Rate { requests, bytes }).expect("something is limited")
    }

    #[test]
    fn a_second_s_worth_goes_through_at_once_and_then_as_much_as_is_allowed() {
        let limiter = limiter(Some(10), None);
        let mut now = limiter.made;
        assert!((0..11).all(|_| limiter.take(now, 1 << 30).is_zero()), "and one for the way");
        assert_eq!(limiter.take(now, 0), SECOND / 10);
        assert_eq!(limiter.take(now, 0), SECOND / 5, "behind the other, which has its turn");
        now += SECOND / 5;
        assert_eq!(limiter.take(now, 0), SECOND / 10);
        // Nothing is saved up beyond a second's worth.
        now += 100 * SECOND;
        assert_eq!((0..20).filter(|_| limiter.take(now, 0).is_zero()).count(), 11);
    }

    #[test]
    fn a_request_of_any_size_goes_through_and_the_next_one_waits_for_it() {
        let limiter = limiter(Some(1000), Some(1 << 20));
        let now = limiter.made;
        assert!(limiter.take(now, 32 << 20).is_zero());
        assert_eq!(limiter.take(now, 4096), 31 * SECOND);
        assert!(limiter.take(now, 0).is_zero(), "it moves no bytes");
        assert!(limiter.take(now + 32 * SECOND, 1).is_zero());
        // No sum is too large.
        limiter.take(now, u64::MAX);
        limiter.take(now, u64::MAX);
        assert!(limiter.take(now, 1) > 1_000_000 * SECOND);
    }

    #[test]
    fn over_any_time_no_more_goes_through_than_is_allowed_and_a_second_s_worth() {
        let mut rng = fastrand::Rng::with_seed(99);
        let mut below = |n: u64| rng.u64(..n);
        for rate in [1, 7, 4096, 1 << 30] {
            let limiter = limiter(None, Some(rate));
            let (begin, largest) = (limiter.made, rate / 2 + 1);
            let (mut now, mut through) = (begin, 0);
            for _ in 0..2000 {
                let bytes = 1 + below(largest);
                now += limiter.take(now, bytes);
                through += bytes;
                let allowed = (now - begin).as_secs_f64() * rate as f64 + (rate + largest) as f64;
                assert!(through as f64 <= allowed + 1.0, "{through} of {allowed}");
                now += Duration::from_micros(below(3) * 100_000);
            }
        }
    }

    #[test]
    fn where_nothing_is_limited_there_is_no_limiter() {
        assert!(Limiter::new(Rate::default()).is_none());
    }
}
