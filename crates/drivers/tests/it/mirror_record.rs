//! A mirror that keeps a record: crashes, legs that fail and come back, legs that are new.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::mirrors::{LEG, Legs, REGION, SIZE, Up, until_alike};
use crate::common::{Held, STALL, pass_on};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, Info, IoError, IoErrorKind, Op, Queue, Started,
    Whole,
};
use corewise_drivers::{
    Degraded, Fault, Faulty, LegState, Memory, Mirror, MirrorEvent, MirrorLeg, MirrorOptions,
};
use corewise_sync::Mutex;

use LegState::{InSync, Resyncing};

#[test]
fn a_new_mirror_has_what_its_first_leg_has_and_room_for_its_record() {
    let legs = Legs::new(3);
    for (n, disk) in legs.disks.iter().enumerate() {
        disk.write_at(4096, vec![n as u8 + 1; 8192]).unwrap();
    }
    let up = legs.open();
    assert_eq!(up.queue.geometry().size, SIZE);
    let began = MirrorEvent::ResyncBegan { legs: vec![1, 2], bytes: SIZE };
    assert_eq!(up.event(), began);
    assert!(up.queue.read_at(4096, 8192).unwrap().iter().all(|&b| b == 1), "also before that");
    assert_eq!(up.resynced(), (vec![1, 2], SIZE));
    assert!(legs.alike());
    assert_eq!(legs.data(2)[4096..12288], [1; 8192]);
}

#[test]
fn a_mirror_that_was_closed_in_order_has_nothing_to_resync() {
    let legs = Legs::new(2).made();
    let up = legs.open();
    up.fill(3, 7);
    up.close();
    let up = legs.open();
    let status = up.mirror.status();
    assert_eq!((status.to_resync, status.dirty, status.legs), (0, 0, vec![InSync, InSync]));
    assert!(up.queue.read_at(3 * REGION, 4096).unwrap().iter().all(|&b| b == 7));
}

#[test]
fn a_mirror_keeps_its_identity_and_another_one_has_another() {
    let (legs, others) = (Legs::new(2).made(), Legs::new(2).made());
    let id = |legs: &Legs| {
        let up = legs.open();
        let id = up.mirror.id();
        up.close();
        id
    };
    let first = id(&legs);
    assert!(first.is_some() && first == id(&legs));
    assert!(first != id(&others));
    let plain = MirrorOptions::new().record(false);
    let legs = Legs::new(2);
    let mirror = Mirror::open(legs.disks.clone(), plain, &legs.rig.wq).unwrap();
    assert_eq!(mirror.id(), None, "there is no record that has one");
}

#[test]
fn after_a_crash_only_what_was_dirty_is_resynced() {
    let legs = Legs::new(2).made();
    // Longer than this test takes: no bit is taken away.
    let options = MirrorOptions::new().clean_after(STALL);
    let mirror = Mirror::open(legs.disks.clone(), options, &legs.rig.wq).unwrap();
    let queue = legs.rig.queue(mirror);
    queue.write_at(5 * REGION, vec![5; 4096]).unwrap();
    queue.write_at(9 * REGION - 512, vec![9; 1024]).unwrap();
    queue.drain();
    drop(queue); // without a settle: as if the process had died
    // This is a possible state after a crash: one leg lacks a write.
    legs.disks[1].write_at(5 * REGION, vec![0; 4096]).unwrap();
    // It can't have left this, which shows that no code looks there.
    legs.disks[1].write_at(12 * REGION, vec![0xEE; 512]).unwrap();
    let up = legs.open();
    let began = MirrorEvent::ResyncBegan { legs: vec![], bytes: 3 * REGION };
    assert_eq!(up.event(), began);
    assert!(up.queue.read_at(5 * REGION, 4096).unwrap().iter().all(|&b| b == 5));
    assert_eq!(up.resynced(), (vec![], 3 * REGION));
    let (one, other) = (legs.data(0), legs.data(1));
    let region = |n: u64| (n * REGION) as usize..((n + 1) * REGION) as usize;
    assert!((0..12).all(|n| one[region(n)] == other[region(n)]));
    assert!(one[region(12)] != other[region(12)], "a clean region is not looked at");
}

#[test]
fn a_write_goes_to_no_leg_before_its_bit_is_on_all_and_its_neighbours_need_none() {
    let legs = Legs::new(2).made();
    let writes: Arc<Mutex<Vec<u64>>> = Arc::default();
    let noting = |disk: &Arc<dyn BlockDevice>| {
        let noting = Held { geometry: Some(disk.geometry()), ..Held::default() };
        let (disk, writes) = (disk.clone(), writes.clone());
        noting.instead(move |rq| {
            if rq.op() == Op::Write {
                writes.lock().push(rq.offset());
            }
            pass_on(rq, &disk);
            Dispatch::Started
        });
        legs.rig.queue(noting) as Arc<dyn BlockDevice>
    };
    let options = MirrorOptions::new().clean_after(STALL);
    let legs_up: Vec<_> = legs.disks.iter().map(noting).collect();
    let queue = legs.rig.queue(Mirror::open(legs_up, options, &legs.rig.wq).unwrap());
    writes.lock().clear();
    queue.write_at(0, vec![1; 512]).unwrap();
    let seen = std::mem::take(&mut *writes.lock());
    assert!(seen[..2].iter().all(|&at| at >= SIZE) && seen[2..] == [0, 0], "{seen:?}");
    queue.write_at(1024, vec![1; 512]).unwrap();
    assert_eq!(std::mem::take(&mut *writes.lock()), [1024, 1024]);
    // A client that writes in order waits for the record at each eighth region only: 1, and 9.
    for region in 1..16 {
        queue.write_at(region * REGION, vec![1; 512]).unwrap();
    }
    assert_eq!(writes.lock().iter().filter(|&&at| at >= SIZE).count(), 2 * 2);
}

/// Makes a mirror whose second leg can be made to fail.
fn with_a_weak_leg(legs: &Legs, faults: Vec<Fault>, retry: bool) -> (Up, Arc<Faulty>) {
    let weak = Arc::new(Faulty::new(legs.disks[1].clone(), faults, 0));
    weak.arm(false);
    let leg: Arc<dyn BlockDevice> =
        Queue::builder(&legs.rig.machine, weak.clone()).build(&legs.rig.wq);
    (legs.try_open(vec![legs.disks[0].clone(), leg], retry).unwrap(), weak)
}

#[test]
fn a_leg_that_is_taken_back_gets_what_was_written_meanwhile_and_nothing_else() {
    let legs = Legs::new(2).made();
    let (up, weak) = with_a_weak_leg(&legs, vec![Fault::new()], false);
    up.fill(1, 1);
    assert!(!up.mirror.take_back(1) && !up.mirror.take_back(7), "nothing is to be taken back");
    weak.arm(true);
    up.fill(3, 3);
    assert!(matches!(up.event(), MirrorEvent::Dropped { leg: 1, .. }));
    up.fill(5, 5);
    let before = weak.failed();
    assert!(up.mirror.take_back(1), "it still fails, and stays out");
    while weak.failed() == before {
        std::thread::yield_now();
    }
    weak.arm(false);
    up.fill(7, 7);
    assert!(up.mirror.take_back(1));
    let (back, bytes) = up.resynced();
    assert_eq!(back, [1]);
    assert!((3 * REGION..=4 * REGION).contains(&bytes), "{bytes}");
    assert_eq!(up.states(), [InSync, InSync]);
    up.fill(9, 9);
    up.close();
    assert!(legs.alike());
    let up = legs.open();
    assert_eq!((up.mirror.status().to_resync, up.states()), (0, vec![InSync, InSync]));
}

#[test]
fn a_leg_is_tried_again_by_itself_where_that_is_asked_for() {
    let legs = Legs::new(2).made();
    // Writes to the data and reads of the record: it stays out for some tries.
    let faults = vec![
        Fault::new().on(&[Op::Write]).range(0..SIZE).times(1),
        Fault::new().on(&[Op::Read]).range(SIZE..LEG).times(3),
    ];
    let (up, weak) = with_a_weak_leg(&legs, faults, true);
    weak.arm(true);
    up.fill(2, 2);
    assert_eq!(up.resynced(), (vec![1], REGION));
    assert_eq!(weak.failed(), 4);
    up.close();
    assert!(legs.alike());
}

#[test]
fn a_resync_whose_legs_were_all_dropped_is_not_told_to_have_ended() {
    let legs = Legs::new(2);
    let faults = vec![Fault::new().on(&[Op::Read]).range(4 * REGION..5 * REGION)];
    let bad = Arc::new(Faulty::new(legs.disks[0].clone(), faults, 0));
    let source: Arc<dyn BlockDevice> =
        Queue::builder(&legs.rig.machine, bad.clone()).build(&legs.rig.wq);
    let up = legs.try_open(vec![source, legs.disks[1].clone()], false).unwrap();
    let dropped = |event: MirrorEvent| match event {
        MirrorEvent::Dropped { leg, error } => Some((leg, error.to_string())),
        _ => None,
    };
    let (leg, why) = loop {
        if let Some(found) = dropped(up.event()) {
            break found;
        }
    };
    assert_eq!(leg, 1);
    assert!(why.contains("cannot be read"), "{why}");
    while up.mirror.status().to_resync != 0 {
        std::thread::yield_now();
    }
    bad.arm(false);
    assert!(up.mirror.take_back(1));
    assert_eq!(up.resynced().0, [1], "the first end is one that has made something alike");
    up.close();
    assert!(legs.alike());
}

/// A disk with a block that can't be read until it is written.
struct BadBlock {
    below: Arc<dyn BlockDevice>,
    bad: Mutex<Option<u64>>,
}

impl Driver for BadBlock {
    fn info(&self) -> Info {
        Info::new("bad block", self.below.geometry())
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        let (offset, len) = (rq.offset(), rq.len());
        let hit = |bad: &mut u64| (offset..offset + len).contains(bad);
        // Taken out under the lock, and put back if it still can't be read.
        let bad = self.bad.lock().take_if(hit);
        if let (Op::Read, Some(bad)) = (rq.op(), bad) {
            *self.bad.lock() = Some(bad);
            rq.complete(Err(IoError::new(IoErrorKind::Io(5))));
            return Dispatch::Started;
        }
        self.below.submit(Whole::new(rq).part(0, len, offset));
        Dispatch::Started
    }
}

#[test]
fn a_block_that_cannot_be_read_is_written_anew_from_another_leg() {
    let legs = Legs::new(2).made();
    let up = legs.open();
    up.fill(6, 6);
    up.close();
    let bad = Mutex::new(Some(6 * REGION + 512));
    let worn = Arc::new(BadBlock { below: legs.disks[0].clone(), bad });
    let leg: Arc<dyn BlockDevice> =
        Queue::builder(&legs.rig.machine, worn.clone()).build(&legs.rig.wq);
    let up = legs.try_open(vec![leg, legs.disks[1].clone()], false).unwrap();
    // Until it was the turn of the leg that can't.
    while worn.bad.lock().is_some() {
        assert!(up.queue.read_at(6 * REGION, 4096).unwrap().iter().all(|&b| b == 6));
    }
    assert!(up.queue.read_at(6 * REGION, 4096).unwrap().iter().all(|&b| b == 6));
    until_alike(&up.mirror);
    up.close();
    assert!(legs.alike());
}

#[test]
fn a_leg_whose_block_can_be_neither_read_nor_written_is_dropped() {
    let legs = Legs::new(2).made();
    let place = 6 * REGION..6 * REGION + 512;
    let faults = vec![Fault::new().on(&[Op::Read, Op::Write]).range(place)];
    let (up, weak) = with_a_weak_leg(&legs, faults, false);
    weak.arm(true);
    while up.states() == [InSync, InSync] {
        // The head of one leg is far away then, and the other one reads what follows.
        up.queue.read_at(15 * REGION, 4096).unwrap();
        up.queue.read_at(6 * REGION, 4096).unwrap();
    }
    assert!(matches!(up.event(), MirrorEvent::Dropped { leg: 1, .. }));
}

#[test]
fn a_leg_that_is_new_gets_everything() {
    let mut legs = Legs::new(2).made();
    let up = legs.open();
    (0..16).for_each(|n| up.fill(n, n as u8));
    up.close();
    legs.disks[1] = legs.rig.queue(Memory::new(LEG).unwrap());
    let error = legs.try_open(legs.disks.clone(), false).err().unwrap();
    assert!(error.contains("has no record, but was in sync"), "{error}");
    let parts = || legs.disks.iter().cloned().map(MirrorLeg::Here).collect();
    let up = legs.open_with(parts(), |options| options.degraded = Degraded::Always).unwrap();
    assert_eq!(up.states(), [InSync, Resyncing]);
    assert_eq!(up.resynced(), (vec![1], SIZE));
    assert_eq!(up.mirror.status().to_string(), "2 of 2 legs in sync");
    assert!(legs.alike());
}

#[test]
fn legs_that_do_not_belong_together_are_refused() {
    let (one, other) = (Legs::new(2).made(), Legs::new(2).made());
    let refused = |legs: Vec<Arc<dyn BlockDevice>>| one.try_open(legs, false).err().unwrap();
    let error = refused(vec![one.disks[0].clone(), other.disks[1].clone()]);
    assert!(error.contains("the legs belong to 2 mirrors"), "{error}");
    let error = refused(vec![one.disks[1].clone(), one.disks[0].clone()]);
    assert!(error.contains("is leg 2 of 2 of this mirror"), "{error}");
    let tiny: Arc<dyn BlockDevice> = one.rig.queue(Memory::new(4096).unwrap());
    let error = refused(vec![one.disks[0].clone(), tiny]);
    assert!(error.contains("too few for a mirror's record"), "{error}");
}

#[test]
fn a_leg_with_something_else_in_the_place_of_the_record_is_refused_and_left_alone() {
    let legs = Legs::new(2);
    legs.disks[1].write_at(SIZE + 4096, vec![7; 512]).unwrap();
    let error = legs.try_open(legs.disks.clone(), false).err().unwrap();
    assert!(error.contains("has other data at its end"), "{error}");
    assert!(legs.disks[1].read_at(SIZE + 4096, 512).unwrap().iter().all(|&b| b == 7));
    assert!(legs.disks[0].read_at(SIZE, 4096).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn a_mirror_over_legs_that_cannot_be_written_fails_its_writes_and_still_reads() {
    let legs = Legs::new(2).made();
    let bad = |n: usize| {
        let faulty =
            Arc::new(Faulty::new(legs.disks[n].clone(), vec![Fault::new().on(&[Op::Write])], 0));
        faulty.arm(false);
        let leg: Arc<dyn BlockDevice> =
            Queue::builder(&legs.rig.machine, faulty.clone()).build(&legs.rig.wq);
        (leg, faulty)
    };
    let (one, other) = (bad(0), bad(1));
    let up = legs.try_open(vec![one.0, other.0], false).unwrap();
    one.1.arm(true);
    other.1.arm(true);
    assert!(up.queue.write_at(0, vec![1; 512]).is_err());
    assert!(up.queue.read_at(0, 512).unwrap().iter().all(|&b| b == 0));
    assert!(up.queue.write_at(REGION, vec![1; 512]).is_err());
}
