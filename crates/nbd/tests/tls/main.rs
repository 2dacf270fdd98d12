//! Tests of clients in TLS, by rustls' own client.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod pki;
mod refused;
mod served;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use common::{Client, TestDevice};
use corewise_nbd::wire::{OptionKind, OptionReplyKind};
use corewise_nbd::{Export, Options, Server, Tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// A client's stream in TLS.
type Secure = StreamOwned<ClientConnection, UnixStream>;

const MIB: u64 = 1 << 20;

fn serve(device: Arc<TestDevice>, tls: Tls, options: Options) -> Server {
    let server = Server::with_tls(options, tls);
    server.add_export(Export::new("disk", device)).expect("a name that is free");
    server
}

/// Asks for TLS, and returns the fresh stream.
fn secure(mut client: Client, config: &Arc<ClientConfig>) -> Client<Secure> {
    client.option(OptionKind::STARTTLS, &[]);
    let reply = client.opt_reply();
    assert_eq!((reply.option, reply.kind), (OptionKind::STARTTLS, OptionReplyKind::ACK));
    let name = ServerName::try_from("localhost").expect("a name");
    let tls = ClientConnection::new(Arc::clone(config), name).expect("a client");
    Client::new(StreamOwned::new(tls, client.stream))
}

fn connect(server: &Server, config: &Arc<ClientConfig>) -> Client<Secure> {
    secure(Client::fixed(common::connect(server)), config)
}
