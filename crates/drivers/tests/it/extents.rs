//! Extents: the holes that a device reports, through each driver over another one.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::mirrors::unrecorded;
use crate::common::{Held, Rig};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, ExtentKind, IoErrorKind, Op, Queue, Request, Whole,
};
use corewise_drivers::{Delay, Delays, Fault, Faulty, Memory, Null, Partition, Stripe};

const MIB: u64 = 1 << 20;
const HOLE: ExtentKind = ExtentKind::Hole;
const DATA: ExtentKind = ExtentKind::Data;

#[track_caller]
fn told(device: &dyn BlockDevice, offset: u64, len: u64) -> Vec<(u64, ExtentKind)> {
    device.extents_of(offset, len, 64).unwrap().iter().map(|e| (e.len, e.kind)).collect()
}

/// Makes a terabyte of memory, of which two pages were written.
fn memory(rig: &Rig) -> Arc<Queue> {
    let disk = rig.queue(Memory::new(1 << 40).unwrap());
    disk.write_at(8192, vec![7; 4096]).unwrap();
    disk.write_at(1 << 39, vec![7; 512]).unwrap();
    disk
}

/// Makes a small leg, as a mirror without a record compares its legs first.
fn leg(rig: &Rig) -> Arc<dyn BlockDevice> {
    let disk = rig.queue(Memory::new(MIB).unwrap());
    disk.write_at(8192, vec![7; 4096]).unwrap();
    disk
}

#[test]
fn memory_that_was_never_written_or_was_given_back_is_a_hole() {
    let rig = Rig::live();
    let disk = memory(&rig);
    assert_eq!(told(&*disk, 0, 16384), [(8192, HOLE), (4096, DATA), (4096, HOLE)]);
    assert_eq!(told(&*disk, 8704, 512), [(512, DATA)], "part of a page is as the page is");
    let first = disk.extents_of(0, 1 << 40, 1).unwrap();
    assert_eq!(first.iter().map(|e| e.len).collect::<Vec<_>>(), [8192], "no more than asked for");
    disk.read_at(0, 65536).unwrap();
    disk.write_zeroes(512, 4096).unwrap();
    disk.discard(1 << 20, 1 << 30).unwrap();
    assert_eq!(told(&*disk, 0, 8192), [(8192, HOLE)], "neither reads nor zeroes fill a hole");
    disk.write_zeroes(4096, 8192).unwrap();
    assert_eq!(told(&*disk, 0, 16384), [(16384, HOLE)]);
    disk.execute(Request::write_zeroes(4096, 4096).no_unmap()).result.unwrap();
    assert_eq!(told(&*disk, 0, 16384), [(4096, HOLE), (4096, DATA), (8192, HOLE)]);
    let slow = disk.execute(Request::write_zeroes(0, 4096).no_unmap().fast());
    assert_eq!(slow.result.unwrap_err().kind(), IoErrorKind::NotSupported);
    disk.execute(Request::write_zeroes(0, 1 << 40).fast()).result.unwrap();
    assert_eq!(told(&*disk, 0, 16384), [(16384, HOLE)]);
}

#[test]
fn a_device_whose_driver_does_not_know_has_nothing_but_data_and_is_not_asked() {
    let rig = Rig::live();
    let held = Held::with_queues(1);
    let disk = rig.queue(held.clone());
    assert_eq!(told(&*disk, 512, 4096), [(4096, DATA)]);
    assert!(held.requests.lock().is_empty());
    assert!(disk.extents_of(disk.geometry().size, 512, 1).is_err(), "the range counts");
    let fast = disk.execute(Request::write_zeroes(0, 512).fast()).result.unwrap_err();
    assert_eq!(fast.kind(), IoErrorKind::NotSupported);
    let ahead = disk.execute(Request::prefetch(0, 512)).result.unwrap_err();
    assert_eq!(ahead.kind(), IoErrorKind::NotSupported);
}

#[test]
fn a_null_device_is_one_hole() {
    let rig = Rig::live();
    assert_eq!(told(&*rig.queue(Null::new(1 << 50)), 512, 1 << 49), [(1 << 49, HOLE)]);
}

#[test]
fn filters_partitions_and_mirrors_hand_on_what_is_known_below() {
    let rig = Rig::live();
    let below = memory(&rig);
    let want = told(&*below, 4096, 1 << 35);
    assert_eq!(want[..2], [(4096, HOLE), (4096, DATA)]);
    let delay = Delay::new(below.clone(), Delays::default(), &rig.wq);
    assert_eq!(told(&*rig.queue(delay), 4096, 1 << 35), want);
    let faulty = Faulty::new(below.clone(), vec![Fault::new().on(&[Op::Read])], 1);
    assert_eq!(told(&*rig.queue(faulty), 4096, 1 << 35), want);
    let part = Partition::new(below.clone(), 4096, 1 << 38).unwrap();
    assert_eq!(told(&*rig.queue(part), 0, 1 << 35), want);
    let mirror = rig.queue(unrecorded(&rig, vec![leg(&rig), leg(&rig)]));
    assert_eq!(told(&*mirror, 0, 16384), [(8192, HOLE), (4096, DATA), (4096, HOLE)]);
    let fast = mirror.execute(Request::write_zeroes(0, 4096).fast()).result.unwrap_err();
    assert_eq!(fast.kind(), IoErrorKind::NotSupported, "a leg that can't would be dropped");
}

#[test]
fn a_leg_that_cannot_say_is_neither_believed_nor_dropped() {
    let rig = Rig::live();
    let faulty = Faulty::new(leg(&rig), vec![Fault::new().on(&[Op::Extents])], 1);
    let mirror = Arc::new(unrecorded(&rig, vec![rig.queue(faulty) as _, leg(&rig)]));
    let disk = Queue::builder(&rig.machine, mirror.clone()).build(&rig.wq);
    for _ in 0..4 {
        assert_eq!(told(&*disk, 0, 16384), [(8192, HOLE), (4096, DATA), (4096, HOLE)]);
    }
    assert_eq!(mirror.status().to_resync, 0);
    assert_eq!(mirror.status().to_string(), "2 of 2 legs in sync");
}

#[test]
fn a_stripe_puts_together_what_its_children_know() {
    let rig = Rig::live();
    let children = (0..3).map(|_| rig.queue(Memory::new(1 << 38).unwrap()) as _).collect();
    let stripe = rig.queue(Stripe::new(children, 64 << 10).unwrap());
    let all = 1 << 39;
    assert_eq!(stripe.extents_of(0, all, 64).unwrap().iter().next().unwrap().kind, HOLE);
    stripe.write_at(MIB, vec![7; 100 << 10]).unwrap();
    stripe.write_at(3 * MIB, vec![7; 4096]).unwrap();
    assert_eq!(
        told(&*stripe, 0, 4 * MIB),
        [
            (MIB, HOLE),
            (100 << 10, DATA),
            ((2 << 20) - (100 << 10), HOLE),
            (4096, DATA),
            (MIB - 4096, HOLE)
        ]
    );
    stripe.discard(0, 4 * MIB).unwrap();
    assert_eq!(told(&*stripe, 512, 4 * MIB), [(4 * MIB, HOLE)]);
}

#[test]
fn what_a_part_fails_to_say_fails_the_request_with_its_range() {
    let rig = Rig::live();
    let below = memory(&rig);
    let fault = Fault::new().on(&[Op::Extents]);
    let part = Partition::new(rig.queue(Faulty::new(below.clone(), vec![fault], 1)), 4096, MIB);
    let disk = rig.queue(part.unwrap());
    let error = disk.extents_of(512, 1024, 8).unwrap_err();
    assert_eq!(error.range(), Some(512..1536));
    // Parts of a request answer for it, and only up to the first gap.
    let (tx, rx) = std::sync::mpsc::channel();
    let whole = Whole::new(Request::extents_of(0, 3 * 4096, 8).on_complete(move |done| {
        tx.send(done.into_extents()).unwrap();
    }));
    below.submit(whole.part(8192, 4096, 0));
    below.submit(whole.part(0, 4096, 8192));
    drop(whole);
    let found = rx.recv().unwrap().unwrap();
    assert_eq!(found.iter().map(|e| (e.len, e.kind)).collect::<Vec<_>>(), [(4096, DATA)]);
}
