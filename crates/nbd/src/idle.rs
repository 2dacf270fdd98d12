//! How long a client asks for nothing while nothing is owed to it. A stop of this process is none
//! of that time.

use std::time::{Duration, Instant};

use corewise_sync::time::PausableClock;

/// The time since a client last sent something, or was last sent a reply.
#[derive(Debug)]
pub(crate) struct IdleTime {
    clock: PausableClock,
    since: Instant,
}

impl IdleTime {
    /// Begins now. `limit`: the shortest time that it is compared with. If it is zero, any time is
    /// long enough, so a stop counts in full.
    pub(crate) fn new(limit: Duration) -> IdleTime {
        let limit = if limit.is_zero() { Duration::MAX } else { limit };
        let mut clock = PausableClock::for_timeout(limit);
        let since = clock.now();
        IdleTime { clock, since }
    }

    /// Begins anew.
    pub(crate) fn restart(&mut self) {
        self.since = self.clock.now();
    }

    /// How long it has been. The thread that waits for the client asks at least once in each
    /// [slice](IdleTime::slice).
    pub(crate) fn so_far(&mut self) -> Duration {
        self.clock.now().saturating_duration_since(self.since)
    }

    /// The longest wait between two questions: what a stop costs a client.
    pub(crate) fn slice(&self) -> Duration {
        self.clock.slice()
    }
}
