//! Tests of slow clients: the time limits of a request, a reply and a silence.
#![cfg(not(loom))]

use std::time::Duration;

use crate::common::*;
use corewise_nbd::Options;
use corewise_nbd::wire::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_millis(50);

#[test]
fn a_request_that_is_sent_in_part_only_ends_the_connection() {
    let options = Options::new().request_timeout(SOON);
    let server = server_with(TestDevice::new(MIB), options);
    // Each request stops early: in its head, in a payload that fits the buffer, in a large one, or
    // in one that was refused.
    for (length, sent) in [(0, 0), (4096, 100), (1000 << 10, 100), (4096, 0)] {
        let mut slow = client(&server);
        assert_eq!(slow.read(1, 0, 512).error, 0);
        let offset = if sent == 0 && length == 4096 { MIB } else { 0 };
        let head = request(Command::WRITE, 2, offset, length);
        let head = head.encode();
        slow.send(if length == 0 { &head[..5] } else { &head });
        slow.send(&vec![1; sent]);
        slow.drain_to_end();
    }
}

#[test]
fn a_client_that_says_nothing_between_requests_has_all_the_time() {
    with_time(SOON, |soon| {
        let options = Options::new().request_timeout(soon);
        let server = server_with(TestDevice::new(MIB), options);
        let mut calm = client(&server);
        // The request comes in two parts, so that its socket has a timeout.
        let head = request(Command::READ, 1, 0, 512);
        let head = head.encode();
        calm.send(&head[..5]);
        std::thread::yield_now();
        calm.send(&head[5..]);
        assert_eq!(calm.reply(512).error, 0);
        // Meanwhile another client times out, twice.
        for _ in 0..2 {
            let mut slow = client(&server);
            slow.send(&head[..5]);
            slow.expect_end();
        }
        assert_eq!(calm.read(2, 0, 512).error, 0);
    });
}

#[test]
fn an_idle_client_is_let_go_where_the_owner_says_so_and_one_that_waits_is_not() {
    with_time(SOON, |soon| {
        let options = Options::new().idle_timeout(Some(soon));
        let device = TestDevice::new(MIB);
        let server = server_with(device.clone(), options);
        device.hold();
        let mut waiting = client(&server);
        waiting.request(Command::READ, 1, 0, 512);
        device.wait_for_seen(1);
        let mut idle = client(&server);
        idle.expect_end();
        device.release();
        assert_eq!(waiting.reply(512).error, 0);
        waiting.expect_end();
    });
}

#[test]
fn a_client_that_does_not_take_its_replies_is_disconnected() {
    let options = Options::new().reply_timeout(SOON);
    let device = TestDevice::new(MIB);
    let server = server_with(device, options);
    let mut lazy = client(&server);
    lazy.request(Command::READ, 1, 0, 1000 << 10);
    wait_for_connections(&server, 0);
    lazy.drain_to_end();
}

#[test]
fn a_large_read_waits_for_memory_until_those_that_hold_it_are_out_of_time() {
    // The pool of a server with so little memory holds 32 MiB.
    let options = Options::new().memory(MIB).reply_timeout(SOON);
    let server = server_with(TestDevice::new(MIB), options);
    let large = (1 << 20) - 4096;
    let mut lazy: Vec<_> = (0..40).map(|_| client(&server)).collect();
    for client in &mut lazy {
        client.request(Command::READ, 1, 0, large);
    }
    let mut other = client(&server);
    assert_eq!(other.read(1, 0, 4096).error, 0, "what everybody has is there at once");
    assert_eq!(other.read(2, 0, large).error, 0);
}

#[test]
fn a_client_that_waits_for_memory_is_drained_like_any_other() {
    let options = Options::new().memory(MIB);
    let device = TestDevice::new(32 * MIB);
    device.hold();
    let server = std::sync::Arc::new(server_with(device.clone(), options));
    let mut first = client(&server);
    first.request(Command::READ, 1, 0, 32 << 20);
    device.wait_for_seen(1);
    let mut second = client(&server);
    second.request(Command::READ, 2, 0, 32 << 20);
    second.request(Command::READ, 3, 0, 512);
    while server.memory().waiting == 0 {
        std::thread::yield_now();
    }
    let theirs = std::sync::Arc::clone(&server);
    let drain = std::thread::spawn(move || theirs.drain(PATIENCE));
    second.expect_end_or_shutdown();
    device.release();
    assert_eq!(first.reply(32 << 20).error, 0);
    assert!(drain.join().unwrap().is_clean());
    // Another thread may drop the last reply after the client has left the registry.
    while server.memory().taken > 0 {
        std::thread::yield_now();
    }
}
