//! Test of a shortage of threads, in a process of its own, since the limit is the process's, and no
//! process of root has one.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

mod common;
#[path = "common/warnings.rs"]
mod warnings;

use std::io::{ErrorKind, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::*;
use corewise_nbd::Options;
use corewise_nbd::wire::Command;
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};

/// A user that has no threads on a usual system.
const NOBODY: u32 = 64_997;

/// Target of the event that reports a shortage to newcomers.
const ACCEPTS: &str = "corewise_nbd::server::accept";

/// A guard during which no thread can be made.
struct NoThreads(Rlimit);

impl NoThreads {
    fn begin() -> NoThreads {
        let old = getrlimit(Resource::Nproc);
        setrlimit(Resource::Nproc, Rlimit { current: Some(1), ..old }).unwrap();
        NoThreads(old)
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        setrlimit(Resource::Nproc, self.0).unwrap();
    }
}

#[test]
fn without_a_thread_newcomers_wait_and_those_that_are_there_are_served() {
    let warned = warnings::warnings();
    let dir = tempfile::tempdir().unwrap();
    if getuid().is_root() {
        chown(dir.path(), Some(NOBODY), None).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        // SAFETY: it takes a number, and changes the user of all threads of this process, which has
        // this test alone.
        assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
    }
    let path = dir.path().join("s");
    let device = TestDevice::new(1 << 20);
    // The time is enough for a slow test, too.
    let server = server_with(device.clone(), Options::new().handshake_timeout(10 * PATIENCE));
    server.listen_unix(&path).unwrap();
    let mut served = Client::fixed(UnixStream::connect(&path).unwrap());
    served.go("disk");
    let hasty = server_with(device, Options::new().reply_timeout(Duration::from_millis(20)));
    let mut lazy = client(&hasty);

    let none = NoThreads::begin();
    let connect = || {
        let client = UnixStream::connect(&path).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    };
    // The first client finds the thread that was there for it.
    let mut waiting: Vec<_> = (0..5).map(|_| connect()).collect();
    while warned.recv_timeout(PATIENCE).expect("the shortage is reported") != ACCEPTS {}
    assert_eq!(served.read(1, 0, 512).error, 0, "who is connected is served as before");
    // A reply that doesn't fit the socket needs a thread that waits for room.
    served.request(Command::READ, 2, 0, 1000 << 10);
    while server.clients()[0].untaken.is_none() {
        std::thread::yield_now();
    }
    assert_eq!(served.reply(1000 << 10).error, 0);
    lazy.request(Command::READ, 1, 0, 1000 << 10);
    wait_for_connections(&hasty, 0);
    lazy.drain_to_end();
    for client in &mut waiting[1..] {
        client.set_nonblocking(true).unwrap();
        let nothing = client.read(&mut [0; 64]).expect_err("neither greeted nor hung up on");
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
    }
    drop(none);
    for (n, client) in waiting.into_iter().enumerate() {
        let mut client = Client::fixed(client);
        client.go("disk");
        assert_eq!(client.read(n as u64, 0, 512).error, 0, "it is served after all");
    }
    let again = warned.try_iter().filter(|target| *target == ACCEPTS).count();
    assert_eq!(again, 0, "reported once, not at each try");
}
