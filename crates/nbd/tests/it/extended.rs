//! Tests of extended headers: 64-bit lengths, and replies with uniform heads.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::Arc;

use crate::common::answers::Answer;
use crate::common::*;
use corewise_blockmq::Op;
use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, Server};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Length beyond that of any request without extended headers.
const LONG: u64 = 8 * GIB;

fn options() -> Options {
    Options::new().extended_headers(true)
}

fn vast() -> (Arc<Vast>, Server) {
    let device = Arc::new(Vast::default());
    let server = Server::new(options());
    server.add_export(Export::new("disk", device.clone())).unwrap();
    (device, server)
}

fn extended(server: &Server, contexts: bool) -> (Client, ExportSummary) {
    let mut client = Client::fixed(connect(server));
    client.choose(Form::Extended, contexts.then_some("disk"));
    let summary = client.go("disk");
    (client, summary)
}

fn request(command: Command, offset: u64, length: u64) -> Request {
    Request { flags: CommandFlags::empty(), command, cookie: 0x7000_0001, offset, length }
}

#[test]
fn extended_headers_are_unknown_unless_they_are_switched_on() {
    let server = server(TestDevice::new(MIB));
    let mut client = Client::fixed(connect(&server));
    client.option(OptionKind::EXTENDED_HEADERS, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_UNSUP);
    client.structured(None);
    client.go("disk");
    assert_eq!(client.ask(request(Command::READ, 0, 512)).error, 0);
}

#[test]
fn extended_headers_take_no_data_and_nobody_goes_back_from_them() {
    let server = server_with(TestDevice::new(MIB), options());
    let mut client = Client::fixed(connect(&server));
    client.option(OptionKind::EXTENDED_HEADERS, &[1]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_INVALID);
    // The client asks for them after structured replies, which they replace, and then a second
    // time.
    client.structured(None);
    client.choose(Form::Extended, None);
    client.choose(Form::Extended, Some("disk"));
    client.option(OptionKind::STRUCTURED_REPLY, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_EXT_HEADER_REQD);
    client.go("disk");
    let answer = client.ask(request(Command::READ, 0, 4096));
    assert_eq!((answer.error, answer.data.len()), (0, 4096));
    let mut client = Client::fixed(connect(&server));
    client.choose(Form::Extended, None);
    client.option(OptionKind::EXPORT_NAME, b"disk");
    client.expect_end();
}

#[test]
fn the_query_of_a_block_status_is_offered_to_those_that_have_a_context() {
    let (_, server) = vast();
    let has = |summary: ExportSummary| {
        assert!(summary.flags.contains(TransmissionFlags::SEND_DF));
        summary.flags.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD)
    };
    assert!(has(extended(&server, true).1));
    assert!(!has(extended(&server, false).1));
    let mut client = Client::fixed(connect(&server));
    client.structured(Some("disk"));
    assert!(!has(client.go("disk")));
}

#[test]
fn what_has_no_payload_takes_lengths_of_64_bits() {
    let (device, server) = vast();
    let (mut client, _) = extended(&server, true);
    let answer = client.ask(request(Command::BLOCK_STATUS, 512, TIB - 512));
    let flags = STATE_HOLE | STATE_ZERO;
    assert_eq!(answer.extents, [StatusExtent { length: TIB - 512, flags }]);
    // The range covers its first and last block in part.
    let answer = client.ask(request(Command::BLOCK_STATUS, 3, TIB - 6));
    assert_eq!(answer.extents, [StatusExtent { length: TIB - 6, flags }]);
    assert_eq!(client.ask(request(Command::CACHE, 0, TIB)).chunks, 1);
    for (command, op) in [(Command::TRIM, Op::Discard), (Command::WRITE_ZEROES, Op::WriteZeroes)] {
        device.seen.lock().clear();
        let answer = client.ask(request(command, GIB, LONG));
        assert_eq!((answer.error, answer.chunks), (0, 1), "{command:?}");
        let seen = device.seen.lock();
        assert!(seen.iter().all(|(of, _, len)| *of == op && *len <= 8 * MIB), "in pieces");
        assert_eq!(seen.iter().map(|(_, _, len)| len).sum::<u64>(), LONG);
        let mut at = GIB;
        for (_, offset, len) in &*seen {
            assert_eq!(*offset, at);
            at += len;
        }
    }
}

#[test]
fn hostile_lengths_are_refused_without_a_byte_of_memory_and_the_connection_goes_on() {
    let (device, server) = vast();
    let (mut client, _) = extended(&server, true);
    for (offset, length) in
        [(0, 1 << 63), (512, u64::MAX - 511), (1 << 63, 1 << 63), (TIB, 512), (0, u64::MAX)]
    {
        for (command, error) in [
            (Command::READ, if length == 512 { ReplyError::Inval } else { ReplyError::Overflow }),
            (Command::TRIM, ReplyError::Inval),
            (Command::CACHE, ReplyError::Inval),
            (Command::BLOCK_STATUS, ReplyError::Inval),
            (Command::WRITE_ZEROES, ReplyError::NoSpc),
            // The request comes without its payload.
            (Command::WRITE, ReplyError::Inval),
            (Command::FLUSH, ReplyError::Inval),
            (Command(77), ReplyError::Inval),
        ] {
            let answer = client.ask(request(command, offset, length));
            assert_eq!((answer.error, answer.chunks), (error.code(), 1), "{command:?} {length}");
        }
    }
    assert_eq!(server.memory().taken, 0);
    assert_eq!(device.seen.lock().len(), 0);
    // A read may not be longer than without them.
    assert_eq!(client.ask(request(Command::READ, 0, (32 << 20) + 512)).error, 75);
    assert_eq!(client.ask(request(Command::READ, 0, 512)).error, 0);
}

#[test]
fn a_payload_that_its_command_does_not_have_is_read_away_and_refused() {
    let (_, server) = vast();
    let (mut client, _) = extended(&server, true);
    let flags = CommandFlags::PAYLOAD_LEN;
    for command in [Command::READ, Command::TRIM, Command::FLUSH, Command(77)] {
        let request = Request { flags, ..request(command, 0, 100_000) };
        client.send_request(request);
        client.send(&vec![0x21; 100_000]);
        let answer = client.answer(&mut vec![(request, Answer::default())]).1;
        assert_eq!(answer.error, ReplyError::Inval.code(), "{command:?}");
    }
    assert_eq!(client.ask(request(Command::READ, 0, 512)).error, 0);
    client.send_request(Request { flags, ..request(Command::TRIM, 0, 1 << 63) });
    client.expect_end();
}

#[test]
fn a_block_status_may_name_its_context() {
    let (device, server) = vast();
    let (mut client, _) = extended(&server, true);
    let flags = CommandFlags::PAYLOAD_LEN;
    let mut ask = |offset, payload: &[u8]| {
        let length = payload.len() as u64;
        let request = Request { flags, ..request(Command::BLOCK_STATUS, offset, length) };
        client.send_request(request);
        client.send(payload);
        // The reply is compared with the intended length.
        let meant = Request { length: TIB, ..request };
        client.answer(&mut vec![(meant, Answer::default())]).1
    };
    let query = |length, context| StatusQuery { length, context }.encode();
    let answer = ask(GIB, &query(LONG, 1));
    assert_eq!(answer.extents.iter().map(|extent| extent.length).sum::<u64>(), LONG);
    let twice = [&query(LONG, 1)[..], &[0, 0, 0, 1]].concat();
    for wrong in [&query(LONG, 2)[..], &query(TIB, 1), &query(0, 1), &twice, &[0; 8], &[1; 7]] {
        let answer = ask(GIB, wrong);
        assert_eq!(answer.error, ReplyError::Inval.code(), "{wrong:?}");
    }
    assert_eq!(device.seen.lock().len(), 1);
    // The payload comes in pieces, its head in one of them.
    let request = Request { flags, ..request(Command::BLOCK_STATUS, 0, 12) };
    client.send_request(request);
    for byte in query(512, 1) {
        client.send(&[byte]);
    }
    let meant = Request { length: 512, ..request };
    let answer = client.answer(&mut vec![(meant, Answer::default())]).1;
    assert_eq!(answer.extents.len(), 1);
}

#[test]
fn a_client_that_chose_extended_headers_and_sends_compact_ones_is_cut_and_so_is_the_reverse() {
    let (_, server) = vast();
    let (mut wrong, _) = extended(&server, false);
    wrong.send(&request(Command::READ, 0, 512).encode());
    // The server doesn't wait for the four more bytes of an extended head.
    wrong.expect_end();
    let mut client = client(&server);
    client.send(&request(Command::READ, 0, 512).encode_extended());
    client.expect_end();
}

#[test]
fn zeroes_of_a_terabyte_leave_the_device_to_others_and_end_when_their_client_leaves() {
    let (device, server) = vast();
    *device.held.lock() = Some(Vec::new());
    let (mut wiper, _) = extended(&server, false);
    wiper.send_request(request(Command::WRITE_ZEROES, 0, TIB));
    device.wait_for_seen(8);
    let (mut other, _) = extended(&server, false);
    let read = request(Command::READ, 0, 512);
    other.send_request(read);
    device.wait_for_seen(9);
    assert!(device.seen.lock()[..8].iter().all(|seen| *seen == (Op::WriteZeroes, seen.1, 8 * MIB)));
    assert_eq!(
        device.seen.lock()[8].0,
        Op::Read,
        "it did not wait for 32 bytes to wipe a terabyte"
    );
    drop(wiper);
    device.release();
    assert_eq!(other.answer(&mut vec![(read, Answer::default())]).1.error, 0);
    wait_for_connections(&server, 1);
    let wiped = device.seen.lock().len() - 1;
    assert!(wiped <= 8 + 1, "{wiped} pieces were wiped though nobody is there");
}
