//! A scenario with choices left to chance: on real threads, where a seed decides what each thread
//! does but not when, and in shuttle's schedules, which chance is part of. The tests of devices
//! take it, too.

/// The source of a scenario's choices.
pub(crate) trait Chance: Clone + Send + 'static {
    /// Returns a number below `n`, which isn't 0.
    fn below(&mut self, n: u64) -> u64;
    /// Returns a source for another thread.
    #[allow(dead_code)] // not each scenario has threads that choose
    fn another(&mut self) -> Self;

    /// Returns true once in `n` times.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(not(shuttle))]
pub(crate) use real::torture;
#[cfg(shuttle)]
pub(crate) use schedules::{Schedule, few_preemptions, random, replayed};

#[cfg(not(shuttle))]
mod real {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::time::{Duration, Instant, SystemTime};

    /// Steele, Lea and Flood's SplitMix64.
    #[derive(Clone)]
    pub(crate) struct Seeded(u64);

    impl super::Chance for Seeded {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % n
        }

        fn another(&mut self) -> Self {
            Seeded(self.below(u64::MAX))
        }
    }

    /// When one run of a scenario, which takes milliseconds, counts as stuck.
    const STUCK: Duration = Duration::from_secs(120);

    /// Runs a scenario for two seconds, or a minute with `COREWISE_LONG`, with a new seed each
    /// time. One that failed is printed, and `COREWISE_TORTURE_SEED` begins with it.
    pub(crate) fn torture(scenario: fn(Seeded)) {
        let long = std::env::var_os("COREWISE_LONG").is_some();
        let end = Instant::now() + Duration::from_secs(if long { 60 } else { 2 });
        let asked = std::env::var("COREWISE_TORTURE_SEED").ok();
        let mut seed = match asked {
            Some(seed) => seed.parse().expect("COREWISE_TORTURE_SEED is a number"),
            None => {
                let since = SystemTime::UNIX_EPOCH.elapsed();
                since.expect("after 1970").as_nanos() as u64 & 0xffff_ffff
            }
        };
        while Instant::now() < end {
            let (done, over) = mpsc::channel();
            let runner = std::thread::spawn(move || {
                let run = || scenario(Seeded(seed));
                let _ = done.send(catch_unwind(AssertUnwindSafe(run)).is_ok());
            });
            match over.recv_timeout(STUCK) {
                Ok(true) => runner.join().expect("it ended"),
                Ok(false) => panic!("it failed with COREWISE_TORTURE_SEED={seed}; see above"),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("it is stuck with COREWISE_TORTURE_SEED={seed}: some waiter never ended")
                }
                Err(RecvTimeoutError::Disconnected) => panic!("the runner died with seed {seed}"),
            }
            seed += 1;
        }
    }
}

#[cfg(shuttle)]
mod schedules {
    use corewise_sync::model;
    use corewise_sync::model::schedules::{self, Schedules};

    /// Chance is part of the schedule.
    #[derive(Clone)]
    pub(crate) struct Schedule;

    impl super::Chance for Schedule {
        fn below(&mut self, n: u64) -> u64 {
            model::choose(n)
        }

        fn another(&mut self) -> Self {
            Schedule
        }
    }

    /// Runs 5 000 schedules, or 200 000 with `COREWISE_LONG`. A failing one prints its seed;
    /// CONTRIBUTING.md says how to replay it.
    pub(crate) fn random(scenario: fn(Schedule)) {
        schedules::random(Schedules { short: 5_000, long: 200_000 }, move || scenario(Schedule));
    }

    /// Runs schedules in which few threads are preempted.
    pub(crate) fn few_preemptions(scenario: fn(Schedule)) {
        let schedules = Schedules { short: 1_000, long: 40_000 };
        schedules::few_preemptions(schedules, move || scenario(Schedule));
    }

    /// Runs the schedule of a seed again.
    pub(crate) fn replayed(scenario: fn(Schedule)) {
        schedules::replayed(Schedules { short: 50, long: 1_000 }, move || scenario(Schedule));
    }
}
