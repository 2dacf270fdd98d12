//! Tests of the list of clients: the facts about each, its answered requests, and how it is
//! disconnected.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::*;
use corewise_blockmq::{IoErrorKind, Op};
use corewise_nbd::wire::*;
use corewise_nbd::{ClientEvent, ClientStatus, Options, Peer, Server};

const MIB: u64 = 1 << 20;

/// Returns the clients once `requests` requests have been counted: a reply is counted once it has
/// left.
fn counted(server: &Server, requests: u64) -> Vec<ClientStatus> {
    loop {
        let clients = server.clients();
        let all = clients.iter().flat_map(|one| Op::ALL.map(|op| one.traffic.of(op).requests));
        if all.sum::<u64>() >= requests {
            return clients;
        }
        std::thread::yield_now();
    }
}

#[test]
fn each_client_is_listed_with_where_it_comes_from_and_what_it_was_answered() {
    let device = TestDevice::new(MIB);
    let server = server(device.clone());
    let _haggling = Client::fixed(connect(&server));
    let mut client = client(&server);
    client.write_request(1, 0, &[7; 8192]);
    assert_eq!(client.reply(0).error, 0);
    for cookie in 2..5 {
        assert_eq!(client.read(cookie, 0, 4096).error, 0);
    }
    // A megabyte in two pieces is one request to its client.
    assert_eq!(client.read(5, 0, MIB as u32).error, 0);
    client.request(Command::FLUSH, 6, 0, 0);
    assert_eq!(client.reply(0).error, 0);
    // Beyond the end: the device never sees it.
    assert_ne!(client.read(7, MIB, 512).error, 0);
    device.fail(IoErrorKind::Io(5));
    assert_ne!(client.read(8, 0, 512).error, 0);

    let clients = counted(&server, 8);
    let [silent, busy] = &clients[..] else { panic!("{clients:?}") };
    assert!(silent.id < busy.id && silent.age >= busy.age);
    assert_eq!((silent.export.as_deref(), busy.export.as_deref()), (None, Some("disk")));
    assert_eq!(busy.peer, Peer::User(rustix::process::getuid().as_raw()));
    assert_eq!((busy.pid, silent.pid), (Some(std::process::id()), Some(std::process::id())));
    assert_eq!((busy.in_flight, busy.in_flight_bytes, busy.draining), (0, 0, false));
    let reads = busy.traffic.of(Op::Read);
    assert_eq!((reads.requests, reads.errors, reads.bytes), (6, 2, 3 * 4096 + MIB));
    assert_eq!(reads.latency.count(), 6);
    let longest = reads.latency.longest().unwrap();
    assert!(longest > Duration::ZERO && longest <= busy.age, "{longest:?}");
    let writes = busy.traffic.of(Op::Write);
    assert_eq!((writes.requests, writes.errors, writes.bytes), (1, 0, 8192));
    assert_eq!(busy.traffic.of(Op::Flush).requests, 1);
    assert_eq!(silent.traffic, Default::default());
}

#[test]
fn what_is_in_flight_is_seen_while_it_is_and_counted_when_it_was_answered() {
    let device = TestDevice::new(MIB);
    device.hold();
    let server = server(device.clone());
    let mut client = client(&server);
    client.reads(1..4, 0, 4096);
    device.wait_for_seen(3);
    let [busy] = &server.clients()[..] else { panic!() };
    assert_eq!((busy.in_flight, busy.in_flight_bytes), (3, 3 * 4096));
    let first = busy.oldest.expect("it has requests in flight");
    assert!(first <= busy.age, "{first:?}");
    assert_eq!(busy.traffic.of(Op::Read).requests, 0);
    // The oldest one of three is the oldest one of two, or one that came with it.
    device.release_some(1);
    client.reply(4096);
    let [busy] = &counted(&server, 1)[..] else { panic!() };
    assert!(busy.oldest.expect("two are left") >= first && busy.untaken.is_none(), "{busy:?}");
    device.release();
    for _ in 0..2 {
        client.reply(4096);
    }
    let [busy] = &counted(&server, 3)[..] else { panic!() };
    assert_eq!(busy.traffic.of(Op::Read).bytes, 3 * 4096);
    // A request is counted first, and then no longer in flight.
    while server.clients()[0].oldest.is_some() {
        std::thread::yield_now();
    }
}

#[test]
fn a_disconnected_client_is_gone_with_its_requests_and_others_go_on() {
    let device = TestDevice::new(MIB);
    device.hold();
    let server = server(device.clone());
    let (mut one, mut other) = (client(&server), client(&server));
    one.reads(1..3, 0, 512);
    other.reads(1..2, 512, 512);
    device.wait_for_seen(3);
    let id = server.clients()[0].id;
    assert!(server.disconnect(id));
    one.expect_end();
    // Its requests are still in the device, so it is still listed.
    let [gone, _] = &server.clients()[..] else { panic!() };
    assert!(gone.id == id && gone.draining && gone.in_flight == 2);
    device.release();
    assert_eq!(other.reply(512).error, 0);
    wait_for_connections(&server, 1);
    assert!(!server.disconnect(id), "it has left");
    assert!(!server.disconnect(12_345), "there never was one");
    assert_eq!(other.read(2, 0, 512).error, 0);
}

#[test]
fn an_export_keeps_the_counts_of_clients_that_left_and_says_whether_it_is_hidden() {
    let device = TestDevice::new(MIB);
    let server = server(device);
    let mut first = client(&server);
    assert_eq!(first.read(1, 0, 4096).error, 0);
    counted(&server, 1);
    drop(first);
    wait_for_connections(&server, 0);
    let mut second = client(&server);
    assert_eq!(second.read(1, 0, 512).error, 0);
    counted(&server, 1);
    let [export] = &server.exports()[..] else { panic!() };
    let reads = export.traffic.of(Op::Read);
    assert_eq!((reads.requests, reads.bytes, reads.latency.count()), (2, 4608, 2));
    assert!(!export.hidden && !export.closing);
    assert_eq!(server.hide_export("disk"), Some(1));
    let [export] = &server.exports()[..] else { panic!() };
    assert!(export.hidden && export.closing);
}

#[test]
fn an_observer_is_told_of_clients_that_come_and_go_and_its_panic_is_its_own() {
    let server = server(TestDevice::new(MIB));
    let (told, hears) = channel();
    assert!(server.observe(move |event| match event {
        ClientEvent::Attached { id, export, .. } => {
            told.send(format!("{id} attached {export}")).unwrap();
            panic!("on purpose");
        }
        ClientEvent::Left { id, export, why, .. } => {
            told.send(format!("{id} left {export}: {why}")).unwrap();
        }
        _ => {}
    }));
    assert!(!server.observe(|_| ()), "there is one");
    let mut polite = client(&server);
    assert_eq!(polite.read(1, 0, 512).error, 0);
    let id = server.clients()[0].id;
    assert_eq!(hears.recv().unwrap(), format!("{id} attached disk"));
    polite.request(Command::DISC, 2, 0, 0);
    assert_eq!(hears.recv().unwrap(), format!("{id} left disk: the client disconnected"));
    // A connection that never chooses an export is no client of any.
    drop(Client::fixed(connect(&server)));
    let cut = client(&server);
    assert!(hears.recv().unwrap().ends_with("attached disk"));
    assert!(server.disconnect(server.clients().last().unwrap().id));
    let left = hears.recv().unwrap();
    assert!(left.ends_with("an operator disconnected the client"), "{left}");
    drop(cut);
}

#[test]
fn replies_that_a_client_does_not_take_are_seen_with_their_age_until_it_takes_them() {
    let device = TestDevice::new(MIB);
    let server = server(device);
    let (mut slow, mut quick) = (client(&server), client(&server));
    assert_eq!(quick.read(1, 0, 4096).error, 0);
    slow.reads(1..3, 0, 1000 << 10);
    let mut seen = None;
    while seen.is_none() {
        let clients = server.clients();
        assert_eq!((clients[1].untaken, clients[1].untaken_bytes), (None, 0), "the quick one");
        seen = clients[0].untaken.map(|age| (age, clients[0].untaken_bytes, clients[0].oldest));
    }
    let (age, bytes, oldest) = seen.unwrap();
    // The socket took a part of the first one.
    assert!(bytes > 0 && bytes < 2 * ((1000 << 10) + 64), "{bytes}");
    assert!(oldest.expect("both are in flight") >= age, "{age:?} {oldest:?}");
    assert!(server.clients()[0].untaken.expect("nothing was taken") >= age);
    for _ in 0..2 {
        assert_eq!(slow.reply(1000 << 10).error, 0);
    }
    while server.clients()[0].untaken.is_some() || server.clients()[0].oldest.is_some() {
        std::thread::yield_now();
    }
}

#[test]
fn a_request_that_came_in_part_is_seen_until_its_rest_has_come() {
    let server = server(TestDevice::new(MIB));
    let mut client = client(&server);
    let partial = || server.clients()[0].partial;
    client.write_request(1, 0, &[7; 512]);
    assert_eq!(client.reply(0).error, 0);
    assert_eq!(partial(), None);
    let head = request(Command::WRITE, 2, 0, 4096).encode();
    let all = [&head[..], &[7; 4096]].concat();
    // The request stops in the middle of its head, then of its payload.
    for part in [8, 128] {
        client.send(&all[..part]);
        while partial().is_none() {
            std::thread::yield_now();
        }
        let age = partial().expect("the rest doesn't come");
        assert!(age <= server.clients()[0].age);
        client.send(&all[part..]);
        assert_eq!(client.reply(0).error, 0);
        while partial().is_some() {
            std::thread::yield_now();
        }
    }
}

/// Returns a channel with the reason why the only client of a server was let go.
fn why(server: &Server) -> std::sync::mpsc::Receiver<String> {
    let (told, hears) = channel();
    assert!(server.observe(move |event| {
        if let ClientEvent::Left { peer, pid, why, .. } = event {
            assert_eq!(*peer, Peer::User(rustix::process::getuid().as_raw()));
            assert_eq!(*pid, Some(std::process::id()));
            told.send((*why).to_owned()).unwrap();
        }
    }));
    hears
}

#[test]
fn a_client_that_is_cut_is_told_of_with_what_was_waited_for_and_how_long() {
    let soon = Duration::from_millis(20);
    let options = || Options::new().request_timeout(soon).reply_timeout(soon);
    fn head(length: u64) -> [u8; REQUEST_LEN] {
        request(Command::WRITE, 2, 0, length).encode()
    }
    type Abuse = dyn Fn(&mut Client);
    let cases: [(&Abuse, &[&str]); 5] = [
        (&|client| client.send(&head(0)[..5]), &["5 of the 28 bytes of the head came in "]),
        (
            &|client| {
                client.send(&head(4096));
                client.send(&[7; 100]);
            },
            &["100 of the 4096 bytes of the payload came in ", "(request_timeout: 20ms)"],
        ),
        (
            &|client| {
                client.send(&head(1000 << 10));
                client.send(&[7; 3]);
            },
            &["3 of the 1024000 bytes of the payload"],
        ),
        (
            &|client| client.reads(1..2, 0, 1000 << 10),
            &["the client did not read its replies: ", " bytes wait", "(reply_timeout: 20ms)"],
        ),
        (&|client| client.send(&[7; 28]), &["magic number is 0x7070707, expected 0x25609513"]),
    ];
    for (abuse, says) in cases {
        let server = server_with(TestDevice::new(MIB), options());
        let hears = why(&server);
        let mut client = client(&server);
        abuse(&mut client);
        let why = hears.recv().unwrap();
        assert!(says.iter().all(|part| why.contains(part)), "{why}");
    }
}

#[test]
fn a_client_that_the_server_lets_go_is_told_of_with_the_reason() {
    let why_of = |ends: &dyn Fn(&Server) -> Option<Client>| {
        let options = Options::new().max_connections(1).evict_idle(Some(Duration::ZERO));
        let server = server_with(TestDevice::new(MIB), options);
        let hears = why(&server);
        let client = client(&server);
        let newcomer = ends(&server);
        let why = hears.recv().unwrap();
        drop((client, newcomer));
        why
    };
    let newcomer = |server: &Server| Some(client(server));
    assert!(why_of(&newcomer).contains("a new client needed its place (evict_idle)"));
    let removed = |server: &Server| server.remove_export("disk", PATIENCE).and(None);
    assert_eq!(why_of(&removed), "the client's export was removed");
    let closed = |server: &Server| {
        server.close();
        server.remove_export("disk", PATIENCE).and(None)
    };
    assert_eq!(why_of(&closed), "the server was shut down");
    let ended = |server: &Server| Some(server.drain(PATIENCE)).and(None);
    assert_eq!(why_of(&ended), "the server was shut down");
}
