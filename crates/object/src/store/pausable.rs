//! Timeouts that don't pass while this process is stopped (`SIGSTOP`, a frozen cgroup). The
//! system's clock goes on meanwhile, and answers of the store lie unread in the sockets.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// Slices of a timeout: a pause of any length counts as one of them.
const SLICES: u32 = 8;

/// How long something is retried. A pause of any length counts as half of that at most, so at least
/// one more try follows.
#[derive(Debug)]
pub(crate) struct Patience {
    left: Duration,
    most: Duration,
    last: Instant,
}

/// The error of a time that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// Waits for a future for `time` at most. A future that was ready during a pause is in time.
pub(crate) async fn within<T>(
    time: Duration,
    future: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let slice = (time / SLICES).max(Duration::from_millis(1));
    let (mut left, mut future) = (time, pin!(future));
    loop {
        let wait = left.min(slice);
        // The future is asked after each wait, however long that was.
        match timeout(wait, future.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(_) if wait == left => return Err(Elapsed),
            Err(_) => left -= wait,
        }
    }
}

impl Patience {
    pub(crate) fn new(time: Duration) -> Patience {
        Patience { left: time, most: time / 2, last: Instant::now() }
    }

    /// Returns how much time is left.
    pub(crate) fn left(&mut self) -> Duration {
        let now = Instant::now();
        let lap = now.saturating_duration_since(self.last).min(self.most);
        self.last = now;
        self.left = self.left.saturating_sub(lap);
        self.left
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;
    use tokio::time::advance;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_is_late_after_its_time() {
        let begun = Instant::now();
        assert_eq!(within(MINUTE, pending::<()>()).await, Err(Elapsed));
        let took = begun.elapsed();
        assert!(took >= MINUTE && took < MINUTE + Duration::from_secs(1), "{took:?}");
        assert_eq!(within(Duration::ZERO, ready(7)).await, Ok(7));
        assert_eq!(within(Duration::ZERO, pending::<()>()).await, Err(Elapsed));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_after_a_pause_is_in_time() {
        let (answer, comes) = oneshot::channel();
        let asked = tokio::spawn(within(MINUTE, comes));
        tokio::task::yield_now().await;
        // Nobody runs meanwhile.
        advance(60 * MINUTE).await;
        for _ in 0..4 {
            advance(MINUTE / 8).await;
            tokio::task::yield_now().await;
        }
        answer.send(7).unwrap();
        assert_eq!(asked.await.unwrap(), Ok(Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_leaves_half_of_the_time_of_tries() {
        let mut budget = Patience::new(MINUTE);
        advance(MINUTE / 4).await;
        assert_eq!(budget.left(), MINUTE * 3 / 4);
        advance(60 * MINUTE).await;
        assert_eq!(budget.left(), MINUTE / 4);
        advance(MINUTE / 2).await;
        assert_eq!(budget.left(), Duration::ZERO);
    }
}
