//! A slow device over another one, in random schedules: 5 000, or 200 000 with `COREWISE_LONG`. A
//! failing one prints its seed; CONTRIBUTING.md says how to replay it.
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{BlockDevice, Driver, IoErrorKind, IoStats, Queue, Request};
use corewise_drivers::{Delay, Delays};
use corewise_sync::model::choose;
use corewise_sync::model::schedules::{self, Schedules};
use corewise_sync::{Countdown, thread};
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::device::{BLOCK, Device, Disk};

const CLIENTS: u64 = 2;

/// Sends requests to a disk and to a slow one over it, while their workqueue is drained and their
/// pools end.
fn the_workers_go() {
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").unwrap();
    let pools = WorkerPools::builder(&machine).max_workers(4).build();
    let wq = Workqueue::builder("block").build(&pools).unwrap();
    let device = Arc::new(Device::default());
    let disk = Disk { device: Arc::clone(&device), hw_queues: 1, depth: 2, forgotten: None };
    let queue = |driver: Arc<dyn Driver>| {
        Queue::builder(&machine, driver).iostats(IoStats::Counted).build(&wq)
    };
    let disk = queue(Arc::new(disk));
    let wait = Duration::from_millis(1);
    let delays = Delays { write: wait, flush: wait, ..Delays::default() };
    let slow = queue(Arc::new(Delay::new(disk.clone(), delays, &wq)));
    let ended = Arc::new(Countdown::new(2 * CLIENTS as usize));
    let mut threads: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (ended, disk, slow) = (Arc::clone(&ended), disk.clone(), slow.clone());
            thread::spawn(move || {
                for queue in [slow, disk] {
                    let ended = Arc::clone(&ended);
                    let rq = Request::write(n * BLOCK, vec![7; BLOCK as usize]);
                    queue.submit(rq.on_complete(move |done| {
                        let gone =
                            done.result.is_err_and(|error| error.kind() != IoErrorKind::Gone);
                        assert!(!gone);
                        ended.done();
                    }));
                }
            })
        })
        .collect();
    threads.push(thread::spawn({
        let wq = wq.clone();
        move || if choose(2) == 0 { wq.drain() } else { wq.destroy() }
    }));
    let interrupts = thread::spawn({
        let device = Arc::clone(&device);
        move || device.interrupts()
    });
    pools.shutdown();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ended.wait();
    [&slow, &disk].into_iter().for_each(|queue| queue.drain());
    assert_eq!(slow.inside() + disk.inside(), 0);
    device.close();
    interrupts.join().unwrap();
}

#[test]
fn shuttle_no_request_is_stranded_where_the_workqueue_is_drained_and_the_pools_end() {
    schedules::random(Schedules { short: 5_000, long: 200_000 }, the_workers_go);
}
