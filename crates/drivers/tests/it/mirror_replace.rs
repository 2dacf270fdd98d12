//! Another disk in the place of a leg, while clients go on.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::mirrors::{LEG, Legs, REGION, SIZE, Up, unrecorded};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Op};
use corewise_drivers::{
    Degraded, Delay, Delays, Fault, Faulty, LegState, Memory, MirrorEvent, MirrorLeg,
};
use std::time::Duration;

fn disk(legs: &Legs, size: u64) -> Arc<dyn BlockDevice> {
    legs.rig.named("spare", Memory::new(size).unwrap())
}

fn refused(up: &Up, n: usize, device: Arc<dyn BlockDevice>) -> String {
    up.mirror.replace(n, device).err().unwrap().to_string()
}

#[test]
fn a_disk_that_takes_the_place_of_a_leg_gets_everything_while_clients_write_and_read() {
    let mut legs = Legs::new(2).made();
    let up = legs.open();
    let spare = disk(&legs, LEG);
    let former = up.beside_clients(|| {
        for _ in 0..8 {
            up.mirror.replace(0, disk(&legs, LEG)).unwrap();
            assert_eq!(up.resynced().0, [0]);
        }
        let former = up.mirror.replace(0, spare.clone()).unwrap().unwrap();
        assert_eq!(up.mirror.leg_name(0).unwrap(), "spare");
        assert_eq!(up.resynced().0, [0]);
        former
    });
    assert_eq!(former.name(), "spare");
    assert_eq!(up.states(), [LegState::InSync; 2]);
    up.close();
    let (old, new) = (legs.disks.clone(), vec![spare, legs.disks[1].clone()]);
    legs.disks = new;
    assert!(legs.alike());
    let error = legs.try_open(old, false).err().unwrap();
    assert!(error.contains("is an older copy of this leg"), "{error}");
    let up = legs.open();
    assert_eq!((up.states(), up.mirror.status().to_resync), (vec![LegState::InSync; 2], 0));
}

#[test]
fn a_disk_that_was_replaced_comes_back_and_gets_what_it_lacks() {
    let legs = Legs::new(2).made();
    let up = legs.open();
    let spare = disk(&legs, LEG);
    let former = up.mirror.replace(1, spare).unwrap().unwrap();
    assert_eq!(up.event(), MirrorEvent::Replaced { leg: 1 });
    up.resynced();
    up.fill(3, 7);
    drop(up.mirror.replace(1, former).unwrap());
    assert_eq!(up.resynced().0, [1]);
    up.close();
    assert!(legs.alike() && legs.data(1)[3 * REGION as usize] == 7);
}

#[test]
fn a_disk_that_can_not_be_a_leg_is_refused_and_nothing_changes() {
    let legs = Legs::new(2).made();
    let others = Legs::new(2).made();
    let up = legs.open();
    let why = refused(&up, 1, disk(&legs, LEG - REGION));
    assert!(why.contains("'spare' has room for"), "{why}");
    let why = refused(&up, 1, legs.disks[0].clone());
    assert!(why.contains("is a leg of the mirror already"), "{why}");
    let theirs = legs
        .rig
        .named("spare", Delay::new(others.disks[1].clone(), Delays::default(), &legs.rig.wq));
    let why = refused(&up, 1, theirs);
    assert!(why.contains("holds the record of a mirror, as leg 2 of 2"), "{why}");
    let full = disk(&legs, LEG);
    full.write_at(SIZE + 4096, vec![1; 512]).unwrap();
    let why = refused(&up, 1, full);
    assert!(why.contains("has other data at its end"), "{why}");
    assert!(refused(&up, 2, disk(&legs, LEG)).contains("no leg 2"));
    assert_eq!(up.states(), [LegState::InSync; 2]);
    up.close();

    let missing = MirrorLeg::Missing { name: "gone".into(), why: "it burned".into() };
    let up = legs.open_with(vec![MirrorLeg::Here(legs.disks[0].clone()), missing], |options| {
        options.degraded = Degraded::Always;
    });
    let up = up.unwrap();
    let why = refused(&up, 0, disk(&legs, LEG));
    assert!(why.contains("is the only leg in sync"), "{why}");
    assert!(up.mirror.replace(1, disk(&legs, LEG)).unwrap().is_none(), "nothing was there");
    assert_eq!(up.resynced().0, [1]);
    assert_eq!(up.states(), [LegState::InSync; 2]);
}

#[test]
fn a_mirror_without_a_record_has_any_leg_replaced_but_its_first_one() {
    let legs = Legs::new(2);
    let mirror = unrecorded(&legs.rig, legs.disks.clone());
    let why = mirror.replace(0, disk(&legs, LEG)).err().unwrap().to_string();
    assert!(why.contains("is the first leg of a mirror without a record"), "{why}");
    legs.disks[0].write_at(0, vec![5; 512]).unwrap();
    let spare = disk(&legs, LEG);
    mirror.replace(1, spare.clone()).unwrap();
    crate::common::mirrors::until_alike(&mirror);
    assert_eq!(spare.read_at(0, 512).unwrap()[..], [5; 512]);
}

#[test]
fn what_a_slow_disk_fails_after_it_was_replaced_is_no_failure_of_its_successor() {
    let legs = Legs::new(2).made();
    // Its writes are so slow that they fail when it is gone.
    let after = Delays { write: Duration::from_millis(200), ..Delays::default() };
    let fault = Fault::new().on(&[Op::Write]).range(0..SIZE);
    let failing = legs.rig.queue(Faulty::new(legs.disks[1].clone(), vec![fault], 0));
    let slow: Arc<dyn BlockDevice> = legs.rig.queue(Delay::new(failing, after, &legs.rig.wq));
    let up = legs.try_open(vec![legs.disks[0].clone(), slow], false).unwrap();
    std::thread::scope(|scope| {
        let queue = up.queue.clone();
        let write = scope.spawn(move || queue.write_at(2 * REGION, vec![9; 4096]).unwrap());
        while legs.data(0)[2 * REGION as usize] != 9 {
            std::thread::yield_now();
        }
        up.mirror.replace(1, disk(&legs, LEG)).unwrap();
        write.join().unwrap();
    });
    assert_eq!(up.resynced().0, [1]);
    assert_eq!(up.states(), [LegState::InSync; 2]);
    assert!(up.news.try_iter().all(|event| !matches!(event, MirrorEvent::Dropped { .. })));
}
