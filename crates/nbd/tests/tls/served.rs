//! Tests of sessions in TLS: they behave as sessions without TLS do.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, RemoteOptions, RemoteSession, RemoteTls, Server};
use rcgen::SanType;
use rustls::SupportedCipherSuite;
use rustls::version::{TLS12, TLS13};

use crate::common::*;
use crate::pki::Authority;
use crate::{MIB, Secure, connect, secure, serve};

/// Returns the payload of a write of `len` bytes.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Creates a server of this device, and a client of it in TLS 1.3.
fn attached(device: Arc<TestDevice>) -> (Server, Client<Secure>) {
    let authority = Authority::new();
    let server = serve(device, authority.tls(false), Options::default());
    let mut client = connect(&server, &authority.believer(&[&TLS13], None));
    client.go("disk");
    (server, client)
}

#[test]
fn a_session_in_either_version_reads_what_it_wrote_in_every_size() {
    let authority = Authority::new();
    let device = TestDevice::new(16 * MIB);
    let server = serve(device, authority.tls(false), Options::default());
    for version in [&TLS12, &TLS13] {
        let mut client = connect(&server, &authority.believer(&[version], None));
        assert_eq!(client.go("disk").size, 16 * MIB);
        if version == &TLS12 {
            let suite = client.stream.conn.negotiated_cipher_suite().unwrap();
            let SupportedCipherSuite::Tls12(suite) = suite else { panic!("{suite:?}") };
            assert_eq!(suite.common.confidentiality_limit, u64::MAX, "its keys last as long as it");
        }
        for (cookie, len) in
            [512, 4096, 16 << 10, 64 << 10, 1 << 20, 8 << 20].into_iter().enumerate()
        {
            let (cookie, data) = (cookie as u64, pattern(len));
            client.write_request(cookie, 512, &data);
            client.stream.flush().unwrap();
            assert_eq!(client.reply(0), Reply { cookie, error: 0, data: Vec::new() });
            let read = client.read(cookie, 512, len as u32);
            assert!(read.error == 0 && read.data == data, "{version:?}: {len} bytes");
        }
        client.request(Command::DISC, 0, 0, 0);
        let mut byte = [0];
        // The end is a proper one, and not one that an attacker in between may have made.
        assert_eq!(client.stream.read(&mut byte).unwrap(), 0);
    }
}

#[test]
fn a_client_with_one_request_at_a_time_gets_each_answer_once() {
    let device = TestDevice::new(MIB);
    let (_server, mut client) = attached(device.clone());
    // The requests come so fast that the session polls for them, if there are CPUs for that.
    for cookie in 0..200_u64 {
        let (offset, data) = (cookie * 512, [cookie as u8; 512]);
        client.write_request(cookie, offset, &data);
        client.stream.flush().unwrap();
        assert_eq!(client.reply(0), Reply { cookie, error: 0, data: Vec::new() });
        assert_eq!(client.read(cookie, offset, 512), Reply { cookie, error: 0, data: data.into() });
        assert_eq!(client.read(cookie, MIB, 512).error, ReplyError::Inval.code());
    }
    assert_eq!(device.seen().len(), 400);
}

#[test]
fn requests_arrive_however_the_records_are_cut() {
    let (_server, mut client) = attached(TestDevice::new(MIB));
    let head = request(Command::WRITE, 9, 4096, 3000 / 512 * 512);
    let data = pattern(head.length as usize);
    let message = [&head.encode()[..], &data].concat();
    for piece in message.chunks(97) {
        client.stream.write_all(piece).unwrap();
    }
    // One record holds several requests, and an empty record is in between.
    let read = Request { command: Command::READ, cookie: 10, ..head };
    let more = Request { cookie: 11, ..read };
    client.stream.write_all(&[]).unwrap();
    client.send(&[read.encode(), more.encode()].concat());
    assert_eq!(client.reply(0).error, 0);
    assert!(client.reply(data.len()).data == data && client.reply(data.len()).data == data);
}

#[test]
fn a_slow_client_gets_every_byte_by_the_writer_thread() {
    let device = TestDevice::new(4 * MIB);
    let (_server, mut client) = attached(device.clone());
    // The reply is more than the socket holds: a thread has to wait for room.
    client.reads(0..40, MIB, 1 << 20);
    device.wait_for_seen(40);
    for _ in 0..40 {
        let reply = client.reply(1 << 20);
        assert!(reply.error == 0 && reply.data == device.bytes(MIB as usize, 1 << 20));
    }
    assert_eq!(client.read(1, 0, 512).error, 0);
}

#[test]
fn new_keys_in_the_middle_of_requests_disturb_nothing() {
    let device = TestDevice::new(MIB);
    let (_server, mut client) = attached(device.clone());
    for round in 0..20 {
        client.reads(round * 8..round * 8 + 8, 0, 65536);
        // The server has to answer this with new keys of its own.
        client.stream.conn.refresh_traffic_keys().unwrap();
        client.request(Command::READ, 1000, 512, 512);
        for _ in 0..9 {
            let mut head = [0; SIMPLE_REPLY_LEN];
            client.stream.read_exact(&mut head).unwrap();
            let head = SimpleReply::decode(&head).unwrap();
            let len = if head.cookie == 1000 { 512 } else { 65536 };
            let mut data = vec![0; len];
            client.stream.read_exact(&mut data).unwrap();
            assert_eq!(data, device.bytes(if len == 512 { 512 } else { 0 }, len));
        }
    }
}

#[test]
fn a_client_that_has_said_its_last_word_still_gets_its_replies() {
    let device = TestDevice::new(MIB);
    let (_server, mut client) = attached(device.clone());
    device.hold();
    client.reads(0..5, 0, 4096);
    device.wait_for_seen(5);
    client.stream.conn.send_close_notify();
    client.stream.flush().unwrap();
    device.release();
    for _ in 0..5 {
        assert_eq!(client.reply(4096).error, 0);
    }
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn an_export_is_for_the_names_in_a_certificate_that_the_authority_has_signed() {
    let authority = Authority::new();
    let server = Server::with_tls(Options::default(), authority.tls(true));
    let export = |name: &str| Export::new(name, TestDevice::new(MIB));
    server.add_export(export("all")).unwrap();
    server.add_export(export("by common name").allow_certificates(["vm 1"])).unwrap();
    server.add_export(export("by dns").allow_certificates(["vm1.example", "else"])).unwrap();
    server.add_export(export("by uri").allow_certificates(["spiffe://x/vm1"])).unwrap();
    server.add_export(export("not").allow_certificates(["vm", "VM1.example", "*"])).unwrap();
    let more = [
        SanType::DnsName("vm1.example".try_into().unwrap()),
        SanType::URI("spiffe://x/vm1".try_into().unwrap()),
    ];
    let identity = authority.client("vm 1", &more);
    let mut client = connect(&server, &authority.believer(&[&TLS13], Some(&identity)));
    client.option(OptionKind::GO, &GoRequest::encode("not", &[]));
    let reply = client.opt_reply();
    assert_eq!(reply.kind, OptionReplyKind::ERR_POLICY);
    let said = String::from_utf8(reply.data).unwrap();
    let names = "'vm1.example', 'spiffe://x/vm1', 'vm 1'";
    assert!(said.starts_with("user "), "{said}");
    assert!(
        said.ends_with(&format!(" with the certificate of {names} may not use the export 'not'")),
        "{said}"
    );
    client.option(OptionKind::LIST, &[]);
    let listed = std::iter::repeat_with(|| client.opt_reply().kind)
        .take_while(|kind| *kind == OptionReplyKind::SERVER);
    assert_eq!(listed.count(), 4);
    client.go("by uri");
    for name in ["all", "by common name", "by dns"] {
        connect(&server, &authority.believer(&[&TLS12], Some(&identity))).go(name);
    }
}

#[test]
fn where_tls_is_only_allowed_a_client_may_do_without_and_has_no_name() {
    let authority = Authority::new();
    let tls = authority.tls(true).required(false);
    let server = serve(TestDevice::new(MIB), tls, Options::default());
    let of_one = Export::new("vm1's", TestDevice::new(MIB)).allow_certificates(["vm1"]);
    server.add_export(of_one).unwrap();
    let mut plain = Client::fixed(crate::common::connect(&server));
    plain.option(OptionKind::GO, &GoRequest::encode("vm1's", &[]));
    assert_eq!(plain.opt_reply().kind, OptionReplyKind::ERR_POLICY);
    let identity = authority.client("vm1", &[]);
    let mut secured = secure(plain, &authority.believer(&[&TLS13], Some(&identity)));
    secured.go("vm1's");
    let mut plain = Client::fixed(crate::common::connect(&server));
    plain.go("disk");
    assert_eq!(plain.read(1, 0, 512).error, 0);
}

/// The kernel's client has such a socket: it speaks the transmission phase in plain text.
#[test]
fn a_socket_that_is_handed_on_speaks_plain_nbd_while_its_proxy_encrypts() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = serve(TestDevice::new(16 * MIB), authority.tls(false), Options::default());
    server.listen_unix(&path).unwrap();
    let uri = format!("nbds+unix:///disk?socket={}&tls-hostname=localhost", path.display());
    let tls = RemoteTls::from_pem(authority.pem().as_bytes(), None).unwrap();
    let session = RemoteSession::open(&RemoteOptions::new(uri.parse().unwrap()).tls(tls)).unwrap();
    assert_eq!((session.size(), session.can_multi_conn()), (16 * MIB, true));
    assert!(!session.read_only() && session.block_size() == 1);
    let (socket, proxy) = session.into_socket().unwrap();
    let proxy = proxy.expect("the connection uses TLS");
    let runs = std::thread::spawn(move || proxy.run());
    let stream = UnixStream::from(socket);
    let mut writer = Client::new(stream.try_clone().unwrap());
    let mut client = Client::new(stream);
    // The data is much more than either side takes at once, in both directions at the same time.
    let (data, reads) = (pattern(8 << 20), 4);
    let written = data.clone();
    let writes = std::thread::spawn(move || {
        for cookie in 0..reads {
            writer.request(Command::READ, cookie, 0, 1 << 20);
        }
        writer.write_request(reads, 4096, &written);
    });
    for _ in 0..reads {
        assert_eq!(client.reply(1 << 20).error, 0);
    }
    assert_eq!(client.reply(0).error, 0);
    writes.join().unwrap();
    let read = client.read(9, 4096, data.len() as u32);
    assert!(read.error == 0 && read.data == data);
    // The proxy takes that much at once, with the reply's head. The rest lies decrypted in TLS.
    for length in [(256 << 10) - 16, 256 << 10, 512 << 10] {
        assert_eq!(client.read(10, 0, length).error, 0, "{length}");
    }
    client.request(Command::DISC, 10, 0, 0);
    runs.join().unwrap().unwrap();
}
