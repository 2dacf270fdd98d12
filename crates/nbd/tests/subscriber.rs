//! A `tracing` subscriber is the user's code: its panics keep no client from a reply.
#![cfg(not(loom))]

mod common;

use common::*;
use corewise_blockmq::IoErrorKind;
use corewise_nbd::wire::Command;
use tracing::{Event, Metadata, Subscriber, span};

/// Panics in each event.
struct Angry;

impl Subscriber for Angry {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {
        panic!("on purpose, in a subscriber");
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_subscriber_that_panics_keeps_no_client_from_the_error_that_it_gets() {
    // For all threads: a connection has its own.
    tracing::subscriber::set_global_default(Angry).unwrap();
    let device = TestDevice::new(1 << 20);
    let server = server(device.clone());
    let mut client = client(&server);
    client.request(Command::READ, 1, 1 << 20, 512);
    assert_ne!(client.reply(0).error, 0, "refused by the server");
    device.fail(IoErrorKind::Io(5));
    client.request(Command::READ, 2, 0, 512);
    assert_eq!(client.reply(0), Reply { cookie: 2, error: 5, data: vec![] });
}
