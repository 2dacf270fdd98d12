//! What a server allows its clients, and what that comes to.

use std::time::Duration;

use crate::load::Budget;
use crate::memory::{self, Split};
use crate::session::STACK;

/// Listeners of a usual server: one client of each is on its way in.
const LISTENERS: u64 = 2;
/// What a thread maps beside its stack, in bytes: guard pages, and a stack for signals.
const BESIDE_STACK: u64 = 64 << 10;

/// What a server allows its clients: the [default](Options#impl-Default-for-Options), and what is
/// set of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How long a handshake may take, from the first byte of ours to the choice of an export.
    pub handshake_timeout: Duration,
    /// Clients that have chosen an export, at the same time. Each has a thread. One more is told
    /// that there is no place.
    pub max_connections: usize,
    /// How many of them may come from one address, or from one user of this machine; `None`: all.
    pub max_per_peer: Option<usize>,
    /// Where places run short: lets the client go that has asked for nothing for longest since its
    /// last reply, if it is as long as this; `None`: keeps it, and refuses the newcomer.
    pub evict_idle: Option<Duration>,
    /// Handshakes at the same time, beside those that have the places of clients that aren't there.
    /// Where all are taken a newcomer waits in the system's queue. The handshake that has waited
    /// for its client for longest is closed for it, after a second or, in a flood of silent
    /// clients, after milliseconds. So nobody is locked out by clients that never speak.
    pub max_half_open: usize,
    /// What one connection may have in flight.
    pub budget: Budget,
    /// Bytes of memory that all clients together may take, whatever they do: the payloads of writes
    /// from before they are received, those of reads until their reply is sent, and what each
    /// connection costs by itself. Each connection has a share of it that nobody else can take; for
    /// what goes beyond, requests wait for each other. [`Options::worst_case`] says what it comes
    /// to.
    pub memory: u64,
    /// How long a client may take to send a request that it began; a second more for each MiB of
    /// it. Then it is disconnected, as in the next two cases.
    pub request_timeout: Duration,
    /// How long it may take to take a reply; a second more for each MiB of it.
    pub reply_timeout: Duration,
    /// How long it may ask for nothing, from its last reply on, while nothing is owed to it;
    /// `None`: as long as it likes.
    pub idle_timeout: Option<Duration>,
    /// Whether clients may have extended headers, by which zeroes, trims, block status and
    /// prefetches have 64-bit lengths. Off, since their specification calls them experimental: it
    /// may change, and what speaks them today may not then.
    pub extended_headers: bool,
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets how long a handshake may take.
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Options {
        self.handshake_timeout = time;
        self
    }

    /// Sets how many clients may be there at the same time.
    #[must_use]
    pub fn max_connections(mut self, most: usize) -> Options {
        self.max_connections = most;
        self
    }

    /// Sets how many of them may come from one address, or from one user.
    #[must_use]
    pub fn max_per_peer(mut self, most: Option<usize>) -> Options {
        self.max_per_peer = most;
        self
    }

    /// Sets how long a client must have been silent that makes room for a newcomer.
    #[must_use]
    pub fn evict_idle(mut self, idle: Option<Duration>) -> Options {
        self.evict_idle = idle;
        self
    }

    /// Sets how many handshakes may go on at the same time.
    #[must_use]
    pub fn max_half_open(mut self, most: usize) -> Options {
        self.max_half_open = most;
        self
    }

    /// Sets what one connection may have in flight.
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

    /// Sets how long a client may take to send a request.
    #[must_use]
    pub fn request_timeout(mut self, time: Duration) -> Options {
        self.request_timeout = time;
        self
    }

    /// Sets how long a client may take to take a reply.
    #[must_use]
    pub fn reply_timeout(mut self, time: Duration) -> Options {
        self.reply_timeout = time;
        self
    }

    /// Sets how long a client may ask for nothing.
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

    /// How many bytes of memory clients can take at most, whatever they do: `memory`, or more where
    /// that is too little for so many connections.
    ///
    /// `tls`: whether the server has TLS, by which each connection costs more.
    pub fn worst_case(&self, tls: bool) -> u64 {
        self.split(tls).worst
    }

    /// How many descriptors clients can take at most, whatever they do: one for each connection,
    /// for each handshake, and for each connection that ends to make room for another; beside
    /// these, each listener has one for the client that it lets in.
    pub fn descriptors(&self) -> u64 {
        let ending = if self.evict_idle.is_some() { 2 } else { 1 };
        let handshakes = (self.max_half_open.max(1) as u64).saturating_mul(1 + ending);
        handshakes.saturating_add(self.max_connections as u64).saturating_add(LISTENERS)
    }

    /// How many bytes of the address space the stacks of clients' threads can take at most,
    /// whatever they do: two for each connection, one for each handshake, and for each connection
    /// that ends to make room for another.
    pub fn stacks(&self) -> u64 {
        let half_open = self.max_half_open.max(1) as u64;
        let ending = if self.evict_idle.is_some() { 3 } else { 1 };
        let handshakes = half_open.saturating_mul(1 + ending);
        let connections = (self.max_connections as u64).saturating_mul(2);
        let threads = handshakes.saturating_add(connections).saturating_add(LISTENERS + 1);
        threads.saturating_mul(STACK as u64 + BESIDE_STACK)
    }

    /// How many connections `memory` bytes have room for; `tls` as in [`Options::worst_case`].
    pub fn connections_for(memory: u64, tls: bool) -> usize {
        memory::places(memory, tls)
    }

    pub(super) fn split(&self, tls: bool) -> Split {
        memory::split(self.memory, self.max_connections, self.max_half_open, tls)
    }
}

impl Default for Options {
    /// 10 s for a handshake, 1,024 clients and 256 handshakes, 256 requests and 64 MiB in flight
    /// each, 4 GiB for all; 30 s for a request, a minute for a reply, no limit for silence; no
    /// extended headers.
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
