//! Test of clients that come and go, in a process of its own, since descriptors and threads are the
//! process's.
#![cfg(not(loom))]

mod common;

use std::os::unix::net::UnixStream;
use std::time::Instant;

use common::*;
use corewise_nbd::wire::Command;

fn count(what: &str) -> usize {
    std::fs::read_dir(what).map_or(0, Iterator::count)
}

#[test]
fn clients_that_come_and_go_leave_no_descriptor_and_no_thread_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let device = TestDevice::new(4 << 20);
    let server = server(device.clone());
    // These are there beside those of clients: the listener's thread, its socket and eventfd, the
    // next client's thread, and the shared writer with its eventfd.
    let descriptors = count("/proc/self/fd") + 3;
    let threads = count("/proc/self/task") + 3;
    server.listen_unix(&path).unwrap();
    for round in 0..200 {
        let mut client = Client::fixed(UnixStream::connect(&path).unwrap());
        client.go("disk");
        match round % 4 {
            0 => assert_eq!(client.read(round, 0, 512).error, 0),
            1 => client.request(Command::DISC, round, 0, 0),
            // Leaves a writer thread with something to send.
            2 => client.request(Command::READ, round, 0, 4 << 20),
            _ => client.send(&[0xff; 100]),
        }
    }
    // Threads leave the registry a moment before they are gone.
    let begin = Instant::now();
    while count("/proc/self/fd") > descriptors || count("/proc/self/task") > threads {
        assert!(
            begin.elapsed() < PATIENCE,
            "{descriptors} descriptors and {threads} threads before, now {} and {}",
            count("/proc/self/fd"),
            count("/proc/self/task")
        );
        std::thread::yield_now();
    }
    assert_eq!(server.connections(), 0);
}
