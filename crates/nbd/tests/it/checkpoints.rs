//! Block status in QEMU's contexts: which bytes changed since a checkpoint, and which layer has
//! them.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::Arc;

use crate::common::*;
use corewise_nbd::wire::*;
use corewise_nbd::{AllocationDepth, Checkpoints, Export, Options, Server};
use corewise_sync::Mutex;

const KIB: u64 = 1 << 10;

/// Two checkpoints. Each second block of 64 KiB changed since the first, and none since the other.
struct Weeks(Mutex<Vec<String>>);

impl Checkpoints for Weeks {
    fn names(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    fn changed(&self, name: &str, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, bool)>> {
        if !self.0.lock().iter().any(|one| one == name) {
            return None;
        }
        if name == "tue" {
            return Some(vec![(len, false)]);
        }
        let (mut at, mut found) = (offset, Vec::new());
        while at < offset + len && found.len() < most {
            let end = ((at / (64 * KIB) + 1) * 64 * KIB).min(offset + len);
            found.push((end - at, at / (64 * KIB) % 2 == 0));
            at = end;
        }
        Some(found)
    }
}

fn up() -> (Arc<TestDevice>, Arc<Weeks>, Server) {
    let device = TestDevice::new(4 << 20);
    device.hole(512 * KIB..1 << 20);
    let weeks = Arc::new(Weeks(Mutex::new(vec!["mon".to_owned(), "tue".to_owned()])));
    let mut options = Options::default();
    options.extended_headers = true;
    let server = Server::new(options);
    let export = Export::new("disk", device.clone()).checkpoints(weeks.clone());
    server.add_export(export).unwrap();
    (device, weeks, server)
}

fn status(offset: u64, length: u64) -> Request {
    let (flags, command) = (CommandFlags::empty(), Command::BLOCK_STATUS);
    Request { flags, command, cookie: 7, offset, length }
}

fn extents(list: &[(u64, u32)]) -> Vec<StatusExtent> {
    list.iter().map(|&(length, flags)| StatusExtent { length, flags }).collect()
}

#[test]
fn a_client_of_a_checkpoint_sees_what_changed_since_and_the_device_is_not_asked() {
    let (device, weeks, server) = up();
    for form in [Form::Structured, Form::Extended] {
        let mut client = Client::fixed(connect(&server));
        client.choose(form, None);
        client.contexts("disk", &["qemu:dirty-bitmap:mon"]);
        let summary = client.go("disk");
        assert!(!summary.flags.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD));
        // An aligned range, and one that isn't.
        let answer = client.ask(status(0, 192 * KIB));
        let blocks = [(64 * KIB, 1), (64 * KIB, 0), (64 * KIB, 1)];
        assert_eq!(answer.dirty, [(2, extents(&blocks))]);
        assert_eq!((answer.extents.len(), answer.error), (0, 0));
        let answer = client.ask(status(64 * KIB - 3, 7));
        assert_eq!(answer.dirty, [(2, extents(&[(3, 1), (4, 0)]))]);
        let one = Request { flags: CommandFlags::REQ_ONE, ..status(0, 4 << 20) };
        assert_eq!(client.ask(one).dirty, [(2, extents(&[(64 * KIB, 1)]))]);
        assert!(device.seen().is_empty());
    }
    let mut client = Client::fixed(connect(&server));
    client.structured(None);
    client.contexts("disk", &["qemu:dirty-bitmap:tue"]);
    client.go("disk");
    weeks.0.lock().clear();
    let answer = client.ask(status(0, 4096));
    assert_eq!(answer.error, ReplyError::Inval.code());
    assert_eq!(answer.message, "the checkpoint 'tue' was deleted");
}

#[test]
fn several_contexts_are_answered_together() {
    let (_device, _weeks, server) = up();
    for form in [Form::Structured, Form::Extended] {
        let mut client = Client::fixed(connect(&server));
        client.choose(form, None);
        let all = [BASE_ALLOCATION, "qemu:dirty-bitmap:mon", "qemu:dirty-bitmap:tue"];
        let chosen = client.contexts("disk", &all);
        assert_eq!(chosen.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3]);
        client.go("disk");
        for (offset, length) in [(448 * KIB, 128 * KIB), (448 * KIB + 1, 128 * KIB - 2)] {
            let answer = client.ask(status(offset, length));
            let [front, back] = [512 * KIB - offset, offset + length - 512 * KIB];
            assert_eq!(answer.extents, extents(&[(front, 0), (back, STATE_HOLE | STATE_ZERO)]));
            let mon = extents(&[(front, 0), (back, 1)]);
            assert_eq!(answer.dirty, [(2, mon), (3, extents(&[(length, 0)]))]);
            assert_eq!(answer.chunks, 3);
        }
    }
}

/// A device whose first 64 KiB are its own, and whose next ones lie below; its end isn't known.
struct Layers;

impl AllocationDepth for Layers {
    fn depths(&self, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, u32)>> {
        let end = offset + len;
        let layers = [(0..64 * KIB, 1), (64 * KIB..1024 * KIB, 2)];
        let parts = layers.into_iter().map(|(range, depth)| {
            (range.end.min(end).saturating_sub(range.start.max(offset)), depth)
        });
        let parts: Vec<_> = parts.filter(|(len, _)| *len != 0).take(most).collect();
        (!parts.is_empty()).then_some(parts)
    }
}

#[test]
fn the_layers_of_a_device_are_a_context_and_the_device_is_asked_first() {
    let device = TestDevice::new(4 << 20);
    let server = Server::new(Options::default());
    let export = Export::new("disk", device.clone()).allocation_depth(Arc::new(Layers));
    server.add_export(export).unwrap();
    let mut client = Client::fixed(connect(&server));
    client.structured(None);
    let chosen = client.contexts("disk", &["qemu:allocation-depth"]);
    let [(id, _)] = chosen[..] else { panic!("{chosen:?}") };
    client.go("disk");
    let answer = client.ask(status(0, 256 * KIB));
    assert_eq!(answer.dirty, [(id, extents(&[(64 * KIB, 1), (192 * KIB, 2)]))]);
    assert_eq!(device.seen().len(), 1, "the map of an overlay is loaded by that");
    let answer = client.ask(status(64 * KIB - 3, 7));
    assert_eq!(answer.dirty, [(id, extents(&[(3, 1), (4, 2)]))]);
    assert_eq!(client.ask(status(2 << 20, 4096)).error, ReplyError::Io.code());
    // A device without layers has no such context.
    let server = Server::new(Options::default());
    server.add_export(Export::new("disk", device)).unwrap();
    let mut client = Client::fixed(connect(&server));
    client.structured(None);
    assert!(client.contexts("disk", &["qemu:allocation-depth"]).is_empty());
}
