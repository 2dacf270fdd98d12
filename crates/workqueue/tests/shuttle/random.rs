//! The mixed scenario in random schedules.

use crate::chance::{Schedule, few_preemptions, random, replayed};
use crate::mixed::{Size, scenario};

fn rules(schedule: Schedule) {
    scenario(schedule, Size { actors: 3, acts: 4 });
}

#[test]
fn shuttle_the_rules_hold_in_random_schedules() {
    random(rules);
}

#[test]
fn shuttle_the_rules_hold_where_few_threads_are_preempted() {
    few_preemptions(rules);
}

#[test]
fn shuttle_a_seed_replays_its_schedule() {
    replayed(rules);
}
