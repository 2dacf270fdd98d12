//! Legs that are added to a mirror and removed from it, while clients continue.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::mirrors::{LEG, Legs, REGION, SIZE, Up, unrecorded, until_alike};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Op};
use corewise_drivers::{Delay, Delays, Fault, Faulty, LegState, Memory, MirrorEvent, MirrorLeg};

fn disk(legs: &Legs, size: u64) -> Arc<dyn BlockDevice> {
    legs.rig.named("spare", Memory::new(size).unwrap())
}

/// Adds the device, and waits until it has everything.
fn added(up: &Up, device: &Arc<dyn BlockDevice>) -> usize {
    let n = up.mirror.add(Arc::clone(device)).unwrap();
    assert_eq!(up.resynced().0, [n]);
    n
}

fn here(disks: &[&Arc<dyn BlockDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| Arc::clone(disk)).collect()
}

fn refused(legs: &Legs, disks: &[&Arc<dyn BlockDevice>]) -> String {
    legs.try_open(here(disks), false).err().unwrap()
}

#[test]
fn legs_come_and_go_while_clients_write_and_read() {
    let mut legs = Legs::new(2).made();
    let up = legs.open();
    up.beside_clients(|| {
        for round in 0..4 {
            let spare = disk(&legs, LEG);
            assert_eq!(added(&up, &spare), 2 + round);
            let gone = if round == 0 { 0 } else { 1 + round };
            let former = up.mirror.remove(gone).unwrap();
            assert!(former.is_some() && up.mirror.leg_name(gone).is_none());
            if round == 0 {
                legs.disks.remove(0);
            } else {
                let _ = legs.disks.pop();
            }
            legs.disks.push(spare);
        }
    });
    let (gone, in_sync) = (LegState::Removed, LegState::InSync);
    assert_eq!(up.states(), [gone, in_sync, gone, gone, gone, in_sync]);
    assert_eq!(up.mirror.status().to_string(), "2 of 2 legs in sync");
    up.close();
    assert!(legs.alike());
    let up = legs.open();
    assert_eq!(up.states(), [gone, in_sync, gone, gone, gone, in_sync]);
    assert_eq!(up.mirror.status().to_resync, 0);
}

#[test]
fn a_leg_that_was_removed_is_refused_at_the_next_start_until_it_is_added_again() {
    let legs = Legs::new(3).made();
    let [a, b, c] = &legs.disks[..] else { unreachable!() };
    let up = legs.open();
    up.fill(1, 1);
    let former = up.mirror.remove(1).unwrap().unwrap();
    assert!(std::ptr::addr_eq(&raw const *former, &raw const **b));
    assert_eq!(up.event(), MirrorEvent::Removed { leg: 1, device: b.name().to_owned() });
    up.fill(2, 2);
    assert!(!up.mirror.take_back(1) && up.mirror.why_out(1).is_none());
    assert!(up.mirror.remove(1).is_err() && up.mirror.replace(1, disk(&legs, LEG)).is_err());
    up.close();
    for disks in [[a, b, c], [a, c, b], [b, a, c]] {
        let error = refused(&legs, &disks);
        assert!(error.contains("was removed from this mirror, which has 2 legs"), "{error}");
    }
    let error = refused(&legs, &[b]);
    assert!(error.contains("was removed from this mirror"), "{error}");
    let error = refused(&legs, &[c, a]);
    assert!(error.contains("is leg 2 of 2 of this mirror, but was given as leg 1 of 2"), "{error}");
    let up = legs.try_open(here(&[a, c]), false).unwrap();
    assert_eq!(up.states(), [LegState::InSync, LegState::Removed, LegState::InSync]);
    assert_eq!(added(&up, b), 3);
    up.fill(3, 3);
    up.close();
    assert!(legs.alike());
    let up = legs.try_open(here(&[a, c, b]), false).unwrap();
    assert_eq!(up.mirror.status().to_string(), "3 of 3 legs in sync");
}

#[test]
fn a_disk_that_was_replaced_is_added_as_one_that_lacks_everything() {
    let mut legs = Legs::new(2).made();
    let up = legs.open();
    let spare = disk(&legs, LEG);
    let former = up.mirror.replace(1, spare.clone()).unwrap().unwrap();
    assert_eq!(up.resynced().0, [1]);
    up.fill(2, 2);
    assert_eq!(added(&up, &former), 2);
    up.close();
    legs.disks.insert(1, spare);
    assert!(legs.alike());
    let up = legs.open();
    assert_eq!(up.mirror.status().to_string(), "3 of 3 legs in sync");
}

#[test]
fn the_next_start_is_given_all_legs_and_a_new_one_behind_them_joins() {
    let mut legs = Legs::new(2).made();
    let (spare, other) = (disk(&legs, LEG), disk(&legs, LEG));
    let up = legs.open();
    assert_eq!(added(&up, &spare), 2);
    up.close();
    let error = legs.try_open(legs.disks.clone(), false).err().unwrap();
    assert!(error.contains("has 3 legs, but only 2 of them were given"), "{error}");
    legs.disks.push(spare);
    let missing = MirrorLeg::Missing { name: "gone".into(), why: "it burned".into() };
    let mut with = legs.disks.iter().cloned().map(MirrorLeg::Here).collect::<Vec<_>>();
    with.push(missing);
    let error = legs.open_with(with, |_| {}).err().unwrap();
    assert!(error.contains("'gone' is none of them and is missing"), "{error}");
    legs.disks.push(other);
    let up = legs.open();
    assert_eq!(up.resynced().0, [3]);
    up.close();
    assert!(legs.alike());
}

#[test]
fn what_can_not_be_a_leg_is_not_added_and_the_last_complete_one_stays() {
    let mut legs = Legs::new(2);
    // The device takes flushes, so the mirror does, and a leg may too.
    legs.disks[0] = legs.rig.queue(Faulty::new(legs.disks[0].clone(), Vec::new(), 0));
    let legs = legs.made();
    let others = Legs::new(2).made();
    let up = legs.open();
    let refused = |device: Arc<dyn BlockDevice>| up.mirror.add(device).err().unwrap().to_string();
    let why = refused(disk(&legs, LEG - REGION));
    assert!(why.contains("'spare' has room for"), "{why}");
    let why = refused(legs.disks[0].clone());
    assert!(why.contains("is a leg of the mirror already"), "{why}");
    let theirs = Delay::new(others.disks[1].clone(), Delays::default(), &legs.rig.wq);
    let why = refused(legs.rig.named("spare", theirs));
    assert!(why.contains("holds the record of a mirror, as leg 2 of 2"), "{why}");
    let fault = Fault::new().on(&[Op::Write]).range(SIZE..LEG);
    let dead = Faulty::new(disk(&legs, LEG), vec![fault], 0);
    let why = refused(legs.rig.named("dead", dead));
    assert!(
        why.contains("'dead' cannot be a leg of the mirror: ") && why.contains("I/O error"),
        "{why}"
    );
    assert_eq!(up.states(), [LegState::InSync; 2], "nothing has changed");
    assert!(up.mirror.remove(2).is_err());
    up.mirror.remove(0).unwrap();
    let why = up.mirror.remove(1).err().unwrap().to_string();
    assert!(why.contains("is the only leg in sync"), "{why}");
    up.fill(1, 1);
    up.close();
    let up = legs.try_open(here(&[&legs.disks[1]]), false).unwrap();
    assert_eq!(up.mirror.status().to_string(), "1 of 1 legs in sync");
    assert_eq!(up.queue.read_at(REGION, 4096).unwrap()[..], [1; 4096]);
}

#[test]
fn the_number_of_a_leg_that_was_removed_is_used_again_when_there_is_no_other() {
    let legs = Legs::new(2).made();
    let [a, b] = &legs.disks[..] else { unreachable!() };
    let up = legs.open();
    let mut last = 1;
    for n in 2..32 {
        let spare = disk(&legs, LEG);
        assert_eq!(up.mirror.add(spare.clone()).unwrap(), n);
        up.mirror.remove(std::mem::replace(&mut last, n)).unwrap();
    }
    // Its own former disk, which has an old record of that number.
    assert_eq!(up.mirror.add(b.clone()).unwrap(), 1);
    while up.states()[1] != LegState::InSync {
        std::thread::yield_now();
    }
    up.close();
    let error = refused(&legs, &[a, b]);
    assert!(error.contains("the record of this mirror has 3 legs"), "{error}");
}

#[test]
fn a_mirror_without_a_record_has_legs_added_and_all_but_the_first_removed() {
    let legs = Legs::new(2);
    let mirror = unrecorded(&legs.rig, legs.disks.clone());
    legs.disks[0].write_at(0, vec![5; 512]).unwrap();
    let spare = disk(&legs, LEG);
    assert_eq!(mirror.add(spare.clone()).unwrap(), 2);
    until_alike(&mirror);
    assert_eq!(spare.read_at(0, 512).unwrap()[..], [5; 512]);
    let why = mirror.remove(0).err().unwrap().to_string();
    assert!(why.contains("is the first leg of a mirror without a record"), "{why}");
    assert!(mirror.remove(1).unwrap().is_some());
    assert_eq!(mirror.status().to_string(), "2 of 2 legs in sync");
}
