//! Submitters against a thread that quiesces and freezes all the time, over real devices: no request is lost.
#![cfg(not(loom))]

use corewise_drivers::{FileDriver, FileOptions, Memory};

use crate::common::{Rig, storm};

#[test]
fn a_memory_device_loses_nothing_under_quiesce_and_freeze() {
    let rig = Rig::live();
    let queue = rig.queue(Memory::new(1 << 30).unwrap());
    storm(&queue, 2, 100_000, |queue, rng| {
        if rng.below(3) == 0 {
            drop(queue.freeze());
        } else {
            drop(queue.quiesce());
        }
    });
}

#[test]
fn a_file_device_loses_nothing_under_quiesce_and_freeze() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions::new(dir.path().join("disk")).size(1 << 20).depth(8).queues(2);
    let queue = rig.queue(FileDriver::open(options, &rig.wq).unwrap());
    storm(&queue, 2, 2_000, |queue, rng| {
        if rng.below(3) == 0 {
            drop(queue.freeze());
        } else {
            drop(queue.quiesce());
        }
    });
}
