//! Completions that lead to the next one, on and on: a small stack is enough for a chain of any
//! length.
#![cfg(not(loom))]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::Rig;
use corewise_blockmq::model::BuildByHand;
use corewise_blockmq::{BlockDevice, BlockDeviceExt, IoErrorKind, Queue, Request};
use corewise_drivers::{Delay, Delays, Faulty, Memory, Partition, Stripe};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};

const MANY: usize = 2000;

/// Runs `f` on a thread with a small stack.
fn on_a_small_stack<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    thread::Builder::new().stack_size(512 << 10).spawn(f).unwrap().join().unwrap()
}

fn queues(rig: &Rig) -> Vec<Arc<Queue>> {
    (0..MANY).map(|_| rig.queue(Memory::new(4096).unwrap())).collect()
}

fn read_on(queues: Arc<[Arc<Queue>]>, at: usize, ended: Arc<AtomicUsize>) {
    let Some(queue) = queues.get(at).cloned() else { return };
    queue.submit(Request::read(0, 512).on_complete(move |_| {
        ended.fetch_add(1, Ordering::Relaxed);
        read_on(queues, at + 1, ended);
        assert!(at % 500 != 7, "a panic on purpose, which breaks no chain");
    }));
}

#[test]
fn a_completion_that_submits_to_the_next_of_many_queues_needs_no_deep_stack() {
    let rig = Rig::synthetic("core:1 pu:1");
    let queues = Arc::<[_]>::from(queues(&rig));
    let theirs = Arc::clone(&queues);
    let ended = on_a_small_stack(move || {
        let ended = Arc::default();
        read_on(theirs, 0, Arc::clone(&ended));
        ended.load(Ordering::Relaxed)
    });
    assert_eq!(ended, MANY, "all ended before the first submission returned");
    queues.iter().for_each(|queue| queue.drain());
}

fn flush_on(queue: Arc<Queue>, left: usize) {
    let next = Arc::clone(&queue);
    queue.submit(Request::flush().on_complete(move |_| {
        if left > 0 {
            flush_on(next, left - 1);
        }
    }));
}

fn refuse_on(queue: Arc<Queue>, left: usize) {
    let next = Arc::clone(&queue);
    queue.submit(Request::read(1, 512).on_complete(move |done| {
        assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::InvalidInput);
        if left > 0 {
            refuse_on(next, left - 1);
        }
    }));
}

#[test]
fn requests_that_end_before_they_are_queued_need_no_deep_stack() {
    let rig = Rig::synthetic("core:1 pu:1");
    let queue = rig.queue(Memory::new(4096).unwrap());
    let theirs = Arc::clone(&queue);
    on_a_small_stack(move || {
        // A memory device has nothing to flush.
        flush_on(Arc::clone(&theirs), 100_000);
        refuse_on(theirs, 100_000);
    });
    queue.drain();
    assert_eq!(Arc::strong_count(&queue), 1, "each has ended");
}

#[test]
fn requests_that_are_dropped_need_no_deep_stack() {
    let mut last = None;
    for _ in 0..100_000 {
        let rq: Option<Request> = last.take();
        last = Some(Request::flush().on_complete(move |done| {
            assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::Gone);
            drop(rq);
        }));
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&ended);
    on_a_small_stack(move || {
        drop(last);
        theirs.store(1, Ordering::Relaxed);
    });
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}

#[test]
fn queues_whose_requests_keep_one_another_go_without_a_deep_stack() {
    let rig = Rig::synthetic("core:1 pu:1");
    let gone = Arc::new(AtomicUsize::new(0));
    let mut last = None;
    for _ in 0..MANY {
        // The queue is never stepped, so its request waits inside.
        let memory = Arc::new(Memory::new(4096).unwrap());
        let queue = Queue::builder(&rig.machine, memory).build_by_hand();
        let (next, gone) = (last.take(), Arc::clone(&gone));
        queue.submit(Request::read(0, 512).on_complete(move |done| {
            assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::Gone);
            drop(next);
            gone.fetch_add(1, Ordering::Relaxed);
        }));
        last = Some(queue);
    }
    on_a_small_stack(move || drop(last));
    assert_eq!(gone.load(Ordering::Relaxed), MANY);
}

#[test]
fn a_tree_of_completions_ends_each_request_once() {
    let rig = Rig::synthetic("core:1 pu:1");
    let queues = Arc::<[_]>::from(queues(&rig));
    let order = Arc::new(Mutex::new(Vec::new()));
    fn fork(queues: &Arc<[Arc<Queue>]>, n: usize, order: &Arc<Mutex<Vec<usize>>>) {
        for child in [2 * n + 1, 2 * n + 2] {
            let Some(queue) = queues.get(child) else { continue };
            let (queues, order) = (Arc::clone(queues), Arc::clone(order));
            queue.submit(Request::read(0, 512).on_complete(move |done| {
                assert_eq!(done.into_data().unwrap().len(), 512);
                fork(&queues, child, &order);
                order.lock().push(child);
            }));
        }
    }
    fork(&queues, 0, &order);
    let mut all = order.lock().clone();
    all.sort_unstable();
    assert!(all.into_iter().eq(1..MANY), "each ended once");
    queues.iter().for_each(|queue| queue.drain());
}

#[test]
fn a_high_stack_of_devices_completes_through_all_of_them() {
    let rig = Rig::synthetic("core:1 pu:1");
    let mut device: Arc<dyn BlockDevice> = rig.queue(Memory::new(4096).unwrap());
    // The device lies below each kind of device that is over another one.
    let delays = Delays { jitter: Duration::from_nanos(1), ..Delays::default() };
    for _ in 0..500 {
        device = rig.queue(Partition::new(device, 0, 4096).unwrap());
        device = rig.queue(Faulty::new(device, Vec::new(), 0));
        device = rig.queue(Delay::new(device, delays, &rig.wq));
        device = rig.queue(Stripe::new(vec![device], 4096).unwrap());
    }
    let top = Arc::clone(&device);
    on_a_small_stack(move || {
        assert!(!top.geometry().read_only && !top.read_only_latch().is_set());
        top.write_at(512, vec![7; 512]).unwrap();
        assert_eq!(top.read_at(512, 512).unwrap(), vec![7; 512]);
    });
}
