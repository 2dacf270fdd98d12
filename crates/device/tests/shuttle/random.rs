//! Devices and drivers that come and go, in random schedules.

use crate::chance::{Schedule, few_preemptions, random, replayed};
use crate::comings::{Size, scenario};

fn rules(schedule: Schedule) {
    scenario(schedule, Size { devices: 4, actors: 3, acts: 4 });
}

#[test]
fn shuttle_no_supplier_goes_before_its_consumer() {
    random(rules);
}

#[test]
fn shuttle_no_supplier_goes_before_its_consumer_where_few_threads_are_preempted() {
    few_preemptions(rules);
}

#[test]
fn shuttle_a_seed_replays_its_schedule() {
    replayed(rules);
}
