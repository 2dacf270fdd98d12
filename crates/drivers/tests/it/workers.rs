//! Block queues whose workqueue is drained, destroyed or full, and block queues without workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Completed, Dispatch, Driver, Geometry, Info, IoError, IoErrorKind,
    Op, Queue, Request, Started, TimedOut, TimerReturn, Whole,
};
use corewise_drivers::{
    Delay, Delays, Fault, Faulty, FileDriver, FileOptions, IoPath, LegState, Memory, MirrorLeg,
};
use corewise_sync::{Completion, Mutex};
use corewise_workqueue::{QueueBuilder, QueueError, QueueKind, Work, Workqueue};

use crate::common::mirrors::{LEG, Legs, REGION, SIZE, Up, until_alike};
use crate::common::{Held, Rig, STALL, Slow, block, submit};

const DELAY: Duration = Duration::from_millis(2);

fn delay(rig: &Rig, delay: Duration) -> Arc<Queue> {
    let delays = Delays { read: delay, write: delay, flush: delay, ..Delays::default() };
    let below = rig.queue(Memory::new(1 << 20).unwrap());
    rig.queue(Delay::new(below, delays, &rig.wq))
}

fn file(rig: &Rig, folder: &tempfile::TempDir) -> Arc<Queue> {
    let options = FileOptions::new(folder.path().join("disk")).size(1 << 20).io(IoPath::Threads);
    rig.queue(FileDriver::open(options, &rig.wq).unwrap())
}

/// A driver that gives each request back this many times before it takes it.
struct Busy(AtomicU64);

impl Driver for Busy {
    fn info(&self) -> Info {
        Info::new("busy", Geometry::new(1 << 30))
    }
    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if self.0.load(Ordering::SeqCst) != 0 {
            self.0.fetch_sub(1, Ordering::SeqCst);
            return Dispatch::Busy(rq);
        }
        rq.complete(Ok(()));
        Dispatch::Started
    }
}

fn ended(done: &Receiver<Completed>) -> Completed {
    done.recv_timeout(STALL).expect("a request is stranded")
}

fn kind_of(done: &Receiver<Completed>) -> Result<(), IoErrorKind> {
    ended(done).result.map_err(|error| error.kind())
}

/// Calls `inside` while another thread drains the queue, which can't end before that has returned.
fn during_drain(wq: &Workqueue, inside: impl FnOnce()) {
    let (gate, begun) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (waits, says) = (Arc::clone(&gate), Arc::clone(&begun));
    drop(wq.spawn(move || {
        says.complete();
        waits.wait();
    }));
    begun.wait();
    thread::scope(|scope| {
        scope.spawn(|| wq.drain());
        while wq.queue(&Work::new(|| ())) != Err(QueueError::Draining) {
            thread::yield_now();
        }
        // Also if it panics.
        let _end = Ends(gate);
        inside();
    });
}

struct Ends(Arc<Completion>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.complete();
    }
}

#[test]
fn a_drain_of_the_workqueue_strands_no_request_and_no_device() {
    let (rig, folder) = (Rig::live(), tempfile::tempdir().unwrap());
    let busy = Busy(AtomicU64::new(5));
    let all =
        [delay(&rig, DELAY), file(&rig, &folder), rig.queue(Slow::default()), rig.queue(busy)];
    let quiesced = rig.queue(Memory::new(1 << 20).unwrap());
    let guard = quiesced.quiesce();
    let waits = submit(&*quiesced, Request::write(0, vec![7; 512]));
    during_drain(&rig.wq, || {
        for queue in &all {
            let done: Vec<_> =
                (0..5).map(|n| submit(&**queue, Request::write(n * 512, vec![7; 512]))).collect();
            done.iter().for_each(|done| assert_eq!(kind_of(done), Ok(()), "{}", queue.name()));
        }
        drop(guard);
        assert_eq!(kind_of(&waits), Ok(()));
    });
    // And no timer, or turn, was lost to it.
    for queue in &all {
        assert_eq!(kind_of(&submit(&**queue, Request::write(0, vec![7; 512]))), Ok(()));
    }
}

#[test]
fn a_late_request_is_found_while_the_workqueue_is_drained() {
    /// A driver that ends its late requests.
    struct Late(Mutex<Vec<Started>>);
    impl Driver for Late {
        fn info(&self) -> Info {
            Info::new("late", Geometry::new(1 << 30))
        }
        fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
            self.0.lock().push(rq);
            Dispatch::Started
        }
        fn timeout(&self, _late: &TimedOut<'_>) -> TimerReturn {
            let found = self.0.lock().pop();
            if let Some(rq) = found {
                rq.complete(Err(IoError::new(IoErrorKind::TimedOut)));
            }
            TimerReturn::Done
        }
    }
    let rig = Rig::live();
    let driver = Arc::new(Late(Mutex::new(Vec::new())));
    let builder = Queue::builder(&rig.machine, driver).timeout(Some(DELAY));
    let queue = builder.build(&rig.wq);
    during_drain(&rig.wq, || {
        assert_eq!(kind_of(&submit(&*queue, block(1))), Err(IoErrorKind::TimedOut));
    });
}

#[test]
fn an_item_may_wait_for_a_request_also_where_it_is_all_that_its_queue_runs_at_once() {
    let (rig, folder) = (Rig::live(), tempfile::tempdir().unwrap());
    for set in [|q: QueueBuilder| q.kind(QueueKind::Ordered), |q: QueueBuilder| q.max_active(1)] {
        let wq = set(Workqueue::builder("narrow")).build(&rig.pools).unwrap();
        let narrow = Rig { machine: rig.machine.clone(), pools: rig.pools.clone(), wq: wq.clone() };
        let queues = [delay(&narrow, DELAY), file(&narrow, &folder)];
        let (tx, rx) = mpsc::channel();
        wq.execute(move || {
            let results = queues.map(|queue| queue.write_at(0, vec![7; 512]));
            tx.send(results).unwrap();
        })
        .unwrap_or_else(|_| panic!("refused"));
        let results = rx.recv_timeout(STALL).expect("it waits for itself");
        assert_eq!(results, [Ok(()), Ok(())]);
        std::mem::forget(narrow); // its pools are the others'
    }
}

#[test]
fn a_destroyed_workqueue_takes_no_worker_from_its_block_devices() {
    let (rig, folder) = (Rig::live(), tempfile::tempdir().unwrap());
    let all = [delay(&rig, DELAY), file(&rig, &folder), rig.queue(Slow::default())];
    let done = submit(&*all[0], Request::read(0, 512));
    rig.wq.destroy();
    assert_eq!(kind_of(&done), Ok(()));
    for queue in &all {
        assert_eq!(kind_of(&submit(&**queue, Request::write(0, vec![7; 512]))), Ok(()));
    }
}

#[test]
fn without_workers_requests_run_where_they_are_submitted_or_end_with_an_error_that_says_so() {
    let (rig, folder) = (Rig::live(), tempfile::tempdir().unwrap());
    let (memory, delay) = (rig.queue(Memory::new(1 << 20).unwrap()), delay(&rig, STALL * 60));
    let (file, slow) = (file(&rig, &folder), rig.queue(Slow::default()));
    let busy = rig.queue(Busy(AtomicU64::new(5)));
    let quiesced = memory.quiesce();
    let held = submit(&*memory, Request::write(0, vec![7; 512]));
    // Writes an hour from now, and it waits outside of a frozen queue.
    let waits = submit(&*delay, Request::write(0, vec![7; 512]));
    let frozen = slow.start_freeze();
    let outside = submit(&*slow, block(1));
    rig.pools.shutdown();
    assert_eq!(kind_of(&waits), Ok(()), "there is no timer that could tell when");
    drop(quiesced);
    assert_eq!(kind_of(&held), Ok(()));
    assert_eq!(delay.write_at(512, vec![7; 512]), Ok(()));
    let gone = file.write_at(0, vec![7; 512]).unwrap_err();
    assert_eq!(gone.kind(), IoErrorKind::Gone);
    assert!(gone.to_string().contains("the worker pools were shut down"), "{gone}");
    drop(frozen);
    assert_eq!(kind_of(&outside), Err(IoErrorKind::Gone));
    assert_eq!(kind_of(&submit(&*slow, block(1))), Err(IoErrorKind::Gone));
    assert_eq!(kind_of(&submit(&*busy, block(1))), Err(IoErrorKind::Gone), "nobody asks it again");
    let late = rig.queue(Slow::default());
    let gone = ended(&submit(&*late, block(1))).result.unwrap_err();
    assert!(gone.to_string().contains("the worker pools were shut down"), "{gone}");
    for queue in [memory, delay, file, slow, busy, late] {
        queue.drain();
        assert_eq!(queue.inside(), 0);
    }
}

#[test]
fn requests_that_a_busy_driver_left_end_with_the_pools() {
    let rig = Rig::live();
    let queue = rig.queue(Busy(AtomicU64::new(u64::MAX)));
    let done: Vec<_> = (0..3).map(|n| submit(&*queue, block(n))).collect();
    rig.pools.shutdown();
    done.iter().for_each(|done| assert_eq!(kind_of(done), Err(IoErrorKind::Gone)));
    queue.drain();
}

#[test]
fn a_chain_through_many_queues_without_workers_needs_no_stack_for_each() {
    fn next(queues: &Arc<Vec<Arc<Queue>>>, at: usize, end: mpsc::Sender<usize>) {
        let Some(queue) = queues.get(at) else { return end.send(at).unwrap() };
        let all = Arc::clone(queues);
        queue.submit(block(1).on_complete(move |_| next(&all, at + 1, end)));
    }
    let rig = Rig::synthetic("numa:1 l3:1 core:1 pu:1");
    let queues: Arc<Vec<_>> = Arc::new((0..800).map(|_| rig.queue(Slow::default())).collect());
    rig.pools.shutdown();
    let (tx, rx) = mpsc::channel();
    let small = thread::Builder::new().stack_size(256 << 10);
    small.spawn(move || next(&queues, 0, tx)).unwrap().join().unwrap();
    assert_eq!(rx.recv_timeout(STALL), Ok(800));
}

/// Makes a mirror of these, whose record keeps every bit that was set.
fn mirrored(legs: &Legs, over: Vec<Arc<dyn BlockDevice>>) -> Up {
    let over = over.into_iter().map(MirrorLeg::Here).collect();
    legs.open_with(over, |options| options.clean_after = STALL).unwrap()
}

#[test]
fn a_write_to_a_mirror_during_the_shutdown_of_the_pools_does_not_hang() {
    for _ in 0..20 {
        let (rig, folder) = (Rig::live(), tempfile::tempdir().unwrap());
        let options = FileOptions::new(folder.path().join("leg")).size(LEG).io(IoPath::Threads);
        let file = rig.queue(FileDriver::open(options, &rig.wq).unwrap());
        let delays = Delays { write: DELAY, ..Delays::default() };
        let slow = Delay::new(rig.queue(Memory::new(LEG).unwrap()), delays, &rig.wq);
        let legs = Legs { disks: vec![file, rig.queue(slow)], rig };
        let up = legs.open();
        let done: Vec<_> = thread::scope(|scope| {
            let writer = |first: u64| {
                let queue = &up.queue;
                scope.spawn(move || {
                    let write = |n| submit(&**queue, Request::write(n * REGION, vec![7; 512]));
                    (first..SIZE / REGION).step_by(2).map(write).collect::<Vec<_>>()
                })
            };
            let writers = [writer(0), writer(1)];
            legs.rig.pools.shutdown();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        for done in done {
            assert!(matches!(kind_of(&done), Ok(()) | Err(IoErrorKind::Gone)));
        }
        up.close();
    }
}

#[test]
fn a_change_that_waits_for_the_resync_of_a_mirror_ends_with_the_pools_also_in_the_middle_of_it() {
    let legs = Legs::new(2).made();
    let up = mirrored(&legs, legs.disks.clone());
    up.fill(5, 5);
    drop(up); // a crash: region 5 is to be resynced
    let gate = Held { geometry: Some(Geometry::new(LEG)), ..Held::default() };
    let (held, below) = (Arc::clone(&gate.requests), Arc::clone(&legs.disks[0]));
    let (tx, begun) = mpsc::channel();
    let most = AtomicU64::new(1);
    gate.instead(move |rq| {
        let (offset, len) = (rq.offset(), rq.len());
        let is_it = rq.op() == Op::Read && offset == 5 * REGION;
        if is_it && most.swap(0, Ordering::SeqCst) != 0 {
            held.lock().push_back(rq);
            tx.send(()).unwrap();
        } else {
            below.submit(Whole::new(rq).part(0, len, offset));
        }
        Dispatch::Started
    });
    let up = mirrored(&legs, vec![legs.rig.queue(gate.clone()), Arc::clone(&legs.disks[1])]);
    begun.recv_timeout(STALL).unwrap();
    let waits = submit(&*up.queue, Request::write(5 * REGION, vec![7; 512]));
    // The keeper's round that lets this one in has found that the other one can't be let in.
    up.fill(9, 9);
    thread::scope(|scope| {
        scope.spawn(|| legs.rig.pools.shutdown());
        let gone = waits.recv_timeout(STALL);
        gate.finish_all(); // a worker is there, and is waited for
        let gone = gone.expect("stranded").result.unwrap_err();
        assert_eq!(gone.kind(), IoErrorKind::Gone);
        assert!(gone.to_string().contains("the worker pools were shut down"), "{gone}");
    });
}

#[test]
fn a_keeper_finishes_its_task_when_the_pools_end_and_later_ones_fail() {
    let legs = Legs::new(2).made();
    let gate = Held { geometry: Some(Geometry::new(LEG)), ..Held::default() };
    let (held, below) = (Arc::clone(&gate.requests), Arc::clone(&legs.disks[0]));
    let armed = Arc::new(AtomicU64::new(0));
    let holds = Arc::clone(&armed);
    let (tx, begun) = mpsc::channel();
    gate.instead(move |rq| {
        let (offset, len) = (rq.offset(), rq.len());
        if rq.op() == Op::Write && offset >= SIZE && holds.load(Ordering::SeqCst) != 0 {
            held.lock().push_back(rq);
            tx.send(()).unwrap();
        } else {
            below.submit(Whole::new(rq).part(0, len, offset));
        }
        Dispatch::Started
    });
    let up = mirrored(&legs, vec![legs.rig.queue(gate.clone()), Arc::clone(&legs.disks[1])]);
    up.fill(0, 1); // the births of heads are over
    armed.store(1, Ordering::SeqCst);
    let first = submit(&*up.queue, Request::write(9 * REGION, vec![7; 512]));
    begun.recv_timeout(STALL).unwrap();
    armed.store(0, Ordering::SeqCst);
    let behind = submit(&*up.queue, Request::write(5 * REGION, vec![7; 512]));
    thread::scope(|scope| {
        scope.spawn(|| legs.rig.pools.shutdown());
        let gone = behind.recv_timeout(STALL);
        gate.finish_all();
        assert_eq!(gone.expect("stranded").result.unwrap_err().kind(), IoErrorKind::Gone);
        assert_eq!(kind_of(&first), Ok(()));
    });
}

#[test]
fn a_mirror_without_workers_acknowledges_nothing_that_its_record_does_not_cover() {
    let legs = Legs::new(2).made();
    let weak = Arc::new(Faulty::new(legs.disks[1].clone(), vec![Fault::new().on(&[Op::Write])], 0));
    weak.arm(false);
    let leg = Queue::builder(&legs.rig.machine, weak.clone()).build(&legs.rig.wq);
    let up = mirrored(&legs, vec![legs.disks[0].clone(), leg]);
    up.fill(2, 2);
    legs.rig.pools.shutdown();
    let write = |region: u64, byte: u8| {
        kind_of(&submit(&*up.queue, Request::write(region * REGION, vec![byte; 4096])))
    };
    let flush = || kind_of(&submit(&*up.queue, Request::flush()));
    assert_eq!((write(2, 3), flush()), (Ok(()), Ok(())), "its bit is there, and all legs have it");
    assert_eq!(write(9, 9), Err(IoErrorKind::Gone), "nobody can write its bit");
    weak.arm(true);
    assert_eq!(write(2, 4), Err(IoErrorKind::Gone), "nobody can write down who lacks it");
    weak.arm(false);
    assert_eq!((write(2, 5), flush()), (Err(IoErrorKind::Gone), Err(IoErrorKind::Gone)));
    assert_eq!(up.states(), [LegState::InSync, LegState::Out]);
    assert!(!up.mirror.take_back(1), "nobody would look for it");
    assert_eq!(up.states(), [LegState::InSync, LegState::Out]);
    assert!(up.queue.read_at(2 * REGION, 4096).unwrap().iter().all(|&byte| byte == 5));
    up.close();
    // The record says now: both are in sync, and may differ there.
    let again = Legs { rig: Rig::live(), disks: legs.disks.clone() };
    let up = again.open();
    until_alike(&up.mirror);
    up.close();
    assert!(again.alike() && again.data(0)[2 * REGION as usize] == 5);
}
