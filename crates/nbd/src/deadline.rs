//! A deadline that a client has to meet. It doesn't pass while this process is stopped.

use std::time::{Duration, Instant};

use corewise_sync::time::PausableClock;
use rustix::event::Timespec;

use crate::policy;

/// A time by which a client has to do something, such as to take a reply.
///
/// The thread that waits for the client asks for the length of [each wait](Deadline::wait). A wait
/// of zero length is the last one: it polls the socket once more, since unread bytes of the client
/// may be there.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    clock: PausableClock,
    begun: Instant,
    at: Instant,
}

impl Deadline {
    /// Creates a deadline that is `time` away.
    pub(crate) fn after(time: Duration) -> Deadline {
        let mut clock = PausableClock::for_timeout(time);
        let begun = clock.now();
        Deadline { clock, begun, at: policy::after(begun, time) }
    }

    /// Returns the length of the next wait: zero once the deadline has passed.
    pub(crate) fn wait(&mut self) -> Duration {
        self.left().min(self.clock.slice())
    }

    /// Returns the time until the deadline.
    pub(crate) fn left(&mut self) -> Duration {
        self.at.saturating_duration_since(self.clock.now())
    }

    /// Moves the deadline to `time` after its beginning.
    pub(crate) fn extend_to(&mut self, time: Duration) {
        self.at = policy::after(self.begun, time);
    }

    /// Returns the time that this process was stopped since the deadline was made.
    pub(crate) fn paused(&self) -> Duration {
        self.clock.paused()
    }

    /// Returns the time since the deadline was made.
    pub(crate) fn waited(&mut self) -> Duration {
        self.clock.now().saturating_duration_since(self.begun)
    }
}

/// Converts a duration to the kernel's form.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use bytes::BytesMut;

    use super::*;
    use crate::client_log::ClientLog;
    use crate::connection::Connection;
    use crate::load::Budget;
    use crate::memory::Pool;

    #[test]
    fn after_the_deadline_the_socket_is_asked_once_more() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let (log, pool) = (ClientLog::of_test(1), Arc::new(Pool::new(1 << 20)));
        let budget = Budget::default();
        let (connection, _) = Connection::new(log, ours.into(), budget, 0, pool, None);
        let over = || {
            let mut deadline = Deadline::after(Duration::ZERO);
            assert_eq!(deadline.wait(), Duration::ZERO);
            deadline
        };
        let mut bytes = BytesMut::with_capacity(64);
        client.write_all(b"here").unwrap();
        assert_eq!(connection.receive_until(&mut bytes, &mut over()).unwrap(), 4);
        let late = connection.receive_until(&mut bytes, &mut over()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        connection.send_until(b"room", &mut over()).unwrap();
        connection.wait_for_space(&mut over()).unwrap();
        let much = vec![7; 16 << 20];
        let late = connection.send_until(&much, &mut over()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut, "there is no room for so much");
    }
}
