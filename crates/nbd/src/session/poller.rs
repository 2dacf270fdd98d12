//! A reader's wait for the next request of a client that it owes nothing.
//!
//! The reader sleeps in the socket. If its last sleeps were so short that a poll would have spared
//! them, it polls the socket first, for about as long as a wake-up costs. Three bounds hold:
//!
//! * A poll takes at most [`MOST_POLL`], and one yield and one look more.
//! * A poll in vain ends the polling until [short sleeps](Proof) have proved themselves again. So a
//!   client that pauses is polled for once, and the reader of an idle session sleeps.
//! * At most half as many sessions of a server poll at once as there are CPUs ([`PollPermits`]).
//!
//! The reader yields its CPU between two looks. If a yield is slow, another thread wants the CPU,
//! and the poll ends.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::hint::IN_MODEL;
use corewise_sync::{Proof, sys, thread, time};

/// The longest poll. A wake-up costs 2 to 5 us, and 30 us and more on a virtual machine.
const MOST_POLL: Duration = Duration::from_micros(50);
/// The longest sleep that counts as short: a poll spares its reader the wake-up.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// The longest yield that lets no other thread run.
const LONE_YIELD: Duration = Duration::from_micros(6);

/// Permits to poll, which the sessions of one server share.
#[derive(Debug)]
pub(crate) struct PollPermits {
    /// A: permits that are taken. Relaxed: the count guards no data.
    taken: AtomicUsize,
    most: usize,
}

impl PollPermits {
    /// Creates `most` permits.
    pub(super) fn new(most: usize) -> PollPermits {
        PollPermits { taken: AtomicUsize::new(0), most }
    }

    /// Creates a permit for every other CPU, and none in models, where each look is one more
    /// schedule.
    pub(crate) fn of_machine() -> PollPermits {
        PollPermits::new(if IN_MODEL { 0 } else { sys::cpus() / 2 })
    }

    /// Takes a permit; `None` if all are taken. Never blocks.
    fn take(&self) -> Option<PollPermit<'_>> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| PollPermit(self))
    }
}

/// A permit for one poll. A drop gives it back.
struct PollPermit<'a>(&'a PollPermits);

impl Drop for PollPermit<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The waits of one reader.
#[derive(Debug)]
pub(super) struct Poller {
    permits: Arc<PollPermits>,
    /// The record of the last waits.
    proof: Proof,
}

impl Poller {
    pub(super) fn new(permits: Arc<PollPermits>) -> Poller {
        Poller { permits, proof: Proof::NEW }
    }

    /// Waits until `receive` has a result: polls where that has paid lately, then sleeps.
    ///
    /// `receive(true)` never waits, and returns `WouldBlock` if nothing has come. `receive(false)`
    /// sleeps; its result is returned, whatever it is.
    pub(super) fn wait<T>(
        &mut self,
        mut receive: impl FnMut(bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let look = || match receive(true) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            received => Some(received),
        };
        if let Some(received) = self.poll(look) {
            return received;
        }
        let began = time::now();
        let received = receive(false);
        self.slept(time::now().saturating_duration_since(began));
        received
    }

    /// Polls until `look` finds something or the poll [is over](is_over). `None` if it found
    /// nothing, or polling hasn't paid lately, or all permits are taken.
    fn poll<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.proof.is_given() {
            return None;
        }
        let _permit = self.permits.take()?;
        let began = time::now();
        let mut found = look();
        while found.is_none() {
            let looked = time::now();
            thread::yield_now();
            let now = time::now();
            found = look();
            let yielded = now.saturating_duration_since(looked);
            if is_over(now.saturating_duration_since(began), yielded) {
                break;
            }
        }
        self.proof.tried(found.is_some());
        found
    }

    /// Records a sleep.
    fn slept(&mut self, slept: Duration) {
        self.proof.slept(slept <= SHORT_SLEEP);
    }
}

/// Returns whether a poll ends that has taken `polled`, and whose last yield took `yielded`.
fn is_over(polled: Duration, yielded: Duration) -> bool {
    polled >= MOST_POLL || yielded > LONE_YIELD
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a poller whose last waits were short.
    pub(in super::super) fn proven(permits: &Arc<PollPermits>) -> Poller {
        let mut poller = Poller::new(Arc::clone(permits));
        (0..2).for_each(|_| poller.slept(Duration::ZERO));
        poller
    }

    /// Returns how often a poll looks that finds something at the look `at`, if it looks so often.
    fn looks(poller: &mut Poller, at: usize) -> usize {
        let mut looks = 0;
        poller.poll(|| {
            looks += 1;
            (looks == at).then_some(())
        });
        looks
    }

    #[test]
    fn a_session_polls_after_short_sleeps_alone() {
        let mut poller = Poller::new(Arc::new(PollPermits::new(1)));
        assert_eq!(looks(&mut poller, 1), 0, "it has not slept yet");
        poller.slept(SHORT_SLEEP);
        poller.slept(SHORT_SLEEP * 2);
        poller.slept(SHORT_SLEEP);
        assert_eq!(looks(&mut poller, 1), 0, "one short sleep may be chance");
        poller.slept(SHORT_SLEEP);
        assert_eq!(looks(&mut poller, 1), 1);
    }

    #[test]
    fn a_session_whose_poll_paid_polls_again() {
        let mut poller = proven(&Arc::new(PollPermits::new(1)));
        for _ in 0..9 {
            assert_eq!(looks(&mut poller, 1), 1);
        }
    }

    #[test]
    fn a_client_that_pauses_is_polled_for_once_until_short_sleeps_prove_themselves_again() {
        let mut poller = proven(&Arc::new(PollPermits::new(1)));
        assert!(looks(&mut poller, usize::MAX) > 1);
        for _ in 0..4 {
            assert_eq!(looks(&mut poller, 1), 0);
            poller.slept(Duration::ZERO);
        }
        assert_eq!(looks(&mut poller, 1), 1);
    }

    #[test]
    fn no_more_sessions_poll_at_once_than_there_are_permits() {
        let permits = Arc::new(PollPermits::new(2));
        let [mut first, mut second, mut third] = [(); 3].map(|()| proven(&permits));
        let counted = first.poll(|| second.poll(|| Some(looks(&mut third, 1))));
        assert_eq!(counted, Some(0), "two of them poll");
        let counted = first.poll(|| Some(looks(&mut third, 1)));
        assert_eq!(counted, Some(1), "a poll that is over has given its permit back");
        let mut refused = proven(&Arc::new(PollPermits::new(0)));
        assert_eq!(looks(&mut refused, 1), 0);
    }

    #[test]
    fn a_poll_ends_after_its_longest_time_or_a_yield_that_let_another_thread_run() {
        let short = Duration::from_micros(1);
        assert!(!is_over(short, short));
        assert!(is_over(MOST_POLL, short));
        assert!(is_over(short, LONE_YIELD + short));
    }

    #[test]
    fn a_wait_sleeps_once_where_a_poll_finds_nothing_and_not_where_it_finds_something() {
        for comes in [true, false] {
            let mut poller = proven(&Arc::new(PollPermits::new(1)));
            let mut slept = 0;
            let received = poller.wait(|now| {
                slept += u32::from(!now);
                if comes || !now { Ok(7) } else { Err(ErrorKind::WouldBlock.into()) }
            });
            assert_eq!((received.unwrap(), slept), (7, u32::from(!comes)));
        }
    }

    #[test]
    fn an_error_that_a_poll_finds_is_the_result_of_the_wait() {
        let mut poller = proven(&Arc::new(PollPermits::new(1)));
        let received = poller.wait(|now| -> io::Result<()> {
            assert!(now, "it doesn't sleep");
            Err(ErrorKind::InvalidData.into())
        });
        assert_eq!(received.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
