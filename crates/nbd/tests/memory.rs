//! Tests of the most memory that clients can make the server take, in a process of its own, since
//! memory is the process's.
#![cfg(not(loom))]

mod common;

use std::io::Read;
use std::time::Instant;

use common::*;
use corewise_nbd::wire::{Command, SIMPLE_REPLY_LEN};
use corewise_nbd::{Options, Server};
use corewise_sync::Mutex;

const MIB: u64 = 1 << 20;
const LARGE: u32 = 32 << 20;
/// Number of device requests for one such request.
const PIECES: usize = 64;
const CLIENTS: usize = 100;

/// L: is the lock; memory is the process's, so there is one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn options() -> Options {
    Options::new().memory(256 * MIB).max_connections(128).max_half_open(16)
}

/// Waits until all clients have left and their memory has returned to the system.
fn expect_memory_back(server: &Server, before: u64) {
    let begin = Instant::now();
    while server.connections() > 1 || resident() > before + 32 * MIB {
        assert!(
            begin.elapsed() < 4 * PATIENCE,
            "{} connections, {} MiB resident, {} MiB before",
            server.connections(),
            resident() / MIB,
            before / MIB
        );
        std::thread::yield_now();
    }
}

/// Takes the reply to a read of `len` bytes, and keeps none of it: the test's own memory would
/// count, too.
fn take(client: &mut Client, len: usize) {
    let mut left = SIMPLE_REPLY_LEN + len;
    let mut some = [0; 4096];
    while left > 0 {
        let most = left.min(some.len());
        let got = client.stream.read(&mut some[..most]).expect("a reply");
        assert_ne!(got, 0, "the whole of it");
        left -= got;
    }
}

#[test]
fn clients_that_do_their_worst_stay_within_the_memory_and_leave_it_behind() {
    let _alone = ALONE.lock();
    let device = TestDevice::new(LARGE.into());
    let server = server_with(device.clone(), options());
    let worst = options().worst_case(false);
    assert_eq!(worst, 256 * MIB);
    let before = resident();

    // These replies, which the clients don't take, would be 6.4 GB if all reads were served.
    let mut lazy: Vec<_> = (0..CLIENTS).map(|_| client(&server)).collect();
    for client in &mut lazy {
        client.request(Command::READ, 1, 0, LARGE);
        client.request(Command::READ, 2, 0, LARGE);
    }
    device.wait_for_seen(3 * PIECES);
    let mut other = client(&server);
    assert_eq!(other.read(1, 0, 4096).error, 0, "a share of its own is left to everybody");
    assert!(device.seen().len() <= 4 * PIECES + 1, "{} reads were begun", device.seen().len());
    assert!(resident() < before + worst, "{} MiB", resident() / MIB);
    drop(lazy);
    expect_memory_back(&server, before);

    // These writes, whose last byte never comes, would take 3 GB if the server waited for all.
    let mut half: Vec<_> = (0..CLIENTS).map(|_| client(&server)).collect();
    let payload = vec![7; LARGE as usize - 1];
    for client in &mut half {
        let head = request(Command::WRITE, 1, 0, LARGE.into());
        client.send(&head.encode());
        // The loop ends when the server reads no more, and the socket is full.
        client.stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(n) = std::io::Write::write(&mut client.stream, &payload[sent..]) {
            sent += n;
        }
    }
    assert_eq!(other.read(2, 0, 4096).error, 0);
    assert!(resident() < before + worst, "{} MiB", resident() / MIB);
    drop((half, payload));
    expect_memory_back(&server, before);

    // Requests whose memory an allocator keeps for the next ones, in as many arenas as it likes.
    for round in 0..3 {
        let busy: Vec<_> = (0..CLIENTS / 2).map(|_| client(&server)).collect();
        std::thread::scope(|scope| {
            for mut client in busy {
                scope.spawn(move || {
                    for len in [3 << 20, 100 << 10, 700 << 10] {
                        client.request(Command::READ, round, 0, len);
                        take(&mut client, len as usize);
                    }
                });
            }
        });
    }
    expect_memory_back(&server, before);
    assert_eq!(other.read(3, 0, LARGE).error, 0, "all of it is free again");
    drop(other);
}

/// Fills the buffer behind each small write with other bytes, in an attempt to make the write keep
/// the whole buffer.
#[test]
fn small_writes_keep_little_of_what_came_with_them() {
    // All of them find a place in the device.
    const WRITES: usize = 60;
    let _alone = ALONE.lock();
    let device = TestDevice::new(MIB);
    let server = server_with(device.clone(), options());
    let mut clients: Vec<_> = (0..4).map(|_| client(&server)).collect();
    let before = resident();
    device.hold();
    // The write lies beyond the end: the server skips the payload and refuses the write.
    let filler = vec![7; 250 << 10];
    for client in &mut clients {
        for n in 0..WRITES as u64 {
            client.write_request(n, 0, &[7; 512]);
            client.write_request(WRITES as u64 + n, MIB, &filler);
            assert_ne!(client.reply(0).error, 0);
        }
    }
    device.wait_for_seen(clients.len() * WRITES);
    let (now, before) = (resident() / MIB, before / MIB);
    assert!(now < before + 24, "{now} MiB resident, {before} MiB before");
    device.release();
}
