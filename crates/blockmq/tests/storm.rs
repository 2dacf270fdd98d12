//! Everything that can be done to a queue, at random and at once, against requests whose data is checked. A request
//! that is lost stalls its lane and is found by the stall detector; one that completes twice is found by its number.
//! 200 000 requests, or five million with `COREWISE_LONG`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

mod common;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use common::{Rig, Rng, STALL};
use corewise_blockmq::{
    Deadline, Dispatch, Driver, Geometry, HwQueues, IoError, IoErrorKind, IoScheduler, Op, Queue,
    Request, Started, TagSet,
};
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::{Countdown, Mutex};
use corewise_topology::Machine;

const CPUS: u64 = 8;
const LANES: u64 = 48;
const BLOCK: usize = 512;
/// Blocks of each lane: more than the disk takes at once.
const BLOCKS: u64 = 4;
/// Blocks that the disk takes at once.
const AT_ONCE: u64 = 3;

/// A disk of one number for each block, with a few tags, that is busy now and then, completes on threads of its own,
/// can't make a write durable by itself, and fails some of those that are several merged ones: alone they succeed.
struct Shaky {
    blocks: Arc<[AtomicU64]>,
    to: [Mutex<mpsc::Sender<Started>>; 2],
    /// A: dispatches so far; what is to be random hangs on it.
    calls: AtomicU64,
    /// A: threads inside `queue_request`, by hardware queue: never more than one.
    inside: [AtomicU64; CPUS as usize],
}

impl Shaky {
    fn new() -> (Self, Vec<std::thread::JoinHandle<()>>) {
        let blocks: Arc<[AtomicU64]> = (0..LANES * BLOCKS).map(|_| AtomicU64::new(0)).collect();
        let mut threads = Vec::new();
        let to = std::array::from_fn(|_| {
            let (tx, rx) = mpsc::channel::<Started>();
            let blocks = Arc::clone(&blocks);
            threads.push(std::thread::spawn(move || {
                for (n, rq) in rx.into_iter().enumerate() {
                    // Now and then a path to the device is lost.
                    if n % 701 == 700 { rq.requeue() } else { serve(&blocks, rq) }
                }
            }));
            Mutex::new(tx)
        });
        let inside = std::array::from_fn(|_| AtomicU64::new(0));
        (Self { blocks, to, calls: AtomicU64::new(0), inside }, threads)
    }
}

/// Does what is asked; a request may be several merged ones.
fn serve(blocks: &[AtomicU64], mut rq: Started) {
    let first = rq.offset() as usize / BLOCK;
    let n = rq.len() as usize / BLOCK;
    assert!(n as u64 <= AT_ONCE && (rq.op() == Op::Read || !rq.flags().fua));
    // Each request has one buffer, so that who has several has been merged.
    if rq.segments().count() > 1 && blocks[first].load(Ordering::Relaxed).is_multiple_of(3) {
        return rq.complete(Err(IoError::new(IoErrorKind::Io(5))));
    }
    match rq.op() {
        Op::Write => {
            let bytes: Vec<u8> = rq.chunks().flatten().copied().collect();
            for (block, data) in blocks[first..first + n].iter().zip(bytes.chunks(BLOCK)) {
                block.store(u64::from_le_bytes(data[..8].try_into().unwrap()), Ordering::Relaxed);
            }
        }
        Op::Read => {
            for block in &blocks[first..first + n] {
                let mut data = [0; BLOCK];
                data[..8].copy_from_slice(&block.load(Ordering::Relaxed).to_le_bytes());
                rq.put(&data);
            }
        }
        _ => {}
    }
    rq.complete(Ok(()));
}

impl Driver for Shaky {
    fn kind(&self) -> &'static str {
        "shaky"
    }
    fn geometry(&self) -> Geometry {
        Geometry {
            max_transfer: AT_ONCE as u32 * BLOCK as u32,
            can_fua: false,
            ..Geometry::new(LANES * BLOCKS * BLOCK as u64)
        }
    }
    fn hw_queues(&self) -> usize {
        CPUS as usize
    }
    fn depth(&self) -> u32 {
        3
    }
    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        assert_eq!(self.inside[hctx].fetch_add(1, Ordering::SeqCst), 0, "two runners at once");
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let dispatched = match Rng::new(call).below(1000) {
            // Out of resources: also where nothing is in flight.
            0 => Dispatch::Busy(rq),
            1 => Dispatch::NoResource(rq),
            2 => {
                rq.requeue();
                Dispatch::Started
            }
            3..200 => {
                serve(&self.blocks, rq);
                Dispatch::Started
            }
            _ => {
                assert!(self.to[call as usize % 2].lock().send(rq).is_ok());
                Dispatch::Started
            }
        };
        self.inside[hctx].fetch_sub(1, Ordering::SeqCst);
        dispatched
    }
}

/// A chain of requests to some blocks: each completion starts the next one.
struct Lane {
    lane: u64,
    queue: Arc<Queue>,
    each: u64,
    /// A: the number of the request that is to complete next.
    next: AtomicU64,
    left: Arc<Countdown>,
    tally: Arc<Tally>,
}

#[derive(Default)]
struct Tally {
    /// A: requests that completed.
    completed: AtomicU64,
    /// A: requests that failed, completed twice, or gave wrong data.
    bad: AtomicU64,
}

/// Starts request `i` of a lane: writes its number to some of the lane's blocks, now and then durably, or reads
/// those that were written before, or flushes.
fn step(lane: &Arc<Lane>, i: u64) {
    if i == lane.each {
        lane.left.done();
        return;
    }
    let writes = i.is_multiple_of(2);
    let mut rng = Rng::new((i / 2) ^ (lane.lane << 40));
    let first = rng.below(BLOCKS);
    let n = 1 + rng.below(BLOCKS - first) as usize;
    let offset = (lane.lane * BLOCKS + first) * BLOCK as u64;
    let rq = if writes {
        let mut data = vec![0; n * BLOCK];
        for block in data.chunks_mut(BLOCK) {
            block[..8].copy_from_slice(&i.to_le_bytes());
        }
        let rq = Request::write(offset, data);
        if i.is_multiple_of(16) { rq.fua() } else { rq }
    } else if i % 32 == 31 {
        Request::flush()
    } else {
        Request::read(offset, n * BLOCK)
    };
    let this = Arc::clone(lane);
    let cpu = Rng::new(i ^ lane.lane << 32).below(CPUS) as u32;
    lane.queue.submit_on(
        cpu,
        rq.on_complete(move |done| {
            let once = this.next.compare_exchange(i, i + 1, Ordering::SeqCst, Ordering::SeqCst);
            let good = match done.into_data() {
                Ok(data) => data.chunks(BLOCK).all(|block| block[..8] == (i - 1).to_le_bytes()),
                Err(_) => false,
            };
            if once.is_err() || !good {
                this.tally.bad.fetch_add(1, Ordering::Relaxed);
            }
            this.tally.completed.fetch_add(1, Ordering::Relaxed);
            step(&this, i + 1);
        }),
    );
}

/// Does one thing to the queue, and undoes it.
fn disturb(queue: &Queue, machine: &Machine, rng: &mut Rng) {
    match rng.below(11) {
        0 => {
            queue.quiesce();
            assert!(queue.is_quiesced());
            queue.unquiesce();
        }
        1 => {
            queue.quiesce_nowait();
            queue.quiesce_nowait();
            queue.unquiesce();
            queue.run_all_async();
            queue.unquiesce();
        }
        2 => {
            queue.freeze();
            assert_eq!(queue.stats().iter().map(|s| s.in_flight).sum::<u64>(), 0);
            queue.unfreeze();
        }
        3 => {
            if queue.freeze_timeout(Duration::ZERO) {
                queue.unfreeze();
            }
        }
        4 => {
            // The order that cannot deadlock.
            queue.quiesce_nowait();
            queue.start_freeze();
            queue.unquiesce();
            queue.drain();
            queue.unfreeze();
        }
        5 => {
            let how = match rng.below(5) {
                0 => HwQueues::PerCpu,
                1 => HwQueues::PerShard,
                2 => HwQueues::PerCache,
                3 => HwQueues::PerNode,
                _ => HwQueues::Count(1 + rng.below(CPUS) as usize),
            };
            assert!((1..=CPUS as usize).contains(&queue.update_hw_queues(how)));
        }
        6 | 7 => {
            // The last one is refused.
            let _ = machine.set_online(rng.below(CPUS) as u32, rng.below(2) == 0);
            if rng.below(4) == 0 {
                queue.wait_drained();
            }
        }
        8 => {
            let hctx = rng.below(queue.stats().len() as u64) as usize;
            queue.stop(hctx);
            queue.run(hctx);
            queue.start(hctx);
        }
        9 => queue.set_scheduler(match rng.below(2) {
            0 => IoScheduler::None,
            _ => IoScheduler::Deadline(Deadline { fifo_batch: 2, ..Deadline::default() }),
        }),
        _ => queue.run_all_later(Duration::from_micros(rng.below(2000))),
    }
}

#[test]
fn nothing_is_lost_doubled_or_stalled_whatever_is_done_to_the_queue() {
    storm(None);
}

#[test]
fn nothing_is_lost_doubled_or_stalled_where_the_hardware_queues_share_tags_with_others() {
    storm(Some(TagSet::new(3, CPUS as usize)));
}

fn storm(tags: Option<TagSet>) {
    let total = if std::env::var_os("COREWISE_LONG").is_some() { 5_000_000 } else { 200_000 };
    let total = if tags.is_some() { total / 4 } else { total };
    let rig = Rig::synthetic("l3:2 core:4 pu:1");
    let (driver, threads) = Shaky::new();
    let builder = Queue::builder(&rig.machine, Arc::new(driver));
    let queue = match &tags {
        Some(tags) => builder.tags(tags).build(&rig.wq),
        // A timeout that never comes: each completion claims its request from the timer all the same.
        None => builder.timeout(Some(60 * STALL)).build(&rig.wq),
    };
    let left = Arc::new(Countdown::new(LANES as usize));
    let tally = Arc::new(Tally::default());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..3 {
            let (queue, machine, over) = (&queue, &rig.machine, &over);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !over.load(Ordering::Relaxed) {
                    disturb(queue, machine, &mut rng);
                    std::thread::yield_now();
                }
            });
        }
        // Others who want tags of the same set: one waits for as long as it takes, one loses patience.
        for (cpu, tags) in tags.iter().flat_map(|tags| [(0, tags), (1, tags)]) {
            let over = &over;
            scope.spawn(move || {
                let mut rng = Rng::new(9);
                while !over.load(Ordering::Relaxed) {
                    let timeout = Duration::from_micros(rng.below(200));
                    let tag =
                        if cpu == 0 { Some(tags.get(cpu)) } else { tags.get_timeout(cpu, timeout) };
                    std::thread::yield_now();
                    if let Some(tag) = tag {
                        tags.put(cpu, tag);
                    }
                }
            });
        }
        for lane in 0..LANES {
            let lane = Lane {
                lane,
                queue: Arc::clone(&queue),
                each: total / LANES,
                next: AtomicU64::new(0),
                left: Arc::clone(&left),
                tally: Arc::clone(&tally),
            };
            step(&Arc::new(lane), 0);
        }
        // The stall detector: some request completes in each stretch of time.
        let mut before = u64::MAX;
        let stalled = loop {
            if left.wait_timeout(STALL) {
                break false;
            }
            let now = tally.completed.load(Ordering::Relaxed);
            if now == std::mem::replace(&mut before, now) {
                break true;
            }
        };
        over.store(true, Ordering::Relaxed);
        assert!(!stalled, "stalled behind {before}: {queue:?} {:#?}", queue.stats());
    });
    assert_eq!(tally.bad.load(Ordering::Relaxed), 0, "failed, doubled or with wrong data");
    for cpu in 0..CPUS as u32 {
        rig.machine.set_online(cpu, true).unwrap();
    }
    queue.drain();
    let stats = queue.stats();
    let sum = |f: fn(&corewise_blockmq::HctxStats) -> u64| stats.iter().map(f).sum::<u64>();
    assert_eq!(tally.completed.load(Ordering::Relaxed), total / LANES * LANES);
    assert_eq!((sum(|s| s.in_flight), queue.inside()), (0, 0));
    assert_eq!(sum(|s| s.dispatched), sum(|s| s.completed) + sum(|s| s.requeues));
    // It really happened.
    assert!(sum(|s| s.refused) > 0 && sum(|s| s.after_unquiesce) > 0, "{stats:#?}");
    assert!(sum(|s| s.busy) > 0 && sum(|s| s.tag_waits) > 0, "{stats:#?}");
    assert!(sum(|s| s.merged) > 0, "{stats:#?}");
    drop(queue);
    assert!(tags.is_none_or(|tags| tags.in_use() == 0), "a tag was lost");
    for thread in threads {
        thread.join().unwrap();
    }
}
