//! A leg gets another disk, with all possible incidents. The next start is refused or right, with
//! either of the two disks, and one of the two isn't refused.

use super::*;

/// Runs a mirror of the first two disks, in which the third one takes the place of leg `n`.
fn replaced(rig: &Rig, made: &[Platter], ways: Choices, n: usize) -> Choices {
    let mut world = World::new(made.to_vec(), ways);
    world.legs = vec![0, 1];
    let world = Arc::new(Mutex::new(world));
    let took_place = first_life(rig, &world, n);
    power(&world);
    second_life(rig, &world, n, took_place);
    let mut world = world.lock();
    std::mem::take(&mut world.ways)
}

/// Returns true if the mirror said that the disk has taken the place of the other one.
fn first_life(rig: &Rig, world: &Shared, n: usize) -> bool {
    let Ok(up) = rig.open(world) else { return false };
    up.write(0);
    let came = up.inner.replace(n, port(world, 2));
    let took_place = came.is_ok();
    if took_place {
        world.lock().legs[n] = 2;
    }
    up.check_claims();
    up.turn();
    up.check_claims();
    up.write(1);
    up.check_claims();
    if !up.is_dead() && !world.lock().ways.has_begun {
        let why = up.inner.legs.why(n);
        assert_eq!((took_place, up.inner.legs.out()), (true, 0), "nothing has happened: {why}");
    }
    up.kill();
    took_place
}

fn second_life(rig: &Rig, world: &Shared, n: usize, took_place: bool) {
    // The operator uses the disk that the message names, or tries the other one first.
    let other_first = world.lock().ways.pick(2) == 1;
    let mut refused = Vec::new();
    for with in [took_place != other_first, took_place == other_first] {
        let mut disks = vec![0, 1];
        if with {
            disks[n] = 2;
        }
        let Err(error) = next_life(rig, world, disks) else { return };
        let log = world.lock().ways.log.join(", ");
        assert!(!(with && took_place), "the disk that took the place: {error}: {log}");
        refused.push(error);
    }
    let log = world.lock().ways.log.join(", ");
    panic!("neither may begin: {}: {log}", refused.join(", "));
}

fn all_replaced(plan: &'static [Kind], soon: usize, can_fua: bool) {
    for n in 0..2 {
        let made = |rig: &Rig| {
            let mut platters = made(rig, &[can_fua; 2]);
            platters.push(Platter::new(can_fua));
            platters
        };
        all_ways(made, plan, soon, |rig, made, ways| replaced(rig, made, ways, n));
    }
}

#[test]
fn a_disk_in_the_place_of_another_is_in_sync_only_when_it_has_all_and_neither_is_taken_for_the_other()
 {
    all_replaced(&[Failed], 0, true);
    all_replaced(&[Killed], 0, true);
    all_replaced(&[Killed], 0, false);
    if long() {
        all_replaced(&[Failed, Killed], 12, true);
        all_replaced(&[Failed, Killed], 4, false);
        all_replaced(&[Killed, Failed], 4, false);
    }
}
