//! A mirror whose legs fail.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

mod common;

use std::sync::Arc;

use common::{Held, Rig, submit};
use corewise_blockmq::drivers::{Memory, Mirror};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, Geometry, IoError, IoErrorKind, Op, Queue,
    Request, Started, Whole,
};
use corewise_sync::Mutex;

/// Fails the operations that it is told to fail; passes the others on to a memory device.
#[derive(Clone)]
struct Failing {
    below: Arc<dyn BlockDevice>,
    fails: Arc<Mutex<Vec<Op>>>,
    asked: Arc<Mutex<Vec<Op>>>,
}

impl Failing {
    fn new(rig: &Rig) -> Self {
        Self {
            below: rig.queue(Memory::new(1 << 20).unwrap()),
            fails: Arc::default(),
            asked: Arc::default(),
        }
    }

    fn fail(&self, ops: &[Op]) {
        *self.fails.lock() = ops.to_vec();
    }

    fn asked(&self) -> Vec<Op> {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl Driver for Failing {
    fn kind(&self) -> &'static str {
        "failing"
    }

    fn geometry(&self) -> Geometry {
        Geometry { can_flush: true, ..self.below.geometry() }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.asked.lock().push(rq.op());
        if self.fails.lock().contains(&rq.op()) {
            rq.complete(Err(IoError::new(IoErrorKind::Io(5))));
            return Dispatch::Started;
        }
        let (offset, len) = (rq.offset(), rq.len());
        self.below.submit(Whole::new(rq).part(0, len, offset));
        Dispatch::Started
    }
}

struct Pair {
    _rig: Rig,
    legs: [Failing; 2],
    mirror: Arc<Mirror2>,
    queue: Arc<Queue>,
}

/// A mirror that the test can also ask about its legs.
struct Mirror2(Mirror);

impl Driver for Mirror2 {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        self.0.queue_request(hctx, rq)
    }
}

fn pair() -> Pair {
    let rig = Rig::live();
    let legs = [Failing::new(&rig), Failing::new(&rig)];
    let devices = legs.iter().map(|l| rig.queue(l.clone()) as Arc<dyn BlockDevice>).collect();
    let mirror = Arc::new(Mirror2(Mirror::new(devices).unwrap()));
    let queue = Queue::builder(&rig.machine, mirror.clone()).build(&rig.wq);
    queue.write_at(0, vec![7; 4096]).unwrap();
    for leg in &legs {
        leg.asked();
    }
    Pair { _rig: rig, legs, mirror, queue }
}

impl Pair {
    fn healthy(&self) -> [bool; 2] {
        [self.mirror.0.leg_is_healthy(0), self.mirror.0.leg_is_healthy(1)]
    }
}

#[test]
fn a_read_that_fails_on_one_leg_is_answered_by_the_other_and_the_leg_is_dropped() {
    let p = pair();
    p.legs[0].fail(&[Op::Read]);
    for _ in 0..4 {
        assert!(p.queue.read_at(512, 1024).unwrap().iter().all(|&b| b == 7));
    }
    assert_eq!(p.healthy(), [false, true]);
    assert_eq!(p.legs[0].asked(), [Op::Read], "a dropped leg is asked nothing more");
    p.queue.write_at(0, vec![8; 512]).unwrap();
    assert_eq!(p.legs[0].asked(), []);
}

#[test]
fn a_write_that_fails_on_one_leg_succeeds_and_drops_the_leg() {
    let p = pair();
    p.legs[1].fail(&[Op::Write]);
    p.queue.write_at(0, vec![9; 512]).unwrap();
    assert_eq!(p.healthy(), [true, false]);
    p.legs[1].fail(&[]);
    for _ in 0..4 {
        assert!(p.queue.read_at(0, 512).unwrap().iter().all(|&b| b == 9), "never the stale leg");
    }
}

#[test]
fn a_flush_that_fails_on_one_leg_drops_it() {
    let p = pair();
    p.legs[0].fail(&[Op::Flush]);
    p.queue.flush().unwrap();
    assert_eq!(p.healthy(), [false, true]);
}

#[test]
fn a_discard_that_fails_drops_no_leg() {
    let p = pair();
    p.legs[0].fail(&[Op::Discard]);
    p.queue.discard(0, 512).unwrap();
    assert_eq!(p.healthy(), [true, true]);
}

#[test]
fn the_last_healthy_leg_is_never_dropped_and_its_errors_are_told() {
    let p = pair();
    for leg in &p.legs {
        leg.fail(&[Op::Write, Op::Read]);
    }
    let errors =
        [p.queue.write_at(0, vec![1; 512]).unwrap_err(), p.queue.read_at(0, 512).unwrap_err()];
    assert!(errors.iter().all(|e| e.kind() == IoErrorKind::Io(5)));
    assert_eq!(p.healthy(), [true, true], "where all fail alike, none is worse than the others");
    p.legs[0].fail(&[]);
    p.queue.write_at(0, vec![2; 512]).unwrap();
    p.legs[0].fail(&[Op::Write]);
    assert!(p.queue.write_at(0, vec![3; 512]).is_err());
    assert_eq!(p.healthy(), [true, false]);
    assert!(p.queue.read_at(0, 512).unwrap().iter().all(|&b| b == 2), "and reads go on");
}

#[test]
fn two_writes_that_fail_on_different_legs_cannot_both_be_acknowledged() {
    // Each has a good copy, but on the leg that the other one drops.
    let rig = Rig::live();
    let legs = [Held::default(), Held::default()];
    let devices = legs.iter().map(|l| rig.queue(l.clone()) as Arc<dyn BlockDevice>).collect();
    let queue = rig.queue(Mirror::new(devices).unwrap());
    let first = submit(&*queue, Request::write(0, vec![1; 512]));
    let second = submit(&*queue, Request::write(512, vec![2; 512]));
    let io = || Err(IoError::new(IoErrorKind::Io(5)));
    legs[0].finish_one(io()); // first fails on leg 0
    legs[0].finish_one(Ok(()));
    legs[1].finish_one(Ok(())); // first: leg 0 is dropped
    legs[1].finish_one(io()); // second is good on leg 0 only
    first.recv().unwrap().result.unwrap();
    assert_eq!(second.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Io(5));
}

#[test]
fn reads_are_spread_over_the_legs() {
    let rig = Rig::live();
    let legs = [Held::default(), Held::default()];
    let devices = legs.iter().map(|l| rig.queue(l.clone()) as Arc<dyn BlockDevice>).collect();
    let queue = rig.queue(Mirror::new(devices).unwrap());
    for n in 0..10 {
        queue.submit(Request::read(n * 512, 512));
    }
    assert_eq!((legs[0].held(), legs[1].held()), (5, 5));
    for leg in &legs {
        while leg.held() != 0 {
            leg.finish_one(Err(IoError::new(IoErrorKind::Gone)));
        }
    }
    legs.iter().for_each(Held::finish_all);
}
