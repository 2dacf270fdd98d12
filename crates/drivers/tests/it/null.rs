//! The null device: the completers of its requests, and their order.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{Rig, STALL};
use corewise_blockmq::{AlignedBuf, BlockDevice, BlockDeviceExt, Queue, Request};
use corewise_drivers::{Null, NullOptions};

/// Submits `n` reads together and returns, in the order of completion, the number of each and the
/// thread that completed it.
fn reads(queue: &Queue, n: u64) -> Vec<(u64, String)> {
    let (tell, told) = mpsc::channel();
    let batch = (0..n).map(|i| {
        let tell = tell.clone();
        Request::read(i * 512, 512).on_complete(move |done| {
            let who = thread::current().name().unwrap_or_default().to_owned();
            let offset = done.offset;
            assert!(done.into_data().unwrap().iter().all(|&b| b == 0));
            tell.send((offset / 512, who)).unwrap();
        })
    });
    queue.submit_batch(&mut batch.into_iter());
    (0..n).map(|_| told.recv_timeout(STALL).unwrap()).collect()
}

#[test]
fn requests_complete_on_the_threads_of_their_tags_and_all_threads_have_some() {
    let rig = Rig::live();
    let options = NullOptions::new(1 << 20).completion_threads(3).hw_queues(1);
    let queue = rig.queue(Null::with(options).unwrap());
    let who: BTreeSet<String> = reads(&queue, 300).into_iter().map(|(_, who)| who).collect();
    assert_eq!(who, ["cw-null/0", "cw-null/1", "cw-null/2"].map(String::from).into());
    queue.drain();
}

#[test]
fn threads_that_take_turns_get_so_many_requests_in_a_row_whatever_their_tags() {
    let rig = Rig::live();
    let options = NullOptions::new(1 << 20).completion_threads(3).in_turn(4).hw_queues(1);
    let queue = rig.queue(Null::with(options).unwrap());
    // The requests come one at a time: all have the same tag.
    let who: Vec<String> = (0..24).map(|_| reads(&queue, 1).remove(0).1).collect();
    for (n, who) in who.iter().enumerate() {
        assert_eq!(*who, format!("cw-null/{}", n / 4 % 3));
    }
    queue.drain();
}

#[test]
fn late_requests_on_one_thread_complete_in_the_order_of_submission() {
    let rig = Rig::live();
    let latency = Duration::from_micros(200);
    let options = NullOptions::new(1 << 20).latency(latency).cost(Duration::from_nanos(500));
    let queue = rig.queue(Null::with(options.hw_queues(1)).unwrap());
    let order = reads(&queue, 500);
    assert!(order.iter().map(|(i, _)| *i).eq(0..500), "{order:?}");
    assert!(order.iter().all(|(_, who)| who == "cw-null/0"));
    queue.write_at(0, vec![1; 4096]).unwrap();
    assert_eq!(queue.read_at(0, 4096).unwrap(), vec![0; 4096], "writes are forgotten");
    queue.drain();
}

#[test]
fn memory_that_is_left_as_it_is_stays_as_it_was() {
    let rig = Rig::live();
    // SAFETY: the one read below goes to memory that holds sevens.
    let options = unsafe { NullOptions::new(1 << 20).work(10).leave_reads() };
    let queue = rig.queue(Null::with(options).unwrap());
    let mut memory = AlignedBuf::new(4096, 4096);
    memory.extend_from_slice(&[7; 4096]);
    memory.clear();
    let done = queue.execute(Request::read_into(0, 4096, memory));
    done.result.unwrap();
    assert_eq!(done.payload.buffers()[0].as_slice(), [7; 4096]);
    queue.drain();
}

#[test]
fn each_thread_is_told_its_number_first_and_may_panic_then() {
    let rig = Rig::live();
    let (tell, told) = mpsc::channel();
    let options = NullOptions::new(1 << 20).completion_threads(2).at_thread_start(move |n| {
        tell.send((n, thread::current().name().map(String::from))).unwrap();
        assert_ne!(n, 1, "on purpose");
    });
    let queue = rig.queue(Null::with(options).unwrap());
    let said: BTreeSet<_> = (0..2).map(|_| told.recv_timeout(STALL).unwrap()).collect();
    assert_eq!(said, [0, 1].map(|n| (n, Some(format!("cw-null/{n}")))).into());
    assert_eq!(reads(&queue, 100).len(), 100);
    queue.drain();
}

#[test]
fn a_device_dropped_by_its_last_request_on_its_own_thread_ends_in_peace() {
    let rig = Rig::live();
    for _ in 0..50 {
        let options = NullOptions::new(1 << 20).completion_threads(1);
        let queue = rig.queue(Null::with(options).unwrap());
        let (tell, told) = mpsc::channel();
        queue
            .submit(Request::read(0, 512).on_complete(move |done| tell.send(done.result).unwrap()));
        drop(queue);
        told.recv_timeout(STALL).unwrap().unwrap();
    }
}
