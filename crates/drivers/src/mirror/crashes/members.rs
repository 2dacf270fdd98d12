//! A leg is added, or removed, with all possible incidents. The next start is refused or right,
//! with that disk and without it, and one of the two isn't refused.

use super::*;

/// The change of a mirror of the first disks.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    /// The third disk joins the first two.
    Add,
    /// One of three leaves.
    Remove(usize),
}

impl Change {
    /// Returns the disks that are legs after it.
    fn after(self) -> Vec<usize> {
        (0..3).filter(|disk| self != Change::Remove(*disk)).collect()
    }

    fn before(self) -> Vec<usize> {
        if self == Change::Add { vec![0, 1] } else { vec![0, 1, 2] }
    }
}

fn changed(rig: &Rig, made: &[Platter], ways: Choices, change: Change) -> Choices {
    let mut world = World::new(made.to_vec(), ways);
    world.legs = change.before();
    let world = Arc::new(Mutex::new(world));
    let done = first_life(rig, &world, change);
    power(&world);
    // The operator uses the list in the message, or tries the other one first.
    let first = match world.lock().ways.pick(2) {
        0 => done,
        _ => !done,
    };
    let mut refused = Vec::new();
    for with in [first, !first] {
        if let Err(error) =
            next_life(rig, &world, if with { change.after() } else { change.before() })
        {
            refused.push(error);
        } else if done && !with {
            let log = world.lock().ways.log.join(", ");
            panic!("the change has come to nothing: {log}");
        }
    }
    let mut world = world.lock();
    assert!(refused.len() < 2, "neither may begin: {refused:?}: {}", world.ways.log.join(", "));
    std::mem::take(&mut world.ways)
}

/// Returns true if the mirror said that it is done.
fn first_life(rig: &Rig, world: &Shared, change: Change) -> bool {
    let Ok(up) = rig.open(world) else { return false };
    up.write(0);
    if change == Change::Remove(0) {
        // The newest head is in the other slot then.
        let keeper = &up.inner.keeper;
        let _ = up.inner.write_heads(keeper, &mut keeper.state.lock(), 0);
    }
    let done = match change {
        Change::Add => {
            world.lock().legs = change.after();
            up.inner.add(port(world, 2)).is_ok()
        }
        Change::Remove(n) => up.inner.remove(n).is_ok(),
    };
    world.lock().legs = if done { change.after() } else { change.before() };
    up.check_claims();
    up.turn();
    up.check_claims();
    up.write(1);
    up.check_claims();
    if !up.is_dead() && !world.lock().ways.has_begun {
        assert_eq!((done, up.inner.legs.out()), (true, 0), "nothing has happened");
    }
    up.kill();
    done
}

fn all_changed(change: Change, plan: &'static [Kind], soon: usize, can_fua: bool) {
    let made = |rig: &Rig| {
        let mut platters = made(rig, &vec![can_fua; change.before().len()]);
        platters.resize_with(3, || Platter::new(can_fua));
        platters
    };
    all_ways(made, plan, soon, |rig, made, ways| changed(rig, made, ways, change));
}

#[test]
fn a_disk_that_is_added_is_in_sync_only_when_it_has_all_and_the_next_start_is_right_with_it_or_without_it()
 {
    all_changed(Change::Add, &[Killed], 0, true);
    if long() {
        all_changed(Change::Add, &[Failed], 0, true);
        all_changed(Change::Add, &[Killed], 0, false);
        all_changed(Change::Add, &[Failed, Killed], 8, true);
        all_changed(Change::Add, &[Killed, Failed], 4, false);
    }
}

#[test]
fn a_leg_that_was_removed_is_none_at_the_next_start_whatever_its_own_record_says() {
    all_changed(Change::Remove(0), &[Killed], 0, true);
    all_changed(Change::Remove(2), &[Failed], 0, true);
    if long() {
        for n in [0, 1, 2] {
            all_changed(Change::Remove(n), &[Failed], 0, true);
            all_changed(Change::Remove(n), &[Killed], 0, n != 1);
        }
        all_changed(Change::Remove(0), &[Failed, Killed], 8, true);
        all_changed(Change::Remove(2), &[Killed, Failed], 4, false);
    }
}
