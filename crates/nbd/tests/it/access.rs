//! Tests of clients that may attach and clients that may not, and of the empty name.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::net::TcpStream;

use crate::common::*;
use corewise_nbd::wire::*;
use corewise_nbd::{Endpoint, Error, Export, Options, Server};

const MIB: u64 = 1 << 20;

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn export(name: &str) -> Export {
    Export::new(name, TestDevice::new(MIB))
}

fn serve(exports: impl IntoIterator<Item = Export>) -> Server {
    let server = Server::new(Options::default());
    exports.into_iter().for_each(|export| server.add_export(export).unwrap());
    server
}

/// Returns the export names that a client sees in a list.
fn list<S: std::io::Read + std::io::Write>(client: &mut Client<S>) -> Vec<String> {
    client.option(OptionKind::LIST, &[]);
    let mut names = Vec::new();
    loop {
        let reply = client.opt_reply();
        match reply.kind {
            OptionReplyKind::SERVER => {
                let (length, rest) = reply.data.split_first_chunk::<4>().unwrap();
                let name = &rest[..u32::from_be_bytes(*length) as usize];
                names.push(String::from_utf8(name.to_vec()).unwrap());
            }
            OptionReplyKind::ACK => return names,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the refusal of a `GO`.
fn refusal<S: std::io::Read + std::io::Write>(
    client: &mut Client<S>,
    name: &str,
) -> (OptionReplyKind, String) {
    client.option(OptionKind::GO, &GoRequest::encode(name, &[]));
    let reply = client.opt_reply();
    (reply.kind, String::from_utf8(reply.data).unwrap())
}

#[test]
fn a_user_sees_and_gets_only_the_exports_that_are_for_him() {
    let server = serve([
        export("everybody's"),
        export("mine").allow_uids([uid(), uid() + 1]),
        export("theirs").allow_uids([uid() + 1]),
        export("certified").allow_certificates(["somebody"]),
    ]);
    let mut client = Client::fixed(connect(&server));
    assert_eq!(list(&mut client), ["everybody's", "mine"]);
    let me = uid();
    let (kind, why) = refusal(&mut client, "theirs");
    assert_eq!(kind, OptionReplyKind::ERR_POLICY);
    assert_eq!(why, format!("user {me} without a certificate may not use the export 'theirs'"));
    assert_eq!(refusal(&mut client, "certified").0, OptionReplyKind::ERR_POLICY);
    assert_eq!(refusal(&mut client, "nobody's").0, OptionReplyKind::ERR_UNKNOWN);
    client.option(OptionKind::INFO, &GoRequest::encode("theirs", &[]));
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_POLICY);
    client.option(OptionKind::STRUCTURED_REPLY, &[]);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ACK);
    let asks = MetaRequest::encode("theirs", &[BASE_ALLOCATION]);
    client.option(OptionKind::SET_META_CONTEXT, &asks);
    assert_eq!(client.opt_reply().kind, OptionReplyKind::ERR_POLICY);
    client.go("mine");

    let mut curt = Client::fixed(connect(&server));
    curt.option(OptionKind::EXPORT_NAME, b"theirs");
    curt.expect_end();
}

#[test]
fn a_tcp_client_is_no_user_of_this_machine() {
    let server = serve([export("mine").allow_uids([uid()])]);
    let Endpoint::Tcp(address) = server.listen_tcp("127.0.0.1:0").unwrap() else { panic!() };
    let mut client = Client::fixed(TcpStream::connect(address).unwrap());
    assert_eq!(list(&mut client), [""; 0]);
    let (kind, why) = refusal(&mut client, "mine");
    assert_eq!(kind, OptionReplyKind::ERR_POLICY);
    assert_eq!(why, "127.0.0.1 without a certificate may not use the export 'mine'");
    assert_eq!(
        refusal(&mut client, "").0,
        OptionReplyKind::ERR_POLICY,
        "it is told of the only one"
    );
}

#[test]
fn the_empty_name_means_the_default_export_or_the_only_one_that_is_for_the_client() {
    let sized = |name: &str, size| Export::new(name, TestDevice::new(size));
    let size_of = |server: &Server| Client::fixed(connect(server)).go("").size;

    let server = serve([sized("a", MIB), sized("b", 2 * MIB).default_export(true)]);
    assert_eq!(size_of(&server), 2 * MIB);
    let error = server.add_export(export("c").default_export(true)).unwrap_err();
    assert!(matches!(&error, Error::DefaultTaken(export) if export.name() == "c"), "{error}");

    let server = serve([sized("a", MIB), sized("b", 2 * MIB).allow_uids([uid() + 1])]);
    assert_eq!(size_of(&server), MIB, "the other one isn't for us");

    let server = serve([sized("a", MIB), sized("b", 2 * MIB)]);
    let mut client = Client::fixed(connect(&server));
    assert_eq!(refusal(&mut client, "").0, OptionReplyKind::ERR_UNKNOWN, "either may be meant");

    let others = sized("a", MIB).default_export(true).allow_uids([uid() + 1]);
    let server = serve([others, sized("b", 2 * MIB)]);
    let mut client = Client::fixed(connect(&server));
    assert_eq!(refusal(&mut client, "").0, OptionReplyKind::ERR_POLICY);
}
