//! Tests of clients that break TLS, don't finish it, or aren't vouched for, and of an attacker in
//! between.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use corewise_nbd::wire::*;
use corewise_nbd::{Error, Options, Server, Tls};
use rustls::version::{TLS12, TLS13};

use crate::common::*;
use crate::pki::Authority;
use crate::{MIB, Secure, connect, serve};

fn server(authority: &Authority) -> Server {
    serve(TestDevice::new(MIB), authority.tls(false), Options::default())
}

/// Checks that another client is served.
fn serves(server: &Server, authority: &Authority) {
    let mut client = connect(server, &authority.believer(&[&TLS13], None));
    client.go("disk");
    assert_eq!(client.read(1, 0, 512).error, 0);
}

/// Returns a request for STARTTLS.
fn ask() -> Vec<u8> {
    OptionHeader { option: OptionKind::STARTTLS, length: 0 }.encode().to_vec()
}

#[test]
fn nothing_but_tls_is_answered_where_it_is_required() {
    let authority = Authority::new();
    let server = server(&authority);
    let mut client = Client::fixed(crate::common::connect(&server));
    client.option(OptionKind::GO, &GoRequest::encode("disk", &[]));
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_TLS_REQD);
    client.option(OptionKind::EXPORT_NAME, b"disk");
    client.expect_end();
    serves(&server, &authority);
}

#[test]
fn what_was_injected_in_plain_text_behind_starttls_ends_the_connection() {
    let authority = Authority::new();
    let server = server(&authority);
    let mut client = Client::fixed(crate::common::connect(&server));
    let list = OptionHeader { option: OptionKind::LIST, length: 0 }.encode();
    // The bytes come in one piece, as an attacker in between would send them.
    client.send(&[&ask()[..], &list].concat());
    client.expect_end();

    // If they come after the server's answer to STARTTLS, they are no handshake record.
    let mut client = Client::fixed(crate::common::connect(&server));
    client.option(OptionKind::STARTTLS, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ACK);
    client.send(&list);
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert_eq!(rest.first(), Some(&21), "an alert, and no answer: {rest:?}");
    serves(&server, &authority);
}

#[test]
fn starttls_comes_once() {
    let authority = Authority::new();
    let server = server(&authority);
    let mut client = connect(&server, &authority.believer(&[&TLS13], None));
    client.option(OptionKind::STARTTLS, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_INVALID);
    client.option(OptionKind::ABORT, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ACK);
    // The end is a proper one, and not one that an attacker in between may have made.
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn half_a_handshake_ends_with_its_deadline_however_slowly_it_goes_on() {
    with_time(Duration::from_millis(200), |soon| {
        let authority = Authority::new();
        let options = Options::new().handshake_timeout(soon);
        let server = serve(TestDevice::new(MIB), authority.tls(false), options);
        let mut silent = Client::fixed(crate::common::connect(&server));
        let mut slow = Client::fixed(crate::common::connect(&server));
        for client in [&mut silent, &mut slow] {
            client.option(OptionKind::STARTTLS, &[]);
            assert_eq!(client.opt_reply().kind, OptionReplyKind::ACK);
        }
        // A handshake record comes byte by byte, while the server listens.
        slow.send(&[22, 3, 1, 0x40, 0]);
        while slow.stream.write_all(&[0]).is_ok() {
            std::thread::yield_now();
        }
        slow.drain_to_end();
        silent.drain_to_end();
    });
}

#[test]
fn garbage_instead_of_a_handshake_or_of_a_record_ends_the_connection_only() {
    let authority = Authority::new();
    let server = server(&authority);
    for garbage in [vec![0; 4096], vec![0xff; 100_000], [&[22, 3, 3, 0, 4][..], &[9; 4]].concat()] {
        let mut client = Client::fixed(crate::common::connect(&server));
        client.option(OptionKind::STARTTLS, &[]);
        assert_eq!(client.opt_reply().kind, OptionReplyKind::ACK);
        let _ = client.stream.write_all(&garbage);
        client.drain_to_end();
    }
    // The same holds in the middle of a session, after a request that is answered.
    for version in [&TLS12, &TLS13] {
        let mut client = connect(&server, &authority.believer(&[version], None));
        client.go("disk");
        client.request(Command::READ, 7, 0, 512);
        client.stream.sock.write_all(&[&[23, 3, 3, 0, 64][..], &[5; 64]].concat()).unwrap();
        let mut rest = Vec::new();
        let _ = client.stream.read_to_end(&mut rest);
        assert!(matches!(rest.len(), 0 | 528), "{} bytes", rest.len());
    }
    serves(&server, &authority);
}

/// Checks that the server ends the connection before any reply.
fn is_refused(mut client: Client<Secure>) {
    let list = OptionHeader { option: OptionKind::LIST, length: 0 }.encode();
    let said = client.stream.write_all(&list).and_then(|()| client.stream.read(&mut [0]));
    assert!(!matches!(said, Ok(1..)), "{said:?}");
}

#[test]
fn a_client_without_a_certificate_or_with_another_authority_s_is_refused() {
    let authority = Authority::new();
    let server = serve(TestDevice::new(MIB), authority.tls(true), Options::default());
    let stranger = Authority::new().client("vm1", &[]);
    // A server's certificate doesn't serve a client.
    let no_client = authority.server();
    for version in [&TLS12, &TLS13] {
        is_refused(connect(&server, &authority.believer(&[version], None)));
        is_refused(connect(&server, &authority.believer(&[version], Some(&stranger))));
        is_refused(connect(&server, &authority.believer(&[version], Some(&no_client))));
        let known = authority.client("vm1", &[]);
        connect(&server, &authority.believer(&[version], Some(&known))).go("disk");
    }
    wait_for_connections(&server, 0);
    let counts = server.handshakes();
    assert_eq!((counts.attached, counts.tls_failed), (2, 6), "{counts:?}");
}

#[test]
fn half_a_record_is_half_a_request_and_ends_with_its_deadline() {
    with_time(Duration::from_millis(100), |soon| {
        let authority = Authority::new();
        let options = Options::new().request_timeout(soon);
        let server = serve(TestDevice::new(MIB), authority.tls(false), options);
        let mut client = connect(&server, &authority.believer(&[&TLS13], None));
        client.go("disk");
        assert_eq!(client.read(1, 0, 512).error, 0);
        client.stream.sock.write_all(&[23, 3, 3, 0x40, 0]).unwrap();
        // The bytes come one by one, while the server listens.
        while client.stream.sock.write_all(&[0]).is_ok() {
            std::thread::yield_now();
        }
        client.drain_to_end();
        let mut silent = connect(&server, &authority.believer(&[&TLS13], None));
        silent.go("disk");
        silent.request(Command::WRITE, 1, 0, 512);
        silent.drain_to_end();
    });
}

#[test]
fn silence_between_records_is_idleness() {
    with_time(Duration::from_millis(100), |soon| {
        let authority = Authority::new();
        let options = Options::new().idle_timeout(Some(soon));
        let server = serve(TestDevice::new(MIB), authority.tls(false), options);
        let mut client = connect(&server, &authority.believer(&[&TLS13], None));
        client.go("disk");
        assert_eq!(client.read(1, 0, 512).error, 0);
        // New keys are no request.
        client.stream.conn.refresh_traffic_keys().unwrap();
        client.stream.flush().unwrap();
        // The end is a proper one, so the client needn't guess.
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_client_that_does_not_take_its_replies_is_given_up() {
    let authority = Authority::new();
    let options = Options::new().reply_timeout(Duration::from_millis(100));
    let server = serve(TestDevice::new(4 * MIB), authority.tls(false), options);
    let mut client = connect(&server, &authority.believer(&[&TLS13], None));
    client.go("disk");
    client.reads(0..10, 0, 4 << 20);
    let begin = Instant::now();
    // Another thread may drop the last reply after the client has left the registry.
    while server.connections() > 0 || server.memory().taken > 0 {
        assert!(begin.elapsed() < PATIENCE, "{:?}", server.memory());
        std::thread::yield_now();
    }
}

#[test]
fn a_certificate_that_cannot_be_used_is_said_with_its_reason() {
    let authority = Authority::new();
    let (one, other) = (authority.server(), authority.server());
    let (pem, key) = (one.certificate.as_bytes(), one.key.as_bytes());
    let said = |pem: &[u8], key: &[u8], ca: Option<&[u8]>| {
        let error = Tls::from_pem(pem, key, ca).unwrap_err();
        assert!(matches!(error, Error::Tls { .. }));
        error.to_string()
    };
    let none = said(b"", key, None);
    assert!(none.contains("the certificate cannot") && none.contains("no certificate"), "{none}");
    assert!(said(pem, b"letters", None).contains("the key cannot"));
    let mixed = said(pem, other.key.as_bytes(), None);
    assert!(
        mixed.contains("the key cannot") && mixed.contains("doesn't belong to the cert"),
        "{mixed}"
    );
    // The certificate is blamed, and not the key that has to fit it.
    let bad = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(said(bad, key, None).contains("the certificate cannot"));
    let cut = said(&pem[..pem.len() / 2], key, None);
    assert!(cut.contains("the end of a CERTIFICATE is missing"), "{cut}");
    let locked = one.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    assert!(said(pem, locked.as_bytes(), None).contains("no key without a password"));
    assert!(said(pem, key, Some(b"")).contains("clients' authority"));
}
