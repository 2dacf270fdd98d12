//! Plugs: the requests that a thread holds back, and the moments when it lets them go.
#![cfg(not(loom))]

use crate::common::{Front, Held, Ram, Rig, STALL, block, submit};
use std::sync::Arc;

use std::cell::RefCell;
use std::mem;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, IoErrorKind, Op, Plug, Queue, Request};
use corewise_sync::{Completion, context};
use corewise_workqueue::{Work, Workqueue};

fn merging() -> Held {
    Held { merges: true, ..Held::default() }
}

#[test]
fn requests_under_a_plug_reach_the_driver_together_at_its_end() {
    let rig = Rig::live();
    let (held, other) = (merging(), Held::default());
    let (queue, second) = (rig.queue(held.clone()), rig.queue(other.clone()));
    let plug = Plug::start();
    let inner = Plug::start();
    let done: Vec<_> = (0..10).map(|n| submit(&*queue, block(n))).collect();
    let elsewhere = submit(&*second, block(0));
    drop(inner);
    assert_eq!((held.held(), other.held(), queue.inside()), (0, 0, 0));
    drop(plug);
    assert_eq!((held.held(), other.held()), (1, 1), "ten became one");
    held.finish_all();
    other.finish_all();
    assert!(done.into_iter().chain([elsewhere]).all(|done| done.recv().unwrap().result.is_ok()));
    let _at_once = submit(&*queue, block(0));
    assert_eq!(held.held(), 1, "without a plug nothing is held back");
    held.finish_all();
}

#[test]
fn a_thread_that_blocks_under_its_plug_lets_go_first() {
    let rig = Rig::live();
    let queue = rig.queue(Ram::new(1 << 20));
    let _plug = Plug::start();
    // The wait is for the very request that is held back.
    queue.write_at(0, vec![7; 512]).unwrap();
    assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512]);
    let done = submit(&*queue, Request::read(0, 512));
    assert!(done.try_recv().is_err());
    context::blocking("test", || assert!(done.recv_timeout(STALL).is_ok()));
    // In a region nothing is held back: no hook would run before it blocks.
    context::blocking("test", || assert!(submit(&*queue, block(1)).try_recv().is_ok()));
}

#[test]
fn enough_is_enough() {
    let rig = Rig::live();
    let held = Held::default();
    let queue = rig.queue(held.clone());
    let plug = Plug::start();
    let few: Vec<_> = (0..31).map(|n| submit(&*queue, block(n))).collect();
    assert_eq!(held.held(), 0);
    let last = submit(&*queue, block(31));
    assert_eq!(held.held(), 32, "the 32nd lets all go");
    let large = submit(&*queue, Request::write(0, vec![0; 128 << 10]));
    assert_eq!(held.held(), 33, "and so does a large one");
    let flush = submit(&*queue, Request::flush());
    assert_eq!(held.requests.lock().back().unwrap().op(), Op::Flush);
    let by_hand = submit(&*queue, block(40));
    plug.flush();
    held.finish_all();
    let all = few.into_iter().chain([last, large, flush, by_hand]);
    assert!(all.map(|done| done.recv().unwrap()).all(|done| done.result.is_ok()));
}

#[test]
fn a_queue_dropped_under_a_plug_is_not_waited_for_and_its_requests_end() {
    let rig = Rig::live();
    let queue = rig.queue(Ram::new(1 << 20));
    let plug = Plug::start();
    let here = submit(&*queue, block(0));
    drop(queue);
    let told = |done: std::sync::mpsc::Receiver<_>| -> corewise_blockmq::Completed {
        done.recv_timeout(STALL).unwrap()
    };
    told(here).result.unwrap();
    drop(plug);
    // The requests are held back by another thread than the one that drops the queue.
    let queue = rig.queue(Held::default());
    let (tx, rx) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let theirs = queue.clone();
    let thread = std::thread::spawn(move || {
        let _plug = Plug::start();
        tx.send(submit(&*theirs, block(0))).unwrap();
        drop(theirs);
        gone.recv().unwrap();
    });
    let there = rx.recv().unwrap();
    while std::sync::Arc::strong_count(&queue) > 1 {
        std::thread::yield_now();
    }
    drop(queue);
    go.send(()).unwrap();
    assert_eq!(told(there).result.unwrap_err().kind(), IoErrorKind::Gone);
    thread.join().unwrap();
}

#[test]
fn requests_held_back_during_a_flush_of_the_plug_go_too_before_the_thread_blocks() {
    let rig = Rig::live();
    let low = rig.queue(Ram::new(1 << 20));
    let up = rig.queue(Front(low.clone(), 1 << 19));
    let _plug = Plug::start();
    // The part that the partition sends on is held back in its turn.
    up.write_at(0, vec![7; 512]).unwrap();
    assert_eq!(up.read_at(0, 512).unwrap(), vec![7; 512]);
    // A request that a completion function submits.
    let (done, next) = (Arc::new(Completion::new()), low.clone());
    let over = Arc::clone(&done);
    low.submit(Request::read(0, 512).on_complete(move |_| {
        next.submit(Request::read(512, 512).on_complete(move |_| over.complete()));
    }));
    done.wait();
}

#[test]
fn a_thread_that_waits_for_room_holds_back_nothing_that_would_make_room() {
    let rig = Rig::live();
    let low = rig.queue(Ram::new(1 << 20));
    let partition = Front(low, 1 << 19);
    let up = Queue::builder(&rig.machine, Arc::new(partition)).nr_requests(4).build(&rig.wq);
    let plug = Plug::start();
    let mut done = vec![submit(&*up, Request::read(0, 512))];
    for n in 1..20 {
        let (rq, told) = crate::common::watched(Request::read(n * 1024, 512));
        up.submit_batch(&mut [rq].into_iter());
        done.push(told);
    }
    drop(plug);
    assert!(done.into_iter().all(|done| done.recv_timeout(STALL).unwrap().result.is_ok()));
}

#[test]
fn what_a_flush_of_the_plug_lets_go_needs_no_other_one() {
    let rig = Rig::live();
    let low = rig.queue(Ram::new(1 << 20));
    let up = rig.queue(Front(low.clone(), 1 << 19));
    let plug = Plug::start();
    let stacked = submit(&*up, Request::read(0, 512));
    plug.flush();
    stacked.try_recv().expect("its part is at the driver").result.unwrap();
    let (next, told) = crate::common::watched(Request::read(512, 512));
    let then = low.clone();
    low.submit(Request::read(0, 512).on_complete(move |_| then.submit(next)));
    plug.flush();
    told.try_recv().expect("and what an end submits").result.unwrap();
    let again = submit(&*low, Request::read(0, 512));
    assert!(again.try_recv().is_err(), "the plug goes on");
}

/// A value that a thread has for as long as it runs.
struct Mine {
    plug: Option<Plug>,
    queue: Arc<Queue>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        let under_one = submit(&*self.queue, block(1));
        drop(self.plug.take());
        under_one.try_recv().unwrap().result.unwrap();
        Plug::working(|plug| {
            let at_the_end = submit(&*self.queue, block(2));
            plug.flush();
            at_the_end.try_recv().unwrap().result.unwrap();
        });
        context::blocking("test", || ());
    }
}

std::thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

#[test]
fn at_a_threads_end_all_that_it_holds_back_goes_on() {
    let rig = Rig::live();
    let held = Held::default();
    held.at_once();
    let queue = rig.queue(held);
    let theirs = Arc::clone(&queue);
    let forgets = move || {
        mem::forget(Plug::start());
        submit(&*theirs, block(0))
    };
    let done = std::thread::spawn(forgets).join().unwrap();
    done.recv_timeout(STALL).unwrap().result.unwrap();
    // The variable is older than the list of requests that are held back, and goes after it.
    let theirs = Arc::clone(&queue);
    let keeps = move || {
        MINE.with(|mine| {
            *mine.borrow_mut() = Some(Mine { plug: None, queue: Arc::clone(&theirs) })
        });
        let plug = Some(Plug::start());
        MINE.with(|mine| mine.borrow_mut().as_mut().unwrap().plug = plug);
        submit(&*theirs, block(0))
    };
    let done = std::thread::spawn(keeps).join().unwrap();
    done.recv_timeout(STALL).unwrap().result.unwrap();
    queue.drain();
}

#[test]
fn an_item_has_no_plug_of_another_and_leaves_none_behind() {
    let rig = Rig::live();
    let wq = Workqueue::builder("plugged").max_active(1).build(&rig.pools).unwrap();
    let queue = rig.queue(Ram::new(1 << 20));
    let ran = |f: Box<dyn Fn() + Send + Sync>| {
        let item = Work::new(f);
        wq.queue(&item).unwrap();
        item.flush();
    };
    let submits = {
        let queue = Arc::clone(&queue);
        move || {
            drop(submit(&*queue, Request::read(0, 512)).try_recv().unwrap().into_data().unwrap())
        }
    };
    let (told, done) = std::sync::mpsc::channel();
    let (inner, theirs, tell) = (submits.clone(), wq.clone(), told.clone());
    // The only place is the outer one's: the inner one runs on its stack.
    ran(Box::new(move || {
        let (inner, tell) = (inner.clone(), tell.clone());
        let inner = Work::new(move || {
            inner();
            tell.send("inner").unwrap();
        });
        let plug = Plug::start();
        theirs.queue(&inner).unwrap();
        inner.flush();
        mem::forget(plug);
    }));
    // The same worker does it: no other one has woken.
    let tell = told.clone();
    ran(Box::new(move || {
        submits();
        tell.send("next").unwrap();
    }));
    assert_eq!(done.recv_timeout(STALL), Ok("inner"));
    assert_eq!(done.recv_timeout(STALL), Ok("next"));
}
