//! Tests of requests that cover blocks of the device in part: the requests that the device gets,
//! and that no client's bytes are lost.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::Arc;

use crate::common::answers::Answer;
use crate::common::*;
use corewise_blockmq::{Geometry, IoErrorKind, Op};
use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, Server};

const SIZE: u64 = 1 << 20;

fn device() -> Arc<TestDevice> {
    TestDevice::new(SIZE)
}

/// Returns the requests that the device got from number `from` on.
fn seen(device: &TestDevice, from: usize) -> Vec<(Op, u64, u64)> {
    device.seen()[from..].iter().map(|seen| (seen.op, seen.offset, seen.len)).collect()
}

fn ask(
    client: &mut Client,
    command: Command,
    flags: CommandFlags,
    offset: u64,
    length: u32,
) -> u32 {
    client.request_with(flags, command, 1, offset, length);
    client.reply(0).error
}

fn write(client: &mut Client, offset: u64, data: &[u8]) {
    client.write_request(1, offset, data);
    assert_eq!(client.reply(0).error, 0);
}

#[test]
fn a_client_may_read_and_write_any_bytes_whether_it_asks_for_the_sizes_or_not() {
    let device = device();
    let server = server(device.clone());
    let mut old = Client::fixed(connect(&server));
    old.option(OptionKind::EXPORT_NAME, b"disk");
    let mut head = [0; 8 + 2];
    std::io::Read::read_exact(&mut old.stream, &mut head).unwrap();
    let mut asks = client(&server);
    for (n, client) in [&mut asks, &mut old].into_iter().enumerate() {
        let n = n as u64;
        write(client, 1000 + n, &[7]);
        write(client, 5_000 + n, &[8; 3000]);
        assert_eq!(client.read(2, 1000 + n, 1).data, [7]);
        let expected = [device.bytes(4_999, 1), vec![8; 3000 + n as usize]].concat();
        assert_eq!(client.read(3, 4_999, 3001 + n as u32).data, expected);
    }
    // The write enters the device in pieces.
    let long: Vec<u8> = (0..700_001_u32).map(|n| (n / 3) as u8).collect();
    write(&mut asks, 3_333, &long);
    assert_eq!(old.read(4, 3_333, 700_001).data, long);
    assert_eq!(device.bytes(3_333, 700_001), long);
    assert_eq!(old.read(5, SIZE - 1, 1).error, 0);
    assert_ne!(old.read(6, SIZE - 1, 2).error, 0);
}

#[test]
fn two_clients_that_write_the_halves_of_a_block_at_once_both_survive() {
    let device = device();
    let server = server(device.clone());
    let (mut one, mut two) = (client(&server), client(&server));
    // Both clients have changed parts of blocks before.
    write(&mut one, 512 * 9, &[1]);
    write(&mut two, 512 * 9 + 1, &[1]);
    let before = device.seen().len();
    device.hold();
    one.write_request(1, 0, &[1; 256]);
    device.wait_for_seen(before + 1);
    two.write_request(1, 256, &[2; 256]);
    two.write_request(2, 512, &[3; 512]);
    device.wait_for_seen(before + 2);
    let asked = seen(&device, before);
    assert_eq!(asked, [(Op::Read, 0, 512), (Op::Write, 512, 512)], "only the first one is read");
    device.release();
    assert_eq!(one.reply(0).error, 0);
    assert_eq!((two.reply(0).error, two.reply(0).error), (0, 0));
    assert_eq!(device.bytes(0, 1024), [vec![1; 256], vec![2; 256], vec![3; 512]].concat());
}

#[test]
fn a_write_of_a_part_of_a_block_waits_for_writes_of_the_block_and_they_for_it() {
    let device = device();
    let server = server(device.clone());
    let (mut plain, mut unaligned) = (client(&server), client(&server));
    device.hold();
    plain.write_request(1, 0, &[1; 1024]);
    device.wait_for_seen(1);
    // Its first partial change: the other's change is not in the table.
    unaligned.write_request(1, 513, &[2; 2]);
    device.hold_no_more();
    assert_eq!(plain.read(2, 0, 512).error, 0);
    assert_eq!(device.seen().len(), 2, "{:?}", device.seen());
    device.release();
    assert_eq!((plain.reply(0).error, unaligned.reply(0).error), (0, 0));
    assert_eq!(device.bytes(512, 5), [1, 2, 2, 1, 1]);
    // The same holds the other way round.
    device.hold();
    unaligned.write_request(1, 512, &[3]);
    device.wait_for_seen(5);
    plain.write_request(3, 0, &[4; 1024]);
    plain.write_request(4, 2048, &[5; 512]);
    device.wait_for_seen(6);
    assert_eq!(seen(&device, 5), [(Op::Write, 2048, 512)], "another block is free");
    device.release();
    assert_eq!((unaligned.reply(0).error, plain.reply(0).error, plain.reply(0).error), (0, 0, 0));
    assert_eq!(device.bytes(0, 1024), [4; 1024]);
}

#[test]
fn zeroes_are_exact_trims_shrink_and_what_would_take_as_long_as_a_write_is_not_fast() {
    let device = TestDevice::with(Geometry {
        can_fast_zero: true,
        can_prefetch: true,
        ..Geometry::new(SIZE)
    });
    let server = server(device.clone());
    let mut client = client(&server);
    let none = CommandFlags::empty();
    write(&mut client, 0, &[7; 4096]);
    let from = device.seen().len();
    assert_eq!(ask(&mut client, Command::WRITE_ZEROES, CommandFlags::FUA, 500, 1100), 0);
    let asked = seen(&device, from);
    let partial = [(Op::Read, 0, 512), (Op::Write, 0, 512), (Op::Read, 1536, 512)];
    assert!(partial.iter().all(|one| asked.contains(one)), "{asked:?}");
    assert!(asked.contains(&(Op::WriteZeroes, 512, 1024)) && asked.len() == 5, "{asked:?}");
    let changes = device.seen()[from..].iter().filter(|seen| seen.op != Op::Read).count();
    let durable = device.seen()[from..].iter().filter(|seen| seen.fua).count();
    assert_eq!((changes, durable), (3, 3), "each write is durable, too");
    assert_eq!(device.bytes(0, 500), [7; 500]);
    assert_eq!(device.bytes(500, 1100), [0; 1100]);
    assert_eq!(device.bytes(1600, 100), [7; 100]);

    let from = device.seen().len();
    assert_eq!(ask(&mut client, Command::TRIM, none, 2000, 1600), 0);
    assert_eq!(ask(&mut client, Command::TRIM, none, 2000, 60), 0);
    assert_eq!(ask(&mut client, Command::CACHE, none, 2000, 60), 0);
    assert_eq!(seen(&device, from), [(Op::Discard, 2048, 1536), (Op::Prefetch, 1536, 1024)]);
    let fast = ask(&mut client, Command::WRITE_ZEROES, CommandFlags::FAST_ZERO, 500, 1100);
    assert_eq!(ReplyError::from_code(fast), Some(ReplyError::NotSup));
    assert_eq!(device.seen().len(), from + 2);
}

#[test]
fn block_status_of_a_part_of_a_block_is_told_within_what_was_asked() {
    let device = device();
    let server = server(device.clone());
    device.hole(1024..2048);
    let mut client = Client::fixed(connect(&server));
    client.structured(Some("disk"));
    client.go("disk");
    let mut status = |flags, offset, length| -> Vec<(u64, u32)> {
        let request = Request { flags, command: Command::BLOCK_STATUS, cookie: 1, offset, length };
        let answer: Answer = client.ask(request);
        answer.extents.iter().map(|extent| (extent.length, extent.flags)).collect()
    };
    let hole = STATE_HOLE | STATE_ZERO;
    let none = CommandFlags::empty();
    assert_eq!(status(none, 1000, 1100), [(24, 0), (1024, hole), (52, 0)]);
    assert_eq!(status(CommandFlags::REQ_ONE, 1030, 5), [(5, hole)]);
    assert_eq!(status(CommandFlags::REQ_ONE, 1000, 1100), [(24, 0)]);
}

#[test]
fn a_failed_step_is_the_failure_of_the_write_and_the_block_is_free_again() {
    let device = device();
    let server = server(device.clone());
    let mut client = client(&server);
    device.fail(IoErrorKind::Io(5));
    client.write_request(1, 700, &[9; 10]);
    assert_eq!(ReplyError::from_code(client.reply(0).error), Some(ReplyError::Io));
    assert_ne!(client.read(2, 700, 10).error, 0);
    device.fail_no_more();
    write(&mut client, 701, &[9; 10]);
    assert_eq!(device.bytes(701, 10), [9; 10]);
}

#[test]
fn exports_of_one_device_wait_for_each_other() {
    let device = device();
    let server = Server::new(Options::default());
    for name in ["disk", "same"] {
        server.add_export(Export::new(name, device.clone())).unwrap();
    }
    let mut one = client(&server);
    let mut two = Client::fixed(connect(&server));
    two.go("same");
    write(&mut one, 1, &[1]);
    let from = device.seen().len();
    device.hold();
    one.write_request(1, 0, &[1; 256]);
    device.wait_for_seen(from + 1);
    two.write_request(1, 0, &[2; 512]);
    two.request(Command::FLUSH, 2, 0, 0);
    device.wait_for_seen(from + 2);
    assert_eq!(seen(&device, from), [(Op::Read, 0, 512), (Op::Flush, 0, 0)]);
    device.release();
    assert_eq!((one.reply(0).error, two.reply(0).error, two.reply(0).error), (0, 0, 0));
    assert_eq!(device.bytes(0, 512), [2; 512], "the write that came second");
}

#[test]
fn a_device_with_blocks_beyond_the_protocol_s_largest_takes_whole_ones_only() {
    let device = TestDevice::with(Geometry { block_size: 128 << 10, ..Geometry::new(SIZE) });
    let server = server(device.clone());
    let mut client = client(&server);
    assert_ne!(client.read(1, 512, 512).error, 0);
    assert_ne!(client.read(2, 0, 512).error, 0);
    assert_eq!(client.read(3, 0, 128 << 10).error, 0);
    assert_eq!(device.seen().len(), 1);
}
