//! Mirrors with a leg that was opened without changes that were flushed to it.
#![cfg(not(loom))]

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Driver, Geometry, Op, Request};
use corewise_drivers::{Degraded, Fault, Faulty, LegState, MirrorLeg, Partition, Stripe};

use crate::common::STALL;
use crate::common::mirrors::{LEG, Legs, REGION, SIZE, missing};

use LegState::{InSync, Out};

/// A disk that lacks changes that were flushed.
struct Outdated(Arc<dyn BlockDevice>);

impl BlockDevice for Outdated {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, rq: Request) {
        self.0.submit(rq);
    }

    fn is_outdated(&self) -> bool {
        true
    }
}

fn outdated(legs: &Legs, n: usize) -> Arc<dyn BlockDevice> {
    Arc::new(Outdated(legs.disks[n].clone()))
}

fn here(legs: &Legs, n: usize) -> MirrorLeg {
    MirrorLeg::Here(legs.disks[n].clone())
}

fn copy(legs: &Legs, n: usize, len: u64) -> Vec<u8> {
    legs.disks[n].read_at(0, len as usize).unwrap().to_vec()
}

fn region(legs: &Legs, n: usize, region: u64) -> u8 {
    legs.disks[n].read_at(region * REGION, 512).unwrap()[0]
}

/// Makes a mirror that was killed after a write to region 3. Leg `n` has lost that write, and with
/// `record` also the mirror's records since its start.
fn rolled_back(n: usize, record: bool) -> Legs {
    let legs = Legs::new(2).made();
    let before = copy(&legs, n, if record { LEG } else { SIZE });
    let up = legs.open();
    up.fill(3, 3);
    up.queue.flush().unwrap();
    drop(up);
    legs.disks[n].write_at(0, before).unwrap();
    legs
}

#[test]
fn a_leg_that_lacks_flushed_changes_is_no_source_while_another_leg_is_complete() {
    for (n, record) in [(0, false), (0, true), (1, false), (1, true)] {
        let legs = rolled_back(n, record);
        let mut parts = vec![here(&legs, 0), here(&legs, 1)];
        parts[n] = MirrorLeg::Here(outdated(&legs, n));
        let up = legs.open_with(parts, |_| {}).unwrap();
        assert_eq!(up.queue.read_at(3 * REGION, 512).unwrap()[0], 3, "leg {n}");
        assert!(!up.queue.is_outdated());
        assert_eq!(up.resynced(), (vec![n], SIZE));
        up.close();
        assert!(legs.alike() && region(&legs, n, 3) == 3, "leg {n}");
        // From then on it is like any other leg.
        let up = legs.open();
        assert_eq!((up.states(), up.mirror.status().to_resync), (vec![InSync, InSync], 0));
    }
}

#[test]
fn a_leg_that_lacks_flushed_changes_is_the_source_where_no_other_one_is_complete() {
    let legs = rolled_back(0, false);
    // A start without the other leg, which has everything, would lose that for good.
    let alone = |degraded| {
        let parts = vec![MirrorLeg::Here(outdated(&legs, 0)), missing()];
        legs.open_with(parts, |options| options.degraded = degraded)
    };
    let error = alone(Degraded::Known).err().expect("leg 1 may have what leg 0 lacks");
    assert!(error.contains("'lost' is missing, but was in sync"), "{error}");
    let up = alone(Degraded::Always).unwrap();
    assert_eq!(up.states(), [InSync, Out]);
    assert!(up.queue.is_outdated());
    up.close();
    // The other leg lacks the same now: the legs are alike.
    let up = legs.open();
    assert_eq!(up.resynced(), (vec![1], SIZE));
    up.close();
    assert!(legs.alike() && region(&legs, 1, 3) == 0);
    // If all lack some, one of them is the source.
    let parts = (0..2).map(|n| MirrorLeg::Here(outdated(&legs, n))).collect();
    let up = legs.open_with(parts, |_| {}).unwrap();
    assert_eq!(up.resynced(), (vec![1], SIZE));
}

#[test]
fn the_only_complete_leg_begins_the_mirror_also_where_it_lacks_its_newest_record() {
    let legs = Legs::new(2).made();
    let before = copy(&legs, 0, LEG);
    // Leg 1 is out, and its own record says so.
    let rules = vec![Fault::new().on(&[Op::Write]).range(0..SIZE)];
    let bad = legs.rig.queue(Faulty::new(legs.disks[1].clone(), rules, 0));
    let up = legs.try_open(vec![legs.disks[0].clone(), bad], false).unwrap();
    up.fill(3, 3);
    up.close();
    drop(legs.open());
    legs.disks[0].write_at(0, before).unwrap();
    let parts = vec![MirrorLeg::Here(outdated(&legs, 0)), here(&legs, 1)];
    let up = legs.open_with(parts, |_| {}).unwrap();
    up.resynced();
    up.close();
    assert!(legs.alike());
}

#[test]
fn a_leg_that_comes_back_without_flushed_changes_gets_everything() {
    let legs = Legs::new(2).made();
    let rules = vec![Fault::new().on(&[Op::Write]).range(REGION..SIZE)];
    let bad = legs.rig.queue(Faulty::new(legs.disks[1].clone(), rules, 0));
    let before = copy(&legs, 1, SIZE);
    let up = legs.try_open(vec![legs.disks[0].clone(), bad], false).unwrap();
    up.fill(0, 7);
    up.fill(3, 3);
    assert_eq!(up.states(), [InSync, Out]);
    up.close();
    legs.disks[1].write_at(0, before).unwrap();
    let found = outdated(&legs, 1);
    let up = legs.open_with(vec![here(&legs, 0), missing()], |options| {
        options.clean_after = STALL;
        options.find = Some(Arc::new(move |_| Ok(found.clone())));
    });
    let up = up.unwrap();
    assert!(up.mirror.take_back(1));
    assert_eq!(up.resynced(), (vec![1], SIZE));
    up.close();
    assert!(legs.alike() && region(&legs, 1, 0) == 7);
}

#[test]
fn without_a_record_a_first_leg_that_lacks_flushed_changes_is_not_copied_over_data() {
    let legs = Legs::new(2);
    let open = |parts| legs.open_with(parts, |options| options.record = false);
    legs.disks[0].write_at(0, vec![1; 4096]).unwrap();
    legs.disks[1].write_at(0, vec![2; 4096]).unwrap();
    let first = || MirrorLeg::Here(outdated(&legs, 0));
    let error = open(vec![first(), here(&legs, 1)]).err().expect("leg 1 has what leg 0 lacks");
    let (lacks, other) = (legs.disks[0].name(), legs.disks[1].name());
    for words in [format!("'{lacks}' lacks changes"), format!("name '{other}' first")] {
        assert!(error.contains(&words), "{error}");
    }
    assert_eq!((region(&legs, 0, 0), region(&legs, 1, 0)), (1, 2), "left alone");
    let up = open(vec![here(&legs, 1), first()]).unwrap();
    up.resynced();
    up.close();
    assert_eq!((region(&legs, 0, 0), region(&legs, 1, 0)), (2, 2));
    // Nothing is lost if the other one holds nothing.
    legs.disks[1].write_zeroes(0, LEG).unwrap();
    open(vec![first(), here(&legs, 1)]).unwrap().resynced();
    assert_eq!(region(&legs, 1, 0), 2);
}

#[test]
fn what_stands_on_a_disk_that_lacks_flushed_changes_lacks_them() {
    let legs = Legs::new(2);
    let both = vec![legs.disks[0].clone(), outdated(&legs, 1)];
    let stripe = Stripe::new(both, 65536).unwrap();
    assert!(stripe.is_outdated());
    assert!(!Stripe::new(legs.disks.clone(), 65536).unwrap().is_outdated());
    let below: Arc<dyn BlockDevice> = legs.rig.queue(stripe);
    let faulty = legs.rig.queue(Faulty::new(below, vec![], 0));
    assert!(Partition::new(faulty, 0, REGION).unwrap().is_outdated());
}
