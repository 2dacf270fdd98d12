//! Tests of many clients, silent clients, and clients that come when there is no more room.
#![cfg(not(loom))]

use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::*;
use corewise_blockmq::Geometry;
use corewise_nbd::wire::*;
use corewise_nbd::{Endpoint, Error, Export, HandshakeCounts, Options, Server};

const MIB: u64 = 1 << 20;

#[test]
fn the_deadline_closes_a_client_that_never_chooses_an_export_and_no_other() {
    with_time(Duration::from_millis(50), |soon| {
        let options = Options::new().handshake_timeout(soon);
        let server = server_with(TestDevice::new(MIB), options);
        let mut chosen = client(&server);
        let mut silent = connect(&server);
        let mut haggling = Client::fixed(connect(&server));
        let mut greeting = [0; GREETING_LEN];
        std::io::Read::read_exact(&mut silent, &mut greeting).unwrap();
        haggling.option(OptionKind::LIST, &[]);
        while haggling.opt_reply().kind != OptionReplyKind::ACK {}
        Client::new(silent).expect_end();
        haggling.expect_end();
        assert_eq!(handshakes(&server, 3).timed_out, 2);
        assert_eq!(chosen.read(1, 0, 512).error, 0);
    });
}

/// Waits until `ended` handshakes have ended, and returns their counts.
fn handshakes(server: &Server, ended: u64) -> HandshakeCounts {
    loop {
        let counts = server.handshakes();
        let HandshakeCounts { attached, no_place, evicted, timed_out, .. } = counts;
        let HandshakeCounts { tls_failed, failed, left, .. } = counts;
        let all = attached + no_place + evicted + timed_out + tls_failed + failed + left;
        assert!(all <= ended, "{counts:?}");
        if all == ended {
            return counts;
        }
        std::thread::yield_now();
    }
}

#[test]
fn each_handshake_is_counted_once_by_how_it_ended() {
    let server = server_with(TestDevice::new(MIB), Options::new().max_connections(1));
    let mut served = client(&server);
    // The server refuses the client three times for lack of a place, then in the only way that
    // EXPORT_NAME has.
    let mut stubborn = Client::fixed(connect(&server));
    for _ in 0..3 {
        stubborn.option(OptionKind::GO, &GoRequest::encode("disk", &[]));
        assert_eq!(stubborn.opt_reply().kind, OptionReplyKind::ERR_POLICY);
    }
    stubborn.option(OptionKind::EXPORT_NAME, b"disk");
    stubborn.expect_end();
    let mut patient = Client::fixed(connect(&server));
    patient.option(OptionKind::GO, &GoRequest::encode("disk", &[]));
    let refusal = patient.opt_reply();
    assert_eq!(refusal.kind, OptionReplyKind::ERR_POLICY);
    assert_eq!(refusal.data, b"all 1 places of this server are taken");
    assert_eq!(served.read(1, 0, 512).error, 0, "it keeps its place");
    drop(served);
    wait_for_connections(&server, 1);
    patient.go("disk");
    // These leave.
    drop(connect(&server));
    let mut polite = Client::fixed(connect(&server));
    polite.option(OptionKind::GO, &GoRequest::encode("none", &[]));
    assert_eq!(polite.opt_reply().kind, OptionReplyKind::ERR_UNKNOWN);
    polite.option(OptionKind::ABORT, &[]);
    assert_eq!(polite.opt_reply().kind, OptionReplyKind::ACK);
    polite.expect_end();
    // These don't speak the protocol.
    let mut garbage = Client::fixed(connect(&server));
    garbage.send(&[9; 16]);
    garbage.drain_to_end();
    let mut wrong = Client::fixed(connect(&server));
    wrong.option(OptionKind::EXPORT_NAME, b"none");
    wrong.expect_end();
    // The server closes this one.
    let mut cut = Client::fixed(connect(&server));
    let _ = server.drain(PATIENCE);
    cut.drain_to_end();
    let mut expected = HandshakeCounts::default();
    (expected.attached, expected.no_place) = (2, 1);
    (expected.failed, expected.left) = (2, 3);
    assert_eq!(handshakes(&server, 8), expected);
}

#[test]
fn half_open_connections_lock_nobody_out() {
    let options = Options::new().max_half_open(4).max_connections(8);
    let server = server_with(TestDevice::new(MIB), options);
    let mut half_open: Vec<_> = (0..20).map(|_| Client::fixed_or_gone(connect(&server))).collect();
    let mut served: Vec<_> = (0..4).map(|_| client(&server)).collect();
    for client in &mut served {
        assert_eq!(client.read(1, 0, 512).error, 0);
    }
    // The oldest of the silent ones had to go, without any deadline.
    for client in &mut half_open[..12] {
        client.drain_to_end();
    }
    assert!(server.connections() <= 12);
    drop((half_open, served));
    let counts = handshakes(&server, 24);
    assert_eq!(counts.attached, 4);
    assert!(counts.evicted >= 12 && counts.evicted + counts.left == 20, "{counts:?}");
}

#[test]
fn clients_that_come_together_have_the_places_that_are_free_however_few_may_shake_hands() {
    const HERD: usize = 100;
    let options = Options::new().max_half_open(4).max_connections(HERD);
    let server = server_with(TestDevice::new(MIB), options);
    let herd: Vec<_> = (0..HERD).map(|_| connect(&server)).collect();
    let mut served: Vec<Client> = herd.into_iter().map(Client::fixed).collect();
    for client in &mut served {
        client.go("disk");
    }
    for client in &mut served {
        assert_eq!(client.read(1, 0, 512).error, 0);
    }
}

/// Chooses an export. Returns the client, or the error.
fn choose(server: &Server, name: &str) -> Result<Client, String> {
    let mut client = Client::fixed(connect(server));
    client.option(OptionKind::GO, &GoRequest::encode(name, &[]));
    loop {
        let reply = client.opt_reply();
        match reply.kind {
            OptionReplyKind::INFO => {}
            OptionReplyKind::ACK => return Ok(client),
            kind => {
                assert_eq!(kind, OptionReplyKind::ERR_POLICY);
                return Err(String::from_utf8_lossy(&reply.data).into_owned());
            }
        }
    }
}

#[test]
fn an_export_and_a_peer_have_no_more_places_than_they_are_given() {
    let options = Options::new().max_per_peer(Some(3));
    let server = server_with(TestDevice::new(MIB), options);
    server.add_export(Export::new("few", TestDevice::new(MIB)).max_clients(Some(1))).unwrap();
    let few = choose(&server, "few").unwrap();
    assert_eq!(choose(&server, "few").err().unwrap(), "all 1 places of this export are taken");
    let _others = [choose(&server, "disk").unwrap(), choose(&server, "disk").unwrap()];
    let refusal = choose(&server, "disk").err().unwrap();
    assert_eq!(refusal, "all 3 places for clients of this address or user are taken");
    drop(few);
    while server.exports().iter().map(|export| export.clients).sum::<usize>() > 2 {
        std::thread::yield_now();
    }
    choose(&server, "few").unwrap();
}

#[test]
fn the_client_that_is_idle_for_longest_makes_room_for_a_newcomer_where_the_owner_says_so() {
    let evict_idle = Some(Duration::ZERO);
    let options = Options::new().max_connections(3).evict_idle(evict_idle);
    let device = TestDevice::new(MIB);
    let server = server_with(device.clone(), options);
    let mut busy = client(&server);
    device.hold();
    busy.request(Command::READ, 1, 0, 512);
    device.wait_for_seen(1);
    device.hold_no_more();
    let mut idle = client(&server);
    idle.write_request(1, 0, &[1; 512]);
    assert_eq!(idle.reply(0).error, 0);
    let mut later = client(&server);
    later.write_request(1, 512, &[1; 512]);
    assert_eq!(later.reply(0).error, 0);
    // A reply arrives a moment before it is settled, and its client idle.
    while server.exports()[0].in_flight > 1 {
        std::thread::yield_now();
    }
    let mut newcomer = client(&server);
    assert_eq!(newcomer.read(1, 1024, 512).error, 0);
    idle.expect_end();
    assert_eq!(later.read(2, 0, 512).error, 0, "it was not its turn to go");
    device.release();
    assert_eq!(busy.reply(512).error, 0, "one that waits for its reply isn't idle");
}

#[test]
fn a_flood_of_clients_does_not_keep_the_server_from_going() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = server(TestDevice::new(MIB));
    server.listen_unix(&path).unwrap();
    let mut idle = client(&server);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // The loop ends when no server listens there any more.
            scope.spawn(|| while UnixStream::connect(&path).is_ok() {});
        }
        while server.connections() < 2 {
            std::thread::yield_now();
        }
        // The deadline is for the clients. A listener that is stuck in the flood would use it up.
        let report = server.drain(PATIENCE);
        assert!(report.is_clean(), "{report}");
    });
    idle.expect_end();
}

#[test]
fn an_address_in_use_is_said_with_the_address() {
    let server = server(TestDevice::new(MIB));
    let Endpoint::Tcp(address) = server.listen_tcp("127.0.0.1:0").unwrap() else { panic!() };
    let error = server.listen_tcp(address).unwrap_err();
    assert!(error.to_string().contains(&address.port().to_string()), "{error}");
}

#[test]
fn a_device_whose_geometry_cannot_be_is_not_exported() {
    let server = server(TestDevice::new(MIB));
    let device = TestDevice::with(Geometry { block_size: 0, ..Geometry::new(MIB) });
    let error = server.add_export(Export::new("bad", device)).unwrap_err();
    let said = error.to_string();
    assert!(
        said.starts_with("the geometry of the device of export 'bad': block_size is 0"),
        "{said}"
    );
    assert!(matches!(error, Error::BadDevice { export, .. } if export.name() == "bad"));
}

#[test]
fn a_name_is_given_once_and_the_default_export_is_the_only_one() {
    let server = server(TestDevice::new(MIB));
    let error = server.add_export(Export::new("disk", TestDevice::new(MIB))).unwrap_err();
    let Error::NameTaken(export) = error else { panic!("{error}") };
    assert_eq!(export.name(), "disk", "it is given back");
    let long = Export::new("x".repeat(5000), TestDevice::new(MIB));
    assert!(matches!(server.add_export(long), Err(Error::BadText { what: "name", .. })));
    // The empty name means the only export, and nothing if there are two.
    let mut client = Client::fixed(connect(&server));
    client.option(OptionKind::INFO, &GoRequest::encode("", &[InfoKind::NAME]));
    assert_eq!(client.opt_reply().kind, OptionReplyKind::INFO);
    assert_eq!(client.opt_reply().data, b"\0\x01disk");
    while client.opt_reply().kind != OptionReplyKind::ACK {}
    server.add_export(Export::new("more", TestDevice::new(MIB))).unwrap();
    client.option(OptionKind::INFO, &GoRequest::encode("", &[]));
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_UNKNOWN);
    // EXPORT_NAME has no error, so the connection ends.
    client.option(OptionKind::EXPORT_NAME, b"");
    client.expect_end();
}

#[test]
fn a_server_without_exports_lists_nothing_and_serves_nothing() {
    let server = Server::new(Options::default());
    let mut client = Client::fixed(connect(&server));
    client.option(OptionKind::LIST, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ACK);
    client.option(OptionKind::GO, &GoRequest::encode("", &[]));
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_UNKNOWN);
    client.option(OptionKind::ABORT, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ACK);
    client.expect_end();
}
