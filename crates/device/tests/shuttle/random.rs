//! Devices and drivers that come and go, in random schedules: 5 000, or 200 000 with `COREWISE_LONG`. A failing one
//! prints its seed; CONTRIBUTING.md says how to replay it.

use crate::comings::{Chance, Size, scenario};
use corewise_sync::model;
use corewise_sync::model::schedules::{self, Schedules};

/// Chance is part of the schedule.
struct Schedule;

impl Chance for Schedule {
    fn below(&mut self, n: u64) -> u64 {
        model::choose(n)
    }

    fn another(&mut self) -> Self {
        Schedule
    }
}

const SIZE: Size = Size { devices: 4, actors: 3, acts: 4 };

#[test]
fn shuttle_no_supplier_goes_before_its_consumer() {
    schedules::random(Schedules { short: 5_000, long: 200_000 }, || scenario(Schedule, SIZE));
}

#[test]
fn shuttle_no_supplier_goes_before_its_consumer_where_few_threads_are_preempted() {
    schedules::few_preemptions(Schedules { short: 1_000, long: 40_000 }, || {
        scenario(Schedule, SIZE)
    });
}

#[test]
fn shuttle_a_seed_replays_its_schedule() {
    schedules::replayed(Schedules { short: 50, long: 1_000 }, || scenario(Schedule, SIZE));
}
