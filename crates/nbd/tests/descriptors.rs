//! Test of a shortage of file descriptors, in a process of its own, since the limit is the
//! process's.
#![cfg(not(loom))]

mod common;
#[path = "common/warnings.rs"]
mod warnings;

use std::fs::File;
use std::os::unix::net::UnixStream;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn running_out_of_descriptors_kills_nobody_and_ends_with_the_shortage() {
    let warned = warnings::warnings();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = server(TestDevice::new(1 << 20));
    server.listen_unix(&path).unwrap();
    let mut served = Client::fixed(UnixStream::connect(&path).unwrap());
    served.go("disk");

    let old = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..old }).unwrap();
    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hoard.push(file);
    }
    // One is left for our own end of the next connection; the server's end finds none.
    drop(hoard.pop());
    let waiting = UnixStream::connect(&path).unwrap();
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    warned.recv_timeout(PATIENCE).expect("the shortage is reported");
    assert_eq!(served.read(1, 0, 512).error, 0, "who is connected is served as before");

    drop(hoard);
    let mut waiting = Client::fixed(waiting);
    waiting.go("disk");
    assert_eq!(waiting.read(2, 0, 512).error, 0, "the one that had to wait is served after all");
    setrlimit(Resource::Nofile, old).unwrap();
    assert!(warned.try_recv().is_err(), "reported once, not at each try");
}
