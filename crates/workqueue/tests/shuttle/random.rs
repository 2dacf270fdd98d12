//! The mixed scenario in random schedules: 5 000, or 200 000 with `COREWISE_LONG`. A failing one
//! prints its seed; CONTRIBUTING.md says how to replay it.

use crate::mixed::{Chance, Size, scenario};
use corewise_sync::model;
use corewise_sync::model::schedules::{self, Schedules};

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

#[test]
fn shuttle_the_rules_hold_in_random_schedules() {
    schedules::random(Schedules { short: 5_000, long: 200_000 }, || scenario(Schedule, SIZE));
}

#[test]
fn shuttle_the_rules_hold_where_few_threads_are_preempted() {
    schedules::few_preemptions(Schedules { short: 1_000, long: 40_000 }, || {
        scenario(Schedule, SIZE)
    });
}

#[test]
fn shuttle_a_seed_replays_its_schedule() {
    schedules::replayed(Schedules { short: 50, long: 1_000 }, || scenario(Schedule, SIZE));
}
