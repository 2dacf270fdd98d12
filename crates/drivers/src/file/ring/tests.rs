//! Rings over a pipe: a read waits in the kernel until the test writes, as on a disk that doesn't
//! answer.

use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Geometry, IoErrorKind, Queue, Request};
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::file::fault_reporter::FaultReporter;
use crate::file::store::Store;
use crate::file::{FileDriver, FileOptions, PathInUse};

struct Rig {
    machine: Machine,
    pools: WorkerPools,
    wq: Workqueue,
    driver: Arc<FileDriver>,
    other_end: PipeWriter,
}

/// `None` where there is no io_uring.
fn over_a_pipe() -> Option<Rig> {
    let machine = Machine::live().unwrap();
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("file-test").build(&pools).unwrap();
    let (pipe, other_end) = std::io::pipe().unwrap();
    let store = Store::new(
        crate::file_guard::FileGuard::without_path(File::from(OwnedFd::from(pipe))),
        FaultReporter::of_test("a pipe"),
        None,
    );
    let options = FileOptions::new("a test");
    let driver = FileDriver::new(store, Geometry::new(1 << 20), false, &options, &wq).unwrap();
    if driver.io_path_in_use() == PathInUse::Threads {
        println!("skipped: no io_uring here");
        pools.shutdown();
        return None;
    }
    Some(Rig { machine, pools, wq, driver: Arc::new(driver), other_end })
}

#[test]
fn a_late_request_that_the_kernel_can_stop_is_called_off_and_its_tag_serves_the_next() {
    let Some(mut rig) = over_a_pipe() else { return };
    let queue = Queue::builder(&rig.machine, rig.driver)
        .depth(1)
        .timeout(Some(Duration::from_millis(20)))
        .build(&rig.wq);
    for _ in 0..2 {
        let error = queue.read_at(0, 512).unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::TimedOut, "{error}");
    }
    rig.other_end.write_all(&[7; 512]).unwrap();
    assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512], "nothing was taken in vain");
    // A request's end is reported before it is counted out.
    queue.drain();
    assert_eq!((queue.inside(), queue.stats()[0].timeouts), (0, 2));
    drop(queue);
    rig.pools.shutdown();
}

#[test]
fn two_queues_of_one_driver_have_the_same_tags_and_each_its_own_request() {
    let Some(mut rig) = over_a_pipe() else { return };
    // Each queue gives out tags of its own, and both have the same ring.
    let queue = || Queue::builder(&rig.machine, rig.driver.clone()).depth(1).build(&rig.wq);
    let (first, second) = (queue(), queue());
    let (tx, done) = mpsc::channel();
    for queue in [&first, &second] {
        let tx = tx.clone();
        queue.submit(Request::read(0, 512).on_complete(move |done| tx.send(done).unwrap()));
    }
    assert!(done.try_recv().is_err(), "the kernel has both");
    for byte in [7, 8] {
        rig.other_end.write_all(&[byte; 512]).unwrap();
        assert_eq!(done.recv().unwrap().into_data().unwrap(), vec![byte; 512]);
    }
    first.drain();
    second.drain();
    drop((first, second));
    rig.pools.shutdown();
}
