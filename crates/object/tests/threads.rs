//! Shortage of threads. The test has a process of its own, since the limit is the process's, and no
//! process of root has one.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::Arc;

use corewise_blockmq::{BlockDeviceExt, Queue};
use corewise_object::{Compression, ObjectDriver, ObjectOptions};
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};

/// A user without threads on a usual system.
const NOBODY: u32 = 64_996;

#[test]
fn a_volume_that_is_open_needs_no_new_thread_and_one_that_gets_none_is_not_opened() {
    if getuid().is_root() {
        // SAFETY: it takes a number, and changes the user of all threads of this process, which has
        // this test alone.
        assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
    }
    let machine = Machine::live().unwrap();
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("block").build(&pools).unwrap();
    // Segments are compressed on a thread of the runtime, which nothing has needed before.
    let options = ObjectOptions::new("memory:").size(8 << 20).compression(Compression::Lz4);
    let volume = Arc::new(ObjectDriver::open(options.clone()).unwrap());
    let disk = Queue::builder(&machine, volume.clone()).build(&wq);

    let old = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), ..old }).unwrap();
    disk.write_at(0, vec![7; 1 << 20]).unwrap();
    disk.flush().unwrap();
    assert_eq!(disk.read_at(4096, 4096).unwrap(), [7; 4096][..]);
    let why = ObjectDriver::open(options).unwrap_err().to_string();
    assert!(why.contains("no thread for it: ") && why.contains("pids.max"), "{why}");
    disk.drain();
    volume.close().unwrap();
    drop(disk);
    setrlimit(Resource::Nproc, old).unwrap();
    pools.shutdown();
}
