//! Random schedules of a scenario, in shuttle. Those that fail print what replays them: CONTRIBUTING.md says how.

use std::env::{var, var_os};

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler,
    UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, FailurePersistence, Runner};

/// How many schedules a test runs.
#[derive(Clone, Copy, Debug)]
pub struct Schedules {
    /// Each time.
    pub short: usize,
    /// With `COREWISE_LONG`.
    pub long: usize,
}

impl Schedules {
    fn now(self) -> usize {
        if var_os("SHUTTLE_RANDOM_SEED").is_some() {
            1
        } else if var_os("COREWISE_LONG").is_some() {
            self.long
        } else {
            self.short
        }
    }
}

fn run(
    scheduler: impl Scheduler + 'static,
    persist: FailurePersistence,
    scenario: impl Fn() + Send + Sync + 'static,
) {
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    config.failure_persistence = persist;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || {
        crate::facade::backend::clock::begin();
        scenario();
    });
}

/// Any thread may go on at each step. A schedule that fails prints its seed.
pub fn random(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
    run(RandomScheduler::new(schedules.now()), FailurePersistence::None, scenario);
}

/// Three preemptions, at random places. A failure prints the schedule itself, and `COREWISE_SHUTTLE_SCHEDULE`
/// replays it.
pub fn few_preemptions(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
    match var("COREWISE_SHUTTLE_SCHEDULE") {
        Ok(schedule) => {
            let replay = ReplayScheduler::new_from_encoded(&schedule);
            run(replay, FailurePersistence::None, scenario);
        }
        Err(_) => {
            run(PctScheduler::new(3, schedules.now()), FailurePersistence::Print, scenario);
        }
    }
}

/// Runs each schedule twice: the second time it has to be the same.
pub fn replayed(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
    let random = RandomScheduler::new(schedules.now());
    let twice = UncontrolledNondeterminismCheckScheduler::new(random);
    run(twice, FailurePersistence::Print, scenario);
}
