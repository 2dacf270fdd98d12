//! A mirror whose legs fail.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::mirrors::{LEG, until_alike};
use crate::common::{Held, Rig, STALL, pass_on, submit};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Geometry, IoError, IoErrorKind, Op, Queue, Request,
};
use corewise_drivers::{LegState, Memory, Mirror, MirrorEvent, MirrorOptions};
use corewise_sync::Mutex;

/// A leg that fails the operations that the test sets, and notes all.
struct Failing {
    driver: Held,
    fails: Arc<Mutex<Vec<Op>>>,
    asked: Arc<Mutex<Vec<Op>>>,
}

impl Failing {
    fn new(rig: &Rig) -> Self {
        let below: Arc<dyn BlockDevice> = rig.queue(Memory::new(LEG).unwrap());
        let geometry = Geometry { can_flush: true, ..below.geometry() };
        let driver = Held { geometry: Some(geometry), ..Held::default() };
        let this = Self { driver, fails: Arc::default(), asked: Arc::default() };
        let (fails, asked) = (this.fails.clone(), this.asked.clone());
        this.driver.instead(move |rq| {
            asked.lock().push(rq.op());
            if fails.lock().contains(&rq.op()) {
                rq.complete(Err(IoError::new(IoErrorKind::Io(5))));
            } else {
                pass_on(rq, &below);
            }
            Dispatch::Started
        });
        this
    }

    fn fail(&self, ops: &[Op]) {
        *self.fails.lock() = ops.to_vec();
    }

    fn asked(&self) -> Vec<Op> {
        std::mem::take(&mut *self.asked.lock())
    }
}

struct Pair {
    _rig: Rig,
    legs: [Failing; 2],
    mirror: Arc<Mirror>,
    queue: Arc<Queue>,
}

/// Makes a mirror whose legs are in sync, and which lets writes anywhere go at once.
fn mirror(rig: &Rig, legs: Vec<Arc<dyn BlockDevice>>) -> (Arc<Mirror>, Arc<Queue>) {
    let (tx, ended) = mpsc::channel();
    let tx = Mutex::new(tx);
    let observer = move |event: &MirrorEvent| {
        if matches!(event, MirrorEvent::ResyncEnded { .. }) {
            let _ = tx.lock().send(());
        }
    };
    let options = MirrorOptions::new().clean_after(STALL).observer(observer);
    let mirror = Arc::new(Mirror::open(legs, options, &rig.wq).unwrap());
    let queue = Queue::builder(&rig.machine, mirror.clone()).build(&rig.wq);
    queue.write_at(0, vec![7; 4096]).unwrap();
    // This comes behind the last head that is written for it: `status` says it before.
    ended.recv_timeout(STALL).unwrap();
    (mirror, queue)
}

fn pair() -> Pair {
    let rig = Rig::live();
    let legs = [Failing::new(&rig), Failing::new(&rig)];
    let devices = legs.iter().map(|l| rig.queue(l.driver.clone()) as Arc<dyn BlockDevice>);
    let (mirror, queue) = mirror(&rig, devices.collect());
    Pair { _rig: rig, legs, mirror, queue }
}

impl Pair {
    fn healthy(&self) -> [bool; 2] {
        let legs = self.mirror.status().legs;
        [legs[0] == LegState::InSync, legs[1] == LegState::InSync]
    }

    /// Waits until leg `n` is out.
    fn until_out(&self, n: usize) {
        while self.mirror.status().legs[n] != LegState::Out {
            std::thread::yield_now();
        }
        self.legs[n].asked();
    }
}

#[test]
fn a_mirror_of_one_leg_begins_without_a_look_at_its_content() {
    let rig = Rig::live();
    let (leg, reads) = (Held::default(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&reads);
    leg.instead(move |mut rq| {
        if rq.op() == Op::Read {
            seen.lock().push(rq.offset());
            rq.put_zeroes(rq.len());
        }
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let options = MirrorOptions::new().record(false);
    drop(Mirror::open([rig.queue(leg) as Arc<dyn BlockDevice>], options, &rig.wq).unwrap());
    let reads = reads.lock();
    // The places where other mirrors have their records.
    assert!(!reads.is_empty() && !reads.contains(&0), "{reads:?}");
}

#[test]
fn a_read_that_fails_on_one_leg_is_answered_by_the_other_and_the_leg_is_dropped() {
    let p = pair();
    p.legs[0].fail(&[Op::Read]);
    for _ in 0..4 {
        assert!(p.queue.read_at(512, 1024).unwrap().iter().all(|&b| b == 7));
    }
    p.until_out(0);
    assert_eq!(p.healthy(), [false, true]);
    for _ in 0..4 {
        p.queue.read_at(512, 1024).unwrap();
        p.queue.write_at(0, vec![8; 512]).unwrap();
    }
    assert_eq!(p.legs[0].asked(), [], "a dropped leg is asked nothing more");
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
    // They are compared where they may differ now.
    until_alike(&p.mirror);
}

#[test]
fn the_last_leg_in_sync_is_never_dropped_and_its_errors_are_told() {
    let p = pair();
    for leg in &p.legs {
        leg.fail(&[Op::Write, Op::Read]);
    }
    let errors =
        [p.queue.write_at(0, vec![1; 512]).unwrap_err(), p.queue.read_at(0, 512).unwrap_err()];
    assert!(errors.iter().all(|e| e.kind() == IoErrorKind::Io(5)));
    // If all fail alike, none is worse than the others. But it is unknown whether they are alike.
    assert_eq!(p.mirror.status().legs, [LegState::InSync, LegState::Resyncing]);
    p.legs[0].fail(&[]);
    p.queue.write_at(0, vec![2; 512]).unwrap();
    p.legs[0].fail(&[Op::Write]);
    assert!(p.queue.write_at(0, vec![3; 512]).is_err());
    assert!(p.queue.read_at(0, 512).unwrap().iter().all(|&b| b == 2), "and reads go on");
    assert_eq!(p.healthy(), [true, false]);
}

#[test]
fn a_flush_that_fails_on_all_legs_fails_and_they_are_compared_where_they_were_written_to() {
    let p = pair();
    for leg in &p.legs {
        leg.fail(&[Op::Flush]);
    }
    p.queue.flush().unwrap_err();
    until_alike(&p.mirror);
    let asked = p.legs.each_ref().map(Failing::asked);
    assert!(asked.iter().all(|asked| asked.contains(&Op::Read)), "{asked:?}");
}

/// Legs that pass on what they are asked, or hold it.
struct Gates {
    rig: Rig,
    legs: [Held; 2],
    below: [Arc<dyn BlockDevice>; 2],
    mirror: Arc<Mirror>,
    queue: Arc<Queue>,
}

impl Gates {
    fn new() -> Self {
        let rig = Rig::live();
        let held = || Held { geometry: Some(Geometry::new(LEG)), ..Held::default() };
        let legs = [held(), held()];
        let below = [(); 2].map(|()| rig.queue(Memory::new(LEG).unwrap()) as Arc<dyn BlockDevice>);
        legs.iter().zip(&below).for_each(|(leg, below)| pass(leg, below));
        let devices = legs.iter().map(|l| rig.queue(l.clone()) as Arc<dyn BlockDevice>).collect();
        let (mirror, queue) = mirror(&rig, devices);
        legs.iter().for_each(Held::keep);
        Self { rig, legs, below, mirror, queue }
    }

    /// Passes on what is held and what comes.
    fn open(&self) {
        for (leg, below) in self.legs.iter().zip(&self.below) {
            pass(leg, below);
            while let Some(rq) = leg.requests.lock().pop_front() {
                pass_on(rq, below);
            }
        }
    }
}

fn pass(leg: &Held, below: &Arc<dyn BlockDevice>) {
    let below = below.clone();
    leg.instead(move |rq| {
        pass_on(rq, &below);
        Dispatch::Started
    });
}

#[test]
fn two_writes_that_fail_on_different_legs_cannot_both_be_acknowledged() {
    // Each has a good copy, but on the leg that the other one drops.
    let gates = Gates::new();
    let first = submit(&*gates.queue, Request::write(0, vec![1; 512]));
    let second = submit(&*gates.queue, Request::write(512, vec![2; 512]));
    let io = || Err(IoError::new(IoErrorKind::Io(5)));
    gates.legs[0].finish_one(io()); // first fails on leg 0
    gates.legs[0].finish_one(Ok(()));
    gates.legs[1].finish_one(Ok(())); // first: leg 0 is dropped
    gates.legs[1].finish_one(io()); // second is good on leg 0 only
    assert_eq!(second.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Io(5));
    assert!(first.try_recv().is_err(), "the record doesn't say yet who lacks it");
    gates.open();
    first.recv().unwrap().result.unwrap();
    gates.queue.drain();
    drop(gates.rig);
}

#[test]
fn changes_of_the_same_bytes_that_the_legs_do_in_either_order_leave_them_alike() {
    let write = |at, byte, len| Request::write(at, vec![byte; len]);
    for (second, differ) in [
        (write(512, 2, 1024), true),
        (Request::write_zeroes(0, 8192), true),
        (write(1024, 2, 512), false),
    ] {
        let gates = Gates::new();
        let first = submit(&*gates.queue, write(0, 1, 1024));
        let second = submit(&*gates.queue, second);
        for (n, leg) in gates.legs.iter().enumerate() {
            let mut held: Vec<_> = leg.requests.lock().drain(..).collect();
            assert_eq!(held.len(), 2);
            if n == 1 {
                held.reverse();
            }
            // Reads of two legs that may differ would disagree.
            assert_eq!(gates.mirror.status().to_resync != 0, differ);
            held.into_iter().for_each(|rq| pass_on(rq, &gates.below[n]));
        }
        gates.open();
        [first, second].iter().for_each(|rq| rq.recv().unwrap().result.map(drop).unwrap());
        until_alike(&gates.mirror);
        let [a, b] = [0, 1].map(|n| gates.below[n].read_at(0, 8192).unwrap());
        assert_eq!(a, b);
    }
}

#[test]
fn reads_are_spread_over_the_legs() {
    let gates = Gates::new();
    let reads: Vec<_> =
        (0..10).map(|n| submit(&*gates.queue, Request::read(n * 512, 512))).collect();
    assert_eq!((gates.legs[0].held(), gates.legs[1].held()), (5, 5));
    gates.open();
    reads.iter().for_each(|read| read.recv().unwrap().result.map(drop).unwrap());
}
