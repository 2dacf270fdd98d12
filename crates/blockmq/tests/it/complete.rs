//! The CPU on which requests end, their search by the timer, and their return to the driver.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::{Held, Rig, STALL, block, settle, submit, watched};
use crate::remap::Window;
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    BlockDeviceExt, Completed, Completer, Dispatch, IoErrorKind, IoStats, Queue, Request,
    RqAffinity,
};
use corewise_smp::Smp;
use corewise_smp::model::{self, CallTarget, Step};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::{CpuId, Machine, current_cpu, pin_current_thread};

/// A machine with more CPUs than the real one, two to a cache. The test's thread sits on one of
/// them.
struct Caches {
    machine: Machine,
    smp: Smp,
    targets: Vec<CallTarget>,
    /// A CPU that shares a cache with this thread's.
    near: CpuId,
    /// A CPU that shares none with it.
    far: CpuId,
}

impl Caches {
    fn new() -> Self {
        let here = current_cpu().expect("Linux tells");
        pin_current_thread(&std::iter::once(here).collect()).unwrap();
        let caches = (here.number() / 2 + 2).max(4);
        let machine = Machine::synthetic(&format!("l3:{caches} core:2 pu:1")).unwrap();
        let (smp, targets) = model::stepped(Smp::builder(&machine));
        Self {
            machine,
            smp,
            targets,
            near: CpuId::new(here.number() ^ 1),
            far: CpuId::new((here.number() ^ 2) | 1),
        }
    }

    fn queue(&self, driver: &Held, affinity: RqAffinity) -> (Arc<Queue>, Completer) {
        let completer = Completer::new(&self.smp);
        let queue = Queue::builder(&self.machine, Arc::new(driver.clone()))
            .complete_with(&completer, affinity)
            .build_by_hand();
        (queue, completer)
    }

    /// Submits requests from far away, which the driver completes here.
    fn run_far(&self, queue: &Queue, driver: &Held, n: u64) -> Vec<mpsc::Receiver<Completed>> {
        let submit = |n| {
            let (rq, ended) = watched(block(n));
            queue.submit_on(self.far, rq);
            ended
        };
        let ended = (0..n).map(submit).collect();
        queue.step(0);
        driver.finish_all();
        ended
    }

    fn step(&mut self, cpu: CpuId) {
        let target = self
            .targets
            .iter_mut()
            .find(|target| target.cpu() == CpuId::new(cpu.number()))
            .unwrap();
        while let Step::Ran(_) = target.step() {}
    }
}

#[test]
fn rule_17_requests_end_at_their_submitter_by_one_call_for_all_that_gathers() {
    let mut caches = Caches::new();
    let driver = Held::default();
    let (queue, completer) = caches.queue(&driver, RqAffinity::Cache);
    let far = caches.far;
    let ended = caches.run_far(&queue, &driver, 5);
    assert!(ended.iter().all(|end| end.try_recv().is_err()), "they end over there");
    assert_eq!(queue.stats()[0].in_flight, 5, "and keep their tags until then");
    let stats = completer.stats();
    assert_eq!((stats.sent, stats.calls, stats.refused), (5, 1, 0));
    caches.step(far);
    assert!(ended.iter().all(|end| end.try_recv().unwrap().result.is_ok()));
    assert_eq!(queue.inside(), 0);
    // The list is empty again: the next request calls again.
    let next = caches.run_far(&queue, &driver, 1);
    assert_eq!(completer.stats().calls, 2);
    caches.step(far);
    next[0].try_recv().unwrap().result.unwrap();
}

#[test]
fn rule_17_a_remapped_request_ends_at_its_submitter() {
    let mut caches = Caches::new();
    let (far, completer) = (caches.far, Completer::new(&caches.smp));
    let driver = Held::default();
    let below = by_hand(&driver, 32);
    let window = Arc::new(Window::over(Arc::clone(&below) as _));
    let queue = Queue::builder(&caches.machine, window)
        .complete_with(&completer, RqAffinity::Cache)
        .build_by_hand();
    let (rq, ended) = watched(block(1));
    queue.submit_on(far, rq);
    settle(&[&queue, &below]);
    driver.finish_all();
    assert!(ended.try_recv().is_err(), "it ends over there");
    assert_eq!((queue.inside(), below.inside(), completer.stats().sent), (1, 0, 1));
    caches.step(far);
    ended.try_recv().unwrap().result.unwrap();
    assert_eq!(queue.inside(), 0);
    assert_eq!((queue.stats()[0].remapped, queue.stats()[0].dispatched), (1, 0));
}

#[test]
fn rule_17_within_a_cache_a_request_ends_where_it_is_completed_unless_that_is_forced() {
    let mut caches = Caches::new();
    let near = caches.near;
    for (affinity, sent) in
        [(RqAffinity::Cache, 0), (RqAffinity::Cpu, 1), (RqAffinity::Anywhere, 0)]
    {
        let driver = Held::default();
        let (queue, completer) = caches.queue(&driver, affinity);
        let (rq, ended) = watched(block(1));
        queue.submit_on(near, rq);
        queue.step(0);
        driver.finish_all();
        assert_eq!(completer.stats().sent, sent, "{affinity:?}");
        caches.step(near);
        ended.try_recv().unwrap().result.unwrap();
    }
}

#[test]
fn rule_17_a_refused_caller_drains_the_list_of_a_cpu_that_has_left() {
    let mut caches = Caches::new();
    let far = caches.far;
    let driver = Held::default();
    let (queue, completer) = caches.queue(&driver, RqAffinity::Cache);
    let leaving = caches.smp.cpu_offline(far);
    caches.step(far);
    assert!(leaving.is_complete());
    let ended = caches.run_far(&queue, &driver, 1);
    ended[0].try_recv().unwrap().result.unwrap();
    assert_eq!(completer.stats().refused, 1);
}

#[test]
fn rule_17_the_list_of_a_cpu_that_died_with_the_call_is_drained_all_the_same() {
    let mut caches = Caches::new();
    let far = caches.far;
    let driver = Held::default();
    let (queue, _completer) = caches.queue(&driver, RqAffinity::Cache);
    let ended = caches.run_far(&queue, &driver, 3);
    caches.targets.retain(|target| target.cpu() != far);
    assert!(ended.iter().all(|end| end.try_recv().unwrap().result.is_ok()));
    assert_eq!(queue.inside(), 0);
}

fn by_hand(driver: &Held, depth: u32) -> Arc<Queue> {
    let machine = Machine::synthetic("core:1 pu:1").unwrap();
    Queue::builder(&machine, Arc::new(driver.clone()))
        .depth(depth)
        .iostats(IoStats::Timed)
        .build_by_hand()
}

#[test]
fn rule_18_requeued_requests_go_first_and_in_order() {
    let driver = Held::default();
    let queue = by_hand(&driver, 2);
    let ended: Vec<_> = (0..4).map(|n| submit(&*queue, block(n))).collect();
    queue.step(0);
    assert_eq!(driver.order(), [0, 1], "there are two tags");
    let mut had: Vec<_> = driver.requests.lock().drain(..).collect();
    let second = had.pop().unwrap();
    had.pop().unwrap().requeue();
    second.requeue();
    assert_eq!(queue.stats()[0].in_flight, 0, "their tags are free");
    queue.step(0);
    assert_eq!(driver.order(), [0, 1, 0, 1]);
    driver.finish_all();
    queue.step(0);
    assert_eq!(driver.order(), [0, 1, 0, 1, 2, 3]);
    driver.finish_all();
    assert!(ended.iter().all(|end| end.try_recv().unwrap().result.is_ok()));
    let stats = queue.stats()[0];
    assert_eq!((stats.requeues, stats.completed, stats.dispatched), (2, 4, 6));
}

#[test]
fn rule_18_a_request_requeued_during_a_quiesce_runs_after_the_unquiesce() {
    let driver = Held::default();
    let queue = by_hand(&driver, 2);
    let ended = submit(&*queue, block(1));
    queue.step(0);
    let quiesced = queue.quiesce();
    let had = driver.requests.lock().pop_front().unwrap();
    had.requeue();
    queue.step(0);
    assert_eq!(driver.held(), 0);
    drop(quiesced);
    queue.step(0);
    driver.finish_one(Ok(()));
    ended.try_recv().unwrap().result.unwrap();
}

#[test]
fn rule_18_a_request_requeued_to_a_dropped_queue_ends_as_gone() {
    let driver = Held::default();
    let queue = by_hand(&driver, 2);
    let ended = submit(&*queue, block(1));
    queue.step(0);
    drop(queue);
    let had = driver.requests.lock().pop_front().unwrap();
    had.requeue();
    assert_eq!(ended.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
}

/// Tests the kernel's BLK_STS_RESOURCE: no request of this queue will end and restart it, and yet
/// the driver gets the request again.
#[test]
fn rule_18_after_a_shortage_of_a_shared_resource_the_driver_is_asked_again_without_a_completion() {
    let rig = Rig::live();
    let driver = Held::default();
    let queue = rig.queue(driver.clone());
    let first = submit(&*queue, block(1));
    while driver.held() == 0 {
        std::thread::yield_now();
    }
    let asked = Arc::new(AtomicUsize::new(0));
    driver.instead({
        let asked = Arc::clone(&asked);
        move |rq| {
            if asked.fetch_add(1, Ordering::Relaxed) < 3 {
                return Dispatch::NoResource(rq);
            }
            rq.complete(Ok(()));
            Dispatch::Started
        }
    });
    // The first one stays in the driver all the time.
    submit(&*queue, block(2)).recv_timeout(STALL).expect("it comes again").result.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 4);
    driver.keep();
    driver.finish_all();
    first.recv_timeout(STALL).unwrap().result.unwrap();
}

#[test]
fn a_disk_counts_what_ended_by_operation_and_how_long_it_took() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let ends = [
        submit(&*queue, Request::write(0, vec![1; 1024])),
        submit(&*queue, Request::write(4096, vec![1; 512])),
        submit(&*queue, block(3)),
        submit(&*queue, Request::flush()),
    ];
    queue.step(0);
    assert_eq!(queue.disk_stats(), Default::default(), "nothing has ended");
    driver.finish_one(Ok(()));
    driver.finish_one(Err(corewise_blockmq::IoError::new(IoErrorKind::Io(5))));
    driver.finish_all();
    assert!(ends.iter().all(|end| end.try_recv().is_ok()));
    let stats = queue.disk_stats();
    assert_eq!((stats.writes.requests, stats.writes.errors, stats.writes.bytes), (2, 1, 1024));
    assert_eq!((stats.discards.requests, stats.discards.bytes), (1, 512));
    assert_eq!((stats.flushes.requests, stats.reads.requests), (1, 0));
    for of_op in [&stats.writes, &stats.discards, &stats.flushes] {
        assert_eq!(of_op.latency.count(), of_op.requests, "each was timed");
    }
    assert_eq!(stats.in_driver.count(), 4);
    assert!(
        stats.in_driver.longest()
            <= stats
                .writes
                .latency
                .longest()
                .max(stats.discards.latency.longest())
                .max(stats.flushes.latency.longest())
    );
}

#[test]
fn an_end_is_counted_before_it_is_reported() {
    let rig = Rig::live();
    let driver = Held::default();
    driver.at_once();
    let queue = rig.queue(driver);
    for n in 1..=50 {
        queue.execute(block(n)).result.unwrap();
        assert_eq!(queue.disk_stats().discards.requests, n);
    }
    assert!(
        queue.disk_stats().discards.latency.count() >= 50,
        "one that is timed stands for others"
    );
}
