//! Decisions of the timekeeper, as pure functions of samples: which worker keeps its core from
//! others, which pool is stalled, when a rescuer is called, when a hog is reported.

use std::time::Duration;

use corewise_sync::sys::Reading;

/// The longest time between two looks at a pool that has more work than it can take: the kernel's
/// threshold for CPU-intensive items.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// The shortest: two looks that far apart tell that a worker sleeps. A look costs some 10 us and a
/// wake-up, so while workers do sleep this takes up to a tenth of a core.
pub(crate) const SOON: Duration = Duration::from_micros(100);
/// Time that a pool may be without a worker for its work before its rescuers are called, and called
/// again (the kernel's `MAYDAY_INITIAL_TIMEOUT` and `MAYDAY_INTERVAL`).
pub(crate) const MAYDAY_AFTER: Duration = Duration::from_millis(10);
pub(crate) const MAYDAY_EVERY: Duration = Duration::from_millis(100);
/// Time after which the system is asked once more that refused a thread (the kernel's
/// `CREATE_COOLDOWN`).
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Interval, while work waits, of the checks whether the machine has more CPUs by now, or fewer.
pub(crate) const REMIND_EVERY: Duration = Duration::from_secs(1);

/// A look at a worker that holds a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// When.
    pub(crate) at: Duration,
    /// The number of the instance that it runs, by its count of started ones.
    pub(crate) instance: u64,
    /// The scheduler's reading of its thread; `None` if that can't be known.
    pub(crate) thread: Option<Reading>,
}

/// The memory of a worker between looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerHistory {
    last: Sample,
    /// When it was seen running without sleep first, and its CPU time then.
    since: (Duration, Option<Duration>),
    /// When it was seen asleep first, of the looks in a row at which it was.
    sleeps_since: Option<Duration>,
}

/// A worker's use of the core that it is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The worker makes use of it, and hasn't for long.
    Fine,
    /// The worker has computed for longer than the threshold without a pause.
    CpuIntensive,
    /// The worker sleeps, for this time at least, and hasn't said so.
    Blocks(Duration),
}

impl WorkerHistory {
    pub(crate) fn first(sample: Sample) -> WorkerHistory {
        let since = (sample.at, sample.thread.map(|t| t.ran));
        let sleeps_since = sample.thread.filter(|t| t.asleep).map(|_| sample.at);
        WorkerHistory { last: sample, since, sleeps_since }
    }

    /// Takes the next look. A `threshold` of zero finds nothing.
    pub(crate) fn look(&mut self, now: Sample, threshold: Duration) -> Verdict {
        let last = std::mem::replace(&mut self.last, now);
        if last.instance != now.instance || threshold.is_zero() {
            *self = WorkerHistory::first(now);
            return Verdict::Fine;
        }
        let elapsed = now.at.saturating_sub(last.at);
        let computed = match (last.thread, now.thread) {
            (Some(before), Some(after)) => {
                let ran = after.ran.saturating_sub(before.ran);
                // Asleep at both ends and hardly running between: a lock that is held for an
                // instant, or a short wait, isn't that.
                if before.asleep && after.asleep && ran < elapsed / 2 {
                    let since = self.sleeps_since.unwrap_or(last.at);
                    *self =
                        WorkerHistory { sleeps_since: Some(since), ..WorkerHistory::first(now) };
                    return Verdict::Blocks(now.at.saturating_sub(since));
                }
                self.sleeps_since = after.asleep.then_some(now.at);
                after.ran.saturating_sub(self.since.1.unwrap_or(before.ran))
            }
            // Nothing is known but that it is at it.
            _ => now.at.saturating_sub(self.since.0),
        };
        // Its time before the first look isn't known, and what a running thread's clock shows
        // may be a scheduler tick old.
        if computed >= threshold - threshold / 4 { Verdict::CpuIntensive } else { Verdict::Fine }
    }
}

/// Returns after how long of computing an item no longer keeps others from starting. If fewer items
/// may run at once than there are CPUs, as under a CPU quota, all pay for one more. Together they
/// use up the quota before its period (mostly 100 ms) is over, and are stopped for the rest of it.
/// So an item has to keep others waiting for longer than that.
pub(crate) fn intensive_after(threshold: Duration, limited: bool) -> Duration {
    match limited && !threshold.is_zero() {
        true => threshold.max(QUOTA_PERIOD),
        false => threshold,
    }
}

const QUOTA_PERIOD: Duration = Duration::from_millis(100);

/// Returns whether another worker may start in the place of one that has slept untold for this
/// long. `asleep` workers of its pool have been found asleep before, and `computing` compute, of
/// `base` that may. Those that were found asleep and have woken up compute too, beside their
/// replacements: if the cores are all in use, nothing is gained by one more.
///
/// Such sleeps wait for each other's ends: of a disk, say. If `nothing_ended` in the pool for long,
/// they may wait for what can't start: then 100 ms of sleep are enough. A worker that has slept for
/// a second gets its replacement in any case.
pub(crate) fn replaces(
    slept: Duration,
    nothing_ended: Duration,
    asleep: usize,
    (computing, base): (usize, usize),
) -> bool {
    let patience = match slept.min(nothing_ended) >= NOTHING_ENDS {
        true => NOTHING_ENDS,
        false => patience(asleep, base),
    };
    slept >= MOST_PATIENCE || computing < base && slept >= patience
}

/// Sleep after which a worker is replaced if nothing else gets on. The other holds in any case.
const NOTHING_ENDS: Duration = Duration::from_millis(100);
const MOST_PATIENCE: Duration = Duration::from_secs(1);

/// The time since which a count stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standstill {
    count: u64,
    since: Duration,
}

impl Standstill {
    pub(crate) fn first(now: Duration, count: u64) -> Standstill {
        Standstill { count, since: now }
    }

    /// Notes the count, and returns for how long it has been that.
    pub(crate) fn look(&mut self, now: Duration, count: u64) -> Duration {
        if count != self.count {
            *self = Standstill::first(now, count);
        }
        now.saturating_sub(self.since)
    }
}

/// Returns how long a worker must have slept untold before another may start in its place. `asleep`
/// workers of its pool have been found asleep already, and the pool may use `base` cores.
///
/// The first ones are replaced as soon as their sleep is seen. Later ones have to sleep ever
/// longer: twice as long for each four, or each two a core. If items are short and each sleeps a
/// while (files that aren't in the cache), no more threads are made than there are sleeps of that
/// length worth waiting out. On two CPUs these are some 16 if a sleep takes 1 ms, 28 for 10 ms, 40
/// for 100 ms.
fn patience(asleep: usize, base: usize) -> Duration {
    let doublings = u32::try_from(asleep / (2 * base).max(4)).unwrap_or(u32::MAX);
    SOON.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(MOST_PATIENCE)
}

/// The workers' states in a look at all pools; the gravest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum LookResult {
    /// The pools have no work that waits for a worker.
    #[default]
    Nobody,
    /// Work waits, and none of those that hold a core sleeps.
    Busy,
    /// One sleeps at this moment: the next look tells more.
    Sleeper,
    /// One slept from look to look, and hadn't said so.
    Blocker,
}

/// The distance between looks: short if work has just begun to wait, and while workers are found
/// that block without saying so; longer and longer while there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    gap: Duration,
    /// The next look is an extra one, because of a sleeper.
    extra: bool,
    /// Time since which there is nothing to look at.
    rests: Option<Duration>,
}

impl Pace {
    pub(crate) const NEW: Pace = Pace { gap: SOON, extra: false, rests: None };

    /// Begins a look. After a rest of `most` it is all new. After a shorter one it goes on as
    /// before, so that work which waits each time for an instant isn't looked at all the time.
    pub(crate) fn begin(&mut self, now: Duration, most: Duration) {
        if self.rests.take().is_some_and(|since| now.saturating_sub(since) >= most) {
            *self = Pace::NEW;
        }
    }

    /// Returns the time to the next look. `most`: the longest.
    pub(crate) fn after(&mut self, met: LookResult, most: Duration) -> Duration {
        let was_extra = std::mem::replace(&mut self.extra, false);
        match met {
            LookResult::Blocker => self.gap = SOON,
            // One extra look: where sleeps are all short, that is at most twice as many.
            LookResult::Sleeper if !was_extra => {
                self.extra = true;
                return SOON.min(most);
            }
            LookResult::Busy | LookResult::Sleeper => {
                let gap = self.gap;
                self.gap = (gap * 2).min(most.max(SOON));
                return gap.min(most);
            }
            LookResult::Nobody => {}
        }
        self.gap.min(most)
    }

    /// Notes that there is nothing to look at from here on.
    pub(crate) fn rest(&mut self, now: Duration) {
        self.rests = Some(now);
    }
}

/// The memory of a pool between looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Since when no item is taken, with work waiting.
    untaken: Standstill,
    /// When rescuers were called last, if they were.
    called: Option<Duration>,
    /// When a stall was reported last, if one was.
    reported: Option<Duration>,
}

impl Progress {
    pub(crate) fn first(now: Duration, taken: u64) -> Progress {
        Progress { untaken: Standstill::first(now, taken), called: None, reported: None }
    }

    /// Takes the next look, at a pool with work waiting. `helpless`: it has no worker for it and
    /// can't make one. `stall`: zero finds no stall. Returns whether to call the rescuers of the
    /// queues whose items wait, and the length of a stall to report.
    pub(crate) fn look(
        &mut self,
        now: Duration,
        taken: u64,
        helpless: bool,
        stall: Duration,
    ) -> (bool, Option<Duration>) {
        let still = self.untaken.look(now, taken);
        let due = match self.called {
            None => still >= MAYDAY_AFTER,
            Some(last) => now.saturating_sub(last) >= MAYDAY_EVERY,
        };
        let mayday = helpless && due;
        self.called = if mayday { Some(now) } else { self.called.filter(|_| helpless) };
        let since = self.untaken.since.max(self.reported.unwrap_or_default());
        let stalled = !stall.is_zero() && now.saturating_sub(since) >= stall;
        if stalled {
            self.reported = Some(now);
        }
        (mayday, stalled.then_some(still))
    }
}

/// Returns true if the `hit`th time (from 1) that a function is caught is worth a report: from the
/// fourth on, each time that their number has doubled.
pub(crate) fn worth_a_report(hit: u64) -> bool {
    hit >= 4 && hit.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn sample(at: u64, instance: u64, ran: u64, asleep: bool) -> Sample {
        Sample { at: ms(at), instance, thread: Some(Reading { ran: ms(ran), asleep }) }
    }

    #[test]
    fn automatic_cpu_intensive_takes_a_quotas_period_where_fewer_items_run_than_there_are_cpus() {
        let ms = Duration::from_millis;
        for (threshold, limited, wanted) in [
            (ms(10), false, ms(10)),
            (ms(10), true, ms(100)),
            (ms(500), true, ms(500)),
            (Duration::ZERO, true, Duration::ZERO),
        ] {
            assert_eq!(intensive_after(threshold, limited), wanted, "{threshold:?} {limited}");
        }
    }

    #[test]
    fn automatic_cpu_intensive_an_item_that_computes_for_the_threshold() {
        let mut seen = WorkerHistory::first(sample(0, 1, 100, false));
        assert_eq!(seen.look(sample(10, 1, 110, false), ms(10)), Verdict::CpuIntensive);
    }

    #[test]
    fn automatic_cpu_intensive_counts_cpu_time_and_not_the_wait_for_a_cpu() {
        let mut seen = WorkerHistory::first(sample(0, 1, 100, false));
        assert_eq!(seen.look(sample(10, 1, 103, false), ms(10)), Verdict::Fine);
        assert_eq!(seen.look(sample(20, 1, 106, false), ms(10)), Verdict::Fine);
        assert_eq!(seen.look(sample(30, 1, 110, false), ms(10)), Verdict::CpuIntensive);
    }

    #[test]
    fn automatic_cpu_intensive_short_items_in_a_row_are_not() {
        let mut seen = WorkerHistory::first(sample(0, 1, 100, false));
        for n in 2..9 {
            assert_eq!(seen.look(sample(10 * n, n, 100 + 10 * n, false), ms(10)), Verdict::Fine);
        }
    }

    #[test]
    fn automatic_cpu_intensive_starts_again_after_a_sleep() {
        let mut seen = WorkerHistory::first(sample(0, 1, 100, true));
        assert_eq!(seen.look(sample(10, 1, 101, true), ms(10)), Verdict::Blocks(ms(10)));
        assert_eq!(seen.look(sample(20, 1, 107, false), ms(10)), Verdict::Fine);
        assert_eq!(seen.look(sample(30, 1, 109, false), ms(10)), Verdict::CpuIntensive);
    }

    #[test]
    fn automatic_cpu_intensive_follows_the_threshold_and_zero_is_off() {
        let mut seen = WorkerHistory::first(sample(0, 1, 0, false));
        assert_eq!(seen.look(sample(10, 1, 10, false), ms(50)), Verdict::Fine);
        assert_eq!(seen.look(sample(50, 1, 50, false), ms(50)), Verdict::CpuIntensive);
        assert_eq!(seen.look(sample(500, 1, 500, false), ms(0)), Verdict::Fine);
        assert_eq!(seen.look(sample(510, 1, 500, true), ms(0)), Verdict::Fine);
    }

    #[test]
    fn where_the_threads_clock_is_unknown_time_itself_counts() {
        let unknown = |at| Sample { at: ms(at), instance: 1, thread: None };
        let mut seen = WorkerHistory::first(unknown(0));
        assert_eq!(seen.look(unknown(5), ms(10)), Verdict::Fine);
        assert_eq!(seen.look(unknown(10), ms(10)), Verdict::CpuIntensive);
    }

    #[test]
    fn an_item_that_blocks_without_telling_is_one_that_sleeps_from_look_to_look() {
        let mut seen = WorkerHistory::first(sample(0, 1, 100, false));
        assert_eq!(seen.look(sample(10, 1, 102, true), ms(10)), Verdict::Fine, "just now");
        assert_eq!(seen.look(sample(20, 1, 102, true), ms(10)), Verdict::Blocks(ms(10)));
        assert_eq!(seen.look(sample(50, 1, 103, true), ms(10)), Verdict::Blocks(ms(40)));
        assert_eq!(seen.look(sample(60, 1, 104, false), ms(10)), Verdict::Fine, "it is awake");
        assert_eq!(seen.look(sample(70, 1, 104, true), ms(10)), Verdict::Fine);
        assert_eq!(seen.look(sample(80, 1, 104, true), ms(10)), Verdict::Blocks(ms(10)), "anew");
    }

    /// Returns how many threads of a pool sleep at once, if each sleeps for `sleep` and there is
    /// always work.
    fn settles(sleep: Duration, base: usize) -> usize {
        (0..).find(|&asleep| patience(asleep, base) > sleep).unwrap()
    }

    #[test]
    fn the_longer_sleeps_are_the_more_may_be_slept_at_once_and_no_more() {
        let micros = Duration::from_micros;
        for (sleep, base, threads) in [
            (micros(50), 2, 0),
            (micros(100), 2, 4),
            (ms(1), 2, 16),
            (ms(10), 2, 28),
            (ms(100), 2, 40),
            (ms(10), 1, 28),
            (ms(10), 8, 112),
        ] {
            assert_eq!(settles(sleep, base), threads, "{sleep:?} on {base}");
        }
    }

    #[test]
    fn while_the_cores_are_in_use_only_long_sleepers_are_replaced() {
        let busy = ms(0);
        assert!(replaces(ms(5), busy, 3, (1, 2)) && !replaces(ms(5), busy, 3, (2, 2)));
        for (asleep, computing) in [(50, 2), (1_000, 0), (usize::MAX, 9)] {
            assert!(!replaces(ms(999), busy, asleep, (computing, 2)));
            assert!(replaces(ms(1_000), busy, asleep, (computing, 2)));
        }
    }

    #[test]
    fn where_no_item_ends_a_sleeper_may_wait_for_one_that_cannot_start() {
        let replaces = |slept, nothing| replaces(ms(slept), ms(nothing), 100, (0, 2));
        assert!(replaces(100, 100) && replaces(500, 100));
        assert!(!replaces(99, 500) && !replaces(500, 99));
        let mut ended = Standstill::first(ms(10), 7);
        assert_eq!([20, 30].map(|at| ended.look(ms(at), 7)), [ms(10), ms(20)]);
        assert_eq!([40, 50].map(|at| ended.look(ms(at), 8)), [ms(0), ms(10)]);
    }

    #[test]
    fn an_item_that_mostly_computes_and_is_met_asleep_twice_does_not_block() {
        let mut seen = WorkerHistory::first(sample(0, 1, 100, true));
        assert_eq!(seen.look(sample(10, 1, 106, true), ms(10)), Verdict::Fine);
        assert_eq!(seen.look(sample(20, 1, 112, true), ms(10)), Verdict::CpuIntensive);
    }

    /// Returns the times of the first looks, in microseconds.
    fn looks(pace: &mut Pace, met: impl Fn(u64) -> LookResult, count: u64) -> Vec<u64> {
        let gap = |n| pace.after(met(n), TICK).as_micros();
        (0..count).map(gap).map(|us| u64::try_from(us).unwrap()).collect()
    }

    #[test]
    fn looks_are_farther_and_farther_apart_while_nobody_sleeps() {
        let mut pace = Pace::NEW;
        let gaps = looks(&mut pace, |_| LookResult::Busy, 9);
        assert_eq!(gaps, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
    }

    #[test]
    fn a_blocker_brings_the_looks_close_together_again() {
        let mut pace = Pace { gap: TICK, ..Pace::NEW };
        let met = |n| if n == 1 { LookResult::Blocker } else { LookResult::Sleeper };
        // Sleeper, Blocker, and then a new sleeper.
        assert_eq!(looks(&mut pace, met, 3), [100, 100, 100]);
        assert_eq!(pace.after(LookResult::Busy, TICK), SOON);
    }

    #[test]
    fn sleeps_that_are_all_short_cost_one_look_more_at_each_gap() {
        let mut pace = Pace::NEW;
        let gaps = looks(&mut pace, |_| LookResult::Sleeper, 8);
        assert_eq!(gaps, [100, 100, 100, 200, 100, 400, 100, 800]);
    }

    #[test]
    fn where_nothing_waits_the_next_look_is_neither_farther_nor_closer() {
        let mut pace = Pace { gap: 2 * SOON, ..Pace::NEW };
        assert_eq!(looks(&mut pace, |_| LookResult::Nobody, 3), [200, 200, 200]);
    }

    #[test]
    fn after_a_rest_the_looks_begin_anew_but_not_after_an_instant() {
        let worn = Pace { gap: TICK, ..Pace::NEW };
        for (rest, gap) in [(ms(1), TICK), (ms(10), SOON)] {
            let mut pace = worn;
            pace.rest(ms(50));
            pace.begin(ms(50) + rest, TICK);
            assert_eq!(pace.after(LookResult::Busy, TICK), gap);
        }
    }

    #[test]
    fn mayday_comes_after_10_ms_without_a_worker_and_then_each_100_ms() {
        let mut pool = Progress::first(ms(0), 7);
        let mut mayday = |at| pool.look(ms(at), 7, true, ms(0)).0;
        let called: Vec<u64> = (0..=25).map(|n| 10 * n).filter(|at| mayday(*at)).collect();
        assert_eq!(called, [10, 110, 210]);
    }

    #[test]
    fn mayday_is_over_once_the_pool_has_a_worker() {
        let mut pool = Progress::first(ms(0), 7);
        assert!(pool.look(ms(10), 7, true, ms(0)).0);
        assert!(!pool.look(ms(20), 8, false, ms(0)).0);
        assert!(!pool.look(ms(25), 8, true, ms(0)).0);
        assert!(pool.look(ms(30), 8, true, ms(0)).0, "it begins anew");
    }

    #[test]
    fn watchdog_a_pool_without_progress_is_reported_once_per_stall_time() {
        let mut pool = Progress::first(ms(0), 7);
        let mut stalled = |at, taken| pool.look(ms(at), taken, false, ms(100)).1;
        assert_eq!(stalled(90, 7), None);
        assert_eq!(stalled(100, 7), Some(ms(100)));
        assert_eq!(stalled(110, 7), None);
        assert_eq!(stalled(200, 7), Some(ms(200)), "it says for how long");
        assert_eq!(stalled(290, 8), None, "something was taken");
        assert_eq!(stalled(389, 8), None);
        assert_eq!(stalled(390, 8), Some(ms(100)));
    }

    #[test]
    fn watchdog_zero_is_off() {
        let mut pool = Progress::first(ms(0), 7);
        assert_eq!(pool.look(Duration::MAX, 7, false, ms(0)).1, None);
    }

    #[test]
    fn reports_start_at_the_fourth_hit_and_double_their_distance() {
        let reported: Vec<u64> = (1..=100).filter(|n| worth_a_report(*n)).collect();
        assert_eq!(reported, [4, 8, 16, 32, 64]);
    }
}
