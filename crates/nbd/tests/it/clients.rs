//! The list of clients: what is known of each, what it has been answered, and how it is disconnected.
#![cfg(not(loom))]

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::*;
use corewise_blockmq::{IoErrorKind, Op};
use corewise_nbd::wire::*;
use corewise_nbd::{ClientEvent, ClientStatus, Peer, Server};

const MIB: u64 = 1 << 20;

/// The clients when so many requests have been counted: a reply is counted once it has left.
fn counted(server: &Server, requests: u64) -> Vec<ClientStatus> {
    loop {
        let clients = server.clients();
        let all = clients.iter().flat_map(|one| one.traffic.all()).map(|(_, of)| of.requests);
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
    assert_eq!(busy.traffic.of(Op::Read).requests, 0);
    device.release();
    for _ in 0..3 {
        client.reply(4096);
    }
    let [busy] = &counted(&server, 3)[..] else { panic!() };
    assert_eq!(busy.traffic.of(Op::Read).bytes, 3 * 4096);
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
    // Its requests are still in the device, and so it is still listed.
    let [gone, _] = &server.clients()[..] else { panic!() };
    assert!(gone.id == id && gone.draining && gone.in_flight == 2);
    device.release();
    assert_eq!(other.reply(512).error, 0);
    while server.connections() > 1 {
        std::thread::yield_now();
    }
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
    while server.connections() > 0 {
        std::thread::yield_now();
    }
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
        ClientEvent::Left { id, export, why } => {
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
    assert_eq!(hears.recv().unwrap(), format!("{id} left disk: it said goodbye"));
    // One that never chooses an export is no client of any.
    drop(Client::fixed(connect(&server)));
    let cut = client(&server);
    assert!(hears.recv().unwrap().ends_with("attached disk"));
    assert!(server.disconnect(server.clients().last().unwrap().id));
    let left = hears.recv().unwrap();
    assert!(left.ends_with("left disk: it was disconnected"), "{left}");
    drop(cut);
}
