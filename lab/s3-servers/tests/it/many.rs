//! More objects than a server lists at once.

use crate::disk::Place;
use crate::inside::{Creation, Inside};
use crate::weed::Weed;

/// Writes many blocks, each of which lies in a record of its own.
fn many(place: &Place) {
    const BLOCKS: usize = 1020;
    let disk = place.open(BLOCKS).unwrap();
    for block in 0..BLOCKS {
        disk.write(block, 1, (block % 251) as u8 + 1).unwrap();
        disk.flush().unwrap();
    }
    drop(disk);
    let disk = place.open(BLOCKS).unwrap();
    let found = disk.read(0, BLOCKS).unwrap();
    assert!(found.iter().enumerate().all(|(block, what)| usize::from(*what) == block % 251 + 1));
    disk.write(7, 1, 255).unwrap();
    disk.close().unwrap();
    assert_eq!(place.open(BLOCKS).unwrap().read(6, 3).unwrap(), [7, 255, 9]);
}

#[test]
fn a_volume_may_have_more_records_than_s3s_fs_lists_at_once() {
    let server = Inside::new(Creation::Atomic);
    many(&Place::new(server.address(), "many"));
}

#[test]
fn a_volume_may_have_more_records_than_seaweedfs_lists_at_once() {
    let weed = Weed::new();
    many(&Place::new(weed.address(), "many"));
}
