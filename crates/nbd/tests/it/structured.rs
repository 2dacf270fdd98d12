//! Tests of structured replies, block status and the commands that came with them, over real
//! sockets.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use crate::common::answers::Answer;
use crate::common::*;
use corewise_blockmq::{Geometry, IoErrorKind, Op};
use corewise_nbd::Server;
use corewise_nbd::wire::*;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

fn device() -> std::sync::Arc<TestDevice> {
    TestDevice::with(Geometry { can_fast_zero: true, can_prefetch: true, ..Geometry::new(4 * MIB) })
}

fn structured(server: &Server) -> Client {
    let mut client = Client::fixed(connect(server));
    client.structured(Some("disk"));
    let summary = client.go("disk");
    assert!(summary.flags.contains(TransmissionFlags::SEND_DF));
    client
}

fn request(command: Command, offset: u64, length: u64) -> Request {
    Request { flags: CommandFlags::empty(), command, cookie: 0x7000_0001, offset, length }
}

fn with(flags: CommandFlags, request: Request) -> Request {
    Request { flags, ..request }
}

#[test]
fn a_read_comes_as_one_chunk_of_data_that_ends_it() {
    let (device, mut server_) = (device(), None);
    let server = server_.insert(server(device.clone()));
    let mut client = structured(server);
    let answer = client.ask(request(Command::READ, 4096, 8192));
    assert_eq!((answer.chunks, answer.error), (1, 0));
    assert_eq!(answer.data, device.bytes(4096, 8192));
    let nothing = client.ask(request(Command::READ, 4096, 0));
    assert_eq!((nothing.chunks, nothing.error), (1, 0), "a read is never answered simply");
    client.write_request(9, 0, &[5; 512]);
    let write = request(Command::WRITE, 0, 512);
    let write = Request { cookie: 9, ..write };
    let answer = client.answer(&mut vec![(write, Answer::default())]).1;
    assert_eq!((answer.error, answer.chunks), (0, 0), "what has nothing to say says it simply");
}

#[test]
fn holes_that_the_device_knows_are_left_out_unless_one_piece_is_asked_for() {
    let device = device();
    let hole = MIB..MIB + 256 * KIB;
    device.hole(hole.clone());
    let server = server(device.clone());
    let mut client = structured(&server);
    let read = request(Command::READ, MIB - 64 * KIB, 512 * KIB);
    let answer = client.ask(read);
    assert_eq!(answer.holes, vec![hole]);
    assert_eq!(answer.chunks, 4, "a hole, two pieces of data, and the end");
    assert_eq!(answer.data, device.bytes((MIB - 64 * KIB) as usize, 512 << 10));
    let all = client.ask(request(Command::READ, MIB, 128 * KIB));
    assert_eq!((all.chunks, all.data), (1, vec![0; 128 << 10]), "a hole is all there is");
    let whole = client.ask(with(CommandFlags::DF, read));
    assert_eq!((whole.chunks, whole.holes), (1, vec![]));
    assert_eq!(whole.data, answer.data);
    let small = client.ask(request(Command::READ, MIB, 4096));
    assert_eq!((small.chunks, small.holes), (1, vec![]), "a small read is just read");
    let reads: u64 = device.seen().iter().filter(|s| s.op == Op::Read).map(|s| s.len).sum();
    assert_eq!(reads, 256 * KIB + 512 * KIB + 4096, "holes aren't read");
}

#[test]
fn errors_of_the_device_come_with_their_place_and_in_words() {
    let device = device();
    let server = server(device.clone());
    let mut client = structured(&server);
    device.fail(IoErrorKind::Io(5));
    for command in
        [Command::READ, Command::TRIM, Command::WRITE_ZEROES, Command::CACHE, Command::BLOCK_STATUS]
    {
        let answer = client.ask(request(command, 8192, 4096));
        assert_eq!((answer.error, answer.at), (5, Some(8192)), "{command:?}");
        assert!(!answer.message.is_empty(), "{command:?}");
    }
    let flush = client.ask(request(Command::FLUSH, 0, 0));
    assert_eq!((flush.error, flush.at), (5, None));
}

#[test]
fn a_part_of_a_sparse_read_that_fails_says_where_and_the_reply_ends_all_the_same() {
    let device = device();
    device.hole(0..64 * KIB);
    device.hole(128 * KIB..192 * KIB);
    device.hold();
    let server = server(device.clone());
    let mut client = structured(&server);
    let read = request(Command::READ, 0, 256 * KIB);
    client.send(&read.encode());
    device.wait_for_seen(1);
    device.release_some(1); // the question where holes are
    device.wait_for_seen(3); // the two pieces
    device.release_some(1);
    device.fail(IoErrorKind::Io(5));
    device.release();
    let answer = client.answer(&mut vec![(read, Answer::default())]).1;
    assert_eq!((answer.error, answer.at), (5, Some(192 * KIB)));
    assert_eq!(answer.holes.len(), 2);
    assert_eq!(answer.data[64 << 10..128 << 10], device.bytes(64 << 10, 64 << 10));
}

#[test]
fn a_device_that_panics_amid_a_sparse_read_leaves_no_client_without_an_end() {
    let device = device();
    for hole in 0..3 {
        device.hole(hole * 128 * KIB..hole * 128 * KIB + 64 * KIB);
    }
    // The second of three pieces of data, which are read after the query for holes.
    device.panic_at(192 * KIB);
    let server = server(device.clone());
    let mut client = structured(&server);
    let read = request(Command::READ, 0, 384 * KIB);
    assert_ne!(client.ask(read).error, 0);
    let other = client.ask(request(Command::READ, 64 * KIB, 4096));
    assert_eq!(other.data, device.bytes(64 << 10, 4096), "the connection goes on");
}

#[test]
fn refusals_of_reads_are_structured_too_and_the_connection_goes_on() {
    let server = server(device());
    let mut client = structured(&server);
    for (refused, error) in [
        (request(Command::READ, 4 * MIB, 512), ReplyError::Inval),
        (with(CommandFlags::REQ_ONE, request(Command::READ, 0, 512)), ReplyError::Inval),
        (request(Command::READ, 0, (32 << 20) + 512), ReplyError::Overflow),
        (request(Command::BLOCK_STATUS, 0, 0), ReplyError::Inval),
        (request(Command::BLOCK_STATUS, 4 * MIB, 512), ReplyError::Inval),
        (request(Command(77), 0, 512), ReplyError::Inval),
        (request(Command::TRIM, 4 * MIB, 512), ReplyError::Inval),
        (request(Command::WRITE_ZEROES, 4 * MIB, 512), ReplyError::NoSpc),
    ] {
        let answer = client.ask(refused);
        assert_eq!((answer.error, answer.chunks), (error.code(), 1), "{refused:?}");
        assert!(!answer.message.is_empty());
    }
    assert_eq!(client.ask(request(Command::READ, 0, 512)).error, 0);
}

#[test]
fn block_status_tells_the_extents_of_the_range_and_one_where_one_is_enough() {
    let device = device();
    device.hole(MIB..2 * MIB);
    device.hole(3 * MIB..4 * MIB);
    let server = server(device.clone());
    let mut client = structured(&server);
    let hole = STATE_HOLE | STATE_ZERO;
    let list = |answer: &Answer| -> Vec<(u64, u32)> {
        answer.extents.iter().map(|e| (e.length, e.flags)).collect()
    };
    let mib = MIB;
    let all = client.ask(request(Command::BLOCK_STATUS, 0, 4 * MIB));
    assert_eq!(list(&all), [(mib, 0), (mib, hole), (mib, 0), (mib, hole)]);
    let one = client.ask(with(CommandFlags::REQ_ONE, request(Command::BLOCK_STATUS, 512, 2 * MIB)));
    assert_eq!(list(&one), [(mib - 512, 0)]);
    let end = client.ask(request(Command::BLOCK_STATUS, 4 * MIB - 512, 512));
    assert_eq!(list(&end), [(512, hole)]);
    assert_eq!(all.chunks, 1);
    // A block status of so many pieces contains only a part of them.
    for block in 0..4000 {
        device.hole(block * 1024..block * 1024 + 512);
    }
    let some = client.ask(request(Command::BLOCK_STATUS, 0, 4 * MIB));
    assert_eq!(some.extents.len(), 1024);
}

#[test]
fn without_a_context_or_structured_replies_nothing_of_it_is_offered() {
    let server = server(device());
    let mut client = Client::fixed(connect(&server));
    client.structured(None);
    client.go("disk");
    let answer = client.ask(request(Command::BLOCK_STATUS, 0, 512));
    assert_eq!(answer.error, ReplyError::Inval.code());
    let mut client = Client::fixed(connect(&server));
    assert!(!client.go("disk").flags.contains(TransmissionFlags::SEND_DF));
    let simple = client.ask(with(CommandFlags::DF, request(Command::READ, 0, 512)));
    assert_eq!((simple.error, simple.chunks), (ReplyError::Inval.code(), 0));
    let answer = client.ask(request(Command::READ, 0, MIB));
    assert_eq!((answer.error, answer.chunks), (0, 0));
}

#[test]
fn cache_and_fast_zero_are_offered_where_the_device_has_them() {
    let both = TransmissionFlags::SEND_CACHE | TransmissionFlags::SEND_FAST_ZERO;
    let without = server(TestDevice::new(MIB));
    let mut client = Client::fixed(connect(&without));
    assert!(client.go("disk").flags.without(both) == client_flags(&without));
    assert_eq!(client.ask(request(Command::CACHE, 0, 512)).error, ReplyError::Inval.code());
    let fast = with(CommandFlags::FAST_ZERO, request(Command::WRITE_ZEROES, 0, 512));
    assert_eq!(client.ask(fast).error, ReplyError::Inval.code());

    let device = device();
    let server = server(device.clone());
    let mut client = Client::fixed(connect(&server));
    assert!(client.go("disk").flags.contains(both));
    assert_eq!(client.ask(request(Command::CACHE, 0, 4 * MIB)).error, 0);
    assert_eq!(client.ask(fast).error, 0);
    let seen: Vec<_> = device.seen().iter().map(|seen| (seen.op, seen.fast)).collect();
    assert_eq!(seen, [(Op::Prefetch, false), (Op::WriteZeroes, true)]);
    device.fail(IoErrorKind::NotSupported);
    assert_eq!(client.ask(fast).error, ReplyError::NotSup.code());
}

fn client_flags(server: &Server) -> TransmissionFlags {
    Client::fixed(connect(server)).go("disk").flags
}
