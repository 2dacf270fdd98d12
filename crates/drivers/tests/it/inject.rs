//! The injectors: exactly the chosen requests fail, or wait.
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Held, Rig, submit};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, IoErrorKind, Op, Queue, Request};
use corewise_drivers::{Delay, Delays, Fault, Faulty, Memory};

const EIO: IoErrorKind = IoErrorKind::Io(5);

/// Makes a device that fails by `faults`, and returns it with its driver.
fn faulty(rig: &Rig, faults: Vec<Fault>, seed: u64) -> (Arc<Queue>, Arc<Faulty>) {
    let below = rig.queue(Memory::new(1 << 20).unwrap());
    let driver = Arc::new(Faulty::new(below, faults, seed));
    (Queue::builder(&rig.machine, driver.clone()).build(&rig.wq), driver)
}

/// Returns which of `n` reads fail.
fn failing(queue: &Queue, n: u64) -> Vec<u64> {
    (0..n).filter(|&n| queue.read_at(n * 512, 512).is_err()).collect()
}

#[test]
fn each_nth_request_fails_with_the_error_that_was_asked_for() {
    let rig = Rig::live();
    let enospc = Fault::new().on(&[Op::Write]).every(3).errno(28);
    let (queue, driver) = faulty(&rig, vec![enospc], 0);
    let results: Vec<_> = (0..6).map(|_| queue.write_at(0, vec![1; 512])).collect();
    for (n, result) in results.into_iter().enumerate() {
        assert_eq!(
            result.map_err(|e| e.kind()).err(),
            (n % 3 == 2).then_some(IoErrorKind::NoSpace)
        );
    }
    queue.read_at(0, 512).unwrap();
    queue.flush().unwrap();
    assert_eq!(driver.failed(), 2);
}

#[test]
fn a_request_that_fails_leaves_the_device_below_as_it_was() {
    let rig = Rig::live();
    let (queue, driver) = faulty(&rig, vec![Fault::new().on(&[Op::Write]).range(512..1024)], 0);
    queue.write_at(1024, vec![2; 512]).unwrap();
    assert_eq!(queue.write_at(0, vec![1; 2048]).unwrap_err().kind(), EIO);
    let data = queue.read_at(0, 2048).unwrap();
    assert!(data[..1024].iter().all(|&b| b == 0) && data[1024..1536].iter().all(|&b| b == 2));
    driver.arm(false);
    queue.write_at(0, vec![1; 2048]).unwrap();
    assert!(queue.read_at(0, 2048).unwrap().iter().all(|&b| b == 1));
}

#[test]
fn a_device_that_fails_for_a_while_is_well_again() {
    let rig = Rig::live();
    let (queue, _) = faulty(&rig, vec![Fault::new().after(2).times(3)], 0);
    assert_eq!(failing(&queue, 10), [2, 3, 4]);
}

#[test]
fn a_flush_can_fail_though_the_device_below_has_nothing_to_flush() {
    let rig = Rig::live();
    let (queue, _) = faulty(&rig, vec![Fault::new().on(&[Op::Flush]).times(1)], 0);
    assert!(!queue.is_in_doubt());
    assert_eq!(queue.flush().unwrap_err().kind(), EIO);
    assert!(queue.is_in_doubt(), "changes may be lost");
    queue.read_at(0, 512).unwrap();
    assert!(queue.is_in_doubt());
    queue.flush().unwrap();
    assert!(!queue.is_in_doubt());
}

#[test]
fn a_shorter_delay_overtakes_a_longer_one() {
    let rig = Rig::live();
    let below = rig.queue(Memory::new(1 << 20).unwrap());
    let delays = Delays {
        read: Duration::from_millis(1),
        write: Duration::from_millis(700),
        ..Delays::default()
    };
    let queue = rig.queue(Delay::new(below, delays, &rig.wq));
    let write = submit(&*queue, Request::write(0, vec![1; 512]));
    let read = submit(&*queue, Request::read(0, 512));
    queue.flush().unwrap(); // has no delay: it doesn't wait for either
    assert!(read.recv().unwrap().into_data().unwrap().iter().all(|&b| b == 0));
    assert!(write.try_recv().is_err(), "the write still waits, and the read didn't see it");
    write.recv().unwrap().result.unwrap();
    assert!(queue.read_at(0, 512).unwrap().iter().all(|&b| b == 1));
}

#[test]
fn requests_that_wait_alike_are_passed_on_in_the_order_in_which_they_came() {
    let rig = Rig::live();
    let held = Held::default();
    let below: Arc<dyn BlockDevice> = rig.queue(held.clone());
    let delays = Delays { write: Duration::from_millis(2), ..Delays::default() };
    let queue = rig.queue(Delay::new(below, delays, &rig.wq));
    let done: Vec<_> = (0..100).map(|n| submit(&*queue, crate::common::block(n))).collect();
    while held.order().len() < 100 {
        std::thread::yield_now();
    }
    assert!(held.order().into_iter().eq(0..100));
    held.finish_all();
    assert!(done.into_iter().all(|done| done.recv().unwrap().result.is_ok()));
}
