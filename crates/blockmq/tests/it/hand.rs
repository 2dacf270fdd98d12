//! Requests submitted inside a queue's own dispatch: they stay in the runner's hand, and go the
//! usual way if the runner has to stop.
#![cfg(not(loom))]

use std::sync::{Arc, Weak, mpsc};

use crate::common::{Front, Held, Ram, Rig, Rng, STALL, block};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, HctxStats, Info, Queue, QuiesceGuard, Request, Started,
};
use corewise_sync::Mutex;
use corewise_topology::{CpuId, Machine};

/// Number of requests that is below what a visitor starts before a worker goes on.
const CHAIN: usize = 200;

/// Submits requests each of whose completions submits the next; the last one reports how the queue
/// was run till then.
fn chain(queue: Arc<Queue>, left: usize, over: mpsc::Sender<HctxStats>) {
    let next = Arc::clone(&queue);
    queue.submit(Request::read(0, 512).on_complete(move |done| {
        done.result.unwrap();
        if left > 1 {
            chain(next, left - 1, over);
        } else {
            over.send(next.stats()[0]).unwrap();
        }
    }));
}

/// Runs a chain on a queue. Returns how often a thread found it run by another, and how often it
/// was run.
fn joined_by_a_chain(queue: &Arc<Queue>) -> (u64, u64) {
    let (over, told) = mpsc::channel();
    chain(Arc::clone(queue), CHAIN, over);
    let stats = told.recv_timeout(STALL).unwrap();
    queue.drain();
    (stats.joined, stats.runs)
}

#[test]
fn requests_that_a_completion_submits_inside_its_dispatch_are_not_published() {
    let rig = Rig::synthetic("core:1 pu:1");
    let queue = rig.queue(Ram::new(4096));
    assert_eq!(joined_by_a_chain(&queue), (0, 1));
}

#[test]
fn nor_where_the_dispatch_of_a_device_below_is_in_between() {
    let rig = Rig::synthetic("core:1 pu:1");
    let below: Arc<dyn BlockDevice> = rig.queue(Ram::new(4096));
    let queue = rig.queue(Front(below, 4096));
    assert_eq!(joined_by_a_chain(&queue), (0, 1));
}

/// A driver that completes its requests in the commit.
#[derive(Default)]
struct InCommit(Mutex<Vec<Started>>);

impl Driver for InCommit {
    fn info(&self) -> Info {
        Info { merges: false, ..Info::new("in commit", Geometry::new(4096)) }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.0.lock().push(rq);
        Dispatch::Started
    }

    fn commit(&self, _hctx: usize) {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().for_each(|mut rq| {
            rq.put_zeroes(512);
            rq.complete(Ok(()));
        });
    }
}

#[test]
fn requests_submitted_in_the_commit_go_with_the_next_pass() {
    let rig = Rig::synthetic("core:1 pu:1");
    let queue = rig.queue(InCommit::default());
    // A pass each: a visitor makes eight, and workers the rest.
    assert_eq!(joined_by_a_chain(&queue).0, 0);
}

fn by_hand(driver: &Held) -> Arc<Queue> {
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    Queue::builder(&machine, Arc::new(driver.clone())).depth(8).build_by_hand()
}

fn settle(queue: &Queue) {
    while (0..queue.hw_queues()).any(|hctx| queue.step(hctx).is_some()) {}
}

/// Submits block 0 and runs `act` in its completion, inside the dispatch. Others complete at once.
fn inside_a_dispatch(
    driver: &Held,
    queue: &Arc<Queue>,
    f: impl FnOnce(&Arc<Queue>) + Send + 'static,
) {
    let order = Arc::clone(&driver.order);
    driver.instead(move |rq| {
        order.lock().push(rq.offset() / 512);
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let theirs = Arc::downgrade(queue);
    queue.submit(block(0).on_complete(move |_| f(&theirs.upgrade().unwrap())));
    assert!(queue.step(0).is_some());
}

#[test]
fn stepped_one_by_one_or_as_a_batch_they_go_in_the_order_of_their_submission() {
    let driver = Held::default();
    let queue = by_hand(&driver);
    inside_a_dispatch(&driver, &queue, |queue| {
        queue.submit(block(1));
        queue.submit_batch(&mut (2..5).map(block));
        queue.submit(block(5));
        queue.submit_batch(&mut (6..8).map(block));
    });
    settle(&queue);
    assert_eq!(driver.order(), (0..8).collect::<Vec<_>>());
    queue.drain();
}

#[test]
fn stepped_requests_in_the_runners_hand_at_a_quiesce_wait_for_the_unquiesce() {
    let driver = Held::default();
    let queue = by_hand(&driver);
    let quiesced = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&quiesced);
    inside_a_dispatch(&driver, &queue, move |queue| {
        queue.submit(block(1));
        *theirs.lock() = Some(queue.quiesce_nowait());
        queue.submit(block(2));
    });
    settle(&queue);
    assert_eq!(driver.order(), [0]);
    drop(quiesced.lock().take());
    assert!(queue.step(0).is_some(), "who opens it has seen what is left");
    assert_eq!(driver.order(), [0, 1, 2]);
    queue.drain();
}

#[test]
fn stepped_requests_in_the_runners_hand_survive_a_panic_of_the_driver() {
    let driver = Held::default();
    let queue = by_hand(&driver);
    let order = Arc::clone(&driver.order);
    driver.instead(move |rq| {
        let block = rq.offset() / 512;
        order.lock().push(block);
        rq.complete(Ok(()));
        assert!(block != 0, "a panic on purpose");
        Dispatch::Started
    });
    let theirs = Arc::downgrade(&queue);
    queue.submit(block(0).on_complete(move |_| theirs.upgrade().unwrap().submit(block(1))));
    settle(&queue);
    assert_eq!(driver.order(), [0, 1]);
    queue.drain();
}

/// The record of a random run.
struct World {
    rng: Mutex<Rng>,
    queue: Mutex<Weak<Queue>>,
    /// Requests that were submitted on each CPU and not started yet, in order.
    waiting: Mutex<[Vec<u64>; 4]>,
    /// Number of ends of each block's request.
    ended: Mutex<Vec<u32>>,
    /// Requests that the driver keeps, and those that it completes in the commit.
    held: Mutex<(Vec<Started>, Vec<Started>)>,
    /// Quiesces that are to be undone.
    closed: Mutex<Vec<QuiesceGuard>>,
}

/// Requests of one random run.
const MOST: usize = 400;

impl World {
    fn chance(&self, one_in: u64) -> bool {
        self.rng.lock().below(one_in) == 0
    }

    fn queue(&self) -> Arc<Queue> {
        self.queue.lock().upgrade().unwrap()
    }

    fn submit(self: &Arc<Self>) {
        let cpu = self.rng.lock().below(4) as usize;
        let id = {
            let mut ended = self.ended.lock();
            if ended.len() == MOST {
                return;
            }
            ended.push(0);
            ended.len() as u64 - 1
        };
        self.waiting.lock()[cpu].push(id);
        let this = Arc::clone(self);
        self.queue().submit_on(
            CpuId::new(cpu as u32),
            block(id).on_complete(move |done| {
                done.result.unwrap();
                this.ended.lock()[id as usize] += 1;
                this.act();
            }),
        );
    }

    /// Acts as a completion function: often on the queue that it is called from.
    fn act(self: &Arc<Self>) {
        let what = self.rng.lock().below(12);
        match what {
            0..=3 => self.submit(),
            4..=6 => (0..what).for_each(|_| self.submit()),
            7 | 8 => {
                let quiesced = self.queue().quiesce_nowait();
                self.closed.lock().push(quiesced);
            }
            9 => self.open(),
            _ => {}
        }
    }

    fn open(&self) {
        let all = std::mem::take(&mut *self.closed.lock());
        drop(all);
    }
}

struct Moody(Arc<World>);

impl Driver for Moody {
    fn info(&self) -> Info {
        Info { hw_queues: 2, merges: false, ..Info::new("moody", Geometry::new(1 << 20)) }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        let world = &self.0;
        if world.chance(10) {
            return Dispatch::Busy(rq);
        }
        let id = rq.offset() / 512;
        {
            let mut waiting = world.waiting.lock();
            let theirs = waiting.iter_mut().find(|list| list.contains(&id)).unwrap();
            assert_eq!(theirs.remove(0), id, "hardware queue {hctx}: the order of its CPU");
        }
        if world.chance(3) {
            world.held.lock().0.push(rq);
        } else if world.chance(3) {
            world.held.lock().1.push(rq);
        } else {
            rq.complete(Ok(()));
        }
        Dispatch::Started
    }

    fn commit(&self, _hctx: usize) {
        let all = std::mem::take(&mut self.0.held.lock().1);
        all.into_iter().for_each(|rq| rq.complete(Ok(())));
    }
}

#[test]
fn stepped_at_random_each_request_ends_once_and_each_cpus_start_in_their_order() {
    for seed in 0..if cfg!(miri) { 3 } else { 300 } {
        let world = Arc::new(World {
            rng: Mutex::new(Rng::new(seed)),
            queue: Mutex::default(),
            waiting: Mutex::default(),
            ended: Mutex::default(),
            held: Mutex::default(),
            closed: Mutex::default(),
        });
        let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
        let driver = Arc::new(Moody(Arc::clone(&world)));
        let queue = Arc::new(Queue::builder(&machine, driver).depth(5).build_by_hand());
        *world.queue.lock() = Arc::downgrade(&queue);
        loop {
            let what = world.rng.lock().below(8);
            match what {
                0 => world.submit(),
                1 => world.open(),
                2 | 3 => {
                    let next = world.held.lock().0.pop();
                    if let Some(rq) = next {
                        rq.complete(Ok(()));
                    }
                }
                _ => drop(queue.step(usize::from(what % 2 == 0))),
            }
            let over = world.ended.lock().len() == MOST;
            if over && queue.inside() == 0 {
                break;
            }
        }
        assert!(world.ended.lock().iter().all(|&times| times == 1), "seed {seed}");
    }
}
