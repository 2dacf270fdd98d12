//! Tests of attacks that other NBD servers have fallen for: the patterns of CVE-2019-14850,
//! CVE-2019-14851, CVE-2024-7409, CVE-2025-47711 and CVE-2025-47712.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::answers::Answer;
use crate::common::*;
use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, Server};

const MIB: u64 = 1 << 20;

struct Victim {
    device: Arc<TestDevice>,
    server: Server,
    bystander: Client,
}

impl Victim {
    fn new() -> Victim {
        let device = TestDevice::new(MIB);
        let server = server(device.clone());
        let bystander = client(&server);
        Victim { device, server, bystander }
    }

    /// Connects a client that has exchanged greetings.
    fn haggling(&self) -> Client {
        Client::fixed(connect(&self.server))
    }

    #[track_caller]
    fn nobody_noticed(mut self) {
        assert_eq!(self.bystander.read(99, 512, 512).data, self.device.bytes(512, 512));
        assert_eq!(client(&self.server).read(98, 0, 512).error, 0);
        drop(self.bystander);
        assert!(self.server.drain(PATIENCE).is_clean());
    }
}

/// Checks CVE-2019-14850: a connection made nbdkit open its device before anything was agreed on.
#[test]
fn a_device_is_not_touched_before_its_export_is_chosen() {
    let victim = Victim::new();
    for _ in 0..100 {
        let mut client = victim.haggling();
        client.option(OptionKind::LIST, &[]);
        client.option(OptionKind::INFO, &GoRequest::encode("disk", &[]));
        while client.opt_reply().option != OptionKind::INFO {}
    }
    assert!(victim.device.seen().is_empty());
    victim.nobody_noticed();
}

/// Checks CVE-2019-14851: `INFO` of one export and then the choice of another, by any option, ended
/// nbdkit by an assertion.
#[test]
fn information_about_one_export_and_the_choice_of_another() {
    let victim = Victim::new();
    for choice in [OptionKind::GO, OptionKind::EXPORT_NAME] {
        for name in ["disk", "nope", ""] {
            let mut client = victim.haggling();
            client.option(OptionKind::INFO, &GoRequest::encode("disk", &[]));
            let data = match choice {
                OptionKind::GO => GoRequest::encode(name, &[]),
                _ => name.as_bytes().to_vec(),
            };
            client.option(choice, &data);
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            client.drain_to_end();
        }
    }
    victim.nobody_noticed();
}

/// Checks CVE-2024-7409: qemu crashed if a client kept its socket open while the server was taken
/// down.
#[test]
fn sockets_that_are_kept_open_while_the_server_is_taken_down() {
    let Victim { device, server, bystander } = Victim::new();
    let silent: Vec<_> = (0..8).map(|_| connect(&server)).collect();
    let half: Vec<_> = (0..8).map(|_| Client::fixed(connect(&server))).collect();
    let mut busy = client(&server);
    device.hold();
    busy.request(Command::READ, 1, 0, 512);
    device.wait_for_seen(1);
    let report = server.drain(Duration::from_millis(50));
    // The busy client is cut; on a busy machine others are, too.
    assert!(report.clients == 18 && report.cut >= 1, "{report:?}");
    drop(server);
    device.release();
    drop((silent, half, busy, bystander));
}

/// Creates a client with structured replies and block status.
fn of_vast() -> (Arc<Vast>, Server, Client) {
    let device = Arc::new(Vast::default());
    let server = Server::new(Options::default());
    server.add_export(Export::new("disk", device.clone())).unwrap();
    let mut client = Client::fixed(connect(&server));
    client.structured(Some("disk"));
    client.go("disk");
    (device, server, client)
}

fn ask(
    client: &mut Client,
    command: Command,
    flags: CommandFlags,
    offset: u64,
    length: u32,
) -> Answer {
    client.ask(Request { flags, command, cookie: 1, offset, length: length.into() })
}

/// Checks CVE-2025-47711: an extent that ends at 32 bits, or beyond, ended nbdkit by an assertion.
#[test]
fn a_block_status_as_long_as_32_bits_say_in_a_hole_that_is_longer() {
    let (_device, _server, mut client) = of_vast();
    let longest = u32::MAX - 511;
    for length in [longest, longest - 512, 1 << 31, (1 << 31) - 512, (1 << 31) + 512] {
        for offset in [0, 512, 1 << 32, (1 << 32) - 512, TIB - u64::from(length)] {
            for flags in [CommandFlags::empty(), CommandFlags::REQ_ONE] {
                let answer = ask(&mut client, Command::BLOCK_STATUS, flags, offset, length);
                let hole = StatusExtent { length: length.into(), flags: STATE_HOLE | STATE_ZERO };
                assert_eq!((answer.error, answer.extents), (0, vec![hole]), "{length} at {offset}");
            }
        }
    }
}

/// Checks CVE-2025-47712: a length that was rounded up to whole blocks became zero, or passed the
/// end, and ended nbdkit by an assertion. Here the device gets a request for the blocks around such
/// a range or, by a trim, for those inside of it. It gets none beyond the end.
#[test]
fn ranges_that_pass_32_bits_or_the_end_when_they_are_rounded_to_blocks() {
    let (device, _server, mut client) = of_vast();
    let all = u64::from(u32::MAX);
    let odd = [(1, u32::MAX), (0, u32::MAX), (511, u32::MAX - 1), (513, u32::MAX - 511)];
    let at_the_end = [(TIB - all, u32::MAX), (TIB - 511, 511), (TIB - 1, 1), (TIB - 513, 512)];
    let beyond = [(TIB - 511, 512), (TIB - 1, u32::MAX), (u64::MAX, 1), (u64::MAX - 510, 511)];
    let commands = [Command::BLOCK_STATUS, Command::WRITE_ZEROES, Command::TRIM, Command::CACHE];
    let tried = odd.iter().chain(&at_the_end).map(|range| (range, true));
    for (&(offset, length), may) in tried.chain(beyond.iter().map(|range| (range, false))) {
        for command in commands {
            device.seen.lock().clear();
            let answer = ask(&mut client, command, CommandFlags::empty(), offset, length);
            let seen = std::mem::take(&mut *device.seen.lock());
            if answer.error != 0 {
                assert!(seen.is_empty(), "{command:?} of {length} at {offset}: {seen:?}");
                continue;
            }
            assert!(may, "{command:?} of {length} at {offset}");
            let end = seen.iter().map(|(_, from, len)| from + len).max().unwrap_or(0);
            // A trim leaves out a block of which more is in use.
            assert!(command == Command::TRIM || end >= offset + u64::from(length), "{end}");
            for (_, offset, length) in seen {
                assert!(
                    (offset | length) % 512 == 0 && offset + length <= TIB,
                    "{offset} {length}"
                );
            }
        }
    }
    assert_eq!(ask(&mut client, Command::READ, CommandFlags::empty(), 0, 512).error, 0);
}
