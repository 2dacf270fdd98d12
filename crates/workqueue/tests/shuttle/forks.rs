//! Trees of forks in random schedules.

use crate::chance::{Schedule, few_preemptions, random, replayed};
use crate::trees::{Size, scenario};

fn trees(schedule: Schedule) {
    scenario(schedule, Size { trees: 2, depth: 3, rounds: 0 });
}

#[test]
fn shuttle_trees_of_forks_come_to_what_a_plain_recursion_does() {
    random(trees);
}

#[test]
fn shuttle_trees_of_forks_are_right_where_few_threads_are_preempted() {
    few_preemptions(trees);
}

#[test]
fn shuttle_a_seed_of_trees_replays_its_schedule() {
    replayed(trees);
}
