//! Tests of clients that share one export: none of them gets the device for itself.
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use corewise_blockmq::{Geometry, IoErrorKind, Op};
use corewise_nbd::Server;
use corewise_nbd::wire::*;

const MIB: u64 = 1 << 20;
/// Largest number of requests of up to 16 KiB that the device of an export has at a time.
const PLACES: usize = 256;

fn wait_for_in_flight(server: &Server, requests: u64) {
    while server.exports()[0].in_flight < requests {
        std::thread::yield_now();
    }
}

#[test]
fn a_client_with_one_request_at_a_time_does_not_wait_behind_those_with_hundreds() {
    let device = TestDevice::new(MIB);
    device.hold();
    let server = server(device.clone());
    let mut deep: Vec<_> = (0..8).map(|_| client(&server)).collect();
    for client in &mut deep {
        client.reads(0..250, 0, 4096);
    }
    wait_for_in_flight(&server, 8 * 250);
    // One client alone would have 250 in the device, too.
    let before = device.seen().len();
    assert!(before <= PLACES + 8, "{before} of 2,000 are in the device");
    let mut sparse = client(&server);
    for cookie in 0..100 {
        sparse.request(Command::READ, cookie, 4096, 4096);
        device.wait_for_seen_at(4096, cookie as usize + 1);
        // Everything in the device is in front of it, and nothing that waits.
        let ahead = device.held() - 1;
        assert!(ahead <= PLACES + 8, "{ahead} are in front of it");
        device.release_some(ahead + 1);
        assert_eq!(sparse.reply(4096).cookie, cookie);
    }
    device.release();
    for client in &mut deep {
        let mut cookies: Vec<_> = (0..250).map(|_| client.reply(4096).cookie).collect();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..250));
    }
}

#[test]
fn zeroes_that_are_written_keep_the_device_from_others_no_longer_than_writes() {
    let fast = TestDevice::with(Geometry { can_fast_zero: true, ..Geometry::new(64 * MIB) });
    // Allocated zeroes for one device, any zeroes for the other, which offers no fast ones.
    for (device, flags) in
        [(fast, CommandFlags::NO_HOLE), (TestDevice::new(64 * MIB), CommandFlags::empty())]
    {
        device.hold();
        let server = server(device.clone());
        let (mut one, mut two, mut other) = (client(&server), client(&server), client(&server));
        one.request_with(flags, Command::WRITE_ZEROES, 1, 0, 64 << 20);
        device.wait_for_seen(8);
        two.request_with(flags, Command::WRITE_ZEROES, 1, 0, 64 << 20);
        device.wait_for_seen(9);
        // The turns of the two are in front of it, and nothing more.
        for cookie in 0..20 {
            other.request(Command::READ, cookie, 4096, 4096);
            device.wait_for_seen_at(4096, cookie as usize + 1);
            let ahead = device.held() - 1;
            assert!(ahead <= 8 + 1, "{ahead} pieces are in front of it");
            assert!(device.seen().iter().all(|seen| seen.len <= 512 << 10));
            device.release_some(ahead + 1);
            assert_eq!(other.reply(4096).cookie, cookie);
        }
        drop((one, two));
        device.release();
    }
}

#[test]
fn a_long_request_ends_with_the_deadline_of_a_drain() {
    let device = TestDevice::with(Geometry { can_fast_zero: true, ..Geometry::new(64 * MIB) });
    device.hold();
    let server = Arc::new(server(device.clone()));
    let mut wiper = client(&server);
    wiper.request(Command::WRITE_ZEROES, 1, 0, 64 << 20);
    wiper.request(Command::WRITE_ZEROES, 2, 0, 64 << 20);
    device.wait_for_seen(8);
    let report = server.drain(Duration::from_millis(50));
    assert_eq!((report.clients, report.cut), (1, 1));
    device.release();
    wait_for_connections(&server, 0);
    let wiped = device.seen().iter().filter(|seen| seen.op == Op::WriteZeroes).count();
    assert!(wiped <= 8 + 1, "{wiped} of 16 pieces");
}

#[test]
fn a_long_request_is_one_request_to_its_client() {
    let device = TestDevice::new(32 * MIB);
    let server = server(device.clone());
    let mut client = client(&server);
    // Neither its offset nor its length is a multiple of the pieces' size.
    let (offset, len) = (100 * 512, 20 * MIB + 512);
    let reply = client.read(1, offset, len as u32);
    assert!(reply.data == device.bytes(offset as usize, len as usize));
    let seen = device.seen();
    assert!(seen.len() > 40 && seen.iter().all(|seen| seen.len <= 512 << 10));
    assert_eq!(seen.iter().map(|seen| seen.len).sum::<u64>(), len);
    client.write_request(2, offset, &vec![9; 5 << 20]);
    assert_eq!(client.reply(0).error, 0);
    assert!(device.bytes(offset as usize, 5 << 20) == vec![9; 5 << 20]);
    client.request_with(CommandFlags::FUA, Command::TRIM, 3, offset, 20 << 20);
    assert_eq!(client.reply(0).error, 0);
    assert!(device.seen().iter().filter(|seen| seen.op == Op::Discard).all(|seen| seen.fua));
    device.fail(IoErrorKind::Io(5));
    assert_eq!(client.read(4, 0, 4 << 20).error, ReplyError::Io.code());
}
