//! Tests of the transmission phase over real sockets, with a client that behaves as badly as each
//! test says.
#![cfg(not(loom))]

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;

use crate::common::*;
use corewise_blockmq::{Geometry, IoErrorKind, Op};
use corewise_nbd::Budget;
use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, Server};

const MIB: u64 = 1 << 20;

#[test]
fn a_client_with_one_request_at_a_time_gets_each_answer_once() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut client = client(&server);
    // The requests come so fast that the session polls for them, if there are CPUs for that.
    for cookie in 0..500_u64 {
        let (offset, bytes) = (cookie * 512, [cookie as u8; 512]);
        client.write_request(cookie, offset, &bytes);
        assert_eq!(client.reply(0), Reply { cookie, error: 0, data: vec![] });
        assert_eq!(
            client.read(cookie, offset, 512),
            Reply { cookie, error: 0, data: bytes.into() }
        );
        assert_eq!(client.read(cookie, MIB, 512).error, ReplyError::Inval.code());
    }
    assert_eq!(device.seen().len(), 1000);
    client.request(Command::DISC, 0, 0, 0);
    client.expect_end();
}

#[test]
fn the_modifiers_reach_the_device() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut client = client(&server);
    client.request_with(
        CommandFlags::FUA | CommandFlags::NO_HOLE,
        Command::WRITE_ZEROES,
        1,
        512,
        1024,
    );
    assert_eq!(client.reply(0).error, 0);
    client.request_with(CommandFlags::FUA, Command::TRIM, 2, 2048, 512);
    assert_eq!(client.reply(0).error, 0);
    client.request_with(CommandFlags::FUA, Command::READ, 3, 0, 512);
    assert_eq!(client.reply(512).error, 0);
    let seen = device.seen();
    assert_eq!(
        seen[0],
        Seen {
            op: Op::WriteZeroes,
            offset: 512,
            len: 1024,
            fua: true,
            no_unmap: true,
            fast: false
        }
    );
    assert_eq!(
        seen[1],
        Seen { op: Op::Discard, offset: 2048, len: 512, fua: true, no_unmap: false, fast: false }
    );
    assert!(!seen[2].fua, "it means nothing on a read");
    assert!(device.bytes(512, 1024).iter().all(|b| *b == 0));
}

#[test]
fn a_device_that_need_not_be_flushed_is_never_asked_for_fua() {
    let mut geometry = Geometry::new(MIB);
    geometry.can_flush = false;
    geometry.can_fua = false;
    let device = TestDevice::with(geometry);
    let server = server(device.clone());
    let mut client = client(&server);
    client.request_with(CommandFlags::FUA, Command::WRITE_ZEROES, 1, 0, 512);
    assert_eq!(client.reply(0).error, 0);
    assert!(!device.seen()[0].fua);
}

#[test]
fn what_is_refused_or_has_no_length_is_answered_without_the_device_and_the_connection_goes_on() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut client = client(&server);
    let (none, inval) = (CommandFlags::empty(), ReplyError::Inval.code());
    for (cookie, flags, command, offset, length, error) in [
        (1, none, Command(200), 0, 512, inval),
        (2, none, Command::BLOCK_STATUS, 0, 512, inval),
        (3, CommandFlags::FAST_ZERO, Command::WRITE_ZEROES, 0, 512, inval),
        (4, none, Command::FLUSH, 512, 0, inval),
        (5, none, Command::READ, MIB - 512, 1024, inval),
        (6, none, Command::READ, 512, 0, 0),
        (7, none, Command::WRITE, 512, 0, 0),
    ] {
        client.request_with(flags, command, cookie, offset, length);
        assert_eq!(client.reply(0), Reply { cookie, error, data: vec![] });
    }
    client.write_request(8, MIB - 512, &[1; 1024]);
    assert_eq!(client.reply(0).error, ReplyError::NoSpc.code());
    assert!(device.seen().is_empty());
    assert_eq!(client.read(9, MIB - 512, 512).data, device.bytes((MIB - 512) as usize, 512));
}

#[test]
fn reads_above_the_advertised_payload_are_refused_without_memory_being_taken() {
    let server = server(TestDevice::new(64 * MIB));
    let mut client = client(&server);
    for (cookie, length) in [(1, u32::MAX), (2, 40 << 20), (3, (32 << 20) + 512)] {
        assert_eq!(client.read(cookie, 0, length).error, ReplyError::Inval.code(), "{length}");
    }
    let data: Vec<u8> = (0..32 << 20).map(|i: u32| (i >> 3) as u8).collect();
    client.write_request(4, MIB, &data);
    assert_eq!(client.reply(0).error, 0);
    assert!(client.read(5, MIB, 32 << 20).data == data, "the advertised payload works");
}

#[test]
fn a_write_above_the_advertised_payload_ends_the_connection_after_what_was_valid() {
    let device = TestDevice::new(MIB);
    let server = server(device);
    let mut client = client(&server);
    client.request(Command::READ, 1, 0, 512);
    client.request(Command::WRITE, 2, 0, u32::MAX);
    // The request may go into a socket that is closed already.
    let _ = client.stream.write_all(&[0; 65536]);
    assert_eq!(client.reply(512).cookie, 1);
    client.expect_end();
}

#[test]
fn writes_of_every_size_arrive_whole_however_they_are_cut() {
    let device = TestDevice::new(4 * MIB);
    let server = server(device.clone());
    let mut client = client(&server);
    let mut stream = Vec::new();
    let sizes = [512, 1024, 65536, 512, 262_144, 300_032, 512, 1 << 20];
    let mut at = 0;
    for (cookie, size) in sizes.into_iter().enumerate() {
        let head = request(Command::WRITE, cookie as u64, at, size);
        stream.extend_from_slice(&head.encode());
        stream.extend((0..size).map(|i| (i / 7) as u8 ^ cookie as u8));
        at += size;
    }
    for piece in stream.chunks(9973) {
        client.send(piece);
    }
    let mut cookies: Vec<_> = sizes.iter().map(|_| client.reply(0).cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..sizes.len() as u64).collect::<Vec<_>>());
    let mut at = 0;
    for (cookie, size) in sizes.into_iter().enumerate() {
        let expected: Vec<u8> = (0..size).map(|i| (i / 7) as u8 ^ cookie as u8).collect();
        assert!(device.bytes(at, size as usize) == expected, "write {cookie}");
        at += size as usize;
    }
}

#[test]
fn a_refused_write_takes_its_payload_along() {
    let device = TestDevice::new(MIB);
    let server = Server::new(Options::default());
    server.add_export(Export::new("disk", device.clone()).read_only(true)).unwrap();
    let mut client = Client::fixed(connect(&server));
    let summary = client.go("disk");
    assert!(summary.flags.contains(TransmissionFlags::READ_ONLY));
    // The payload looks like requests: parsing it as such would show.
    let fake = request(Command::READ, 99, 0, 512);
    let payload: Vec<u8> = fake.encode().into_iter().cycle().take(400_384).collect();
    client.write_request(1, 0, &payload);
    assert_eq!(client.reply(0), Reply { cookie: 1, error: ReplyError::Perm.code(), data: vec![] });
    client.request(Command::TRIM, 2, 0, 512);
    assert_eq!(client.reply(0).error, ReplyError::Perm.code());
    assert_eq!(client.read(3, 0, 512).cookie, 3);
    assert_eq!(device.seen().len(), 1);
}

#[test]
fn a_bad_magic_number_ends_the_connection_after_what_was_valid_and_nobody_else_notices() {
    let server = server(TestDevice::new(MIB));
    let mut other = client(&server);
    let mut client = client(&server);
    client.request(Command::READ, 1, 0, 512);
    let _ = client.stream.write_all(&[0x66; 200]);
    assert_eq!(client.reply(512).cookie, 1);
    client.expect_end();
    assert_eq!(other.read(2, 0, 512).cookie, 2);
}

#[test]
fn errors_of_the_device_become_errors_of_the_protocol() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut client = client(&server);
    for (kind, error) in [
        (IoErrorKind::Io(5), ReplyError::Io),
        (IoErrorKind::Io(121), ReplyError::Io),
        (IoErrorKind::NoSpace, ReplyError::NoSpc),
        (IoErrorKind::ReadOnly, ReplyError::Perm),
        (IoErrorKind::NotSupported, ReplyError::NotSup),
        (IoErrorKind::Gone, ReplyError::Shutdown),
    ] {
        device.fail(kind);
        assert_eq!(client.read(1, 0, 4096), Reply { cookie: 1, error: error.code(), data: vec![] });
    }
}

/// Checks a device that reports a loss once, as a volume of another server does.
#[test]
fn a_loss_that_the_device_tells_once_is_told_to_each_client_by_its_next_flush() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut clients = [client(&server), client(&server)];
    let flush = |client: &mut Client| {
        client.request(Command::FLUSH, 3, 0, 0);
        client.reply(0).error
    };
    for client in &mut clients {
        client.write_request(1, 0, &[7; 512]);
        assert_eq!(client.reply(0).error, 0);
    }
    let eio = ReplyError::Io.code();
    let errors = |clients: &mut [Client; 2]| clients.each_mut().map(&flush);
    device.fail(IoErrorKind::Io(5));
    assert_eq!(flush(&mut clients[0]), eio);
    device.fail_no_more();
    assert_eq!(errors(&mut clients), [0, eio]);
    assert_eq!(errors(&mut clients), [0, 0]);

    // A durable write tells its client only about itself.
    device.fail(IoErrorKind::Io(5));
    clients[1].request_with(CommandFlags::FUA, Command::WRITE_ZEROES, 4, 0, 512);
    assert_eq!(clients[1].reply(0).error, eio);
    device.fail_no_more();
    // A newcomer from the same user may be one of them after a reconnect.
    let mut newcomer = client(&server);
    // A client has joined once it has a reply. Otherwise it might join after the others learned of
    // the loss, and know of all losses.
    assert_eq!(newcomer.read(1, 0, 512).error, 0);
    assert_eq!(errors(&mut clients), [eio, eio]);
    assert_eq!((errors(&mut clients), flush(&mut newcomer)), ([0, 0], eio));
    assert_eq!((flush(&mut newcomer), flush(&mut client(&server))), (0, 0));

    // A file system with too little space does the same: it notices that when it writes.
    device.fail(IoErrorKind::NoSpace);
    clients[1].request_with(CommandFlags::FUA, Command::WRITE_ZEROES, 4, 0, 512);
    assert_ne!(clients[1].reply(0).error, 0);
    assert_ne!(flush(&mut clients[0]), 0);
    device.fail_no_more();
    assert_eq!((errors(&mut clients), errors(&mut clients)), ([0, eio], [0, 0]));

    // A flush that the device refuses is no loss.
    device.fail(IoErrorKind::NotSupported);
    assert_ne!(flush(&mut clients[0]), 0);
    device.fail_no_more();
    assert_eq!(errors(&mut clients), [0, 0]);
}

#[test]
fn a_loss_is_told_to_a_client_whose_connection_broke_before_it_knew() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let flush = |client: &mut Client| {
        client.request(Command::FLUSH, 3, 0, 0);
        client.reply(0).error
    };
    let writes = |client: &mut Client| {
        client.write_request(1, 0, &[7; 512]);
        assert_eq!(client.reply(0).error, 0);
    };
    let gone = |clients| while_that_is_left(&server, clients);
    let eio = ReplyError::Io.code();
    let mut other = client(&server);
    // Its flush is under way.
    let mut first = client(&server);
    writes(&mut first);
    device.hold();
    first.request(Command::FLUSH, 3, 0, 0);
    device.wait_for_seen(2);
    drop(first);
    device.fail(IoErrorKind::Io(5));
    device.release();
    device.fail_no_more();
    gone(1);
    let mut again = client(&server);
    assert_eq!([flush(&mut again), flush(&mut again), flush(&mut other)], [eio, 0, eio]);

    // It is away while another client's flush fails.
    writes(&mut again);
    drop(again);
    gone(1);
    device.fail(IoErrorKind::Io(5));
    assert_eq!(flush(&mut other), eio);
    device.fail_no_more();
    let mut again = client(&server);
    assert_eq!([flush(&mut again), flush(&mut again), flush(&mut other)], [eio, 0, 0]);

    // Changes that were flushed before aren't lost.
    writes(&mut again);
    assert_eq!(flush(&mut again), 0);
    drop(again);
    gone(1);
    device.fail(IoErrorKind::Io(5));
    assert_eq!(flush(&mut other), eio);
    device.fail_no_more();
    assert_eq!(flush(&mut other), 0);
    assert_eq!(flush(&mut client(&server)), 0);
}

/// Waits until the server has `clients` clients.
fn while_that_is_left(server: &Server, clients: usize) {
    while server.clients().len() != clients {
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_ends_its_requests_still_gets_the_replies() {
    let ends: [fn(&mut Client); 2] = [
        |client| client.request(Command::DISC, 3, 0, 0),
        |client| client.stream.shutdown(Shutdown::Write).unwrap(),
    ];
    for end in ends {
        let device = TestDevice::new(MIB);
        device.hold();
        let server = server(device.clone());
        let mut client = client(&server);
        client.reads(1..3, 0, 512);
        end(&mut client);
        device.wait_for_seen(2);
        device.release();
        let mut cookies = [client.reply(512).cookie, client.reply(512).cookie];
        cookies.sort_unstable();
        assert_eq!(cookies, [1, 2]);
        client.expect_end();
    }
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_write_harms_nobody() {
    let device = TestDevice::new(4 * MIB);
    let server = server(device.clone());
    let mut other = client(&server);
    for sent in [0, 100, 70_000, 999_999] {
        let mut dying = client(&server);
        dying.request(Command::WRITE, 1, 0, 1 << 20);
        dying.send(&vec![0xee; sent]);
        drop(dying);
    }
    // Their connections end by themselves; the half-received writes never reach the device.
    wait_for_connections(&server, 1);
    assert!(device.seen().is_empty());
    assert_eq!(other.read(2, 0, 512).data, device.bytes(0, 512));
}

#[test]
fn requests_of_a_client_that_is_gone_are_not_run_to_the_end() {
    let device = TestDevice::new(2 * MIB);
    let budget = Budget { requests: 8, bytes: 64 << 20 };
    let server = server_with(device.clone(), Options::new().budget(budget));
    let mut gone = client(&server);
    let read = request(Command::READ, 1, 0, 1 << 20);
    gone.send(&read.encode().repeat(3000));
    device.wait_for_seen(8);
    drop(gone);
    wait_for_connections(&server, 0);
    // Some more may have been on their way when the writer noticed.
    assert!(device.seen().len() < 100, "{} of 3000 reads were run", device.seen().len());
}

#[test]
fn a_panic_while_a_client_is_served_closes_that_client_only() {
    let device = TestDevice::new(MIB);
    device.panic_at(4096);
    let server = server(device.clone());
    let mut other = client(&server);
    let mut unlucky = client(&server);
    unlucky.request(Command::READ, 1, 4096, 512);
    unlucky.expect_end_or_shutdown();
    assert_eq!(other.read(2, 0, 512).data, device.bytes(0, 512));
}

#[test]
fn two_thousand_reads_that_nobody_drains_stay_within_the_budget() {
    let device = TestDevice::new(2 * MIB);
    let budget = Budget { requests: 16, bytes: 8 << 20 };
    let server = server_with(device.clone(), Options::new().budget(budget));
    let mut lazy = client(&server);
    let mut requests = Vec::new();
    for cookie in 0..2000 {
        let request = request(Command::READ, cookie, 0, 1 << 20);
        requests.extend_from_slice(&request.encode());
    }
    // 56 KB of requests fit into the socket, so this doesn't block though the server stops reading.
    lazy.send(&requests);
    device.wait_for_seen(16);
    let mut other = client(&server);
    assert_eq!(other.read(1, 0, 512).error, 0, "another client is served meanwhile");
    // Eight of them, in two pieces each, fill the budget, and no socket holds a whole reply. One
    // more is the other client's.
    assert!(device.seen().len() <= 17, "{} requests reached the device", device.seen().len());
    assert!(server.exports()[0].in_flight <= 9);
    // Now they are read after all: the budget frees, and each request is answered once.
    let mut cookies: Vec<_> = (0..2000)
        .map(|_| {
            let reply = lazy.reply(1 << 20);
            assert_eq!(reply.error, 0);
            reply.cookie
        })
        .collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..2000));
}

#[test]
fn a_completion_never_blocks() {
    // Every completion of the test device runs in an atomic section. If more is to be sent than the
    // socket holds, it must hand over instead of blocking, or the execution context would report
    // it.
    let device = TestDevice::new(8 * MIB);
    device.hold();
    let server = server(device.clone());
    let mut client = client(&server);
    for cookie in 0..8 {
        client.request(Command::READ, cookie, 0, 1 << 20);
    }
    device.wait_for_seen(8);
    let theirs = Arc::clone(&device);
    let completer = std::thread::spawn(move || {
        theirs.release();
        corewise_sync::context::violations()
    });
    assert_eq!(completer.join().unwrap(), 0, "released although nobody reads the replies");
    for _ in 0..8 {
        assert_eq!(client.reply(1 << 20).error, 0);
    }
}

#[test]
fn a_socket_in_non_blocking_mode_is_served_like_any_other() {
    // A non-blocking socket, as an event loop hands over.
    let device = TestDevice::new(8 * MIB);
    let server = server(device.clone());
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    theirs.set_nonblocking(true).unwrap();
    server.serve(theirs).unwrap();
    let mut client = Client::fixed(ours);
    client.go("disk");
    // Both sides of the server wait: its reader for us, its writer for room.
    client.request(Command::READ, 1, 0, 4 << 20);
    device.wait_for_seen(1);
    assert!(client.reply(4 << 20).data == device.bytes(0, 4 << 20));
    assert_eq!(client.read(2, 0, 512).cookie, 2);
}
