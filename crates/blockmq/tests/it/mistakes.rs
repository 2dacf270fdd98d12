//! Mistakes of drivers and of callers: each is reported with a remedy, and none harms other
//! requests.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use crate::common::{Held, Rig, STALL, block, submit, watched};
use corewise_blockmq::model::ByHand;
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Completed, Dispatch, Driver, Geometry, Info, IoErrorKind, Queue,
    Request, Started, TagSet,
};

/// Takes in one request, and gives back the one that `other` holds.
fn swaps(driver: &Held, other: &Held, how: fn(Started) -> Dispatch) {
    let (mine, other) = (driver.clone(), other.clone());
    driver.instead(move |rq| {
        let foreign = other.requests.lock().pop_front();
        mine.requests.lock().push_back(rq);
        foreign.map_or(Dispatch::Started, how)
    });
}

/// Checks that the driver of `on` gives back `theirs`, which is `other`'s, for each of two
/// requests: both keep tags of their own, and complete.
fn is_refused(on: &Queue, driver: &Held, other: &Held, theirs: mpsc::Receiver<Completed>) {
    let submit = |rq| {
        let (rq, done) = watched(rq);
        on.submit_on(on.hctx_cpus(0)[0], rq);
        done
    };
    let first = submit(block(1));
    let error = theirs.recv_timeout(STALL).unwrap().result.unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::Gone);
    assert!(error.to_string().contains("in place of the one"), "{error}");
    assert_eq!(other.held(), usize::from(Arc::ptr_eq(&driver.requests, &other.requests)));
    driver.keep();
    let second = submit(block(5));
    let tags: Vec<u32> = driver.requests.lock().iter().map(Started::tag).collect();
    assert_eq!(tags.len(), 2);
    assert_ne!(tags[0], tags[1], "one tag for two requests");
    driver.finish_all();
    for done in [first, second] {
        done.recv_timeout(STALL).unwrap().result.unwrap();
    }
    on.drain();
}

#[test]
fn another_request_given_back_as_busy_ends_with_an_error_and_costs_no_tag() {
    let ways: [fn(Started) -> Dispatch; 2] = [Dispatch::Busy, Dispatch::NoResource];
    for how in ways {
        // The request is another queue's.
        let rig = Rig::synthetic("core:2 pu:1");
        let (driver, theirs) = (Held::with_queues(2), Held::default());
        let (on, other) = (rig.queue(driver.clone()), rig.queue(theirs.clone()));
        let held = submit(&*other, block(9));
        swaps(&driver, &theirs, how);
        is_refused(&on, &driver, &theirs, held);
        other.drain();
        // The request is another hardware queue's.
        let (rq, held) = watched(block(9));
        on.submit_on(on.hctx_cpus(1)[0], rq);
        let taken = Held::default();
        *taken.requests.lock() = std::mem::take(&mut *driver.requests.lock());
        swaps(&driver, &taken, how);
        is_refused(&on, &driver, &taken, held);
        // The request is this queue's, which continues.
        let (rq, held) = watched(block(9));
        on.submit_on(on.hctx_cpus(0)[0], rq);
        swaps(&driver, &driver, how);
        is_refused(&on, &driver, &driver, held);
    }
}

#[test]
fn a_hardware_queue_that_is_not_there_is_named_with_how_many_there_are() {
    let rig = Rig::synthetic("core:2 pu:1");
    let queue = rig.queue(Held::with_queues(2));
    let payload = catch_unwind(AssertUnwindSafe(|| queue.run(2))).unwrap_err();
    let said = payload.downcast_ref::<String>().unwrap();
    assert_eq!(said, "`held` has no hardware queue 2: it has 2, counted from 0");
}

#[test]
fn a_geometry_that_cannot_be_is_refused_where_the_queue_is_built() {
    let rig = Rig::synthetic("core:1 pu:1");
    let good = Geometry::new(1 << 20);
    let bad = [
        (Geometry { block_size: 0, ..good }, "block_size is 0"),
        (Geometry { block_size: 3, ..good }, "block_size is 3"),
        (Geometry { size: 513, ..good }, "size is 513"),
        (Geometry { physical_block: 700, ..good }, "physical_block is 700"),
        (Geometry { memory_alignment: 3, ..good }, "memory_alignment is 3"),
    ];
    for (geometry, found) in bad {
        let driver = Held { geometry: Some(geometry), ..Held::default() };
        let panic = catch_unwind(AssertUnwindSafe(|| rig.queue(driver))).unwrap_err();
        let said = panic.downcast::<String>().unwrap();
        assert!(
            said.starts_with("the geometry of a 'held' driver") && said.contains(found),
            "{said}"
        );
        assert!(said.contains("; "), "it says what to do: {said}");
    }
    let least =
        Geometry { physical_block: 0, max_transfer: 0, max_segments: 0, ..Geometry::new(0) };
    rig.queue(Held { geometry: Some(least), ..Held::default() }).drain();
}

/// A driver with room for any number of requests.
struct Deep;

impl Driver for Deep {
    fn info(&self) -> Info {
        Info { depth: u32::MAX, ..Info::new("deep", Geometry::new(1 << 20)) }
    }
    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        rq.complete(Ok(()));
        Dispatch::Started
    }
}

#[test]
fn a_depth_without_a_bound_is_cut_to_the_kernels() {
    assert_eq!(TagSet::new(u32::MAX, 2).depth(), 10_240);
    assert_eq!(TagSet::new(0, 2).depth(), 1);
    let rig = Rig::synthetic("core:1 pu:1");
    rig.queue(Deep).discard(0, 512).unwrap();
}

#[test]
fn a_blocking_call_in_a_completion_function_panics_with_what_to_do() {
    type Call = fn(&Queue);
    let calls: [(&str, Call); 7] = [
        ("execute", |q| drop(q.execute(Request::flush()))),
        ("read_at", |q| drop(q.read_at(0, 512))),
        ("write_at", |q| drop(q.write_at(0, vec![0; 512]))),
        ("flush", |q| drop(q.flush())),
        ("extents_of", |q| drop(q.extents_of(0, 512, 1))),
        ("discard", |q| drop(q.discard(0, 512))),
        ("write_zeroes", |q| drop(q.write_zeroes(0, 512))),
    ];
    let rig = Rig::synthetic("core:1 pu:1");
    let queue = rig.queue(Deep);
    for (name, call) in calls {
        let (tell, told) = mpsc::channel();
        let inner = Arc::clone(&queue);
        queue.submit(block(0).on_complete(move |_| {
            let panic = catch_unwind(AssertUnwindSafe(|| call(&inner))).err();
            let _ = tell.send(panic.map(|said| *said.downcast::<String>().unwrap()));
        }));
        let said = told.recv_timeout(STALL).unwrap().expect("it waited");
        assert!(
            said.starts_with(&format!("BlockDeviceExt::{name} inside an atomic section")),
            "{said}"
        );
        assert!(said.contains("call submit here"), "{said}");
    }
    queue.drain();
}

/// Memory of a foreign type.
struct Panics(Vec<u8>);

impl AsRef<[u8]> for Panics {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn memory_whose_destructor_panics_strands_no_request_though_nobody_is_told_of_its_end() {
    let rig = Rig::live();
    let held = Held::default();
    let queue = rig.queue(held.clone());
    let write = || Request::write(0, bytes::Bytes::from_owner(Panics(vec![0; 512])));
    queue.submit(write());
    assert!(catch_unwind(AssertUnwindSafe(|| held.finish_all())).is_ok());
    queue.submit(write().on_complete(drop));
    held.finish_all();
    queue.drain();
}
