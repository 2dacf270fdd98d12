//! Clocks that product code reads, one for the deadlines of others, and histograms of times.
//!
//! [`now`] and [`Stamp`] read the system's monotonic clock. Under loom it stands still. Shuttle has
//! no time, so there the clock stands still. Only a wait whose time runs out, which may happen at
//! any moment, moves the clock on to its end. So code that compares deadlines behaves as on a
//! machine whose threads are arbitrarily slow, and a seed replays it exactly.
//!
//! # Clock of a deadline
//!
//! On Linux the monotonic clock stands still while the system is suspended; the clock of
//! [`BootStamp`] continues. Waits (a [`Parker`](crate::Parker), a
//! [`Completion`](crate::Completion), [`sys::Timer`](crate::sys::Timer), `poll`, tokio's timers)
//! use the monotonic clock: one that begins before a suspend may end late by that suspend. So a
//! deadline that another machine counts on is compared with a [`BootStamp`] after the wait. The
//! wait itself never decides whether it is over.
//!
//! **Boot.** Another machine counts these times too, suspended or not:
//!
//! - the lease of a volume in an object store (`object`): how long one check for another server
//!   stays valid. Too short a lease costs one request, too long a lease returns old data;
//! - how long a new server holds its first write, and how often a server looks for a record that
//!   must be there (`object`). Both are measured by that lease.
//!
//! **Wall.** These are dates:
//!
//! - validity of certificates (`nbd::tls`);
//! - the time of a snapshot; stamps of logs, events and records (`object`, `cli`). These are for
//!   people: nothing is ordered or decided by them.
//!
//! **Monotonic**, by a [`PausableClock`]. A pause of the process cuts no client off either, and
//! after a resume each client has the rest of its time:
//!
//! - the handshake, half a request, an unread reply, an idle client, a drain (`nbd`);
//! - connect, reply and backoff of a remote volume (`nbd::client`);
//! - the timeout of a shutdown (`device`).
//!
//! **Monotonic.** A machine that is suspended does nothing, so nothing is late:
//!
//! - the patience of a request to a store, silence of the store, backoff, the age of a write in
//!   flight (`object`). A suspend is no fault of the store, so the requests in flight don't all
//!   fail at a resume. Of a pause of the process the patience counts an eighth, or half between
//!   retries;
//! - expiry of credentials for a store. The crate `object_store` decides this one: a role's token
//!   that expired in a suspend fails requests until it is renewed;
//! - timeouts of block requests and of their drivers; tags, plugs, freezes, drains (`blockmq`).
//!   Linux's `blk-mq` counts jiffies, which stand still too;
//! - the age of requests in a scheduler, the resync speed of a mirror (`blockmq`);
//! - the wait for the lock of a file (`blockmq`): its owner doesn't run either;
//! - timers of work items, `every`, idle workers, shutdown of pools (`workqueue`), as Linux's
//!   timers. A periodic item doesn't run once for each period of a suspend;
//! - reports of stuck work, late calls and computing items (`workqueue`, `smp`);
//! - timeouts of probes, deferrals and bring-up (`device`): the callback didn't run either;
//! - rate limits of clients (`nbd`) and of log lines (`throttle`): a suspend saves up no burst;
//! - TCP keepalive and user timeout of a remote volume (`nbd::client`): the kernel counts jiffies;
//! - beats for the service manager's watchdog, by which systemd counts too; the silence of a client
//!   of the control socket; the age of a metrics text (`cli`);
//! - `up --for`, uptime and rates of `dump` and `top` (`cli`): seconds that the server ran.
//!
//! No clock of the machine counts while a hypervisor pauses it.

mod histogram;
mod pausable;

pub use histogram::{Histogram, Latencies};
pub use pausable::PausableClock;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::facade::backend::clock;
use crate::facade::hint;

/// Returns the present time. Any context. To get the time since an `Instant`, subtract it from a
/// later one by [`duration_since`](std::time::Instant::duration_since): `elapsed` would ask the
/// system.
#[inline]
pub fn now() -> std::time::Instant {
    clock::now()
}

/// Returns the time of day, since 1970: for people, and for data that outlives the system. It may
/// be set, forwards and backwards. In a model it stands still. Any context.
pub fn wall() -> Duration {
    if hint::IN_MODEL {
        return Duration::from_secs(1);
    }
    // A clock before 1970 isn't set.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A moment, as nanoseconds of the monotonic clock: one word, written by one thread and read by
/// others. Meaningful within one run of the system only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Stamp(u64);

impl Stamp {
    /// Returns the present moment, to the nanosecond: some 25 ns to read, more on a virtual
    /// machine. Any context.
    #[inline]
    pub fn precise() -> Stamp {
        Stamp(clock::precise())
    }

    /// Returns the present moment, to the timer tick: up to 10 ms ago, but read in some 5 ns. Any
    /// context.
    #[inline]
    pub fn coarse() -> Stamp {
        Stamp(clock::coarse())
    }

    /// Returns the stamp of a number that [`Stamp::nanos`] returned.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Stamp {
        Stamp(nanos)
    }

    /// Returns the number: never 0, unless the system has just begun.
    #[inline]
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// Returns a stamp that is later by `time`.
    #[inline]
    pub fn plus(self, time: std::time::Duration) -> Stamp {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Stamp(self.0.saturating_add(nanos))
    }

    /// Returns the time since `earlier`; zero if that is later. Between a precise and a coarse
    /// stamp the error is a tick.
    #[inline]
    pub fn since(self, earlier: Stamp) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A moment, as nanoseconds of the clock that continues while the system is suspended: for
/// deadlines that another machine counts on. See [the table](self#clock-of-a-deadline). Meaningful
/// within one run of the system only.
///
/// On Linux it is `CLOCK_BOOTTIME`. Other systems, and backends of the facade, use the monotonic
/// clock: there a suspend isn't seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootStamp(u64);

impl BootStamp {
    /// Returns the present moment, to the nanosecond: as cheap as [`Stamp::precise`]. Any context.
    #[inline]
    pub fn now() -> BootStamp {
        BootStamp(clock::with_suspends())
    }

    /// Returns the moment this many nanoseconds after the clock began.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> BootStamp {
        BootStamp(nanos)
    }

    /// Returns a stamp that is later by `time`.
    #[inline]
    pub fn plus(self, time: std::time::Duration) -> BootStamp {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        BootStamp(self.0.saturating_add(nanos))
    }

    /// Returns the time since `earlier`; zero if that is later.
    #[inline]
    pub fn since(self, earlier: BootStamp) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps_go_forward_and_the_coarse_one_is_close_behind() {
        let first = Stamp::precise();
        let coarse = Stamp::coarse();
        let second = Stamp::precise();
        assert!(first.nanos() > 0 && second >= first && coarse <= second);
        assert_eq!(first.since(Stamp(second.0 + 1)), Duration::ZERO, "not later");
        assert_eq!(Stamp::from_nanos(second.nanos()), second);
        assert_eq!(Stamp(1500).since(Stamp(500)), Duration::from_micros(1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "no such clock")]
    fn boot_stamps_go_forward_and_saturate() {
        let (first, second) = (BootStamp::now(), BootStamp::now());
        assert!(second >= first);
        assert_eq!(first.since(first.plus(Duration::from_nanos(1))), Duration::ZERO, "not later");
        assert_eq!(first.plus(Duration::from_secs(1)).since(first), Duration::from_secs(1));
        assert_eq!(first.plus(Duration::MAX), BootStamp::from_nanos(u64::MAX));
    }
}
