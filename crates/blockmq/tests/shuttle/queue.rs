//! The whole queue in random schedules, with its workers and timers: 3 000, or 100 000 with
//! `COREWISE_LONG`. A failing one prints its seed; CONTRIBUTING.md says how to replay it.
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use corewise_blockmq::model::ByHand;
use corewise_blockmq::{
    BlockDevice, Deadline, Dispatch, Driver, Info, IoScheduler, IoStats, Plug, Queue, Remap,
    Request, Started, TagSet, Whole,
};
use corewise_sync::model::choose;
use corewise_sync::model::schedules::{self, Schedules};
use corewise_sync::{Countdown, Mutex, thread};
use corewise_topology::{CpuId, Machine};
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::device::{BLOCK, Device, Disk};

const CLIENTS: u64 = 2;
/// Number of requests of each client.
const REQUESTS: u64 = 3;
/// Number of acts of each disturbing thread.
const ACTS: u64 = 3;

/// The number of ends of each request, and the waiter for all.
struct Ended {
    times: Vec<AtomicU64>,
    all: Countdown,
}

fn request(n: u64, ended: &Arc<Ended>) -> Request {
    let rq = match choose(6) {
        0 => Request::flush(),
        // The request exceeds the limit: it comes in two parts.
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
fn disturb(queue: &Arc<Queue>, machine: &Machine, closed: &AtomicU64) {
    match choose(6) {
        0 => {
            let quiesced = queue.quiesce();
            closed.fetch_add(1, SeqCst);
            thread::yield_now();
            closed.fetch_sub(1, SeqCst);
            drop(quiesced);
        }
        1 => {
            let _quiesced = queue.quiesce_nowait();
            queue.run(0);
        }
        2 => {
            let frozen = queue.freeze();
            let quiesced = queue.quiesce();
            assert_eq!(queue.stats().iter().map(|s| s.in_flight).sum::<u64>(), 0);
            drop(quiesced);
            drop(frozen);
        }
        3 => {
            let quiesced = queue.quiesce_nowait();
            let _frozen = queue.start_freeze();
            drop(quiesced);
            queue.drain();
        }
        _ => {
            // The last CPU's leaving is refused.
            let _ = machine.set_online(CpuId::new(choose(2) as u32), choose(2) == 0);
        }
    }
}

/// A device over a queue, to which it remaps some requests and passes on the others.
struct Above {
    below: Arc<Queue>,
    /// Number of threads that have waited until its queue was quiesced, and keep it so.
    closed: Arc<AtomicU64>,
}

impl Above {
    fn check_open(&self) {
        assert_eq!(self.closed.load(SeqCst), 0, "a quiesced queue has called its driver");
    }
}

impl Driver for Above {
    fn info(&self) -> Info {
        Info { remaps: true, ..Info::over("above", &*self.below) }
    }

    fn remap(&self, rq: &Request) -> Option<Remap<'_>> {
        self.check_open();
        let place = Remap { device: &*self.below, offset: rq.offset() };
        (choose(4) != 0).then_some(place)
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.check_open();
        let (offset, len) = (rq.offset(), rq.len());
        self.below.submit(Whole::new(rq).part(0, len, offset));
        Dispatch::Started
    }
}

fn scenario() {
    world(false);
}

/// Runs the requests through a queue, or through one that remaps them to it.
fn world(stacked: bool) {
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
    // Histograms are off: they are thousands of atomics.
    let mut builder =
        Queue::builder(&machine, Arc::new(disk)).timeout(reminds).iostats(IoStats::Counted);
    if choose(2) == 0 {
        builder = builder.scheduler(IoScheduler::Deadline(Deadline::default()));
    }
    if let Some(tags) = &tags {
        builder = builder.tags(tags);
    }
    let below = builder.build(&wq);
    let closed = Arc::new(AtomicU64::new(0));
    let queue = match stacked {
        true => {
            let above = Above { below: Arc::clone(&below), closed: Arc::clone(&closed) };
            Queue::builder(&machine, Arc::new(above)).iostats(IoStats::Counted).build(&wq)
        }
        false => Arc::clone(&below),
    };
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
    others.extend([&queue, &below].map(|queue| {
        let (queue, machine) = (Arc::clone(queue), machine.clone());
        // A queue below is closed to nobody.
        let closed = if Arc::ptr_eq(&queue, &below) { Arc::default() } else { Arc::clone(&closed) };
        thread::spawn(move || (0..ACTS).for_each(|_| disturb(&queue, &machine, &closed)))
    }));
    // Another thread takes a tag of the set.
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
    // From here on only the threads that owe it run the queue. If one forgets, this waits for ever,
    // and shuttle reports that.
    ended.all.wait();
    queue.drain();
    assert!(ended.times.iter().all(|n| n.load(SeqCst) == 1), "doubled: {:?}", ended.times);
    for queue in [queue, below] {
        queue.drain();
        // No runner has a tag in hand.
        drop(queue.quiesce());
        let stats = queue.stats();
        assert_eq!((stats.iter().map(|s| s.in_flight).sum::<u64>(), queue.inside()), (0, 0));
    }
    assert!(tags.is_none_or(|tags| tags.in_use() == 0), "a tag was lost");
    device.close();
    interrupts.join().unwrap();
    pools.shutdown();
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
fn shuttle_no_request_is_lost_or_doubled_over_another_queue() {
    schedules::random(Schedules { short: 3_000, long: 100_000 }, || world(true));
    schedules::few_preemptions(Schedules { short: 500, long: 30_000 }, || world(true));
}

#[test]
fn shuttle_a_seed_replays_its_schedule() {
    schedules::replayed(Schedules { short: 50, long: 1_000 }, scenario);
}
