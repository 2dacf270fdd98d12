//! Options of a server, and the resources that its clients can take under them.

use std::time::Duration;

use crate::load::Budget;
use crate::memory::{self, Split};
use crate::session::STACK;

/// Number of listeners of a usual server. Each has one client on its way in.
const LISTENERS: u64 = 2;
/// Address space that a thread maps beside its stack, in bytes: guard pages, and a stack for
/// signals.
const BESIDE_STACK: u64 = 64 << 10;

/// The options of a server: the [default](Options#impl-Default-for-Options), with changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Timeout of a handshake, from the server's first byte to the choice of an export.
    pub handshake_timeout: Duration,
    /// Largest number of clients that have chosen an export. Each has a thread. The server refuses
    /// a further client a place.
    pub max_connections: usize,
    /// Largest number of them from one address, or from one user of this machine; `None` means no
    /// such limit.
    pub max_per_peer: Option<usize>,
    /// Least idle time for eviction: if places run short, the client that has been idle for longest
    /// since its last reply is let go. `None` evicts no client and refuses the newcomer.
    pub evict_idle: Option<Duration>,
    /// Largest number of handshakes, beside those that have the unused places of clients. If all
    /// are taken, a newcomer waits in the system's queue. The server closes the handshake that has
    /// waited for its client for longest. That happens after a second or, in a flood of silent
    /// clients, after milliseconds. So clients that never speak can't lock others out.
    pub max_half_open: usize,
    /// Largest load of one connection.
    pub budget: Budget,
    /// Bytes of memory that all clients together may take. They hold the payloads of writes from
    /// before they are received, those of reads until their reply is sent, and the cost of each
    /// connection. Each connection has a share that no other can take; for more, requests wait for
    /// each other. [`Options::worst_case`] returns the most that clients can take.
    pub memory: u64,
    /// Timeout of a request that a client began to send, plus a second for each MiB of it. A late
    /// client is disconnected, as with the next two options.
    pub request_timeout: Duration,
    /// Timeout for taking a reply, plus a second for each MiB of it.
    pub reply_timeout: Duration,
    /// Longest time without requests, from its last reply on, while nothing is owed to the client;
    /// `None` means no limit.
    pub idle_timeout: Option<Duration>,
    /// True if clients may have extended headers, by which zeroes, trims, block status and
    /// prefetches have 64-bit lengths. The default is false, since their specification calls them
    /// experimental: it may still change.
    pub extended_headers: bool,
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the timeout of a handshake.
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Options {
        self.handshake_timeout = time;
        self
    }

    /// Sets the largest number of clients.
    #[must_use]
    pub fn max_connections(mut self, most: usize) -> Options {
        self.max_connections = most;
        self
    }

    /// Sets the largest number of clients from one address, or from one user.
    #[must_use]
    pub fn max_per_peer(mut self, most: Option<usize>) -> Options {
        self.max_per_peer = most;
        self
    }

    /// Sets the least idle time of a client that makes room for a newcomer.
    #[must_use]
    pub fn evict_idle(mut self, idle: Option<Duration>) -> Options {
        self.evict_idle = idle;
        self
    }

    /// Sets the largest number of handshakes.
    #[must_use]
    pub fn max_half_open(mut self, most: usize) -> Options {
        self.max_half_open = most;
        self
    }

    /// Sets the largest load of one connection.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Options {
        self.budget = budget;
        self
    }

    /// Sets the bytes of memory that all clients together may take.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Options {
        self.memory = bytes;
        self
    }

    /// Sets the timeout of a request that a client began to send.
    #[must_use]
    pub fn request_timeout(mut self, time: Duration) -> Options {
        self.request_timeout = time;
        self
    }

    /// Sets the timeout for taking a reply.
    #[must_use]
    pub fn reply_timeout(mut self, time: Duration) -> Options {
        self.reply_timeout = time;
        self
    }

    /// Sets the longest time without requests.
    #[must_use]
    pub fn idle_timeout(mut self, time: Option<Duration>) -> Options {
        self.idle_timeout = time;
        self
    }

    /// Sets whether clients may have extended headers.
    #[must_use]
    pub fn extended_headers(mut self, yes: bool) -> Options {
        self.extended_headers = yes;
        self
    }

    /// Returns the bytes of memory that clients can take at most: `memory`, or more if that is too
    /// little for the number of connections.
    ///
    /// `tls` says whether the server has TLS, which makes each connection cost more.
    pub fn worst_case(&self, tls: bool) -> u64 {
        self.split(tls).worst
    }

    /// Returns the number of descriptors that clients can take at most. They need one for each
    /// connection, for each handshake, and for each connection that ends to make room for another.
    /// In addition, each listener has one for the client that it lets in.
    pub fn descriptors(&self) -> u64 {
        let ending = if self.evict_idle.is_some() { 2 } else { 1 };
        let handshakes = (self.max_half_open.max(1) as u64).saturating_mul(1 + ending);
        handshakes.saturating_add(self.max_connections as u64).saturating_add(LISTENERS)
    }

    /// Returns the bytes of address space that the stacks of clients' threads can take at most.
    /// Each connection has two, each handshake one, and each connection that ends to make room for
    /// another one.
    pub fn stacks(&self) -> u64 {
        let half_open = self.max_half_open.max(1) as u64;
        let ending = if self.evict_idle.is_some() { 3 } else { 1 };
        let handshakes = half_open.saturating_mul(1 + ending);
        let connections = (self.max_connections as u64).saturating_mul(2);
        let threads = handshakes.saturating_add(connections).saturating_add(LISTENERS + 1);
        threads.saturating_mul(STACK as u64 + BESIDE_STACK)
    }

    /// Returns the number of connections that `memory` bytes have room for. `tls` is as in
    /// [`Options::worst_case`].
    pub fn connections_for(memory: u64, tls: bool) -> usize {
        memory::places(memory, tls)
    }

    pub(super) fn split(&self, tls: bool) -> Split {
        memory::split(self.memory, self.max_connections, self.max_half_open, tls)
    }
}

impl Default for Options {
    /// Returns the defaults: 10 s for a handshake, 1,024 clients and 256 handshakes, 256 requests
    /// and 64 MiB in flight for each client, 4 GiB for all. A request may take 30 s, a reply a
    /// minute, and a silence any time. Extended headers are off.
    fn default() -> Self {
        Options {
            handshake_timeout: Duration::from_secs(10),
            max_connections: 1024,
            max_per_peer: None,
            evict_idle: None,
            max_half_open: 256,
            budget: Budget::default(),
            memory: 4 << 30,
            request_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(60),
            idle_timeout: None,
            extended_headers: false,
        }
    }
}
