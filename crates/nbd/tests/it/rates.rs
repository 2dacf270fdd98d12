//! Tests of limits of an export and of a client. The times themselves are tested beside the code:
//! here a limit is so low that its waits never end in a test.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, Rate, Server};

const MIB: u32 = 1 << 20;
/// Rate at which a read after a read of a MiB waits for twelve days.
const TRICKLE: Rate = Rate { requests: None, bytes: Some(1) };

fn server(device: &Arc<TestDevice>, limit: impl FnOnce(Export) -> Export) -> Server {
    let server = Server::new(Options::default());
    server.add_export(limit(Export::new("disk", device.clone()))).unwrap();
    server
}

/// Checks that waiting requests are refused when the server drains, and that the drain doesn't wait
/// for them.
fn end(server: &Server, waiting: &mut [Client]) {
    let report = server.drain(PATIENCE);
    assert_eq!(report.cut, 0, "{report:?}");
    for client in waiting {
        client.expect_end_or_shutdown();
    }
}

#[test]
fn a_limit_of_an_export_holds_for_all_its_clients_together() {
    let device = TestDevice::new(4 * u64::from(MIB));
    let server = server(&device, |export| export.rate(TRICKLE));
    let (mut one, mut two) = (client(&server), client(&server));
    assert_eq!(one.read(1, 0, MIB).error, 0, "any request goes through once");
    one.request(Command::READ, 2, 0, 512);
    two.request(Command::WRITE_ZEROES, 1, 0, 512);
    assert_eq!(two.reply(0).error, 0, "it moves no bytes");
    two.write_request(2, 0, &[1; 512]);
    end(&server, &mut [one, two]);
    assert_eq!(
        device.seen().iter().filter(|seen| seen.op.has_bytes()).count(),
        2,
        "a MiB in pieces"
    );
}

#[test]
fn a_limit_of_each_client_is_no_limit_of_the_others() {
    let device = TestDevice::new(4 * u64::from(MIB));
    let server =
        server(&device, |export| export.client_rate(Rate { requests: Some(1_000_000), ..TRICKLE }));
    let mut clients = [client(&server), client(&server), client(&server)];
    for client in &mut clients {
        assert_eq!(client.read(1, 0, 4096).error, 0);
        client.request(Command::READ, 2, 0, 512);
    }
    end(&server, &mut clients);
    assert_eq!(device.seen().iter().filter(|seen| seen.op.has_bytes()).count(), 3);
}

#[test]
fn a_client_that_is_cut_while_it_waits_is_gone_at_once() {
    let device = TestDevice::new(4 * u64::from(MIB));
    let server = server(&device, |export| export.rate(TRICKLE));
    let mut waits = [client(&server), client(&server)];
    assert_eq!(waits[0].read(1, 0, MIB).error, 0);
    for client in &mut waits {
        client.request(Command::READ, 2, 0, 512);
    }
    drop(server);
    waits.iter_mut().for_each(Client::expect_end);
    assert_eq!(device.seen().iter().filter(|seen| seen.len == 512).count(), 0);
}

#[test]
fn the_time_that_a_client_is_made_to_wait_is_not_its_time_for_the_request() {
    let device = TestDevice::new(4 * u64::from(MIB));
    let options = Options::new().request_timeout(Duration::from_secs(2));
    let server = Server::new(options);
    let rate = Rate { requests: None, bytes: Some(MIB.into()) };
    server.add_export(Export::new("disk", device).rate(rate)).unwrap();
    let mut client = client(&server);
    // It takes four seconds' worth, of which one was saved up.
    assert_eq!(client.read(1, 0, 4 * MIB).error, 0);
    let request = request(Command::WRITE, 2, 0, 4096);
    let head = request.encode();
    for part in [&head[..5], &head[5..], &[7; 4096]] {
        client.send(part);
        // The next part most likely comes by itself.
        (0..3).for_each(|_| std::thread::yield_now());
    }
    assert_eq!(client.reply(0).error, 0);
}
