//! The whole queue in random schedules, with its workers and timers: 3 000, or 100 000 with `COREWISE_LONG`. A failing
//! one prints its seed; CONTRIBUTING.md says how to replay it.
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use corewise_blockmq::drivers::{Delay, Delays};
use corewise_blockmq::{
    BlockDevice, Deadline, Dispatch, Driver, Geometry, HwQueues, IoErrorKind, IoScheduler, IoStats,
    Plug, Queue, Request, Started, TagSet, TimedOut, TimerReturn,
};
use corewise_sync::model::choose;
use corewise_sync::model::schedules::{self, Schedules};
use corewise_sync::{Condvar, Countdown, Mutex, thread};
use corewise_topology::{CpuId, Machine};
use corewise_workqueue::{WorkerPools, Workqueue};

const BLOCK: u64 = 512;
const CLIENTS: u64 = 2;
/// Of each client.
const REQUESTS: u64 = 3;
/// Of each thread that disturbs.
const ACTS: u64 = 3;

/// What the device has, and whether more is to come.
#[derive(Default)]
struct Taken {
    requests: VecDeque<Started>,
    closed: bool,
}

/// The device: its one interrupt completes what it has taken, in any order.
#[derive(Default)]
struct Device {
    /// L: is the lock; guards what it has.
    taken: Mutex<Taken>,
    /// L: waited on with `taken`.
    more: Condvar,
}

impl Device {
    fn interrupts(&self) {
        loop {
            let mut taken = self.taken.lock();
            while taken.requests.is_empty() && !taken.closed {
                taken = self.more.wait(taken);
            }
            let some = taken.requests.len() as u64;
            if some == 0 {
                return;
            }
            let rq = taken.requests.remove(choose(some) as usize).unwrap();
            drop(taken);
            if choose(8) == 0 { rq.requeue() } else { rq.complete(Ok(())) }
        }
    }

    fn close(&self) {
        self.taken.lock().closed = true;
        self.more.notify_all();
    }
}

struct Disk {
    device: Arc<Device>,
    hw_queues: usize,
    depth: u32,
    /// What it doesn't complete by itself, as long as the queue reminds it.
    forgotten: Option<Mutex<Vec<Started>>>,
}

impl Driver for Disk {
    fn kind(&self) -> &'static str {
        "chance"
    }

    fn geometry(&self) -> Geometry {
        Geometry { max_discard: 2 * BLOCK, can_fua: false, ..Geometry::new(64 * BLOCK) }
    }

    fn hw_queues(&self) -> usize {
        self.hw_queues
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        match (choose(16), &self.forgotten) {
            (0, _) => return Dispatch::Busy(rq),
            (1, _) => return Dispatch::NoResource(rq),
            (2, _) => rq.requeue(),
            (3, Some(forgotten)) => forgotten.lock().push(rq),
            (3..8, _) => rq.complete(Ok(())),
            _ => {
                self.device.taken.lock().requests.push_back(rq);
                self.device.more.notify_all();
            }
        }
        Dispatch::Started
    }

    fn timeout(&self, late: &TimedOut<'_>) -> TimerReturn {
        let rq = self.forgotten.as_ref().and_then(|forgotten| {
            let mut forgotten = forgotten.lock();
            let at = forgotten
                .iter()
                .position(|rq| (rq.hctx(), rq.tag()) == (late.hctx(), late.tag()))?;
            Some(forgotten.swap_remove(at))
        });
        match rq {
            Some(rq) => {
                rq.complete(Ok(()));
                TimerReturn::Done
            }
            None => TimerReturn::ResetTimer,
        }
    }
}

/// How often each request has ended, and the waiter for all.
struct Ended {
    times: Vec<AtomicU64>,
    all: Countdown,
}

fn request(n: u64, ended: &Arc<Ended>) -> Request {
    let rq = match choose(6) {
        0 => Request::flush(),
        // Over the limit: in two parts.
        1 => Request::discard(n * BLOCK, 3 * BLOCK),
        2 => Request::write(n * BLOCK, vec![7; BLOCK as usize]).fua(),
        _ => Request::write(n * BLOCK, vec![7; BLOCK as usize]),
    };
    let ended = Arc::clone(ended);
    rq.on_complete(move |done| {
        done.result.unwrap();
        ended.times[n as usize].fetch_add(1, SeqCst);
        ended.all.done();
    })
}

fn client(queue: &Queue, first: u64, ended: &Arc<Ended>) {
    let plug = (choose(3) == 0).then(Plug::start);
    for n in first..first + REQUESTS {
        let rq = request(n, ended);
        match choose(4) {
            0 => queue.submit(rq),
            1 => queue.submit_batch(&mut std::iter::once(rq)),
            2 => {
                if let Err(refused) = queue.submit_nowait(rq) {
                    queue.submit(*refused.request);
                }
            }
            _ => queue.submit_on(CpuId::new(choose(2) as u32), rq),
        }
    }
    drop(plug);
}

/// Does one thing to a queue, and undoes it.
fn disturb(queue: &Queue, machine: &Machine) {
    match choose(11) {
        0 => {
            queue.quiesce();
            queue.unquiesce().unwrap();
        }
        1 => {
            queue.quiesce_nowait();
            queue.run_all_async();
            queue.unquiesce().unwrap();
        }
        2 => {
            queue.freeze();
            queue.unfreeze().unwrap();
        }
        3 => {
            queue.quiesce_nowait();
            queue.start_freeze();
            queue.unquiesce().unwrap();
            queue.drain();
            queue.unfreeze().unwrap();
        }
        4 => {
            let _ = queue.update_hw_queues(HwQueues::Count(1 + choose(2) as usize));
        }
        5 | 6 => {
            // The last one is refused.
            let _ = machine.set_online(CpuId::new(choose(2) as u32), choose(2) == 0);
            if choose(2) == 0 {
                queue.wait_drained();
            }
        }
        7 => {
            let hctx = choose(queue.stats().len() as u64) as usize;
            queue.stop(hctx);
            queue.start(hctx);
        }
        8 => queue.set_scheduler(match choose(2) {
            0 => IoScheduler::None,
            _ => IoScheduler::Deadline(Deadline::default()),
        }),
        9 => queue.hold_still(|| {
            assert_eq!(queue.stats().iter().map(|s| s.in_flight).sum::<u64>(), 0);
        }),
        _ => queue.run_all_later(Duration::from_millis(choose(3))),
    }
}

fn scenario() {
    let machine = ["numa:1 l3:1 core:1 pu:1", "numa:1 l3:2 core:1 pu:1"][choose(2) as usize];
    let machine = Machine::synthetic(machine).unwrap();
    let pools = WorkerPools::builder(&machine).max_workers(4).build();
    let wq = Workqueue::builder("block").build(&pools).unwrap();
    let device = Arc::new(Device::default());
    let depth = 1 + choose(2) as u32;
    let disk = Disk {
        device: Arc::clone(&device),
        hw_queues: 1 + choose(2) as usize,
        depth,
        forgotten: (choose(3) == 0).then(|| Mutex::new(Vec::new())),
    };
    let reminds = disk.forgotten.is_some().then_some(Duration::from_millis(1));
    let tags = (choose(2) == 0).then(|| TagSet::new(depth, 2));
    // No histograms: they are thousands of atomics.
    let mut builder =
        Queue::builder(&machine, Arc::new(disk)).timeout(reminds).iostats(IoStats::Counted);
    if let Some(tags) = &tags {
        builder = builder.tags(tags);
    }
    let queue = builder.build(&wq);
    let requests = CLIENTS * REQUESTS;
    let ended = Arc::new(Ended {
        times: (0..requests).map(|_| AtomicU64::new(0)).collect(),
        all: Countdown::new(requests as usize),
    });
    let interrupts = thread::spawn({
        let device = Arc::clone(&device);
        move || device.interrupts()
    });
    let mut others: Vec<_> = (0..CLIENTS)
        .map(|client_number| {
            let (queue, ended) = (Arc::clone(&queue), Arc::clone(&ended));
            thread::spawn(move || client(&queue, client_number * REQUESTS, &ended))
        })
        .collect();
    others.extend((0..2).map(|_| {
        let (queue, machine) = (Arc::clone(&queue), machine.clone());
        thread::spawn(move || (0..ACTS).for_each(|_| disturb(&queue, &machine)))
    }));
    // Somebody else who wants a tag.
    others.extend(tags.clone().map(|tags| {
        thread::spawn(move || {
            for _ in 0..2 {
                let tag = tags.get(0);
                tags.put(0, tag);
            }
        })
    }));
    for other in others {
        other.join().unwrap();
    }
    // Nobody runs the queue any more but those who have to: where one forgets, this waits for ever, and shuttle says so.
    ended.all.wait();
    queue.drain();
    assert!(ended.times.iter().all(|n| n.load(SeqCst) == 1), "doubled: {:?}", ended.times);
    let stats = queue.hold_still(|| queue.stats());
    assert_eq!((stats.iter().map(|s| s.in_flight).sum::<u64>(), queue.inside()), (0, 0));
    drop(queue);
    assert!(tags.is_none_or(|tags| tags.in_use() == 0), "a tag was lost");
    device.close();
    interrupts.join().unwrap();
    pools.shutdown();
}

/// Requests to a disk and to a slow one over it, while their workqueue is drained and their pools end.
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

#[test]
fn shuttle_no_request_is_lost_or_doubled_in_random_schedules() {
    schedules::random(Schedules { short: 5_000, long: 300_000 }, scenario);
}

#[test]
fn shuttle_no_request_is_lost_or_doubled_where_few_threads_are_preempted() {
    schedules::few_preemptions(Schedules { short: 1_000, long: 100_000 }, scenario);
}

#[test]
fn shuttle_a_seed_replays_its_schedule() {
    schedules::replayed(Schedules { short: 50, long: 1_000 }, scenario);
}
