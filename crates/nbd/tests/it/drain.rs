//! Tests of the end of a server, and of an export: in order, within the deadline, with a reply to
//! every client.
#![cfg(not(loom))]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use corewise_blockmq::Op;
use corewise_nbd::wire::*;
use corewise_nbd::{
    ClientEvent, DrainReport, Error, Export, ExportFlush, FlushOutcome, Options, Server,
};

const MIB: u64 = 1 << 20;

/// Starts a drain and waits until it has closed the server.
fn begin_drain(server: &Arc<Server>, deadline: Duration) -> std::thread::JoinHandle<DrainReport> {
    let theirs = Arc::clone(server);
    let drain = std::thread::spawn(move || theirs.drain(deadline));
    while !server.exports().iter().all(|export| export.closing) {
        std::thread::yield_now();
    }
    drain
}

#[test]
fn idle_clients_are_closed_at_once() {
    let server = server(TestDevice::new(MIB));
    let mut clients: Vec<_> = (0..8).map(|_| client(&server)).collect();
    let half_open: Vec<_> = (0..4).map(|_| Client::fixed(connect(&server))).collect();
    let report = server.drain(PATIENCE);
    assert_eq!((report.clients, report.idle, report.cut), (12, 12, 0));
    assert!(report.is_clean(), "{report}");
    assert!(report.took < PATIENCE, "nobody was waited for");
    for mut client in clients.drain(..).chain(half_open) {
        client.expect_end();
    }
}

#[test]
fn a_request_that_was_sent_in_part_costs_a_drain_little_and_others_of_its_client_are_answered() {
    let device = TestDevice::new(64 * MIB);
    let server = Arc::new(server(device.clone()));
    // Each request comes in part: of a head, of a small payload, of a large one, and of one that is
    // refused.
    let begun = |length: u32, offset: u64, sent: usize| {
        let mut client = client(&server);
        let request = request(Command::WRITE, 7, offset, length.into());
        let mut bytes = request.encode().to_vec();
        bytes.resize(bytes.len() + length as usize, 1);
        client.send(&bytes[..sent]);
        client
    };
    let mut clients = [
        begun(512, 0, 10),
        begun(512, 0, 100),
        begun(4 << 20, 0, 1 << 16),
        begun(512, 1 << 40, 100),
    ];
    device.hold();
    let mut busy = client(&server);
    busy.request(Command::READ, 1, 0, 512);
    device.wait_for_seen(1);
    let head = request(Command::WRITE, 2, 0, 512);
    busy.send(&head.encode());
    // The heads of all but the first have been parsed.
    while server.exports()[0].in_flight < 5 {
        std::thread::yield_now();
    }
    let drain = begin_drain(&server, PATIENCE);
    for client in &mut clients {
        client.drain_to_end();
    }
    device.release();
    assert_eq!(busy.reply(512).error, 0, "it was in flight");
    let report = drain.join().unwrap();
    assert_eq!((report.clients, report.cut, report.requests_cut), (5, 0, 0), "{report}");
    busy.drain_to_end();
    assert_eq!(device.seen().len(), 1, "nothing was written in part");
}

#[test]
fn requests_in_flight_finish_and_new_ones_are_told_that_the_server_goes() {
    let device = TestDevice::new(MIB);
    let server = Arc::new(server(device.clone()));
    device.hold();
    let mut busy = client(&server);
    for cookie in 0..4 {
        busy.request(Command::READ, cookie, 4096 * cookie, 4096);
    }
    device.wait_for_seen(4);
    let drain = begin_drain(&server, PATIENCE);
    while server.exports()[0].draining == 0 {
        std::thread::yield_now();
    }
    busy.write_request(10, 0, &[1; 512]);
    busy.request(Command::FLUSH, 11, 0, 0);
    let shutdown = ReplyError::Shutdown.code();
    assert_eq!(busy.reply(0), Reply { cookie: 10, error: shutdown, data: vec![] });
    assert_eq!(busy.reply(0), Reply { cookie: 11, error: shutdown, data: vec![] });
    device.release();
    let mut cookies: Vec<_> = (0..4)
        .map(|_| {
            let reply = busy.reply(4096);
            assert_eq!(reply.data, device.bytes(4096 * reply.cookie as usize, 4096));
            reply.cookie
        })
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [0, 1, 2, 3]);
    busy.expect_end();
    let report = drain.join().unwrap();
    assert_eq!((report.clients, report.idle, report.cut), (1, 0, 0));
    assert_eq!((report.requests_completed, report.requests_cut), (4, 0));
    assert_eq!(
        report.flushes,
        [ExportFlush { export: "disk".to_owned(), outcome: FlushOutcome::Done }]
    );
    assert_eq!(device.bytes(0, 4), [0; 4], "a refused write changed nothing");
}

#[test]
fn acknowledged_writes_are_flushed_before_the_client_is_disconnected() {
    let device = TestDevice::new(MIB);
    let server = Arc::new(server(device.clone()));
    let mut writer = client(&server);
    writer.write_request(1, 0, &[5; 512]);
    assert_eq!(writer.reply(0).error, 0);
    device.hold(); // the flush stays in the device
    let drain = begin_drain(&server, PATIENCE);
    device.wait_for_seen(2);
    assert_eq!(device.seen()[1].op, Op::Flush);
    writer.stream.set_nonblocking(true).unwrap();
    let early = writer.stream.read(&mut [0]).unwrap_err();
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock, "the end waits for the flush");
    writer.stream.set_nonblocking(false).unwrap();
    device.release();
    writer.expect_end();
    assert!(drain.join().unwrap().is_clean());
}

#[test]
fn after_the_deadline_clients_are_cut_and_counted() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut stuck = client(&server);
    stuck.write_request(9, 0, &[5; 512]);
    assert_eq!(stuck.reply(0).error, 0);
    device.hold();
    for cookie in 0..3 {
        stuck.request(Command::READ, cookie, 0, 512);
    }
    device.wait_for_seen(1 + 3);
    let mut idle = client(&server);
    let report = server.drain(Duration::from_millis(50));
    // On a busy machine the idle one isn't let go by then, and is cut too.
    assert_eq!((report.clients, report.idle + report.cut), (2, 2));
    assert!(report.cut >= 1, "{report:?}");
    assert_eq!((report.requests_completed, report.requests_cut), (0, 3));
    assert_eq!(
        report.flushes,
        [ExportFlush { export: "disk".to_owned(), outcome: FlushOutcome::Unfinished }]
    );
    assert!(!report.is_clean());
    assert!(report.to_string().contains("disconnected with"), "{report}");
    idle.expect_end();
    stuck.expect_end();
    // The device answers after all: the client is gone, and nothing happens.
    device.release();
    wait_for_connections(&server, 0);
}

#[test]
fn a_client_that_is_cut_at_the_deadline_is_told_of_once_while_its_device_hangs() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let (told, hears) = std::sync::mpsc::channel();
    server.observe(move |event| {
        if let ClientEvent::Left { id, export, why, .. } = event {
            told.send((*id, (*export).to_owned(), (*why).to_owned())).unwrap();
        }
    });
    let mut stuck = client(&server);
    device.hold();
    stuck.request(Command::READ, 1, 0, 512);
    device.wait_for_seen(1);
    let report = server.remove_export("disk", Duration::ZERO).unwrap();
    assert_eq!((report.cut, report.requests_cut), (1, 1));
    let why =
        "the client's export was removed, and the client had 1 unanswered requests at the deadline";
    assert_eq!(hears.try_recv(), Ok((1, "disk".to_owned(), why.to_owned())));
    let report = server.drain(Duration::ZERO);
    assert_eq!((report.clients, report.cut, report.requests_cut), (1, 0, 0), "it was cut before");
    device.release();
    wait_for_connections(&server, 0);
    assert!(hears.try_recv().is_err());
}

#[test]
fn a_client_that_never_reads_is_cut_at_the_deadline() {
    let device = TestDevice::new(8 * MIB);
    let server = server(device.clone());
    let mut lazy = client(&server);
    for cookie in 0..8 {
        lazy.request(Command::READ, cookie, 0, 1 << 20);
    }
    device.wait_for_seen(16);
    let report = server.drain(Duration::from_millis(50));
    assert_eq!((report.clients, report.cut), (1, 1));
    wait_for_connections(&server, 0);
}

#[test]
fn an_export_is_withdrawn_without_its_neighbours() {
    let (first, second) = (TestDevice::new(MIB), TestDevice::new(MIB));
    let server = Arc::new(Server::new(Options::default()));
    server.add_export(Export::new("first", first.clone())).unwrap();
    server.add_export(Export::new("second", second)).unwrap();
    let mut on_first = Client::fixed(connect(&server));
    on_first.go("first");
    let mut on_second = Client::fixed(connect(&server));
    on_second.go("second");
    on_first.write_request(9, 0, &[5; 512]);
    assert_eq!(on_first.reply(0).error, 0);
    first.hold();
    on_first.request(Command::READ, 1, 0, 512);
    first.wait_for_seen(2);
    let theirs = Arc::clone(&server);
    let removal = std::thread::spawn(move || theirs.remove_export("first", PATIENCE));
    while !server.exports()[0].closing {
        std::thread::yield_now();
    }
    assert!(server.remove_export("first", Duration::ZERO).is_none(), "somebody else removes it");
    let (theirs, (told, ended)) = (Arc::clone(&server), std::sync::mpsc::channel());
    let second = std::thread::spawn(move || {
        let report = theirs.remove_export("first", PATIENCE);
        told.send(theirs.exports().len()).unwrap();
        report
    });
    let mut late = Client::fixed(connect(&server));
    late.option(OptionKind::GO, &GoRequest::encode("first", &[]));
    assert_eq!(late.opt_reply().kind, OptionReplyKind::ERR_UNKNOWN);
    first.release();
    assert_eq!(on_first.reply(512).error, 0);
    on_first.expect_end_or_shutdown();
    let report = removal.join().unwrap().unwrap();
    assert_eq!((report.clients, report.cut), (1, 0));
    assert!(second.join().unwrap().is_none());
    assert_eq!(ended.recv().unwrap(), 1, "it waited for the other's end");
    assert_eq!(first.seen().last().unwrap().op, Op::Flush);
    assert_eq!(on_second.read(2, 0, 512).error, 0, "the neighbour goes on");
    let names: Vec<_> = server.exports().into_iter().map(|export| export.name).collect();
    assert_eq!(names, ["second"]);
    assert!(server.remove_export("first", PATIENCE).is_none());
    server.add_export(Export::new("first", TestDevice::new(MIB))).unwrap();
}

#[test]
fn a_read_only_export_is_not_flushed() {
    let device = TestDevice::new(MIB);
    let server = Server::new(Options::default());
    server.add_export(Export::new("disk", device.clone()).read_only(true)).unwrap();
    let report = server.drain(PATIENCE);
    assert!(report.flushes.is_empty());
    assert!(device.seen().is_empty());
}

#[test]
fn a_device_that_no_client_has_changed_is_not_flushed_and_one_that_another_export_has_is() {
    let devices = [TestDevice::new(MIB), TestDevice::new(MIB)];
    let server = server(devices[0].clone());
    for (name, device) in [("other", &devices[0]), ("idle", &devices[1])] {
        server.add_export(Export::new(name, device.clone())).unwrap();
    }
    let mut writer = client(&server);
    writer.write_request(1, 0, &[5; 512]);
    assert_eq!(writer.reply(0).error, 0);
    let mut reader = Client::fixed(connect(&server));
    reader.go("idle");
    assert_eq!(reader.read(1, 0, 512).error, 0);
    for name in ["idle", "other"] {
        let report = server.remove_export(name, PATIENCE).unwrap();
        assert_eq!(
            report.flushes,
            [ExportFlush { export: name.to_owned(), outcome: FlushOutcome::Done }]
        );
    }
    let ops = |device: &TestDevice| device.seen().iter().map(|seen| seen.op).collect::<Vec<_>>();
    assert_eq!(ops(&devices[0]), [Op::Write, Op::Flush]);
    assert_eq!(ops(&devices[1]), [Op::Read]);
}

#[test]
fn a_flush_that_fails_is_reported() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut writer = client(&server);
    writer.write_request(1, 0, &[5; 512]);
    assert_eq!(writer.reply(0).error, 0);
    device.fail(corewise_blockmq::IoErrorKind::Io(5));
    let report = server.drain(PATIENCE);
    assert!(
        matches!(&report.flushes[..], [ExportFlush { outcome: FlushOutcome::Failed(why), .. }] if why.contains("I/O"))
    );
    assert!(report.to_string().contains("flush of 'disk' failed"), "{report}");
}

#[test]
fn a_drained_server_takes_nobody_and_its_socket_file_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let server = server(TestDevice::new(MIB));
    server.listen_unix(&path).unwrap();
    let tcp = server.listen_tcp("127.0.0.1:0").unwrap();
    let mut client = Client::fixed(UnixStream::connect(&path).unwrap());
    client.go("disk");
    let _ = server.drain(PATIENCE);
    client.expect_end();
    assert!(!path.exists());
    let corewise_nbd::Endpoint::Tcp(address) = tcp else { panic!("{tcp}") };
    assert!(std::net::TcpStream::connect(address).is_err());
    let (_ours, theirs) = UnixStream::pair().unwrap();
    assert!(matches!(server.serve(theirs), Err(Error::ShuttingDown)));
    let export = Export::new("x", TestDevice::new(MIB));
    assert!(matches!(server.add_export(export), Err(Error::ShuttingDown)));
    assert!(matches!(server.listen_unix(&path), Err(Error::ShuttingDown)));
    assert_eq!(server.drain(PATIENCE).clients, 0, "draining twice is harmless");
}

#[test]
fn a_closed_server_leaves_its_clients_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let server = server(TestDevice::new(MIB));
    server.listen_unix(&path).unwrap();
    let mut client = Client::fixed(UnixStream::connect(&path).unwrap());
    client.go("disk");
    server.close();
    assert!(UnixStream::connect(&path).is_err());
    assert_eq!(client.read(1, 0, 512).error, 0);
}

#[test]
fn a_hidden_export_keeps_its_clients_and_lets_nobody_in_until_it_is_shown_again() {
    let server = server(TestDevice::new(MIB));
    let mut old = client(&server);
    assert_eq!(server.hide_export("disk"), Some(1));
    assert_eq!(old.read(1, 0, 512).error, 0, "it goes on");
    let mut late = Client::fixed(connect(&server));
    late.option(OptionKind::GO, &GoRequest::encode("disk", &[]));
    assert_eq!(late.opt_reply().kind, OptionReplyKind::ERR_UNKNOWN);
    assert!(server.show_export("disk"));
    assert!(!server.wait_until_unused("disk"), "it isn't hidden");
    let mut newcomer = client(&server);
    assert_eq!(newcomer.read(2, 0, 512).error, 0);
    assert_eq!(server.hide_export("disk"), Some(2));
    drop((old, newcomer));
    assert!(server.wait_until_unused("disk"));
    assert!(server.remove_export("disk", PATIENCE).is_some());
    assert!(server.hide_export("disk").is_none() && !server.show_export("disk"));
}

#[test]
fn waiting_for_the_clients_of_a_hidden_export_ends_with_the_server() {
    let server = Arc::new(server(TestDevice::new(MIB)));
    let _client = client(&server);
    assert_eq!(server.hide_export("disk"), Some(1));
    let theirs = Arc::clone(&server);
    let waits = std::thread::spawn(move || theirs.wait_until_unused("disk"));
    let _ = server.drain(PATIENCE);
    assert!(!waits.join().unwrap());
}

#[test]
fn an_export_that_becomes_read_only_refuses_the_changes_of_clients_that_are_there() {
    let device: Arc<TestDevice> = TestDevice::new(MIB);
    let server = server(device.clone());
    let mut old = client(&server);
    let of_it = || Export::new("disk", device.clone());
    server.replace_export(of_it().read_only(true)).unwrap();
    old.write_request(1, 0, &[1; 512]);
    assert_eq!(old.reply(0).error, ReplyError::Perm.code());
    assert_eq!(old.read(2, 0, 512).error, 0);
    let mut newcomer = Client::fixed(connect(&server));
    let told = newcomer.go("disk");
    assert!(told.flags.contains(TransmissionFlags::READ_ONLY));
    server.replace_export(of_it()).unwrap();
    old.write_request(3, 0, &[1; 512]);
    assert_eq!(old.reply(0).error, 0);
    newcomer.write_request(4, 0, &[1; 512]);
    assert_eq!(newcomer.reply(0).error, ReplyError::Perm.code(), "it was told so");
}

#[test]
fn an_export_is_replaced_only_by_one_of_its_name_and_device() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let other = server.replace_export(Export::new("disk", TestDevice::new(MIB)));
    assert!(matches!(other, Err(Error::NotReplaced(export)) if export.name() == "disk"));
    let none = server.replace_export(Export::new("none", device.clone()));
    assert!(matches!(none, Err(Error::NotReplaced(_))));
    server.add_export(Export::new("default", device.clone()).default_export(true)).unwrap();
    let second = server.replace_export(Export::new("disk", device.clone()).default_export(true));
    assert!(matches!(second, Err(Error::DefaultTaken(_))));
    server.replace_export(Export::new("default", device.clone())).unwrap();
    server.replace_export(Export::new("disk", device).default_export(true)).unwrap();
}
