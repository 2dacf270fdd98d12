//! Rate limit of log messages for events that may happen a million times a second.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::facade::spin::SpinLock;
use crate::time::Stamp;

/// Number of messages at once.
const BURST: u32 = 8;
/// Interval after which one more message is admitted.
const EVERY: Duration = Duration::from_secs(10);

/// Decides which of many similar messages are logged: the first 8, then one every 10 seconds, with
/// the number of suppressed ones before it. Use one throttle for each subject of messages, so that
/// none hides another's.
///
/// A message that one was suppressed is as long as the suppressed one. So the first suppressed
/// message is held back. If it remains the only one, it is logged itself, late.
///
/// ```
/// use corewise_sync::Throttle;
///
/// let (throttle, (tell, told)) = (Throttle::new(), std::sync::mpsc::channel());
/// for n in 0..9 {
///     let tell = tell.clone();
///     throttle.tell(|| move |left_out: Option<u64>| tell.send((n, left_out)).unwrap());
/// }
/// assert_eq!(told.try_iter().count(), 8);
/// throttle.take_left_out().tell(|n| panic!("{n} are left out"));
/// assert_eq!(told.try_recv(), Ok((8, None)));
/// ```
#[derive(Debug)]
pub struct Throttle {
    burst: u32,
    every: Duration,
    /// L: is the lock, held for a few instructions; guards the count, and the message that is held
    /// back.
    count: SpinLock<Count>,
}

/// A message, which gets the number of similar ones that were suppressed before.
struct Line(AssertUnwindSafe<Box<dyn FnOnce(Option<u64>) + Send>>);

impl Line {
    fn new(line: impl FnOnce(Option<u64>) + Send + 'static) -> Line {
        Line(AssertUnwindSafe(Box::new(line)))
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

/// Suppressed messages: their number, and, if that is 1, the message.
#[derive(Debug, Default)]
#[must_use = "nobody else tells what was left out"]
pub struct LeftOut {
    messages: u64,
    first: Option<Line>,
}

impl LeftOut {
    /// Returns the number of messages.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Logs the message, if it is a single one. If there are more, `several` gets their number.
    /// Does nothing if there are none.
    pub fn tell(self, several: impl FnOnce(u64)) {
        match (self.messages, self.first) {
            (0, _) => {}
            (1, Some(Line(first))) => (first.0)(None),
            (messages, _) => several(messages),
        }
    }

    /// Adds other suppressed messages.
    pub fn add(&mut self, others: LeftOut) {
        self.messages = self.messages.saturating_add(others.messages);
        self.first = self.first.take().or(others.first);
    }

    /// Returns the number to be told beside the next message. A single one is logged itself, before
    /// that.
    fn before_another(self) -> Option<u64> {
        let mut several = None;
        self.tell(|messages| several = Some(messages));
        several
    }
}

#[derive(Debug)]
struct Count {
    /// Number of messages that may be logged now.
    may: u32,
    /// The time up to which `may` was counted.
    since: Stamp,
    left_out: LeftOut,
    /// True while a thread is about to create the message that is held back. It isn't counted yet,
    /// but other suppressed messages are.
    held_soon: bool,
}

/// Decision about a message.
#[derive(Debug)]
enum Verdict {
    Tell(LeftOut),
    /// The caller creates it, to be held back.
    Hold,
    LeaveOut,
}

impl Throttle {
    /// Creates a throttle that has logged nothing yet.
    pub fn new() -> Throttle {
        Throttle::with_rate(BURST, EVERY)
    }

    /// Creates a throttle with another initial number, and another interval: at least a nanosecond.
    pub fn with_rate(burst: u32, every: Duration) -> Throttle {
        let count = Count::new(burst, Stamp::coarse());
        Throttle { burst, every: every.max(Duration::from_nanos(1)), count: SpinLock::new(count) }
    }

    /// Logs a message, or suppresses it. `make` is called at once, by this thread, and only for a
    /// message that is logged or held back. It returns a function that logs the message, with the
    /// number of suppressed ones before it. That function owns its data, since another thread may
    /// call it, later. Any context that both may be called in.
    pub fn tell<L: FnOnce(Option<u64>) + Send + 'static>(&self, make: impl FnOnce() -> L) {
        self.tell_as(|| true, make);
    }

    /// Logs a message like [`tell`](Throttle::tell), if `all`, of which this is a part, admits it
    /// too.
    pub fn tell_within<L: FnOnce(Option<u64>) + Send + 'static>(
        &self,
        all: &Throttle,
        make: impl FnOnce() -> L,
    ) {
        self.tell_as(|| all.admit(), make);
    }

    fn tell_as<L: FnOnce(Option<u64>) + Send + 'static>(
        &self,
        may: impl FnOnce() -> bool,
        make: impl FnOnce() -> L,
    ) {
        let now = Stamp::coarse();
        let verdict = self.count.lock().admit(now, self.burst, self.every);
        match verdict {
            Verdict::Tell(before) if may() => make()(before.before_another()),
            Verdict::Tell(mut before) => {
                let first = (before.messages == 0).then(|| Line::new(make()));
                before.add(LeftOut { messages: 1, first });
                self.put_back(before);
            }
            Verdict::Hold => {
                let line = LeftOut { messages: 1, first: Some(Line::new(make())) };
                let mut count = self.count.lock();
                count.held_soon = false;
                let surplus = count.add(line);
                drop(count);
                drop(surplus);
            }
            Verdict::LeaveOut => {}
        }
    }

    /// Returns true if one more message may be logged now, and counts it.
    #[must_use = "a caller that tells it anyway needn't ask"]
    pub fn admit(&self) -> bool {
        let now = Stamp::coarse();
        let mut count = self.count.lock();
        count.refill(now, self.burst, self.every);
        let may = count.may.checked_sub(1);
        count.may = may.unwrap_or(0);
        may.is_some()
    }

    /// Counts these as suppressed again, as something else keeps them from being logged. Any
    /// context.
    pub fn put_back(&self, left_out: LeftOut) {
        let surplus = self.count.lock().add(left_out);
        drop(surplus);
    }

    /// Returns true if it is as good as new: every suppressed message has been reported since, and
    /// it admits as many at once as at first.
    pub fn is_rested(&self) -> bool {
        let now = Stamp::coarse();
        let mut count = self.count.lock();
        count.refill(now, self.burst, self.every);
        count.may == self.burst && count.left_out.messages == 0 && !count.held_soon
    }

    /// Returns the messages that were suppressed since the last one was logged. They count as
    /// reported now.
    pub fn take_left_out(&self) -> LeftOut {
        self.count.lock().take_left_out()
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

impl Count {
    fn new(may: u32, since: Stamp) -> Count {
        Count { may, since, left_out: LeftOut::default(), held_soon: false }
    }

    fn refill(&mut self, now: Stamp, burst: u32, every: Duration) {
        let more = now.since(self.since).as_nanos() / every.as_nanos();
        if more != 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.since = self.since.plus(every.saturating_mul(more));
            self.may = self.may.saturating_add(more).min(burst);
        }
    }

    fn admit(&mut self, now: Stamp, burst: u32, every: Duration) -> Verdict {
        self.refill(now, burst, every);
        match self.may.checked_sub(1) {
            Some(may) => {
                self.may = may;
                Verdict::Tell(self.take_left_out())
            }
            None if self.left_out.messages == 0 && !self.held_soon => {
                self.held_soon = true;
                Verdict::Hold
            }
            None => {
                self.left_out.messages = self.left_out.messages.saturating_add(1);
                Verdict::LeaveOut
            }
        }
    }

    /// Counts more as suppressed. The caller drops the returned line outside the lock.
    fn add(&mut self, more: LeftOut) -> Option<Line> {
        self.left_out.messages = self.left_out.messages.saturating_add(more.messages);
        match self.left_out.messages {
            1 => std::mem::replace(&mut self.left_out.first, more.first),
            _ => more.first,
        }
    }

    fn take_left_out(&mut self) -> LeftOut {
        // A single counted message is about to arrive, or another thread has counted it while it
        // created the first: then there are two in a moment.
        if self.left_out.messages == 1 && self.left_out.first.is_none() {
            return LeftOut::default();
        }
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Creates a throttle that never refills, and a channel that gets each logged message's number,
    /// and the number of suppressed ones before it.
    fn told(burst: u32, messages: u64) -> (Throttle, Receiver<(u64, Option<u64>)>) {
        let throttle = Throttle::with_rate(burst, Duration::from_secs(1 << 30));
        let (tell, told) = channel();
        for n in 0..messages {
            let tell = tell.clone();
            throttle.tell(|| move |before| tell.send((n, before)).unwrap());
        }
        (throttle, told)
    }

    #[test]
    fn a_burst_is_told_then_one_now_and_then_with_the_number_of_those_left_out() {
        let mut count = Count::new(BURST, Stamp::from_nanos(5));
        let at = |seconds| Stamp::from_nanos(5).plus(Duration::from_secs(seconds));
        let mut admit = |now| match count.admit(now, BURST, EVERY) {
            Verdict::Tell(before) => Some(before.messages),
            Verdict::Hold => {
                count.held_soon = false;
                let _ = count.add(LeftOut { messages: 1, first: Some(Line::new(|_| ())) });
                None
            }
            Verdict::LeaveOut => None,
        };
        assert!((0..BURST).all(|_| admit(at(1)) == Some(0)));
        assert!((0..1_000).all(|_| admit(at(9)).is_none()));
        assert_eq!(admit(at(10)), Some(1_000));
        assert!((0..20).all(|_| admit(at(11)).is_none()));
        // A source that was quiet for long has its burst again, and no more.
        assert_eq!(admit(at(100_000)), Some(20));
        assert!((1..BURST).all(|_| admit(at(100_000)) == Some(0)));
        assert_eq!(admit(at(100_000)), None);
        // A clock that is behind adds nothing.
        assert_eq!(admit(at(0)), None);
    }

    #[test]
    fn one_that_was_left_out_is_told_itself_and_several_are_counted() {
        for (messages, left_out) in [(8, None), (9, None), (10, Some(2)), (100, Some(92))] {
            let (throttle, told) = told(8, messages);
            assert!(told.try_iter().eq((0..8).map(|n| (n, None))));
            let mut several = None;
            throttle.take_left_out().tell(|n| several = Some(n));
            assert_eq!(several, left_out);
            assert!(told.try_iter().eq((8..messages).filter(|_| messages == 9).map(|n| (n, None))));
            assert_eq!(throttle.take_left_out().messages(), 0);
        }
    }

    #[test]
    fn one_that_was_left_out_is_told_before_the_next() {
        for (left_out, expected) in
            [(1, vec![(0, None), (1, None), (9, None)]), (2, vec![(0, None), (9, Some(2))])]
        {
            let (throttle, told) = told(1, 1 + left_out);
            throttle.count.lock().may = 1;
            let (tell, late) = channel();
            throttle.tell(|| move |before| tell.send((9, before)).unwrap());
            assert!(told.try_iter().chain(late.try_iter()).eq(expected));
        }
    }

    #[test]
    fn a_message_that_all_do_not_admit_is_left_out_and_none_is_lost() {
        let all = Throttle::with_rate(2, Duration::from_secs(1 << 30));
        let (tell, told) = channel();
        let parts = [Throttle::new(), Throttle::new()];
        for n in 0..5 {
            let tell = tell.clone();
            parts[n % 2].tell_within(&all, || move |before| tell.send((n, before)).unwrap());
        }
        assert!(told.try_iter().eq([(0, None), (1, None)]));
        // 2 and 4 of the one, 3 of the other.
        let [many, one] = parts.each_ref().map(Throttle::take_left_out);
        assert_eq!((many.messages(), one.messages()), (2, 1));
        parts[1].put_back(one);
        parts[1].take_left_out().tell(|_| unreachable!());
        assert!(told.try_iter().eq([(3, None)]));
        let mut sum = LeftOut::default();
        sum.add(many);
        sum.tell(|n| assert_eq!(n, 2));
    }

    #[test]
    fn while_one_is_made_that_is_held_back_another_is_counted_and_never_alone() {
        let throttle = Throttle::with_rate(0, Duration::from_secs(1 << 30));
        throttle.tell(|| {
            // Another thread would do this meanwhile.
            throttle.tell(|| |_| ());
            assert_eq!(throttle.take_left_out().messages(), 0, "there will be two");
            |_| ()
        });
        assert_eq!(throttle.take_left_out().messages(), 2);
    }

    #[test]
    fn one_that_is_as_good_as_new_says_so() {
        let throttle = Throttle::with_rate(2, Duration::from_secs(1 << 30));
        assert!(throttle.is_rested());
        throttle.put_back(LeftOut { messages: 3, first: None });
        assert!(!throttle.is_rested(), "three are to be told");
        throttle.tell(|| |before| assert_eq!(before, Some(3)));
        assert!(!throttle.is_rested(), "it admits one less");
        assert!(throttle.admit() && !throttle.admit());
        let fast = Throttle::with_rate(1, Duration::ZERO);
        let _ = fast.admit();
        while !fast.is_rested() {
            std::thread::yield_now();
        }
    }
}
