//! The mixed scenario in random schedules: 5 000, or 200 000 with `COREWISE_LONG`. A failing one
//! prints its seed; CONTRIBUTING.md says how to replay it.
#![cfg(shuttle)]

mod mixed;

use corewise_sync::model;
use mixed::{Chance, Size, scenario};
use shuttle::scheduler::{
    PctScheduler, RandomScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, FailurePersistence, Runner};

/// Chance is part of the schedule.
#[derive(Clone)]
struct Schedule;

impl Chance for Schedule {
    fn below(&mut self, n: u64) -> u64 {
        model::choose(n)
    }

    fn another(&mut self) -> Self {
        Schedule
    }
}

const SIZE: Size = Size { actors: 3, acts: 4 };

fn schedules(short: usize, long: usize) -> usize {
    if std::env::var_os("SHUTTLE_RANDOM_SEED").is_some() {
        1
    } else if std::env::var_os("COREWISE_LONG").is_some() {
        long
    } else {
        short
    }
}

fn run(scheduler: impl Scheduler + 'static, persist: FailurePersistence) {
    let mut config = Config::new();
    config.stack_size = 0x2_0000;
    config.failure_persistence = persist;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(|| scenario(Schedule, SIZE));
}

#[test]
fn shuttle_the_rules_hold_in_random_schedules() {
    run(RandomScheduler::new(schedules(5_000, 200_000)), FailurePersistence::None);
}

/// Few preemptions, at random places: what fails there prints the schedule itself, and
/// `COREWISE_SHUTTLE_SCHEDULE` replays it.
#[test]
fn shuttle_the_rules_hold_where_few_threads_are_preempted() {
    match std::env::var("COREWISE_SHUTTLE_SCHEDULE") {
        Ok(schedule) => run(
            shuttle::scheduler::ReplayScheduler::new_from_encoded(&schedule),
            FailurePersistence::None,
        ),
        Err(_) => run(PctScheduler::new(3, schedules(1_000, 40_000)), FailurePersistence::Print),
    }
}

#[test]
fn shuttle_a_seed_replays_its_schedule() {
    let random = RandomScheduler::new(schedules(50, 1_000));
    run(UncontrolledNondeterminismCheckScheduler::new(random), FailurePersistence::Print);
}
